package sandbox_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
)

func newSandbox(t *testing.T) sandbox.Sandbox {
	t.Helper()
	rt := memory.New(memory.Config{})
	t.Cleanup(func() { rt.Close() })
	sb, err := rt.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func TestCapture(t *testing.T) {
	sb := newSandbox(t)
	cmd := sandbox.Cmd{Args: []string{"sh", "-c", "echo output; echo err >&2; exit 3"}}
	for _, c := range []struct {
		max       int
		out, err  string
		truncated bool
	}{{100, "output\n", "err\n", false}, {7, "output\n", "err\n", false}, {4, "outp", "err\n", true}, {0, "", "", true}, {-1, "", "", true}} {
		r, err := sandbox.Capture(t.Context(), sb, c.max, cmd)
		if err != nil || r.Code != 3 || string(r.Stdout) != c.out || string(r.Stderr) != c.err || r.Truncated != c.truncated {
			t.Errorf("at most %d: %+v, %v", c.max, r, err)
		}
	}
	if _, err := sandbox.Capture(t.Context(), sb, 1, sandbox.Cmd{}); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("no command: %v", err)
	}
}

func TestRun(t *testing.T) {
	sb := newSandbox(t)
	if e, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"false"}}); err != nil || e.Code != 1 {
		t.Errorf("false: %+v, %v", e, err)
	}
	if _, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"no-such-program"}}); !errors.Is(err, sandbox.NotExist) {
		t.Errorf("no-such-program: %v", err)
	}
}

func TestReadAndWriteFile(t *testing.T) {
	sb := newSandbox(t)
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/f", []byte(strings.Repeat("x", 1000))); err != nil {
		t.Fatal(err)
	}
	for max, ok := range map[int64]bool{1000: true, 1001: true, math.MaxInt64: true, 999: false, 0: false} {
		b, err := sandbox.ReadFile(t.Context(), sb, "/tmp/f", max)
		if ok && (err != nil || len(b) != 1000) {
			t.Errorf("at most %d: %d bytes, %v", max, len(b), err)
		}
		var e *sandbox.Error
		if !ok && (!errors.As(err, &e) || e.Kind != sandbox.Exhausted || e.Field != "path") {
			t.Errorf("at most %d: %d bytes, %v, want Exhausted", max, len(b), err)
		}
	}
	if _, err := sandbox.ReadFile(t.Context(), sb, "/tmp/none", 1); !errors.Is(err, sandbox.NotExist) {
		t.Errorf("no file: %v", err)
	}
}
