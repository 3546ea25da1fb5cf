package profile

import (
	"maps"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Spec returns what a sandbox gets for which s was asked: what s leaves open
// is filled in, what is locked is forced, what is above a bound becomes the
// bound, and its Profile is p. It shares nothing with s. To apply p again to
// what it returned changes nothing.
//
// An s with which no Runtime could do anything is Invalid, and one with mounts
// is Denied where p has MountNone without a lock. p is one that Check finds
// nothing wrong with.
func (p *Profile) Spec(s sandbox.Spec) (sandbox.Spec, error) { return p.specAt(s, time.Now()) }

// specAt is Spec at the time now.
func (p *Profile) specAt(s sandbox.Spec, now time.Time) (sandbox.Spec, error) {
	if err := s.Check(); err != nil {
		return sandbox.Spec{}, err
	}
	s.Explicit = slices.Clone(s.Explicit)
	s.Env = maps.Clone(s.Env)
	s.Labels = maps.Clone(s.Labels)
	s.Mounts = slices.Clone(s.Mounts)
	s.Require = slices.Clone(s.Require)

	s.Profile = p.Name
	s.Backend = settle(p, &s, "backend", s.Backend, p.Backend)
	s.Image = settle(p, &s, "image", s.Image, p.Image)
	s.Network = settle(p, &s, "network", s.Network, p.Network)
	s.User = settle(p, &s, "user", s.User, p.User)
	s.Workdir = settle(p, &s, "workdir", s.Workdir, p.Workdir)
	s.ReadOnlyRoot = settle(p, &s, "read_only_root", s.ReadOnlyRoot, p.ReadOnlyRoot)

	l := &s.Limits
	l.Memory = clamp(settle(p, &s, "limits.memory", l.Memory, p.Limits.Memory), p.MaxLimits.Memory)
	l.CPU = clamp(settle(p, &s, "limits.cpu", l.CPU, p.Limits.CPU), p.MaxLimits.CPU)
	l.PIDs = clamp(settle(p, &s, "limits.pids", l.PIDs, p.Limits.PIDs), p.MaxLimits.PIDs)
	l.Disk = clamp(settle(p, &s, "limits.disk", l.Disk, p.Limits.Disk), p.MaxLimits.Disk)
	l.Workspace = clamp(settle(p, &s, "limits.workspace", l.Workspace, p.Limits.Workspace), p.MaxLimits.Workspace)

	s.Idle = clamp(settle(p, &s, "idle", s.Idle, p.Idle), p.MaxIdle)
	if p.Locks("ttl") || s.Expires.IsZero() && !slices.Contains(s.Explicit, "expires") {
		s.Expires = time.Time{}
		if p.TTL > 0 {
			s.Expires = later(now, p.TTL)
		}
	}
	s.Expires = p.end(s.Expires, now)

	for _, r := range p.Require {
		if !slices.Contains(s.Require, r) {
			s.Require = append(s.Require, r)
		}
	}
	switch {
	case p.MountMode == MountRO:
		for i := range s.Mounts {
			s.Mounts[i].ReadOnly = true
		}
	case p.MountMode == MountNone && p.Locks("mount_mode"):
		s.Mounts = nil
	case p.MountMode == MountNone && len(s.Mounts) > 0:
		return sandbox.Spec{}, sandbox.Errorf(sandbox.Denied, "mounts", "the profile %s allows no mounts", p.Name).WithHint("leave them out, or ask for another profile")
	}
	return s, nil
}

// Change returns c with its times within p's bounds, and without those that p
// locks. It does not change c.
func (p *Profile) Change(c sandbox.Change) sandbox.Change {
	if c.Expires != nil {
		c.Expires = new(p.end(*c.Expires, time.Now()))
	}
	if c.Idle != nil && *c.Idle == 0 { // the profile's, as in a Spec
		c.Idle = new(p.Idle)
	}
	if c.Idle != nil {
		c.Idle = new(clamp(*c.Idle, p.MaxIdle))
	}
	if p.Locks("ttl") {
		c.Expires = nil
	}
	if p.Locks("idle") {
		c.Idle = nil
	}
	return c
}

// end returns the end of a sandbox that is to end at t, zero for never.
func (p *Profile) end(t, now time.Time) time.Time {
	if last := later(now, p.MaxTTL); p.MaxTTL > 0 && (t.IsZero() || t.After(last)) {
		return last
	}
	return t
}

// later returns the time d after now, by the wall clock alone: the end of a
// sandbox is written down and read again.
func later(now time.Time, d time.Duration) time.Time { return now.Round(0).Add(d) }

// Cmd returns c as a sandbox of p runs it: with a timeout within p's bounds,
// and as the sandbox's user where p locks that. A negative timeout stays: it is
// Invalid.
func (p *Profile) Cmd(c sandbox.Cmd) sandbox.Cmd {
	if c.Timeout == 0 || c.Timeout > 0 && p.Locks("timeout") {
		c.Timeout = p.Timeout
	}
	if c.Timeout >= 0 {
		c.Timeout = clamp(c.Timeout, p.MaxTimeout)
	}
	return p.DetachedCmd(c)
}

// DetachedCmd returns c as a sandbox of p runs it detached: as Cmd does, but
// with its timeout as it is, because such a process may be a server.
func (p *Profile) DetachedCmd(c sandbox.Cmd) sandbox.Cmd {
	if p.Locks("user") {
		c.User = ""
	}
	return c
}

// Detach returns opt with a ring within p's bound. One that no backend could
// keep stays: it is Invalid.
func (p *Profile) Detach(opt sandbox.DetachOptions) sandbox.DetachOptions {
	most := p.MaxRing
	if most == 0 {
		most = DefaultRing
	}
	switch {
	case opt.Ring == 0:
		opt.Ring = min(DefaultRing, most)
	case opt.Ring > 0 && opt.Ring <= RingLimit:
		opt.Ring = min(opt.Ring, most)
	}
	return opt
}

// settle returns what a sandbox gets in field: the profile's own value where
// that is locked, or where nothing was asked for.
func settle[T comparable](p *Profile, s *sandbox.Spec, field string, asked, own T) T {
	var zero T
	if p.Locks(field) || asked == zero && !slices.Contains(s.Explicit, field) {
		return own
	}
	return asked
}

// clamp returns n, or most where that is a bound and n is above it or none.
func clamp[T number](n, most T) T {
	if most > 0 && (n <= 0 || n > most) {
		return most
	}
	return n
}
