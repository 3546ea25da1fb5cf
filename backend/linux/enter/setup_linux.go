package enter

import (
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/seccomp/load"
	"github.com/atoll-run/atoll/guest/proto"
)

// steps turns the namespaces that the guest was born into into the sandbox,
// in this order. What needs privilege comes before "drop capabilities", and
// the system call filter is last, because it forbids the calls of the others.
// Those after "leave the old root" see nothing of the host any more.
var steps = []struct {
	name string
	do   func(*setup) error
}{
	{"refuse the host's namespaces", (*setup).refuseHost},
	{"become user 0", (*setup).become},
	{"make mounts private", (*setup).private},
	{"open sources", (*setup).openSources},
	{"mount the stage", (*setup).mountStage},
	{"attach sources", (*setup).attachSources},
	{"mount the layers", (*setup).mountLayers},
	{"make directories", (*setup).makeDirs},
	{"name the loopback", (*setup).nameLoopback},
	{"mount /dev", (*setup).mountDev},
	{"mount /proc", (*setup).mountProc},
	{"mount /sys", (*setup).mountSys},
	{"mount /tmp", (*setup).mountTmp},
	{"join cgroups", (*setup).joinCgroups},
	{"hold the cgroup from inside", (*setup).holdCgroup},
	{"forbid nested namespaces", (*setup).forbidNesting},
	{"leave some for others", (*setup).leaveSome},
	{"bring up loopback", (*setup).loopback},
	{"mask /proc", (*setup).maskProc},
	{"make the root read-only", (*setup).readOnly},
	{"bind mounts", (*setup).bind},
	{"leave the old root", (*setup).pivot},
	{"look at what came of it", (*setup).verify},
	{"set the host name", (*setup).hostname},
	{"hide from processes", (*setup).hide},
	{"lower limits", (*setup).lowerLimits},
	{"drop capabilities", (*setup).dropCaps},
	{"forbid new privileges", (*setup).noNewPrivs},
	{"load the system call filter", (*setup).loadFilter},
}

// setup is one run of the steps.
type setup struct {
	req   *Request
	files []*os.File
	trees []int // per source: a detached mount, closed once attached
	stage string
	root  string // stage + "/root", where the sandbox's root is built
	gaps  []string
	proc  uint64 // device of the new /proc
}

// Setup carries out req on the calling thread, which must be locked to its
// goroutine and is from then on the one that starts processes: it has no
// capability to pass on and wears the filter, and so does all that it starts.
// Setup closes files, but for that of req.Spawn. An error names the step.
func Setup(req *Request, files []*os.File) (Done, error) {
	s := &setup{req: req, files: files}
	defer func() {
		for i, f := range files {
			if i != req.Spawn {
				f.Close()
			}
		}
	}()
	for _, st := range steps {
		if err := st.do(s); err != nil {
			var told *proto.Failure
			if errors.As(err, &told) {
				told.Log = st.name + ": " + told.Log
				return Done{}, told
			}
			return Done{}, errors.New(st.name + ": " + err.Error())
		}
	}
	return Done{Gaps: s.gaps}, nil
}

// Parse reads a Request and checks that what it refers to is there.
func Parse(body []byte, files int) (*Request, error) {
	req := new(Request)
	if err := proto.Decode(body, req); err != nil {
		return nil, err
	}
	source := func(i int) bool { return i >= 0 && i < len(req.Sources) }
	file := func(i int) bool { return i >= -1 && i < files }
	ok := source(req.Volume) && source(req.Fixtures) && file(req.Spawn) && len(req.Layers) > 0 && req.Layers[0].Target == "/"
	for _, s := range req.Sources {
		ok = ok && file(s.File) && (s.File >= 0 || s.Path != "" || s.Tmpfs > 0)
	}
	for _, l := range req.Layers {
		ok = ok && len(l.Lower) > 0 && l.Name != "" && !strings.ContainsAny(l.Name, "/,:")
		for _, i := range l.Lower {
			ok = ok && source(i)
		}
	}
	for _, b := range req.Binds {
		ok = ok && source(b.Source)
	}
	for _, w := range slices.Concat(req.Join, req.Leave) {
		ok = ok && w.File >= 0 && w.File < files
	}
	if !ok {
		return nil, errors.New("the request refers to what is not there")
	}
	return req, nil
}

