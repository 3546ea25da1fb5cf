package engine

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// A box is a sandbox as one caller sees it. It has every optional ability;
// those that the one below lacks are Unsupported.
type box struct {
	e  *Engine
	en *entry
	by sandbox.Owner // whose call it is
}

var (
	_ sandbox.Sandbox  = box{}
	_ sandbox.Pauser   = box{}
	_ sandbox.Dialer   = box{}
	_ sandbox.Meter    = box{}
	_ sandbox.Detacher = box{}
	_ sandbox.Updater  = box{}
	_ sandbox.Releaser = box{}
)

func (v *View) box(en *entry) box { return box{v.e, en, v.owner} }

// use begins a use of the sandbox, which done ends.
func (b box) use(ctx context.Context) (sb sandbox.Sandbox, done func(), err error) {
	if sb, err = b.e.begin(b.en); err != nil {
		return nil, nil, err
	}
	if sb, err = b.e.open(ctx, b.en, sb); err != nil {
		b.e.finish(b.en)
		return nil, nil, err
	}
	return sb, func() { b.e.finish(b.en) }, nil
}

// keep turns a use that has begun into one that lasts until the caller ends
// it. Close of the Engine does not wait for that.
func (b box) keep() (done func()) {
	b.e.leave()
	return sync.OnceFunc(func() { b.e.rest(b.en) })
}

// fail returns err as the caller gets it, and remembers it.
func (b box) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	if lost(err) {
		b.e.mu.Lock()
		if g := b.en.gone; g != nil { // it knows more
			err = wasGone(g)
		}
		b.e.mu.Unlock()
	}
	err = b.e.translate(op, b.en.id, err)
	b.e.fault(b.by, b.en.owner, op, b.en.id, err)
	if lost(err) {
		// What is below says that the sandbox is not there: it has died, or is
		// going.
		b.e.spawn(func() {
			if alive, err := b.e.alive(b.e.life, b.en); err == nil && !alive {
				b.e.died(b.e.life, b.en)
			}
		})
	}
	return err
}

// lost reports whether err says that the sandbox itself is not there, and is
// not ours.
func lost(err error) bool {
	var e *sandbox.Error
	var g *sandbox.Gone
	return errors.As(err, &e) && e.Kind == sandbox.NotExist && e.Field == "" && !errors.As(err, &g)
}

// translate returns err with the id that callers know, and with what was being
// done.
func (e *Engine) translate(op string, id sandbox.ID, err error) error {
	var se *sandbox.Error
	if errors.As(err, &se) && se.ID != "" && se.ID != id {
		c := *se
		c.ID = id
		err = &c
	}
	return sandbox.At(op, id, err)
}

func (b box) ID() sandbox.ID { return b.en.id }

// look returns the sandbox below to who only looks at it, until done is called.
func (b box) look(ctx context.Context) (sb sandbox.Sandbox, done func(), err error) {
	if err := b.e.enter(); err != nil {
		return nil, nil, err
	}
	b.e.mu.Lock()
	sb, gone := b.en.sb, b.en.gone
	b.e.mu.Unlock()
	if gone != nil {
		err = wasGone(gone)
	} else {
		sb, err = b.e.open(ctx, b.en, sb)
	}
	if err != nil {
		b.e.leave()
		return nil, nil, err
	}
	return sb, b.e.leave, nil
}

