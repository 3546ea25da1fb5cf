package audit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// childEnv says that this program is a child of TestAFullDisk, and where it
// mounts its disk.
const childEnv = "ATOLL_AUDIT_TEST_DISK"

func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	if err := fillUp(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestAFullDisk(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("there is no mount namespace of one's own here: %v", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// fillUp writes to a disk that is full and to one that has room again.
func fillUp(dir string) error {
	if err := syscall.Mount("small", dir, "tmpfs", 0, "size=128k"); err != nil {
		return err
	}
	path, ballast := filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); err != nil {
		return err
	}
	l, err := Open(path, Options{})
	if err != nil {
		return err
	}
	written := int64(0)
	// write writes n events and waits until each is there or was dropped.
	write := func(n int) (dropped int64, err error) {
		for range n {
			l.Write(event(int(written)))
			written++
			if n < 1000 {
				time.Sleep(20 * time.Microsecond) // so that it is in many batches
			}
		}
		for {
			events, _, err := count(path)
			if dropped = l.Dropped(); err != nil || events+dropped == written {
				return dropped, err
			}
			time.Sleep(time.Millisecond)
		}
	}
	lost, err := write(2000)
	if err != nil || lost == 0 {
		return fmt.Errorf("%d of %d events were lost, %v: the test tries nothing", lost, written, err)
	}
	more, err := write(100)
	if err != nil || more != lost+100 {
		return fmt.Errorf("%d were lost, and after 100 more %d, %v", lost, more, err)
	}
	if err := os.Remove(ballast); err != nil {
		return err
	}
	again, err := write(100)
	if err != nil || again != more {
		return fmt.Errorf("%d were lost on a full disk, and %d when there was room again, %v", more, again, err)
	}
	if err := l.Close(); err != nil {
		return err
	}
	if _, said, err := count(path); err != nil || said != again {
		return fmt.Errorf("%d were dropped, and the record says that %d were, %v", again, said, err)
	}
	return nil
}

// count returns how many events a record has, and how many more it says were
// lost.
func count(path string) (events, said int64, err error) {
	for e, err := range Read(path, time.Time{}) {
		if err != nil {
			return 0, 0, err
		}
		if e.Kind != Lost {
			events++
			continue
		}
		var n int64
		if _, err := fmt.Sscan(e.Detail, &n); err != nil {
			return 0, 0, err
		}
		said += n
	}
	return events, said, nil
}
