package inside_test

import (
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/guest/inside"
)

// The test binary is also the guest, as a process of its own without any
// isolation: it touches what the tests tell it to, and nothing else.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "echo" {
		echo(os.Args[2])
	}
	if len(os.Args) == 2 && os.Args[1] == "eat" {
		eat()
	}
	if mode := os.Getenv("ATOLL_TEST_GUEST"); mode != "" {
		serve(mode)
	}
	os.Exit(m.Run())
}

func init() {
	if os.Getenv("ATOLL_TEST_GUEST") != "" {
		runtime.LockOSThread()
	}
}

func serve(mode string) {
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if root := os.Getenv("ATOLL_TEST_JAIL"); root != "" {
		enterJail(root)
	}
	p := inside.Place{
		Env:     map[string]string{"PATH": os.Getenv("PATH"), "PLACE": "yes"},
		Workdir: os.Getenv("ATOLL_TEST_WORKDIR"),
		User:    os.Getenv("ATOLL_TEST_USER"),
	}
	p.MemoryWatch, _ = strconv.ParseInt(os.Getenv("ATOLL_TEST_MEMORY"), 10, 64)
	p.PIDs, _ = strconv.Atoi(os.Getenv("ATOLL_TEST_PIDS"))
	for _, kv := range os.Environ() {
		if rest, ok := cutPrefix(kv, "PLACE_"); ok {
			k, v, _ := cut(rest)
			p.Env[k] = v
		}
	}
	s, err := inside.New(inside.Config{Place: p})
	if err == nil && mode == "stream" {
		err = s.Add(0, 1)
	} else if err == nil {
		if err = s.Add(3, 3); err == nil && mode == "listen" {
			err = s.Listen(4)
		}
	}
	if err != nil {
		panic(err)
	}
	go func() {
		if err := s.Loop(); err != nil {
			panic(err)
		}
		os.Exit(0)
	}()
	s.Reap()
}

var cutPrefix = strings.CutPrefix

func cut(kv string) (string, string, bool) { return strings.Cut(kv, "=") }

// modes are the two kinds of connection.
var modes = []string{"descriptors", "stream"}

// each runs a test over both kinds of connection.
func each(t *testing.T, f func(t *testing.T, c *guest.Client, dir string)) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			f(t, start(t, mode, dir, guest.Options{}), dir)
		})
	}
}

// start starts a guest whose processes start in dir.
func start(t testing.TB, mode, dir string, opt guest.Options, env ...string) *guest.Client {
	t.Helper()
	c, cmd, err := launch(t, mode, append([]string{"ATOLL_TEST_GUEST=descriptors", "ATOLL_TEST_WORKDIR=" + dir, "PATH=" + os.Getenv("PATH")}, env...), nil, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := wait(cmd, 10*time.Second); err != nil {
			t.Errorf("the guest ended with %v", err)
		}
	})
	return c
}

// launch starts the test binary as a guest.
func launch(t testing.TB, mode string, env []string, attr *syscall.SysProcAttr, opt guest.Options) (*guest.Client, *exec.Cmd, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = env
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	var conn net.Conn
	var theirs []*os.File
	if mode == "stream" {
		cmd.Env = append(cmd.Env, "ATOLL_TEST_GUEST=stream")
		in, out, inner, outer := pipes(t)
		cmd.Stdin, cmd.Stdout = inner, outer
		conn = &pipeConn{in: in, out: out}
		theirs = []*os.File{inner, outer}
	} else {
		opt.Descriptors = true
		ours, f := pair(t)
		cmd.ExtraFiles = []*os.File{f}
		conn = ours
		theirs = []*os.File{f}
	}
	err := cmd.Start()
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	c, err := guest.NewClient(conn, opt)
	return c, cmd, err
}

// wait waits for a guest that has to end by itself.
func wait(cmd *exec.Cmd, most time.Duration) error {
	timer := time.AfterFunc(most, func() { cmd.Process.Signal(syscall.SIGABRT) })
	defer timer.Stop()
	return cmd.Wait()
}

// pair returns the two ends of a Unix socket.
func pair(t testing.TB) (net.Conn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "ours")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return conn, os.NewFile(uintptr(fds[1]), "theirs")
}

func pipes(t testing.TB) (in, out, inner, outer *os.File) {
	t.Helper()
	inner, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, outer, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return in, out, inner, outer
}

// pipeConn is a connection over two pipes.
type pipeConn struct {
	net.Conn
	in, out *os.File
}

func (c *pipeConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *pipeConn) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *pipeConn) Close() error                { c.in.Close(); return c.out.Close() }

// sh is a shell command.
func sh(script string) []string { return []string{"/bin/sh", "-c", script} }
