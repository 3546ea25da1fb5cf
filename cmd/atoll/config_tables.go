package main

import (
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/engine/audit"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

// The tables of the file. A pointer is nil where the file says nothing.

// ProfileConfig is a table [profiles.NAME]: a profile.Profile, whose comments
// say what its fields mean.
type ProfileConfig struct {
	// Base is the profile whose values stand where this one says nothing, a
	// built-in one or one of the file; "" is none. A profile that replaces a
	// built-in one may name that.
	Base string `toml:"base"`

	Backend      *string      `toml:"backend"`
	Image        *string      `toml:"image"`
	Network      *string      `toml:"network"`
	User         *string      `toml:"user"`
	Workdir      *string      `toml:"workdir"`
	ReadOnlyRoot *bool        `toml:"read_only_root"`
	Limits       LimitsConfig `toml:"limits"`
	Idle         *duration    `toml:"idle"`
	TTL          *duration    `toml:"ttl"`
	Timeout      *duration    `toml:"timeout"`
	Require      []string     `toml:"require"`

	MaxLimits  LimitsConfig `toml:"max_limits"`
	MaxIdle    *duration    `toml:"max_idle"`
	MaxTTL     *duration    `toml:"max_ttl"`
	MaxTimeout *duration    `toml:"max_timeout"`
	MaxOutput  *size        `toml:"max_output"`
	MaxJobs    *int         `toml:"max_jobs"`
	MaxRing    *size        `toml:"max_ring"`
	MountMode  *string      `toml:"mount_mode"`
	OverQuota  *string      `toml:"over_quota"`
	Locked     []string     `toml:"locked"`
}

// LimitsConfig is a sandbox.Limits.
type LimitsConfig struct {
	Memory    *size    `toml:"memory"`
	CPU       *float64 `toml:"cpu"`
	PIDs      *int     `toml:"pids"`
	Disk      *size    `toml:"disk"`
	Workspace *size    `toml:"workspace"`
}

// ProtocolConfig is a table [protocols.NAME]: what those get who speak a
// protocol.
type ProtocolConfig struct {
	// Profile is what a client gets that names none.
	Profile string `toml:"profile"`

	// MaxLive is how many sandboxes of this protocol there may be; 0 is any
	// number.
	MaxLive *int `toml:"max_live"`

	// WhenFull says what happens when there are that many: "refuse", "evict",
	// "soft".
	WhenFull string `toml:"when_full"`

	// Wait is how long a request waits for room, with "evict" alone.
	Wait *duration `toml:"wait"`

	// AutoRestart has a sandbox that has died found out when it is opened, and
	// made anew when it is acquired.
	AutoRestart *bool `toml:"auto_restart"`
}

// OwnerConfig is a table [owners.NAME]: somebody who has a token of his own.
type OwnerConfig struct {
	// TokenFile holds the token. It is an absolute path.
	TokenFile string `toml:"token_file"`

	// MaxLive is how many sandboxes he and those below him may have, and
	// MaxRunning how many of their commands may run at once; 0 is any number.
	MaxLive    int `toml:"max_live"`
	MaxRunning int `toml:"max_running"`

	// AllowMount lists the folders of the host below which his mounts may lie;
	// none allows no mount.
	AllowMount []string `toml:"allow_mount"`

	// Profiles are those that he may use; nil is all.
	Profiles []string `toml:"profiles"`
}

// WarmConfig is the table [warm]: the sandboxes that are ready before anyone
// asks.
type WarmConfig struct {
	// Max is how many there are at most, those of Pin included; 0 turns it
	// off.
	Max int `toml:"max"`

	// After is how many requests within Window make it worth having one ready;
	// 0 has none ready but those of Pin.
	After  int      `toml:"after"`
	Window duration `toml:"window"`

	// MaxAge is how old one gets before it is removed and another made.
	MaxAge duration `toml:"max_age"`

	// Pin says of how many sandboxes of a profile are always ready.
	Pin map[string]int `toml:"pin"`
}

// AuditConfig is the table [audit]: the record of who did what where.
type AuditConfig struct {
	// File is where it is; a relative path is below the state folder. "" keeps
	// none.
	File string `toml:"file"`

	// MaxSize is how large the file gets before another is begun, and Keep how
	// many older ones stay.
	MaxSize size `toml:"max_size"`
	Keep    int  `toml:"keep"`

	// Args has all arguments of commands written, which may hold secrets; else
	// only programs are named.
	Args bool `toml:"args"`
}

// defaultTables fills in the tables of who says nothing.
func (c *Config) defaultTables() {
	c.Warm = WarmConfig{Max: 4, After: 2, Window: duration(10 * time.Minute), MaxAge: duration(10 * time.Minute)}
	c.Audit = AuditConfig{File: "audit.jsonl", MaxSize: 16 << 20, Keep: 5}
}

// protocols are those that the daemon speaks: the names that a table
// [protocols.NAME] may have.
var protocols = []string{"native"}

// A duration is a time.Duration, written as 30s or 1h30m. A bare number is
// none: nobody knows of what.
type duration time.Duration

// UnmarshalText reads b.
func (d *duration) UnmarshalText(b []byte) error {
	t, err := time.ParseDuration(string(b))
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "", "%q is not a duration", b).WithHint("use a number and a unit, such as 30s, 10m or 1h30m")
	}
	*d = duration(t)
	return nil
}

