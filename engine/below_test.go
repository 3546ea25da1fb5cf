package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// A below is the memory backend, of which a test can have things fail.
type below struct {
	sandbox.Runtime

	mu       sync.Mutex
	creates  []sandbox.Spec // guarded by mu
	opens    int            // guarded by mu
	removes  map[sandbox.ID]int
	onCreate func(context.Context, sandbox.Spec) error // guarded by mu, as are the others
	onOpen   func(context.Context, sandbox.ID) error
	onRemove func(context.Context, sandbox.ID) error
	onList   func(context.Context) error
}

func newBelow() *below {
	return &below{Runtime: memory.New(memory.Config{}), removes: make(map[sandbox.ID]int)}
}

// with changes what fails.
func (b *below) with(f func(*below)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

func (b *below) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b.mu.Lock()
	b.creates = append(b.creates, spec)
	hook := b.onCreate
	b.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, spec); err != nil {
			return nil, err
		}
	}
	sb, err := b.Runtime.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return b.wrap(sb), nil
}

func (b *below) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	b.mu.Lock()
	b.opens++
	hook := b.onOpen
	b.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, id); err != nil {
			return nil, err
		}
	}
	sb, err := b.Runtime.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.wrap(sb), nil
}

func (b *below) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	b.mu.Lock()
	hook := b.onList
	b.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return func(yield func(sandbox.Info, error) bool) { yield(sandbox.Info{}, err) }
		}
	}
	return b.Runtime.List(ctx)
}

// kill removes a sandbox behind the engine's back, if it is there.
func (b *below) kill(t *testing.T, id sandbox.ID) {
	t.Helper()
	sb, err := b.Runtime.Open(t.Context(), id)
	if errors.Is(err, sandbox.NotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// all returns the ids of what there is.
func (b *below) all(t *testing.T) []sandbox.ID {
	t.Helper()
	var ids []sandbox.ID
	for info, err := range b.Runtime.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, info.ID)
	}
	return ids
}

// removed returns how often the sandbox was removed.
func (b *below) removed(id sandbox.ID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.removes[id]
}

// whole is all that a sandbox of the memory backend can do.
type whole interface {
	sandbox.Sandbox
	sandbox.Pauser
	sandbox.Dialer
	sandbox.Meter
	sandbox.Detacher
}

func (b *below) wrap(sb sandbox.Sandbox) sandbox.Sandbox { return belowBox{sb.(whole), b} }

type belowBox struct {
	whole
	b *below
}

func (s belowBox) Remove(ctx context.Context) error {
	s.b.mu.Lock()
	s.b.removes[s.ID()]++
	hook := s.b.onRemove
	s.b.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, s.ID()); err != nil {
			return err
		}
	}
	return s.whole.Remove(ctx)
}

// start returns an Engine over b, which ends with the test.
func start(t *testing.T, b *below, cfg engine.Config) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// acquire returns the sandbox that spec asks for, which must be there or made.
func acquire(t *testing.T, k sandbox.Keeper, spec sandbox.Spec) (sandbox.Sandbox, bool) {
	t.Helper()
	sb, made, err := k.Acquire(t.Context(), spec)
	if err != nil {
		t.Fatalf("acquire %q: %v", spec.Name, err)
	}
	return sb, made
}

// refused checks that err is of a kind and about a field.
func refused(t *testing.T, err error, kind sandbox.Kind, field string) *sandbox.Error {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Field != field {
		t.Fatalf("the error is %v (%v), want %s about %q", err, sandbox.KindOf(err), kind, field)
	}
	return e
}

// gone checks that the sandbox cannot be opened, and why.
func gone(t *testing.T, rt sandbox.Runtime, id sandbox.ID, why sandbox.Why) *sandbox.Gone {
	t.Helper()
	_, err := rt.Open(t.Context(), id)
	var g *sandbox.Gone
	if !errors.Is(err, sandbox.NotExist) || !errors.As(err, &g) {
		t.Fatalf("open: %v, want that it is gone", err)
	}
	if g.Why != why {
		t.Fatalf("it is gone because %s, want %s", g.Why, why)
	}
	return g
}

// run runs a command line and returns what it printed.
func run(t *testing.T, sb sandbox.Sandbox, line string) string {
	t.Helper()
	r, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"sh", "-c", line}})
	if err != nil || !r.Success() {
		t.Fatalf("%s: %v, %v, %s", line, r.Exit, err, r.Stderr)
	}
	return string(r.Stdout)
}

// background starts a command that ends when it is killed.
func background(t *testing.T, sb sandbox.Sandbox, args ...string) (sandbox.Process, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := sb.Start(ctx, sandbox.Cmd{Args: args})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	return p, func() { cancel(); p.Wait() }
}

func names(n int) []string {
	s := make([]string, n)
	for i := range s {
		s[i] = fmt.Sprintf("thread %d", i)
	}
	return s
}

const minute = time.Minute
