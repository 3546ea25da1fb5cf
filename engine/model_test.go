package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
)

// A model is what an Engine should do, without an engine: a table.
type model struct {
	boxes []*modelBox
	max   int // per owner; the least recently used goes
}

// A modelBox is a sandbox of the model.
type modelBox struct {
	id       sandbox.ID
	owner    sandbox.Owner
	names    []string
	image    string
	idle     time.Duration
	expires  time.Time
	used     time.Time
	order    int // of its last use
	released bool
	dead     bool // below, of which nobody knows yet
	job      bool // a command runs that somebody waits for
	end      func()
	why      sandbox.Why
}

func (m *model) live(o sandbox.Owner) (live []*modelBox) {
	for _, b := range m.boxes {
		if b.why == "" && o.Sees(b.owner) {
			live = append(live, b)
		}
	}
	return live
}

func (m *model) named(o sandbox.Owner, name string) *modelBox {
	for _, b := range m.live(o) {
		for _, n := range b.names {
			if b.owner == o && n == name {
				return b
			}
		}
	}
	return nil
}

// pass has the time come that it is.
func (m *model) pass(now time.Time) {
	for _, b := range m.boxes {
		expired := !b.expires.IsZero() && !b.expires.After(now)
		unused := b.idle > 0 && !b.job && !b.used.Add(b.idle).After(now)
		switch {
		case b.why != "":
		case expired && !(unused && b.used.Add(b.idle).Before(b.expires)):
			b.why = sandbox.Expired
		case unused:
			b.why = sandbox.Unused
		}
	}
}

// victim returns who makes room for a new one of o, and whether room is needed.
func (m *model) victim(o sandbox.Owner) (v *modelBox, full bool) {
	n := 0
	for _, b := range m.boxes {
		if b.why != "" || b.owner != o {
			continue
		}
		n++
		if !b.job && (v == nil || b.released && !v.released || b.released == v.released && b.order < v.order) {
			v = b
		}
	}
	return v, n >= m.max
}

// A modelRun is an Engine beside its model.
type modelRun struct {
	t     *testing.T
	rng   *rand.Rand
	m     model
	below *below
	file  string
	e     *engine.Engine
	views map[sandbox.Owner]*engine.View
	order int
	log   []string
}

