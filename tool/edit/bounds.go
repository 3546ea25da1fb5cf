package edit

import (
	"archive/zip"
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/atoll-run/atoll/sandbox"
)

// malformed makes what a parser says an error of ours.
func malformed(err error) error {
	var e *sandbox.Error
	switch {
	case err == nil, errors.As(err, &e), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, errStopped):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "archive", Msg: "the archive ends early", Hint: "send it whole", Err: err}
	case errors.Is(err, zip.ErrAlgorithm):
		return &sandbox.Error{Kind: sandbox.Unsupported, Field: "archive", Msg: "the archive is compressed in a way that is not known here", Hint: "use deflate", Err: err}
	}
	return &sandbox.Error{Kind: sandbox.Invalid, Field: "archive", Msg: "this is not an archive, or a damaged one", Hint: "use tar, tar.gz or zip", Err: err}
}

func beyond(field string, max int64) error {
	return sandbox.Errorf(sandbox.Exhausted, field, "the archive is over the bound of %d", max).WithHint("send less at a time")
}

// A source is the archive as it comes.
type source struct {
	ctx  context.Context
	r    io.Reader
	left int64
	read int64
	err  error // what ended it, unless it was its end
}

func (s *source) Read(p []byte) (int, error) {
	if s.err == nil {
		s.err = s.ctx.Err()
	}
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.read += int64(n)
	if s.left -= int64(n); s.left < 0 {
		err = beyond("max_source", s.read+s.left)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// An unzipped is what comes out of gzip: contents, and all that is around
// them, of which there could be any amount as well.
type unzipped struct {
	u    *unpacker
	r    io.Reader
	left int64
	out  int64
	err  error // that it is over a bound
}

func (z *unzipped) Read(p []byte) (int, error) {
	if z.err != nil {
		return 0, z.err
	}
	n, err := z.r.Read(p)
	z.out += int64(n)
	if z.left -= int64(n); z.left < 0 {
		z.err = beyond("max_size", z.u.opt.MaxSize)
	} else {
		z.err = z.u.ratio(z.out, z.u.src.read)
	}
	if z.err != nil {
		return 0, z.err
	}
	return n, err
}

// ratio returns an error if out is too much to come of in.
func (u *unpacker) ratio(out, in int64) error {
	if out > 1<<20 && out/int64(u.opt.MaxRatio) > in {
		return sandbox.Errorf(sandbox.Exhausted, "max_ratio", "what comes out of the archive is more than %d times as large", u.opt.MaxRatio).WithHint("send it without compression")
	}
	return nil
}

// A content is what is in a file of an archive, up to the bounds.
type content struct {
	u    *unpacker
	e    *entry
	r    io.Reader
	read int64
	err  error // what ended it, unless it was its end
}

func (c *content) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p)
	c.read += int64(n)
	c.u.left -= int64(n)
	switch {
	case c.read > c.e.size:
		err = zip.ErrFormat // it said less, and what it said was held against the bounds
	case err == nil || errors.Is(err, io.EOF):
		err = cmp.Or(c.u.ratio(c.u.opt.MaxSize-c.u.left, c.u.src.read), err)
		if c.e.in > 0 {
			err = cmp.Or(c.u.ratio(c.read, c.e.in), err)
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
