package shell_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/shell"
)

// isolated returns a sandbox that keeps its processes apart, in which other
// pids, users and owners of pipes hold than outside.
func isolated(t testing.TB, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "atoll-guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "github.com/atoll-run/atoll/cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest: %v\n%s", err, out)
	}
	rt, err := linux.New(linux.Config{State: filepath.Join(dir, "state"), Cache: filepath.Join(dir, "cache"), Guest: program, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if errors.Is(err, sandbox.Unsupported) {
		if slices.Contains(strings.Split(os.Getenv("ATOLL_REQUIRE"), ","), "linux") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func TestShellsWorkInRealSandboxes(t *testing.T) {
	sb := isolated(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 100}})
	for _, as := range []string{"", "1000:1000"} {
		for _, sh := range shells {
			t.Run(sh.name+as, func(t *testing.T) {
				s, err := shell.Open(t.Context(), sb, shell.Options{Program: sh.program, User: as})
				if errors.Is(err, sandbox.NotExist) || errors.Is(err, sandbox.Unsupported) {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				u := &user{T: t, Shell: s, bash: s.Info().Shell == "bash"}
				u.do("cd /usr; x=1; export y=2; f() { echo f; }")
				u.says("echo $x $y; f; pwd", "1 2\nf\n/usr\n")
				for fd, target := range links(u.do("ls -l /proc/self/fd").out) {
					if fd > "2" && !strings.HasPrefix(target, "/proc/") {
						t.Errorf("a command has descriptor %s, %s", fd, target)
					}
				}
				a, err := u.try(shell.Command{Text: "cat; echo end", Stdin: strings.NewReader("input\n")})
				if err != nil || a.out != "input\nend\n" {
					t.Errorf("%+v, %v", a, err)
				}
				left := strings.TrimSpace(u.do("sleep 300 & echo $!").out)
				for _, text := range []string{"sleep 301; echo no", "while :; do :; done", "g() { sleep 302; }; g; echo no", "exec sleep 303"} {
					time.Sleep(50 * time.Millisecond) // it tells its state
					a, err := u.try(shell.Command{Text: text, Timeout: 100 * time.Millisecond})
					if err != nil || a.Status != shell.TimedOut || a.out != "" {
						t.Errorf("%s: %+v, %v", text, a, err)
					}
					u.says("echo $x $y; pwd; kill -0 "+left+" && echo lives", "1 2\n/usr\nlives\n")
				}
				if a := u.do("exit 7"); a.ExitCode != 7 || !a.Replaced || a.Stale {
					t.Errorf("%+v", a)
				}
				u.says("echo $? $x $y; pwd", "7 1 2\n/usr\n")
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				r, err := sandbox.Capture(t.Context(), sb, 1<<16, sandbox.Cmd{Args: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"}})
				if err != nil || strings.Contains(string(r.Stdout), "sleep") {
					t.Errorf("after Close: %q, %v", r.Stdout, err)
				}
			})
		}
	}
}

func TestAForkBombIsKilledAndTheShellGoesOn(t *testing.T) {
	sb := isolated(t, sandbox.Spec{Limits: sandbox.Limits{PIDs: 60}})
	s, err := shell.Open(t.Context(), sb, shell.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	u := &user{T: t, Shell: s}
	u.do("cd /usr; x=1")
	time.Sleep(50 * time.Millisecond) // it tells its state
	a, err := u.try(shell.Command{Text: "bomb() { bomb | bomb & }; bomb; wait; sleep 300", Timeout: 500 * time.Millisecond})
	if err != nil || a.Status != shell.TimedOut {
		t.Errorf("%+v, %v", a.Result, err)
	}
	u.says("echo $x; pwd", "1\n/usr\n")
}

func TestARemovedSandboxEndsItsShells(t *testing.T) {
	sb := isolated(t, sandbox.Spec{})
	s, err := shell.Open(t.Context(), sb, shell.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out := &watched{got: make(chan struct{})}
	go func() {
		<-out.got
		sb.Remove(context.Background())
	}()
	for _, text := range []string{"echo; sleep 300", "echo"} {
		if _, err = s.Run(t.Context(), shell.Command{Text: text, Stdout: out}); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkSandbox measures what BenchmarkRun does, in a real sandbox.
func BenchmarkSandbox(b *testing.B) { measure(b, isolated(b, sandbox.Spec{}), nil) }
