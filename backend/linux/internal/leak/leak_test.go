//go:build linux

package leak

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What the checker is for has to be found when it is there.
func TestFindsWhatIsLeft(t *testing.T) {
	state := t.TempDir()
	w := New(state)
	if left := w.Left(); len(left) > 0 {
		t.Fatalf("before anything: %q", left)
	}
	const id = "leaktestaaaaaaaa"
	cmd := exec.Command("/bin/cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		t.Skip("no user namespaces here: ", err)
	}
	defer func() { in.Close(); cmd.Wait() }()
	w.hold(cmd.Process.Pid, id)
	if err := os.MkdirAll(filepath.Join(state, "trash", id), 0o700); err != nil {
		t.Fatal(err)
	}
	found := strings.Join(w.look(), "\n")
	for _, want := range []string{"(\"/bin/cat \") of " + id, "file trash/" + id} {
		if !strings.Contains(found, want) {
			t.Errorf("%q was not found in:\n%s", want, found)
		}
	}
}
