package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
)

// A place is a sandbox of a test, and its jobs.
type place struct {
	*testing.T
	ctx context.Context
	rt  *memory.Runtime
	sb  sandbox.Sandbox
	tab *Table
}

// inPlace runs f in virtual time with a new sandbox.
func inPlace(t *testing.T, cfg Config, f func(p *place)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt := memory.New(memory.Config{Programs: programs})
		defer rt.Close()
		p := &place{T: t, ctx: t.Context(), rt: rt, tab: newTable(t, cfg)}
		p.sb = p.create()
		f(p)
	})
}

// programs are what jobs of these tests run, besides shell scripts.
var programs = map[string]memory.Program{
	// mix N SEED prints N bytes to both streams in turns.
	"mix": func(p *memory.Proc) int {
		var n int
		var seed uint64
		fmt.Sscan(p.Args[1], &n)
		fmt.Sscan(p.Args[2], &seed)
		for _, c := range mixed(n, seed) {
			w := p.Stdout()
			if c.Stderr {
				w = p.Stderr()
			}
			w.Write(c.Data)
		}
		return 0
	},
}

// mixed returns n bytes in chunks.
func mixed(n int, seed uint64) []sandbox.Chunk {
	r := rand.New(rand.NewPCG(seed, 1))
	var cs []sandbox.Chunk
	for n > 0 {
		c := sandbox.Chunk{Stderr: r.IntN(2) == 0, Data: make([]byte, min(n, 1+r.IntN(400)))}
		for i := range c.Data {
			c.Data[i] = byte(r.Uint32())
		}
		n -= len(c.Data)
		cs = append(cs, c)
	}
	return cs
}

func newTable(t *testing.T, cfg Config) *Table {
	t.Helper()
	tab, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func (p *place) create() sandbox.Sandbox {
	p.Helper()
	sb, err := p.rt.Create(p.ctx, sandbox.Spec{})
	if err != nil {
		p.Fatal(err)
	}
	return sb
}

// sh returns the Spec of a script.
func sh(name, script string) Spec {
	return Spec{Name: name, Cmd: sandbox.Cmd{Args: []string{"sh", "-c", script}}, Stdin: true}
}

func (p *place) start(s Spec) Info {
	p.Helper()
	i, err := p.tab.Start(p.ctx, p.sb, s)
	if err != nil {
		p.Fatalf("Start of %q: %v", s.Name, err)
	}
	return i
}

func (p *place) get(ref Ref) Info {
	p.Helper()
	i, err := p.tab.Get(p.ctx, p.sb, ref)
	if err != nil {
		p.Fatalf("Get of the %s: %v", ref, err)
	}
	return i
}

func (p *place) gone(ref Ref) {
	p.Helper()
	if i, err := p.tab.Get(p.ctx, p.sb, ref); !errors.Is(err, sandbox.NotExist) {
		p.Errorf("the %s is still there: %+v, %v", ref, i, err)
	}
}

func (p *place) wait(ref Ref) sandbox.Exit {
	p.Helper()
	e, err := p.tab.Wait(p.ctx, p.sb, ref)
	if err != nil {
		p.Fatalf("Wait for the %s: %v", ref, err)
	}
	return e
}

func (p *place) list(tab *Table) []Info {
	p.Helper()
	all, err := tab.List(p.ctx, p.sb)
	if err != nil {
		p.Fatal(err)
	}
	return all
}

func (p *place) input(ref Ref, text string) {
	p.Helper()
	if n, err := p.tab.Input(p.ctx, p.sb, ref, []byte(text), false); n != len(text) || err != nil {
		p.Fatalf("Input of %q: %d, %v", text, n, err)
	}
}

// kind checks the kind and the field of an error.
func (p *place) kind(what string, err error, kind sandbox.Kind, field string) {
	p.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Field != field {
		p.Errorf("%s: %v, want %s with the field %q", what, err, kind, field)
	}
}

// outs returns all the output of a stream.
func (p *place) outs(ref Ref, s Stream) string {
	p.Helper()
	var b strings.Builder
	for q := (Query{Stream: s}); ; {
		o, err := p.tab.Output(p.ctx, p.sb, ref, q)
		if err != nil {
			p.Fatal(err)
		}
		for _, c := range o.Chunks {
			b.Write(c.Data)
		}
		if q.Cursor = o.Next; o.Exit != nil || len(o.Chunks) == 0 {
			return b.String()
		}
	}
}

func TestAJobOutlivesTheRequestThatStartedIt(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		ctx, cancel := context.WithCancel(p.ctx)
		i, err := p.tab.Start(ctx, p.sb, sh("build", "sleep 3600; echo built; exit 3"))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if i.ID == "" || i.Name != "build" || i.PID == 0 || !i.Running() || i.Attached || i.Adopted || i.Read != 0 {
			t.Errorf("Start says %+v", i)
		}
		began := time.Now()
		if e := p.wait(ByName("build")); e.Code != 3 || time.Since(began) != time.Hour {
			t.Errorf("it ended with %+v after %v", e, time.Since(began))
		}
		for _, ref := range []Ref{ByID(i.ID), ByName("build"), ByPID(i.PID)} {
			g := p.get(ref)
			if g.ID != i.ID || g.Running() || g.Exit.Code != 3 || g.Ended.Sub(g.Started) != time.Hour || g.Cursor != 6 {
				t.Errorf("Get of the %s says %+v", ref, g)
			}
		}
	})
}

