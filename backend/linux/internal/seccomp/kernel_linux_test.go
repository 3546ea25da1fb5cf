package seccomp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/seccomp/load"
)

// The test binary is also what wears a filter: a filter stays on for good.
func TestMain(m *testing.M) {
	switch os.Getenv("ATOLL_SECCOMP_TEST") {
	case "probe":
		probe()
	case "wear":
		wear(os.Args[1:])
	case "int80":
		int80()
	case "time":
		timeLoad()
	default:
		os.Exit(m.Run())
	}
}

// self returns a command that runs this binary in a role.
func self(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "ATOLL_SECCOMP_TEST="+role, "GODEBUG=asyncpreemptoff=1")
	return cmd
}

func here(t testing.TB) Arch {
	for _, arch := range arches {
		if arch.name == runtime.GOARCH {
			return arch
		}
	}
	t.Skipf("there is no table for %s", runtime.GOARCH)
	return Arch{}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// put loads f for this thread.
func put(f Filter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return load.Filter(f.Bytes())
}

// The errors that probe's filter gives in place of the true actions, so that
// nothing that it calls is ever done, and no answer can be the kernel's own.
var marks = map[Action]uint16{Allow: 2001, Refuse: 2002, Missing: 2003, Errno(protoNotSupported): 2004}

// A trial is a call and what came of it.
type trial struct {
	NR    uint32
	Args  [6]uint64
	Errno int
}

// trials are the calls that probe makes: all numbers, all that checks look at.
func trials(arch Arch) []trial {
	var all []trial
	for nr := range uint32(600) {
		if nr == 335 || nr == 336 {
			continue // uretprobe and uprobe pass every filter (Linux 6.14), and kill who calls them
		}
		all = append(all, trial{NR: nr}, trial{NR: nr | 0x40000000})
	}
	number := func(name string) (uint32, bool) { n := numbers[name][arch.column]; return uint32(n), n >= 0 }
	for _, name := range []string{"clone", "unshare", "ioctl", "personality", "setrlimit", "prlimit64", "mknod", "mknodat"} {
		nr, ok := number(name)
		if !ok {
			continue
		}
		for _, x := range interesting {
			for _, y := range []uint64{0, 1, 10} {
				all = append(all, trial{NR: nr, Args: [6]uint64{x, y, 1 << 40}}, trial{NR: nr, Args: [6]uint64{y, x}}, trial{NR: nr, Args: [6]uint64{0, y, x}})
			}
		}
	}
	for _, name := range []string{"socket", "socketpair"} {
		nr, _ := number(name)
		for family := range uint64(46) {
			for typ := range uint64(12) {
				for _, proto := range []uint64{0, 1, 6, 15, 132, 262} {
					all = append(all, trial{NR: nr, Args: [6]uint64{family, typ | 0x80000, proto}})
				}
			}
		}
	}
	return all
}

// probe makes the trials on a thread under a filter that lets nothing pass.
// That thread can do nothing afterwards but spin; another prints the results.
func probe() {
	runtime.LockOSThread()
	runtime.GOMAXPROCS(4)  // one is kept busy to the end
	debug.SetGCPercent(-1) // a collection would want to stop a thread that cannot answer
	var arch Arch
	for _, a := range arches {
		if a.name == runtime.GOARCH {
			arch = a
		}
	}
	f := compile(arch, func(a Action) Action {
		if n, ok := marks[a]; ok {
			return Errno(n)
		}
		return a
	})
	all := trials(arch)
	filter := f.Bytes()
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	var state uint32
	go func() {
		runtime.LockOSThread()
		must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		runtime.Gosched()
		callAll(&prog, all, &state)
	}()
	// Whoever waits for us may be gone, and a spinning thread should not be
	// what is left of a test.
	for n := 0; atomic.LoadUint32(&state) == 0 && n < 60_000; n++ {
		time.Sleep(time.Millisecond)
	}
	if atomic.LoadUint32(&state) != 1 {
		must(errors.New("the filter was not loaded"))
	}
	must(json.NewEncoder(os.Stdout).Encode(all))
	os.Exit(0)
}

// callAll loads prog, makes the calls, sets state to 1 and never returns. It
// calls no function that could enter the scheduler, or the race detector: its
// thread cannot even wait any more.
//
//go:norace
//go:nosplit
func callAll(prog *unix.SockFprog, all []trial, state *uint32) {
	_, _, errno := syscall.RawSyscall(unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(prog)))
	if errno != 0 {
		*state = 2
		return
	}
	for i := range all {
		t := &all[i]
		_, _, errno := syscall.RawSyscall6(uintptr(t.NR), uintptr(t.Args[0]), uintptr(t.Args[1]), uintptr(t.Args[2]), uintptr(t.Args[3]), uintptr(t.Args[4]), uintptr(t.Args[5]))
		t.Errno = int(errno)
	}
	*state = 1
	for { // with a call, or the compiler would see nobody who reads state
		syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	}
}

