package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/sandbox"
)

// specFlags are the flags of run and create: what sandbox is wanted.
type specFlags struct {
	set *pflag.FlagSet // where they are

	id        string
	name      string
	profile   string
	idle      idleFlag
	workspace size

	backend  string
	image    string
	memory   size
	cpus     float64
	pids     int
	disk     size
	mounts   []string
	env      envFlags
	workdir  string
	user     string
	network  string
	readOnly bool
	require  []string
	labels   []string
	ttl      time.Duration
	expires  string
}

func (f *specFlags) add(fs *pflag.FlagSet) {
	f.set = fs
	fs.StringVar(&f.name, "name", "", "what to call the sandbox; no two of yours have one name")
	fs.StringVar(&f.id, "id", "", "the id that it gets: 8 to 40 characters of a-z and 0-9 (default: a new one)")
	fs.StringVar(&f.profile, "profile", "", "the defaults and bounds that it gets, by their name (default: that of the protocol)")
	fs.Var(&f.idle, "idle", "remove it when nothing has used it for this time, such as 30m; never keeps it (default: as the profile says)")
	fs.StringVar(&f.backend, "backend", "", "what makes the sandbox, such as linux (default: the first that there is)")
	fs.SetAnnotation("backend", notSetting, []string{""})
	fs.StringVar(&f.image, "image", "", `what the file system starts as: "host" (the default) or "dir:/path"`)
	fs.Var(&f.memory, "memory", "how much memory it may use, such as 512m")
	fs.Float64Var(&f.cpus, "cpus", 0, "how many processors it may use, such as 0.5")
	fs.IntVar(&f.pids, "pids", 0, "how many processes and threads it may have")
	fs.Var(&f.disk, "disk", "how much it may write, such as 1g")
	fs.Var(&f.workspace, "workspace", "how large the files below its working directory may get, looked at before and after each command")
	fs.StringArrayVar(&f.mounts, "mount", nil, "a folder or file of the host to show inside: SRC:DST[:ro|rw] (default rw); may be repeated")
	f.env.add(fs)
	fs.StringVar(&f.workdir, "workdir", "", "where commands start (default /workspace)")
	fs.StringVar(&f.user, "user", "", "whom commands run as: name, uid, name:group or uid:gid (default root of the sandbox)")
	fs.StringVar(&f.network, "network", "", "off (the default) or on")
	fs.BoolVar(&f.readOnly, "read-only", false, "make the root file system read-only; /tmp, /home and /workspace stay writable")
	fs.StringSliceVar(&f.require, "require", nil, "a property without which the sandbox is not wanted: see atoll help properties; may be repeated")
	fs.StringArrayVar(&f.labels, "label", nil, "a label, KEY=VALUE; may be repeated")
	fs.DurationVar(&f.ttl, "ttl", 0, "remove the sandbox after this time, such as 1h30m")
	fs.StringVar(&f.expires, "expires", "", "remove the sandbox at this time, such as 2030-01-31T12:00:00Z")
}

// spec returns the Spec that the flags describe.
func (f *specFlags) spec(a *app) (sandbox.Spec, error) {
	s := sandbox.Spec{
		ID:           sandbox.ID(f.id),
		Name:         f.name,
		Profile:      f.profile,
		Idle:         time.Duration(f.idle),
		Explicit:     f.explicit(),
		Backend:      f.backend,
		Image:        f.image,
		Workdir:      f.workdir,
		User:         f.user,
		Network:      sandbox.Network(f.network),
		ReadOnlyRoot: f.readOnly,
		Limits: sandbox.Limits{
			Memory: int64(f.memory),
			CPU:    f.cpus,
			PIDs:   f.pids,
			Disk:   int64(f.disk),

			Workspace: int64(f.workspace),
		},
	}
	// A directory of the shell's is meant, not one of the daemon's.
	if dir, ok := strings.CutPrefix(s.Image, "dir:"); ok && dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return s, err
		}
		s.Image = "dir:" + abs
	}
	for _, text := range f.mounts {
		m, err := parseMount(text)
		if err != nil {
			return s, err
		}
		s.Mounts = append(s.Mounts, m)
	}
	for _, p := range f.require {
		s.Require = append(s.Require, sandbox.Property(p))
	}
	switch {
	case f.ttl != 0 && f.expires != "":
		return s, usage("--ttl and --expires are both given: choose one")
	case f.ttl < 0:
		return s, sandbox.Errorf(sandbox.Invalid, "--ttl", "%v is negative", f.ttl)
	case f.ttl > 0:
		s.Expires = time.Now().Add(f.ttl)
	case f.expires != "":
		t, err := time.Parse(time.RFC3339, f.expires)
		if err != nil {
			return s, sandbox.Errorf(sandbox.Invalid, "expires", "%q is not a time", f.expires).WithHint("write it as %s", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		}
		s.Expires = t
	}
	var err error
	if s.Labels, err = parseLabels(f.labels); err != nil {
		return s, err
	}
	if s.Env, err = f.env.env(a); err != nil {
		return s, err
	}
	return s, s.Check()
}

