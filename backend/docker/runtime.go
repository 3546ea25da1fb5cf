package docker

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
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/sandbox"
)

// The labels of our containers and volumes.
const (
	labelOwner = "atoll.owner"   // which state folder it belongs to
	labelID    = "atoll.sandbox" // the sandbox's id
	labelGuest = "atoll.guest"   // of the volume that holds the guest, and what fills it
)

// deadline is how long the engine, or a guest, may take for what should take a
// moment. A busy engine takes seconds to start a container.
const deadline = time.Minute

// linger is how long a process that is bound to a request outlives the daemon,
// if none comes back.
const linger = 30 * time.Second

// A Runtime makes sandboxes on an engine. See the package comment for what
// survives its Close.
type Runtime struct {
	cfg     Config
	log     *slog.Logger
	api     *client.Client
	engine  system.Info
	local   bool // the engine sees this machine's files
	lock    io.Closer
	name    string // whose containers they are; how guests know this Runtime and those after it on its state
	program []byte
	volume  string // that holds the guest

	checked func() // called when a Create has looked at its mounts; for tests, else nil

	life context.Context // ends when the Runtime is closed
	end  context.CancelFunc
	work sync.WaitGroup // goroutines that watch sandboxes, and calls under way

	volumeMu sync.Mutex
	filled   bool // the volume holds the guest

	mu      sync.Mutex
	closed  bool
	noQuota bool // the engine's storage has no limit per container
	live    map[sandbox.ID]*box
}

var _ sandbox.Runtime = (*Runtime)(nil)

// New returns a Runtime on an engine, with the sandboxes of cfg.State that are
// alive there. An engine that does not answer is [sandbox.Unavailable], one
// that may not be used [sandbox.Denied], one that is too old or runs on
// something else than Linux [sandbox.Unsupported], a state that another
// Runtime holds [sandbox.Conflict].
func New(ctx context.Context, cfg Config) (_ *Runtime, err error) {
	if cfg.State == "" || !filepath.IsAbs(cfg.State) {
		return nil, sandbox.Errorf(sandbox.Invalid, "state", "%q is not an absolute path", cfg.State).WithHint("give a folder for the state")
	}
	cfg.Pull = cmp.Or(cfg.Pull, PullMissing)
	if cfg.Pull != PullMissing && cfg.Pull != PullNever && cfg.Pull != PullAlways {
		return nil, sandbox.Errorf(sandbox.Invalid, "docker.pull", "%q is not a way to pull", cfg.Pull).WithHint("use missing, never or always")
	}
	cfg.Image = cmp.Or(cfg.Image, DefaultImage)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	rt := &Runtime{cfg: cfg, log: cfg.Log, live: make(map[sandbox.ID]*box)}
	rt.life, rt.end = context.WithCancel(context.WithoutCancel(ctx))
	if rt.program, err = guestProgram(&cfg); err != nil {
		return nil, err
	}
	rt.volume = fmt.Sprintf("atoll-guest-%x", sha256.Sum256(rt.program))[:len("atoll-guest-")+16]
	if err := os.MkdirAll(rt.path("sandboxes"), 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if rt.cfg.State, err = filepath.EvalSymlinks(cfg.State); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if rt.lock, err = lockState(rt.path("lock")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			if rt.api != nil {
				rt.api.Close()
			}
			err = errors.Join(err, rt.lock.Close())
		}
	}()
	if rt.name, err = ownerName(rt.path("owner")); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := rt.connect(ctx); err != nil {
		return nil, err
	}
	if err := rt.recover(ctx); err != nil {
		rt.leave()
		return nil, fmt.Errorf("recover: %w", err)
	}
	return rt, nil
}