func TestKernelAgrees(t *testing.T) {
	arch := here(t)
	cmd := self("probe")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []trial
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	known, wrong := verdicts(arch), 0
	for _, got := range all {
		want := Missing
		if v, ok := known[got.NR]; ok {
			want = v.decide(got.Args)
		}
		if got.Errno != int(marks[want]) && wrong < 20 {
			wrong++
			t.Errorf("call %#x%#x: errno %d, want %d (%v)", got.NR, got.Args, got.Errno, marks[want], want)
		}
	}
	t.Logf("%d calls", len(all))
}

// wear runs a program under the true filter.
func wear(args []string) {
	runtime.LockOSThread()
	f, err := Default()
	must(err)
	path, err := exec.LookPath(args[0])
	must(err)
	env := slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "ATOLL_SECCOMP_TEST=") || strings.HasPrefix(s, "GODEBUG=")
	})
	must(put(f))
	must(syscall.Exec(path, args, env))
}

// int80 makes a call of the 32-bit architecture, getpid.
func int80() {
	runtime.LockOSThread()
	code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	copy(code, []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3}) // mov $20, %eax; int $0x80; ret
	entry := unsafe.Pointer(unsafe.SliceData(code))
	fn := unsafe.Pointer(&entry)
	call := *(*func())(unsafe.Pointer(&fn))
	if os.Args[1] == "filtered" {
		f, err := Default()
		must(err)
		must(put(f))
	}
	call()
	os.Exit(0)
}

func TestForeignArchitectureKills(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("int 0x80 is x86's")
	}
	if err := self("int80", "plain").Run(); err != nil {
		t.Skipf("this kernel takes no 32-bit calls: %v", err)
	}
	err := self("int80", "filtered").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
		t.Errorf("int 0x80 under the filter: %v", err)
	}
}

