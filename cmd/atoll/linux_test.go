package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// theGuest builds the program that runs inside, once.
var theGuest = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "atoll-guest-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "atoll-guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "../atoll-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	guestDir = dir
	return file, nil
})

// guestDir is where theGuest is, to be removed at the end.
var guestDir string

func removeGuest() {
	if guestDir != "" {
		os.RemoveAll(guestDir)
	}
}

// linuxConfig returns a configuration file for the linux backend, and skips
// the test where that cannot run; with linux in ATOLL_REQUIRE it fails
// instead.
func linuxConfig(t *testing.T) string {
	t.Helper()
	guest, err := theGuest()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(filepath.Dir(guest), "atoll.toml")
	text := fmt.Sprintf("backend = ['linux']\n[linux]\nguest = %q\n", guest)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s := prepare(t, "doctor", "--json")
	s.Env = append(s.Env, "ATOLL_CONFIG="+config, "ATOLL_BACKEND=")
	out, err := s.Output()
	if err == nil {
		return config
	}
	var d diagnosis
	json.Unmarshal(out, &d)
	var missing []string
	for _, f := range d.Probes {
		if f.Needed && !f.OK {
			missing = append(missing, f.Name+" ("+f.Detail+")")
		}
	}
	why := fmt.Sprintf("no linux sandboxes here: %s: %v", strings.Join(missing, ", "), err)
	if slices.Contains(strings.Split(os.Getenv("ATOLL_REQUIRE"), ","), "linux") {
		t.Fatal(why)
	}
	t.Skip(why)
	return ""
}

// TestLinuxScripts runs the files of testdata/linux, as those of TestScripts,
// over the real backend.
func TestLinuxScripts(t *testing.T) {
	config := linuxConfig(t)
	runScripts(t, "testdata/linux", config)
}

// TestOrdinaryUser runs the main job as somebody who is nobody, with one id
// and no entry anywhere.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else; TestLinuxScripts runs as an ordinary user then")
	}
	config := linuxConfig(t)
	program, err := exec.LookPath("atoll")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "atoll-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const uid = 54321
	b, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "atoll"), b, 0o755)
	}
	if err == nil {
		err = os.Chown(dir, uid, uid)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "atoll"), args...)
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + dir, "PATH=/usr/local/bin:/usr/bin:/bin", "ATOLL_CONFIG=" + config}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd
	}
	if out, err := as("doctor").CombinedOutput(); err != nil {
		t.Fatalf("doctor: %v\n%s", err, out)
	} else if !strings.Contains(string(out), "\nThe backend linux works here.\n") {
		t.Errorf("doctor says\n%s", out)
	}
	out, err := as("run", "--memory", "64m", "--", "sh", "-c", "id -u; echo hi > /workspace/x; cat /workspace/x; exit 5").CombinedOutput()
	if string(out) != "0\nhi\n" {
		t.Errorf("run said %q", out)
	}
	if e, ok := err.(*exec.ExitError); !ok || e.ExitCode() != 5 {
		t.Errorf("run ended with %v, want status 5", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".local/state/atoll/run/*"))
	if len(left) > 0 {
		t.Errorf("run left %q", left)
	}
}

// TestNextRunCleansUp kills a run in a way that it cannot notice.
func TestNextRunCleansUp(t *testing.T) {
	config := linuxConfig(t)
	state := t.TempDir()
	run := func(command string) *session {
		s := prepare(t, "run", "--", "sh", "-c", command)
		s.state = state
		s.Env = append(s.Env, "ATOLL_STATE="+state, "ATOLL_CONFIG="+config, "ATOLL_BACKEND=")
		out, err := s.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		s.stdout, s.out, s.Stderr = out, bufio.NewReader(out), &s.errs
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := run("echo ready; exec sleep 100000")
	first.line(t)
	first.Process.Kill()
	first.Wait()
	left, _ := filepath.Glob(filepath.Join(state, "run/*/linux/sandboxes/*"))
	if len(left) != 1 {
		t.Fatalf("it left %q, want one sandbox", left)
	}
	second := run("echo hi")
	if got := second.line(t); got != "hi" {
		t.Errorf("the next one said %q", got)
	}
	second.end(t, 0)
	guests, err := exec.Command("sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").Output()
	if err != nil && len(guests) == 0 {
		t.Fatal(err)
	}
	if id := filepath.Base(left[0]); strings.Contains(string(guests), id) {
		t.Errorf("the guest of %s still lives", id)
	}
}
