// Package warm keeps sandboxes ready before anyone asks for them. A warm
// Runtime wraps another and is a sandbox.Runtime itself, so it goes around any
// backend and anything goes around it.
//
// Which ones it keeps it learns from what is asked for: a Spec that came
// Config.After times within Config.Window has one ready for the next time, and
// the more often it comes, the more of them, up to Config.Max for all Specs
// together. Those of Config.Specs are always kept. A request gets a ready one
// if its Spec is the same but for Env, Labels and Expires, which are then given
// to the sandbox by sandbox.Updater; else one is made for it as ever, and the
// attempt has cost a look into a map. Specs with mounts are kept only if
// Config.Specs has them: a ready sandbox holds the folders that were there when
// it was made, which need not be those that are there when it is asked for.
//
// A ready sandbox is handed out once, after a look whether it lives. Until
// then neither List nor Open knows it. From then on it is as if it had been
// made in that moment: Info.Created says so.
//
// One goroutine makes and removes the ready ones, one at a time. It lets
// requests that have to wait for theirs go first, asks Config.Room before each,
// and waits longer and longer after errors.
//
// What it is not: it limits nothing but itself, knows no owners, and remembers
// nothing beyond its life. If the program dies without Close, its ready
// sandboxes live on where the backend lets sandboxes do so, and the next
// Runtime shows them as it shows any that it finds: whoever keeps a record of
// what was handed out (the engine) removes what is not in it. A restart also
// turns the Created of what was handed out into the time when it was made.
package warm

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Config says how a Runtime works. The zero Config has defaults for all.
type Config struct {
	// Max is how many sandboxes are ready at most, those of Specs included; 0
	// is 4, or as many as Specs asks for if that is more.
	Max int

	// Specs are always kept ready.
	Specs []Pin

	// After is how many requests for a Spec within Window make it worth
	// keeping; 0 is 2. A negative one keeps none but Specs.
	After int

	// Window is how long a request counts; 0 is ten minutes. What was kept
	// for a Spec that nobody asks for any more goes when it has passed.
	Window time.Duration

	// MaxAge is how old a ready sandbox may become before it is removed and
	// another made; 0 is ten minutes.
	MaxAge time.Duration

	// Room is asked before each sandbox that is made ready. An error says
	// that the machine has no room for it, and why; it is asked again after
	// five seconds. nil is [Room].
	Room func(ctx context.Context) error

	// Log gets what an operator should know; nil is none.
	Log *slog.Logger
}

// A Pin is a Spec of which N sandboxes are always ready; 0 is 1. Env, Labels
// and Expires belong to a request and must not be set.
type Pin struct {
	Spec sandbox.Spec
	N    int
}

// Stats is what became of requests, and what is ready.
type Stats struct {
	Ready   int   // sandboxes that are ready
	Hits    int64 // requests that got a ready one
	Misses  int64 // requests for which one had to be made, or could not
	Filled  int64 // sandboxes that were made ready
	Failed  int64 // attempts to make one that failed
	Dropped int64 // ready ones that nobody got: too old, too many, or dead

	// Stalled says why nothing is being made ready though more is wanted: the
	// machine has no room, or it failed. "" if it is not so.
	Stalled string

	// Specs has those that are kept, and those that were asked for within
	// Window: the ones of Config first, then those most asked for.
	Specs []SpecStats
}

// SpecStats is Stats of one Spec.
type SpecStats struct {
	Spec   sandbox.Spec // without Env, Labels and Expires
	Pinned int          // how many Config.Specs asks for
	Asked  int          // requests within Window, up to 32
	Want   int          // how many should be ready
	Ready  int          // how many are
	Hits   int64
	Misses int64
}

const (
	fillTime   = 2 * time.Minute        // for making one
	handTime   = 2 * time.Second        // for looking at a ready one and changing it
	removeTime = 10 * time.Second       // for removing one; then it is tried again
	roomPause  = 5 * time.Second        // between two questions whether there is room
	checkEvery = time.Minute            // between two looks whether a ready one lives
	polite     = time.Second            // how long requests under way may hold up the making
	lull       = 20 * time.Millisecond  // between handing one out and making another, if there are more
	firstPause = 500 * time.Millisecond // after an error; doubled with each that follows
	lastPause  = time.Minute
)

// A Runtime has sandboxes ready. Its methods are those of sandbox.Runtime, and
// Stats.
type Runtime struct {
	inner sandbox.Runtime
	cfg   Config
	log   *slog.Logger

	life context.Context // ends when the Runtime is closed
	end  context.CancelFunc
	work sync.WaitGroup // the filler, and ready ones on their way out
	wake chan struct{}  // tells the filler that something has changed

	mu      sync.Mutex
	closed  bool
	specs   map[string]*demand // by key
	held    map[sandbox.ID]*ready
	leaving []*ready                 // of those, the ones that are to be removed
	filling *fill                    // nil if none is under way
	known   map[sandbox.ID]time.Time // what is somebody's; the time is its Created, if it was ready before
	sweepAt int                      // how many known ones make it worth looking which are gone
	lists   int                      // Lists under way
	buried  map[sandbox.ID]bool      // what left held for good while a List was under way
	cold    int                      // requests under way that have to wait for theirs
	since   time.Time                // when the first of them began, or last let the filler pass
	handed  time.Time                // when somebody last got a ready one
	roomAt  time.Time                // when to ask for room again
	noRoom  error
	stats   Stats // its counters
}

