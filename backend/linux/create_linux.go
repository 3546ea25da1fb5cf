package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/enter"
	"github.com/atoll-run/atoll/backend/linux/internal/cgroup"
	"github.com/atoll-run/atoll/backend/linux/launch"
	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// making is a sandbox on its way. Its steps fill it; undo takes them back.
type making struct {
	rt     *Runtime
	ctx    context.Context
	spec   sandbox.Spec
	box    *box
	img    *image
	undo   undo
	mounts []mount

	req    enter.Request
	files  []*os.File // what goes to the guest with req
	ours   []*os.File // what does not; both are closed in the end
	listen *os.File
	local  net.Conn // our end of the guest's first connection
	remote *os.File // its end
}

// makeSteps makes a sandbox, in this order. The record comes before all that
// a crash could leave behind; the sandbox is found by others only when every
// step has been done.
var makeSteps = []struct {
	name string
	do   func(*making) error
}{
	{"find the image", (*making).findImage},
	{"check mounts", (*making).checkMounts},
	{"reserve ids", (*making).reserveIDs},
	{"promise", (*making).promise},
	{"make the folder", (*making).makeFolder},
	{"make the cgroup", (*making).makeCgroup},
	{"open sockets", (*making).openSockets},
	{"start the guest", (*making).startGuest},
	{"map ids", (*making).mapIDs},
	{"make the volume", (*making).makeVolume},
	{"open the layers", (*making).openLayers}, // its user namespace shifts them
	{"open the mounts", (*making).openMounts},
	{"set up", (*making).setUp},
	{"settle limits", (*making).settle},
	{"record", (*making).record},
}

