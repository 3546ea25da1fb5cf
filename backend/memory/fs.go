package memory

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// An errno is an error of the modelled kernel, worded as strerror(3) does.
type errno string

func (e errno) Error() string { return string(e) }

const (
	enoent    errno = "No such file or directory"
	eexist    errno = "File exists"
	enotdir   errno = "Not a directory"
	eisdir    errno = "Is a directory"
	enotempty errno = "Directory not empty"
	eacces    errno = "Permission denied"
	eperm     errno = "Operation not permitted"
	eloop     errno = "Too many levels of symbolic links"
	etoolong  errno = "File name too long"
	einval    errno = "Invalid argument"
	exdev     errno = "Invalid cross-device link"
	erofs     errno = "Read-only file system"
	enospc    errno = "No space left on device"
	enxio     errno = "No such device or address"
	epipe     errno = "Broken pipe"
	ebadf     errno = "Bad file descriptor"
	eio       errno = "Input/output error"
	eagain    errno = "Resource temporarily unavailable"
	enotty    errno = "Inappropriate ioctl for device"
	esrch     errno = "No such process"
	echild    errno = "No child processes"
	enoexec   errno = "Exec format error"
	ebusy     errno = "Device or resource busy"
)

// A volume is a file system: what a mount shows.
type volume struct {
	readOnly bool
	kernel   bool // procfs: out of reach of Files
	shared   bool // of the pretended host: not counted
}

// A device is a character device.
type device string

const (
	devNull   device = "null"
	devZero   device = "zero"
	devFull   device = "full"
	devRandom device = "random"
	devTTY    device = "tty"
)

// An inode is a file of any type. The Runtime's mutex guards it.
type inode struct {
	vol      *volume
	mode     fs.FileMode // type and permissions
	uid, gid int
	mtime    time.Time
	links    int // names of it; 0 once it is removed

	data    []byte            // of a regular file
	entries map[string]*inode // of a directory
	parent  *inode            // of a directory; the root's is itself, see box.up
	target  string            // of a symbolic link
	pipe    *pipe             // of a FIFO
	dev     device            // of a device
}

func (n *inode) isDir() bool  { return n.mode.IsDir() }
func (n *inode) isLink() bool { return n.mode&fs.ModeSymlink != 0 }

// names returns the names in directory n, sorted.
func (n *inode) names() []string { return slices.Sorted(maps.Keys(n.entries)) }

func (n *inode) info(name string) sandbox.FileInfo {
	i := sandbox.FileInfo{Name: name, Mode: n.mode, Time: n.mtime, UID: n.uid, GID: n.gid}
	switch {
	case n.mode.IsRegular():
		i.Size = int64(len(n.data))
	case n.isLink():
		i.Size, i.Target = int64(len(n.target)), n.target
	}
	return i
}

// A cred is who asks. Zero is the administrator.
type cred struct{ uid, gid int }

// may reports whether c has all the rights in want (4 read, 2 write, 1
// execute) over n.
func (c cred) may(n *inode, want fs.FileMode) bool {
	perm := n.mode.Perm()
	if c.uid == 0 {
		return want&1 == 0 || n.isDir() || perm&0o111 != 0
	}
	switch {
	case c.uid == n.uid:
		perm >>= 6
	case c.gid == n.gid:
		perm >>= 3
	}
	return perm&want == want
}

// A place is where a path leads: a name in a directory, and what has it.
type place struct {
	dir  *inode
	name string // "" for the root and for paths that end in . or ..
	node *inode // nil if nothing has the name
}

// A walker resolves paths for somebody.
type walker struct {
	b     *box
	who   cred
	guard func(*inode) error // asked of every inode on the way; may be nil
	hops  int
}

// maxHops is how many links a path may go through, as in Linux.
const maxHops = 40

// walk resolves p from start, which an absolute path leaves aside. A final
// symbolic link is followed if follow is set or p ends in a slash.
func (w *walker) walk(start *inode, p string, follow bool) (place, error) {
	if p == "" {
		return place{}, enoent
	}
	if len(p) > sandbox.MaxPath {
		return place{}, etoolong
	}
	dir := start
	if p[0] == '/' {
		dir = w.b.root
	}
	at := place{dir: w.b.up(dir), node: dir}
	parts := strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
	slash := strings.HasSuffix(p, "/")
	for i, name := range parts {
		last := i == len(parts)-1
		if at.node == nil {
			return place{}, enoent
		}
		dir := at.node
		if !dir.isDir() {
			return place{}, enotdir
		}
		if !w.who.may(dir, 1) {
			return place{}, eacces
		}
		if err := w.ask(dir); err != nil {
			return place{}, err
		}
		switch {
		case name == ".":
			at = place{dir: w.b.up(dir), node: dir}
			continue
		case name == "..":
			up := w.b.up(dir)
			at = place{dir: w.b.up(up), node: up}
			continue
		case len(name) > 255:
			return place{}, etoolong
		}
		at = place{dir: dir, name: name, node: dir.entries[name]}
		if at.node != nil && at.node.isLink() && (!last || follow || slash) {
			w.hops++
			if w.hops > maxHops {
				return place{}, eloop
			}
			var err error
			if at, err = w.walk(dir, at.node.target, true); err != nil {
				return place{}, err
			}
		}
	}
	if at.node != nil {
		if err := w.ask(at.node); err != nil {
			return place{}, err
		}
		if slash && !at.node.isDir() {
			return place{}, enotdir
		}
	}
	return at, nil
}

