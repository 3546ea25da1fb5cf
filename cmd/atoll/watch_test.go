package main

import (
	"bytes"
	"context"
	"iter"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/sandbox"
)

// broken is a Runtime that can make no sandboxes.
type broken struct{ sandbox.Runtime }

func (broken) Status(context.Context) (sandbox.Status, error) {
	return sandbox.Status{Reason: "the store is full", Live: 3, Busy: 1, MaxLive: 4,
		Backends: []sandbox.BackendStatus{{Name: "linux", Reason: "it did not answer in time"}, {Name: "memory", Available: true}},
		Errors:   []sandbox.Fault{{Op: "engine.Create", Owner: "alice", Kind: sandbox.Internal, Message: "no\x1b[2J room"}}}, nil
}
func (broken) Events(context.Context, int64, bool) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) {
		yield(sandbox.Event{Number: 1, Kind: sandbox.EventGone, Sandbox: "abcdefgh", Owner: "alice/bot", By: "alice", Why: sandbox.Evicted, Name: "\x1b]0;owned\a"}, nil)
	}
}
func (broken) Prune(context.Context, sandbox.Prune) ([]sandbox.Info, error) { return nil, nil }

// TestStatusOfWhatIsNotAvailable: it is said, with the reasons, and the exit
// status tells it to scripts.
func TestStatusOfWhatIsNotAvailable(t *testing.T) {
	srv := httptest.NewServer(native.New(native.One(broken{}), native.Config{}))
	defer srv.Close()
	for _, args := range [][]string{{"status"}, {"status", "--json"}} {
		s := prepare(t, args...)
		s.Env = append(s.Env, "ATOLL_HOST="+srv.URL, "ATOLL_TOKEN=whatever")
		var out, errs bytes.Buffer
		s.Stdout, s.Stderr = &out, &errs
		if s.Run(); s.ProcessState.ExitCode() != 1 || errs.Len() > 0 {
			t.Errorf("%q ended with %v and said %q", args, s.ProcessState, errs.String())
		}
		for _, want := range []string{"the store is full", "it did not answer in time", "alice"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q does not say %q:\n%s", args, want, out.String())
			}
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%q lets an escape sequence through: %q", args, out.String())
		}
	}
	s := prepare(t, "events")
	s.Env = append(s.Env, "ATOLL_HOST="+srv.URL, "ATOLL_TOKEN=whatever")
	out, err := s.Output()
	if want := "gone           abcdefgh              ^[]0;owned^G, of alice/bot, evicted, by alice\n"; err != nil || !strings.HasSuffix(string(out), want) {
		t.Errorf("got %q, %v, want it to end with %q", out, err, want)
	}
}

// Processor time is that between two looks, in percent of one processor.
func TestPercent(t *testing.T) {
	at := time.Now()
	for _, c := range []struct {
		cpu, past time.Duration
		want      float64
	}{
		{0, time.Second, 0},
		{time.Second / 2, time.Second, 50},
		{3 * time.Second, time.Second, 300},
		{-time.Second, time.Second, 0}, // another sandbox, or a figure that fell
		{time.Second, 0, 0},
	} {
		was := reading{10 * time.Second, at}
		if got := percent(was, reading{was.cpu + c.cpu, at.Add(c.past)}); got != c.want {
			t.Errorf("%v in %v is %v, want %v", c.cpu, c.past, got, c.want)
		}
	}
}

// A frame is as large as the terminal, and what is in it cannot leave it.
func TestDrawTop(t *testing.T) {
	rows := [][]string{{"ID", "NAME"}, {"a", "\x1b[2Jx"}, {"b", "äöü"}, {"c", "last"}}
	for _, c := range []struct {
		width, height int
		want          []string
	}{
		{80, 24, []string{"ID  NAME", "a   ^[[2Jx", "b   äöü", "c   last"}},
		{80, 4, []string{"ID  NAME", "a   ^[[2Jx", "b   äöü", "c   last"}},
		{80, 3, []string{"ID  NAME", "a   ^[[2Jx", "and 2 more"}},
		{6, 24, []string{"ID  NA", "a   ^[", "b   äö", "c   la"}},
	} {
		var out bytes.Buffer
		if err := drawTop(&out, rows, c.width, c.height); err != nil {
			t.Fatal(err)
		}
		if want := "\x1b[H" + strings.Join(c.want, "\x1b[K\r\n") + "\x1b[K\x1b[J"; out.String() != want {
			t.Errorf("%d by %d: got %q, want %q", c.width, c.height, out.String(), want)
		}
	}
}

func TestSince(t *testing.T) {
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{"": {}, "10m": now.Add(-10 * time.Minute), "0s": now, "2030-01-01T00:00:00Z": time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if got, err := parseSince(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: got %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"yesterday", "-10m", "2030-01-01"} {
		if _, err := parseSince(s, now); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

// A zero that was written down is meant, one that was not is the profile's to
// choose.
func TestExplicitZeros(t *testing.T) {
	for args, want := range map[string]string{
		"":                                    "",
		"--memory 64m --cpus 1":               "",
		"--memory 0 --cpus 0 --pids 0":        "limits.memory limits.cpu limits.pids",
		"--disk 0 --workspace 0":              "limits.disk limits.workspace",
		"--read-only=false":                   "read_only_root",
		"--read-only":                         "",
		"--ttl 0":                             "expires",
		"--ttl 0 --expires 2999-01-01T00:00Z": "",
	} {
		var f specFlags
		f.add(pflag.NewFlagSet("", pflag.ContinueOnError))
		if err := f.set.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(f.explicit(), " "); got != want {
			t.Errorf("%q: explicit are %q, want %q", args, got, want)
		}
	}
}
