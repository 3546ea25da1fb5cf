package job

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxName is the longest name of a job, in bytes. Where a Table has a Space,
// its length and one more have to fit in as well.
const MaxName = sandbox.MaxProcessName

// Defaults of [Config].
const (
	DefaultRunning   = 64
	DefaultKeep      = 256
	DefaultRetention = 300 * time.Second
	DefaultGrace     = 5 * time.Second
	DefaultPreview   = 4000
)

// dying is how long a killed process may take to be gone.
const dying = 30 * time.Second

// mostBoxes is of how many sandboxes a Table remembers something.
const mostBoxes = 4096

// A Config says how a Table behaves. The zero Config has all defaults.
type Config struct {
	// Space sets the jobs of this Table apart from those of others in the
	// same sandbox: up to 16 of a-z, 0-9 and -. With "" the Table sees every
	// detached process that there is, whoever started it.
	Space string

	Running int // how many may run at once in one sandbox; 0 is DefaultRunning
	Total   int // how many may run at once in all sandboxes that this Table knows of; 0 is any number

	Keep      int           // how many ended ones are kept per sandbox; 0 is DefaultKeep, which is also the most
	Retention time.Duration // how long they are kept; 0 is DefaultRetention, a negative one is for as long as the sandbox remembers
	Grace     time.Duration // from TERM to KILL; 0 is DefaultGrace
	Preview   int           // how many characters of error output an Info has; 0 is DefaultPreview, a negative one is none
}

// A Table has the jobs of any number of sandboxes. It is safe for concurrent
// use. Its methods take the sandbox as it was opened for their caller: whoever
// may open it may see its jobs.
//
// A sandbox that is gone is [sandbox.NotExist], one whose backend cannot
// detach processes [sandbox.Unsupported]. A context bounds the call, never the
// job.
type Table struct {
	cfg    Config
	prefix string // of names as the sandbox has them

	mu       sync.Mutex
	boxes    map[sandbox.ID]*box
	locks    map[lockKey]*lock
	stamp    int64 // counts up, to tell what was before what
	starting int   // of Config.Total, what is being started
}

// A box is what is remembered of a sandbox. The Table's mutex guards it.
type box struct {
	sb   sandbox.Sandbox
	used int64
	jobs map[sandbox.ProcessID]*record
}

// A record is what is remembered of a job. The Table's mutex guards it.
type record struct {
	born    int64
	words   *words // nil if another Table started it
	running bool   // as far as is known

	reader  *Relay   // who is attached
	read    [2]int64 // where the last reader stopped in the output and the error output
	known   bool     // read says something
	torn    bool     // the output there is the rest of a line that lost a part
	tearing int64    // bytes of that line that nobody was told of

	errs tail // the last of the error output
}

// New returns a Table, or [sandbox.Invalid] for a Config that means nothing.
func New(cfg Config) (*Table, error) {
	for _, c := range cfg.Space {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' || len(cfg.Space) > 16 {
			return nil, sandbox.Errorf(sandbox.Invalid, "space", "%q is not the name of a space", cfg.Space).WithHint("use up to 16 of a-z, 0-9 and -")
		}
	}
	for _, n := range []struct {
		field string
		value *int
		def   int
		most  int
	}{
		{"running", &cfg.Running, DefaultRunning, 1 << 20},
		{"keep", &cfg.Keep, DefaultKeep, DefaultKeep},
		{"preview", &cfg.Preview, DefaultPreview, 1 << 20},
		{"total", &cfg.Total, 0, 1 << 30},
	} {
		if *n.value < 0 && n.field != "preview" || *n.value > n.most {
			return nil, sandbox.Errorf(sandbox.Invalid, n.field, "%d is not possible", *n.value).WithHint("give 1 to %d, or 0 for the default", n.most)
		}
		if *n.value == 0 {
			*n.value = n.def
		}
	}
	if cfg.Grace < 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "grace", "%v is negative", cfg.Grace).WithHint("give a positive time, or 0 for the default")
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Retention == 0 {
		cfg.Retention = DefaultRetention
	}
	t := &Table{cfg: cfg, boxes: make(map[sandbox.ID]*box), locks: make(map[lockKey]*lock)}
	if cfg.Space != "" {
		t.prefix = cfg.Space + ":"
	}
	return t, nil
}

// Drop forgets what the Table remembers of a sandbox, which is of use to
// nobody once that is removed. Without it, it is forgotten when somebody asks
// for the sandbox's jobs, or when the memory is needed.
func (t *Table) Drop(id sandbox.ID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.boxes, id)
}

