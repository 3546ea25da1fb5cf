package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// logsPiece is how much output one request of atoll logs asks for, in bytes.
const logsPiece = 256 << 10

func (a *app) logsCommand() *cobra.Command {
	var follow, raw bool
	var cursor int64
	cmd := &cobra.Command{
		Use:   "logs [flags] ID|NAME [PROCESS]",
		Short: "show the output of a detached process",
		Long: `Logs shows what the sandbox has kept of a detached process's output. Without
PROCESS it shows that of the only one there is.

On a terminal escape sequences and other control characters are shown instead
of obeyed; --raw lets them through.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return exactly("ID")(cmd, args)
		},
		ValidArgsFunction: a.completeProcess,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cursor < 0 {
				return usage("--cursor: %d is negative", cursor)
			}
			sb, done, err := a.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			d, err := ability[sandbox.Detacher](sb, "keep the output of a process")
			if err != nil {
				return err
			}
			id, err := theProcess(cmd.Context(), d, args[1:])
			if err != nil {
				return err
			}
			stdout, flush1 := a.shown(a.stdout, raw)
			stderr, flush2 := a.shown(a.stderr, raw)
			err = a.logs(cmd.Context(), d, id, cursor, follow, stdout, stderr)
			return errors.Join(err, flush1(), flush2())
		},
	}
	client(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the process ends")
	cmd.Flags().BoolVar(&raw, "raw", false, "let escape sequences through to the terminal")
	cmd.Flags().Int64Var(&cursor, "cursor", 0, "begin at this byte of the output")
	return cmd
}

// shown returns a writer to f which is harmless if f is a terminal, and what
// writes out the rest.
func (a *app) shown(f *os.File, raw bool) (io.Writer, func() error) {
	if raw || !isTerminal(f) {
		return f, func() error { return nil }
	}
	s := &safeWriter{w: f}
	return s, s.Flush
}

// theProcess returns the process that args name, or the only one there is.
func theProcess(ctx context.Context, d sandbox.Detacher, args []string) (sandbox.ProcessID, error) {
	if len(args) > 0 {
		return sandbox.ProcessID(args[0]), nil
	}
	ps, err := d.Processes(ctx)
	switch {
	case err != nil:
		return "", err
	case len(ps) == 1:
		return ps[0].ID, nil
	case len(ps) == 0:
		return "", hint(&sandbox.Error{Kind: sandbox.NotExist, Msg: "the sandbox has no detached process"}, "atoll exec -d starts one")
	}
	ids := make([]string, len(ps))
	for i, p := range ps {
		ids[i] = string(p.ID)
	}
	return "", hint(usage("the sandbox has %d detached processes: say which", len(ps)), "they are "+strings.Join(ids, ", ")+"; atoll ps shows what they are")
}

// logs writes what is kept of a process's output from cursor on, and with
// follow what comes until it ends.
func (a *app) logs(ctx context.Context, d sandbox.Detacher, id sandbox.ProcessID, cursor int64, follow bool, stdout, stderr io.Writer) error {
	wait := time.Duration(0)
	if follow {
		wait = 20 * time.Second
	}
	for {
		out, err := d.Output(ctx, id, cursor, logsPiece, wait)
		if errors.Is(err, sandbox.NotExist) {
			return hint(&sandbox.Error{Kind: sandbox.NotExist, Msg: "there is no detached process " + string(id)}, "atoll ps shows those that there are")
		}
		if err != nil {
			return err
		}
		if out.Dropped > 0 {
			fmt.Fprintf(a.stderr, "atoll: %d bytes of output are no longer kept\n", out.Dropped)
		}
		for _, c := range out.Chunks {
			w := stdout
			if c.Stderr {
				w = stderr
			}
			if _, err := w.Write(c.Data); err != nil {
				return err
			}
		}
		ended := out.Exit != nil
		if ended || !follow && out.Next == cursor {
			return nil
		}
		cursor = out.Next
	}
}
