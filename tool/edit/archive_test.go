package edit_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/edit"
)

var formats = []edit.Format{edit.Tar, edit.TarGzip, edit.Zip}

func TestPackedIsUnpacked(t *testing.T) {
	from := newBox(t, map[string]string{
		"/w/a": "content", "/w/.hidden/x": "h", "/w/sub/deep/f": strings.Repeat("large ", 50_000), "/w/empty/": "", "/w/none": "",
		"/w/new\nline": "n", "/w/not\xffutf8": "u", "/w/" + strings.Repeat("n", 250): "long name", "/w/skip/f": "",
		"/w/ünï": "x",
	})
	ok(t, from.Files().Chmod(t.Context(), "/w/a", 0o754|fs.ModeSetuid))
	ok(t, from.Files().Chmod(t.Context(), "/w/sub", 0o711|fs.ModeSticky))
	want := snapshot(t, from, "/w")
	delete(want, "/w/skip/")
	delete(want, "/w/skip/f")
	want["/w/a"] = strings.Replace(want["/w/a"], "u", "-", 1)
	want["/w/sub/"] = strings.Replace(want["/w/sub/"], "t", "", 1)
	for _, f := range formats {
		var b bytes.Buffer
		p, err := edit.Pack(t.Context(), from, "/w", &b, edit.PackOptions{Format: f, Ignore: []string{"skip"}})
		ok(t, err)
		if p.Entries != 12 || p.Skipped.Count != 0 || p.Size != 300_020 {
			t.Errorf("%s: packed %+v", f, p)
		}
		for name, mode := range modes(t, f, b.Bytes()) {
			if mode&^(fs.ModePerm|fs.ModeDir) != 0 {
				t.Errorf("%s: %q is packed as %v", f, name, mode)
			}
		}
		for _, opt := range []edit.UnpackOptions{{}, {Format: f, Whole: true}} {
			to := newBox(t, nil)
			u, err := edit.Unpack(t.Context(), to, &b, "/w", opt)
			if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
			if u.Files != 8 || u.Dirs != 4 || u.Size != p.Size || u.Skipped.Count != 0 {
				t.Errorf("%s: unpacked %+v", f, u)
			}
			if got := snapshot(t, to, "/w"); !maps.Equal(got, want) {
				t.Errorf("%s: got %.2000q\nwant %.2000q", f, got, want)
			}
			b.Reset()
			_, err = edit.Pack(t.Context(), from, "/w", &b, edit.PackOptions{Format: f, Ignore: []string{"skip"}})
			ok(t, err)
		}
	}
}

// modes returns what an archive says of its entries.
func modes(t testing.TB, f edit.Format, b []byte) map[string]fs.FileMode {
	t.Helper()
	all := make(map[string]fs.FileMode)
	if f == edit.Zip {
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		ok(t, err)
		for _, e := range z.File {
			all[e.Name] = e.Mode()
		}
		return all
	}
	var r io.Reader = bytes.NewReader(b)
	if f == edit.TarGzip {
		z, err := gzip.NewReader(r)
		ok(t, err)
		r = z
	}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if err == io.EOF {
			return all
		}
		ok(t, err)
		all[h.Name] = h.FileInfo().Mode()
	}
}

func TestPackSaysWhatItLeavesOut(t *testing.T) {
	sb := newBox(t, map[string]string{"/w/f": "x", "/w/l": "-> ../etc/passwd", `/w/back\slash`: "", "/w/secret/f": "", "/w/gone": "y"})
	exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"mkfifo", "/w/pipe"}})
	if err != nil || !exit.Success() {
		t.Fatal(exit, err)
	}
	odd := odd{Sandbox: sb, list: func(_ context.Context, p string) error {
		if p == "/w/secret" {
			return denied(p)
		}
		return nil
	}, open: func(_ context.Context, p string) error {
		if p == "/w/gone" {
			return sandbox.Errorf(sandbox.NotExist, "path", "%q is not there", p)
		}
		return nil
	}}
	var b bytes.Buffer
	p, err := edit.Pack(t.Context(), odd, "/w", &b, edit.PackOptions{Format: edit.Zip, Prefix: "top/of"})
	ok(t, err)
	var left []string
	for _, s := range p.Skipped.First {
		left = append(left, s.Path)
	}
	same(t, "left out", left, []string{`back\slash`, "gone", "pipe", "secret"})
	z, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	ok(t, err)
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name+" "+f.Mode().Type().String())
	}
	same(t, "packed", names, []string{"top/of/f ----------", "top/of/l L---------", "top/of/secret/ d---------"})
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b.Bytes()), "/to", edit.UnpackOptions{})
	wants(t, err, sandbox.Unsupported, "archive")
	u, err := edit.Unpack(t.Context(), sb, &b, "/to2", edit.UnpackOptions{SkipOthers: true})
	if ok(t, err); u.Skipped.Count != 1 || u.Skipped.First[0].Path != "top/of/l" || u.Files != 1 {
		t.Errorf("%+v", u)
	}
}

