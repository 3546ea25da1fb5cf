package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// status prints what the kernel says of this process's rights.
func status([]string) error {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		name, v, _ := strings.Cut(line, ":")
		switch name {
		case "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "NSpid", "Uid", "Groups":
			say(name, strings.Join(strings.Fields(v), " "))
		}
	}
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	say("securebits", fmt.Sprintf("%#x %s", bits, verdict(err)))
	for name, r := range map[string]int{"core": unix.RLIMIT_CORE, "rtprio": unix.RLIMIT_RTPRIO, "nice": unix.RLIMIT_NICE} {
		var l unix.Rlimit
		if err := unix.Getrlimit(r, &l); err != nil {
			return err
		}
		say("rlimit "+name, fmt.Sprintf("%d %d", l.Cur, l.Max))
	}
	dumpable, _ := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	say("dumpable", strconv.Itoa(dumpable))
	return nil
}

// gain tries to get rights that the process does not have.
func gain([]string) error {
	runtime.LockOSThread()
	sayErr("no_new_privs off", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0))
	sayErr("securebits off", unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0))
	sayErr("ambient raise", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_SYS_ADMIN, 0, 0))
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
	sayErr("capset", unix.Capset(&hdr, &data[0]))
	_, _, errno := unix.RawSyscall(unix.SYS_SETUID, 12345, 0, 0)
	sayErrno("setuid", errno)
	_, _, errno = unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
	sayErrno("setgroups", errno)
	sayErr("priority", unix.Setpriority(unix.PRIO_PROCESS, 0, -20))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Max++
	sayErr("raise a hard limit", unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil))
	for _, name := range []string{"user_namespaces", "mnt_namespaces", "net_namespaces"} {
		sayErr("max_"+name, os.WriteFile("/proc/sys/user/max_"+name, []byte("100"), 0))
	}
	sayErr("oom_score_adj", os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0))
	sayErr("uid_map", os.WriteFile("/proc/self/uid_map", []byte("0 0 1"), 0))
	sayErr("setgroups file", os.WriteFile("/proc/self/setgroups", []byte("allow"), 0))
	return nil
}

func sayErrno(name string, errno syscall.Errno) {
	if errno == 0 {
		say(name, "ok")
		return
	}
	sayErr(name, errno)
}

// whoami prints the ids, the effective ones among them.
func whoami([]string) error {
	say("uid", strconv.Itoa(unix.Getuid()))
	say("euid", strconv.Itoa(unix.Geteuid()))
	say("gid", strconv.Itoa(unix.Getgid()))
	say("egid", strconv.Itoa(unix.Getegid()))
	say("hostname", func() string { h, _ := os.Hostname(); return h }())
	wd, err := os.Getwd()
	if err != nil {
		wd = verdict(err)
	}
	say("cwd", wd)
	return nil
}

// descriptors prints what is open, but for what this probe opens itself.
func descriptors([]string) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue // the directory itself, closed since
		}
		fd, _ := strconv.Atoi(e.Name())
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // this program's own: what is inherited is not close-on-exec
		}
		say(e.Name(), to)
	}
	return nil
}

// mountinfo prints each mount point with its file system and options.
func mountinfo([]string) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line)) // proc_pid_mountinfo(5)
		i := 6
		for i < len(f) && f[i] != "-" {
			i++
		}
		if len(f) < 6 || i+3 >= len(f)+1 {
			continue
		}
		say(f[4], f[5]+" "+f[i+1]+" root="+f[3]+" "+strings.Join(f[i+2:], " "))
	}
	return nil
}

