package docker

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/backend/docker/place"
	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// A box is a live sandbox.
type box struct {
	rt        *Runtime
	id        sandbox.ID
	container string     // the engine's id
	done      place.Done // of Create alone

	gone chan struct{} // closed when all that it held is free

	updating sync.Mutex // held while an Update, a Pause or a Resume is made

	mu     sync.Mutex
	rec    record
	guest  *guest.Client // nil while it cannot be reached
	ready  chan struct{} // closed once there is a guest; another one while there is none
	isGone bool          // being removed, or removed
	ending *ending       // what removes it; nil before, and after it has failed
	expiry *time.Timer
}

// An ending is one try to remove a sandbox.
type ending struct {
	done chan struct{}
	err  error // set before done is closed
}

var (
	_ sandbox.Sandbox  = (*box)(nil)
	_ sandbox.Pauser   = (*box)(nil)
	_ sandbox.Dialer   = (*box)(nil)
	_ sandbox.Meter    = (*box)(nil)
	_ sandbox.Detacher = (*box)(nil)
	_ sandbox.Updater  = (*box)(nil)
)

// set makes g the way to the guest.
func (b *box) set(g *guest.Client) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guest = g
	close(b.ready)
}

// add makes b one of the live ones, and watches over it.
func (rt *Runtime) add(b *box) error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return errClosed
	}
	rt.live[b.id] = b
	rt.work.Go(b.watch)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arm()
	return nil
}

// watch keeps a way to the guest open for as long as the container runs, and
// frees what is left when it has ended.
func (b *box) watch() {
	for {
		b.mu.Lock()
		g := b.guest
		b.mu.Unlock()
		if g != nil {
			select {
			case <-b.rt.life.Done():
				return
			case <-b.gone:
				return
			case <-g.Done():
			}
			b.mu.Lock()
			b.guest, b.ready = nil, make(chan struct{})
			b.mu.Unlock()
			g.Close()
		}
		if !b.reconnect() {
			return
		}
	}
}

// reconnect tries to reach the guest until it can, and reports whether it did.
// A sandbox that is gone instead is freed.
func (b *box) reconnect() bool {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		b.mu.Lock()
		isGone := b.isGone
		b.mu.Unlock()
		if isGone || b.rt.life.Err() != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(b.rt.life, deadline)
		c, err := b.rt.api.ContainerInspect(ctx, b.container, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(err), err == nil && (c.Container.State == nil || !c.Container.State.Running):
			b.rt.log.Error("a sandbox has ended", "id", b.id)
			err := b.Remove(ctx)
			cancel()
			if err != nil && b.rt.life.Err() == nil {
				b.rt.log.Error("a dead sandbox could not be removed", "id", b.id, "err", err)
			}
			return false
		case err == nil && !c.Container.State.Paused:
			var g *guest.Client
			if g, err = b.dial(ctx); err == nil {
				cancel()
				b.set(g)
				return true
			}
		}
		cancel()
		if err != nil && b.rt.life.Err() == nil {
			b.rt.log.Warn("a guest cannot be reached", "id", b.id, "err", err)
		}
		select {
		case <-time.After(pause):
		case <-b.rt.life.Done():
		case <-b.gone:
		}
	}
}

// leave lets go of a sandbox that stays alive, when the Runtime closes.
func (b *box) leave() {
	b.mu.Lock()
	g := b.guest
	if b.expiry != nil {
		b.expiry.Stop()
	}
	b.mu.Unlock()
	if g != nil {
		g.Close()
	}
}

