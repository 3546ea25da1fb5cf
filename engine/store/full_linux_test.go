package store

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// own returns a command that runs this program as a child in a mount namespace
// of its own, as somebody who may mount there.
func own(child, dir string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+child, "ATOLL_STORE_PATH="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return cmd
}

// mountSmall mounts a file system of n bytes at dir.
func mountSmall(dir string, n int64) error {
	return syscall.Mount("small", dir, "tmpfs", 0, fmt.Sprint("size=", n))
}

// growSmall makes it larger.
func growSmall(dir string, n int64) error {
	return syscall.Mount("small", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprint("size=", n))
}

// freezeSmall makes it read-only.
func freezeSmall(dir string) error {
	return syscall.Mount("small", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

func TestADiskThatIsFullOrReadOnly(t *testing.T) {
	out, err := own("full", t.TempDir()).CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("there is no mount namespace of one's own here: %v", err)
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
