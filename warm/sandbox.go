package warm

import (
	"context"
	"net"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A taken is a sandbox that was ready before somebody asked for it. It differs
// from the one below in when it says that it was created.
type taken struct {
	sandbox.Sandbox
	rt      *Runtime
	created time.Time
}

var (
	_ sandbox.Pauser   = (*taken)(nil)
	_ sandbox.Dialer   = (*taken)(nil)
	_ sandbox.Meter    = (*taken)(nil)
	_ sandbox.Detacher = (*taken)(nil)
	_ sandbox.Updater  = (*taken)(nil)
	_ sandbox.Releaser = (*taken)(nil)
)

func (t *taken) Info(ctx context.Context) (sandbox.Info, error) {
	i, err := t.Sandbox.Info(ctx)
	if err == nil {
		i.Created = t.created
	}
	return i, err
}

func (t *taken) Remove(ctx context.Context) error {
	err := t.Sandbox.Remove(ctx)
	if err == nil {
		t.rt.mu.Lock()
		delete(t.rt.known, t.ID())
		t.rt.mu.Unlock()
	}
	return err
}

// cannot says that the sandbox below lacks an ability.
func (t *taken) cannot(op, what string) error {
	return sandbox.At("warm."+op, t.ID(), sandbox.Errorf(sandbox.Unsupported, "", "this backend cannot %s", what).WithHint("do without it, or use another backend"))
}

func (t *taken) Pause(ctx context.Context) error {
	if p, ok := t.Sandbox.(sandbox.Pauser); ok {
		return p.Pause(ctx)
	}
	return t.cannot("Pause", "pause a sandbox")
}

func (t *taken) Resume(ctx context.Context) error {
	if p, ok := t.Sandbox.(sandbox.Pauser); ok {
		return p.Resume(ctx)
	}
	return t.cannot("Resume", "pause a sandbox")
}

func (t *taken) Dial(ctx context.Context, port int) (net.Conn, error) {
	if d, ok := t.Sandbox.(sandbox.Dialer); ok {
		return d.Dial(ctx, port)
	}
	return nil, t.cannot("Dial", "connect to a sandbox's ports")
}

func (t *taken) Usage(ctx context.Context) (sandbox.Usage, error) {
	if m, ok := t.Sandbox.(sandbox.Meter); ok {
		return m.Usage(ctx)
	}
	return sandbox.Usage{}, t.cannot("Usage", "say what a sandbox uses")
}

func (t *taken) Update(ctx context.Context, c sandbox.Change) error {
	if u, ok := t.Sandbox.(sandbox.Updater); ok {
		return u.Update(ctx, c)
	}
	return t.cannot("Update", "change a live sandbox")
}

func (t *taken) Release(ctx context.Context) error {
	if r, ok := t.Sandbox.(sandbox.Releaser); ok {
		return r.Release(ctx)
	}
	return t.cannot("Release", "release a sandbox")
}

func (t *taken) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	if d, ok := t.Sandbox.(sandbox.Detacher); ok {
		return d.StartDetached(ctx, cmd, opt)
	}
	return "", t.cannot("StartDetached", "detach processes")
}

func (t *taken) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	if d, ok := t.Sandbox.(sandbox.Detacher); ok {
		return d.Processes(ctx)
	}
	return nil, t.cannot("Processes", "detach processes")
}

func (t *taken) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	if d, ok := t.Sandbox.(sandbox.Detacher); ok {
		return d.Attach(ctx, id, opt)
	}
	return nil, t.cannot("Attach", "detach processes")
}

func (t *taken) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	if d, ok := t.Sandbox.(sandbox.Detacher); ok {
		return d.Output(ctx, id, cursor, max, wait)
	}
	return sandbox.Output{}, t.cannot("Output", "detach processes")
}

func (t *taken) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	if d, ok := t.Sandbox.(sandbox.Detacher); ok {
		return d.Input(ctx, id, p, eof)
	}
	return 0, t.cannot("Input", "detach processes")
}

func (t *taken) Forget(ctx context.Context, id sandbox.ProcessID) error {
	if d, ok := t.Sandbox.(sandbox.Detacher); ok {
		return d.Forget(ctx, id)
	}
	return t.cannot("Forget", "detach processes")
}