func TestAnInfoTellsNamesOfVariablesAndNotTheirValues(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		s := sh("srv", "sleep 9")
		s.Cmd.Dir, s.Cmd.Env = "/tmp", map[string]string{"TOKEN": "hunter2", "A": "1"}
		i := p.start(s)
		if !slices.Equal(i.EnvNames, []string{"A", "TOKEN"}) || i.Dir != "/tmp" || !slices.Equal(i.Args, s.Cmd.Args) {
			t.Errorf("it says %+v", i)
		}
		if strings.Contains(fmt.Sprintf("%+v", i), "hunter2") {
			t.Errorf("it tells the value: %+v", i)
		}
		s.Name, s.Cmd.Args = "long", []string{"sh", "-c", "sleep 9", strings.Repeat("x", 1<<20)}
		if i := p.start(s); i.EnvNames != nil || i.Adopted {
			t.Errorf("of a long one it says %+v", i)
		}
	})
}

func TestNamesAreInjective(t *testing.T) {
	inPlace(t, Config{Space: "box", Running: 100}, func(p *place) {
		names := []string{"a", "A", " a", "a ", "a\x00", "\x00", "a/b", "a:b", "box:a", ":", "box:", "person_张三", "person_李四", "\xff", "\xfe", "%41",
			"1", strings.Repeat("x", 252), strings.Repeat("x", 251) + "y"}
		ids := make(map[sandbox.ProcessID]string)
		for _, n := range names {
			i := p.start(sh(n, "sleep 9"))
			if other, ok := ids[i.ID]; ok {
				t.Errorf("%q and %q are one job", n, other)
			}
			ids[i.ID] = n
		}
		for id, n := range ids {
			if i := p.get(ByName(n)); i.ID != id || i.Name != n {
				t.Errorf("%q is now %+v", n, i)
			}
		}
		_, err := p.tab.Start(p.ctx, p.sb, sh(strings.Repeat("x", 253), "sleep 9"))
		p.kind("a name that is too long", err, sandbox.Invalid, "name")
		for _, ref := range []Ref{{}, ByName(""), ByID(""), ByPID(0), ByID("a")} {
			p.gone(ref)
		}
	})
}

func TestTwoUnnamedJobsAreTwo(t *testing.T) {
	inPlace(t, Config{Space: "e2b"}, func(p *place) {
		a, b := p.start(sh("", "sleep 9")), p.start(sh("", "sleep 9"))
		if a.ID == b.ID || a.Name != "" {
			t.Errorf("%+v and %+v", a, b)
		}
		if all := p.list(p.tab); len(all) != 2 || all[0].ID != a.ID || all[1].ID != b.ID {
			t.Errorf("List has %+v", all)
		}
	})
}

