package native

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

func (c *call) overseer() (sandbox.Overseer, error) {
	o, ok := c.rt.(sandbox.Overseer)
	if !ok {
		return nil, sandbox.Errorf(sandbox.Unsupported, "", "this server does not tell what goes on in it")
	}
	return o, nil
}

func (c *call) status() error {
	o, err := c.overseer()
	if err != nil {
		return err
	}
	s, err := o.Status(c.ctx)
	if err != nil {
		return err
	}
	if s.Backends == nil {
		s.Backends = []sandbox.BackendStatus{} // in JSON [], not null
	}
	return c.reply(http.StatusOK, s)
}

func (c *call) prune() error {
	var req wire.Prune
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	if req.Unused < 0 {
		return sandbox.Errorf(sandbox.Invalid, "unused", "%v is negative", time.Duration(req.Unused)).WithHint("give a positive time, or 0 for any")
	}
	o, err := c.overseer()
	if err != nil {
		return err
	}
	gone, err := o.Prune(c.ctx, req.Prune())
	if err != nil {
		return err
	}
	answer := wire.Sandboxes{Sandboxes: make([]sandbox.Info, len(gone))}
	for i, info := range gone {
		answer.Sandboxes[i] = shown(info)
	}
	return c.reply(http.StatusOK, answer)
}

// events answers with a line for each event, as they come.
func (c *call) events() error {
	after, err := c.query.integer("after", 0)
	if err != nil {
		return err
	}
	follow, err := c.query.boolean("follow")
	if err != nil {
		return err
	}
	o, err := c.overseer()
	if err != nil {
		return err
	}
	if follow {
		defer context.AfterFunc(c.api.open, func() { c.end(errClosing) })()
	}
	n := &news{c: c, w: &lazy{c, wire.NDJSON}, rc: http.NewResponseController(c.w)}
	stop := n.beat(c.api.beat)
	for e, failed := range o.Events(c.ctx, after, follow) {
		if err = failed; err == nil {
			err = n.put(wire.News{Event: &e})
		}
		if err != nil {
			break
		}
	}
	stop()
	if err == nil {
		err = c.ctx.Err() // to follow until then is no error, but the caller is to know that it was not he
	}
	switch {
	case err != nil && !c.begun:
		return err
	case err != nil:
		_, e := c.fault(err)
		n.put(wire.News{Error: &e})
	case !c.begun:
		c.w.Header().Set("Content-Type", wire.NDJSON)
	}
	if c.ctx.Err() == nil {
		n.rc.SetWriteDeadline(time.Time{}) // the connection may serve other calls
	}
	return nil
}

// newsPatience is how long a caller may leave a line unread.
const newsPatience = time.Minute

// news is the stream of events on its way to the caller.
type news struct {
	c  *call
	w  *lazy
	rc *http.ResponseController

	mu sync.Mutex // held while a line is written
}

// put writes a line.
func (n *news) put(line wire.News) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rc.SetWriteDeadline(time.Now().Add(newsPatience))
	if n.c.ctx.Err() != nil { // then hurry has set it, or is about to
		n.rc.SetWriteDeadline(time.Now().Add(lingerTimeout))
	}
	if _, err := n.w.Write(jsonLine(line)); err != nil {
		return err
	}
	return n.rc.Flush()
}

// beat writes a line that says nothing at every interval, until the returned
// function is called, which returns when no more is written. Who does not take
// it is gone, and so ends the call.
func (n *news) beat(interval time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(n.c.ctx)
	var beating sync.WaitGroup
	beating.Go(func() {
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := n.put(wire.News{Beat: true}); err != nil {
				n.c.end(err)
				return
			}
		}
	})
	return func() { cancel(); beating.Wait() }
}
