package inside_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// TestContract holds guest and Client to the contract, over both kinds of
// connection. The suite's paths are /workspace and /tmp, so its sandboxes have
// namespaces and a root of their own: the least that keeps the host out of it.
func TestContract(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c := sandboxtest.Config{
				Patience: 30 * time.Second, // a busy machine, with the race detector
				New:      func(t *testing.T) sandbox.Runtime { return newJails(t, mode) },
				Cannot: map[string]string{
					"ExpiredIsRemoved": "a guest does not know when its sandbox expires",
					"UpdateExpires":    "a guest does not know when its sandbox expires",
				},
				Listen: func(port int) []string { return []string{"/guest", "echo", strconv.Itoa(port)} },
			}
			sandboxtest.Run(t, c)
		})
	}
}

// jails is a Runtime without policy.
type jails struct {
	t    *testing.T
	mode string
	env  []string // of the guest, besides

	mu     sync.Mutex
	closed bool
	all    map[sandbox.ID]*jail
}

func newJails(t *testing.T, mode string) *jails {
	return &jails{t: t, mode: mode, all: make(map[sandbox.ID]*jail)}
}

func (r *jails) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	if err := spec.CheckBackend("jail"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	switch {
	case closed:
		return nil, sandbox.Errorf(sandbox.Closed, "", "it is closed")
	case len(spec.Require) > 0:
		return nil, sandbox.Errorf(sandbox.Unsupported, "require", "a jail promises nothing")
	case spec.Network == sandbox.NetworkOn:
		return nil, sandbox.Errorf(sandbox.Unsupported, "network", "a jail has none")
	case spec.Image != "":
		return nil, sandbox.Errorf(sandbox.NotExist, "image", "there is no such image")
	}
	j := &jail{id: sandbox.NewID(), r: r, spec: spec, created: time.Now()}
	dir, err := os.MkdirTemp("", "jail")
	if err != nil {
		return nil, err
	}
	env := []string{"ATOLL_TEST_GUEST=descriptors", "ATOLL_TEST_JAIL=" + dir, "ATOLL_TEST_WORKDIR=/workspace", "PATH=/usr/bin:/bin",
		"ATOLL_TEST_MEMORY=" + strconv.FormatInt(spec.Limits.Memory, 10)}
	if spec.User != "" {
		env = append(env, "ATOLL_TEST_USER="+spec.User)
	}
	if spec.Workdir != "" {
		env = append(env, "ATOLL_TEST_WORKDIR="+spec.Workdir)
	}
	env = append(env, r.env...)
	if spec.ReadOnlyRoot {
		env = append(env, "ATOLL_TEST_READONLY=yes")
	}
	for k, v := range spec.Env {
		env = append(env, "PLACE_"+k+"="+v)
	}
	for _, m := range spec.Mounts {
		env = append(env, "MOUNT_"+strconv.FormatBool(m.ReadOnly)+m.Target+"="+m.Source)
	}
	opt := guest.Options{ID: j.id, Op: "jail", Gone: func() error {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.removed {
			return sandbox.Errorf(sandbox.NotExist, "", "the sandbox was removed")
		}
		return nil
	}}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{Size: 65536}}, GidMappings: []syscall.SysProcIDMap{{Size: 65536}}, GidMappingsEnableSetgroups: true}
	if os.Getuid() != 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
		attr.GidMappingsEnableSetgroups = false
	}
	j.client, j.cmd, err = launch(r.t, r.mode, env, attr, opt)
	if err != nil {
		os.Remove(dir)
		return nil, err
	}
	if _, err := j.client.Usage(ctx); err != nil { // it is ready
		j.Remove(context.Background())
		os.Remove(dir)
		return nil, err
	}
	os.Remove(dir) // its mounts are its own
	r.mu.Lock()
	r.all[j.id] = j
	r.mu.Unlock()
	return j, nil
}

func (r *jails) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, sandbox.Errorf(sandbox.Closed, "", "it is closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if j := r.all[id]; j != nil {
		return j, nil
	}
	return nil, sandbox.Errorf(sandbox.NotExist, "", "there is no such sandbox")
}

