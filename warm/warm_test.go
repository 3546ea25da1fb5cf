package warm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

// rest lets the filler do what there is to do now.
func rest() {
	time.Sleep(warm.Lull)
	synctest.Wait()
}

func TestKeepsWhatIsAskedForTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{})
		create(t, rt, image)
		rest()
		wantStats(t, rt, warm.Stats{Misses: 1})
		create(t, rt, image)
		rest()
		wantStats(t, rt, warm.Stats{Ready: 1, Misses: 2, Filled: 1})
		create(t, rt, image)
		rest()
		wantStats(t, rt, warm.Stats{Ready: 2, Hits: 1, Misses: 2, Filled: 3})

		for i := range 20 {
			create(t, rt, sandbox.Spec{Image: fmt.Sprint("other-", i)})
		}
		rest()
		wantStats(t, rt, warm.Stats{Ready: 2, Hits: 1, Misses: 22, Filled: 3})
	})
}

func TestRequestsOutsideTheWindowDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{After: 3, Window: hour})
		for range 10 {
			create(t, rt, image)
			time.Sleep(hour / 2)
		}
		wantStats(t, rt, warm.Stats{Misses: 10})
		create(t, rt, image)
		create(t, rt, image)
		rest()
		wantStats(t, rt, warm.Stats{Ready: 1, Misses: 12, Filled: 1})
	})
}

func TestGoesWhenNobodyAsksAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Window: hour, MaxAge: 100 * hour})
		var mine []sandbox.Sandbox
		for range 5 {
			mine = append(mine, create(t, rt, image))
			rest()
		}
		if s := rt.Stats(); s.Ready != 4 || len(b.ids(t)) != 9 {
			t.Fatalf("%d are ready, %d live", s.Ready, len(b.ids(t)))
		}
		time.Sleep(hour - time.Second)
		rest()
		if s := rt.Stats(); s.Ready != 4 {
			t.Errorf("%d are ready before the window has passed, want 4", s.Ready)
		}
		time.Sleep(2 * time.Second)
		rest()
		if s := rt.Stats(); s.Ready != 0 || len(s.Specs) != 0 || s.Dropped != 4 || len(b.ids(t)) != 5 {
			t.Errorf("%+v, %d live; want none ready and the 5 that were handed out", s, len(b.ids(t)))
		}
		for _, sb := range mine {
			info(t, sb)
		}
	})
}

func TestWhatBelongsToARequestIsGivenAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		rest()
		want := time.Now().Add(hour)
		spec := image
		spec.Env, spec.Labels, spec.Expires = map[string]string{"SECRET": "mine"}, map[string]string{"a": "1"}, want
		sb := create(t, rt, spec)
		if len(b.created()) != 1 {
			t.Fatalf("%d were made, want the ready one", len(b.created()))
		}
		i := info(t, sb)
		if !maps.Equal(i.Labels, spec.Labels) || !i.Expires.Equal(want) {
			t.Errorf("Info says %v, %v", i.Labels, i.Expires)
		}
		r, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"sh", "-c", "echo $SECRET"}})
		if err != nil || string(r.Stdout) != "mine\n" {
			t.Errorf("a command has %q, %v", r.Stdout, err)
		}
		if l := listed(t, rt)[sb.ID()]; !reflect.DeepEqual(l, i) {
			t.Errorf("List says %+v, Info %+v", l, i)
		}
		rest()
		for _, s := range b.created() {
			if s.Env != nil || s.Labels != nil || !s.Expires.IsZero() {
				t.Errorf("one was made ready with %+v", s)
			}
		}
		time.Sleep(hour + time.Second)
		if _, err := rt.Open(t.Context(), sb.ID()); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("Open after its time: %v", err)
		}
	})
}

// TestOnlyTheSameSpecMatches changes one field after the other.
func TestOnlyTheSameSpecMatches(t *testing.T) {
	base := sandbox.Spec{Image: "some", Limits: sandbox.Limits{PIDs: 100}, Require: []sandbox.Property{sandbox.KillTree}}
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{After: -1, Max: 1, Specs: []warm.Pin{{Spec: base}}})
		rest()
		for what, change := range map[string]func(*sandbox.Spec){
			"backend":        func(s *sandbox.Spec) { s.Backend = "memory" },
			"image":          func(s *sandbox.Spec) { s.Image = "other" },
			"workdir":        func(s *sandbox.Spec) { s.Workdir = "/tmp" },
			"user":           func(s *sandbox.Spec) { s.User = "nobody" },
			"limits":         func(s *sandbox.Spec) { s.Limits.PIDs = 101 },
			"mounts":         func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/a", Target: "/mnt"}} },
			"network":        func(s *sandbox.Spec) { s.Network = sandbox.NetworkOff },
			"read-only root": func(s *sandbox.Spec) { s.ReadOnlyRoot = true },
			"require":        func(s *sandbox.Spec) { s.Require = nil },
		} {
			spec := base
			change(&spec)
			before := rt.Stats()
			sb := create(t, rt, spec)
			if s := rt.Stats(); s.Hits != before.Hits || s.Misses != before.Misses+1 {
				t.Errorf("another %s: got a ready one", what)
			}
			if i := info(t, sb); i.Wanted != spec.Image {
				t.Errorf("another %s: Wanted is %q", what, i.Wanted)
			}
		}
		base.Mounts, base.Explicit = []sandbox.Mount{}, []string{}
		create(t, rt, base)
		if s := rt.Stats(); s.Hits != 1 {
			t.Errorf("the same Spec got none")
		}
	})
}

