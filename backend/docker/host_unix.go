//go:build unix

package docker

import (
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// lockState takes the lock that keeps a second Runtime away.
func lockState(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, sandbox.Errorf(sandbox.Conflict, "state", "another atoll uses this state folder").WithHint("stop it, or give another folder")
		}
		return nil, err
	}
	return f, nil
}

// identity returns what a file is, wherever it is seen from.
func identity(info fs.FileInfo) (dev, ino uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0
	}
	return uint64(st.Dev), uint64(st.Ino)
}
