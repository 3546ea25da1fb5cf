//go:build linux

package linux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/leak"
	"github.com/atoll-run/atoll/sandbox"
)

// A fork bomb stops at its limit. Beside it a sibling goes on, the bombed
// sandbox's files can be reached, and Remove ends it all.
func TestAbuseForkBomb(t *testing.T) {
	cfg := config(t)
	rt := newRuntimeWith(t, cfg)
	w := leak.New(cfg.State)
	c := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{PIDs: 64, Memory: 256 << 20}})
	c.kept(t, "pids", "memory")
	sibling := newCell(t, rt, sandbox.Spec{})
	w.Saw(string(c.ID()))
	_, said := c.start(t, "forks").next(t)
	n, why, _ := strings.Cut(said, " ")
	if got := number(t, n); got > 64 || why != "EAGAIN" {
		t.Errorf("it made %d processes and then: %s", got, why)
	}
	works(t, sibling)
	if _, err := c.Files().Stat(t.Context(), "/etc"); err != nil {
		t.Errorf("files beside a fork bomb: %v", err)
	}
	// A command is started or refused; it does not wait.
	_, err := sandbox.Capture(t.Context(), c, 100, sandbox.Cmd{Args: []string{"/bin/true"}})
	if err != nil && !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("a command beside a fork bomb: %v", err)
	}
	works(t, sibling)
	c.remove(t, w)
	works(t, sibling)
}

// Whatever memory is used for, it is the sandbox's own processes that are
// killed for want of it, and the reason is told.
func TestAbuseMemoryBombs(t *testing.T) {
	rt := newRuntime(t)
	const limit = 64 // MiB
	sibling := newCell(t, rt, sandbox.Spec{})
	for _, kind := range []struct {
		name string
		must bool // it cannot but run into the limit
	}{{"anonymous", true}, {"memfd", true}, {"sockets", false}, {"pipes", false}, {"mappings", false}, {"dentries", false}, {"argv", false}} {
		t.Run(kind.name, func(t *testing.T) {
			c := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{Memory: limit << 20, PIDs: 64}})
			c.kept(t, "memory")
			if by := c.info.Kept["memory"]; by == "guest watch" && kind.name != "anonymous" {
				t.Skip("the guest watches what processes have mapped, and no other memory: see SECURITY.md")
			}
			args := c.args("memory", kind.name, strconv.Itoa(4*limit))
			if kind.must {
				args = append(args, "and stay")
			}
			r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: args, Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v %s", r.Exit, bytes.TrimSpace(r.Stdout))
			switch {
			case r.Reason == sandbox.OutOfMemory:
				if r.Status() != 137 {
					t.Errorf("its status is %d", r.Status())
				}
			case kind.must:
				t.Errorf("it was not stopped for want of memory: %+v %s", r.Exit, r.Stdout)
			case r.Reason == sandbox.Exited && bytes.Contains(r.Stderr, []byte("cannot allocate memory")):
				// The probe's own runtime gave up first.
			case !r.Success():
				t.Errorf("it ended otherwise: %+v %s%s", r.Exit, r.Stdout, r.Stderr)
			}
			works(t, c)
			works(t, sibling)
		})
	}
}

// The memory of /tmp and /dev/shm counts and is bounded, in bytes and in
// files.
func TestAbuseMemoryFileSystems(t *testing.T) {
	rt := newRuntime(t)
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		for _, kind := range []string{"big", "unlinked", "sparse", "files", "names", "deep"} {
			t.Run(kind+" in "+dir, func(t *testing.T) {
				c := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{Memory: 128 << 20, PIDs: 64}})
				c.kept(t, "memory")
				most := 200
				if kind == "files" || kind == "names" || kind == "deep" {
					most = 100_000
				}
				r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: c.args("fill", kind, dir, strconv.Itoa(most))})
				if err != nil {
					t.Fatal(err)
				}
				if r.Reason == sandbox.OutOfMemory {
					return
				}
				if out := string(r.Stdout); !r.Success() || !strings.HasSuffix(out, "\tENOSPC\n") {
					t.Errorf("%+v %s%s", r.Exit, out, r.Stderr)
				}
				works(t, c)
			})
		}
	}
}