// TestKeysDiffer sets each field of a Spec, those that it may get later
// included.
func TestKeysDiffer(t *testing.T) {
	seen := map[string]string{warm.Key(sandbox.Spec{}): "none"}
	var set func(what string, spec *sandbox.Spec, v reflect.Value)
	set = func(what string, spec *sandbox.Spec, v reflect.Value) {
		switch {
		case v.Type() == reflect.TypeFor[time.Time]():
			v.Set(reflect.ValueOf(time.Unix(1, 0)))
		case v.Kind() == reflect.String:
			v.SetString("x")
		case v.Kind() == reflect.Bool:
			v.SetBool(true)
		case v.CanInt():
			v.SetInt(7)
		case v.CanFloat():
			v.SetFloat(0.5)
		case v.Kind() == reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"k": "v"}))
		case v.Kind() == reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			seen1(t, seen, what, *spec)
			set(what+"[0]", spec, v.Index(0))
			return
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				zero := reflect.New(v.Field(i).Type()).Elem()
				set(what+"."+v.Type().Field(i).Name, spec, v.Field(i))
				v.Field(i).Set(zero)
			}
			return
		default:
			t.Fatalf("%s has the kind %s, which this test does not know", what, v.Kind())
		}
		seen1(t, seen, what, *spec)
	}
	var spec sandbox.Spec
	set("Spec", &spec, reflect.ValueOf(&spec).Elem())
	for _, s := range []sandbox.Spec{
		{Workdir: "/a\xff"}, {Workdir: "/a\xfe"}, {Workdir: "/a\ufffd"}, {Workdir: `/a", User:"b`}, {Workdir: "/a", User: "b"},
		{Mounts: []sandbox.Mount{{Source: "/a"}, {Source: "/b"}}}, {Mounts: []sandbox.Mount{{Source: "/b"}, {Source: "/a"}}},
		{Require: []sandbox.Property{"a", "b"}}, {Require: []sandbox.Property{"a b"}},
	} {
		seen1(t, seen, fmt.Sprintf("%+v", s), s)
	}
}

func seen1(t *testing.T, seen map[string]string, what string, spec sandbox.Spec) {
	t.Helper()
	k := warm.Key(spec)
	if other, ok := seen[k]; ok {
		t.Errorf("%s and %s have one key: %s", what, other, k)
	}
	seen[k] = what
}

func TestHiddenUntilHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 3}}})
		rest()
		hidden := b.ids(t)
		if len(hidden) != 3 || len(listed(t, rt)) != 0 {
			t.Fatalf("%d live, List shows %v", len(hidden), listed(t, rt))
		}
		for id := range hidden {
			if _, err := rt.Open(t.Context(), id); !errors.Is(err, sandbox.NotExist) {
				t.Errorf("Open of a ready one: %v, want NotExist", err)
			}
		}
		time.Sleep(time.Minute)
		before := time.Now()
		sb := create(t, rt, image)
		if !hidden[sb.ID()] {
			t.Fatalf("%s was not ready", sb.ID())
		}
		i := info(t, sb)
		if i.Created.Before(before) || i.ID != sb.ID() {
			t.Errorf("%s was created at %v, want %v", i.ID, i.Created, before)
		}
		o, err := rt.Open(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		if all := listed(t, rt); len(all) != 1 || !reflect.DeepEqual(all[sb.ID()], i) || !reflect.DeepEqual(info(t, o), i) {
			t.Errorf("Info says %+v, Open %+v, List %+v", i, info(t, o), all)
		}
		if err := o.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Info(t.Context()); !errors.Is(err, sandbox.NotExist) || rt.Known() != 0 {
			t.Errorf("Info of what was removed: %v; %d are remembered", err, rt.Known())
		}
	})
}

// TestHiddenWhileItIsMade: the backend lists a sandbox before its Create
// returns.
func TestHiddenWhileItIsMade(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend(t)
			old, err := b.Create(t.Context(), image) // before there was a pool
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			rt := newRuntime(t, b, warm.Config{Max: 1, Specs: []warm.Pin{{Spec: image}}})
			rest()
			other := create(t, rt, sandbox.Spec{Image: "other"})
			made, on := make(chan sandbox.ID), make(chan struct{})
			b.set(func() {
				b.made = func(ctx context.Context, sb sandbox.Sandbox) error {
					made <- sb.ID()
					<-on
					if fails {
						return errors.New("it failed after all")
					}
					return nil
				}
			})
			mine := create(t, rt, image) // the ready one, so that another is made
			id := <-made
			b.set(func() { b.made = nil })
			var all map[sandbox.ID]sandbox.Info
			var opened error
			var wg sync.WaitGroup
			wg.Go(func() { all = listed(t, rt) })
			wg.Go(func() { _, opened = rt.Open(t.Context(), id) })
			rest()
			if all != nil || opened != nil {
				t.Errorf("List shows %v, Open says %v, before it is known whose %s is", all, opened, id)
			}
			for _, sb := range []sandbox.Sandbox{old, other, mine} {
				if _, err := rt.Open(t.Context(), sb.ID()); err != nil {
					t.Errorf("Open of another meanwhile: %v", err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if _, err := rt.Open(ctx, id); !errors.Is(err, context.Canceled) {
				t.Errorf("Open that nobody waits for: %v", err)
			}
			close(on)
			wg.Wait()
			if !errors.Is(opened, sandbox.NotExist) || len(all) != 3 || all[id].ID != "" {
				t.Errorf("Open says %v, List shows %v; want the three others", opened, all)
			}
		})
	}
}

// TestListDoesNotShowWhatItReadBefore: a List may have read of a ready sandbox
// that is gone when it comes to it.
func TestListDoesNotShowWhatItReadBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{MaxAge: hour, Specs: []warm.Pin{{Spec: image, N: 3}}})
		mine := create(t, rt, sandbox.Spec{Image: "other"}).ID()
		rest()
		for i, err := range rt.List(t.Context()) {
			if err != nil || i.ID != mine {
				t.Errorf("List yields %s, %v; want %s alone", i.ID, err, mine)
			}
			time.Sleep(hour + time.Minute) // the ready ones are replaced
			if s := rt.Stats(); s.Dropped != 3 {
				t.Errorf("%d were removed, want 3", s.Dropped)
			}
		}
		if len(listed(t, rt)) != 1 {
			t.Errorf("List shows %v", listed(t, rt))
		}
	})
}