func TestANameInUseIsConflict(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		i := p.start(sh("x", "sleep 100"))
		_, err := p.tab.Start(p.ctx, p.sb, sh("x", "sleep 100"))
		p.kind("Start of what runs", err, sandbox.Conflict, "name")
		if e := p.wait(ByName("x")); e.Code != 0 {
			t.Errorf("the first one ended with %+v", e)
		}
		j := p.start(sh("x", "sleep 100"))
		if i.ID == j.ID {
			t.Error("the second is the first")
		}
		p.gone(ByID(i.ID)) // an ended one of the same name is forgotten
	})
}

func TestReplacedWhileRunning(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		for _, c := range []struct {
			name, script string
			takes        time.Duration
		}{
			{"obedient", "trap 'echo bye; exit 0' TERM; while :; do sleep 1; done", 0},
			{"stubborn", "trap '' TERM; while :; do sleep 1; done", 5 * time.Second},
			{"reader", "cat > /dev/null; echo end of input; exit 7", 0},
		} {
			old := p.start(sh(c.name, c.script))
			synctest.Wait()
			began := time.Now()
			s := sh(c.name, "sleep 100")
			s.Replace = true
			i := p.start(s)
			if took := time.Since(began).Truncate(time.Second); took != c.takes {
				t.Errorf("%s was replaced after %v, want %v", c.name, took, c.takes)
			}
			if i.ID == old.ID || !i.Running() {
				t.Errorf("%s: the new one is %+v", c.name, i)
			}
			p.gone(ByID(old.ID))
			if g := p.get(ByName(c.name)); g.ID != i.ID {
				t.Errorf("%s is %+v", c.name, g)
			}
		}
	})
}

// TestReplacingComesOneAfterTheOther: of many who replace one name at the same
// time each succeeds, and one job is left.
func TestReplacingComesOneAfterTheOther(t *testing.T) {
	inPlace(t, Config{Running: 1}, func(p *place) {
		const n = 8
		errs := make(chan error, n)
		for range n {
			go func() {
				s := sh("x", "trap '' TERM; while :; do sleep 1; done")
				s.Replace = true
				_, err := p.tab.Start(p.ctx, p.sb, s)
				errs <- err
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if all := p.list(p.tab); len(all) != 1 || !all[0].Running() {
			t.Errorf("left are %+v", all)
		}
		if len(p.tab.locks) != 0 {
			t.Errorf("%d locks are left", len(p.tab.locks))
		}
	})
}

func TestAStartThatFailsLeavesWhatWasThere(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "exit 4"))
		p.wait(ByName("x"))
		_, err := p.tab.Start(p.ctx, p.sb, Spec{Name: "x", Cmd: sandbox.Cmd{Args: []string{"no-such-program"}}})
		p.kind("Start of nothing", err, sandbox.NotExist, "args")
		if i := p.get(ByName("x")); i.Exit == nil || i.Exit.Code != 4 {
			t.Errorf("now it is %+v", i)
		}
		i := p.start(sh("y", "sleep 100"))
		for _, cmd := range []sandbox.Cmd{{}, {Args: []string{"true"}, Timeout: -1}} {
			if _, err := p.tab.Start(p.ctx, p.sb, Spec{Name: "y", Replace: true, Cmd: cmd}); sandbox.KindOf(err) != sandbox.Invalid {
				t.Errorf("Start of %+v: %v", cmd, err)
			}
		}
		if g := p.get(ByName("y")); g.ID != i.ID || !g.Running() {
			t.Errorf("it was ended for a Spec that means nothing: %+v", g)
		}
	})
}

func TestEndedJobsAreKeptForTheRetention(t *testing.T) {
	inPlace(t, Config{Retention: time.Minute}, func(p *place) {
		i := p.start(sh("x", "echo hello; sleep 10"))
		p.wait(ByName("x"))
		time.Sleep(time.Minute - time.Nanosecond)
		if got := p.outs(ByName("x"), Both); got != "hello\n" {
			t.Errorf("its output is %q", got)
		}
		time.Sleep(time.Nanosecond)
		p.gone(ByName("x"))
		ps, err := p.sb.(sandbox.Detacher).Processes(p.ctx)
		if err != nil || len(ps) != 0 {
			t.Errorf("the sandbox remembers %+v, %v", ps, err)
		}
		_, err = p.tab.Output(p.ctx, p.sb, ByID(i.ID), Query{})
		p.kind("Output", err, sandbox.NotExist, "process")
	})
}

