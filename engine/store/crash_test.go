package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// ctx is that of a child, which has no test.
var ctx = context.Background()

var soak = os.Getenv("ATOLL_SOAK") != ""

// childEnv says that this program is a child of a test, and which.
const childEnv = "ATOLL_STORE_TEST_CHILD"

func TestMain(m *testing.M) {
	child := map[string]func() error{"writer": writer, "full": fillUp}[os.Getenv(childEnv)]
	if child == nil {
		os.Exit(m.Run())
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// writer puts and buries, several at once, until it is killed, and says what
// was acknowledged: "put 12 3" is the record 12 in its third version.
func writer() error {
	s, err := Open(os.Getenv("ATOLL_STORE_PATH"), Options{})
	if err != nil {
		return err
	}
	first, err := strconv.Atoi(os.Getenv("ATOLL_STORE_FIRST"))
	if err != nil {
		return err
	}
	fmt.Println("open")
	const workers = 4
	errs := make(chan error)
	var mu sync.Mutex
	say := func(what string, n, version int) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what, n, version)
	}
	for w := range workers {
		go func() {
			for n := first + w; ; n += workers {
				for version := range 3 {
					r := record(n)
					r.Wanted = strconv.Itoa(version)
					say("putting", n, version)
					if err := s.Put(ctx, r); err != nil {
						errs <- err
						return
					}
					say("put", n, version)
				}
				if n%2 == 0 {
					say("burying", n, 0)
					if err := s.Bury(ctx, tombstone(n, t0)); err != nil {
						errs <- err
						return
					}
					say("buried", n, 0)
				}
			}
		}()
	}
	return <-errs
}

// What a child said last of each record.
type said struct {
	what    string
	version int
}

// Whenever the process is killed, everything that was acknowledged is there,
// and nothing is there twice or in half.
func TestWhatIsAcknowledgedOutlivesAKill(t *testing.T) {
	rounds := 15
	if soak {
		rounds = 200
	}
	path := filepath.Join(t.TempDir(), "store")
	heard := make(map[int]said)
	acknowledged := 0
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=writer", "ATOLL_STORE_PATH="+path, fmt.Sprint("ATOLL_STORE_FIRST=", round*100_000))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if lines.Text() == "open" {
				// From the first write on; also while a page is written.
				time.AfterFunc(time.Duration(rand.IntN(40_000))*time.Microsecond, func() { cmd.Process.Kill() })
				continue
			}
			var s said
			var n int
			if _, err := fmt.Sscan(lines.Text(), &s.what, &n, &s.version); err != nil {
				continue // the last line may be cut
			}
			if s.what == "put" || s.what == "buried" {
				acknowledged++
			}
			heard[n] = s
		}
		io.Copy(io.Discard, out)
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("the child ended by itself: %v, %s", err, stderr.String())
		}
		check(t, path, heard)
		if t.Failed() {
			t.Fatalf("after kill %d", round+1)
		}
	}
	if acknowledged < rounds {
		t.Errorf("%d kills met only %d writes", rounds, acknowledged)
	}
	t.Logf("%d kills, %d acknowledged writes", rounds, acknowledged)
}

// check compares what is there with what was said. What was begun and not
// acknowledged may be there or not.
func check(t *testing.T, path string, heard map[int]said) {
	t.Helper()
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rs, ds, _, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	live, gone := make(map[sandbox.ID]string), make(map[sandbox.ID]bool)
	for _, r := range rs {
		live[r.ID] = r.Wanted
	}
	for _, d := range ds {
		gone[d.ID] = true
	}
	for n, h := range heard {
		version, isLive := live[id(n)]
		isGone := gone[id(n)]
		v, _ := strconv.Atoi(version)
		var ok bool
		switch h.what {
		case "putting":
			ok = !isGone && (isLive && (v == h.version || v == h.version-1) || !isLive && h.version == 0)
		case "put":
			ok = !isGone && isLive && v == h.version
		case "burying":
			ok = isGone != isLive
		case "buried":
			ok = isGone && !isLive
		}
		if !ok {
			t.Errorf("%d: heard %v, found live %v (version %q), gone %v", n, h, isLive, version, isGone)
		}
		delete(live, id(n))
		delete(gone, id(n))
	}
	if len(live)+len(gone) > 0 {
		t.Errorf("nobody wrote %v and %v", live, gone)
	}
}

// fillUp fills the disk and goes on when there is room.
func fillUp() error {
	dir := os.Getenv("ATOLL_STORE_PATH")
	if err := mountSmall(dir, 512<<10); err != nil {
		return err
	}
	path, ballast := filepath.Join(dir, "store"), filepath.Join(dir, "ballast")

	// With no room at all it is not even made, and leaves nothing.
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err == nil {
		return errors.New("the disk is not small")
	}
	var e *sandbox.Error
	if _, err := Open(path, Options{}); !errors.As(err, &e) || e.Kind != sandbox.Exhausted || e.Hint == "" {
		return fmt.Errorf("open on a full disk: got %w, want Exhausted", err)
	}
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) > 0 {
		return fmt.Errorf("open on a full disk left %v, %w", left, err)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}

	s, err := Open(path, Options{})
	if err != nil {
		return err
	}
	heard := make(map[int]said)
	for round := range 3 {
		failed := 0
		for n := 1000 * round; failed < 20; n++ {
			err := s.Put(ctx, record(n))
			switch {
			case err == nil:
				r := record(n)
				r.Wanted = "0"
				if err := s.Put(ctx, r); err == nil {
					heard[n] = said{"put", 0}
					continue
				}
				failed++
				heard[n] = said{"put", 0} // without a version, which is 0 as well
			case !errors.Is(err, sandbox.Exhausted) || strings.Contains(err.(*sandbox.Error).Public(), dir):
				return fmt.Errorf("put on a full disk: got %w, want Exhausted without a path", err)
			default:
				failed++
				if err := s.Check(); !errors.Is(err, sandbox.Exhausted) && n%2 == 0 && err != nil {
					return fmt.Errorf("check on a full disk: got %w, want Exhausted", err)
				}
			}
		}
		if len(heard) < 20 {
			return fmt.Errorf("only %d records fit: the test tries nothing", len(heard))
		}
		// It can still be read, closed and opened.
		if err := s.Close(); err != nil {
			return err
		}
		if s, err = Open(path, Options{}); err != nil {
			return fmt.Errorf("open on a full disk: %w", err)
		}
		rs, _, _, err := s.Load()
		if err != nil || len(rs) != len(heard) {
			return fmt.Errorf("there are %d records, %v, want %d", len(rs), err, len(heard))
		}
		// Room is made, and it goes on.
		if err := growSmall(dir, int64(round+2)*1<<20); err != nil {
			return err
		}
		if err := s.Check(); err != nil {
			return fmt.Errorf("check when there is room again: %w", err)
		}
	}
	if err := s.Close(); err != nil {
		return err
	}

	// And a disk that cannot be written at all.
	if err := freezeSmall(dir); err != nil {
		return err
	}
	for _, p := range []string{path, path + "2"} {
		if _, err := Open(p, Options{}); !errors.As(err, &e) || e.Kind != sandbox.Denied || e.Hint == "" {
			return fmt.Errorf("open on a read-only disk: got %w, want Denied", err)
		}
	}
	return nil
}
