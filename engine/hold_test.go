package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
)

// What holds when calls meet each other, or something fails.

// TestAChangeThatComesTooLateBringsNothingBack changes a sandbox that is
// removed, and made anew under its id, while the change waits.
func TestAChangeThatComesTooLateBringsNothingBack(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprint("made anew ", anew), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := store.Memory()
				b := newBelow()
				e := start(t, b, engine.Config{Store: st})
				spec := sandbox.Spec{Name: "s", ID: "chosenbyhand"}
				sb, _ := acquire(t, e, spec)
				hold := make(chan struct{})
				b.with(func(b *below) {
					b.onCreate = func(_ context.Context, s sandbox.Spec) error {
						if s.Image == "slow" {
							<-hold
							return errors.New("no luck")
						}
						return nil
					}
				})
				var wg sync.WaitGroup
				wg.Go(func() { e.Acquire(t.Context(), sandbox.Spec{Name: "alias", Image: "slow"}) })
				synctest.Wait()
				wg.Go(func() { // waits for the name
					err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("alias")})
					if g := new(sandbox.Gone); !errors.As(err, &g) || g.Why != sandbox.Removed {
						t.Errorf("update: %v", err)
					}
				})
				synctest.Wait()
				if err := sb.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
				want := 0
				if anew {
					acquire(t, e, spec)
					want = 1
				}
				close(hold)
				wg.Wait()
				recs, dead, _, err := st.Load()
				if err != nil || len(recs) != want || len(dead) != 1-want {
					t.Fatalf("the store has %d records, %d tombstones, %v", len(recs), len(dead), err)
				}
				if anew && recs[0].Inner != b.all(t)[0] {
					t.Error("the store has the old one")
				}
				if !anew {
					gone(t, e, sb.ID(), sandbox.Removed)
				}
				if _, ok := e.PeekName("alias"); ok {
					t.Error("the name is there")
				}
			})
		})
	}
}

// TestWhatWasNotAdoptedIsNotRemoved has a daemon fail between the making of its
// store and the adoption of what there was.
func TestWhatWasNotAdoptedIsNotRemoved(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engine.db")
	b := newBelow()
	kept, err := b.Runtime.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	daemon := func() (*engine.Engine, error) {
		st, err := store.Open(file, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return engine.New(t.Context(), keeps{b}, engine.Config{Store: st})
	}
	b.with(func(b *below) {
		b.onList = func(context.Context) error { return sandbox.Errorf(sandbox.Unavailable, "", "later") }
	})
	if _, err := daemon(); !errors.Is(err, sandbox.Unavailable) {
		t.Fatalf("new: %v", err)
	}
	b.with(func(b *below) { b.onList = nil })
	for range 2 {
		e, err := daemon()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Open(t.Context(), kept.ID()); err != nil {
			t.Errorf("what there was is not: %v", err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// From now on what the store does not have was never handed out.
	if _, err := b.Runtime.Create(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	e, err := daemon()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(b.all(t)); n != 1 {
		t.Errorf("there are %d", n)
	}
	if err := errors.Join(e.Close(), b.Runtime.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestWhoIsToldThatACommandEndedHasItsPlace runs one command after the other
// where only one may run.
func TestWhoIsToldThatACommandEndedHasItsPlace(t *testing.T) {
	e := start(t, newBelow(), engine.Config{Owners: map[sandbox.Owner]engine.Tenant{"alice": {MaxRunning: 1}}})
	sb, _ := acquire(t, e.View("alice", ""), sandbox.Spec{Name: "s"})
	for range 300 {
		run(t, sb, "true")
		if info, err := sb.Info(t.Context()); err != nil || info.Busy != 0 {
			t.Fatalf("busy %d, %v", info.Busy, err)
		}
	}
}

// TestCloseWaitsForNobodysFile closes the Engine while its caller has a file
// and a connection open.
func TestCloseWaitsForNobodysFile(t *testing.T) {
	b := &below{Runtime: memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echo}}), removes: make(map[sandbox.ID]int)}
	e, err := engine.New(t.Context(), b, engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
	if err := sandbox.WriteFile(t.Context(), sb, "/workspace/f", []byte("x")); err != nil {
		t.Fatal(err)
	}
	f, err := sb.Files().Open(t.Context(), "/workspace/f", sandbox.Range{})
	if err != nil {
		t.Fatal(err)
	}
	_, end := background(t, sb, "echo-server", strconv.Itoa(7000))
	defer end()
	var c io.Closer
	for c == nil {
		if conn, err := sb.(sandbox.Dialer).Dial(t.Context(), 7000); err == nil {
			c = conn
		}
	}
	if info, err := sb.Info(t.Context()); err != nil || info.Busy != 3 {
		t.Errorf("busy %d, %v", info.Busy, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	f.Close()
	c.Close()
}

// TestASlowBurialKeepsNobodyFromGivingUp opens a dead sandbox whose cleanup
// hangs.
func TestASlowBurialKeepsNobodyFromGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		b.kill(t, sb.ID())
		b.with(func(b *below) {
			b.onRemove = func(ctx context.Context, _ sandbox.ID) error { <-ctx.Done(); return ctx.Err() }
		})
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Open(ctx, sb.ID()); err == nil {
			t.Error("it was opened")
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %v", took)
		}
		gone(t, e, sb.ID(), sandbox.Died)
	})
}

// TestASoftBoundHoldsNobodyUp has the eviction fail.
func TestASoftBoundHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		v := start(t, b, engine.Config{Classes: map[string]engine.Class{"deerflow": {MaxLive: 1, Full: engine.Soft}}}).View("deer", "deerflow")
		sb, _ := acquire(t, v, sandbox.Spec{Name: "a"})
		if err := sb.(sandbox.Releaser).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { return errors.New("the cgroup is busy") }
		})
		acquire(t, v, sandbox.Spec{Name: "b"})
		b.with(func(b *below) { b.onRemove = nil })
	})
}

