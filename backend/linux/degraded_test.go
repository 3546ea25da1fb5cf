//go:build linux

package linux_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
)

// properties are all that this backend ever gives, or could.
var properties = []sandbox.Property{
	sandbox.UserNamespace, sandbox.OwnIDs, sandbox.ManyIDs, sandbox.PIDNamespace, sandbox.MountNamespace, sandbox.NetworkNamespace, sandbox.IPCNamespace,
	sandbox.UTSNamespace, sandbox.CgroupNamespace, sandbox.NoNewPrivileges, sandbox.NoCapabilities, sandbox.Seccomp, sandbox.Landlock, sandbox.MaskedProc,
	sandbox.LimitMemory, sandbox.LimitCPU, sandbox.LimitPIDs, sandbox.LimitDisk, sandbox.KillTree,
}

// A poorer host gives poorer sandboxes, and says so: whatever a sandbox has
// not, Info does not claim and a Spec that requires it is refused.
func TestAbusePoorHosts(t *testing.T) {
	limits := sandbox.Limits{Memory: 64 << 20, PIDs: 100, CPU: 1, Disk: 32 << 20}
	for _, tc := range []struct {
		name    string
		pretend func(*linux.Runtime)
		lacks   []sandbox.Property // for certain
	}{
		{"as it is", func(*linux.Runtime) {}, nil},
		{"no cgroups", (*linux.Runtime).PretendNoCgroups, []sandbox.Property{sandbox.LimitCPU}},
		{"no loop devices", (*linux.Runtime).PretendNoLoop, nil},
		{"one id", (*linux.Runtime).PretendOneID, []sandbox.Property{sandbox.OwnIDs, sandbox.ManyIDs}},
		{"nothing", func(rt *linux.Runtime) { rt.PretendNoCgroups(); rt.PretendNoLoop(); rt.PretendOneID() },
			[]sandbox.Property{sandbox.OwnIDs, sandbox.ManyIDs, sandbox.LimitCPU}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rt := newRuntime(t)
			tc.pretend(rt)
			sb, err := rt.Create(t.Context(), sandbox.Spec{Limits: limits})
			if err != nil {
				t.Fatal(err)
			}
			c := arm(t, sb)
			t.Logf("kept: %v; missing: %v", c.info.Kept, c.info.Isolation.Missing)
			if tc.name == "nothing" && os.Geteuid() == 0 {
				tc.lacks = append(tc.lacks, sandbox.LimitPIDs) // RLIMIT_NPROC does not hold the host's root
			}
			for _, p := range tc.lacks {
				if c.info.Isolation.Holds(p) {
					t.Errorf("%s is claimed", p)
				}
			}
			if keys := slices.Sorted(maps.Keys(c.info.Kept)); !slices.Equal(keys, []string{"cpu", "disk", "memory", "pids"}) {
				t.Errorf("of the limits that were asked for, Info speaks of %v", keys)
			}
			missing := map[sandbox.Property]string{}
			for _, g := range c.info.Isolation.Missing {
				missing[g.Property] = g.Why
			}
			for _, p := range properties {
				other, err := rt.Create(t.Context(), sandbox.Spec{Limits: limits, Require: []sandbox.Property{p}})
				holds := c.info.Isolation.Holds(p)
				switch {
				case holds && err != nil:
					t.Errorf("%s is claimed, and refused when it is required: %v", p, err)
				case !holds && err == nil:
					t.Errorf("%s is not claimed, but not refused when it is required", p)
				case !holds:
					var e *sandbox.Error
					if !errors.As(err, &e) || e.Kind != sandbox.Unsupported || e.Field != "require" {
						t.Errorf("%s: %v", p, err)
					}
					if why, ok := missing[p]; p != sandbox.Landlock && (!ok || why == "") {
						t.Errorf("%s is neither claimed nor listed as missing", p)
					}
				}
				if err == nil {
					if err := other.Remove(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
			// What is claimed of limits is true.
			if by := c.info.Kept["pids"]; by != "" {
				_, said := c.start(t, "forks").next(t)
				var n int
				if n = number(t, firstWord(said)); n > limits.PIDs {
					t.Errorf("pids, by %s: %d", by, n)
				}
			}
			d := newCell(t, rt, sandbox.Spec{Limits: limits})
			if by := d.info.Kept["memory"]; by != "" {
				r, err := sandbox.Capture(t.Context(), d, 1000, sandbox.Cmd{Args: d.args("memory", "anonymous", "200", "and stay"), Timeout: time.Minute})
				if err != nil || r.Reason != sandbox.OutOfMemory {
					t.Errorf("memory, by %s: %v %+v %s", by, err, r.Exit, r.Stdout)
				}
			}
			if by := d.info.Kept["disk"]; by != "" {
				for what, got := range d.try(t, "fill", "big", "/workspace", "100") {
					if got != "ENOSPC" {
						t.Errorf("disk, by %s: %s: %s", by, what, got)
					}
				}
			}
			// And the walls that need nothing of the host still stand.
			if s := d.try(t, "status"); s["CapEff"] != "0000000000000000" || s["Seccomp"] != "2" || s["NoNewPrivs"] != "1" {
				t.Errorf("%v", s)
			}
			for ns, got := range d.try(t, "clone3") {
				if got == "ok" {
					t.Errorf("a %s namespace: %s", ns, got)
				}
			}
		})
	}
}

// A Runtime that could make no sandbox at all says so at once.
func TestAbuseNoGuest(t *testing.T) {
	cfg := config(t)
	cfg.Guest = t.TempDir() + "/nothing"
	if _, err := linux.New(cfg); !errors.Is(err, sandbox.Unsupported) {
		t.Errorf("without a guest: %v", err)
	}
	if os.Geteuid() == 0 {
		return
	}
	cfg = config(t)
	cfg.State = "/proc/no-such-folder"
	if _, err := linux.New(cfg); err == nil {
		t.Error("a state folder that cannot be made")
	}
}

func firstWord(s string) string {
	for i, c := range s {
		if c == ' ' {
			return s[:i]
		}
	}
	return s
}
