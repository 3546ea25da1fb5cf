// Package profile says what a sandbox gets for which its caller asked nothing,
// and what it gets at most whatever the caller asked. A [Profile] is a named
// set of defaults, bounds and locks; [Profile.Spec] applies it to a
// sandbox.Spec. A [Set] holds the profiles that a daemon knows, [Images] what
// stands for the images that clients name and nobody here has.
//
// The package is pure: it reads no file and makes nothing. It does not hold a
// sandbox to its limits either. That is the work of the engine (times, jobs,
// output, workspace) and of the backends (all else).
package profile

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A Profile is a named set of defaults, bounds and locks. The zero Profile
// leaves everything as it was asked for.
//
// A default is for what a request leaves at its zero value, unless
// Spec.Explicit says that zero is meant. A bound holds for defaults and for
// what was asked for; what is above it is not refused, but becomes the bound. A
// limit or time of zero means none, and a bound is less than none. A lock forces
// the profile's own value, the zero value included, without a word to who asked
// for another: that is how LangBot has it.
type Profile struct {
	// Name is 1 to 128 letters, digits and . _ -.
	Name string

	// Defaults, as in sandbox.Spec.

	Backend string
	Image   string
	Network sandbox.Network
	User    string
	Workdir string
	Limits  sandbox.Limits

	// ReadOnlyRoot makes the root file system read-only, unless the request
	// has "read_only_root" in its Explicit.
	ReadOnlyRoot bool

	// Idle is the idle time of a sandbox whose request names none; 0 is never.
	Idle time.Duration

	// TTL is how long a sandbox lives whose request has no Expires; 0 is for
	// ever.
	TTL time.Duration

	// Timeout is for a command that has none; 0 is none. Detached processes
	// are no commands in this sense: they have what they ask for.
	Timeout time.Duration

	// Require is added to what the request requires.
	Require []sandbox.Property

	// Bounds. Zero is none, except where something else is said.

	MaxLimits sandbox.Limits

	// MaxIdle bounds the idle time, MaxTTL how far off the end of a sandbox
	// may be when it is said: at its creation and, anew, at each change of it.
	MaxIdle, MaxTTL time.Duration

	// MaxTimeout bounds the timeout of commands.
	MaxTimeout time.Duration

	// MaxOutput is how many bytes of each stream of a command its caller gets.
	MaxOutput int64

	// MaxJobs is how many detached processes a sandbox may have, those that
	// ended and are still remembered included. 0 is DefaultJobs.
	MaxJobs int

	// MaxRing is how many bytes of a detached process's output may be kept, at
	// most RingLimit. 0 is DefaultRing.
	MaxRing int

	// MountMode is the most that mounts may do; "" is MountRW. What a request
	// wants read-only stays so in any case.
	MountMode MountMode

	// OverQuota says what becomes of a sandbox whose workspace has grown past
	// Limits.Workspace; "" is Refuse.
	OverQuota OverQuota

	// Locked names the fields in which a request has no say: "backend",
	// "image", "network", "user", "workdir", "limits.memory", "limits.cpu",
	// "limits.pids", "limits.disk", "limits.workspace", "read_only_root",
	// "idle", "ttl", "timeout", "mount_mode".
	Locked []string
}

// MountMode is the most that mounts may do: LangBot's host_path_mode.
type MountMode string

const (
	// MountRW has each mount as it was asked for.
	MountRW MountMode = "rw"
	// MountRO makes every mount read-only.
	MountRO MountMode = "ro"
	// MountNone refuses requests with mounts, as Denied. Where "mount_mode"
	// is locked, they get a sandbox without mounts instead.
	MountNone MountMode = "none"
)

// OverQuota says what becomes of a sandbox whose workspace is too large.
type OverQuota string

const (
	// Refuse runs no command until there is room again.
	Refuse OverQuota = "refuse"
	// Remove removes the sandbox, as LangBot does.
	Remove OverQuota = "remove"
)

// What a detached process and its sandbox get.
const (
	DefaultJobs = 64
	DefaultRing = 1 << 20
	RingLimit   = 16 << 20 // the most that a backend keeps
)

// maxName is the longest name of a profile, which is that of Spec.Profile.
const maxName = 128

// lockable are the names that Locked may have.
var lockable = []string{"backend", "image", "network", "user", "workdir",
	"limits.memory", "limits.cpu", "limits.pids", "limits.disk", "limits.workspace",
	"read_only_root", "idle", "ttl", "timeout", "mount_mode"}

