package enter

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capset leaves every thread of the program the given capabilities, permitted
// and effective, and none to inherit.
func capset(caps uint64) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: uint32(caps), Permitted: uint32(caps)},
		{Effective: uint32(caps >> 32), Permitted: uint32(caps >> 32)},
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