func (b box) Info(ctx context.Context) (sandbox.Info, error) {
	const op = "engine.Info"
	sb, done, err := b.look(ctx)
	if err != nil {
		return sandbox.Info{}, b.fail(op, err)
	}
	defer done()
	info, err := sb.Info(ctx)
	if err != nil {
		return sandbox.Info{}, b.fail(op, err)
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	return b.en.info(info), nil
}

func (b box) Files() sandbox.Files { return files{b} }

func (b box) Remove(ctx context.Context) error {
	const op = "engine.Remove"
	if err := b.e.enter(); err != nil {
		return err
	}
	defer b.e.leave()
	if isClosed(b.en.done) {
		return nil
	}
	return b.fail(op, b.e.endNow(ctx, b.en, sandbox.Gone{Why: sandbox.Removed, By: b.by}, false))
}

// Release says that the caller needs the sandbox no more for now.
func (b box) Release(ctx context.Context) error {
	b.e.mu.Lock()
	if b.e.closed {
		b.e.mu.Unlock()
		return errClosed
	}
	if gone := b.en.gone; gone != nil {
		b.e.mu.Unlock()
		return b.fail("engine.Release", wasGone(gone))
	}
	was := b.en.released
	b.en.released = true
	b.e.roomChanged()
	b.e.mu.Unlock()
	if !was {
		b.e.emit(sandbox.Event{Kind: sandbox.EventReleased, Owner: b.en.owner, By: b.by, Sandbox: b.en.id, Name: b.en.name})
	}
	return nil
}

// Update changes what can be changed while the sandbox lives.
func (b box) Update(ctx context.Context, c sandbox.Change) error {
	const op = "engine.Update"
	if err := c.Check(); err != nil {
		return b.fail(op, err)
	}
	sb, done, err := b.use(ctx)
	if err != nil {
		return b.fail(op, err)
	}
	defer done()
	if c.Name != nil {
		unlock, err := b.e.lock(ctx, key{owner: b.en.owner, name: *c.Name})
		if err != nil {
			return b.fail(op, err)
		}
		defer unlock()
	}
	select {
	case b.en.changing <- struct{}{}:
		defer func() { <-b.en.changing }()
	case <-ctx.Done():
		return b.fail(op, ctx.Err())
	}
	if err := b.change(ctx, sb, c); err != nil {
		return b.fail(op, err)
	}
	b.e.emit(sandbox.Event{Kind: sandbox.EventChanged, Owner: b.en.owner, By: b.by, Sandbox: b.en.id, Name: b.en.name})
	return nil
}

func (b box) change(ctx context.Context, sb sandbox.Sandbox, c sandbox.Change) error {
	e, en := b.e, b.en
	e.mu.Lock()
	old := en.rec
	e.mu.Unlock()
	rec := old
	rec.Names = slices.Clone(old.Names)
	if c.Labels != nil {
		rec.Spec.Labels = maps.Clone(c.Labels)
	}
	c = en.prof.Change(c)
	if c.Expires != nil {
		rec.Spec.Expires, rec.Expires = *c.Expires, *c.Expires
	}
	if c.Idle != nil {
		rec.Spec.Idle = *c.Idle
	}
	if c.Name != nil && !slices.Contains(rec.Names, *c.Name) {
		e.mu.Lock()
		other := e.live[key{owner: en.owner, name: *c.Name}]
		e.mu.Unlock()
		if other != nil {
			return sandbox.Errorf(sandbox.Conflict, "name", "another sandbox has this name").WithHint("choose another one")
		}
		if len(rec.Names) >= MaxNames {
			e.metrics.refused("names")
			return sandbox.Errorf(sandbox.Exhausted, "name", "the sandbox has %d names, as many as it may", len(rec.Names)).WithHint("use one of them")
		}
		rec.Names = append(rec.Names, *c.Name)
	}
	e.mu.Lock()
	rec.Used, rec.Released = en.used, en.released
	e.mu.Unlock()
	if there, err := e.store.Replace(ctx, rec); err != nil {
		return err
	} else if !there {
		return b.wasLost()
	}
	if len(c.Env) > 0 {
		err := sandbox.Errorf(sandbox.Unsupported, "env", "this backend cannot change the environment of a sandbox").WithHint("give it to each command")
		u, ok := sb.(sandbox.Updater)
		var failed error = err
		if ok {
			failed = u.Update(ctx, sandbox.Change{Env: c.Env})
		}
		if failed != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), CheckTimeout)
			defer cancel()
			_, err := e.store.Replace(undo, old)
			return errors.Join(failed, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if en.gone != nil {
		return wasGone(en.gone)
	}
	en.rec = rec
	if c.Name != nil {
		e.live[key{owner: en.owner, name: *c.Name}] = en
	}
	e.rearm(en)
	return nil
}

// wasLost returns the error of a change to a sandbox of which the store no
// longer has a record.
func (b box) wasLost() error {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	if b.en.gone != nil {
		return wasGone(b.en.gone)
	}
	return sandbox.Errorf(sandbox.Internal, "", "the record of the sandbox is not there")
}

// ability is a use of the sandbox below as a T.
func ability[T any](ctx context.Context, b box, what string) (t T, done func(), err error) {
	sb, done, err := b.use(ctx)
	if err != nil {
		return t, nil, err
	}
	t, ok := sb.(T)
	if !ok {
		done()
		return t, nil, sandbox.Errorf(sandbox.Unsupported, "", "this backend has no %s", what)
	}
	return t, done, nil
}

func (b box) Pause(ctx context.Context) error {
	p, done, err := ability[sandbox.Pauser](ctx, b, "pausing")
	if err == nil {
		defer done()
		err = p.Pause(ctx)
	}
	return b.fail("engine.Pause", err)
}

func (b box) Resume(ctx context.Context) error {
	p, done, err := ability[sandbox.Pauser](ctx, b, "pausing")
	if err == nil {
		defer done()
		err = p.Resume(ctx)
	}
	return b.fail("engine.Resume", err)
}

func (b box) Usage(ctx context.Context) (sandbox.Usage, error) {
	const op = "engine.Usage"
	sb, done, err := b.look(ctx)
	if err != nil {
		return sandbox.Usage{}, b.fail(op, err)
	}
	defer done()
	m, ok := sb.(sandbox.Meter)
	if !ok {
		return sandbox.Usage{}, b.fail(op, sandbox.Errorf(sandbox.Unsupported, "", "this backend has no usage figures"))
	}
	u, err := m.Usage(ctx)
	return u, b.fail(op, err)
}

func (b box) Dial(ctx context.Context, port int) (net.Conn, error) {
	const op = "engine.Dial"
	d, done, err := ability[sandbox.Dialer](ctx, b, "dialling")
	if err != nil {
		return nil, b.fail(op, err)
	}
	c, err := d.Dial(ctx, port)
	if err != nil {
		done()
		return nil, b.fail(op, err)
	}
	b.e.emit(sandbox.Event{Kind: sandbox.EventDialled, Owner: b.en.owner, By: b.by, Sandbox: b.en.id, Name: b.en.name})
	return &conn{Conn: c, done: b.keep()}, nil
}

// A conn is a use of the sandbox until it is closed.
type conn struct {
	net.Conn
	done func()
}

func (c *conn) Close() error {
	defer c.done()
	return c.Conn.Close()
}

// CloseWrite closes the sending direction, where the connection has two.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return sandbox.Errorf(sandbox.Unsupported, "", "this connection has no halves")
}
