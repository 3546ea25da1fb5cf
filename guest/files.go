package guest

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"math"
	"sync"
	"time"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// Files returns the sandbox's file system.
func (c *Client) Files() sandbox.Files { return files{c} }

type files struct{ c *Client }

// ask is Client.call with the checks and the words of Files.
func (f files) ask(ctx context.Context, op string, path string, o proto.Op, req, m proto.Message) ([]int, error) {
	if err := sandbox.CheckPath("path", path); err != nil {
		return nil, f.c.error(op, err)
	}
	fds, err := f.c.callFor(ctx, o, req, m, nil, nil, func(a answer) {
		closeAll(a.fds)
		var opened proto.Opened
		if (o == proto.OpOpen || o == proto.OpCreate) && decode(a, &opened) == nil && opened.Handle != 0 {
			f.c.call(f.c.life, proto.OpClose, &proto.Handle{Handle: opened.Handle}, nil, nil)
		}
	}, false)
	if err != nil {
		return nil, f.c.error(op, err)
	}
	return fds, nil
}

// do is ask for what brings no descriptor.
func (f files) do(ctx context.Context, op string, path string, o proto.Op, req, m proto.Message) error {
	fds, err := f.ask(ctx, op, path, o, req, m)
	closeAll(fds)
	return err
}

func (f files) Open(ctx context.Context, path string, r sandbox.Range) (sandbox.File, error) {
	if r.Length < 0 {
		return nil, f.c.error("Open", sandbox.Errorf(sandbox.Invalid, "length", "%d is negative", r.Length))
	}
	var o proto.Opened
	fds, err := f.ask(ctx, "Open", path, proto.OpOpen, &proto.Path{Path: path}, &o)
	if err != nil {
		return nil, err
	}
	file := &file{ctx: ctx, info: infoOf(&o.Entry)}
	if file.from, err = f.c.reader(&o, fds); err != nil {
		return nil, f.c.error("Open", err)
	}
	size := file.info.Size
	file.at = r.Offset
	if r.Offset < 0 {
		file.at = max(0, size+r.Offset)
	}
	file.end = math.MaxInt64
	if r.Length > 0 && file.at <= math.MaxInt64-r.Length {
		file.end = file.at + r.Length
	}
	return file, nil
}

// A content is an open file of the guest's.
type content interface {
	io.ReaderAt
	io.Closer
}

// file is an open file.
type file struct {
	ctx  context.Context
	info sandbox.FileInfo

	mu      sync.Mutex
	from    content // nil once closed
	at, end int64
}

func (f *file) Info() sandbox.FileInfo { return f.info }

