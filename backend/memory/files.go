package memory

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"path"
	"sort"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// Files returns the sandbox's file system.
func (b *box) Files() sandbox.Files { return files{b} }

type files struct{ b *box }

// bits are what Chmod sets.
const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// do runs f with the mutex held, in a sandbox that lives, and makes its error
// one of ours.
func (f files) do(ctx context.Context, name, p string, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := sandbox.CheckPath("path", p); err != nil {
		return sandbox.At(op(name), f.b.id, err)
	}
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	err := f.b.live()
	if err == nil {
		err = fn()
	}
	return sandbox.At(op(name), f.b.id, tell(p, err))
}

// tell turns an errno into an error for callers.
func tell(p string, err error) error {
	var e errno
	if !errors.As(err, &e) {
		return err
	}
	at := func(kind sandbox.Kind, format string, hint string) error {
		return sandbox.Errorf(kind, "path", format, p).WithHint("%s", hint)
	}
	switch e {
	case enoent:
		return at(sandbox.NotExist, "%q is not there", "check the path")
	case enotdir:
		return at(sandbox.NotExist, "%q leads through what is not a directory", "check the path")
	case eexist:
		return at(sandbox.Conflict, "%q is there already", "remove it first")
	case enotempty:
		return at(sandbox.Conflict, "%q is not empty", "remove all, or what is in it first")
	case eisdir:
		return at(sandbox.Invalid, "%q is a directory", "name a file")
	case eloop:
		return at(sandbox.Invalid, "%q leads through too many links", "name the file itself")
	case etoolong:
		return at(sandbox.Invalid, "%.64q… has a name that is too long", "use at most 255 bytes")
	case enospc:
		return at(sandbox.Exhausted, "there is no room for %q", "remove something")
	case erofs:
		return at(sandbox.Denied, "%q is read-only", "use /tmp, /home or /workspace")
	case exdev:
		return at(sandbox.Unsupported, "the directory %q cannot be moved to another file system", "copy it")
	case ebusy:
		return at(sandbox.Invalid, "%q is in use as a directory of the system", "choose another")
	case einval:
		return at(sandbox.Invalid, "%q cannot be moved into itself", "choose another place")
	case eacces, eperm:
		return at(sandbox.Denied, "%q is not allowed", "choose another path")
	}
	return at(sandbox.Invalid, "%q: "+strings.ToLower(string(e)), "check the path")
}

// guard keeps Files out of the kernel's interfaces.
func guard(n *inode) error {
	if n.vol.kernel {
		return eacces
	}
	return nil
}

func (f files) walk(p string, follow bool) (place, error) {
	w := walker{b: f.b, guard: guard}
	return w.walk(f.b.root, p, follow)
}

// there resolves a path at which something must be.
func (f files) there(p string, follow bool) (place, error) {
	at, err := f.walk(p, follow)
	if err == nil && at.node == nil {
		err = enoent
	}
	return at, err
}

func irregular(p string) error {
	return sandbox.Errorf(sandbox.Invalid, "path", "%q is not a regular file", p).WithHint("name a regular file")
}

