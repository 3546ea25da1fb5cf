package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/enter"
	"github.com/atoll-run/atoll/sandbox"
)

// never are the host's directories that no sandbox is ever shown, nor
// anything above them, nor anything in them: what runs the host, what it
// knows of itself, and where engines listen.
var never = []string{"/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/var/run", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet"}

// mount is what checkMounts found at a Mount's source, held so that it cannot
// become something else.
type mount struct {
	sandbox.Mount
	real   string
	file   *os.File // O_PATH
	isFile bool
	stat   unix.Stat_t
}

// checkMounts looks at each source once, through a descriptor that the mount
// is then made from, so that changing the path afterwards changes nothing.
func (m *making) checkMounts() error {
	for _, want := range m.spec.Mounts {
		mt, err := m.rt.openMount(want)
		if err != nil {
			return err
		}
		m.ours = append(m.ours, mt.file)
		m.mounts = append(m.mounts, mt)
	}
	return nil
}

func (rt *Runtime) openMount(want sandbox.Mount) (mount, error) {
	denied := func(format string, args ...any) *sandbox.Error {
		return sandbox.Errorf(sandbox.Denied, "mounts.source", format, args...)
	}
	if len(rt.cfg.MountRoots) == 0 {
		return mount{}, denied("no mounts are allowed here").WithHint("start the daemon with --allow-mount DIR")
	}
	fd, err := unix.Open(want.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return mount{}, sandbox.Errorf(sandbox.NotExist, "mounts.source", "%q is not there", want.Source).WithHint("make it first")
	}
	if err != nil {
		return mount{}, &sandbox.Error{Kind: sandbox.Denied, Field: "mounts.source", Msg: fmt.Sprintf("%q cannot be opened", want.Source), Err: err}
	}
	mt := mount{Mount: want, file: os.NewFile(uintptr(fd), want.Source)}
	ok := false
	defer func() {
		if !ok {
			mt.file.Close()
		}
	}()
	if mt.real, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		return mount{}, err
	}
	if err := unix.Fstat(fd, &mt.stat); err != nil {
		return mount{}, err
	}
	switch mt.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFREG:
		mt.isFile = true
	default:
		return mount{}, denied("%q is neither a folder nor a file", want.Source)
	}
	for _, dir := range append(never, rt.cfg.State) {
		if within(mt.real, dir) || within(dir, mt.real) {
			return mount{}, denied("%q is never mounted", want.Source)
		}
	}
	for _, root := range rt.cfg.MountRoots {
		if real, err := filepath.EvalSymlinks(root); err == nil && within(mt.real, real) {
			ok = true
			return mt, nil
		}
	}
	return mount{}, denied("%q is not below a folder from which mounts are allowed", want.Source)
}

// openMounts makes the detached mounts. On the host's side the sandbox's user
// is then the owner of the source, so that what either writes the other can
// read.
func (m *making) openMounts() error {
	for i := range m.mounts {
		mt := &m.mounts[i]
		s, err := m.mountTree(mt)
		if err != nil {
			return fmt.Errorf("mount %s: %w", mt.Target, err)
		}
		m.req.Binds = append(m.req.Binds, enter.Bind{Source: m.source(s), Target: mt.Target, ReadOnly: mt.ReadOnly, IsFile: mt.isFile})
	}
	return nil
}
