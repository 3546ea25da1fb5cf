//go:build linux

package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// The test binary is also the guest of a group and what the guest starts.
func TestMain(m *testing.M) {
	switch os.Getenv("ATOLL_CGROUP_TEST") {
	case "guest":
		guest()
	case "work":
		work(os.Args[1:])
	case "contain":
		contain()
	default:
		os.Exit(m.Run())
	}
}

// contain becomes the test binary again, in a cgroup namespace with a mount of
// cgroup2 of its own, as the first program of a container is.
func contain() {
	runtime.LockOSThread()
	must := func(err error) {
		if err != nil {
			fmt.Println("contain:", err)
			os.Exit(1)
		}
	}
	must(unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP))
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, ""))
	must(unix.Mount("cgroup", "/sys/fs/cgroup", "cgroup2", 0, ""))
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "ATOLL_CGROUP_TEST=") })
	must(syscall.Exec("/proc/self/exe", append([]string{"cgroup.test"}, os.Args[1:]...), env))
}

// guest does what the real one does with a group: the writes of Enter on the
// thread that starts processes, then it starts what its input asks for. Files
// 3 and up are those of the writes and, last, Spawn.
func guest() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// Not the first thread: in version 1 the kernel would take the whole
		// process for a member, and kill it for want of memory.
		go guest()
		select {}
	}
	var before, after int
	var spawn bool
	fmt.Sscan(os.Getenv("ATOLL_CGROUP_FILES"), &before, &after, &spawn)
	must := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	fd := 3
	enter := func(n int) {
		for range n {
			_, err := unix.Write(fd, []byte("0"))
			must(err)
			fd++
		}
	}
	enter(before)
	must(unix.Unshare(unix.CLONE_NEWCGROUP))
	enter(after)
	own, err := os.ReadFile("/proc/thread-self/cgroup")
	must(err)
	fmt.Printf("entered %q\n", own)
	out := make(chan string)
	go func() {
		for s := range out {
			fmt.Println(s)
		}
	}()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		cmd := exec.Command("/proc/self/exe", strings.Fields(in.Text())...)
		cmd.Env = append(os.Environ(), "ATOLL_CGROUP_TEST=work")
		r, w, err := os.Pipe()
		must(err)
		cmd.Stdout = w
		if spawn {
			cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		}
		if err := cmd.Start(); err != nil {
			out <- "refused " + err.Error()
			continue
		}
		w.Close()
		first, _ := bufio.NewReader(r).ReadString('\n')
		out <- fmt.Sprint("started ", cmd.Process.Pid, " ", strings.TrimSpace(first))
		go func() {
			cmd.Wait()
			out <- fmt.Sprint("ended ", cmd.ProcessState)
		}()
	}
	os.Exit(0)
}

// work is what the guest starts. It says a word when it has begun.
func work(args []string) {
	n := 0
	if len(args) > 1 {
		n, _ = strconv.Atoi(args[1])
	}
	child := func(args ...string) error {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return cmd.Start()
	}
	switch args[0] {
	case "sleep":
		fmt.Println("ok")
		time.Sleep(time.Hour)
	case "spin":
		fmt.Println("ok")
		for until := time.Now().Add(time.Duration(n) * time.Millisecond); time.Now().Before(until); {
		}
	case "memory": // n MiB, touched
		fmt.Println("ok")
		b := make([]byte, n<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		os.Exit(3)
	case "shm": // n MiB of a file system in memory
		fmt.Println("ok")
		fd, err := unix.MemfdCreate("x", 0)
		if err != nil {
			os.Exit(4)
		}
		b := make([]byte, 1<<20)
		for range n {
			if _, err := unix.Write(fd, b); err != nil {
				os.Exit(5)
			}
		}
		os.Exit(3)
	case "pipes": // n MiB that only the kernel sees
		fmt.Println("ok")
		b := make([]byte, 1<<20)
		for range n {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil {
				os.Exit(4)
			}
			unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 1<<20)
			unix.Write(p[1], b)
		}
		os.Exit(3)
	case "threads": // n processes at most; says how many there could be
		made := 0
		for range n {
			if child("sleep") != nil {
				break
			}
			made++
		}
		fmt.Println(made)
		time.Sleep(time.Hour)
	case "bomb": // forks for ever, by a shell, which does it quicker than Go
		fmt.Println("ok")
		syscall.Exec("/bin/sh", []string{"sh", "-c", "f() { f | f & }; while :; do f; done"}, []string{"PATH=/bin"})
		os.Exit(6)
	case "zombies":
		for range n {
			cmd := exec.Command("/proc/self/exe", "exit")
			cmd.Start() // nobody waits for it
		}
		fmt.Println("ok")
		time.Sleep(time.Hour)
	case "exit":
	}
	os.Exit(0)
}

