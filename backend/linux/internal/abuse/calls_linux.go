package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A call is a system call with arguments that do nothing even where it is
// allowed, and that the kernel itself would answer otherwise, where it can.
type call struct {
	name string
	nr   uintptr
	args [6]uintptr
}

const bad = ^uintptr(0) // a descriptor and a pointer that are never good

// common are the calls that every architecture has.
var common = []call{
	// What makes mounts and namespaces.
	{"mount", unix.SYS_MOUNT, [6]uintptr{bad, bad, bad, 0, bad}},
	{"umount2", unix.SYS_UMOUNT2, [6]uintptr{bad}},
	{"pivot_root", unix.SYS_PIVOT_ROOT, [6]uintptr{bad, bad}},
	{"chroot", unix.SYS_CHROOT, [6]uintptr{bad}},
	{"open_tree", unix.SYS_OPEN_TREE, [6]uintptr{bad, bad}},
	{"move_mount", unix.SYS_MOVE_MOUNT, [6]uintptr{bad, bad, bad, bad}},
	{"fsopen", unix.SYS_FSOPEN, [6]uintptr{bad}},
	{"fsconfig", unix.SYS_FSCONFIG, [6]uintptr{bad}},
	{"fsmount", unix.SYS_FSMOUNT, [6]uintptr{bad}},
	{"fspick", unix.SYS_FSPICK, [6]uintptr{bad, bad}},
	{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uintptr{bad, bad, 0, bad, 64}},
	{"setns", unix.SYS_SETNS, [6]uintptr{bad}},
	{"unshare user", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER}},
	{"unshare mount", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWNS}},
	{"unshare pid", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWPID}},
	{"unshare net", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWNET}},
	{"unshare time", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWTIME}},
	{"unshare user and fs", unix.SYS_UNSHARE, [6]uintptr{unix.CLONE_NEWUSER | unix.CLONE_FS}},
	{"clone user", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)}},
	{"clone net", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWNET | uintptr(unix.SIGCHLD)}},
	{"clone mount", unix.SYS_CLONE, [6]uintptr{unix.CLONE_NEWNS | uintptr(unix.SIGCHLD)}},

	// Keyrings.
	{"add_key", unix.SYS_ADD_KEY, [6]uintptr{bad, bad}},
	{"request_key", unix.SYS_REQUEST_KEY, [6]uintptr{bad, bad}},
	{"keyctl", unix.SYS_KEYCTL, [6]uintptr{9999}},
	{"keyctl session", unix.SYS_KEYCTL, [6]uintptr{0, ^uintptr(2), 0}}, // KEYCTL_GET_KEYRING_ID of KEY_SPEC_SESSION_KEYRING

	// What exploits come through.
	{"bpf", unix.SYS_BPF, [6]uintptr{9999, 0, 0}},
	{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [6]uintptr{bad}},
	{"userfaultfd", unix.SYS_USERFAULTFD, [6]uintptr{1}}, // UFFD_USER_MODE_ONLY, which the kernel gives to anybody
	{"io_uring_setup", unix.SYS_IO_URING_SETUP, [6]uintptr{1, bad}},
	{"io_uring_enter", unix.SYS_IO_URING_ENTER, [6]uintptr{bad}},
	{"io_uring_register", unix.SYS_IO_URING_REGISTER, [6]uintptr{bad}},
	{"pidfd_getfd", unix.SYS_PIDFD_GETFD, [6]uintptr{bad, bad}},
	{"kcmp", unix.SYS_KCMP, [6]uintptr{1, 1, 9999}},
	{"fanotify_init", unix.SYS_FANOTIFY_INIT, [6]uintptr{0x200}}, // FAN_REPORT_FID, which needs no right
	{"fanotify_mark", unix.SYS_FANOTIFY_MARK, [6]uintptr{bad}},
	{"move_pages", unix.SYS_MOVE_PAGES, [6]uintptr{0, 0, 0, 0, 0, 0}},
	{"migrate_pages", unix.SYS_MIGRATE_PAGES, [6]uintptr{0, 0, bad, bad}},
	{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, [6]uintptr{bad, bad}},
	{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, [6]uintptr{bad, bad, bad, bad}},
	{"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, [6]uintptr{0, bad, 0}},

	// What belongs to the machine.
	{"kexec_load", unix.SYS_KEXEC_LOAD, [6]uintptr{0, 9999, 0, 0}},
	{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, [6]uintptr{bad, bad, 0, 0, bad}},
	{"init_module", unix.SYS_INIT_MODULE, [6]uintptr{bad, 0, bad}},
	{"finit_module", unix.SYS_FINIT_MODULE, [6]uintptr{bad, bad, 0}},
	{"delete_module", unix.SYS_DELETE_MODULE, [6]uintptr{bad}},
	{"swapon", unix.SYS_SWAPON, [6]uintptr{bad}},
	{"swapoff", unix.SYS_SWAPOFF, [6]uintptr{bad}},
	{"reboot", unix.SYS_REBOOT, [6]uintptr{0, 0, 0}}, // not the magic numbers
	{"acct", unix.SYS_ACCT, [6]uintptr{bad}},
	{"quotactl", unix.SYS_QUOTACTL, [6]uintptr{bad, bad}},
	{"quotactl_fd", unix.SYS_QUOTACTL_FD, [6]uintptr{bad, bad}},
	{"syslog", unix.SYS_SYSLOG, [6]uintptr{10}}, // SYSLOG_ACTION_SIZE_BUFFER
	{"settimeofday", unix.SYS_SETTIMEOFDAY, [6]uintptr{bad, bad}},
	{"clock_settime", unix.SYS_CLOCK_SETTIME, [6]uintptr{9999, bad}},
	{"clock_adjtime", unix.SYS_CLOCK_ADJTIME, [6]uintptr{9999, bad}},
	{"adjtimex", unix.SYS_ADJTIMEX, [6]uintptr{bad}},
	{"sethostname", unix.SYS_SETHOSTNAME, [6]uintptr{bad, 9999}},
	{"setdomainname", unix.SYS_SETDOMAINNAME, [6]uintptr{bad, 9999}},
	{"vhangup", unix.SYS_VHANGUP, [6]uintptr{}},

	// Host-wide counters that no namespace has.
	{"io_setup", unix.SYS_IO_SETUP, [6]uintptr{0, bad}},

	// Calls that are allowed with other arguments.
	{"personality read implies exec", unix.SYS_PERSONALITY, [6]uintptr{0x400000}},
	{"personality page zero", unix.SYS_PERSONALITY, [6]uintptr{0x100000}},
	{"prlimit64 locks of the guest's mark", unix.SYS_PRLIMIT64, [6]uintptr{0, 10, bad, 0}},
	{"mknodat character device", unix.SYS_MKNODAT, [6]uintptr{bad, bad, unix.S_IFCHR, 0}},
	{"mknodat block device", unix.SYS_MKNODAT, [6]uintptr{bad, bad, unix.S_IFBLK, 0}},
	{"ioctl TIOCSTI", unix.SYS_IOCTL, [6]uintptr{bad, unix.TIOCSTI, 0}},
	{"ioctl TIOCLINUX", unix.SYS_IOCTL, [6]uintptr{bad, 0x541c, 0}},
	{"ioctl TIOCSETD", unix.SYS_IOCTL, [6]uintptr{bad, 0x5423, 0}},
	{"ioctl TIOCCONS", unix.SYS_IOCTL, [6]uintptr{bad, 0x541d, 0}},
	{"ioctl TIOCSTI with high bits", unix.SYS_IOCTL, [6]uintptr{bad, unix.TIOCSTI | 1<<40, 0}},

	// Newer than any table: what is not known is not there.
	{"a call of the future", 4000, [6]uintptr{}},
}