// connect finds the engine and looks at what it is.
func (rt *Runtime) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	host, opts, err := engineHost(rt.cfg.Host)
	if err != nil {
		return err
	}
	if err := knock(ctx, host); err != nil {
		return err
	}
	rt.local = strings.HasPrefix(host, "unix://") && runtime.GOOS == "linux"
	if rt.api, err = client.New(append(opts, client.WithUserAgent("atoll"))...); err != nil {
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "docker.host", Msg: "the engine's address cannot be used", Hint: "give unix:///PATH or tcp://HOST:PORT", Err: err}
	}
	if _, err := rt.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		if errdefs.IsInvalidArgument(err) {
			return &sandbox.Error{Kind: sandbox.Unsupported, Msg: "the engine is too old", Hint: "use Docker 19.03 or newer (API " + client.MinAPIVersion + "), or Podman 4", Err: err}
		}
		return rt.fail(err)
	}
	info, err := rt.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return rt.fail(err)
	}
	rt.engine = info.Info
	if os := rt.engine.OSType; os != "" && os != "linux" {
		return sandbox.Errorf(sandbox.Unsupported, "", "the engine runs containers of %s", os).WithHint("use one that runs Linux containers")
	}
	if want := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]; rt.cfg.Guest == "" && want != "" &&
		rt.engine.Architecture != want && rt.engine.Architecture != runtime.GOARCH && rt.engine.Architecture != "" {
		return sandbox.Errorf(sandbox.Unsupported, "", "the engine's processor is %s, and the guest program here is for %s", rt.engine.Architecture, runtime.GOARCH).WithHint("build atoll-guest for it and name that file")
	}
	if r := rt.cfg.Runtime; r != "" && len(rt.engine.Runtimes) > 0 {
		if _, ok := rt.engine.Runtimes[r]; !ok {
			return sandbox.Errorf(sandbox.Unsupported, "docker.runtime", "the engine has no runtime %q", r).WithHint("add it to the engine's configuration, or choose another")
		}
	}
	return nil
}

// Probe connects to the engine that cfg names and says what it is, for people:
// its version, storage, cgroups and what it isolates by. It changes nothing.
func Probe(ctx context.Context, cfg Config) (string, error) {
	rt := &Runtime{cfg: cfg}
	err := rt.connect(ctx)
	if rt.api != nil {
		defer rt.api.Close()
	}
	if err != nil {
		return "", err
	}
	e := &rt.engine
	what := fmt.Sprintf("%s, API %s, storage %s, cgroup v%s", e.ServerVersion, rt.api.ClientVersion(), e.Driver, cmp.Or(e.CgroupVersion, "1"))
	if rt.promised().UserNS {
		return what + ", root inside is nobody outside", nil
	}
	return what + ", root inside is root outside", nil
}

// guestProgram returns the program that runs inside.
func guestProgram(cfg *Config) ([]byte, error) {
	file := cfg.Guest
	if file == "" && len(cfg.Program) > 0 {
		return cfg.Program, nil
	}
	if file == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, err
		}
		file = filepath.Join(filepath.Dir(exe), "atoll-guest")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Unsupported, Msg: "the guest program is not built into this one, nor beside it", Hint: "build with: make build", Err: err}
	}
	return b, nil
}

// ownerName returns what tells this state's containers from those of others.
// It is drawn once: two machines may have the same path, and one engine.
func ownerName(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err == nil && sandbox.ID(b).Valid() {
		return string(b), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	name := string(sandbox.NewID())
	return name, replaceFile(file, []byte(name))
}

func (rt *Runtime) path(elem ...string) string {
	return filepath.Join(append([]string{rt.cfg.State}, elem...)...)
}

// enter counts a call, so that Close can wait for it. It fails after Close.
func (rt *Runtime) enter() error {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return errClosed
	}
	rt.work.Add(1)
	return nil
}

var (
	errClosed = sandbox.Errorf(sandbox.Closed, "", "the backend was closed")
	errGone   = sandbox.Errorf(sandbox.NotExist, "id", "there is no such sandbox")
)

// Open returns the live sandbox with this id.
func (rt *Runtime) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, sandbox.At("docker.Open", id, errClosed)
	}
	b := rt.live[id]
	if b == nil {
		return nil, sandbox.At("docker.Open", id, errGone)
	}
	return b, nil
}

