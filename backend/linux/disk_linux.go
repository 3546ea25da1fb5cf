package linux

import (
	"context"
	"os"

	"github.com/atoll-run/atoll/sandbox"
)

// newDisk makes a file system of size bytes in the file name, whose root
// belongs to owner, and returns it as a detached mount.
func (rt *Runtime) newDisk(ctx context.Context, name string, size int64, owner int) (*os.File, error) {
	return nil, sandbox.Errorf(sandbox.Unsupported, "limits.disk", "no file system image can be made here")
}