func (f *file) Read(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	if f.from == nil {
		return 0, fs.ErrClosed
	}
	if f.at >= f.end {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	n, err := f.from.ReadAt(b[:min(int64(len(b)), f.end-f.at)], f.at)
	f.at += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.from != nil {
		f.from.Close()
		f.from = nil
	}
	return nil
}

// carriedFile is a file that the guest reads, as much at a time as one message
// carries. It is used under the mutex of its file.
type carriedFile struct {
	c      *Client
	handle uint32
	ahead  []byte // what was read last
	from   int64  // where that begins
}

func (h *carriedFile) ReadAt(b []byte, at int64) (int, error) {
	if i := at - h.from; i >= 0 && i < int64(len(h.ahead)) {
		return copy(b, h.ahead[i:]), nil
	}
	var d proto.Data
	if _, err := h.c.call(h.c.life, proto.OpFread, &proto.Fread{Handle: h.handle, Offset: at, Max: proto.MaxPayload}, &d, nil); err != nil {
		return 0, h.c.error("Read", err)
	}
	if len(d.Data) == 0 {
		return 0, io.EOF
	}
	h.ahead, h.from = d.Data, at
	return copy(b, h.ahead), nil
}

func (h *carriedFile) Close() error {
	_, err := h.c.call(h.c.life, proto.OpClose, &proto.Handle{Handle: h.handle}, nil, nil)
	return err
}

// small is how much of a file is read before it is known whether one message
// can carry it all.
const small = 64 << 10

func (f files) Write(ctx context.Context, path string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	info, err := f.write(ctx, path, src, opt)
	if err != nil {
		return sandbox.FileInfo{}, f.c.error("Write", err)
	}
	return info, nil
}

func (f files) write(ctx context.Context, path string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	m := &proto.Create{Path: path, Mode: -1, User: opt.User, Parents: opt.Parents, Exclusive: opt.Exclusive, Append: opt.Append}
	if opt.Mode != 0 {
		m.Mode = int(modeBits(opt.Mode))
	}
	if err := checkUser(opt.User); err != nil {
		return sandbox.FileInfo{}, err
	}
	if err := sandbox.CheckPath("path", path); err != nil {
		return sandbox.FileInfo{}, err
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	n, err := readSome(src, (*buf)[:small])
	m.Data = (*buf)[:n]
	switch err {
	case io.EOF:
		m.Commit = true
		if err := ctx.Err(); err != nil {
			return sandbox.FileInfo{}, err
		}
	case nil:
	default:
		if !opt.Append || n == 0 {
			return sandbox.FileInfo{}, err
		}
		m.Commit = true // what was read before an error stays
		var o proto.Opened
		f.do(ctx, "Write", path, proto.OpCreate, m, &o)
		return sandbox.FileInfo{}, err
	}
	var o proto.Opened
	fds, err := f.ask(ctx, "Write", path, proto.OpCreate, m, &o)
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	if m.Commit {
		closeAll(fds)
		return infoOf(&o.Entry), nil
	}
	to, err := f.c.writer(&o, fds)
	if err == nil {
		room := *buf
		if !f.c.conn.passing() {
			room = make([]byte, proto.MaxPayload)
		}
		err = pour(ctx, to, src, room)
		if e := to.Close(); err == nil {
			err = e
		}
	}
	var e proto.Entry
	if err == nil {
		err = f.do(ctx, "Write", path, proto.OpCommit, &proto.Handle{Handle: o.Handle}, &e)
	}
	if err != nil {
		f.c.call(f.c.life, proto.OpClose, &proto.Handle{Handle: o.Handle}, nil, nil)
		return sandbox.FileInfo{}, err
	}
	return infoOf(&e), nil
}

// pour copies src to w until ctx ends.
func pour(ctx context.Context, w io.Writer, src io.Reader, buf []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// carriedDraft is a new file that the guest writes.
type carriedDraft struct {
	c      *Client
	handle uint32
}

func (h *carriedDraft) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		part := b[n:min(len(b), n+proto.MaxPayload)]
		if _, err := h.c.call(h.c.life, proto.OpFwrite, &proto.Fwrite{Handle: h.handle, Data: part}, nil, nil); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(b), nil
}

func (h *carriedDraft) Close() error { return nil } // commit closes it

func (f files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	var e proto.Entry
	if err := f.do(ctx, "Stat", path, proto.OpStat, &proto.Path{Path: path}, &e); err != nil {
		return sandbox.FileInfo{}, err
	}
	return infoOf(&e), nil
}

func (f files) List(ctx context.Context, path string) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		after := ""
		for {
			var es proto.Entries
			err := f.do(ctx, "List", path, proto.OpList, &proto.ListDir{Path: path, After: after, Max: 8192}, &es)
			if err == nil {
				for i := range es.List {
					if es.List[i].Name <= after { // the guest is not trusted to come to an end
						err = f.c.error("List", sandbox.Errorf(sandbox.Internal, "", "the guest lists out of order"))
						break
					}
					after = es.List[i].Name
					if !yield(infoOf(&es.List[i]), nil) {
						return
					}
				}
				if es.More && len(es.List) == 0 && err == nil {
					return // what was there has gone
				}
			}
			if err != nil {
				yield(sandbox.FileInfo{}, err)
				return
			}
			if !es.More {
				return
			}
		}
	}
}

