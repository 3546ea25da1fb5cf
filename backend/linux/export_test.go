//go:build linux

package linux

import "github.com/atoll-run/atoll/backend/linux/internal/cgroup"

// What follows makes a Runtime believe that its host is poorer than it is. It
// takes effect for sandboxes made afterwards.

// PretendNoCgroups takes every control group away.
func (rt *Runtime) PretendNoCgroups() {
	rt.host.cgroups = &cgroup.Host{Mode: cgroup.None, Why: "none, for a test"}
}

// PretendNoLoop takes file system images away.
func (rt *Runtime) PretendNoLoop() {
	rt.loopOnce.Do(func() {})
	rt.noLoop = "none, for a test"
}

// PretendOneID takes all ids away but this process's own.
func (rt *Runtime) PretendOneID() {
	rt.host.ids.kind, rt.host.ids.why = oneID, "none, for a test"
	rt.host.shift = false
}