// Create makes a sandbox.
func (rt *Runtime) Create(ctx context.Context, spec sandbox.Spec) (_ sandbox.Sandbox, err error) {
	const op = "linux.Create"
	if err := rt.enter(); err != nil {
		return nil, sandbox.At(op, "", err)
	}
	defer rt.work.Done()
	if err := spec.Check(); err != nil {
		return nil, sandbox.At(op, "", err)
	}
	if err := spec.CheckBackend("linux"); err != nil {
		return nil, sandbox.At(op, "", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id := sandbox.NewID()
	m := &making{rt: rt, ctx: ctx, spec: spec, box: &box{rt: rt, id: id, dir: rt.path("sandboxes", string(id)), slot: -1, gone: make(chan struct{})}}
	defer m.undo.unless(&err)
	defer func() { closeAll(m.files); closeAll(m.ours) }()
	for _, st := range makeSteps {
		if err := st.do(m); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			var e *sandbox.Error
			if !errors.As(err, &e) {
				err = notMade(fmt.Errorf("%s: %w", st.name, err))
			}
			return nil, sandbox.At(op, id, err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	if err := rt.add(m.box); err != nil {
		return nil, sandbox.At(op, id, err)
	}
	return m.box, nil
}

func (m *making) findImage() (err error) {
	if m.spec.Network == sandbox.NetworkOn {
		return sandbox.Errorf(sandbox.Unsupported, "network", "this backend has no network to give yet").WithHint("leave it off")
	}
	if m.img, err = m.rt.image(m.ctx, m.spec.Image); err != nil {
		return err
	}
	m.box.release = m.img.release
	m.undo.add(func() error { m.img.release(); return nil })
	for _, l := range m.img.layers {
		if l.file != nil {
			m.ours = append(m.ours, l.file)
		}
	}
	return nil
}

func (m *making) reserveIDs() (err error) {
	if m.rt.host.ids.kind != ownRange {
		return nil
	}
	if m.box.slot, err = m.rt.takeSlot(); err != nil {
		return err
	}
	m.undo.add(func() error { m.rt.freeSlot(m.box.slot); return nil })
	return nil
}

// owner is the host id of the sandbox's root.
func (m *making) owner() int { return m.rt.owner(m.box.slot) }

func (rt *Runtime) owner(slot int) int {
	if rt.host.ids.kind == ownRange {
		return rt.firstID(slot)
	}
	return rt.host.ids.uid
}

// promise settles what the sandbox will be, and refuses what it must not
// lack.
func (m *making) promise() error {
	spec := &m.spec
	has, missing := m.rt.host.isolation()
	info := sandbox.Info{
		ID: m.box.id, State: sandbox.Running, Backend: "linux", Image: m.img.name, Wanted: spec.Image,
		User: cmp.Or(spec.User, m.img.user, "root"), Workdir: cmp.Or(spec.Workdir, m.img.workdir, "/workspace"), Network: sandbox.NetworkOff,
		Labels: maps.Clone(spec.Labels), Created: time.Now().UTC().Round(0), Expires: spec.Expires, Limits: spec.Limits,
		Mounts: slices.Clone(spec.Mounts), ReadOnlyRoot: spec.ReadOnlyRoot,
	}
	info.Kept = m.rt.keeps(spec.Limits)
	for limit, p := range limitProperty {
		if by, asked := info.Kept[limit]; asked && by != "" {
			has = append(has, p)
		} else if asked {
			missing = append(missing, sandbox.Gap{Property: p, Why: m.rt.whyNotKept(limit)})
		}
	}
	slices.Sort(has)
	info.Isolation = sandbox.Isolation{Has: has, Missing: missing}
	for _, p := range spec.Require {
		if info.Isolation.Holds(p) {
			continue
		}
		for limit, q := range limitProperty {
			if _, asked := info.Kept[limit]; p == q && !asked {
				return sandbox.Errorf(sandbox.Unsupported, "require", "%s cannot be given: there is no limit to keep", p).WithHint("set limits.%s, or do not require it", limit)
			}
		}
		why := "this backend never gives it"
		for _, g := range missing {
			if g.Property == p {
				why = g.Why
			}
		}
		return sandbox.Errorf(sandbox.Unsupported, "require", "%s cannot be given here: %s", p, why).WithHint("atoll doctor tells what would mend it")
	}
	m.box.rec = record{Version: recordVersion, Slot: m.box.slot, Info: info}
	return nil
}

var limitProperty = map[string]sandbox.Property{
	"memory": sandbox.LimitMemory, "cpu": sandbox.LimitCPU, "pids": sandbox.LimitPIDs, "disk": sandbox.LimitDisk,
}

func (m *making) makeFolder() error {
	dir := m.box.dir
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	m.undo.add(func() error { return m.rt.discard(dir) })
	return m.box.rec.promise(dir)
}

func (m *making) makeCgroup() error {
	h := m.rt.host.cgroups
	if h.Mode == cgroup.None {
		return nil
	}
	g, err := h.Create(string(m.box.id), m.spec.Limits, m.owner())
	if err != nil {
		return err
	}
	m.box.group = g
	m.undo.add(func() error { return g.Remove(context.WithoutCancel(m.ctx)) })
	before, after := g.Enter()
	for _, w := range before {
		i, err := m.pass(w.File)
		if err != nil {
			return err
		}
		m.req.Join = append(m.req.Join, enter.Write{File: i, Data: w.Data})
	}
	for _, w := range after {
		i, err := m.pass(w.File)
		if err != nil {
			return err
		}
		m.req.Leave = append(m.req.Leave, enter.Write{File: i, Data: w.Data})
	}
	return nil
}

// pass adds a copy of f to what goes to the guest.
func (m *making) pass(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return m.give(os.NewFile(uintptr(fd), f.Name())), nil
}

// give adds f itself.
func (m *making) give(f *os.File) int {
	m.files = append(m.files, f)
	return len(m.files) - 1
}

func (m *making) source(s enter.Source) int {
	m.req.Sources = append(m.req.Sources, s)
	return len(m.req.Sources) - 1
}

// makeVolume makes the place for what the sandbox writes.
func (m *making) makeVolume() error {
	if m.box.rec.Info.Kept["disk"] == diskTmpfs {
		m.req.Volume = m.source(enter.Source{File: -1, Tmpfs: m.spec.Limits.Disk})
		return nil
	}
	if m.box.rec.Info.Kept["disk"] == diskLoop {
		f, err := m.rt.newDisk(m.ctx, filepath.Join(m.box.dir, "disk"), m.spec.Limits.Disk, m.owner())
		if err != nil {
			return err
		}
		m.req.Volume = m.source(enter.Source{File: m.give(f)})
		return nil
	}
	dir := filepath.Join(m.box.dir, "volume")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if m.rt.host.ids.kind == ownRange {
		if err := os.Lchown(dir, m.owner(), m.owner()); err != nil {
			return err
		}
	}
	s, err := m.tree(dir, treeOptions{})
	if err != nil {
		return err
	}
	m.req.Volume = m.source(s)
	return nil
}

func (m *making) openLayers() error {
	made, err := m.rt.made()
	if err != nil {
		return err
	}
	s, err := m.tree(filepath.Join(made, "fixtures"), treeOptions{shift: true, readOnly: true})
	if err != nil {
		return fmt.Errorf("fixtures: %w", err)
	}
	m.req.Fixtures = m.source(s)
	for _, l := range m.img.layers {
		over := enter.Layer{Target: l.target, Name: l.name}
		for _, dir := range l.dirs {
			s, err := m.tree(dir, treeOptions{shift: true, readOnly: true, file: l.file})
			if errors.Is(err, unix.EINVAL) && m.rt.host.shift {
				return &sandbox.Error{Kind: sandbox.Unsupported, Field: "image", Msg: "it is on a file system that cannot shift ids", Hint: "keep images on ext4, XFS or btrfs", Err: err}
			}
			if err != nil {
				return fmt.Errorf("%s: %w", dir, err)
			}
			over.Lower = append(over.Lower, m.source(s))
		}
		m.req.Layers = append(m.req.Layers, over)
	}
	return nil
}

func (m *making) openSockets() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m.remote = os.NewFile(uintptr(fds[1]), "guest")
	m.ours = append(m.ours, m.remote)
	local := os.NewFile(uintptr(fds[0]), "daemon")
	defer local.Close()
	if m.local, err = net.FileConn(local); err != nil {
		return err
	}
	m.undo.add(func() error { m.local.Close(); return nil }) // the client may have done so
	if m.listen, err = listen(filepath.Join(m.box.dir, "socket")); err != nil {
		return err
	}
	m.ours = append(m.ours, m.listen)
	return nil
}

// cloneFlags are the namespaces that the guest is born into; its cgroup
// namespace it makes itself, once it is in its cgroup.
const cloneFlags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// startGuest clones the guest as process 1 of new namespaces. It then waits
// for "setup", and exits if our end of its connection is closed first.
func (m *making) startGuest() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	m.box.said = os.NewFile(uintptr(fd), "guest")
	m.undo.add(m.box.said.Close)
	req := launch.Request{Args: guestArgv(m.box.id), Flags: cloneFlags}
	switch i := &m.rt.host.ids; i.kind {
	case ownRange:
		req.UIDs = []launch.Map{{Host: m.rt.firstID(m.box.slot), Size: rangeSize}}
		req.GIDs = req.UIDs
		req.Root, req.Owner = true, m.rt.firstID(m.box.slot)
	case helped:
		// The ids are mapped when it is there.
		req.Ambient, m.req.Become = true, true
	case oneID:
		req.UIDs = []launch.Map{{Host: i.uid, Size: 1}}
		req.GIDs = []launch.Map{{Host: i.gid, Size: 1}}
		m.req.OneID = true
	}
	var dir *os.File
	if g := m.box.group; g != nil {
		dir = g.Dir()
	}
	pid, pidfd, err := m.rt.launcher.Start(req, dir, null, null, m.box.said, m.remote, m.listen)
	if err != nil {
		return noNamespaces(err)
	}
	// A guest that dies must end our connection, so nobody else may hold its
	// end.
	m.remote.Close()
	m.box.init = &process{pid: pid, fd: pidfd}
	m.undo.add(func() error { return m.box.init.end(context.WithoutCancel(m.ctx)) })
	return nil
}

// notMade returns what a caller is told when a step failed.
func notMade(err error) error {
	for _, no := range []error{unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		if errors.Is(err, no) {
			return &sandbox.Error{Kind: sandbox.Exhausted, Msg: "the host has no room for another sandbox: " + no.Error(), Hint: "make room where the state folder is, or remove sandboxes", Err: err}
		}
	}
	return &sandbox.Error{Kind: sandbox.Internal, Msg: "the sandbox could not be made", Err: err}
}

// guestArgv is how a guest is known among the host's processes.
func guestArgv(id sandbox.ID) []string { return []string{"atoll-guest", string(id)} }

// noNamespaces says what stands in the way when a clone failed.
func noNamespaces(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EINVAL):
		return &sandbox.Error{Kind: sandbox.Unsupported, Msg: "this host does not allow new user namespaces", Hint: "atoll doctor tells what would mend it", Err: err}
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return &sandbox.Error{Kind: sandbox.Exhausted, Msg: "this host allows no more namespaces", Hint: "remove sandboxes, or raise user.max_user_namespaces and its like", Err: err}
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return &sandbox.Error{Kind: sandbox.Exhausted, Msg: "this host has no room for another process", Hint: "remove sandboxes", Err: err}
	}
	return err
}

