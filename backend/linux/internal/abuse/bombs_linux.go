package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// burn keeps n threads busy for ever.
// burnt is what burning leaves, so that the loop does something.
var burnt atomic.Int64

func burn(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(n)
	for range n {
		go func() {
			runtime.LockOSThread()
			for n := 0; ; n++ { // as busy as can be
				burnt.Store(int64(n))
			}
		}()
	}
	say("ready", "ok")
	select {}
}

// forks makes processes until there can be no more, all of which stay and go
// on trying. It prints how many it saw when the first attempt failed.
func forks([]string) error {
	runtime.LockOSThread()
	signal.Ignore(unix.SIGCHLD)
	pause := unix.Timespec{Nsec: 20_000_000}
	for n := 1; ; n++ {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			say("forks", strconv.Itoa(n)+" "+verdict(errno))
			for {
				time.Sleep(time.Hour)
			}
		}
		if pid == 0 {
			// A child shares nothing that the runtime could use: system calls
			// alone, for ever.
			for {
				unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
				unix.RawSyscall6(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0, 0, 0, 0)
			}
		}
	}
}

// memory uses memory in the way that args[0] says until something stops it, at
// most args[1] MiB. It prints how far it came and what stopped it. With a third
// argument it then keeps what it has, for a limit that is kept by looking.
func memory(args []string) error {
	most, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	done := func(mib int, err error) error {
		sayErr(fmt.Sprintf("%s %d", args[0], mib), err)
		for len(args) > 2 {
			time.Sleep(time.Hour)
		}
		return nil
	}
	switch args[0] {
	case "anonymous":
		for i := range most {
			b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return done(i, err)
			}
			for j := 0; j < len(b); j += 4096 {
				b[j] = 1
			}
		}
	case "memfd":
		fd, err := unix.MemfdCreate("bomb", 0)
		if err != nil {
			return err
		}
		b := make([]byte, 1<<20)
		for i := range most {
			if _, err := unix.Write(fd, b); err != nil {
				return done(i, err)
			}
		}
	case "pipes":
		var held []int
		b := make([]byte, 1<<16)
		for i := range most * 16 {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil {
				return done(i/16, err)
			}
			held = append(held, p[0], p[1])
			unix.Write(p[1], b)
		}
		runtime.KeepAlive(held)
	case "sockets":
		b := make([]byte, 1<<16)
		for i := range most * 4 {
			p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return done(i/4, err)
			}
			for {
				if _, err := unix.Write(p[1], b); err != nil {
					break
				}
			}
		}
	case "dentries":
		for i := range most * 1024 { // each takes some 400 bytes, the missing one's name included
			_, err := os.Lstat("/tmp/" + strings.Repeat("x", 200) + strconv.Itoa(i))
			if err != nil && !os.IsNotExist(err) {
				return done(i/1024, err)
			}
		}
	case "mappings":
		for i := range most * 8192 { // a vm_area_struct is some 200 bytes
			prot := unix.PROT_READ
			if i%2 == 0 {
				prot |= unix.PROT_WRITE
			}
			_, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, 4096, uintptr(prot), unix.MAP_PRIVATE|unix.MAP_ANON, ^uintptr(0), 0)
			if errno != 0 {
				return done(i/8192, errno)
			}
		}
	case "argv":
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		long := strings.Repeat("x", 100<<10)
		for i := 1; i <= most*10; i *= 2 {
			args := make([]string, i)
			for j := range args {
				args[j] = long
			}
			if err := exec.Command(exe, args...).Run(); err != nil {
				if _, ended := err.(*exec.ExitError); !ended {
					return done(i/10, err)
				}
			}
		}
	default:
		return fmt.Errorf("memory: %q", args[0])
	}
	return done(most, nil)
}

