package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/url"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

var (
	_ sandbox.Keeper   = (*Client)(nil)
	_ sandbox.Overseer = (*Client)(nil)
	_ sandbox.Releaser = (*Sandbox)(nil)
)

// Acquire returns the daemon's sandbox that has spec.Name (where that is "",
// the one that has spec.ID), or has the daemon make it; made says which. If
// ctx ends first, it may be there all the same.
func (c *Client) Acquire(ctx context.Context, spec sandbox.Spec) (sb sandbox.Sandbox, made bool, err error) {
	const op = "client.Acquire"
	body, err := wire.SpecOf(spec)
	if err != nil {
		return nil, false, sandbox.At(op, "", err)
	}
	var got wire.Acquired
	if err := c.json(ctx, request{op: op, method: "POST", path: "/acquire", body: body}, &got); err != nil {
		return nil, false, err
	}
	sb, err = c.told(op, got.Sandbox)
	return sb, got.Made, err
}

// Lookup returns the daemon's live sandbox with this name.
func (c *Client) Lookup(ctx context.Context, name string) (sandbox.Sandbox, error) {
	return c.lookup(ctx, "client.Lookup", url.Values{"name": {name}})
}

// LookAtName is Lookup, but no use of the sandbox: it keeps it from nothing.
func (c *Client) LookAtName(ctx context.Context, name string) (sandbox.Sandbox, error) {
	return c.lookup(ctx, "client.LookAtName", url.Values{"name": {name}, "peek": {"true"}})
}

func (c *Client) lookup(ctx context.Context, op string, query url.Values) (sandbox.Sandbox, error) {
	var info sandbox.Info
	if err := c.json(ctx, request{op: op, method: "GET", path: "/lookup", query: query}, &info); err != nil {
		return nil, err
	}
	return c.told(op, info)
}

// Sandbox returns the daemon's sandbox with this id, without asking whether
// there is one.
func (c *Client) Sandbox(id sandbox.ID) *Sandbox { return &Sandbox{c, id} }

// LookAt is Open, but no use of the sandbox: it keeps it from nothing.
func (c *Client) LookAt(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	sb := &Sandbox{c, id}
	if _, err := sb.info(ctx, "client.LookAt", url.Values{"peek": {"true"}}); err != nil {
		return nil, err
	}
	return sb, nil
}

// told returns the sandbox of which the daemon says info.
func (c *Client) told(op string, info sandbox.Info) (sandbox.Sandbox, error) {
	if !info.ID.Valid() {
		return nil, &sandbox.Error{Op: op, Kind: sandbox.Internal, Msg: "the daemon's answer has no id"}
	}
	return &Sandbox{c, info.ID}, nil
}

// Release says that nobody needs the sandbox until it is acquired or opened
// again.
func (s *Sandbox) Release(ctx context.Context) error {
	return s.c.json(ctx, s.request("client.Release", "POST", "/release"), nil)
}

// Status returns how things are at the daemon.
func (c *Client) Status(ctx context.Context) (s sandbox.Status, err error) {
	return s, c.json(ctx, request{op: "client.Status", method: "GET", path: "/status"}, &s)
}

// Prune has the daemon remove the sandboxes that p says, and returns them.
func (c *Client) Prune(ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error) {
	const op = "client.Prune"
	body, err := wire.PruneOf(p)
	if err != nil {
		return nil, sandbox.At(op, "", err)
	}
	r := request{op: op, method: "POST", path: "/prune", body: body}
	var gone wire.Sandboxes
	if err := c.json(ctx, r, &gone); err != nil {
		return nil, err
	}
	if gone.Error != nil {
		return gone.Sandboxes, c.fault(ctx, r, *gone.Error)
	}
	return gone.Sandboxes, nil
}

// Silence is how long a stream of events may be silent before the daemon is
// taken for dead.
const Silence = 4 * wire.Beat

// Events yields what happened at the daemon. A daemon that ends, or of which
// nothing is heard for [Silence], is Unavailable. So is one that was made to
// wait: who holds an event for more than a minute is cut off by the daemon,
// and can go on after the last that it got.
func (c *Client) Events(ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) {
		r := request{op: "client.Events", method: "GET", path: "/events", hangUp: true,
			query: url.Values{"after": {strconv.FormatInt(after, 10)}, "follow": {strconv.FormatBool(follow)}}}
		fail := func(err error) {
			if !follow || ctx.Err() == nil {
				yield(sandbox.Event{}, err)
			}
		}
		heard, silent := context.WithCancel(ctx)
		defer silent()
		watchdog := time.AfterFunc(c.silence, silent)
		defer watchdog.Stop()
		silence := func(err error) error {
			if heard.Err() != nil && ctx.Err() == nil {
				err = &sandbox.Error{Op: r.op, Kind: sandbox.Unavailable, Msg: "nothing is heard of the daemon any more"}
			}
			return err
		}
		a, err := c.send(heard, r)
		if err != nil {
			fail(silence(err))
			return
		}
		defer a.close()
		for dec := json.NewDecoder(a.Body); ; {
			var line wire.News
			err := dec.Decode(&line)
			switch {
			case err == io.EOF:
				return
			case err != nil:
				fail(silence(c.broken(ctx, r, err)))
				return
			case line.Error != nil:
				fail(c.fault(ctx, r, *line.Error))
				return
			case line.Event != nil:
				watchdog.Stop()
				if !yield(*line.Event, nil) {
					return
				}
			}
			watchdog.Reset(c.silence)
		}
	}
}
