package engine

import (
	"context"
	"io"
	"io/fs"
	"iter"

	"github.com/atoll-run/atoll/sandbox"
)

// files are a sandbox's files as one caller sees them. A call is a use of the
// sandbox, an open file is one until it is closed.
type files struct{ b box }

// with calls f with the files of the sandbox below.
func (f files) with(ctx context.Context, op string, do func(sandbox.Files) error) error {
	sb, done, err := f.b.use(ctx)
	if err != nil {
		return f.b.fail(op, err)
	}
	defer done()
	return f.b.fail(op, do(sb.Files()))
}

// changing is with for what changes a file, of which it tells.
func (f files) changing(ctx context.Context, op, what, path string, do func(sandbox.Files) error) error {
	err := f.with(ctx, op, do)
	if err == nil {
		f.b.e.emit(sandbox.Event{Kind: sandbox.EventWritten, Owner: f.b.en.owner, By: f.b.by, Sandbox: f.b.en.id, Name: f.b.en.name, Detail: what + " " + clip(path)})
	}
	return err
}

func (f files) Open(ctx context.Context, path string, r sandbox.Range) (sandbox.File, error) {
	const op = "engine.Files.Open"
	sb, done, err := f.b.use(ctx)
	if err != nil {
		return nil, f.b.fail(op, err)
	}
	file, err := sb.Files().Open(ctx, path, r)
	if err != nil {
		done()
		return nil, f.b.fail(op, err)
	}
	return &openFile{file, f.b.keep()}, nil
}

// An openFile is a use of the sandbox until it is closed.
type openFile struct {
	sandbox.File
	done func()
}

// WriteTo writes what is left of the file to w, by the shortest way that both
// have.
func (f *openFile) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, f.File) }

func (f *openFile) Close() error {
	defer f.done()
	return f.File.Close()
}

func (f files) Write(ctx context.Context, path string, src io.Reader, opt sandbox.WriteOptions) (info sandbox.FileInfo, err error) {
	err = f.changing(ctx, "engine.Files.Write", "write", path, func(fs sandbox.Files) error {
		info, err = fs.Write(ctx, path, src, opt)
		return err
	})
	return info, err
}

func (f files) Stat(ctx context.Context, path string) (info sandbox.FileInfo, err error) {
	err = f.with(ctx, "engine.Files.Stat", func(fs sandbox.Files) error {
		info, err = fs.Stat(ctx, path)
		return err
	})
	return info, err
}

func (f files) List(ctx context.Context, path string) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		const op = "engine.Files.List"
		sb, done, err := f.b.use(ctx)
		if err != nil {
			yield(sandbox.FileInfo{}, f.b.fail(op, err))
			return
		}
		defer done()
		for info, err := range sb.Files().List(ctx, path) {
			if err != nil {
				err = f.b.fail(op, err)
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

func (f files) Mkdir(ctx context.Context, path string, opt sandbox.MkdirOptions) error {
	return f.changing(ctx, "engine.Files.Mkdir", "mkdir", path, func(fs sandbox.Files) error { return fs.Mkdir(ctx, path, opt) })
}

func (f files) Rename(ctx context.Context, from, to string) error {
	return f.changing(ctx, "engine.Files.Rename", "rename", from, func(fs sandbox.Files) error { return fs.Rename(ctx, from, to) })
}

func (f files) Remove(ctx context.Context, path string, all bool) error {
	return f.changing(ctx, "engine.Files.Remove", "remove", path, func(fs sandbox.Files) error { return fs.Remove(ctx, path, all) })
}

func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.changing(ctx, "engine.Files.Chmod", "chmod", path, func(fs sandbox.Files) error { return fs.Chmod(ctx, path, mode) })
}

func (f files) Chown(ctx context.Context, path, user string) error {
	return f.changing(ctx, "engine.Files.Chown", "chown", path, func(fs sandbox.Files) error { return fs.Chown(ctx, path, user) })
}
