package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A session is the real program, with the memory backend and a state folder
// of its own.
type session struct {
	*exec.Cmd
	state  string
	out    *bufio.Reader
	stdout io.ReadCloser
	errs   bytes.Buffer
}

// begin starts the program.
func begin(t *testing.T, args ...string) *session {
	t.Helper()
	s := prepare(t, args...)
	var err error
	if s.stdout, err = s.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(s.stdout)
	s.Stderr = &s.errs
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// prepare returns the program, not started. It is killed at the end of the
// test, if it still runs then.
func prepare(t *testing.T, args ...string) *session {
	t.Helper()
	program, err := exec.LookPath("atoll") // TestMain has put it there
	if err != nil {
		t.Fatal(err)
	}
	s := &session{Cmd: exec.CommandContext(t.Context(), program, args...), state: t.TempDir()}
	s.Env = append(os.Environ(), "ATOLL_STATE="+s.state, "ATOLL_CONFIG=/dev/null", "ATOLL_BACKEND=memory", "ATOLL_HOST=", "HOME="+s.state)
	return s
}

// line reads a line of output.
func (s *session) line(t *testing.T) string {
	t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatalf("got %q, %v and on standard error\n%s", line, err, s.errs.String())
	}
	return strings.TrimSuffix(line, "\n")
}

// end waits, and wants the status and nothing left in the state folder.
func (s *session) end(t *testing.T, status int) {
	t.Helper()
	io.Copy(io.Discard, s.out)
	err := s.Wait()
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != status {
		t.Errorf("got status %d, want %d, and on standard error\n%s", got, status, s.errs.String())
	}
	left, _ := filepath.Glob(filepath.Join(s.state, "run", "*"))
	if len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			s := begin(t, "run", "--", "sh", "-c", `trap 'echo caught; exit 7' TERM INT HUP QUIT; echo ready; while :; do sleep 0.01; done`)
			s.line(t)
			s.Process.Signal(sig)
			if got := s.line(t); got != "caught" {
				t.Errorf("the command said %q", got)
			}
			s.end(t, 7)
		})
	}
}

func TestSignalEndsTheCommand(t *testing.T) {
	s := begin(t, "run", "--", "sh", "-c", "echo ready; exec sleep 100000")
	s.line(t)
	s.Process.Signal(syscall.SIGTERM)
	s.end(t, 128+15)
}

// TestSecondSignalKills has a command that ignores what it is told.
func TestSecondSignalKills(t *testing.T) {
	s := begin(t, "run", "--", "sh", "-c", `trap 'echo no' INT; echo ready; while :; do sleep 0.01; done`)
	s.line(t)
	s.Process.Signal(syscall.SIGINT)
	if got := s.line(t); got != "no" {
		t.Fatalf("the command said %q", got)
	}
	s.Process.Signal(syscall.SIGINT)
	s.end(t, 128+2)
}

// TestBrokenPipeEndsTheCommand has a reader that goes away, as head does.
func TestBrokenPipeEndsTheCommand(t *testing.T) {
	s := begin(t, "run", "--", "yes")
	s.line(t)
	s.stdout.Close()
	s.end(t, exitBrokenPipe)
	if s.errs.Len() > 0 {
		t.Errorf("it said %q", s.errs.String())
	}
}

// TestStreamsKeepTheirOrder has both streams lead to one file.
func TestStreamsKeepTheirOrder(t *testing.T) {
	s := prepare(t, "run", "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo $i >&2; done")
	out, err := s.CombinedOutput()
	if want := "1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n6\n6\n7\n7\n8\n8\n9\n9\n"; string(out) != want || err != nil {
		t.Errorf("got %q, %v", out, err)
	}
}
