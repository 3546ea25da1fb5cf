package shell_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/guest/inside"
	"github.com/atoll-run/atoll/sandbox"
)

// The test binary is also the guest, as a process of its own without any
// isolation: what runs in it are real processes of the host.
func TestMain(m *testing.M) {
	if os.Getenv("ATOLL_TEST_GUEST") != "" {
		serve()
	}
	os.Exit(m.Run())
}

func init() {
	if os.Getenv("ATOLL_TEST_GUEST") != "" {
		runtime.LockOSThread()
	}
}

func serve() {
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	s, err := inside.New(inside.Config{Place: inside.Place{
		Env:     map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/tmp", "PLACE": "yes"},
		Workdir: os.Getenv("ATOLL_TEST_WORKDIR"),
	}})
	if err == nil {
		err = s.Add(3, 3)
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

// A place is a Sandbox whose processes are the host's, and whose guest is a
// process of its own.
type place struct {
	sandbox.Sandbox // the rest: it has none
	*guest.Client
	id  sandbox.ID
	dir string
	cmd *exec.Cmd
}

func (p *place) ID() sandbox.ID       { return p.id }
func (p *place) Files() sandbox.Files { return p.Client.Files() }
func (p *place) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	return p.Client.Start(ctx, cmd)
}
func (p *place) Info(ctx context.Context) (sandbox.Info, error) {
	return sandbox.Info{ID: p.id, Workdir: p.dir}, nil
}

// Remove kills the guest, and with it all that it started.
func (p *place) Remove(ctx context.Context) error {
	p.Client.Close()
	p.cmd.Wait()
	return nil
}

// open starts a guest.
func open(t testing.TB) *place {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		t.Fatal(err)
	}
	p := &place{id: sandbox.NewID(), dir: t.TempDir()}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Env = []string{"ATOLL_TEST_GUEST=descriptors", "ATOLL_TEST_WORKDIR=" + p.dir, "PATH=" + os.Getenv("PATH")}
	p.cmd.Stderr = os.Stderr
	p.cmd.ExtraFiles = []*os.File{theirs}
	err = p.cmd.Start()
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	p.Client, err = guest.NewClient(conn, guest.Options{ID: p.id, Op: "place", Descriptors: true, Gone: func() error {
		return sandbox.Errorf(sandbox.NotExist, "", "the sandbox was removed")
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Client.Close()
		timer := time.AfterFunc(10*time.Second, func() { p.cmd.Process.Signal(syscall.SIGABRT) })
		defer timer.Stop()
		p.cmd.Wait()
	})
	return p
}
