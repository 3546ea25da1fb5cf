package native

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

var errNoUpgrade = errors.New("no upgrade asked for")

// upgradable returns what turns the connection into one that carries bytes
// both ways: as protocol, or as binary messages of a WebSocket, whichever the
// caller asks for. After that the answer has begun. It is an error, of status
// 426, if the caller asks for neither.
func (c *call) upgradable(protocol string) (func() (net.Conn, error), error) {
	if tokens(c.r.Header, "Connection", "upgrade") {
		switch {
		case tokens(c.r.Header, "Upgrade", protocol):
			return func() (net.Conn, error) { return c.hijack(protocol) }, nil
		case tokens(c.r.Header, "Upgrade", "websocket"):
			return c.webSocket, nil
		}
	}
	c.w.Header().Set("Upgrade", protocol+", websocket")
	return nil, &sandbox.Error{Kind: sandbox.Invalid, Field: "upgrade", Msg: "the request does not ask for an upgrade of the connection",
		Hint: "send Connection: Upgrade and Upgrade: " + protocol + ", or open a WebSocket", Err: errNoUpgrade}
}

// tokens reports whether the list in the headers called name has token.
func tokens(h http.Header, name, token string) bool {
	for _, v := range h.Values(name) {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

func (c *call) hijack(protocol string) (net.Conn, error) {
	conn, rw, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Unsupported, Field: "upgrade", Msg: "this connection cannot be upgraded", Hint: "use HTTP/1.1", Err: err}
	}
	c.begun = true
	conn.SetDeadline(time.Time{})
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: %s\r\n\r\n", protocol, wire.HeaderRequest, c.name); err != nil {
		conn.Close()
		return nil, err
	}
	return &hijacked{Conn: conn, r: rw.Reader}, nil
}

// hijacked is a connection of which a part may have been read already.
type hijacked struct {
	net.Conn
	r *bufio.Reader // used until it is empty
}

func (h *hijacked) Read(p []byte) (int, error) {
	if h.r != nil {
		if n := h.r.Buffered(); n > 0 {
			return h.r.Read(p[:min(n, len(p))])
		}
		h.r = nil
	}
	return h.Conn.Read(p)
}

// CloseWrite tells the other side that nothing follows.
func (h *hijacked) CloseWrite() error { return closeWrite(h.Conn) }

func (c *call) webSocket() (net.Conn, error) {
	ws, err := websocket.Accept(c.w, c.r, nil)
	c.begun = true // Accept answers errors itself
	if err != nil {
		return nil, err
	}
	// The connection's life is that of the call, not of the bytes in transit:
	// after the context ends, an error frame may still be told.
	return &socket{websocket.NetConn(context.WithoutCancel(c.ctx), ws, websocket.MessageBinary), ws}, nil
}

// socket is a WebSocket as a connection. It has no half-closed state: to say
// that nothing follows is to close it.
type socket struct {
	net.Conn
	ws *websocket.Conn
}

// CloseWrite closes the WebSocket and waits, but not for long, for the other
// side to do so too.
func (s *socket) CloseWrite() error { return s.ws.Close(websocket.StatusNormalClosure, "") }

func closeWrite(conn net.Conn) error {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// copyConn copies what src sends to dst, and then tells dst that nothing
// follows. If dst cannot be told that alone, or one of them fails, both are
// closed.
func copyConn(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if err == nil && closeWrite(dst) == nil {
		return
	}
	dst.Close()
	src.Close()
}
