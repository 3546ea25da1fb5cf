package inside

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// checkPath refuses what is not an absolute path.
func checkPath(p string) error {
	switch {
	case p == "" || p[0] != '/':
		return fail(kindInvalid, "path", "it is not an absolute path")
	case strings.IndexByte(p, 0) >= 0:
		return fail(kindInvalid, "path", "it has a NUL byte")
	case len(p) > 4095:
		return fail(kindInvalid, "path", "it is too long")
	}
	return nil
}

// open opens what path leads to from the guest's root. No link of the kernel's
// own (/proc/self/fd, /proc/self/root) is followed: those lead to where no
// path does.
func open(p string, flags int) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, p, how)
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

// base returns the last element of p.
func base(p string) string { return path.Base(p) }

// parent opens the directory that p is in, without following a link at p, and
// returns it with p's name there.
func parent(p string) (dir int, name string, err error) {
	if err := checkPath(p); err != nil {
		return -1, "", err
	}
	p = strings.TrimRight(p, "/")
	i := strings.LastIndexByte(p, '/')
	if i < 0 || p[i+1:] == "." || p[i+1:] == ".." {
		return -1, "", fail(kindInvalid, "path", "the path does not name an entry of a directory")
	}
	dir, err = open(p[:i+1], unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, "", errno("path", err)
	}
	if err := refuseKernel(dir); err != nil {
		unix.Close(dir)
		return -1, "", err
	}
	return dir, p[i+1:], nil
}

// follow is parent of what p leads to, if links at p itself are followed.
func follow(p string) (dir int, name string, err error) {
	for range 40 {
		dir, name, err = parent(p)
		if err != nil {
			return -1, "", err
		}
		to, err := readlink(dir, name)
		if err == unix.EINVAL || err == unix.ENOENT {
			return dir, name, nil
		}
		if err != nil {
			unix.Close(dir)
			return -1, "", errno("path", err)
		}
		if !strings.HasPrefix(to, "/") {
			// The link's own directory, by its text: what is before the name
			// is resolved again, with its links.
			to = strings.TrimRight(p, "/")[:len(strings.TrimRight(p, "/"))-len(name)] + to
		}
		unix.Close(dir)
		p = to
	}
	return -1, "", errno("path", unix.ELOOP)
}

func readlink(dir int, name string) (string, error) {
	b := make([]byte, 4096)
	n, err := unix.Readlinkat(dir, name, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// kernelTypes are the file systems that are interfaces of the kernel's.
var kernelTypes = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
	unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC, unix.DEVPTS_SUPER_MAGIC,
	unix.EFIVARFS_MAGIC, unix.SELINUX_MAGIC, unix.BINFMTFS_MAGIC, unix.NSFS_MAGIC,
	0x62656570, // configfs
	0x65735543, // fusectl
	0x19800202, // mqueue
	0x73636673, // smackfs as SMACK_MAGIC's neighbour
}

// refuseKernel refuses a file of the kernel's own.
func refuseKernel(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return errno("path", err)
	}
	if slices.Contains(kernelTypes, int64(st.Type)) {
		return &proto.Failure{Kind: kindDenied, Field: "path", Msg: "it is an interface of the kernel", Hint: "let a process reach it"}
	}
	return nil
}

// regular refuses what is not a regular file.
func regular(st *unix.Stat_t) error {
	what := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		what = "it is a directory"
	case unix.S_IFIFO:
		what = "it is a FIFO"
	case unix.S_IFSOCK:
		what = "it is a socket"
	case unix.S_IFLNK:
		what = "it is a symbolic link"
	default:
		what = "it is a device"
	}
	return &proto.Failure{Kind: kindInvalid, Field: "path", Msg: what + ", not a regular file"}
}

// describe returns what stat(2) says.
func describe(name string, st *unix.Stat_t) proto.Entry {
	e := proto.Entry{Name: name, Mode: st.Mode, Time: st.Mtim.Nano(), UID: int(st.Uid), GID: int(st.Gid)}
	if t := st.Mode & unix.S_IFMT; t == unix.S_IFREG || t == unix.S_IFLNK {
		e.Size = st.Size
	}
	return e
}

