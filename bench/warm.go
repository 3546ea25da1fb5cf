package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pooled is the configuration of a daemon with as large a pool as by default.
const pooled = "[warm]\nmax = 4\n"

const poolSize = 4

// errNotFilled says that the pool is not full and does not become so: it makes
// nothing while the machine has much to do.
var errNotFilled = errors.New("the pool does not become full")

// warm measures a sandbox up to its first result where one is ready, beside an
// exec by the same daemon, and beside a sandbox that has to be made. The pool
// is full before each, and is filled up again before anybody else's turn.
func (b *bench) warm(ctx context.Context) (err error) {
	d, err := b.another(ctx, "pooled", pooled)
	if err != nil {
		return err
	}
	defer func() { err = d.stopAfter(err) }()
	kinds := []struct {
		name, bwrap string
		spec        spec
		command     string
	}{{"image host", "bubblewrap, the host's true", spec{}, "true"}}
	if b.cc {
		kinds = append(kinds, kinds[0])
		kinds[0].name, kinds[0].bwrap, kinds[0].spec.image, kinds[0].command = "image dir", "bubblewrap", "dir:"+b.root, "/true"
	}

	patience := time.Duration(b.size(20, 5)) * time.Second
	var all []contestant
	for _, k := range kinds {
		id, err := d.create(ctx, k.spec)
		if err != nil {
			return err
		}
		once := creator(d, k.spec, k.command)
		all = append(all,
			contestant{"warm, " + k.name, func(ctx context.Context) (time.Duration, error) {
				if err := d.full(ctx, poolSize, patience); err != nil {
					return 0, err
				}
				took, err := once(ctx)
				return took, errors.Join(err, d.full(ctx, poolSize, patience))
			}},
			contestant{"exec, " + k.name, func(ctx context.Context) (time.Duration, error) { return d.timedExec(ctx, id, k.command) }},
			contestant{"cold, " + k.name, creator(b.atoll, k.spec, k.command)})
	}
	// In turns, so that each gets its share of the pool.
	for range 2 * poolSize {
		for _, k := range kinds {
			if _, err := creator(d, k.spec, k.command)(ctx); err != nil {
				return err
			}
		}
	}
	results, err := race(ctx, 5, b.size(25, 5), 3, append(all, b.bubblewrap(ctx)...)...)
	if errors.Is(err, errNotFilled) {
		b.note("left out: create → first result, warm: %v; the load is %.1f", err, loadavg())
		return nil
	}
	if err != nil {
		return err
	}
	compare := b.comparer(results)
	for _, k := range kinds {
		row, ours := "create → first result, warm, "+k.name, "warm, "+k.name
		compare(row, ours, "exec, "+k.name, func(r Row) Row { return r.atMost(3) })
		compare(row, ours, "cold, "+k.name, none)
		compare(row, ours, k.bwrap, none)
	}
	return nil
}

// full waits until as many sandboxes as that are ready, as long as patience
// lasts.
func (d *daemon) full(ctx context.Context, size int, patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		s, err := d.status(ctx)
		if err != nil {
			return err
		}
		if s.Warm >= size {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %d of %d are ready", errNotFilled, s.Warm, size)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
