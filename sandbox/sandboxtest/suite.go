package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"go.uber.org/goleak"
)

// Config says what is tested and how.
type Config struct {
	// New returns a new Runtime without sandboxes, which the suite closes. It
	// is called once for most claims together and once for each of those that
	// close it. A backend that is not available here calls t.Skip, and says
	// why.
	New func(t *testing.T) sandbox.Runtime

	// Cannot names claims that cannot be carried, each with a sentence why.
	Cannot map[string]string

	// NoShell, if not "", says why there is no sh. The claims that need one
	// are then skipped for that reason.
	NoShell string

	// Spec is what every sandbox is made from, such as its Image. The suite
	// sets other fields itself.
	Spec sandbox.Spec

	// Listen, if there is such a program, returns the command that accepts
	// one connection on port of the loopback after the other and echoes what
	// it reads. The claims of sandbox.Dialer need it.
	Listen func(port int) []string

	// Settle, if not nil, is called before goroutines are counted. It closes
	// idle connections and the like.
	Settle func()

	// Source, if the backend can mount, returns a directory of the host that
	// a Spec may mount, as Mount.Source has it. It is called for each claim
	// that needs one.
	Source func(t *testing.T) string

	// Leaks are more goroutines that may stay.
	Leaks []goleak.Option

	// Patience is how long the suite waits for what must happen; 0 is a
	// minute.
	Patience time.Duration
}

// A Claim is a sentence of the contract that the suite checks.
type Claim struct {
	Name string
	Says string // the sentence
}

// Claims returns every claim in the order in which they are checked.
func Claims() []Claim {
	var cs []Claim
	for _, c := range claims() {
		cs = append(cs, Claim{c.name, c.says})
	}
	return cs
}

// A claim is a Claim and how to check it.
type claim struct {
	name  string
	says  string
	shell bool // needs sh
	check func(t *T)
}

func claims() []claim {
	return slices.Concat(runtimeClaims, processClaims, controlClaims, treeClaims, terminalClaims, fileClaims, linkClaims, detachClaims, abilityClaims, updateClaims, keeperClaims)
}

// soak asks for the long forms: the same claims, and where they race against
// something, many more times.
var soak = os.Getenv("ATOLL_SOAK") != ""

// times returns n, or many more.
func times(n int) int {
	if soak {
		return 50 * n
	}
	return n
}

// Run checks every claim as a subtest of t, and prints how many hold.
func Run(t *testing.T, c Config) {
	t.Helper()
	if c.Patience == 0 {
		c.Patience = time.Minute
	}
	if soak {
		c.Patience *= 30
	}
	known := make(map[string]bool)
	for _, cl := range claims() {
		if known[cl.name] {
			t.Fatalf("two claims have the name %s", cl.name)
		}
		known[cl.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.Cannot)) {
		if !known[name] {
			t.Errorf("Cannot names %s, which is no claim", name)
		}
		if c.Cannot[name] == "" {
			t.Errorf("Cannot gives no reason for %s", name)
		}
	}
	s := &suite{t: t, Config: c, rt: c.New(t)}
	t.Cleanup(s.close)
	var hold, cannot, absent, failed int
	for _, cl := range claims() {
		passed := t.Run(cl.name, func(t *testing.T) {
			why := c.Cannot[cl.name]
			if why == "" && cl.shell {
				why = c.NoShell
			}
			if why != "" {
				cannot++
				t.Skipf("cannot be carried: %s (%s)", why, cl.says)
			}
			switch s.run(t, cl) {
			case holds:
				hold++
			case lacks:
				absent++
				t.Skip("the backend lacks this ability")
			default:
				t.Logf("the claim is: %s", cl.says)
			}
		})
		if !passed {
			failed++
		}
	}
	t.Logf("%d claims hold, %d fail, %d cannot be carried, %d concern abilities that it lacks", hold, failed, cannot, absent)
}

// A suite is the state that claims share.
type suite struct {
	Config
	t  *testing.T
	rt sandbox.Runtime
	sb sandbox.Sandbox
	n  int

	spoilt []sandbox.Sandbox // by claims that failed
}

// sharedEnv is the environment of the shared sandbox.
var sharedEnv = map[string]string{"SUITE_SPEC": "from spec", "SUITE_BOTH": "from spec"}