func (r *jails) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		r.mu.Lock()
		var js []*jail
		for _, j := range r.all {
			js = append(js, j)
		}
		closed := r.closed
		r.mu.Unlock()
		if err := ctx.Err(); err != nil {
			yield(sandbox.Info{}, err)
			return
		}
		if closed {
			yield(sandbox.Info{}, sandbox.Errorf(sandbox.Closed, "", "it is closed"))
			return
		}
		for _, j := range js {
			if i, err := j.Info(ctx); !errors.Is(err, sandbox.NotExist) && !yield(i, err) {
				return
			}
		}
	}
}

func (r *jails) Close() error {
	r.mu.Lock()
	r.closed = true
	all := r.all
	r.mu.Unlock()
	for _, j := range all {
		j.Remove(context.Background())
	}
	return nil
}

type jail struct {
	id      sandbox.ID
	r       *jails
	spec    sandbox.Spec
	created time.Time
	client  *guest.Client
	cmd     *exec.Cmd

	updating sync.Mutex // one Update after the other

	mu      sync.Mutex // also guards spec.Labels and spec.Expires
	removed bool
}

func (j *jail) gone() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.removed {
		return sandbox.Errorf(sandbox.NotExist, "", "the sandbox was removed")
	}
	return nil
}

func (j *jail) ID() sandbox.ID { return j.id }

func (j *jail) Info(ctx context.Context) (sandbox.Info, error) {
	if err := ctx.Err(); err != nil {
		return sandbox.Info{}, err
	}
	j.mu.Lock()
	s := j.spec
	j.mu.Unlock()
	i := sandbox.Info{ID: j.id, State: sandbox.Running, Backend: "jail", Image: "jail", User: "root", Workdir: "/workspace", Network: sandbox.NetworkOff,
		Labels: s.Labels, Created: j.created, Expires: s.Expires, Limits: s.Limits, Mounts: s.Mounts, ReadOnlyRoot: s.ReadOnlyRoot, Kept: map[string]string{}}
	if s.User != "" {
		i.User = s.User
	}
	if s.Workdir != "" {
		i.Workdir = s.Workdir
	}
	for _, l := range []struct {
		name string
		set  bool
	}{{"memory", s.Limits.Memory > 0}, {"cpu", s.Limits.CPU > 0}, {"pids", s.Limits.PIDs > 0}, {"disk", s.Limits.Disk > 0}} {
		if l.set {
			i.Kept[l.name] = ""
		}
	}
	return i, j.gone()
}

func (j *jail) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	return j.client.Start(ctx, cmd)
}
func (j *jail) Files() sandbox.Files { return j.client.Files() }

func (j *jail) Remove(ctx context.Context) error {
	j.mu.Lock()
	if j.removed {
		j.mu.Unlock()
		return nil
	}
	j.removed = true
	j.mu.Unlock()
	j.r.mu.Lock()
	delete(j.r.all, j.id)
	j.r.mu.Unlock()
	j.cmd.Process.Kill()
	j.cmd.Wait()
	j.client.Close()
	return nil
}

func (j *jail) Update(ctx context.Context, c sandbox.Change) error {
	if err := errors.Join(c.Check(), c.CheckBackend()); err != nil {
		return err
	}
	j.updating.Lock()
	defer j.updating.Unlock()
	if err := j.gone(); err != nil {
		return err
	}
	if _, _, err := j.client.SetEnv(ctx, c.Env, nil); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if c.Labels != nil {
		j.spec.Labels = maps.Clone(c.Labels)
	}
	if c.Expires != nil {
		j.spec.Expires = *c.Expires
	}
	return nil
}

func (j *jail) Usage(ctx context.Context) (sandbox.Usage, error) { return j.client.Usage(ctx) }
func (j *jail) Dial(ctx context.Context, port int) (net.Conn, error) {
	return j.client.Dial(ctx, port)
}
func (j *jail) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	return j.client.StartDetached(ctx, cmd, opt)
}
func (j *jail) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	return j.client.Processes(ctx)
}
func (j *jail) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	return j.client.Attach(ctx, id, opt)
}
func (j *jail) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	return j.client.Output(ctx, id, cursor, max, wait)
}
func (j *jail) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	return j.client.Input(ctx, id, p, eof)
}
func (j *jail) Forget(ctx context.Context, id sandbox.ProcessID) error {
	return j.client.Forget(ctx, id)
}

