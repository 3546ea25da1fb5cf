package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/cgroup"
	"github.com/atoll-run/atoll/backend/linux/launch"
	"github.com/atoll-run/atoll/sandbox"
)

// Probe finds out, by doing, what sandboxes this host and user can have. It
// makes a throw-away state below cfg.State's parent or the temporary folder,
// never touches cfg.State, and leaves nothing behind.
func Probe(ctx context.Context, cfg Config) []Finding {
	var fs []Finding
	fs = append(fs, probeKernel())
	program, err := guestProgram(cfg.Guest)
	f := Finding{Name: "guest program", OK: err == nil, Needed: true, Detail: "built in", Means: "what runs inside each sandbox"}
	if err != nil {
		f.Detail, f.Mend = err.Error(), "make build"
		return append(fs, f)
	}
	defer program.Close()
	fs = append(fs, f)
	fs = append(fs, probeNamespaces(program)...)
	dir, err := os.MkdirTemp("", "atoll-doctor-")
	if err != nil {
		return append(fs, Finding{Name: "temporary folder", Needed: true, Detail: err.Error(), Mend: "set TMPDIR to a folder that can be written"})
	}
	defer os.RemoveAll(dir)
	cfg.State, cfg.Cache, cfg.Log = dir, dir, slog.New(slog.DiscardHandler)
	rt := &Runtime{cfg: cfg, program: program, launcher: launch.New(program)}
	defer rt.launcher.Close()
	if err := rt.look(); err != nil {
		return append(fs, Finding{Name: "host", Needed: true, Detail: err.Error()})
	}
	h := &rt.host
	fs = append(fs, h.probeIDs(), h.probeShift())
	fs = append(fs, h.probeCgroups()...)
	fs = append(fs, rt.probeDisk())
	return append(fs, probeSandbox(ctx, cfg))
}

func probeKernel() Finding {
	f := Finding{Name: "kernel", Needed: true, Means: "image layers need Linux 5.12, and 5.19 as root"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		f.Detail = err.Error()
		return f
	}
	release := unix.ByteSliceToString(u.Release[:])
	f.Detail = "Linux " + release
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	need := 12
	if os.Geteuid() == 0 {
		need = 19
	}
	f.OK = major > 5 || major == 5 && minor >= need
	if !f.OK {
		f.Mend = "install a newer kernel"
	}
	return f
}

// probeNamespaces clones the guest, which only says its version, into each
// kind of namespace, on top of a user namespace.
func probeNamespaces(program *os.File) []Finding {
	var fs []Finding
	for _, ns := range []struct {
		name  string
		flag  uintptr
		means string
	}{
		{"user namespaces", 0, "root inside is nobody outside; without them there is no sandbox"},
		{"mount namespaces", unix.CLONE_NEWNS, "a file system of its own"},
		{"pid namespaces", unix.CLONE_NEWPID, "processes of its own"},
		{"network namespaces", unix.CLONE_NEWNET, "no network but its own"},
		{"ipc namespaces", unix.CLONE_NEWIPC, "shared memory of its own"},
		{"uts namespaces", unix.CLONE_NEWUTS, "a host name of its own"},
		{"cgroup namespaces", unix.CLONE_NEWCGROUP, "it does not see where it stands among the host's cgroups"},
	} {
		f := Finding{Name: ns.name, Needed: true, Means: ns.means, Detail: "works"}
		err := cloneOnce(program, unix.CLONE_NEWUSER|ns.flag)
		f.OK = err == nil
		if err != nil {
			f.Detail = err.Error()
			f.Mend = mendNamespaces()
		}
		fs = append(fs, f)
		if err != nil && ns.flag == 0 {
			break // the others need it
		}
	}
	return fs
}

func cloneOnce(program *os.File, flags uintptr) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	one := func(host int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: 0, HostID: host, Size: 1}}
	}
	pid, err := syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(int(program.Fd())), []string{"atoll-guest", "--version"}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
		Sys: &syscall.SysProcAttr{Cloneflags: flags, UidMappings: one(os.Geteuid()), GidMappings: one(os.Getegid())},
	})
	if err != nil {
		return err
	}
	var ws unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &ws, 0, nil); err != unix.EINTR {
			break
		}
	}
	if err == nil && ws.ExitStatus() != 0 {
		err = fmt.Errorf("the guest program exited with %d", ws.ExitStatus())
	}
	return err
}

