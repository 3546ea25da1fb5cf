package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// A tree is the folder that a layer is unpacked into. It is walked one element
// at a time, each with O_NOFOLLOW, from the descriptor of its root: the kernel
// follows no link here, and a link's target is but a text that says where in
// the tree to go on, ".." at the root and "/" being the root. So nothing
// outside is ever named, whatever the layer says and in whatever order.
type tree struct {
	root  int
	chown bool // ids are given as the layer has them

	dirs   map[string]attributes // what folders get at the end, by their path in the tree
	owners map[string]owner      // what chown could not give, by path
	facts  Facts
	size   *limitedCount
	count  *limitedCount

	last struct { // the folder that was entered last
		name string
		ref  place
	}
	buf []byte
}

// A place is an open folder of the tree.
type place struct {
	fd   int
	path string // "." for the root; without links
}

type attributes struct {
	mode  uint32
	owner owner
	time  time.Time // zero: leave it
}

type owner struct{ uid, gid int }

// implied are the permissions of folders that a layer has something in
// without naming them. Others get 0755.
var implied = map[string]uint32{"tmp": 0o1777, "var/tmp": 0o1777, "dev/shm": 0o1777, "root": 0o700}

// unpack unpacks the layer that it reads from src into dir, which is an empty
// folder, and returns its DiffID. The owners that it could not give are for
// the file beside. Errors leave what was unpacked before: the caller deletes
// dir, see [removeTree].
func unpack(ctx context.Context, src io.Reader, dir string, b Bounds) (diffID string, facts Facts, owners map[string]owner, err error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", Facts{}, nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	t := &tree{
		root: fd, chown: os.Geteuid() == 0, dirs: make(map[string]attributes), owners: make(map[string]owner), buf: make([]byte, 256<<10),
		size:  newCount(b.Layer, "the files of a layer have more than %d bytes"),
		count: newCount(int64(b.Entries), "a layer has more than %d entries"),
	}
	defer unix.Close(fd)
	defer t.leave()
	t.dirs["."] = attributes{mode: 0o755}
	s := newLayerStream(ctx, src, b)
	defer s.Close()
	r := tar.NewReader(s)
	for {
		hdr, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are looked at below
			return "", Facts{}, nil, badTar(err)
		}
		if err := ctx.Err(); err != nil {
			return "", Facts{}, nil, err
		}
		if err := t.add(hdr, r); err != nil {
			return "", Facts{}, nil, classify(err)
		}
	}
	if diffID, err = s.finish(); err != nil {
		return "", Facts{}, nil, badTar(err)
	}
	if err := t.finish(); err != nil {
		return "", Facts{}, nil, classify(err)
	}
	// All at once costs less than each file by itself.
	root, err := os.Open(dir)
	if err != nil {
		return "", Facts{}, nil, err
	}
	defer root.Close()
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return "", Facts{}, nil, classify(&fs.PathError{Op: "syncfs", Path: dir, Err: err})
	}
	return diffID, t.facts, t.owners, nil
}

