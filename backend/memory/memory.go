package memory

import (
	"context"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Config says how a Runtime behaves. The zero Config will do.
type Config struct {
	// Programs are added to the ones that are there, or replace them. They
	// lie in /bin under their names.
	Programs map[string]Program

	// Images are the names that Create takes as Spec.Image besides "memory"
	// and "host"; "*" stands for any. All are the same file system.
	Images []string
}

// Runtime is a sandbox.Runtime in memory. Its sandboxes end when it is closed.
// Beside the methods of a Runtime it has none.
type Runtime struct {
	programs map[string]Program
	images   []string

	mu     sync.Mutex // guards all that is in the sandboxes too
	boxes  map[sandbox.ID]*box
	host   map[string]*inode // the pretended host's directories, by path
	closed bool
	wg     sync.WaitGroup // removals by Expires
}

// New returns a Runtime without sandboxes.
func New(c Config) *Runtime {
	rt := &Runtime{
		programs: maps.Clone(builtins),
		images:   append([]string{"", "memory", "host"}, c.Images...),
		boxes:    make(map[sandbox.ID]*box),
		host:     make(map[string]*inode),
	}
	maps.Copy(rt.programs, c.Programs)
	return rt
}

// A box is a sandbox: the part of the modelled kernel that its processes
// share.
type box struct {
	rt   *Runtime
	mu   *sync.Mutex // the Runtime's
	cond *sync.Cond  // on mu; told of every change that somebody may wait for
	wg   sync.WaitGroup
	id   sandbox.ID
	spec sandbox.Spec
	info sandbox.Info
	over chan struct{} // closed when it is removed and all is freed

	// mu guards what follows.
	root     *inode
	mounts   map[*inode]*inode // directories of the pretended host, and what they are mounted in
	fixed    map[*volume]bool  // those of them that are read-only here
	admin    cred              // whom the sandbox's user is
	procs    map[int]*Proc
	lastPID  int
	lastProc int
	detached []*detached
	ports    map[int]*listener
	disk     int64
	paused   bool
	gone     bool
	expiry   *time.Timer
	random   *rand.ChaCha8
}

const (
	defaultPath    = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultWorkdir = "/workspace"
)

func op(name string) string { return "memory." + name }

// Create makes a sandbox. All that a Spec can say is kept but limits of memory
// and processor time, and the network, which is never on.
func (rt *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := rt.create(spec)
	if err != nil {
		return nil, sandbox.At(op("Create"), "", err)
	}
	return b, nil
}

func (rt *Runtime) create(spec sandbox.Spec) (*box, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, errClosed()
	}
	if err := spec.Check(); err != nil {
		return nil, err
	}
	if err := spec.CheckBackend("memory"); err != nil {
		return nil, err
	}
	if !slices.Contains(rt.images, spec.Image) && !slices.Contains(rt.images, "*") {
		return nil, sandbox.Errorf(sandbox.NotExist, "image", "there is no image %q", spec.Image).WithHint("use memory")
	}
	if spec.Network == sandbox.NetworkOn {
		return nil, sandbox.Errorf(sandbox.Unsupported, "network", "this backend has no network").WithHint("leave it off")
	}
	has := []sandbox.Property{sandbox.KillTree, sandbox.ManyIDs, sandbox.MountNamespace, sandbox.PIDNamespace}
	kept := make(map[string]string)
	limits := spec.Limits
	if limits.Memory > 0 {
		kept["memory"] = ""
	}
	if limits.CPU > 0 {
		kept["cpu"] = ""
	}
	if limits.PIDs > 0 {
		kept["pids"], has = "model", append(has, sandbox.LimitPIDs)
	}
	if limits.Disk > 0 {
		kept["disk"], has = "model", append(has, sandbox.LimitDisk)
	}
	slices.Sort(has)
	for _, p := range spec.Require {
		if !slices.Contains(has, p) {
			return nil, sandbox.Errorf(sandbox.Unsupported, "require", "%s cannot be given here", p).WithHint("do without it, or use another backend")
		}
	}
	spec.Env = maps.Clone(spec.Env)
	spec.Labels = maps.Clone(spec.Labels)
	spec.Mounts = slices.Clone(spec.Mounts)
	b := &box{
		rt: rt, mu: &rt.mu, cond: sync.NewCond(&rt.mu), id: sandbox.NewID(), spec: spec, over: make(chan struct{}),
		procs: make(map[int]*Proc), mounts: make(map[*inode]*inode), fixed: make(map[*volume]bool), lastPID: 1, ports: make(map[int]*listener), random: rand.NewChaCha8([32]byte{}),
	}
	b.info = sandbox.Info{
		ID: b.id, Backend: "memory", Image: "memory", Wanted: spec.Image, User: spec.User, Workdir: spec.Workdir,
		Network: sandbox.NetworkOff, Labels: spec.Labels, Created: time.Now(), Expires: spec.Expires, Limits: limits,
		Mounts: spec.Mounts, ReadOnlyRoot: spec.ReadOnlyRoot, Kept: kept,
		Isolation: sandbox.Isolation{Has: has},
	}
	if b.info.User == "" {
		b.info.User = "root"
	}
	if b.info.Workdir == "" {
		b.info.Workdir = defaultWorkdir
	}
	b.info.Workdir = path.Clean(b.info.Workdir)
	if err := b.furnish(); err != nil {
		return nil, err
	}
	rt.boxes[b.id] = b
	b.arm()
	return b, nil
}