func TestPackBounds(t *testing.T) {
	sb := newBox(t, map[string]string{"/w/a": "12345", "/w/b": "12345", "/w/c/d": "12345"})
	for _, f := range formats {
		for _, c := range []struct {
			opt   edit.PackOptions
			field string
		}{{edit.PackOptions{MaxEntries: 3}, "max_entries"}, {edit.PackOptions{MaxSize: 14}, "max_size"}, {edit.PackOptions{MaxEntries: 4, MaxSize: 15}, ""}} {
			c.opt.Format = f
			_, err := edit.Pack(t.Context(), sb, "/w", io.Discard, c.opt)
			if c.field == "" {
				ok(t, err)
				continue
			}
			wants(t, err, sandbox.Exhausted, c.field)
		}
		_, err := edit.Pack(t.Context(), sb, "/none", io.Discard, edit.PackOptions{Format: f})
		wants(t, err, sandbox.NotExist, "path")
		_, err = edit.Pack(t.Context(), sb, "/w", full{}, edit.PackOptions{Format: f})
		if !errors.Is(err, errFull) {
			t.Errorf("%s: a writer that fails: %v", f, err)
		}
	}
	_, err := edit.Pack(t.Context(), sb, "/w", io.Discard, edit.PackOptions{})
	wants(t, err, sandbox.Invalid, "format")
	_, err = edit.Pack(t.Context(), sb, "/w", io.Discard, edit.PackOptions{Format: edit.Tar, Prefix: "../x"})
	wants(t, err, sandbox.Invalid, "prefix")
	synctest.Test(t, func(t *testing.T) {
		slow := odd{Sandbox: newBox(t, map[string]string{"/w/a": "x"}), open: func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }}
		_, err := edit.Pack(t.Context(), slow, "/w", io.Discard, edit.PackOptions{Format: edit.Tar})
		wants(t, err, sandbox.Exhausted, "time")
	})
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestPackTellsWhatChangesMeanwhile(t *testing.T) {
	for _, f := range []edit.Format{edit.Tar, edit.TarGzip} {
		sb := newBox(t, map[string]string{"/w/f": strings.Repeat("x", 300_000)})
		first := true
		cut := odd{Sandbox: sb, read: func() {
			if first { // in the place of it, as a process does
				first = false
				if exit, err := sandbox.Run(context.Background(), sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo short > /w/f"}}); err != nil || !exit.Success() {
					t.Error(exit, err)
				}
			}
		}}
		var b bytes.Buffer
		_, err := edit.Pack(t.Context(), cut, "/w", &b, edit.PackOptions{Format: f})
		wants(t, err, sandbox.Conflict, "path")
		_, err = edit.Unpack(t.Context(), sb, &b, "/to", edit.UnpackOptions{Format: f})
		wants(t, err, sandbox.Invalid, "archive")

		// One that grows is packed as far as it was.
		sb = newBox(t, map[string]string{"/w/f": strings.Repeat("x", 300_000)})
		first = true
		grow := odd{Sandbox: sb, read: func() {
			if first {
				first = false
				_, err := sb.Files().Write(context.Background(), "/w/f", strings.NewReader("more"), sandbox.WriteOptions{Append: true})
				if err != nil {
					t.Error(err)
				}
			}
		}}
		b.Reset()
		p, err := edit.Pack(t.Context(), grow, "/w", &b, edit.PackOptions{Format: f})
		if ok(t, err); p.Size != 300_000 {
			t.Errorf("%+v", p)
		}
	}
}

// A part is an entry of an archive that a test makes.
type part struct {
	name, content string
	kind          byte // of tar; 0 is a file
	link          string
	mode          int64
	pax           map[string]string
}

func makeTar(t testing.TB, parts ...part) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, p := range parts {
		h := &tar.Header{Name: p.name, Size: int64(len(p.content)), Typeflag: p.kind, Linkname: p.link, Mode: p.mode, PAXRecords: p.pax}
		if p.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		ok(t, w.WriteHeader(h))
		_, err := io.WriteString(w, p.content)
		ok(t, err)
	}
	ok(t, w.Close())
	return b.Bytes()
}

