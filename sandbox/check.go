package sandbox

import (
	"crypto/rand"
	"math"
	"path"
	"slices"
	"strings"
	"time"
)

// MaxPath is the longest path that Files and Specs take, in bytes (PATH_MAX
// of Linux less its NUL).
const MaxPath = 4095

// NewID returns an id that nobody else has: 20 random characters, 103 bits.
func NewID() ID {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	var raw [20]byte
	for i := 0; i < len(raw); {
		var r [32]byte
		rand.Read(r[:])
		for _, c := range r {
			if c < 252 && i < len(raw) { // 252 is 7 × 36: no letter is likelier
				raw[i] = letters[c%36]
				i++
			}
		}
	}
	return ID(raw[:])
}

// Valid reports whether id is well formed.
func (id ID) Valid() bool { return len(id) >= 8 && len(id) <= 40 && lowerAlnum(string(id)) }

// Valid reports whether id is well formed.
func (id ProcessID) Valid() bool { return len(id) >= 1 && len(id) <= 40 && lowerAlnum(string(id)) }

func lowerAlnum(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// CheckPath returns an [Invalid] error naming field unless p is an absolute
// path without NUL that is not too long.
func CheckPath(field, p string) error {
	switch {
	case p == "":
		return Errorf(Invalid, field, "the path is empty").WithHint("give an absolute path such as /workspace/file")
	case len(p) > MaxPath:
		return Errorf(Invalid, field, "the path has %d bytes, more than %d", len(p), MaxPath).WithHint("use a shorter path")
	case strings.IndexByte(p, 0) >= 0:
		return Errorf(Invalid, field, "the path has a NUL byte").WithHint("remove it")
	case p[0] != '/':
		return Errorf(Invalid, field, "%q is not an absolute path", p).WithHint("begin it with /")
	}
	return nil
}

// CheckEnv returns an [Invalid] error naming field unless every name is a
// usable name of a variable and no value has a NUL byte.
func CheckEnv(field string, env map[string]string) error {
	for k, v := range env {
		switch {
		case k == "":
			return Errorf(Invalid, field, "a variable has no name").WithHint("give it one")
		case strings.ContainsAny(k, "=\x00"):
			return Errorf(Invalid, field, "the name %q has a = or a NUL byte", k).WithHint("use letters, digits and _")
		case strings.IndexByte(v, 0) >= 0:
			return Errorf(Invalid, field, "the value of %s has a NUL byte", k).WithHint("remove it")
		}
	}
	return nil
}

// CheckUser returns an [Invalid] error naming field unless user has the form
// of a user: "", "name", "uid", "name:group" or "uid:gid".
func CheckUser(field, user string) error {
	if user == "" {
		return nil
	}
	name, group, both := strings.Cut(user, ":")
	if name == "" || both && group == "" || len(user) > 128 || strings.ContainsAny(user, "\x00\n/ ") || strings.Contains(group, ":") || user[0] == '-' || both && group[0] == '-' {
		return Errorf(Invalid, field, "%q is not a user", user).WithHint("use name, uid, name:group or uid:gid")
	}
	return nil
}

// Check returns an [Invalid] error that names the first field of s with which
// no Runtime could do anything.
func (s *Spec) Check() error {
	if strings.ContainsAny(s.Backend, "\x00\n") || len(s.Backend) > 128 {
		return Errorf(Invalid, "backend", "%q is not the name of a backend", s.Backend)
	}
	if s.ID != "" && !s.ID.Valid() {
		return Errorf(Invalid, "id", "%q is not an id", clip(string(s.ID))).WithHint("use 8 to 40 characters of a-z and 0-9, or none to get a new one")
	}
	if err := CheckName("name", s.Name); err != nil {
		return err
	}
	if len(s.Profile) > 128 || strings.ContainsAny(s.Profile, "\x00\n") {
		return Errorf(Invalid, "profile", "%q is not the name of a profile", clip(s.Profile))
	}
	for _, f := range s.Explicit {
		if !slices.Contains(explicit, f) {
			return Errorf(Invalid, "explicit", "%q is not a field whose zero value can be meant", clip(f)).WithHint("known ones: %s", strings.Join(explicit, ", "))
		}
	}
	if strings.ContainsAny(s.Image, "\x00\n") || len(s.Image) > MaxPath {
		return Errorf(Invalid, "image", "%q is not the name of an image", s.Image)
	}
	if err := CheckEnv("env", s.Env); err != nil {
		return err
	}
	if s.Workdir != "" {
		if err := CheckPath("workdir", s.Workdir); err != nil {
			return err
		}
	}
	if err := CheckUser("user", s.User); err != nil {
		return err
	}
	if err := s.Limits.check(); err != nil {
		return err
	}
	targets := make(map[string]bool)
	for _, m := range s.Mounts {
		if err := CheckPath("mounts.source", m.Source); err != nil {
			return err
		}
		if err := CheckPath("mounts.target", m.Target); err != nil {
			return err
		}
		t := path.Clean(m.Target)
		if t == "/" || within(t, "/proc") || within(t, "/sys") || within(t, "/dev") {
			return Errorf(Invalid, "mounts.target", "nothing can be mounted at %s", t).WithHint("choose a directory such as /mnt/data")
		}
		if targets[t] {
			return Errorf(Invalid, "mounts.target", "two mounts have the target %s", t).WithHint("give each its own")
		}
		targets[t] = true
	}
	switch s.Network {
	case "", NetworkOff, NetworkOn:
	default:
		return Errorf(Invalid, "network", "%q is not a network setting", s.Network).WithHint("use off or on")
	}
	for _, p := range s.Require {
		if !p.Known() {
			return Errorf(Invalid, "require", "%q is not a property", p).WithHint("known ones: %s", join(Properties()))
		}
	}
	if len(s.Labels) > 128 {
		return Errorf(Invalid, "labels", "there are %d labels, more than 128", len(s.Labels))
	}
	for k, v := range s.Labels {
		if k == "" || len(k) > 128 {
			return Errorf(Invalid, "labels", "the key %q has %d bytes", k, len(k)).WithHint("use 1 to 128")
		}
		if len(v) > 4096 {
			return Errorf(Invalid, "labels", "the value of %q has %d bytes, more than 4096", k, len(v))
		}
	}
	if y := s.Expires.Year(); y < 0 || y > 9999 {
		return Errorf(Invalid, "expires", "the year %d cannot be written down", y).WithHint("use one below 10000, or no time at all")
	}
	if !s.Expires.IsZero() && !s.Expires.After(time.Now()) {
		return Errorf(Invalid, "expires", "%s has passed", s.Expires.Format(time.RFC3339)).WithHint("give a time to come, or none")
	}
	return nil
}

// explicit are the fields that Spec.Explicit may name.
var explicit = []string{"read_only_root", "limits.memory", "limits.cpu", "limits.pids", "limits.disk", "limits.workspace", "expires"}

// CheckBackend returns a [NotExist] error unless s asks for one of the backends
// that a Runtime has, of which the first is its default, and an [Unsupported]
// one if it asks for what only a [Keeper] does.
func (s *Spec) CheckBackend(have ...string) error {
	switch {
	case s.ID != "":
		return policyOnly("id")
	case s.Name != "":
		return policyOnly("name")
	case s.Profile != "":
		return policyOnly("profile")
	case len(s.Explicit) > 0:
		return policyOnly("explicit")
	case s.Idle != 0:
		return policyOnly("idle")
	case s.Limits.Workspace != 0:
		return policyOnly("limits.workspace")
	case slices.ContainsFunc(s.Mounts, func(m Mount) bool { return m.Extra }):
		return policyOnly("mounts.extra")
	}
	if s.Backend == "" || slices.Contains(have, s.Backend) {
		return nil
	}
	return Errorf(NotExist, "backend", "there is no backend %q here", s.Backend).WithHint("there is: %s", strings.Join(have, ", "))
}

func (l *Limits) check() error {
	if l.Memory < 0 || l.Memory > 0 && l.Memory < 4<<20 {
		return Errorf(Invalid, "limits.memory", "%d bytes is not a possible limit", l.Memory).WithHint("give at least 4194304 bytes (4 MiB), or 0 for no limit")
	}
	if math.IsNaN(l.CPU) || l.CPU < 0 || l.CPU > 0 && l.CPU < 0.01 || l.CPU > 1<<16 {
		return Errorf(Invalid, "limits.cpu", "%v cores is not a possible limit", l.CPU).WithHint("give 0.01 to 65536, or 0 for no limit")
	}
	if l.PIDs < 0 || l.PIDs > 1<<22 {
		return Errorf(Invalid, "limits.pids", "%d processes is not a possible limit", l.PIDs).WithHint("give 1 to 4194304, or 0 for no limit")
	}
	if l.Workspace < 0 {
		return Errorf(Invalid, "limits.workspace", "%d bytes is not a possible limit", l.Workspace).WithHint("give a positive number, or 0 for no limit")
	}
	if l.Disk < 0 || l.Disk > 0 && l.Disk < 1<<20 {
		return Errorf(Invalid, "limits.disk", "%d bytes is not a possible limit", l.Disk).WithHint("give at least 1048576 bytes (1 MiB), or 0 for no limit")
	}
	return nil
}

// Check returns an [Invalid] error that names the first field of c with which
// no Sandbox could do anything.
func (c *Cmd) Check() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return Errorf(Invalid, "args", "there is no command").WithHint("give a program and its arguments")
	}
	for _, a := range c.Args {
		if strings.IndexByte(a, 0) >= 0 {
			return Errorf(Invalid, "args", "an argument has a NUL byte").WithHint("remove it")
		}
	}
	if err := CheckEnv("env", c.Env); err != nil {
		return err
	}
	if c.Dir != "" {
		if err := CheckPath("dir", c.Dir); err != nil {
			return err
		}
	}
	if err := CheckUser("user", c.User); err != nil {
		return err
	}
	if c.Timeout < 0 {
		return Errorf(Invalid, "timeout", "%v is negative", c.Timeout).WithHint("give a positive time, or 0 for none")
	}
	return nil
}

