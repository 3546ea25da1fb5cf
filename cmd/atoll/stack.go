package main

import (
	"context"
	"errors"
	"iter"
	"log/slog"

	"github.com/atoll-run/atoll/sandbox"
)

// openStack returns the Runtime that the daemon serves: every backend that c
// names, each in its own folder below the state folder.
func openStack(ctx context.Context, c *Config, log *slog.Logger) (sandbox.Runtime, error) {
	var all union
	for _, name := range c.Backend {
		rt, err := openBackend(ctx, c, name, c.State, log.With("backend", name))
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all = append(all, rt)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return all, nil
}

// A union is several Runtimes as one. The first makes the sandboxes; those of
// all are found.
type union []sandbox.Runtime

func (u union) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	return u[0].Create(ctx, spec)
}

func (u union) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	var err error
	for _, rt := range u {
		var sb sandbox.Sandbox
		if sb, err = rt.Open(ctx, id); !errors.Is(err, sandbox.NotExist) {
			return sb, err
		}
	}
	return nil, err
}

func (u union) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		for _, rt := range u {
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
	for _, rt := range u {
		errs = append(errs, rt.Close())
	}
	return errors.Join(errs...)
}
