package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/backend/docker/place"
	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// making is a sandbox on its way.
type making struct {
	rt   *Runtime
	ctx  context.Context
	spec sandbox.Spec
	box  *box
	img  *image
	ask  []mount.Mount
	same []place.File
	undo []func(context.Context) error
}

// makeSteps makes a sandbox, in this order. The record comes before the
// container, which bears our labels from its first moment, so that whatever a
// crash leaves is found; others find the sandbox only when all has been done.
var makeSteps = []struct {
	name string
	do   func(*making) error
}{
	{"find the image", (*making).findImage},
	{"check the mounts", (*making).checkMounts},
	{"promise", (*making).promise},
	{"fill the guest's volume", (*making).fillVolume},
	{"create the container", (*making).create},
	{"start the container", (*making).start},
	{"set up", (*making).setUp},
	{"look at what came of it", (*making).verify},
	{"record", (*making).record},
}

// Create makes a sandbox.
func (rt *Runtime) Create(ctx context.Context, spec sandbox.Spec) (_ sandbox.Sandbox, err error) {
	const op = "docker.Create"
	if err := rt.enter(); err != nil {
		return nil, sandbox.At(op, "", err)
	}
	defer rt.work.Done()
	if err := spec.Check(); err != nil {
		return nil, sandbox.At(op, "", err)
	}
	if err := spec.CheckBackend("docker"); err != nil {
		return nil, sandbox.At(op, "", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	id := sandbox.NewID()
	m := &making{rt: rt, ctx: ctx, spec: spec, box: &box{rt: rt, id: id, gone: make(chan struct{}), ready: make(chan struct{})}}
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
		defer cancel()
		for _, undo := range slices.Backward(m.undo) {
			if e := undo(ctx); e != nil {
				rt.log.Error("a sandbox that was not made could not be taken back", "id", id, "err", e)
				return // the record tells the next start
			}
		}
	}()
	for _, st := range makeSteps {
		if err := st.do(m); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			var e *sandbox.Error
			if !errors.As(err, &e) {
				err = &sandbox.Error{Kind: sandbox.Internal, Msg: "the sandbox could not be made", Err: fmt.Errorf("%s: %w", st.name, err)}
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
	m.img, err = m.rt.image(m.ctx, m.spec.Image)
	return err
}

func (m *making) checkMounts() (err error) {
	m.ask, m.same, err = m.rt.mounts(&m.spec)
	if m.rt.checked != nil {
		m.rt.checked()
	}
	return err
}

// leastMemory is the least limit of memory: the guest is within it, and so is
// what the engine starts in the container for a moment.
const leastMemory = 32 << 20

// guestPIDs is how many threads a container may have beside those that the
// sandbox may: the guest's own, and those of what connects to it.
const guestPIDs = 32

// promise settles what the sandbox will be as far as the engine's own word
// goes, and refuses what it must not lack.
func (m *making) promise() error {
	spec := &m.spec
	if l := spec.Limits.Memory; l > 0 && l < leastMemory {
		return sandbox.Errorf(sandbox.Unsupported, "limits.memory", "a container needs %d bytes at least", leastMemory).WithHint("give it 32 MiB or more")
	}
	info := sandbox.Info{
		ID: m.box.id, State: sandbox.Running, Backend: "docker", Image: m.img.shown, Wanted: spec.Image,
		User: cmp.Or(spec.User, m.img.user, "root"), Workdir: cmp.Or(spec.Workdir, m.img.workdir, "/workspace"), Network: sandbox.NetworkOff,
		Labels: maps.Clone(spec.Labels), Created: time.Now().UTC().Round(0), Expires: spec.Expires, Limits: spec.Limits,
		Mounts: slices.Clone(spec.Mounts), ReadOnlyRoot: spec.ReadOnlyRoot,
	}
	if !strings.HasPrefix(info.Workdir, "/") { // of a careless image
		info.Workdir = "/" + info.Workdir
	}
	info.Kept = m.rt.keeps(spec.Limits)
	info.Isolation = m.rt.isolation(info.Kept, m.rt.promised())
	m.box.rec = record{Version: recordVersion, Info: info}
	if err := m.require(); err != nil {
		return err
	}
	if err := m.rt.saveRecord(&m.box.rec); err != nil {
		return err
	}
	m.undo = append(m.undo, func(context.Context) error { m.rt.forget(m.box.id); return nil })
	return nil
}

// require refuses the sandbox if it lacks what its Spec requires.
func (m *making) require() error {
	info := &m.box.rec.Info
	for _, p := range m.spec.Require {
		if info.Isolation.Holds(p) {
			continue
		}
		for limit, q := range limitProperty {
			if _, asked := info.Kept[limit]; p == q && !asked {
				return sandbox.Errorf(sandbox.Unsupported, "require", "%s cannot be given: there is no limit to keep", p).WithHint("set limits.%s, or do not require it", limit)
			}
		}
		why := "this backend never gives it"
		for _, g := range info.Isolation.Missing {
			if g.Property == p {
				why = g.Why
			}
		}
		return sandbox.Errorf(sandbox.Unsupported, "require", "%s cannot be given here: %s", p, why).WithHint("do without, or use another backend")
	}
	return nil
}

// keeps says by what each limit that is asked for is kept.
func (rt *Runtime) keeps(l sandbox.Limits) map[string]string {
	kept := make(map[string]string)
	by := "cgroup v" + cmp.Or(rt.engine.CgroupVersion, "1") + " of the engine"
	say := func(name string, asked, can bool) {
		if asked && can {
			kept[name] = by
		} else if asked {
			kept[name] = ""
		}
	}
	say("memory", l.Memory > 0, rt.engine.MemoryLimit && rt.engine.SwapLimit)
	say("cpu", l.CPU > 0, rt.engine.CPUCfsQuota)
	say("pids", l.PIDs > 0, rt.engine.PidsLimit)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if l.Disk > 0 {
		kept["disk"] = ""
		if !rt.noQuota {
			kept["disk"] = rt.engine.Driver + " of the engine"
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// promised is what the engine says that it does, before anything is made.
func (rt *Runtime) promised() place.Done {
	done := place.Done{Masked: true, Tree: runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"}
	for _, o := range rt.engine.SecurityOptions { // "name=seccomp,profile=default"
		switch name, _, _ := strings.Cut(strings.TrimPrefix(o, "name="), ","); name {
		case "seccomp":
			done.Seccomp = !strings.Contains(o, "profile=unconfined")
		case "userns", "rootless":
			done.UserNS = true
		}
	}
	return done
}

// isolation is what holds.
func (rt *Runtime) isolation(kept map[string]string, done place.Done) sandbox.Isolation {
	i := sandbox.Isolation{Has: []sandbox.Property{
		sandbox.ManyIDs, sandbox.PIDNamespace, sandbox.MountNamespace, sandbox.NetworkNamespace, sandbox.IPCNamespace, sandbox.UTSNamespace,
		sandbox.NoNewPrivileges, sandbox.NoCapabilities,
	}}
	give := func(p sandbox.Property, has bool, why string) {
		if has {
			i.Has = append(i.Has, p)
		} else {
			i.Missing = append(i.Missing, sandbox.Gap{Property: p, Why: why})
		}
	}
	give(sandbox.UserNamespace, done.UserNS, "root in the container is root on the engine's host; a rootless engine, or one with userns-remap, makes it nobody")
	give(sandbox.Seccomp, done.Seccomp, "the engine has loaded no system call filter")
	give(sandbox.MaskedProc, done.Masked, "the engine leaves host-wide parts of /proc as they are")
	give(sandbox.KillTree, done.Tree, "nothing keeps a process from leaving its tree here")
	give(sandbox.CgroupNamespace, rt.cgroupNamespace(), "the engine is too old to give one")
	for limit, p := range limitProperty {
		by, asked := kept[limit]
		if !asked {
			continue
		}
		why := "the engine's kernel has not what it takes"
		if limit == "disk" {
			why = "the engine's storage cannot limit a container"
		}
		give(p, by != "", why)
	}
	slices.Sort(i.Has)
	slices.SortFunc(i.Missing, func(a, b sandbox.Gap) int { return strings.Compare(string(a.Property), string(b.Property)) })
	return i
}

// cgroupNamespace reports whether the engine's API has cgroup namespaces.
func (rt *Runtime) cgroupNamespace() bool { return rt.api.ClientVersion() != "1.40" }

// fillVolume makes the volume that holds the guest, once. A container that is
// never started is what the engine takes the program through; any image will
// do. What is there already is compared by its size: a volume is only half
// filled if somebody died at it, and the name has the content's digest.
func (m *making) fillVolume() error {
	rt := m.rt
	rt.volumeMu.Lock()
	defer rt.volumeMu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), deadline)
	defer cancel()
	if rt.filled { // but "docker volume prune" takes what nobody uses now
		_, err := rt.api.VolumeInspect(ctx, rt.volume, client.VolumeInspectOptions{})
		if err == nil || !errdefs.IsNotFound(err) {
			return rt.fail(err)
		}
		rt.filled = false
	}
	_, err := rt.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: rt.volume, Labels: map[string]string{labelGuest: rt.volume}})
	if err != nil {
		return rt.fail(err)
	}
	c, err := rt.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: m.img.id, Entrypoint: []string{guestPath}, Labels: map[string]string{labelOwner: rt.name, labelGuest: rt.volume}},
		HostConfig: &container.HostConfig{NetworkMode: "none", Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: rt.volume, Target: guestDir, VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}},
	})
	if err != nil {
		return rt.fail(err)
	}
	defer rt.removeContainer(ctx, c.ID)
	st, err := rt.api.ContainerStatPath(ctx, c.ID, client.ContainerStatPathOptions{Path: guestPath})
	if err != nil && !errdefs.IsNotFound(err) {
		return rt.fail(err)
	}
	if err != nil || st.Stat.Size != int64(len(rt.program)) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&tar.Header{Name: path.Base(guestPath), Mode: 0o555, Size: int64(len(rt.program)), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		w.Write(rt.program)
		if err := w.Close(); err != nil {
			return err
		}
		if _, err := rt.api.CopyToContainer(ctx, c.ID, client.CopyToContainerOptions{DestinationPath: guestDir, Content: &b}); err != nil {
			return rt.fail(err)
		}
	}
	rt.filled = true
	return nil
}