// statAt describes an entry of a directory.
func statAt(dir int, name string) (proto.Entry, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return proto.Entry{}, err
	}
	e := describe(name, &st)
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		e.Target, _ = readlink(dir, name)
	}
	return e, nil
}

// fileOps adds the operations on files.
func fileOps(m map[proto.Op]slowOp) {
	m[proto.OpOpen] = openFile
	m[proto.OpCreate] = create
	m[proto.OpCommit] = on(func(_ context.Context, c *conn, m *proto.Handle) (proto.Message, error) {
		h := c.takeHandle(m.Handle)
		if h == nil || h.draft == nil {
			if h != nil {
				h.close()
			}
			return nil, badHandle
		}
		defer h.close()
		e, err := h.draft.commit()
		return &e, err
	})
	m[proto.OpFread] = on(fread)
	m[proto.OpFwrite] = on(fwrite)
	m[proto.OpStat] = on(func(_ context.Context, c *conn, m *proto.Path) (proto.Message, error) {
		if err := checkPath(m.Path); err != nil {
			return nil, err
		}
		fd, err := open(m.Path, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return nil, errno("path", err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return nil, errno("path", err)
		}
		e := describe(base(m.Path), &st)
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			e.Target, _ = readlink(fd, "")
		}
		return &e, nil
	})
	m[proto.OpList] = on(list)
	m[proto.OpMkdir] = on(func(_ context.Context, c *conn, m *proto.Mkdir) (proto.Message, error) {
		who, err := c.s.owner(m.User)
		if err != nil {
			return nil, err
		}
		mode := uint32(0o755)
		if m.Mode >= 0 {
			mode = uint32(m.Mode)
		}
		return nil, c.s.mkdir(m.Path, mode, who, m.Parents)
	})
	m[proto.OpRename] = on(func(ctx context.Context, c *conn, m *proto.Rename) (proto.Message, error) {
		return nil, c.s.rename(ctx, m.From, m.To)
	})
	m[proto.OpRemove] = on(func(ctx context.Context, c *conn, m *proto.Remove) (proto.Message, error) {
		return nil, remove(ctx, m.Path, m.All)
	})
	m[proto.OpChmod] = on(func(_ context.Context, c *conn, m *proto.Chmod) (proto.Message, error) {
		fd, err := changeable(m.Path)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		return nil, errno("path", chmod(fd, m.Mode&0o7777))
	})
	m[proto.OpChown] = on(func(_ context.Context, c *conn, m *proto.Chown) (proto.Message, error) {
		if m.User == "" {
			return nil, fail(kindInvalid, "user", "there is no user")
		}
		who, err := c.s.users.find(m.User)
		if err != nil {
			return nil, err
		}
		fd, err := changeable(m.Path)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		if c.s.users.oneID {
			return nil, nil
		}
		gid := -1 // a user alone does not change the group
		if strings.Contains(m.User, ":") {
			gid = who.gid
		}
		return nil, errno("user", unix.Fchownat(fd, "", who.uid, gid, unix.AT_EMPTY_PATH))
	})
	m[proto.OpDial] = dial
}

var badHandle = fail(kindInvalid, "", "there is no such handle")

// owner returns whom a new file belongs to: user, or the sandbox's own.
func (s *Server) owner(user string) (identity, error) {
	if user == "" {
		user = s.place.User
	}
	return s.users.find(user)
}