// slowToTell is a Runtime whose caller has given up by the time that it has
// made a sandbox.
type slowToTell struct {
	*below
	cancel func()
}

func (s slowToTell) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	defer s.cancel()
	return s.below.Create(ctx, spec)
}

// TestWhatNobodyGotIsRemovedLater makes a sandbox that nobody waits for any
// more, and fails to undo that.
func TestWhatNobodyGotIsRemovedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		st := store.Memory()
		ctx, cancel := context.WithCancel(t.Context())
		e, err := engine.New(t.Context(), slowToTell{b, cancel}, engine.Config{Store: st, MaxLive: 1})
		if err != nil {
			t.Fatal(err)
		}
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { return errors.New("the cgroup is busy") }
		})
		if _, _, err := e.Acquire(ctx, sandbox.Spec{Name: "s"}); !errors.Is(err, context.Canceled) {
			t.Errorf("acquire: %v", err)
		}
		if n := len(b.all(t)); n != 1 {
			t.Fatalf("there are %d below", n)
		}
		_, _, err = e.Acquire(t.Context(), sandbox.Spec{Name: "s"})
		refused(t, err, sandbox.Exhausted, "")
		b.with(func(b *below) { b.onRemove = nil })
		time.Sleep(2 * time.Minute)
		if n := len(b.all(t)); n != 0 {
			t.Errorf("there are %d below", n)
		}
		if recs, _, _, err := st.Load(); err != nil || len(recs) != 0 {
			t.Errorf("the store has %d, %v", len(recs), err)
		}
		acquire(t, e, sandbox.Spec{Name: "s"})
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestWhoGivesUpLeavesNothing cancels an acquire while its sandbox is made.
func TestWhoGivesUpLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{MaxLive: 1})
		b.with(func(b *below) {
			b.onCreate = func(ctx context.Context, _ sandbox.Spec) error { <-ctx.Done(); return ctx.Err() }
		})
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, _, err := e.Acquire(ctx, sandbox.Spec{Name: "s", ID: "chosenbyhand"}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("acquire: %v", err)
			}
			cancel()
		}
		b.with(func(b *below) { b.onCreate = nil })
		if s, err := e.Status(t.Context()); err != nil || s.Live != 0 || s.Busy != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		acquire(t, e, sandbox.Spec{Name: "s", ID: "chosenbyhand"})
	})
}

// TestASlowRemovalBlocksItsIDAlone wants the id of a sandbox that is going, by
// another name.
func TestASlowRemovalBlocksItsIDAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		first, _ := acquire(t, e, sandbox.Spec{Name: "a", ID: "chosenbyhand"})
		_, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "b", ID: "chosenbyhand"})
		refused(t, err, sandbox.Conflict, "id")
		hold := make(chan struct{})
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { <-hold; return nil }
		})
		var wg sync.WaitGroup
		wg.Go(func() { first.Remove(t.Context()) })
		synctest.Wait()
		var second sandbox.Sandbox
		wg.Go(func() { second, _ = acquire(t, e, sandbox.Spec{Name: "b", ID: "chosenbyhand"}) })
		synctest.Wait()
		if second != nil {
			t.Error("two have one id")
		}
		_, err = e.View("bob", "").Create(t.Context(), sandbox.Spec{ID: "chosenbyhand2"})
		if err != nil {
			t.Errorf("another id: %v", err)
		}
		close(hold)
		wg.Wait()
		if second == nil || second.ID() != first.ID() {
			t.Fatal("it does not have the id")
		}
		if _, err := first.Info(t.Context()); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("the old one answers: %v", err)
		}
	})
}