// ready makes the sandbox that claims share.
func (s *suite) ready(t *testing.T) {
	t.Helper()
	if s.sb != nil {
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), s.Patience)
	defer cancel()
	spec := s.Spec
	spec.Env = maps.Clone(sharedEnv)
	maps.Copy(spec.Env, s.Spec.Env)
	sb, err := s.rt.Create(ctx, spec)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	// The first command may start goroutines that stay.
	if _, err := sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"true"}}); err != nil {
		sb.Remove(context.WithoutCancel(ctx))
		t.Fatalf("the first command: %v", err)
	}
	s.sb = sb
}

// close ends what the claims shared.
func (s *suite) close() {
	ctx := context.WithoutCancel(s.t.Context())
	for _, sb := range s.spoilt {
		sb.Remove(ctx)
	}
	if s.sb != nil {
		if err := s.sb.Remove(ctx); err != nil {
			s.t.Errorf("Remove of the shared sandbox: %v", err)
		}
	}
	if err := s.rt.Close(); err != nil {
		s.t.Errorf("Close: %v", err)
	}
}

type verdict int

const (
	holds verdict = iota
	lacks
	fails
)

// run checks one claim. The check has a goroutine of its own, so that one
// that hangs fails and does not hold up the others.
func (s *suite) run(t *testing.T, cl claim) verdict {
	t.Helper()
	s.ready(t)
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
	s.n++
	c := &T{suite: s, t: t, ctx: ctx, Name: cl.name, n: s.n}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.cleanUp()
		cl.check(c)
	}()
	late := time.NewTimer(s.Patience + s.Patience/2)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		c.abandon()
		buf := make([]byte, 1<<20)
		t.Errorf("it did not come to an end; goroutines:\n%s", buf[:runtime.Stack(buf, true)])
	}
	cancel()
	if !t.Failed() {
		s.count(t, before)
	}
	if t.Failed() {
		// The next claim gets another sandbox, whatever state this is in.
		s.spoilt, s.sb = append(s.spoilt, s.sb), nil
		return fails
	}
	if c.lacking {
		return lacks
	}
	return holds
}

// count fails if goroutines were left behind.
func (s *suite) count(t *testing.T, before goleak.Option) {
	t.Helper()
	opts := append([]goleak.Option{before}, s.Leaks...)
	var err error
	for end := time.Now().Add(s.Patience / 4); ; {
		if s.Settle != nil {
			s.Settle()
		}
		if err = goleak.Find(opts...); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Errorf("goroutines are left: %v", err)
			return
		}
	}
}

// A T is one claim being checked.
type T struct {
	*suite
	Name string
	t    *testing.T
	ctx  context.Context
	n    int

	mu        sync.Mutex // guards what follows
	abandoned bool
	cleanups  []func()
	lacking   bool
	made      string
}

// abandon makes the check's goroutine end with its next word.
func (t *T) abandon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned = true
}

// say calls f unless the test is over.
func (t *T) say(f func()) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.abandoned {
		runtime.Goexit()
	}
	f()
}

func (t *T) errorf(format string, args ...any) {
	t.t.Helper()
	t.say(func() { t.t.Helper(); t.t.Errorf(format, args...) })
}

func (t *T) fatalf(format string, args ...any) {
	t.t.Helper()
	t.say(func() { t.t.Helper(); t.t.Errorf(format, args...) })
	runtime.Goexit()
}

// lack ends the check because the backend lacks an ability.
func (t *T) lack() {
	t.lacking = true
	runtime.Goexit()
}

// after has f called when the check has ended, last in first out.
func (t *T) after(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *T) cleanUp() {
	t.mu.Lock()
	fs := t.cleanups
	t.cleanups = nil
	t.mu.Unlock()
	for _, f := range slices.Backward(fs) {
		f()
	}
}

// create makes a sandbox for this claim alone.
func (t *T) create(change func(*sandbox.Spec)) sandbox.Sandbox {
	t.t.Helper()
	spec := t.Spec
	if change != nil {
		change(&spec)
	}
	sb, err := t.rt.Create(t.ctx, spec)
	if err != nil {
		t.fatalf("Create: %v", err)
	}
	t.after(func() {
		if err := sb.Remove(context.WithoutCancel(t.ctx)); err != nil {
			t.errorf("Remove: %v", err)
		}
	})
	return sb
}

// dir returns a directory of the shared sandbox for this claim alone.
func (t *T) dir() string {
	t.t.Helper()
	if t.made == "" {
		t.made = fmt.Sprintf("/workspace/%s.%d", t.Name, t.n)
		if err := t.sb.Files().Mkdir(t.ctx, t.made, sandbox.MkdirOptions{Parents: true}); err != nil {
			t.fatalf("Mkdir %s: %v", t.made, err)
		}
	}
	return t.made
}

