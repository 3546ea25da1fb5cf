package linux

import (
	"context"
	"os"

	"github.com/atoll-run/atoll/backend/linux/internal/disk"
)

// canLoop reports whether a disk limit can be kept by a file system image,
// and if not why. It is found out when it is first asked for: it takes some
// milliseconds, and most sandboxes have no such limit.
func (rt *Runtime) canLoop() (bool, string) {
	rt.loopOnce.Do(func() {
		if rt.host.ids.kind != ownRange {
			rt.noLoop = "loop devices are for root alone"
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		if err := disk.Probe(ctx, rt.cfg.Cache); err != nil {
			rt.noLoop = err.Error()
		}
	})
	return rt.noLoop == "", rt.noLoop
}

// newDisk makes a file system of size bytes in the file name, whose root
// belongs to owner, and returns it as a detached mount.
func (rt *Runtime) newDisk(ctx context.Context, name string, size int64, owner int) (*os.File, error) {
	return rt.disks.Make(ctx, name, size, owner, owner)
}
