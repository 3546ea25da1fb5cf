package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, c := range []struct {
		of   []float64
		q    float64
		want float64
	}{
		{nil, 0.5, 0}, {[]float64{7}, 0.99, 7}, {[]float64{1, 2, 3}, 0.5, 2}, {[]float64{1, 2, 3, 4}, 0.5, 2},
		{hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
	} {
		if got := quantile(c.of, c.q); got != c.want {
			t.Errorf("quantile of %d samples at %v = %v, want %v", len(c.of), c.q, got, c.want)
		}
	}
}

func TestRaceTakesTurns(t *testing.T) {
	var order strings.Builder
	one := func(name string, took time.Duration) contestant {
		return contestant{name, func(context.Context) (time.Duration, error) {
			order.WriteString(name)
			return took, nil
		}}
	}
	r, err := race(t.Context(), 2, 3, 1, one("a", time.Millisecond), one("b", 2*time.Millisecond), one("c", 3*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if want := "abc" + "abcbcacab" + "abcbcacab"; order.String() != want {
		t.Errorf("they worked in the order %s, want %s", order.String(), want)
	}
	if r[1].n() != 6 || r[1].at(0.5) != 2 {
		t.Errorf("b has %d samples with the median %v, want 6 and 2", r[1].n(), r[1].at(0.5))
	}
	if row := r[0].beside("a beside b", r[1]); *row.Ratio != 0.5 {
		t.Errorf("the ratio is %v, want 0.5", *row.Ratio)
	}
}

func TestRaceNamesWhoFailed(t *testing.T) {
	broken := errors.New("broken")
	_, err := race(t.Context(), 1, 1, 0, contestant{"crun", func(context.Context) (time.Duration, error) { return 0, broken }})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "crun") {
		t.Errorf("the error is %v, want one that wraps the cause and names crun", err)
	}
}

func TestVerdictFollowsTheRatio(t *testing.T) {
	row := Row{P50: 3, P99: 12}
	high := Row{P50: 3, P99: 12, onP99: true}
	for _, c := range []struct {
		row  Row
		want string
	}{
		{row.against("x", 2, 2).atMost(1.5), "met"},
		{row.against("x", 2, 2).atMost(1.4), "missed"},
		{row.against("x", 3, 3).lessThan(1), "missed"},
		{high.against("x", 2, 2).atMost(5), "missed"},
		{high.against("x", 2, 4).atMost(3), "met"},
		{row.atMost(1), "missed"}, // nothing was measured
		{row.against("x", 0, 0).atMost(1), "missed"},
	} {
		if c.row.Verdict != c.want {
			t.Errorf("%+v: the verdict is %q, want %q", c.row, c.row.Verdict, c.want)
		}
	}
}

func TestRowsAsJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.json")
	if err := writeJSON(path, []Row{Row{Row: "exec", Unit: "ms", N: 2, P50: 1, P99: 2}.against("plain", 2, 2), {Row: "alone"}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	if err := json.Unmarshal(b, &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, member := range []string{"row", "unit", "n", "p50", "p99", "against", "ratio"} {
		for i, row := range rows {
			if _, ok := row[member]; !ok {
				t.Errorf("row %d has no %s", i, member)
			}
		}
	}
	if rows[0]["ratio"] != 0.5 || rows[1]["ratio"] != nil {
		t.Errorf("the ratios are %v and %v, want 0.5 and null", rows[0]["ratio"], rows[1]["ratio"])
	}
}

func TestTableIsAligned(t *testing.T) {
	var b bytes.Buffer
	err := printTable(&b, []Row{{Row: "short", N: 1}, Row{Row: "a much longer row", N: 1000, P50: 1.2345}.against("plain", 1, 1).atMost(2)})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want 3:\n%s", len(lines), b.String())
	}
	verdict := strings.Index(lines[0], "verdict")
	if !strings.HasSuffix(lines[2], "met") || len([]rune(lines[2]))-len("met") != verdict {
		t.Errorf("the verdict does not stand below its heading:\n%s", b.String())
	}
}

func TestPlainHandlers(t *testing.T) {
	s := httptest.NewServer(plainHandlers())
	defer s.Close()
	p := &plainServer{caller: caller{base: s.URL}}
	if took, err := p.timedExec(t.Context(), "true"); err != nil || took <= 0 {
		t.Errorf("true: %v, %v", took, err)
	}
	if _, err := p.timedExec(t.Context(), "false"); err == nil || !strings.Contains(err.Error(), "code 1") {
		t.Errorf("false: %v, want an error with its code", err)
	}
	if n, err := p.stream(t.Context(), "head", "-c", "300000", "/dev/zero"); n != 300000 || err != nil {
		t.Errorf("stream: %d bytes, %v", n, err)
	}
	if _, err := p.stream(t.Context(), "sh", "-c", "exit 3"); err == nil {
		t.Error("a stream of a command that failed has no error")
	}
	path, data := filepath.Join(t.TempDir(), "a file"), bytes.Repeat([]byte("atoll"), 1000)
	if err := p.upload(t.Context(), path, data); err != nil {
		t.Fatal(err)
	}
	if err := p.download(t.Context(), path, data); err != nil {
		t.Error(err)
	}
	if err := p.download(t.Context(), path, data[1:]); err == nil {
		t.Error("other bytes than were sent are not noticed")
	}
}

// floorDir builds the floors, or skips the test where they cannot be.
func floorDir(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("there is no C compiler")
	}
	dir, err := os.MkdirTemp("", "atoll-bench-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := buildFloors(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSpawnFloors(t *testing.T) {
	dir := floorDir(t)
	for _, how := range []string{"posix", "vfork"} {
		f, err := startFloor(t.Context(), filepath.Join(dir, "spawn"), how, filepath.Join(dir, "true"))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if took, err := f.once(t.Context()); err != nil || took <= 0 {
				t.Errorf("%s: %v, %v", how, took, err)
			}
		}
		if err := f.close(); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
}

func TestSandboxFloor(t *testing.T) {
	if err := exec.Command("unshare", "-Urmn", "true").Run(); err != nil {
		t.Skip("user namespaces cannot be made here")
	}
	b := &bench{dir: floorDir(t), cc: true, notes: t.Output()}
	b.root = filepath.Join(b.dir, "root")
	for _, d := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(b.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(b.dir, "true"), filepath.Join(b.root, "true")); err != nil {
		t.Fatal(err)
	}
	if err := b.makeLower(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(b.dir)
	groups, err := ownGroups(name)
	if err != nil {
		t.Logf("without limits: %v", err)
	}
	b.groups = groups
	defer removeGroups(name)

	base := filepath.Join(b.dir, "base")
	for _, args := range [][]string{{b.root, base, "/true"}, {"-usr", filepath.Join(b.dir, "lower"), base, "/usr/bin/true"}} {
		f, err := b.sandboxFloor(t.Context(), args...)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if took, err := f.once(t.Context()); err != nil || took <= 0 {
				t.Errorf("%v: %v, %v", args, took, err)
			}
		}
		if err := f.close(); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	// A program that fails is not a sample.
	f, err := b.sandboxFloor(t.Context(), "-usr", filepath.Join(b.dir, "lower"), base, "/usr/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.once(t.Context()); err == nil || !strings.Contains(err.Error(), "status 0x100") {
		t.Errorf("a program that failed: %v, want an error with its status", err)
	}

	if err := removeGroups(name); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/" + name); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestTracesFindsACgroup(t *testing.T) {
	if !isRoot() {
		t.Skip("only root makes cgroups")
	}
	id := fmt.Sprintf("trace%d", os.Getpid())
	dirs, _ := filepath.Glob("/sys/fs/cgroup/pids")
	if exists("/sys/fs/cgroup/cgroup.controllers") {
		dirs = []string{"/sys/fs/cgroup"}
	}
	if len(dirs) == 0 {
		t.Skip("there are no cgroups")
	}
	dir := filepath.Join(dirs[0], "atoll-"+id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	found := traces([]string{"another1", id})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if want := []string{"the cgroup " + dir}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if found := traces([]string{id}); len(found) > 0 {
		t.Errorf("found %q after it was removed", found)
	}
}

func TestLonger(t *testing.T) {
	r := result{name: "r", rounds: [][]float64{{1, 2, 3}, {1, 4, 5}, {9, 9, 9}}}
	other := result{name: "other", rounds: [][]float64{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}}
	row := r.longer("r is longer", other)
	if row.P50 != 3000 || row.P99 != 4000 || row.AgainstP50 != 1000 || *row.Ratio != 3 || row.N != 9 {
		t.Errorf("%+v: want 3000 and 4000 µs, beside 1000", row)
	}
}

// testDaemon returns a daemon with this configuration that is not a program of
// its own, and pretends its sandboxes.
func testDaemon(t *testing.T, cfg engine.Config, pool warm.Config) *daemon {
	t.Helper()
	pool.Room = func(context.Context) error { return nil }
	w, err := warm.New(memory.New(memory.Config{}), pool)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Warm = func() int { return w.Stats().Ready }
	e, err := engine.New(t.Context(), w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	api := native.New(native.One(e.View(sandbox.Operator, "native")), native.Config{})
	s := httptest.NewServer(api)
	t.Cleanup(func() {
		s.Close()
		if err := errors.Join(api.Close(), e.Close()); err != nil {
			t.Error(err)
		}
	})
	return &daemon{caller: caller{base: s.URL}}
}

func TestPoolBecomesFullAgain(t *testing.T) {
	d := testDaemon(t, engine.Config{}, warm.Config{Max: 2})
	once := creator(d, spec{}, "true")
	for range 4 {
		if took, err := once(t.Context()); err != nil || took <= 0 {
			t.Fatal(took, err)
		}
	}
	if err := d.full(t.Context(), 2, time.Minute); err != nil {
		t.Error(err)
	}
	if err := d.full(t.Context(), 3, 20*time.Millisecond); !errors.Is(err, errNotFilled) {
		t.Errorf("three of two became ready: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.full(ctx, 3, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits any more: %v", err)
	}
}

func TestMobEvicts(t *testing.T) {
	const most = 4
	d := testDaemon(t, engine.Config{Classes: map[string]engine.Class{"native": {MaxLive: most, Full: engine.Evict}}}, warm.Config{Max: 1})
	var m mob
	end := m.begin(t.Context(), d, 2)
	for m.turns.Load() < 50 && m.failed.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	end()
	if err := m.failure(); err != nil {
		t.Error(err)
	}
	s, err := d.status(t.Context())
	if err != nil || s.Live > most {
		t.Errorf("%d live, at most %d may, %v", s.Live, most, err)
	}
	if len(d.ids) <= most {
		t.Errorf("%d were made: nobody was evicted", len(d.ids))
	}
	if m.spent <= 0 {
		t.Error("it took no time")
	}
}

func TestMobTellsFailuresFromWantOfRoom(t *testing.T) {
	for _, c := range []struct {
		err                         error
		turns, noRoom, lost, failed int64
	}{
		{nil, 1, 0, 0, 0},
		{fmt.Errorf("exec: %w", &refusal{status: 404}), 0, 0, 1, 0},
		{&refusal{status: 429}, 0, 1, 0, 0},
		{&refusal{status: 500}, 0, 0, 0, 1},
		{errors.New("no answer"), 0, 0, 0, 1},
	} {
		var m mob
		m.count(t.Context(), c.err)
		if m.turns.Load() != c.turns || m.noRoom.Load() != c.noRoom || m.lost.Load() != c.lost || m.failed.Load() != c.failed {
			t.Errorf("%v counts as %d turns, %d without room, %d lost, %d failed", c.err, m.turns.Load(), m.noRoom.Load(), m.lost.Load(), m.failed.Load())
		}
		if failed := m.failure() != nil; failed != (c.failed > 0) {
			t.Errorf("%v: the failure is %v", c.err, m.failure())
		}
	}
}

func TestEngineOverMemory(t *testing.T) {
	b := &bench{options: options{short: true, backend: "memory"}, stateDir: t.TempDir(), notes: t.Output()}
	if err := b.added(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(b.rows) != 4 {
		t.Fatalf("%d rows, want 4: %+v", len(b.rows), b.rows)
	}
	for _, r := range b.rows {
		if r.Unit != "µs" || r.N != 250 || r.P99 == 0 {
			t.Errorf("%+v: want 250 samples in microseconds", r)
		}
	}
	if b.rows[0].Promise == "" || b.rows[0].Against != "memory alone" {
		t.Errorf("%+v: want a promise, and what it stands beside", b.rows[0])
	}
}
