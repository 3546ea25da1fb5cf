package image

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
)

// maxWindow is how much memory a zstd stream may ask for: what zstd --ultra
// --long=27 needs.
const maxWindow = 128 << 20

// decompress looks at the first bytes of src and returns what reads the data:
// of gzip, zstd or bzip2, or src itself. What a media type says does not count,
// since many are wrong. The caller calls done when it reads no more.
func decompress(src io.Reader) (_ io.Reader, done func(), _ error) {
	b := bufio.NewReaderSize(src, 256<<10)
	magic, err := b.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, corrupt(err)
		}
		return &sound{z}, func() { z.Close() }, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(magic) >= 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:4], []byte{0x2a, 0x4d, 0x18}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, corrupt(err)
		}
		return &sound{z}, z.Close, nil
	case bytes.HasPrefix(magic, []byte("BZh")):
		return &sound{bzip2.NewReader(b)}, func() {}, nil
	case bytes.Equal(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return nil, nil, sandbox.Errorf(sandbox.Unsupported, "image", "it is compressed with xz").WithHint("use gzip or zstd")
	}
	return b, func() {}, nil
}

// sound makes what a decompressor finds wrong an error of the image's.
type sound struct{ r io.Reader }

func (s *sound) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = corrupt(err)
	}
	return n, err
}

func corrupt(err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: "its compressed data is damaged", Err: err}
}

// A counted counts what is read.
type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// A layerStream reads a layer's tar from its compressed form, in a goroutine
// of its own, so that decompressing and writing take a processor each. It
// knows the DiffID of what was read, and ends with an error when that grows
// beyond bounds. Who has it closes it.
type layerStream struct {
	chunks chan []byte
	free   chan []byte
	stop   chan struct{}
	ended  chan struct{}
	hash   hash.Hash // once ended
	err    error     // likewise; io.EOF if all is well
	rest   []byte
	chunk  []byte
}

func newLayerStream(ctx context.Context, src io.Reader, b Bounds) *layerStream {
	s := &layerStream{
		chunks: make(chan []byte, 4), free: make(chan []byte, 4),
		stop: make(chan struct{}), ended: make(chan struct{}), hash: sha256.New(),
	}
	for range cap(s.free) {
		s.free <- make([]byte, 256<<10)
	}
	go func() {
		defer close(s.ended)
		defer close(s.chunks)
		s.err = s.fill(ctx, src, b)
	}()
	return s
}

func (s *layerStream) fill(ctx context.Context, src io.Reader, b Bounds) error {
	in := &counted{r: src}
	r, done, err := decompress(in)
	if err != nil {
		return err
	}
	defer done()
	// A tar has up to a block for each entry, and one for its name.
	most := b.Layer + 4096*int64(b.Entries)
	var out int64
	for {
		var buf []byte
		select {
		case buf = <-s.free:
		case <-s.stop:
			return io.ErrClosedPipe
		}
		n, err := io.ReadFull(r, buf)
		if errors.Is(err, io.ErrUnexpectedEOF) && sandbox.KindOf(err) == sandbox.Internal {
			err = io.EOF
		}
		if out += int64(n); out > most {
			return bomb("a layer has more than %d bytes", b.Layer)
		}
		if out > slack && out/int64(b.Ratio) > in.n {
			return bomb("a layer is more than %d times as large as its compressed form", b.Ratio)
		}
		s.hash.Write(buf[:n])
		select {
		case s.chunks <- buf[:n]:
		case <-s.stop:
			return io.ErrClosedPipe
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

func (s *layerStream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.chunk != nil {
			s.free <- s.chunk[:cap(s.chunk)]
			s.chunk = nil
		}
		chunk, ok := <-s.chunks
		if !ok {
			return 0, s.err
		}
		s.chunk, s.rest = chunk, chunk
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// finish reads what follows the tar's end and returns the digest of all.
func (s *layerStream) finish() (string, error) {
	if _, err := io.Copy(io.Discard, s); err != nil {
		return "", err
	}
	<-s.ended
	return digestOf(s.hash), nil
}

func (s *layerStream) Close() error {
	close(s.stop)
	<-s.ended
	return nil
}