// UnmarshalText reads b.
func (z *size) UnmarshalText(b []byte) error { return z.Set(string(b)) }

// checkTables finds what is wrong in the tables, and makes their paths clean.
func (c *Config) checkTables() error {
	if c.MaxLive < 0 {
		return sandbox.Errorf(sandbox.Invalid, "max_live", "%d is negative", c.MaxLive).WithHint("use 0 for any number")
	}
	set, err := c.profileSet()
	if err != nil {
		return err
	}
	images, err := c.imageTable()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Protocols)) {
		p := c.Protocols[name]
		if err := p.check("protocols."+name, name, set); err != nil {
			return err
		}
	}
	if err := c.checkOwners(set); err != nil {
		return err
	}
	if _, _, err := c.warmConfig(set, images); err != nil {
		return err
	}
	return c.Audit.check()
}

// profileSet returns the built-in profiles and those of the file.
func (c *Config) profileSet() (*profile.Set, error) {
	own, err := c.profiles()
	if err != nil {
		return nil, err
	}
	for _, p := range own {
		if p.Backend != "" && !slices.Contains(c.Backend, p.Backend) {
			return nil, sandbox.Errorf(sandbox.Invalid, "profiles."+p.Name+".backend", "%q is not among the backends", p.Backend).WithHint("there is: %s", strings.Join(c.Backend, ", "))
		}
	}
	return profile.NewSet(own...)
}