// changeable opens what path leads to, for its permissions or owner alone.
func changeable(p string) (int, error) {
	if err := checkPath(p); err != nil {
		return -1, err
	}
	fd, err := open(p, unix.O_PATH)
	if err != nil {
		return -1, errno("path", err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		if t := st.Mode & unix.S_IFMT; t == unix.S_IFCHR || t == unix.S_IFBLK {
			err = fail(kindDenied, "path", "it is a device")
		} else {
			err = refuseKernel(fd)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, errno("path", err)
	}
	return fd, nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// chmod sets the permissions of what an O_PATH descriptor stands for.
func chmod(fd int, mode uint32) error {
	err := unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) // fchmodat2, Linux 6.6
	if err == unix.ENOSYS || err == unix.EOPNOTSUPP || err == unix.EINVAL || err == unix.ENOENT || err == unix.EPERM {
		return unix.Chmod(procPath(fd), mode)
	}
	return err
}

// A handle is an open file or connection, or a draft.
type handle struct {
	port  bool // f is a connection, and used without the mutex
	mu    sync.Mutex
	f     *os.File
	draft *draft
}

func (h *handle) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draft != nil {
		h.draft.abandon()
		h.draft = nil
	}
	if h.f != nil {
		h.f.Close()
		h.f = nil
	}
}

// keepHandle gives h a number.
func (c *conn) keepHandle(h *handle) (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, fail(kindUnavailable, "", "the connection is closed")
	}
	if len(c.handles) >= maxHandles {
		return 0, &proto.Failure{Kind: kindExhausted, Msg: "too many files are open", Hint: "close some"}
	}
	if c.handles == nil {
		c.handles = make(map[uint32]*handle)
	}
	for {
		c.last++
		if c.last != 0 && c.handles[c.last] == nil {
			break
		}
	}
	c.handles[c.last] = h
	return c.last, nil
}

func (c *conn) findHandle(n uint32) *handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handles[n]
}

func (c *conn) takeHandle(n uint32) *handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.handles[n]
	delete(c.handles, n)
	return h
}

// openFile answers "open".
func openFile(_ context.Context, c *conn, b []byte) (proto.Message, []int, error) {
	var m proto.Path
	if err := proto.Decode(b, &m); err != nil {
		return nil, nil, fail(kindInvalid, "", err.Error())
	}
	fd, e, err := openRegular(m.Path)
	if err != nil {
		return nil, nil, err
	}
	if c.passing {
		return &proto.Opened{Entry: e}, []int{fd}, nil
	}
	n, err := c.keepHandle(&handle{f: os.NewFile(uintptr(fd), "file")})
	if err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	return &proto.Opened{Handle: n, Entry: e}, nil, nil
}

