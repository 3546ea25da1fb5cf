package main

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"

	"github.com/atoll-run/atoll/sandbox"
)

// openStack returns the Runtime that the daemon serves: every backend that c
// names, each in its own folder below the state folder.
func openStack(ctx context.Context, c *Config, log *slog.Logger) (sandbox.Runtime, error) {
	all := union{names: c.Backend}
	for _, name := range c.Backend {
		rt, err := openBackend(ctx, c, name, c.State, log.With("backend", name))
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all.rts = append(all.rts, rt)
	}
	if len(all.rts) == 1 {
		return all.rts[0], nil
	}
	return all, nil
}

// A union is several Runtimes as one. The first makes the sandboxes of who
// names no backend; those of all are found.
type union struct {
	names []string
	rts   []sandbox.Runtime // of the same length
}

func (u union) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := spec.CheckBackend(u.names...); err != nil {
		return nil, err
	}
	return u.rts[max(0, slices.Index(u.names, spec.Backend))].Create(ctx, spec)
}

func (u union) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	var err error
	for _, rt := range u.rts {
		var sb sandbox.Sandbox
		if sb, err = rt.Open(ctx, id); !errors.Is(err, sandbox.NotExist) {
			return sb, err
		}
	}
	return nil, err
}

func (u union) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		for _, rt := range u.rts {
			for info, err := range rt.List(ctx) {
				if !yield(info, err) || err != nil {
					return
				}
			}
		}
	}
}

func (u union) Close() error {
	var errs []error
	for _, rt := range u.rts {
		errs = append(errs, rt.Close())
	}
	return errors.Join(errs...)
}
