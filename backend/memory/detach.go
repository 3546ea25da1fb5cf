package memory

import (
	"context"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	defaultRing = 1 << 20

	// remembered is how many ended detached processes a sandbox remembers;
	// the oldest is forgotten first.
	remembered = 256
)

// A detached is a process that nobody waits for, and its output.
type detached struct {
	b    *box
	id   sandbox.ProcessID
	name string
	root *Proc
	tty  *tty
	in   *pipe // nil without opt.Stdin
	args []string

	// The Runtime's mutex guards what follows.
	started, ended time.Time
	timedOut       bool
	exit           *sandbox.Exit // set when all its output is in the ring
	ring           ring
	eof            bool // Input has closed the input
}

// A ring is the last max bytes of two streams, in the order in which they
// came.
type ring struct {
	chunks []sandbox.Chunk
	start  int64 // the cursor of the first byte that is there
	end    int64 // the cursor of what comes next
	max    int
}

func (r *ring) add(stderr bool, b []byte) {
	r.end += int64(len(b))
	if n := len(r.chunks); n > 0 && r.chunks[n-1].Stderr == stderr && len(r.chunks[n-1].Data) < 32<<10 {
		r.chunks[n-1].Data = append(r.chunks[n-1].Data, b...)
	} else {
		r.chunks = append(r.chunks, sandbox.Chunk{Stderr: stderr, Data: slices.Clone(b)})
	}
	for r.end-r.start > int64(r.max) {
		over := r.end - r.start - int64(r.max)
		first := &r.chunks[0]
		if n := int64(len(first.Data)); n <= over {
			r.chunks = slices.Delete(r.chunks, 0, 1)
			r.start += n
		} else {
			first.Data = slices.Clone(first.Data[over:])
			r.start += over
		}
	}
}

// from returns at most max bytes from cursor on.
func (r *ring) from(cursor int64, max int) sandbox.Output {
	var o sandbox.Output
	if cursor < r.start {
		o.Dropped = r.start - cursor
		cursor = r.start
	}
	o.Next = cursor
	at := r.start
	for _, c := range r.chunks {
		skip := o.Next - at
		at += int64(len(c.Data))
		if skip >= int64(len(c.Data)) || max == 0 {
			continue
		}
		data := c.Data[skip:]
		data = slices.Clone(data[:min(len(data), max)])
		o.Chunks = append(o.Chunks, sandbox.Chunk{Stderr: c.Stderr, Data: data})
		o.Next += int64(len(data))
		max -= len(data)
	}
	return o
}

// ringFile is one stream of a detached process: writing never waits.
type ringFile struct {
	d      *detached
	stderr bool
}

func (f ringFile) close() {}

func (f ringFile) read(p *Proc, b []byte) (int, error) { return 0, ebadf }

func (f ringFile) write(p *Proc, b []byte) (int, error) {
	f.d.ring.add(f.stderr, b)
	f.d.b.cond.Broadcast()
	return len(b), nil
}

// StartDetached starts a process that outlives ctx.
func (b *box) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	id, err := b.startDetached(ctx, cmd, opt)
	return id, sandbox.At(op("StartDetached"), b.id, err)
}

func (b *box) startDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	for _, s := range []struct {
		field string
		set   bool
	}{{"stdin", cmd.Stdin != nil}, {"stdout", cmd.Stdout != nil}, {"stderr", cmd.Stderr != nil}, {"control", cmd.Control != nil}} {
		if s.set {
			return "", sandbox.Errorf(sandbox.Invalid, s.field, "a detached process has none").WithHint("use Input and Output")
		}
	}
	if err := opt.Check(); err != nil {
		return "", err
	}
	if opt.Ring == 0 {
		opt.Ring = defaultRing
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	root, prog, err := b.prepare(cmd)
	if err != nil {
		return "", err
	}
	d := &detached{b: b, name: opt.Name, root: root, args: slices.Clone(cmd.Args), started: time.Now(), ring: ring{max: opt.Ring}}
	if cmd.Terminal != nil {
		d.tty = newTTY(b, *cmd.Terminal)
		f := &file{stream: ttyFile{d.tty}, refs: 3}
		root.fds = map[int]*file{0: f, 1: f, 2: f}
	} else {
		stdin := &file{stream: devFile{devNull}}
		if opt.Stdin {
			d.in = newPipe(b)
			d.in.writers++
			stdin = d.in.reader()
		}
		root.fds = map[int]*file{0: stdin, 1: {stream: ringFile{d, false}}, 2: {stream: ringFile{d, true}}}
		for _, f := range root.fds {
			f.refs++
		}
	}
	if err := b.admit(root); err != nil {
		return "", sandbox.Errorf(sandbox.Exhausted, "limits.pids", "there are as many processes as there may be").WithHint("end some")
	}
	b.lastProc++
	d.id = sandbox.ProcessID(strconv.Itoa(b.lastProc))
	root.pgid, root.sid = root.pid, root.pid
	if d.tty != nil {
		root.tty, d.tty.session, d.tty.fg = d.tty, root.pid, root.pid
		b.wg.Go(d.screen)
	}
	b.detached = append(b.detached, d)
	root.run(prog)
	var timer *time.Timer
	if cmd.Timeout > 0 {
		timer = time.AfterFunc(cmd.Timeout, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if !root.dead {
				d.timedOut = true
				b.killTree(root.tree)
			}
		})
	}
	b.wg.Go(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for !root.dead || d.tty != nil && !d.tty.out.drain {
			b.cond.Wait()
		}
		if timer != nil {
			timer.Stop()
		}
		e := exitOf(root, d.timedOut)
		d.exit, d.ended = &e, time.Now()
		b.forgetOldest()
		b.cond.Broadcast()
	})
	return d.id, nil
}

