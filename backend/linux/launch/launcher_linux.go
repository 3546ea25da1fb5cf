package launch

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// A Launcher is the daemon's side. It is safe for concurrent use.
type Launcher struct {
	program *os.File

	mu     sync.Mutex
	socket *os.File // nil before the first request and after Close
	proc   *os.Process
	closed bool
}

// New returns a Launcher of program, which stays the caller's and open. The
// launcher process is started with the first request, and again if it died.
func New(program *os.File) *Launcher { return &Launcher{program: program} }

// Start asks for a process that gets files as its descriptors 0, 1, 2 and so
// on; cgroup, unless nil, is the directory to be born into. It returns the pid
// and a pidfd, which the caller closes. An error of the clone is a
// syscall.Errno.
func (l *Launcher) Start(req Request, cgroup *os.File, files ...*os.File) (pid, pidfd int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, -1, os.ErrClosed
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if req.Cgroup = cgroup != nil; req.Cgroup {
		fds = append(fds, int(cgroup.Fd()))
	}
	b := proto.Append(nil, &req)
	if len(b) > maxMessage {
		return 0, -1, fmt.Errorf("a request of %d bytes", len(b))
	}
	rights := unix.UnixRights(fds...)
	for try := 0; ; try++ {
		if err := l.runLocked(); err != nil {
			return 0, -1, fmt.Errorf("launcher: %w", err)
		}
		err := unix.Sendmsg(int(l.socket.Fd()), b, rights, nil, unix.MSG_NOSIGNAL)
		if err == nil {
			break
		}
		l.endLocked()
		if try > 0 { // once may be a launcher that somebody killed
			return 0, -1, fmt.Errorf("launcher: %w", err)
		}
	}
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*4))
	var n, oobn int
	for {
		n, oobn, _, _, err = unix.Recvmsg(int(l.socket.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err == nil && n == 0 {
		err = errors.New("it died")
	}
	if err != nil {
		l.endLocked()
		return 0, -1, fmt.Errorf("launcher: %w", err)
	}
	got, err := descriptors(oob[:oobn])
	var a Answer
	if err == nil {
		err = proto.Decode(buf[:n], &a)
	}
	if err == nil && a.Errno != 0 {
		err = syscall.Errno(a.Errno)
	}
	if err == nil && a.Err != "" {
		err = errors.New(a.Err)
	}
	if err == nil && len(got) != 1 {
		err = fmt.Errorf("launcher: %d descriptors came back", len(got))
	}
	if err != nil {
		for _, fd := range got {
			unix.Close(fd)
		}
		return 0, -1, err
	}
	return a.PID, got[0], nil
}

// runLocked starts the launcher process if there is none.
func (l *Launcher) runLocked() error {
	if l.socket != nil {
		return nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "launcher"), os.NewFile(uintptr(fds[1]), "launcher")
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		ours.Close()
		return err
	}
	defer null.Close()
	l.proc, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", l.program.Fd()), []string{"atoll-guest", "--launch"}, &os.ProcAttr{
		Dir: "/", Env: proto.Environ(), Files: []*os.File{null, null, null, theirs, l.program},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		ours.Close()
		return err
	}
	l.socket = ours
	return nil
}

// endLocked ends the launcher process, which needs nothing but the end of its
// socket.
func (l *Launcher) endLocked() error {
	if l.socket == nil {
		return nil
	}
	err := l.socket.Close()
	l.socket = nil
	_, e := l.proc.Wait()
	return errors.Join(err, e)
}

// Close ends the launcher process and waits for it. What it started lives on.
func (l *Launcher) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return l.endLocked()
}
