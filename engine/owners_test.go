package engine_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
)

func TestOwnersDoNotSeeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{})
		alice, bob, bot := e.View("alice", ""), e.View("bob", ""), e.View("alice/bot", "")
		hers, _ := acquire(t, alice, sandbox.Spec{Name: "s"})
		his, made := acquire(t, bob, sandbox.Spec{Name: "s"})
		if !made || his.ID() == hers.ID() {
			t.Fatal("two owners share a name")
		}
		bots, _ := acquire(t, bot, sandbox.Spec{Name: "s"})
		sees := func(v sandbox.Runtime, id sandbox.ID) bool {
			_, err := v.Open(t.Context(), id)
			_, peeked := v.(sandbox.Peeker).Peek(id)
			listed := false
			for info, err := range v.List(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				listed = listed || info.ID == id
			}
			if (err == nil) != listed || listed != peeked {
				t.Errorf("open says %v, peek %v, list %v", err, peeked, listed)
			}
			return listed
		}
		for _, c := range []struct {
			who  string
			view sandbox.Runtime
			id   sandbox.ID
			want bool
		}{
			{"alice her own", alice, hers.ID(), true}, {"alice bob's", alice, his.ID(), false}, {"alice her bot's", alice, bots.ID(), true},
			{"the bot alice's", bot, hers.ID(), false}, {"the bot its own", bot, bots.ID(), true}, {"bob alice's", bob, hers.ID(), false},
			{"nobody alice's", e.View("", ""), hers.ID(), false}, {"alic alice's", e.View("alic", ""), hers.ID(), false},
			{"the operator all", e, his.ID(), true},
		} {
			if got := sees(c.view, c.id); got != c.want {
				t.Errorf("%s: %v, want %v", c.who, got, c.want)
			}
		}
		// What was another's cannot be told from what never was.
		if err := hers.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, was := bob.Open(t.Context(), hers.ID())
		_, never := bob.Open(t.Context(), "neverthere")
		var a, b *sandbox.Error
		if !errors.As(was, &a) || !errors.As(never, &b) || a.Public() != b.Public() {
			t.Errorf("bob is told %v, and of nothing %v", was, never)
		}
		gone(t, alice, hers.ID(), sandbox.Removed)
		// Nor do events and errors tell.
		for ev, err := range bob.Events(t.Context(), 0, false) {
			if err != nil || ev.Owner != "bob" {
				t.Errorf("bob is told of %+v, %v", ev, err)
			}
		}
	})
}

func TestAnOwnersBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := profile.NewSet(profile.Profile{Name: "small"})
		if err != nil {
			t.Fatal(err)
		}
		e := start(t, newBelow(), engine.Config{
			Profiles:   set,
			MountRoots: []string{"/srv"},
			Classes:    map[string]engine.Class{"small": {Profile: "small"}},
			Owners: map[sandbox.Owner]engine.Tenant{
				"alice": {MaxLive: 2, MaxRunning: 1, MountRoots: []string{"/srv/alice"}, Profiles: []string{"small"}},
			},
		})
		alice, bot := e.View("alice", "small"), e.View("alice/bot", "small")
		sb, _ := acquire(t, alice, sandbox.Spec{Name: "1"})
		other, _ := acquire(t, bot, sandbox.Spec{Name: "2"})
		_, _, err = bot.Acquire(t.Context(), sandbox.Spec{Name: "3"})
		refused(t, err, sandbox.Exhausted, "")
		acquire(t, e.View("bob", ""), sandbox.Spec{Name: "3"})

		_, end := background(t, sb, "sleep", "1000")
		_, err = other.Start(t.Context(), sandbox.Cmd{Args: []string{"true"}})
		refused(t, err, sandbox.Exhausted, "")
		end()
		synctest.Wait()
		run(t, other, "true")
		sb.Remove(t.Context())

		// Who names none gets the first that he may have.
		plain, err := e.View("alice", "").Create(t.Context(), sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		if info, err := plain.Info(t.Context()); err != nil || info.Profile != "small" {
			t.Errorf("the profile is %q, %v", info.Profile, err)
		}
		if err := plain.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = alice.Create(t.Context(), sandbox.Spec{Profile: profile.Native})
		refused(t, err, sandbox.Denied, "profile")
		_, err = alice.Create(t.Context(), sandbox.Spec{Profile: "nosuch"})
		refused(t, err, sandbox.NotExist, "profile")

		for source, ok := range map[string]bool{"/srv/alice": true, "/srv/alice/x": true, "/srv/alice/../bob": false, "/srv/alicea": false, "/srv": false, "/": false, "/etc": false} {
			sb, err := alice.Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Source: source, Target: "/m"}}})
			if ok {
				if err != nil {
					t.Errorf("%s: %v", source, err)
					continue
				}
				if info, err := sb.Info(t.Context()); err != nil || info.Mounts[0].Source != source || info.Mounts[0].Within != "" {
					t.Errorf("Info says %+v, %v", info.Mounts, err)
				}
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			} else {
				refused(t, err, sandbox.Denied, "mounts.source")
			}
		}
		_, err = e.View("bob", "").Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Source: "/srv/alice", Target: "/m"}}})
		refused(t, err, sandbox.Denied, "mounts.source")
	})
}