// calls makes each call and prints "name nr=N args=a,b,…" and the error. A
// call that should have been refused but succeeded as a fork ends the child.
func calls([]string) error {
	runtime.LockOSThread()
	for _, c := range append(common, perArch...) {
		r, _, errno := unix.RawSyscall6(c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		if errno == 0 && r == 0 && c.nr == unix.SYS_CLONE {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0) // the child
		}
		v := "ok"
		if errno != 0 {
			v = verdict(errno)
		}
		say(fmt.Sprintf("%s nr=%d args=%x,%x,%x,%x,%x,%x", c.name, c.nr, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5]), v)
	}
	return nil
}

// sockets tries every family with every type, and some protocols.
func sockets([]string) error {
	for family := range 48 {
		for _, kind := range []int{1, 2, 3, 4, 5, 6, 10} {
			for _, proto := range []int{0, 1, 6, 17, 58, 132, 255, 262} {
				fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, proto)
				if err == nil {
					unix.Close(fd)
				}
				sayErr(fmt.Sprintf("socket %d %d %d nr=%d", family, kind, proto, unix.SYS_SOCKET), err)
			}
		}
	}
	for _, proto := range []int{4, 5, 6, 9, 12, 15, 16, 20, 21} {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, proto)
		if err == nil {
			unix.Close(fd)
		}
		sayErr(fmt.Sprintf("socket %d %d %d nr=%d", unix.AF_NETLINK, unix.SOCK_RAW, proto, unix.SYS_SOCKET), err)
	}
	return nil
}

