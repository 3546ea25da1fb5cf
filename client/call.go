package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// A request is what is asked of the daemon.
type request struct {
	op     string
	id     sandbox.ID
	method string
	path   string // below wire.Prefix
	query  url.Values
	header http.Header

	body any // sent as JSON, if not nil

	raw     io.Reader // sent as it is, if not nil
	length  int64     // of raw, or -1
	trailer http.Header

	hangUp bool // nothing is gained by waiting for the end of a request that was called off
}

// An answer is one of status below 400. It always needs closing.
type answer struct {
	*http.Response
	conn    net.Conn    // under a connection that was upgraded
	unwatch func() bool // makes the end of send's context mean nothing, and reports whether it was in time
	end     func()      // releases what send holds
}

// close lets the connection be used again, if the answer was read to its end.
func (a *answer) close() {
	a.Body.Close()
	a.end()
}

// rest reads the end of an answer of which nothing more is expected.
func (a *answer) rest() {
	var b [512]byte
	for {
		if _, err := a.Body.Read(b[:]); err != nil {
			return
		}
	}
}

// send sends r and returns the answer, or the error that it tells of.
func (c *Client) send(ctx context.Context, r request) (*answer, error) {
	if c.life.Err() != nil || ctx.Err() != nil {
		return nil, c.broken(ctx, r, nil)
	}
	// The request outlives ctx by the time that it takes to call it off.
	rctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	name := rand.Text()
	calledOff := make(chan struct{})
	unwatch := sync.OnceValue(context.AfterFunc(ctx, func() {
		defer close(calledOff)
		if r.hangUp {
			cancel()
			return
		}
		c.callOff(rctx, cancel, name)
	}))
	unlink := context.AfterFunc(c.life, cancel)
	a := &answer{unwatch: unwatch}
	a.end = sync.OnceFunc(func() {
		unlink()
		cancel()
		if !unwatch() {
			<-calledOff
		}
	})

	traced := rctx // which calling off must not see
	if r.header.Get("Upgrade") != "" {
		traced = httptrace.WithClientTrace(rctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { a.conn = i.Conn }})
	}
	req, err := c.request(traced, r, name)
	if err != nil {
		a.end()
		return nil, &sandbox.Error{Op: r.op, ID: r.id, Kind: sandbox.Internal, Err: err}
	}
	a.Response, err = c.http.RoundTrip(req)
	if err != nil {
		defer a.end()
		return nil, c.broken(ctx, r, err)
	}
	if a.StatusCode >= 300 {
		defer a.end()
		defer a.Body.Close()
		return nil, c.fault(ctx, r, readError(a.Response))
	}
	return a, nil
}

func (c *Client) request(ctx context.Context, r request, name string) (*http.Request, error) {
	target := c.base + wire.Prefix + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	if r.raw != nil {
		body = r.raw
	} else if r.body != nil {
		b, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	if r.raw != nil {
		req.ContentLength, req.Trailer = r.length, r.trailer
		req.GetBody = nil
		if r.length == 0 {
			req.Body = http.NoBody
		}
		req.Header.Set("Content-Type", wire.Bytes)
	} else if r.body != nil {
		req.Header.Set("Content-Type", wire.JSON)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", "atoll-go")
	req.Header.Set(wire.HeaderRequest, name)
	if c.auth != nil {
		req.Header.Set("Authorization", c.auth())
	}
	return req, nil
}

// callOff asks the daemon to end the request called name, whose context is
// ctx, and hangs up if that did not end it in time. It returns when ctx ends.
func (c *Client) callOff(ctx context.Context, hangUp context.CancelFunc, name string) {
	defer time.AfterFunc(Grace, hangUp).Stop()
	for pause := 5 * time.Millisecond; ctx.Err() == nil; pause *= 2 {
		req, err := c.request(ctx, request{method: "DELETE", path: "/requests/" + name}, rand.Text())
		if err != nil {
			hangUp()
			return
		}
		res, err := c.http.RoundTrip(req)
		if err != nil {
			hangUp()
			return
		}
		io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
		res.Body.Close()
		switch res.StatusCode {
		case http.StatusNoContent:
			<-ctx.Done()
			return
		case http.StatusNotFound: // it has not arrived yet, or is over
		default:
			hangUp()
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// json sends r and decodes the answer into v, unless v is nil.
func (c *Client) json(ctx context.Context, r request, v any) error {
	a, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer a.close()
	if v == nil {
		a.rest()
		return nil
	}
	b, err := io.ReadAll(a.Body)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return c.broken(ctx, r, err)
	}
	return nil
}

// readError returns the error that an answer of status 300 and above tells of.
func readError(res *http.Response) wire.Error {
	var e wire.Error
	b, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if json.Unmarshal(b, &e) == nil && e.Kind.Known() {
		return e
	}
	// Not one of ours: a proxy's, or another server's.
	kind := sandbox.Internal
	switch s := res.StatusCode; s {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		kind = sandbox.Denied
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		kind = sandbox.Unavailable
	}
	return wire.Error{Kind: kind, Message: "the answer is " + res.Status + ", and not from a daemon of ours", Hint: "check the host and what stands before it"}
}

// fault returns the error that the daemon tells of.
func (c *Client) fault(ctx context.Context, r request, w wire.Error) error {
	if w.Kind == sandbox.Unavailable && ctx.Err() != nil {
		return ctx.Err() // it was called off
	}
	e := &sandbox.Error{Op: r.op, ID: r.id, Kind: w.Kind, Field: w.Field, Msg: w.Message, Hint: w.Hint}
	if !e.Kind.Known() {
		e.Kind = sandbox.Internal
	}
	if e.Msg == string(e.Kind) {
		e.Msg = ""
	}
	if e.ID == "" {
		e.ID = w.Sandbox
	}
	if w.Gone != nil && e.Kind == sandbox.NotExist {
		e.Err = w.Gone
	}
	if w.Request != "" && e.Kind == sandbox.Internal {
		e.Err = errors.New("request " + w.Request)
	}
	return e
}

// broken returns why r has no answer, or none that is whole. err may be nil.
func (c *Client) broken(ctx context.Context, r request, err error) error {
	if c.life.Err() != nil {
		return &sandbox.Error{Op: r.op, ID: r.id, Kind: sandbox.Closed, Msg: "the client was closed"}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := &sandbox.Error{Op: r.op, ID: r.id, Kind: sandbox.Unavailable, Msg: "the connection to the daemon broke", Err: err}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		e.Msg, e.Hint = "the daemon cannot be reached", "is it running? start it with: atoll serve"
	case err == nil:
		e.Msg = "the daemon's answer makes no sense"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		e.Msg, e.Hint = "the daemon speaks no TLS", "write http:// instead of https://"
	}
	return e
}
