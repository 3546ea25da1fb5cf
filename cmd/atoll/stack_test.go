package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/atoll-run/atoll/api/gate"
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

// mute is a Runtime whose List does not answer.
type mute struct{ sandbox.Runtime }

func (mute) List(context.Context) iter.Seq2[sandbox.Info, error] {
	return func(func(sandbox.Info, error) bool) { select {} }
}

// TestUnionProbes: each backend is said to be there or not, and why; one that
// does not answer holds up nobody.
func TestUnionProbes(t *testing.T) {
	good, closed := memory.New(memory.Config{}), memory.New(memory.Config{})
	defer good.Close()
	closed.Close()
	if _, err := good.Create(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	u := union{names: []string{"good", "closed"}, rts: []sandbox.Runtime{good, closed}}
	got := u.Backends(t.Context())
	if len(got) != 2 || got[0] != (sandbox.BackendStatus{Name: "good", Available: true}) {
		t.Errorf("got %+v", got)
	}
	if got[1].Name != "closed" || got[1].Available || got[1].Reason == "" {
		t.Errorf("of the closed one: %+v", got[1])
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	got = union{names: []string{"mute"}, rts: []sandbox.Runtime{mute{}}}.Backends(ctx)
	if len(got) != 1 || got[0].Available || got[0].Reason != "it did not answer in time" {
		t.Errorf("of the mute one: %+v", got)
	}
}

// TestMetricsAreTheOperators: the figures tell of everybody.
func TestMetricsAreTheOperators(t *testing.T) {
	const own, alices = "0123456789abcdef0123", "a11ce6789abcdef0123"
	guard, err := gate.New(gate.Config{Token: own, Owners: map[sandbox.Owner]sandbox.Secret{"alice": alices}})
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(w http.ResponseWriter, r *http.Request, no gate.Refusal) { w.WriteHeader(no.Status) }
	figures := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "figures") })
	h := guard.Guard(operatorOnly(figures, refuse), refuse, gate.Bearer)
	for token, want := range map[string]string{own: "200 figures", alices: "403 ", "": "401 "} {
		r := httptest.NewRequest("GET", "http://localhost/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := fmt.Sprint(w.Code, " ", w.Body); got != want {
			t.Errorf("%q: got %q, want %q", token, got, want)
		}
	}
}