// mendNamespaces guesses which of the known switches is off.
func mendNamespaces() string {
	for _, s := range []struct{ file, bad, mend string }{
		{"/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=10000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "install deploy/apparmor/atoll to /etc/apparmor.d and run: apparmor_parser -r /etc/apparmor.d/atoll"},
	} {
		if b, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(b)) == s.bad {
			return s.mend
		}
	}
	return "if this is a container: run it with a seccomp and AppArmor profile that allows user namespaces"
}

func (h *host) probeIDs() Finding {
	f := Finding{Name: "user ids", OK: h.ids.kind != oneID}
	switch h.ids.kind {
	case ownRange:
		f.Detail, f.Means = "a range of its own for each sandbox", "no sandbox's user is another's, or the host's"
	case helped:
		f.Detail = fmt.Sprintf("%d ids from %d, by newuidmap and newgidmap", h.ids.subUID.count, h.ids.subUID.first)
		f.Means = "users inside differ from each other; all sandboxes share the range"
	case oneID:
		f.Detail, f.Means = h.ids.why, "there is one user inside, whatever its name: chown does nothing and packages that want users of their own fail"
		f.Mend = "apt-get install uidmap && usermod --add-subuids 100000-165535 --add-subgids 100000-165535 " + strconv.Itoa(h.ids.uid)
	}
	return f
}

func (h *host) probeShift() Finding {
	f := Finding{Name: "shifted ids", OK: h.shift, Detail: "works", Means: "image files belong to the sandbox's own users"}
	if !h.shift {
		f.Detail, f.Means = h.noShift, "files of images that belong to others look like nobody's"
	}
	return f
}

func (h *host) probeCgroups() []Finding {
	fs := []Finding{{Name: "cgroups", OK: h.cgroups.Mode != cgroup.None, Detail: h.cgroups.Why, Mend: h.cgroups.Hint, Means: "limits by the kernel, pause, and usage figures"}}
	for _, limit := range []string{"memory", "pids", "cpu"} {
		by := h.cgroups.Means(limit)
		f := Finding{Name: limit + " limit", OK: by != "", Detail: "kept by " + by, Means: "a sandbox's limit is kept"}
		if by == "" {
			f.Mend = h.cgroups.Hint
			switch limit {
			case "memory":
				f.Detail, f.Means = "no cgroup", "the guest watches its processes instead, and may be late"
			case "pids":
				f.Detail, f.Means = "no cgroup", "RLIMIT_NPROC keeps it instead, per user of the sandbox"
			case "cpu":
				f.Detail, f.Means = "no cgroup", "nothing keeps it; a Spec that requires it is refused"
			}
		}
		fs = append(fs, f)
	}
	return fs
}

func (rt *Runtime) probeDisk() Finding {
	ok, why := rt.canLoop()
	if ok {
		return Finding{Name: "disk limit", OK: true, Detail: "kept by a file system image on a loop device", Means: "a sandbox's limit is kept on disk"}
	}
	return Finding{Name: "disk limit", OK: false, Detail: why, Means: "kept by a tmpfs instead, so what is written takes memory", Mend: "run as root, with e2fsprogs installed and loop devices"}
}

// probeSandbox makes one, runs a command in it, and removes it.
func probeSandbox(ctx context.Context, cfg Config) (f Finding) {
	f = Finding{Name: "a sandbox", Needed: true, Means: "all of the above, together"}
	dir, err := os.MkdirTemp("", "atoll-doctor-")
	if err != nil {
		f.Detail = err.Error()
		return f
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil {
		f.Detail = err.Error()
		return f
	}
	cfg.State, cfg.Cache = dir, ""
	rt, err := New(cfg)
	if err == nil {
		defer rt.Close()
		var sb sandbox.Sandbox
		began := time.Now()
		if sb, err = rt.Create(ctx, sandbox.Spec{}); err == nil {
			made := time.Since(began)
			defer sb.Remove(context.WithoutCancel(ctx))
			var r sandbox.Result
			r, err = sandbox.Capture(ctx, sb, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "exit 7"}})
			if err == nil && r.Code != 7 {
				err = fmt.Errorf("a shell exited with %d: %s", r.Status(), r.Stderr)
			}
			f.Detail = fmt.Sprintf("made in %v, and it runs commands", made.Round(100*time.Microsecond))
		}
	}
	f.OK = err == nil
	if err != nil {
		f.Detail = err.Error()
		var e *sandbox.Error
		if errors.As(err, &e) {
			f.Mend = e.Hint
		}
	}
	return f
}
