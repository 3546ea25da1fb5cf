package engine

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// conflict returns a Conflict that names the first field in which the sandbox
// that is there is not what w asks for, with both values, or nil. have is its
// Spec, and wanted the image that its maker named.
func (w wish) conflict(have sandbox.Spec, wanted string) error {
	want := w.spec
	fields := []struct {
		name      string
		have, ask string
	}{
		{"network", string(have.Network), string(want.Network)},
		{"image", imageOf(wanted, have), imageOf(w.asked.Image, want)},
		{"user", have.User, want.User},
		{"mounts", mountList(have.Mounts), mountList(want.Mounts)},
		{"idle", idle(have.Idle), idle(want.Idle)},
		{"limits.cpu", limit(have.Limits.CPU), limit(want.Limits.CPU)},
		{"limits.memory", limit(have.Limits.Memory), limit(want.Limits.Memory)},
		{"limits.pids", limit(have.Limits.PIDs), limit(want.Limits.PIDs)},
		{"limits.disk", limit(have.Limits.Disk), limit(want.Limits.Disk)},
		{"limits.workspace", limit(have.Limits.Workspace), limit(want.Limits.Workspace)},
		{"read_only_root", fmt.Sprint(have.ReadOnlyRoot), fmt.Sprint(want.ReadOnlyRoot)},
	}
	// What a caller leaves to the defaults is whatever there is.
	if w.asked.Backend != "" {
		fields = append(fields, struct{ name, have, ask string }{"backend", have.Backend, want.Backend})
	}
	if w.asked.Profile != "" {
		fields = append(fields, struct{ name, have, ask string }{"profile", have.Profile, want.Profile})
	}
	for _, f := range fields {
		if f.have != f.ask {
			return sandbox.Errorf(sandbox.Conflict, f.name, "the sandbox exists already with %s %s, not %s", f.name, shown(f.have), shown(f.ask)).
				WithHint("ask for the same, use another name, or remove it first")
		}
	}
	return nil
}

func shown(s string) string {
	if s == "" {
		return "(default)"
	}
	return s
}

// imageOf returns the image as its caller named it, else as the profile did.
func imageOf(asked string, s sandbox.Spec) string { return cmp.Or(asked, s.Image) }

func idle(d time.Duration) string {
	if d <= 0 {
		return "never"
	}
	return d.String()
}

func limit[T int | int64 | float64](n T) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// mountList returns the mounts that may not differ, in one order.
func mountList(ms []sandbox.Mount) string { return mounts(ms, false) }

// sameExtra reports whether a and b have the same Extra mounts.
func sameExtra(a, b []sandbox.Mount) bool { return mounts(a, true) == mounts(b, true) }

func mounts(ms []sandbox.Mount, extra bool) string {
	var s []string
	for _, m := range ms {
		if m.Extra != extra {
			continue
		}
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		s = append(s, fmt.Sprintf("%s:%s:%s", path.Clean(m.Source), path.Clean(m.Target), mode))
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}
