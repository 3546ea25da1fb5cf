package warm_test

import (
	"context"
	"maps"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// changed is what Update made of a sandbox.
type changed struct {
	env, labels map[string]string
	expires     *time.Time
	timer       *time.Timer
}

func (c *changed) show(i *sandbox.Info) {
	if c == nil {
		return
	}
	if c.labels != nil {
		i.Labels = maps.Clone(c.labels)
	}
	if c.expires != nil {
		i.Expires = *c.expires
	}
}

func (b *backend) change(ctx context.Context, sb sandbox.Sandbox, c sandbox.Change) error {
	if err := c.Check(); err != nil {
		return err
	}
	if _, err := sb.Info(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.changes[sb.ID()]
	if was == nil {
		was = &changed{env: make(map[string]string)}
		b.changes[sb.ID()] = was
	}
	maps.Copy(was.env, c.Env)
	if c.Labels != nil {
		was.labels = maps.Clone(c.Labels)
	}
	if c.Expires != nil {
		if was.timer != nil {
			was.timer.Stop()
		}
		was.expires = c.Expires
		was.timer = time.AfterFunc(time.Until(*c.Expires), func() { sb.Remove(context.Background()) })
	}
	return nil
}

func (x *box) Info(ctx context.Context) (sandbox.Info, error) {
	i, err := x.able.Info(ctx)
	x.b.mu.Lock()
	defer x.b.mu.Unlock()
	x.b.changes[x.ID()].show(&i)
	return i, err
}

func (x *box) env(cmd sandbox.Cmd) sandbox.Cmd {
	x.b.mu.Lock()
	defer x.b.mu.Unlock()
	if c := x.b.changes[x.ID()]; c != nil {
		env := maps.Clone(c.env)
		maps.Copy(env, cmd.Env)
		cmd.Env = env
	}
	return cmd
}

func (x *box) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	return x.able.Start(ctx, x.env(cmd))
}

func (x *box) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	return x.able.StartDetached(ctx, x.env(cmd), opt)
}
