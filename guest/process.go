package guest

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// A process is an attached one.
type process struct {
	c    *Client
	id   uint64
	pid  int
	tty  bool
	done chan struct{}
	left atomic.Int32 // what has to happen before done: the end, and each output

	begun  atomic.Bool // what follows is set, and does not change
	outs   [3]output   // of descriptors 1, 2 and 3; nil where nobody wants it, or where 1 takes 2 as well
	stdin  input       // nil if there is none
	forget func() bool // stops waiting for the context

	mu    sync.Mutex
	ended bool // the guest has told the end
	ctx   error
	exit  sandbox.Exit
	held  bool  // somebody else holds the output open
	err   error // the first of a Writer or of Stdin, or why there is no end
}

// An output is where the output of a process can be read.
type output interface {
	// read reads what is there, waiting for some to come. end says that
	// nothing follows that the process itself wrote.
	read(b []byte) (n int, end bool)
	over()  // the process has ended
	close() // nothing is read any more
}

// An input is where a process's standard input can be written.
type input interface {
	io.Writer
	eof()   // no more comes
	close() // nothing is written any more
}

// Start starts a process, as sandbox.Sandbox has it.
func (c *Client) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	p, err := c.start(ctx, cmd)
	if err != nil {
		return nil, c.error("Start", err)
	}
	return p, nil
}

func (c *Client) start(ctx context.Context, cmd sandbox.Cmd) (*process, error) {
	m, err := request(&cmd)
	if err != nil {
		return nil, err
	}
	if cmd.Stdin != nil || cmd.Terminal != nil {
		m.In = proto.Pipe
	}
	writers := [3]io.Writer{cmd.Stdout, cmd.Stderr, cmd.Control}
	m.Control = cmd.Control != nil
	if cmd.Stdout != nil {
		m.Out = proto.Pipe
	}
	switch {
	case cmd.Terminal != nil:
		writers[1] = nil
	case cmd.Stderr == nil:
	case cmd.Stdout != nil && same(cmd.Stdout, cmd.Stderr):
		m.Err, writers[1] = proto.Share, nil
	default:
		m.Err = proto.Pipe
	}
	p := &process{c: c, tty: cmd.Terminal != nil, done: make(chan struct{})}
	p.left.Store(2) // the end, and begin
	var fds []int
	if c.conn.passing() {
		if fds, err = p.pipes(m); err != nil {
			return nil, err
		}
	}
	var s proto.Started
	got, err := c.callFor(ctx, proto.OpStart, m, &s, fds, p, func(a answer) { c.tooLate(p, a) }, false)
	if err != nil {
		closeAll(fds)
		p.abandon()
		return nil, tooLong(err)
	}
	if err := p.streams(m, fds, got); err != nil {
		return nil, err
	}
	for i, w := range writers {
		if w != nil {
			p.left.Add(1)
			go p.copy(p.outs[i], w)
		} else if p.outs[i] != nil { // a terminal whose output nobody wants
			p.left.Add(1)
			go p.copy(p.outs[i], io.Discard)
		}
	}
	if cmd.Stdin != nil {
		go p.feed(cmd.Stdin)
	}
	if ctx.Done() != nil {
		p.forget = context.AfterFunc(ctx, func() { p.cancel(ctx.Err()) })
	}
	p.begin()
	return p, nil
}

// begin lets p end: its streams are known.
func (p *process) begin() {
	p.mu.Lock()
	p.begun.Store(true)
	over := p.ended && (p.held || p.tty)
	p.mu.Unlock()
	if over {
		p.over()
	}
	p.part()
}

// over tells the outputs that the process has ended.
func (p *process) over() {
	for _, o := range p.outs {
		if o != nil {
			o.over()
		}
	}
}

// request returns the message that starts cmd.
func request(cmd *sandbox.Cmd) (*proto.Start, error) {
	if err := cmd.Check(); err != nil {
		return nil, err
	}
	if len(cmd.Args)+len(cmd.Env) > proto.MaxStrings/2 {
		return nil, sandbox.Errorf(sandbox.Invalid, "args", "there are %d arguments and variables, more than %d", len(cmd.Args)+len(cmd.Env), proto.MaxStrings/2).WithHint("pass them in a file")
	}
	m := &proto.Start{Args: cmd.Args, Dir: cmd.Dir, User: cmd.User, Timeout: int64(cmd.Timeout)}
	for k, v := range cmd.Env {
		m.Env = append(m.Env, k+"="+v)
	}
	if t := cmd.Terminal; t != nil {
		m.Terminal, m.Rows, m.Cols = true, int(t.Rows), int(t.Cols)
	}
	return m, nil
}