// profiles returns the profiles of the file, with what they have of their
// bases.
func (c *Config) profiles() ([]profile.Profile, error) {
	builtin := make(map[string]profile.Profile)
	for _, p := range profile.Builtin() {
		builtin[p.Name] = p
	}
	var resolve func(name string, above ...string) (profile.Profile, error)
	resolve = func(name string, above ...string) (profile.Profile, error) {
		table, ok := c.Profiles[name]
		if !ok {
			return builtin[name], nil
		}
		base, field := profile.Profile{}, "profiles."+name+".base"
		_, isOwn := c.Profiles[table.Base]
		_, isBuiltin := builtin[table.Base]
		var err error
		switch {
		case table.Base == "":
		case table.Base == name && isBuiltin: // it replaces that
			base = builtin[name]
		case slices.Contains(append(above, name), table.Base):
			err = sandbox.Errorf(sandbox.Invalid, field, "%s would be its own base", table.Base)
		case isOwn || isBuiltin:
			base, err = resolve(table.Base, append(above, name)...)
		default:
			known := slices.Sorted(maps.Keys(builtin))
			for _, n := range slices.Sorted(maps.Keys(c.Profiles)) {
				if !slices.Contains(known, n) && n != name {
					known = append(known, n)
				}
			}
			slices.Sort(known)
			err = sandbox.Errorf(sandbox.Invalid, field, "there is no profile %q", table.Base).WithHint("known ones: %s", strings.Join(known, ", "))
		}
		if err != nil {
			return profile.Profile{}, err
		}
		base.Name = name
		return table.over(base), nil
	}
	var all []profile.Profile
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		p, err := resolve(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// over returns p with what t says in place of its own values.
func (t *ProfileConfig) over(p profile.Profile) profile.Profile {
	set(&p.Backend, t.Backend)
	set(&p.Image, t.Image)
	set(&p.Network, (*sandbox.Network)(t.Network))
	set(&p.User, t.User)
	set(&p.Workdir, t.Workdir)
	set(&p.ReadOnlyRoot, t.ReadOnlyRoot)
	t.Limits.over(&p.Limits)
	set(&p.Idle, (*time.Duration)(t.Idle))
	set(&p.TTL, (*time.Duration)(t.TTL))
	set(&p.Timeout, (*time.Duration)(t.Timeout))
	if t.Require != nil {
		p.Require = nil
		for _, r := range t.Require {
			p.Require = append(p.Require, sandbox.Property(r))
		}
	}
	t.MaxLimits.over(&p.MaxLimits)
	set(&p.MaxIdle, (*time.Duration)(t.MaxIdle))
	set(&p.MaxTTL, (*time.Duration)(t.MaxTTL))
	set(&p.MaxTimeout, (*time.Duration)(t.MaxTimeout))
	set(&p.MaxOutput, (*int64)(t.MaxOutput))
	set(&p.MaxJobs, t.MaxJobs)
	if t.MaxRing != nil {
		p.MaxRing = int(min(int64(*t.MaxRing), profile.RingLimit+1)) // which is too much as well
	}
	set(&p.MountMode, (*profile.MountMode)(t.MountMode))
	set(&p.OverQuota, (*profile.OverQuota)(t.OverQuota))
	if t.Locked != nil {
		p.Locked = t.Locked
	}
	return p
}

// over puts what t says into l.
func (t *LimitsConfig) over(l *sandbox.Limits) {
	set(&l.Memory, (*int64)(t.Memory))
	set(&l.CPU, t.CPU)
	set(&l.PIDs, t.PIDs)
	set(&l.Disk, (*int64)(t.Disk))
	set(&l.Workspace, (*int64)(t.Workspace))
}

// set puts what from points to, if it does, into to.
func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// imageTable returns what stands for the images that clients name.
func (c *Config) imageTable() (*profile.Images, error) {
	var rules []profile.Rule
	for _, pattern := range slices.Sorted(maps.Keys(c.Images)) {
		rules = append(rules, profile.Rule{Pattern: pattern, Image: c.Images[pattern]})
	}
	return profile.NewImages(rules...)
}

// check finds what is wrong with the table of the protocol name, which field
// names in errors.
func (t *ProtocolConfig) check(field, name string, profiles *profile.Set) error {
	if !slices.Contains(protocols, name) {
		return sandbox.Errorf(sandbox.Invalid, field, "there is no protocol %q", name).WithHint("known ones: %s", strings.Join(protocols, ", "))
	}
	if t.Profile != "" {
		if err := known(field+".profile", t.Profile, profiles); err != nil {
			return err
		}
	}
	if t.MaxLive != nil && *t.MaxLive < 0 {
		return sandbox.Errorf(sandbox.Invalid, field+".max_live", "%d is negative", *t.MaxLive).WithHint("use 0 for any number")
	}
	switch t.WhenFull {
	case "", "refuse", "evict", "soft":
	default:
		return sandbox.Errorf(sandbox.Invalid, field+".when_full", "%q is not a mode", t.WhenFull).WithHint("use refuse, evict or soft")
	}
	if t.Wait != nil && *t.Wait < 0 {
		return sandbox.Errorf(sandbox.Invalid, field+".wait", "%v is negative", time.Duration(*t.Wait))
	}
	if t.Wait != nil && *t.Wait > 0 && t.WhenFull != "evict" {
		return sandbox.Errorf(sandbox.Invalid, field+".wait", "nobody waits without when_full = \"evict\"").WithHint("leave wait out, or use that")
	}
	return nil
}

// known returns an Invalid error naming field if there is no such profile.
func known(field, name string, profiles *profile.Set) error {
	_, err := profiles.Get(name)
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err
	}
	return sandbox.Errorf(sandbox.Invalid, field, "%s", e.Msg).WithHint("%s", e.Hint)
}

// checkOwners finds what is wrong with the owners, and cleans their paths.
func (c *Config) checkOwners(profiles *profile.Set) error {
	whose := make(map[string]string) // token files
	if abs, err := filepath.Abs(tokenFile(c.State)); err == nil {
		whose[abs] = "the daemon"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Owners)) {
		o := c.Owners[name]
		field := "owners." + name
		if strings.Contains(name, "/") || sandbox.CheckOwner("owners", sandbox.Owner(name)) != nil {
			return sandbox.Errorf(sandbox.Invalid, "owners", "%.64q is not a name that an owner can have", name).WithHint("use letters, digits and . _ : -")
		}
		if sandbox.Owner(name) == sandbox.Operator {
			return sandbox.Errorf(sandbox.Invalid, field, "the operator is who has the daemon's own token").WithHint("choose another name, or set token_file outside of this table")
		}
		if o.TokenFile == "" {
			return sandbox.Errorf(sandbox.Invalid, field+".token_file", "there is none").WithHint("put a token of 16 or more characters into a file, and name that")
		}
		if !filepath.IsAbs(o.TokenFile) {
			return sandbox.Errorf(sandbox.Invalid, field+".token_file", "%q is not an absolute path", o.TokenFile).WithHint("begin it with /")
		}
		o.TokenFile = filepath.Clean(o.TokenFile)
		if other := whose[o.TokenFile]; other != "" {
			return sandbox.Errorf(sandbox.Invalid, field+".token_file", "%s is that of %s too", o.TokenFile, other).WithHint("give each a token of its own")
		}
		whose[o.TokenFile] = name
		if o.MaxLive < 0 {
			return sandbox.Errorf(sandbox.Invalid, field+".max_live", "%d is negative", o.MaxLive).WithHint("use 0 for any number")
		}
		if o.MaxRunning < 0 {
			return sandbox.Errorf(sandbox.Invalid, field+".max_running", "%d is negative", o.MaxRunning).WithHint("use 0 for any number")
		}
		if err := cleanDirs(field+".allow_mount", o.AllowMount); err != nil {
			return err
		}
		if o.Profiles != nil && len(o.Profiles) == 0 {
			return sandbox.Errorf(sandbox.Invalid, field+".profiles", "there is none").WithHint("name one or more, or leave it out to allow all")
		}
		for _, p := range o.Profiles {
			if err := known(field+".profiles", p, profiles); err != nil {
				return err
			}
		}
		c.Owners[name] = o
	}
	return nil
}

