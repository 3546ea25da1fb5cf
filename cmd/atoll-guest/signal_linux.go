package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's SIG_DFL and SIG_IGN.
const (
	byDefault = 0
	ignored   = 1
)

// act sets what the signal does, behind the runtime's back. The runtime still
// takes those that it had set for its own, and gives them their default in
// each child before execve.
func act(n unix.Signal, handler byte) {
	action := [64]byte{handler} // struct sigaction of the kernel; the handler comes first
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// isIgnored reports whether the signal is ignored.
func isIgnored(n unix.Signal) bool {
	var action [64]byte
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
	return action[0] == ignored && action[1] == 0
}

// forget gives their default to the signals that were ignored before the
// program began, as nohup does with HUP, and returns them as a set: the
// runtime leaves those alone, and so whatever the program starts would begin
// with them ignored.
func forget() (were uint64) {
	for n := unix.Signal(1); n <= 64; n++ {
		if isIgnored(n) {
			act(n, byDefault)
			were |= 1 << (n - 1)
		}
	}
	return were
}
