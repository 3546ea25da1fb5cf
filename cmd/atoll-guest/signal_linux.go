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
