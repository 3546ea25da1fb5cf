// Package edit is what agents do to files: find them, look into them, change a
// piece of one, and carry a directory in and out as an archive. It stands on
// [sandbox.Files] and nothing else, so it works in every sandbox, whatever its
// image has.
//
// Everything here is bounded, in time, in what is looked at and in what is
// given back. A search that meets its bound is no error: it gives what it has,
// and [Cut] says why that is not all. A number that is zero in an options
// struct is the default that its comment names; a negative one is
// [sandbox.Invalid].
//
// Links are never followed below the directory that the caller names, which
// may itself be one, so there are no loops. What vanishes during a search, or
// may not be read, is counted and left out. Between looking at a path and using
// it a process of the same sandbox can change what is there: that can change
// the sandbox's own files, which the process could do anyway, and nothing else.
//
// Paths and text are bytes, as in [sandbox.Files]: who sends them as JSON makes
// them UTF-8 first. The shapes, names and defaults of a protocol are its
// adapter's.
package edit

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A Cut says why a result is not all that there is. The zero Cut says that it
// is.
type Cut string

const (
	CutMatches Cut = "matches" // there are more matches than were asked for
	CutScan    Cut = "scan"    // more was to be looked at than was allowed
	CutTime    Cut = "time"    // the time was over
	CutLines   Cut = "lines"   // there are more lines than were asked for
	CutBytes   Cut = "bytes"   // there are more bytes than were asked for
)

// atOnce is how many calls a search has with the sandbox at a time.
const atOnce = 8

// budget returns a context that ends with ctx or when d has passed, and a
// function that reports whether it was the latter.
func budget(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc, func() bool) {
	inner, cancel := context.WithTimeout(ctx, d)
	return inner, cancel, func() bool {
		return ctx.Err() == nil && errors.Is(inner.Err(), context.DeadlineExceeded)
	}
}

// passing reports whether err concerns one path alone, so that a search goes
// on without it. That the sandbox is gone names no path.
func passing(err error) bool {
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Field != "path" {
		return false
	}
	switch e.Kind {
	case sandbox.NotExist, sandbox.Denied, sandbox.Invalid, sandbox.Unsupported:
		return true
	}
	return false
}

// A number is an option that must not be negative.
type number struct {
	field string
	n     int64
}

// checkNumbers returns an error that names the first negative one.
func checkNumbers(all ...number) error {
	for _, n := range all {
		if n.n < 0 {
			return sandbox.Errorf(sandbox.Invalid, n.field, "%d is negative", n.n).WithHint("give a positive number, or 0 for the default")
		}
	}
	return nil
}

// join appends a relative path to a directory.
func join(dir, rel string) string {
	if rel == "" {
		return dir
	}
	if strings.HasSuffix(dir, "/") {
		return dir + rel
	}
	return dir + "/" + rel
}

// hidden reports whether a name begins with a dot.
func hidden(name string) bool { return strings.HasPrefix(name, ".") }