func (r *modelRun) start() {
	r.t.Helper()
	st := store.Memory()
	if r.file != "" {
		var err error
		if st, err = store.Open(r.file, store.Options{Boot: "a"}); err != nil {
			r.t.Fatal(err)
		}
	}
	owners := map[sandbox.Owner]engine.Tenant{"alice": {MaxLive: r.m.max}, "bob": {MaxLive: r.m.max}}
	e, err := engine.New(r.t.Context(), keeps{r.below}, engine.Config{Store: st, Boot: "a", Owners: owners, Classes: map[string]engine.Class{"c": {Full: engine.Evict}}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.e, r.views = e, map[sandbox.Owner]*engine.View{"alice": e.View("alice", "c"), "bob": e.View("bob", "c")}
}

func (r *modelRun) use(b *modelBox) {
	r.order++
	b.used, b.order, b.released = time.Now(), r.order, false
}

func (r *modelRun) say(format string, args ...any) {
	r.log = append(r.log, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (r *modelRun) failf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s\nafter\n%s", fmt.Sprintf(format, args...), strings.Join(r.log, "\n"))
}

// step does one thing at random, to both.
func (r *modelRun) step() {
	owner := []sandbox.Owner{"alice", "bob"}[r.rng.IntN(2)]
	v, name := r.views[owner], fmt.Sprint("name ", r.rng.IntN(5))
	ctx := r.t.Context()
	var some *modelBox // anybody's, gone ones too
	if len(r.m.boxes) > 0 {
		some = r.m.boxes[max(0, len(r.m.boxes)-1-r.rng.IntN(10))]
	}
	switch op := r.rng.IntN(14); op {
	case 0, 1, 2, 3:
		spec := sandbox.Spec{Name: name, Image: []string{"", "", "", "other"}[r.rng.IntN(4)], Idle: time.Duration(r.rng.IntN(3)) * 10 * time.Minute}
		if r.rng.IntN(4) == 0 {
			spec.Expires = time.Now().Add(time.Duration(1+r.rng.IntN(30)) * time.Minute)
		}
		if op == 3 {
			spec.Name = ""
		}
		r.acquire(ctx, v, owner, spec)
	case 4, 5:
		if some == nil {
			return
		}
		r.say("%s opens %s", owner, some.id)
		_, err := v.Open(ctx, some.id)
		switch {
		case !owner.Sees(some.owner):
			if g := new(sandbox.Gone); !errors.Is(err, sandbox.NotExist) || errors.As(err, &g) {
				r.failf("another's: %v", err)
			}
		case some.why == "" && !some.dead:
			if err != nil {
				r.failf("open: %v", err)
			}
			r.use(some)
		default:
			r.ended(some)
			if g := new(sandbox.Gone); !errors.As(err, &g) || g.Why != some.why {
				r.failf("open: %v, want that it is gone because %s", err, some.why)
			}
		}
	case 6:
		b := r.m.named(owner, name)
		r.say("%s looks for %s", owner, name)
		sb, err := v.Lookup(ctx, name)
		switch {
		case b == nil || b.dead:
			r.ended(b)
			if !errors.Is(err, sandbox.NotExist) {
				r.failf("lookup: %v", err)
			}
		case err != nil || sb.ID() != b.id:
			r.failf("lookup: %v, want %s", err, b.id)
		default:
			r.use(b)
		}
	case 7:
		b := r.m.named(owner, name)
		sb, ok := v.PeekName(name)
		if ok != (b != nil) || ok && sb.ID() != b.id {
			r.failf("peek at %s of %s: %v", name, owner, ok)
		}
	case 8, 9, 10, 11:
		if some == nil || some.why != "" || some.dead {
			return
		}
		sb, ok := r.views[some.owner].Peek(some.id)
		if !ok {
			r.failf("%s is not to be seen", some.id)
		}
		r.change(ctx, op, sb, some)
	case 12:
		if some == nil || some.why != "" || some.dead || some.job {
			return
		}
		r.say("%s dies", some.id)
		r.below.kill(r.t, some.id)
		some.dead = true
	case 13:
		if r.rng.IntN(3) == 0 {
			r.restart()
			return
		}
		d := time.Duration(r.rng.IntN(8*60)) * time.Second
		r.say("%v pass", d)
		time.Sleep(d)
		synctest.Wait()
		// The Engine looks when something is due; to the nanosecond is not ours.
		time.Sleep(2 * time.Second)
		synctest.Wait()
	}
}

// acquire is Acquire, or Create where there is no name.
func (r *modelRun) acquire(ctx context.Context, v *engine.View, owner sandbox.Owner, spec sandbox.Spec) {
	r.say("%s acquires %q, image %q, idle %v, expires %v", owner, spec.Name, spec.Image, spec.Idle, spec.Expires.UTC().Format("15:04:05.000"))
	var sb sandbox.Sandbox
	var err error
	made := true
	b := r.m.named(owner, spec.Name)
	if spec.Name == "" {
		b = nil
		sb, err = v.Create(ctx, spec)
	} else {
		sb, made, err = v.Acquire(ctx, spec)
	}
	if b != nil && (b.image != spec.Image || b.idle != spec.Idle) {
		if !errors.Is(err, sandbox.Conflict) {
			r.failf("acquire: %v, want a conflict", err)
		}
		r.use(b)
		return
	}
	if b != nil && !b.dead {
		if err != nil || made || sb.ID() != b.id {
			r.failf("acquire: made %v, %v, want %s", made, err, b.id)
		}
		r.use(b)
		return
	}
	r.ended(b)
	victim, full := r.m.victim(owner)
	if full && victim == nil {
		if !errors.Is(err, sandbox.Exhausted) {
			r.failf("acquire: %v, want that there is no room", err)
		}
		return
	}
	if err != nil || !made {
		r.failf("acquire: made %v, %v", made, err)
	}
	if full {
		victim.why = sandbox.Evicted
	}
	b = &modelBox{id: sb.ID(), owner: owner, image: spec.Image, idle: spec.Idle, expires: spec.Expires}
	if spec.Name != "" {
		b.names = []string{spec.Name}
	}
	r.say("it is %s", b.id)
	r.use(b)
	r.m.boxes = append(r.m.boxes, b)
}

// ended notes that somebody found out that b is dead.
func (r *modelRun) ended(b *modelBox) {
	if b != nil && b.dead && b.why == "" {
		b.why = sandbox.Died
	}
}

// change does something to a sandbox that lives.
func (r *modelRun) change(ctx context.Context, op int, sb sandbox.Sandbox, b *modelBox) {
	switch op {
	case 8:
		r.say("release %s", b.id)
		if err := sb.(sandbox.Releaser).Release(ctx); err != nil {
			r.failf("release: %v", err)
		}
		b.released = true
	case 9:
		alias := fmt.Sprint("name ", r.rng.IntN(5))
		r.say("%s is %s too", b.id, alias)
		expires := time.Now().Add(time.Duration(r.rng.IntN(60)) * time.Minute).Add(time.Minute)
		err := sb.(sandbox.Updater).Update(ctx, sandbox.Change{Name: &alias, Expires: &expires})
		r.use(b)
		if other := r.m.named(b.owner, alias); other != nil && other != b {
			if !errors.Is(err, sandbox.Conflict) {
				r.failf("update: %v, want a conflict", err)
			}
			return
		} else if other == nil {
			b.names = append(b.names, alias)
		}
		if err != nil {
			r.failf("update: %v", err)
		}
		b.expires = expires
	case 10:
		r.say("remove %s", b.id)
		r.stop(b)
		if err := sb.Remove(ctx); err != nil {
			r.failf("remove: %v", err)
		}
		b.why = sandbox.Removed
	case 11:
		if b.job {
			r.say("end the command in %s", b.id)
			r.stop(b)
			return
		}
		r.say("start a command in %s", b.id)
		_, end := background(r.t, sb, "sleep", "1000000")
		b.job, b.end = true, end
		r.use(b)
	}
}

func (r *modelRun) stop(b *modelBox) {
	if b.job {
		b.end()
		b.job = false
		b.used = time.Now()
		r.order++
		b.order = r.order
	}
}

// restart ends the Engine and starts another.
func (r *modelRun) restart() {
	r.say("restart")
	for _, b := range r.m.boxes {
		if b.why == "" {
			r.stop(b)
			time.Sleep(time.Millisecond)
		}
	}
	synctest.Wait()
	r.m.pass(time.Now())
	if err := r.e.Close(); err != nil {
		r.failf("close: %v", err)
	}
	r.start()
	for _, b := range r.m.boxes {
		if b.why == "" {
			b.used = time.Now()
			b.released = false // nobody wrote it down
			r.ended(b)
		}
	}
}

// check compares the two.
func (r *modelRun) check() {
	r.t.Helper()
	now := time.Now()
	r.m.pass(now)
	for _, b := range r.m.boxes {
		if b.why != "" && b.job { // it went with its sandbox
			b.end()
			b.job = false
		}
	}
	for owner, v := range r.views {
		live := r.m.live(owner)
		want := make(map[sandbox.ID]*modelBox)
		busy := 0
		for _, b := range live {
			if b.job {
				busy++
			}
			if !b.dead {
				want[b.id] = b
			}
		}
		for info, err := range v.List(r.t.Context()) {
			if err != nil {
				r.failf("list: %v", err)
			}
			b := want[info.ID]
			if b == nil {
				r.failf("%s has %s, which it should not", owner, info.ID)
			}
			if strings.Join(info.Names, ",") != strings.Join(b.names, ",") || info.Owner != owner || (info.Busy == 1) != b.job || !info.Expires.Equal(b.expires) {
				r.failf("%+v is not %+v", info, b)
			}
			delete(want, info.ID)
		}
		if len(want) > 0 {
			r.failf("%s lacks %v", owner, want)
		}
		s, err := v.Status(r.t.Context())
		if err != nil || s.Live != len(live) || s.Busy != busy {
			r.failf("%s: %d live, %d busy, %v, want %d and %d", owner, s.Live, s.Busy, err, len(live), busy)
		}
	}
}

// TestAgainstAModel does what comes at random to an Engine and to a table, and
// finds no difference.
func TestAgainstAModel(t *testing.T) {
	seeds, steps := 30, 150
	if os.Getenv("ATOLL_SOAK") != "" {
		seeds, steps = 500, 400
	}
	for seed := range seeds {
		if !againstModel(t, uint64(seed), steps) {
			t.Fatalf("with the seed %d", seed)
		}
	}
}

// FuzzAgainstAModel is the same for any seed.
func FuzzAgainstAModel(f *testing.F) {
	f.Add(uint64(1), uint8(50))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) { againstModel(t, seed, int(steps)) })
}

func againstModel(t *testing.T, seed uint64, steps int) bool {
	dir := t.TempDir()
	return t.Run(fmt.Sprint(seed), func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := &modelRun{t: t, rng: rand.New(rand.NewPCG(seed, 1)), file: filepath.Join(dir, "engine.db")}
			r.m.max = 1 + r.rng.IntN(4)
			r.below = &below{Runtime: bare{memory.New(memory.Config{})}, removes: make(map[sandbox.ID]int)}
			r.start()
			defer func() { r.e.Close() }()
			for range steps {
				time.Sleep(time.Millisecond) // no two uses at once
				r.step()
				synctest.Wait()
				r.check()
			}
			for _, b := range r.m.boxes {
				if b.job {
					b.end()
				}
			}
			if err := errors.Join(r.e.Close(), r.below.Runtime.Close()); err != nil {
				t.Error(err)
			}
		})
	})
}