// mapIDs maps the user's range where only the setuid helpers may.
func (m *making) mapIDs() error {
	i := &m.rt.host.ids
	if i.kind != helped {
		return nil
	}
	for _, h := range []struct {
		program string
		own     int
		sub     span
	}{{"newuidmap", i.uid, i.subUID}, {"newgidmap", i.gid, i.subGID}} {
		cmd := exec.CommandContext(m.ctx, h.program, strconv.Itoa(m.box.init.pid), "0", strconv.Itoa(h.own), "1",
			"1", strconv.Itoa(h.sub.first), strconv.Itoa(min(h.sub.count, rangeSize-1)))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", h.program, err, out)
		}
	}
	return nil
}

// setUp lets the guest turn its namespaces into the sandbox.
func (m *making) setUp() error {
	spec, info := &m.spec, &m.box.rec.Info
	req := &m.req
	req.Hostname = string(m.box.id)
	req.User, req.Workdir = info.User, info.Workdir
	env := maps.Clone(m.img.env)
	if env == nil {
		env = spec.Env
	} else {
		maps.Copy(env, spec.Env)
	}
	for k, v := range env {
		req.Env = append(req.Env, k+"="+v)
	}
	req.ReadOnly, req.Writable = spec.ReadOnlyRoot, []string{"/home", "/workspace"}
	req.Filter = m.rt.filter
	req.Shared = m.rt.host.ids.kind != ownRange
	req.BootID = newUUID()
	req.Tmp, req.Shm = tmpSize(spec.Limits), tmpSize(spec.Limits)/4
	req.Dirs = []enter.Dir{{Path: "/workspace", Mode: 0o1777}, {Path: "/home", Mode: 0o755}}
	if m.img.host {
		req.Dirs = append(req.Dirs, enter.Dir{Path: "/home/user", Mode: 0o755, UID: 1000, GID: 1000})
	}
	if info.Workdir != "/workspace" {
		req.Dirs = append(req.Dirs, enter.Dir{Path: info.Workdir, Mode: 0o755})
	}
	req.Spawn = -1
	if g := m.box.group; g != nil && g.Spawn() != nil {
		var err error
		if req.Spawn, err = m.pass(g.Spawn()); err != nil {
			return err
		}
	}
	if info.Kept["pids"] == keptRlimit {
		req.PIDs = spec.Limits.PIDs
	}
	if info.Kept["memory"] == keptWatch {
		req.Memory = spec.Limits.Memory
	}
	client, err := m.rt.client(m.box.id, m.local)
	if err != nil {
		return err
	}
	m.box.guest = client
	m.undo.add(client.Close)
	ctx, cancel := context.WithTimeout(m.ctx, deadline)
	defer cancel()
	answer, err := client.Setup(ctx, proto.Append(nil, req), m.files)
	if err != nil {
		var e *sandbox.Error
		if errors.As(err, &e) && e.Kind != sandbox.Internal { // not our doing
			told := *e
			told.Op = "" // it is Create's
			if e.Field == "workdir" && spec.Workdir == "" {
				told.Field = "image"
			}
			return &told
		}
		return fmt.Errorf("%w%s", err, m.box.lastWords())
	}
	var done enter.Done
	if err := proto.Decode(answer, &done); err != nil {
		return err
	}
	for _, gap := range done.Gaps {
		m.rt.log.Warn("the sandbox lacks something", "id", m.box.id, "err", gap)
	}
	return nil
}

