// Atoll-guest is the program that runs inside a sandbox. Package guest has its
// protocol.
//
//	atoll-guest           serves on descriptor 3, a connected Unix socket, and on
//	                      what connects to descriptor 4, a listening one, if there is one
//	atoll-guest --stdio   serves standard input and output
//	atoll-guest --listen  serves, as process 1 of a container, what --connect brings
//	atoll-guest --connect passes on between standard input and output and such a one
//
// As process 1 it reaps what nobody else does, and ends when nobody can reach
// it any more: with its last connection, unless it listens.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/inside"
)

// The first thread reaps; the one that starts processes must be another (see
// inside.Server.Loop).
func init() { runtime.LockOSThread() }

func main() {
	if os.Getenv("GOGC") == "" { // better set for it, with GOMAXPROCS: see proto.Environ
		debug.SetGCPercent(25)
	}
	if err := run(); err != nil {
		os.Stderr.WriteString("atoll-guest: " + err.Error() + "\n")
		os.Exit(1)
	}
}

func run() error {
	// Whatever else we were started with is for nobody that we start
	// (CVE-2024-21626). Linux 5.11.
	if err := unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	were := forget()
	if done, err := mode(os.Args[1:]); done {
		return err
	}
	quiet(were)
	unix.Umask(0o022) // what processes begin with, whatever the daemon's is
	var cfg inside.Config
	stdio := len(os.Args) == 2 && os.Args[1] == "--stdio"
	listens := len(os.Args) == 2 && os.Args[1] == "--listen"
	switch {
	case listens:
		cfg = container
	case !stdio:
		cfg.Setup = setup
	}
	s, err := inside.New(cfg)
	if err != nil {
		return err
	}
	switch {
	case stdio:
		// As set-up does: what runs here looks at its guest no closer.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
		if err := s.Add(0, 1); err != nil {
			return err
		}
	case listens:
		if err := listen(s); err != nil {
			return err
		}
	case len(os.Args) > 2:
		return os.ErrInvalid
	default: // an argument is the sandbox's id, for those who look at the host's processes
		if err := s.Add(3, 3); err != nil {
			return err
		}
		if on, err := unix.GetsockoptInt(4, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err == nil && on == 1 {
			if err := s.Listen(4); err != nil {
				return err
			}
		}
	}
	go func() {
		err := s.Loop()
		if err != nil {
			os.Stderr.WriteString("atoll-guest: " + err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}()
	s.Reap()
	return nil
}

// perThread is the signal by which the runtime has every thread make a system
// call (runtime.sigPerThreadSyscall), as set-up does.
const perThread = unix.Signal(33)

// quiet makes signals from inside harmless. The runtime's handlers are taken
// away, but for those that it needs itself: its own interruptions, broken
// pipes. Those of a fault are not among them: with handlers, even ones that
// take no notice, some that are sent while others are handled end the program.
// A fault of the guest's own still ends it, without a trace of the stack.
//
// The kernel drops what process 1 has no handler for, but not while the first
// thread blocks it, which the runtime does for moments: then another thread
// gets it, and what kills by default kills (complete_signal, kernel/signal.c).
// So all are ignored outright. What stops is dropped in any case. Processes
// begin with the defaults, but for 32 and 34, which the runtime does not know
// for its own: they begin ignored, and each libc that uses them (for its
// threads) gives them a handler first. The few that were ignored when the
// program began (were) are left at their default, for the same reason.
func quiet(were uint64) {
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte("atoll-guest\x00")[0])), 0, 0, 0)
	// The reaper waits: a handler would only cost time. Ignored, children
	// would leave nothing to wait for.
	act(unix.SIGCHLD, byDefault)
	if os.Getpid() != 1 {
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
		return
	}
	for n := unix.Signal(1); n <= 64; n++ {
		switch n {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGURG, unix.SIGPIPE, unix.SIGCHLD, perThread:
		case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT: // which the runtime leaves alone
		default:
			if were>>(n-1)&1 == 0 {
				act(n, ignored)
			}
		}
	}
}
