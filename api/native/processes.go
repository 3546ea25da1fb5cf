package native

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// The bounds of what a request about a detached process may want. A caller who
// wants more asks again.
const (
	maxWait      = time.Minute
	defaultInput = 30 * time.Second
	maxRead      = 1 << 20
)

func (c *call) detacher() (sandbox.Detacher, error) {
	return ability[sandbox.Detacher](c, "detached processes")
}

func (c *call) startDetached() error {
	var req wire.Detach
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	d, err := c.detacher()
	if err != nil {
		return err
	}
	id, err := d.StartDetached(c.ctx, req.Cmd.Cmd(), sandbox.DetachOptions{Stdin: req.Input, Ring: req.Ring, Name: string(req.Name)})
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", strings.TrimSuffix(c.r.URL.Path, "/")+"/"+string(id))
	return c.reply(http.StatusCreated, wire.Started{ID: id})
}

func (c *call) listProcesses() error {
	d, err := abilityOf[sandbox.Detacher](c.look, "detached processes")
	if err != nil {
		return err
	}
	ps, err := d.Processes(c.ctx)
	if err != nil {
		return err
	}
	answer := wire.Processes{Processes: make([]wire.Process, len(ps))}
	for i, p := range ps {
		answer.Processes[i] = wire.ProcessOf(p)
	}
	return c.reply(http.StatusOK, answer)
}

// detached returns the path's sandbox and process id.
func (c *call) detached() (sandbox.Detacher, sandbox.ProcessID, error) {
	d, err := c.detacher()
	if err != nil {
		return nil, "", err
	}
	id, err := c.pid()
	return d, id, err
}

func (c *call) forget() error {
	d, id, err := c.detached()
	if err != nil {
		return err
	}
	if err := d.Forget(c.ctx, id); err != nil {
		return err
	}
	return c.done()
}

func (c *call) attach() error {
	cursor, err := c.query.integer("cursor", 0)
	if err != nil {
		return err
	}
	var req wire.Exec
	if s := c.query["discard"]; s != "" {
		req.Discard = strings.Split(s, ",")
	}
	d, id, err := c.detached()
	if err != nil {
		return err
	}
	out := c.sink()
	if out == nil {
		out = newEvents(&lazy{c, wire.NDJSON}, http.NewResponseController(c.w).Flush)
	}
	var cmd sandbox.Cmd
	if err := outputs(&cmd, req, out); err != nil {
		return err
	}
	p, err := d.Attach(c.ctx, id, sandbox.AttachOptions{Cursor: cursor, Stdout: cmd.Stdout, Stderr: cmd.Stderr})
	if err != nil {
		return err
	}
	c.follow(p, out)
	return nil
}

func (c *call) output() error {
	cursor, err := c.query.integer("cursor", 0)
	if err != nil {
		return err
	}
	max, err := c.query.integer("max", maxRead)
	if err != nil {
		return err
	}
	wait, err := c.query.seconds("wait", 0, maxWait)
	if err != nil {
		return err
	}
	d, id, err := c.detached()
	if err != nil {
		return err
	}
	o, err := d.Output(c.ctx, id, cursor, int(min(max, maxRead)), wait)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, o)
}

// input hands the body to a detached process. How many bytes it took is the
// answer, even if the time ran out before it took them all.
func (c *call) input() error {
	eof, err := c.query.boolean("eof")
	if err != nil {
		return err
	}
	wait, err := c.query.seconds("wait", defaultInput, maxWait)
	if err != nil {
		return err
	}
	rc := http.NewResponseController(c.w)
	rc.SetReadDeadline(time.Now().Add(body.Timeout))
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, wire.MaxInput))
	rc.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "body", Msg: "the input has more than 1 MiB", Hint: "send it in parts", Err: body.TooLarge}
	case err != nil:
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "body", Msg: "the body did not arrive whole", Err: err}
	}
	d, id, err := c.detached()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	n, err := d.Input(ctx, id, b, eof)
	if err != nil && n == 0 && !(ctx.Err() != nil && c.ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	return c.reply(http.StatusOK, wire.Wrote{Written: n})
}

// withProcess calls do with the path's process: one that a request waits for,
// or a detached one.
func (c *call) withProcess(do func(sandbox.Process) error) error {
	sb, err := c.open()
	if err != nil {
		return err
	}
	id, err := c.pid()
	if err != nil {
		return err
	}
	c.api.mu.Lock()
	p := c.api.live[processKey{sb.ID(), id}]
	c.api.mu.Unlock()
	if p == nil {
		d, ok := sb.(sandbox.Detacher)
		if !ok {
			return sandbox.Errorf(sandbox.NotExist, "process", "no process has this id")
		}
		ctx, cancel := context.WithCancel(c.ctx)
		defer cancel()
		p, err = d.Attach(ctx, id, sandbox.AttachOptions{})
		if k := sandbox.KindOf(err); k == sandbox.NotExist || k == sandbox.Unsupported {
			return sandbox.Errorf(sandbox.NotExist, "process", "no process has this id")
		}
		if err != nil {
			return err
		}
	}
	if err := do(p); err != nil {
		return err
	}
	return c.done()
}

func (c *call) signal() error {
	var req wire.Signal
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	return c.withProcess(func(p sandbox.Process) error { return p.Signal(c.ctx, req.Signal) })
}

func (c *call) resize() error {
	var req sandbox.Size
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	return c.withProcess(func(p sandbox.Process) error { return p.Resize(c.ctx, req) })
}
