package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// Our own exit statuses; atoll help exit-codes explains them. run and exec
// pass on the command's own, so that theirs are the ones that env(1),
// timeout(1) and docker have.
const (
	exitFailed     = 1
	exitUsage      = 2
	exitOurs       = 125 // run and exec: atoll failed, not the command
	exitDenied     = 126 // run and exec: the command may not be executed
	exitNotFound   = 127 // run and exec: there is no such command
	exitBrokenPipe = 141 // nobody reads what we write, as after SIGPIPE
)

// status is an error that has nothing to say: it carries an exit status.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// A hinted error has, on lines of their own, what to do next.
type hinted struct {
	error
	hints []string
}

func (h hinted) Unwrap() error { return h.error }

// hint returns err with hints.
func hint(err error, hints ...string) error { return hinted{err, hints} }

// usage returns an error about how the command was called.
func usage(format string, args ...any) error {
	return sandbox.Errorf(sandbox.Invalid, "", format, args...)
}

// passesStatus marks commands whose exit status is that of a command inside.
const passesStatus = "passes-status"

// report says what err is and returns the exit status that belongs to it.
func (a *app) report(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	if s := status(0); errors.As(err, &s) {
		return int(s)
	}
	if isBroken(err) {
		return exitBrokenPipe
	}
	if sig := signalOf(ctx); sig != 0 && sandbox.KindOf(err) == sandbox.Unavailable {
		return 128 + int(sig)
	}
	say(a.stderr, err)
	passes := cmd != nil && cmd.Annotations[passesStatus] != ""
	kind := sandbox.KindOf(err)
	var e *sandbox.Error
	ofArgs := errors.As(err, &e) && e.Field == "args"
	switch {
	case passes && ofArgs && kind == sandbox.NotExist:
		return exitNotFound
	case passes && ofArgs && kind == sandbox.Denied:
		return exitDenied
	case passes:
		return exitOurs
	case kind == sandbox.Invalid:
		return exitUsage
	}
	return exitFailed
}

// errNoReader says that nobody reads what we write.
var errNoReader = errors.New("nobody reads the output")

// isBroken reports whether err says that nobody reads what we write: our own
// output, that is, and not a connection that broke.
func isBroken(err error) bool {
	var file *fs.PathError
	return errors.Is(err, errNoReader) || errors.As(err, &file) && file.Op == "write" && errors.Is(file.Err, syscall.EPIPE)
}

// say writes err for people: one line, and its hints below.
func say(w io.Writer, err error) {
	msg, hints := phrase(err)
	fmt.Fprintf(w, "atoll: %s\n", printable(msg))
	for _, h := range hints {
		fmt.Fprintf(w, "       %s\n", printable(h))
	}
}

// phrase splits err into a message and hints.
func phrase(err error) (string, []string) {
	var hints []string
	var h hinted
	if errors.As(err, &h) {
		hints = h.hints
	}
	hints = append(hints, unreachable(err)...)
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err.Error(), hints
	}
	before, ok := strings.CutSuffix(err.Error(), e.Error())
	if !ok { // several errors in one
		return err.Error(), hints
	}
	var parts []string
	if before != "" {
		parts = append(parts, strings.TrimSuffix(before, ": ")) // words that somebody put before it
	}
	if e.Field != "" {
		parts = append(parts, flagOf(e.Field))
	}
	if e.Msg != "" {
		parts = append(parts, e.Msg)
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	if e.Msg == "" && e.Err == nil {
		parts = append(parts, kindWords[e.Kind])
	}
	if e.Hint != "" {
		hints = append([]string{e.Hint}, hints...)
	}
	return strings.Join(parts, ": "), hints
}

// kindWords says a kind where an error has no words of its own.
var kindWords = map[sandbox.Kind]string{
	sandbox.Invalid:     "the request is wrong",
	sandbox.Denied:      "that is not allowed",
	sandbox.NotExist:    "there is no such thing",
	sandbox.Conflict:    "it is there already, or differs from what is there",
	sandbox.Exhausted:   "a limit is reached",
	sandbox.Unsupported: "that cannot be done here",
	sandbox.Unavailable: "that cannot be done now",
	sandbox.Closed:      "it was closed",
	sandbox.Internal:    "something is broken inside atoll",
}

// flagOf returns how a person gave the field of a request.
func flagOf(field string) string {
	switch field {
	case "limits.memory":
		return "--memory"
	case "limits.cpu":
		return "--cpus"
	case "limits.pids":
		return "--pids"
	case "limits.disk":
		return "--disk"
	case "limits.workspace":
		return "--workspace"
	case "read_only_root":
		return "--read-only"
	case "mounts", "mounts.source", "mounts.target":
		return "--mount"
	case "labels":
		return "--label"
	case "id", "name", "profile", "idle", "unused", "image", "env", "workdir", "user", "network", "require", "expires", "timeout", "signal", "backend":
		return "--" + field
	case "dir":
		return "--workdir"
	case "args":
		return "command"
	}
	return field
}