// cleanDirs cleans folders of the host, of which every one is to be absolute.
func cleanDirs(field string, dirs []string) error {
	for i, dir := range dirs {
		if !filepath.IsAbs(dir) {
			return sandbox.Errorf(sandbox.Invalid, field, "%q is not an absolute path", dir).WithHint("begin it with /")
		}
		dirs[i] = filepath.Clean(dir)
	}
	return nil
}

// warmConfig returns how sandboxes are kept ready, and whether any are.
func (c *Config) warmConfig(profiles *profile.Set, images *profile.Images) (warm.Config, bool, error) {
	w := &c.Warm
	for _, n := range []struct {
		key string
		n   int64
		min int64
	}{{"max", int64(w.Max), 0}, {"after", int64(w.After), 0}, {"window", int64(w.Window), 1}, {"max_age", int64(w.MaxAge), 1}} {
		if n.n < n.min {
			return warm.Config{}, false, sandbox.Errorf(sandbox.Invalid, "warm."+n.key, "that is too little")
		}
	}
	cfg := warm.Config{Max: w.Max, After: w.After, Window: time.Duration(w.Window), MaxAge: time.Duration(w.MaxAge)}
	if w.After == 0 {
		cfg.After = -1 // which is how it says none
	}
	pinned := 0
	for _, name := range slices.Sorted(maps.Keys(w.Pin)) {
		field, n := "warm.pin."+name, w.Pin[name]
		if err := known("warm.pin", name, profiles); err != nil {
			return warm.Config{}, false, err
		}
		if n < 1 {
			return warm.Config{}, false, sandbox.Errorf(sandbox.Invalid, field, "%d is too little", n).WithHint("use 1 or more, or leave it out")
		}
		if pinned += n; pinned > w.Max {
			return warm.Config{}, false, sandbox.Errorf(sandbox.Invalid, field, "that makes %d that are always ready, more than warm.max, which is %d", pinned, w.Max).WithHint("raise warm.max")
		}
		spec, err := plainSpec(name, profiles, images)
		if err != nil {
			return warm.Config{}, false, err
		}
		cfg.Specs = append(cfg.Specs, warm.Pin{Spec: spec, N: n})
	}
	return cfg, w.Max > 0, nil
}

