package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// stall is how long an upload may stand still.
const stall = 5 * time.Minute

func (c *call) files() (sandbox.Files, error) {
	sb, err := c.open()
	if err != nil {
		return nil, err
	}
	return sb.Files(), nil
}

// openFile answers with a file's content: the part that offset and length say,
// with status 200; or the one that a Range header says, with 206.
func (c *call) openFile() error {
	offset, err := c.query.integer("offset", 0)
	if err != nil {
		return err
	}
	length, err := c.query.integer("length", 0)
	if err != nil {
		return err
	}
	r, status := sandbox.Range{Offset: offset, Length: length}, http.StatusOK
	if h := c.r.Header.Get("Range"); h != "" && r == (sandbox.Range{}) {
		if part, ok := parseRange(h); ok {
			r, status = part, http.StatusPartialContent
		}
	}
	fsys, err := c.files()
	if err != nil {
		return err
	}
	f, err := fsys.Open(c.ctx, c.query["path"], r)
	if err != nil {
		return err
	}
	defer f.Close()
	info := f.Info()
	start, n := part(info.Size, r)
	h := c.w.Header()
	h.Set("Content-Type", wire.Bytes)
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	h.Set("Last-Modified", info.Time.UTC().Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	h.Set(wire.HeaderFile, ascii(wire.FileInfoOf(info)))
	if status == http.StatusPartialContent {
		if n == 0 {
			h.Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
			h.Set("Content-Length", "0")
			status = http.StatusRequestedRangeNotSatisfiable
		} else {
			h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, start+n-1, info.Size))
		}
	}
	c.begun = true
	c.w.WriteHeader(status)
	if c.r.Method == http.MethodHead || n == 0 {
		return nil
	}
	// If the file has become shorter, net/http closes the connection, so that
	// the caller notices; if longer, what came later is not sent.
	_, err = io.Copy(&exactly{c.w, n}, f)
	if errors.Is(err, errEnough) {
		err = nil
	}
	return err
}

// part returns where in a file of size bytes r begins and how much it has.
func part(size int64, r sandbox.Range) (start, n int64) {
	start = r.Offset
	if start < 0 {
		start = max(0, size+start)
	}
	n = max(0, size-start)
	if r.Length > 0 {
		n = min(n, r.Length)
	}
	return start, n
}

// parseRange reads a Range header with one part. Another is as if it was not
// there, which RFC 9110 allows.
func parseRange(h string) (sandbox.Range, bool) {
	spec, ok := strings.CutPrefix(h, "bytes=")
	first, last, both := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !both || len(first) > 18 || len(last) > 18 {
		return sandbox.Range{}, false
	}
	a, errA := strconv.ParseUint(first, 10, 63)
	b, errB := strconv.ParseUint(last, 10, 63)
	switch {
	case first == "" && errB == nil && b > 0:
		return sandbox.Range{Offset: -int64(b)}, true
	case errA == nil && last == "":
		return sandbox.Range{Offset: int64(a)}, true
	case errA == nil && errB == nil && a <= b:
		return sandbox.Range{Offset: int64(a), Length: int64(b-a) + 1}, true
	}
	return sandbox.Range{}, false
}

var errEnough = errors.New("enough")

// exactly passes on n bytes and no more. It keeps the way open that io.Copy
// and net/http find from a file to a socket.
type exactly struct {
	w http.ResponseWriter
	n int64
}

func (e *exactly) Write(p []byte) (int, error) {
	if int64(len(p)) > e.n {
		n, err := e.w.Write(p[:e.n])
		e.n -= int64(n)
		if err == nil {
			err = errEnough
		}
		return n, err
	}
	n, err := e.w.Write(p)
	e.n -= int64(n)
	return n, err
}

// ReadFrom gives the ResponseWriter a LimitedReader of whatever is in r, since
// that is the one wrapper through which the net package sees a file.
func (e *exactly) ReadFrom(r io.Reader) (int64, error) {
	src, outer := r, (*io.LimitedReader)(nil)
	limit := e.n
	if l, ok := r.(*io.LimitedReader); ok {
		src, outer, limit = l.R, l, min(limit, l.N)
	}
	lr := &io.LimitedReader{R: src, N: limit}
	n, err := io.Copy(e.w, lr)
	if outer != nil {
		outer.N -= n
	}
	e.n -= n
	return n, err
}

// ascii returns v as JSON without any byte above 126, fit for a header.
func ascii(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own shapes cannot fail to encode
	}
	var s strings.Builder
	for _, r := range string(b) {
		switch {
		case r < 0x7f:
			s.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&s, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&s, `\u%04x`, r)
		}
	}
	return s.String()
}

