package engine_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// What DeerFlow's sandbox providers promise their callers.

// threadID is the id that DeerFlow's AioSandboxProvider gives to a thread.
func threadID(user, thread string) sandbox.ID {
	sum := sha256.Sum256([]byte(user + ":" + thread))
	return sandbox.ID(hex.EncodeToString(sum[:])[:16])
}

func TestAThreadHasTheSameIDEveryTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		v := start(t, b, engine.Config{}).View("deer", "deerflow")
		spec := sandbox.Spec{Name: "u1/t1", ID: threadID("u1", "t1")}
		first, _ := acquire(t, v, spec)
		if first.ID() != spec.ID {
			t.Fatalf("the id is %s", first.ID())
		}
		if info, err := first.Info(t.Context()); err != nil || info.ID != spec.ID {
			t.Errorf("Info says %s, %v", info.ID, err)
		}
		if err := first.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		second, made := acquire(t, v, spec)
		if !made || second.ID() != spec.ID {
			t.Errorf("after removal: %s, made %v", second.ID(), made)
		}
		if _, err := first.Info(t.Context()); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("the old one still answers: %v", err)
		}
		if opened, err := v.Open(t.Context(), spec.ID); err != nil || opened != second {
			t.Errorf("open: %v", err)
		}
		other, _ := acquire(t, v, sandbox.Spec{Name: "u1/t2", ID: threadID("u1", "t2")})
		if other.ID() == second.ID() {
			t.Error("two threads share a sandbox")
		}
	})
}

func TestAnIDIsNeverHandedToAnotherThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{})
		acquire(t, e, sandbox.Spec{Name: "u1/t1", ID: "collision"})
		_, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "u2/t2", ID: "collision"})
		refused(t, err, sandbox.Conflict, "id")
		_, err = e.Create(t.Context(), sandbox.Spec{ID: "collision"})
		refused(t, err, sandbox.Conflict, "id")
		// Nor does another owner learn more than that it is taken.
		_, _, err = e.View("alice", "").Acquire(t.Context(), sandbox.Spec{ID: "collision"})
		refused(t, err, sandbox.Conflict, "id")
	})
}

func TestThreadsThatComeTogetherGetOneEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		b.with(func(b *below) {
			b.onCreate = func(context.Context, sandbox.Spec) error { time.Sleep(time.Second); return nil }
		})
		begun := time.Now()
		got := make([]sandbox.ID, 100)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				sb, _ := acquire(t, e, sandbox.Spec{Name: fmt.Sprint(i % 10)})
				got[i] = sb.ID()
			})
		}
		wg.Wait()
		if took := time.Since(begun); took != time.Second {
			t.Errorf("that took %v: they waited for each other", took)
		}
		seen := make(map[sandbox.ID]int)
		for i, id := range got {
			if id != got[i%10] {
				t.Errorf("thread %d got two sandboxes", i%10)
			}
			seen[id]++
		}
		if len(seen) != 10 || len(b.all(t)) != 10 {
			t.Errorf("there are %d sandboxes, and %d below, want 10", len(seen), len(b.all(t)))
		}
	})
}

func TestTheLeastRecentlyUsedGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cap = 256
		b := newBelow()
		v := start(t, b, engine.Config{Classes: map[string]engine.Class{"local": {MaxLive: cap, Full: engine.Evict}}}).View("deer", "local")
		all := make([]sandbox.Sandbox, cap)
		for i, name := range names(cap) {
			all[i], _ = acquire(t, v, sandbox.Spec{Name: name})
			time.Sleep(time.Second)
		}
		// To open the oldest is to use it.
		if _, err := v.Open(t.Context(), all[0].ID()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		// The next one works.
		_, end := background(t, all[1], "sleep", "1000")
		defer end()
		// The one after that has a detached process.
		if _, err := all[2].(sandbox.Detacher).StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sleep", "100000"}}, sandbox.DetachOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		acquire(t, v, sandbox.Spec{Name: "new"})
		gone(t, v, all[3].ID(), sandbox.Evicted)
		for _, i := range []int{0, 1, 2, 4} {
			if _, ok := v.Peek(all[i].ID()); !ok {
				t.Errorf("number %d went", i)
			}
		}
		// A released one goes before older ones.
		if err := all[100].(sandbox.Releaser).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		acquire(t, v, sandbox.Spec{Name: "newer"})
		gone(t, v, all[100].ID(), sandbox.Evicted)
		if n := len(b.all(t)); n != cap {
			t.Errorf("there are %d below", n)
		}
	})
}

func TestWhenAllAreBusyNobodyGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{Classes: map[string]engine.Class{"at once": {MaxLive: 1, Full: engine.Evict}, "waits": {MaxLive: 1, Full: engine.Evict, Wait: time.Minute}}})
		for class, wait := range map[string]time.Duration{"at once": 0, "waits": time.Minute} {
			v := e.View("deer", class)
			sb, _ := acquire(t, v, sandbox.Spec{Name: class + " busy"})
			_, end := background(t, sb, "sleep", "1000")
			begun := time.Now()
			_, _, err := v.Acquire(t.Context(), sandbox.Spec{Name: class + " new"})
			if got := refused(t, err, sandbox.Exhausted, ""); got.Hint == "" {
				t.Error("there is no hint")
			}
			if took := time.Since(begun); took != wait {
				t.Errorf("%s: it took %v, want %v", class, took, wait)
			}
			if wait > 0 {
				time.AfterFunc(wait/2, end)
				begun := time.Now()
				if _, made := acquire(t, v, sandbox.Spec{Name: class + " new"}); !made {
					t.Error("not made")
				}
				if took := time.Since(begun); took != wait/2 {
					t.Errorf("it waited for %v, want %v", took, wait/2)
				}
				gone(t, v, sb.ID(), sandbox.Evicted)
			}
			end()
		}
	})
}

func TestReplicasAreASoftBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		v := start(t, b, engine.Config{Classes: map[string]engine.Class{"deerflow": {MaxLive: 3, Full: engine.Soft}}}).View("deer", "deerflow")
		all := make(map[string]sandbox.Sandbox)
		for _, name := range names(3) {
			all[name], _ = acquire(t, v, sandbox.Spec{Name: name})
			time.Sleep(time.Second)
		}
		// None is released: it goes over, and evicts nothing.
		all["four"], _ = acquire(t, v, sandbox.Spec{Name: "four"})
		for name, sb := range all {
			if _, ok := v.Peek(sb.ID()); !ok {
				t.Errorf("%s went", name)
			}
		}
		// Released ones go, the one first that was used least recently.
		for _, name := range []string{"thread 1", "thread 0"} {
			if err := all[name].(sandbox.Releaser).Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		acquire(t, v, sandbox.Spec{Name: "five"})
		gone(t, v, all["thread 0"].ID(), sandbox.Evicted)
		gone(t, v, all["thread 1"].ID(), sandbox.Evicted)
		if _, ok := v.Peek(all["thread 2"].ID()); !ok {
			t.Error("one that was not released went")
		}
	})
}

func TestAReleasedOneIsReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		v := start(t, b, engine.Config{}).View("deer", "deerflow")
		spec := sandbox.Spec{Name: "t", ID: threadID("u", "t"), Idle: 10 * time.Minute}
		sb, _ := acquire(t, v, spec)
		run(t, sb, "echo state > /workspace/s")
		if err := sb.(sandbox.Releaser).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info, err := sb.Info(t.Context()); err != nil || !info.Released {
			t.Errorf("Info says %+v, %v", info, err)
		}
		time.Sleep(9 * time.Minute)
		again, made := acquire(t, v, spec)
		if made || run(t, again, "cat /workspace/s") != "state\n" {
			t.Error("its state is lost")
		}
		if info, err := again.Info(t.Context()); err != nil || info.Released {
			t.Errorf("it is still released: %v", err)
		}
		if err := again.(sandbox.Releaser).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Minute)
		gone(t, v, spec.ID, sandbox.Unused)
	})
}

func TestADeadOneIsMadeAnewWithAllItsNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		v := start(t, b, engine.Config{}).View("deer", "deerflow")
		spec := sandbox.Spec{Name: "t", ID: threadID("u", "t")}
		sb, _ := acquire(t, v, spec)
		if err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Name: new("alias")}); err != nil {
			t.Fatal(err)
		}
		if same, err := v.Lookup(t.Context(), "alias"); err != nil || same.ID() != sb.ID() {
			t.Fatalf("lookup: %v", err)
		}
		ids := b.all(t)
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { return errors.New("the disk is on fire") }
		})
		b.kill(t, ids[0])

		gone(t, v, spec.ID, sandbox.Died)
		gone(t, v, spec.ID, sandbox.Died) // and again
		if n := b.removed(ids[0]); n != 1 {
			t.Errorf("what was left of it was removed %d times, want once", n)
		}
		for _, name := range []string{"t", "alias"} {
			if _, err := v.Lookup(t.Context(), name); !errors.Is(err, sandbox.NotExist) {
				t.Errorf("the name %q is still there: %v", name, err)
			}
		}
		for info, err := range v.List(t.Context()) {
			t.Errorf("List has %v, %v", info.ID, err)
		}
		again, made := acquire(t, v, spec)
		if !made || again.ID() != spec.ID {
			t.Errorf("made %v under %s", made, again.ID())
		}
		run(t, again, "true")
		// To use the old one says that it is gone, not that something failed.
		if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"true"}}); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("the old one: %v", err)
		}
		if _, ok := v.Peek(spec.ID); !ok {
			t.Error("the new one went with the old")
		}
	})
}

func TestAcquireFindsOutThatItDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "t"})
		b.kill(t, sb.ID())
		again, made := acquire(t, e, sandbox.Spec{Name: "t"})
		if !made || again.ID() == sb.ID() {
			t.Error("the dead one was handed out")
		}
	})
}