func TestOfEndedJobsTheNewestAreKept(t *testing.T) {
	inPlace(t, Config{Keep: 3, Retention: -1}, func(p *place) {
		for n := range 6 { // the sixth ends first
			p.start(sh(fmt.Sprint(n), fmt.Sprintf("sleep %d", 10-n)))
		}
		time.Sleep(time.Hour)
		var names []string
		for _, i := range p.list(p.tab) {
			names = append(names, i.Name)
		}
		if want := []string{"0", "1", "2"}; !slices.Equal(names, want) {
			t.Errorf("kept are %q, want %q", names, want)
		}
	})
}

func TestNoMoreRunThanMay(t *testing.T) {
	inPlace(t, Config{Running: 3}, func(p *place) {
		errs := make(chan error, 10)
		for n := range 10 {
			go func() {
				_, err := p.tab.Start(p.ctx, p.sb, sh(fmt.Sprint(n), "sleep 60"))
				errs <- err
			}()
		}
		ok := 0
		for range 10 {
			if err := <-errs; err == nil {
				ok++
			} else {
				p.kind("one too many", err, sandbox.Exhausted, "")
			}
		}
		if ok != 3 {
			t.Errorf("%d were started, want 3", ok)
		}
		// What is replaced makes room for what replaces it.
		s := sh(p.list(p.tab)[0].Name, "sleep 100")
		s.Replace = true
		p.start(s)
		time.Sleep(61 * time.Second)
		p.start(sh("later", "sleep 60"))
	})
}

func TestNoMoreRunInAllSandboxesThanMay(t *testing.T) {
	inPlace(t, Config{Total: 4}, func(p *place) {
		other := p.create()
		if _, err := p.tab.Start(p.ctx, other, sh("", "sleep 60")); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 10)
		for n := range 10 {
			sb := p.sb
			if n%2 == 0 {
				sb = other
			}
			go func() {
				_, err := p.tab.Start(p.ctx, sb, sh("", "sleep 60"))
				errs <- err
			}()
		}
		ok := 0
		for range 10 {
			if err := <-errs; err == nil {
				ok++
			} else {
				p.kind("one too many", err, sandbox.Exhausted, "")
			}
		}
		if ok != 3 {
			t.Errorf("%d more were started, want 3", ok)
		}
		// That some have ended, and that a sandbox is gone, is found out when
		// it matters.
		if err := other.Remove(p.ctx); err != nil {
			t.Fatal(err)
		}
		p.start(sh("", "sleep 60"))
		time.Sleep(time.Hour)
		for range 4 {
			p.start(sh("", "sleep 60"))
		}
	})
}

