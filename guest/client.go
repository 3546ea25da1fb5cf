package guest

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// Options say how a [Client] behaves.
type Options struct {
	// Descriptors passes file descriptors, for which the connection must be a
	// *net.UnixConn, on Linux. Without it everything is carried.
	Descriptors bool

	// Daemon names who is calling. One that comes back with the same name
	// finds the processes again that it was attached to when its connection
	// was lost, as detached ones. "" never comes back.
	Daemon string

	// Linger is how long the attached processes live on when the connection
	// is lost and the daemon has not come back; 0 is not at all.
	Linger time.Duration

	// Op and ID are the beginning of errors: "linux" gives "linux.Start".
	Op string
	ID sandbox.ID

	// Gone, if not nil, says what a call fails with when the connection is
	// lost; nil, or a nil error from it, is [sandbox.Unavailable].
	Gone func() error
}

// A Client is a guest's sandbox, as seen from outside: its methods are those
// of a sandbox.Sandbox, a sandbox.Detacher, a sandbox.Dialer and a
// sandbox.Meter. It is safe for concurrent use.
type Client struct {
	opt  Options
	conn wire
	life context.Context // ends with the connection
	done chan struct{}   // closed when the reader has ended
	stop context.CancelFunc

	mu    sync.Mutex
	lost  error // why the connection has ended, once it has
	last  uint32
	calls map[uint32]*call
	procs map[uint64]*process
}

// A wire carries frames.
type wire interface {
	// send sends a frame with descriptors, which stay the caller's.
	send(b []byte, fds []int) error
	// receive calls f with each frame and its descriptors, which are then
	// f's, until f or the connection fails. The body is good until f returns.
	receive(f func(proto.Frame, []int) error) error
	passing() bool
	close() error
}

// A call is a request that waits for its answer.
type call struct {
	answer chan answer // has room for one
	proc   *process    // to be known before the next frame is looked at
	late   func(answer)
}

// An answer is the body of one and the descriptors that came with it.
type answer struct {
	body []byte
	fds  []int
	err  error
}

// NewClient speaks with the guest at the other end of conn, which it closes in
// the end. It does not wait for the guest: whether that answers shows with the
// first call.
func NewClient(conn net.Conn, opt Options) (*Client, error) {
	w, err := newWire(conn, opt.Descriptors)
	if err != nil {
		conn.Close()
		return nil, err
	}
	c := &Client{opt: opt, conn: w, done: make(chan struct{}), calls: make(map[uint32]*call), procs: make(map[uint64]*process)}
	c.life, c.stop = context.WithCancel(context.Background())
	hello := &proto.Hello{Version: proto.Version, Daemon: opt.Daemon, Linger: int64(opt.Linger), Descriptors: w.passing()}
	id, k, err := c.register(&call{answer: make(chan answer, 1)})
	if err != nil {
		return nil, err
	}
	greet := func(a answer) {
		var h proto.Hello
		err := decode(a, &h)
		if err == nil && (h.Version < 1 || h.Descriptors != w.passing()) {
			err = errors.New("the guest does not speak as it was asked to")
		}
		if err != nil {
			c.conn.close()
		}
	}
	k.late = greet
	if err := w.send(proto.AppendFrame(nil, proto.OpHello, 0, id, hello), nil); err != nil {
		w.close()
		return nil, err
	}
	go c.read()
	return c, nil
}

// Done is closed when the connection is lost or closed.
func (c *Client) Done() <-chan struct{} { return c.life.Done() }

// Close closes the connection and waits for the Client's reader. The guest and
// its processes live on: see Options.Linger. Processes of this Client that
// have not ended fail their Wait.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.lost == nil {
		c.lost = &sandbox.Error{Kind: sandbox.Closed, Msg: "the connection to the sandbox was closed"}
	}
	c.mu.Unlock()
	c.conn.close()
	<-c.done
	return nil
}

// Setup has the guest set up its place: what body means is between the daemon
// and the program that hosts the guest. files go with it, at most
// [proto.MaxFDs], and stay the caller's. It returns what the guest answered.
func (c *Client) Setup(ctx context.Context, body []byte, files []*os.File) ([]byte, error) {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var raw proto.Raw
	got, err := c.call(ctx, proto.OpSetup, &proto.Raw{Body: body}, &raw, fds)
	runtime.KeepAlive(files)
	closeAll(got)
	if err != nil {
		return nil, c.error("Setup", err)
	}
	return raw.Body, nil
}

// Usage returns what all processes but the guest use.
func (c *Client) Usage(ctx context.Context) (sandbox.Usage, error) {
	var u proto.Usage
	if _, err := c.call(ctx, proto.OpUsage, nil, &u, nil); err != nil {
		return sandbox.Usage{}, c.error("Usage", err)
	}
	return sandbox.Usage{CPU: time.Duration(max(u.CPU, 0)), Memory: max(u.Memory, 0), PIDs: max(u.PIDs, 0)}, nil
}

// register makes room for an answer.
func (c *Client) register(k *call) (uint32, *call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return 0, nil, c.lost
	}
	for {
		c.last++
		if _, used := c.calls[c.last]; !used && c.last != 0 {
			break
		}
	}
	c.calls[c.last] = k
	return c.last, k, nil
}

// call sends a request, waits, and decodes the answer into m, which may be
// nil. If ctx ends first, the request is cancelled and what its answer may
// still bring is given back.
func (c *Client) call(ctx context.Context, op proto.Op, req, m proto.Message, fds []int) ([]int, error) {
	return c.callFor(ctx, op, req, m, fds, nil, nil, false)
}