func TestHandedOutOnce(t *testing.T) {
	const n = 1000
	b := newBackend(t)
	rt := newRuntime(t, b, warm.Config{Max: 50, Specs: []warm.Pin{{Spec: image, N: 50}}})
	ids := make([]sandbox.ID, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			spec := image
			if i%2 == 0 {
				spec.Labels = map[string]string{"n": fmt.Sprint(i)}
			}
			sb, err := rt.Create(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = sb.ID()
		})
	}
	for rt.Stats().Ready < 50 {
		time.Sleep(time.Millisecond)
	}
	close(start)
	wg.Wait()
	all := listed(t, rt)
	seen := make(map[sandbox.ID]bool)
	for i, id := range ids {
		if seen[id] {
			t.Errorf("%s was handed out twice", id)
		}
		seen[id] = true
		if l := all[id]; i%2 == 0 && l.Labels["n"] != fmt.Sprint(i) || i%2 == 1 && len(l.Labels) > 0 {
			t.Errorf("the labels of %d are %v", i, l.Labels)
		}
	}
	if len(all) != n {
		t.Errorf("List shows %d, want %d", len(all), n)
	}
	if s := rt.Stats(); s.Hits+s.Misses != n || s.Hits < 50 {
		t.Errorf("%d hits and %d misses, want %d together and at least 50 hits", s.Hits, s.Misses, n)
	}
}

func TestDiedWhileReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 3}}})
		rest()
		first := b.ids(t)
		var killed []sandbox.ID
		for id := range first {
			if len(killed) < 2 {
				b.kill(t, id)
				killed = append(killed, id)
			}
		}
		sb := create(t, rt, image)
		if !first[sb.ID()] || slices.Contains(killed, sb.ID()) {
			t.Errorf("got %s, want the one of %v that lives", sb.ID(), first)
		}
		time.Sleep(warm.CheckEvery + time.Second)
		wantStats(t, rt, warm.Stats{Ready: 3, Hits: 1, Filled: 6, Dropped: 2})

		for id := range b.ids(t) {
			if id != sb.ID() {
				b.kill(t, id)
			}
		}
		if r, err := sandbox.Capture(t.Context(), create(t, rt, image), 100, sandbox.Cmd{Args: []string{"echo", "x"}}); err != nil || string(r.Stdout) != "x\n" {
			t.Errorf("with all of them dead: %q, %v", r.Stdout, err)
		}
		rest()
		wantStats(t, rt, warm.Stats{Ready: 3, Hits: 1, Misses: 1, Filled: 9, Dropped: 5})
	})
}

// TestSilentOnesAreNotHandedOut: the backend still has it, but it does not
// answer.
func TestSilentOnesAreNotHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 3}}})
		rest()
		var silent []sandbox.ID
		b.set(func() {
			b.stat = func(_ context.Context, id sandbox.ID) error {
				if b.mu.Lock(); len(silent) < 2 {
					silent = append(silent, id)
				}
				defer b.mu.Unlock()
				if slices.Contains(silent, id) {
					return sandbox.Errorf(sandbox.Unavailable, "", "the connection was lost")
				}
				return nil
			}
		})
		sb := create(t, rt, image)
		rest()
		wantStats(t, rt, warm.Stats{Ready: 3, Hits: 1, Filled: 6, Dropped: 2})
		if slices.Contains(silent, sb.ID()) || len(silent) != 2 {
			t.Errorf("got %s, while %v are silent", sb.ID(), silent)
		}
		for _, id := range silent {
			if b.ids(t)[id] {
				t.Errorf("%s is still there", id)
			}
		}
	})
}

func TestTheDeadAreFoundAndReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{MaxAge: hour, Specs: []warm.Pin{{Spec: image, N: 3}}})
		rest()
		for id := range b.ids(t) {
			b.kill(t, id)
		}
		time.Sleep(warm.CheckEvery + time.Second)
		rest()
		wantStats(t, rt, warm.Stats{Ready: 3, Filled: 6, Dropped: 3})
		if n := len(b.ids(t)); n != 3 || rt.Held() != 3 {
			t.Errorf("%d live, %d are hidden", n, rt.Held())
		}
		// One of which nothing can be said is not dead.
		b.set(func() {
			b.open = func(context.Context, sandbox.ID) error {
				return sandbox.Errorf(sandbox.Unavailable, "", "not now")
			}
		})
		time.Sleep(3 * warm.CheckEvery)
		wantStats(t, rt, warm.Stats{Ready: 3, Filled: 6, Dropped: 3})
	})
}

func TestOldOnesAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{MaxAge: hour, Specs: []warm.Pin{{Spec: image, N: 2}}})
		rest()
		old := b.ids(t)
		time.Sleep(hour - time.Second)
		if !maps.Equal(b.ids(t), old) {
			t.Errorf("they were replaced before their time")
		}
		time.Sleep(2 * time.Second)
		rest()
		wantStats(t, rt, warm.Stats{Ready: 2, Filled: 4, Dropped: 2})
		for id := range b.ids(t) {
			if old[id] {
				t.Errorf("%s is still there", id)
			}
		}
	})
}

// TestOldOnesAreNotHandedOut, not even when the filler has no time for them.
func TestOldOnesAreNotHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		on := make(chan struct{})
		b.create = func(_ context.Context, s sandbox.Spec) error {
			if s.Image == "stuck" {
				<-on
			}
			return nil
		}
		rt := newRuntime(t, b, warm.Config{MaxAge: hour, Specs: []warm.Pin{{Spec: image, N: 2}, {Spec: sandbox.Spec{Image: "stuck"}}}})
		rest()
		old := b.ids(t)
		time.Sleep(hour)
		if sb := create(t, rt, image); old[sb.ID()] {
			t.Errorf("%s is too old", sb.ID())
		}
		if s := rt.Stats(); s.Ready != 1 || s.Misses != 1 {
			t.Errorf("%+v", s)
		}
		close(on)
	})
}

