package engine

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
)

// Config says how an Engine behaves. The zero value keeps nothing after Close
// and bounds nothing.
type Config struct {
	// Store remembers what exists; nil is one in memory. The Engine closes it.
	Store *store.Store

	// Boot is the boot id of the host, by which the Engine tells a restart of
	// the host from one of the daemon; "" if it is not known.
	Boot string

	// Profiles are the known ones; nil is the built-in ones.
	Profiles *profile.Set

	// Images translates the names of images that clients send into ones of the
	// backend; nil translates none.
	Images *profile.Images

	// Classes is the policy of each protocol, by its name. One that is not
	// there has the zero Class.
	Classes map[string]Class

	// Owners are the tenants' bounds, by name. Who is not there has none of
	// his own, and may mount nothing; the Operator's mounts are MountRoots.
	Owners map[sandbox.Owner]Tenant

	// MaxLive is how many sandboxes there may be in all; 0 is any number.
	MaxLive int

	// MountRoots are the folders of the host below which the Operator's mounts
	// may lie.
	MountRoots []string

	// Backends reports on what is below; nil asks the Runtime for its list.
	Backends func(context.Context) []sandbox.BackendStatus

	// Warm says how many sandboxes are ready that nobody has asked for yet;
	// nil is none.
	Warm func() int

	// Audit gets every event; it must not block for long. nil is nobody.
	Audit func(sandbox.Event)

	// EndAudit is called when the last event has been told; nil is nothing.
	EndAudit func() error

	// AuditArgs has the events of commands show all their arguments, which may
	// hold secrets, and not the program alone.
	AuditArgs bool

	// Metrics is where the Engine's metrics are registered; nil is nowhere.
	Metrics prometheus.Registerer

	// Log gets what an operator should know; nil is nobody.
	Log *slog.Logger
}

// Times and bounds that the Engine keeps.
const (
	// CheckTimeout bounds a look at whether a sandbox lives. One that has not
	// answered by then counts as alive.
	CheckTimeout = 3 * time.Second

	// RemoveTimeout bounds one attempt to remove a sandbox.
	RemoveTimeout = time.Minute

	// Memory is how long the Engine can say why a sandbox is gone.
	Memory = 24 * time.Hour

	// MaxNames is how many names a sandbox may have.
	MaxNames = 64

	retryAfter  = time.Minute      // a removal that failed
	writeUsedAt = 30 * time.Second // how old the store's times of use may get
)

// A Class is the policy of one protocol.
type Class struct {
	// Profile is what a client gets that names none; "" is profile.Native.
	Profile string

	// MaxLive is how many sandboxes of this class there may be; 0 is any
	// number.
	MaxLive int

	// Full says what happens when there are that many; "" is Refuse.
	Full Full

	// Wait is how long a caller waits when there is no room and nothing can be
	// evicted; 0 is not at all. Refuse and Soft do not wait.
	Wait time.Duration

	// NoRestart has Open return what is known without looking whether it
	// still lives.
	NoRestart bool
}

// Full says what happens when there are as many sandboxes as there may be.
type Full string

const (
	// Refuse answers Exhausted, and evicts nothing.
	Refuse Full = "refuse"
	// Evict removes the least recently used idle sandbox that the same
	// tenant has, released ones first. A busy one never goes.
	Evict Full = "evict"
	// Soft evicts released sandboxes alone; where there are none it goes over
	// the bound, and says so in the log. The bounds of an owner and of the
	// whole Engine hold all the same.
	Soft Full = "soft"
)

// A Tenant is the bounds of an owner, and of those below it together.
type Tenant struct {
	MaxLive    int      // how many sandboxes; 0 is any number
	MaxRunning int      // how many processes that somebody waits for; 0 is any number
	MountRoots []string // the folders of the host below which mounts may lie
	Profiles   []string // those that may be used, the first by who names none and may not have the class's; none is all
}

// An Engine is the layer. As a sandbox.Runtime it is what the Operator sees,
// in the class "". Its sandboxes outlive it where those of the Runtime below
// do.
type Engine struct {
	top     *View // of the Operator
	rt      sandbox.Runtime
	cfg     Config
	store   *store.Store
	log     *slog.Logger
	metrics *metrics
	events  events
	faults  faults
	started time.Time

	life context.Context // ends when Close is called
	end  context.CancelFunc

	mu      sync.Mutex
	closed  bool                           // guarded by mu
	busy    sync.WaitGroup                 // goroutines and calls; Add with mu held and closed false
	live    map[key]*entry                 // guarded by mu; by id and by name
	below   map[sandbox.ID]*entry          // guarded by mu; by the id that the Runtime below gave
	graves  map[sandbox.ID]store.Tombstone // guarded by mu; those that are not written down yet
	making  []*reservation                 // guarded by mu; room taken by what is being made
	locks   map[key]*keyLock               // guarded by mu
	running map[sandbox.Owner]int          // guarded by mu; processes that somebody waits for, by the owner and all above
	dirty   map[sandbox.ID]bool            // guarded by mu; used since the store heard of it
	unsure  bool                           // guarded by mu; the Runtime below could not be compared with the store yet
	changed chan struct{}                  // guarded by mu; closed when room may have come, if somebody waits
	look    time.Time                      // guarded by mu; when the reaper looks next
	wake    chan struct{}                  // of one element: the reaper looks again

	closing sync.Once
	bye     error
}

