package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// awkward are names that a file may have.
var awkward = []string{
	"plain", "with space", "-rf", "--", "new\nline", "tab\there", "\x01\x7f", "invalid\xff\xfeutf8", "*", "?[a]", "$HOME", "`x`", "'", `"`, `\`,
	"…", "..hidden", "...", ".dot", "%2e%2e", "%00", "ünïcödé", "日本語", "a:b", "C:", "~", "#", "&|;", strings.Repeat("x", 255), strings.Repeat("é", 127),
}

// content reads what Open gives.
func (t *T) content(path string, r sandbox.Range) (string, error) {
	t.t.Helper()
	f, err := t.sb.Files().Open(t.ctx, path, r)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(f)
	t.ok("Close", f.Close())
	t.ok("Close again", f.Close())
	return string(b), err
}

func (t *T) stat(path string) sandbox.FileInfo {
	t.t.Helper()
	i, err := t.sb.Files().Stat(t.ctx, path)
	t.ok("Stat "+path, err)
	return i
}

// put writes with options.
func (t *T) put(path, data string, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	t.t.Helper()
	return t.sb.Files().Write(t.ctx, path, strings.NewReader(data), opt)
}

// calls are all methods of Files, for claims about paths.
func (t *T) calls(sb sandbox.Sandbox) map[string]func(path string) error {
	f := sb.Files()
	return map[string]func(string) error{
		"Open": func(p string) error {
			g, err := f.Open(t.ctx, p, sandbox.Range{})
			if err == nil {
				g.Close()
			}
			return err
		},
		"Write": func(p string) error {
			_, err := f.Write(t.ctx, p, strings.NewReader("x"), sandbox.WriteOptions{})
			return err
		},
		"Append": func(p string) error {
			_, err := f.Write(t.ctx, p, strings.NewReader("x"), sandbox.WriteOptions{Append: true})
			return err
		},
		"Stat": func(p string) error { _, err := f.Stat(t.ctx, p); return err },
		"List": func(p string) error {
			for _, err := range f.List(t.ctx, p) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"Mkdir":       func(p string) error { return f.Mkdir(t.ctx, p, sandbox.MkdirOptions{}) },
		"Rename from": func(p string) error { return f.Rename(t.ctx, p, t.dir()+"/to") },
		"Rename to":   func(p string) error { return f.Rename(t.ctx, t.dir()+"/from", p) },
		"Remove":      func(p string) error { return f.Remove(t.ctx, p, false) },
		"Remove all":  func(p string) error { return f.Remove(t.ctx, p, true) },
		"Chmod":       func(p string) error { return f.Chmod(t.ctx, p, 0o644) },
		"Chown":       func(p string) error { return f.Chown(t.ctx, p, "0:0") },
	}
}

var fileClaims = []claim{
	{name: "WrittenIsRead", says: "Write stores what it reads from src as the file at path and returns what is then there.", check: func(t *T) {
		path := t.dir() + "/f"
		for _, data := range []string{"hello", "", "shorter", "a\x00b\r\n\xff"} {
			i, err := t.put(path, data, sandbox.WriteOptions{})
			t.ok("Write", err)
			if i.Name != "f" || i.Size != int64(len(data)) || !i.Mode.IsRegular() || i.Mode.Perm() != 0o644 {
				t.errorf("Write returned %+v", i)
			}
			if got, err := t.content(path, sandbox.Range{}); err != nil || got != data {
				t.errorf("Open: %q, %v, want %q", got, err, data)
			}
			if r := t.run("cat", path); string(r.Stdout) != data {
				t.errorf("cat printed %q, want %q", r.Stdout, data)
			}
		}
	}},
	{name: "LargeFilesArriveWhole", says: "Streams: what is large is carried whole.", check: func(t *T) {
		want := sha256.New()
		io.Copy(want, newNoise(large/2))
		i, err := t.sb.Files().Write(t.ctx, t.dir()+"/large", newNoise(large/2), sandbox.WriteOptions{})
		if t.ok("Write", err); i.Size != large/2 {
			t.errorf("Write returned the size %d, want %d", i.Size, large/2)
		}
		f, err := t.sb.Files().Open(t.ctx, t.dir()+"/large", sandbox.Range{})
		t.ok("Open", err)
		got := sha256.New()
		n, err := io.Copy(got, f)
		f.Close()
		if err != nil || n != large/2 || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.errorf("%d bytes came, %v, want %d; or they differ", n, err, large/2)
		}
	}},
	{name: "OpenSelectsARange", says: "r selects a part of it; the zero Range is the whole; a negative Offset counts from the end; a range that begins past the end reads nothing.", check: func(t *T) {
		path := t.dir() + "/f"
		t.write(path, "0123456789")
		for _, c := range []struct {
			r    sandbox.Range
			want string
		}{
			{sandbox.Range{}, "0123456789"},
			{sandbox.Range{Offset: 3}, "3456789"},
			{sandbox.Range{Length: 4}, "0123"},
			{sandbox.Range{Offset: 3, Length: 4}, "3456"},
			{sandbox.Range{Offset: 8, Length: 40}, "89"},
			{sandbox.Range{Offset: -5}, "56789"},
			{sandbox.Range{Offset: -5, Length: 2}, "56"},
			{sandbox.Range{Offset: -50}, "0123456789"},
			{sandbox.Range{Offset: -50, Length: 2}, "01"},
			{sandbox.Range{Offset: 10}, ""},
			{sandbox.Range{Offset: 11, Length: 5}, ""},
			{sandbox.Range{Offset: math.MaxInt64, Length: math.MaxInt64}, ""},
			{sandbox.Range{Offset: 5, Length: math.MaxInt64}, "56789"},
			{sandbox.Range{Offset: math.MinInt64, Length: math.MaxInt64}, "0123456789"},
		} {
			if got, err := t.content(path, c.r); err != nil || got != c.want {
				t.errorf("%+v: %q, %v, want %q", c.r, got, err, c.want)
			}
		}
		_, err := t.content(path, sandbox.Range{Length: -1})
		t.kind("Open with a negative Length", err, "", sandbox.Invalid)
		t.write(path, "")
		if got, err := t.content(path, sandbox.Range{Offset: -5}); err != nil || got != "" {
			t.errorf("the last five bytes of nothing: %q, %v", got, err)
		}
	}},
	{name: "OpenFileHasInfo", says: "A File's Info was taken when it was opened.", check: func(t *T) {
		path := t.dir() + "/f"
		t.write(path, "0123456789")
		t.ok("Chmod", t.sb.Files().Chmod(t.ctx, path, 0o640))
		f, err := t.sb.Files().Open(t.ctx, path, sandbox.Range{Offset: 2, Length: 3})
		t.ok("Open", err)
		defer f.Close()
		i := f.Info()
		if i.Name != "f" || i.Size != 10 || i.Mode.Perm() != 0o640 || !i.Mode.IsRegular() || i.Time.IsZero() || time.Since(i.Time).Abs() > 24*time.Hour {
			t.errorf("Info is %+v", i)
		}
		if st := t.stat(path); st.Name != i.Name || st.Size != i.Size || st.Mode != i.Mode || !st.Time.Equal(i.Time) {
			t.errorf("Stat says %+v, Info %+v", st, i)
		}
	}},
	{name: "EndedContextEndsReads", says: "When ctx ends, reads fail.", check: func(t *T) {
		_, err := t.sb.Files().Write(t.ctx, t.dir()+"/f", newNoise(large/2), sandbox.WriteOptions{})
		t.ok("Write", err)
		ctx, cancel := context.WithCancel(t.ctx)
		f, err := t.sb.Files().Open(ctx, t.dir()+"/f", sandbox.Range{})
		t.ok("Open", err)
		defer f.Close()
		if _, err := io.ReadFull(f, make([]byte, 10)); err != nil {
			t.fatalf("Read: %v", err)
		}
		cancel()
		if n, err := io.Copy(io.Discard, f); err == nil {
			t.errorf("after the context had ended all of the %d bytes came", n)
		}
		_, err = t.sb.Files().Stat(ctx, t.dir()+"/f")
		t.canceled("Stat", err)
		_, err = t.sb.Files().Open(ctx, t.dir()+"/f", sandbox.Range{})
		t.canceled("Open", err)
		t.canceled("Mkdir", t.sb.Files().Mkdir(ctx, t.dir()+"/d", sandbox.MkdirOptions{}))
		if t.exists(t.dir() + "/d") {
			t.errorf("Mkdir with an ended context made it")
		}
	}},
	{name: "MissingIsNotExist", says: "What is not there is NotExist.", check: func(t *T) {
		t.write(t.dir()+"/from", "x")
		for name, call := range t.calls(t.sb) {
			paths := []string{t.dir() + "/no/such"}
			switch name {
			case "Write", "Append", "Mkdir", "Rename to": // make it
			case "Remove all":
				continue // no error, see RemoveAllRemovesTrees
			default:
				paths = append(paths, t.dir()+"/nothing")
			}
			for _, p := range paths {
				t.kind(name+" "+p, call(p), "path", sandbox.NotExist)
			}
		}
	}},
	{name: "BadPathsAreInvalid", says: "Relative and empty paths, and those with a NUL byte or of more than 4095 bytes, are Invalid with Field \"path\".", check: func(t *T) {
		t.write(t.dir()+"/from", "x")
		for name, call := range t.calls(t.sb) {
			for _, p := range []string{"", "relative", "./x", "../x", "~", "/nul\x00byte", "/" + strings.Repeat("a/", 2048), "C:\\x"} {
				t.kind(fmt.Sprintf("%s %.20q", name, p), call(p), "path", sandbox.Invalid)
			}
		}
		if got := t.names(t.dir()); !slices.Equal(got, []string{"from"}) {
			t.errorf("the directory has %q", got)
		}
	}},
	{name: "LongNamesAreRefused", says: "A name of more than 255 bytes is Invalid.", check: func(t *T) {
		_, err := t.put(t.dir()+"/"+strings.Repeat("x", 256), "x", sandbox.WriteOptions{})
		t.kind("Write of a name of 256 bytes", err, "path", sandbox.Invalid)
		t.kind("Mkdir of a name of 256 bytes", t.sb.Files().Mkdir(t.ctx, t.dir()+"/"+strings.Repeat("y", 256), sandbox.MkdirOptions{}), "path", sandbox.Invalid)
		deep := t.dir() + strings.Repeat("/"+strings.Repeat("d", 200), 15)
		_, err = t.put(deep+"/f", "deep", sandbox.WriteOptions{Parents: true})
		t.ok("Write of a deep path", err)
		if got := t.read(deep + "/f"); got != "deep" {
			t.errorf("it holds %q", got)
		}
	}},
	{name: "NamesAreBytes", says: "A path is bytes; it need not be UTF-8.", check: func(t *T) {
		f := t.sb.Files()
		for i, name := range awkward {
			dir := fmt.Sprintf("%s/%d", t.dir(), i)
			t.ok("Mkdir", f.Mkdir(t.ctx, dir, sandbox.MkdirOptions{}))
			path := dir + "/" + name
			info, err := t.put(path, name, sandbox.WriteOptions{})
			if err != nil {
				t.errorf("Write %q: %v", name, err)
				continue
			}
			if info.Name != name {
				t.errorf("Write of %q returned the name %q", name, info.Name)
			}
			if got := t.names(dir); !slices.Equal(got, []string{name}) {
				t.errorf("List says %q, want %q", got, name)
			}
			if st := t.stat(path); st.Name != name || st.Size != int64(len(name)) {
				t.errorf("Stat of %q says %+v", name, st)
			}
			if got, err := t.content(path, sandbox.Range{}); err != nil || got != name {
				t.errorf("Open of %q: %q, %v", name, got, err)
			}
			t.ok("Chmod", f.Chmod(t.ctx, path, 0o600))
			to := dir + "/" + name[:min(len(name), 100)] + "-"
			t.ok("Rename", f.Rename(t.ctx, path, to))
			t.ok("Rename back", f.Rename(t.ctx, to, path))
			t.ok("Remove", f.Remove(t.ctx, path, false))
			t.ok("Mkdir", f.Mkdir(t.ctx, path, sandbox.MkdirOptions{}))
			t.write(path+"/"+name, "x")
			t.ok("Remove all", f.Remove(t.ctx, path, true))
			if got := t.names(dir); len(got) != 0 {
				t.errorf("after the removal of %q there is %q", name, got)
			}
		}
	}},
	{name: "ProcessesSeeTheSameNames", says: "Files is a sandbox's file system, seen from inside.", shell: true, check: func(t *T) {
		for _, name := range []string{"with space", "-rf", "new\nline", "\xff\xfe"} {
			t.write(t.dir()+"/"+name, "x")
		}
		if got := t.sh("for f in *; do printf '<%s>' \"$f\"; done"); got != "<-rf><new\nline><with space><\xff\xfe>" {
			t.errorf("the shell sees %q", got)
		}
		t.sh("printf y > \"$(printf 'made\\nhere')\"; mkdir sub; printf z > sub/inner")
		if got := t.read(t.dir() + "/made\nhere"); got != "y" {
			t.errorf("Open of what the shell made: %q", got)
		}
		if got := t.read(t.dir() + "/sub/inner"); got != "z" {
			t.errorf("Open of what the shell made: %q", got)
		}
	}},
	{name: "StatDescribes", says: "Stat describes what is at path without following a final symbolic link.", shell: true, check: func(t *T) {
		t.sh("printf 12345 > file; chmod 751 file; mkdir dir; chmod 2770 dir; ln -s file link; ln -s nowhere dangling; mkfifo fifo")
		for _, c := range []struct {
			name   string
			mode   fs.FileMode
			size   int64
			target string
		}{
			{"file", 0o751, 5, ""},
			{"dir", fs.ModeDir | fs.ModeSetgid | 0o770, 0, ""},
			{"link", fs.ModeSymlink, 4, "file"},
			{"dangling", fs.ModeSymlink, 7, "nowhere"},
			{"fifo", fs.ModeNamedPipe, 0, ""},
		} {
			i := t.stat(t.dir() + "/" + c.name)
			if c.mode.Perm() == 0 {
				i.Mode &^= fs.ModePerm
			}
			if i.Name != c.name || i.Mode != c.mode || i.Target != c.target || i.Size != c.size {
				t.errorf("Stat of %s says %+v, want %+v", c.name, i, c)
			}
		}
		if i := t.stat("/"); !i.Mode.IsDir() {
			t.errorf("Stat of / says %+v", i)
		}
	}},
	{name: "ListIsSorted", says: "List yields what is in the directory at path, sorted by name, without following links.", shell: true, check: func(t *T) {
		for _, n := range []string{"b", "a", "B", "10", "9", "é", "z", "\xff", ".h"} {
			t.write(t.dir()+"/"+n, n)
		}
		t.sh("mkdir dir; ln -s /etc/passwd link; ln -s nowhere lost")
		want := []string{"b", "a", "B", "10", "9", "é", "z", "\xff", ".h", "dir", "link", "lost"}
		slices.Sort(want)
		if got := t.names(t.dir()); !slices.Equal(got, want) {
			t.errorf("List yields %q, want %q", got, want)
		}
		for i, err := range t.sb.Files().List(t.ctx, t.dir()) {
			t.ok("List", err)
			if st := t.stat(t.dir() + "/" + i.Name); st.Mode != i.Mode || st.Size != i.Size || st.Target != i.Target || st.Name != i.Name || st.UID != i.UID {
				t.errorf("List says %+v, Stat %+v", i, st)
			}
		}
		n := 0
		for range t.sb.Files().List(t.ctx, t.dir()) {
			n++
			break
		}
		if n != 1 {
			t.errorf("a loop that was left ran %d times", n)
		}
	}},
	{name: "ListOfManyIsWhole", says: "List yields what is in the directory.", shell: true, check: func(t *T) {
		t.sh("i=0; while [ $i -lt 1500 ]; do : > a-rather-long-name-for-a-file-$i; i=$((i+1)); done")
		got := t.names(t.dir())
		if len(got) != 1500 || !slices.IsSorted(got) {
			t.errorf("List yields %d names, want 1500, sorted", len(got))
		}
	}},
	{name: "ListOfNoDirectoryFails", says: "It stops at the first error, which it yields.", check: func(t *T) {
		t.write(t.dir()+"/file", "x")
		n := 0
		var last error
		for _, err := range t.sb.Files().List(t.ctx, t.dir()+"/file") {
			n++
			last = err
		}
		if n != 1 {
			t.errorf("List of a file yields %d times", n)
		}
		t.kind("List of a file", last, "path", sandbox.Invalid, sandbox.NotExist)
	}},
	{name: "WriteIsAtomic", says: "Write is atomic: others see the old file or the whole new one.", check: func(t *T) {
		path := t.dir() + "/f"
		t.write(path, "old")
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := t.sb.Files().Write(t.ctx, path, r, sandbox.WriteOptions{})
			r.CloseWithError(errors.New("Write has returned"))
			done <- err
		}()
		for range 20 {
			if _, err := w.Write(bytes.Repeat([]byte("n"), 100_000)); err != nil {
				t.fatalf("Write does not read: %v", err)
			}
		}
		if got := t.read(path); got != "old" {
			t.errorf("while Write reads, the file has %d bytes, want the old ones", len(got))
		}
		w.Close()
		t.ok("Write", <-done)
		if got := t.read(path); got != strings.Repeat("n", 2_000_000) {
			t.errorf("afterwards the file has %d bytes, want 2000000", len(got))
		}
		if got := t.names(t.dir()); !slices.Equal(got, []string{"f"}) {
			t.errorf("the directory has %q", got)
		}
	}},
	{name: "ReadersNeverSeeHalf", says: "Others see the old file or the whole new one.", check: func(t *T) {
		path := t.dir() + "/f"
		size := 200_000
		t.write(path, strings.Repeat("a", size))
		var stop atomic.Bool
		var wg sync.WaitGroup
		var werr error
		wg.Go(func() {
			for n := 0; n < times(20) && !stop.Load(); n++ {
				i := n % 26
				if err := sandbox.WriteFile(t.ctx, t.sb, path, bytes.Repeat([]byte{byte('a' + i)}, size-i*1000)); err != nil {
					werr = err
					return
				}
			}
			stop.Store(true)
		})
		for !stop.Load() {
			b, err := sandbox.ReadFile(t.ctx, t.sb, path, 1<<20)
			if err != nil || len(b) == 0 || bytes.Count(b, b[:1]) != len(b) || len(b) != size-int(b[0]-'a')*1000 {
				stop.Store(true)
				wg.Wait()
				t.fatalf("a reader saw %d bytes, %v: neither an old nor a new file", len(b), err)
			}
		}
		wg.Wait()
		t.ok("Write", werr)
	}},
	{name: "FailedWriteChangesNothing", says: "If src fails or ctx ends nothing has changed.", check: func(t *T) {
		dir := t.dir()
		t.write(dir+"/old", "old")
		f := t.sb.Files()
		for _, name := range []string{"old", "new"} {
			_, err := f.Write(t.ctx, dir+"/"+name, io.MultiReader(bytes.NewReader(make([]byte, 300_000)), &failing{data: []byte("half")}), sandbox.WriteOptions{})
			if !errors.Is(err, errFlow) {
				t.errorf("Write of %s: %v, want the Reader's error", name, err)
			}
			ctx, cancel := context.WithCancel(t.ctx)
			r, w := io.Pipe()
			done := make(chan error, 1)
			go func() {
				_, err := f.Write(ctx, dir+"/"+name, r, sandbox.WriteOptions{})
				done <- err
			}()
			w.Write([]byte("half"))
			cancel()
			w.CloseWithError(context.Canceled)
			if err := <-done; err == nil {
				t.errorf("Write of %s with an ended context succeeded", name)
			}
		}
		if got := t.read(dir + "/old"); got != "old" {
			t.errorf("the old file has %d bytes, want the old ones", len(got))
		}
		t.until("the directory to be as it was", func() bool { return slices.Equal(t.names(dir), []string{"old"}) })
	}},
	{name: "WriteKeepsOwnerAndMode", says: "An existing file keeps its owner and permissions unless opt says otherwise.", check: func(t *T) {
		path := t.dir() + "/f"
		f := t.sb.Files()
		many := t.manyIDs()
		t.write(path, "x")
		t.ok("Chmod", f.Chmod(t.ctx, path, 0o751))
		t.ok("Chown", f.Chown(t.ctx, path, "1234:5678"))
		i, err := t.put(path, "y", sandbox.WriteOptions{})
		t.ok("Write", err)
		if i.Mode.Perm() != 0o751 || many && (i.UID != 1234 || i.GID != 5678) {
			t.errorf("after Write it is %+v", i)
		}
		i, err = t.put(path, "z", sandbox.WriteOptions{Mode: 0o600, User: "4321:8765"})
		t.ok("Write", err)
		if i.Mode.Perm() != 0o600 || many && (i.UID != 4321 || i.GID != 8765) {
			t.errorf("after Write with mode and user it is %+v", i)
		}
		if st := t.stat(path); st.Mode != i.Mode || st.UID != i.UID || st.GID != i.GID {
			t.errorf("Stat says %+v, Write %+v", st, i)
		}
	}},
	{name: "WriteMakesWhatIsAskedFor", says: "The zero WriteOptions makes a file of mode 0644 that belongs to the sandbox's user.", check: func(t *T) {
		dir := t.dir()
		for mode, want := range map[fs.FileMode]fs.FileMode{0: 0o644, 0o755: 0o755, 0o666: 0o666, 0o400: 0o400} {
			i, err := t.put(fmt.Sprintf("%s/%o", dir, mode), "x", sandbox.WriteOptions{Mode: mode})
			t.ok("Write", err)
			if i.Mode.Perm() != want || i.UID != 0 {
				t.errorf("Write with mode %o made %+v", mode, i)
			}
		}
		_, err := t.put(dir+"/x", "x", sandbox.WriteOptions{User: "no-such-user"})
		t.kind("Write for an unknown user", err, "user", sandbox.NotExist)
		if t.exists(dir + "/x") {
			t.errorf("it made the file nevertheless")
		}
		i, err := t.put(dir+"/owned", "x", sandbox.WriteOptions{User: "1000:1000"})
		if t.ok("Write", err); t.manyIDs() && (i.UID != 1000 || i.GID != 1000) {
			t.errorf("Write for 1000:1000 made %+v", i)
		}
	}},
	{name: "WriteExclusiveWritesOnce", says: "Exclusive: a file that is there already is Conflict.", check: func(t *T) {
		path := t.dir() + "/f"
		const n = 8
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { _, errs[i] = t.put(path, fmt.Sprint(i), sandbox.WriteOptions{Exclusive: true}) })
		}
		wg.Wait()
		won := -1
		for i, err := range errs {
			if err == nil {
				if won >= 0 {
					t.errorf("both %d and %d wrote it", won, i)
				}
				won = i
				continue
			}
			t.kind("Write", err, "path", sandbox.Conflict)
		}
		if got := t.read(path); got != fmt.Sprint(won) {
			t.errorf("the file has %q, the winner wrote %d", got, won)
		}
	}},
	{name: "WriteAppends", says: "Append adds to what is there. It is not atomic: what was read before an error stays.", check: func(t *T) {
		path := t.dir() + "/f"
		for _, s := range []string{"one ", "two ", ""} {
			_, err := t.put(path, s, sandbox.WriteOptions{Append: true})
			t.ok("Write", err)
		}
		i, err := t.put(path, "three", sandbox.WriteOptions{Append: true})
		t.ok("Write", err)
		if got := t.read(path); got != "one two three" || i.Size != int64(len(got)) {
			t.errorf("the file has %q, Write returned the size %d", got, i.Size)
		}
		_, err = t.sb.Files().Write(t.ctx, path, &failing{data: []byte(" stays")}, sandbox.WriteOptions{Append: true})
		if !errors.Is(err, errFlow) {
			t.errorf("Write: %v, want the Reader's error", err)
		}
		t.until("what was read before the error to be there", func() bool { return t.read(path) == "one two three stays" })
		if st := t.stat(path); st.Mode.Perm() != 0o644 {
			t.errorf("Append made it %+v", st)
		}
	}},
	{name: "WriteMakesParents", says: "Parents makes the directories above, as Mkdir does.", check: func(t *T) {
		path := t.dir() + "/a/b/c/f"
		_, err := t.put(path, "x", sandbox.WriteOptions{})
		t.kind("Write without Parents", err, "path", sandbox.NotExist)
		if t.exists(t.dir() + "/a") {
			t.errorf("it made a directory")
		}
		for range 2 {
			_, err = t.put(path, "x", sandbox.WriteOptions{Parents: true})
			t.ok("Write with Parents", err)
		}
		if i := t.stat(t.dir() + "/a/b/c"); !i.Mode.IsDir() || i.Mode.Perm() != 0o755 || i.UID != 0 {
			t.errorf("the directory is %+v", i)
		}
		if got := t.read(path); got != "x" {
			t.errorf("it holds %q", got)
		}
	}},
	{name: "WriteToADirectoryIsInvalid", says: "To read or write anything but a regular file is Invalid.", check: func(t *T) {
		t.ok("Mkdir", t.sb.Files().Mkdir(t.ctx, t.dir()+"/d", sandbox.MkdirOptions{}))
		for name, call := range t.calls(t.sb) {
			if name == "Open" || name == "Write" || name == "Append" {
				t.kind(name, call(t.dir()+"/d"), "path", sandbox.Invalid)
			}
		}
		_, err := t.put(t.dir()+"/new/", "x", sandbox.WriteOptions{})
		t.kind("Write of a path that ends in a slash", err, "path", sandbox.Invalid, sandbox.NotExist)
	}},
	{name: "MkdirMakesDirectories", says: "Mkdir makes a directory. With Parents it makes those above it too, and a directory that is there already is no error.", check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		t.ok("Mkdir", f.Mkdir(t.ctx, dir+"/d", sandbox.MkdirOptions{}))
		if i := t.stat(dir + "/d"); !i.Mode.IsDir() || i.Mode.Perm() != 0o755 || i.UID != 0 {
			t.errorf("it made %+v", i)
		}
		t.kind("Mkdir again", f.Mkdir(t.ctx, dir+"/d", sandbox.MkdirOptions{}), "path", sandbox.Conflict)
		t.kind("Mkdir below what is missing", f.Mkdir(t.ctx, dir+"/a/b", sandbox.MkdirOptions{}), "path", sandbox.NotExist)
		t.ok("Mkdir with Parents", f.Mkdir(t.ctx, dir+"/a/b/c", sandbox.MkdirOptions{Parents: true, Mode: 0o700}))
		t.ok("Mkdir with Parents again", f.Mkdir(t.ctx, dir+"/a/b/c", sandbox.MkdirOptions{Parents: true}))
		if i := t.stat(dir + "/a/b/c"); i.Mode.Perm() != 0o700 {
			t.errorf("it made %+v, want mode 0700", i)
		}
		t.write(dir+"/file", "x")
		t.kind("Mkdir over a file", f.Mkdir(t.ctx, dir+"/file", sandbox.MkdirOptions{}), "path", sandbox.Conflict)
		t.kind("Mkdir over a file with Parents", f.Mkdir(t.ctx, dir+"/file", sandbox.MkdirOptions{Parents: true}), "path", sandbox.Conflict)
		if err := f.Mkdir(t.ctx, dir+"/file/below", sandbox.MkdirOptions{Parents: true}); err == nil {
			t.errorf("Mkdir below a file succeeded")
		}
		t.ok("Mkdir /", f.Mkdir(t.ctx, "/", sandbox.MkdirOptions{Parents: true}))
		t.ok("Mkdir for a user", f.Mkdir(t.ctx, dir+"/u/v", sandbox.MkdirOptions{Parents: true, User: "1000:1000"}))
		if i := t.stat(dir + "/u/v"); t.manyIDs() && (i.UID != 1000 || i.GID != 1000) {
			t.errorf("it made %+v, want it to be 1000's", i)
		}
		t.kind("Mkdir for an unknown user", f.Mkdir(t.ctx, dir+"/w", sandbox.MkdirOptions{User: "no-such-user"}), "user", sandbox.NotExist)
	}},
	{name: "RenameMoves", says: "Rename moves what is at from to to, replacing a file or an empty directory there, as rename(2) does.", check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		t.write(dir+"/a", "a")
		t.write(dir+"/b", "b")
		t.ok("Rename over a file", f.Rename(t.ctx, dir+"/a", dir+"/b"))
		if got := t.read(dir + "/b"); got != "a" || t.exists(dir+"/a") {
			t.errorf("the file has %q, and the old name is there: %v", got, t.exists(dir+"/a"))
		}
		t.ok("Rename onto itself", f.Rename(t.ctx, dir+"/b", dir+"/b"))
		for _, d := range []string{"/d", "/empty", "/full"} {
			t.ok("Mkdir", f.Mkdir(t.ctx, dir+d, sandbox.MkdirOptions{}))
		}
		t.write(dir+"/d/inner", "x")
		t.write(dir+"/full/inner", "y")
		t.kind("Rename over a full directory", f.Rename(t.ctx, dir+"/d", dir+"/full"), "path", sandbox.Conflict)
		t.ok("Rename over an empty directory", f.Rename(t.ctx, dir+"/d", dir+"/empty"))
		if got := t.read(dir + "/empty/inner"); got != "x" {
			t.errorf("the moved directory's file has %q", got)
		}
		if err := f.Rename(t.ctx, dir+"/full", dir+"/full/below"); err == nil {
			t.errorf("Rename of a directory into itself succeeded")
		}
		if err := f.Rename(t.ctx, dir+"/b", dir+"/full"); err == nil {
			t.errorf("Rename of a file over a directory succeeded")
		}
		if got := t.names(dir); !slices.Equal(got, []string{"b", "empty", "full"}) {
			t.errorf("the directory has %q", got)
		}
	}},
	{name: "RenameCrossesFileSystems", says: "Between file systems a regular file is copied; a directory is Unsupported.", check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		tmp := fmt.Sprintf("/tmp/suite-%d", t.n)
		t.after(func() {
			f.Remove(context.WithoutCancel(t.ctx), tmp, true)
			f.Remove(context.WithoutCancel(t.ctx), tmp+"d", true)
		})
		t.write(tmp, "carried")
		t.ok("Chmod", f.Chmod(t.ctx, tmp, 0o750))
		t.write(dir+"/f", "old")
		t.ok("Rename from /tmp", f.Rename(t.ctx, tmp, dir+"/f"))
		if got := t.read(dir + "/f"); got != "carried" || t.exists(tmp) {
			t.errorf("the file has %q, and the old one is there: %v", got, t.exists(tmp))
		}
		if i := t.stat(dir + "/f"); i.Mode.Perm() != 0o750 {
			t.errorf("the mode is %v, want 0750", i.Mode)
		}
		t.ok("Rename to /tmp", f.Rename(t.ctx, dir+"/f", tmp))
		if got := t.read(tmp); got != "carried" {
			t.errorf("the file has %q", got)
		}
		t.ok("Mkdir", f.Mkdir(t.ctx, tmp+"d", sandbox.MkdirOptions{}))
		t.write(tmp+"d/inner", "x")
		if err := f.Rename(t.ctx, tmp+"d", dir+"/d"); err != nil {
			t.kind("Rename of a directory", err, "", sandbox.Unsupported)
			if !t.exists(tmp+"d/inner") || t.exists(dir+"/d") {
				t.errorf("though refused, it moved something")
			}
		}
	}},
	{name: "RemoveRemoves", says: "Remove removes a file, a link or an empty directory. A directory that is not empty is Conflict.", shell: true, check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		t.sh("echo x > file; mkdir empty full; echo x > full/f; ln -s file link; ln -s full dirlink; mkfifo fifo")
		for _, n := range []string{"link", "dirlink", "empty", "fifo", "file"} {
			t.ok("Remove "+n, f.Remove(t.ctx, dir+"/"+n, false))
		}
		t.kind("Remove of a full directory", f.Remove(t.ctx, dir+"/full", false), "path", sandbox.Conflict)
		t.kind("Remove again", f.Remove(t.ctx, dir+"/file", false), "path", sandbox.NotExist)
		if got := t.names(dir); !slices.Equal(got, []string{"full"}) {
			t.errorf("the directory has %q", got)
		}
		if got := t.read(dir + "/full/f"); got != "x\n" {
			t.errorf("the link's target lost its content: %q", got)
		}
	}},
	{name: "RemoveAllRemovesTrees", says: "With all it removes what is below as well, never following links, and what is not there is no error.", shell: true, check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		t.sh("mkdir -p keep/sub tree/a/b/c; echo x > keep/f; echo x > keep/sub/f; echo x > tree/a/b/c/f; ln -s ../keep tree/link; ln -s ../../keep/sub tree/a/link; ln -s ../keep/f tree/flink; mkfifo tree/fifo; chmod 0 tree/a/b; ln -s keep toplink")
		t.ok("Remove all", f.Remove(t.ctx, dir+"/tree", true))
		t.ok("Remove all of a link", f.Remove(t.ctx, dir+"/toplink", true))
		t.ok("Remove all of nothing", f.Remove(t.ctx, dir+"/tree", true))
		t.ok("Remove all of nothing in nothing", f.Remove(t.ctx, dir+"/tree/a/b", true))
		if got := t.names(dir); !slices.Equal(got, []string{"keep"}) {
			t.errorf("the directory has %q", got)
		}
		if got := t.names(dir + "/keep"); !slices.Equal(got, []string{"f", "sub"}) {
			t.errorf("what the links led to has %q", got)
		}
		if !t.exists(dir + "/keep/sub/f") {
			t.errorf("what the links led to lost a file")
		}
	}},
	{name: "ChmodSetsPermissions", says: "Chmod sets the permission bits of what path leads to, following links.", shell: true, check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		t.sh("echo x > file; mkdir dir; ln -s file link")
		for _, m := range []fs.FileMode{0o600, 0o777, 0, 0o4755 &^ 0o4000, fs.ModeSetuid | 0o755, fs.ModeSetgid | 0o755, fs.ModeSticky | 0o644} {
			t.ok("Chmod", f.Chmod(t.ctx, dir+"/file", m))
			if i := t.stat(dir + "/file"); i.Mode != m {
				t.errorf("Chmod %v made it %v", m, i.Mode)
			}
		}
		t.ok("Chmod of a directory", f.Chmod(t.ctx, dir+"/dir", fs.ModeSticky|0o777))
		if i := t.stat(dir + "/dir"); i.Mode != fs.ModeDir|fs.ModeSticky|0o777 {
			t.errorf("Chmod made the directory %v", i.Mode)
		}
		t.ok("Chmod of a link", f.Chmod(t.ctx, dir+"/link", 0o640))
		if i := t.stat(dir + "/file"); i.Mode != 0o640 {
			t.errorf("Chmod through a link made the file %v", i.Mode)
		}
	}},
	{name: "ChownSetsOwners", says: "Chown gives what is at path to user, following links. An unknown user is NotExist with Field \"user\".", shell: true, check: func(t *T) {
		f, dir := t.sb.Files(), t.dir()
		t.sh("echo x > file; ln -s file link")
		for _, c := range []struct {
			path, user string
			uid, gid   int
		}{{"file", "1234:5678", 1234, 5678}, {"link", "1000:1000", 1000, 1000}, {"file", "root:0", 0, 0}} {
			t.ok("Chown "+c.user, f.Chown(t.ctx, dir+"/"+c.path, c.user))
			if i := t.stat(dir + "/file"); t.manyIDs() && (i.UID != c.uid || i.GID != c.gid) {
				t.errorf("Chown %s made it %d:%d", c.user, i.UID, i.GID)
			}
		}
		t.kind("Chown to an unknown user", f.Chown(t.ctx, dir+"/file", "no-such-user"), "user", sandbox.NotExist)
		t.kind("Chown to an unknown group", f.Chown(t.ctx, dir+"/file", "root:no-such-group"), "user", sandbox.NotExist)
		t.kind("Chown to what is no user", f.Chown(t.ctx, dir+"/file", "a:b:c"), "user", sandbox.Invalid)
	}},
	{name: "FilesIsTheAdministrator", says: "Files works with the rights of the sandbox's administrator, whatever the sandbox's user may do.", shell: true, check: func(t *T) {
		if !t.manyIDs() {
			return
		}
		sb := t.create(func(s *sandbox.Spec) { s.User = "1000:1000" })
		r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "mkdir -p /tmp/d && echo secret > /tmp/d/f && chmod 0 /tmp/d/f && chmod 0 /tmp/d"}, User: "0"})
		if !r.Success() {
			t.fatalf("the script: %+v, %s", r.Exit, r.Stderr)
		}
		if b, err := sandbox.ReadFile(t.ctx, sb, "/tmp/d/f", 100); err != nil || string(b) != "secret\n" {
			t.errorf("Open: %q, %v", b, err)
		}
		i, err := sb.Files().Write(t.ctx, "/tmp/d/g", strings.NewReader("x"), sandbox.WriteOptions{})
		if t.ok("Write", err); i.UID != 1000 {
			t.errorf("what Files makes belongs to %d, want the sandbox's user", i.UID)
		}
		t.ok("Remove", sb.Files().Remove(t.ctx, "/tmp/d", true))
	}},
	{name: "FullDiskIsExhausted", says: "A full disk or quota is Exhausted.", shell: true, check: func(t *T) {
		sb := t.create(func(s *sandbox.Spec) { s.Limits.Disk = 16 << 20 })
		i, err := sb.Info(t.ctx)
		if t.ok("Info", err); i.Kept["disk"] == "" {
			t.lack()
		}
		_, err = sb.Files().Write(t.ctx, "/workspace/f", newNoise(64<<20), sandbox.WriteOptions{})
		t.kind("Write of 64 MiB where 16 are", err, "", sandbox.Exhausted)
		if _, err := sb.Files().Stat(t.ctx, "/workspace/f"); !errors.Is(err, sandbox.NotExist) {
			t.errorf("half of it is there: %v", err)
		}
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "head -c 67108864 /dev/zero > /workspace/g"}}); r.Success() {
			t.errorf("a process could write 64 MiB where 16 are")
		}
		t.ok("Remove", sb.Files().Remove(t.ctx, "/workspace/g", true))
		// What a process held open when it ended, the kernel may free a moment later.
		t.until("room for a little", func() bool {
			err := sandbox.WriteFile(t.ctx, sb, "/workspace/small", []byte("x"))
			if err != nil && !errors.Is(err, sandbox.Exhausted) {
				t.fatalf("Write of a little: %v", err)
			}
			return err == nil
		})
	}},
}

// manyIDs reports whether users inside differ.
func (t *T) manyIDs() bool {
	t.t.Helper()
	i, err := t.sb.Info(t.ctx)
	t.ok("Info", err)
	return i.Isolation.Holds(sandbox.ManyIDs)
}
