package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	roots := rt.cfg.MountRoots
	if want.Within != "" { // a narrower one, of the same
		roots = slices.DeleteFunc([]string{want.Within}, func(dir string) bool {
			return !slices.ContainsFunc(rt.cfg.MountRoots, func(root string) bool { return within(filepath.Clean(dir), filepath.Clean(root)) })
		})
	}
	f, real, st, err := rt.openAllowed(allowance{"mounts.source", "--allow-mount", roots}, want.Source)
	if err != nil {
		return mount{}, err
	}
	mt := mount{Mount: want, file: f, real: real, stat: st}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFREG:
		mt.isFile = true
	default:
		f.Close()
		return mount{}, sandbox.Errorf(sandbox.Denied, "mounts.source", "%q is neither a folder nor a file", want.Source)
	}
	return mt, nil
}

// An allowance says what of the host's files a Spec may name.
type allowance struct {
	field string   // the part of the Spec that names them
	flag  string   // of atoll serve, by which an operator allows more
	roots []string // the folders in which they lie
}

// openAllowed opens (O_PATH) what a Spec names of the host's files, and says
// where it really is.
func (rt *Runtime) openAllowed(may allowance, name string) (_ *os.File, real string, st unix.Stat_t, err error) {
	field := may.field
	denied := func(format string, args ...any) *sandbox.Error {
		return sandbox.Errorf(sandbox.Denied, field, format, args...)
	}
	outside := denied("%q is not below a folder that is allowed here", name).WithHint("start the daemon with %s DIR", may.flag)
	if len(may.roots) == 0 {
		return nil, "", st, denied("no folder of the host is allowed here").WithHint("start the daemon with %s DIR", may.flag)
	}
	// What is there elsewhere, and what is not, is nobody's business.
	named := filepath.Clean(name)
	if !slices.ContainsFunc(may.roots, func(root string) bool {
		real, err := filepath.EvalSymlinks(root)
		return within(named, filepath.Clean(root)) || err == nil && within(named, real)
	}) {
		return nil, "", st, outside
	}
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil, "", st, sandbox.Errorf(sandbox.NotExist, field, "%q is not there", name).WithHint("make it first")
	}
	if err != nil {
		return nil, "", st, &sandbox.Error{Kind: sandbox.Denied, Field: field, Msg: fmt.Sprintf("%q cannot be opened", name), Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	ok := false
	defer func() {
		if !ok {
			f.Close()
		}
	}()
	if real, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		return nil, "", st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, "", st, err
	}
	for _, dir := range slices.Concat(never, []string{rt.cfg.State, rt.cfg.Cache}, rt.cfg.Private) {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil {
			dir = resolved
		}
		if within(real, dir) || within(dir, real) {
			return nil, "", st, denied("%q is never shown", name)
		}
	}
	for _, root := range may.roots {
		if root, err := filepath.EvalSymlinks(root); err == nil && within(real, root) {
			ok = true
			return f, real, st, nil
		}
	}
	return nil, "", st, outside
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
