package engine

import (
	"context"
	"io"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Start starts a process under the profile's bounds. The sandbox is in use
// until it has ended.
func (b box) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	const op = "engine.Start"
	p, err := b.start(ctx, cmd)
	if err != nil {
		return nil, b.fail(op, err)
	}
	return p, nil
}

func (b box) start(ctx context.Context, cmd sandbox.Cmd) (_ sandbox.Process, err error) {
	begun := time.Now()
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	if err := b.e.run(b.en.owner); err != nil {
		return nil, err
	}
	sb, done, err := b.use(ctx)
	if err != nil {
		b.e.ran(b.en.owner)
		return nil, err
	}
	defer func() {
		if err != nil {
			b.e.ran(b.en.owner)
			done()
			b.e.metrics.startFailed(b.en.class, err)
		}
	}()
	if err := b.quota(ctx, sb, "before the command"); err != nil {
		return nil, err
	}
	cmd = b.en.prof.Cmd(cmd)
	p := &process{b: b, end: make(chan struct{})}
	if max := b.en.prof.MaxOutput; max > 0 {
		boundOutput(&cmd, max)
	}
	if p.Process, err = sb.Start(ctx, cmd); err != nil {
		return nil, err
	}
	b.e.metrics.started(b.en.class, time.Since(begun))
	b.e.emit(sandbox.Event{Kind: sandbox.EventStarted, Owner: b.en.owner, By: b.by, Sandbox: b.en.id, Name: b.en.name, Detail: b.e.command(cmd.Args)})
	go func() {
		defer b.e.leave() // begin has counted it
		p.wait(ctx, sb, begun)
		// Whoever is told that it has ended may rely on its place being free.
		b.e.ran(b.en.owner)
		b.e.rest(b.en)
		close(p.end)
	}()
	return p, nil
}

// command returns what an event tells of a command.
func (e *Engine) command(args []string) string {
	if e.cfg.AuditArgs {
		return clip(strings.Join(args, " "))
	}
	return clip(path.Base(args[0]))
}