// add makes one entry.
func (t *tree) add(hdr *tar.Header, r io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if err := t.count.add(1); err != nil {
		return err
	}
	t.facts.Entries++
	name, err := entryName(hdr.Name)
	if err != nil {
		return err
	}
	if hdr.Uid < 0 || hdr.Gid < 0 || int64(hdr.Uid) >= 1<<32-1 || int64(hdr.Gid) >= 1<<32-1 {
		return malformed("%.60q belongs to user %d and group %d, which cannot be", name, hdr.Uid, hdr.Gid)
	}
	attr := attributes{mode: uint32(hdr.Mode) & 0o7777, owner: owner{hdr.Uid, hdr.Gid}, time: clampTime(hdr.ModTime)}
	if name == "." {
		if hdr.Typeflag != tar.TypeDir {
			return malformed("the root of a layer is not a folder")
		}
		t.dirs["."] = attr
		return t.xattrs(t.root, ".", hdr)
	}
	dir, base := path.Split(name)
	is, opaque, hides, err := whiteout(base)
	if err != nil || is && !opaque && hides == "" {
		return err
	}
	in, err := t.enter(dir)
	if err != nil {
		return err
	}
	at := path.Join(in.path, base)
	if len(at) > maxName || strings.Count(at, "/") >= maxDepth {
		return tooDeep(name)
	}
	switch {
	case opaque:
		t.facts.Whiteouts++
		if in.path == "." {
			t.facts.Opaque = true
			return nil
		}
		return t.hide(in.fd)
	case hides != "":
		t.facts.Whiteouts++
		return t.whiteout(in, hides)
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return t.file(in, base, at, hdr, attr, r)
	case tar.TypeDir:
		if err := t.mkdir(in, base); err != nil {
			return err
		}
		t.dirs[at] = attr
		return t.xattrs(in.fd, base, hdr)
	case tar.TypeSymlink:
		if l := hdr.Linkname; l == "" || len(l) > maxName || strings.IndexByte(l, 0) >= 0 {
			return malformed("the link %.60q leads to what cannot be", name)
		}
		if err := t.instead(in, base, func() error { return unix.Symlinkat(hdr.Linkname, in.fd, base) }); err != nil {
			return err
		}
		t.facts.Size += 4096
		if err := t.own(in, base, at, attr.owner); err != nil {
			return err
		}
		return t.touch(in.fd, base, attr.time)
	case tar.TypeLink:
		return t.link(in, base, at, hdr.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		t.facts.Devices++
		return nil
	}
	return malformed("%.60q is of an unknown kind %q", name, hdr.Typeflag)
}

// enter opens the folder of that name, which [entryName] has passed, and
// makes what is missing. The place is good until the next call.
func (t *tree) enter(name string) (place, error) {
	if t.last.name == name && t.last.ref.path != "" {
		return t.last.ref, nil
	}
	t.leave()
	stack := []place{{t.root, "."}}
	pop := func() {
		if last := len(stack) - 1; last > 0 {
			unix.Close(stack[last].fd)
			stack = stack[:last]
		}
	}
	defer func() {
		for len(stack) > 1 {
			pop()
		}
	}()
	todo := strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			pop()
			continue
		}
		top := stack[len(stack)-1]
		if len(part) > maxPart {
			return place{}, malformed("a link in a layer has an element of %d bytes", len(part))
		}
		fd, err := openDir(top.fd, part, unix.O_PATH)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			var st unix.Stat_t
			if err := unix.Fstatat(top.fd, part, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return place{}, bad("stat", part, err)
			}
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFLNK:
				target, err := readlink(top.fd, part)
				if err != nil {
					return place{}, bad("readlink", part, err)
				}
				if links++; links > maxLinks {
					return place{}, malformed("%.60q leads through too many links", name)
				}
				if target[0] == '/' {
					for len(stack) > 1 {
						pop()
					}
				}
				todo = append(strings.Split(target, "/"), todo...)
				continue
			case unix.S_IFCHR: // hidden below, and made anew here
			default:
				return place{}, malformed("%.60q leads through what is not a folder", name)
			}
			err = unix.ENOENT
		}
		at := path.Join(top.path, part)
		if errors.Is(err, unix.ENOENT) {
			if len(stack) > maxDepth || len(at) > maxName {
				return place{}, tooDeep(name)
			}
			if err := t.count.add(1); err != nil {
				return place{}, err
			}
			if err := t.mkdir(top, part); err != nil {
				return place{}, err
			}
			mode := uint32(0o755)
			if m, ok := implied[at]; ok {
				mode = m
			}
			t.dirs[at] = attributes{mode: mode}
			fd, err = openDir(top.fd, part, unix.O_PATH)
		}
		if err != nil {
			return place{}, bad("open", part, err)
		}
		stack = append(stack, place{fd, at})
	}
	ref := stack[len(stack)-1]
	for _, p := range stack[1:max(1, len(stack)-1)] {
		unix.Close(p.fd)
	}
	stack = nil
	t.last.name, t.last.ref = name, ref
	return ref, nil
}

// leave forgets the folder that was entered last.
func (t *tree) leave() {
	if ref := t.last.ref; ref.path != "" && ref.fd != t.root {
		unix.Close(ref.fd)
	}
	t.last.name, t.last.ref = "", place{}
}

