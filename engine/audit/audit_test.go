package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-run/atoll/sandbox"
)

var t0 = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func event(n int) sandbox.Event {
	return sandbox.Event{Number: int64(n), At: t0.Add(time.Duration(n) * time.Second), Kind: sandbox.EventStarted, Owner: "alice", By: "bob", Sandbox: "sandbox01", Name: "chat 1", Detail: "sh"}
}

func open(t *testing.T, path string, opt Options) *Log {
	t.Helper()
	l, err := Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func closed(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// read returns what the record has since then.
func read(t *testing.T, path string, since time.Time) []sandbox.Event {
	t.Helper()
	var all []sandbox.Event
	for e, err := range Read(path, since) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// numbers asks for the events from one number to before another, in order.
func numbers(t *testing.T, got []sandbox.Event, from, to int) {
	t.Helper()
	var have, want []int64
	for _, e := range got {
		have = append(have, e.Number)
	}
	for n := from; n < to; n++ {
		want = append(want, int64(n))
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("numbers, -want +got:\n%s", d)
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var full sandbox.Event
	v := reflect.ValueOf(&full).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("text <&> \n \u2028 " + v.Type().Field(i).Name)
		case reflect.Int64:
			f.SetInt(1 << 60)
		default:
			f.Set(reflect.ValueOf(t0))
		}
	}
	want := []sandbox.Event{full, event(1), event(2)}
	l := open(t, path, Options{})
	for _, e := range want[:2] {
		l.Write(e)
	}
	closed(t, l)
	l = open(t, path, Options{})
	l.Write(want[2])
	closed(t, l)
	if d := cmp.Diff(want, read(t, path, time.Time{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("%q is not JSON", line)
		}
	}
	if len(lines) != 3 {
		t.Errorf("there are %d lines, want one for each of 3 events", len(lines))
	}
}

func TestReadSince(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path, Options{})
	for n := range 10 {
		l.Write(event(n))
	}
	closed(t, l)
	numbers(t, read(t, path, event(7).At), 7, 10)
	for e := range Read(path, time.Time{}) {
		if e.Number > 0 {
			t.Error("it went on after it was told to stop")
		}
		break
	}
	if got := read(t, path+".other", time.Time{}); got != nil {
		t.Errorf("a record that is not there has %v", got)
	}
}

func TestRotationKeepsTheLatest(t *testing.T) {
	for _, keep := range []int{-1, 1, 3} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "audit.jsonl")
			l := open(t, path, Options{MaxSize: 2000, Keep: keep})
			for n := range 400 {
				l.Write(event(n))
			}
			closed(t, l)
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			if want := 1 + max(keep, 0); len(entries) != want {
				t.Errorf("there are %d files, want %d: %v", len(entries), want, entries)
			}
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					t.Fatal(err)
				}
				if info.Size() > 2000 || info.Size() < 1000 && e.Name() != "audit.jsonl" || info.Mode() != 0o600 {
					t.Errorf("%s has %d bytes and mode %v", e.Name(), info.Size(), info.Mode())
				}
			}
			got := read(t, path, time.Time{})
			if len(got) == 0 || l.Dropped() != 0 {
				t.Fatalf("%d events are left, %d were dropped", len(got), l.Dropped())
			}
			numbers(t, got, int(got[0].Number), 400) // no gap, no event twice
			if got[0].Number == 0 {
				t.Error("nothing went: nothing was tried")
			}
		})
	}
}

func TestACrashWithinARotationHidesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path, Options{MaxSize: 2000, Keep: 100})
	for n := range 100 {
		l.Write(event(n))
	}
	closed(t, l)
	for i := 100; i >= 0; i-- { // all but the last have moved up
		if err := os.Rename(old(path, i), old(path, i+1)); err != nil && i == 2 {
			t.Fatal(err)
		}
		if i == 2 {
			break
		}
	}
	numbers(t, read(t, path, time.Time{}), 0, 100)
	l = open(t, path, Options{MaxSize: 2000, Keep: 100})
	for n := range 100 {
		l.Write(event(100 + n))
	}
	closed(t, l)
	numbers(t, read(t, path, time.Time{}), 0, 200)
}

func TestReadWhileItIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path, Options{MaxSize: 8000, Keep: 100})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := range 2000 {
			l.Write(event(n))
			if n%10 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		l.Close()
	})
	for range 20 {
		got := read(t, path, time.Time{})
		numbers(t, got, 0, len(got))
	}
	writer.Wait()
	numbers(t, read(t, path, time.Time{}), 0, 2000)
}

func TestALineThatWasCutIsPassedOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path, Options{})
	for n := range 3 {
		l.Write(event(n))
	}
	closed(t, l)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-20); err != nil { // as a crash does
		t.Fatal(err)
	}
	numbers(t, read(t, path, time.Time{}), 0, 2)
	l = open(t, path, Options{})
	l.Write(event(2))
	closed(t, l)
	numbers(t, read(t, path, time.Time{}), 0, 3)

	// Nor is there anything else that a reader chokes on.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f, "\n\nnull\n[]\n{}\n\x00\xff\n%s\n", strings.Repeat("long", maxLine))
	fmt.Fprintf(f, "%s%s", strings.Repeat("x", maxLine), encode(event(99))) // the end of a line is no line
	f.Close()
	l = open(t, path, Options{})
	l.Write(event(3))
	closed(t, l)
	numbers(t, read(t, path, time.Time{}), 0, 4)
}

func TestALongDetailIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path, Options{})
	e := event(1)
	e.Detail = strings.Repeat("€", 1<<20)
	l.Write(e)
	e.At = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) // JSON has no such time
	l.Write(e)
	closed(t, l)
	got := read(t, path, time.Time{})
	if len(got) != 2 {
		t.Fatalf("there are %d events, want 2", len(got))
	}
	if d := got[0].Detail; len(d) > maxDetail || !strings.HasSuffix(d, "€...") {
		t.Errorf("the detail has %d bytes and ends with %q", len(d), d[len(d)-8:])
	}
}

func TestOnlyItsOwnerReadsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	closed(t, open(t, path, Options{}))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("got %v, %v, want mode 0600", info.Mode(), err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		make func(path string) error
		want sandbox.Kind
	}{
		"a link":       {func(p string) error { return os.Symlink(target, p) }, sandbox.Denied},
		"a folder":     {func(p string) error { return os.Mkdir(p, 0o700) }, sandbox.Denied},
		"a fifo":       {func(p string) error { return syscall.Mkfifo(p, 0o600) }, sandbox.Denied},
		"no folder":    {func(p string) error { return os.Remove(filepath.Dir(p)) }, sandbox.NotExist},
		"a device":     {func(p string) error { return os.Symlink("/dev/null", p) }, sandbox.Denied},
		"no such size": {nil, sandbox.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			path, opt := filepath.Join(t.TempDir(), "audit.jsonl"), Options{}
			if c.make == nil {
				opt.MaxSize = -1
			} else if err := c.make(path); err != nil {
				t.Fatal(err)
			}
			l, err := Open(path, opt)
			if err == nil {
				l.Close()
			}
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Kind != c.want || e.Hint == "" {
				t.Errorf("got %v, want %s with a hint", err, c.want)
			}
		})
	}
	if b, err := os.ReadFile(target); string(b) != "kept" {
		t.Errorf("what a link led to is %q, %v", b, err)
	}
}

func TestSomebodyElseMayRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l := open(t, path, Options{})
		for n := range 3 {
			l.Write(event(n))
			synctest.Wait()
			if n == 0 {
				if err := os.Rename(path, path+".1"); err != nil {
					t.Fatal(err)
				}
			}
		}
		closed(t, l)
		numbers(t, read(t, path, time.Time{}), 0, 3)
		numbers(t, read(t, path+".1", time.Time{}), 0, 1)
	})
}

