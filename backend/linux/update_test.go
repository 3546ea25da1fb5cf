//go:build linux

package linux_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/linux/internal/leak"
	"github.com/atoll-run/atoll/sandbox"
)

// An update whose record cannot be written is taken back where the guest has
// made it already.
func TestUpdateIsTakenBack(t *testing.T) {
	cfg := config(t)
	rt := newRuntimeWith(t, cfg)
	expires := time.Now().Add(time.Hour).Round(0)
	sb, err := rt.Create(t.Context(), sandbox.Spec{Env: map[string]string{"OLD": "old"}, Labels: map[string]string{"a": "1"}, Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(cfg.State, "sandboxes", string(sb.ID()), "record.new")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	change := sandbox.Change{Labels: map[string]string{"b": "2"}, Expires: new(expires.Add(time.Hour)), Env: map[string]string{"OLD": "new", "NEW": "new"}}
	said := func() string {
		r, err := sandbox.Capture(t.Context(), sb, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "echo $OLD ${NEW-unset}"}})
		if err != nil {
			t.Fatal(err)
		}
		i, err := sb.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i.Expires.Equal(expires) {
			return strings.TrimSpace(string(r.Stdout)) + " " + i.Labels["a"] + i.Labels["b"] + " first end"
		}
		return strings.TrimSpace(string(r.Stdout)) + " " + i.Labels["a"] + i.Labels["b"] + " second end"
	}
	if err := sb.(sandbox.Updater).Update(t.Context(), change); sandbox.KindOf(err) != sandbox.Internal {
		t.Errorf("Update: %v, want it to be our fault", err)
	}
	if got := said(); got != "old unset 1 first end" {
		t.Errorf("what failed left %q", got)
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := sb.(sandbox.Updater).Update(t.Context(), change); err != nil {
		t.Fatal(err)
	}
	if got := said(); got != "new new 2 second end" {
		t.Errorf("changed, it is %q", got)
	}
}

// What Remove could not free the first time it frees the next.
func TestRemoveTriesAgain(t *testing.T) {
	cfg := config(t)
	rt := newRuntimeWith(t, cfg)
	w := leak.New(cfg.State)
	sb, err := rt.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	w.Saw(string(sb.ID()))
	inTheWay := filepath.Join(cfg.State, "trash", string(sb.ID()), "x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(t.Context()); err == nil {
		t.Fatal("Remove says that it has freed what it cannot")
	}
	if _, err := sb.Info(t.Context()); sandbox.KindOf(err) != sandbox.NotExist {
		t.Errorf("Info of what is half removed: %v", err)
	}
	if err := sb.Remove(t.Context()); err == nil {
		t.Error("another Remove says so")
	}
	if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := sb.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// A process sees the descriptors that it was given and no others, of whatever
// kind and number: not the guest's, and not another process's.
func TestDescriptors(t *testing.T) {
	rt := newRuntime(t)
	sb, err := rt.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	// Others with pipes of their own run meanwhile.
	for range 3 {
		ctx := t.Context()
		if _, err := sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "1000"}, Stdin: strings.NewReader(""), Stdout: new(strings.Builder), Stderr: new(strings.Builder), Control: new(strings.Builder)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, terminal := range []*sandbox.Size{nil, {}} {
		for _, control := range []bool{false, true} {
			var out, fd3 strings.Builder
			// The shell itself lists: what it expands has one more open, the folder.
			cmd := sandbox.Cmd{Args: []string{"sh", "-c", `cd /proc/self/fd; for n in *; do [ -e "$n" ] && echo $n $(readlink $n | tr -dc a-z:); done; true`}, Stdout: &out, Terminal: terminal}
			want := "0 1 2"
			if control {
				cmd.Control, want = &fd3, "0 1 2 3"
			}
			exit, err := sandbox.Run(t.Context(), sb, cmd)
			if err != nil || !exit.Success() {
				t.Fatalf("%+v, %v: %s", exit, err, out.String())
			}
			var got []string
			for line := range strings.Lines(out.String()) {
				n, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
				got = append(got, n)
				if n == "3" && kind != "pipe:" {
					t.Errorf("descriptor 3 is a %s", kind)
				}
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("with terminal %v and control %v the descriptors are %s, want %s\n%s", terminal != nil, control, s, want, out.String())
			}
			if fd3.Len() > 0 {
				t.Errorf("%q came through descriptor 3", fd3.String())
			}
		}
	}
}
