package inside_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

func run(t *testing.T, c *guest.Client, cmd sandbox.Cmd) (sandbox.Exit, string, string) {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	p, e := c.Start(t.Context(), cmd)
	if e != nil {
		t.Fatalf("start %q: %v", cmd.Args, e)
	}
	x, e := p.Wait()
	if e != nil {
		t.Fatalf("wait for %q: %v", cmd.Args, e)
	}
	return x, out.String(), err.String()
}

func TestRunsACommand(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		x, out, err := run(t, c, sandbox.Cmd{Args: sh("echo out; echo err >&2; cat; pwd; exit 7"), Stdin: strings.NewReader("in\n")})
		if x.Reason != sandbox.Exited || x.Code != 7 || out != "out\nin\n"+dir+"\n" || err != "err\n" {
			t.Errorf("got %+v %q %q", x, out, err)
		}
	})
}

func TestKillsTheTree(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		p, err := c.Start(ctx, sandbox.Cmd{Args: sh(`trap '' TERM; (setsid sh -c 'trap "" TERM; sleep 1000; true' & ) ; setsid sh -c 'sleep 1000 & sleep 1000' & echo ready; while :; do sleep 1000; done`), Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		bufio.NewReader(r).ReadString('\n')
		r.Close()
		cancel()
		if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("wait returned %v", err)
		}
		for n := 1; n > 0; {
			u, err := c.Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n = u.PIDs
		}
	})
}

func TestDetachedOutlivesItsCaller(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		id, err := c.StartDetached(t.Context(), sandbox.Cmd{Args: sh("echo a; echo b >&2; read x; echo got $x; exit 3")}, sandbox.DetachOptions{Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := c.Input(t.Context(), id, []byte("line\n"), true); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		var out, errs bytes.Buffer
		p, err := c.Attach(t.Context(), id, sandbox.AttachOptions{Stdout: &out, Stderr: &errs})
		if err != nil {
			t.Fatal(err)
		}
		x, err := p.Wait()
		if err != nil || x.Code != 3 || out.String() != "a\ngot line\n" || errs.String() != "b\n" {
			t.Errorf("got %+v %v %q %q", x, err, out.String(), errs.String())
		}
		if err := c.Forget(t.Context(), id); err != nil {
			t.Error(err)
		}
		if err := c.Forget(t.Context(), id); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("forgot it twice: %v", err)
		}
	})
}
