//go:build linux

// Package load puts a system call filter on the calling thread. It is small
// because the guest has it: the policy stays outside.
package load

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Filter loads a filter (as seccomp.Filter.Bytes has it) for the calling
// thread, and for all threads and processes that it starts from then on; it
// cannot be taken off again. The caller has locked its goroutine to the thread
// and has set no_new_privs (PR_SET_NO_NEW_PRIVS) on it, without which the
// kernel refuses, with EACCES, unless the thread has CAP_SYS_ADMIN.
//
// The kernel compiles and then runs it for every system call number before it
// answers, which takes some tens of microseconds. Before Linux 5.16 it also
// turns on what mitigates speculation for the thread; that is not declined.
func Filter(filter []byte) error {
	if len(filter) == 0 || len(filter)%8 != 0 || len(filter)/8 > 4096 {
		return errors.New("load seccomp: that is not a filter") // BPF_MAXINSNS is 4096
	}
	prog := unix.SockFprog{
		Len:    uint16(len(filter) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(filter))),
	}
	const setModeFilter = 1 // SECCOMP_SET_MODE_FILTER
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setModeFilter, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	return nil
}