func clip(s string) string {
	const max = 400
	if len(s) > max {
		s = s[:max] + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// run counts a process that somebody waits for, or refuses it.
func (e *Engine) run(o sandbox.Owner) error {
	all := e.above(o)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range all {
		if max := e.cfg.Owners[a].MaxRunning; max > 0 && e.running[a] >= max {
			e.metrics.refused("running")
			return sandbox.Errorf(sandbox.Exhausted, "", "%d commands run for %s, as many as may", max, a).WithHint("wait until one has ended")
		}
	}
	for _, a := range all {
		e.running[a]++
	}
	return nil
}

func (e *Engine) ran(o sandbox.Owner) {
	all := e.above(o)
	if len(all) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range all {
		if e.running[a]--; e.running[a] == 0 {
			delete(e.running, a)
		}
	}
}

// A process is one that somebody waits for.
type process struct {
	sandbox.Process
	b box

	end  chan struct{} // closed when exit and err are there
	exit sandbox.Exit
	err  error
}

// wait waits for the process below and settles what came of it.
func (p *process) wait(ctx context.Context, sb sandbox.Sandbox, begun time.Time) {
	const op = "engine.Wait"
	b := p.b
	exit, err := p.Process.Wait()
	if err == nil {
		err = b.quota(context.WithoutCancel(ctx), sb, "after the command")
	}
	p.exit, p.err = exit, b.fail(op, err)
	b.e.metrics.ended(b.en.class, exit, p.err, time.Since(begun))
	ev := sandbox.Event{Kind: sandbox.EventEnded, Owner: b.en.owner, By: b.by, Sandbox: b.en.id, Name: b.en.name, Detail: string(exit.Reason)}
	if exit.Reason == sandbox.OutOfMemory {
		ev.Kind = sandbox.EventOOM
	}
	b.e.emit(ev)
}

func (p *process) Wait() (sandbox.Exit, error) {
	<-p.end
	return p.exit, p.err
}

func (p *process) Signal(ctx context.Context, sig sandbox.Signal) error {
	return p.b.fail("engine.Signal", p.Process.Signal(ctx, sig))
}

func (p *process) Resize(ctx context.Context, size sandbox.Size) error {
	return p.b.fail("engine.Resize", p.Process.Resize(ctx, size))
}

// boundOutput has the command's caller get at most max bytes of each stream. What is
// more is dropped, and Wait says so.
func boundOutput(cmd *sandbox.Cmd, max int64) {
	out, err := cmd.Stdout, cmd.Stderr
	if out != nil {
		cmd.Stdout = &boundedWriter{w: out, left: max, what: "stdout", max: max}
	}
	switch {
	case err == nil:
	case out != nil && same(out, err):
		cmd.Stderr = cmd.Stdout
	default:
		cmd.Stderr = &boundedWriter{w: err, left: max, what: "stderr", max: max}
	}
}

func same(a, b io.Writer) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// A boundedWriter writes what it may, and then fails, so that the rest of the
// stream is discarded. One goroutine writes at a time.
type boundedWriter struct {
	w         io.Writer
	left, max int64
	what      string
}

func (w *boundedWriter) Write(b []byte) (int, error) {
	n := min(int64(len(b)), w.left)
	w.left -= n
	if n > 0 {
		if k, err := w.w.Write(b[:n]); err != nil {
			return k, err
		}
	}
	if n < int64(len(b)) {
		return int(n), sandbox.Errorf(sandbox.Exhausted, w.what, "the command wrote more than %d bytes; the rest is dropped", w.max).WithHint("have it write less, or into a file")
	}
	return len(b), nil
}

// StartDetached starts a process that outlives its caller. While it runs, the
// sandbox is not idle.
func (b box) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	id, err := b.startDetached(ctx, cmd, opt)
	return id, b.fail("engine.StartDetached", err)
}

func (b box) startDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	d, sb, done, err := b.detacher(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	if err := b.quota(ctx, sb, "before the command"); err != nil {
		return "", err
	}
	// One at a time, so that the number holds.
	select {
	case b.en.changing <- struct{}{}:
		defer func() { <-b.en.changing }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if max := b.en.prof.MaxJobs; max > 0 {
		ps, err := d.Processes(ctx)
		if err != nil {
			return "", err
		}
		if len(ps) >= max {
			b.e.metrics.refused("jobs")
			return "", sandbox.Errorf(sandbox.Exhausted, "", "the sandbox has %d detached processes, ended ones included, as many as it may", len(ps)).
				WithHint("forget those that have ended, or end some")
		}
	}
	cmd, opt = b.en.prof.DetachedCmd(cmd), b.en.prof.Detach(opt)
	b.e.mu.Lock()
	b.en.detached = true
	b.e.mu.Unlock()
	id, err := d.StartDetached(ctx, cmd, opt)
	if err == nil {
		b.e.emit(sandbox.Event{Kind: sandbox.EventStarted, Owner: b.en.owner, By: b.by, Sandbox: b.en.id, Name: b.en.name, Detail: b.e.command(cmd.Args)})
	}
	return id, err
}

var errNoDetached = sandbox.Errorf(sandbox.Unsupported, "", "this backend has no detached processes")

func (b box) detacher(ctx context.Context) (sandbox.Detacher, sandbox.Sandbox, func(), error) {
	sb, done, err := b.use(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	d, ok := sb.(sandbox.Detacher)
	if !ok {
		done()
		return nil, nil, nil, errNoDetached
	}
	return d, sb, done, nil
}

// Processes returns the detached processes. To look is not to use: one that
// runs keeps the sandbox anyway.
func (b box) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	const op = "engine.Processes"
	sb, done, err := b.look(ctx)
	if err != nil {
		return nil, b.fail(op, err)
	}
	defer done()
	d, ok := sb.(sandbox.Detacher)
	if !ok {
		return nil, b.fail(op, errNoDetached)
	}
	ps, err := d.Processes(ctx)
	return ps, b.fail(op, err)
}

// Attach attaches to a detached process. The sandbox is in use while that
// lasts.
func (b box) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	const op = "engine.Attach"
	d, _, done, err := b.detacher(ctx)
	if err != nil {
		return nil, b.fail(op, err)
	}
	below, err := d.Attach(ctx, id, opt)
	if err != nil {
		done()
		return nil, b.fail(op, err)
	}
	p := &process{Process: below, b: b, end: make(chan struct{})}
	go func() {
		defer b.e.leave() // begin has counted it
		exit, err := below.Wait()
		p.exit, p.err = exit, b.fail(op, err)
		b.e.rest(b.en)
		close(p.end)
	}()
	return p, nil
}

func (b box) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (out sandbox.Output, err error) {
	d, _, done, err := b.detacher(ctx)
	if err == nil {
		defer done()
		out, err = d.Output(ctx, id, cursor, max, wait)
	}
	return out, b.fail("engine.Output", err)
}

func (b box) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (n int, err error) {
	d, _, done, err := b.detacher(ctx)
	if err == nil {
		defer done()
		n, err = d.Input(ctx, id, p, eof)
	}
	return n, b.fail("engine.Input", err)
}

func (b box) Forget(ctx context.Context, id sandbox.ProcessID) error {
	d, _, done, err := b.detacher(ctx)
	if err == nil {
		defer done()
		err = d.Forget(ctx, id)
	}
	return b.fail("engine.Forget", err)
}