func (w *walker) ask(n *inode) error {
	if w.guard == nil {
		return nil
	}
	return w.guard(n)
}

// mayChange says whether who may add or remove names in dir.
func (b *box) mayChange(who cred, dir *inode) error {
	switch {
	case dir.links == 0:
		return enoent
	case b.readOnly(dir):
		return erofs
	case !who.may(dir, 3):
		return eacces
	}
	return nil
}

// up returns the directory above dir. Where a directory of the pretended host
// is mounted, that is another one in each sandbox.
func (b *box) up(dir *inode) *inode {
	if at := b.mounts[dir]; at != nil {
		return at
	}
	return dir.parent
}

// readOnly reports whether n lies where nothing can be changed.
func (b *box) readOnly(n *inode) bool { return n.vol.readOnly || b.fixed[n.vol] }

// link gives node the name at, which nothing has.
func (b *box) link(at place, node *inode) {
	if node.isDir() {
		node.parent = at.dir
	}
	node.links++
	at.dir.entries[at.name] = node
	at.dir.mtime = time.Now()
}

// unlink takes the name at away.
func (b *box) unlink(at place) {
	delete(at.dir.entries, at.name)
	at.dir.mtime = time.Now()
	at.node.links--
	if at.node.links == 0 {
		b.charge(at.node.vol, -int64(len(at.node.data)))
	}
}

// charge counts n more bytes on vol, unless that is too much.
func (b *box) charge(vol *volume, n int64) error {
	if vol.shared {
		return nil
	}
	if n > 0 && b.spec.Limits.Disk > 0 && b.disk+n > b.spec.Limits.Disk {
		return enospc
	}
	b.disk += n
	return nil
}

// create makes a new inode of the given mode at a free place.
func (b *box) create(who cred, at place, mode fs.FileMode) (*inode, error) {
	if at.name == "" {
		return nil, eexist
	}
	if err := b.mayChange(who, at.dir); err != nil {
		return nil, err
	}
	n := &inode{vol: at.dir.vol, mode: mode, uid: who.uid, gid: who.gid, mtime: time.Now()}
	if mode.IsDir() {
		n.entries = make(map[string]*inode)
	}
	b.link(at, n)
	return n, nil
}

// remove takes away what is at at: a file, a link or an empty directory.
func (b *box) remove(who cred, at place) error {
	switch {
	case at.node == nil:
		return enoent
	case at.name == "":
		return ebusy
	case at.node.isDir() && at.node.vol != at.dir.vol:
		return ebusy
	}
	if err := b.mayChange(who, at.dir); err != nil {
		return err
	}
	if at.dir.mode&fs.ModeSticky != 0 && who.uid != 0 && who.uid != at.node.uid && who.uid != at.dir.uid {
		return eperm
	}
	if len(at.node.entries) > 0 {
		return enotempty
	}
	b.unlink(at)
	return nil
}

// removeAll takes away what is at at and below, following no link. It goes on
// after an error and returns the first.
func (b *box) removeAll(who cred, at place) error {
	if at.node == nil {
		return nil
	}
	var first error
	if at.node.isDir() {
		for _, name := range at.node.names() {
			if err := b.removeAll(who, place{dir: at.node, name: name, node: at.node.entries[name]}); err != nil && first == nil {
				first = err
			}
		}
	}
	if first != nil {
		return first
	}
	return b.remove(who, at)
}

// rename moves what is at from to to as rename(2) does.
func (b *box) rename(who cred, from, to place) error {
	switch {
	case from.node == nil:
		return enoent
	case from.name == "" || to.name == "":
		return ebusy
	case from.node.isDir() && from.node.vol != from.dir.vol:
		return ebusy
	case from.node == to.node:
		return nil
	case from.dir.vol != to.dir.vol:
		return exdev
	}
	for _, dir := range []*inode{from.dir, to.dir} {
		if err := b.mayChange(who, dir); err != nil {
			return err
		}
	}
	if from.node.isDir() {
		for d := to.dir; ; d = b.up(d) {
			if d == from.node {
				return einval
			}
			if d == b.up(d) {
				break
			}
		}
	}
	if to.node != nil {
		switch {
		case from.node.isDir() && !to.node.isDir():
			return enotdir
		case !from.node.isDir() && to.node.isDir():
			return eisdir
		case len(to.node.entries) > 0:
			return enotempty
		}
		b.unlink(to)
	}
	delete(from.dir.entries, from.name)
	from.dir.mtime = time.Now()
	from.node.links--
	b.link(to, from.node)
	return nil
}

// grow makes n's data size bytes long, keeping the budget.
func (b *box) grow(n *inode, size int) error {
	if n.links > 0 {
		if err := b.charge(n.vol, int64(size-len(n.data))); err != nil {
			return err
		}
	}
	switch {
	case size <= len(n.data):
		clear(n.data[size:])
		n.data = n.data[:size]
	case size <= cap(n.data):
		n.data = n.data[:size]
	default:
		n.data = append(n.data, make([]byte, size-len(n.data))...)
	}
	return nil
}