// callFor is call with a process that the answer starts, and with what gives
// back what an answer brings that comes too late. A patient one waits for the
// answer of a request that it has cancelled.
func (c *Client) callFor(ctx context.Context, op proto.Op, req, m proto.Message, fds []int, p *process, late func(answer), patient bool) ([]int, error) {
	if ctx.Err() != nil {
		return nil, c.ended(ctx)
	}
	id, k, err := c.register(&call{answer: make(chan answer, 1), proc: p})
	if err != nil {
		return nil, c.gone(err)
	}
	var room [512]byte
	b := proto.AppendFrame(room[:0], op, len(fds), id, req)
	if len(b) > proto.MaxFrame {
		c.mu.Lock()
		delete(c.calls, id)
		c.mu.Unlock()
		return nil, sandbox.Errorf(sandbox.Invalid, "", "the request has %d bytes, more than %d", len(b), proto.MaxFrame)
	}
	if err := c.conn.send(b, fds); err != nil {
		c.conn.close() // half a frame may be out
	}
	var a answer
	select {
	case a = <-k.answer:
	case <-ctx.Done():
		c.mu.Lock()
		_, open := c.calls[id]
		if open && !patient {
			k.late = late
			if late == nil {
				k.late = func(answer) {}
			}
		}
		c.mu.Unlock()
		if open {
			c.conn.send(proto.AppendFrame(nil, proto.OpCancel, 0, 0, &proto.Cancel{ID: id}), nil)
			if !patient {
				return nil, c.ended(ctx)
			}
		}
		a = <-k.answer
	}
	if a.err != nil {
		return nil, c.gone(a.err)
	}
	if err := decode(a, m); err != nil {
		closeAll(a.fds)
		return nil, err
	}
	return a.fds, nil
}

// ended says why a call has failed whose context ended: many a context ends
// because the connection is lost.
func (c *Client) ended(ctx context.Context) error {
	c.mu.Lock()
	lost := c.lost
	c.mu.Unlock()
	if lost != nil {
		return c.gone(lost)
	}
	return ctx.Err()
}

// decode takes an answer apart.
func decode(a answer, m proto.Message) error {
	if a.err != nil {
		return a.err
	}
	if len(a.body) > 0 && a.body[0] != 0 {
		var f proto.Failure
		if err := proto.Decode(a.body, &proto.Answer{Body: &f}); err != nil {
			return err
		}
		return failed(&f)
	}
	return proto.Decode(a.body, &proto.Answer{Body: m})
}

// failed turns the guest's failure into an error. The guest is not trusted:
// what it says is cut, and cannot control a terminal.
func failed(f *proto.Failure) error {
	e := &sandbox.Error{Kind: sandbox.Kind(f.Kind), Field: plain(f.Field, 64), Msg: plain(f.Msg, 512), Hint: plain(f.Hint, 256)}
	if !e.Kind.Known() || e.Kind == sandbox.Closed {
		e.Kind = sandbox.Internal
	}
	if f.Log != "" {
		e.Err = errors.New(plain(f.Log, 8192))
	}
	return e
}

func plain(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s), "?")
}

// read is the reader: it hands out answers and events until the connection
// ends.
func (c *Client) read() {
	err := c.conn.receive(c.frame)
	c.conn.close()
	c.mu.Lock()
	if c.lost == nil {
		c.lost = &sandbox.Error{Kind: sandbox.Unavailable, Msg: "the connection to the sandbox was lost", Err: err}
	}
	lost, calls, procs := c.lost, c.calls, c.procs
	c.calls, c.procs = make(map[uint32]*call), make(map[uint64]*process)
	lates := make(map[*call]func(answer))
	for _, k := range calls {
		lates[k] = k.late
	}
	c.mu.Unlock()
	c.stop()
	for k, late := range lates {
		if late == nil {
			k.answer <- answer{err: lost}
		}
	}
	for _, p := range procs {
		p.lose(lost)
	}
	close(c.done)
}

// frame looks at one frame.
func (c *Client) frame(f proto.Frame, fds []int) error {
	switch f.Op {
	case proto.OpExit:
		closeAll(fds)
		var e proto.Exit
		if err := proto.Decode(f.Body, &e); err != nil {
			return err
		}
		c.mu.Lock()
		p := c.procs[e.Proc]
		delete(c.procs, e.Proc)
		c.mu.Unlock()
		if p != nil {
			p.exited(&e)
		}
		return nil
	case proto.OpAnswer:
		a := answer{body: append([]byte(nil), f.Body...), fds: fds}
		c.mu.Lock()
		k := c.calls[f.ID]
		delete(c.calls, f.ID)
		var late func(answer)
		if k != nil {
			late = k.late
		}
		c.mu.Unlock()
		if k == nil {
			closeAll(fds)
			return errors.New("an answer that nobody waits for")
		}
		if k.proc != nil {
			c.starting(k.proc, a, late != nil)
		}
		if late != nil {
			go late(a) // it may call
		} else {
			k.answer <- a
		}
		return nil
	}
	closeAll(fds)
	return nil // of a guest newer than this
}

// gone returns what a call fails with when the connection has.
func (c *Client) gone(err error) error {
	if c.opt.Gone != nil {
		if e := c.opt.Gone(); e != nil {
			return e
		}
	}
	return err
}

// error returns err as the caller gets it.
func (c *Client) error(op string, err error) error {
	if c.opt.Op != "" {
		op = c.opt.Op + "." + op
	}
	return sandbox.At(op, c.opt.ID, err)
}
