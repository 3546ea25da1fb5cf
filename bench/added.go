package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/audit"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
)

// added measures what the engine costs, in this process and without HTTP: the
// same sandbox is used once through it and once without it.
func (b *bench) added(ctx context.Context) error {
	dir := filepath.Join(b.stateDir, "added")
	if b.backend == "linux" {
		rt, err := linux.New(linux.Config{State: filepath.Join(dir, "linux", "state")})
		if err != nil {
			return err
		}
		if err := b.engineOver(ctx, rt, "linux", filepath.Join(dir, "linux"), b.size(300, 50)); err != nil {
			return err
		}
	}
	// Where a command costs next to nothing, the difference is seen well.
	return b.engineOver(ctx, memory.New(memory.Config{}), "memory", filepath.Join(dir, "memory"), b.size(300, 50))
}

// engineOver measures an Engine over rt, which it closes, with n samples in
// each round. The Engine has its files in dir, as the daemon's has.
func (b *bench) engineOver(ctx context.Context, rt sandbox.Runtime, backend, dir string, n int) (err error) {
	e, err := newEngine(ctx, rt, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	view := e.View(sandbox.Operator, "native")
	spec := sandbox.Spec{Name: "bench", Limits: sandbox.Limits{Memory: limitMemory, PIDs: limitPIDs}}
	through, _, err := view.Acquire(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, through.Remove(context.WithoutCancel(ctx))) }()
	id := through.ID()
	bare, err := rt.Open(ctx, id)
	if err != nil {
		return err
	}
	books, err := store.Open(filepath.Join(dir, "other.db"), store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, books.Close()) }()

	opening := func(rt sandbox.Runtime) func(context.Context) (time.Duration, error) {
		return timed(func(ctx context.Context) error {
			sb, err := rt.Open(ctx, id)
			if err != nil {
				return err
			}
			return runTrue(ctx, sb)
		})
	}
	written := 0
	all, err := race(ctx, 5, n, 20,
		contestant{backend + " alone", timed(func(ctx context.Context) error { return runTrue(ctx, bare) })},
		contestant{"engine", timed(func(ctx context.Context) error { return runTrue(ctx, through) })},
		contestant{backend + " alone", opening(rt)},
		contestant{"engine", opening(view)},
		contestant{"acquire", timed(func(ctx context.Context) error {
			sb, made, err := view.Acquire(ctx, spec)
			if err == nil && (made || sb.ID() != id) {
				err = fmt.Errorf("got %s, made %t", sb.ID(), made)
			}
			return err
		})},
		contestant{"store", func(ctx context.Context) (time.Duration, error) {
			written++
			rec := store.Record{ID: sandbox.ID(fmt.Sprintf("written%d", written)), Owner: sandbox.Operator, Class: "native", Names: []string{"bench"},
				Profile: "native", Spec: spec, Created: time.Now(), Used: time.Now()}
			rec.Inner = rec.ID
			took, err := timed(func(ctx context.Context) error { return books.Put(ctx, rec) })(ctx)
			return took, errors.Join(err, books.Forget(ctx, rec.ID, rec.Inner))
		}})
	if err != nil {
		return err
	}
	name := "engine and store add to an exec on " + backend
	row := all[1].longer(name, all[0])
	b.add(row.promise(row.P50 < 50, "< 50"), all[3].longer(name+", opened for it", all[2]))
	if backend == "memory" && b.backend == "linux" {
		return nil // nothing else differs
	}
	b.add(all[4].micros("acquire of a sandbox that is there"), all[5].micros("a create's write into the store"))
	return nil
}

// newEngine returns an Engine over rt that has its store, its record and its
// metrics as the daemon's has. If it fails it closes rt.
func newEngine(ctx context.Context, rt sandbox.Runtime, dir string) (*engine.Engine, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	record, err := audit.Open(filepath.Join(dir, "audit.jsonl"), audit.Options{})
	if err != nil {
		return nil, errors.Join(err, rt.Close())
	}
	books, err := store.Open(filepath.Join(dir, "engine.db"), store.Options{})
	if err != nil {
		return nil, errors.Join(err, record.Close(), rt.Close())
	}
	e, err := engine.New(ctx, rt, engine.Config{Store: books, Metrics: prometheus.NewRegistry(), Audit: record.Write, EndAudit: record.Close})
	if err != nil {
		return nil, errors.Join(err, record.Close())
	}
	return e, nil
}

// timed returns what calls do and says how long it took.
func timed(do func(context.Context) error) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		err := do(ctx)
		return time.Since(start), err
	}
}

// runTrue runs a command in sb that does nothing.
func runTrue(ctx context.Context, sb sandbox.Sandbox) error {
	r, err := sandbox.Capture(ctx, sb, 1<<10, sandbox.Cmd{Args: []string{"true"}})
	if err == nil && !r.Success() {
		err = fmt.Errorf("true ended with %+v: %s", r.Exit, r.Stderr)
	}
	return err
}
