//go:build linux

package linux_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
)

// guestProgram is built once for all tests; tests that run as another user are
// told where it is.
var guestProgram = os.Getenv("ATOLL_TEST_GUEST")

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if state := os.Getenv("ATOLL_TEST_DAEMON"); state != "" {
		return serveCrash(state)
	}
	if guestProgram == "" {
		dir, err := os.MkdirTemp("", "atoll-linux-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		guestProgram = filepath.Join(dir, "atoll-guest")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", guestProgram, "github.com/atoll-run/atoll/cmd/atoll-guest")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the guest: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

// config is what most tests use: a state of their own, and logs that show up
// where a test fails.
func config(t *testing.T) linux.Config {
	t.Helper()
	state := t.TempDir()
	// Sandboxes of other ids than ours reach what is shown to them by
	// descriptors; the folders above need not let them through.
	return linux.Config{
		State: state, Cache: cacheDir(t), Guest: guestProgram, MountRoots: []string{"/tmp", "/var/tmp"}, ImageRoots: []string{"/tmp", "/var/tmp"},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func cacheDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(guestProgram), fmt.Sprintf("cache-%d", os.Geteuid()))
}

// newRuntime returns a Runtime that is closed, and emptied, at the test's end.
func newRuntime(t *testing.T) *linux.Runtime {
	t.Helper()
	return newRuntimeWith(t, config(t))
}

func newRuntimeWith(t *testing.T, cfg linux.Config) *linux.Runtime {
	t.Helper()
	rt, err := linux.New(cfg)
	if errors.Is(err, sandbox.Unsupported) {
		skip(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := removeAll(rt)
		if errors.Is(err, sandbox.Closed) { // by the test; another finds what it left
			if rt, err = linux.New(cfg); err == nil {
				err = removeAll(rt)
			}
		}
		if err != nil {
			t.Error(err)
		}
		if rt == nil {
			return
		}
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

func removeAll(rt sandbox.Runtime) error {
	ctx := context.Background()
	for info, err := range rt.List(ctx) {
		if err != nil {
			return err
		}
		sb, err := rt.Open(ctx, info.ID)
		if err == nil {
			err = sb.Remove(ctx)
		}
		if err != nil && !errors.Is(err, sandbox.NotExist) {
			return err
		}
	}
	return nil
}

// skip skips, unless this backend is required.
func skip(t *testing.T, why error) {
	t.Helper()
	for _, b := range strings.Split(os.Getenv("ATOLL_REQUIRE"), ",") {
		if b == "linux" {
			t.Fatalf("the backend is required: %v", why)
		}
	}
	t.Skipf("no sandbox can be made here: %v", why)
}

// testUser is an ordinary user, who has no entry in any file of the system's.
const testUser = 54321

// asUser runs this test again in a process of an ordinary user's, who has one
// id to give.
func asUser(t *testing.T, pattern string) {
	t.Helper()
	cmd := userTest(t, pattern)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUser, Gid: testUser}}
	runUserTest(t, cmd)
}

// asUserWithRange runs this test again as an ordinary user who was given a
// range of ids. That the user is there, and what it was given, is shown to
// that process alone, by mounts in a namespace of its own.
func asUserWithRange(t *testing.T, pattern string) {
	t.Helper()
	for _, program := range []string{"newuidmap", "newgidmap", "unshare", "setpriv"} {
		if _, err := exec.LookPath(program); err != nil {
			skip(t, fmt.Errorf("a user's range of ids needs %s: %w", program, err))
		}
	}
	cmd := userTest(t, pattern)
	dir := t.TempDir()
	script := "set -e\n"
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("atoll-test:x:%d:%d::%s:/bin/sh\n", testUser, testUser, cmd.Dir),
		"group":  fmt.Sprintf("atoll-test:x:%d:\n", testUser),
		"subuid": "atoll-test:1200000000:65536\n",
		"subgid": "atoll-test:1200000000:65536\n",
	} {
		old, err := os.ReadFile("/etc/" + name)
		if err != nil {
			t.Skipf("this system has no /etc/%s", name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), append([]byte(line), old...), 0o644); err != nil {
			t.Fatal(err)
		}
		script += fmt.Sprintf("mount --bind %s /etc/%s\n", filepath.Join(dir, name), name)
	}
	script += fmt.Sprintf("exec setpriv --reuid %d --regid %d --clear-groups \"$@\"\n", testUser, testUser)
	args := append([]string{"unshare", "--mount", "sh", "-c", script, "sh"}, cmd.Args...)
	cmd.Path, cmd.Args = mustFind(t, args[0]), args
	runUserTest(t, cmd)
}

func mustFind(t *testing.T, program string) string {
	t.Helper()
	p, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// userTest is a command that runs tests of this program, from a folder that
// belongs to testUser.
func userTest(t *testing.T, pattern string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	home, err := os.MkdirTemp("", "atoll-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(home, testUser, testUser); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"test": "/proc/self/exe", "atoll-guest": guestProgram} {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(home, "test"), "-test.run", pattern, "-test.v", "-test.timeout", "10m")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "ATOLL_TEST_GUEST="+filepath.Join(home, "atoll-guest"), "ATOLL_TEST_USER=1")
	return cmd
}

func runUserTest(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- FAIL") || strings.Contains(line, "--- SKIP") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Errorf("as an ordinary user: %v\n%s", err, tail(went.ReplaceAllString(string(out), ""), 20000))
	}
}

// went matches the lines in which a test program says that all goes well.
var went = regexp.MustCompile(`(?m)^\s*(=== (RUN|PAUSE|CONT)|--- (PASS|SKIP):).*\n`)

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
