package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// day is what entries of tests are from.
var day = time.Unix(1_700_000_000, 0)

// An entry is one of a layer's.
type entry struct {
	name string
	kind byte // 0 is a file, or a folder if the name ends in a slash
	text string
	link string
	mode int64 // 0 is 0644, or 0755
	uid  int
	pax  map[string]string
}

func file(name, text string) entry { return entry{name: name, text: text} }
func folderOf(name string) entry   { return entry{name: name + "/", kind: tar.TypeDir} }
func link(name, to string) entry   { return entry{name: name, kind: tar.TypeSymlink, link: to} }
func hard(name, to string) entry   { return entry{name: name, kind: tar.TypeLink, link: to} }
func device(name string) entry     { return entry{name: name, kind: tar.TypeChar} }
func with(entries ...entry) []entry {
	return entries
}

// pack writes a tar.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Uid: e.uid, Gid: e.uid, ModTime: day, PAXRecords: e.pax, Size: int64(len(e.text))}
		if h.Typeflag == tar.TypeXGlobalHeader {
			h = &tar.Header{Name: e.name, Typeflag: e.kind, PAXRecords: e.pax}
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if e.pax != nil {
			h.Format = tar.FormatPAX
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// open opens a store, and closes it with the test.
func open(t testing.TB, dir string, opt Options) *Store {
	t.Helper()
	s, err := Open(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tempDir is t.TempDir for folders that only their owner could empty.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-image-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeTree(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// wantKind fails unless err is of that kind and its public words have those.
func wantKind(t testing.TB, err error, kind sandbox.Kind, words string) {
	t.Helper()
	var e *sandbox.Error
	if kind == "" {
		if err != nil {
			t.Fatalf("the error is %v", err)
		}
		return
	}
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(e.Public(), words) {
		t.Fatalf("the error is %v (%s), want %s with %q", err, sandbox.KindOf(err), kind, words)
	}
}

// listing describes all below dir: names, modes, contents, targets.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%s %v", rel, st.Mode())
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " -> %s", to)
		case st.Mode().IsRegular():
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			if len(text) > 40 {
				text = fmt.Appendf(nil, "%d bytes %s", len(text), digestBytes(text))
			}
			fmt.Fprintf(&b, " %q %d", text, st.ModTime().UnixNano())
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
