package docker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/mount"

	"github.com/atoll-run/atoll/backend/docker/place"
	"github.com/atoll-run/atoll/sandbox"
)

// never are the host's directories that no sandbox is ever shown, nor anything
// above them, nor anything in them: what runs the host, what it knows of
// itself, and where engines listen.
var never = []string{"/proc", "/sys", "/dev", "/etc", "/boot", "/run", "/var/run", "/var/lib/docker", "/var/lib/containers", "/var/lib/containerd", "/var/lib/kubelet"}

// within reports whether p is dir or lies in it; both are clean.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// mounts looks at what a Spec mounts. It returns what the engine is asked for,
// and what the guest must then find there.
func (rt *Runtime) mounts(spec *sandbox.Spec) (ask []mount.Mount, same []place.File, err error) {
	if len(spec.Mounts) == 0 {
		return nil, nil, nil
	}
	if !rt.local {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "mounts.source", "the container engine is on another machine, whose files are not looked at").WithHint("copy files into the sandbox")
	}
	if r := rt.cfg.Runtime; r != "" && r != "runc" && r != "crun" {
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "mounts.source", "what the runtime %s mounts cannot be checked", r).WithHint("copy files into the sandbox")
	}
	for _, m := range spec.Mounts {
		real, info, err := rt.allowed(m)
		if err != nil {
			return nil, nil, err
		}
		dev, ino := identity(info)
		ask = append(ask, mount.Mount{Type: mount.TypeBind, Source: real, Target: filepath.Clean(m.Target), ReadOnly: m.ReadOnly,
			// What is mounted below it could not be made read-only by older engines.
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate, NonRecursive: true}})
		same = append(same, place.File{Path: filepath.Clean(m.Target), Dev: dev, Ino: ino})
	}
	return ask, same, nil
}

// allowed returns where a mount's source really is, if it may be shown.
func (rt *Runtime) allowed(m sandbox.Mount) (string, fs.FileInfo, error) {
	const field = "mounts.source"
	denied := func(format string, args ...any) *sandbox.Error {
		return sandbox.Errorf(sandbox.Denied, field, format, args...)
	}
	roots := rt.cfg.MountRoots
	if m.Within != "" { // a narrower one, of the same
		roots = slices.DeleteFunc([]string{m.Within}, func(dir string) bool {
			return !slices.ContainsFunc(rt.cfg.MountRoots, func(root string) bool { return within(filepath.Clean(dir), filepath.Clean(root)) })
		})
	}
	if len(roots) == 0 {
		return "", nil, denied("no folder of the host is allowed here").WithHint("start the daemon with --allow-mount DIR")
	}
	outside := denied("%q is not below a folder that is allowed here", m.Source).WithHint("start the daemon with --allow-mount DIR")
	// What is there elsewhere, and what is not, is nobody's business.
	named := filepath.Clean(m.Source)
	if !slices.ContainsFunc(roots, func(root string) bool {
		real, err := filepath.EvalSymlinks(root)
		return within(named, filepath.Clean(root)) || err == nil && within(named, real)
	}) {
		return "", nil, outside
	}
	real, err := filepath.EvalSymlinks(named)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, sandbox.Errorf(sandbox.NotExist, field, "%q is not there", m.Source).WithHint("make it first")
	}
	if err != nil {
		return "", nil, &sandbox.Error{Kind: sandbox.Denied, Field: field, Msg: fmt.Sprintf("%q cannot be opened", m.Source), Err: err}
	}
	private := append(slices.Clone(never), rt.cfg.State)
	if dir := rt.engine.DockerRootDir; dir != "" {
		private = append(private, dir)
	}
	for _, dir := range append(private, rt.cfg.Private...) {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil {
			dir = resolved
		}
		if within(real, dir) || within(dir, real) {
			return "", nil, denied("%q is never shown", m.Source)
		}
	}
	if !slices.ContainsFunc(roots, func(root string) bool {
		root, err := filepath.EvalSymlinks(root)
		return err == nil && within(real, root)
	}) {
		return "", nil, outside
	}
	info, err := os.Lstat(real)
	if err != nil {
		return "", nil, &sandbox.Error{Kind: sandbox.Denied, Field: field, Msg: fmt.Sprintf("%q cannot be opened", m.Source), Err: err}
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return "", nil, denied("%q is neither a folder nor a file", m.Source)
	}
	return real, info, nil
}