// A key names a sandbox: by its id, or by the name that its owner gave it.
type key struct {
	id    sandbox.ID
	owner sandbox.Owner
	name  string
}

// New returns an Engine over rt, which it then owns: Close closes it, and so
// does New when it fails. It finds again what the store says exists. ctx bounds
// that.
func New(ctx context.Context, rt sandbox.Runtime, cfg Config) (*Engine, error) {
	e := &Engine{rt: rt, cfg: cfg, store: cfg.Store, log: cfg.Log, started: time.Now(),
		live: make(map[key]*entry), below: make(map[sandbox.ID]*entry), graves: make(map[sandbox.ID]store.Tombstone),
		locks: make(map[key]*keyLock), running: make(map[sandbox.Owner]int), dirty: make(map[sandbox.ID]bool), wake: make(chan struct{}, 1)}
	if e.store == nil {
		e.store = store.Memory()
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.life, e.end = context.WithCancel(context.Background())
	e.top = e.View(sandbox.Operator, "")
	err := e.check()
	if err == nil {
		err = e.recover(ctx)
	}
	if err == nil {
		e.metrics, err = newMetrics(e, cfg.Metrics)
	}
	if err != nil {
		e.end()
		return nil, errors.Join(err, rt.Close(), e.store.Close())
	}
	e.busy.Go(e.reap)
	return e, nil
}

// check finds what is wrong with the configuration.
func (e *Engine) check() error {
	if e.cfg.Profiles == nil {
		set, err := profile.NewSet()
		if err != nil {
			return err
		}
		e.cfg.Profiles = set
	}
	if e.cfg.MaxLive < 0 {
		return sandbox.Errorf(sandbox.Invalid, "max_live", "%d is negative", e.cfg.MaxLive)
	}
	for name, c := range e.cfg.Classes {
		field := "protocols." + name
		if _, err := e.cfg.Profiles.Get(c.profile()); err != nil {
			return at(field+".profile", err)
		}
		switch c.Full {
		case "", Refuse, Evict, Soft:
		default:
			return sandbox.Errorf(sandbox.Invalid, field+".when_full", "%q is not a mode", string(c.Full)).WithHint("use refuse, evict or soft")
		}
		if c.MaxLive < 0 {
			return sandbox.Errorf(sandbox.Invalid, field+".max_live", "%d is negative", c.MaxLive)
		}
		if c.Wait < 0 {
			return sandbox.Errorf(sandbox.Invalid, field+".wait", "%v is negative", c.Wait)
		}
	}
	for o, t := range e.cfg.Owners {
		field := "owners." + string(o)
		if err := sandbox.CheckOwner(field, o); err != nil {
			return err
		}
		if o == sandbox.Operator {
			return sandbox.Errorf(sandbox.Invalid, field, "the operator has no bounds of its own")
		}
		for _, name := range t.Profiles {
			if _, err := e.cfg.Profiles.Get(name); err != nil {
				return at(field+".profiles", err)
			}
		}
		if t.MaxLive < 0 || t.MaxRunning < 0 {
			return sandbox.Errorf(sandbox.Invalid, field, "a bound is negative")
		}
	}
	return nil
}

// at returns err with another field.
func at(field string, err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Field = field
	return &c
}

func (c Class) profile() string {
	if c.Profile == "" {
		return profile.Native
	}
	return c.Profile
}

// Close ends the Engine and closes the Runtime below. Processes that somebody
// waits for end with it; sandboxes stay where the Runtime below leaves them. A
// second Close does nothing and returns what the first did.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.end()
		e.events.close()
		err := e.rt.Close()
		e.busy.Wait()
		e.metrics.close()
		e.bye = errors.Join(err, e.writeUsed(), e.store.Close())
		if e.cfg.EndAudit != nil {
			e.bye = errors.Join(e.bye, e.cfg.EndAudit())
		}
	})
	return e.bye
}

// enter counts a call, or says that the Engine is closed. Each enter that
// succeeds needs a leave.
func (e *Engine) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errClosed
	}
	e.busy.Add(1)
	return nil
}

func (e *Engine) leave() { e.busy.Done() }

// spawn runs f in a goroutine that Close waits for, unless it was called.
func (e *Engine) spawn(f func()) bool {
	if e.enter() != nil {
		return false
	}
	go func() {
		defer e.leave()
		f()
	}()
	return true
}

var errClosed = sandbox.Errorf(sandbox.Closed, "", "the runtime was closed")

// A View is the Engine as one owner sees it through one protocol. To close it
// ends it alone.
type View struct {
	e     *Engine
	owner sandbox.Owner
	name  string // of the class
	class Class

	mu     sync.Mutex
	closed bool // guarded by mu
}

