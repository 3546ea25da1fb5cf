package main

import (
	"bufio"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTopOnATerminal draws again and again, until it is interrupted.
func TestTopOnATerminal(t *testing.T) {
	d, at := beginDaemon(t)
	id := d.answer(t, at, "create", "--name", "one")
	person, program := openPTY(t)
	s := d.at(t, at, "top", "--interval", "100ms")
	s.Stdin, s.Stdout, s.Stderr = program, program, program
	s.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(person)
	for range 3 {
		until(t, r, "\x1b[HID")
		until(t, r, id)
	}
	other := d.answer(t, at, "create")
	until(t, r, other) // without being asked again
	person.WriteString("\x03")
	if s.Wait(); s.ProcessState.ExitCode() != 130 {
		t.Errorf("it ended with %v, want status 130", s.ProcessState)
	}
	d.Process.Signal(unix.SIGTERM)
	d.end(t, 0)
}

// TestPruneAsks removes nothing unless the person says yes.
func TestPruneAsks(t *testing.T) {
	d, at := beginDaemon(t)
	id := d.answer(t, at, "create", "--name", "one\u202etwo")
	for _, c := range []struct {
		answer string
		goes   bool
	}{{"\n", false}, {"n\n", false}, {"\x04", false}, {"y\n", true}} {
		person, program := openPTY(t)
		s := d.at(t, at, "prune")
		s.Stdin, s.Stdout, s.Stderr = program, program, program
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(person)
		until(t, r, id+`  one\u202etwo  idle `)
		until(t, r, "remove this sandbox, with all files? [y/N] ")
		person.WriteString(c.answer)
		if err := s.Wait(); err != nil {
			t.Errorf("%q: %v", c.answer, err)
		}
		if left := strings.Contains(d.answer(t, at, "ls", "-q"), id); left == c.goes {
			t.Errorf("after the answer %q, the sandbox is there: %v", c.answer, left)
		}
	}
	d.Process.Signal(unix.SIGTERM)
	d.end(t, 0)
}