// create has the engine create the container. Once asked for it is waited for,
// whoever stops waiting, so that it can be taken back.
func (m *making) create() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), deadline)
	defer cancel()
	rt, info := m.rt, &m.box.rec.Info
	cfg, host := m.container()
	name := "atoll-" + string(m.box.id)
	m.undo = append(m.undo, func(ctx context.Context) error { return rt.removeContainer(ctx, name) })
	made, err := rt.api.ContainerCreate(ctx, client.ContainerCreateOptions{Config: cfg, HostConfig: host, Name: name})
	if err != nil && len(host.StorageOpt) > 0 && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		// Only by trying is it found out what the storage can.
		rt.log.Info("the engine's storage has no limit per container", "err", err)
		rt.mu.Lock()
		rt.noQuota = true
		rt.mu.Unlock()
		info.Kept = rt.keeps(m.spec.Limits)
		info.Isolation = rt.isolation(info.Kept, rt.promised())
		if err := m.require(); err != nil {
			return err
		}
		host.StorageOpt = nil
		made, err = rt.api.ContainerCreate(ctx, client.ContainerCreateOptions{Config: cfg, HostConfig: host, Name: name})
	}
	if errdefs.IsNotFound(err) { // the image went away meanwhile
		return &sandbox.Error{Kind: sandbox.NotExist, Field: "image", Msg: "the image is not there any more", Hint: "try again", Err: err}
	}
	if err != nil {
		return rt.fail(err)
	}
	m.box.container = made.ID
	return nil
}