var (
	_ sandbox.Keeper   = (*View)(nil)
	_ sandbox.Peeker   = (*View)(nil)
	_ sandbox.Overseer = (*View)(nil)
	_ sandbox.Keeper   = (*Engine)(nil)
	_ sandbox.Peeker   = (*Engine)(nil)
	_ sandbox.Overseer = (*Engine)(nil)
)

// View returns what owner sees through the protocol class.
func (e *Engine) View(owner sandbox.Owner, class string) *View {
	return &View{e: e, owner: owner, name: class, class: e.cfg.Classes[class]}
}

// Create is that of the Operator's View, in the class "".
func (e *Engine) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	return e.top.Create(ctx, spec)
}

// Open is that of the Operator's View.
func (e *Engine) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	return e.top.Open(ctx, id)
}

// List is that of the Operator's View.
func (e *Engine) List(ctx context.Context) iter.Seq2[sandbox.Info, error] { return e.top.List(ctx) }

// Acquire is that of the Operator's View.
func (e *Engine) Acquire(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
	return e.top.Acquire(ctx, spec)
}

// Lookup is that of the Operator's View.
func (e *Engine) Lookup(ctx context.Context, name string) (sandbox.Sandbox, error) {
	return e.top.Lookup(ctx, name)
}

// Peek is that of the Operator's View.
func (e *Engine) Peek(id sandbox.ID) (sandbox.Sandbox, bool) { return e.top.Peek(id) }

// PeekName is that of the Operator's View.
func (e *Engine) PeekName(name string) (sandbox.Sandbox, bool) { return e.top.PeekName(name) }

// Status is that of the Operator's View.
func (e *Engine) Status(ctx context.Context) (sandbox.Status, error) { return e.top.Status(ctx) }

// Events is that of the Operator's View.
func (e *Engine) Events(ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
	return e.top.Events(ctx, after, follow)
}

// Prune is that of the Operator's View.
func (e *Engine) Prune(ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error) {
	return e.top.Prune(ctx, p)
}

// Close ends the view; the Engine goes on.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	return nil
}

func (v *View) enter() error {
	if v.isClosed() {
		return errClosed
	}
	return v.e.enter()
}

func (v *View) isClosed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed
}

// Open returns the live sandbox with this id. That is a use of it.
func (v *View) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	const op = "engine.Open"
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.e.leave()
	return v.open(ctx, op, key{id: id})
}

// Lookup returns the live sandbox with this name. That is a use of it.
func (v *View) Lookup(ctx context.Context, name string) (sandbox.Sandbox, error) {
	const op = "engine.Lookup"
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.e.leave()
	if err := sandbox.CheckName("name", name); err != nil {
		return nil, err
	}
	if name == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "name", "the name is empty")
	}
	return v.open(ctx, op, key{owner: v.owner, name: name})
}

func (v *View) open(ctx context.Context, op string, k key) (sandbox.Sandbox, error) {
	for {
		en, err := v.e.touch(v, k)
		if err != nil {
			return nil, v.fail(op, k.id, err)
		}
		if v.class.NoRestart {
			return v.box(en), nil
		}
		alive, err := v.e.alive(ctx, en)
		if err != nil {
			return nil, v.fail(op, en.id, err)
		}
		if alive {
			return v.box(en), nil
		}
		v.e.died(ctx, en)
		// Somebody may have made it anew meanwhile: look again. If not, touch
		// says what became of it.
	}
}

// Peek returns the sandbox with this id as memory has it.
func (v *View) Peek(id sandbox.ID) (sandbox.Sandbox, bool) { return v.peek(key{id: id}) }

// PeekName returns the sandbox with this name as memory has it.
func (v *View) PeekName(name string) (sandbox.Sandbox, bool) {
	if name == "" {
		return nil, false
	}
	return v.peek(key{owner: v.owner, name: name})
}

func (v *View) peek(k key) (sandbox.Sandbox, bool) {
	if v.isClosed() {
		return nil, false
	}
	v.e.mu.Lock()
	defer v.e.mu.Unlock()
	en := v.e.live[k]
	if en == nil || en.gone != nil || !v.owner.Sees(en.owner) || v.e.closed {
		return nil, false
	}
	return v.box(en), true
}

// List yields the live sandboxes that the owner sees.
func (v *View) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		if err := v.enter(); err != nil {
			yield(sandbox.Info{}, err)
			return
		}
		defer v.e.leave()
		for info, err := range v.e.rt.List(ctx) {
			if err != nil {
				yield(sandbox.Info{}, v.fail("engine.List", "", err))
				return
			}
			v.e.mu.Lock()
			en := v.e.below[info.ID]
			shown := en != nil && en.gone == nil && v.owner.Sees(en.owner)
			if shown {
				info = en.info(info)
			}
			v.e.mu.Unlock()
			if shown && !yield(info, nil) {
				return
			}
		}
	}
}