// Programs that agents use must not notice the filter.
func TestProgramsWork(t *testing.T) {
	here(t)
	if testing.Short() {
		t.Skip("runs compilers")
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("hello.go", "package main\nimport (\"fmt\"; \"net\"; \"os/exec\")\nfunc main() { l, err := net.Listen(\"tcp\", \"127.0.0.1:0\"); if err != nil { panic(err) }; l.Close(); out, err := exec.Command(\"echo\", \"hello\").Output(); fmt.Print(string(out)); if err != nil { panic(err) } }\n")
	write("hello.c", "#include <stdio.h>\nint main() { puts(\"hello\"); }\n")
	write("hello.js", `const {execSync} = require("child_process"); const fs = require("fs"); const net = require("net");
fs.promises.readFile(__filename).then(() => { const s = net.createServer(); s.listen(0, "127.0.0.1", () => { s.close(); process.stdout.write(execSync("echo hello")); }); });`)
	write("hello.py", `import socket, subprocess, threading, multiprocessing, tempfile, asyncio, os
def f(q): q.put("hello")
if __name__ == "__main__":
    socket.create_server(("127.0.0.1", 0)).close()
    a, b = socket.socketpair(); t = threading.Thread(target=lambda: b.send(b"x")); t.start(); a.recv(1); t.join()
    subprocess.run(["true"], check=True); os.mkfifo("fifo")
    asyncio.run(asyncio.create_subprocess_exec("true"))
    q = multiprocessing.Queue(); p = multiprocessing.Process(target=f, args=(q,)); p.start(); print(q.get()); p.join()
`)
	for _, c := range []struct{ name, script string }{
		{"sh", "echo hello | cat"},
		{"bash", "bash -c 'cat <(echo hello); ulimit -n 100'"},
		{"python3", "python3 hello.py"},
		{"node", "node hello.js"},
		{"go", "GOFLAGS=-mod=mod GOCACHE=$PWD/cache go build -o hello-go hello.go && ./hello-go"},
		{"gcc", "gcc -o hello-c hello.c && ./hello-c"},
		{"git", "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git clone -q . ../r2 && git -C ../r2 fsck >/dev/null 2>&1 && echo hello"},
		{"tar", "mkdir d && echo hello >d/f && tar czf d.tgz d && rm -r d && tar xzf d.tgz && cat d/f"},
		{"dpkg-deb", "mkdir -p p/DEBIAN && printf 'Package: x\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: x\\n' >p/DEBIAN/control && dpkg-deb -b p p.deb >/dev/null && dpkg-deb -x p.deb out && echo hello"},
		{"apt-get", "apt-get --version >/dev/null && apt-config dump >/dev/null && echo hello"},
		{"perl", `perl -e 'use Socket; socketpair(A, B, AF_UNIX, SOCK_STREAM, 0) or die; print "hello\n"'`},
		{"strace", "strace -f -o trace sh -c 'echo hello | cat' && grep -q execve trace"},
		{"gdb", "gdb -batch -ex run -ex quit --args echo hello 2>/dev/null | grep '^hello'"},
		{"script", "script -qec 'echo hello' /dev/null | tr -d '\\r'"}, // opens a terminal
		{"ip", "ip addr >/dev/null && echo hello"},                     // NETLINK_ROUTE
		{"sqlite3", "sqlite3 x.db 'create table t(a); insert into t values(\"hello\"); select a from t'"},
		{"make", "printf 'all:\\n\\t@echo hello\\n' >Makefile && make -j2 -s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath(c.name); err != nil {
				t.Skip("not installed here")
			}
			cmd := self("wear", "sh", "-c", c.script)
			cmd.Dir = dir
			cmd.Env = append(cmd.Env, "HOME="+dir)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || string(out) != "hello\n" {
				t.Errorf("%q, %v\n%s", out, err, stderr.Bytes())
			}
		})
	}
}

// A filter can be put on top of ours, and ours still holds.
func TestNests(t *testing.T) {
	f, err := Default()
	if err != nil {
		t.Skip(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := put(f)
		if err == nil {
			err = put(f)
		}
		if err == nil {
			if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, ^uintptr(0), 0, 0); errno != unix.EPERM {
				err = fmt.Errorf("keyctl: %v", errno)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestLoadRefusesWhatIsNoFilter(t *testing.T) {
	for _, b := range [][]byte{nil, {}, make([]byte, 7), make([]byte, 8*4097)} {
		if load.Filter(b) == nil {
			t.Errorf("%d bytes were taken", len(b))
		}
	}
}

// timeLoad prints how long it takes to load the filter, once for each of some
// threads.
func timeLoad() {
	f, err := Default()
	must(err)
	b := f.Bytes()
	var all []time.Duration
	for range 200 {
		took := make(chan time.Duration)
		go func() {
			runtime.LockOSThread()
			must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
			start := time.Now()
			must(load.Filter(b))
			took <- time.Since(start)
		}()
		all = append(all, <-took)
	}
	slices.Sort(all)
	fmt.Println(all[0].Nanoseconds(), all[len(all)/2].Nanoseconds())
	os.Exit(0)
}

// BenchmarkLoad reports the time to load the filter.
func BenchmarkLoad(b *testing.B) {
	here(b)
	var least, median float64
	for b.Loop() {
		out, err := self("time").Output()
		if err != nil {
			b.Fatal(err)
		}
		fmt.Sscan(string(out), &least, &median)
	}
	b.ReportMetric(median/1e3, "µs/load")
	b.ReportMetric(least/1e3, "µs-least/load")
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		Compile(AMD64)
	}
}