// container is what the engine is asked for. It has no secrets, and nothing of
// what the tenant said but the image and the folders.
func (m *making) container() (*container.Config, *container.HostConfig) {
	spec, info := &m.spec, &m.box.rec.Info
	cfg := &container.Config{
		Image: m.img.id, Hostname: string(m.box.id), User: "0:0", WorkingDir: "/",
		Entrypoint:  []string{guestPath, "--listen"},
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		Labels:      map[string]string{labelOwner: m.rt.name, labelID: string(m.box.id)},
	}
	host := &container.HostConfig{
		Runtime: m.rt.cfg.Runtime, NetworkMode: "none", IpcMode: container.IPCModePrivate,
		LogConfig: container.LogConfig{Type: "none"}, RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		// What the guest needs, and SETPCAP to take it from what it starts.
		CapDrop:     []string{"ALL"},
		CapAdd:      []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"},
		SecurityOpt: []string{"no-new-privileges"},
		// Whatever resolver the engine's host has is nobody's business.
		DNS:     []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})},
		Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
		Mounts: append([]mount.Mount{{Type: mount.TypeVolume, Source: m.rt.volume, Target: guestDir, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true}}}, m.ask...),
		ReadonlyRootfs: spec.ReadOnlyRoot,
	}
	if m.rt.cgroupNamespace() {
		host.CgroupnsMode = container.CgroupnsModePrivate
	}
	no := false
	host.Init = &no
	if l := spec.Limits; info.Kept["memory"] != "" || l.Memory > 0 {
		host.Memory, host.MemorySwap = l.Memory, l.Memory
	}
	if l := spec.Limits.CPU; l > 0 {
		host.NanoCPUs = int64(math.Round(l * 1e9))
		if n := m.rt.engine.NCPU; n > 0 { // the engine refuses what is no limit
			host.NanoCPUs = min(host.NanoCPUs, int64(n)*1e9)
		}
	}
	if l := spec.Limits.PIDs; l > 0 {
		n := int64(l) + guestPIDs
		host.PidsLimit = &n
	}
	if info.Kept["disk"] != "" {
		host.StorageOpt = map[string]string{"size": fmt.Sprint(spec.Limits.Disk)}
	}
	if spec.ReadOnlyRoot {
		size := tmpSize(spec.Limits)
		host.Tmpfs = make(map[string]string)
		for dir, mode := range map[string]string{"/tmp": "1777", "/home": "0755", "/workspace": "1777", "/run": "0755", "/var/tmp": "1777"} {
			if !slices.ContainsFunc(m.ask, func(a mount.Mount) bool { return a.Target == dir }) {
				host.Tmpfs[dir] = fmt.Sprintf("rw,exec,nosuid,nodev,size=%d,mode=%s", size, mode)
			}
		}
		cfg.WorkingDir = info.Workdir // made by the engine: the guest could not
	}
	return cfg, host
}

