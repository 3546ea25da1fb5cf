package native

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

func (c *call) server() error {
	return c.reply(http.StatusOK, wire.Server{Version: c.api.version, API: "v1"})
}

// callOff ends another request of the caller's, which then answers that it was
// called off, unless it was done.
func (c *call) callOff() error {
	c.api.mu.Lock()
	cancel := c.api.requests[requestKey{c.owner, c.r.PathValue("name")}]
	c.api.mu.Unlock()
	if cancel == nil {
		return sandbox.Errorf(sandbox.NotExist, "request", "no request under way has this name")
	}
	cancel(errCalledOff)
	return c.done()
}

func (c *call) openAPI() error {
	c.w.Header().Set("Content-Type", "application/yaml")
	c.w.Write(openAPI)
	return nil
}

func (c *call) create() error {
	var req wire.Spec
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	sb, err := c.rt.Create(c.ctx, req.Spec())
	if err != nil {
		return err
	}
	info, err := sb.Info(c.ctx)
	if err == nil {
		err = c.ctx.Err() // nobody would learn its id
	}
	if err != nil {
		return errors.Join(err, sb.Remove(context.WithoutCancel(c.ctx)))
	}
	c.w.Header().Set("Location", sandboxes+"/"+string(info.ID))
	return c.reply(http.StatusCreated, shown(info))
}

func (c *call) list() error {
	return stream(c, "sandboxes", c.rt.List(c.ctx), func(i sandbox.Info) any { return shown(i) })
}

// shown returns info without a list that would be null.
func shown(info sandbox.Info) sandbox.Info {
	if info.Isolation.Has == nil {
		info.Isolation.Has = []sandbox.Property{}
	}
	return info
}

// stream answers with {name: [...]} as the elements come. An error before the
// first is answered with its status, a later one stands behind the elements.
func stream[T any](c *call, name string, seq iter.Seq2[T, error], shape func(T) any) error {
	begin := func() {
		c.begun = true
		c.w.Header().Set("Content-Type", wire.JSON)
		io.WriteString(c.w, `{"`+name+`":[`)
	}
	for v, err := range seq {
		if err != nil {
			if !c.begun {
				return err
			}
			_, e := c.fault(err)
			b, _ := json.Marshal(e)
			io.WriteString(c.w, `],"error":`)
			c.w.Write(b)
			io.WriteString(c.w, "}\n")
			return nil
		}
		b, err := json.Marshal(shape(v))
		if err != nil {
			return err
		}
		if !c.begun {
			begin()
		} else {
			b = append([]byte{','}, b...)
		}
		if _, err := c.w.Write(b); err != nil {
			return err
		}
	}
	if !c.begun {
		begin()
	}
	io.WriteString(c.w, "]}\n")
	return nil
}

func (c *call) info() error {
	peek, err := c.query.boolean("peek")
	if err != nil {
		return err
	}
	open := c.open
	if peek {
		open = c.look
	}
	sb, err := open()
	if err != nil {
		return err
	}
	info, err := sb.Info(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, shown(info))
}

func (c *call) remove() error {
	sb, err := c.open()
	if err != nil {
		return err
	}
	if err := sb.Remove(c.ctx); err != nil {
		return err
	}
	return c.done()
}

func (c *call) pause() error {
	p, err := ability[sandbox.Pauser](c, "pausing")
	if err != nil {
		return err
	}
	if err := p.Pause(c.ctx); err != nil {
		return err
	}
	return c.done()
}

func (c *call) resume() error {
	p, err := ability[sandbox.Pauser](c, "pausing")
	if err != nil {
		return err
	}
	if err := p.Resume(c.ctx); err != nil {
		return err
	}
	return c.done()
}

func (c *call) usage() error {
	m, err := abilityOf[sandbox.Meter](c.look, "figures of usage")
	if err != nil {
		return err
	}
	u, err := m.Usage(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, u)
}

func (c *call) dial() error {
	port, err := strconv.Atoi(c.r.PathValue("port"))
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "port", "%q is not a port", clip(c.r.PathValue("port"))).WithHint("give a number from 1 to 65535")
	}
	d, err := ability[sandbox.Dialer](c, "way to reach ports")
	if err != nil {
		return err
	}
	up, err := c.upgradable(wire.UpgradeTCP)
	if err != nil {
		return err
	}
	in, err := d.Dial(c.ctx, port)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := up()
	if err != nil {
		return err
	}
	defer out.Close()
	defer context.AfterFunc(c.ctx, func() { in.Close(); out.Close() })()
	back := make(chan struct{})
	go func() {
		defer close(back)
		copyConn(out, in)
	}()
	copyConn(in, out)
	// A caller that has closed its side altogether looks like one that only
	// has nothing more to say, and the other side may never end by itself.
	defer time.AfterFunc(halfOpen, func() { in.Close(); out.Close() }).Stop()
	<-back
	return nil
}

// halfOpen is how long a connection to a port may go on after the caller has
// closed its side of it.
const halfOpen = time.Hour