func TestACallFindsOutThatItDied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "t"})
		b.kill(t, sb.ID())
		if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"true"}}); !errors.Is(err, sandbox.NotExist) {
			t.Fatalf("start: %v", err)
		}
		synctest.Wait()
		if _, ok := e.Peek(sb.ID()); ok {
			t.Error("it is still known")
		}
	})
}

func TestUnknownIsNotDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "t"})
		for name, answer := range map[string]func(context.Context, sandbox.ID) error{
			"an error": func(context.Context, sandbox.ID) error {
				return sandbox.Errorf(sandbox.Unavailable, "", "the engine is restarting")
			},
			"something else": func(context.Context, sandbox.ID) error { return errors.New("what?") },
			"nothing":        func(ctx context.Context, _ sandbox.ID) error { <-ctx.Done(); return ctx.Err() },
		} {
			b.with(func(b *below) { b.onOpen = answer })
			if same, err := e.Open(t.Context(), sb.ID()); err != nil || same.ID() != sb.ID() {
				t.Errorf("%s: open: %v", name, err)
			}
			if same, made, err := e.Acquire(t.Context(), sandbox.Spec{Name: "t"}); err != nil || made || same.ID() != sb.ID() {
				t.Errorf("%s: acquire: %v", name, err)
			}
		}
		// A caller who gives up is told so.
		b.with(func(b *below) {
			b.onOpen = func(ctx context.Context, _ sandbox.ID) error { <-ctx.Done(); return ctx.Err() }
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := e.Open(ctx, sb.ID()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if b.removed(sb.ID()) != 0 {
			t.Error("it was removed")
		}
	})
}

func TestWhatReplacedItDuringTheCheckIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		spec := sandbox.Spec{Name: "t", ID: threadID("u", "t")}
		acquire(t, e, spec)
		old := b.all(t)[0]
		checking, hold := make(chan struct{}), make(chan struct{})
		b.with(func(b *below) {
			b.onOpen = func(_ context.Context, id sandbox.ID) error {
				if id == old {
					close(checking)
					<-hold
				}
				return nil
			}
		})
		var opened sandbox.Sandbox
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { opened, err = e.Open(t.Context(), spec.ID) })
		<-checking
		// The others do not wait for the check.
		b.with(func(b *below) { b.onOpen = nil })
		b.kill(t, old)
		fresh, made := acquire(t, e, spec)
		if !made {
			t.Fatal("not made anew")
		}
		close(hold)
		wg.Wait()
		if err != nil || opened != fresh {
			t.Errorf("got %v, %v, want the new one", opened, err)
		}
		run(t, fresh, "true")
	})
}

func TestWithoutRestartTheStaleOneIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		v := start(t, b, engine.Config{Classes: map[string]engine.Class{"deerflow": {NoRestart: true}}}).View("deer", "deerflow")
		sb, _ := acquire(t, v, sandbox.Spec{Name: "t"})
		b.kill(t, sb.ID())
		before := b.opens
		if same, err := v.Open(t.Context(), sb.ID()); err != nil || same.ID() != sb.ID() {
			t.Errorf("open: %v", err)
		}
		if same, made := acquire(t, v, sandbox.Spec{Name: "t"}); made || same.ID() != sb.ID() {
			t.Error("it was made anew")
		}
		if b.opens != before {
			t.Error("it was checked")
		}
	})
}

func TestAPeekDoesNoIO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "t"})
		no := func(context.Context, sandbox.ID) error { t.Error("there was I/O"); return nil }
		b.with(func(b *below) { b.onOpen, b.onRemove = no, no })
		if same, ok := e.Peek(sb.ID()); !ok || same.ID() != sb.ID() {
			t.Error("not found by its id")
		}
		if same, ok := e.PeekName("t"); !ok || same.ID() != sb.ID() {
			t.Error("not found by its name")
		}
		for _, name := range []string{"", "nobody"} {
			if _, ok := e.PeekName(name); ok {
				t.Errorf("something has the name %q", name)
			}
		}
		if _, err := e.Open(t.Context(), "nosuchsandbox"); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("an unknown id: %v", err)
		}
		b.with(func(b *below) { b.onOpen, b.onRemove = nil, nil })
	})
}

func TestNamesAreTakenAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		awkward := []string{"a", "A", "a ", " a", "a/b", "a//b", "a-b", "a_b", "a.b", "..", "/", "ä", "a\u0308", "person_张三", "person_李四", "🏝", strings.Repeat("n", sandbox.MaxName)}
		ids := make(map[sandbox.ID]string)
		for _, name := range awkward {
			sb, made := acquire(t, e, sandbox.Spec{Name: name})
			if other, ok := ids[sb.ID()]; ok || !made {
				t.Errorf("%q and %q share a sandbox", name, other)
			}
			ids[sb.ID()] = name
		}
		for _, name := range []string{"a\x00b", "a\nb", "\xff", strings.Repeat("n", sandbox.MaxName+1)} {
			_, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: name})
			refused(t, err, sandbox.Invalid, "name")
		}
		_, _, err := e.Acquire(t.Context(), sandbox.Spec{})
		refused(t, err, sandbox.Invalid, "name")
	})
}
