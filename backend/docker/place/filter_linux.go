package place

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// rlimitLocks is RLIMIT_LOCKS, whose soft limit is the mark of a tree.
const rlimitLocks = 10

// markFilter returns a program for the kernel (seccomp(2)) that refuses, with
// EPERM, to set RLIMIT_LOCKS, and, with ENOSYS, every call of another
// architecture than the guest's, of which it does not know the numbers. It is
// nil where the guest's own is not known.
func markFilter() []unix.SockFilter {
	var arch uint32
	switch runtime.GOARCH {
	case "amd64":
		arch = unix.AUDIT_ARCH_X86_64
	case "arm64":
		arch = unix.AUDIT_ARCH_AARCH64
	default:
		return nil
	}
	// struct seccomp_data: the number, the architecture, the address, and six
	// arguments of eight bytes, the low half first on both architectures.
	const (
		nr    = 0
		abi   = 4
		arg0  = 16
		arg1  = 24
		arg2  = 32
		allow = unix.SECCOMP_RET_ALLOW
		eperm = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		nosys = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	)
	ld := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jeq := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	jge := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	const x32 = 0x40000000 // __X32_SYSCALL_BIT
	return []unix.SockFilter{
		ld(abi),
		jeq(arch, 1, 0),
		ret(nosys),
		ld(nr),
		jge(x32, 0, 1),
		ret(nosys),
		jeq(unix.SYS_SETRLIMIT, 0, 3),
		ld(arg0),
		jeq(rlimitLocks, 10, 0), // to the last
		ret(allow),
		jeq(unix.SYS_PRLIMIT64, 1, 0),
		ret(allow),
		ld(arg1),
		jeq(rlimitLocks, 0, 4),
		ld(arg2), // nil: it only asks
		jeq(0, 0, 3),
		ld(arg2 + 4),
		jeq(0, 0, 1),
		ret(allow),
		ret(eperm),
	}
}