// plainSpec returns what the engine asks the Runtime below it for when somebody
// asks for nothing but the profile.
func plainSpec(name string, profiles *profile.Set, images *profile.Images) (sandbox.Spec, error) {
	p, err := profiles.Get(name)
	if err != nil {
		return sandbox.Spec{}, err
	}
	s, err := p.Spec(sandbox.Spec{})
	if err != nil {
		return sandbox.Spec{}, err
	}
	if image, ok := images.Resolve(s.Image); ok {
		s.Image = image
	}
	if s.Network == "" {
		s.Network = sandbox.NetworkOff
	}
	s.Profile, s.Idle, s.Expires, s.Limits.Workspace = "", 0, time.Time{}, 0 // the engine's business
	return s, nil
}

// check finds what is wrong with t.
func (t *AuditConfig) check() error {
	switch {
	case t.MaxSize < 4<<10:
		return sandbox.Errorf(sandbox.Invalid, "audit.max_size", "%d bytes is too little", int64(t.MaxSize)).WithHint("give at least 4k, such as 16m")
	case t.Keep < 0 || t.Keep > 1000:
		return sandbox.Errorf(sandbox.Invalid, "audit.keep", "%d is not a number of files to keep", t.Keep).WithHint("use 1 to 1000, or 0 to keep no older file")
	case strings.ContainsAny(t.File, "\x00\n"):
		return sandbox.Errorf(sandbox.Invalid, "audit.file", "%q is not a path", t.File)
	}
	return nil
}

// options returns how the record is kept.
func (t *AuditConfig) options(log *slog.Logger) audit.Options {
	keep := t.Keep
	if keep == 0 {
		keep = -1 // which is how it says none
	}
	return audit.Options{MaxSize: int64(t.MaxSize), Keep: keep, Log: log}
}

// path returns where the record is, "" if there is none.
func (t *AuditConfig) path(state string) string {
	if t.File == "" || filepath.IsAbs(t.File) {
		return t.File
	}
	return filepath.Join(state, t.File)
}

// files returns all the files that hold the record.
func (t *AuditConfig) files(state string) []string {
	p := t.path(state)
	if p == "" {
		return nil
	}
	all := []string{p}
	for n := range t.Keep {
		all = append(all, p+"."+strconv.Itoa(n+1))
	}
	return all
}
