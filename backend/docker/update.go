package docker

import (
	"context"
	"maps"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Update changes what can be changed. The environment is the guest's alone, so
// it is changed there, first; what is shown in Info is in the record as well.
func (b *box) Update(ctx context.Context, c sandbox.Change) error {
	const op = "docker.Update"
	if err := b.rt.enter(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	defer b.rt.work.Done()
	if err := b.check(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	if err := c.Check(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	if err := c.CheckBackend(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	b.updating.Lock()
	defer b.updating.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	// Once begun it is finished, whoever stops waiting, or taken back.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
	defer cancel()
	undo := func() error { return nil }
	if len(c.Env) > 0 {
		g, err := b.reach(ctx)
		if err != nil {
			return b.explain(op, err)
		}
		was, wasNot, err := g.SetEnv(ctx, c.Env, nil)
		if err != nil {
			return b.explain(op, err)
		}
		undo = func() error {
			_, _, err := g.SetEnv(ctx, was, wasNot)
			return err
		}
	}
	if err := b.rewrite(c); err != nil {
		if e := undo(); e != nil {
			b.rt.log.Error("an update could not be taken back", "id", b.id, "err", e)
		}
		return b.explain(op, err)
	}
	return nil
}

// rewrite makes the part of c that the record has.
func (b *box) rewrite(c sandbox.Change) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isGone {
		return errGone
	}
	if c.Expires == nil && c.Labels == nil {
		return nil
	}
	was := b.rec.Info
	if c.Expires != nil {
		b.rec.Info.Expires = *c.Expires
	}
	if c.Labels != nil {
		b.rec.Info.Labels = maps.Clone(c.Labels)
	}
	if err := b.rt.saveRecord(&b.rec); err != nil {
		b.rec.Info.Expires, b.rec.Info.Labels = was.Expires, was.Labels
		return err
	}
	if c.Expires != nil {
		b.arm()
	}
	return nil
}

// arm makes the sandbox end when its time has come. b.mu is held.
func (b *box) arm() {
	if b.expiry != nil {
		b.expiry.Stop()
		b.expiry = nil
	}
	if at := b.rec.Info.Expires; !at.IsZero() {
		b.expiry = time.AfterFunc(time.Until(at), b.expire)
	}
}

// expire ends the sandbox, unless its time was changed at the last moment.
func (b *box) expire() {
	if b.rt.enter() != nil {
		return
	}
	defer b.rt.work.Done()
	b.mu.Lock()
	at := b.rec.Info.Expires
	switch {
	case b.isGone || at.IsZero():
		b.mu.Unlock()
		return
	case time.Until(at) > 0:
		b.arm()
		b.mu.Unlock()
		return
	}
	b.isGone = true // from here on nothing can save it
	b.mu.Unlock()
	b.rt.log.Info("expired", "id", b.id)
	if err := b.Remove(b.rt.life); err != nil {
		b.rt.log.Error("an expired sandbox could not be removed", "id", b.id, "err", err)
	}
}
