package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// farewell bounds the removal of a sandbox when the program is about to end.
const farewell = 30 * time.Second

func (a *app) runCommand() *cobra.Command {
	var spec specFlags
	var streams streamFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "run a command in a new sandbox and remove the sandbox",
		Long: `Run makes a sandbox, runs a command in it, and removes it again, whatever
happens. It ends with the command's exit status (atoll help exit-codes).

It needs no daemon: it makes the sandbox by itself. If ATOLL_HOST or --daemon
names one, that one makes it.`,
		Example: `  atoll run -- sh -c 'echo hi'
  atoll run --memory 512m --cpus 1 --timeout 30s --mount .:/workspace -- python3 main.py
  atoll run -it -- bash`,
		Annotations: map[string]string{passesStatus: "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := command(args)
			if err != nil {
				return err
			}
			c, err := a.load(cmd.Flags())
			if err != nil {
				return err
			}
			s, err := spec.spec(a)
			if err != nil {
				return err
			}
			want := sandbox.Cmd{Args: args}
			if err := want.Check(); err != nil {
				return err
			}
			if a.daemonNamed(cmd) {
				for _, name := range []string{"allow-mount", "allow-image"} {
					if cmd.Flags().Changed(name) {
						return hint(usage("--%s says what may be shown by a sandbox made here, but a daemon makes it", name), "give it to atoll serve, or unset ATOLL_HOST")
					}
				}
				rt, err := a.connect(&c)
				if err != nil {
					return err
				}
				defer rt.Close()
				return a.runIn(cmd.Context(), rt, s, want, streams)
			}
			// Whoever runs this program may show what they may read, unless
			// the configuration says less.
			if len(c.AllowMount) == 0 {
				c.AllowMount = []string{"/"}
			}
			if len(c.AllowImage) == 0 {
				c.AllowImage = []string{"/"}
			}
			if s.Backend != "" {
				c.Backend = []string{s.Backend}
			}
			return a.embedded(cmd.Context(), &c, func(ctx context.Context, rt sandbox.Runtime) error {
				return a.runIn(ctx, rt, s, want, streams)
			})
		},
	}
	cmd.Flags().SetInterspersed(false)
	spec.add(cmd.Flags())
	a.completeSpec(cmd)
	streams.add(cmd.Flags())
	settings(cmd, "state", "daemon", "token-file", "allow-mount", "allow-image", "log")
	return cmd
}

// runIn makes a sandbox in rt, runs cmd there, and removes it.
func (a *app) runIn(ctx context.Context, rt sandbox.Runtime, spec sandbox.Spec, cmd sandbox.Cmd, streams streamFlags) (err error) {
	sb, err := rt.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if e := sb.Remove(bye); e != nil && !errors.Is(e, sandbox.NotExist) {
			say(a.stderr, fmt.Errorf("the sandbox %s could not be removed: %w", sb.ID(), e))
			if err == nil {
				err = status(exitOurs)
			}
		}
	}()
	return a.attach(ctx, sb, cmd, streams, "raise --memory")
}

// embedded calls f with a Runtime of the first backend that lives as long as
// the call, in a state folder of its own. Meanwhile it removes what earlier
// calls left that were killed.
func (a *app) embedded(ctx context.Context, c *Config, f func(context.Context, sandbox.Runtime) error) (err error) {
	log := a.logger(max(c.Log, slog.LevelWarn))
	own, err := makeScratch(c.State)
	if err != nil {
		return err
	}
	defer func() {
		if e := own.remove(); e != nil {
			log.Warn("the state could not be removed", "err", e)
		}
	}()

	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		err := sweep(context.WithoutCancel(ctx), c.State, func(ctx context.Context, dir string) error {
			return a.clean(ctx, c, dir, log)
		})
		if err != nil {
			log.Warn("what earlier runs left is not all removed", "err", err)
		}
	})
	defer sweeping.Wait()

	below, err := openBackend(ctx, c, c.Backend[0], own.dir, log)
	if err != nil {
		return err
	}
	cfg, err := c.policy()
	if err != nil {
		return errors.Join(err, below.Close())
	}
	cfg.Log = log
	rt, err := engine.New(ctx, below, cfg)
	if err != nil {
		return err
	}
	defer func() {
		if e := rt.Close(); e != nil {
			log.Warn("the backend did not close well", "err", e)
		}
	}()
	return f(ctx, rt)
}

// clean removes the sandboxes whose state is in dir. Only those of linux
// outlive their program.
func (a *app) clean(ctx context.Context, c *Config, dir string, log *slog.Logger) error {
	if _, err := os.Stat(filepath.Join(dir, "linux")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	rt, err := openBackend(ctx, c, "linux", dir, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	return errors.Join(removeAll(ctx, rt), rt.Close())
}
