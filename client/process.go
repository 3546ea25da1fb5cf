package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// Start starts a process. Its life is that of the connection to the daemon,
// too: if that breaks, the process is killed.
//
// One connection carries all streams, so a Stdout that blocks for good keeps
// Stderr and Control from getting anything, and the other way round.
func (s *Sandbox) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	const op = "client.Start"
	w, err := wire.CmdOf(cmd)
	if err != nil {
		return nil, sandbox.At(op, s.id, err)
	}
	req := wire.Exec{Cmd: w}
	switch {
	case cmd.Stdout == nil && cmd.Stderr == nil:
		req.Discard = []string{"stdout", "stderr"}
	case cmd.Stdout == nil:
		req.Discard = []string{"stdout"}
	case cmd.Stderr == nil:
		req.Discard = []string{"stderr"}
	default:
		req.Merge = same(cmd.Stdout, cmd.Stderr)
	}
	req.Control = cmd.Control != nil
	p := &process{sb: s, op: op, ctx: ctx, stdout: cmd.Stdout, stderr: cmd.Stderr, fd3: cmd.Control, terminal: cmd.Terminal != nil, done: make(chan struct{})}
	if known, ok := short(cmd.Stdin); cmd.Stdin == nil || ok {
		req.Stdin = known
		err = p.post(req)
	} else {
		err = p.upgrade(req, cmd.Stdin)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// same reports whether a and b are the same Writer, so far as that can be
// told.
func same(a, b io.Writer) (yes bool) {
	defer func() { recover() }() // comparing what is not comparable panics
	return a == b
}

// short returns what is left in r if that is known and fits into a request.
func short(r io.Reader) ([]byte, bool) {
	var n int
	switch r := r.(type) {
	case *bytes.Reader:
		n = r.Len()
	case *bytes.Buffer:
		n = r.Len()
	case *strings.Reader:
		n = r.Len()
	default:
		return nil, false
	}
	if n > wire.MaxStdin {
		return nil, false
	}
	b, err := io.ReadAll(r)
	return b, err == nil
}

// A process is one whose stream is being read.
type process struct {
	sb       *Sandbox
	op       string
	ctx      context.Context // of Start or Attach: what it bounds is this value's whole life
	stdout   io.Writer
	stderr   io.Writer
	fd3      io.Writer // Cmd.Control
	terminal bool
	attached bool // to a detached process
	started  wire.Started

	done chan struct{} // closed at the end
	exit sandbox.Exit  // set before done is closed
	err  error         // set before done is closed

	mu    sync.Mutex
	fault error // guarded by mu; the first error of a stream
}

func (p *process) request(method, path string) request {
	r := p.sb.request(p.op, method, path)
	r.header = http.Header{"Accept": {wire.Frames}}
	return r
}

// post starts a process whose input, if any, is in req.
func (p *process) post(req wire.Exec) error {
	r := p.request("POST", "/exec")
	r.body = req
	return p.open(r)
}

// open sends r, whose answer is a stream, and begins to follow it.
func (p *process) open(r request) error {
	a, err := p.sb.c.send(p.ctx, r)
	if err != nil {
		return err
	}
	fr := wire.NewFrameReader(a.Body)
	if err := p.first(r, fr); err != nil {
		a.close()
		return err
	}
	if !p.sb.c.follow(func() {
		defer close(p.done)
		defer a.close()
		p.exit, p.err = p.follow(r, fr, nil)
		a.rest() // so that the connection is free before the next request asks for one
	}) {
		a.close()
		return p.sb.c.broken(p.ctx, r, nil)
	}
	return nil
}

// upgrade starts a process whose input is read from stdin.
func (p *process) upgrade(req wire.Exec, stdin io.Reader) error {
	r := p.request("GET", "/exec")
	a, rw, err := p.sb.c.upgrade(p.ctx, r, wire.UpgradeExec)
	if err != nil {
		return err
	}
	// An upgraded connection is ours: it does not break by itself when the
	// request is hung up.
	unlink := context.AfterFunc(a.Request.Context(), func() { rw.Close() })
	fr := wire.NewFrameReader(rw)
	if _, err = rw.Write(wire.FrameJSON(wire.FrameStart, req)); err != nil {
		err = p.sb.c.broken(p.ctx, r, err)
	} else {
		err = p.first(r, fr)
	}
	if err != nil {
		unlink()
		a.close()
		return err
	}
	in := &credit{room: wire.Window}
	in.more.L = &in.mu
	if !p.sb.c.follow(func() {
		defer close(p.done)
		defer a.close()
		defer unlink()
		defer in.close()
		p.exit, p.err = p.follow(r, fr, in.add)
	}) {
		a.close()
		return p.sb.c.broken(p.ctx, r, nil)
	}
	go p.feed(rw, stdin, in) // ends when stdin does, for which nobody waits
	return nil
}

// first reads the first frame.
func (p *process) first(r request, fr *wire.FrameReader) error {
	t, _, err := fr.Next()
	if err == nil {
		switch t {
		case wire.FrameStarted:
			err = fr.JSON(&p.started)
		case wire.FrameError:
			return p.told(r, fr)
		default:
			err = wire.ErrFrame
		}
	}
	if err != nil {
		return p.sb.c.broken(p.ctx, r, err)
	}
	return nil
}

// told returns the error that the current frame tells of.
func (p *process) told(r request, fr *wire.FrameReader) error {
	var e wire.Error
	if err := fr.JSON(&e); err != nil {
		return p.sb.c.broken(p.ctx, r, err)
	}
	return p.sb.c.fault(p.ctx, r, e)
}

var copyBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// follow hands out what the stream brings until it ends.
func (p *process) follow(r request, fr *wire.FrameReader, window func(int)) (sandbox.Exit, error) {
	none := sandbox.Exit{Code: -1}
	for {
		t, _, err := fr.Next()
		if err == nil {
			switch t {
			case wire.FrameStdout:
				err = p.hand(&p.stdout, fr)
			case wire.FrameStderr:
				err = p.hand(&p.stderr, fr)
			case wire.FrameControl:
				err = p.hand(&p.fd3, fr)
			case wire.FrameWindow:
				var n int
				if n, err = fr.More(); err == nil && window != nil {
					window(n)
				}
			case wire.FrameExit:
				var exit sandbox.Exit
				if err = fr.JSON(&exit); err == nil {
					return exit, p.firstFault()
				}
			case wire.FrameError:
				return none, p.told(r, fr)
			default:
				err = wire.ErrFrame
			}
		}
		if err != nil {
			return none, p.sb.c.broken(p.ctx, r, err)
		}
	}
}

// hand copies the current frame to *w. If *w fails it gets nothing more.
func (p *process) hand(w *io.Writer, fr *wire.FrameReader) error {
	if *w == nil {
		return nil // Next skips it
	}
	buf := copyBuffers.Get().(*[64 << 10]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := fr.Read(buf[:])
		if n > 0 {
			k, werr := (*w).Write(buf[:n])
			if werr == nil && k < n {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				p.fail(werr)
				*w = nil
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == nil {
		p.fault = err
	}
}

func (p *process) firstFault() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

// feed sends what it reads from stdin, as far as there is room for it.
func (p *process) feed(w io.Writer, stdin io.Reader, in *credit) {
	buf := make([]byte, wire.HeaderLen+32<<10)
	for {
		n, err := stdin.Read(buf[wire.HeaderLen:])
		if n > 0 {
			if !in.take(n) {
				return
			}
			wire.PutHeader(buf, wire.FrameStdin, n)
			if _, err := w.Write(buf[:wire.HeaderLen+n]); err != nil {
				return // follow notices, too
			}
		}
		if err != nil {
			if err != io.EOF {
				p.fail(err)
			}
			w.Write(wire.Frame(wire.FrameStdinEnd, nil))
			return
		}
	}
}

// credit is how much input may be sent.
type credit struct {
	mu     sync.Mutex
	more   sync.Cond
	room   int  // guarded by mu
	closed bool // guarded by mu
}

// take waits until n bytes may be sent, and reports whether they may.
func (c *credit) take(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.room < n && !c.closed {
		c.more.Wait()
	}
	c.room -= n
	return !c.closed
}

func (c *credit) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.room += n
	c.more.Broadcast()
}

func (c *credit) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.more.Broadcast()
}

// ID names the process within its sandbox.
func (p *process) ID() sandbox.ProcessID { return p.started.ID }

// PID returns the process's pid as the sandbox sees it, or 0.
func (p *process) PID() int { return p.started.PID }

// Wait returns how the process ended.
func (p *process) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Signal sends sig to the process.
func (p *process) Signal(ctx context.Context, sig sandbox.Signal) error {
	if sig.Number() == 0 {
		return sandbox.At("client.Signal", p.sb.id, sandbox.Errorf(sandbox.Invalid, "signal", "%q is not a signal", string(sig)).WithHint("use a name such as TERM, INT or KILL"))
	}
	// What an attached process left behind when it ended can still be killed.
	return p.control(ctx, "client.Signal", "/signal", wire.Signal{Signal: sig}, p.attached && sig == sandbox.KILL)
}

// Resize sets the size of the process's terminal.
func (p *process) Resize(ctx context.Context, size sandbox.Size) error {
	if !p.terminal && !p.attached {
		return sandbox.At("client.Resize", p.sb.id, sandbox.Errorf(sandbox.Unsupported, "", "the process has no terminal"))
	}
	return p.control(ctx, "client.Resize", "/resize", size, false)
}

// control asks for something to be done to the process: nothing once it has
// ended, unless always is set.
func (p *process) control(ctx context.Context, op, path string, body any, always bool) error {
	select {
	case <-p.done:
		if !always && (!p.attached || p.err == nil) {
			return nil // it is over
		}
	default:
	}
	r := p.sb.request(op, "POST", "/processes/"+string(p.started.ID)+path)
	r.body = body
	err := p.sb.c.json(ctx, r, nil)
	var e *sandbox.Error
	if errors.As(err, &e) && e.Kind == sandbox.NotExist && e.Field == "process" {
		return nil // it is over, of which we have not read yet
	}
	return err
}