// enterJail makes root the root, with the host's programs in it read-only.
func enterJail(root string) error {
	try := func(what string, err error) {
		if err != nil {
			os.Stderr.WriteString("jail: " + what + ": " + err.Error() + "\n")
			os.Exit(1)
		}
	}
	try("private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	try("tmpfs", unix.Mount("jail", root, "tmpfs", 0, "mode=755"))
	bind := func(from, to string, readonly bool) {
		to = filepath.Join(root, to)
		st, err := os.Stat(from)
		try("stat", err)
		if st.IsDir() {
			try("mkdir", os.MkdirAll(to, 0o755))
		} else {
			os.MkdirAll(filepath.Dir(to), 0o755)
			try("file", os.WriteFile(to, nil, 0o755))
		}
		try("bind "+from, unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""))
		if readonly {
			try("read-only", unix.MountSetattr(-1, to, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
		}
	}
	for _, d := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64"} {
		if to, err := os.Readlink(d); err == nil {
			try("link", os.Symlink(to, root+d))
		} else if _, err := os.Stat(d); err == nil {
			bind(d, d, true)
		}
	}
	exe, err := os.Readlink("/proc/self/exe")
	try("self", err)
	bind(exe, "/guest", true)
	for _, d := range []string{"/etc", "/workspace", "/home/user", "/root", "/proc", "/dev/pts"} {
		try("mkdir", os.MkdirAll(root+d, 0o755))
	}
	try("mkdir", os.Mkdir(root+"/tmp", 0o777))
	try("chmod", os.Chmod(root+"/tmp", 0o777|os.ModeSticky))
	try("tmp", unix.Mount("tmp", root+"/tmp", "tmpfs", 0, "mode=1777"))
	try("passwd", os.WriteFile(root+"/etc/passwd", []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"), 0o644))
	try("group", os.WriteFile(root+"/etc/group", []byte("root:x:0:\nuser:x:1000:\nextra:x:1001:user\n"), 0o644))
	os.Chown(root+"/home/user", 1000, 1000)
	try("proc", unix.Mount("proc", root+"/proc", "proc", 0, ""))
	try("pts", unix.Mount("pts", root+"/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620"))
	try("ptmx", os.Symlink("pts/ptmx", root+"/dev/ptmx"))
	for _, d := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"} {
		bind(d, d, false)
	}
	try("fd", os.Symlink("/proc/self/fd", root+"/dev/fd"))
	for _, kv := range os.Environ() {
		for _, ro := range []string{"true", "false"} {
			if rest, ok := cutPrefix(kv, "MOUNT_"+ro); ok {
				to, from, _ := cut(rest)
				bind(from, to, ro == "true")
			}
		}
	}
	try("chdir", os.Chdir(root))
	try("pivot", unix.PivotRoot(".", "."))
	try("umount", unix.Unmount(".", unix.MNT_DETACH))
	try("chdir", os.Chdir("/"))
	if os.Getenv("ATOLL_TEST_READONLY") != "" {
		for _, d := range []string{"/workspace", "/home"} {
			try("keep "+d, unix.Mount(d, d, "", unix.MS_BIND, ""))
		}
		try("read-only root", unix.MountSetattr(-1, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
	}
	if w := os.Getenv("ATOLL_TEST_WORKDIR"); w != "" {
		if err := os.MkdirAll(w, 0o755); err == nil && os.Getenv("ATOLL_TEST_USER") != "" {
			os.Chmod(w, 0o777)
		}
	}
	return nil
}

// echo is a program for the suite: it echoes what it reads on a port.
func echo(port string) {
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		b := make([]byte, 4096)
		for {
			n, err := c.Read(b)
			if err != nil {
				break
			}
			c.Write(b[:n])
		}
		c.Close()
	}
}
