//go:build !unix

package docker

import (
	"io"
	"io/fs"
	"os"
)

// lockState holds the state open: here nothing keeps a second Runtime away.
func lockState(name string) (io.Closer, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
}

// identity is not known here; there are no mounts either.
func identity(fs.FileInfo) (dev, ino uint64) { return 0, 0 }
