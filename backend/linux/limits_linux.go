package linux

import (
	"cmp"
	"github.com/atoll-run/atoll/backend/linux/internal/cgroup"
	"github.com/atoll-run/atoll/sandbox"
)

// By what limits are kept where no cgroup does, as Info.Kept says it.
const (
	keptRlimit = "rlimit"      // RLIMIT_NPROC, counted per user namespace (Linux 5.14)
	keptWatch  = "guest watch" // the guest looks at its processes' memory and kills the largest
	diskLoop   = "ext4 image"  // a file system of that size on a loop device
	diskTmpfs  = "tmpfs"       // a file system of that size in memory
)

// keeps says by what each limit that l has will be kept, "" by nothing.
func (rt *Runtime) keeps(l sandbox.Limits) map[string]string {
	kept := make(map[string]string)
	cg := func(limit string) string {
		if rt.host.cgroups.Mode == cgroup.None {
			return ""
		}
		return rt.host.cgroups.Means(limit)
	}
	if l.Memory > 0 {
		kept["memory"] = cmp.Or(cg("memory"), keptWatch)
	}
	if l.PIDs > 0 {
		kept["pids"] = cg("pids")
		// The kernel holds its own root to no such limit, in whatever namespace
		// (fork(2), EAGAIN).
		if kept["pids"] == "" && !rt.host.ids.rootInside() {
			kept["pids"] = keptRlimit
		}
	}
	if l.CPU > 0 {
		kept["cpu"] = cg("cpu")
	}
	if l.Disk > 0 {
		kept["disk"] = diskTmpfs
		if ok, _ := rt.canLoop(); ok {
			kept["disk"] = diskLoop
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

func (rt *Runtime) whyNotKept(limit string) string {
	return "no cgroup of this host keeps it, and nothing else can"
}