func TestANewTableKnowsTheJobs(t *testing.T) {
	inPlace(t, Config{Space: "box"}, func(p *place) {
		p.start(sh("done", "echo out; echo err >&2; exit 5"))
		p.start(sh("cat", "cat"))
		p.input(ByName("cat"), "first\n")
		synctest.Wait()
		r, err := p.tab.Attach(p.ctx, p.sb, ByName("cat"), Attachment{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()

		p.tab = newTable(t, Config{Space: "box"}) // the daemon was restarted
		all := p.list(p.tab)
		if len(all) != 2 || all[0].Name != "done" || all[1].Name != "cat" || !all[0].Adopted || all[1].Attached || all[1].Read != -1 {
			t.Fatalf("List has %+v", all)
		}
		if d := p.get(ByName("done")); d.Exit == nil || d.Exit.Code != 5 || d.Stderr != "err\n" {
			t.Errorf("what has ended is %+v", d)
		}
		_, err = p.tab.Start(p.ctx, p.sb, sh("cat", "cat"))
		p.kind("Start of what runs", err, sandbox.Conflict, "name")
		p.input(ByName("cat"), "second\n")
		if err := p.tab.CloseInput(p.ctx, p.sb, ByName("cat")); err != nil {
			t.Error(err)
		}
		p.wait(ByName("cat"))
		if got := p.outs(ByName("cat"), Stdout); got != "first\nsecond\n" {
			t.Errorf("its output is %q", got)
		}
	})
}

func TestSpacesDoNotSeeEachOther(t *testing.T) {
	inPlace(t, Config{Space: "box"}, func(p *place) {
		e2b := newTable(t, Config{Space: "e2b", Retention: time.Second, Keep: 1})
		all := newTable(t, Config{Retention: -1})
		i := p.start(sh("x", "exit 1"))
		j, err := e2b.Start(p.ctx, p.sb, sh("x", "exit 2"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if l := p.list(e2b); len(l) != 0 {
			t.Errorf("e2b has %+v", l)
		}
		if l := p.list(p.tab); len(l) != 1 || l[0].ID != i.ID {
			t.Errorf("box has %+v", l)
		}
		if l := p.list(all); len(l) != 1 || l[0].Name != "box:x" {
			t.Errorf("there are %+v", l)
		}
		if _, err := p.tab.Get(p.ctx, p.sb, ByID(j.ID)); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("box sees e2b's: %v", err)
		}
	})
}

func TestWhoAsksForWhatIsGoneIsToldSo(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 100"))
		r, err := p.tab.Attach(p.ctx, p.sb, ByName("x"), Attachment{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		waited := make(chan error, 2)
		go func() { _, err := p.tab.Wait(p.ctx, p.sb, ByName("x")); waited <- err }()
		go func() { _, err := r.Next(p.ctx); waited <- err }()
		synctest.Wait()
		if err := p.sb.Remove(p.ctx); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-waited; !errors.Is(err, sandbox.NotExist) {
				t.Errorf("who waited got %v", err)
			}
		}
		x := ByName("x")
		for what, do := range map[string]func() error{
			"Start":      func() error { _, err := p.tab.Start(p.ctx, p.sb, sh("x", "true")); return err },
			"Get":        func() error { _, err := p.tab.Get(p.ctx, p.sb, x); return err },
			"List":       func() error { _, err := p.tab.List(p.ctx, p.sb); return err },
			"Output":     func() error { _, err := p.tab.Output(p.ctx, p.sb, x, Query{}); return err },
			"Input":      func() error { _, err := p.tab.Input(p.ctx, p.sb, x, nil, false); return err },
			"CloseInput": func() error { return p.tab.CloseInput(p.ctx, p.sb, x) },
			"Signal":     func() error { return p.tab.Signal(p.ctx, p.sb, x, sandbox.TERM) },
			"Resize":     func() error { return p.tab.Resize(p.ctx, p.sb, x, sandbox.Size{}) },
			"Wait":       func() error { _, err := p.tab.Wait(p.ctx, p.sb, x); return err },
			"End":        func() error { _, err := p.tab.End(p.ctx, p.sb, x, 0); return err },
			"Stop":       func() error { _, err := p.tab.Stop(p.ctx, p.sb, x); return err },
			"Forget":     func() error { return p.tab.Forget(p.ctx, p.sb, x) },
			"Attach":     func() error { _, err := p.tab.Attach(p.ctx, p.sb, x, Attachment{}); return err },
			"Follow": func() error {
				for _, err := range p.tab.Follow(p.ctx, p.sb, x, 0) {
					return err
				}
				return nil
			},
		} {
			if err := do(); !errors.Is(err, sandbox.NotExist) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if len(p.tab.boxes) != 0 || len(p.tab.locks) != 0 {
			t.Errorf("%d sandboxes and %d locks are remembered", len(p.tab.boxes), len(p.tab.locks))
		}
	})
}

// plain is a sandbox that cannot detach.
type plain struct{ sandbox.Sandbox }

func TestABackendThatCannotIsUnsupported(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.sb = plain{p.sb}
		_, err := p.tab.Start(p.ctx, p.sb, sh("x", "true"))
		p.kind("Start", err, sandbox.Unsupported, "")
		_, err = p.tab.List(p.ctx, p.sb)
		p.kind("List", err, sandbox.Unsupported, "")
		_, err = p.tab.Get(p.ctx, p.sb, ByName("x"))
		p.kind("Get", err, sandbox.Unsupported, "")
	})
}

func TestAConfigThatMeansNothingIsRefused(t *testing.T) {
	for field, cfg := range map[string]Config{
		"space":   {Space: "Box"},
		"running": {Running: -1},
		"total":   {Total: -1},
		"keep":    {Keep: 257},
		"preview": {Preview: 1 << 30},
		"grace":   {Grace: -1},
	} {
		_, err := New(cfg)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != field {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := New(Config{Space: strings.Repeat("x", 17)}); err == nil {
		t.Error("a long space was taken")
	}
}

// TestWhatIsRememberedIsBounded: a Table that has seen many sandboxes forgets
// the oldest, but nobody who is attached.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 100"))
		r, err := p.tab.Attach(p.ctx, p.sb, ByName("x"), Attachment{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p.tab.mu.Lock()
		for n := range mostBoxes + 100 {
			p.tab.record(other{p.sb, sandbox.ID(fmt.Sprintf("%08d", n))}, "1")
		}
		n := len(p.tab.boxes)
		_, newest := p.tab.boxes[sandbox.ID(fmt.Sprintf("%08d", mostBoxes+99))]
		_, oldest := p.tab.boxes["00000000"]
		p.tab.mu.Unlock()
		if n > mostBoxes || !newest || oldest {
			t.Errorf("%d are remembered, the newest: %v, the oldest: %v", n, newest, oldest)
		}
		if i := p.get(ByName("x")); !i.Attached {
			t.Error("who is attached was forgotten")
		}
		p.tab.Drop(p.sb.ID())
	})
}

// other is a sandbox with another id.
type other struct {
	sandbox.Sandbox
	id sandbox.ID
}

func (o other) ID() sandbox.ID { return o.id }

func TestStopClosesTheInputThenAsksThenKills(t *testing.T) {
	inPlace(t, Config{Grace: 7 * time.Second}, func(p *place) {
		for _, c := range []struct {
			script string
			takes  time.Duration
			want   sandbox.Exit
		}{
			{"trap '' TERM; cat; exit 9", 0, sandbox.Exit{Code: 9, Reason: sandbox.Exited}},
			{"trap 'exit 6' TERM; while :; do sleep 1; done", time.Second, sandbox.Exit{Code: 6, Reason: sandbox.Exited}},
			{"sleep 1000", 0, sandbox.Exit{Code: -1, Reason: sandbox.Signalled, Signal: sandbox.TERM}},
			{"trap '' TERM; while :; do sleep 1; done", 7 * time.Second, sandbox.Exit{Code: -1, Reason: sandbox.Signalled, Signal: sandbox.KILL}},
			{"kill -STOP $$", 7 * time.Second, sandbox.Exit{Code: -1, Reason: sandbox.Signalled, Signal: sandbox.KILL}},
			{"exit 2", 0, sandbox.Exit{Code: 2, Reason: sandbox.Exited}},
		} {
			p.start(sh("x", c.script))
			synctest.Wait()
			began := time.Now()
			e, err := p.tab.Stop(p.ctx, p.sb, ByName("x"))
			e.Usage = sandbox.Usage{}
			if err != nil || e != c.want || time.Since(began) > c.takes {
				t.Errorf("%s: %+v, %v after %v, want %+v after %v", c.script, e, err, time.Since(began), c.want, c.takes)
			}
			p.gone(ByName("x"))
		}
		p.start(sh("x", "sleep 1000"))
		if e, err := p.tab.End(p.ctx, p.sb, ByName("x"), time.Second); err != nil || e.Signal != sandbox.TERM {
			t.Errorf("End: %+v, %v", e, err)
		}
		if i := p.get(ByName("x")); i.Exit == nil || i.Exit.Signal != sandbox.TERM {
			t.Errorf("after End it is %+v", i)
		}
		_, err := p.tab.Stop(p.ctx, p.sb, ByName("none"))
		p.kind("Stop of nothing", err, sandbox.NotExist, "process")
	})
}

func TestStopIsNotHeldUpByAFullPipe(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "trap '' TERM; while :; do sleep 1; done"))
		wrote := make(chan error, 1)
		go func() {
			_, err := p.tab.Input(p.ctx, p.sb, ByName("x"), make([]byte, 1<<20), false)
			wrote <- err
		}()
		synctest.Wait()
		began := time.Now()
		if _, err := p.tab.Stop(p.ctx, p.sb, ByName("x")); err != nil || time.Since(began) > 7*time.Second {
			t.Errorf("Stop: %v after %v", err, time.Since(began))
		}
		if err := <-wrote; err == nil {
			t.Error("who wrote was told that all was written")
		}
	})
}