// furnish makes the file system.
func (b *box) furnish() error {
	root := &volume{}
	b.root = &inode{vol: root, mode: fs.ModeDir | 0o755, mtime: time.Now(), entries: make(map[string]*inode), links: 1}
	b.root.parent = b.root
	for _, d := range []string{"bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "var", "workspace"} {
		b.dir("/" + d)
	}
	b.dir("/usr/lib")
	b.dir("/var/tmp").mode = fs.ModeDir | fs.ModeSticky | 0o777
	b.dir("/root").mode = fs.ModeDir | 0o700
	b.put("/usr/bin", fs.ModeSymlink|0o777).target = "../bin"
	for name := range b.rt.programs {
		b.put("/bin/"+name, 0o755).data = []byte(magic + name + "\n")
	}
	b.put("/etc/passwd", 0o644).data = []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")
	b.put("/etc/group", 0o644).data = []byte("root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")
	b.put("/etc/hosts", 0o644).data = []byte("127.0.0.1 localhost\n")

	proc := &volume{kernel: true, readOnly: true}
	b.dir("/proc/self")
	b.put("/proc/version", 0o444).data = []byte("memory\n")
	b.put("/proc/self/environ", 0o400)
	b.put("/proc/self/root", fs.ModeSymlink|0o777).target = "/"
	b.put("/proc/self/cwd", fs.ModeSymlink|0o777).target = "/"
	b.put("/sys/version", 0o444).data = []byte("memory\n")
	for _, d := range []string{"/proc", "/proc/self", "/sys"} {
		n := b.dir(d)
		n.vol = proc
		for _, e := range n.entries {
			e.vol = proc
		}
	}
	dev := &volume{}
	for _, d := range []device{devNull, devZero, devFull, devRandom, devTTY} {
		b.put("/dev/"+string(d), fs.ModeDevice|fs.ModeCharDevice|0o666).dev = d
	}
	b.put("/dev/urandom", fs.ModeDevice|fs.ModeCharDevice|0o666).dev = devRandom
	b.dir("/dev").vol = dev
	for _, e := range b.dir("/dev").entries {
		e.vol = dev
	}
	for d, mode := range map[string]fs.FileMode{"/tmp": 0o777 | fs.ModeSticky, "/home": 0o755, "/workspace": 0o755} {
		n := b.dir(d)
		n.vol, n.mode = &volume{}, fs.ModeDir|mode
	}
	home := b.dir("/home/user")
	home.uid, home.gid = 1000, 1000

	who, err := b.user(cred{}, b.info.User)
	if err != nil {
		return err
	}
	b.admin = who
	if n := b.dir("/workspace"); true {
		n.uid, n.gid = who.uid, who.gid
	}
	for _, m := range b.spec.Mounts {
		if err := b.mount(m); err != nil {
			return err
		}
	}
	w := walker{b: b}
	at, err := w.walk(b.root, b.info.Workdir, true)
	switch {
	case err == nil && at.node != nil && !at.node.isDir():
		return sandbox.Errorf(sandbox.Invalid, "workdir", "%q is not a directory", b.info.Workdir).WithHint("name a directory")
	case err != nil || at.node == nil:
		if err := b.mkdirs(cred{}, b.info.Workdir, 0o755, who); err != nil {
			return sandbox.Errorf(sandbox.Invalid, "workdir", "%q cannot be made", b.info.Workdir).WithHint("name a directory")
		}
	}
	root.readOnly = b.spec.ReadOnlyRoot
	b.disk = 0
	return nil
}

// dir returns the directory at p, which it makes where it is missing.
func (b *box) dir(p string) *inode {
	n := b.root
	for name := range strings.FieldsFuncSeq(p, func(r rune) bool { return r == '/' }) {
		next := n.entries[name]
		if next == nil {
			next, _ = b.create(cred{}, place{dir: n, name: name}, fs.ModeDir|0o755)
		}
		n = next
	}
	return n
}

// put makes a file at p, whose directory is there.
func (b *box) put(p string, mode fs.FileMode) *inode {
	n, _ := b.create(cred{}, place{dir: b.dir(path.Dir(p)), name: path.Base(p)}, mode)
	return n
}