func (c *call) writeFile() error {
	mode, err := c.query.mode("mode")
	if err != nil {
		return err
	}
	opt := sandbox.WriteOptions{Mode: fs.FileMode(mode), User: c.query["user"]}
	for name, to := range map[string]*bool{"parents": &opt.Parents, "exclusive": &opt.Exclusive, "append": &opt.Append} {
		if *to, err = c.query.boolean(name); err != nil {
			return err
		}
	}
	if e := c.r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "content-encoding", Msg: strconv.Quote(clip(e)) + " is not taken", Hint: "send the content as it is", Err: body.WrongType}
	}
	fsys, err := c.files()
	if err != nil {
		return err
	}
	rc := http.NewResponseController(c.w)
	// An error is answered at once, while the rest of the body is on its way:
	// the caller may not even have it yet.
	rc.EnableFullDuplex()
	src := &upload{c: c, rc: rc}
	// A Write that waits for the body hears of the end of its context so.
	defer context.AfterFunc(c.ctx, src.abandon)()
	info, err := fsys.Write(c.ctx, c.query["path"], src, opt)
	src.rest()
	if err != nil {
		if !src.ended {
			rc.SetReadDeadline(time.Now().Add(time.Second))
			c.w.Header().Set("Connection", "close")
		}
		if src.err != nil {
			err = src.err
		}
		return err
	}
	return c.reply(http.StatusOK, wire.FileInfoOf(info))
}

// upload is the body of an upload.
type upload struct {
	c     *call
	rc    *http.ResponseController
	ended bool  // the whole body was read
	err   error // the caller's or the connection's fault

	mu   sync.Mutex
	over bool // guarded by mu; the deadline for reading is not ours any more
}

func (u *upload) Read(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	u.deadline(time.Now().Add(stall), false)
	n, err := u.c.r.Body.Read(p)
	switch {
	case err == io.EOF:
		u.ended = true
		if u.c.r.Trailer.Get(wire.TrailerAbort) != "" {
			u.err = sandbox.Errorf(sandbox.Invalid, "body", "the upload was given up by its sender")
			return n, u.err
		}
	case err != nil:
		u.err = &sandbox.Error{Kind: sandbox.Invalid, Field: "body", Msg: "the body did not arrive whole", Err: err}
		if why, ok := context.Cause(u.c.ctx).(*sandbox.Error); ok {
			u.err = why // we gave up, not the caller
		}
		return n, u.err
	}
	return n, err
}

// abandon makes reading fail now and from now on.
func (u *upload) abandon() { u.deadline(time.Now(), true) }

// rest ends what Read did to the deadline.
func (u *upload) rest() { u.deadline(time.Time{}, true) }

func (u *upload) deadline(t time.Time, last bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		u.over = last
		u.rc.SetReadDeadline(t)
	}
}

func (c *call) removeFile() error {
	all, err := c.query.boolean("all")
	if err != nil {
		return err
	}
	fsys, err := c.files()
	if err != nil {
		return err
	}
	if err := fsys.Remove(c.ctx, c.query["path"], all); err != nil {
		return err
	}
	return c.done()
}

func (c *call) stat() error {
	fsys, err := c.files()
	if err != nil {
		return err
	}
	info, err := fsys.Stat(c.ctx, c.query["path"])
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, wire.FileInfoOf(info))
}

func (c *call) listFiles() error {
	fsys, err := c.files()
	if err != nil {
		return err
	}
	return stream(c, "entries", fsys.List(c.ctx, c.query["path"]), func(fi sandbox.FileInfo) any { return wire.FileInfoOf(fi) })
}

// change reads a request into req and lets do act on it.
func change[T any](c *call, do func(fsys sandbox.Files, req T) error) error {
	var req T
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	fsys, err := c.files()
	if err != nil {
		return err
	}
	if err := do(fsys, req); err != nil {
		return err
	}
	return c.done()
}

func (c *call) mkdir() error {
	return change(c, func(fsys sandbox.Files, m wire.Mkdir) error {
		return fsys.Mkdir(c.ctx, string(m.Path), sandbox.MkdirOptions{Mode: fs.FileMode(m.Mode), User: m.User, Parents: m.Parents})
	})
}

func (c *call) rename() error {
	return change(c, func(fsys sandbox.Files, m wire.Rename) error { return fsys.Rename(c.ctx, string(m.From), string(m.To)) })
}

func (c *call) chmod() error {
	return change(c, func(fsys sandbox.Files, m wire.Chmod) error {
		if m.Mode == nil {
			return sandbox.Errorf(sandbox.Invalid, "mode", "there is no mode").WithHint("give octal digits such as \"0644\"")
		}
		return fsys.Chmod(c.ctx, string(m.Path), fs.FileMode(*m.Mode))
	})
}

func (c *call) chown() error {
	return change(c, func(fsys sandbox.Files, m wire.Chown) error { return fsys.Chown(c.ctx, string(m.Path), m.User) })
}