func TestStopEndsTheTreeNotJustTheDirectChild(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		// The first one obeys TERM at once; its children ignore it, one in a
		// session of its own and one that has lost its parent.
		p.start(sh("x", `trap 'exit 0' TERM
setsid sh -c 'trap "" TERM; echo $$ >> /tmp/pids; while :; do sleep 1; done' &
sh -c 'trap "" TERM; sh -c "echo \$\$ >> /tmp/pids; while :; do sleep 1; done" & exit 0' &
while :; do sleep 1; done`))
		bystander := p.start(sh("y", "sleep 1000"))
		time.Sleep(3 * time.Second)
		b, err := sandbox.ReadFile(p.ctx, p.sb, "/tmp/pids", 100)
		pids := strings.Fields(string(b))
		if err != nil || len(pids) != 2 {
			t.Fatalf("pids: %q, %v", b, err)
		}
		if _, err := p.tab.Stop(p.ctx, p.sb, ByName("x")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, pid := range pids {
			e, err := sandbox.Run(p.ctx, p.sb, sandbox.Cmd{Args: []string{"sh", "-c", "kill -0 " + pid}})
			if err != nil || e.Success() {
				t.Errorf("process %s lives on: %+v, %v", pid, e, err)
			}
		}
		if i := p.get(ByID(bystander.ID)); !i.Running() {
			t.Error("another job ended as well")
		}
	})
}