// screen carries what the terminal shows to the ring.
func (d *detached) screen() {
	buf := make([]byte, 32<<10)
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	for {
		for len(d.tty.out.buf) == 0 && d.tty.out.writers > 0 {
			d.b.cond.Wait()
		}
		n, err := d.tty.out.take(buf)
		if err != nil {
			d.tty.out.drain = true
			d.b.cond.Broadcast()
			return
		}
		d.ring.add(false, buf[:n])
	}
}

func (b *box) forgetOldest() {
	ended := 0
	for _, d := range b.detached {
		if d.exit != nil {
			ended++
		}
	}
	b.detached = slices.DeleteFunc(b.detached, func(d *detached) bool {
		if d.exit == nil || ended <= remembered {
			return false
		}
		ended--
		return true
	})
}

// find returns the detached process with this id. The mutex is held.
func (b *box) find(id sandbox.ProcessID) (*detached, error) {
	if err := b.live(); err != nil {
		return nil, err
	}
	for _, d := range b.detached {
		if d.id == id {
			return d, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.NotExist, "process", "there is no detached process %q", id).WithHint("list them")
}

// Processes describes the detached processes.
func (b *box) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return nil, sandbox.At(op("Processes"), b.id, err)
	}
	var infos []sandbox.ProcessInfo
	for _, d := range b.detached {
		i := sandbox.ProcessInfo{
			ID: d.id, Name: d.name, PID: d.root.pid, Args: slices.Clone(d.args), Started: d.started, Ended: d.ended,
			Cursor: d.ring.end, Dropped: d.ring.start,
		}
		if d.exit != nil {
			e := *d.exit
			i.Exit = &e
		}
		infos = append(infos, i)
	}
	return infos, nil
}

// wake makes those who wait on the cond look again when ctx ends. The
// returned function ends that.
func (b *box) wake(ctx context.Context) func() bool {
	return context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.cond.Broadcast()
	})
}

// Output reads from the ring.
func (b *box) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	o, err := b.output(ctx, id, cursor, max, wait)
	return o, sandbox.At(op("Output"), b.id, err)
}

func (b *box) output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Output{}, err
	}
	switch {
	case cursor < 0:
		return sandbox.Output{}, sandbox.Errorf(sandbox.Invalid, "cursor", "%d is negative", cursor).WithHint("begin with 0")
	case max <= 0:
		return sandbox.Output{}, sandbox.Errorf(sandbox.Invalid, "max", "%d bytes is no answer", max).WithHint("give a positive number")
	}
	defer b.wake(ctx)()
	late := wait <= 0
	if !late {
		t := time.AfterFunc(wait, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			late = true
			b.cond.Broadcast()
		})
		defer t.Stop()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		d, err := b.find(id)
		switch {
		case err != nil:
			return sandbox.Output{}, err
		case cursor > d.ring.end:
			return sandbox.Output{}, sandbox.Errorf(sandbox.Invalid, "cursor", "%d lies past the end, %d", cursor, d.ring.end).WithHint("use the Next of the answer before")
		case ctx.Err() != nil:
			return sandbox.Output{}, ctx.Err()
		}
		if d.exit != nil || d.ring.end > cursor || late {
			o := d.ring.from(cursor, max)
			if d.exit != nil && o.Next == d.ring.end {
				e := *d.exit
				o.Exit = &e
			}
			return o, nil
		}
		b.cond.Wait()
	}
}

// Input writes to the process's input.
func (b *box) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	n, err := b.input(ctx, id, p, eof)
	return n, sandbox.At(op("Input"), b.id, err)
}

