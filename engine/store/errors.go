package store

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	boltErrors "go.etcd.io/bbolt/errors"

	"github.com/atoll-run/atoll/sandbox"
)

var errClosed = &sandbox.Error{Kind: sandbox.Closed, Msg: "the store was closed"}

// A damaged error says what in the file is not as it was written.
type damaged string

func (d damaged) Error() string { return string(d) }

func damage(format string, args ...any) error { return damaged(fmt.Sprintf(format, args...)) }

// A newer error is the version of a file that this program does not know.
type newer int

func (n newer) Error() string { return fmt.Sprintf("its format has version %d", int(n)) }

// failure makes an error of a backing one of ours. It names no path, since a
// tenant may see it.
func failure(err error) error {
	var e *sandbox.Error
	var d damaged
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, boltErrors.ErrDatabaseNotOpen):
		return errClosed
	case errors.As(err, &d):
		return &sandbox.Error{Kind: sandbox.Internal, Msg: "the record of sandboxes is damaged", Hint: "ask the operator, whose log says how to go on", Err: err}
	case full(err):
		return &sandbox.Error{Kind: sandbox.Exhausted, Msg: "the disk that keeps the record of sandboxes is full", Hint: "ask the operator to make room where the state folder is", Err: err}
	}
	return &sandbox.Error{Kind: sandbox.Unavailable, Msg: "the record of sandboxes cannot be written", Hint: "ask the operator, whose log says why", Err: err}
}

// full reports whether err is for want of room. bbolt keeps only the text of
// some errors.
func full(err error) bool {
	for _, no := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, no) || strings.Contains(err.Error(), no.Error()) {
			return true
		}
	}
	return false
}

// refusal makes an error of Open one that tells who starts the daemon how to
// go on. It names the file: nobody else sees it.
func refusal(path string, err error) error {
	var e *sandbox.Error
	var d damaged
	var n newer
	is := func(kind sandbox.Kind, msg, hint string) error {
		return &sandbox.Error{Op: "store.Open", Kind: kind, Msg: fmt.Sprintf(msg, path), Hint: hint, Err: err}
	}
	switch {
	case errors.As(err, &e):
		return err
	case errors.Is(err, errHeld):
		return is(sandbox.Conflict, "another process uses %s", "stop it first, or use another state folder")
	case errors.As(err, &d):
		return is(sandbox.Internal, "%s is damaged and was left as it is", fmt.Sprintf("to go on without it, move it away: mv %[1]s %[1]s.damaged; sandboxes that still run are then found by their backends, without their names and owners", path))
	case errors.As(err, &n):
		return is(sandbox.Unsupported, "%s was written by a newer version of this program", "start that version, or move the file away")
	case full(err):
		return is(sandbox.Exhausted, "there is no room for %s", "make room on that disk, or use another state folder")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return is(sandbox.Denied, "%s cannot be written", "let this user write to the folder and the file, or use another state folder")
	case errors.Is(err, errIrregular):
		return is(sandbox.Denied, "%s is not a regular file", "move it away, or use another state folder")
	case errors.Is(err, fs.ErrNotExist):
		return is(sandbox.NotExist, "%s has no folder to be in", "make the folder first")
	}
	return is(sandbox.Unavailable, "%s cannot be opened", "see the log for the cause")
}