// refuseHost is the wall before all walls: nothing below may ever run in
// namespaces that others live in. A process 1 whose user namespace maps less
// than all ids was made for this.
func (s *setup) refuseHost() error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of its own namespace")
	}
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	if f := strings.Fields(string(m)); len(f) >= 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295" {
		return errors.New("not in a user namespace of its own")
	}
	return nil
}

func (s *setup) become() error {
	if !s.req.Become {
		return nil
	}
	// syscall's versions change every thread of the program.
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return err
	}
	return syscall.Setresuid(0, 0, 0)
}

func (s *setup) private() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// openSources makes a detached mount of each source that is not one yet. A
// path is resolved here, in a copy of the mount table that the host's user
// sees, and must lead to the very file that the daemon had looked at.
func (s *setup) openSources() error {
	for _, src := range s.req.Sources {
		if src.Tmpfs > 0 {
			fd, err := newTmpfs(src.Tmpfs)
			if err != nil {
				return step("tmpfs", err)
			}
			s.trees = append(s.trees, fd)
			continue
		}
		if src.File >= 0 {
			fd, err := unix.Dup(int(s.files[src.File].Fd()))
			if err != nil {
				return err
			}
			unix.CloseOnExec(fd)
			s.trees = append(s.trees, fd)
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, src.Path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return step(src.Path, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return step(src.Path, err)
		}
		if src.Ino != 0 && (uint64(st.Dev) != src.Dev || st.Ino != src.Ino) {
			return errors.New(src.Path + ": is another file now")
		}
		s.trees = append(s.trees, fd)
	}
	return nil
}

// maxTerminals is how many pseudo-terminals a sandbox may have. All instances
// of devpts but the host's own share what kernel.pty.max and kernel.pty.reserve
// leave, 3072 in most kernels.
const maxTerminals = 128

// tmpfsSize is the option that bounds a tmpfs to size bytes, and the number of
// its files, which are memory too.
func tmpfsSize(size int64) string {
	return "size=" + strconv.FormatInt(size, 10) + ",nr_inodes=" + strconv.FormatInt(maxFiles(size), 10)
}

// maxFiles is how many files a tmpfs of size bytes may have: one takes about a
// kilobyte of the kernel's memory, which size does not bound.
func maxFiles(size int64) int64 { return max(size/4096, 1024) }

// newTmpfs makes a detached tmpfs of size bytes.
func newTmpfs(size int64) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "size", strconv.FormatInt(size, 10)); err != nil {
		return -1, err
	}
	if err := unix.FsconfigSetString(fs, "nr_inodes", strconv.FormatInt(maxFiles(size), 10)); err != nil {
		return -1, err
	}
	if err := unix.FsconfigSetString(fs, "mode", "0755"); err != nil {
		return -1, err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// mountStage mounts a small tmpfs over a directory of the old root, in which
// the new one is put together. It goes away with the old root.
func (s *setup) mountStage() error {
	for _, dir := range []string{"/tmp", "/run", "/mnt", "/var", "/usr"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=256k,mode=0700"); err == nil {
			s.stage = dir
			s.root = dir + "/root"
			return os.Mkdir(s.root, 0o755)
		}
	}
	return errors.New("no directory to mount it on")
}

func (s *setup) attachSources() error {
	attach := func(i int) error {
		dir := s.source(i)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		return unix.MoveMount(s.trees[i], "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	used := map[int]bool{s.req.Volume: true, s.req.Fixtures: true}
	if err := attach(s.req.Volume); err != nil {
		return step("volume", err)
	}
	if err := attach(s.req.Fixtures); err != nil {
		return step("fixtures", err)
	}
	// What is bound from here keeps this.
	err := unix.MountSetattr(unix.AT_FDCWD, s.source(s.req.Fixtures), 0, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC})
	if err != nil {
		return step("fixtures", err)
	}
	for _, l := range s.req.Layers {
		for _, i := range l.Lower {
			if used[i] {
				continue
			}
			used[i] = true
			if err := attach(i); err != nil {
				return step("layer of "+l.Target, err)
			}
		}
	}
	return nil
}

func (s *setup) source(i int) string { return s.stage + "/" + strconv.Itoa(i) }

// mountLayers mounts the overlays. userxattr is what lets a user namespace
// keep overlayfs's own marks (Linux 5.11).
func (s *setup) mountLayers() error {
	for _, l := range s.req.Layers {
		var lower []string
		for _, i := range l.Lower {
			lower = append(lower, s.source(i))
		}
		upper := s.source(s.req.Volume) + "/" + l.Name
		work := upper + ".work"
		for _, dir := range []string{upper, work} {
			if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
				return step(l.Target, err)
			}
		}
		opt := "userxattr,lowerdir=" + strings.Join(lower, ":") + ",upperdir=" + upper + ",workdir=" + work
		target := s.root
		if l.Target != "/" {
			dir, err := s.place(l.Target, 0o755)
			if err != nil {
				return err
			}
			target = fdPath(dir)
			defer unix.Close(dir)
		}
		if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, opt); err != nil {
			return step(l.Target, err)
		}
	}
	return nil
}

