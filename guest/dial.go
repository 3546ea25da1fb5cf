package guest

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// Dial connects to a TCP port on the sandbox's loopback.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, c.error("Dial", sandbox.Errorf(sandbox.Invalid, "port", "%d is not a port", port).WithHint("give 1 to 65535"))
	}
	var o proto.Opened
	fds, err := c.callFor(ctx, proto.OpDial, &proto.Dial{Port: port}, &o, nil, nil, func(a answer) {
		closeAll(a.fds)
		var o proto.Opened
		if decode(a, &o) == nil && o.Handle != 0 {
			c.call(c.life, proto.OpClose, &proto.Handle{Handle: o.Handle}, nil, nil)
		}
	}, false)
	if err != nil {
		return nil, c.error("Dial", err)
	}
	conn, err := c.connection(&o, fds, port)
	if err != nil {
		return nil, c.error("Dial", err)
	}
	return conn, nil
}

// carriedConn is a connection that the guest carries.
type carriedConn struct {
	c      *Client
	handle uint32
	port   int
	read   deadline
	write  deadline
	once   sync.Once
}

func newCarriedConn(c *Client, handle uint32, port int) *carriedConn {
	conn := &carriedConn{c: c, handle: handle, port: port}
	conn.read.open(c.life)
	conn.write.open(c.life)
	return conn
}

func (n *carriedConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	var d proto.Data
	req := &proto.Fread{Handle: n.handle, Max: min(len(b), proto.MaxPayload)}
	ctx := n.read.context()
	if _, err := n.c.callFor(ctx, proto.OpFread, req, &d, nil, nil, nil, true); err != nil {
		return 0, n.failed("read", ctx, err)
	}
	if d.End || len(d.Data) > len(b) {
		return 0, io.EOF
	}
	return copy(b, d.Data), nil
}

func (n *carriedConn) Write(b []byte) (int, error) { return n.send(b, false) }

// CloseWrite ends what the other side reads.
func (n *carriedConn) CloseWrite() error {
	_, err := n.send(nil, true)
	return err
}

func (n *carriedConn) send(b []byte, eof bool) (int, error) {
	ctx := n.write.context()
	for at := 0; ; {
		part := b[at:min(len(b), at+proto.MaxPayload)]
		last := at+len(part) == len(b)
		var w proto.Wrote
		if _, err := n.c.callFor(ctx, proto.OpFwrite, &proto.Fwrite{Handle: n.handle, Data: part, EOF: eof && last}, &w, nil, nil, nil, true); err != nil {
			return at, n.failed("write", ctx, err)
		}
		at += min(max(w.N, 0), len(part))
		if w.Fail.Kind != "" {
			return at, n.failed("write", ctx, failed(&w.Fail))
		}
		if last {
			return at, nil
		}
	}
}

// failed returns err as a net.Conn has it.
func (n *carriedConn) failed(op string, ctx context.Context, err error) error {
	switch context.Cause(ctx) {
	case os.ErrDeadlineExceeded:
		err = os.ErrDeadlineExceeded
	case net.ErrClosed:
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: n.RemoteAddr(), Err: err}
}

func (n *carriedConn) Close() error {
	n.once.Do(func() {
		n.read.close()
		n.write.close()
		n.c.call(n.c.life, proto.OpClose, &proto.Handle{Handle: n.handle}, nil, nil)
	})
	return nil
}

func (n *carriedConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (n *carriedConn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.port}
}
func (n *carriedConn) SetReadDeadline(t time.Time) error  { return n.read.set(t) }
func (n *carriedConn) SetWriteDeadline(t time.Time) error { return n.write.set(t) }
func (n *carriedConn) SetDeadline(t time.Time) error {
	n.read.set(t)
	return n.write.set(t)
}

// A deadline is a context that can be set back.
type deadline struct {
	mu     sync.Mutex
	life   context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	closed bool
}

func (d *deadline) open(life context.Context) {
	d.life = life
	d.ctx, d.cancel = context.WithCancelCause(life)
}

func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// set makes the context end at t; a zero t is never.
func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return net.ErrClosed
	}
	fired := d.timer != nil && !d.timer.Stop()
	d.timer = nil
	if fired || d.ctx.Err() != nil {
		d.open(d.life)
	}
	if t.IsZero() {
		return nil
	}
	cancel := d.cancel
	if in := time.Until(t); in > 0 {
		d.timer = time.AfterFunc(in, func() { cancel(os.ErrDeadlineExceeded) })
	} else {
		cancel(os.ErrDeadlineExceeded)
	}
	return nil
}

func (d *deadline) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.timer != nil {
		d.timer.Stop()
	}
	d.cancel(net.ErrClosed)
}