// mount shows a directory of the pretended host.
func (b *box) mount(m sandbox.Mount) error {
	src := path.Clean(m.Source)
	n := b.rt.host[src]
	if n == nil {
		n = &inode{vol: &volume{shared: true}, mode: fs.ModeDir | 0o755, mtime: time.Now(), entries: make(map[string]*inode), links: 1}
		n.uid, n.gid = b.admin.uid, b.admin.gid
		b.rt.host[src] = n
	}
	if err := b.mkdirs(cred{}, m.Target, 0o755, cred{}); err != nil {
		return sandbox.Errorf(sandbox.Invalid, "mounts.target", "%q cannot be made", m.Target).WithHint("choose a directory such as /mnt/data")
	}
	w := walker{b: b}
	at, err := w.walk(b.root, m.Target, true)
	if err != nil || at.name == "" {
		return sandbox.Errorf(sandbox.Invalid, "mounts.target", "nothing can be mounted at %q", m.Target).WithHint("choose a directory such as /mnt/data")
	}
	n.links++
	at.dir.entries[at.name] = n
	b.mounts[n] = at.dir
	b.fixed[n.vol] = m.ReadOnly
	return nil
}

// Open returns a live sandbox.
func (rt *Runtime) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, sandbox.At(op("Open"), id, errClosed())
	}
	b := rt.boxes[id]
	if b == nil || b.gone {
		return nil, sandbox.At(op("Open"), id, errGone())
	}
	return b, nil
}

// List yields the sandboxes that live when it is called.
func (rt *Runtime) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		rt.mu.Lock()
		closed := rt.closed
		var infos []sandbox.Info
		for _, b := range rt.boxes {
			if !b.gone {
				infos = append(infos, b.infoLocked())
			}
		}
		rt.mu.Unlock()
		if closed {
			yield(sandbox.Info{}, sandbox.At(op("List"), "", errClosed()))
			return
		}
		slices.SortFunc(infos, func(a, b sandbox.Info) int { return a.Created.Compare(b.Created) })
		for _, i := range infos {
			if err := ctx.Err(); err != nil {
				yield(sandbox.Info{}, err)
				return
			}
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Close removes the sandboxes and waits for all that runs in them.
func (rt *Runtime) Close() error {
	rt.mu.Lock()
	rt.closed = true
	boxes := slices.Collect(maps.Values(rt.boxes))
	rt.mu.Unlock()
	for _, b := range boxes {
		b.Remove(context.Background())
	}
	rt.wg.Wait()
	return nil
}

func errClosed() error {
	return sandbox.Errorf(sandbox.Closed, "", "the runtime is closed")
}

func errGone() error {
	return sandbox.Errorf(sandbox.NotExist, "", "there is no such sandbox").WithHint("create one")
}

// ID returns the sandbox's id.
func (b *box) ID() sandbox.ID { return b.id }

// live returns an error if the sandbox is gone. The mutex is held.
func (b *box) live() error {
	if b.gone {
		if b.rt.closed {
			return errClosed()
		}
		return errGone()
	}
	return nil
}

func (b *box) now() time.Time { return time.Now() }

func (b *box) fill(p []byte) { b.random.Read(p) }

// Info describes the sandbox.
func (b *box) Info(ctx context.Context) (sandbox.Info, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Info{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return sandbox.Info{}, sandbox.At(op("Info"), b.id, err)
	}
	return b.infoLocked(), nil
}

func (b *box) infoLocked() sandbox.Info {
	i := b.info
	i.State = sandbox.Running
	if b.paused {
		i.State = sandbox.Paused
	}
	i.Labels = maps.Clone(i.Labels)
	i.Kept = maps.Clone(i.Kept)
	i.Mounts = slices.Clone(i.Mounts)
	i.Isolation.Has = slices.Clone(i.Isolation.Has)
	return i
}

// Remove ends the sandbox. It waits for every Program to return.
func (b *box) Remove(ctx context.Context) error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	select {
	case <-b.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end begins to remove the sandbox, once; over is closed when that is done.
// The mutex is held.
func (b *box) end() {
	if b.gone {
		return
	}
	b.gone = true
	b.paused = false
	delete(b.rt.boxes, b.id)
	if b.expiry != nil {
		b.expiry.Stop()
	}
	b.signalWhere(sandbox.KILL, func(*Proc) bool { return true })
	for _, l := range b.ports {
		l.shut()
	}
	b.cond.Broadcast()
	go func() {
		b.wg.Wait()
		b.mu.Lock()
		b.root.entries, b.detached, b.disk = make(map[string]*inode), nil, 0
		b.mu.Unlock()
		close(b.over)
	}()
}

// Pause stops every process at its next system call, before it has an effect.
func (b *box) Pause(ctx context.Context) error { return b.pause("Pause", true) }

// Resume lets the processes go on.
func (b *box) Resume(ctx context.Context) error { return b.pause("Resume", false) }

func (b *box) pause(name string, paused bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return sandbox.At(op(name), b.id, err)
	}
	b.paused = paused
	b.cond.Broadcast()
	return nil
}

// Usage counts processes and the bytes of files.
func (b *box) Usage(ctx context.Context) (sandbox.Usage, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return sandbox.Usage{}, sandbox.At(op("Usage"), b.id, err)
	}
	return sandbox.Usage{PIDs: len(b.procs), Disk: b.disk}, nil
}
