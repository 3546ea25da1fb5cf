package inside_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// A host is a guest that outlives its connections.
type host struct {
	t    *testing.T
	cmd  *exec.Cmd
	path string // of its socket
}

// listening starts a guest that listens, and returns a Client of its first
// connection.
func listening(t *testing.T, opt guest.Options) (*host, *guest.Client) {
	t.Helper()
	dir := t.TempDir()
	h := &host{t: t, path: filepath.Join(dir, "s")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	lf, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	conn, theirs := pair(t)
	h.cmd = exec.Command("/proc/self/exe")
	h.cmd.Env = append(os.Environ(), "ATOLL_TEST_GUEST=listen", "ATOLL_TEST_WORKDIR="+dir)
	h.cmd.Stderr = os.Stderr
	h.cmd.ExtraFiles = []*os.File{theirs, lf}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	lf.Close()
	t.Cleanup(func() {
		h.cmd.Process.Kill()
		h.cmd.Wait()
	})
	opt.Descriptors = true
	c, err := guest.NewClient(conn, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return h, c
}

// dial is another daemon, or the same again.
func (h *host) dial(opt guest.Options) *guest.Client {
	h.t.Helper()
	conn, err := net.Dial("unix", h.path)
	if err != nil {
		h.t.Fatal(err)
	}
	opt.Descriptors = true
	c, err := guest.NewClient(conn, opt)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// startLoud starts a process that prints its pid, then waits for a file, then
// prints and ends with 5.
func startLoud(t *testing.T, c *guest.Client) (sandbox.Process, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "go")
	out := make(lines, 10)
	p, err := c.Start(t.Context(), sandbox.Cmd{Args: sh("echo ready; while [ ! -e " + file + " ]; do sleep 0.01; done; echo end; exit 5"), Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-out; got != "ready\n" {
		t.Fatalf("it printed %q", got)
	}
	return p, file
}

// lines is a Writer that hands on what is written.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func alive(pid int) bool { return unix.Kill(pid, 0) == nil }

func TestDaemonThatComesBackFindsItsProcesses(t *testing.T) {
	opt := guest.Options{Daemon: "d1", Linger: time.Hour}
	h, c := listening(t, opt)
	p, file := startLoud(t, c)
	c.Close()
	if _, err := p.Wait(); !errors.Is(err, sandbox.Closed) {
		t.Errorf("wait after Close: %v", err)
	}
	other := h.dial(guest.Options{Daemon: "d2"})
	if ps, err := other.Processes(t.Context()); err != nil || len(ps) != 0 {
		t.Errorf("another daemon finds %v, %v", ps, err)
	}
	again := h.dial(opt)
	ps, err := again.Processes(t.Context())
	if err != nil || len(ps) != 1 || ps[0].ID != p.ID() || ps[0].PID != p.PID() || ps[0].Exit != nil {
		t.Fatalf("it finds %+v, %v", ps, err)
	}
	out := make(lines, 10)
	a, err := again.Attach(t.Context(), p.ID(), sandbox.AttachOptions{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x, err := a.Wait()
	if err != nil || x.Code != 5 || len(out) != 1 || <-out != "end\n" {
		t.Errorf("it ended with %+v, %v", x, err)
	}
}

func TestProcessesDieWhenTheirDaemonStaysAway(t *testing.T) {
	h, c := listening(t, guest.Options{Daemon: "d1", Linger: 10 * time.Millisecond})
	p, _ := startLoud(t, c)
	id, err := c.StartDetached(t.Context(), sandbox.Cmd{Args: sh("sleep 1000")}, sandbox.DetachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for alive(p.PID()) {
		time.Sleep(time.Millisecond)
	}
	again := h.dial(guest.Options{Daemon: "d1"})
	ps, err := again.Processes(t.Context())
	if err != nil || len(ps) != 1 || ps[0].ID != id || ps[0].Exit != nil {
		t.Errorf("the detached one is not alone: %+v, %v", ps, err)
	}
}

func TestNamelessDaemonsLeaveNothing(t *testing.T) {
	_, c := listening(t, guest.Options{Linger: time.Hour})
	p, _ := startLoud(t, c)
	c.Close()
	for alive(p.PID()) {
		time.Sleep(time.Millisecond)
	}
}

func TestConnectionsShareTheProcesses(t *testing.T) {
	h, c := listening(t, guest.Options{Daemon: "d1"})
	id, err := c.StartDetached(t.Context(), sandbox.Cmd{Args: sh("read x; exit $x")}, sandbox.DetachOptions{Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	other := h.dial(guest.Options{Daemon: "d2"})
	a, err := other.Attach(t.Context(), id, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Input(t.Context(), id, []byte("9\n"), false); err != nil {
		t.Fatal(err)
	}
	if x, err := a.Wait(); err != nil || x.Code != 9 {
		t.Errorf("it ended with %+v, %v", x, err)
	}
}

func TestFullPipeDoesNotKillWithoutItsDaemon(t *testing.T) {
	opt := guest.Options{Daemon: "d1", Linger: time.Hour}
	h, c := listening(t, opt)
	out := make(lines) // nobody reads: the pipe fills up
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p, err := c.Start(ctx, sandbox.Cmd{Args: sh("yes | head -c 1000000; echo; echo done >&2; exit 6"), Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	<-out
	c.Close()
	go func() {
		for range out {
		}
	}()
	p.Wait()
	close(out)
	again := h.dial(opt)
	a, err := again.Attach(t.Context(), p.ID(), sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if x, err := a.Wait(); err != nil || x.Code != 6 {
		t.Errorf("it ended with %+v, %v", x, err)
	}
	o, err := again.Output(t.Context(), p.ID(), 0, 1<<20, 0)
	if err != nil || len(o.Chunks) == 0 || !strings.HasPrefix(strings.TrimPrefix(string(o.Chunks[0].Data), "\n"), "y\n") {
		t.Errorf("its output is lost: %v", err)
	}
}

func TestNothingIsLeftThatNobodyCanReach(t *testing.T) {
	for _, mode := range modes {
		c, cmd, err := launch(t, mode, []string{"ATOLL_TEST_GUEST=descriptors", "PATH=" + os.Getenv("PATH")}, nil, guest.Options{Daemon: "d", Linger: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		p, _ := startLoud(t, c)
		id, err := c.StartDetached(t.Context(), sandbox.Cmd{Args: sh("setsid sleep 1000 & sleep 1000")}, sandbox.DetachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Attach(t.Context(), id, sandbox.AttachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := wait(cmd, 10*time.Second); err != nil {
			t.Errorf("%s: the guest ended with %v", mode, err)
		}
		for alive(p.PID()) || alive(a.PID()) {
			time.Sleep(time.Millisecond)
		}
	}
}