// A kind of host, made of what the machine has.
type kind struct {
	name string
	keep func(mount) bool
	mode []Mode
}

var kinds = []kind{
	{"all", func(mount) bool { return true }, []Mode{V2, Hybrid, V1}},
	{"v1 alone", func(m mount) bool { return !m.v2 }, []Mode{V1}},
	{"v2 alone", func(m mount) bool { return m.v2 }, []Mode{V2}},
}

// each runs f as a subtest on each kind of host that this machine can show.
func each(t *testing.T, f func(t *testing.T, h *Host)) {
	if os.Geteuid() != 0 {
		skip(t, "making groups at the top needs root")
	}
	info, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	mounts := parseMounts(info)
	info.Close()
	ran := false
	for _, k := range kinds {
		var some []mount
		for _, m := range mounts {
			if k.keep(m) {
				some = append(some, m)
			}
		}
		if len(some) == 0 || (k.name != "all" && len(some) == len(mounts)) {
			continue
		}
		h := detect(Options{Parent: fmt.Sprintf("/atoll-test-%d", os.Getpid())}, some, nil, true)
		if h.Mode == None {
			continue
		}
		if !slices.Contains(k.mode, h.Mode) {
			t.Errorf("%s: mode is %s", k.name, h.Mode)
		}
		ran = true
		t.Run(k.name, func(t *testing.T) {
			t.Cleanup(func() { h.Close() })
			f(t, h)
		})
	}
	if !ran {
		skip(t, "no group can be made here")
	}
}

func skip(t *testing.T, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("ATOLL_REQUIRE"), ","), "cgroup") {
		t.Fatal(why)
	}
	t.Skip(why)
}

// need skips unless h can keep the limit.
func need(t *testing.T, h *Host, limit string) {
	t.Helper()
	if h.Means(limit) == "" {
		t.Skipf("no controller for %s in this hierarchy", limit)
	}
}

// A box is a group with a guest in it.
type box struct {
	*Group
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	self string // what the guest sees of its groups
}

var ids = 0

func newID() string {
	ids++
	return fmt.Sprintf("test%d", 100000+ids)
}