// TestWhoHasNoneComesFirst, then who is always to have some.
func TestWhoHasNoneComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Max: 6, Specs: []warm.Pin{{Spec: image, N: 3}, {Spec: sandbox.Spec{Image: "other"}}}})
		rest()
		var made []string
		for _, s := range b.created() {
			made = append(made, s.Image)
		}
		if want := []string{"some", "other", "some", "some"}; !slices.Equal(made, want) {
			t.Errorf("%v were made, want %v", made, want)
		}
		if s := rt.Stats(); s.Ready != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// refuse refuses every change with err.
func refuse(err error) func(context.Context, sandbox.ID, sandbox.Change) error {
	return func(context.Context, sandbox.ID, sandbox.Change) error { return err }
}

func TestFailedUpdateMakesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		b.set(func() { b.update = refuse(sandbox.Errorf(sandbox.Internal, "", "it broke")) })
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		rest()
		ready := b.ids(t)
		spec := image
		spec.Labels = map[string]string{"a": "1"}
		sb := create(t, rt, spec)
		if ready[sb.ID()] || info(t, sb).Labels["a"] != "1" {
			t.Errorf("got %s with %v", sb.ID(), info(t, sb).Labels)
		}
		rest()
		wantStats(t, rt, warm.Stats{Ready: 1, Misses: 1, Filled: 2, Dropped: 1})
		for id := range b.ids(t) {
			if ready[id] {
				t.Errorf("%s, which could not be changed, is still there", id)
			}
		}
	})
}

// TestUnsupportedUpdateKeepsTheReadyOne: a backend that answers Unsupported is like one that is
// no Updater. What is ready stays so, for those who want no change.
func TestUnsupportedUpdateKeepsTheReadyOne(t *testing.T) {
	for _, bare := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBackend(t)
			b.bare = bare
			var tried atomic.Int32
			b.set(func() {
				b.update = func(context.Context, sandbox.ID, sandbox.Change) error {
					tried.Add(1)
					return sandbox.Errorf(sandbox.Unsupported, "", "not here")
				}
			})
			rt := newRuntime(t, b, warm.Config{Max: 2, Specs: []warm.Pin{{Spec: image}}})
			rest()
			ready := b.ids(t)
			changed := image
			changed.Labels = map[string]string{"a": "1"}
			for range 5 {
				if sb := create(t, rt, changed); ready[sb.ID()] || info(t, sb).Labels["a"] != "1" {
					t.Errorf("got %s with %v", sb.ID(), info(t, sb).Labels)
				}
			}
			rest()
			wantStats(t, rt, warm.Stats{Ready: 1, Misses: 5, Filled: 1})
			if sb := create(t, rt, image); !ready[sb.ID()] {
				t.Errorf("got %s, want the ready one", sb.ID())
			}
			if n := tried.Load(); bare && n != 0 || !bare && n != 1 {
				t.Errorf("Update was tried %d times", n)
			}
			// Requests that no ready one would do for are no reason to keep any.
			for range 5 {
				create(t, rt, sandbox.Spec{Image: "other", Labels: changed.Labels})
			}
			rest()
			if s := rt.Stats(); bare && len(s.Specs) != 1 {
				t.Errorf("%+v", s.Specs)
			}
		})
	}
}

func TestWrongChangeCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		rest()
		for field, change := range map[string]func(*sandbox.Spec){
			"env":     func(s *sandbox.Spec) { s.Env = map[string]string{"A=B": "x"} },
			"labels":  func(s *sandbox.Spec) { s.Labels = map[string]string{"": "x"} },
			"expires": func(s *sandbox.Spec) { s.Expires = time.Now() },
		} {
			spec := image
			change(&spec)
			_, err := rt.Create(t.Context(), spec)
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != field {
				t.Errorf("a wrong %s: %v", field, err)
			}
		}
		rest()
		wantStats(t, rt, warm.Stats{Ready: 1, Misses: 3, Filled: 1})
	})
}

func TestWhatCannotBeMadeIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{After: 1})
		for range 5 {
			if _, err := rt.Create(t.Context(), sandbox.Spec{Network: sandbox.NetworkOn}); !errors.Is(err, sandbox.Unsupported) {
				t.Errorf("Create: %v", err)
			}
		}
		rest()
		if s := rt.Stats(); len(s.Specs) != 0 || s.Filled+s.Failed != 0 || s.Misses != 5 {
			t.Errorf("%+v", s)
		}
	})
}

func TestMountsAreKeptOnlyIfPinned(t *testing.T) {
	spec := sandbox.Spec{Mounts: []sandbox.Mount{{Source: "/srv/a", Target: "/mnt"}}}
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{After: 1})
		for range 5 {
			create(t, rt, spec)
		}
		rest()
		wantStats(t, rt, warm.Stats{Misses: 5})
		if n := rt.Specs(); n != 0 {
			t.Errorf("%d are remembered in vain", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{After: 1, Specs: []warm.Pin{{Spec: spec}}})
		for range 5 {
			rest()
			create(t, rt, spec)
		}
		rest()
		wantStats(t, rt, warm.Stats{Ready: 1, Hits: 5, Filled: 6})
	})
}

