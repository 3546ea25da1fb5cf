package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func TestSignals(t *testing.T) {
	seen := make(map[int]Signal)
	for s := range numbers {
		n := s.Number()
		if n <= 0 || n > 31 || seen[n] != "" {
			t.Errorf("%s has the number %d, as %s has", s, n, seen[n])
		}
		seen[n] = s
		if SignalNumbered(n) != s {
			t.Errorf("SignalNumbered(%d) is %s, want %s", n, SignalNumbered(n), s)
		}
		for _, form := range []string{string(s), "SIG" + string(s), strings.ToLower(string(s)), "sig" + strings.ToLower(string(s))} {
			if got, err := ParseSignal(form); err != nil || got != s {
				t.Errorf("ParseSignal(%q) is %s, %v", form, got, err)
			}
		}
	}
	if KILL.Number() != 9 || TERM.Number() != 15 || INT.Number() != 2 {
		t.Error("the numbers are not Linux's")
	}
	if Signal("NOPE").Number() != 0 || SignalNumbered(0) != "" || SignalNumbered(64) != "" || SignalNumbered(-1) != "" {
		t.Error("anything is a signal")
	}
	for _, bad := range []string{"", "SIG", "9", "NOPE", "SIGSIGTERM", " TERM"} {
		var e *Error
		if _, err := ParseSignal(bad); !errors.As(err, &e) || e.Kind != Invalid || e.Field != "signal" || e.Hint == "" {
			t.Errorf("ParseSignal(%q): %v", bad, err)
		}
	}
}

// FuzzParseSignal: what is read is a known name, and reading it again changes
// nothing.
func FuzzParseSignal(f *testing.F) {
	f.Add("TERM")
	f.Add("sigkill")
	f.Add("ſigterm") // U+017F is S in upper case
	f.Fuzz(func(t *testing.T, name string) {
		s, err := ParseSignal(name)
		if err != nil {
			return
		}
		if s.Number() == 0 {
			t.Errorf("ParseSignal(%q) is %q", name, s)
		}
		if again, err := ParseSignal(string(s)); err != nil || again != s {
			t.Errorf("ParseSignal(%q) is %q, %v", s, again, err)
		}
	})
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		exit    Exit
		status  int
		success bool
	}{
		{Exit{Reason: Exited}, 0, true},
		{Exit{Reason: Exited, Code: 3}, 3, false},
		{Exit{Reason: Signalled, Code: -1, Signal: TERM}, 143, false},
		{Exit{Reason: Signalled, Code: -1}, 255, false},
		{Exit{Reason: TimedOut, Code: -1, Signal: KILL}, 124, false},
		{Exit{Reason: OutOfMemory, Code: -1, Signal: KILL}, 137, false},
		{Exit{}, 255, false},
	} {
		if got := c.exit.Status(); got != c.status || c.exit.Success() != c.success {
			t.Errorf("%+v has the status %d, success %v", c.exit, got, c.exit.Success())
		}
	}
}