func (f files) Mkdir(ctx context.Context, path string, opt sandbox.MkdirOptions) error {
	if err := checkUser(opt.User); err != nil {
		return f.c.error("Mkdir", err)
	}
	m := &proto.Mkdir{Path: path, Mode: -1, User: opt.User, Parents: opt.Parents}
	if opt.Mode != 0 {
		m.Mode = int(modeBits(opt.Mode))
	}
	return f.do(ctx, "Mkdir", path, proto.OpMkdir, m, nil)
}

func (f files) Rename(ctx context.Context, from, to string) error {
	if err := sandbox.CheckPath("path", to); err != nil {
		return f.c.error("Rename", err)
	}
	return f.do(ctx, "Rename", from, proto.OpRename, &proto.Rename{From: from, To: to}, nil)
}

func (f files) Remove(ctx context.Context, path string, all bool) error {
	return f.do(ctx, "Remove", path, proto.OpRemove, &proto.Remove{Path: path, All: all}, nil)
}

func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.do(ctx, "Chmod", path, proto.OpChmod, &proto.Chmod{Path: path, Mode: modeBits(mode)}, nil)
}

func (f files) Chown(ctx context.Context, path, user string) error {
	err := checkUser(user)
	if user == "" {
		err = sandbox.Errorf(sandbox.Invalid, "user", "there is no user")
	}
	if err != nil {
		return f.c.error("Chown", err)
	}
	return f.do(ctx, "Chown", path, proto.OpChown, &proto.Chown{Path: path, User: user}, nil)
}

func checkUser(user string) error { return sandbox.CheckUser("user", user) }

// The bits of st_mode, the same on every Linux.
const (
	typeBits = 0o170000
	fifo     = 0o010000
	charDev  = 0o020000
	dir      = 0o040000
	blockDev = 0o060000
	regular  = 0o100000
	symlink  = 0o120000
	sock     = 0o140000
	setuid   = 0o4000
	setgid   = 0o2000
	sticky   = 0o1000
)

// modeBits returns the permissions of m as chmod(2) takes them.
func modeBits(m fs.FileMode) uint32 {
	n := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		n |= setuid
	}
	if m&fs.ModeSetgid != 0 {
		n |= setgid
	}
	if m&fs.ModeSticky != 0 {
		n |= sticky
	}
	return n
}

// infoOf returns e as the caller gets it.
func infoOf(e *proto.Entry) sandbox.FileInfo {
	m := fs.FileMode(e.Mode & 0o777)
	switch e.Mode & typeBits {
	case fifo:
		m |= fs.ModeNamedPipe
	case charDev:
		m |= fs.ModeDevice | fs.ModeCharDevice
	case dir:
		m |= fs.ModeDir
	case blockDev:
		m |= fs.ModeDevice
	case regular:
	case symlink:
		m |= fs.ModeSymlink
	case sock:
		m |= fs.ModeSocket
	default:
		m |= fs.ModeIrregular
	}
	if e.Mode&setuid != 0 {
		m |= fs.ModeSetuid
	}
	if e.Mode&setgid != 0 {
		m |= fs.ModeSetgid
	}
	if e.Mode&sticky != 0 {
		m |= fs.ModeSticky
	}
	return sandbox.FileInfo{Name: e.Name, Size: max(e.Size, 0), Mode: m, Time: time.Unix(0, e.Time), UID: e.UID, GID: e.GID, Target: e.Target}
}

// readSome reads from src until b is full. Unlike io.ReadFull it does not take the
// end of src, which is io.EOF here however much was read, for an
// io.ErrUnexpectedEOF of src's own, such as an upload's that broke off.
func readSome(src io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = src.Read(b[n:])
		n += k
	}
	if n == len(b) {
		err = nil
	}
	return n, err
}