func (rt *Runtime) client(id sandbox.ID, conn net.Conn) (*guest.Client, error) {
	return guest.NewClient(conn, guest.Options{Descriptors: true, Daemon: rt.name, Linger: linger, ID: id})
}

// linger is how long a process that is bound to a request outlives the daemon,
// if none comes back.
const linger = 30 * time.Second

// tmpSize is how much /tmp holds: memory, so at most half of what there may be.
func tmpSize(l sandbox.Limits) int64 {
	size := int64(512 << 20)
	if l.Memory > 0 {
		size = min(size, l.Memory/2)
	}
	if l.Disk > 0 {
		size = min(size, l.Disk)
	}
	return size
}

func (m *making) settle() error {
	g := m.box.group
	if g == nil {
		return nil
	}
	if err := g.Settle(); err != nil {
		return err
	}
	return g.Close()
}

func (m *making) record() error {
	return m.box.rec.settle(m.box.dir)
}

// listen makes the socket at which later daemons find the guest. The name of
// a socket has at most 108 bytes, a path may have more; a descriptor of the
// folder shortens it.
func listen(name string) (*os.File, error) {
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name))}); err != nil {
		f.Close()
		return nil, err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		f.Close()
		return nil, err
	}
	if err := unix.Listen(fd, 16); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// dial connects to a guest's socket.
func dial(ctx context.Context, name string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name)))
}