// mkdir makes a folder, unless it is there. One that takes the place of
// something else shows nothing of what the layers below have there.
func (t *tree) mkdir(in place, base string) error {
	err := unix.Mkdirat(in.fd, base, 0o700)
	if err == nil {
		t.facts.Size += 4096
	}
	if !errors.Is(err, unix.EEXIST) {
		return bad("mkdir", base, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(in.fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return bad("stat", base, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err := unix.Unlinkat(in.fd, base, 0); err != nil {
		return bad("remove", base, err)
	}
	if err := unix.Mkdirat(in.fd, base, 0o700); err != nil {
		return bad("mkdir", base, err)
	}
	t.facts.Size += 4096
	fd, err := openDir(in.fd, base, unix.O_PATH)
	if err != nil {
		return bad("open", base, err)
	}
	defer unix.Close(fd)
	return t.hide(fd)
}

// hide makes the folder at dir opaque.
func (t *tree) hide(dir int) error {
	fd, err := openDir(dir, ".", unix.O_RDONLY)
	if err != nil {
		return bad("open", ".", err)
	}
	defer unix.Close(fd)
	err = unix.Fsetxattr(fd, "user.overlay.opaque", []byte("y"), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return &sandbox.Error{Kind: sandbox.Unsupported, Field: "image", Msg: "the file system of the images has no extended attributes of users",
			Hint: "keep the images on ext4, XFS, btrfs, or tmpfs of Linux 6.6", Err: err}
	}
	return bad("setxattr", "user.overlay.opaque", err)
}

// whiteout hides what the layers below have under that name. What this layer
// has there itself stays, wherever in the archive it stands.
func (t *tree) whiteout(in place, name string) error {
	err := unix.Mknodat(in.fd, name, unix.S_IFCHR, 0)
	switch {
	case errors.Is(err, unix.EEXIST):
		fd, err := openDir(in.fd, name, unix.O_PATH)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			return nil
		}
		if err != nil {
			return bad("open", name, err)
		}
		defer unix.Close(fd)
		return t.hide(fd)
	case errors.Is(err, unix.EPERM):
		return &sandbox.Error{Kind: sandbox.Unsupported, Field: "image", Msg: "files of lower layers cannot be hidden here", Hint: "this needs Linux 5.8, or root", Err: err}
	}
	return bad("mknod", name, err)
}

// file writes a file.
func (t *tree) file(in place, base, at string, hdr *tar.Header, attr attributes, r io.Reader) error {
	if err := t.size.add(hdr.Size); err != nil {
		return err
	}
	var fd int
	err := t.instead(in, base, func() (err error) {
		fd, err = unix.Openat(in.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := t.copy(fd, r, hdr.Size); err != nil {
		return err
	}
	t.facts.Size += 4096
	if err := t.own(in, base, at, attr.owner); err != nil {
		return err
	}
	if attr.mode&0o6000 != 0 {
		t.facts.Setuid++
	}
	if err := unix.Fchmod(fd, attr.mode); err != nil { // after chown, which takes setuid away
		return bad("chmod", base, err)
	}
	if err := t.setXattrs(fd, hdr); err != nil {
		return err
	}
	return t.touch(in.fd, base, attr.time)
}

// hole is what must be zero to be left out of a file.
const hole = 64 << 10

var zeros [hole]byte

// copy writes size bytes, and leaves holes where there are only zeros.
func (t *tree) copy(fd int, r io.Reader, size int64) error {
	var at, written int64
	for at < size {
		n := int(min(int64(len(t.buf)), size-at))
		if _, err := io.ReadFull(r, t.buf[:n]); err != nil {
			return badTar(err)
		}
		for part := range slices.Chunk(t.buf[:n], hole) {
			if len(part) < hole || !bytes.Equal(part, zeros[:]) {
				for p, off := part, at; len(p) > 0; {
					n, err := unix.Pwrite(fd, p, off)
					if err != nil && !errors.Is(err, unix.EINTR) {
						return bad("write", "a file", err)
					}
					p, off = p[max(n, 0):], off+int64(max(n, 0))
				}
				written = at + int64(len(part))
				t.facts.Size += (int64(len(part)) + 4095) &^ 4095
			}
			at += int64(len(part))
		}
	}
	if written < size {
		return bad("truncate", "a file", unix.Ftruncate(fd, size))
	}
	return nil
}

// link gives a file of this layer another name.
func (t *tree) link(in place, base, at, target string) error {
	name, err := entryName(target)
	if err != nil {
		return err
	}
	dir, file := path.Split(name)
	if is, _, _, _ := whiteout(file); is || name == "." {
		return malformed("%.60q is linked to what is no file", base)
	}
	in.fd, err = unix.FcntlInt(uintptr(in.fd), unix.F_DUPFD_CLOEXEC, 0) // enter may close it
	if err != nil {
		return bad("dup", base, err)
	}
	defer unix.Close(in.fd)
	defer t.leave() // what takes the other's place may have been on the way there
	to, err := t.enter(dir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstatat(to.fd, file, &st, unix.AT_SYMLINK_NOFOLLOW)
	if kind := st.Mode & unix.S_IFMT; errors.Is(err, unix.ENOENT) || err == nil && kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return malformed("%.60q is linked to %.60q, which is not a file of its layer", base, name)
	} else if err != nil {
		return bad("stat", file, err)
	}
	if from := path.Join(to.path, file); from == at {
		return nil
	} else if o, ok := t.owners[from]; ok {
		t.owners[at] = o
	} else {
		delete(t.owners, at)
	}
	// Both are in one folder, or it is open twice: instead may close to's.
	to.fd, err = unix.FcntlInt(uintptr(to.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return bad("dup", base, err)
	}
	defer unix.Close(to.fd)
	return t.instead(in, base, func() error {
		err := unix.Linkat(to.fd, file, in.fd, base, 0)
		if errors.Is(err, unix.ENOENT) {
			return malformed("%.60q is linked to %.60q, whose place it takes", base, name)
		}
		return err
	})
}

// instead makes something under that name, and deletes what is there.
func (t *tree) instead(in place, base string, do func() error) error {
	err := do()
	if !errors.Is(err, unix.EEXIST) {
		return bad("make", base, err)
	}
	err = unix.Unlinkat(in.fd, base, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		if err = removeAt(in.fd, base); err == nil && t.last.ref.path != in.path {
			t.leave() // it may have been below
		}
	}
	if err != nil {
		return bad("remove", base, err)
	}
	return bad("make", base, do())
}

// own gives a file or link its owner, or keeps in mind whose it should be.
func (t *tree) own(in place, base, at string, o owner) error {
	if t.chown {
		err := unix.Fchownat(in.fd, base, o.uid, o.gid, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			return nil
		}
		// In a user namespace, root may give only what is mapped.
		if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return bad("chown", base, err)
		}
	}
	t.keep(at, o)
	return nil
}

func (t *tree) keep(at string, o owner) {
	if o == (owner{}) {
		delete(t.owners, at)
	} else {
		t.owners[at] = o
	}
}

func (t *tree) touch(fd int, base string, when time.Time) error {
	ts, err := unix.TimeToTimespec(when)
	if err != nil {
		return bad("time", base, err)
	}
	return bad("time", base, unix.UtimesNanoAt(fd, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
}

// xattrs sets the attributes of a folder.
func (t *tree) xattrs(dir int, base string, hdr *tar.Header) error {
	if !hasXattrs(hdr) {
		return nil
	}
	fd, err := openDir(dir, base, unix.O_RDONLY)
	if err != nil {
		return bad("open", base, err)
	}
	defer unix.Close(fd)
	return t.setXattrs(fd, hdr)
}

const xattrKey = "SCHILY.xattr."

func hasXattrs(hdr *tar.Header) bool {
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, xattrKey) {
			return true
		}
	}
	return false
}

// setXattrs sets what users may set themselves, but for what steers an overlay,
// and counts what it leaves out: capabilities, ACLs, labels, and what the file
// system does not take.
func (t *tree) setXattrs(fd int, hdr *tar.Header) error {
	for _, key := range slices.Sorted(maps.Keys(hdr.PAXRecords)) {
		name, ok := strings.CutPrefix(key, xattrKey)
		if !ok {
			continue
		}
		value := hdr.PAXRecords[key]
		if !strings.HasPrefix(name, "user.") || name == "user.overlay" || strings.HasPrefix(name, "user.overlay.") || len(name) > maxPart || len(value) > maxXattr {
			t.facts.Xattrs++
			continue
		}
		switch err := unix.Fsetxattr(fd, name, []byte(value), 0); {
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL):
			t.facts.Xattrs++
		case err != nil:
			return bad("setxattr", "a file", err)
		default:
			t.facts.Size += int64(len(value))
		}
	}
	return nil
}

// finish gives the folders what they should have, the deepest first: until now
// they were ours alone, and a time would have changed with each entry.
func (t *tree) finish() error {
	t.leave()
	// A folder's name begins those of all below; the root's does not.
	root := t.dirs["."]
	delete(t.dirs, ".")
	order := slices.Sorted(maps.Keys(t.dirs))
	t.dirs["."] = root
	for _, at := range slices.Backward(append([]string{"."}, order...)) {
		attr := t.dirs[at]
		fd, err := t.find(at)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // something else took its place
		}
		if err != nil {
			return bad("open", at, err)
		}
		err = func() error {
			defer unix.Close(fd)
			given := false
			if t.chown {
				err := unix.Fchown(fd, attr.owner.uid, attr.owner.gid)
				if given = err == nil; !given && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
					return err
				}
			}
			if !given {
				t.keep(at, attr.owner)
			}
			if !attr.time.IsZero() {
				ts, err := unix.TimeToTimespec(attr.time)
				if err != nil {
					return err
				}
				if err := unix.UtimesNanoAt(fd, ".", []unix.Timespec{ts, ts}, 0); err != nil {
					return err
				}
			}
			return unix.Fchmod(fd, attr.mode)
		}()
		if err != nil {
			return bad("finish", at, err)
		}
	}
	return nil
}

// find opens a folder of the tree by its path without links.
func (t *tree) find(at string) (int, error) {
	fd, err := openDir(t.root, ".", unix.O_PATH)
	for part := range strings.SplitSeq(at, "/") {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = openDir(fd, part, unix.O_PATH)
		unix.Close(fd)
		fd = next
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	return openDir(fd, ".", unix.O_RDONLY)
}

func openDir(in int, name string, how int) (int, error) {
	for {
		fd, err := unix.Openat(in, name, how|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func readlink(in int, name string) (string, error) {
	buf := make([]byte, maxName+1)
	n, err := unix.Readlinkat(in, name, buf)
	if err != nil || n <= 0 {
		return "", cmp.Or(err, error(unix.EINVAL))
	}
	return string(buf[:n]), nil
}

// bad returns err with what was done, and errors of ours as they are.
func bad(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var e *sandbox.Error
	var p *fs.PathError
	if errors.As(err, &e) || errors.As(err, &p) {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// clampTime keeps times that every file system has.
func clampTime(t time.Time) time.Time {
	const first, last = -1 << 31, 1<<33 - 1
	if s := t.Unix(); s < first || s > last {
		return time.Unix(min(max(s, first), last), 0)
	}
	return t
}

// removeAt deletes a folder of the tree and all that is in it, following no
// link, whatever its permissions.
func removeAt(in int, name string) error {
	fd, err := openDir(in, name, unix.O_RDONLY)
	if errors.Is(err, unix.EACCES) {
		if err := unix.Fchmodat(in, name, 0o700, 0); err != nil {
			return err
		}
		fd, err = openDir(in, name, unix.O_RDONLY)
	}
	if err != nil {
		return err
	}
	d := os.NewFile(uintptr(fd), name)
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o700 != 0o700 {
		if err := unix.Fchmod(fd, 0o700); err != nil {
			return err
		}
	}
	for {
		names, err := d.Readdirnames(1000)
		for _, n := range names {
			err := unix.Unlinkat(fd, n, 0)
			if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
				err = removeAt(fd, n)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return unix.Unlinkat(in, name, unix.AT_REMOVEDIR)
}

// removeTree deletes dir and all that is in it, whatever the permissions of
// its folders. It need not be there.
func removeTree(dir string) error {
	fd, err := unix.Open(path.Dir(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	err = unix.Unlinkat(fd, path.Base(dir), 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = removeAt(fd, path.Base(dir))
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return bad("remove", dir, err)
}