func tooLong(err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Kind == sandbox.Invalid && e.Field == "" {
		e.Field, e.Hint = "args", "pass it in a file"
	}
	return err
}

// same reports whether both are the same comparable Writer.
func same(a, b io.Writer) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && reflect.TypeOf(a).Comparable() && reflect.ValueOf(a).Comparable() && a == b
}

// starting makes the process known that an answer starts, before the event
// that it has ended can come. If nobody waits any more it is killed.
func (c *Client) starting(p *process, a answer, late bool) {
	var s proto.Started
	if decode(a, &s) != nil || late {
		return
	}
	p.id, p.pid = s.Proc, s.PID
	c.mu.Lock()
	_, used := c.procs[p.id]
	if !used {
		c.procs[p.id] = p
	}
	c.mu.Unlock()
	if used { // its end would never be told
		p.lose(&sandbox.Error{Kind: sandbox.Internal, Msg: "the guest gave two processes one name"})
		c.conn.close()
	}
}

// tooLate gives up a process that started when nobody waited for it any more.
func (c *Client) tooLate(p *process, a answer) {
	var s proto.Started
	closeAll(a.fds)
	if decode(a, &s) == nil {
		c.call(c.life, proto.OpSignal, &proto.Signal{Proc: s.Proc, Number: sandbox.KILL.Number()}, nil, nil)
		c.call(c.life, proto.OpRelease, &proto.Proc{Proc: s.Proc}, nil, nil)
	}
}

// exited takes the guest's word for p's end. It runs on the reader.
func (p *process) exited(e *proto.Exit) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return
	}
	p.ended = true
	p.exit = exitOf(e)
	p.held = e.Held || !p.c.conn.passing()
	over := p.begun.Load() && (p.held || p.tty)
	p.mu.Unlock()
	if over {
		p.over()
	}
	p.part()
}

// exitOf returns e as it may be: the guest is not trusted to be consistent.
func exitOf(e *proto.Exit) sandbox.Exit {
	x := sandbox.Exit{Code: -1, Signal: sandbox.SignalNumbered(e.Signal),
		Usage: sandbox.Usage{CPU: time.Duration(max(e.CPU, 0)), Memory: max(e.Memory, 0), PeakMemory: max(e.Memory, 0)}}
	switch e.Reason {
	case proto.Exited:
		x.Reason, x.Code, x.Signal = sandbox.Exited, e.Code&0xff, ""
	case proto.TimedOut:
		x.Reason = sandbox.TimedOut
	case proto.OutOfMemory:
		x.Reason = sandbox.OutOfMemory
	default:
		x.Reason = sandbox.Signalled
	}
	return x
}

// lose ends p because the connection has.
func (p *process) lose(err error) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return
	}
	p.ended = true
	p.err = p.c.error("Wait", p.c.gone(err))
	p.held = true
	over := p.begun.Load()
	p.mu.Unlock()
	if over {
		p.over()
	}
	p.part()
}

// part is called when one of the things has happened that done waits for.
func (p *process) part() {
	if p.left.Add(-1) > 0 {
		return
	}
	p.mu.Lock()
	held, in, outs := p.held, p.stdin, p.outs
	told := p.exit.Reason != ""
	p.mu.Unlock()
	if p.forget != nil {
		p.forget()
	}
	if in != nil {
		in.close()
	}
	for _, o := range outs {
		if o != nil {
			o.close()
		}
	}
	close(p.done)
	if told && held {
		go p.c.call(p.c.life, proto.OpRelease, &proto.Proc{Proc: p.id}, nil, nil)
	}
}

// copy hands output to w until what the process wrote has been handed over.
// After an error of w it reads on, to nowhere.
func (p *process) copy(o output, w io.Writer) {
	defer p.part()
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, end := o.read(*buf)
		if n > 0 && w != nil {
			if _, err := w.Write((*buf)[:n]); err != nil {
				p.fail(err)
				w = nil
			}
		}
		if end {
			return
		}
	}
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// feed writes what r has to the process's input.
func (p *process) feed(r io.Reader) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	for {
		n, err := r.Read(*buf)
		if n > 0 {
			if _, e := p.stdin.Write((*buf)[:n]); e != nil {
				return // it does not read any more
			}
		}
		if err != nil {
			if err != io.EOF {
				p.fail(err)
			}
			p.stdin.eof()
			return
		}
	}
}

