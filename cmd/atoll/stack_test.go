package main

import (
	"errors"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
)

// TestUnionChooses asks for sandboxes of each of two backends, and finds those
// of both.
func TestUnionChooses(t *testing.T) {
	first, second := memory.New(memory.Config{}), memory.New(memory.Config{})
	u := union{names: []string{"first", "memory"}, rts: []sandbox.Runtime{first, second}}
	defer u.Close()
	count := func(rt sandbox.Runtime) (n int) {
		for _, err := range rt.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	for _, c := range []struct {
		backend       string
		kind          sandbox.Kind
		first, second int // how many sandboxes they have afterwards
	}{
		{"", "", 1, 0},
		{"memory", "", 1, 1},
		{"", "", 2, 1},
		{"linux", sandbox.NotExist, 2, 1},
		{"memory", "", 2, 2},
	} {
		sb, err := u.Create(t.Context(), sandbox.Spec{Backend: c.backend})
		var e *sandbox.Error
		if c.kind != "" && (!errors.As(err, &e) || e.Kind != c.kind || e.Field != "backend" || e.Hint != "there is: first, memory") {
			t.Errorf("%q: %v", c.backend, err)
		}
		if c.kind == "" {
			if err != nil {
				t.Fatal(err)
			}
			if found, err := u.Open(t.Context(), sb.ID()); err != nil || found.ID() != sb.ID() {
				t.Errorf("%q: it is not found: %v", c.backend, err)
			}
		}
		if a, b := count(first), count(second); a != c.first || b != c.second {
			t.Errorf("after %q they have %d and %d, want %d and %d", c.backend, a, b, c.first, c.second)
		}
	}
	if n := count(u); n != 4 {
		t.Errorf("it lists %d, want 4", n)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
}