// fill fills the file system at args[1] in the way that args[0] says, at most
// args[2] MiB or so many files, and leaves it full. It prints how far it came
// and what stopped it.
func fill(args []string) error {
	dir := args[1] + "/fill"
	most, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	done := func(n int, err error) error {
		sayErr(fmt.Sprintf("%s %d", args[0], n), err)
		return nil
	}
	switch args[0] {
	case "big", "unlinked":
		fd, err := unix.Open(dir+"/big", unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, 0o600)
		if err != nil {
			return done(0, err)
		}
		if args[0] == "unlinked" {
			os.Remove(dir + "/big")
		}
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i * 7)
		}
		for i := range most {
			if n, err := unix.Write(fd, b); err != nil || n < len(b) {
				if err == nil {
					_, err = unix.Write(fd, b[n:])
				}
				return done(i, err)
			}
		}
	case "sparse":
		f, err := os.Create(dir + "/sparse")
		if err != nil {
			return done(0, err)
		}
		if err := f.Truncate(1 << 40); err != nil {
			return done(0, err)
		}
		for i := range most {
			if _, err := f.WriteAt(make([]byte, 1<<20), int64(i)<<30); err != nil {
				return done(i, err)
			}
		}
	case "files":
		for i := range most {
			if err := os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o600); err != nil {
				return done(i, err)
			}
		}
	case "names":
		name := strings.Repeat("n", 240)
		for i := range most {
			if err := os.WriteFile(fmt.Sprintf("%s/%s%d", dir, name, i), []byte("x"), 0o600); err != nil {
				return done(i, err)
			}
		}
	case "deep":
		if err := os.Chdir(dir); err != nil {
			return err
		}
		for i := range most {
			if err := os.Mkdir("deeper", 0o700); err != nil {
				return done(i, err)
			}
			if err := unix.Chdir("deeper"); err != nil {
				return done(i, err)
			}
		}
	default:
		return fmt.Errorf("fill: %q", args[0])
	}
	return done(most, nil)
}

// exhaust takes as many of something as it can get, at most args[1], prints
// how many, and keeps them.
func exhaust(args []string) error {
	most, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var take func(i int) error
	switch args[0] {
	case "fds":
		take = func(int) error { _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); return err }
	case "inotify":
		take = func(int) error { _, err := unix.InotifyInit1(0); return err }
	case "watches":
		fd, err := unix.InotifyInit1(0)
		if err != nil {
			return err
		}
		take = func(i int) error {
			p := fmt.Sprintf("/tmp/watched-%d", i)
			if err := os.WriteFile(p, nil, 0o600); err != nil {
				return err
			}
			_, err := unix.InotifyAddWatch(fd, p, unix.IN_ALL_EVENTS)
			return err
		}
	case "epoll":
		ep, err := unix.EpollCreate1(0)
		if err != nil {
			return err
		}
		take = func(int) error {
			fd, err := unix.Eventfd(0, 0)
			if err != nil {
				return err
			}
			return unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
		}
	case "ptys":
		take = func(int) error { _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); return err }
	case "ports":
		take = func(int) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}
	case "timers":
		take = func(int) error {
			var id int32
			_, _, errno := unix.RawSyscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
			if errno != 0 {
				return errno
			}
			return nil
		}
	case "signals":
		// Real-time signals queue; blocked, they stay.
		runtime.LockOSThread()
		var set unix.Sigset_t
		for i := range set.Val {
			set.Val[i] = ^uint64(0)
		}
		if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
			return err
		}
		tid := unix.Gettid()
		info := make([]byte, 128)
		*(*int32)(unsafe.Pointer(&info[0])) = 40
		*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
		take = func(int) error {
			_, _, errno := unix.RawSyscall6(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(tid), 40, uintptr(unsafe.Pointer(&info[0])), 0, 0)
			if errno != 0 {
				return errno
			}
			return nil
		}
	case "queues":
		take = func(i int) error {
			if errno := mqOpen(fmt.Sprintf("q%d", i), unix.O_CREAT|unix.O_RDWR); errno != 0 {
				return errno
			}
			return nil
		}
	case "locked":
		take = func(int) error {
			b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				return err
			}
			return unix.Mlock(b)
		}
	case "aio":
		take = func(int) error {
			var ctx uintptr
			_, _, errno := unix.RawSyscall(unix.SYS_IO_SETUP, 1024, uintptr(unsafe.Pointer(&ctx)), 0)
			if errno != 0 {
				return errno
			}
			return nil
		}
	case "pipebuffers":
		take = func(int) error {
			var p [2]int
			if err := unix.Pipe(p[:]); err != nil {
				return err
			}
			_, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<20)
			return err
		}
	default:
		return fmt.Errorf("exhaust: %q", args[0])
	}
	n := 0
	for n < most {
		if err = take(n); err != nil {
			break
		}
		n++
	}
	say(args[0], strconv.Itoa(n)+" "+verdict(err))
	for {
		time.Sleep(time.Hour)
	}
}