// MaxProcessName is the longest Name of DetachOptions, in bytes.
const MaxProcessName = 256

// MaxRing is the largest Ring of DetachOptions, in bytes.
const MaxRing = 16 << 20

// Check returns an [Invalid] error that names the first field of o with which
// no Detacher could do anything.
func (o *DetachOptions) Check() error {
	if o.Ring < 0 || o.Ring > MaxRing {
		return Errorf(Invalid, "ring", "%d bytes is not a possible size", o.Ring).WithHint("give 1 to %d, or 0 for 1 MiB", MaxRing)
	}
	if len(o.Name) > MaxProcessName {
		return Errorf(Invalid, "name", "the name has %d bytes, more than %d", len(o.Name), MaxProcessName).WithHint("use a shorter one")
	}
	return nil
}

// Properties returns every known property.
func Properties() []Property {
	return []Property{UserNamespace, OwnIDs, ManyIDs, PIDNamespace, MountNamespace, NetworkNamespace, IPCNamespace,
		UTSNamespace, CgroupNamespace, NoNewPrivileges, NoCapabilities, Seccomp, Landlock, MaskedProc,
		LimitMemory, LimitCPU, LimitPIDs, LimitDisk, KillTree}
}

// Known reports whether p is one of [Properties].
func (p Property) Known() bool {
	for _, q := range Properties() {
		if p == q {
			return true
		}
	}
	return false
}

func join(ps []Property) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = string(p)
	}
	return strings.Join(s, ", ")
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