// TestSharesByDemand: what is asked for most gets most, and who has one keeps
// it as long as no other is asked for much more.
func TestSharesByDemand(t *testing.T) {
	a, b, c := sandbox.Spec{Image: "a"}, sandbox.Spec{Image: "b"}, sandbox.Spec{Image: "c"}
	ready := func(rt *warm.Runtime) map[string]int {
		m := make(map[string]int)
		for _, s := range rt.Stats().Specs {
			m[s.Spec.Image] = s.Ready
		}
		return m
	}
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{Max: 4, MaxAge: 100 * hour, Window: hour})
		ask := func(s sandbox.Spec, n int) {
			for range n {
				create(t, rt, s)
				rest()
			}
		}
		ask(a, 9)
		if got := ready(rt); got["a"] != 4 {
			t.Fatalf("ready are %v, want four of a", got)
		}
		ask(b, 3)
		if got := ready(rt); got["a"] < 3 || got["b"] != 4-got["a"] {
			t.Errorf("a was asked for 9 times and b 3 times; ready are %v", got)
		}
		dropped := rt.Stats().Dropped
		for range 10 { // in turns
			ask(a, 1)
			ask(b, 1)
		}
		if s := rt.Stats(); s.Dropped-dropped > 2 {
			t.Errorf("%d ready ones were removed though both were asked for all the time", s.Dropped-dropped)
		}
		time.Sleep(hour / 2)
		ask(c, 30)
		if got := ready(rt); got["a"] < 1 || got["b"] < 1 || got["c"] < 1 {
			t.Errorf("all are asked for; ready are %v", got)
		}
		time.Sleep(hour/2 + time.Second)
		rest()
		if got := ready(rt); got["c"] != 4 || got["a"]+got["b"] != 0 {
			t.Errorf("nobody asks for a and b any more; ready are %v", got)
		}
		if n := rt.Stats().Ready; n > 4 {
			t.Errorf("%d are ready, more than Max", n)
		}
	})
}

// TestManyInTurnsAreNotTurnedOver: when more Specs are asked for in turns than
// there is room for, some have theirs, and nothing is made in vain.
func TestManyInTurnsAreNotTurnedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{Max: 4, MaxAge: 100 * hour, Window: 100 * hour})
		for range 20 {
			for i := range 10 {
				create(t, rt, sandbox.Spec{Image: fmt.Sprint("image-", i)})
				rest()
			}
		}
		s := rt.Stats()
		if s.Ready != 4 || s.Dropped > s.Filled/10 || s.Hits < 50 {
			t.Errorf("%d ready, %d hits, %d made ready, %d in vain", s.Ready, s.Hits, s.Filled, s.Dropped)
		}
	})
}

func TestPinnedAreKeptWhateverIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{Max: 3, Specs: []warm.Pin{{Spec: image}, {Spec: image}}})
		for range 20 {
			create(t, rt, sandbox.Spec{Image: "loud"})
			rest()
		}
		s := rt.Stats()
		if s.Ready != 3 || s.Specs[0].Spec.Image != "some" || s.Specs[0].Pinned != 2 || s.Specs[0].Ready != 2 || s.Specs[1].Ready != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(24 * hour)
		rest()
		if s := rt.Stats(); s.Ready != 2 || s.Specs[0].Ready != 2 {
			t.Errorf("a day later: %+v", s)
		}
	})
}

func TestFewSpecsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{Window: 1000 * hour, MaxAge: 1000 * hour})
		for range 3 {
			create(t, rt, image)
		}
		rest()
		for i := range 3 * warm.MaxSpecs {
			create(t, rt, sandbox.Spec{Image: fmt.Sprint("once-", i)})
		}
		rest()
		if n := rt.Specs(); n != warm.MaxSpecs {
			t.Errorf("%d are remembered, want %d", n, warm.MaxSpecs)
		}
		if s := rt.Stats(); s.Ready != 2 || s.Specs[0].Spec.Image != "some" {
			t.Errorf("the one that is kept was forgotten: %+v", s.Specs[0])
		}
	})
}

func TestBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		broken := true
		b.set(func() {
			b.create = func(_ context.Context, s sandbox.Spec) error {
				mu.Lock()
				defer mu.Unlock()
				if s.Image != "broken" {
					return nil
				}
				at = append(at, time.Since(start))
				if broken {
					return errors.New("it is broken")
				}
				return nil
			}
		})
		rt := newRuntime(t, b, warm.Config{MaxAge: 100 * hour, Specs: []warm.Pin{{Spec: sandbox.Spec{Image: "broken"}}, {Spec: image}}})
		time.Sleep(5 * time.Minute)
		mu.Lock()
		for i := range at[:len(at)-1] {
			if want := min(warm.LastPause, warm.FirstPause<<i); at[i+1]-at[i] != want {
				t.Errorf("after failure %d it waited %v, want %v", i+1, at[i+1]-at[i], want)
			}
		}
		n := len(at)
		broken = false
		mu.Unlock()
		if n < 8 || n > 12 {
			t.Errorf("%d attempts in five minutes", n)
		}
		if s := rt.Stats(); s.Ready != 1 || s.Failed != int64(n) || !strings.Contains(s.Stalled, "it is broken") {
			t.Errorf("%+v; want the other one ready", s)
		}
		time.Sleep(warm.LastPause)
		rest()
		if s := rt.Stats(); s.Ready != 2 || s.Stalled != "" {
			t.Errorf("mended: %+v", s)
		}
		create(t, rt, sandbox.Spec{Image: "broken"})
		rest()
		if s := rt.Stats(); s.Ready != 2 {
			t.Errorf("after a success it still waits: %+v", s)
		}
		mu.Lock()
		n, broken = len(at), true
		mu.Unlock()
		create(t, rt, sandbox.Spec{Image: "broken"})
		time.Sleep(warm.FirstPause)
		rest()
		mu.Lock()
		defer mu.Unlock()
		if len(at) != n+2 || at[n+1]-at[n] != warm.FirstPause {
			t.Errorf("after a success it waits as long as before: %v", at[n:])
		}
	})
}

func TestNoRoomNoFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		var asked atomic.Int32
		var full atomic.Bool
		full.Store(true)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 2}}, Room: func(context.Context) error {
			asked.Add(1)
			if full.Load() {
				return errors.New("the machine is full")
			}
			return nil
		}})
		time.Sleep(10*warm.RoomPause + time.Second)
		create(t, rt, image)
		if n := asked.Load(); n != 11 {
			t.Errorf("it asked %d times for room, want 11", n)
		}
		if s := rt.Stats(); s.Filled != 0 || s.Stalled != "the machine is full" {
			t.Errorf("%+v", s)
		}
		full.Store(false)
		time.Sleep(warm.RoomPause)
		rest()
		if s := rt.Stats(); s.Ready != 2 || s.Stalled != "" {
			t.Errorf("with room: %+v", s)
		}
	})
}

func TestRequestsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		var made []string
		var mu sync.Mutex
		slow := sandbox.Spec{Image: "slow"}
		b.set(func() {
			b.create = func(_ context.Context, s sandbox.Spec) error {
				mu.Lock()
				made = append(made, s.Image)
				mu.Unlock()
				if s.Image == "slow" {
					time.Sleep(warm.Polite / 4)
				}
				return nil
			}
		})
		var wg sync.WaitGroup
		rt := newRuntime(t, b, warm.Config{After: -1, Specs: []warm.Pin{{Spec: image, N: 4}}})
		rest()
		wg.Go(func() { create(t, rt, slow) })
		rest()
		for range 4 {
			create(t, rt, image)
		}
		rest()
		if s := rt.Stats(); s.Ready != 0 || s.Hits != 4 {
			t.Errorf("%+v; want none made while a request waits", s)
		}
		wg.Wait()
		rest()
		if s := rt.Stats(); s.Ready != 4 {
			t.Errorf("%+v; want them made as soon as nobody waits", s)
		}

		// Where somebody always waits, one is made now and then.
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					create(t, rt, slow)
				}
			})
			time.Sleep(warm.Polite / 8)
		}
		for range 4 {
			create(t, rt, image)
		}
		before := rt.Stats().Filled
		time.Sleep(warm.Polite + warm.Polite/2)
		n := rt.Stats().Filled - before
		cancel()
		wg.Wait()
		if n != 1 && n != 2 {
			t.Errorf("%d were made in a second and a half, want one a second", n)
		}
	})
}

// TestRequestsGoFirstEvenWhileItAsksForRoom: the question takes its time.
func TestRequestsGoFirstEvenWhileItAsksForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		b.create = func(_ context.Context, s sandbox.Spec) error {
			if s.Image == "slow" {
				time.Sleep(warm.Polite / 2)
			}
			return nil
		}
		rt := newRuntime(t, b, warm.Config{After: -1, Specs: []warm.Pin{{Spec: image}}, Room: func(context.Context) error {
			time.Sleep(warm.Polite / 4)
			return nil
		}})
		synctest.Wait() // it is asking
		create(t, rt, sandbox.Spec{Image: "slow"})
		if n := len(b.created()); n != 1 {
			t.Errorf("%d were made while a request waited", n)
		}
		time.Sleep(warm.Polite)
		if s := rt.Stats(); s.Ready != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestForgottenWhileHandedOut: nobody asks for its Spec any more when it comes
// back.
func TestForgottenWhileHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{After: 1, Max: 1, Window: time.Minute})
		mine := create(t, rt, image)
		rest()
		time.Sleep(time.Minute - time.Second)
		b.set(func() {
			b.open = func(ctx context.Context, _ sandbox.ID) error { <-ctx.Done(); return ctx.Err() }
		})
		ctx, cancel := context.WithTimeout(t.Context(), warm.HandTime-1)
		defer cancel()
		if _, err := rt.Create(ctx, image); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Create: %v", err)
		}
		rest()
		if ids := b.ids(t); len(ids) != 1 || !ids[mine.ID()] || rt.Held() != 0 {
			t.Errorf("%v live, %d are hidden", ids, rt.Held())
		}
	})
}

// TestLeavesTheMachineToWhoGotOne: the next is made a moment later, unless
// there are few left.
func TestLeavesTheMachineToWhoGotOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRuntime(t, newBackend(t), warm.Config{Specs: []warm.Pin{{Spec: image, N: 4}}})
		rest()
		for _, want := range []int{3, 2, 2} { // the third leaves one, and so has another made
			create(t, rt, image)
			synctest.Wait()
			if n := rt.Stats().Ready; n != want {
				t.Errorf("%d are ready, want %d", n, want)
			}
		}
		time.Sleep(warm.Lull - 1)
		synctest.Wait()
		if n := rt.Stats().Ready; n != 2 {
			t.Errorf("%d are ready, want 2", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := rt.Stats().Ready; n != 4 {
			t.Errorf("%d are ready, want 4", n)
		}
	})
}

func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		var now, most atomic.Int32
		b.set(func() {
			b.create = func(context.Context, sandbox.Spec) error {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				return nil
			}
		})
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 10}}})
		time.Sleep(11 * time.Second)
		if n := most.Load(); n != 1 || rt.Stats().Ready != 10 {
			t.Errorf("%d were made at a time; %d are ready", n, rt.Stats().Ready)
		}
	})
}

func TestCloseRemovesWhatIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 4}}})
		rest()
		mine := create(t, rt, image).ID()
		rest()
		ready := b.ids(t)
		delete(ready, mine)
		if err := rt.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := rt.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
		if len(b.removed) != len(ready) || slices.Contains(b.removed, mine) {
			t.Errorf("Close removed %v, want %v", b.removed, ready)
		}
		wantStats(t, rt, warm.Stats{Hits: 1, Filled: 5, Dropped: 4})
		_, err := b.Runtime.Open(t.Context(), mine)
		if !errors.Is(err, sandbox.Closed) {
			t.Errorf("the Runtime below says %v, want that it is closed", err)
		}
		if _, err := rt.Create(t.Context(), image); !errors.Is(err, sandbox.Closed) {
			t.Errorf("Create: %v", err)
		}
	})
}

func TestCloseSaysWhatItCouldNotRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt, err := warm.New(b, warm.Config{Room: room, Specs: []warm.Pin{{Spec: image}}})
		if err != nil {
			t.Fatal(err)
		}
		rest()
		var id sandbox.ID
		for id = range b.ids(t) {
		}
		b.set(func() { b.remove = func(context.Context, sandbox.ID) error { return errors.New("stuck") } })
		err = rt.Close()
		var e *sandbox.Error
		if !errors.As(err, &e) || e.ID != id || !strings.Contains(err.Error(), "stuck") {
			t.Errorf("Close: %v, want the id %s and why", err, id)
		}
	})
}

