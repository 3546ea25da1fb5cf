package place

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// steps are what Setup does, in this order: what needs capabilities comes
// before they are dropped, and the filter is last.
var steps = []struct {
	name string
	do   func(*Request, *Done) error
}{
	{"refuse the host", refuseHost},
	{"look at the mounts", lookAtMounts},
	{"look at what the engine made", look},
	{"make directories", makeDirs},
	{"hide from processes", hide},
	{"lower limits", lowerLimits},
	{"drop capabilities", dropCaps},
	{"forbid new privileges", noNewPrivs},
	{"keep trees together", keepTrees},
}

// Setup carries out req on the calling thread, which must be locked to its
// goroutine and is from then on the one that starts processes: what it starts
// has no capability and wears the filter.
func Setup(req *Request) (Done, error) {
	var done Done
	for _, st := range steps {
		if err := st.do(req, &done); err != nil {
			var f *proto.Failure
			if errors.As(err, &f) {
				return Done{}, f
			}
			return Done{}, errors.New(st.name + ": " + err.Error())
		}
	}
	return done, nil
}

func refuseHost(*Request, *Done) error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of a container")
	}
	return nil
}

// lookAtMounts makes sure that the engine mounted what the daemon had looked
// at. The engine is given a path, and whoever may write on the way could have
// changed where that leads; no process of the sandbox has run yet.
func lookAtMounts(req *Request, _ *Done) error {
	for _, m := range req.Mounts {
		var st unix.Stat_t
		if err := unix.Stat(m.Path, &st); err != nil {
			return errors.New(m.Path + ": " + err.Error())
		}
		if uint64(st.Dev) != m.Dev || st.Ino != m.Ino {
			return &proto.Failure{Kind: "denied", Field: "mounts.source", Msg: "what was mounted is not what was asked for", Hint: "the engine has to share this machine's files, and nobody may change the path meanwhile", Log: m.Path}
		}
	}
	return nil
}

func look(_ *Request, done *Done) error {
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	f := strings.Fields(string(m))
	done.UserNS = len(f) >= 3 && !(f[0] == "0" && f[1] == "0" && f[2] == "4294967295")
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	done.Seccomp = strings.Contains(string(status), "\nSeccomp:\t2\n")
	var fs unix.Statfs_t
	var st unix.Stat_t
	done.Masked = unix.Statfs("/proc/sys", &fs) == nil && fs.Flags&unix.ST_RDONLY != 0 &&
		(unix.Stat("/proc/kcore", &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFCHR)
	return nil
}

// makeDirs makes what every sandbox has. Where the root is read-only the
// engine has mounted them.
func makeDirs(req *Request, done *Done) error {
	for _, d := range []struct {
		path string
		mode uint32
	}{{"/tmp", 0o1777}, {"/home", 0o755}, {"/workspace", 0o1777}} {
		err := unix.Mkdir(d.path, d.mode)
		if err == unix.EEXIST && d.mode&0o1000 == 0 {
			continue
		}
		if err == nil || err == unix.EEXIST {
			err = unix.Chmod(d.path, d.mode)
		}
		if err != nil {
			done.Gaps = append(done.Gaps, d.path+": "+err.Error())
		}
	}
	return nil
}

// hide keeps the sandbox's own root from looking into the guest's memory.
func hide(*Request, *Done) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// lowerLimits takes away what nothing in a sandbox needs. A core limit of 1
// and not 0: where core_pattern names a program, which the host's root then
// runs outside, 0 does not keep it from being run, but 1 does (fs/coredump.c).
func lowerLimits(*Request, *Done) error {
	for _, l := range []struct {
		resource int
		most     uint64
	}{{unix.RLIMIT_CORE, 1}, {unix.RLIMIT_RTPRIO, 0}, {unix.RLIMIT_NICE, 0}, {unix.RLIMIT_SIGPENDING, 8192}, {unix.RLIMIT_MSGQUEUE, 256 << 10}} {
		var now unix.Rlimit
		if err := unix.Prlimit(0, l.resource, nil, &now); err != nil {
			return err
		}
		most := min(l.most, now.Max)
		if err := unix.Prlimit(0, l.resource, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Keep are the capabilities that the guest itself needs, to start processes as
// other users, to end them, and to reach every file. The container is given
// these and CAP_SETPCAP, by which they are taken from all that it starts.
const keep = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER | 1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

// dropCaps gives the calling thread, for what it starts, an empty bounding set
// and a user 0 that is like any other when it executes a program, and leaves
// the guest's threads what they need.
func dropCaps(*Request, *Done) error {
	for c := range uintptr(64) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			break // past the last that this kernel knows
		} else if err != nil {
			return err
		}
	}
	const noRoot, noRootLocked, noAmbient, noAmbientLocked = 1 << 0, 1 << 1, 1 << 6, 1 << 7 // linux/securebits.h
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot|noRootLocked|noAmbient|noAmbientLocked, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func noNewPrivs(*Request, *Done) error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }

// keepTrees forbids processes to change the mark that the guest knows their
// tree by (see package guest), with a filter beside the engine's own.
func keepTrees(_ *Request, done *Done) error {
	prog := markFilter()
	if prog == nil {
		done.Gaps = append(done.Gaps, "no filter for this kind of processor: a process can leave its tree")
		return nil
	}
	p := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	const setModeFilter = 1 // SECCOMP_SET_MODE_FILTER
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setModeFilter, 0, uintptr(unsafe.Pointer(&p))); errno != 0 {
		done.Gaps = append(done.Gaps, "system call filter: "+errno.Error()+": a process can leave its tree")
		return nil
	}
	done.Tree = true
	return nil
}
