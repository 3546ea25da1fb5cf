//go:build linux

package inside

import (
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/guest/proto"
)

// What is added wins, what is undone is as before, and what is refused changes
// nothing.
func TestSetEnv(t *testing.T) {
	first := []string{"A=1", "B=2", "C="}
	s := &Server{place: place{env: slices.Clone(first)}}
	sorted := func(l []string) string { l = slices.Clone(l); slices.Sort(l); return strings.Join(l, " ") }
	undo, err := s.setEnv(&proto.Env{Env: []string{"A=9", "D=4", "D=5", "E==\xff"}, Without: []string{"B", "E", "nothing"}})
	if got := sorted(s.place.env); err != nil || got != "A=9 C= D=5" {
		t.Errorf("the environment is %q, %v", got, err)
	}
	if got := sorted(undo.Env) + "; " + sorted(undo.Without); got != "A=1 B=2; D E nothing" {
		t.Errorf("undone by %q", got)
	}
	after := slices.Clone(s.place.env)
	for name, m := range map[string]*proto.Env{
		"no name":     {Env: []string{"A=0", "=x"}},
		"no value":    {Env: []string{"A=0", "x"}},
		"a NUL":       {Env: []string{"A=0", "B=\x00"}},
		"too long":    {Env: []string{"A=0", "B=" + strings.Repeat("x", maxEnv)}},
		"too many":    {Env: slices.Repeat([]string{"A=" + strings.Repeat("x", maxEnv)}, 2)},
		"none at all": {},
	} {
		if _, err := s.setEnv(m); (err == nil) != (name == "none at all") || !slices.Equal(s.place.env, after) {
			t.Errorf("%s: %v, and the environment is %q", name, err, sorted(s.place.env))
		}
	}
	if _, err := s.setEnv(undo); err != nil || sorted(s.place.env) != sorted(first) {
		t.Errorf("undone, the environment is %q, %v; want %q", sorted(s.place.env), err, first)
	}
	// What was too long from the beginning can become shorter.
	s.place.env = []string{"A=" + strings.Repeat("x", 2*maxEnv)}
	if _, err := s.setEnv(&proto.Env{Env: []string{"A=" + strings.Repeat("x", maxEnv+1)}}); err != nil {
		t.Error(err)
	}
}