func TestCloseWhileFilling(t *testing.T) {
	for _, deaf := range []bool{false, true} { // whether the backend looks at its context
		synctest.Test(t, func(t *testing.T) {
			b := newBackend(t)
			closing := make(chan struct{})
			b.set(func() {
				b.made = func(ctx context.Context, _ sandbox.Sandbox) error {
					<-ctx.Done()
					<-closing
					if deaf {
						return nil
					}
					return ctx.Err()
				}
			})
			var left map[sandbox.ID]bool
			rt := newRuntime(t, &backend{Runtime: &peek{b, func() { left = b.ids(t) }}}, warm.Config{Specs: []warm.Pin{{Spec: image, N: 3}}})
			rest()
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := rt.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			rest()
			if left != nil {
				t.Error("the Runtime below was closed while one was being made")
			}
			close(closing)
			wg.Wait()
			if len(left) != 0 {
				t.Errorf("%v are left behind", left)
			}
			if s := rt.Stats(); s.Failed != 0 || s.Ready != 0 || s.Filled != s.Dropped {
				t.Errorf("%+v", s)
			}
		})
	}
}

// peek looks when it is closed.
type peek struct {
	*backend
	look func()
}

func (p *peek) Close() error {
	p.look()
	return p.backend.Close()
}

func TestCloseWaitsForWhatIsBeingHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		on := make(chan struct{})
		b.set(func() { b.update = func(context.Context, sandbox.ID, sandbox.Change) error { <-on; return nil } })
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		rest()
		spec := image
		spec.Labels = map[string]string{"a": "1"}
		var got, closed error
		var wg sync.WaitGroup
		wg.Go(func() { _, got = rt.Create(t.Context(), spec) })
		rest()
		wg.Go(func() { closed = rt.Close() })
		rest()
		close(on)
		wg.Wait()
		if got != nil || closed != nil {
			t.Errorf("Create: %v, Close: %v", got, closed)
		}
		wantStats(t, rt, warm.Stats{Hits: 1, Filled: 1})
	})
}

func TestCancelledCreateTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 2}}})
		rest()
		ready := b.ids(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := rt.Create(ctx, image); !errors.Is(err, context.Canceled) {
			t.Errorf("Create: %v", err)
		}
		// While it looks whether the ready one lives.
		b.set(func() { b.open = func(ctx context.Context, _ sandbox.ID) error { <-ctx.Done(); return ctx.Err() } })
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := rt.Create(ctx, image); !errors.Is(err, context.Canceled) {
			t.Errorf("Create: %v", err)
		}
		b.set(func() { b.open = nil })
		rest()
		wantStats(t, rt, warm.Stats{Ready: 2, Filled: 2})
		if !maps.Equal(b.ids(t), ready) {
			t.Errorf("%v live, want %v", b.ids(t), ready)
		}
		// While it changes one, which nobody else may get then.
		b.set(func() {
			b.update = func(ctx context.Context, _ sandbox.ID, _ sandbox.Change) error { <-ctx.Done(); return ctx.Err() }
		})
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		spec := image
		spec.Env = map[string]string{"SECRET": "mine"}
		if _, err := rt.Create(ctx, spec); !errors.Is(err, context.Canceled) {
			t.Errorf("Create: %v", err)
		}
		rest()
		wantStats(t, rt, warm.Stats{Ready: 2, Filled: 3, Dropped: 1})
		if len(listed(t, rt)) != 0 || len(b.ids(t)) != 2 || maps.Equal(b.ids(t), ready) {
			t.Errorf("%v live, were %v", b.ids(t), ready)
		}
	})
}

// TestHangingBackendHoldsNobodyUpForLong: what is ready but does not answer is
// left alone after a moment.
func TestHangingBackendHoldsNobodyUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image, N: 4}}})
		rest()
		b.set(func() { b.open = func(ctx context.Context, _ sandbox.ID) error { <-ctx.Done(); return ctx.Err() } })
		start := time.Now()
		create(t, rt, image)
		if d := time.Since(start); d != warm.HandTime {
			t.Errorf("it took %v, want %v", d, warm.HandTime)
		}
		b.set(func() { b.open = nil })
	})
}

func TestRemovalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{MaxAge: hour, Specs: []warm.Pin{{Spec: image}}})
		rest()
		var tries atomic.Int32
		b.set(func() {
			b.remove = func(context.Context, sandbox.ID) error {
				if tries.Add(1) < 4 {
					return errors.New("busy")
				}
				return nil
			}
		})
		time.Sleep(hour + time.Second)
		if len(listed(t, rt)) != 0 || rt.Held() != 2 || rt.Stats().Ready != 1 {
			t.Errorf("List shows %v; %d are hidden, %d ready", listed(t, rt), rt.Held(), rt.Stats().Ready)
		}
		time.Sleep(time.Minute)
		if n := tries.Load(); n != 4 || rt.Held() != 1 || len(b.ids(t)) != 1 {
			t.Errorf("it was tried %d times; %d are hidden, %d live", n, rt.Held(), len(b.ids(t)))
		}
	})
}

// TestForgetsWhatIsGone: sandboxes end in ways that it does not hear of.
func TestForgetsWhatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		mine := create(t, rt, image)
		for range 3 * warm.MinSweep {
			b.kill(t, create(t, rt, sandbox.Spec{Image: "other"}).ID())
		}
		rest()
		if n := rt.Known(); n > warm.MinSweep {
			t.Errorf("%d are remembered, though %d live", n, len(listed(t, rt)))
		}
		for range 3 * warm.MinSweep {
			create(t, rt, sandbox.Spec{Image: "other"})
		}
		rest()
		if n := rt.Known(); n != 3*warm.MinSweep+1 {
			t.Errorf("%d are remembered, want all that live", n)
		}
		b.set(func() {
			if b.lists > 10 {
				t.Errorf("it listed all of them %d times", b.lists)
			}
		})
		info(t, mine)
	})
}

func TestShowsWhatWasThereBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		old, err := b.Create(t.Context(), image)
		if err != nil {
			t.Fatal(err)
		}
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		rest()
		if all := listed(t, rt); len(all) != 1 || all[old.ID()].ID == "" {
			t.Errorf("List shows %v", all)
		}
		if _, err := rt.Open(t.Context(), old.ID()); err != nil {
			t.Errorf("Open: %v", err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	pin := func(s sandbox.Spec, n int) []warm.Pin { return []warm.Pin{{Spec: s, N: n}} }
	for _, c := range []struct {
		field string
		cfg   warm.Config
	}{
		{"max", warm.Config{Max: -1}},
		{"max", warm.Config{Max: 2, Specs: pin(image, 3)}},
		{"window", warm.Config{Window: -1}},
		{"max_age", warm.Config{MaxAge: -1}},
		{"specs", warm.Config{Specs: pin(image, -1)}},
		{"specs", warm.Config{Specs: pin(sandbox.Spec{Env: map[string]string{"A": "b"}}, 1)}},
		{"specs", warm.Config{Specs: pin(sandbox.Spec{Labels: map[string]string{"A": "b"}}, 1)}},
		{"specs", warm.Config{Specs: pin(sandbox.Spec{Expires: time.Now().Add(hour)}, 1)}},
		{"specs", warm.Config{Specs: pin(sandbox.Spec{Name: "mine"}, 1)}},
		{"specs", warm.Config{Specs: pin(sandbox.Spec{ID: "abcdefgh"}, 1)}},
		{"workdir", warm.Config{Specs: pin(sandbox.Spec{Workdir: "relative"}, 1)}},
	} {
		b := newBackend(t)
		_, err := warm.New(b, c.cfg)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != c.field || e.Msg == "" {
			t.Errorf("%+v: %v, want Invalid with the field %s", c.cfg, err, c.field)
		}
		if _, err := b.Create(t.Context(), image); err != nil {
			t.Errorf("it closed what it was given: %v", err)
		}
	}
	rt := newRuntime(t, newBackend(t), warm.Config{Specs: pin(image, 10)})
	for rt.Stats().Ready < 10 {
		time.Sleep(time.Millisecond)
	}
}

// TestNamedAreNotKept: there cannot be two sandboxes of one name.
func TestNamedAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		rt := newRuntime(t, named{newRuntime(t, b, warm.Config{After: -1})}.in(t), warm.Config{After: 1})
		for range 3 {
			create(t, rt, sandbox.Spec{Name: "mine"})
			create(t, rt, sandbox.Spec{ID: "abcdefgh"})
		}
		rest()
		if s := rt.Stats(); s.Filled+s.Failed != 0 || len(s.Specs) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// named makes sandboxes with a name or an id, and forgets it.
type named struct{ sandbox.Runtime }

func (n named) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	spec.Name, spec.ID = "", ""
	return n.Runtime.Create(ctx, spec)
}

func (n named) in(*testing.T) *backend {
	return &backend{Runtime: n}
}

// TestAbilitiesOfWhatHasNone: a sandbox that was ready spells out every
// ability; where the one below lacks it the answer is Unsupported.
func TestAbilitiesOfWhatHasNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(t)
		b.bare = true
		rt := newRuntime(t, b, warm.Config{Specs: []warm.Pin{{Spec: image}}})
		rest()
		ctx := t.Context()
		sb := create(t, rt, image)
		d := sb.(sandbox.Detacher)
		for what, call := range map[string]func() error{
			"Pause":         func() error { return sb.(sandbox.Pauser).Pause(ctx) },
			"Resume":        func() error { return sb.(sandbox.Pauser).Resume(ctx) },
			"Dial":          func() error { _, err := sb.(sandbox.Dialer).Dial(ctx, 80); return err },
			"Usage":         func() error { _, err := sb.(sandbox.Meter).Usage(ctx); return err },
			"Update":        func() error { return sb.(sandbox.Updater).Update(ctx, sandbox.Change{}) },
			"Release":       func() error { return sb.(sandbox.Releaser).Release(ctx) },
			"StartDetached": func() error { _, err := d.StartDetached(ctx, sandbox.Cmd{}, sandbox.DetachOptions{}); return err },
			"Processes":     func() error { _, err := d.Processes(ctx); return err },
			"Attach":        func() error { _, err := d.Attach(ctx, "1", sandbox.AttachOptions{}); return err },
			"Output":        func() error { _, err := d.Output(ctx, "1", 0, 1, 0); return err },
			"Input":         func() error { _, err := d.Input(ctx, "1", nil, true); return err },
			"Forget":        func() error { return d.Forget(ctx, "1") },
		} {
			var e *sandbox.Error
			if err := call(); !errors.As(err, &e) || e.Kind != sandbox.Unsupported || e.ID != sb.ID() || e.Op != "warm."+what || e.Msg == "" {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestRoom(t *testing.T) {
	const gib = 1 << 20 // in kB
	meminfo := func(total, available int64) string {
		return fmt.Sprintf("MemTotal:       %d kB\nMemFree:        100 kB\nMemAvailable:   %d kB\nHugePages_Total:   0\n", total, available)
	}
	for _, c := range []struct {
		text string
		ok   bool
	}{
		{meminfo(16*gib, gib), true}, {meminfo(16*gib, gib-1), false}, {meminfo(gib, gib/4), true}, {meminfo(gib, gib/4-1), false},
		{"", true}, {"MemTotal: many kB\nMemAvailable: 1 kB\n", true}, {"MemTotal: 1 kB\n", true}, {"MemTotal: -1 kB\nMemAvailable: -1 kB\n", true},
	} {
		if err := warm.EnoughMemory([]byte(c.text)); (err == nil) != c.ok || err != nil && !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("%q: %v", c.text, err)
		}
	}
	for text, ok := range map[string]bool{
		"8.00 1.00 0.50 2/345 6789\n": true, "8.01 1.00 0.50 2/345 6789\n": false, "": true, "x y z\n": true, "NaN 0 0\n": true,
	} {
		if err := warm.LittleLoad([]byte(text), 2); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := warm.Room(t.Context()); err != nil && !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("Room: %v", err)
	}
}
