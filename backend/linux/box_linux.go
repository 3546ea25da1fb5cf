package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/cgroup"
	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// A box is a live sandbox.
type box struct {
	rt    *Runtime
	id    sandbox.ID
	dir   string
	slot  int
	init  *process
	group *cgroup.Group // nil if there are no cgroups
	guest *guest.Client
	said  *os.File // the guest's standard error, in memory; nil after a restart

	release func() // lets go of the image; nil if nothing holds it

	gone chan struct{} // closed when all that it held is free

	updating sync.Mutex // held while an Update is made: one comes after the other

	mu     sync.Mutex
	rec    record
	isGone bool    // being removed, or removed
	ending *ending // what frees it; nil before, and after it has failed
	expiry *time.Timer
	starts map[sandbox.ProcessID]int64 // per detached process: the out-of-memory kills before it
}

// An ending is one try to free what a sandbox held.
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

// add makes b one of the live ones, and watches over it.
func (rt *Runtime) add(b *box) error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return sandbox.Errorf(sandbox.Closed, "", "the backend was closed")
	}
	rt.live[b.id] = b
	rt.work.Go(func() { b.watch(b.guest) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arm()
	return nil
}

// watch waits for the guest's end. A sandbox whose guest has died has no
// process left; what it holds is freed.
func (b *box) watch(g *guest.Client) {
	select {
	case <-b.rt.life.Done():
		return
	case <-b.gone:
		return
	case <-g.Done():
	}
	b.mu.Lock()
	isGone := b.isGone
	b.mu.Unlock()
	if isGone || b.rt.life.Err() != nil {
		return
	}
	b.rt.log.Error("the guest is gone", "id", b.id, "said", b.lastWords())
	ctx, cancel := context.WithTimeout(b.rt.life, deadline)
	defer cancel()
	if err := b.Remove(ctx); err != nil {
		b.rt.log.Error("a dead sandbox could not be removed", "id", b.id, "err", err)
	}
}

// lastWords is what the guest said on its standard error, such as why it
// crashed. What it said to an earlier daemon is gone with that.
func (b *box) lastWords() string {
	if b.said == nil {
		return ""
	}
	buf := make([]byte, 4096)
	n, _ := b.said.ReadAt(buf, 0)
	if n == 0 {
		return ""
	}
	return "; the guest said: " + strings.TrimSpace(string(buf[:n]))
}

// leave lets go of a sandbox that stays alive, when the Runtime closes.
func (b *box) leave() {
	b.mu.Lock()
	if b.expiry != nil {
		b.expiry.Stop()
	}
	b.mu.Unlock()
	b.guest.Close()
	b.init.close()
	if b.said != nil {
		b.said.Close()
	}
}

// check returns why nothing can be done with the sandbox, if so.
func (b *box) check() error {
	b.rt.mu.Lock()
	closed := b.rt.closed
	b.rt.mu.Unlock()
	if closed {
		return sandbox.Errorf(sandbox.Closed, "", "the backend was closed")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isGone {
		return errGone
	}
	return nil
}

// explain gives an error its place, and says that the sandbox is gone where
// that is the true reason.
func (b *box) explain(op string, err error) error {
	if err == nil {
		return nil
	}
	if k := sandbox.KindOf(err); k == sandbox.Unavailable || k == sandbox.Internal || k == sandbox.Closed {
		if e := b.check(); e != nil {
			err = e
		}
	}
	return sandbox.At(op, b.id, err)
}

func (b *box) ID() sandbox.ID { return b.id }

func (b *box) Info(ctx context.Context) (sandbox.Info, error) {
	if err := b.check(); err != nil {
		return sandbox.Info{}, sandbox.At("linux.Info", b.id, err)
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

// mayStart refuses to start what would stand still at once.
func (b *box) mayStart() error {
	if err := b.check(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rec.Info.State == sandbox.Paused {
		return sandbox.Errorf(sandbox.Unavailable, "", "the sandbox is paused").WithHint("resume it first")
	}
	return nil
}

func (b *box) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	const op = "linux.Start"
	if err := b.mayStart(); err != nil {
		return nil, sandbox.At(op, b.id, err)
	}
	if err := cmd.Check(); err != nil {
		return nil, sandbox.At(op, b.id, err)
	}
	before := b.oomKills()
	p, err := b.guest.Start(ctx, cmd)
	if err != nil {
		return nil, b.explain(op, err)
	}
	return &running{Process: p, box: b, before: before}, nil
}

// running is a process of the guest's, whose end may need explaining.
type running struct {
	sandbox.Process
	box    *box
	before int64
}

func (p *running) Wait() (sandbox.Exit, error) {
	exit, err := p.Process.Wait()
	p.box.blame(&exit, p.before)
	return exit, p.box.explain("linux.Wait", err)
}

func (p *running) Signal(ctx context.Context, sig sandbox.Signal) error {
	return p.box.explain("linux.Signal", p.Process.Signal(ctx, sig))
}

func (p *running) Resize(ctx context.Context, size sandbox.Size) error {
	return p.box.explain("linux.Resize", p.Process.Resize(ctx, size))
}

// oomKills is how many of the sandbox's processes the kernel has killed for
// want of memory; what a sandbox without a limit lost is not its doing. It is
// negative if that cannot be told.
func (b *box) oomKills() int64 {
	if b.group == nil || b.rec.Info.Limits.Memory == 0 {
		return 0
	}
	n, err := b.group.OOMKills()
	if err != nil {
		if b.check() == nil { // else its cgroup went with it
			b.rt.log.Warn("the kernel's kills for want of memory cannot be counted", "id", b.id, "err", err)
		}
		return -1
	}
	return n
}

// blame turns a kill into a lack of memory where the kernel counted one since
// the process began: of the process, or of a child of which a shell then
// reports 137.
func (b *box) blame(e *sandbox.Exit, before int64) {
	killed := e.Reason == sandbox.Signalled && e.Signal == sandbox.KILL || e.Reason == sandbox.Exited && e.Code == 137
	if killed && before >= 0 && b.oomKills() > before {
		e.Code, e.Reason, e.Signal = -1, sandbox.OutOfMemory, sandbox.KILL
	}
}

func (b *box) Files() sandbox.Files { return files{b.guest.Files(), b} }

// Remove kills the sandbox and frees what it held. Whoever comes second waits
// for the first, and tries again what that has failed to do.
func (b *box) Remove(ctx context.Context) error {
	const op = "linux.Remove"
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
			b.end(e, b.rt.free(ctx, b))
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

// end says how freeing it went.
func (b *box) end(e *ending, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.ending = nil
	} else {
		close(b.gone)
	}
	e.err = err
	close(e.done)
}

// free ends the sandbox's processes and gives back all that it had, but for
// what an earlier try has given back. It waits for a cgroup that is busy.
func (rt *Runtime) free(ctx context.Context, b *box) error {
	var errs []error
	if b.group != nil {
		if err := b.group.Kill(); err != nil {
			errs = append(errs, fmt.Errorf("kill: %w", err))
		}
	}
	if err := b.init.end(ctx); err != nil {
		// What still runs still needs all that it has.
		return errors.Join(append(errs, err)...)
	}
	b.guest.Close()
	if b.said != nil {
		b.said.Close()
	}
	if b.group != nil {
		if err := b.group.Remove(ctx); err != nil {
			errs = append(errs, fmt.Errorf("cgroup: %w", err))
		}
	}
	rt.mu.Lock()
	delete(rt.live, b.id)
	rt.mu.Unlock()
	if err := rt.discard(b.dir); err != nil {
		errs = append(errs, err)
	} else if b.slot >= 0 {
		rt.freeSlot(b.slot)
		b.slot = -1
	}
	if b.release != nil { // its mounts went with its processes
		b.release()
		b.release = nil
	}
	return errors.Join(errs...)
}

// discard deletes the folder of a sandbox that has no processes. It is first
// moved aside, so that a crash in between leaves nothing that looks alive.
func (rt *Runtime) discard(dir string) error {
	trash := rt.path("trash", filepath.Base(dir))
	if err := os.Rename(dir, trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return rt.delete(trash)
}

func (b *box) Pause(ctx context.Context) error {
	return b.setState(ctx, "linux.Pause", sandbox.Paused, func(g *cgroup.Group) error { return g.Freeze(ctx) })
}

func (b *box) Resume(ctx context.Context) error {
	return b.setState(ctx, "linux.Resume", sandbox.Running, func(g *cgroup.Group) error { return g.Thaw(ctx) })
}

func (b *box) setState(ctx context.Context, op string, to sandbox.State, do func(*cgroup.Group) error) error {
	if err := b.check(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	if b.group == nil {
		return sandbox.At(op, b.id, sandbox.Errorf(sandbox.Unsupported, "", "without cgroups a sandbox cannot be paused").WithHint("atoll doctor tells what would mend it"))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	was := b.rec.Info.State
	b.rec.Info.State = to // before it is: nothing may start in between
	b.mu.Unlock()
	err := do(b.group)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.rec.Info.State = was
		return sandbox.At(op, b.id, err)
	}
	if was != to {
		err = b.rec.save(b.dir)
	}
	return sandbox.At(op, b.id, err)
}

func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	const op = "linux.Dial"
	if err := b.check(); err != nil {
		return nil, sandbox.At(op, b.id, err)
	}
	if port < 1 || port > 65535 {
		return nil, sandbox.At(op, b.id, sandbox.Errorf(sandbox.Invalid, "port", "%d is not a port", port).WithHint("use 1 to 65535"))
	}
	c, err := b.guest.Dial(ctx, port)
	return c, b.explain(op, err)
}

func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) {
	const op = "linux.Usage"
	if err := b.check(); err != nil {
		return sandbox.Usage{}, sandbox.At(op, b.id, err)
	}
	u, err := b.guest.Usage(ctx)
	if err != nil {
		return sandbox.Usage{}, b.explain(op, err)
	}
	if b.group != nil {
		g, err := b.group.Usage()
		if err != nil {
			return sandbox.Usage{}, b.explain(op, err)
		}
		g.Disk = u.Disk
		u = g
	}
	if n, err := diskUsed(ctx, filepath.Join(b.dir, "volume")); err == nil && n > 0 {
		u.Disk = n
	} else if n, err := diskUsed(ctx, filepath.Join(b.dir, "disk")); err == nil && n > 0 {
		u.Disk = n
	}
	return u, nil
}

// diskUsed is what a tree takes on disk, in bytes.
func diskUsed(ctx context.Context, root string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // changed meanwhile
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if info, err := d.Info(); err == nil {
			sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	return sum, err
}

func (b *box) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	const op = "linux.StartDetached"
	if err := b.mayStart(); err != nil {
		return "", sandbox.At(op, b.id, err)
	}
	if err := cmd.Check(); err != nil {
		return "", sandbox.At(op, b.id, err)
	}
	before := b.oomKills()
	id, err := b.guest.StartDetached(ctx, cmd, opt)
	if err != nil {
		return "", b.explain(op, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.starts == nil {
		b.starts = make(map[sandbox.ProcessID]int64)
	}
	b.starts[id] = before
	return id, nil
}

func (b *box) before(id sandbox.ProcessID) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.starts[id]
}

func (b *box) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	const op = "linux.Processes"
	if err := b.check(); err != nil {
		return nil, sandbox.At(op, b.id, err)
	}
	ps, err := b.guest.Processes(ctx)
	for i := range ps {
		if ps[i].Exit != nil {
			b.blame(ps[i].Exit, b.before(ps[i].ID))
		}
	}
	return ps, b.explain(op, err)
}

func (b *box) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	const op = "linux.Attach"
	if err := b.check(); err != nil {
		return nil, sandbox.At(op, b.id, err)
	}
	p, err := b.guest.Attach(ctx, id, opt)
	if err != nil {
		return nil, b.explain(op, err)
	}
	return &running{Process: p, box: b, before: b.before(id)}, nil
}

func (b *box) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	const op = "linux.Output"
	if err := b.check(); err != nil {
		return sandbox.Output{}, sandbox.At(op, b.id, err)
	}
	out, err := b.guest.Output(ctx, id, cursor, max, wait)
	if out.Exit != nil {
		b.blame(out.Exit, b.before(id))
	}
	return out, b.explain(op, err)
}

func (b *box) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	const op = "linux.Input"
	if err := b.check(); err != nil {
		return 0, sandbox.At(op, b.id, err)
	}
	n, err := b.guest.Input(ctx, id, p, eof)
	return n, b.explain(op, err)
}

func (b *box) Forget(ctx context.Context, id sandbox.ProcessID) error {
	const op = "linux.Forget"
	if err := b.check(); err != nil {
		return sandbox.At(op, b.id, err)
	}
	if err := b.guest.Forget(ctx, id); err != nil {
		return b.explain(op, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.starts, id)
	return nil
}

// process is a guest as the host sees it.
type process struct {
	pid int
	fd  int // its pidfd, -1 once closed

	mu   sync.Mutex
	dead bool
}

// end kills the guest and returns when it, and so every process of its
// namespace, is dead. The kernel waits for those before it reports process 1
// (zap_pid_ns_processes).
func (p *process) end(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return nil
	}
	if p.fd < 0 {
		return errors.New("the guest's process was let go")
	}
	if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill the guest: %w", err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 50)
		if n > 0 {
			break
		}
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for the guest: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the guest: %w", ctx.Err())
		}
	}
	p.dead = true
	unix.Close(p.fd)
	p.fd = -1
	return nil
}

// close lets go of it without ending it.
func (p *process) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}