func TestASignalReachesTheGroup(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "trap 'echo int' INT; sleep 100; sleep 100; echo over"))
		time.Sleep(time.Second)
		if err := p.tab.Signal(p.ctx, p.sb, ByName("x"), sandbox.INT); err != nil {
			t.Fatal(err)
		}
		p.wait(ByName("x"))
		if got := p.outs(ByName("x"), Both); !strings.HasPrefix(got, "int\n") {
			t.Errorf("it printed %q", got)
		}
		if err := p.tab.Signal(p.ctx, p.sb, ByName("x"), sandbox.KILL); err != nil {
			t.Errorf("a signal to what has ended: %v", err)
		}
		p.kind("a signal that is none", p.tab.Signal(p.ctx, p.sb, ByName("x"), "NOPE"), sandbox.Invalid, "signal")
	})
}

func TestForgetIsForWhatHasEnded(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 10"))
		p.kind("Forget of what runs", p.tab.Forget(p.ctx, p.sb, ByName("x")), sandbox.Conflict, "process")
		p.wait(ByName("x"))
		if err := p.tab.Forget(p.ctx, p.sb, ByName("x")); err != nil {
			t.Error(err)
		}
		p.gone(ByName("x"))
	})
}

func TestTheTimeoutOfAJobEndsIt(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		s := sh("x", "sleep 1000")
		s.Cmd.Timeout = time.Minute
		p.start(s)
		began := time.Now()
		if e := p.wait(ByName("x")); e.Reason != sandbox.TimedOut || time.Since(began) != time.Minute {
			t.Errorf("%+v after %v", e, time.Since(began))
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 100"))
		ctx, cancel := context.WithTimeout(p.ctx, time.Second)
		defer cancel()
		if _, err := p.tab.Wait(ctx, p.sb, ByName("x")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
		if i := p.get(ByName("x")); !i.Running() {
			t.Error("the job ended with who waited for it")
		}
	})
}

func TestATerminalCanBeResized(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		s := sh("x", "read x; stty size")
		s.Cmd.Terminal = &sandbox.Size{Rows: 10, Cols: 20}
		p.start(s)
		if err := p.tab.Resize(p.ctx, p.sb, ByName("x"), sandbox.Size{Rows: 33, Cols: 44}); err != nil {
			t.Fatal(err)
		}
		p.input(ByName("x"), "\n")
		p.wait(ByName("x"))
		if got := p.outs(ByName("x"), Stdout); !strings.Contains(got, "33 44") {
			t.Errorf("it shows %q", got)
		}
	})
}

var _ io.Closer = (*Relay)(nil)