// Locks reports whether a request has no say in field.
func (p *Profile) Locks(field string) bool { return slices.Contains(p.Locked, field) }

// Check returns an Invalid error that names what is wrong with p, as in
// "profiles.NAME.limits.memory".
func (p *Profile) Check() error {
	if err := CheckName("profiles", p.Name); err != nil {
		return err
	}
	defaults := sandbox.Spec{Backend: p.Backend, Image: p.Image, Network: p.Network, User: p.User, Workdir: p.Workdir, Limits: p.Limits, Require: p.Require}
	if err := defaults.Check(); err != nil {
		return p.wrong("", err)
	}
	most := sandbox.Spec{Limits: p.MaxLimits}
	if err := most.Check(); err != nil {
		return p.wrong("max_", err)
	}
	return p.wrong("", cmp.Or(
		under("limits.memory", p.Limits.Memory, p.MaxLimits.Memory),
		under("limits.cpu", p.Limits.CPU, p.MaxLimits.CPU),
		under("limits.pids", p.Limits.PIDs, p.MaxLimits.PIDs),
		under("limits.disk", p.Limits.Disk, p.MaxLimits.Disk),
		under("limits.workspace", p.Limits.Workspace, p.MaxLimits.Workspace),
		positive("idle", p.Idle), positive("max_idle", p.MaxIdle), under("idle", p.Idle, p.MaxIdle),
		positive("ttl", p.TTL), positive("max_ttl", p.MaxTTL), under("ttl", p.TTL, p.MaxTTL),
		positive("timeout", p.Timeout), positive("max_timeout", p.MaxTimeout), under("timeout", p.Timeout, p.MaxTimeout),
		positive("max_output", p.MaxOutput), positive("max_jobs", p.MaxJobs),
		positive("max_ring", p.MaxRing), p.checkRing(),
		oneOf("mount_mode", p.MountMode, MountRW, MountRO, MountNone),
		oneOf("over_quota", p.OverQuota, Refuse, Remove),
		p.checkLocked(),
	))
}

// CheckName returns an Invalid error naming field unless name can be the name
// of a profile.
func CheckName(field, name string) error {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, odd) {
		return sandbox.Errorf(sandbox.Invalid, field, "%.64q is not the name of a profile", name).WithHint("use 1 to %d letters, digits and . _ -", maxName)
	}
	return nil
}

// wrong returns err with p and before in front of its field; nil stays nil.
func (p *Profile) wrong(before string, err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Field = "profiles." + p.Name + "." + before + e.Field
	return &c
}

func (p *Profile) checkRing() error {
	if p.MaxRing > RingLimit {
		return sandbox.Errorf(sandbox.Invalid, "max_ring", "%d bytes is more than %d", p.MaxRing, RingLimit)
	}
	return nil
}

func (p *Profile) checkLocked() error {
	for i, f := range p.Locked {
		if !slices.Contains(lockable, f) {
			return sandbox.Errorf(sandbox.Invalid, "locked", "%.64q is not a field that can be locked", f).WithHint("known ones: %s", strings.Join(lockable, ", "))
		}
		if slices.Contains(p.Locked[:i], f) {
			return sandbox.Errorf(sandbox.Invalid, "locked", "%s is there twice", f)
		}
	}
	return nil
}

// A number is what has bounds.
type number interface {
	int | int64 | float64 | time.Duration
}

// positive returns an error unless n is zero or more.
func positive[T number](field string, n T) error {
	if n < 0 {
		return sandbox.Errorf(sandbox.Invalid, field, "%v is negative", n)
	}
	return nil
}

// under returns an error if a default is above its bound.
func under[T number](field string, n, most T) error {
	if most > 0 && n > most {
		return sandbox.Errorf(sandbox.Invalid, field, "%v is more than max_%s, which is %v", n, field, most).WithHint("lower the one or raise the other")
	}
	return nil
}

// oneOf returns an error unless s is empty or one of known.
func oneOf[T ~string](field string, s T, known ...T) error {
	if s == "" || slices.Contains(known, s) {
		return nil
	}
	words := make([]string, len(known))
	for i, k := range known {
		words[i] = string(k)
	}
	return sandbox.Errorf(sandbox.Invalid, field, "%.64q is not one of %s", string(s), strings.Join(words, ", "))
}
