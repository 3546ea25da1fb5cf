package launch

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// Serve answers requests on the socket until it is closed. program is a
// descriptor of what to execute.
func Serve(socket, program int) error {
	// All that is known to the launcher is its own: nothing is passed on by
	// accident.
	unix.CloseOnExec(socket)
	// Out of the way of the descriptors that a new process gets: it has its
	// own by those numbers when it executes the program.
	program, err := unix.FcntlInt(uintptr(program), unix.F_DUPFD_CLOEXEC, maxFiles)
	if err != nil {
		return err
	}
	reap()
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		files, err := descriptors(oob[:oobn])
		var a Answer
		pidfd := -1
		if err == nil {
			pidfd, a, err = start(program, buf[:n], files)
		}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			a.Errno = int(errno)
		} else if err != nil {
			a.Err = err.Error()
		}
		for _, fd := range files {
			unix.Close(fd)
		}
		var rights []byte
		if pidfd >= 0 {
			rights = unix.UnixRights(pidfd)
		}
		err = unix.Sendmsg(socket, proto.Append(nil, &a), rights, nil, unix.MSG_NOSIGNAL)
		if pidfd >= 0 {
			unix.Close(pidfd)
		}
		if err != nil {
			return err
		}
	}
}

// maxFiles is how many descriptors a request has at most.
const maxFiles = 32

func start(program int, message []byte, files []int) (int, Answer, error) {
	var req Request
	if err := proto.Decode(message, &req); err != nil {
		return -1, Answer{}, err
	}
	pidfd := -1
	sys := &syscall.SysProcAttr{Cloneflags: uintptr(req.Flags), Setsid: true, PidFD: &pidfd, UidMappings: maps(req.UIDs), GidMappings: maps(req.GIDs)}
	if req.Root {
		sys.Credential = &syscall.Credential{}
		sys.GidMappingsEnableSetgroups = true
	}
	if req.Ambient {
		for c := range uintptr(unix.CAP_LAST_CAP + 1) {
			sys.AmbientCaps = append(sys.AmbientCaps, c)
		}
	}
	if req.Cgroup {
		if len(files) == 0 {
			return -1, Answer{}, errors.New("no cgroup came with the request")
		}
		sys.UseCgroupFD, sys.CgroupFD = true, files[len(files)-1]
		files = files[:len(files)-1]
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: proto.Environ(), Sys: sys}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	back, err := actAs(req.Owner)
	if err != nil {
		return -1, Answer{}, err
	}
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(program), req.Args, attr)
	back()
	if err != nil {
		return -1, Answer{}, err
	}
	return pidfd, Answer{PID: pid}, nil
}

// actAs makes this thread's effective user uid, with all the capabilities that
// it has, and returns what undoes it. 0 changes nothing.
func actAs(uid int) (back func(), err error) {
	if uid == 0 {
		return func() {}, nil
	}
	runtime.LockOSThread()
	const noFixup = 1 << 2 // SECBIT_NO_SETUID_FIXUP, linux/securebits.h: a change of user takes no capability away
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noFixup, 0, 0, 0); err != nil {
		return nil, err
	}
	// By the thread alone: syscall's version changes them all.
	set := func(uid int) error {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			return errno
		}
		return nil
	}
	if err := set(uid); err != nil {
		return nil, err
	}
	return func() {
		if set(0) == nil {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}, nil
}

func maps(ms []Map) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, m := range ms {
		out = append(out, syscall.SysProcIDMap{ContainerID: m.Inside, HostID: m.Host, Size: m.Size})
	}
	return out
}

// reap waits for what was started, so that it leaves no zombie.
func reap() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	go func() { // for the life of the program
		for range ch {
			for {
				if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 && err != unix.EINTR {
					break
				}
			}
		}
	}()
}

func descriptors(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, m := range ms {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return all, err
		}
		all = append(all, fds...)
	}
	return all, nil
}