// A folder in the place of the file stops the writing; nobody waits for it.
func TestWhatCannotBeWrittenIsCountedAndSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		var log bytes.Buffer
		l := open(t, path, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		l.Write(event(0))
		synctest.Wait()
		if err := errors.Join(os.Rename(path, path+".1"), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		for n := 1; n < 150; n++ {
			l.Write(event(n))
			time.Sleep(time.Second)
		}
		if got := l.Dropped(); got != 149 {
			t.Errorf("%d were dropped, want 149", got)
		}
		if got := strings.Count(log.String(), "audit events are lost"); got != 3 {
			t.Errorf("it was said %d times in 149 seconds, want 3:\n%s", got, &log)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.Write(event(150))
		synctest.Wait()
		closed(t, l)
		got := read(t, path, time.Time{})
		if len(got) != 3 || got[0].Number != 0 || got[1].Kind != Lost || !strings.HasPrefix(got[1].Detail, "149 ") || got[2].Number != 150 {
			t.Errorf("got %+v, want 0, that 149 were lost, and 150", got)
		}
		if got := l.Dropped(); got != 149 {
			t.Errorf("%d were dropped in the end, want 149", got)
		}
	})
}

// stopped makes a Log whose writer stands still until the function is called.
func stopped(t *testing.T, l *Log) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	l.mu.Lock()
	l.before = func() { <-gate }
	l.mu.Unlock()
	return func() { close(gate) }
}

func TestAWriterThatStandsStillHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l := open(t, path, Options{})
		release := stopped(t, l)
		l.Write(event(0))
		synctest.Wait() // the writer has it
		for n := 1; n < maxQueue+101; n++ {
			l.Write(event(n))
		}
		if got := l.Dropped(); got != 100 {
			t.Errorf("%d were dropped, want 100", got)
		}
		release()
		synctest.Wait()
		l.Write(event(maxQueue + 101))
		closed(t, l)
		got := read(t, path, time.Time{})
		if len(got) != maxQueue+3 {
			t.Fatalf("there are %d events, want %d", len(got), maxQueue+3)
		}
		numbers(t, got[:maxQueue+1], 0, maxQueue+1)
		if e := got[maxQueue+1]; e.Kind != Lost || !strings.HasPrefix(e.Detail, "100 ") {
			t.Errorf("where events were lost there is %+v", e)
		}
	})
}

func TestCloseWritesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.jsonl")
		l := open(t, path, Options{})
		release := stopped(t, l)
		for n := range 100 {
			l.Write(event(n))
		}
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- l.Close() }()
		}
		synctest.Wait()
		if len(done) > 0 {
			t.Error("Close did not wait")
		}
		release()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		l.Write(event(100))
		if got := l.Dropped(); got != 1 {
			t.Errorf("after Close %d were dropped, want 1", got)
		}
		numbers(t, read(t, path, time.Time{}), 0, 100)
	})
}

func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, path, Options{MaxSize: 50_000, Keep: 1000})
	const writers, each = 8, 500
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for n := range each {
				l.Write(event(w*each + n))
				l.Dropped()
			}
		})
	}
	all.Wait()
	closed(t, l)
	seen := make(map[int64]bool)
	last := make([]int64, writers)
	for _, e := range read(t, path, time.Time{}) {
		if e.Kind == Lost {
			continue
		}
		w := e.Number / each
		if seen[e.Number] || e.Number < last[w] {
			t.Errorf("%d is there twice, or out of order", e.Number)
		}
		seen[e.Number], last[w] = true, e.Number
	}
	if len(seen)+int(l.Dropped()) != writers*each {
		t.Errorf("%d are there and %d were dropped, of %d", len(seen), l.Dropped(), writers*each)
	}
}

// BenchmarkWrite is what it costs whoever writes.
func BenchmarkWrite(b *testing.B) {
	l, err := Open(filepath.Join(b.TempDir(), "audit.jsonl"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := event(1)
	for i := 0; b.Loop(); i++ {
		if i%1000 == 0 { // the writer keeps up with what really happens
			b.StopTimer()
			for waits := true; waits; {
				time.Sleep(time.Millisecond)
				l.mu.Lock()
				waits = len(l.queue) > 0
				l.mu.Unlock()
			}
			b.StartTimer()
		}
		l.Write(e)
	}
	b.StopTimer()
	if err := l.Close(); err != nil || l.Dropped() > 0 {
		b.Errorf("%v, %d were dropped", err, l.Dropped())
	}
}
