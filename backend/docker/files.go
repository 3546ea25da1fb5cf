package docker

import (
	"context"
	"io"
	"io/fs"
	"iter"

	"github.com/atoll-run/atoll/sandbox"
)

// files is the guest's Files, whose errors say which sandbox and whether it
// is gone.
type files struct{ box *box }

func (f files) guest(ctx context.Context) (sandbox.Files, error) {
	g, err := f.box.reach(ctx)
	if err != nil {
		return nil, err
	}
	return g.Files(), nil
}

func (f files) Open(ctx context.Context, path string, r sandbox.Range) (sandbox.File, error) {
	g, err := f.guest(ctx)
	if err != nil {
		return nil, f.box.explain("docker.Open", err)
	}
	file, err := g.Open(ctx, path, r)
	return file, f.box.explain("docker.Open", err)
}

func (f files) Write(ctx context.Context, path string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	g, err := f.guest(ctx)
	if err != nil {
		return sandbox.FileInfo{}, f.box.explain("docker.Write", err)
	}
	info, err := g.Write(ctx, path, src, opt)
	return info, f.box.explain("docker.Write", err)
}

func (f files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	g, err := f.guest(ctx)
	if err != nil {
		return sandbox.FileInfo{}, f.box.explain("docker.Stat", err)
	}
	info, err := g.Stat(ctx, path)
	return info, f.box.explain("docker.Stat", err)
}

func (f files) List(ctx context.Context, path string) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		g, err := f.guest(ctx)
		if err != nil {
			yield(sandbox.FileInfo{}, f.box.explain("docker.List", err))
			return
		}
		for info, err := range g.List(ctx, path) {
			if !yield(info, f.box.explain("docker.List", err)) {
				return
			}
		}
	}
}

// do is for what returns nothing but an error.
func (f files) do(ctx context.Context, op string, call func(sandbox.Files) error) error {
	g, err := f.guest(ctx)
	if err == nil {
		err = call(g)
	}
	return f.box.explain(op, err)
}

func (f files) Mkdir(ctx context.Context, path string, opt sandbox.MkdirOptions) error {
	return f.do(ctx, "docker.Mkdir", func(g sandbox.Files) error { return g.Mkdir(ctx, path, opt) })
}

func (f files) Rename(ctx context.Context, from, to string) error {
	return f.do(ctx, "docker.Rename", func(g sandbox.Files) error { return g.Rename(ctx, from, to) })
}

func (f files) Remove(ctx context.Context, path string, all bool) error {
	return f.do(ctx, "docker.RemoveFile", func(g sandbox.Files) error { return g.Remove(ctx, path, all) })
}

func (f files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.do(ctx, "docker.Chmod", func(g sandbox.Files) error { return g.Chmod(ctx, path, mode) })
}

func (f files) Chown(ctx context.Context, path, user string) error {
	return f.do(ctx, "docker.Chown", func(g sandbox.Files) error { return g.Chown(ctx, path, user) })
}
