// Package client is Atoll's Go SDK: a sandbox.Runtime over the HTTP API of a
// daemon, which api/native serves. What runs against a backend runs against a
// [Client], optional abilities included: every [Sandbox] has their methods,
// and where the daemon's backend lacks the ability they answer Unsupported.
//
//	rt, err := client.New(client.Config{Host: "http://127.0.0.1:8080", Token: token})
//	sb, err := rt.Create(ctx, sandbox.Spec{})
//	res, err := sandbox.Capture(ctx, sb, 1<<20, sandbox.Cmd{Args: []string{"echo", "hi"}})
//
// A Client is a sandbox.Keeper and a sandbox.Overseer, too, for what the owner
// of its token may see.
//
// # Contexts
//
// When the context of a call ends, the client tells the daemon to call the
// request off and waits for its answer, so that what the contract says of the
// end of a context, a process tree that is dead or a file that is unchanged,
// holds when the call returns. If no answer comes within [Grace] it hangs up,
// and the daemon does the same without being watched.
//
// # What the network adds
//
// Where the daemon cannot be reached, or the connection breaks, errors are of
// kind Unavailable. A process that was being waited for is then killed by the
// daemon, and so may one be that a lost answer told of.
package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// Grace is how long a call whose context has ended waits for the daemon's
// answer before it hangs up.
const Grace = 5 * time.Second

// Config says which daemon to talk to.
type Config struct {
	// Host is where it listens: "http://ADDRESS", "https://ADDRESS" or
	// "unix:PATH".
	Host string

	// Token is the daemon's.
	Token sandbox.Secret

	// TLS is used for https; nil is the system's certificates.
	TLS *tls.Config
}

// A Client is a sandbox.Runtime whose sandboxes are a daemon's. Closing it
// ends its calls, and with them the processes that it waits for; the
// sandboxes stay.
type Client struct {
	base   string
	auth   func() string // the Authorization header; a function, so that to print a Client does not print it
	http   *http.Transport
	life   context.Context
	end    context.CancelFunc
	mu     sync.Mutex
	closed bool // guarded by mu

	silence time.Duration // Silence, but for tests

	busy sync.WaitGroup // those who follow streams; Add with mu held and closed false
}

var _ sandbox.Runtime = (*Client)(nil)

// New returns a Client, or an Invalid error naming the field that is wrong. It
// does not talk to the daemon yet.
func New(cfg Config) (*Client, error) {
	c := &Client{silence: Silence, http: &http.Transport{
		Proxy:               http.ProxyFromEnvironment, // which leaves out loopback
		TLSClientConfig:     cfg.TLS,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 256,
		IdleConnTimeout:     90 * time.Second, // less than the daemon's
		DisableCompression:  true,
		ReadBufferSize:      16 << 10,
		WriteBufferSize:     16 << 10,
	}}
	if path, ok := strings.CutPrefix(cfg.Host, "unix:"); ok {
		if path == "" {
			return nil, badHost(cfg.Host)
		}
		c.base = "http://localhost"
		c.http.Proxy = nil
		c.http.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	} else {
		u, err := url.Parse(cfg.Host)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, badHost(cfg.Host)
		}
		c.base = strings.TrimRight(u.String(), "/")
	}
	if t := cfg.Token.Reveal(); t != "" {
		if strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return nil, sandbox.Errorf(sandbox.Invalid, "token", "the token has spaces or other characters that no token has").WithHint("check for a line break at its end")
		}
		c.auth = func() string { return "Bearer " + t }
	}
	c.life, c.end = context.WithCancel(context.Background())
	return c, nil
}

func badHost(h string) error {
	return sandbox.Errorf(sandbox.Invalid, "host", "%q is not where a daemon can be", h).WithHint("write http://ADDRESS, https://ADDRESS or unix:PATH")
}

// Server returns what the daemon says of itself.
func (c *Client) Server(ctx context.Context) (wire.Server, error) {
	var s wire.Server
	return s, c.json(ctx, request{op: "client.Server", method: "GET", path: ""}, &s)
}

// Create returns a new sandbox that the daemon has made.
func (c *Client) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	const op = "client.Create"
	body, err := wire.SpecOf(spec)
	if err != nil {
		return nil, sandbox.At(op, "", err)
	}
	var info sandbox.Info
	if err := c.json(ctx, request{op: op, method: "POST", path: "/sandboxes", body: body}, &info); err != nil {
		return nil, err
	}
	return c.told(op, info)
}

// Open returns the daemon's sandbox with the given id.
func (c *Client) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	sb := &Sandbox{c, id}
	if _, err := sb.info(ctx, "client.Open", nil); err != nil {
		return nil, err
	}
	return sb, nil
}

// List yields the daemon's sandboxes.
func (c *Client) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	r := request{op: "client.List", method: "GET", path: "/sandboxes"}
	return list(ctx, c, r, "sandboxes", func(i sandbox.Info) sandbox.Info { return i })
}

// list yields the elements of an answer that is written as it is found.
func list[W, T any](ctx context.Context, c *Client, r request, name string, shape func(W) T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		a, err := c.send(ctx, r)
		if err != nil {
			yield(none, err)
			return
		}
		defer a.close()
		dec := json.NewDecoder(a.Body)
		broken := func(err error) { yield(none, c.broken(ctx, r, err)) }
		for _, want := range []json.Token{json.Delim('{'), name, json.Delim('[')} {
			if t, err := dec.Token(); err != nil || t != want {
				broken(err)
				return
			}
		}
		for dec.More() {
			var w W
			if err := dec.Decode(&w); err != nil {
				broken(err)
				return
			}
			if !yield(shape(w), nil) {
				return
			}
		}
		if t, err := dec.Token(); err != nil || t != json.Delim(']') {
			broken(err)
			return
		}
		t, err := dec.Token()
		if t == json.Token("error") {
			var e wire.Error
			if err := dec.Decode(&e); err != nil {
				broken(err)
				return
			}
			yield(none, c.fault(ctx, r, e))
			return
		}
		if err != nil || t != json.Delim('}') {
			broken(err)
		}
	}
}

// CloseIdle closes the connections that no call is using. It is not needed
// before Close.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// follow runs f, which reads a stream until its end, unless the Client was
// closed.
func (c *Client) follow(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.busy.Go(f)
	}
	return !c.closed
}

// Close hangs up: calls that are under way fail with Closed, and the
// processes that they wait for are killed by the daemon. Sandboxes and
// detached processes stay.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.busy.Wait()
	c.http.CloseIdleConnections()
	return nil
}
