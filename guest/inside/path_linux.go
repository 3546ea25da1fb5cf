package inside

import (
	"errors"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// defaultPath is where programs are looked for if the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environ returns the environment of a process that starts: the place's, the
// request's, and what a program counts on.
func (s *Server) environ(m *proto.Start, who identity) []string {
	env := make([]string, 0, len(m.Env)+len(s.place.env)+4)
	have := make(map[string]bool, cap(env))
	add := func(kv string) {
		if k, _, ok := strings.Cut(kv, "="); ok && k != "" && !have[k] && strings.IndexByte(kv, 0) < 0 {
			have[k] = true
			env = append(env, kv)
		}
	}
	for i := len(m.Env) - 1; i >= 0; i-- { // the last wins
		add(m.Env[i])
	}
	for _, kv := range s.place.env {
		add(kv)
	}
	if !have["PATH"] {
		add("PATH=" + defaultPath)
	}
	if !have["HOME"] {
		add("HOME=" + who.home)
	}
	if m.Terminal && !have["TERM"] {
		add("TERM=xterm-256color")
	}
	return env
}

// lookPath returns the program that name stands for. A name with a slash is
// left to the kernel, which starts in dir.
func lookPath(name, dir string, env []string, who identity) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	search := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			search = v
		}
	}
	denied := false
	for search != "" {
		var d string
		d, search, _ = strings.Cut(search, ":")
		if d == "" {
			d = "."
		}
		p := d + "/" + name
		at := p
		if d[0] != '/' {
			at = dir + "/" + p
			p = "./" + p
		}
		var st unix.Stat_t
		switch err := unix.Stat(at, &st); {
		case err == unix.EACCES:
			denied = true
		case err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG:
		case may(&st, who, 1):
			return p, nil
		default:
			denied = true
		}
	}
	if denied {
		return "", fail(kindDenied, "args", "the user may not execute "+quote(name))
	}
	return "", &proto.Failure{Kind: kindNotExist, Field: "args", Msg: "there is no program " + quote(name) + " in PATH", Hint: "install it, or give its path"}
}

// may reports whether the permission bits of a file give who what (1 execute
// or search, 2 write, 4 read). The kernel decides in the end; this says why.
func may(st *unix.Stat_t, who identity, what uint32) bool {
	if who.uid == 0 {
		return st.Mode&unix.S_IFMT == unix.S_IFDIR || what != 1 || st.Mode&0o111 != 0
	}
	switch {
	case int(st.Uid) == who.uid:
		return st.Mode>>6&what == what
	case inGroup(int(st.Gid), who):
		return st.Mode>>3&what == what
	}
	return st.Mode&what == what
}

func inGroup(gid int, who identity) bool {
	for _, g := range who.groups {
		if int(g) == gid {
			return true
		}
	}
	return gid == who.gid
}

// openDir opens the working directory of a process that starts. The process
// goes there by the descriptor, since the path could lead elsewhere by then:
// through one of the kernel's own links (/proc/1/fd/7) it would reach what the
// guest holds open, with the guest's rights.
func openDir(dir string, who identity) (int, error) {
	if who.uid != 0 { // the kernel looks at the last directory alone
		if err := checkDir(dir, who); err != nil {
			return -1, err
		}
	}
	fd, err := open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		return fd, nil
	}
	if e := checkDir(dir, who); e != nil {
		return -1, e
	}
	return -1, errno("dir", err)
}

// checkDir says what is wrong with a working directory, if something is.
func checkDir(dir string, who identity) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return errno("dir", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fail(kindNotExist, "dir", "the working directory is not a directory")
	}
	for d := path.Clean(dir); ; d = path.Dir(d) { // a link on the way may lead elsewhere: then the kernel's own word stands
		if unix.Stat(d, &st) == nil && !may(&st, who, 1) {
			return fail(kindDenied, "dir", "the user may not enter the working directory")
		}
		if d == "/" {
			return nil
		}
	}
}

func exists(p string) bool {
	var st unix.Stat_t
	return unix.Stat(p, &st) == nil
}

// A fileVersion tells whether a file has changed.
type fileVersion struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// refresh reads the file at name if it has changed, and reports whether it
// has. What cannot be read is empty.
func (d *database) refresh(name string) bool {
	var v fileVersion
	var st unix.Stat_t
	if unix.Stat(name, &st) == nil {
		v = fileVersion{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
	}
	if v == d.seen {
		return false
	}
	d.seen, d.text = v, nil
	if b, err := readRegular(name, maxDatabase); err == nil {
		d.text = b
	}
	return true
}

// readRegular reads at most max bytes of a regular file; anything else might
// never end.
func readRegular(name string, max int) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, os.ErrInvalid
	}
	var b []byte
	var chunk [4096]byte
	for len(b) < max {
		n, err := unix.Read(fd, chunk[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		b = append(b, chunk[:n]...)
	}
	return b, nil
}

// errno returns err, an error of the kernel's, as the daemon gets it; nil for
// nil.
func errno(field string, err error) error {
	if err == nil {
		return nil
	}
	var e syscall.Errno
	if !errors.As(err, &e) {
		return failure(err)
	}
	f := &proto.Failure{Kind: kindInternal, Field: field, Msg: e.Error(), Log: e.Error()}
	switch e {
	case unix.ENOENT:
		f.Kind, f.Msg = kindNotExist, "there is no such file or directory"
	case unix.EEXIST:
		f.Kind, f.Msg = kindConflict, "it is there already"
	case unix.ENOTEMPTY:
		f.Kind, f.Msg, f.Hint = kindConflict, "the directory is not empty", "remove what is in it as well"
	case unix.ENOTDIR:
		f.Kind, f.Msg = kindInvalid, "a part of the path is not a directory"
		if field == "dir" {
			f.Kind, f.Msg = kindNotExist, "the working directory is not a directory"
		}
	case unix.EISDIR:
		f.Kind, f.Msg = kindInvalid, "it is a directory"
	case unix.ELOOP:
		f.Kind, f.Msg = kindInvalid, "the path leads through too many links, or one of the kernel's own"
	case unix.ENAMETOOLONG:
		f.Kind, f.Msg = kindInvalid, "a name in the path is too long"
	case unix.EINVAL, unix.ENXIO, unix.ENODEV:
		f.Kind = kindInvalid
	case unix.EACCES, unix.EPERM:
		f.Kind = kindDenied
	case unix.EROFS:
		f.Kind, f.Msg, f.Hint = kindDenied, "the file system is read-only", "write below /workspace, /home or /tmp"
	case unix.EBUSY, unix.ETXTBSY:
		f.Kind = kindConflict
		f.Msg = "it is in use"
	case unix.EXDEV:
		f.Kind = kindUnsupported
	case unix.EOPNOTSUPP, unix.ENOSYS:
		f.Kind = kindUnsupported
	case unix.ENOSPC:
		f.Kind, f.Msg, f.Hint = kindExhausted, "the disk is full", "remove files, or ask for a larger limits.disk"
	case unix.EDQUOT:
		f.Kind, f.Msg, f.Hint = kindExhausted, "the disk quota is reached", "remove files, or ask for a larger limits.disk"
	case unix.EFBIG:
		f.Kind, f.Msg = kindExhausted, "the file would be too large"
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EMLINK:
		f.Kind = kindExhausted
	}
	return f
}
