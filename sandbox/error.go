package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Kind says what the caller can do about an error. Kinds are errors
// themselves, so that callers write errors.Is(err, sandbox.NotExist).
type Kind string

const (
	Invalid     Kind = "invalid"     // the request is wrong: mend it
	Denied      Kind = "denied"      // not allowed to this caller: ask somebody else
	NotExist    Kind = "not-exist"   // nothing has that name
	Conflict    Kind = "conflict"    // it is there already, or differs from what is there
	Exhausted   Kind = "exhausted"   // a limit or quota is reached: release something
	Unsupported Kind = "unsupported" // this backend or host cannot: do without, or go elsewhere
	Unavailable Kind = "unavailable" // not now: try again
	Closed      Kind = "closed"      // the Runtime was closed
	Internal    Kind = "internal"    // our fault: give up, and report it
)

// Error makes a Kind an error.
func (k Kind) Error() string { return string(k) }

// Known reports whether k is one of the kinds above.
func (k Kind) Known() bool {
	switch k {
	case Invalid, Denied, NotExist, Conflict, Exhausted, Unsupported, Unavailable, Closed, Internal:
		return true
	}
	return false
}

// An Error says what failed, on which sandbox, and what can be done.
//
// Msg, Field and Hint are fit for a tenant's eyes: they name no path, id or
// address of the host. Err is for the operator's log.
type Error struct {
	Op    string // what was being done: "linux.Create"
	ID    ID     // the sandbox, if there is one
	Kind  Kind
	Field string // the part of the request that is wrong: "limits.memory", "args", "path"
	Msg   string // what is wrong with it: lower case, no full stop
	Hint  string // what to do next, likewise
	Err   error  // the cause, for the log alone
}

// Error returns all there is, for logs and for people on the host itself. A
// cause that Msg has told already is not told again.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		if e.ID != "" {
			fmt.Fprintf(&b, " %s", e.ID)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Public())
	if e.Err != nil {
		if cause := e.Err.Error(); !strings.Contains(e.Msg, cause) {
			b.WriteString(": " + cause)
		}
	}
	return b.String()
}

// Public returns what a tenant may see: the field, the message and the hint.
func (e *Error) Public() string {
	var b strings.Builder
	if e.Field != "" {
		fmt.Fprintf(&b, "%s: ", e.Field)
	}
	if e.Msg != "" {
		b.WriteString(e.Msg)
	} else {
		b.WriteString(string(e.Kind))
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	return b.String()
}

// Unwrap gives the Kind and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// KindOf returns the kind of err: that of the outermost *Error in its chain or
// the Kind itself, Unavailable for a context that ended, Internal for all
// else, and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	var k Kind
	if errors.As(err, &k) {
		return k
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Unavailable
	}
	return Internal
}

// Errorf returns an Error of the given kind whose Msg is formatted. Use it for
// what a tenant may see, and wrap causes with the Err field instead.
func Errorf(kind Kind, field, format string, args ...any) *Error {
	return &Error{Kind: kind, Field: field, Msg: fmt.Sprintf(format, args...)}
}

// WithHint sets Hint and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// At returns err as an *Error that has op and id where it had none. It leaves
// nil and a context's errors as they are, and makes anything else Internal.
// It does not change err itself.
func At(op string, id ID, err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Op: op, ID: id, Kind: KindOf(err), Err: err}
	}
	c := *e
	if c.Op == "" {
		c.Op = op
	}
	if c.ID == "" {
		c.ID = id
	}
	return &c
}
