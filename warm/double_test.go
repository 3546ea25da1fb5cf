package warm_test

import (
	"context"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

// A backend is the memory one with a hand on what it does. Its hooks, where
// they are set, run before the deed and may refuse it; made runs after a
// sandbox was made and before Create returns it.
type backend struct {
	sandbox.Runtime
	bare bool // its sandboxes are nothing but sandboxes

	mu sync.Mutex
	hooks
	specs   []sandbox.Spec
	removed []sandbox.ID
	lists   int
}

type hooks struct {
	create func(context.Context, sandbox.Spec) error
	made   func(context.Context, sandbox.Sandbox) error
	open   func(context.Context, sandbox.ID) error
	stat   func(context.Context, sandbox.ID) error
	update func(context.Context, sandbox.ID, sandbox.Change) error
	remove func(context.Context, sandbox.ID) error
}

// set has f change the hooks.
func (b *backend) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *backend) now() hooks {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hooks
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	b := &backend{Runtime: memory.New(memory.Config{Images: []string{"*"}})}
	t.Cleanup(func() { b.Close() })
	return b
}

// created returns what Create was called with.
func (b *backend) created() []sandbox.Spec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.specs)
}

func (b *backend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b.mu.Lock()
	b.specs = append(b.specs, spec)
	b.mu.Unlock()
	if create := b.now().create; create != nil {
		if err := create(ctx, spec); err != nil {
			return nil, err
		}
	}
	sb, err := b.Runtime.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if made := b.now().made; made != nil {
		if err := made(ctx, sb); err != nil {
			sb.Remove(context.WithoutCancel(ctx))
			return nil, err
		}
	}
	return b.box(sb), nil
}

func (b *backend) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	if open := b.now().open; open != nil {
		if err := open(ctx, id); err != nil {
			return nil, err
		}
	}
	sb, err := b.Runtime.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.box(sb), nil
}

func (b *backend) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	b.mu.Lock()
	b.lists++
	b.mu.Unlock()
	return b.Runtime.List(ctx)
}

func (b *backend) box(sb sandbox.Sandbox) sandbox.Sandbox {
	if b.bare {
		return &bare{sb, b}
	}
	return &box{sb.(able), b}
}

// able is what the memory backend's sandboxes are.
type able interface {
	sandbox.Sandbox
	sandbox.Pauser
	sandbox.Dialer
	sandbox.Meter
	sandbox.Detacher
	sandbox.Updater
}

type box struct {
	able
	b *backend
}

func (x *box) Update(ctx context.Context, c sandbox.Change) error {
	if update := x.b.now().update; update != nil {
		if err := update(ctx, x.ID(), c); err != nil {
			return err
		}
	}
	return x.able.Update(ctx, c)
}

func (x *box) Files() sandbox.Files { return &files{x.able.Files(), x} }

type files struct {
	sandbox.Files
	x *box
}

func (f *files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	if stat := f.x.b.now().stat; stat != nil {
		if err := stat(ctx, f.x.ID()); err != nil {
			return sandbox.FileInfo{}, err
		}
	}
	return f.Files.Stat(ctx, path)
}

func (x *box) Remove(ctx context.Context) error { return x.b.take(ctx, x.able) }

type bare struct {
	sandbox.Sandbox
	b *backend
}

func (x *bare) Remove(ctx context.Context) error { return x.b.take(ctx, x.Sandbox) }

func (b *backend) take(ctx context.Context, sb sandbox.Sandbox) error {
	if remove := b.now().remove; remove != nil {
		if err := remove(ctx, sb.ID()); err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.removed = append(b.removed, sb.ID())
	b.mu.Unlock()
	return sb.Remove(ctx)
}

// kill ends a sandbox behind everybody's back.
func (b *backend) kill(t *testing.T, id sandbox.ID) {
	t.Helper()
	sb, err := b.Runtime.Open(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// ids returns the ids of what really lives.
func (b *backend) ids(t *testing.T) map[sandbox.ID]bool {
	t.Helper()
	ids := make(map[sandbox.ID]bool)
	for i, err := range b.Runtime.List(context.WithoutCancel(t.Context())) {
		if err != nil {
			t.Fatal(err)
		}
		ids[i.ID] = true
	}
	return ids
}

func room(context.Context) error { return nil }

// newRuntime returns a Runtime around b that has room, and is closed when the
// test ends.
func newRuntime(t *testing.T, b *backend, cfg warm.Config) *warm.Runtime {
	t.Helper()
	if cfg.Room == nil {
		cfg.Room = room
	}
	rt, err := warm.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return rt
}

func create(t *testing.T, rt sandbox.Runtime, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return sb
}

func info(t *testing.T, sb sandbox.Sandbox) sandbox.Info {
	t.Helper()
	i, err := sb.Info(t.Context())
	if err != nil {
		t.Fatalf("Info: %v", err)
	}
	return i
}

// listed returns what List shows.
func listed(t *testing.T, rt sandbox.Runtime) map[sandbox.ID]sandbox.Info {
	t.Helper()
	all := make(map[sandbox.ID]sandbox.Info)
	for i, err := range rt.List(t.Context()) {
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		if _, twice := all[i.ID]; twice {
			t.Errorf("List yields %s twice", i.ID)
		}
		all[i.ID] = i
	}
	return all
}

// wantStats compares counters; Specs and Stalled are left to their own tests.
func wantStats(t *testing.T, rt *warm.Runtime, want warm.Stats) {
	t.Helper()
	got := rt.Stats()
	got.Specs, got.Stalled = nil, ""
	if g, w := [6]int64{int64(got.Ready), got.Hits, got.Misses, got.Filled, got.Failed, got.Dropped},
		[6]int64{int64(want.Ready), want.Hits, want.Misses, want.Filled, want.Failed, want.Dropped}; g != w {
		t.Errorf("ready, hits, misses, filled, failed, dropped are %v, want %v", g, w)
	}
}

var image = sandbox.Spec{Image: "some"}

const hour = time.Hour