// capture runs cmd in sb and fails if that is an error.
func (t *T) capture(sb sandbox.Sandbox, cmd sandbox.Cmd) sandbox.Result {
	t.t.Helper()
	r, err := sandbox.Capture(t.ctx, sb, 1<<20, cmd)
	if err != nil {
		t.fatalf("%q: %v", cmd.Args, err)
	}
	return r
}

// run runs a program in the shared sandbox.
func (t *T) run(args ...string) sandbox.Result {
	t.t.Helper()
	return t.capture(t.sb, sandbox.Cmd{Args: args})
}

// sh runs a script in the shared sandbox, in this claim's directory, and
// returns what it printed. It must succeed.
func (t *T) sh(script string) string {
	t.t.Helper()
	r := t.capture(t.sb, sandbox.Cmd{Args: []string{"sh", "-c", script}, Dir: t.dir()})
	if !r.Success() {
		t.fatalf("%q ended with %+v and said %q", script, r.Exit, r.Stderr)
	}
	return string(r.Stdout)
}

// start starts cmd in the shared sandbox. It is killed when the claim ends.
func (t *T) start(cmd sandbox.Cmd) sandbox.Process {
	t.t.Helper()
	ctx, cancel := context.WithCancel(t.ctx)
	p, err := t.sb.Start(ctx, cmd)
	if err != nil {
		cancel()
		t.fatalf("Start %q: %v", cmd.Args, err)
	}
	t.after(func() { cancel(); p.Wait() })
	return p
}

// wait is p.Wait that does not wait forever.
func (t *T) wait(p sandbox.Process) (sandbox.Exit, error) {
	t.t.Helper()
	type answer struct {
		exit sandbox.Exit
		err  error
	}
	c := make(chan answer, 1)
	go func() {
		e, err := p.Wait()
		c <- answer{e, err}
	}()
	late := time.NewTimer(t.Patience)
	defer late.Stop()
	select {
	case a := <-c:
		return a.exit, a.err
	case <-late.C:
		t.fatalf("Wait does not return")
		return sandbox.Exit{}, nil
	}
}

// until waits for f to be true.
func (t *T) until(what string, f func() bool) {
	t.t.Helper()
	for pause := time.Millisecond; !f(); pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-t.ctx.Done():
			t.fatalf("waited in vain for this: %s", what)
		case <-time.After(pause):
		}
	}
}