// attack tries to get at other processes: args are pids.
func attack(args []string) error {
	runtime.LockOSThread()
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			return err
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid), 0, 0, 0, 0)
		sayErrno(a+" ptrace attach", errno)
		_, _, errno = unix.RawSyscall6(unix.SYS_PTRACE, 0x4206, uintptr(pid), 0, 0, 0, 0) // PTRACE_SEIZE
		sayErrno(a+" ptrace seize", errno)
		buf := make([]byte, 8)
		local := []unix.Iovec{{Base: &buf[0], Len: 8}}
		remote := []unix.RemoteIovec{{Base: 0x400000, Len: 8}}
		_, err = unix.ProcessVMReadv(pid, local, remote, 0)
		sayErr(a+" read memory", err)
		_, err = unix.ProcessVMWritev(pid, local, remote, 0)
		sayErr(a+" write memory", err)
		if fd, err := unix.PidfdOpen(pid, 0); err != nil {
			sayErr(a+" pidfd", err)
		} else {
			_, err := unix.PidfdGetfd(fd, 3, 0)
			sayErr(a+" steal a descriptor", err)
			unix.Close(fd)
		}
		var l unix.Rlimit
		sayErr(a+" limits", unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &l))
		sayErr(a+" priority", unix.Setpriority(unix.PRIO_PROCESS, pid, 19))
		for _, f := range []string{"mem", "environ", "maps", "auxv", "syscall", "stack", "personality"} {
			b, err := os.ReadFile("/proc/" + a + "/" + f)
			if err == nil && len(b) == 0 {
				say(a+" "+f, "empty")
				continue
			}
			sayErr(a+" "+f, err)
		}
		for _, f := range []string{"exe", "root", "cwd", "ns/user", "ns/mnt"} {
			_, err := os.Readlink("/proc/" + a + "/" + f)
			sayErr(a+" "+f, err)
		}
		for _, f := range []string{"fd", "map_files", "task/" + a + "/fd", "root/", "cwd/"} {
			_, err := os.ReadDir("/proc/" + a + "/" + f)
			sayErr(a+" "+f, err)
		}
		for _, f := range []string{"mem", "exe", "oom_score_adj", "uid_map", "setgroups", "comm", "clear_refs", "coredump_filter"} {
			fd, err := unix.Open("/proc/"+a+"/"+f, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				unix.Close(fd)
			}
			sayErr(a+" open to write "+f, err)
		}
	}
	return nil
}

// terminal tries what a process can do to the terminal that it has.
func terminal([]string) error {
	c := byte('x')
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
	sayErrno("TIOCSTI", errno)
	three := byte(3)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, 0, 0x541c, uintptr(unsafe.Pointer(&three)))
	sayErrno("TIOCLINUX", errno)
	n := int32(1)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, 0, 0x5423, uintptr(unsafe.Pointer(&n)))
	sayErrno("TIOCSETD", errno)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, 0, 0x541d, 0)
	sayErrno("TIOCCONS", errno)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<32, uintptr(unsafe.Pointer(&c)))
	sayErrno("TIOCSTI with high bits", errno)
	_, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
	sayErr("TIOCGWINSZ", err) // is it a terminal at all?
	return nil
}

// nodes tries to make device nodes, and says which can be opened.
func nodes(args []string) error {
	dir := args[0]
	for _, n := range []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{{"mem", unix.S_IFCHR, 1, 1}, {"sda", unix.S_IFBLK, 8, 0}, {"null", unix.S_IFCHR, 1, 3}, {"whiteout", unix.S_IFCHR, 0, 0}, {"fifo", unix.S_IFIFO, 0, 0}} {
		p := filepath.Join(dir, "node-"+n.name)
		err := unix.Mknod(p, n.mode|0o600, int(unix.Mkdev(n.major, n.minor)))
		sayErr("mknod "+n.name, err)
		if err == nil {
			os.Remove(p)
		}
	}
	entries, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	sort.Strings(names)
	say("/dev", strings.Join(names, " "))
	sayErr("create in /dev", os.WriteFile("/dev/new", nil, 0o600))
	sayErr("chmod of a device", os.Chmod("/dev/null", 0o600))
	sayErr("chown of a device", os.Chown("/dev/null", 1000, 1000))
	sayErr("rename a device", os.Rename("/dev/null", "/dev/zero"))
	sayErr("times of a device", os.Chtimes("/dev/null", time.Unix(0, 0), time.Unix(0, 0)))
	return nil
}

const shmKey = 0x61746f6c