func makeZip(t testing.TB, parts ...part) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, p := range parts {
		h := &zip.FileHeader{Name: p.name, Method: zip.Deflate}
		switch p.kind {
		case tar.TypeSymlink:
			h.SetMode(fs.ModeSymlink | 0o777)
			p.content = p.link
		case tar.TypeChar:
			h.SetMode(fs.ModeDevice | fs.ModeCharDevice | 0o666)
		case tar.TypeFifo:
			h.SetMode(fs.ModeNamedPipe | 0o666)
		case tar.TypeDir:
			h.SetMode(fs.ModeDir | fs.FileMode(p.mode))
		default:
			if p.mode != 0 {
				h.SetMode(fs.FileMode(p.mode&0o777) | fs.FileMode(p.mode&0o4000)<<12)
			}
		}
		f, err := w.CreateHeader(h)
		ok(t, err)
		if _, err = io.WriteString(f, p.content); err != nil && p.kind != tar.TypeDir {
			t.Fatal(err)
		}
	}
	ok(t, w.Close())
	return b.Bytes()
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	ok(t, err)
	ok(t, w.Close())
	return out.Bytes()
}

// What no archive may do. Whatever is refused, nothing outside of the target
// changes.
func TestUnpackRefuses(t *testing.T) {
	deep := strings.Repeat("d/", 100) + "f"
	for _, c := range []struct {
		name  string
		parts []part
		kind  sandbox.Kind
		field string
		only  edit.Format // made in no other
	}{
		{"up", []part{{name: "../evil", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"up in the middle", []part{{name: "a/../../evil", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"up that stays", []part{{name: "a/../b", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"absolute", []part{{name: "/etc/evil", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"backslash", []part{{name: `..\evil`, content: "x"}}, sandbox.Invalid, "archive", edit.Zip},
		{"drive", []part{{name: "C:evil", content: "x"}}, sandbox.Invalid, "archive", edit.Zip},
		{"NUL", []part{{name: "a\x00b", content: "x"}}, sandbox.Invalid, "archive", edit.Zip},
		{"no name", []part{{name: "", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"the directory as a file", []part{{name: ".", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"long name", []part{{name: strings.Repeat("n", 256), content: "x"}}, sandbox.Invalid, "archive", ""},
		{"deep", []part{{name: deep, content: "x"}}, sandbox.Invalid, "archive", ""},
		{"twice", []part{{name: "a", content: "1"}, {name: "./a", content: "2"}}, sandbox.Invalid, "archive", ""},
		{"file and directory", []part{{name: "a", content: "1"}, {name: "a/b", content: "2"}}, sandbox.Invalid, "archive", ""},
		{"directory and file", []part{{name: "a/b", content: "1"}, {name: "a", content: "2"}}, sandbox.Invalid, "archive", ""},
		{"symlink", []part{{name: "l", kind: tar.TypeSymlink, link: "/etc/passwd"}}, sandbox.Unsupported, "archive", ""},
		{"symlink, then a file", []part{{name: "l", kind: tar.TypeSymlink, link: "/etc"}, {name: "l/evil", content: "x"}}, sandbox.Unsupported, "archive", ""},
		{"hard link", []part{{name: "h", kind: tar.TypeLink, link: "/etc/passwd"}}, sandbox.Unsupported, "archive", edit.Tar},
		{"device", []part{{name: "d", kind: tar.TypeChar}}, sandbox.Invalid, "archive", ""},
		{"block device", []part{{name: "d", kind: tar.TypeBlock}}, sandbox.Invalid, "archive", edit.Tar},
		{"FIFO", []part{{name: "p", kind: tar.TypeFifo}}, sandbox.Invalid, "archive", ""},
		{"through a link that is there", []part{{name: "out/evil", content: "x"}}, sandbox.Conflict, "path", ""},
		{"onto a link that is there", []part{{name: "outfile", content: "x"}}, sandbox.Conflict, "path", ""},
		{"a directory onto a link that is there", []part{{name: "out/", kind: tar.TypeDir}}, sandbox.Conflict, "path", ""},
		{"through a link below", []part{{name: "sub/up/../evil", content: "x"}}, sandbox.Invalid, "archive", ""},
		{"through a link below, plainly", []part{{name: "sub/up/evil", content: "x"}}, sandbox.Conflict, "path", ""},
		{"a file onto a directory", []part{{name: "sub", content: "x"}}, sandbox.Conflict, "path", ""},
		{"a directory onto a file", []part{{name: "plain/", kind: tar.TypeDir}}, sandbox.Conflict, "path", ""},
		{"below a file", []part{{name: "plain/x", content: "x"}}, sandbox.Conflict, "path", ""},
	} {
		for _, f := range formats {
			if c.only != "" && c.only != f && !(c.only == edit.Tar && f == edit.TarGzip) {
				continue
			}
			var b []byte
			if f == edit.Zip {
				b = makeZip(t, c.parts...)
			} else if b = makeTar(t, c.parts...); f == edit.TarGzip {
				b = zipped(t, b)
			}
			sb := newBox(t, map[string]string{
				"/safe/f": "mine", "/outfile": "mine", "/w/out": "-> /safe", "/w/outfile": "-> /outfile", "/w/sub/up": "-> ../..", "/w/plain": "p",
			})
			before := snapshot(t, sb, "/")
			_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{})
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Kind != c.kind || e.Field != c.field {
				t.Errorf("%s in %s: %v", c.name, f, err)
			}
			outside(t, before, snapshot(t, sb, "/"))
			if !strings.Contains(c.name, "ile") && !strings.Contains(c.name, "link") {
				_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/whole", edit.UnpackOptions{Whole: true})
				if err == nil {
					t.Errorf("%s in %s is unpacked", c.name, f)
				}
				outside(t, before, snapshot(t, sb, "/"))
			}
		}
	}
}

// outside fails unless everything but what is below /w is the same.
func outside(t testing.TB, before, after map[string]string) {
	t.Helper()
	for _, m := range []map[string]string{before, after} {
		for p := range m {
			if !strings.HasPrefix(p, "/w/") && before[p] != after[p] {
				t.Errorf("%q was %.100q and is %.100q", p, before[p], after[p])
			}
		}
	}
}

func TestUnpackSkipsWhatCannotBeMade(t *testing.T) {
	b := makeTar(t, part{name: "a", content: "x"}, part{name: "l", kind: tar.TypeSymlink, link: "/etc"}, part{name: "h", kind: tar.TypeLink, link: "a"},
		part{name: "d", kind: tar.TypeChar}, part{name: "p", kind: tar.TypeFifo}, part{name: "z", content: "z"})
	sb := newBox(t, nil)
	u, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{SkipOthers: true})
	if ok(t, err); u.Files != 2 || u.Skipped.Count != 4 {
		t.Errorf("%+v", u)
	}
	b = makeTar(t, part{name: "l", kind: tar.TypeSymlink, link: "/etc"}, part{name: "l/evil", content: "x"})
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w2", edit.UnpackOptions{SkipOthers: true})
	wants(t, err, sandbox.Invalid, "archive")
}

func TestUnpackDropsSpecialBits(t *testing.T) {
	parts := []part{{name: "su", content: "x", mode: 0o4755, pax: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02"}}, {name: "d/", kind: tar.TypeDir, mode: 0o1777}, {name: "d/f", content: "x", mode: 0o600}, {name: "i/f", content: "x", mode: 0o640}, {name: "late/f", content: "x"}, {name: "late/", kind: tar.TypeDir, mode: 0o711}}
	for _, b := range [][]byte{makeTar(t, parts...), makeZip(t, parts...)} {
		sb := newBox(t, nil)
		_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{User: "1234:77"})
		ok(t, err)
		for p, want := range map[string]fs.FileMode{"/w/su": 0o755, "/w/d": fs.ModeDir | 0o777, "/w/d/f": 0o600, "/w/i": fs.ModeDir | 0o755, "/w/i/f": 0o640, "/w/late": fs.ModeDir | 0o711} {
			info, err := sb.Files().Stat(t.Context(), p)
			if ok(t, err); info.Mode != want || info.UID != 1234 || info.GID != 77 {
				t.Errorf("%s is %v of %d:%d, want %v", p, info.Mode, info.UID, info.GID, want)
			}
		}
		_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w2", edit.UnpackOptions{FileMode: 0o644, DirMode: 0o755})
		ok(t, err)
		for p, want := range map[string]fs.FileMode{"/w2/su": 0o644, "/w2/d": fs.ModeDir | 0o755} {
			info, err := sb.Files().Stat(t.Context(), p)
			if ok(t, err); info.Mode != want {
				t.Errorf("%s is %v, want %v", p, info.Mode, want)
			}
		}
	}
}

func TestUnpackBounds(t *testing.T) {
	parts := []part{{name: "a/b/c", content: "12345"}, {name: "d", content: "1234567890"}, {name: "e/", kind: tar.TypeDir}}
	zeros := part{name: "zeros", content: strings.Repeat("\x00", 3<<20)}
	for _, c := range []struct {
		opt   edit.UnpackOptions
		parts []part
		field string
	}{
		{edit.UnpackOptions{MaxEntries: 5, MaxFile: 10, MaxSize: 15, MaxDepth: 3}, parts, ""},
		{edit.UnpackOptions{MaxEntries: 4}, parts, "max_entries"}, // with the directories that it does not name
		{edit.UnpackOptions{MaxFile: 9}, parts, "max_file"},
		{edit.UnpackOptions{MaxSize: 14}, parts, "max_size"},
		{edit.UnpackOptions{MaxDepth: 2}, parts, "archive"},
		{edit.UnpackOptions{MaxSource: 100}, parts, "max_source"},
		{edit.UnpackOptions{}, []part{zeros}, "max_ratio"},
		{edit.UnpackOptions{MaxRatio: 2000}, []part{zeros}, ""},
		{edit.UnpackOptions{MaxRatio: 2000, MaxFile: 3<<20 - 1}, []part{zeros}, "max_file"},
	} {
		for _, f := range formats {
			var b []byte
			switch f {
			case edit.Zip:
				b = makeZip(t, c.parts...)
			case edit.TarGzip:
				b = zipped(t, makeTar(t, c.parts...))
			case edit.Tar:
				if c.field == "max_ratio" {
					continue
				}
				b = makeTar(t, c.parts...)
			}
			sb := newBox(t, map[string]string{"/keep": "x"})
			for _, whole := range []bool{false, true} {
				c.opt.Whole = whole
				to := fmt.Sprintf("/to-%v", whole)
				u, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), to, c.opt)
				switch {
				case c.field == "":
					if err != nil {
						t.Errorf("%+v in %s: %v", c.opt, f, err)
					}
					continue
				case c.field == "archive":
					wants(t, err, sandbox.Invalid, "archive")
				default:
					if sandbox.KindOf(err) != sandbox.Exhausted {
						t.Fatalf("%+v in %s: %v", c.opt, f, err)
					}
					wants(t, err, sandbox.Exhausted, c.field)
				}
				if whole {
					if _, err := sb.Files().Stat(t.Context(), to); !errors.Is(err, sandbox.NotExist) || u.Files > 0 {
						t.Errorf("%+v in %s: something is there: %v, %+v", c.opt, f, err, u)
					}
					for info, err := range sb.Files().List(t.Context(), "/") {
						if ok(t, err); strings.HasPrefix(info.Name, ".unpack") {
							t.Errorf("%s is left over", info.Name)
						}
					}
				}
			}
		}
	}
}

// endless yields the same bytes for ever, and counts them.
type endless struct {
	piece []byte
	read  int64
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.piece[(e.read+int64(n))%int64(len(e.piece)):])
	}
	e.read += int64(n)
	return n, nil
}

// An archive that never ends is cut by a bound, whatever it is full of.
func TestUnpackEndlessArchives(t *testing.T) {
	header := func(name string, kind byte, pax map[string]string) []byte {
		b := makeTar(t, part{name: name, kind: kind, pax: pax})
		return b[:len(b)-1024]
	}
	// Directories are the same over and over, which is allowed.
	for name, c := range map[string]struct {
		piece []byte
		field string
	}{
		"directories":    {header("d/", tar.TypeDir, nil), "max_entries"},
		"global headers": {header("", tar.TypeXGlobalHeader, map[string]string{"comment": "x"}), "max_entries"},
		"zeros":          {make([]byte, 512), ""},
		"long names":     {gnuLongName(), "max_source"},
	} {
		sb := newBox(t, nil)
		src := &endless{piece: c.piece}
		_, err := edit.Unpack(t.Context(), sb, src, "/w", edit.UnpackOptions{Format: edit.Tar, MaxEntries: 1000, MaxSource: 16 << 20})
		if name == "zeros" { // the end of a tar
			ok(t, err)
		} else {
			wants(t, err, sandbox.Exhausted, c.field)
		}
		if src.read > 17<<20 {
			t.Errorf("%s: %d bytes are read", name, src.read)
		}

		// The same in gzip, which makes it small.
		pr, pw := io.Pipe()
		done := make(chan error)
		go func() {
			w := gzip.NewWriter(pw)
			_, err := io.Copy(w, io.LimitReader(&endless{piece: c.piece}, 1<<30))
			pw.Close()
			done <- err
		}()
		_, err = edit.Unpack(t.Context(), sb, pr, "/w2", edit.UnpackOptions{Format: edit.TarGzip, MaxEntries: 1000, MaxSize: 1 << 20, MaxRatio: 2000})
		pr.Close()
		<-done
		if sandbox.KindOf(err) != sandbox.Exhausted {
			t.Errorf("%s in gzip: %v", name, err)
		}
	}
}

// gnuLongName returns a header that gives the next entry its name.
func gnuLongName() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: strings.Repeat("n", 200), Typeflag: tar.TypeDir, Format: tar.FormatGNU})
	return b.Bytes()[:1024] // the header and the name, less what they are for
}

// An archive in an archive is a file, so a bomb of bombs is one small layer.
func TestUnpackDoesNotRecurse(t *testing.T) {
	inner := makeZip(t, part{name: "zeros", content: strings.Repeat("\x00", 4<<20)})
	for range 5 {
		var parts []part
		for i := range 16 {
			parts = append(parts, part{name: fmt.Sprintf("%d.zip", i), content: string(inner)})
		}
		inner = makeZip(t, parts...)
	}
	sb := newBox(t, nil)
	u, err := edit.Unpack(t.Context(), sb, bytes.NewReader(inner), "/w", edit.UnpackOptions{})
	if ok(t, err); u.Files != 16 || u.Size > 1<<20 {
		t.Errorf("%+v", u)
	}
}

// Entries that share their data make much of little: they are counted as they
// come out.
func TestUnpackOverlappingZip(t *testing.T) {
	one := makeZip(t, part{name: "000000", content: strings.Repeat("\x00", 1<<20)})
	at := bytes.Index(one, []byte("PK\x01\x02"))
	end := bytes.Index(one, []byte("PK\x05\x06"))
	data, dir, last := one[:at], one[at:end], bytes.Clone(one[end:])
	b := bytes.Clone(data)
	for i := range 5000 {
		d := bytes.Clone(dir)
		copy(d[46:], fmt.Sprintf("%06d", i))
		b = append(b, d...)
	}
	last[8], last[9], last[10], last[11] = 5000&0xff, 5000>>8, 5000&0xff, 5000>>8
	size := len(b) - at
	last[12], last[13], last[14], last[15] = byte(size), byte(size>>8), byte(size>>16), byte(size>>24)
	b = append(b, last...)
	sb := newBox(t, nil)
	u, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{})
	wants(t, err, sandbox.Exhausted, "max_ratio")
	if u.Files > 100 {
		t.Errorf("%+v", u)
	}
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w2", edit.UnpackOptions{MaxEntries: 4999})
	wants(t, err, sandbox.Exhausted, "max_entries")
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w2", edit.UnpackOptions{MaxEntries: 100})
	if e := wants(t, err, sandbox.Exhausted, "max_entries"); !strings.Contains(e.Msg, "directory") {
		t.Errorf("the directory is read to its end: %v", err)
	}
	if n := count(t, sb, "/w2"); n != 0 {
		t.Errorf("%d are unpacked of too many", n)
	}
}

func count(t testing.TB, sb sandbox.Sandbox, dir string) (n int) {
	t.Helper()
	for _, err := range sb.Files().List(context.Background(), dir) {
		ok(t, err)
		n++
	}
	return n
}

// A file that is longer than its archive says does not get past the bounds.
func TestUnpackZipLiesAboutSize(t *testing.T) {
	b := makeZip(t, part{name: "a", content: strings.Repeat("x", 5000)})
	for i := 0; ; { // in the directory, and behind the data
		at := bytes.Index(b[i:], []byte{0x88, 0x13, 0, 0})
		if at < 0 {
			break
		}
		i += at
		b[i], b[i+1] = 10, 0
	}
	sb := newBox(t, nil)
	_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{MaxFile: 100})
	wants(t, err, sandbox.Invalid, "archive")
	if n := count(t, sb, "/w"); n != 0 {
		t.Errorf("%d files are there", n)
	}
}

// A zip64 archive may say that it has any number of entries.
func TestUnpackZip64Lies(t *testing.T) {
	b := makeZip(t, part{name: "a", content: "x"})
	at := bytes.Index(b, []byte("PK\x01\x02"))
	end := bytes.Index(b, []byte("PK\x05\x06"))
	record := make([]byte, 56)
	copy(record, "PK\x06\x06\x2c")
	for i := range 8 {
		record[24+i], record[32+i] = 0x0f, 0x0f
	}
	record[31], record[39] = 0, 0
	record[40] = byte(end - at)
	record[48] = byte(at)
	locator := append([]byte("PK\x06\x07\x00\x00\x00\x00"), byte(end), byte(end>>8), 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)
	last := bytes.Clone(b[end:])
	for i := 8; i < 20; i++ {
		last[i] = 0xff
	}
	all := bytes.Join([][]byte{b[:end], record, locator, last}, nil)
	_, err := edit.Unpack(t.Context(), newBox(t, nil), bytes.NewReader(all), "/w", edit.UnpackOptions{})
	wants(t, err, sandbox.Exhausted, "max_entries")
}

func TestUnpackDamaged(t *testing.T) {
	big := part{name: "big", content: strings.Repeat("0123456789abcdef", 20_000)}
	for _, f := range formats {
		b := makeTar(t, part{name: "a", content: "aaa"}, big)
		switch f {
		case edit.TarGzip:
			b = zipped(t, b)
		case edit.Zip:
			b = makeZip(t, part{name: "a", content: "aaa"}, big)
		}
		for _, cut := range []int{0, 1, 100, len(b) / 2, len(b) - 1100, len(b) - 600, len(b) - 10} {
			if cut < 0 {
				continue
			}
			sb := newBox(t, nil)
			_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b[:cut]), "/w", edit.UnpackOptions{Format: f, Whole: true})
			if f == edit.Tar && cut == len(b)-600 || f == edit.Tar && cut == len(b)-10 {
				if err == nil {
					continue // one block of the end marker will do
				}
			}
			wants(t, err, sandbox.Invalid, "archive")
			if n := count(t, sb, "/"); n != count(t, newBox(t, nil), "/") {
				t.Errorf("%s cut at %d: something is left over", f, cut)
			}
		}
		wrong := bytes.Clone(b)
		wrong[len(b)/2]++
		_, err := edit.Unpack(t.Context(), newBox(t, nil), bytes.NewReader(wrong), "/w", edit.UnpackOptions{Format: f})
		if f != edit.Tar { // which has no checksum of contents
			wants(t, err, sandbox.Invalid, "archive")
		}
		_, err = edit.Unpack(t.Context(), newBox(t, nil), strings.NewReader("this is no archive at all, whatever it is called"), "/w", edit.UnpackOptions{Format: f})
		wants(t, err, sandbox.Invalid, "archive")

		// What the source says, it says; and what was there before stays.
		broken := errors.New("the line is dead")
		sb := newBox(t, map[string]string{"/w/a": "old"})
		_, err = edit.Unpack(t.Context(), sb, io.MultiReader(bytes.NewReader(b[:len(b)/2]), iotest.ErrReader(broken)), "/w", edit.UnpackOptions{Format: f})
		if !errors.Is(err, broken) {
			t.Errorf("%s: a source that fails: %v", f, err)
		}
	}
	_, err := edit.Unpack(t.Context(), newBox(t, nil), strings.NewReader(""), "/w", edit.UnpackOptions{Format: "rar"})
	wants(t, err, sandbox.Invalid, "format")
}

