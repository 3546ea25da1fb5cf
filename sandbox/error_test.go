package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

var kinds = []Kind{Invalid, Denied, NotExist, Conflict, Exhausted, Unsupported, Unavailable, Closed, Internal}

func TestKinds(t *testing.T) {
	for _, k := range kinds {
		if !k.Known() || k.Error() != string(k) {
			t.Errorf("%q is not known", k)
		}
		err := fmt.Errorf("words: %w", Errorf(k, "field", "message %d", 1))
		for _, other := range kinds {
			if errors.Is(err, other) != (k == other) {
				t.Errorf("errors.Is(%s, %s) is %v", k, other, k != other)
			}
		}
		if KindOf(err) != k || KindOf(k) != k || KindOf(fmt.Errorf("x: %w", k)) != k {
			t.Errorf("KindOf(%v) is %s", err, KindOf(err))
		}
	}
	if Kind("x").Known() || Kind("").Known() {
		t.Error("anything is known")
	}
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Kind
	}{
		{nil, ""},
		{io.EOF, Internal},
		{context.Canceled, Unavailable},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), Unavailable},
		{&Error{Kind: Denied, Err: NotExist}, Denied}, // the outermost
		{errors.Join(io.EOF, NotExist), NotExist},
	} {
		if got := KindOf(c.err); got != c.want {
			t.Errorf("KindOf(%v) is %q, want %q", c.err, got, c.want)
		}
	}
}

func TestErrorSaysAll(t *testing.T) {
	e := &Error{Op: "linux.Create", ID: "abcdefgh", Kind: Invalid, Field: "args", Msg: "there is none", Hint: "give one", Err: errors.New("/secret/path")}
	if got, want := e.Error(), "linux.Create abcdefgh: args: there is none (give one): /secret/path"; got != want {
		t.Errorf("Error() is %q, want %q", got, want)
	}
	if got, want := e.Public(), "args: there is none (give one)"; got != want {
		t.Errorf("Public() is %q, want %q", got, want)
	}
	if got, want := (&Error{Kind: Closed}).Error(), "closed"; got != want {
		t.Errorf("Error() is %q, want %q", got, want)
	}
	if !errors.Is(e, e.Err) || !errors.Is(e, Invalid) {
		t.Error("Unwrap gives not both")
	}
	if got := Errorf(Denied, "f", "m").WithHint("do %d", 1); got.Hint != "do 1" {
		t.Errorf("the hint is %q", got.Hint)
	}
}

func TestAt(t *testing.T) {
	if At("op", "id", nil) != nil {
		t.Error("At makes nil an error")
	}
	for _, err := range []error{context.Canceled, fmt.Errorf("x: %w", context.DeadlineExceeded)} {
		if got := At("op", "id", err); got != err {
			t.Errorf("At changes %v to %v", err, got)
		}
	}
	inner := Errorf(Denied, "field", "message")
	var e *Error
	if err := At("op", "idididid", inner); !errors.As(err, &e) || e.Op != "op" || e.ID != "idididid" || e.Kind != Denied || e.Field != "field" {
		t.Errorf("At gives %+v", e)
	}
	if inner.Op != "" || inner.ID != "" {
		t.Error("At changes the error that it is given")
	}
	if err := At("outer", "other", e); !errors.As(err, &e) || e.Op != "op" || e.ID != "idididid" {
		t.Errorf("At replaces what is there: %+v", e)
	}
	if err := At("op", "id", io.EOF); !errors.As(err, &e) || e.Kind != Internal || !errors.Is(err, io.EOF) || strings.Contains(e.Public(), "EOF") {
		t.Errorf("At gives %+v for a foreign error", e)
	}
	if err := At("op", "id", NotExist); KindOf(err) != NotExist {
		t.Errorf("At gives %v for a Kind", err)
	}
}

// What Msg has told of the cause is told once.
func TestErrorTellsACauseOnce(t *testing.T) {
	g := &Gone{Why: Expired}
	told := &Error{Kind: NotExist, Msg: "the sandbox is gone: " + g.Error(), Err: g}
	if n := strings.Count(told.Error(), g.Error()); n != 1 {
		t.Errorf("%q tells it %d times", told, n)
	}
	if untold := (&Error{Kind: NotExist, Msg: "no", Err: g}); !strings.HasSuffix(untold.Error(), ": "+g.Error()) {
		t.Errorf("%q does not tell it", untold)
	}
}
