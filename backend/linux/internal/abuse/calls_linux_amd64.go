package main

import "golang.org/x/sys/unix"

// perArch are the calls that this architecture alone has.
var perArch = []call{
	{"iopl", unix.SYS_IOPL, [6]uintptr{9999}},
	{"ioperm", unix.SYS_IOPERM, [6]uintptr{bad, bad, 1}},
	{"modify_ldt", unix.SYS_MODIFY_LDT, [6]uintptr{9999}},
	{"uselib", unix.SYS_USELIB, [6]uintptr{bad}},
	{"ustat", unix.SYS_USTAT, [6]uintptr{bad, bad}},
	{"create_module", unix.SYS_CREATE_MODULE, [6]uintptr{}},
	{"_sysctl", unix.SYS__SYSCTL, [6]uintptr{bad}},
	{"setrlimit of the guest's mark", unix.SYS_SETRLIMIT, [6]uintptr{10, bad}},
	{"mknod character device", unix.SYS_MKNOD, [6]uintptr{bad, unix.S_IFCHR, 0}},
}

// int80 makes a call through the 32-bit entry. It prints what came back, if
// anything does.
func int80([]string) error {
	r := getpid32()
	if r == -38 {
		say("int80", "ENOSYS")
	} else {
		say("int80", "ok")
	}
	return nil
}

func getpid32() int32

// x32 makes calls of the ABI of that name: a bit in the number, and some
// numbers of its own.
func x32([]string) error {
	const bit = 0x40000000
	for name, nr := range map[string]uintptr{"getpid": unix.SYS_GETPID, "mount": unix.SYS_MOUNT, "ptrace": 521, "socket": unix.SYS_SOCKET} {
		_, _, errno := unix.RawSyscall(nr|bit, bad, bad, bad)
		v := "ok"
		if errno != 0 {
			v = verdict(errno)
		}
		say(name, v)
	}
	return nil
}
