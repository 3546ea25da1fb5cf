package linux

import (
	"context"
	"io"
	"io/fs"
	"iter"

	"github.com/atoll-run/atoll/sandbox"
)

// files is the guest's Files, whose errors say which sandbox and whether it
// is gone.
type files struct {
	guest sandbox.Files
	box   *box
}

func (f files) Open(ctx context.Context, path string, r sandbox.Range) (sandbox.File, error) {
	if err := f.box.check(); err != nil {
		return nil, sandbox.At("linux.Open", f.box.id, err)
	}
	file, err := f.guest.Open(ctx, path, r)
	return file, f.box.explain("linux.Open", err)
}

func (f files) Write(ctx context.Context, path string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	if err := f.box.check(); err != nil {
		return sandbox.FileInfo{}, sandbox.At("linux.Write", f.box.id, err)
	}
	info, err := f.guest.Write(ctx, path, src, opt)
	return info, f.box.explain("linux.Write", err)
}

func (f files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	if err := f.box.check(); err != nil {
		return sandbox.FileInfo{}, sandbox.At("linux.Stat", f.box.id, err)
	}
	info, err := f.guest.Stat(ctx, path)
	return info, f.box.explain("linux.Stat", err)
}

func (f files) List(ctx context.Context, path string) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		if err := f.box.check(); err != nil {
			yield(sandbox.FileInfo{}, sandbox.At("linux.List", f.box.id, err))
			return
		}
		for info, err := range f.guest.List(ctx, path) {
			if !yield(info, f.box.explain("linux.List", err)) {
				return
			}
		}
	}
}

// do is for what returns nothing but an error.
func (f files) do(op string, call func() error) error {
	if err := f.box.check(); err != nil {
		return sandbox.At(op, f.box.id, err)
	}
	return f.box.explain(op, call())
}

func (f files) Mkdir(ctx context.Context, path string, opt sandbox.MkdirOptions) error {
	return f.do("linux.Mkdir", func() error { return f.guest.Mkdir(ctx, path, opt) })
}

func (f files) Rename(ctx context.Context, from, to string) error {
	return f.do("linux.Rename", func() error { return f.guest.Rename(ctx, from, to) })
}

func (f files) Remove(ctx context.Context, path string, all bool) error {
	return f.do("linux.RemoveFile", func() error { return f.guest.Remove(ctx, path, all) })
}

func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.do("linux.Chmod", func() error { return f.guest.Chmod(ctx, path, mode) })
}

func (f files) Chown(ctx context.Context, path, user string) error {
	return f.do("linux.Chown", func() error { return f.guest.Chown(ctx, path, user) })
}
