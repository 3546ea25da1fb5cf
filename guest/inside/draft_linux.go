package inside

import (
	"context"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// A draft is a file that is being written and has no name yet, so that one
// that is given up leaves nothing behind; where the file system cannot do
// that it has a name that nobody looks for.
type draft struct {
	s         *Server
	fd        int
	dir       int    // where it will be
	name      string // and its name there
	path      string // as it was asked for
	temp      string // its name so far, "" for none
	mode      int    // as asked for, or -1
	owner     *identity
	user      identity // whom a new file belongs to
	exclusive bool
	inPlace   bool // it has its name: Append
	old       *unix.Stat_t
}

// create answers "create".
func create(_ context.Context, c *conn, b []byte) (proto.Message, []int, error) {
	var m proto.Create
	if err := proto.Decode(b, &m); err != nil {
		return nil, nil, fail(kindInvalid, "", err.Error())
	}
	d, err := c.s.draft(&m)
	if err != nil {
		return nil, nil, err
	}
	h := &handle{draft: d}
	if err := writeAll(d.fd, m.Data); err != nil {
		h.close()
		return nil, nil, errno("path", err)
	}
	if m.Commit {
		defer h.close()
		e, err := d.commit()
		return &proto.Opened{Entry: e}, nil, err
	}
	n, err := c.keepHandle(h)
	if err != nil {
		h.close()
		return nil, nil, err
	}
	o := &proto.Opened{Handle: n}
	if !c.passing {
		return o, nil, nil
	}
	fd, err := unix.FcntlInt(uintptr(d.fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		c.takeHandle(n)
		h.close()
		return nil, nil, errno("", err)
	}
	return o, []int{fd}, nil
}

// draft begins to write the file at m.Path.
func (s *Server) draft(m *proto.Create) (_ *draft, err error) {
	user, err := s.owner(m.User)
	if err != nil {
		return nil, err
	}
	if err := checkPath(m.Path); err != nil {
		return nil, err
	}
	if strings.HasSuffix(m.Path, "/") {
		return nil, fail(kindInvalid, "path", "it is the path of a directory")
	}
	dir, name, err := follow(m.Path)
	if f := (*proto.Failure)(nil); err != nil && m.Parents && asNotExist(err, &f) {
		i := strings.LastIndexByte(m.Path, '/')
		if err := s.mkdir(m.Path[:i+1], 0o755, user, true); err != nil {
			return nil, err
		}
		dir, name, err = follow(m.Path)
	}
	if err != nil {
		return nil, err
	}
	d := &draft{s: s, fd: -1, dir: dir, name: name, path: m.Path, mode: m.Mode, user: user, exclusive: m.Exclusive}
	defer func() {
		if err != nil {
			d.abandon()
		}
	}()
	if m.User != "" {
		d.owner = &user
	}
	if err := d.look(); err != nil {
		return nil, err
	}
	if m.Append {
		return d, d.append()
	}
	return d, d.blank()
}

func asNotExist(err error, f **proto.Failure) bool {
	*f = failure(err)
	return (*f).Kind == kindNotExist
}

// look sees what is there already.
func (d *draft) look() error {
	var st unix.Stat_t
	err := unix.Fstatat(d.dir, d.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == unix.ENOENT:
		d.old = nil
		return nil
	case err != nil:
		return errno("path", err)
	case d.exclusive:
		return errno("path", unix.EEXIST)
	}
	d.old = &st
	return regular(&st)
}

// blank makes the file without a name, or with one that nobody looks for.
func (d *draft) blank() error {
	fd, err := unix.Openat(d.dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		switch err {
		case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL, unix.ENOENT: // a file system that does not know it
		default:
			return errno("path", err)
		}
		d.temp = tempName()
		if fd, err = unix.Openat(d.dir, d.temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600); err != nil {
			d.temp = ""
			return errno("path", err)
		}
	}
	d.fd = fd
	return nil
}

// append opens or makes the file itself.
func (d *draft) append() error {
	d.inPlace = true
	flags := unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	if d.old == nil {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := unix.Openat(d.dir, d.name, flags, 0o600)
	if err != nil {
		return errno("path", err)
	}
	d.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errno("path", err)
	}
	if err := regular(&st); err != nil {
		return err
	}
	if err := refuseKernel(fd); err != nil {
		return err
	}
	return d.dress()
}

// dress gives the file its owner and permissions.
func (d *draft) dress() error {
	mode, who := 0o644, &d.user
	if d.old != nil {
		mode, who = int(d.old.Mode&0o7777), &identity{uid: int(d.old.Uid), gid: int(d.old.Gid)}
	}
	if d.mode >= 0 {
		mode = d.mode & 0o7777
	}
	if d.owner != nil {
		who = d.owner
	}
	if !d.s.users.oneID {
		if err := unix.Fchown(d.fd, who.uid, who.gid); err != nil {
			return errno("path", err)
		}
	}
	return errno("path", unix.Fchmod(d.fd, uint32(mode)))
}

// commit gives the file its name and returns what is then there.
func (d *draft) commit() (proto.Entry, error) {
	if !d.inPlace {
		if err := d.look(); err != nil {
			return proto.Entry{}, err
		}
		if err := d.dress(); err != nil {
			return proto.Entry{}, err
		}
		if err := d.place(); err != nil {
			return proto.Entry{}, errno("path", err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return proto.Entry{}, errno("path", err)
	}
	return describe(base(d.path), &st), nil
}

// place moves the file to its name.
func (d *draft) place() error {
	if d.temp == "" && d.old == nil {
		err := d.link(d.name)
		if err != unix.EEXIST || d.exclusive {
			return err
		}
	}
	if d.temp == "" {
		temp := tempName()
		if err := d.link(temp); err != nil {
			return err
		}
		d.temp = temp
	}
	var err error
	if d.exclusive {
		if err = unix.Renameat2(d.dir, d.temp, d.dir, d.name, unix.RENAME_NOREPLACE); err == unix.EINVAL {
			if err = unix.Linkat(d.dir, d.temp, d.dir, d.name, 0); err == nil {
				err = unix.Unlinkat(d.dir, d.temp, 0)
			}
		}
	} else {
		err = unix.Renameat(d.dir, d.temp, d.dir, d.name)
	}
	if err == nil {
		d.temp = ""
	}
	return err
}

// link gives a file without a name one. Where there is no /proc the kernel
// wants more rights, or to be newer than 6.10.
func (d *draft) link(name string) error {
	err := unix.Linkat(unix.AT_FDCWD, procPath(d.fd), d.dir, name, unix.AT_SYMLINK_FOLLOW)
	if err == unix.ENOENT {
		err = unix.Linkat(d.fd, "", d.dir, name, unix.AT_EMPTY_PATH)
	}
	return err
}

// abandon frees what the draft holds, and removes it unless it was committed.
func (d *draft) abandon() {
	if d.temp != "" {
		unix.Unlinkat(d.dir, d.temp, 0)
	}
	if d.fd >= 0 {
		unix.Close(d.fd)
	}
	unix.Close(d.dir)
}

// tempName returns a name that nobody else uses.
func tempName() string {
	var b [8]byte
	unix.Getrandom(b[:], 0)
	return ".atoll-" + strconv.FormatUint(*(*uint64)(unsafe.Pointer(&b)), 36)
}

// rename answers "rename".
func (s *Server) rename(ctx context.Context, from, to string) error {
	fromDir, fromName, err := parent(from)
	if err != nil {
		return err
	}
	defer unix.Close(fromDir)
	toDir, toName, err := parent(to)
	if err != nil {
		return err
	}
	defer unix.Close(toDir)
	err = unix.Renameat(fromDir, fromName, toDir, toName)
	switch err {
	case unix.EXDEV:
		return s.move(ctx, fromDir, fromName, toDir, toName, to)
	case unix.EISDIR, unix.ENOTDIR: // the directories were opened: it is about the entries
		return fail(kindConflict, "path", "a file and a directory cannot replace each other")
	}
	return errno("path", err)
}

// move renames between file systems: it copies and then removes.
func (s *Server) move(ctx context.Context, fromDir int, fromName string, toDir int, toName, to string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fromDir, fromName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return errno("path", err)
	}
	if regular(&st) != nil {
		return &proto.Failure{Kind: kindUnsupported, Field: "path", Msg: "it lies on another file system, and only a regular file is copied there", Hint: "use cp and rm in the sandbox"}
	}
	in, err := unix.Openat(fromDir, fromName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errno("path", err)
	}
	defer unix.Close(in)
	if err := unix.Fstat(in, &st); err != nil {
		return errno("path", err)
	}
	if err := regular(&st); err != nil {
		return err
	}
	dir, err := unix.FcntlInt(uintptr(toDir), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return errno("", err)
	}
	d := &draft{s: s, fd: -1, dir: dir, name: toName, path: to, mode: int(st.Mode & 0o7777), owner: &identity{uid: int(st.Uid), gid: int(st.Gid)}}
	defer d.abandon()
	var there unix.Stat_t
	if unix.Fstatat(toDir, toName, &there, unix.AT_SYMLINK_NOFOLLOW) == nil && there.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fail(kindConflict, "path", "a file and a directory cannot replace each other")
	}
	if err := d.blank(); err != nil {
		return err
	}
	for {
		n, err := unix.Sendfile(d.fd, in, nil, 1<<20)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return errno("path", err)
		}
		if n == 0 {
			break
		}
		if ctx.Err() != nil {
			return fail(kindUnavailable, "", "the request was cancelled")
		}
	}
	if err := d.dress(); err != nil {
		return err
	}
	unix.UtimesNanoAt(unix.AT_FDCWD, procPath(d.fd), []unix.Timespec{st.Atim, st.Mtim}, 0)
	d.old = &st // whatever is there is replaced
	if err := d.place(); err != nil {
		return errno("path", err)
	}
	return errno("path", unix.Unlinkat(fromDir, fromName, 0))
}