func (b *box) input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d, err := b.find(id)
	if err != nil {
		return 0, err
	}
	defer b.wake(ctx)()
	shut := sandbox.Errorf(sandbox.Conflict, "", "the process's input is closed").WithHint("start it with an input")
	if d.tty != nil {
		for i, c := range p {
			for d.tty.full() && !d.root.dead && ctx.Err() == nil {
				b.cond.Wait()
			}
			switch {
			case b.gone:
				return i, b.live()
			case d.root.dead:
				return i, shut
			case ctx.Err() != nil:
				return i, ctx.Err()
			}
			d.tty.typed(c)
		}
		return len(p), nil
	}
	n := 0
	for {
		switch {
		case b.gone:
			return n, b.live()
		case d.in == nil || d.eof || d.in.readers == 0:
			return n, shut
		case ctx.Err() != nil:
			return n, ctx.Err()
		}
		if n == len(p) {
			break
		}
		if !d.in.ready() {
			b.cond.Wait()
			continue
		}
		m, err := d.in.put(p[n:])
		n += m
		if err != nil {
			return n, shut
		}
	}
	if eof {
		d.eof = true
		d.in.writers--
		b.cond.Broadcast()
	}
	return n, nil
}

// Forget drops an ended process.
func (b *box) Forget(ctx context.Context, id sandbox.ProcessID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d, err := b.find(id)
	if err == nil && d.exit == nil {
		err = sandbox.Errorf(sandbox.Conflict, "process", "process %s still runs", id).WithHint("signal it first")
	}
	if err != nil {
		return sandbox.At(op("Forget"), b.id, err)
	}
	b.detached = slices.DeleteFunc(b.detached, func(e *detached) bool { return e == d })
	b.cond.Broadcast()
	return nil
}

// An attachment is a detached process as one caller sees it.
type attachment struct {
	*detached
	done chan struct{}
	e    sandbox.Exit
	err  error
}

// Attach returns a detached process.
func (b *box) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	d, err := b.find(id)
	if err == nil && opt.Cursor > d.ring.end {
		err = sandbox.Errorf(sandbox.Invalid, "cursor", "%d lies past the end, %d", opt.Cursor, d.ring.end).WithHint("use the Next of an answer")
	}
	if err != nil {
		return nil, sandbox.At(op("Attach"), b.id, err)
	}
	if opt.Cursor < 0 {
		opt.Cursor = d.ring.end
	}
	a := &attachment{detached: d, done: make(chan struct{})}
	b.wg.Go(func() { a.follow(ctx, opt) })
	return a, nil
}

// follow hands the output over and waits for the end.
func (a *attachment) follow(ctx context.Context, opt sandbox.AttachOptions) {
	defer close(a.done)
	b := a.b
	defer b.wake(ctx)()
	var failed error
	failedOut, failedErr := opt.Stdout == nil, opt.Stderr == nil
	for {
		b.mu.Lock()
		for a.exit == nil && a.ring.end == opt.Cursor && ctx.Err() == nil && !b.gone {
			b.cond.Wait()
		}
		o := a.ring.from(opt.Cursor, 64<<10)
		exit, gone := a.exit, b.gone
		b.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			a.e, a.err = sandbox.Exit{Code: -1}, ctx.Err()
			return
		case gone:
			a.e, a.err = sandbox.Exit{Code: -1, Reason: sandbox.Signalled, Signal: sandbox.KILL}, sandbox.At(op("Wait"), b.id, errGone())
			return
		}
		opt.Cursor = o.Next
		for _, c := range o.Chunks {
			w, bad := opt.Stdout, &failedOut
			if c.Stderr {
				w, bad = opt.Stderr, &failedErr
			}
			if *bad {
				continue
			}
			n, err := w.Write(c.Data)
			if err == nil && n < len(c.Data) {
				err = io.ErrShortWrite
			}
			if err != nil {
				*bad = true
				if failed == nil {
					failed = err
				}
			}
		}
		if exit != nil && len(o.Chunks) == 0 {
			a.e, a.err = *exit, failed
			return
		}
	}
}

func (a *attachment) ID() sandbox.ProcessID { return a.id }

func (a *attachment) PID() int { return a.root.pid }

func (a *attachment) Wait() (sandbox.Exit, error) {
	<-a.done
	return a.e, a.err
}

func (a *attachment) Signal(ctx context.Context, sig sandbox.Signal) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := a.b.signal(a.root, sig); err != nil || sig != sandbox.KILL {
		return sandbox.At(op("Signal"), a.b.id, err)
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.b.killTree(a.root.tree) // it may have ended and left some behind
	return nil
}

func (a *attachment) Resize(ctx context.Context, size sandbox.Size) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.tty == nil {
		return sandbox.At(op("Resize"), a.b.id, errNoTerminal())
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.tty.resize(size)
	return nil
}