// TestALookupDoesNotWaitForWhatIsBeingMade looks for a sandbox, and ends the
// Engine, while one is being made.
func TestALookupDoesNotWaitForWhatIsBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e, err := engine.New(t.Context(), keeps{b}, engine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		b.with(func(b *below) {
			b.onCreate = func(context.Context, sandbox.Spec) error { <-hold; return nil }
		})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "s"}); !errors.Is(err, sandbox.Closed) {
				t.Errorf("acquire: %v", err)
			}
		})
		synctest.Wait()
		if _, err := e.Lookup(t.Context(), "s"); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("lookup: %v", err)
		}
		if _, ok := e.PeekName("s"); ok {
			t.Error("it is there")
		}
		wg.Go(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		close(hold)
		wg.Wait()
		if n := len(b.all(t)); n != 0 {
			t.Errorf("%d were made and not acknowledged", n)
		}
		if err := b.Runtime.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestShutdown calls everything after Close.
func TestShutdown(t *testing.T) {
	b := newBelow()
	e, err := engine.New(t.Context(), b, engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	v := e.View("alice", "box")
	sb, _ := acquire(t, v, sandbox.Spec{Name: "s"})
	p, _ := background(t, sb, "sleep", "100000")
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	p.Wait() // it ends with the Engine
	_, _, acquired := v.Acquire(t.Context(), sandbox.Spec{Name: "s"})
	_, created := v.Create(t.Context(), sandbox.Spec{})
	_, opened := v.Open(t.Context(), sb.ID())
	_, found := v.Lookup(t.Context(), "s")
	_, started := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"true"}})
	_, info := sb.Info(t.Context())
	_, status := v.Status(t.Context())
	_, pruned := v.Prune(t.Context(), sandbox.Prune{})
	_, read := sb.Files().Open(t.Context(), "/workspace", sandbox.Range{})
	for what, err := range map[string]error{"acquire": acquired, "create": created, "open": opened, "lookup": found, "start": started, "info": info, "status": status, "prune": pruned, "read": read,
		"remove": sb.Remove(t.Context()), "release": sb.(sandbox.Releaser).Release(t.Context()), "update": sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("n")})} {
		if !errors.Is(err, sandbox.Closed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	if _, ok := v.Peek(sb.ID()); ok {
		t.Error("it is still to be seen")
	}
}

// TestResetRemovesAllThatAnOwnerHas, and nobody else's.
func TestResetRemovesAllThatAnOwnerHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		deer, box := e.View("deer", "deerflow"), e.View("box", "box")
		kept, _ := acquire(t, box, sandbox.Spec{Name: "s"})
		for _, name := range names(5) {
			sb, _ := acquire(t, deer, sandbox.Spec{Name: name, Idle: -1})
			background(t, sb, "sleep", "100000")
		}
		for info, err := range deer.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			sb, err := deer.Open(t.Context(), info.ID)
			if err == nil {
				err = sb.Remove(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		}
		if ids := b.all(t); len(ids) != 1 || ids[0] != kept.ID() {
			t.Errorf("there are %v", ids)
		}
		if _, made := acquire(t, deer, sandbox.Spec{Name: names(1)[0]}); !made {
			t.Error("it was not made anew")
		}
	})
}

// TestAViewThatIsClosedShowsNothing, and the Engine goes on.
func TestAViewThatIsClosedShowsNothing(t *testing.T) {
	e := start(t, newBelow(), engine.Config{})
	v := e.View("alice", "")
	sb, _ := acquire(t, v, sandbox.Spec{Name: "s"})
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Open(t.Context(), sb.ID()); !errors.Is(err, sandbox.Closed) {
		t.Errorf("open: %v", err)
	}
	if _, ok := v.PeekName("s"); ok {
		t.Error("it is there to be seen")
	}
	if _, err := e.View("alice", "").Lookup(t.Context(), "s"); err != nil {
		t.Error(err)
	}
}

// TestAnEndThatCannotBeWrittenIsToldAllTheSame has the store fail when a
// sandbox is removed.
func TestAnEndThatCannotBeWrittenIsToldAllTheSame(t *testing.T) {
	st := store.Memory()
	b := newBelow()
	e, err := engine.New(t.Context(), b, engine.Config{Store: st})
	if err != nil {
		t.Fatal(err)
	}
	sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err != nil {
		t.Errorf("remove: %v", err)
	}
	gone(t, e, sb.ID(), sandbox.Removed)
	e.Close()
}

