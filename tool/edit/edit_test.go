package edit_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
)

// newBox returns a sandbox that has these files, by their absolute paths; one
// that ends with a slash is a directory, one whose content begins with "-> " a
// link.
func newBox(t testing.TB, files map[string]string) sandbox.Sandbox {
	t.Helper()
	rt := memory.New(memory.Config{})
	t.Cleanup(func() { rt.Close() })
	sb, err := rt.Create(context.Background(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, sb, files)
	return sb
}

func put(t testing.TB, sb sandbox.Sandbox, files map[string]string) {
	t.Helper()
	ctx := context.Background()
	for p, content := range files {
		var err error
		switch target, link := strings.CutPrefix(content, "-> "); {
		case strings.HasSuffix(p, "/"):
			err = sb.Files().Mkdir(ctx, strings.TrimSuffix(p, "/"), sandbox.MkdirOptions{Parents: true})
		case link:
			if err = sb.Files().Mkdir(ctx, path.Dir(p), sandbox.MkdirOptions{Parents: true}); err == nil {
				var exit sandbox.Exit
				exit, err = sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"ln", "-s", target, p}})
				if err == nil && !exit.Success() {
					t.Fatalf("ln -s %q %q: %v", target, p, exit)
				}
			}
		default:
			_, err = sb.Files().Write(ctx, p, strings.NewReader(content), sandbox.WriteOptions{Parents: true})
		}
		if err != nil {
			t.Fatalf("%q: %v", p, err)
		}
	}
}

func content(t testing.TB, sb sandbox.Sandbox, p string) string {
	t.Helper()
	b, err := sandbox.ReadFile(context.Background(), sb, p, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// snapshot returns every path below root with its mode, and its content or
// target.
func snapshot(t testing.TB, sb sandbox.Sandbox, root string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for info, err := range sb.Files().List(context.Background(), root) {
		if err != nil {
			t.Fatal(err)
		}
		p := path.Join(root, info.Name)
		if p == "/proc" || p == "/sys" || p == "/dev" {
			continue
		}
		switch info.Mode.Type() {
		case fs.ModeDir:
			all[p+"/"] = info.Mode.String()
			for k, v := range snapshot(t, sb, p) {
				all[k] = v
			}
		case fs.ModeSymlink:
			all[p] = "-> " + info.Target
		case 0:
			all[p] = info.Mode.String() + " " + content(t, sb, p)
		default:
			all[p] = info.Mode.String()
		}
	}
	return all
}

// wants fails unless err has the kind and the field.
func wants(t testing.TB, err error, kind sandbox.Kind, field string) *sandbox.Error {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Field != field {
		t.Fatalf("got %v, want kind %s of field %q", err, kind, field)
	}
	if e.Op == "" || e.ID == "" {
		t.Errorf("the error says neither where nor whose: %#v", e)
	}
	return e
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// odd is a sandbox whose Files do something before what they always do.
type odd struct {
	sandbox.Sandbox
	list func(ctx context.Context, path string) error
	open func(ctx context.Context, path string) error
	read func() // before each piece of a file
}

func (o odd) Files() sandbox.Files { return oddFiles{o.Sandbox.Files(), o} }

type oddFiles struct {
	sandbox.Files
	odd odd
}

func (f oddFiles) List(ctx context.Context, p string) iter.Seq2[sandbox.FileInfo, error] {
	if f.odd.list != nil {
		if err := f.odd.list(ctx, p); err != nil {
			return func(yield func(sandbox.FileInfo, error) bool) { yield(sandbox.FileInfo{}, err) }
		}
	}
	return f.Files.List(ctx, p)
}

func (f oddFiles) Open(ctx context.Context, p string, r sandbox.Range) (sandbox.File, error) {
	if f.odd.open != nil {
		if err := f.odd.open(ctx, p); err != nil {
			return nil, err
		}
	}
	file, err := f.Files.Open(ctx, p, r)
	if err == nil && f.odd.read != nil {
		file = oddFile{file, f.odd.read}
	}
	return file, err
}

type oddFile struct {
	sandbox.File
	read func()
}

func (f oddFile) Read(p []byte) (int, error) {
	f.read()
	return f.File.Read(p)
}

var _ io.Reader = oddFile{}

func denied(p string) error {
	return sandbox.Errorf(sandbox.Denied, "path", "%q is not allowed", p)
}
