package memory

import (
	"context"
	"net"

	"github.com/atoll-run/atoll/sandbox"
)

// A listener is a port of a sandbox that a Program listens on.
type listener struct {
	p     *Proc
	port  int
	queue []net.Conn // dialled and not yet accepted
	shutd bool
}

// Listen opens a TCP port of the sandbox's loopback, which ends with the
// process. What is accepted is a net.Pipe.
func (p *Proc) Listen(port int) (net.Listener, error) {
	p.enter()
	if p.k.ports[port] != nil {
		p.leave()
		return nil, errno("Address already in use")
	}
	l := &listener{p: p, port: port}
	p.k.ports[port] = l
	p.leave()
	context.AfterFunc(p.life, func() {
		p.k.mu.Lock()
		defer p.k.mu.Unlock()
		l.shut()
	})
	return l, nil
}

// shut ends l. The mutex is held.
func (l *listener) shut() {
	if l.shutd {
		return
	}
	l.shutd = true
	if l.p.k.ports[l.port] == l {
		delete(l.p.k.ports, l.port)
	}
	for _, c := range l.queue {
		c.Close()
	}
	l.p.k.cond.Broadcast()
}

func (l *listener) Accept() (net.Conn, error) {
	l.p.enter()
	l.p.wait(func() bool { return len(l.queue) > 0 || l.shutd })
	if l.shutd {
		l.p.leave()
		return nil, net.ErrClosed
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	l.p.leave()
	context.AfterFunc(l.p.life, func() { c.Close() })
	return c, nil
}

func (l *listener) Close() error {
	l.p.enter()
	l.shut()
	l.p.leave()
	return nil
}

func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.port} }

// Dial connects to a port that a [Program] listens on.
func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if port < 1 || port > 65535 {
		return nil, sandbox.At(op("Dial"), b.id, sandbox.Errorf(sandbox.Invalid, "port", "%d is not a port", port).WithHint("use 1 to 65535"))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return nil, sandbox.At(op("Dial"), b.id, err)
	}
	l := b.ports[port]
	if l == nil {
		return nil, sandbox.At(op("Dial"), b.id, sandbox.Errorf(sandbox.Unavailable, "port", "nobody listens on port %d", port).WithHint("start a server, and try again"))
	}
	here, there := net.Pipe()
	l.queue = append(l.queue, there)
	b.cond.Broadcast()
	return here, nil
}