func (s *setup) makeDirs() error {
	for _, d := range s.req.Dirs {
		fd, err := s.place(d.Path, d.Mode&0o777)
		var told *proto.Failure
		if errors.As(err, &told) && d.Path == s.req.Workdir {
			told.Field, told.Msg, told.Hint = "workdir", d.Path+" is not a directory, nor can it become one", "name another"
		}
		if err != nil {
			return err
		}
		err = s.own(fd, d)
		unix.Close(fd)
		if err != nil {
			return step(d.Path, err)
		}
	}
	return nil
}

// own gives the directory its owner and mode, if it was just made for it: one
// that the image has keeps its own.
func (s *setup) own(fd int, d Dir) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if s.req.OneID || int(st.Uid) == d.UID && int(st.Gid) == d.GID && st.Mode&0o7777 == d.Mode {
		return nil
	}
	if st.Uid != 0 && int(st.Uid) != d.UID { // somebody else's on purpose
		return nil
	}
	if err := unix.Fchownat(fd, "", d.UID, d.GID, unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return unix.Chmod(fdPath(fd), d.Mode)
}

// hosts is what /etc/hosts has in an image that leaves it to others.
const hosts = "127.0.0.1 localhost\n::1 localhost\n"

// nameLoopback gives an image a /etc/hosts that has none, or an empty one, as
// images that are built do. One that has something else there keeps it.
func (s *setup) nameLoopback() error {
	etc, err := s.inRoot("/etc", true, 0o755)
	if err != nil {
		return nil // the image's own affair
	}
	defer unix.Close(etc)
	const flags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	var st unix.Stat_t
	err = unix.Fstatat(etc, "hosts", &st, unix.AT_SYMLINK_NOFOLLOW)
	fd := -1
	switch {
	case err == unix.ENOENT:
		fd, err = unix.Openat(etc, "hosts", flags|unix.O_CREAT|unix.O_EXCL, 0o644)
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0:
		fd, err = unix.Openat(etc, "hosts", flags, 0)
	}
	if err == nil && fd >= 0 {
		_, err = unix.Write(fd, []byte(hosts))
		unix.Close(fd)
	}
	if err != nil {
		s.gaps = append(s.gaps, "/etc/hosts: "+err.Error())
	}
	return nil
}