func (rt *Runtime) boxes() []*box {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	boxes := make([]*box, 0, len(rt.live))
	for _, b := range rt.live {
		boxes = append(boxes, b)
	}
	return boxes
}

// List yields the live sandboxes.
func (rt *Runtime) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		if err := rt.enter(); err != nil {
			yield(sandbox.Info{}, sandbox.At("docker.List", "", err))
			return
		}
		rt.work.Done()
		for _, b := range rt.boxes() {
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
		if err := ctx.Err(); err != nil {
			yield(sandbox.Info{}, err)
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
	rt.mu.Unlock()
	rt.leave()
	return errors.Join(rt.api.Close(), rt.lock.Close())
}

// leave lets go of the sandboxes.
func (rt *Runtime) leave() {
	rt.end()
	for _, b := range rt.boxes() {
		b.leave()
	}
	rt.work.Wait()
}

// recover finds what an earlier Runtime left on the engine: it goes on with
// the sandboxes that are ready and run, and removes all else that is ours.
func (rt *Runtime) recover(ctx context.Context) error {
	records, err := rt.loadRecords()
	if err != nil {
		return err
	}
	list, err := rt.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelOwner+"="+rt.name)})
	if err != nil {
		return rt.fail(err)
	}
	var wg sync.WaitGroup
	limit := make(chan struct{}, 8)
	there := make(map[sandbox.ID]bool)
	for _, c := range list.Items {
		id := sandbox.ID(c.Labels[labelID])
		r := records[id]
		there[id] = true
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			runs := c.State == container.StateRunning || c.State == container.StatePaused
			if r != nil && r.Ready && r.Version == recordVersion && runs && (r.Info.Expires.IsZero() || r.Info.Expires.After(time.Now())) {
				if rt.adopt(ctx, id, c.ID, r, c.State == container.StatePaused) {
					return
				}
			}
			rt.log.Info("removing what is left of a sandbox", "id", id, "state", c.State)
			if err := rt.removeContainer(ctx, c.ID); err != nil {
				// Tried again at the next start; one must not keep the others down.
				rt.log.Error("what is left of a sandbox could not be removed", "id", id, "err", err)
				return
			}
			rt.forget(id)
		})
	}
	wg.Wait()
	for id := range records {
		if !there[id] {
			rt.forget(id)
		}
	}
	return nil
}

// adopt goes on with a sandbox. One whose guest cannot be reached now is kept:
// it is tried again for as long as the container runs.
func (rt *Runtime) adopt(ctx context.Context, id sandbox.ID, container string, r *record, paused bool) bool {
	b := &box{rt: rt, id: id, container: container, rec: *r, gone: make(chan struct{}), ready: make(chan struct{})}
	b.rec.Info.State = sandbox.Running
	if paused {
		b.rec.Info.State = sandbox.Paused
	} else if g, err := b.dial(ctx); err == nil {
		b.set(g)
	} else {
		rt.log.Warn("a guest does not answer yet", "id", id, "err", err)
	}
	if err := rt.add(b); err != nil {
		return false
	}
	rt.log.Info("recovered", "id", id)
	return true
}

// removeContainer removes a container and the volumes that are its alone, and
// returns when it is gone.
func (rt *Runtime) removeContainer(ctx context.Context, name string) error {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := rt.api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil || errdefs.IsNotFound(err):
			return nil
		case !errdefs.IsConflict(err): // being removed by another, or just being made
			return rt.fail(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return rt.fail(err)
		}
	}
}

// fail says what an error of the engine's means.
func (rt *Runtime) fail(err error) error {
	var e *sandbox.Error
	switch {
	case err == nil || errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case client.IsErrConnectionFailed(err), errdefs.IsUnavailable(err):
		return &sandbox.Error{Kind: sandbox.Unavailable, Msg: "the container engine does not answer", Hint: "start the engine", Err: err}
	case errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err):
		return &sandbox.Error{Kind: sandbox.Denied, Msg: "the container engine refuses", Err: err}
	}
	return &sandbox.Error{Kind: sandbox.Internal, Msg: "the container engine failed", Err: err}
}