// Open opens a file.
func (f files) Open(ctx context.Context, p string, r sandbox.Range) (sandbox.File, error) {
	var out *openFile
	err := f.do(ctx, "Open", p, func() error {
		if r.Length < 0 {
			return sandbox.Errorf(sandbox.Invalid, "length", "%d is negative", r.Length).WithHint("give 0 for all of it")
		}
		at, err := f.there(p, true)
		switch {
		case err != nil:
			return err
		case at.node.isDir():
			return eisdir
		case !at.node.mode.IsRegular():
			return irregular(p)
		}
		size := int64(len(at.node.data))
		off, left := r.Offset, r.Length
		if off < 0 {
			off = max(0, size+off)
		}
		if left == 0 {
			left = -1
		}
		out = &openFile{b: f.b, ctx: ctx, node: at.node, info: at.node.info(path.Base(p)), off: off, left: left}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// An openFile reads a file in its state of now, but for replacements.
type openFile struct {
	b    *box
	ctx  context.Context // the one of Open: when it ends, reads fail
	node *inode
	info sandbox.FileInfo

	mu     sync.Mutex // guards what follows
	off    int64
	left   int64 // -1: up to the end
	closed bool
}

func (f *openFile) Info() sandbox.FileInfo { return f.info }

func (f *openFile) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, sandbox.At(op("Read"), f.b.id, sandbox.Errorf(sandbox.Invalid, "", "the file is closed"))
	}
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if err := f.b.live(); err != nil {
		return 0, sandbox.At(op("Read"), f.b.id, err)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if f.left >= 0 && int64(len(p)) > f.left {
		p = p[:f.left]
	}
	if f.off >= int64(len(f.node.data)) || len(p) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[f.off:])
	f.off += int64(n)
	if f.left >= 0 {
		f.left -= int64(n)
	}
	return n, nil
}

func (f *openFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// Write stores a file.
func (f files) Write(ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	var info sandbox.FileInfo
	// What is wrong already is told before src is read.
	if err := f.do(ctx, "Write", p, func() error { _, _, err := f.target(p, opt); return err }); err != nil {
		return info, err
	}
	if opt.Append {
		return f.appendTo(ctx, p, src, opt)
	}
	data, err := f.readAll(ctx, src)
	if err != nil {
		return info, err
	}
	err = f.do(ctx, "Write", p, func() error {
		at, who, err := f.target(p, opt)
		if err != nil {
			return err
		}
		old := at.node
		freed := int64(0)
		if old != nil && old.links == 1 {
			freed = int64(len(old.data))
		}
		if err := f.b.charge(at.dir.vol, int64(len(data))-freed); err != nil {
			return err
		}
		f.b.charge(at.dir.vol, freed-int64(len(data)))
		if old != nil {
			f.b.unlink(at)
			at.node = nil
		}
		n, err := f.b.create(cred{}, at, mode(opt.Mode, 0o644))
		if err != nil {
			return err
		}
		n.uid, n.gid = who.uid, who.gid
		if old != nil && opt.Mode == 0 {
			n.mode = old.mode
		}
		if err := f.b.charge(n.vol, int64(len(data))); err != nil {
			return err
		}
		n.data = data
		info = n.info(path.Base(p))
		return nil
	})
	return info, err
}

func mode(m, def fs.FileMode) fs.FileMode {
	if m&bits == 0 {
		return def
	}
	return m & bits
}

// target resolves where Write puts its file, makes the directories above if
// asked, and returns the file's owner.
func (f files) target(p string, opt sandbox.WriteOptions) (place, cred, error) {
	who := f.b.admin
	if opt.User != "" {
		var err error
		if who, err = f.b.user(cred{}, opt.User); err != nil {
			return place{}, who, err
		}
	}
	if strings.HasSuffix(p, "/") {
		return place{}, who, sandbox.Errorf(sandbox.Invalid, "path", "%q names a directory", p).WithHint("name a file")
	}
	if opt.Parents {
		if err := f.parents(path.Dir(p), who); err != nil {
			return place{}, who, err
		}
	}
	at, err := f.walk(p, true)
	switch {
	case err != nil:
		return at, who, err
	case at.node == nil:
		err = f.b.mayChange(cred{}, at.dir)
		if err == nil && guard(at.dir) != nil {
			err = eacces
		}
		if err == nil && at.dir.vol == f.b.dev() {
			err = eacces
		}
		return at, who, err
	case opt.Exclusive:
		return at, who, eexist
	case at.node.isDir():
		return at, who, eisdir
	case !at.node.mode.IsRegular():
		return at, who, irregular(p)
	case opt.User == "":
		who = cred{at.node.uid, at.node.gid}
	}
	if opt.Exclusive {
		return at, who, eexist
	}
	return at, who, f.b.mayChange(cred{}, at.dir)
}

// dev returns the volume of /dev.
func (b *box) dev() *volume {
	if d := b.root.entries["dev"]; d != nil {
		return d.vol
	}
	return nil
}

func (f files) parents(p string, who cred) error {
	if at, err := f.walk(p, true); err != nil && err != enoent || at.node != nil {
		return err
	}
	return f.b.mkdirs(cred{}, p, 0o755, who)
}

// mkdirs makes the directory p and those above it. What it makes belongs to
// owner.
func (b *box) mkdirs(who cred, p string, perm fs.FileMode, owner cred) error {
	w := walker{b: b, who: who, guard: guard}
	clean := path.Clean(p)
	for i := 1; i <= len(clean); i++ {
		if i < len(clean) && clean[i] != '/' {
			continue
		}
		w.hops = 0
		at, err := w.walk(b.root, clean[:i], true)
		if err != nil {
			return err
		}
		if at.node != nil {
			if !at.node.isDir() {
				return enotdir
			}
			continue
		}
		n, err := b.create(who, at, fs.ModeDir|perm)
		if err != nil {
			return err
		}
		n.uid, n.gid = owner.uid, owner.gid
	}
	return nil
}

// readAll reads src, ctx permitting, and no more than the disk would take.
func (f files) readAll(ctx context.Context, src io.Reader) ([]byte, error) {
	var buf bytes.Buffer
	chunk := make([]byte, 64<<10)
	for {
		n, err := src.Read(chunk)
		buf.Write(chunk[:n])
		if e := ctx.Err(); e != nil {
			return nil, e
		}
		if max := f.b.spec.Limits.Disk; max > 0 && int64(buf.Len()) > max {
			return nil, sandbox.At(op("Write"), f.b.id, tell("", enospc))
		}
		if errors.Is(err, io.EOF) {
			return buf.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (f files) appendTo(ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	var info sandbox.FileInfo
	var node *inode
	err := f.do(ctx, "Write", p, func() error {
		at, who, err := f.target(p, opt)
		if err != nil {
			return err
		}
		if node = at.node; node == nil {
			if node, err = f.b.create(cred{}, at, mode(opt.Mode, 0o644)); err != nil {
				return err
			}
			node.uid, node.gid = who.uid, who.gid
		}
		if opt.Mode != 0 {
			node.mode = node.mode&^bits | opt.Mode&bits
		}
		if opt.User != "" {
			node.uid, node.gid = who.uid, who.gid
		}
		return nil
	})
	if err != nil {
		return info, err
	}
	chunk := make([]byte, 64<<10)
	for {
		n, rerr := src.Read(chunk)
		if err := f.do(ctx, "Write", p, func() error {
			old := len(node.data)
			if err := f.b.grow(node, old+n); err != nil {
				return err
			}
			copy(node.data[old:], chunk[:n])
			node.mtime = f.b.now()
			info = node.info(path.Base(p))
			return nil
		}); err != nil {
			return info, err
		}
		if errors.Is(rerr, io.EOF) {
			return info, nil
		}
		if rerr != nil {
			return info, rerr
		}
	}
}

// Stat describes what is at p.
func (f files) Stat(ctx context.Context, p string) (sandbox.FileInfo, error) {
	var info sandbox.FileInfo
	err := f.do(ctx, "Stat", p, func() error {
		at, err := f.there(p, false)
		if err == nil {
			info = at.node.info(path.Base(p))
		}
		return err
	})
	return info, err
}

// List yields what is in a directory.
func (f files) List(ctx context.Context, p string) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		var infos []sandbox.FileInfo
		err := f.do(ctx, "List", p, func() error {
			at, err := f.there(p, true)
			if err != nil {
				return err
			}
			if !at.node.isDir() {
				return sandbox.Errorf(sandbox.Invalid, "path", "%q is not a directory", p).WithHint("name a directory")
			}
			for name, n := range at.node.entries {
				infos = append(infos, n.info(name))
			}
			return nil
		})
		if err != nil {
			yield(sandbox.FileInfo{}, err)
			return
		}
		sort.Slice(infos, func(i, j int) bool { return infos[i].Name < infos[j].Name })
		for _, i := range infos {
			if err := ctx.Err(); err != nil {
				yield(sandbox.FileInfo{}, err)
				return
			}
			if !yield(i, nil) {
				return
			}
		}
	}
}

// Mkdir makes a directory.
func (f files) Mkdir(ctx context.Context, p string, opt sandbox.MkdirOptions) error {
	return f.do(ctx, "Mkdir", p, func() error {
		who := f.b.admin
		if opt.User != "" {
			var err error
			if who, err = f.b.user(cred{}, opt.User); err != nil {
				return err
			}
		}
		if opt.Parents {
			at, err := f.walk(p, true)
			if err == nil && at.node != nil {
				if !at.node.isDir() {
					return eexist
				}
				return nil
			}
			if err := f.parents(path.Dir(path.Clean(p)), who); err != nil {
				return err
			}
		}
		at, err := f.walk(strings.TrimRight(p, "/"), false)
		if p == "/" || strings.Trim(p, "/") == "" {
			return eexist
		}
		switch {
		case err != nil:
			return err
		case at.node != nil:
			return eexist
		}
		n, err := f.b.create(cred{}, at, fs.ModeDir|mode(opt.Mode, 0o755))
		if err != nil {
			return err
		}
		n.uid, n.gid = who.uid, who.gid
		return nil
	})
}

// Rename moves a file.
func (f files) Rename(ctx context.Context, from, to string) error {
	if err := sandbox.CheckPath("path", to); err != nil {
		return sandbox.At(op("Rename"), f.b.id, err)
	}
	return f.do(ctx, "Rename", from, func() error {
		src, err := f.there(strings.TrimRight(from, "/")+tail(from), false)
		if err != nil {
			return err
		}
		dst, err := f.walk(strings.TrimRight(to, "/")+tail(to), false)
		if err != nil {
			return tell(to, err)
		}
		err = f.b.rename(cred{}, src, dst)
		switch {
		case err == exdev && src.node.mode.IsRegular() && (dst.node == nil || !dst.node.isDir()):
			return tell(to, f.b.move(src, dst))
		case err == enotempty || err == eisdir || err == enotdir:
			return sandbox.Errorf(sandbox.Conflict, "path", "%q cannot be replaced: %s", to, strings.ToLower(err.Error())).WithHint("remove it first")
		}
		return err
	})
}

// tail keeps the root a path.
func tail(p string) string {
	if strings.Trim(p, "/") == "" {
		return "/"
	}
	return ""
}

// move copies the regular file at src to dst, on another file system, and
// removes it.
func (b *box) move(src, dst place) error {
	if err := b.mayChange(cred{}, src.dir); err != nil {
		return err
	}
	old := dst.node
	if err := b.mayChange(cred{}, dst.dir); err != nil {
		return err
	}
	if err := b.charge(dst.dir.vol, int64(len(src.node.data))); err != nil {
		return err
	}
	if old != nil {
		b.unlink(dst)
	}
	n, err := b.create(cred{}, dst, src.node.mode)
	if err != nil {
		return err
	}
	n.uid, n.gid, n.mtime = src.node.uid, src.node.gid, src.node.mtime
	n.data = bytes.Clone(src.node.data)
	b.unlink(src)
	return nil
}

// Remove removes a file or a tree.
func (f files) Remove(ctx context.Context, p string, all bool) error {
	return f.do(ctx, "Remove", p, func() error {
		at, err := f.walk(strings.TrimRight(p, "/")+tail(p), false)
		if all {
			if err == enoent {
				return nil
			}
			if err != nil {
				return err
			}
			return f.b.removeAll(cred{}, at)
		}
		if err != nil {
			return err
		}
		return f.b.remove(cred{}, at)
	})
}

// changed finds a node whose attributes may be changed.
func (f files) changed(p string) (*inode, error) {
	at, err := f.there(p, true)
	switch {
	case err != nil:
		return nil, err
	case at.node.vol == f.b.dev():
		return nil, eacces
	case f.b.readOnly(at.node):
		return nil, erofs
	}
	return at.node, nil
}

// Chmod sets permission bits.
func (f files) Chmod(ctx context.Context, p string, m fs.FileMode) error {
	return f.do(ctx, "Chmod", p, func() error {
		n, err := f.changed(p)
		if err != nil {
			return err
		}
		n.mode = n.mode&^bits | m&bits
		return nil
	})
}

// Chown sets the owner.
func (f files) Chown(ctx context.Context, p, user string) error {
	return f.do(ctx, "Chown", p, func() error {
		if user == "" {
			return sandbox.Errorf(sandbox.Invalid, "user", "the user is empty").WithHint("use name, uid, name:group or uid:gid")
		}
		n, err := f.changed(p)
		if err != nil {
			return err
		}
		who, err := f.b.user(cred{gid: n.gid}, user)
		if err != nil {
			return err
		}
		n.uid, n.gid = who.uid, who.gid
		return nil
	})
}