// A disk limit is kept, however it is run into; nothing of the host's is
// filled, and what was filled can be used again when it is emptied.
func TestAbuseDisk(t *testing.T) {
	rt := newRuntime(t)
	const limit = 32 // MiB
	c := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{Disk: limit << 20, PIDs: 64}})
	c.kept(t, "disk")
	t.Log("kept by ", c.info.Kept["disk"])
	for _, at := range []string{"/workspace", "/home", "/var"} {
		for _, kind := range []string{"big", "unlinked", "sparse", "files", "names", "deep"} {
			if at != "/workspace" && kind != "big" {
				continue
			}
			most := 4 * limit
			if kind == "files" || kind == "names" || kind == "deep" {
				most = 100_000
			}
			said := c.try(t, "fill", kind, at, strconv.Itoa(most))
			for what, got := range said {
				n := number(t, strings.TrimPrefix(what, kind+" "))
				if got != "ENOSPC" {
					t.Errorf("%s %s: %s", at, what, got)
				}
				if most < 1000 && n > limit {
					t.Errorf("%s %s: %d MiB fit into %d", at, kind, n, limit)
				}
			}
			if kind == "big" {
				_, err := c.Files().Write(t.Context(), at+"/more", io.LimitReader(zeros{}, 1<<20), sandbox.WriteOptions{})
				if !errors.Is(err, sandbox.Exhausted) {
					t.Errorf("writing to a full disk: %v", err)
				}
				if _, err := c.Files().Stat(t.Context(), at+"/more"); !errors.Is(err, sandbox.NotExist) {
					t.Errorf("half a file was left: %v", err)
				}
			}
			if err := c.Files().Remove(t.Context(), at+"/fill", true); err != nil {
				t.Fatalf("%s %s: emptying a full disk: %v", at, kind, err)
			}
			works(t, c)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Quotas of processor time hold, and no scheduling class goes round them.
func TestAbuseProcessor(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{Limits: sandbox.Limits{CPU: 0.25, PIDs: 64}})
	for _, user := range []string{"", "user"} {
		for class, got := range c.tryAs(t, user, "sched") {
			want := "EPERM"
			if class == "nice" {
				want = "EACCES"
			}
			if got != want {
				t.Errorf("as %q, %s: %s, want %s", user, class, got, want)
			}
		}
	}
	c.kept(t, "cpu")
	m := c.Sandbox.(sandbox.Meter)
	c.start(t, "burn", "4").next(t)
	before, err := m.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	time.Sleep(time.Second)
	after, err := m.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A bound from above: a busy machine gives it less, nothing gives more,
	// but for a period at each end.
	used, most := after.CPU-before.CPU, time.Since(began)/4+200*time.Millisecond
	if used > most {
		t.Errorf("it used %v of processor time, the quota allows %v", used, most)
	}
	if used == 0 {
		t.Error("it used no processor time at all")
	}
}

// A sandbox that does nothing but flush does not keep a sibling from working.
// How much it slows it down is for the bench to say.
func TestAbuseFlushes(t *testing.T) {
	rt := newRuntime(t)
	c, sibling := newCell(t, rt, sandbox.Spec{}), newCell(t, rt, sandbox.Spec{})
	c.start(t, "fsyncs", "/workspace/flush").next(t)
	for i := range 5 {
		works(t, sibling)
		if err := sandbox.WriteFile(t.Context(), sibling, fmt.Sprintf("/workspace/f%d", i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	works(t, c)
}

// What one sandbox takes of the kernel's countable things, neither a sibling
// nor the host's user lacks.
func TestAbuseExhaustion(t *testing.T) {
	rt := newRuntime(t)
	sibling := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20, PIDs: 64}})
	for _, kind := range []struct {
		name string
		most int
		host func() error // takes one, on the host, and gives it back
	}{
		{"fds", 100_000, func() error { return give(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)) }},
		{"inotify", 2000, func() error { return give(unix.InotifyInit1(unix.IN_CLOEXEC)) }},
		{"watches", 10_000, func() error {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.InotifyAddWatch(fd, "/", unix.IN_CREATE)
			return err
		}},
		{"epoll", 10_000, func() error { return give(unix.EpollCreate1(unix.EPOLL_CLOEXEC)) }},
		{"ptys", 5000, func() error { return give(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)) }},
		{"ports", count(2000, 30_000), func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
		}},
		{"timers", 200_000, func() error {
			var id int32
			if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&quietEvent)), uintptr(unsafe.Pointer(&id))); errno != 0 {
				return errno
			}
			unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(id), 0, 0)
			return nil
		}},
		{"signals", 200_000, nil},
		{"queues", 2000, func() error {
			name, _ := unix.BytePtrFromString("atoll-test-host")
			fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
			if errno != 0 {
				return errno
			}
			unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
			return unix.Close(int(fd))
		}},
		{"locked", 100, nil},
		{"pipebuffers", 500, func() error {
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return err
			}
			defer unix.Close(p[0])
			defer unix.Close(p[1])
			_, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, 1<<18)
			return err
		}},
		{"aio", 1000, func() error {
			var ctx uintptr
			if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&ctx)), 0); errno != 0 {
				return errno
			}
			unix.Syscall(unix.SYS_IO_DESTROY, ctx, 0, 0)
			return nil
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			if kind.name == "pipebuffers" && !sibling.info.Isolation.Holds(sandbox.OwnIDs) {
				t.Skip("the pages of pipes are counted per id of the host's, and the sandbox has its owner's: see SECURITY.md")
			}
			if kind.host != nil {
				if err := kind.host(); err != nil {
					t.Skipf("the host has none before: %v", err)
				}
			}
			c := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{Memory: 256 << 20, PIDs: 64}})
			c.kept(t, "memory", "pids")
			// Several processes take what they can, as there are limits per process.
			total, last := 0, ""
			for range 4 {
				_, said := c.start(t, "exhaust", kind.name, strconv.Itoa(kind.most)).next(t)
				n, why, _ := strings.Cut(said, " ")
				total, last = total+number(t, n), why
			}
			t.Logf("it got %d, then %s", total, last)
			if kind.host != nil {
				if err := kind.host(); err != nil {
					t.Errorf("the host gets none any more: %v", err)
				}
			}
			_, said := sibling.start(t, "exhaust", kind.name, "1").next(t)
			if kind.name != "aio" && !strings.HasPrefix(said, "1 ") {
				t.Errorf("a sibling gets none any more: %s", said)
			}
			works(t, sibling)
			if _, err := c.Files().Stat(t.Context(), "/etc"); err != nil {
				t.Errorf("its files cannot be reached: %v", err)
			}
			if err := c.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// quietEvent is a struct sigevent that asks for no signal (SIGEV_NONE).
