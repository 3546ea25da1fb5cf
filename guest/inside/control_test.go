package inside_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// A process whose daemon was lost goes on to write to descriptor 3 when
// another has adopted it, to nowhere, and neither hangs nor dies of it. Nor
// does a child that outlives it.
func TestControlOfTheAdopted(t *testing.T) {
	opt := guest.Options{Daemon: "d1", Linger: time.Hour}
	h, c := listening(t, opt)
	dir := t.TempDir()
	out := make(lines, 10)
	script := "cd " + dir + `; echo ready; while [ ! -e go ]; do sleep 0.01; done
		(while [ ! -e child ]; do sleep 0.01; done; head -c 300000 /dev/zero >&3 && echo wrote > wrote) &
		head -c 300000 /dev/zero >&3; echo end $?; exit 5`
	if _, err := c.Start(t.Context(), sandbox.Cmd{Args: sh(script), Stdout: out, Control: new(strings.Builder)}); err != nil {
		t.Fatal(err)
	}
	if got := <-out; got != "ready\n" {
		t.Fatalf("it printed %q", got)
	}
	c.Close()
	c = h.dial(opt)
	ps, err := c.Processes(t.Context())
	if err != nil || len(ps) != 1 {
		t.Fatalf("the processes are %v, %v", ps, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for cursor := int64(0); ; {
		o, err := c.Output(t.Context(), ps[0].ID, cursor, 1000, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range o.Chunks {
			printed.Write(ch.Data)
		}
		if cursor = o.Next; o.Exit != nil {
			if o.Exit.Code != 5 || printed.String() != "end 0\n" {
				t.Errorf("it printed %q and ended with %+v", printed.String(), o.Exit)
			}
			break
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "child"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit, err := sandbox.Run(t.Context(), starter{c}, sandbox.Cmd{Args: sh("while [ ! -e " + dir + "/wrote ]; do sleep 0.01; done"), Timeout: time.Minute})
	if err != nil || !exit.Success() {
		t.Errorf("the child did not write: %+v, %v", exit, err)
	}
}

// starter is a Client as far as sandbox.Run needs one.
type starter struct{ *guest.Client }

func (s starter) ID() sandbox.ID                             { return "" }
func (s starter) Info(context.Context) (sandbox.Info, error) { return sandbox.Info{}, nil }
func (s starter) Remove(context.Context) error               { return nil }

// What is added to the environment is the guest's: another daemon finds it.
func TestEnvStaysWithTheGuest(t *testing.T) {
	h, c := listening(t, guest.Options{Daemon: "d1"})
	said := func(c *guest.Client) string {
		t.Helper()
		r, err := sandbox.Capture(t.Context(), starter{c}, 1000, sandbox.Cmd{Args: sh("echo ${A-unset} ${B-unset}")})
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(r.Stdout))
	}
	was, wasNot, err := c.SetEnv(t.Context(), map[string]string{"A": "1", "B": "x y"}, nil)
	if err != nil || len(was) != 0 || len(wasNot) != 2 {
		t.Errorf("undone by %q, %q, %v", was, wasNot, err)
	}
	other := h.dial(guest.Options{Daemon: "d2"})
	c.Close()
	if got := said(other); got != "1 x y" {
		t.Errorf("another daemon's process says %q", got)
	}
	was, wasNot, err = other.SetEnv(t.Context(), map[string]string{"A": "2"}, []string{"B"})
	if got := said(other); err != nil || got != "2 unset" {
		t.Errorf("changed, it says %q, %v", got, err)
	}
	if _, _, err = other.SetEnv(t.Context(), was, wasNot); err != nil {
		t.Fatal(err)
	}
	if got := said(other); got != "1 x y" {
		t.Errorf("undone, it says %q", got)
	}
	_, _, err = other.SetEnv(t.Context(), map[string]string{"A": "3", "": "x"}, nil)
	if got := said(other); sandbox.KindOf(err) != sandbox.Invalid || got != "1 x y" {
		t.Errorf("refused, it says %q, %v", got, err)
	}
}
