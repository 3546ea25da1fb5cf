package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// stdio is a connection over a program's standard input and output.
type stdio struct {
	net.Conn
	io.Reader
	io.WriteCloser
}

func (s stdio) Read(b []byte) (int, error)  { return s.Reader.Read(b) }
func (s stdio) Write(b []byte) (int, error) { return s.WriteCloser.Write(b) }
func (s stdio) Close() error                { return s.WriteCloser.Close() }

// first starts the built program as process 1 of a PID namespace.
func first(t *testing.T) *guest.Client {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "atoll-guest")
	build := exec.Command("go", "build", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child", bin, "--stdio")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "true").Run(); err != nil {
		t.Skipf("this host makes no PID namespace: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := guest.NewClient(stdio{Reader: out, WriteCloser: in}, guest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the guest ended with %v", err)
		}
		c.Close()
	})
	return c
}

func sh(t *testing.T, c *guest.Client, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := c.Start(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if x, err := p.Wait(); err != nil || !x.Success() {
		t.Fatalf("%s: %+v, %v: %s", script, x, err, &out)
	}
	return out.String()
}

func TestProcessOneTakesNoNoticeOfSignals(t *testing.T) {
	c := first(t)
	got := sh(t, c, `for i in $(seq 1 64); do [ $i = 33 ] || kill -$i 1; done; echo $PPID; cat /proc/1/comm`)
	if !strings.HasPrefix(got, "1\n") {
		t.Errorf("it printed %q", got)
	}
	if got := sh(t, c, "echo alive"); got != "alive\n" {
		t.Errorf("it printed %q", got)
	}
}

func TestProcessesStartWithDefaultSignals(t *testing.T) {
	c := first(t)
	got := sh(t, c, "grep -E 'Sig(Blk|Ign)' /proc/self/status")
	const ofLibc = 1<<(32-1) | 1<<(34-1) // see quiet
	for _, line := range strings.Split(strings.TrimSpace(got), "\n") {
		f := strings.Fields(line)
		if set, err := strconv.ParseUint(f[1], 16, 64); err != nil || set&^ofLibc != 0 {
			t.Errorf("a process starts with %s", line)
		}
	}
}

func TestProcessOneReapsWhatNobodyElseDoes(t *testing.T) {
	c := first(t)
	sh(t, c, "for i in 1 2 3 4 5; do (sleep 0.05 & ) ; (true & ) ; done; sleep 0.2")
	for {
		got := sh(t, c, "cat /proc/[0-9]*/stat | grep -c ') Z' || true")
		if strings.TrimSpace(got) == "0" {
			return
		}
	}
}

func TestProcessesHaveThreeDescriptors(t *testing.T) {
	c := first(t)
	if got := sh(t, c, "cd /proc/self/fd && echo [0-9]*"); got != "0 1 2\n" && got != "0 1 2 3\n" { // the shell reads the directory itself
		t.Errorf("they are %q", got)
	}
}