// ipcMake makes one of each thing that processes share, with a name that
// others could find, and stays.
func ipcMake([]string) error {
	_, err := unix.SysvShmGet(shmKey, 4096, unix.IPC_CREAT|0o666)
	sayErr("shm", err)
	_, _, errno := unix.Syscall(unix.SYS_MSGGET, shmKey, unix.IPC_CREAT|0o666, 0)
	sayErrno("msg", errno)
	_, _, errno = unix.Syscall(unix.SYS_SEMGET, shmKey, 1, unix.IPC_CREAT|0o666)
	sayErrno("sem", errno)
	sayErrno("mq", mqOpen("atoll-abuse", unix.O_CREAT|unix.O_RDWR))
	sayErr("posix shm", os.WriteFile("/dev/shm/atoll-abuse", []byte("x"), 0o666))
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Bind(l, &unix.SockaddrUnix{Name: "@atoll-abuse"})
	}
	if err == nil {
		err = unix.Listen(l, 1)
	}
	sayErr("abstract socket", err)
	say("ready", "ok")
	for {
		time.Sleep(time.Hour)
	}
}

// ipcLook looks for what ipcMake makes.
func ipcLook([]string) error {
	_, err := unix.SysvShmGet(shmKey, 0, 0)
	sayErr("shm", err)
	_, _, errno := unix.Syscall(unix.SYS_MSGGET, shmKey, 0, 0)
	sayErrno("msg", errno)
	_, _, errno = unix.Syscall(unix.SYS_SEMGET, shmKey, 1, 0)
	sayErrno("sem", errno)
	sayErrno("mq", mqOpen("atoll-abuse", unix.O_RDWR))
	_, err = os.ReadFile("/dev/shm/atoll-abuse")
	sayErr("posix shm", err)
	return connect([]string{"@atoll-abuse"})
}

func mqOpen(name string, flags int) syscall.Errno {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return unix.EINVAL
	}
	_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), uintptr(flags), 0o666, 0, 0, 0)
	return errno
}

// listen listens on a Unix socket, and stays.
func listen(args []string) error {
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(l, &unix.SockaddrUnix{Name: args[0]}); err != nil {
		return err
	}
	if err := unix.Listen(l, 1); err != nil {
		return err
	}
	say("ready", "ok")
	for {
		time.Sleep(time.Hour)
	}
}

// connect tries Unix sockets, by path or, with an @, by abstract name.
func connect(names []string) error {
	for _, name := range names {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		sayErr(name, unix.Connect(fd, &unix.SockaddrUnix{Name: name}))
		unix.Close(fd)
	}
	return nil
}

// schedule tries to get more of the processors than others.
func schedule([]string) error {
	runtime.LockOSThread()
	param := struct{ priority int32 }{50}
	for name, policy := range map[string]uintptr{"fifo": 1, "rr": 2} {
		_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, 0, policy, uintptr(unsafe.Pointer(&param)))
		sayErrno(name, errno)
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_DEADLINE, Runtime: 90e6, Deadline: 100e6, Period: 100e6}
	sayErr("deadline", unix.SchedSetAttr(0, &attr, 0))
	sayErr("nice", unix.Setpriority(unix.PRIO_PROCESS, 0, -20))
	_, _, errno := unix.RawSyscall(unix.SYS_IOPRIO_SET, 1, 0, 1<<13) // IOPRIO_CLASS_RT, the highest level
	sayErrno("io realtime", errno)
	return nil
}

// swap turns args[0] into a directory and into a link to args[1], over and
// over, until it is killed.
func swap(args []string) error {
	at, to := args[0], args[1]
	for i := 0; ; i++ {
		a, b := at+".dir", at+".link"
		os.MkdirAll(filepath.Join(a, "deep"), 0o777)
		os.WriteFile(filepath.Join(a, "file"), []byte("inside"), 0o666)
		os.Symlink(to, b)
		for range 50 {
			unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, at, 0)
			unix.Renameat2(unix.AT_FDCWD, at, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			if _, err := os.Lstat(at); err != nil {
				os.Rename(b, at)
				break
			}
		}
		if i == 0 {
			say("ready", "ok")
		}
	}
}
