package profile

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// The built-in profiles.
const (
	// Native leaves everything as it was asked for.
	Native = "native"

	// The four of LangBot Box, with its names and values.
	BoxDefault         = "default"
	BoxOfflineReadonly = "offline_readonly"
	BoxNetworkBasic    = "network_basic"
	BoxNetworkExtended = "network_extended"

	// DeerFlow removes what nobody used for ten minutes.
	DeerFlow = "deerflow"

	// E2B removes after 15 seconds what its client wants for no longer.
	E2B = "e2b"
)

// manyJobs is for protocols whose originals do not count processes: more than
// an agent starts, and fewer than hurt.
const manyJobs = 4096

// Builtin returns the built-in profiles.
func Builtin() []Profile {
	// BUILTIN_PROFILES of LangBot's BoxService, version 0.5. Its memory_mb are
	// MiB; its workspace_quota_mb are 0, and so none here. That a sandbox over
	// its quota is removed is its doing too.
	box := func(name string, net sandbox.Network, mounts MountMode, cpu float64, memory int64, pids int, readOnly bool, maxTimeout time.Duration, locked ...string) Profile {
		return Profile{
			Name:         name,
			Image:        "rockchin/langbot-sandbox:latest",
			Network:      net,
			Limits:       sandbox.Limits{CPU: cpu, Memory: memory << 20, PIDs: pids},
			ReadOnlyRoot: readOnly,
			Timeout:      30 * time.Second,
			MaxTimeout:   maxTimeout,
			MountMode:    mounts,
			OverQuota:    Remove,
			Locked:       locked,
		}
	}
	return []Profile{
		{Name: Native, MaxJobs: manyJobs, MaxRing: RingLimit},
		box(BoxDefault, sandbox.NetworkOff, MountRW, 1, 512, 128, true, 2*time.Minute),
		box(BoxOfflineReadonly, sandbox.NetworkOff, MountRO, 0.5, 256, 64, true, time.Minute, "network", "mount_mode", "read_only_root"),
		box(BoxNetworkBasic, sandbox.NetworkOn, MountRW, 1, 512, 128, true, 2*time.Minute),
		box(BoxNetworkExtended, sandbox.NetworkOn, MountRW, 2, 1024, 256, false, 5*time.Minute),
		// idle_timeout of DeerFlow's AioSandboxProvider. It bounds nothing else.
		{Name: DeerFlow, Idle: 10 * time.Minute, MaxJobs: manyJobs, MaxRing: RingLimit},
		// The timeout of E2B's API where a request has none. (Its SDKs always
		// send one: 300 seconds unless they are told otherwise.)
		{Name: E2B, TTL: 15 * time.Second, MaxJobs: manyJobs, MaxRing: RingLimit},
	}
}

// A Set is the profiles that there are.
type Set struct{ byName map[string]*Profile }

// NewSet returns the built-in profiles and extra, all checked. One of extra
// replaces a built-in one of its name; two of one name are Invalid.
func NewSet(extra ...Profile) (*Set, error) {
	set := &Set{make(map[string]*Profile)}
	add := func(p Profile) error {
		if err := p.Check(); err != nil {
			return err
		}
		p.Require, p.Locked = slices.Clone(p.Require), slices.Clone(p.Locked)
		if p.MaxJobs == 0 {
			p.MaxJobs = DefaultJobs
		}
		if p.MaxRing == 0 {
			p.MaxRing = DefaultRing
		}
		set.byName[p.Name] = &p
		return nil
	}
	for _, p := range Builtin() {
		if err := add(p); err != nil {
			return nil, err
		}
	}
	given := make(map[string]bool)
	for _, p := range extra {
		if given[p.Name] {
			return nil, sandbox.Errorf(sandbox.Invalid, "profiles", "there are two profiles %s", p.Name).WithHint("give each its own name")
		}
		given[p.Name] = true
		if err := add(p); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// Get returns the profile with this name, which is not to be changed. Its
// MaxJobs and MaxRing are never 0. One that is not there is NotExist with Field
// "profile".
func (s *Set) Get(name string) (*Profile, error) {
	if p := s.byName[name]; p != nil {
		return p, nil
	}
	return nil, sandbox.Errorf(sandbox.NotExist, "profile", "there is no profile %.64q", name).WithHint("known ones: %s", strings.Join(s.Names(), ", "))
}

// Names returns the names of all, sorted.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.byName)) }
