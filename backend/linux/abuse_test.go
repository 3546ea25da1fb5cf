//go:build linux

package linux_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/backend/linux/internal/leak"
	"github.com/atoll-run/atoll/sandbox"
)

// Tests named TestAbuse try from inside, by the program internal/abuse, what an
// attacker would, and judge what came of it. All run as root, and again as an
// ordinary user, unless they say why not.
func TestAbuseAsUser(t *testing.T) {
	t.Setenv("ATOLL_TEST_ABUSE", abuseProgram(t))
	asUser(t, "^TestAbuse")
}

// soak reports whether the long forms are wanted.
var soak = os.Getenv("ATOLL_SOAK") != ""

// count is how often something is tried.
func count(short, long int) int {
	if soak {
		return long
	}
	return short
}

var (
	abuseOnce sync.Once
	abuseFile = os.Getenv("ATOLL_TEST_ABUSE")
	abuseErr  error
)

// abuseProgram builds internal/abuse, once.
func abuseProgram(t *testing.T) string {
	t.Helper()
	abuseOnce.Do(func() {
		if abuseFile != "" {
			return
		}
		abuseFile = filepath.Join(filepath.Dir(guestProgram), "abuse")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", abuseFile, "github.com/atoll-run/atoll/backend/linux/internal/abuse")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			abuseErr = fmt.Errorf("build the abuse program: %w\n%s", err, out)
		}
	})
	if abuseErr != nil {
		t.Fatal(abuseErr)
	}
	return abuseFile
}

// A cell is a sandbox with the abuse program in it.
type cell struct {
	sandbox.Sandbox
	nonce string
	info  sandbox.Info
}

const abusePath = "/workspace/.abuse"

// newCell makes a sandbox and puts the abuse program into it.
func newCell(t *testing.T, rt sandbox.Runtime, spec sandbox.Spec) *cell {
	t.Helper()
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return arm(t, sb)
}

func arm(t *testing.T, sb sandbox.Sandbox) *cell {
	t.Helper()
	c := &cell{Sandbox: sb, nonce: rand.Text()}
	b, err := os.ReadFile(abuseProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Files().Write(t.Context(), abusePath, bytes.NewReader(b), sandbox.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := sandbox.WriteFile(t.Context(), sb, "/workspace/.nonce", []byte(c.nonce)); err != nil {
		t.Fatal(err)
	}
	if c.info, err = sb.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// args are those of a probe.
func (c *cell) args(probe ...string) []string {
	return append([]string{abusePath, c.nonce}, probe...)
}

// try runs a probe to its end and returns what it said, by name.
func (c *cell) try(t *testing.T, probe ...string) map[string]string {
	t.Helper()
	return c.tryAs(t, "", probe...)
}

func (c *cell) tryAs(t *testing.T, user string, probe ...string) map[string]string {
	t.Helper()
	r, err := sandbox.Capture(t.Context(), c, 4<<20, sandbox.Cmd{Args: c.args(probe...), User: user})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Success() || r.Truncated {
		t.Fatalf("%q: %+v\n%s%s", probe, r.Exit, r.Stdout, r.Stderr)
	}
	said := verdicts(t, r.Stdout)
	if len(said) == 0 {
		t.Fatalf("%q said nothing: %s", probe, r.Stderr)
	}
	return said
}

func verdicts(t *testing.T, out []byte) map[string]string {
	t.Helper()
	said := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "\t")
		if !ok {
			t.Fatalf("not a verdict: %q", line)
		}
		said[name] = v
	}
	return said
}

// A runningProbe is one that goes on.
type runningProbe struct {
	sandbox.Process
	lines *bufio.Scanner
	end   context.CancelFunc
}

// start starts a probe that does not end; it is killed at the test's end.
func (c *cell) start(t *testing.T, probe ...string) *runningProbe {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	p, err := c.Start(ctx, sandbox.Cmd{Args: c.args(probe...), Stdout: w, Stderr: w})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); r.Close() })
	go func() { // ends with the process, which cancel ends
		p.Wait()
		w.Close()
	}()
	return &runningProbe{p, bufio.NewScanner(r), cancel}
}

// next returns the next verdict.
func (p *runningProbe) next(t *testing.T) (name, verdict string) {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the probe said nothing more: %v", p.lines.Err())
	}
	name, verdict, _ = strings.Cut(p.lines.Text(), "\t")
	return name, verdict
}

// works fails the test unless commands run in sb, and its files can be reached.
func works(t *testing.T, sb sandbox.Sandbox) {
	t.Helper()
	r, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "echo alive"}})
	if err != nil || string(r.Stdout) != "alive\n" {
		t.Fatalf("a command does not run: %v %+v %s%s", err, r.Exit, r.Stdout, r.Stderr)
	}
	if _, err := sb.Files().Stat(t.Context(), "/etc"); err != nil {
		t.Fatalf("files cannot be reached: %v", err)
	}
}

// kept fails the test unless the sandbox's limits are kept, since what follows
// relies on it not to harm the host.
func (c *cell) kept(t *testing.T, limits ...string) {
	t.Helper()
	for _, l := range limits {
		if c.info.Kept[l] == "" {
			t.Skipf("nothing keeps the limit of %s here, so nothing is tried that needs it: %v", l, c.info.Kept)
		}
	}
}

// remove removes the sandbox and fails if anything of it is left.
func (c *cell) remove(t *testing.T, w *leak.Watch) {
	t.Helper()
	if err := c.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// guestPID returns the host's pid of a sandbox's guest.
func guestPID(t *testing.T, id sandbox.ID) int {
	t.Helper()
	for pid, guest := range leak.Guests() {
		if guest == string(id) {
			return pid
		}
	}
	t.Fatalf("there is no guest of %s", id)
	return 0
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