// tmpSize is how much each tmpfs holds: memory, so at most half of what there
// may be.
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

func (m *making) start() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), deadline)
	defer cancel()
	if _, err := m.rt.api.ContainerStart(ctx, m.box.container, client.ContainerStartOptions{}); err != nil {
		if errdefs.IsInvalidArgument(err) && m.spec.Workdir != "" && m.spec.ReadOnlyRoot {
			return &sandbox.Error{Kind: sandbox.Invalid, Field: "workdir", Msg: "the working directory cannot be made", Err: err}
		}
		return m.rt.fail(err)
	}
	return nil
}

// setUp tells the guest what the engine must not know.
func (m *making) setUp() error {
	g, err := m.box.dial(m.ctx)
	if err != nil {
		return err
	}
	m.box.set(g)
	m.undo = append(m.undo, func(context.Context) error { return g.Close() })
	info := &m.box.rec.Info
	req := &place.Request{Workdir: info.Workdir, User: info.User, Mounts: m.same}
	for _, kv := range m.img.env {
		if k, _, _ := strings.Cut(kv, "="); k != "" {
			if _, ours := m.spec.Env[k]; !ours {
				req.Env = append(req.Env, kv)
			}
		}
	}
	for k, v := range m.spec.Env {
		req.Env = append(req.Env, k+"="+v)
	}
	ctx, cancel := context.WithTimeout(m.ctx, deadline)
	defer cancel()
	answer, err := g.Setup(ctx, proto.Append(nil, req), nil)
	if err != nil {
		return err
	}
	if err := proto.Decode(answer, &m.box.done); err != nil {
		return err
	}
	for _, gap := range m.box.done.Gaps {
		m.rt.log.Warn("the sandbox lacks something", "id", m.box.id, "err", gap)
	}
	// The engine has made what the root file system must not get any more.
	err = g.Files().Mkdir(ctx, info.Workdir, sandbox.MkdirOptions{Parents: true})
	if err != nil && !(m.spec.ReadOnlyRoot && errors.Is(err, sandbox.Denied)) {
		var e *sandbox.Error
		if errors.As(err, &e) && e.Field == "path" {
			c := *e
			c.Op, c.Field = "", "workdir"
			return &c
		}
		return err
	}
	return nil
}

// verify says what really holds, and refuses what lacks something required.
func (m *making) verify() error {
	info := &m.box.rec.Info
	info.Isolation = m.rt.isolation(info.Kept, m.box.done)
	return m.require()
}

func (m *making) record() error {
	m.box.rec.Ready = true
	return m.rt.saveRecord(&m.box.rec)
}
