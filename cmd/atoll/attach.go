package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/sandbox"
)

// patience is how long a command that was told to end by a signal may take.
const patience = 10 * time.Second

// streamFlags say which of this program's streams a command gets.
type streamFlags struct {
	interactive bool
	tty         bool
	timeout     time.Duration
}

func (f *streamFlags) add(fs *pflag.FlagSet) {
	fs.BoolVarP(&f.interactive, "interactive", "i", false, "pass on standard input")
	fs.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	fs.DurationVar(&f.timeout, "timeout", 0, "kill the command after this time, such as 30s; its status is then 124")
}

// attach runs cmd in sb as if it were this program, and says why it was killed
// where nothing else does. It returns the command's status as an error, or nil
// if that is 0. What gives a command more memory is said by more.
func (a *app) attach(ctx context.Context, sb sandbox.Sandbox, cmd sandbox.Cmd, f streamFlags, more string) error {
	begun := time.Now()
	exit, err := a.attachTo(ctx, sb, cmd, f)
	if e := status(0); err == nil || errors.As(err, &e) {
		switch exit.Reason {
		case sandbox.TimedOut:
			if f.timeout == 0 || time.Since(begun) < f.timeout {
				say(a.stderr, hint(errors.New("the command was killed: it ran for longer than the profile allows"), "atoll inspect names the sandbox's profile"))
				break
			}
			say(a.stderr, hint(fmt.Errorf("the command was killed: it ran for longer than %v", f.timeout), "raise --timeout"))
		case sandbox.OutOfMemory:
			var limit int64
			if info, err := sb.Info(ctx); err == nil {
				limit = info.Limits.Memory
			}
			if limit == 0 {
				say(a.stderr, hint(errors.New("the command ran out of memory"), "there is no limit: this is all that the machine has"))
				break
			}
			say(a.stderr, hint(fmt.Errorf("the command ran out of memory: the sandbox may use %s", formatSize(limit)), more))
		}
	}
	return err
}

// attachTo gives cmd this program's streams, its terminal and its signals.
//
// The first signal goes to the command, which may end in its own way; what
// still runs after a second one, or [patience], is killed.
func (a *app) attachTo(ctx context.Context, sb sandbox.Sandbox, cmd sandbox.Cmd, f streamFlags) (sandbox.Exit, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	cmd.Timeout = f.timeout
	if f.interactive || f.tty {
		// Only its Read: nothing inside gets hold of the file itself. A Read
		// that blocks to the end ends with the program.
		cmd.Stdin = struct{ io.Reader }{a.stdin}
	}
	// When nobody reads any more, the command shall not go on writing.
	out := untilBroken(a.stdout, cancel)
	cmd.Stdout, cmd.Stderr = out, out
	if !sameFile(a.stdout, a.stderr) { // else both in the order in which they were written
		cmd.Stderr = untilBroken(a.stderr, cancel)
	}

	var term *terminal
	if f.tty {
		var err error
		if term, err = openTerminal(a.stdin); err != nil {
			return sandbox.Exit{}, err
		}
		defer term.restore()
		defer a.sigs.onInsisted(term.restore)()
		size := term.size()
		cmd.Terminal = &size
		if v, ok := a.getenv("TERM"); ok && cmd.Env["TERM"] == "" {
			env := map[string]string{"TERM": v}
			for k, v := range cmd.Env {
				env[k] = v
			}
			cmd.Env = env
		}
	}

	// From before the command starts: it may say that it is ready before we
	// know that it has started.
	started := make(chan sandbox.Process, 1)
	release := a.sigs.take(a.pass(ctx, cancel, started))
	defer release()
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return sandbox.Exit{}, err
	}
	started <- p
	if term != nil {
		stop := term.watch(func(s sandbox.Size) { p.Resize(ctx, s) })
		defer stop()
	}
	exit, err := p.Wait()
	return exit, verdict(ctx, exit, err)
}

// starting is how long a signal waits for a command to start before it ends
// the attempt.
const starting = time.Second

// pass returns what hands a signal to the process that comes out of started,
// and to cancel when that does not help.
func (a *app) pass(ctx context.Context, cancel context.CancelCauseFunc, started <-chan sandbox.Process) func(syscall.Signal) bool {
	var once sync.Once
	return func(sig syscall.Signal) bool {
		first := false
		once.Do(func() {
			first = true
			go func() {
				var p sandbox.Process
				select {
				case p = <-started:
				case <-ctx.Done():
					return
				case <-time.After(starting):
					cancel(signalled{sig})
					return
				}
				if p.Signal(ctx, sandbox.SignalNumbered(int(sig))) != nil {
					cancel(signalled{sig})
					return
				}
				// Control-C is for the command to understand; it may well
				// go on. The others mean that this program has to end.
				if sig == syscall.SIGINT {
					return
				}
				select {
				case <-time.After(patience):
					cancel(signalled{sig})
				case <-ctx.Done():
				}
			}()
		})
		return first
	}
}

// verdict turns the end of a command into what the program ends with.
func verdict(ctx context.Context, exit sandbox.Exit, err error) error {
	switch {
	case isBroken(context.Cause(ctx)), isBroken(err):
		return status(exitBrokenPipe)
	case err != nil:
		return err
	case exit.Status() != 0:
		return status(exit.Status())
	}
	return nil
}

// sameFile reports whether f and g are one file: a terminal, or a pipe after
// 2>&1.
func sameFile(f, g *os.File) bool {
	i, err1 := f.Stat()
	j, err2 := g.Stat()
	return err1 == nil && err2 == nil && os.SameFile(i, j)
}

// untilBroken passes writes on to f and calls cancel when nobody reads it any
// more.
func untilBroken(f *os.File, cancel context.CancelCauseFunc) io.Writer {
	return &pipeEnd{f, cancel}
}

type pipeEnd struct {
	f      *os.File
	cancel context.CancelCauseFunc
}

func (p *pipeEnd) Write(b []byte) (int, error) {
	n, err := p.f.Write(b)
	if isBroken(err) {
		p.cancel(errNoReader)
	}
	return n, err
}
