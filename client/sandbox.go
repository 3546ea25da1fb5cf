package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// A Sandbox is a daemon's. Beside sandbox.Sandbox it has every optional
// ability, each of which answers Unsupported where the daemon's backend lacks
// it.
type Sandbox struct {
	c  *Client
	id sandbox.ID
}

var (
	_ sandbox.Sandbox  = (*Sandbox)(nil)
	_ sandbox.Pauser   = (*Sandbox)(nil)
	_ sandbox.Dialer   = (*Sandbox)(nil)
	_ sandbox.Meter    = (*Sandbox)(nil)
	_ sandbox.Detacher = (*Sandbox)(nil)
)

// ID returns the id.
func (s *Sandbox) ID() sandbox.ID { return s.id }

func (s *Sandbox) request(op, method, path string) request {
	return request{op: op, id: s.id, method: method, path: "/sandboxes/" + url.PathEscape(string(s.id)) + path}
}

// Info returns what is true of the sandbox now. That is no use of it.
func (s *Sandbox) Info(ctx context.Context) (sandbox.Info, error) {
	return s.info(ctx, "client.Info", url.Values{"peek": {"true"}})
}

func (s *Sandbox) info(ctx context.Context, op string, query url.Values) (info sandbox.Info, err error) {
	r := s.request(op, "GET", "")
	r.query = query
	if !s.id.Valid() {
		if s.c.life.Err() != nil {
			return info, s.c.broken(ctx, r, nil)
		}
		return info, &sandbox.Error{Op: op, Kind: sandbox.NotExist, Msg: "no sandbox has this id"}
	}
	return info, s.c.json(ctx, r, &info)
}

// Remove removes the sandbox.
func (s *Sandbox) Remove(ctx context.Context) error {
	err := s.c.json(ctx, s.request("client.Remove", "DELETE", ""), nil)
	if sandbox.KindOf(err) == sandbox.NotExist {
		return nil
	}
	return err
}

// Pause stops every process of the sandbox where it is.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.c.json(ctx, s.request("client.Pause", "POST", "/pause"), nil)
}

// Resume lets them go on.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.c.json(ctx, s.request("client.Resume", "POST", "/resume"), nil)
}

// Usage returns what the sandbox uses.
func (s *Sandbox) Usage(ctx context.Context) (u sandbox.Usage, err error) {
	return u, s.c.json(ctx, s.request("client.Usage", "GET", "/usage"), &u)
}

// Dial connects to a TCP port on the sandbox's own loopback. The connection
// goes through the daemon; its addresses are those of the way to it.
func (s *Sandbox) Dial(ctx context.Context, port int) (net.Conn, error) {
	r := s.request("client.Dial", "GET", "/ports/"+strconv.Itoa(port))
	a, rw, err := s.c.upgrade(ctx, r, wire.UpgradeTCP)
	if err != nil {
		return nil, err
	}
	if !a.unwatch() { // ctx bounds the connecting alone
		rw.Close()
		a.end()
		return nil, ctx.Err()
	}
	context.AfterFunc(a.Request.Context(), func() { rw.Close() }) // when the Client is closed
	return &conn{rw, a}, nil
}

// upgrade sends r with the wish for protocol and returns what then carries
// bytes both ways. The answer needs closing, which closes that too.
func (c *Client) upgrade(ctx context.Context, r request, protocol string) (*answer, io.ReadWriteCloser, error) {
	r.header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}}
	a, err := c.send(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	rw, ok := a.Body.(io.ReadWriteCloser)
	if a.StatusCode != http.StatusSwitchingProtocols || !ok || a.conn == nil {
		a.close()
		return nil, nil, &sandbox.Error{Op: r.op, ID: r.id, Kind: sandbox.Unavailable, Msg: "the connection was not upgraded, but answered with " + a.Status, Hint: "check what stands before the daemon"}
	}
	return a, rw, nil
}

// conn is a connection to a port of the sandbox.
type conn struct {
	io.ReadWriteCloser
	a *answer
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	if err != nil && errors.Is(err, net.ErrClosed) {
		err = net.ErrClosed
	}
	return n, err
}

// Close closes the connection.
func (c *conn) Close() error {
	err := c.ReadWriteCloser.Close()
	c.a.end()
	return err
}

// CloseWrite tells the sandbox's side that nothing follows.
func (c *conn) CloseWrite() error {
	if half, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *conn) LocalAddr() net.Addr                { return c.a.conn.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr               { return c.a.conn.RemoteAddr() }
func (c *conn) SetDeadline(t time.Time) error      { return c.a.conn.SetDeadline(t) }
func (c *conn) SetReadDeadline(t time.Time) error  { return c.a.conn.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.a.conn.SetWriteDeadline(t) }
