package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// openPTY returns the two ends of a terminal: the one that a person would sit
// at, and the one that a program gets.
func openPTY(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this machine gives no terminals: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// until reads from r up to the end of text.
func until(t *testing.T, r *bufio.Reader, text string) {
	t.Helper()
	var seen strings.Builder
	for !strings.HasSuffix(seen.String(), text) {
		b, err := r.ReadByte()
		if err != nil {
			t.Fatalf("got %q, %v, want %q", seen.String(), err, text)
		}
		seen.WriteByte(b)
	}
}

// TestTerminal goes through the life of an interactive session: raw mode, the
// size and its changes, keys, and the terminal as it was.
func TestTerminal(t *testing.T) {
	person, program := openPTY(t)
	fd := int(program.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		t.Fatal(err)
	}
	resize := func(rows, cols uint16) {
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			t.Fatal(err)
		}
	}
	resize(33, 101)
	s := prepare(t, "run", "-it", "--", "sh", "-c", `stty size; trap 'stty size; echo sized' WINCH; trap 'echo interrupted; exit 5' INT; while :; do sleep 0.01; done`)
	s.Stdin, s.Stdout, s.Stderr = program, program, program
	// It is the session's terminal, so that the kernel tells the program of
	// a new size.
	s.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(person)
	until(t, r, "33 101\r\n")
	resize(44, 102)
	until(t, r, "44 102\r\nsized\r\n")
	person.WriteString("\x03") // in raw mode control-C is a key
	until(t, r, "interrupted\r\n")
	if err := s.Wait(); s.ProcessState.ExitCode() != 5 {
		t.Errorf("it ended with %v, want status 5", err)
	}
	after, err := term.GetState(fd)
	if err != nil {
		t.Fatal(err)
	}
	if *before != *after {
		t.Error("the terminal is not as it was")
	}
}

// TestTerminalIsPutBack ends the program by a signal.
func TestTerminalIsPutBack(t *testing.T) {
	person, program := openPTY(t)
	fd := int(program.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		t.Fatal(err)
	}
	s := prepare(t, "run", "-t", "--", "sh", "-c", "echo ready; exec sleep 100000")
	s.Stdin, s.Stdout, s.Stderr = program, program, program
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, bufio.NewReader(person), "ready\r\n")
	if now, err := term.GetState(fd); err != nil || *now == *before {
		t.Fatalf("it is not in raw mode: %v", err)
	}
	s.Process.Signal(unix.SIGTERM)
	s.Wait()
	if after, err := term.GetState(fd); err != nil || *before != *after {
		t.Errorf("the terminal is not as it was: %v", err)
	}
}

func TestTerminalIsAskedFor(t *testing.T) {
	s := begin(t, "run", "-t", "--", "true")
	s.end(t, exitOurs)
	if want := "atoll: standard input is not a terminal\n       leave out -t\n"; s.errs.String() != want {
		t.Errorf("it said %q, want %q", s.errs.String(), want)
	}
}

// TestLogsOnATerminal has a sandbox that would like to have the operator's
// terminal.
func TestLogsOnATerminal(t *testing.T) {
	d, at := beginDaemon(t)
	answer := func(args ...string) string { return d.answer(t, at, args...) }
	id := answer("create", "--label", "name=\x1b]0;label\a")
	p := answer("exec", "-d", id, "--", "printf", `a\033]0;owned\007b\033[2Jc\n`)
	answer("logs", "-f", id, p)

	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"logs", id, p}, "a^[]0;owned^Gb^[[2Jc\r\n"},
		{[]string{"logs", "--raw", id, p}, "a\x1b]0;owned\ab\x1b[2Jc\r\n"},
	} {
		person, program := openPTY(t)
		s := d.at(t, at, tc.args...)
		s.Stdout, s.Stderr = program, program
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 1000)
		n, err := person.Read(got)
		if string(got[:n]) != tc.want {
			t.Errorf("%v: got %q, %v, want %q", tc.args, got[:n], err, tc.want)
		}
	}
	// Into a file it goes as it is.
	if got, want := answer("logs", id, p), "a\x1b]0;owned\ab\x1b[2Jc"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// What others said is harmless in tables as well.
	for _, args := range [][]string{{"ls"}, {"ps", id}, {"inspect", id}} {
		if got := answer(args...); strings.ContainsAny(got, "\x1b\a") {
			t.Errorf("%v: got %q", args, got)
		}
	}
	d.Process.Signal(unix.SIGTERM)
	d.end(t, 0)
}