// TestAQuotaIsNeverPassed has a thousand creates race for ten places.
func TestAQuotaIsNeverPassed(t *testing.T) {
	const places = 10
	b := newBelow()
	var live, most atomic.Int64
	b.onCreate = func(context.Context, sandbox.Spec) error {
		if n := live.Add(1); n > most.Load() {
			most.Store(n)
		}
		return nil
	}
	b.onRemove = func(context.Context, sandbox.ID) error { live.Add(-1); return nil }
	e := start(t, b, engine.Config{MaxLive: places})
	var made, refusals atomic.Int64
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			sb, err := e.Create(t.Context(), sandbox.Spec{})
			if err != nil {
				if !errors.Is(err, sandbox.Exhausted) {
					t.Error(err)
				}
				refusals.Add(1)
				return
			}
			made.Add(1)
			if i%2 == 0 {
				if err := sb.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > places || made.Load() < places {
		t.Errorf("%d were made, %d at once, %d were refused; there were %d places", made.Load(), most.Load(), refusals.Load(), places)
	}
	if n := len(b.all(t)); n > places {
		t.Errorf("there are %d", n)
	}
}

// TestRemovalsAreLinear races removals with everything else.
func TestRemovalsAreLinear(t *testing.T) {
	for range 50 {
		b := newBelow()
		e, err := engine.New(t.Context(), b, engine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := sb.Remove(t.Context()); err != nil {
					t.Errorf("remove: %v", err)
				}
				if _, err := sb.Info(t.Context()); !errors.Is(err, sandbox.NotExist) {
					t.Errorf("after its removal: %v", err)
				}
			})
			wg.Go(func() {
				exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"true"}})
				// While it is paused nothing can be started.
				if err != nil && !errors.Is(err, sandbox.NotExist) && !errors.Is(err, sandbox.Unavailable) || err == nil && !exit.Success() {
					t.Errorf("run: %v, %v", exit, err)
				}
			})
			wg.Go(func() {
				p := sb.(sandbox.Pauser)
				if err := p.Pause(t.Context()); err != nil && !errors.Is(err, sandbox.NotExist) {
					t.Errorf("pause: %v", err)
				}
				p.Resume(t.Context())
			})
			wg.Go(func() {
				if _, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "s"}); err != nil {
					t.Errorf("acquire: %v", err)
				}
			})
		}
		wg.Wait()
		if n := b.removed(sb.ID()); n != 1 {
			t.Errorf("it was removed %d times", n)
		}
		if n := len(b.all(t)); n > 1 {
			t.Errorf("there are %d", n)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestPruneTakesWhatNobodyUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		make := func(name string, labels map[string]string) sandbox.Sandbox {
			sb, _ := acquire(t, e, sandbox.Spec{Name: name, Labels: labels})
			return sb
		}
		old, busy, job, labelled := make("old", nil), make("busy", nil), make("job", nil), make("labelled", map[string]string{"a": "b"})
		_, end := background(t, busy, "sleep", "100000")
		defer end()
		if _, err := job.(sandbox.Detacher).StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sleep", "100000"}}, sandbox.DetachOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		fresh := make("fresh", nil)
		alices, _ := acquire(t, e.View("alice", ""), sandbox.Spec{Name: "x"})
		prune := func(v sandbox.Overseer, p sandbox.Prune, want ...sandbox.Sandbox) {
			t.Helper()
			got, err := v.Prune(t.Context(), p)
			if err != nil || len(got) != len(want) {
				t.Fatalf("pruned %d, %v, want %d", len(got), err, len(want))
			}
			for i := range want {
				found := false
				for _, info := range got {
					found = found || info.ID == want[i].ID()
				}
				if !found {
					t.Errorf("%s is not among them", want[i].ID())
				}
			}
		}
		prune(e, sandbox.Prune{Labels: map[string]string{"a": "b"}, DryRun: true}, labelled)
		prune(e, sandbox.Prune{Labels: map[string]string{"a": "b"}}, labelled)
		gone(t, e, labelled.ID(), sandbox.Pruned)
		prune(e, sandbox.Prune{Released: true})
		prune(e, sandbox.Prune{Unused: time.Hour}, old)
		prune(e.View("alice", ""), sandbox.Prune{}, alices)
		prune(e, sandbox.Prune{}, fresh)
		for _, sb := range []sandbox.Sandbox{busy, job} {
			if _, ok := e.Peek(sb.ID()); !ok {
				t.Error("one in use went")
			}
		}
	})
}

func TestEventsTellWhatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var audit []sandbox.Event
		e := start(t, newBelow(), engine.Config{Audit: func(ev sandbox.Event) { audit = append(audit, ev) }})
		alice := e.View("alice", "box")
		var followed []sandbox.EventKind
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ev, err := range alice.Events(ctx, 0, true) {
				if err != nil {
					t.Error(err)
				}
				followed = append(followed, ev.Kind)
			}
		})
		sb, _ := acquire(t, alice, sandbox.Spec{Name: "s"})
		acquire(t, alice, sandbox.Spec{Name: "s"})
		run(t, sb, "echo secret")
		if err := sandbox.WriteFile(t.Context(), sb, "/workspace/f", []byte("x")); err != nil {
			t.Fatal(err)
		}
		sb.(sandbox.Releaser).Release(t.Context())
		sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Labels: map[string]string{"a": "b"}})
		sb.Remove(t.Context())
		synctest.Wait()
		stop()
		wg.Wait()
		want := []sandbox.EventKind{sandbox.EventMade, sandbox.EventAcquired, sandbox.EventStarted, sandbox.EventEnded, sandbox.EventWritten, sandbox.EventReleased, sandbox.EventChanged, sandbox.EventGone}
		if len(followed) != len(want) {
			t.Fatalf("followed %v, want %v", followed, want)
		}
		for i, ev := range audit {
			if ev.Kind != want[i] || followed[i] != want[i] || ev.Number != int64(i+1) || ev.Owner != "alice" || ev.Sandbox != sb.ID() || ev.Name != "s" || ev.At.IsZero() {
				t.Errorf("event %d is %+v", i, ev)
			}
		}
		if got := audit[2].Detail; got != "sh" {
			t.Errorf("the command's event says %q", got)
		}
		var rest int
		for range alice.Events(t.Context(), 6, false) {
			rest++
		}
		if rest != 2 {
			t.Errorf("after the sixth there are %d", rest)
		}
	})
}

func TestMetricsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		e, err := engine.New(t.Context(), newBelow(), engine.Config{Metrics: reg, MaxLive: 1, Warm: func() int { return 3 }})
		if err != nil {
			t.Fatal(err)
		}
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		acquire(t, e, sandbox.Spec{Name: "s"})
		run(t, sb, "true")
		e.Create(t.Context(), sandbox.Spec{})
		got := make(map[string]float64)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				switch {
				case m.GetCounter() != nil:
					got[f.GetName()] += m.GetCounter().GetValue()
				case m.GetGauge() != nil:
					got[f.GetName()] += m.GetGauge().GetValue()
				case m.GetHistogram() != nil:
					got[f.GetName()] += float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		for name, want := range map[string]float64{"atoll_creates_total": 3, "atoll_create_seconds": 1, "atoll_execs_total": 1, "atoll_exec_seconds": 1,
			"atoll_start_seconds": 1, "atoll_refusals_total": 1, "atoll_sandboxes": 1, "atoll_sandboxes_busy": 0, "atoll_sandboxes_warm": 3} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v", name, got[name], want)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if families, _ := reg.Gather(); len(families) != 0 {
			t.Error("metrics are left on the register")
		}
	})
}

// TestRestart closes an Engine and opens another on the same store.
func TestRestart(t *testing.T) {
	open := func(t *testing.T, file, boot string) *store.Store {
		st, err := store.Open(file, store.Options{Boot: boot})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	file := filepath.Join(t.TempDir(), "engine.db")
	b := newBelow()
	keep := keeps{b}
	e, err := engine.New(t.Context(), keep, engine.Config{Store: open(t, file, "a"), Boot: "a"})
	if err != nil {
		t.Fatal(err)
	}
	alice := e.View("alice", "box")
	kept, _ := acquire(t, alice, sandbox.Spec{Name: "kept", ID: "keptsandbox", Labels: map[string]string{"a": "b"}, Env: map[string]string{"SECRET": "x"}, Idle: time.Hour})
	if err := kept.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("alias")}); err != nil {
		t.Fatal(err)
	}
	removed, _ := acquire(t, alice, sandbox.Spec{Name: "removed"})
	lost, _ := acquire(t, alice, sandbox.Spec{Name: "lost"})
	expired, _ := acquire(t, alice, sandbox.Spec{Name: "expired", Expires: time.Now().Add(time.Second)})
	if err := removed.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	b.kill(t, lost.ID())
	b.kill(t, expired.ID())
	// One that was being made when the daemon died.
	orphan, err := b.Runtime.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // until that has expired

	e, err = engine.New(t.Context(), keep, engine.Config{Store: open(t, file, "a"), Boot: "a"})
	if err != nil {
		t.Fatal(err)
	}
	alice = e.View("alice", "box")
	sb, made, err := alice.Acquire(t.Context(), sandbox.Spec{Name: "alias", Idle: time.Hour})
	if err != nil || made || sb.ID() != "keptsandbox" {
		t.Fatalf("acquire: %v, made %v", err, made)
	}
	if info, err := sb.Info(t.Context()); err != nil || info.Labels["a"] != "b" || len(info.Names) != 2 || info.Owner != "alice" || info.Idle != time.Hour {
		t.Errorf("Info says %+v, %v", info, err)
	}
	gone(t, alice, removed.ID(), sandbox.Removed)
	gone(t, alice, lost.ID(), sandbox.Died)
	gone(t, alice, expired.ID(), sandbox.Expired)
	if n := len(b.all(t)); n != 1 {
		t.Errorf("there are %d below: the orphan %s was not removed", n, orphan.ID())
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}

	// The host restarts.
	for _, id := range b.all(t) {
		b.kill(t, id)
	}
	e, err = engine.New(t.Context(), keep, engine.Config{Store: open(t, file, "b"), Boot: "b"})
	if err != nil {
		t.Fatal(err)
	}
	gone(t, e, "keptsandbox", sandbox.HostBoot)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}

	// The store is lost: what there is belongs to the operator.
	found, err := b.Runtime.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	e, err = engine.New(t.Context(), keep, engine.Config{Store: open(t, file+".new", "b"), Boot: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if sb, err := e.Open(t.Context(), found.ID()); err != nil {
		t.Error(err)
	} else {
		run(t, sb, "true")
	}
	if _, err := e.View("alice", "").Open(t.Context(), found.ID()); !errors.Is(err, sandbox.NotExist) {
		t.Errorf("alice sees it: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}

	// What is below does not answer: nothing is decided.
	b.with(func(b *below) {
		b.onList = func(context.Context) error { return sandbox.Errorf(sandbox.Unavailable, "", "later") }
	})
	e, err = engine.New(t.Context(), keep, engine.Config{Store: open(t, file+".new", "b"), Boot: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if sb, err := e.Open(t.Context(), found.ID()); err != nil {
		t.Error(err)
	} else {
		run(t, sb, "true")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Runtime.Close(); err != nil {
		t.Error(err)
	}
}

// keeps is a Runtime whose sandboxes outlive it.
type keeps struct{ *below }

func (keeps) Close() error { return nil }

// TestWhatCannotBeWrittenIsNotMade has the store fail.
func TestWhatCannotBeWrittenIsNotMade(t *testing.T) {
	st := store.Memory()
	b := newBelow()
	e, err := engine.New(t.Context(), b, engine.Config{Store: st})
	if err != nil {
		t.Fatal(err)
	}
	old, _ := acquire(t, e, sandbox.Spec{Name: "old"})
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "new"}); err == nil {
		t.Error("it was made")
	}
	if err := old.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("alias")}); err == nil {
		t.Error("it was changed")
	}
	if _, ok := e.PeekName("alias"); ok {
		t.Error("the change is there")
	}
	if _, ok := e.PeekName("new"); ok {
		t.Error("the sandbox is there")
	}
	if n := len(b.all(t)); n != 1 {
		t.Errorf("there are %d below", n)
	}
	run(t, old, "true")
	s, err := e.Status(t.Context())
	if err != nil || s.Available {
		t.Errorf("status %+v, %v", s, err)
	}
	e.Close()
}

func TestARemovalThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { return errors.New("the cgroup is busy") }
		})
		if err := sb.Remove(t.Context()); err == nil {
			t.Fatal("no error")
		}
		gone(t, e, sb.ID(), sandbox.Removed)
		_, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "s"})
		refused(t, err, sandbox.Unavailable, "")
		time.Sleep(10 * time.Minute)
		if n := b.removed(sb.ID()); n < 5 {
			t.Errorf("it was tried %d times", n)
		}
		b.with(func(b *below) { b.onRemove = nil })
		time.Sleep(2 * time.Minute)
		if n := len(b.all(t)); n != 0 {
			t.Errorf("there are %d below", n)
		}
		if _, made := acquire(t, e, sandbox.Spec{Name: "s"}); !made {
			t.Error("the name is not free")
		}
	})
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	for field, cfg := range map[string]engine.Config{
		"max_live":              {MaxLive: -1},
		"protocols.x.profile":   {Classes: map[string]engine.Class{"x": {Profile: "nosuch"}}},
		"protocols.x.max_live":  {Classes: map[string]engine.Class{"x": {MaxLive: -1}}},
		"protocols.x.when_full": {Classes: map[string]engine.Class{"x": {Full: "sometimes"}}},
		"protocols.x.wait":      {Classes: map[string]engine.Class{"x": {Wait: -1}}},
		"owners.a b":            {Owners: map[sandbox.Owner]engine.Tenant{"a b": {}}},
		"owners.operator":       {Owners: map[sandbox.Owner]engine.Tenant{"operator": {}}},
		"owners.a.profiles":     {Owners: map[sandbox.Owner]engine.Tenant{"a": {Profiles: []string{"nosuch"}}}},
	} {
		if _, err := engine.New(t.Context(), newBelow(), cfg); err == nil {
			t.Errorf("%s: taken", field)
		} else if e := new(sandbox.Error); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