func newBox(t *testing.T, h *Host, limits sandbox.Limits) *box {
	t.Helper()
	g, err := h.Create(newID(), limits, os.Geteuid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	b := &box{Group: g, t: t, cmd: exec.Command("/proc/self/exe")}
	before, after := g.Enter()
	for _, w := range slices.Concat(before, after) {
		if w.Data != "0" {
			t.Fatalf("a write of %q; this guest knows 0 alone", w.Data)
		}
		b.cmd.ExtraFiles = append(b.cmd.ExtraFiles, w.File)
	}
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if uid := os.Geteuid(); uid != 0 { // a cgroup namespace takes a user namespace, then
		b.cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		b.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	}
	if g.Spawn() != nil {
		b.cmd.ExtraFiles = append(b.cmd.ExtraFiles, g.Spawn())
		b.cmd.SysProcAttr.UseCgroupFD, b.cmd.SysProcAttr.CgroupFD = true, int(g.Dir().Fd())
	}
	b.cmd.Env = append(os.Environ(), "ATOLL_CGROUP_TEST=guest",
		fmt.Sprintf("ATOLL_CGROUP_FILES=%d %d %t", len(before), len(after), g.Spawn() != nil))
	b.cmd.Stderr = os.Stderr
	b.in, _ = b.cmd.StdinPipe()
	out, _ := b.cmd.StdoutPipe()
	b.out = bufio.NewReader(out)
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Kill()
		b.in.Close()
		b.cmd.Wait()
	})
	word := b.line()
	if !strings.HasPrefix(word, "entered ") {
		t.Fatalf("the guest says %q", word)
	}
	b.self, _ = strconv.Unquote(strings.TrimPrefix(word, "entered "))
	if err := g.Settle(); err != nil {
		t.Fatal(err)
	}
	g.Close()
	return b
}

func (b *box) line() string {
	b.t.Helper()
	s, err := b.out.ReadString('\n')
	if err != nil {
		b.t.Fatalf("the guest is gone: %v", err)
	}
	return strings.TrimSpace(s)
}

// start has the guest start a work and returns what that says first.
func (b *box) start(work string) string {
	b.t.Helper()
	fmt.Fprintln(b.in, work)
	word := b.line()
	f := strings.Fields(word)
	if f[0] != "started" {
		b.t.Fatalf("%s: %s", work, word)
	}
	if len(f) < 3 {
		return ""
	}
	return f[2]
}

// run is start, and waits for the end.
func (b *box) run(work string) string {
	b.t.Helper()
	b.start(work)
	return b.line()
}

func TestMemoryIsBounded(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		need(t, h, "memory")
		b := newBox(t, h, sandbox.Limits{Memory: 64 << 20})
		if got := b.Kept()["memory"]; got != h.Means("memory") {
			t.Errorf("kept by %q", got)
		}
		if got := b.run("memory 16"); got != "ended exit status 3" {
			t.Errorf("16 of 64 MiB: %s", got)
		}
		if n, err := b.OOMKills(); n != 0 || err != nil {
			t.Errorf("killed before anything: %d, %v", n, err)
		}
		for i, work := range []string{"memory 200", "shm 200", "pipes 200"} {
			if got := b.run(work); got != "ended signal: killed" {
				t.Errorf("%s MiB within 64: %s", work, got)
			}
			if n, err := b.OOMKills(); n < int64(i)+1 || err != nil {
				t.Errorf("%s: %d killed for memory, %v", work, n, err)
			}
		}
		u, err := b.Usage()
		// The kernel lets who is being killed have a little more.
		if err != nil || u.PeakMemory < 32<<20 || u.PeakMemory > 68<<20 {
			t.Errorf("peak %d, %v", u.PeakMemory, err)
		}
		// The guest lives and goes on.
		if got := b.run("exit"); got != "ended exit status 0" {
			t.Error(got)
		}
	})
}

func TestPIDsAreBounded(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		need(t, h, "pids")
		const limit = 60 // a Go process has some five threads
		b := newBox(t, h, sandbox.Limits{PIDs: limit})
		n, _ := strconv.Atoi(b.start("threads 200"))
		if n < 2 || n >= limit {
			t.Errorf("%d processes came up within a limit of %d", n, limit)
		}
		u, err := b.Usage()
		if err != nil || u.PIDs > limit || u.PIDs < limit/2 {
			t.Errorf("counts %d processes and threads, %v", u.PIDs, err)
		}
	})
}