// never fails if f becomes true in the time that a defect would take.
func (t *T) never(what string, f func() bool) {
	t.t.Helper()
	for range 10 {
		if f() {
			t.fatalf("%s", what)
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// kind fails unless err is an *Error of one of the kinds and, if field is not
// "", names it.
func (t *T) kind(what string, err error, field string, kinds ...sandbox.Kind) {
	t.t.Helper()
	if err == nil {
		t.errorf("%s: no error, want %v", what, kinds)
		return
	}
	var e *sandbox.Error
	if !errors.As(err, &e) {
		t.errorf("%s: %v (%T) is not an *Error, want kind %v", what, err, err, kinds)
		return
	}
	if !slices.Contains(kinds, sandbox.KindOf(err)) {
		t.errorf("%s: %v has the kind %s, want %v", what, err, e.Kind, kinds)
	}
	if field != "" && e.Field != field {
		t.errorf("%s: %v names the field %q, want %q", what, err, e.Field, field)
	}
}

// canceled fails unless err is that of an ended context.
func (t *T) canceled(what string, err error) {
	t.t.Helper()
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.errorf("%s: %v, want the context's error", what, err)
	}
}

// ok fails if err is not nil.
func (t *T) ok(what string, err error) {
	t.t.Helper()
	if err != nil {
		t.fatalf("%s: %v", what, err)
	}
}

// write stores a file in the shared sandbox.
func (t *T) write(path, data string) {
	t.t.Helper()
	t.ok("Write "+path, sandbox.WriteFile(t.ctx, t.sb, path, []byte(data)))
}

// read returns a file of the shared sandbox.
func (t *T) read(path string) string {
	t.t.Helper()
	b, err := sandbox.ReadFile(t.ctx, t.sb, path, 64<<20)
	t.ok("Open "+path, err)
	return string(b)
}

// exists reports whether the shared sandbox has something at path.
func (t *T) exists(path string) bool {
	t.t.Helper()
	_, err := t.sb.Files().Stat(t.ctx, path)
	if err != nil && !errors.Is(err, sandbox.NotExist) {
		t.fatalf("Stat %s: %v", path, err)
	}
	return err == nil
}

// names returns what is in a directory of the shared sandbox.
func (t *T) names(dir string) []string {
	t.t.Helper()
	var names []string
	for i, err := range t.sb.Files().List(t.ctx, dir) {
		t.ok("List "+dir, err)
		names = append(names, i.Name)
	}
	return names
}

// ids returns the ids of the Runtime's sandboxes, sorted.
func (t *T) ids() []sandbox.ID {
	t.t.Helper()
	var ids []sandbox.ID
	for i, err := range t.rt.List(t.ctx) {
		t.ok("List", err)
		ids = append(ids, i.ID)
	}
	slices.Sort(ids)
	return ids
}

// alive reports whether the shared sandbox has a process with this pid.
func (t *T) alive(pid string) bool {
	t.t.Helper()
	// A zombie can be signalled: where there is a /proc, it tells.
	const script = `kill -0 "$1" 2>/dev/null || exit 1
if [ -r "/proc/$1/stat" ]; then read -r s < "/proc/$1/stat" || exit 1; case "${s##*)}" in " Z"*|" X"*) exit 1;; esac; fi; exit 0`
	r := t.capture(t.sb, sandbox.Cmd{Args: []string{"sh", "-c", script, "sh", pid}, User: "0"})
	return r.Success()
}

// pids waits for the file at path to have n lines, each a pid, and returns
// them.
func (t *T) pids(path string, n int) []string {
	t.t.Helper()
	var pids []string
	t.until(fmt.Sprintf("%d pids in %s", n, path), func() bool {
		b, err := sandbox.ReadFile(t.ctx, t.sb, path, 1<<20)
		if err != nil {
			return false
		}
		if pids = strings.Fields(string(b)); !strings.HasSuffix(string(b), "\n") {
			return false
		}
		return len(pids) >= n
	})
	for _, p := range pids {
		if _, err := strconv.Atoi(p); err != nil {
			t.fatalf("%q is not a pid", p)
		}
	}
	return pids
}

// A sink is a Writer that keeps what it gets, and tells of misuse.
type sink struct {
	busy atomic.Bool

	mu     sync.Mutex // guards what follows
	buf    []byte
	sealed bool
	wrong  string
}

func (s *sink) Write(p []byte) (int, error) {
	overlap := !s.busy.CompareAndSwap(false, true)
	runtime.Gosched()
	s.mu.Lock()
	if overlap {
		s.wrong = "two goroutines wrote at a time"
	}
	if s.sealed {
		s.wrong = "it was written to after Wait had returned"
	}
	s.buf = append(s.buf, p...)
	s.mu.Unlock()
	s.busy.Store(false)
	return len(p), nil
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.buf)
}

// seal says that nothing must come any more.
func (s *sink) seal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed = true
}

func (s *sink) misuse() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrong
}

// A gate is a Writer that lets nothing through until it is opened.
type gate struct {
	first chan struct{} // closed with the first Write
	open  chan struct{}
	once  sync.Once
	n     atomic.Int64
}

func newGate() *gate { return &gate{first: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) Write(p []byte) (int, error) {
	g.once.Do(func() { close(g.first) })
	<-g.open
	g.n.Add(int64(len(p)))
	return len(p), nil
}

// A tap is a Reader that gives what is sent and ends when it is closed.
type tap struct {
	c    chan []byte
	rest []byte
	once sync.Once
}

func newTap() *tap { return &tap{c: make(chan []byte, 64)} }

func (p *tap) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		var ok bool
		if p.rest, ok = <-p.c; !ok {
			return 0, io.EOF
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *tap) send(s string) { p.c <- []byte(s) }

func (p *tap) end() { p.once.Do(func() { close(p.c) }) }

// noise is a Reader of n bytes that look random and are the same each time.
type noise struct {
	n     int64
	state uint64
	used  uint64
}

func newNoise(n int64) *noise { return &noise{n: n, state: 88172645463325252} }

func (r *noise) Read(b []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	if int64(len(b)) > r.n {
		b = b[:r.n]
	}
	for i := range b {
		if r.used%8 == 0 {
			r.state ^= r.state << 13
			r.state ^= r.state >> 7
			r.state ^= r.state << 17
		}
		b[i] = byte(r.state >> (r.used % 8 * 8))
		r.used++
	}
	r.n -= int64(len(b))
	return len(b), nil
}

// errFlow is what failing readers and writers of the suite return.
var errFlow = errors.New("the suite's own error")

// failing is a Reader that gives data and then fails.
type failing struct{ data []byte }

func (r *failing) Read(b []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, errFlow
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}
