package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A Ref says which job is meant. The zero Ref means none.
type Ref struct {
	by   string // "id", "name", "pid"
	text string
	pid  int
}

// ByID means the job with this id.
func ByID(id sandbox.ProcessID) Ref { return Ref{by: "id", text: string(id)} }

// ByName means the job with this name: the newest, should there be several.
func ByName(name string) Ref { return Ref{by: "name", text: name} }

// ByPID means the job whose process has this pid, as the sandbox sees it: the
// newest, as pids are used again.
func ByPID(pid int) Ref { return Ref{by: "pid", pid: pid} }

// String returns the job in words, for messages.
func (r Ref) String() string {
	switch r.by {
	case "id":
		return "process " + clip(r.text)
	case "name":
		return fmt.Sprintf("process named %q", clip(r.text))
	case "pid":
		return fmt.Sprintf("process with pid %d", r.pid)
	}
	return "process without a name"
}

func (r Ref) means(i *Info) bool {
	switch r.by {
	case "id":
		return r.text == string(i.ID)
	case "name":
		return r.text != "" && r.text == i.Name
	case "pid":
		return r.pid != 0 && r.pid == i.PID
	}
	return false
}

// A Spec says what job is wanted.
type Spec struct {
	// Name is what the caller calls it: any bytes, up to MaxName. No two
	// running jobs of a sandbox have one name. "" is no name: the job has an
	// id alone.
	Name string

	// Cmd is what runs. Its Stdin, Stdout, Stderr and Control are nil, its
	// Timeout bounds the job.
	Cmd sandbox.Cmd

	Stdin bool // it gets an input, for Input and Relay.Write
	Ring  int  // how many bytes of its output are kept; 0 is 1 MiB, at most [sandbox.MaxRing]

	// Replace ends a running job of the same name first, as Stop does. Without
	// it that is [sandbox.Conflict] with Field "name".
	Replace bool
}

// An Info is what is true of a job.
type Info struct {
	ID      sandbox.ProcessID
	Name    string
	PID     int // 0 where the backend has none
	Started time.Time
	Ended   time.Time     // zero while it runs
	Exit    *sandbox.Exit // nil while it runs
	Cursor  int64         // bytes of output so far, both streams
	Dropped int64         // of those, from the first on, how many are no longer there

	// Args are the program and its arguments. After a restart of the daemon
	// long ones are cut, and Adopted says that Dir and EnvNames are not known.
	Args     []string
	Dir      string   // as it was asked for
	EnvNames []string // of the variables that were asked for, sorted; never their values
	Adopted  bool     // this Table did not start it

	Attached bool  // somebody reads it through a Relay
	Read     int64 // where the last such reader stopped in the output; -1 if this Table does not know of one

	// Stderr is the last of the error output, at most Config.Preview
	// characters, as text. [Table.List] leaves it out.
	Stderr string
}

// Running reports whether the job has not ended.
func (i *Info) Running() bool { return i.Exit == nil }

// words are what was asked for, where it is not too long to remember.
type words struct {
	args  []string
	dir   string
	names []string
}

// mostWords is how many bytes of a command are remembered.
const mostWords = 8 << 10

func wordsOf(cmd *sandbox.Cmd) *words {
	w := &words{args: slices.Clone(cmd.Args), dir: cmd.Dir, names: slices.Sorted(maps.Keys(cmd.Env))}
	n := 0
	for _, a := range w.args {
		n += len(a) + 16
	}
	for _, a := range w.names {
		n += len(a) + 16
	}
	if n > mostWords {
		w.args, w.names = nil, nil
	}
	return w
}

// Start starts a job. ctx bounds the starting alone.
//
// A name that is too long is [sandbox.Invalid] with Field "name"; more jobs
// than may run are [sandbox.Exhausted]; the rest is as for
// [sandbox.Detacher.StartDetached]. Ended jobs of the same name are forgotten
// once the new one runs.
func (t *Table) Start(ctx context.Context, sb sandbox.Sandbox, spec Spec) (Info, error) {
	i, err := t.start(ctx, sb, spec)
	return i, sandbox.At("job.Start", sb.ID(), err)
}

