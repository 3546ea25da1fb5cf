package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-run/atoll/sandbox"
)

// TestBuiltin holds the four of LangBot Box to its table, and ours to leaving
// everything.
func TestBuiltin(t *testing.T) {
	set, err := NewSet()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"deerflow", "default", "e2b", "native", "network_basic", "network_extended", "offline_readonly"}
	if got := set.Names(); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	// name, network, host mode, cpus, memory_mb, pids, read-only root, max
	// timeout, locked; all of image, timeout 30 and no quota.
	for _, row := range []string{
		"default off rw 1 512 128 true 120 []",
		"offline_readonly off ro 0.5 256 64 true 60 [network mount_mode read_only_root]",
		"network_basic on rw 1 512 128 true 120 []",
		"network_extended on rw 2 1024 256 false 300 []",
	} {
		name, _, _ := strings.Cut(row, " ")
		p, err := set.Get(name)
		if err != nil {
			t.Error(err)
			continue
		}
		got := fmt.Sprint(p.Name, " ", p.Network, " ", p.MountMode, " ", p.Limits.CPU, " ", p.Limits.Memory>>20, " ", p.Limits.PIDs, " ", p.ReadOnlyRoot, " ", p.MaxTimeout.Seconds(), " ", p.Locked)
		if got != row {
			t.Errorf("got  %s\nwant %s", got, row)
		}
		if p.Image != "rockchin/langbot-sandbox:latest" || p.Timeout != 30*time.Second || p.Limits.Workspace != 0 || p.MaxLimits != (sandbox.Limits{}) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	native, _ := set.Get(Native)
	if diff := cmp.Diff(&Profile{Name: "native", MaxJobs: 4096, MaxRing: 16 << 20}, native); diff != "" {
		t.Errorf("native -want +got:\n%s", diff)
	}
	if p, _ := set.Get(DeerFlow); p.Idle != 600*time.Second || p.TTL != 0 {
		t.Errorf("deerflow: %+v", p)
	}
	if p, _ := set.Get(E2B); p.TTL != 15*time.Second || p.Idle != 0 {
		t.Errorf("e2b: %+v", p)
	}
}

func TestSet(t *testing.T) {
	mine := Profile{Name: "mine", Locked: []string{"image"}}
	set, err := NewSet(mine, Profile{Name: "default", Image: "mine", MaxJobs: 3, MaxRing: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if p, err := set.Get("default"); err != nil || p.Image != "mine" || p.Timeout != 0 || p.MaxJobs != 3 || p.MaxRing != 4096 {
		t.Errorf("the built-in one was not replaced: %+v, %v", p, err)
	}
	mine.Locked[0] = "scribbled"
	if p, err := set.Get("mine"); err != nil || p.MaxJobs != DefaultJobs || p.MaxRing != DefaultRing || !p.Locks("image") {
		t.Errorf("got %+v, %v", p, err)
	}

	_, err = set.Get("nobody's")
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != sandbox.NotExist || e.Field != "profile" || !strings.Contains(e.Hint, "deerflow, default, e2b, mine, native") {
		t.Errorf("got %v", err)
	}
	if _, err := NewSet(Profile{Name: "a"}, Profile{Name: "a"}); sandbox.KindOf(err) != sandbox.Invalid || !strings.Contains(err.Error(), "two") {
		t.Errorf("two of one name: %v", err)
	}
	if _, err := NewSet(Profile{Name: "a", Idle: -1}); sandbox.KindOf(err) != sandbox.Invalid {
		t.Errorf("a wrong one: %v", err)
	}
}

// TestCheck: every number is looked at, and the error says which.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		p     Profile
		field string
	}{
		{Profile{Limits: sandbox.Limits{Memory: 1}}, "limits.memory"},
		{Profile{Limits: sandbox.Limits{CPU: -1}}, "limits.cpu"},
		{Profile{Limits: sandbox.Limits{PIDs: -1}}, "limits.pids"},
		{Profile{Limits: sandbox.Limits{Disk: 1}}, "limits.disk"},
		{Profile{Limits: sandbox.Limits{Workspace: -1}}, "limits.workspace"},
		{Profile{MaxLimits: sandbox.Limits{Memory: 1}}, "max_limits.memory"},
		{Profile{MaxLimits: sandbox.Limits{CPU: 0.001}}, "max_limits.cpu"},
		{Profile{MaxLimits: sandbox.Limits{PIDs: -1}}, "max_limits.pids"},
		{Profile{MaxLimits: sandbox.Limits{Disk: 1}}, "max_limits.disk"},
		{Profile{MaxLimits: sandbox.Limits{Workspace: -1}}, "max_limits.workspace"},
		{Profile{Limits: sandbox.Limits{Memory: 2 << 30}, MaxLimits: sandbox.Limits{Memory: 1 << 30}}, "limits.memory"},
		{Profile{Limits: sandbox.Limits{CPU: 2}, MaxLimits: sandbox.Limits{CPU: 1.5}}, "limits.cpu"},
		{Profile{Limits: sandbox.Limits{PIDs: 2}, MaxLimits: sandbox.Limits{PIDs: 1}}, "limits.pids"},
		{Profile{Limits: sandbox.Limits{Disk: 2 << 20}, MaxLimits: sandbox.Limits{Disk: 1 << 20}}, "limits.disk"},
		{Profile{Limits: sandbox.Limits{Workspace: 2}, MaxLimits: sandbox.Limits{Workspace: 1}}, "limits.workspace"},
		{Profile{Idle: -1}, "idle"},
		{Profile{MaxIdle: -1}, "max_idle"},
		{Profile{Idle: 2, MaxIdle: 1}, "idle"},
		{Profile{TTL: -1}, "ttl"},
		{Profile{MaxTTL: -1}, "max_ttl"},
		{Profile{TTL: 2, MaxTTL: 1}, "ttl"},
		{Profile{Timeout: -1}, "timeout"},
		{Profile{MaxTimeout: -1}, "max_timeout"},
		{Profile{Timeout: 2, MaxTimeout: 1}, "timeout"},
		{Profile{MaxOutput: -1}, "max_output"},
		{Profile{MaxJobs: -1}, "max_jobs"},
		{Profile{MaxRing: -1}, "max_ring"},
		{Profile{MaxRing: 16<<20 + 1}, "max_ring"},
		{Profile{MountMode: "w"}, "mount_mode"},
		{Profile{OverQuota: "shrug"}, "over_quota"},
		{Profile{Network: "maybe"}, "network"},
		{Profile{Backend: "a\nb"}, "backend"},
		{Profile{Image: "a\x00"}, "image"},
		{Profile{User: "-x"}, "user"},
		{Profile{Workdir: "here"}, "workdir"},
		{Profile{Require: []sandbox.Property{"luck"}}, "require"},
		{Profile{Locked: []string{"memory"}}, "locked"},
		{Profile{Locked: []string{"image", "image"}}, "locked"},
	} {
		c.p.Name = "p"
		err := c.p.Check()
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "profiles.p."+c.field || e.Msg == "" {
			t.Errorf("%+v: got %v, want it to be about %s", c.p, err, c.field)
		}
	}
	for _, name := range []string{"", "a b", "a/b", "ü", strings.Repeat("a", 129)} {
		p := Profile{Name: name}
		if err := p.Check(); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	full := Profile{Name: strings.Repeat("a", 128), Limits: sandbox.Limits{Memory: 1 << 30}, MaxLimits: sandbox.Limits{Memory: 1 << 30}, Idle: 1, MaxIdle: 1, Locked: lockable, MaxRing: RingLimit}
	if err := full.Check(); err != nil {
		t.Error(err)
	}
}