// clone3 asks for each kind of namespace with the call whose flags a filter
// cannot see.
func clone3([]string) error {
	runtime.LockOSThread()
	for _, ns := range []struct {
		name  string
		flags uint64
	}{
		{"user", unix.CLONE_NEWUSER}, {"mount", unix.CLONE_NEWNS}, {"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET},
		{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP}, {"time", unix.CLONE_NEWTIME},
		{"user and mount", unix.CLONE_NEWUSER | unix.CLONE_NEWNS},
	} {
		args := [11]uint64{0: ns.flags, 4: uint64(unix.SIGCHLD)} // struct clone_args of linux/sched.h
		pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args[0])), unsafe.Sizeof(args), 0)
		if errno == 0 && pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		if errno == 0 {
			unix.Wait4(int(pid), nil, 0, nil)
			say(ns.name, "ok")
			continue
		}
		sayErr(ns.name, errno)
	}
	return nil
}

// open reads a little of each path and prints what came of it: the error, or
// "ok" and the first bytes.
func open(paths []string) error {
	for _, p := range paths {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			sayErr(p, err)
			continue
		}
		b := make([]byte, 200)
		n, err := unix.Read(fd, b)
		unix.Close(fd)
		switch {
		case err == unix.EISDIR:
			entries, err := os.ReadDir(p)
			if err != nil {
				sayErr(p, err)
				continue
			}
			say(p, "directory of "+strconv.Itoa(len(entries)))
		case err != nil:
			sayErr(p, err)
		case n == 0:
			say(p, "empty")
		default:
			say(p, "ok "+strconv.Quote(string(b[:n])))
		}
	}
	return nil
}

// write tries to open each path for writing, and to write what it has.
func write(paths []string) error {
	for _, p := range paths {
		old, _ := os.ReadFile(p)
		if len(old) > 4096 {
			old = nil
		}
		fd, err := unix.Open(p, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err == nil {
			_, err = unix.Write(fd, old)
			unix.Close(fd)
		}
		sayErr(p, err)
	}
	return nil
}

// link reads where each link leads.
func link(paths []string) error {
	for _, p := range paths {
		to, err := os.Readlink(p)
		if err != nil {
			sayErr(p, err)
			continue
		}
		say(p, "ok "+to)
	}
	return nil
}