// openRegular opens a regular file for reading. It looks before it opens: to
// open a FIFO would wake its writer.
func openRegular(p string) (int, proto.Entry, error) {
	if err := checkPath(p); err != nil {
		return -1, proto.Entry{}, err
	}
	look, err := open(p, unix.O_PATH)
	if err != nil {
		return -1, proto.Entry{}, errno("path", err)
	}
	defer unix.Close(look)
	var st unix.Stat_t
	if err := unix.Fstat(look, &st); err != nil {
		return -1, proto.Entry{}, errno("path", err)
	}
	if err := regular(&st); err != nil {
		return -1, proto.Entry{}, err
	}
	if err := refuseKernel(look); err != nil {
		return -1, proto.Entry{}, err
	}
	fd, err := open(p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return -1, proto.Entry{}, errno("path", err)
	}
	// It may be another file by now.
	if err = unix.Fstat(fd, &st); err == nil {
		if err = regular(&st); err == nil {
			err = refuseKernel(fd)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, proto.Entry{}, errno("path", err)
	}
	return fd, describe(base(p), &st), nil
}

// fread answers "fread".
func fread(ctx context.Context, c *conn, m *proto.Fread) (proto.Message, error) {
	h := c.findHandle(m.Handle)
	if h == nil {
		return nil, badHandle
	}
	b := make([]byte, min(max(m.Max, 1), proto.MaxPayload))
	if h.port {
		return message(h.receive(ctx, b))
	}
	n, end, err := h.read(b, m.Offset)
	if err != nil {
		return nil, errno("path", err)
	}
	return &proto.Data{Data: b[:n], End: end}, nil
}

func (h *handle) read(b []byte, at int64) (n int, end bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.f == nil || at < 0 {
		return 0, false, badHandle
	}
	for n < len(b) {
		k, err := unix.Pread(int(h.f.Fd()), b[n:], at+int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return n, false, err
		}
		if k == 0 {
			return n, true, nil
		}
		n += k
	}
	return n, false, nil
}

// message keeps a nil *proto.Data from being a message.
func message(d *proto.Data, err error) (proto.Message, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// fwrite answers "fwrite".
func fwrite(ctx context.Context, c *conn, m *proto.Fwrite) (proto.Message, error) {
	h := c.findHandle(m.Handle)
	if h == nil {
		return nil, badHandle
	}
	if h.port {
		return h.transmit(ctx, m.Data, m.EOF), nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draft == nil {
		return nil, badHandle
	}
	return nil, errno("path", writeAll(h.draft.fd, m.Data))
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// listPage is how many entries one answer has at most, and listBytes how many
// bytes their names.
const (
	listPage  = 8192
	listBytes = 512 << 10
)

// list answers "list". It keeps no more names than it may answer with, however
// many there are, and so reads a large directory once per page.
func list(ctx context.Context, c *conn, m *proto.ListDir) (proto.Message, error) {
	if err := checkPath(m.Path); err != nil {
		return nil, err
	}
	fd, err := open(m.Path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, errno("path", err)
	}
	defer unix.Close(fd)
	most := min(max(m.Max, 1), listPage)
	var names []string
	cut := "" // if not empty, names after it are not wanted
	more := false
	trim := func() {
		slices.Sort(names)
		if len(names) > most {
			names = names[:most]
			cut, more = names[most-1], true
		}
	}
	err = eachName(fd, func(name string) error {
		if name > m.After && (cut == "" || name < cut) {
			if names = append(names, name); len(names) >= 2*most {
				trim()
			}
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, errno("path", err)
	}
	trim()
	a := &proto.Entries{More: more}
	size := 0
	for _, name := range names {
		e, err := statAt(fd, name)
		if err == unix.ENOENT {
			continue // it has just gone
		}
		if err != nil {
			return nil, errno("path", err)
		}
		if size += len(e.Name) + len(e.Target); size > listBytes {
			a.More = true
			break
		}
		a.List = append(a.List, e)
	}
	return a, nil
}

// eachName calls f with the names in a directory.
func eachName(fd int, f func(string) error) error {
	buf := make([]byte, 32<<10)
	var names []string
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}

// mkdir makes a directory, with parents those above it as well.
func (s *Server) mkdir(p string, mode uint32, who identity, parents bool) error {
	err := s.mkdirOne(p, mode, who)
	if err == nil || !parents {
		return err
	}
	var f *proto.Failure
	switch errors.As(err, &f); {
	case f == nil:
		return err
	case f.Kind == kindNotExist:
		up := path.Dir(strings.TrimRight(p, "/")) // only where the path has no ".." is this its directory
		if strings.Contains(p, "/../") || strings.HasSuffix(p, "/..") || up == "/" {
			return s.mkdirEach(p, mode, who)
		}
		if err := s.mkdir(up, 0o755, who, true); err != nil {
			return err
		}
		err = s.mkdirOne(p, mode, who)
		if f = nil; !errors.As(err, &f) || f.Kind != kindConflict {
			return err
		}
	case f.Kind != kindConflict && f.Kind != kindInvalid:
		return err
	}
	fd, e := open(p, unix.O_PATH|unix.O_DIRECTORY) // there already, and what it should be?
	if e != nil {
		return err
	}
	unix.Close(fd)
	return nil
}

// mkdirEach makes the directories of a path one after the other, from the
// root, so that ".." means what it will mean.
func (s *Server) mkdirEach(p string, mode uint32, who identity) error {
	parts := strings.Split(p, "/")
	at := ""
	last := len(parts) - 1
	for last > 0 && parts[last] == "" {
		last--
	}
	for i, part := range parts[:last+1] {
		if part == "" {
			continue
		}
		at += "/" + part
		if fd, err := open(at, unix.O_PATH|unix.O_DIRECTORY); err == nil {
			unix.Close(fd)
			continue
		}
		m := uint32(0o755)
		if i == last {
			m = mode
		}
		if err := s.mkdirOne(at, m, who); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) mkdirOne(p string, mode uint32, who identity) error {
	dir, name, err := parent(p)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		return errno("path", err)
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return errno("path", err)
	}
	defer unix.Close(fd)
	if !s.users.oneID {
		if err := unix.Fchown(fd, who.uid, who.gid); err != nil {
			return errno("path", err)
		}
	}
	return errno("path", unix.Fchmod(fd, mode&0o7777))
}

// remove answers "remove".
func remove(ctx context.Context, p string, all bool) error {
	if err := checkPath(p); err != nil {
		return err
	}
	dir, name, err := parent(p)
	if err != nil {
		var f *proto.Failure
		if all && errors.As(err, &f) && f.Kind == kindNotExist {
			return nil
		}
		return err
	}
	defer unix.Close(dir)
	err = unix.Unlinkat(dir, name, 0)
	if err == unix.EISDIR || err == unix.EPERM {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	if all && (err == unix.ENOTEMPTY || err == unix.EEXIST) {
		err = removeTree(ctx, dir, name)
	}
	if all && err == unix.ENOENT {
		return nil
	}
	return errno("path", err)
}

// openLevels is how many directories above the one being emptied are kept
// open, however deep that is.
const openLevels = 32

// removeTree removes the directory name in dir with what is in it. Each
// directory is reached through the one above and never by a path, so a link
// that takes a directory's place meanwhile is removed itself.
func removeTree(ctx context.Context, dir int, name string) error {
	type level struct {
		fd       int // -1 if it is not open
		name     string
		dev, ino uint64
	}
	var levels []level
	defer func() {
		for _, l := range levels {
			if l.fd >= 0 {
				unix.Close(l.fd)
			}
		}
	}()
	down := func(at int, name string) error {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return err
		}
		levels = append(levels, level{fd, name, uint64(st.Dev), st.Ino})
		if n := len(levels) - 1 - openLevels; n > 0 && levels[n].fd >= 0 { // the first stays
			unix.Close(levels[n].fd)
			levels[n].fd = -1
		}
		return nil
	}
	if err := down(dir, name); err != nil {
		return err
	}
	var full = errors.New("a directory with something in it")
	for {
		if err := ctx.Err(); err != nil {
			return fail(kindUnavailable, "", "the request was cancelled")
		}
		l := levels[len(levels)-1]
		var sub string
		if _, err := unix.Seek(l.fd, 0, 0); err != nil {
			return err
		}
		err := eachName(l.fd, func(name string) error {
			err := unix.Unlinkat(l.fd, name, 0)
			if err == unix.EISDIR || err == unix.EPERM {
				err = unix.Unlinkat(l.fd, name, unix.AT_REMOVEDIR)
			}
			switch err {
			case unix.ENOTEMPTY, unix.EEXIST:
				sub = name
				return full
			case unix.ENOENT:
				return nil
			}
			return err
		})
		if err == full {
			if err := down(l.fd, sub); err != nil && err != unix.ENOENT {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		// Empty: up, and away with it.
		up := dir
		if len(levels) > 1 {
			u := &levels[len(levels)-2]
			if u.fd < 0 {
				fd, err := unix.Openat(l.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				var st unix.Stat_t
				if err := unix.Fstat(fd, &st); err != nil || uint64(st.Dev) != u.dev || st.Ino != u.ino {
					unix.Close(fd)
					return fail(kindConflict, "path", "a directory was moved while it was being removed")
				}
				u.fd = fd
			}
			up = u.fd
		}
		unix.Close(l.fd)
		levels = levels[:len(levels)-1]
		err = unix.Unlinkat(up, l.name, unix.AT_REMOVEDIR)
		if len(levels) == 0 && err != unix.ENOTEMPTY {
			return err
		}
		if err == unix.ENOTEMPTY || err == unix.ENOENT { // somebody is quicker: look again
			if len(levels) == 0 {
				if err := down(dir, name); err != nil {
					return err
				}
			}
			continue
		}
		if err != nil {
			return err
		}
	}
}