// A box without a guest thread of its own in the limit must get exactly its
// number: the guest is not counted, whichever hierarchy it is.
func TestPIDsLimitDoesNotCountTheGuest(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		need(t, h, "pids")
		b := newBox(t, h, sandbox.Limits{PIDs: 1})
		if u, err := b.Usage(); u.PIDs != 0 || err != nil {
			t.Errorf("an idle sandbox counts %d, %v", u.PIDs, err)
		}
		// sh is one thread and needs no other here; a Go program would not do.
		fmt.Fprintln(b.in, "exit")
		if word := b.line(); !strings.HasPrefix(word, "started") {
			t.Errorf("one process in a limit of one: %s", word)
		}
	})
}

func TestProcessorTimeIsBounded(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		need(t, h, "cpu")
		b := newBox(t, h, sandbox.Limits{CPU: 0.2})
		if got := b.Kept()["cpu"]; got != h.Means("cpu") {
			t.Errorf("kept by %q", got)
		}
		before, err := b.Usage()
		if err != nil {
			t.Fatal(err)
		}
		b.run("spin 1000")
		after, err := b.Usage()
		if err != nil {
			t.Fatal(err)
		}
		// A second of wanting it all gets a fifth; a slow machine gives less.
		if used := after.CPU - before.CPU; used <= 0 || used > 500*time.Millisecond {
			t.Errorf("used %v within a second at 0.2 cores", used)
		}
	})
}

func TestUnlimitedIsNotKept(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{})
		if len(b.Kept()) != 0 {
			t.Errorf("kept: %v", b.Kept())
		}
		if got := b.run("memory 100"); got != "ended exit status 3" {
			t.Error(got)
		}
	})
}

func TestLimitWithoutControllerIsNotKept(t *testing.T) {
	h := &Host{}
	g, err := h.Create("test1234", sandbox.Limits{Memory: 1 << 30, PIDs: 3}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"memory", "pids"} {
		if by, ok := g.Kept()[limit]; by != "" || !ok {
			t.Errorf("%s is kept by %q, %t", limit, by, ok)
		}
	}
	if err := errors.Join(g.Settle(), g.Kill(), g.Thaw(t.Context()), g.Remove(t.Context())); err != nil {
		t.Error(err)
	}
	if err := g.Freeze(t.Context()); !errors.Is(err, sandbox.Unsupported) {
		t.Errorf("freeze: %v", err)
	}
}

func TestGroupIsTheRootInside(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{Memory: 64 << 20, PIDs: 50, CPU: 1})
		for controller, path := range parseOwn(strings.NewReader(b.self)) {
			switch {
			case controller == "" && b.v2 != "":
				want := "/guest"
				if len(h.v2.gives) == 0 {
					want = "/"
				}
				if path != want {
					t.Errorf("version 2: %s, want %s", path, want)
				}
			case b.v1[controller] != "" && path != "/":
				t.Errorf("%s: %s", controller, path)
			}
		}
	})
}

func TestKillEndsAForkBomb(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		need(t, h, "pids") // else the bomb would be the machine's
		b := newBox(t, h, sandbox.Limits{PIDs: 100, CPU: 1, Memory: 256 << 20})
		b.start("bomb")
		for {
			u, err := b.Usage()
			if err != nil {
				t.Fatal(err)
			}
			if u.PIDs > 50 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		b.cmd.Wait()
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, dir := range b.dirs() {
			if exists(dir) {
				t.Errorf("%s is still there", dir)
			}
		}
	})
}

