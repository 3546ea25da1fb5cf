package linux

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/disk"
	"github.com/atoll-run/atoll/backend/linux/internal/seccomp"
	"github.com/atoll-run/atoll/backend/linux/launch"
	"github.com/atoll-run/atoll/sandbox"
)

// A Runtime makes sandboxes on this machine. See the package comment for what
// survives its Close.
type Runtime struct {
	cfg      Config
	log      *slog.Logger
	lock     *os.File // held on State/lock
	program  *os.File // the guest, sealed
	launcher *launch.Launcher
	filter   []byte // the seccomp program of every sandbox
	name     string // how guests tell this Runtime, and those after it on its state, from others
	host     host

	life context.Context // ends when the Runtime is closed
	end  context.CancelFunc
	work sync.WaitGroup // goroutines that watch sandboxes, and calls under way

	disks    disk.Maker
	loopOnce sync.Once
	noLoop   string // why no file system image can be mounted; set by loopOnce

	madeMu sync.Mutex // held while what all sandboxes share is looked for or made

	mu     sync.Mutex
	closed bool
	live   map[sandbox.ID]*box
	slots  map[int]bool // ranges of ids in use
}

var _ sandbox.Runtime = (*Runtime)(nil)

// New returns a Runtime on cfg.State, with the sandboxes that are alive there.
// A state that another Runtime holds is [sandbox.Conflict]; a host on which no
// sandbox can be made is [sandbox.Unsupported], with the reason.
func New(cfg Config) (_ *Runtime, err error) {
	if cfg.State == "" || !filepath.IsAbs(cfg.State) {
		return nil, sandbox.Errorf(sandbox.Invalid, "state", "%q is not an absolute path", cfg.State).WithHint("give a folder for the state")
	}
	cfg.Cache = cmp.Or(cfg.Cache, filepath.Join(cfg.State, "cache"))
	cfg.FirstID = cmp.Or(cfg.FirstID, 0x70000000)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	rt := &Runtime{cfg: cfg, log: cfg.Log, live: make(map[sandbox.ID]*box), slots: make(map[int]bool)}
	rt.life, rt.end = context.WithCancel(context.Background())
	var undo undo
	defer undo.unless(&err)

	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{cfg.State, 0o711}, {cfg.Cache, 0o711}, {rt.path("sandboxes"), 0o700}, {rt.path("trash"), 0o700}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
	}
	if rt.cfg.State, err = filepath.EvalSymlinks(cfg.State); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	rt.name = fmt.Sprintf("%x", sha256.Sum256([]byte(rt.cfg.State)))[:16]
	if rt.lock, err = lockState(rt.path("lock")); err != nil {
		return nil, err
	}
	undo.add(rt.lock.Close)
	if rt.program, err = guestProgram(cfg.Guest); err != nil {
		return nil, err
	}
	undo.add(rt.program.Close)
	rt.launcher = launch.New(rt.program)
	undo.add(rt.launcher.Close)
	filter, err := seccomp.Default()
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	rt.filter = filter.Bytes()
	if err := rt.look(); err != nil {
		return nil, err
	}
	if err := rt.recover(rt.life); err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	return rt, nil
}

// lockPatience is how long a lock may stay after who held it was killed: a
// child that it had begun to fork has the descriptor until it executes.
const lockPatience = 500 * time.Millisecond

// lockState takes the lock that keeps a second Runtime away.
func lockState(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for end := time.Now().Add(lockPatience); err == unix.EWOULDBLOCK && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, sandbox.Errorf(sandbox.Conflict, "state", "another atoll uses this state folder").WithHint("stop it, or give another folder")
		}
		return nil, err
	}
	return f, nil
}

func (rt *Runtime) path(elem ...string) string {
	return filepath.Join(append([]string{rt.cfg.State}, elem...)...)
}

// within reports whether p is dir or lies in it; both are clean.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// enter counts a call, so that Close can wait for it. It fails after Close.
func (rt *Runtime) enter() error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return sandbox.Errorf(sandbox.Closed, "", "the backend was closed")
	}
	rt.work.Add(1)
	return nil
}

// Open returns the live sandbox with this id.
func (rt *Runtime) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, sandbox.At("linux.Open", id, sandbox.Errorf(sandbox.Closed, "", "the backend was closed"))
	}
	b := rt.live[id]
	if b == nil {
		return nil, sandbox.At("linux.Open", id, errGone)
	}
	return b, nil
}

var errGone = sandbox.Errorf(sandbox.NotExist, "id", "there is no such sandbox")

// List yields the live sandboxes.
func (rt *Runtime) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		rt.mu.Lock()
		if rt.closed {
			rt.mu.Unlock()
			yield(sandbox.Info{}, sandbox.At("linux.List", "", sandbox.Errorf(sandbox.Closed, "", "the backend was closed")))
			return
		}
		boxes := make([]*box, 0, len(rt.live))
		for _, b := range rt.live {
			boxes = append(boxes, b)
		}
		rt.mu.Unlock()
		for _, b := range boxes {
			if err := ctx.Err(); err != nil {
				yield(sandbox.Info{}, err)
				return
			}
			info, err := b.Info(ctx)
			if errors.Is(err, sandbox.NotExist) {
				continue // gone meanwhile
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// Close waits for calls under way and leaves the sandboxes running.
func (rt *Runtime) Close() error {
	rt.mu.Lock()
	if rt.closed {
		rt.mu.Unlock()
		return nil
	}
	rt.closed = true
	boxes := make([]*box, 0, len(rt.live))
	for _, b := range rt.live {
		boxes = append(boxes, b)
	}
	rt.mu.Unlock()
	rt.end()
	for _, b := range boxes {
		b.leave()
	}
	rt.work.Wait()
	return errors.Join(rt.launcher.Close(), rt.program.Close(), rt.lock.Close())
}

// An undo is a stack of what to do if the function does not succeed.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// unless runs the stack if *err is set, and adds what fails to it.
func (u *undo) unless(err *error) {
	if *err == nil {
		return
	}
	for i := len(*u) - 1; i >= 0; i-- {
		if e := (*u)[i](); e != nil {
			*err = errors.Join(*err, fmt.Errorf("undo: %w", e))
		}
	}
}

func closeAll[C io.Closer](cs []C) {
	for _, c := range cs {
		c.Close()
	}
}

// deadline is how long the guest may take for what should take a moment; a
// machine that is busy, or an emulated one, is slow.
const deadline = 30 * time.Second