// mountDev shows the fixtures' /dev, which has a file for each device, the
// usual links, and nothing else, and mounts each device over its file.
func (s *setup) mountDev() error {
	if err := s.fixture("dev", "/dev", 0o755); err != nil {
		return err
	}
	dev, err := s.inRoot("/dev", false, 0)
	if err != nil {
		return misfit("/dev", err)
	}
	defer unix.Close(dev)
	for _, name := range devices {
		// What is at this name on the host must be the device itself: a
		// bind mount of anything else would be a hole (CVE-2025-31133).
		var st unix.Stat_t
		if err := unix.Lstat("/dev/"+name, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			return errors.New("/dev/" + name + " of the host is not a device")
		}
		if err := mountAt(dev, name, "/dev/"+name, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	opt := "newinstance,ptmxmode=0666,mode=0620,max=" + strconv.Itoa(maxTerminals)
	if !s.req.OneID {
		opt += ",gid=5" // tty, as everywhere
	}
	if err := mountAt(dev, "pts", "devpts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, opt); err != nil {
		return err
	}
	return mountAt(dev, "shm", "tmpfs", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,"+tmpfsSize(s.req.Shm))
}

// fixture shows a part of the fixtures, read-only, at a path of the new root.
func (s *setup) fixture(name, target string, mode uint32) error {
	dir, err := s.place(target, mode)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Mount(s.source(s.req.Fixtures)+"/"+name, fdPath(dir), "", unix.MS_BIND, "")
}

// mountAt mounts on what dir has at name, whatever that is but a link.
func mountAt(dir int, name, what, kind string, flags uintptr, opt string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return step(name, err)
	}
	defer unix.Close(fd)
	return step(name, unix.Mount(what, fdPath(fd), kind, flags, opt))
}

func (s *setup) mountProc() error {
	fd, err := s.place("/proc", 0o555)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Mount("proc", fdPath(fd), "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	mounted, err := s.inRoot("/proc", false, 0) // through whatever link the image has
	if err != nil {
		return misfit("/proc", err)
	}
	defer unix.Close(mounted)
	var st unix.Stat_t
	err = unix.Fstat(mounted, &st)
	s.proc = uint64(st.Dev)
	return err
}

// mountSys gives programs the little of /sys that they look for, as plain
// files. The kernel's own tells too much of the host, and lets it be changed.
func (s *setup) mountSys() error { return s.fixture("sys", "/sys", 0o555) }

func (s *setup) mountTmp() error {
	fd, err := s.place("/tmp", 0o777)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount("tmp", fdPath(fd), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,"+tmpfsSize(s.req.Tmp))
}

// readOnly makes every layer read-only, after giving each writable tree a
// mount of its own, which stays as it is.
func (s *setup) readOnly() error {
	if !s.req.ReadOnly {
		return nil
	}
	for _, p := range s.req.Writable {
		fd, err := s.place(p, 0o755)
		if err != nil {
			return err
		}
		err = unix.Mount(fdPath(fd), fdPath(fd), "", unix.MS_BIND, "")
		unix.Close(fd)
		if err != nil {
			return step(p, err)
		}
	}
	for _, l := range s.req.Layers {
		fd, err := s.inRoot(l.Target, false, 0)
		if err != nil {
			return step(l.Target, err)
		}
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		unix.Close(fd)
		if err != nil {
			return step(l.Target, err)
		}
	}
	return nil
}

// bind attaches what the sandbox's owner mounted. The target is resolved
// within the new root, so that a link of the image's cannot lead it away.
func (s *setup) bind() error {
	for _, b := range s.req.Binds {
		fd, err := s.bindTarget(b)
		if err != nil {
			return &proto.Failure{Kind: "invalid", Field: "mounts.target", Msg: b.Target + " of the image is not where something can be mounted",
				Hint: "choose another path, such as /mnt/data", Log: b.Target + ": " + err.Error()}
		}
		// Private: what is mounted below it on the host later stays there.
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
		if b.ReadOnly {
			attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		}
		err = unix.MountSetattr(s.trees[b.Source], "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
		if err == nil {
			err = unix.MoveMount(s.trees[b.Source], "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
		}
		unix.Close(fd)
		if err != nil {
			return step(b.Target, err)
		}
	}
	return nil
}

func (s *setup) bindTarget(b Bind) (int, error) {
	if !b.IsFile {
		return s.inRoot(b.Target, true, 0o755)
	}
	dir, err := s.inRoot(path.Dir(path.Clean(b.Target)), true, 0o755)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	name := path.Base(path.Clean(b.Target))
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o644)
	if err == nil {
		unix.Close(fd)
	} else if err != unix.EEXIST {
		return -1, err
	}
	return unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
}

// pivot makes the new root the root of every process here, and lets go of the
// old one with all that is mounted in it. The working directory is set so
// that none is left outside (CVE-2024-21626).
func (s *setup) pivot() error {
	for _, fd := range s.trees {
		unix.Close(fd)
	}
	if err := unix.Chdir(s.root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// verify looks at the new root as processes will see it. What was mounted can
// have been covered since, by a mount whose target is a link of the image's to
// a place of ours; the guest itself relies on /proc.
func (s *setup) verify() error {
	var st unix.Stat_t
	for _, p := range []string{"/proc", "/proc/self/stat", "/proc/sys/kernel", "/proc/sys/user"} {
		if err := unix.Stat(p, &st); err != nil {
			return misfit(p, err)
		}
		if uint64(st.Dev) != s.proc {
			return misfit(p, errors.New("it is covered by something else"))
		}
	}
	var fs unix.Statfs_t
	for _, p := range []string{"/proc/sys", "/dev"} {
		if err := unix.Statfs(p, &fs); err != nil {
			return misfit(p, err)
		}
		if fs.Flags&unix.ST_RDONLY == 0 {
			return misfit(p, errors.New("it is writable"))
		}
	}
	if err := unix.Lstat("/dev/null", &st); err != nil {
		return misfit("/dev/null", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != unix.Mkdev(1, 3) {
		return misfit("/dev/null", errors.New("it is something else"))
	}
	return nil
}

func (s *setup) hostname() error { return unix.Sethostname([]byte(s.req.Hostname)) }

func (s *setup) loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return err
	}
	// Anybody may listen on any port: they are the sandbox's own.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil {
		s.gaps = append(s.gaps, "low ports: "+err.Error())
	}
	return nil
}

// forbidNesting sets this user namespace's own limit (namespaces(7),
// /proc/sys/user, Linux 4.9), so that no process in it makes another, by
// whatever system call. The other kinds need a capability, which nobody has
// without a user namespace.
func (s *setup) forbidNesting() error {
	return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
}

// leaveSome bounds what the kernel counts per user across all namespaces, where
// the sandbox has no user of its own to be charged: of 128 inotify instances
// per user most are then left to its owner (namespaces(7), /proc/sys/user).
func (s *setup) leaveSome() error {
	if !s.req.Shared {
		return nil
	}
	return os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("32"), 0)
}

// What of /proc concerns the host rather than the sandbox. Absent ones are
// passed over: kernels differ. So are files that only their owner may open:
// that is the host's root, who is nobody here.
var (
	maskedFiles = []string{"cmdline", "kcore", "keys", "key-users", "kmsg", "kallsyms", "latency_stats", "timer_list",
		"timer_stats", "sched_debug", "sysrq-trigger", "interrupts", "softirqs", "modules", "iomem", "ioports", "kpagecount",
		"kpageflags", "kpagecgroup", "vmallocinfo", "slabinfo", "pagetypeinfo", "config.gz", "swaps", "partitions",
		"diskstats", "mtrr", "bootconfig"}
	maskedDirs   = []string{"acpi", "asound", "scsi", "bus", "irq", "driver", "tty", "dynamic_debug"}
	readOnlyDirs = []string{"sys", "fs"}
)

func (s *setup) maskProc() error {
	proc, err := s.inRoot("/proc", false, 0)
	if err != nil {
		return misfit("/proc", err)
	}
	defer unix.Close(proc)
	mask := s.source(s.req.Fixtures) + "/mask"
	for _, name := range maskedFiles {
		var st unix.Stat_t
		if unix.Fstatat(proc, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&0o006 == 0 {
			continue
		}
		if err := mountAt(proc, name, mask+"/file", "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, name := range maskedDirs {
		var st unix.Stat_t
		if unix.Fstatat(proc, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue
		}
		if err := mountAt(proc, name, mask+"/dir", "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, name := range readOnlyDirs {
		if err := readOnlyAt(proc, name); err != nil {
			return step(name, err)
		}
	}
	id := s.stage + "/boot_id"
	if err := os.WriteFile(id, []byte(s.req.BootID+"\n"), 0o444); err != nil {
		return err
	}
	sys, err := s.inRoot("/proc/sys/kernel/random", false, 0)
	if err != nil {
		return misfit("/proc", err)
	}
	defer unix.Close(sys)
	return mountAt(sys, "boot_id", id, "", unix.MS_BIND, "")
}

// readOnlyAt gives the directory name of dir, if there is one, a mount of its
// own that is read-only.
func readOnlyAt(dir int, name string) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC}
	fd, err := unix.Openat2(dir, name, &how)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	err = unix.Mount(fdPath(fd), fdPath(fd), "", unix.MS_BIND, "")
	unix.Close(fd)
	if err != nil {
		return err
	}
	if fd, err = unix.Openat2(dir, name, &how); err != nil { // what is mounted there now
		return err
	}
	defer unix.Close(fd)
	return unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

func (s *setup) joinCgroups() error {
	if err := s.write(s.req.Join); err != nil {
		return err
	}
	// Of this thread, and of what it starts.
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	return s.write(s.req.Leave)
}

// holdCgroup puts in place of the descriptor of the cgroup that processes are
// born in, which is of a mount of the host's, one of a mount that nobody else
// has and that ends at the sandbox's own group. The guest keeps it, and what
// is kept open must not be a way out: from a directory of the host's mounts
// ".." leads to the host's root (CVE-2024-21626).
func (s *setup) holdCgroup() error {
	if s.req.Spawn < 0 {
		return nil
	}
	held := int(s.files[s.req.Spawn].Fd())
	fs, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return step("open", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return step("create", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return step("mount", err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, spawnGroup, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return step(spawnGroup, err)
	}
	defer unix.Close(fd)
	var was, is unix.Stat_t
	if err := unix.Fstat(held, &was); err != nil {
		return err
	}
	if err := unix.Fstat(fd, &is); err != nil {
		return err
	}
	if was.Ino != is.Ino {
		return errors.New("the group seen from inside is another")
	}
	return unix.Dup3(fd, held, unix.O_CLOEXEC)
}

// spawnGroup is the group that processes are born in, below the sandbox's.
const spawnGroup = "run"

func (s *setup) write(ws []Write) error {
	for _, w := range ws {
		if _, err := s.files[w.File].WriteString(w.Data); err != nil {
			return err
		}
	}
	return nil
}

// hide keeps the sandbox's own root from looking into the guest's memory: no
// core, no ptrace, no /proc/1/mem.
func (s *setup) hide() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// lowerLimits takes away, from the guest and all that it starts, what nothing
// in a sandbox needs. A core limit of 1 and not 0: where core_pattern names a
// program, which the host's root then runs outside, 0 does not keep it from
// being run, but 1 does (fs/coredump.c).
func (s *setup) lowerLimits() error {
	for _, l := range []struct {
		resource int
		most     uint64
	}{
		{unix.RLIMIT_CORE, 1}, {unix.RLIMIT_RTPRIO, 0}, {unix.RLIMIT_NICE, 0},
		{unix.RLIMIT_SIGPENDING, 8192},    // and timers, which are as many pending signals
		{unix.RLIMIT_MSGQUEUE, 256 << 10}, // a quarter or so of what a user mostly has
	} {
		var now unix.Rlimit
		if err := unix.Prlimit(0, l.resource, nil, &now); err != nil {
			return err
		}
		most := min(l.most, now.Max)
		if err := unix.Prlimit(0, l.resource, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
			return err
		}
	}
	return nil
}

// keep is what the guest itself needs to start processes as other users and
// to reach every file; only this namespace's, and none of it is passed on.
const keep = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYS_RESOURCE

func (s *setup) dropCaps() error {
	// Of this thread, for what it starts: an empty bounding set, and a user 0
	// that is like any other when it executes a program.
	for c := range uintptr(64) {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			break // past the last that this kernel knows
		} else if err != nil {
			return err
		}
	}
	const noRoot, noRootLocked, noAmbient, noAmbientLocked = 1 << 0, 1 << 1, 1 << 6, 1 << 7 // linux/securebits.h
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRoot|noRootLocked|noAmbient|noAmbientLocked, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	return capset(keep)
}

func (s *setup) noNewPrivs() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }

func (s *setup) loadFilter() error {
	if len(s.req.Filter) == 0 {
		return nil
	}
	return load.Filter(s.req.Filter)
}

// inRoot returns a descriptor (O_PATH) of the directory p below the new root,
// with every link on the way resolved within it. With create, what is missing
// is made.
func (s *setup) inRoot(p string, create bool, mode uint32) (int, error) {
	root, err := unix.Open(s.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	p = path.Clean("/" + p)
	fd, err := openIn(root, p, &how)
	if err != unix.ENOENT || !create {
		return fd, err
	}
	parent, err := s.inRoot(path.Dir(p), true, 0o755)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, path.Base(p), mode); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return openIn(root, p, &how)
}

// openIn is openat2, again as long as something was renamed or mounted
// anywhere on the host meanwhile: the kernel then cannot tell whether a ".."
// led out.
func openIn(root int, p string, how *unix.OpenHow) (fd int, err error) {
	for range 10_000 {
		if fd, err = unix.Openat2(root, p, how); err != unix.EAGAIN && err != unix.EINTR {
			break
		}
	}
	return fd, err
}

// place is inRoot, with create, for what must be a directory in any image.
func (s *setup) place(p string, mode uint32) (int, error) {
	fd, err := s.inRoot(p, true, mode)
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EACCES, unix.EPERM, unix.EROFS, unix.ENAMETOOLONG: // what a link, or a file, comes to
		err = misfit(p, err)
	default:
		err = step(p, err)
	}
	return fd, err
}

// misfit is what no sandbox can be made of: an image that has something else
// where the sandbox needs a place of its own, or leads two of them to one.
func misfit(p string, err error) error {
	return &proto.Failure{Kind: "invalid", Field: "image", Msg: p + " of the image is not a directory in which the sandbox can have its own",
		Hint: "use an image in which it is a directory, or nothing", Log: p + ": " + err.Error()}
}

// fdPath names an open file as a path, for calls that take no descriptor.
// Before the old root is left, /proc is the host's, and "self" is still us.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// step puts where before a cause.
func step(where string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New(where + ": " + err.Error())
}