var _ sandbox.Runtime = (*Runtime)(nil)

// A ready is a sandbox that nobody got yet. The Runtime's mutex guards it.
type ready struct {
	sb    sandbox.Sandbox
	of    *demand
	made  time.Time
	seen  time.Time // when it was last known to live
	pause pause     // after failed removals
}

// A fill is the making of one.
type fill struct {
	of    *demand
	began time.Time
	done  chan struct{} // closed when it is held, or failed
}

// New returns a Runtime around rt, which Close closes. It does not wait for
// Specs to be ready. If it fails, rt is as it was.
func New(rt sandbox.Runtime, cfg Config) (*Runtime, error) {
	w := &Runtime{
		inner: rt, log: cfg.Log, wake: make(chan struct{}, 1), sweepAt: minSweep,
		specs: make(map[string]*demand), held: make(map[sandbox.ID]*ready),
		known: make(map[sandbox.ID]time.Time), buried: make(map[sandbox.ID]bool),
	}
	pinned, err := w.pin(cfg.Specs)
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		field string
		bad   bool
	}{{"max", cfg.Max < 0}, {"window", cfg.Window < 0}, {"max_age", cfg.MaxAge < 0}} {
		if f.bad {
			return nil, sandbox.Errorf(sandbox.Invalid, f.field, "it is negative").WithHint("give a positive one, or 0 for the default")
		}
	}
	if cfg.Max > 0 && pinned > cfg.Max {
		return nil, sandbox.Errorf(sandbox.Invalid, "max", "%d sandboxes are to be ready at most, but %d always", cfg.Max, pinned).WithHint("raise it, or keep fewer")
	}
	cfg.Max = cmp.Or(cfg.Max, max(4, pinned))
	cfg.After = cmp.Or(cfg.After, 2)
	cfg.Window = cmp.Or(cfg.Window, 10*time.Minute)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, 10*time.Minute)
	if cfg.Room == nil {
		cfg.Room = Room
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.cfg = cfg
	w.life, w.end = context.WithCancel(context.Background())
	w.work.Go(w.run)
	return w, nil
}

// pin checks the Pins and puts them among the demands.
func (rt *Runtime) pin(pins []Pin) (sum int, err error) {
	for _, p := range pins {
		q := newRequest(p.Spec)
		switch {
		case !q.plain():
			return 0, sandbox.Errorf(sandbox.Invalid, "specs", "env, labels and expires belong to a request").WithHint("leave them out")
		case !q.poolable():
			return 0, sandbox.Errorf(sandbox.Invalid, "specs", "a sandbox with an id or a name cannot be had beforehand").WithHint("leave them out")
		case p.N < 0:
			return 0, sandbox.Errorf(sandbox.Invalid, "specs", "%d sandboxes cannot be ready", p.N).WithHint("give a positive number, or 0 for one")
		}
		if err := q.rest.Check(); err != nil {
			return 0, err
		}
		if rt.specs[q.key] == nil {
			rt.specs[q.key] = newDemand(&q)
		}
		n := cmp.Or(p.N, 1)
		rt.specs[q.key].pinned += n
		sum += n
	}
	return sum, nil
}

// Close removes what is ready, waits for what is on its way, and closes the
// Runtime below; what becomes of the sandboxes that were handed out is that
// one's business. Its error says what could not be removed or closed.
func (rt *Runtime) Close() error {
	rt.mu.Lock()
	if rt.closed {
		rt.mu.Unlock()
		return nil
	}
	rt.closed = true
	rt.mu.Unlock()
	rt.end()
	rt.work.Wait()

	rt.mu.Lock()
	for _, d := range rt.specs {
		rt.stats.Dropped += int64(len(d.ready))
		d.ready = nil
	}
	var rest []*ready
	for _, r := range rt.held {
		rest = append(rest, r)
	}
	rt.mu.Unlock()
	errs := make([]error, len(rest))
	few := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, r := range rest {
		wg.Go(func() {
			few <- struct{}{}
			defer func() { <-few }()
			errs[i] = rt.remove(r)
		})
	}
	wg.Wait()
	return errors.Join(append(errs, rt.inner.Close())...)
}

// Stats returns what became of requests so far, and what is ready now.
func (rt *Runtime) Stats() Stats {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.share(time.Now())
	s := rt.stats
	wanting := false
	var failed error
	for _, d := range rt.specs {
		s.Ready += len(d.ready)
		if len(d.ready) < d.want {
			wanting = true
			failed = cmp.Or(failed, d.err)
		}
		s.Specs = append(s.Specs, SpecStats{
			Spec: clone(d.spec), Pinned: d.pinned, Asked: len(d.asked), Want: d.want, Ready: len(d.ready), Hits: d.hits, Misses: d.misses,
		})
	}
	if err := cmp.Or(rt.noRoom, failed); wanting && err != nil {
		s.Stalled = err.Error()
	}
	slices.SortFunc(s.Specs, func(a, b SpecStats) int {
		return cmp.Or(cmp.Compare(b.Pinned, a.Pinned), cmp.Compare(b.Asked, a.Asked), cmp.Compare(key(a.Spec), key(b.Spec)))
	})
	return s
}