func TestUnpackOntoWhatIsThere(t *testing.T) {
	b := makeTar(t, part{name: "a", content: "new", mode: 0o600}, part{name: "d/f", content: "new"})
	sb := newBox(t, map[string]string{"/w/a": "old", "/w/d/g": "stays", "/via": "-> w"})
	_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/via", edit.UnpackOptions{Exclusive: true})
	wants(t, err, sandbox.Conflict, "path")
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{Whole: true})
	wants(t, err, sandbox.Conflict, "path")
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w/a", edit.UnpackOptions{Whole: true})
	wants(t, err, sandbox.Conflict, "path")
	if content(t, sb, "/w/a") != "old" {
		t.Error("it was replaced all the same")
	}
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/via", edit.UnpackOptions{})
	ok(t, err)
	if content(t, sb, "/w/a") != "new" || content(t, sb, "/w/d/f") != "new" || content(t, sb, "/w/d/g") != "stays" {
		t.Errorf("%q", snapshot(t, sb, "/w"))
	}
	put(t, sb, map[string]string{"/fresh/": ""})
	for _, to := range []string{"/fresh", "/x/y/new/"} {
		_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), to, edit.UnpackOptions{Whole: true})
		ok(t, err)
		if content(t, sb, to+"/d/f") != "new" {
			t.Errorf("%s is not unpacked", to)
		}
	}
}