// fail keeps the first error that Wait has to return.
func (p *process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// cancel kills p because its context has ended.
func (p *process) cancel(err error) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return
	}
	p.ctx = err
	p.mu.Unlock()
	p.c.call(p.c.life, proto.OpSignal, &proto.Signal{Proc: p.id, Number: sandbox.KILL.Number()}, nil, nil)
}

// ID returns the name of the process.
func (p *process) ID() sandbox.ProcessID { return processID(p.id) }

// PID returns its pid inside.
func (p *process) PID() int { return p.pid }

// Wait waits as sandbox.Process has it.
func (p *process) Wait() (sandbox.Exit, error) {
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx != nil {
		return p.exit, p.ctx
	}
	return p.exit, p.err
}

// Signal signals as sandbox.Process has it.
func (p *process) Signal(ctx context.Context, sig sandbox.Signal) error {
	return p.c.signal(ctx, p.id, sig)
}

func (c *Client) signal(ctx context.Context, id uint64, sig sandbox.Signal) error {
	n := sig.Number()
	if n == 0 {
		return c.error("Signal", sandbox.Errorf(sandbox.Invalid, "signal", "%q is not a signal", string(sig)).WithHint("use a name such as TERM, INT or KILL"))
	}
	_, err := c.call(ctx, proto.OpSignal, &proto.Signal{Proc: id, Number: n}, nil, nil)
	return c.error("Signal", err)
}

// Resize sets the size of the terminal.
func (p *process) Resize(ctx context.Context, size sandbox.Size) error {
	if !p.tty {
		return p.c.error("Resize", sandbox.Errorf(sandbox.Unsupported, "", "the process has no terminal"))
	}
	select {
	case <-p.done:
		return nil
	default:
	}
	return p.c.resize(ctx, p.id, size)
}

func (c *Client) resize(ctx context.Context, id uint64, size sandbox.Size) error {
	_, err := c.call(ctx, proto.OpResize, &proto.Resize{Proc: id, Rows: int(size.Rows), Cols: int(size.Cols)}, nil, nil)
	return c.error("Resize", err)
}

func processID(n uint64) sandbox.ProcessID { return sandbox.ProcessID(strconv.FormatUint(n, 36)) }

// parseID returns the guest's number of id, or 0 for one that it never gave.
func parseID(id sandbox.ProcessID) uint64 {
	n, err := strconv.ParseUint(string(id), 36, 64)
	if err != nil || processID(n) != id {
		return 0
	}
	return n
}

// carriedOut is output that the guest carries.
type carriedOut struct {
	p      *process
	stream int
}

func (o *carriedOut) read(b []byte) (int, bool) {
	var d proto.Data
	if _, err := o.p.c.call(o.p.c.life, proto.OpRead, &proto.Read{Proc: o.p.id, Stream: o.stream, Max: min(len(b), proto.MaxPayload)}, &d, nil); err != nil {
		return 0, true // the connection is lost, and the process with it
	}
	if len(d.Data) > len(b) {
		return 0, true
	}
	return copy(b, d.Data), d.End
}

func (o *carriedOut) over()  {} // the guest knows
func (o *carriedOut) close() {}

// carriedIn is input that the guest carries.
type carriedIn struct {
	p    *process
	ctx  context.Context // ends with the process
	stop context.CancelFunc
}

func (i *carriedIn) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		part := b[n:min(len(b), n+proto.MaxPayload)]
		var w proto.Wrote
		if _, err := i.p.c.call(i.ctx, proto.OpWrite, &proto.Write{Proc: i.p.id, Data: part}, &w, nil); err != nil {
			return n, err
		}
		n += min(max(w.N, 0), len(part))
		if w.Fail.Kind != "" {
			return n, failed(&w.Fail)
		}
	}
	return n, nil
}

func (i *carriedIn) eof() {
	i.p.c.call(i.ctx, proto.OpWrite, &proto.Write{Proc: i.p.id, EOF: true}, &proto.Wrote{}, nil)
}

func (i *carriedIn) close() { i.stop() }

// carry makes the streams that the guest carries.
func (p *process) carry(m *proto.Start) {
	if m.Out == proto.Pipe || m.Terminal {
		p.outs[0] = &carriedOut{p, 1}
	}
	if m.Err == proto.Pipe {
		p.outs[1] = &carriedOut{p, 2}
	}
	if m.Control {
		p.outs[2] = &carriedOut{p, 3}
	}
	if m.In == proto.Pipe {
		ctx, stop := context.WithCancel(p.c.life)
		p.stdin = &carriedIn{p, ctx, stop}
	}
}