// check returns why nothing can be done with the sandbox, if so.
func (b *box) check() error {
	b.rt.mu.Lock()
	closed := b.rt.closed
	b.rt.mu.Unlock()
	if closed {
		return errClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isGone {
		return errGone
	}
	return nil
}

// reach returns the way to the guest. It waits a moment for one that was lost.
// A paused sandbox's guest stands still with the rest.
func (b *box) reach(ctx context.Context) (*guest.Client, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	g, ready, paused := b.guest, b.ready, b.rec.Info.State == sandbox.Paused
	b.mu.Unlock()
	if paused {
		return nil, sandbox.Errorf(sandbox.Unavailable, "", "the sandbox is paused").WithHint("resume it first")
	}
	if g != nil {
		return g, nil
	}
	wait := time.NewTimer(5 * time.Second)
	defer wait.Stop()
	select {
	case <-ready:
		b.mu.Lock()
		g := b.guest
		b.mu.Unlock()
		if g != nil {
			return g, nil
		}
	case <-wait.C:
	case <-b.gone:
	case <-b.rt.life.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "", "the sandbox cannot be reached now").WithHint("try again")
}

// explain gives an error its place, and says that the sandbox is gone where
// that is the true reason.
func (b *box) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	if k := sandbox.KindOf(err); k == sandbox.Unavailable || k == sandbox.Internal || k == sandbox.Closed {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) && b.lost() {
			// It may be the container's end, or only that of the way there:
			// the watch finds out which.
			wait := time.NewTimer(5 * time.Second)
			defer wait.Stop()
			b.mu.Lock()
			ready := b.ready
			b.mu.Unlock()
			select {
			case <-ready:
			case <-b.gone:
			case <-b.rt.life.Done():
			case <-wait.C:
			}
		}
		if e := b.check(); e != nil {
			err = e
		}
	}
	return sandbox.At(op, b.id, err)
}

// lost reports whether the way to the guest was lost and nobody knows why yet.
func (b *box) lost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.isGone && b.rec.Info.State != sandbox.Paused && (b.guest == nil || isDone(b.guest))
}

func (b *box) ID() sandbox.ID { return b.id }