func TestUnpackMap(t *testing.T) {
	b := makeZip(t, part{name: "top/a", content: "a"}, part{name: "top/b/c", content: "c"}, part{name: "other", content: "o"})
	sb := newBox(t, nil)
	strip := func(name string) (string, bool) { return strings.CutPrefix(name, "top/") }
	_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{Map: strip})
	ok(t, err)
	if got := snapshot(t, sb, "/w"); len(got) != 3 || content(t, sb, "/w/b/c") != "c" {
		t.Errorf("%q", got)
	}
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{Map: func(n string) (string, bool) { return "../" + n, true }})
	wants(t, err, sandbox.Invalid, "archive")
}

// A zip has to be kept somewhere, and leaves nothing there.
func TestUnpackSpool(t *testing.T) {
	noise := make([]byte, 3<<20)
	x := crc32.ChecksumIEEE([]byte("seed"))
	for i := range noise {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	b := makeZip(t, part{name: "noise", content: string(noise)})
	dir := t.TempDir()
	sb := newBox(t, nil)
	_, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w", edit.UnpackOptions{Spool: dir})
	ok(t, err)
	if content(t, sb, "/w/noise") != string(noise) {
		t.Error("it came out changed")
	}
	_, err = edit.Unpack(t.Context(), sb, &endless{piece: b}, "/w2", edit.UnpackOptions{Spool: dir, Format: edit.Zip, MaxSource: 9 << 20})
	wants(t, err, sandbox.Exhausted, "max_source")
	left, err := os.ReadDir(dir)
	if ok(t, err); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
	_, err = edit.Unpack(t.Context(), sb, bytes.NewReader(b), "/w3", edit.UnpackOptions{Spool: dir + "/none"})
	wants(t, err, sandbox.Unavailable, "archive")
}

func TestUnpackTime(t *testing.T) {
	b := makeTar(t, part{name: "a", content: "x"}, part{name: "b", content: "x"})
	synctest.Test(t, func(t *testing.T) {
		sb := newBox(t, nil)
		slow := readerFunc(func(p []byte) (int, error) { time.Sleep(time.Second); return copy(p, b[:min(len(b), 100)]), nil })
		_, err := edit.Unpack(t.Context(), sb, slow, "/w", edit.UnpackOptions{Format: edit.Zip, Whole: true, Time: 5 * time.Second})
		wants(t, err, sandbox.Exhausted, "time")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err = edit.Unpack(ctx, sb, slow, "/w", edit.UnpackOptions{Format: edit.Zip, Whole: true}); err != context.DeadlineExceeded {
			t.Errorf("with a context that ends: %v", err)
		}
		for info, err := range sb.Files().List(context.Background(), "/") {
			if ok(t, err); info.Name == "w" || strings.HasPrefix(info.Name, ".unpack") {
				t.Errorf("%s is left over", info.Name)
			}
		}
	})
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Whatever an archive is, nothing outside of the target changes, and what comes
// out is within the bounds.
func FuzzUnpack(f *testing.F) {
	parts := []part{{name: "a/b", content: "hello"}, {name: "../up", content: "x"}, {name: "l", kind: tar.TypeSymlink, link: "/safe"}, {name: "l/f", content: "x"}, {name: "d/", kind: tar.TypeDir, mode: 0o755}}
	for _, p := range [][]part{parts, parts[:1], parts[2:]} {
		f.Add(makeTar(f, p...))
		f.Add(zipped(f, makeTar(f, p...)))
		f.Add(makeZip(f, p...))
	}
	f.Add(makeZip(f, part{name: "z", content: strings.Repeat("\x00", 2<<20)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		sb := newBox(t, map[string]string{"/safe/f": "mine", "/w/l": "-> /safe", "/w/f": "-> /safe/f"})
		before := snapshot(t, sb, "/")
		opt := edit.UnpackOptions{MaxEntries: 20, MaxSize: 1 << 20, MaxFile: 1 << 19, SkipOthers: len(b)%2 == 0, Whole: len(b)%3 == 0}
		to := "/w"
		if opt.Whole {
			to = "/w/whole"
		}
		u, err := edit.Unpack(t.Context(), sb, bytes.NewReader(b), to, opt)
		after := snapshot(t, sb, "/")
		outside(t, before, after)
		if u.Files+u.Dirs > 20 || u.Size > 1<<20 || len(after) > len(before)+21 {
			t.Errorf("over the bounds: %+v", u)
		}
		if after["/w/l"] != "-> /safe" || after["/w/f"] != "-> /safe/f" {
			t.Error("a link was replaced")
		}
		if err != nil && sandbox.KindOf(err) == sandbox.Internal {
			t.Errorf("our fault: %v", err)
		}
		if opt.Whole && err != nil && len(after) != len(before) {
			t.Errorf("something is left over: %v", err)
		}
	})
}