var quietEvent = [16]int32{3: 1}

func give(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// Output without end is taken as fast as it is read, and no faster; what is
// kept of it is bounded, and what was dropped is told.
func TestAbuseOutputFlood(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	mib := count(64, 10<<10)
	pid := guestPID(t, c.ID())

	var out, errs counter
	exit, err := sandbox.Run(t.Context(), c, sandbox.Cmd{Args: c.args("flood", strconv.Itoa(mib)), Stdout: &out, Stderr: &errs})
	if err != nil || !exit.Success() {
		t.Fatalf("%v %+v", err, exit)
	}
	if want := int64(mib) << 19; out.n.Load() != want || errs.n.Load() != want {
		t.Errorf("%d and %d bytes came, of %d each", out.n.Load(), errs.n.Load(), want)
	}
	if r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: c.args("flood", "4")}); err != nil || !r.Truncated || len(r.Stdout) != 1000 {
		t.Errorf("a bounded capture: %v, truncated %v, %d bytes", err, r.Truncated, len(r.Stdout))
	}

	// A reader that stands still makes the writer stand still.
	ctx, cancel := context.WithCancel(t.Context())
	still := &stuck{release: make(chan struct{})}
	p, err := c.Start(ctx, sandbox.Cmd{Args: c.args("flood"), Stdout: still})
	if err != nil {
		t.Fatal(err)
	}
	works(t, c)
	cancel()
	close(still.release)
	if _, err := p.Wait(); !errors.Is(err, context.Canceled) && err != nil {
		t.Errorf("cancelled: %v", err)
	}
	if still.n.Load() > 64<<20 {
		t.Errorf("%d bytes were taken while the reader stood still", still.n.Load())
	}

	// A detached process's output goes round in its ring.
	d := c.Sandbox.(sandbox.Detacher)
	id, err := d.StartDetached(t.Context(), sandbox.Cmd{Args: c.args("flood", "32")}, sandbox.DetachOptions{Ring: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	a, err := d.Attach(t.Context(), id, sandbox.AttachOptions{Cursor: -1})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := a.Wait(); err != nil || !exit.Success() {
		t.Fatalf("%v %+v", err, exit)
	}
	got, err := d.Output(t.Context(), id, 0, 1<<20, 0)
	if err != nil {
		t.Fatal(err)
	}
	kept := int64(0)
	for _, ch := range got.Chunks {
		kept += int64(len(ch.Data))
	}
	if kept > 1<<16 || got.Dropped+kept != 32<<20 {
		t.Errorf("%d bytes were kept and %d dropped, of %d", kept, got.Dropped, 32<<20)
	}
	// Slow output comes as it is made.
	var slow counter
	ctx, cancel = context.WithCancel(t.Context())
	p, err = c.Start(ctx, sandbox.Cmd{Args: c.args("drip"), Stdout: &slow})
	if err != nil {
		t.Fatal(err)
	}
	for slow.n.Load() < 3 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	p.Wait()
	if rss := residentKiB(t, pid); rss > 64<<10 {
		t.Errorf("the guest has grown to %d KiB", rss)
	}
}

type counter struct{ n atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// A stuck writer takes what comes when it is released, and not before.
type stuck struct {
	counter
	release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.counter.Write(p)
	<-s.release
	return len(p), nil
}

func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	return number(t, strings.Fields(rest)[0])
}

// lives reports whether a process of the sandbox has name as an argument.
func lives(t *testing.T, c *cell, name string) bool {
	t.Helper()
	r, err := sandbox.Capture(t.Context(), c, 1<<20, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"}})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(r.Stdout)) {
		if strings.TrimSpace(line) == name {
			return true
		}
	}
	return false
}

// gone waits until no process has name as an argument: one that was killed may
// take a moment to die.
func gone(t *testing.T, c *cell, name string) {
	t.Helper()
	for range 200 {
		if !lives(t, c, name) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s still lives", name)
}

// A command's end by its timeout, by its caller or by KILL is the end of all
// that came of it, however it hid; nothing else of the sandbox dies, and after
// Remove nothing is left.
func TestAbuseHiding(t *testing.T) {
	cfg := config(t)
	rt := newRuntimeWith(t, cfg)
	w := leak.New(cfg.State)
	c := newCell(t, rt, sandbox.Spec{Limits: sandbox.Limits{PIDs: 1500}})
	w.Saw(string(c.ID()))
	bystander := c.start(t, "stubborn", "bystander")
	bystander.next(t)
	quoted := func(probe ...string) string { return strings.Join(c.args(probe...), " ") }
	for _, tc := range []struct{ name, script string }{
		{"stubborn", "exec " + quoted("stubborn", "NAME")},
		{"double-fork", quoted("daemon", "NAME") + "; exec sleep 1000"},
		{"descendant", quoted("descendant", "NAME") + "; exec sleep 1000"},
		{"nohup", "nohup setsid " + quoted("stubborn", "NAME") + " >/dev/null 2>&1 & exec sleep 1000"},
		{"stopped", quoted("stop", "NAME") + " & exec sleep 1000"},
		{"vfork", quoted("vforkstop", "NAME")},
		{"chain", "(((" + quoted("daemon", "NAME") + " &) &) &); (trap '' TERM HUP INT; sleep 1000 & wait); sleep 1000"},
	} {
		for _, how := range []string{"timeout", "cancel", "kill"} {
			t.Run(tc.name+" by "+how, func(t *testing.T) {
				name := tc.name + "-" + how
				cmd := sandbox.Cmd{Args: []string{"/bin/sh", "-c", strings.ReplaceAll(tc.script, "NAME", name)}}
				if how == "timeout" {
					cmd.Timeout = 500 * time.Millisecond
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				p, err := c.Start(ctx, cmd)
				if err != nil {
					t.Fatal(err)
				}
				for how != "timeout" && !lives(t, c, name) {
					time.Sleep(time.Millisecond)
				}
				switch how {
				case "cancel":
					cancel()
				case "kill":
					if err := p.Signal(t.Context(), sandbox.KILL); err != nil {
						t.Error(err)
					}
				}
				exit, err := p.Wait()
				switch {
				case how == "timeout" && (err != nil || exit.Reason != sandbox.TimedOut),
					how == "cancel" && !errors.Is(err, context.Canceled),
					how == "kill" && (err != nil || exit.Reason != sandbox.Signalled || exit.Signal != sandbox.KILL):
					t.Errorf("it ended with %+v, %v", exit, err)
				}
				gone(t, c, name)
			})
		}
	}
	if !lives(t, c, "bystander") {
		t.Error("what belonged to another command died")
	}
	_, said := c.start(t, "zombies", "1000").next(t)
	t.Logf("zombies: %s", said)
	works(t, c)
	c.remove(t, w)
}

// A time that runs out ends commands that close their output, that read for
// ever, that stop themselves.
func TestAbuseTimeouts(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	never, end := io.Pipe()
	t.Cleanup(func() { end.Close() })
	for _, tc := range []struct {
		name string
		cmd  sandbox.Cmd
	}{
		{"closed", sandbox.Cmd{Args: c.args("closed", "closed")}},
		{"reads", sandbox.Cmd{Args: []string{"/bin/cat", "-"}, Stdin: never}},
		{"stops", sandbox.Cmd{Args: c.args("stop", "stops")}},
		{"stops on a terminal", sandbox.Cmd{Args: c.args("stop", "stops"), Terminal: &sandbox.Size{}}},
		{"burns", sandbox.Cmd{Args: c.args("burn", "1")}},
		{"floods", sandbox.Cmd{Args: c.args("flood"), Stdout: io.Discard}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cmd.Timeout = 200 * time.Millisecond
			exit, err := sandbox.Run(t.Context(), c, tc.cmd)
			if err != nil || exit.Reason != sandbox.TimedOut || exit.Status() != 124 {
				t.Errorf("%v %+v", err, exit)
			}
			gone(t, c, tc.name)
		})
	}
	works(t, c)
}

// Sandboxes come and go, and every counter stays flat.
func TestAbuseComeAndGo(t *testing.T) {
	cfg := config(t)
	rt := newRuntimeWith(t, cfg)
	w := leak.New(cfg.State)
	cycle := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		ids := make(chan string, n)
		for range 4 {
			wg.Go(func() {
				for range n / 4 {
					sb, err := rt.Create(t.Context(), sandbox.Spec{})
					if err != nil {
						t.Error(err)
						return
					}
					ids <- string(sb.ID())
					if r, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "sleep 1000 & echo x >/workspace/x"}}); err != nil || !r.Success() {
						t.Errorf("%v %+v", err, r.Exit)
					}
					if err := sb.Remove(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		close(ids)
		for id := range ids {
			w.Saw(id)
		}
	}
	cycle(8) // what is made once is there
	before := counters(t)
	cycle(count(100, 1000))
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	after := counters(t)
	for what, n := range after {
		// Things that are freed a little later, and others' on the same host,
		// move a little; a leak of one each would be a hundred.
		if float64(n-before[what]) > math.Max(20, float64(count(100, 1000))/4) {
			t.Errorf("%s: %d, was %d", what, n, before[what])
		}
	}
}

// counters are figures that must not grow with the number of sandboxes made.
func counters(t *testing.T) map[string]int {
	t.Helper()
	fds, err := leak.Descriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	m, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{"descriptors": len(fds), "mounts": strings.Count(string(m), "\n")}
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		_, rest, _ := strings.Cut(string(b), "Threads:")
		n["threads"] = number(t, strings.Fields(rest)[0])
	}
	return n
}