func (t *Table) start(ctx context.Context, sb sandbox.Sandbox, spec Spec) (Info, error) {
	d, err := detacher(sb)
	if err != nil {
		return Info{}, err
	}
	if n, most := len(spec.Name), MaxName-len(t.prefix); n > most {
		return Info{}, sandbox.Errorf(sandbox.Invalid, "name", "the name has %d bytes, more than %d", n, most).WithHint("use a shorter one")
	}
	if err := spec.Cmd.Check(); err != nil { // before anything is ended for it
		return Info{}, err
	}
	if spec.Name != "" {
		unlock, err := t.lock(ctx, lockKey{sb.ID(), "name", spec.Name})
		if err != nil {
			return Info{}, err
		}
		defer unlock()
	}
	for {
		i, busy, err := t.tryStart(ctx, sb, d, &spec)
		switch {
		case err != nil || busy == nil:
			return i, err
		case !spec.Replace:
			return Info{}, sandbox.Errorf(sandbox.Conflict, "name", "a %s runs", ByName(spec.Name)).WithHint("stop it, or ask for it to be replaced")
		}
		// What is gone now is as good as ended; that the sandbox is gone the
		// next round finds.
		if _, err := t.end(ctx, sb.ID(), d, busy.ID, t.cfg.Grace); err != nil && sandbox.KindOf(err) != sandbox.NotExist {
			return Info{}, err
		}
	}
}

// tryStart starts a job unless one of the same name runs, which it returns.
func (t *Table) tryStart(ctx context.Context, sb sandbox.Sandbox, d sandbox.Detacher, spec *Spec) (Info, *Info, error) {
	// One at a time, or two would both find the last free place.
	unlock, err := t.lock(ctx, lockKey{sb: sb.ID(), what: "start"})
	if err != nil {
		return Info{}, nil, err
	}
	defer unlock()
	all, err := t.list(ctx, sb, d)
	if err != nil {
		return Info{}, nil, err
	}
	running := 0
	var before []sandbox.ProcessID
	for _, i := range all {
		same := spec.Name != "" && i.Name == spec.Name
		switch {
		case same && i.Running():
			return Info{}, &i, nil
		case same:
			before = append(before, i.ID)
		case i.Running():
			running++
		}
	}
	if running >= t.cfg.Running {
		return Info{}, nil, sandbox.Errorf(sandbox.Exhausted, "", "%d processes run in this sandbox, as many as there may be", running).WithHint("stop some")
	}
	if err := t.reserve(ctx); err != nil {
		return Info{}, nil, err
	}
	began := time.Now()
	id, err := d.StartDetached(ctx, spec.Cmd, sandbox.DetachOptions{Stdin: spec.Stdin, Ring: spec.Ring, Name: t.inside(spec.Name)})
	if err != nil {
		t.release()
		return Info{}, nil, err
	}
	t.mu.Lock()
	r := t.record(sb, id)
	r.words, r.running, r.known = wordsOf(&spec.Cmd), true, true
	t.mu.Unlock()
	t.release()

	// It runs: nothing that fails from here on changes that.
	for _, old := range before {
		d.Forget(ctx, old)
	}
	if all, err := t.list(ctx, sb, d); err == nil {
		for _, i := range all {
			if i.ID == id {
				return i, nil, nil
			}
		}
	}
	return t.info(sb.ID(), sandbox.ProcessInfo{ID: id, Args: spec.Cmd.Args, Started: began}, spec.Name), nil, nil
}

// processes asks the sandbox for its processes, and learns from the answer.
func (t *Table) processes(ctx context.Context, sb sandbox.Sandbox, d sandbox.Detacher) ([]sandbox.ProcessInfo, error) {
	since := t.now()
	ps, err := d.Processes(ctx)
	switch {
	case err == nil:
		t.saw(sb.ID(), ps, since)
	case sandbox.KindOf(err) == sandbox.NotExist:
		t.Drop(sb.ID())
	}
	return ps, err
}

// list returns the jobs of this Table, oldest first, without those whose time
// has passed, which it forgets.
func (t *Table) list(ctx context.Context, sb sandbox.Sandbox, d sandbox.Detacher) ([]Info, error) {
	ps, err := t.processes(ctx, sb, d)
	if err != nil {
		return nil, err
	}
	var all, ended []Info
	for _, p := range ps {
		name, ok := t.outside(p.Name)
		if !ok {
			continue
		}
		i := t.info(sb.ID(), p, name)
		all = append(all, i)
		if !i.Running() && !i.Attached {
			ended = append(ended, i)
		}
	}
	slices.SortStableFunc(ended, func(a, b Info) int { return cmp.Compare(a.Ended.UnixNano(), b.Ended.UnixNano()) })
	past := make(map[sandbox.ProcessID]bool)
	for n, i := range ended {
		if len(ended)-n > t.cfg.Keep || t.cfg.Retention > 0 && time.Since(i.Ended) >= t.cfg.Retention {
			past[i.ID] = true
			d.Forget(ctx, i.ID) // if it fails, whoever looks next tries again
		}
	}
	return slices.DeleteFunc(all, func(i Info) bool { return past[i.ID] }), nil
}