// record returns what is remembered of a job, which it makes if it has to. The
// mutex is held.
func (t *Table) record(sb sandbox.Sandbox, id sandbox.ProcessID) *record {
	b := t.boxes[sb.ID()]
	if b == nil {
		t.makeRoom()
		b = &box{jobs: make(map[sandbox.ProcessID]*record)}
		t.boxes[sb.ID()] = b
	}
	t.stamp++
	b.sb, b.used = sb, t.stamp
	r := b.jobs[id]
	if r == nil {
		r = &record{born: t.stamp}
		b.jobs[id] = r
	}
	return r
}

// makeRoom forgets the sandbox that was not used for longest and has no
// reader. The mutex is held.
func (t *Table) makeRoom() {
	if len(t.boxes) < mostBoxes {
		return
	}
	var oldest sandbox.ID
	var used int64
	for id, b := range t.boxes {
		if (oldest == "" || b.used < used) && !b.attached() {
			oldest, used = id, b.used
		}
	}
	delete(t.boxes, oldest)
}

func (b *box) attached() bool {
	for _, r := range b.jobs {
		if r.reader != nil {
			return true
		}
	}
	return false
}

// now returns a stamp that everything remembered later is younger than.
func (t *Table) now() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stamp
}

// saw learns from a list of the sandbox's processes that was asked for at
// since.
func (t *Table) saw(id sandbox.ID, ps []sandbox.ProcessInfo, since int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.boxes[id]
	if b == nil {
		return
	}
	there := make(map[sandbox.ProcessID]bool, len(ps))
	for _, p := range ps {
		there[p.ID] = true
		if r := b.jobs[p.ID]; r != nil && p.Exit != nil {
			r.running = false
		}
	}
	for pid, r := range b.jobs {
		if !there[pid] && r.born <= since {
			delete(b.jobs, pid)
		}
	}
	if len(b.jobs) == 0 {
		delete(t.boxes, id)
	}
}

// running counts the jobs that are known to run. The mutex is held.
func (t *Table) running() int {
	n := 0
	for _, b := range t.boxes {
		for _, r := range b.jobs {
			if r.running {
				n++
			}
		}
	}
	return n
}

// reserve takes one of Config.Total, until release.
func (t *Table) reserve(ctx context.Context) error {
	if t.cfg.Total == 0 {
		return nil
	}
	for again := true; ; again = false {
		t.mu.Lock()
		if t.running()+t.starting < t.cfg.Total {
			t.starting++
			t.mu.Unlock()
			return nil
		}
		var look []sandbox.Sandbox
		for _, b := range t.boxes {
			look = append(look, b.sb)
		}
		t.mu.Unlock()
		if !again {
			return sandbox.Errorf(sandbox.Exhausted, "", "%d processes run, as many as there may be", t.cfg.Total).WithHint("stop some")
		}
		t.look(ctx, look)
	}
}

func (t *Table) release() {
	if t.cfg.Total == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting--
}

// look finds out which of the known jobs have ended. What does not answer in
// time, or not at all, is taken to run.
func (t *Table) look(ctx context.Context, sbs []sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	turn := make(chan struct{}, 8)
	for _, sb := range sbs {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if d, err := detacher(sb); err == nil {
				t.processes(ctx, sb, d)
			}
		})
	}
	wg.Wait()
}

// A lockKey says what is locked: starting in a sandbox, a name in it, or the
// input of a job.
type lockKey struct {
	sb   sandbox.ID
	what string
	name string
}

// A lock is held by one and wanted by n.
type lock struct {
	held chan struct{}
	n    int
}

// lock waits until nobody else has key. The returned function gives it back.
func (t *Table) lock(ctx context.Context, key lockKey) (unlock func(), err error) {
	t.mu.Lock()
	l := t.locks[key]
	if l == nil {
		l = &lock{held: make(chan struct{}, 1)}
		t.locks[key] = l
	}
	l.n++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if l.n--; l.n == 0 {
			delete(t.locks, key)
		}
	}
	if err := ctx.Err(); err != nil {
		leave()
		return nil, err
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// detacher returns sb as what keeps processes.
func detacher(sb sandbox.Sandbox) (sandbox.Detacher, error) {
	if d, ok := sb.(sandbox.Detacher); ok {
		return d, nil
	}
	return nil, sandbox.Errorf(sandbox.Unsupported, "", "this sandbox's backend has no processes that outlive their request").WithHint("run the command and wait for it, or use another backend")
}

// inside returns the name of a job as the sandbox has it.
func (t *Table) inside(name string) string { return t.prefix + name }

// outside returns the caller's name, and whether the job is this Table's.
func (t *Table) outside(name string) (string, bool) { return strings.CutPrefix(name, t.prefix) }
