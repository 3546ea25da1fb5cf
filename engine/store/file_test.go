package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/atoll-run/atoll/sandbox"
)

// refused asks Open to refuse path with an error of a kind, that names the file
// and says how to go on.
func refused(t *testing.T, path string, kind sandbox.Kind) {
	t.Helper()
	s, err := Open(path, Options{})
	if err == nil {
		s.Close()
	}
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Hint == "" || !strings.Contains(e.Msg, path) {
		t.Errorf("got %v, want %s with the path and a hint", err, kind)
	}
}

func TestWhatIsKeptOutlivesTheStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := reopen(t, path)
	put(t, s, record(1), record(2), record(3))
	bury(t, s, tombstone(2, t0))
	if err := s.Used(map[sandbox.ID]time.Time{id(3): t0.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	used := record(3)
	used.Used = t0.Add(time.Hour)
	s = reopen(t, path)
	holds(t, s, []Record{record(1), used}, []Tombstone{tombstone(2, t0)})

	// Burials go on being numbered.
	s.maxTombs = 1
	bury(t, s, tombstone(4, t0))
	holds(t, s, []Record{record(1), used}, []Tombstone{tombstone(4, t0)})
}

func TestASecondOpenerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := reopen(t, path)
	put(t, s, record(1))
	refused(t, path, sandbox.Conflict)
	put(t, s, record(2))
	s.Close()
	holds(t, reopen(t, path), []Record{record(1), record(2)}, nil)
}

func TestOnlyItsOwnerReadsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	reopen(t, path).Close()
	mode := func() os.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode()
	}
	if m := mode(); m != 0o600 {
		t.Errorf("a new file has mode %v, want 0600", m)
	}
	if err := os.Chmod(path, 0o664); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, err := Open(path, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if m := mode(); m != 0o600 || !strings.Contains(log.String(), "0664") && !strings.Contains(log.String(), "-rw-rw-r--") {
		t.Errorf("the file has mode %v, want 0600, and the log says %q", m, log.String())
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	reopen(t, target).Close()
	before, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"link":           func(p string) error { return os.Symlink(target, p) },
		"dangling link":  func(p string) error { return os.Symlink(filepath.Join(dir, "nothing"), p) },
		"folder":         func(p string) error { return os.Mkdir(p, 0o700) },
		"fifo":           func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"link at .new":   func(p string) error { return os.Symlink(target, p+".new") },
		"folder at .new": func(p string) error { return os.Mkdir(p+".new", 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			refused(t, path, sandbox.Denied)
		})
	}
	if after, err := os.ReadFile(target); err != nil || !bytes.Equal(before, after) {
		t.Errorf("what a link led to has changed, %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "nothing")); err == nil {
		t.Error("what a dangling link led to was made")
	}
}

func TestOpenNeedsAFolder(t *testing.T) {
	refused(t, filepath.Join(t.TempDir(), "missing", "store"), sandbox.NotExist)
}

func TestMeta(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	load := func(boot string, rs ...Record) Meta {
		t.Helper()
		s, err := Open(path, Options{Boot: boot})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, _, m, err := s.Load()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		bury(t, s, tombstone(9, t0))
		put(t, s, rs...)
		return m
	}
	first := load("one", record(1))
	if !first.Fresh || first.Boot != "one" || first.Version != Version || time.Since(first.Made).Abs() > time.Hour {
		t.Errorf("a new file: got %+v", first)
	}
	want := first
	want.Fresh, want.Unsettled = false, false
	if got := load("two"); got != want {
		t.Errorf("after a restart of the host: got %+v, want %+v", got, want)
	}
	// Nobody has made a sandbox since, so what there is, is from before.
	if got := load("two", record(2)); got != want {
		t.Errorf("before the first record: got %+v, want %+v", got, want)
	}
	want.Boot = "two"
	if got := load("two"); got != want {
		t.Errorf("after the first record: got %+v, want %+v", got, want)
	}
}

// Whoever made the file may have ended before it had adopted what there was.
func TestAFileStaysFreshUntilItIsSettled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	for i, want := range []bool{true, true, false} {
		s := reopen(t, path)
		_, m, err := s.Records()
		if err != nil || m.Fresh != want {
			t.Errorf("open %d: %+v, %v, want fresh %v", i, m, err, want)
		}
		put(t, s, record(i))
		if i == 1 {
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAHalfMadeFileIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	reopen(t, path).Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 4096, 12000, len(whole)} {
		os.Remove(path)
		if err := os.WriteFile(path+".new", whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		s := reopen(t, path)
		if _, _, m, err := s.Load(); err != nil || !m.Fresh {
			t.Errorf("%d bytes: got %+v, %v, want a new file", n, m, err)
		}
		put(t, s, record(1))
		s.Close()
		if _, err := os.Lstat(path + ".new"); err == nil {
			t.Errorf("%d bytes: the half made file is still there", n)
		}
		holds(t, reopen(t, path), []Record{record(1)}, nil)
	}
}

func TestTwoMakersMakeOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	for range 20 {
		type result struct {
			s   *Store
			err error
		}
		results := make(chan result)
		for range 4 {
			go func() {
				s, err := Open(path, Options{})
				results <- result{s, err}
			}()
		}
		var have *Store
		for range 4 {
			r := <-results
			switch {
			case r.err == nil && have == nil:
				have = r.s
			case r.err == nil:
				t.Error("two have it")
			case !errors.Is(r.err, sandbox.Conflict):
				t.Errorf("got %v, want Conflict", r.err)
			}
		}
		if have == nil {
			t.Fatal("nobody has it")
		}
		put(t, have, record(1))
		have.Close()
		holds(t, reopen(t, path), []Record{record(1)}, nil)
		os.Remove(path)
	}
}

func TestAFileThatWasMovedAwayTakesNothing(t *testing.T) {
	dir := t.TempDir()
	path, away := filepath.Join(dir, "store"), filepath.Join(dir, "away")
	var log bytes.Buffer
	s, err := Open(path, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, record(1))
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	for _, other := range []bool{false, true} {
		if other {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Put(t.Context(), record(2)); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("got %v, want Unavailable", err)
		}
	}
	if err := os.Rename(away, path); err != nil {
		t.Fatal(err)
	}
	put(t, s, record(3))
	s.Close()
	holds(t, reopen(t, path), []Record{record(1), record(3)}, nil)
	if bad, good := strings.Count(log.String(), "cannot be written"), strings.Count(log.String(), "written again"); bad != 1 || good != 1 {
		t.Errorf("the log says %d times that it failed and %d times that it works again, want once each:\n%s", bad, good, &log)
	}
}

// After a sync that failed nobody knows what is on the disk.
func TestNothingIsWrittenAfterASyncThatFailed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := reopen(t, path)
	put(t, s, record(1))
	fail := func(err error) error {
		return s.do(t.Context(), &op{apply: func(txn) error { return err }})
	}
	if err := fail(&os.PathError{Op: "write", Path: path, Err: syscall.EIO}); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("a write that failed: got %v, want Unavailable", err)
	}
	put(t, s, record(2))
	if err := fail(syscall.EIO); !errors.Is(err, sandbox.Unavailable) { // as fdatasync's comes
		t.Errorf("a sync that failed: got %v, want Unavailable", err)
	}
	for range 2 {
		if err := s.Put(t.Context(), record(3)); !errors.Is(err, sandbox.Unavailable) || !errors.Is(err, syscall.EIO) {
			t.Errorf("after it: got %v, want Unavailable, and why", err)
		}
		if err := s.Check(); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("Check after it: got %v, want Unavailable", err)
		}
	}
	s.Close()
	s = reopen(t, path)
	put(t, s, record(4))
	holds(t, s, []Record{record(1), record(2), record(4)}, nil)
}

func TestAFileThatIsCutWhileItIsOpenIsNoCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := reopen(t, path)
	for n := range 200 {
		put(t, s, record(n))
	}
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Put(t.Context(), record(1)); !errors.Is(err, sandbox.Internal) || !strings.Contains(err.Error(), "it was cut") {
			t.Errorf("a put into half a file: got %v, want Internal, and that it was cut", err)
		}
	}
	if _, _, _, err := s.Load(); err == nil {
		t.Error("half a file was loaded")
	}
	if err := s.Check(); err == nil {
		t.Error("half a file can be written")
	}
	s.Close()
	refused(t, path, sandbox.Internal)
}