func (b *box) Info(ctx context.Context) (sandbox.Info, error) {
	if err := b.check(); err != nil {
		return sandbox.Info{}, sandbox.At("docker.Info", b.id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	info := b.rec.Info
	info.Labels = maps.Clone(info.Labels)
	info.Mounts = slices.Clone(info.Mounts)
	info.Kept = maps.Clone(info.Kept)
	info.Isolation.Has = slices.Clone(info.Isolation.Has)
	info.Isolation.Missing = slices.Clone(info.Isolation.Missing)
	return info, nil
}

func (b *box) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	const op = "docker.Start"
	if err := cmd.Check(); err != nil {
		return nil, sandbox.At(op, b.id, err)
	}
	g, err := b.reach(ctx)
	if err != nil {
		return nil, b.explain(op, err)
	}
	p, err := g.Start(ctx, cmd)
	if err != nil {
		return nil, b.explain(op, err)
	}
	return &running{p, b}, nil
}

// running is a process of the guest's, whose errors say which sandbox.
type running struct {
	sandbox.Process
	box *box
}

func (p *running) Wait() (sandbox.Exit, error) {
	exit, err := p.Process.Wait()
	return exit, p.box.explain("docker.Wait", err)
}

func (p *running) Signal(ctx context.Context, sig sandbox.Signal) error {
	return p.box.explain("docker.Signal", p.Process.Signal(ctx, sig))
}

func (p *running) Resize(ctx context.Context, size sandbox.Size) error {
	return p.box.explain("docker.Resize", p.Process.Resize(ctx, size))
}

func (b *box) Files() sandbox.Files { return files{b} }

// Remove kills the sandbox and frees what it held. Whoever comes second waits
// for the first, and tries again what that has failed to do.
func (b *box) Remove(ctx context.Context) error {
	const op = "docker.Remove"
	if err := b.rt.enter(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	defer b.rt.work.Done()
	b.mu.Lock()
	b.isGone = true
	if b.expiry != nil {
		b.expiry.Stop()
	}
	e := b.ending
	if e == nil {
		e = &ending{done: make(chan struct{})}
		b.ending = e
		b.rt.work.Go(func() {
			// Once begun it is finished, whoever stops waiting.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*deadline)
			defer cancel()
			b.end(e, b.free(ctx))
		})
	}
	b.mu.Unlock()
	select {
	case <-e.done:
		return sandbox.At(op, b.id, e.err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end says how removing it went.
func (b *box) end(e *ending, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.ending = nil
	} else if e.err == nil {
		close(b.gone)
	}
	e.err = err
	close(e.done)
}

func (b *box) free(ctx context.Context) error {
	err := b.rt.removeContainer(ctx, b.container)
	b.mu.Lock()
	g := b.guest
	b.mu.Unlock()
	if err != nil {
		return err
	}
	if g != nil {
		g.Close()
	}
	b.rt.mu.Lock()
	delete(b.rt.live, b.id)
	b.rt.mu.Unlock()
	b.rt.forget(b.id)
	return nil
}

func (b *box) Pause(ctx context.Context) error {
	return b.setState(ctx, "docker.Pause", sandbox.Paused, func() error {
		_, err := b.rt.api.ContainerPause(ctx, b.container, client.ContainerPauseOptions{})
		return err
	})
}

func (b *box) Resume(ctx context.Context) error {
	return b.setState(ctx, "docker.Resume", sandbox.Running, func() error {
		_, err := b.rt.api.ContainerUnpause(ctx, b.container, client.ContainerUnpauseOptions{})
		return err
	})
}

func (b *box) setState(ctx context.Context, op string, to sandbox.State, do func() error) error {
	if err := b.check(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	b.updating.Lock()
	defer b.updating.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	was := b.rec.Info.State
	if was == to {
		b.mu.Unlock()
		return nil
	}
	if to == sandbox.Paused { // before it is: nothing may start in between
		b.rec.Info.State = to
	}
	b.mu.Unlock()
	err := do()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.rec.Info.State = was
		if errdefs.IsNotFound(err) || errdefs.IsConflict(err) && b.isGone {
			err = errGone
		} else {
			err = b.rt.fail(err)
		}
		return sandbox.At(op, b.id, err)
	}
	b.rec.Info.State = to
	return sandbox.At(op, b.id, b.rt.saveRecord(&b.rec))
}

func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	const op = "docker.Dial"
	if port < 1 || port > 65535 {
		return nil, sandbox.At(op, b.id, sandbox.Errorf(sandbox.Invalid, "port", "%d is not a port", port).WithHint("use 1 to 65535"))
	}
	g, err := b.reach(ctx)
	if err != nil {
		return nil, b.explain(op, err)
	}
	c, err := g.Dial(ctx, port)
	return c, b.explain(op, err)
}

// Usage is what the guest sees, and how much the engine's storage holds of the
// container's own.
func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) {
	const op = "docker.Usage"
	g, err := b.reach(ctx)
	if err != nil {
		return sandbox.Usage{}, b.explain(op, err)
	}
	u, err := g.Usage(ctx)
	if err != nil {
		return sandbox.Usage{}, b.explain(op, err)
	}
	c, err := b.rt.api.ContainerInspect(ctx, b.container, client.ContainerInspectOptions{Size: true})
	if err != nil {
		return sandbox.Usage{}, b.explain(op, b.rt.fail(err))
	}
	if c.Container.SizeRw != nil {
		u.Disk = *c.Container.SizeRw
	}
	return u, nil
}

func (b *box) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	const op = "docker.StartDetached"
	if err := cmd.Check(); err != nil {
		return "", sandbox.At(op, b.id, err)
	}
	g, err := b.reach(ctx)
	if err != nil {
		return "", b.explain(op, err)
	}
	id, err := g.StartDetached(ctx, cmd, opt)
	return id, b.explain(op, err)
}

func (b *box) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	const op = "docker.Processes"
	g, err := b.reach(ctx)
	if err != nil {
		return nil, b.explain(op, err)
	}
	ps, err := g.Processes(ctx)
	return ps, b.explain(op, err)
}

func (b *box) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	const op = "docker.Attach"
	g, err := b.reach(ctx)
	if err != nil {
		return nil, b.explain(op, err)
	}
	p, err := g.Attach(ctx, id, opt)
	if err != nil {
		return nil, b.explain(op, err)
	}
	return &running{p, b}, nil
}

func (b *box) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	const op = "docker.Output"
	g, err := b.reach(ctx)
	if err != nil {
		return sandbox.Output{}, b.explain(op, err)
	}
	out, err := g.Output(ctx, id, cursor, max, wait)
	return out, b.explain(op, err)
}

func (b *box) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	const op = "docker.Input"
	g, err := b.reach(ctx)
	if err != nil {
		return 0, b.explain(op, err)
	}
	n, err := g.Input(ctx, id, p, eof)
	return n, b.explain(op, err)
}

func (b *box) Forget(ctx context.Context, id sandbox.ProcessID) error {
	const op = "docker.Forget"
	g, err := b.reach(ctx)
	if err != nil {
		return b.explain(op, err)
	}
	return b.explain(op, g.Forget(ctx, id))
}