// info returns what is known of a process.
func (t *Table) info(sb sandbox.ID, p sandbox.ProcessInfo, name string) Info {
	i := Info{
		ID: p.ID, Name: name, PID: p.PID, Started: p.Started, Ended: p.Ended, Exit: p.Exit,
		Cursor: p.Cursor, Dropped: p.Dropped, Args: p.Args, Adopted: true, Read: -1,
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.boxes[sb]
	if b == nil || b.jobs[p.ID] == nil {
		return i
	}
	r := b.jobs[p.ID]
	i.Attached = r.reader != nil
	if r.known {
		i.Read = r.read[0]
	}
	if w := r.words; w != nil {
		i.Adopted, i.Dir, i.EnvNames = false, w.dir, slices.Clone(w.names)
		if w.args != nil {
			i.Args = slices.Clone(w.args)
		}
	}
	return i
}

// find returns the job that ref means.
func (t *Table) find(ctx context.Context, sb sandbox.Sandbox, ref Ref) (sandbox.Detacher, Info, error) {
	d, err := detacher(sb)
	if err != nil {
		return nil, Info{}, err
	}
	all, err := t.list(ctx, sb, d)
	if err != nil {
		return nil, Info{}, err
	}
	for _, i := range slices.Backward(all) {
		if ref.means(&i) {
			return d, i, nil
		}
	}
	return nil, Info{}, unknown(ref)
}

func unknown(ref Ref) error {
	return sandbox.Errorf(sandbox.NotExist, "process", "there is no %s", ref).WithHint("list them: one that has ended is forgotten after a while")
}

// Get returns what is true of a job, or [sandbox.NotExist].
func (t *Table) Get(ctx context.Context, sb sandbox.Sandbox, ref Ref) (Info, error) {
	d, i, err := t.find(ctx, sb, ref)
	if err == nil {
		i.Stderr, err = t.preview(ctx, sb, d, &i)
	}
	return i, sandbox.At("job.Get", sb.ID(), err)
}

// List returns the jobs of a sandbox that run, and those ended ones that are
// still kept, oldest first.
func (t *Table) List(ctx context.Context, sb sandbox.Sandbox) ([]Info, error) {
	d, err := detacher(sb)
	if err != nil {
		return nil, sandbox.At("job.List", sb.ID(), err)
	}
	all, err := t.list(ctx, sb, d)
	return all, sandbox.At("job.List", sb.ID(), err)
}

// Input writes to a job's standard input, after those who write already, and
// with eof closes it. It returns when the job or its pipe has taken the bytes;
// if ctx ends first, the count says how much was written. An input that is
// closed, or never was, is [sandbox.Conflict].
func (t *Table) Input(ctx context.Context, sb sandbox.Sandbox, ref Ref, p []byte, eof bool) (int, error) {
	d, i, err := t.find(ctx, sb, ref)
	n := 0
	if err == nil {
		n, err = t.input(ctx, sb.ID(), d, i.ID, p, eof)
	}
	return n, sandbox.At("job.Input", sb.ID(), err)
}

func (t *Table) input(ctx context.Context, sb sandbox.ID, d sandbox.Detacher, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	unlock, err := t.lock(ctx, lockKey{sb, "input", string(id)})
	if err != nil {
		return 0, err
	}
	defer unlock()
	return d.Input(ctx, id, p, eof)
}

// CloseInput closes a job's standard input. That it is closed already is no
// error.
func (t *Table) CloseInput(ctx context.Context, sb sandbox.Sandbox, ref Ref) error {
	_, err := t.Input(ctx, sb, ref, nil, true)
	if sandbox.KindOf(err) == sandbox.Conflict {
		return nil
	}
	return err
}

// Signal sends a signal to a job's process and its group, KILL to its whole
// tree. One that has ended gets nothing, which is no error.
func (t *Table) Signal(ctx context.Context, sb sandbox.Sandbox, ref Ref, sig sandbox.Signal) error {
	d, i, err := t.find(ctx, sb, ref)
	if err == nil {
		err = signal(ctx, d, i.ID, sig)
	}
	return sandbox.At("job.Signal", sb.ID(), err)
}

// Resize sets the size of a job's terminal. Without one it is
// [sandbox.Unsupported].
func (t *Table) Resize(ctx context.Context, sb sandbox.Sandbox, ref Ref, size sandbox.Size) error {
	d, i, err := t.find(ctx, sb, ref)
	if err == nil {
		err = attached(ctx, d, i.ID, func(p sandbox.Process) error { return p.Resize(ctx, size) })
	}
	return sandbox.At("job.Resize", sb.ID(), err)
}

// Wait waits for a job to end and returns how it did. When ctx ends first its
// error is returned, and the job goes on.
func (t *Table) Wait(ctx context.Context, sb sandbox.Sandbox, ref Ref) (sandbox.Exit, error) {
	d, i, err := t.find(ctx, sb, ref)
	if err != nil {
		return sandbox.Exit{}, sandbox.At("job.Wait", sb.ID(), err)
	}
	if i.Exit != nil {
		return *i.Exit, nil
	}
	exit, err := wait(ctx, d, i.ID)
	return exit, sandbox.At("job.Wait", sb.ID(), err)
}

// attached calls do with the attached process and ends the attachment.
func attached(ctx context.Context, d sandbox.Detacher, id sandbox.ProcessID, do func(sandbox.Process) error) error {
	ctx, cancel := context.WithCancel(ctx)
	p, err := d.Attach(ctx, id, sandbox.AttachOptions{})
	if err != nil {
		cancel()
		return err
	}
	err = do(p)
	cancel()
	p.Wait()
	return err
}

func signal(ctx context.Context, d sandbox.Detacher, id sandbox.ProcessID, sig sandbox.Signal) error {
	return attached(ctx, d, id, func(p sandbox.Process) error { return p.Signal(ctx, sig) })
}

func wait(ctx context.Context, d sandbox.Detacher, id sandbox.ProcessID) (sandbox.Exit, error) {
	p, err := d.Attach(ctx, id, sandbox.AttachOptions{})
	if err != nil {
		return sandbox.Exit{}, err
	}
	return p.Wait()
}

// End ends a job with all that came of it, and returns how it ended: its input
// is closed, it gets TERM, and after grace (0 is that of the Config) KILL. It
// is kept as any ended job is. One that has ended already loses what it left
// running. If ctx ends first, the job may live on.
func (t *Table) End(ctx context.Context, sb sandbox.Sandbox, ref Ref, grace time.Duration) (sandbox.Exit, error) {
	exit, err := t.stop(ctx, sb, ref, grace, false)
	return exit, sandbox.At("job.End", sb.ID(), err)
}

// Stop ends a job as [Table.End] does, and forgets it.
func (t *Table) Stop(ctx context.Context, sb sandbox.Sandbox, ref Ref) (sandbox.Exit, error) {
	exit, err := t.stop(ctx, sb, ref, 0, true)
	return exit, sandbox.At("job.Stop", sb.ID(), err)
}

func (t *Table) stop(ctx context.Context, sb sandbox.Sandbox, ref Ref, grace time.Duration, forget bool) (sandbox.Exit, error) {
	if grace <= 0 {
		grace = t.cfg.Grace
	}
	d, i, err := t.find(ctx, sb, ref)
	if err != nil {
		return sandbox.Exit{}, err
	}
	if i.Name != "" { // who starts one of this name meanwhile waits
		unlock, err := t.lock(ctx, lockKey{sb.ID(), "name", i.Name})
		if err != nil {
			return sandbox.Exit{}, err
		}
		defer unlock()
	}
	exit, err := t.end(ctx, sb.ID(), d, i.ID, grace)
	if err == nil && forget {
		if err = d.Forget(ctx, i.ID); sandbox.KindOf(err) == sandbox.NotExist {
			err = nil // somebody was faster
		}
	}
	return exit, err
}

// end ends a process and its tree.
func (t *Table) end(ctx context.Context, sb sandbox.ID, d sandbox.Detacher, id sandbox.ProcessID, grace time.Duration) (exit sandbox.Exit, err error) {
	err = attached(ctx, d, id, func(p sandbox.Process) error {
		// Who writes to one that does not read may not hold this up.
		soon, cancel := context.WithTimeout(ctx, time.Second)
		t.input(soon, sb, d, id, nil, true)
		cancel()
		if err := p.Signal(ctx, sandbox.TERM); err != nil {
			return err
		}
		patient, cancel := context.WithTimeout(ctx, grace)
		defer cancel()
		exit, err = wait(patient, d, id)
		if err != nil && (patient.Err() == nil || ctx.Err() != nil) {
			return err
		}
		late := err != nil
		// Also when it has ended: it may have left others behind.
		err = p.Signal(ctx, sandbox.KILL)
		if !late && sandbox.KindOf(err) == sandbox.NotExist {
			err = nil // and been forgotten
		}
		if !late || err != nil {
			return err
		}
		last, cancel := context.WithTimeout(ctx, dying)
		defer cancel()
		if exit, err = wait(last, d, id); err != nil && last.Err() != nil && ctx.Err() == nil {
			err = sandbox.Errorf(sandbox.Unavailable, "", "the process was killed, but is not gone yet").WithHint("try again")
		}
		return err
	})
	return exit, err
}

// Forget drops what is kept of an ended job. A running one is
// [sandbox.Conflict].
func (t *Table) Forget(ctx context.Context, sb sandbox.Sandbox, ref Ref) error {
	d, i, err := t.find(ctx, sb, ref)
	if err == nil {
		err = d.Forget(ctx, i.ID)
	}
	return sandbox.At("job.Forget", sb.ID(), err)
}

// clip shortens s for a message.
func clip(s string) string {
	if len(s) > 64 {
		return s[:61] + "..."
	}
	return s
}
