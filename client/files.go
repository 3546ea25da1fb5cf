package client

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// Files returns the sandbox's file system.
func (s *Sandbox) Files() sandbox.Files { return files{s} }

type files struct{ sb *Sandbox }

func (f files) request(op, method, path, file string) request {
	r := f.sb.request(op, method, "/files"+path)
	r.query = url.Values{"path": {file}}
	return r
}

// Open opens the regular file at path for reading.
func (f files) Open(ctx context.Context, path string, rg sandbox.Range) (sandbox.File, error) {
	r := f.request("client.Open", "GET", "", path)
	if rg.Offset != 0 {
		r.query.Set("offset", strconv.FormatInt(rg.Offset, 10))
	}
	if rg.Length != 0 {
		r.query.Set("length", strconv.FormatInt(rg.Length, 10))
	}
	r.hangUp = true
	a, err := f.sb.c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	var w wire.FileInfo
	if err := json.Unmarshal([]byte(a.Header.Get(wire.HeaderFile)), &w); err != nil {
		a.close()
		return nil, f.sb.c.broken(ctx, r, err)
	}
	return &file{sb: f.sb, ctx: ctx, r: r, a: a, info: w.Info()}, nil
}

// A file is the body of an answer.
type file struct {
	sb   *Sandbox
	ctx  context.Context // of Open: when it ends, reads fail
	r    request
	a    *answer
	info sandbox.FileInfo
}

func (f *file) Info() sandbox.FileInfo { return f.info }

func (f *file) Read(p []byte) (int, error) {
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.a.Body.Read(p)
	if err != nil && err != io.EOF {
		err = f.sb.c.broken(f.ctx, f.r, err)
	}
	return n, err
}

func (f *file) Close() error {
	f.a.close()
	return nil
}

// Write stores what it reads from src as the file at path. If src fails, the
// daemon is told so, and has thrown away what came when Write returns.
func (f files) Write(ctx context.Context, path string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	r := f.request("client.Write", "PUT", "", path)
	if opt.Mode != 0 {
		if err := plain(opt.Mode); err != nil {
			return sandbox.FileInfo{}, sandbox.At(r.op, f.sb.id, err)
		}
		r.query.Set("mode", wire.Mode(opt.Mode).String())
	}
	if opt.User != "" {
		r.query.Set("user", opt.User)
	}
	for name, set := range map[string]bool{"parents": opt.Parents, "exclusive": opt.Exclusive, "append": opt.Append} {
		if set {
			r.query.Set(name, "true")
		}
	}
	s := &source{src: src}
	r.raw, r.length = s, -1
	switch src := src.(type) { // these cannot fail
	case *bytes.Reader:
		r.length = int64(src.Len())
	case *bytes.Buffer:
		r.length = int64(src.Len())
	case *strings.Reader:
		r.length = int64(src.Len())
	default:
		s.trailer = http.Header{wire.TrailerAbort: nil}
		r.trailer = s.trailer
	}
	var w wire.FileInfo
	err := f.sb.c.json(ctx, r, &w)
	if failed := s.close(); failed != nil {
		return sandbox.FileInfo{}, sandbox.At(r.op, f.sb.id, failed)
	}
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	return w.Info(), nil
}

// plain returns an Invalid error if mode has other bits than chmod(2) knows.
func plain(mode fs.FileMode) error {
	if mode&^(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
		return sandbox.Errorf(sandbox.Invalid, "mode", "%v has other bits than permissions", mode).WithHint("use permission bits, setuid, setgid and sticky")
	}
	return nil
}

// source is what is uploaded. If its src fails it ends as if whole, and says
// otherwise in the trailer.
type source struct {
	trailer http.Header // read by net/http after the end of the body

	mu     sync.Mutex // held while reading: after close src is not touched
	src    io.Reader  // guarded by mu
	failed error      // guarded by mu
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.src == nil {
		return 0, io.ErrClosedPipe
	}
	n, err := s.src.Read(p)
	if err != nil && err != io.EOF && s.trailer != nil {
		s.failed = err
		s.trailer.Set(wire.TrailerAbort, "1")
		err = io.EOF
	}
	return n, err
}

// close returns the error of src, if it has failed. If somebody is stuck in
// reading from it, that is left to whoever gave it.
func (s *source) close() error {
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	s.src = nil
	return s.failed
}

// Stat describes what is at path.
func (f files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	var w wire.FileInfo
	if err := f.sb.c.json(ctx, f.request("client.Stat", "GET", "/stat", path), &w); err != nil {
		return sandbox.FileInfo{}, err
	}
	return w.Info(), nil
}

// List yields what is in the directory at path.
func (f files) List(ctx context.Context, path string) iter.Seq2[sandbox.FileInfo, error] {
	return list(ctx, f.sb.c, f.request("client.List", "GET", "/list", path), "entries", wire.FileInfo.Info)
}

// change sends body to one of the endpoints that change something.
func (f files) change(ctx context.Context, op, path string, body any) error {
	r := f.sb.request(op, "POST", "/files"+path)
	r.body = body
	return f.sb.c.json(ctx, r, nil)
}

// Mkdir makes a directory.
func (f files) Mkdir(ctx context.Context, path string, opt sandbox.MkdirOptions) error {
	if err := plain(opt.Mode); err != nil {
		return sandbox.At("client.Mkdir", f.sb.id, err)
	}
	return f.change(ctx, "client.Mkdir", "/mkdir", wire.Mkdir{Path: wire.Text(path), Mode: wire.Mode(opt.Mode), User: opt.User, Parents: opt.Parents})
}

// Rename moves what is at from to to.
func (f files) Rename(ctx context.Context, from, to string) error {
	return f.change(ctx, "client.Rename", "/rename", wire.Rename{From: wire.Text(from), To: wire.Text(to)})
}

// Remove removes what is at path.
func (f files) Remove(ctx context.Context, path string, all bool) error {
	r := f.request("client.Remove", "DELETE", "", path)
	if all {
		r.query.Set("all", "true")
	}
	return f.sb.c.json(ctx, r, nil)
}

// Chmod sets the permission bits of what path leads to.
func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	if err := plain(mode); err != nil {
		return sandbox.At("client.Chmod", f.sb.id, err)
	}
	m := wire.Mode(mode)
	return f.change(ctx, "client.Chmod", "/chmod", wire.Chmod{Path: wire.Text(path), Mode: &m})
}

// Chown gives what is at path to user.
func (f files) Chown(ctx context.Context, path, user string) error {
	return f.change(ctx, "client.Chown", "/chown", wire.Chown{Path: wire.Text(path), User: user})
}