// zombies leaves n dead children that nobody waits for, and stays.
func zombies(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	for i := range n {
		pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno != 0 {
			say("zombies", strconv.Itoa(i)+" "+verdict(errno))
			select {}
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	say("zombies", strconv.Itoa(n)+" ok")
	for {
		time.Sleep(time.Hour)
	}
}

// start starts this program again with another probe, in a session of its own
// and with no open stream but those given.
func start(probe string, files []*os.File, args ...string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := os.StartProcess(exe, append([]string{exe, os.Args[1], probe}, args...), &os.ProcAttr{
		Files: files, Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	return p.Release()
}

// daemon flees from its parent twice and leaves a descendant that ignores all
// it can; args[0] is what the descendant is to be called by. Then it exits.
func daemon(args []string) error {
	depth := 2
	if len(args) > 1 {
		depth, _ = strconv.Atoi(args[1])
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if depth > 0 {
		return start("daemon", []*os.File{null, null, null}, args[0], strconv.Itoa(depth-1))
	}
	return start("stubborn", []*os.File{null, null, null}, args[0])
}

// stubborn ignores every signal that can be ignored, and stays.
func stubborn(args []string) error {
	for n := 1; n < 65; n++ {
		if n != int(unix.SIGKILL) && n != int(unix.SIGSTOP) {
			signal.Ignore(unix.Signal(n))
		}
	}
	say("ready", "ok")
	for {
		time.Sleep(time.Hour)
	}
}

// stop stops itself.
func stop([]string) error {
	say("ready", "ok")
	unix.Kill(os.Getpid(), unix.SIGSTOP)
	say("went on", "ok")
	for {
		time.Sleep(time.Hour)
	}
}

// closed closes its streams and lives on.
func closed([]string) error {
	for fd := range 3 {
		unix.Close(fd)
	}
	for {
		time.Sleep(time.Hour)
	}
}

// flood writes without end, or args[0] MiB, with no line in it, to both
// streams.
func flood(args []string) error {
	most := -1
	if len(args) > 0 {
		var err error
		if most, err = strconv.Atoi(args[0]); err != nil {
			return err
		}
	}
	b := make([]byte, 1<<19)
	for i := range b {
		b[i] = byte(i)
	}
	for i := 0; i != most; i++ {
		if _, err := os.Stdout.Write(b); err != nil {
			return err
		}
		if _, err := os.Stderr.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// drip writes a byte at a time.
func drip([]string) error {
	for {
		if _, err := os.Stdout.Write([]byte{0}); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// vforkStop makes a child that shares its memory and stands in the kernel for
// it, and then stops the child: a parent that not every signal wakes.
func vforkStop([]string) error {
	runtime.LockOSThread()
	say("ready", "ok")
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_VFORK|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		self, _, _ := unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
		for {
			unix.RawSyscall(unix.SYS_KILL, self, uintptr(unix.SIGSTOP), 0)
		}
	}
	say("vfork", "returned")
	return nil
}

// descendant starts a stubborn process that shares its streams, and exits.
func descendant(args []string) error {
	return start("stubborn", []*os.File{os.Stdin, os.Stdout, os.Stderr}, args...)
}

// fsyncs writes and flushes for ever.
func fsyncs(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	b := make([]byte, 4096)
	for i := 0; ; i++ {
		if _, err := f.WriteAt(b, int64(i%256)*4096); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if i == 0 {
			say("ready", "ok")
		}
	}
}