func TestKillWithoutLimits(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{})
		b.start("sleep")
		b.start("zombies 5")
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		b.cmd.Wait()
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFreezeStops(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{})
		if b.freezer() == nil {
			t.Skip("no freezer in this hierarchy")
		}
		b.start("spin 1000000")
		if err := b.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Freeze(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		u1, err := b.Usage()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Millisecond)
		u2, _ := b.Usage()
		if u1.CPU == 0 || u1.CPU != u2.CPU {
			t.Errorf("frozen, and processor time goes from %v to %v", u1.CPU, u2.CPU)
		}
		if err := b.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Thaw(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		for u1 == u2 || u2.CPU == u1.CPU { // it runs again: else this does not end
			u2, err = b.Usage()
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestFrozenDies(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{})
		if b.freezer() == nil {
			t.Skip("no freezer in this hierarchy")
		}
		b.start("sleep")
		if err := b.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		b.cmd.Wait()
		if err := b.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFreezeThatCannotFinishThaws(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{})
		if b.freezer() == nil {
			t.Skip("no freezer in this hierarchy")
		}
		b.start("sleep")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Freeze(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		} else if err != nil {
			if err := b.Thaw(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRemove(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		b := newBox(t, h, sandbox.Limits{PIDs: 100, Memory: 1 << 30})
		b.start("zombies 10")
		b.start("sleep")
		for _, dir := range b.dirs() {
			for _, name := range []string{"left", "left/over"} {
				if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := h.Create(b.id, sandbox.Limits{}, 0); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("a second group of that name: %v", err)
		}
		if got, err := h.Groups(); err != nil || !slices.Equal(got, []string{b.id}) {
			t.Errorf("groups: %v, %v", got, err)
		}
		// As the next daemon would.
		g, err := h.Open(b.id)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := g.Usage(); err != nil || (h.Means("pids") != "" && u.PIDs == 0) {
			t.Errorf("usage after open: %+v, %v", u, err)
		}
		for range 2 {
			if err := g.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, dir := range b.dirs() {
			if exists(dir) {
				t.Errorf("%s is still there", dir)
			}
		}
		if got, err := h.Groups(); err != nil || len(got) != 0 {
			t.Errorf("groups: %v, %v", got, err)
		}
		if _, err := h.Open(b.id); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("open after remove: %v", err)
		}
		if err := b.Kill(); err != nil {
			t.Errorf("kill after remove: %v", err)
		}
	})
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	each(t, func(t *testing.T, h *Host) {
		trees := h.trees()
		last := trees[len(trees)-1]
		id := newID()
		// The last hierarchy has the group already.
		if err := os.Mkdir(filepath.Join(last.parent, id), 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(filepath.Join(last.parent, id))
		g, err := h.Create(id, sandbox.Limits{CPU: 1}, 0)
		if err == nil {
			// It was a hierarchy that this group has no use for.
			if err := g.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Skip("the last hierarchy is not used")
		}
		if !errors.Is(err, sandbox.Conflict) {
			t.Error(err)
		}
		for _, tr := range trees[:len(trees)-1] {
			if exists(filepath.Join(tr.parent, id)) {
				t.Errorf("%s has it", tr.parent)
			}
		}
	})
}

// Without root, groups are made where systemd, or somebody else, has given the
// daemon's own group to its user.
func TestDelegated(t *testing.T) {
	if os.Getenv("ATOLL_CGROUP_DELEGATED") != "" {
		delegated(t)
		return
	}
	each(t, func(t *testing.T, h *Host) {
		if h.v2 == nil {
			t.Skip("version 1 cannot be delegated")
		}
		const uid = 1000
		ours := filepath.Join(h.v2.parent, "delegated")
		if err := os.Mkdir(ours, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			g := &Group{v2: ours}
			if err := g.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
		for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(ours, name), uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		dir, err := os.Open(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		// The binary lies where another user may not come.
		copied := filepath.Join("/tmp", filepath.Base(ours)+strconv.Itoa(os.Getpid()))
		if err := os.Link(os.Args[0], copied); err != nil {
			b, err := os.ReadFile("/proc/self/exe")
			if err == nil {
				err = os.WriteFile(copied, b, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		defer os.Remove(copied)
		cmd := exec.Command(copied, "-test.run=^TestDelegated$", "-test.v")
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "ATOLL_CGROUP_DELEGATED="+ours, "GOCOVERDIR=")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: uid, Gid: uid},
			UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("as user %d: %v\n%s", uid, err, out)
		}
	})
}

// delegated is TestDelegated as the other user.
func delegated(t *testing.T) {
	h, err := Detect(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if h.Mode != V2 || h.v2.parent != os.Getenv("ATOLL_CGROUP_DELEGATED") {
		t.Fatalf("%s: %s", h.Mode, h.Why)
	}
	// Where there are controllers we have stepped down to be given them; and
	// whoever asks again finds the same place.
	again, err := Detect(Options{})
	if err != nil || again.v2 == nil || again.v2.parent != h.v2.parent || !slices.Equal(again.v2.gives, h.v2.gives) {
		t.Errorf("again: %+v, %v", again, err)
	}
	limits := sandbox.Limits{Memory: 64 << 20, PIDs: 60, CPU: 0.5}
	b := newBox(t, h, limits)
	for limit, by := range b.Kept() {
		if by != h.Means(limit) {
			t.Errorf("%s is kept by %q", limit, by)
		}
	}
	if h.Means("memory") != "" {
		if got := b.run("memory 200"); got != "ended signal: killed" {
			t.Errorf("200 MiB within 64: %s", got)
		}
		if n, err := b.OOMKills(); n < 1 || err != nil {
			t.Errorf("%d killed for memory, %v", n, err)
		}
	}
	b.start("sleep")
	if err := b.Freeze(t.Context()); err != nil {
		t.Error(err)
	}
	// A daemon that was started elsewhere finds it.
	h.v2.parent = h.v2.point
	g, err := h.Open(b.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if exists(b.v2) {
		t.Error("the group is still there")
	}
}

// In a container of its own cgroup namespace the daemon lives in what looks
// like the top, and has to make room there.
func TestContainer(t *testing.T) {
	if gives, ok := os.LookupEnv("ATOLL_CGROUP_CONTAINER"); ok {
		contained(t, gives)
		return
	}
	each(t, func(t *testing.T, h *Host) {
		if h.v2 == nil {
			t.Skip("needs version 2")
		}
		ours := filepath.Join(h.v2.parent, "container")
		if err := os.Mkdir(ours, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := (&Group{v2: ours}).Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
		dir, err := os.Open(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestContainer$", "-test.v")
		cmd.Env = append(os.Environ(), "ATOLL_CGROUP_TEST=contain", "ATOLL_CGROUP_CONTAINER="+strings.Join(h.v2.gives, ","))
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// contained is TestContainer inside.
func contained(t *testing.T, gives string) {
	if own, err := os.ReadFile("/proc/self/cgroup"); err != nil || !strings.Contains(string(own), "0::/\n") {
		t.Fatalf("not at the top of a namespace: %s, %v", own, err)
	}
	h, err := Detect(Options{})
	if err != nil || h.v2 == nil || h.v2.parent != "/sys/fs/cgroup/atoll" {
		t.Fatalf("%+v, %v", h, err)
	}
	defer h.Close()
	if got := strings.Join(h.v2.gives, ","); got != gives {
		t.Errorf("groups get the controllers %q, of %q", got, gives)
	}
	b := newBox(t, h, sandbox.Limits{Memory: 64 << 20})
	if h.Means("memory") != "" {
		if got := b.run("memory 200"); got != "ended signal: killed" {
			t.Errorf("200 MiB within 64: %s", got)
		}
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoGroupSaysWhy(t *testing.T) {
	for _, c := range []struct {
		mounts []mount
		root   bool
		want   string
	}{
		{nil, true, "no cgroup hierarchy is mounted"},
		{[]mount{{point: "/sys/fs/cgroup", root: "/", v2: true, readOnly: true}}, true, "read-only"},
		{[]mount{{point: "/nowhere", root: "/", v2: true}}, true, "no such file"},
		{[]mount{{point: "/nowhere", root: "/", v2: true}}, false, "not ours"},
		{[]mount{{point: "/nowhere", root: "/", controllers: []string{"memory"}}}, false, "root alone"},
		{[]mount{{point: "/nowhere", root: "/", controllers: []string{"cpuset", "cpu"}}}, true, "cpuset"},
	} {
		h := detect(Options{}, c.mounts, map[string]string{"": "/x"}, c.root)
		if h.Mode != None || !strings.Contains(h.Why, c.want) || h.Hint == "" {
			t.Errorf("%+v: %s: %q, hint %q", c.mounts, h.Mode, h.Why, h.Hint)
		}
	}
}

func TestParseMounts(t *testing.T) {
	const text = `24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
25 24 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
26 24 0:24 /docker/x /sys/fs/cgroup/with\040blank ro,nosuid - cgroup cgroup rw,memory
27 24 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
28 24 0:26 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
29 24 0:26 - broken
`
	got := parseMounts(strings.NewReader(text))
	want := []mount{
		{point: "/sys/fs/cgroup/cpu,cpuacct", root: "/", controllers: []string{"cpu", "cpuacct"}},
		{point: "/sys/fs/cgroup/with blank", root: "/docker/x", controllers: []string{"memory"}, readOnly: true},
		{point: "/sys/fs/cgroup/systemd", root: "/", controllers: []string{"name=systemd"}},
		{point: "/sys/fs/cgroup/unified", root: "/", v2: true},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for path, want := range map[string]string{"/docker/x": "/sys/fs/cgroup/with blank", "/docker/x/y": "/sys/fs/cgroup/with blank/y", "/docker/xy": "", "/": ""} {
		if dir := got[1].at(path); dir != want {
			t.Errorf("%s is at %q, want %q", path, dir, want)
		}
	}
	if dir := got[3].at("/../x"); dir != "" {
		t.Errorf("outside of the namespace is %q", dir)
	}
	own := parseOwn(strings.NewReader("4:memory:/a\n1:cpu,cpuacct:/b:c\n2:name=systemd:/\n0::/d\nbroken\n7::/e\n"))
	if want := map[string]string{"memory": "/a", "cpu": "/b:c", "cpuacct": "/b:c", "name=systemd": "/", "": "/d"}; !maps.Equal(own, want) {
		t.Errorf("got %v, want %v", own, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("25 24 0:23 / /a\\040b rw - cgroup cgroup rw,cpu\n0::/x\n", "/x")
	f.Fuzz(func(t *testing.T, text, path string) {
		for _, m := range parseMounts(strings.NewReader(text)) {
			// Whatever /proc says, what we take for a group lies below the mount.
			if dir := m.at(path); dir != "" && m.point != "" && dir != filepath.Clean(m.point) &&
				!strings.HasPrefix(dir, strings.TrimSuffix(filepath.Clean(m.point), "/")+"/") {
				t.Errorf("%q at %+v is %q", path, m, dir)
			}
		}
		parseOwn(strings.NewReader(text))
	})
}

func TestBadNames(t *testing.T) {
	h := &Host{}
	for _, id := range []string{"", "daemon", "../../../etc", "ABCDEFGH", "aaaaaaa/", strings.Repeat("a", 41)} {
		if _, err := h.Create(id, sandbox.Limits{}, 0); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("create %q: %v", id, err)
		}
		if _, err := h.Open(id); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("open %q: %v", id, err)
		}
	}
	for _, p := range []string{"/", "atoll", "/a/../b", "/a/"} {
		if _, err := Detect(Options{Parent: p}); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("parent %q: %v", p, err)
		}
	}
}

// BenchmarkCreate makes and removes a group with all limits.
func BenchmarkCreate(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("making groups at the top needs root")
	}
	h, err := Detect(Options{Parent: fmt.Sprintf("/atoll-test-%d", os.Getpid())})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	if h.Mode == None {
		b.Skip(h.Why)
	}
	for b.Loop() {
		g, err := h.Create(newID(), sandbox.Limits{Memory: 256 << 20, PIDs: 100, CPU: 1}, 100000)
		if err == nil {
			err = g.Settle()
		}
		if err == nil {
			err = g.Remove(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