// explicit returns the fields whose zero value was given, and so is meant.
func (f *specFlags) explicit() []string {
	var fields []string
	for _, z := range []struct {
		flag, field string
		zero        bool
	}{
		{"memory", "limits.memory", f.memory == 0},
		{"cpus", "limits.cpu", f.cpus == 0},
		{"pids", "limits.pids", f.pids == 0},
		{"disk", "limits.disk", f.disk == 0},
		{"workspace", "limits.workspace", f.workspace == 0},
		{"read-only", "read_only_root", !f.readOnly},
		{"ttl", "expires", f.ttl == 0 && f.expires == ""},
	} {
		if z.zero && f.set.Changed(z.flag) {
			fields = append(fields, z.field)
		}
	}
	return fields
}

// idleFlag is a time without use, or never, as a flag.
type idleFlag time.Duration

func (i *idleFlag) String() string {
	switch d := time.Duration(*i); {
	case d < 0:
		return "never"
	case d > 0:
		return d.String()
	}
	return ""
}

func (i *idleFlag) Set(v string) error {
	if v == "never" {
		*i = -1
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return sandbox.Errorf(sandbox.Invalid, "idle", "%q is not a time", v).WithHint("write 30m or 1h30m, or never")
	}
	*i = idleFlag(d)
	return nil
}

func (i *idleFlag) Type() string { return "duration" }

// parseMount reads SRC:DST, SRC:DST:ro or SRC:DST:rw. A relative SRC is below
// the working directory.
func parseMount(text string) (sandbox.Mount, error) {
	wrong := sandbox.Errorf(sandbox.Invalid, "mounts", "%q is not SRC:DST, SRC:DST:ro or SRC:DST:rw", text)
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return sandbox.Mount{}, wrong
	}
	src, err := filepath.Abs(parts[0])
	if err != nil {
		return sandbox.Mount{}, err
	}
	m := sandbox.Mount{Source: src, Target: parts[1]}
	if len(parts) == 3 {
		switch parts[2] {
		case "ro":
			m.ReadOnly = true
		case "rw":
		default:
			return sandbox.Mount{}, wrong
		}
	}
	return m, nil
}

// envFlags are the flags that say what the environment is.
type envFlags struct {
	vars  []string
	files []string
}

func (f *envFlags) add(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.vars, "env", nil, "a variable: K=V, or K to pass on one of this environment; may be repeated")
	fs.StringArrayVar(&f.files, "env-file", nil, "a file with a K=V or K on each line; may be repeated")
}

// env returns the variables: those of files first, so that --env wins.
func (f *envFlags) env(a *app) (map[string]string, error) {
	env := make(map[string]string)
	for _, name := range f.files {
		if err := a.readEnv(env, name); err != nil {
			return nil, err
		}
	}
	for _, text := range f.vars {
		a.setEnv(env, text)
	}
	return env, sandbox.CheckEnv("env", env)
}

// setEnv puts K=V, or this program's own K if it has one, into env.
func (a *app) setEnv(env map[string]string, text string) {
	k, v, ok := strings.Cut(text, "=")
	if !ok {
		if v, ok = a.getenv(k); !ok {
			return
		}
	}
	env[k] = v
}

// readEnv reads a file of variables. Empty lines and those that begin with #
// say nothing; quotes have no meaning.
func (a *app) readEnv(env map[string]string, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "--env-file", "%v", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimRight(lines.Text(), "\r")
		if t := strings.TrimSpace(line); t == "" || t[0] == '#' {
			continue
		}
		if k, _, _ := strings.Cut(line, "="); strings.TrimSpace(k) != k || k == "" {
			return sandbox.Errorf(sandbox.Invalid, fmt.Sprintf("%s:%d", name, n), "this is not K=V")
		}
		a.setEnv(env, line)
	}
	if err := lines.Err(); err != nil {
		return sandbox.Errorf(sandbox.Invalid, name, "%v", err)
	}
	return nil
}