// rewrite makes a change that this package does not.
func rewrite(t *testing.T, path string, f func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestANewerVersionIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	reopen(t, path).Close()
	rewrite(t, path, func(tx *bbolt.Tx) error {
		if err := tx.DeleteBucket([]byte(ages)); err != nil { // it may do without
			return err
		}
		return putMeta(boltTxn{tx}, Meta{Version: Version + 1, Made: t0})
	})
	refused(t, path, sandbox.Unsupported)
}

func TestANewerRecordIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := reopen(t, path)
	put(t, s, record(1))
	s.Close()
	rewrite(t, path, func(tx *bbolt.Tx) error {
		k := []byte(id(1))
		v, err := seal(k, storedRecord{versioned: versioned{Version + 1}, Record: record(1)})
		if err != nil {
			return err
		}
		return boltTxn{tx}.put(records, k, v)
	})
	s = reopen(t, path)
	if _, _, _, err := s.Load(); err == nil {
		t.Error("a record of a newer version was loaded")
	}
}

var update = flag.Bool("update", false, "write testdata anew")

// A file that version 1 wrote is read for as long as there is a version 1.
// What it has stands beside it.
func TestVersion1IsRead(t *testing.T) {
	if *update {
		path := filepath.Join(t.TempDir(), "store")
		s := reopen(t, path)
		rs, ds := version1()
		put(t, s, rs...)
		bury(t, s, ds...)
		if err := s.Used(map[sandbox.ID]time.Time{rs[0].ID: rs[0].Used}); err != nil {
			t.Fatal(err)
		}
		s.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/v1.store", b[:bytes.LastIndexFunc(b, func(r rune) bool { return r != 0 })/4096*4096+4096], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile("testdata/v1.store")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	rs, ds := version1()
	s := reopen(t, path)
	holds(t, s, rs, ds)
	put(t, s, record(1))
	s.Close()
	holds(t, reopen(t, path), append(rs, record(1)), ds)
}

// version1 is what testdata/v1.store has.
func version1() ([]Record, []Tombstone) {
	return []Record{{
			ID: "0123456789abcdefghij", Inner: "jihgfedcba9876543210", Owner: "alice/bot-1", Class: "box", Names: []string{"chat 1", "χατ"}, Profile: "default",
			Spec: sandbox.Spec{
				ID: "0123456789abcdefghij", Name: "chat 1", Profile: "default", Explicit: []string{"limits.memory"}, Idle: 5 * time.Minute, Backend: "linux", Image: "host",
				Workdir: "/workspace", User: "1000:1000", Limits: sandbox.Limits{Memory: 1 << 28, CPU: 0.5, PIDs: 64, Disk: 1 << 30, Workspace: 1 << 20},
				Mounts:  []sandbox.Mount{{Source: "/srv/a", Target: "/a"}, {Source: "/srv/b/c", Target: "/b", ReadOnly: true, Extra: true, Within: "/srv/b"}},
				Network: sandbox.NetworkOn, ReadOnlyRoot: true, Require: []sandbox.Property{sandbox.Seccomp}, Labels: map[string]string{"k": "v"}, Expires: t0.Add(time.Hour),
			},
			Wanted: "python:3.12", Created: t0, Used: t0.Add(time.Minute), Expires: t0.Add(time.Hour), Released: true,
		}}, []Tombstone{{
			ID: "abcdefghij0123456789", Inner: "9876543210jihgfedcba", Owner: "alice", Names: []string{"chat 2"},
			Gone: sandbox.Gone{Why: sandbox.Removed, By: "bob", Note: "a note", At: t0},
		}}
}

// What JSON makes of a record is what is kept for good: a field that is
// renamed is lost.
func TestTheJSONOfARecord(t *testing.T) {
	rs, ds := version1()
	for file, v := range map[string]any{"record.json": rs[0], "tombstone.json": ds[0]} {
		got, err := json.MarshalIndent(v, "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		file = filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s, -want +got:\n%s", file, d)
		}
	}
}
