package memory

import (
	"context"
	"maps"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Update changes what can be changed.
func (b *box) Update(ctx context.Context, c sandbox.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sandbox.At(op("Update"), b.id, b.update(c))
}

func (b *box) update(c sandbox.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return err
	}
	if err := c.Check(); err != nil {
		return err
	}
	if err := c.CheckBackend(); err != nil {
		return err
	}
	if c.Labels != nil {
		b.info.Labels = maps.Clone(c.Labels)
	}
	if len(c.Env) > 0 {
		env := make(map[string]string, len(b.spec.Env)+len(c.Env))
		maps.Copy(env, b.spec.Env)
		maps.Copy(env, c.Env)
		b.spec.Env = env
	}
	if c.Expires != nil {
		b.info.Expires = *c.Expires
		b.arm()
	}
	return nil
}

// arm makes the sandbox end when its time has come. The mutex is held.
func (b *box) arm() {
	if b.expiry != nil {
		b.expiry.Stop()
		b.expiry = nil
	}
	if at := b.info.Expires; !at.IsZero() {
		b.expiry = time.AfterFunc(time.Until(at), b.expire)
	}
}

// expire ends the sandbox, unless its time was changed at the last moment.
func (b *box) expire() {
	b.mu.Lock()
	at := b.info.Expires
	switch {
	case b.rt.closed || b.gone || at.IsZero():
		b.mu.Unlock()
		return
	case time.Until(at) > 0:
		b.arm()
		b.mu.Unlock()
		return
	}
	b.rt.wg.Add(1)
	b.end()
	b.mu.Unlock()
	defer b.rt.wg.Done()
	<-b.over
}
