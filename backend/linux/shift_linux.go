package linux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/enter"
	"github.com/atoll-run/atoll/backend/linux/launch"
)

// treeOptions says how a directory of the host is shown to a sandbox.
type treeOptions struct {
	shift    bool // user 0 of the host's disk is user 0 of the sandbox, and so on
	readOnly bool
	users    *os.File // the user namespace that shifts; nil is the sandbox's own
	file     *os.File // the directory, if it is held (O_PATH): what its path leads to by now does not count
}

// tree makes dir a source of the sandbox's. Root makes a detached mount of
// it, which only the guest will attach; without root the guest clones it from
// its own copy of the mount table.
func (m *making) tree(dir string, opt treeOptions) (enter.Source, error) {
	if m.rt.host.ids.kind != ownRange {
		var st unix.Stat_t
		if opt.file != nil {
			if err := unix.Fstat(int(opt.file.Fd()), &st); err != nil {
				return enter.Source{}, err
			}
		} else if err := unix.Stat(dir, &st); err != nil {
			return enter.Source{}, err
		}
		return enter.Source{File: -1, Path: dir, Dev: uint64(st.Dev), Ino: st.Ino}, nil
	}
	if opt.file != nil {
		return m.detached(opt.file, opt, 0)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return enter.Source{}, err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	return m.detached(f, opt, 0)
}

// mountTree is tree for what a Spec mounts, from the descriptor that was
// checked.
func (m *making) mountTree(mt *mount) (enter.Source, error) {
	if m.rt.host.ids.kind != ownRange {
		return enter.Source{File: -1, Path: mt.real, Dev: uint64(mt.stat.Dev), Ino: mt.stat.Ino}, nil
	}
	opt := treeOptions{readOnly: mt.ReadOnly}
	if m.rt.host.shift {
		uid, gid := m.inside()
		users, err := m.rt.ownerNamespace(int(mt.stat.Uid), int(mt.stat.Gid), m.owner()+uid, m.owner()+gid)
		if err != nil {
			return enter.Source{}, err
		}
		defer users.Close()
		opt.shift, opt.users = true, users
	}
	s, err := m.detached(mt.file, opt, unix.AT_RECURSIVE)
	if errors.Is(err, unix.EINVAL) && opt.shift {
		// A file system that cannot shift ids is shown as it is.
		m.rt.log.Warn("the ids of a mount cannot be shifted", "id", m.box.id, "target", mt.Target)
		return m.detached(mt.file, treeOptions{readOnly: mt.ReadOnly}, unix.AT_RECURSIVE)
	}
	return s, err
}

// inside is who in the sandbox owns what is mounted: its user, as the guest
// will find it in the image.
func (m *making) inside() (uid, gid int) {
	user, group, hasGroup := strings.Cut(m.box.rec.Info.User, ":")
	uid, err := strconv.Atoi(user)
	for _, f := range m.img.database("etc/passwd", 7) {
		u, err1 := strconv.Atoi(f[2])
		g, err2 := strconv.Atoi(f[3])
		if err1 == nil && err2 == nil && (f[0] == user || err == nil && u == uid) {
			uid, gid = u, g
			break
		}
	}
	if hasGroup {
		if gid, err = strconv.Atoi(group); err != nil {
			for _, f := range m.img.database("etc/group", 4) {
				if g, err := strconv.Atoi(f[2]); err == nil && f[0] == group {
					gid = g
					break
				}
			}
		}
	}
	if uid < 0 || uid >= rangeSize || gid < 0 || gid >= rangeSize {
		return 0, 0
	}
	return uid, gid
}

// database returns the entries of an image's /etc/passwd or /etc/group, which
// have n fields.
func (img *image) database(name string, n int) (entries [][]string) {
	over := img.layers[0]
	for _, dir := range over.dirs {
		at, path := unix.AT_FDCWD, dir
		if over.file != nil {
			at, path = int(over.file.Fd()), "."
		}
		folder, err := unix.Openat(at, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		// A link of the image's is not followed, on this side.
		fd, err := unix.Openat2(folder, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV})
		unix.Close(folder)
		if err == unix.ENOENT {
			continue // a lower one may have it
		}
		if err != nil {
			return nil
		}
		found := os.NewFile(uintptr(fd), name)
		defer found.Close()
		if st, err := found.Stat(); err != nil || !st.Mode().IsRegular() { // a device is not even opened
			return nil
		}
		f, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			return nil
		}
		defer f.Close()
		for sc := bufio.NewScanner(io.LimitReader(f, maxDatabase)); sc.Scan(); {
			if e := strings.Split(sc.Text(), ":"); len(e) == n {
				entries = append(entries, e)
			}
		}
		return entries
	}
	return nil
}

// maxDatabase is how much of an image's /etc/passwd is read.
const maxDatabase = 1 << 20

// detached clones the mount at f, with what opt says, and hands it over.
func (m *making) detached(f *os.File, opt treeOptions, recursive uint) (enter.Source, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|recursive)
	if err != nil {
		return enter.Source{}, fmt.Errorf("open_tree: %w", err)
	}
	clone := os.NewFile(uintptr(fd), f.Name())
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if opt.readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if opt.shift && m.rt.host.shift {
		users := opt.users
		if users == nil {
			if users, err = m.box.init.userNamespace(); err != nil {
				clone.Close()
				return enter.Source{}, err
			}
			defer users.Close()
		}
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(users.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|recursive, &attr); err != nil {
		clone.Close()
		return enter.Source{}, fmt.Errorf("mount_setattr: %w", err)
	}
	return enter.Source{File: m.give(clone)}, nil
}

// userNamespace opens the user namespace of a guest.
func (p *process) userNamespace() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", p.pid))
}

// ownerNamespace returns a user namespace that does nothing but shift: what
// uid and gid own on disk, the host ids toUID and toGID own where it is shown.
// The caller closes it.
func (rt *Runtime) ownerNamespace(uid, gid, toUID, toGID int) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close() // lets the child end
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pid, pidfd, err := rt.launcher.Start(launch.Request{
		Args: []string{"atoll-guest", "--hold"}, Flags: unix.CLONE_NEWUSER,
		UIDs: []launch.Map{{Inside: uid, Host: toUID, Size: 1}},
		GIDs: []launch.Map{{Inside: gid, Host: toGID, Size: 1}},
	}, nil, r, null, null)
	if err != nil {
		return nil, noNamespaces(err)
	}
	p := &process{pid: pid, fd: pidfd}
	users, err := p.userNamespace()
	if e := p.end(context.Background()); err == nil {
		err = e
	}
	return users, err
}

// canShift tries whether the host's system directories can be shown with
// shifted ids (Linux 5.12, and 5.19 below an overlay).
func canShift(rt *Runtime) (bool, string) {
	users, err := rt.ownerNamespace(0, 0, rt.cfg.FirstID, rt.cfg.FirstID)
	if err != nil {
		return false, err.Error()
	}
	defer users.Close()
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/usr", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false, "open_tree: " + err.Error()
	}
	defer unix.Close(fd)
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())})
	if err != nil {
		return false, "mount_setattr: " + err.Error()
	}
	return true, ""
}