// TestWhoWasUsedLastOutlivesARestart looks at who goes first after one.
func TestWhoWasUsedLastOutlivesARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engine.db")
	b := newBelow()
	daemon := func() *engine.Engine {
		st, err := store.Open(file, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(t.Context(), keeps{b}, engine.Config{Store: st, Classes: map[string]engine.Class{"box": {MaxLive: 8, Full: engine.Evict}, "deerflow": {MaxLive: 1, Full: engine.Soft}}})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := daemon()
	v := e.View("alice", "box")
	all := make(map[string]sandbox.Sandbox)
	for _, name := range names(8) {
		all[name], _ = acquire(t, v, sandbox.Spec{Name: name})
	}
	order := []int{3, 1, 4, 0, 5, 2, 6, 7}
	for _, i := range order {
		acquire(t, v, sandbox.Spec{Name: names(8)[i]})
	}
	soft, _ := acquire(t, e.View("alice", "deerflow"), sandbox.Spec{Name: "soft"})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = daemon()
	v = e.View("alice", "box")
	for n, i := range order[:4] {
		acquire(t, v, sandbox.Spec{Name: fmt.Sprint("new ", n)})
		gone(t, v, all[names(8)[i]].ID(), sandbox.Evicted)
	}
	acquire(t, e.View("alice", "deerflow"), sandbox.Spec{Name: "another"})
	gone(t, v, soft.ID(), sandbox.Evicted)
	if err := errors.Join(e.Close(), b.Runtime.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestAClockThatJumps starts on a store that was written when the clock was a
// year ahead, or behind.
func TestAClockThatJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const year = 365 * 24 * time.Hour
		st := store.Memory()
		b := newBelow()
		put := func(name string, used, expires time.Time) sandbox.ID {
			t.Helper()
			sb, err := b.Runtime.Create(t.Context(), sandbox.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			rec := store.Record{ID: sb.ID(), Inner: sb.ID(), Owner: "alice", Names: []string{name}, Profile: "native", Created: used, Used: used, Expires: expires,
				Spec: sandbox.Spec{Name: name, Idle: 10 * minute, Expires: expires}}
			if err := st.Put(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
			return sb.ID()
		}
		now := time.Now()
		ahead, behind, past, soon := put("ahead", now.Add(year), time.Time{}), put("behind", now.Add(-year), time.Time{}), put("past", now, now.Add(-year)), put("soon", now.Add(year), now.Add(minute))
		for id, at := range map[sandbox.ID]time.Time{"buriedahead": now.Add(year), "buriedbehind": now.Add(-year)} {
			if err := st.Bury(t.Context(), store.Tombstone{ID: id, Owner: "alice", Gone: sandbox.Gone{Why: sandbox.Pruned, At: at}}); err != nil {
				t.Fatal(err)
			}
		}
		e := start(t, b, engine.Config{Store: st})
		v := e.View("alice", "")
		time.Sleep(time.Second)
		gone(t, v, past, sandbox.Expired)
		gone(t, v, "buriedahead", sandbox.Pruned)
		for _, id := range []sandbox.ID{ahead, behind, soon} {
			if _, ok := v.Peek(id); !ok {
				t.Errorf("%s went", id)
			}
		}
		time.Sleep(minute)
		gone(t, v, soon, sandbox.Expired)
		time.Sleep(10 * minute)
		gone(t, v, ahead, sandbox.Unused)
		gone(t, v, behind, sandbox.Unused)
		if n := len(b.all(t)); n != 0 {
			t.Errorf("there are %d below", n)
		}
	})
}

func TestNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "name 0"})
		for i := 1; i < engine.MaxNames; i++ {
			if err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new(fmt.Sprint("name ", i))}); err != nil {
				t.Fatal(err)
			}
		}
		err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("one more")})
		refused(t, err, sandbox.Exhausted, "name")
		if err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("name 7")}); err != nil {
			t.Error(err)
		}
	})
}

// TestADeepFolderHidesNothing puts more than a workspace may have where no path
// reaches.
func TestADeepFolderHidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s", Limits: sandbox.Limits{Workspace: 1000}})
		deep := "/workspace" + strings.Repeat("/"+strings.Repeat("d", 200), 20)
		if err := sb.Files().Mkdir(t.Context(), deep, sandbox.MkdirOptions{Parents: true}); err != nil {
			t.Fatal(err)
		}
		run(t, sb, "true") // it can be measured
		_, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"sh", "-c", "cd " + deep + " && mkdir " + strings.Repeat("d", 200)}})
		refused(t, err, sandbox.Exhausted, "limits.workspace")
	})
}
