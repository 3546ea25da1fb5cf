//go:build linux

package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
)

// A daemon is a Runtime over real processes that can be restarted.
type daemon struct {
	*place
	cfg linux.Config
	id  sandbox.ID
	rt  *linux.Runtime
}

// guest builds the guest, once.
var guest = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "atoll-job-test-")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "atoll-guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "github.com/atoll-run/atoll/cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return file, fmt.Errorf("%w\n%s", err, out)
	}
	return file, os.Chmod(dir, 0o755) // sandboxes of ordinary users read it
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built {
		if file, _ := guest(); file != "" {
			os.RemoveAll(filepath.Dir(file))
		}
	}
	os.Exit(code)
}

// built is set once guest was called.
var built bool

// newDaemon returns one with a sandbox, or skips.
func newDaemon(t *testing.T, cfg Config) *daemon {
	t.Helper()
	built = true
	program, err := guest()
	if err != nil {
		t.Fatalf("build the guest: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	d := &daemon{place: &place{T: t, ctx: ctx, tab: newTable(t, cfg)}}
	d.cfg = linux.Config{State: t.TempDir(), Cache: t.TempDir(), Guest: program, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	rt, err := linux.New(d.cfg)
	if errors.Is(err, sandbox.Unsupported) {
		if strings.Contains(os.Getenv("ATOLL_REQUIRE"), "linux") {
			t.Fatalf("the backend is required: %v", err)
		}
		t.Skipf("no sandbox can be made here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.rt = rt
	if d.sb, err = rt.Create(ctx, sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	d.id = d.sb.ID()
	t.Cleanup(func() {
		if err := d.sb.Remove(context.Background()); err != nil {
			t.Error(err)
		}
		if err := d.rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// restart closes the Runtime and makes another over the same state.
func (d *daemon) restart() {
	d.Helper()
	if err := d.rt.Close(); err != nil {
		d.Fatal(err)
	}
	rt, err := linux.New(d.cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.rt, d.tab = rt, newTable(d.T, d.tab.cfg)
	if d.sb, err = rt.Open(d.ctx, d.id); err != nil {
		d.Fatal(err)
	}
}

// line returns the next line of a Relay.
func (p *place) line(r *Relay) string {
	p.Helper()
	piece, err := r.Next(p.ctx)
	return said(piece, err)
}

func TestRealJobsSurviveTheDaemon(t *testing.T) {
	d := newDaemon(t, Config{Space: "box"})
	name := "person_张三\x00"
	i := d.start(sh(name, "while read -r x; do echo \"got $x\"; done; echo bye >&2; exit 4"))
	r := d.attach2(name, Attachment{Lines: 1000})
	say := func(text string) {
		t.Helper()
		if n, err := r.Write(d.ctx, []byte(text)); n != len(text) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	say("one\ntwo\n")
	if a, b := d.line(r), d.line(r); a != "out:got one" || b != "out:got two" {
		t.Fatalf("it said %q and %q", a, b)
	}
	r.Close()
	r = d.attach2(name, Attachment{Lines: 1000})
	say("three\n")
	if a, b := d.line(r), d.line(r); a != "out:got two" || b != "out:got three" {
		t.Fatalf("after the next Attach it said %q and %q", a, b)
	}

	old := r
	d.restart()
	if _, err := old.Next(d.ctx); err == nil {
		t.Error("the old relay goes on")
	}
	old.Close()
	j := d.get(ByName(name))
	if j.ID != i.ID || j.PID != i.PID || !j.Running() || j.Attached || !j.Adopted || j.Read != -1 {
		t.Errorf("after a restart it is %+v", j)
	}
	r = d.attach2(name, Attachment{Lines: 1000, From: Now})
	say("four\n")
	if a := d.line(r); a != "out:got four" {
		t.Errorf("it said %q", a)
	}
	if err := r.CloseInput(d.ctx); err != nil {
		t.Error(err)
	}
	if a := d.line(r); a != "EOF" {
		t.Errorf("its end is %q", a)
	}

	d.restart()
	if j := d.get(ByName(name)); j.Exit == nil || j.Exit.Code != 4 || j.Stderr != "bye\n" {
		t.Errorf("after its end and another restart it is %+v", j)
	}
	if got, want := d.outs(ByName(name), Stdout), "got one\ngot two\ngot three\ngot four\n"; got != want {
		t.Errorf("its output is %q, want %q", got, want)
	}
}

// attach2 attaches in real time.
func (d *daemon) attach2(name string, a Attachment) *Relay {
	d.Helper()
	r, err := d.tab.Attach(d.ctx, d.sb, ByName(name), a)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { r.Close() })
	return r
}

// TestRealLinesComeBackWhole sends messages of many sizes through a process,
// as a client and a server of JSON-RPC do.
func TestRealLinesComeBackWhole(t *testing.T) {
	d := newDaemon(t, Config{})
	s := Spec{Name: "mcp", Cmd: sandbox.Cmd{Args: []string{"cat"}}, Stdin: true, Ring: sandbox.MaxRing} // more than all of it
	d.start(s)
	r := d.attach2("mcp", Attachment{Lines: 1 << 20})
	message := func(n int) string {
		return fmt.Sprintf("{\"id\":%d,\"text\":%q}", n, strings.Repeat("张三\U0001F600", n*n%20_000))
	}
	wrote := make(chan error, 1)
	const n = 100
	go func() {
		for n := range n {
			if _, err := r.Write(d.ctx, []byte(message(n)+"\n")); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- r.CloseInput(d.ctx)
	}()
	for n := range n {
		if got, want := d.line(r), "out:"+message(n); got != want {
			t.Fatalf("message %d came back as %.100q, want %.100q", n, got, want)
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if got := d.line(r); got != "EOF" {
		t.Errorf("the end is %q", got)
	}
}

// TestRealOutputThatNobodyReadIsCounted: what came and what was dropped is
// together what was written.
func TestRealOutputThatNobodyReadIsCounted(t *testing.T) {
	d := newDaemon(t, Config{})
	s := sh("x", "head -c 20000000 /dev/zero; head -c 1000000 /dev/zero >&2")
	s.Ring = 1 << 20
	d.start(s)
	r := d.attach2("x", Attachment{Stderr: true})
	var came, dropped int64
	for n := 0; ; n++ {
		if n == 5 { // slower than the process for once
			d.wait(ByName("x"))
		}
		p, err := r.Next(d.ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		came += int64(len(p.Data))
		dropped += p.Dropped
	}
	if came+dropped != 21_000_000 || dropped == 0 {
		t.Errorf("%d bytes came and %d were dropped", came, dropped)
	}
	if e, ok := r.Exit(); !ok || !e.Success() {
		t.Errorf("Exit: %+v, %v", e, ok)
	}
}

func TestRealStopEndsTheTree(t *testing.T) {
	d := newDaemon(t, Config{Grace: 100 * time.Millisecond})
	d.start(sh("x", `trap 'exit 0' TERM
setsid sh -c 'trap "" TERM; echo $$ >> pids; while :; do sleep 1; done' &
sh -c 'sh -c "trap \"\" TERM; echo \$\$ >> pids; while :; do sleep 1; done" & exit 0' &
wait; while :; do sleep 1; done`))
	var pids []string
	for len(pids) < 2 {
		if err := d.ctx.Err(); err != nil {
			t.Fatal(err)
		}
		b, err := sandbox.ReadFile(d.ctx, d.sb, "/workspace/pids", 1000)
		if err != nil && !errors.Is(err, sandbox.NotExist) {
			t.Fatal(err)
		}
		pids = strings.Fields(string(bytes.TrimRight(b, "0123456789")))
		time.Sleep(5 * time.Millisecond)
	}
	e, err := d.tab.Stop(d.ctx, d.sb, ByName("x"))
	if err != nil || !e.Success() {
		t.Errorf("Stop: %+v, %v", e, err)
	}
	d.gone(ByName("x"))
	for _, pid := range pids {
		d.dead(pid)
	}
}

func TestRealStopIsNotHeldUpByAFullPipe(t *testing.T) {
	d := newDaemon(t, Config{Grace: 100 * time.Millisecond})
	d.start(sh("x", "trap '' TERM; echo ready; while :; do sleep 1; done"))
	r := d.attach2("x", Attachment{})
	if got := d.line(r); got != "out:ready\n" {
		t.Fatal(got)
	}
	short, cancel := context.WithTimeout(d.ctx, 200*time.Millisecond)
	defer cancel()
	if n, err := r.Write(short, make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) || n == 1<<20 {
		t.Fatalf("Write to one that does not read: %d, %v", n, err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := r.Write(d.ctx, make([]byte, 1<<20))
		wrote <- err
	}()
	if e, err := d.tab.Stop(d.ctx, d.sb, ByName("x")); err != nil || e.Signal != sandbox.KILL {
		t.Errorf("Stop: %+v, %v", e, err)
	}
	if err := <-wrote; err == nil {
		t.Error("who wrote was told that all was written")
	}
}

// dead waits for the process to be gone.
func (d *daemon) dead(pid string) {
	d.Helper()
	for {
		e, err := sandbox.Run(d.ctx, d.sb, sandbox.Cmd{Args: []string{"sh", "-c", "kill -0 " + pid + " 2>/dev/null"}})
		if err != nil {
			d.Fatalf("process %s: %v", pid, err)
		}
		if !e.Success() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
