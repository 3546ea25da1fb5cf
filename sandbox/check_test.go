package sandbox

import (
	"errors"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNewID(t *testing.T) {
	seen := make(map[ID]bool)
	letters := make(map[rune]bool)
	for range 2000 {
		id := NewID()
		if !id.Valid() || len(id) != 20 {
			t.Fatalf("%q is not well formed", id)
		}
		if seen[id] {
			t.Fatalf("%s came twice", id)
		}
		seen[id] = true
		for _, c := range id {
			letters[c] = true
		}
	}
	if len(letters) != 36 {
		t.Errorf("40,000 characters have %d different ones, want 36", len(letters))
	}
}

func TestIDValid(t *testing.T) {
	for _, c := range []struct {
		id      string
		sandbox bool
		process bool
	}{
		{"", false, false},
		{"a", false, true},
		{"abcdefg", false, true},
		{"abcdefgh", true, true},
		{"0123456789", true, true},
		{strings.Repeat("a", 40), true, true},
		{strings.Repeat("a", 41), false, false},
		{"abcdefgH", false, false},
		{"abc-defgh", false, false},
		{"abcdefg\n", false, false},
		{"abcdefgé", false, false},
		{"../../etc", false, false},
	} {
		if got := ID(c.id).Valid(); got != c.sandbox {
			t.Errorf("ID(%q).Valid() is %v", c.id, got)
		}
		if got := ProcessID(c.id).Valid(); got != c.process {
			t.Errorf("ProcessID(%q).Valid() is %v", c.id, got)
		}
	}
}

// wantField fails unless err is Invalid, names field, and says something.
func wantField(t *testing.T, what string, err error, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("%s: %v, want none", what, err)
		}
		return
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: %v, want an *Error", what, err)
		return
	}
	if e.Kind != Invalid || e.Field != field || e.Msg == "" {
		t.Errorf("%s: %+v, want Invalid, field %q and a message", what, e, field)
	}
}

func TestCheckPath(t *testing.T) {
	for p, ok := range map[string]bool{
		"/": true, "/a": true, "//a//b/": true, "/../..": true, "/\xff": true, "/new\nline": true, "/" + strings.Repeat("a", MaxPath-1): true,
		"": false, "a": false, "./a": false, "../a": false, "~": false, "C:\\a": false, "/a\x00b": false, "/" + strings.Repeat("a", MaxPath): false,
	} {
		field := "path"
		if ok {
			field = ""
		}
		wantField(t, p[:min(len(p), 20)], CheckPath("path", p), field)
	}
}

func TestCheckUser(t *testing.T) {
	for u, ok := range map[string]bool{
		"": true, "root": true, "0": true, "1000": true, "user:group": true, "1000:1000": true, "www-data": true, "a.b_c": true, "user$": true,
		":": false, ":0": false, "0:": false, "a:b:c": false, "a b": false, "a/b": false, "-1": false, "0:-1": false, "a\nb": false, "a\x00": false, strings.Repeat("a", 129): false,
	} {
		field := "user"
		if ok {
			field = ""
		}
		wantField(t, u, CheckUser("user", u), field)
	}
}

func TestCheckEnv(t *testing.T) {
	for _, c := range []struct {
		k, v string
		ok   bool
	}{
		{"A", "", true}, {"A", "b=c\nd", true}, {"a.b-c", "x", true}, {"A", "\xff", true},
		{"", "x", false}, {"A=B", "x", false}, {"A\x00", "x", false}, {"A", "\x00", false},
	} {
		field := "env"
		if c.ok {
			field = ""
		}
		wantField(t, c.k+"="+c.v, CheckEnv("env", map[string]string{c.k: c.v}), field)
	}
}

func TestSpecCheck(t *testing.T) {
	many := make(map[string]string)
	for i := range 129 {
		many[strings.Repeat("k", i+1)] = ""
	}
	mount := func(ms ...Mount) Spec { return Spec{Mounts: ms} }
	for _, c := range []struct {
		what  string
		spec  Spec
		field string // "" if it is good
	}{
		{"zero", Spec{}, ""},
		{"full", Spec{
			Backend: "linux", Image: "host", Env: map[string]string{"A": "b"}, Workdir: "/w", User: "1000:1000", Limits: Limits{Memory: 4 << 20, CPU: 0.01, PIDs: 1, Disk: 1 << 20},
			Mounts:  []Mount{{Source: "/a", Target: "/mnt"}, {Source: "/a", Target: "/mnt/b"}, {Source: "/a", Target: "/process"}},
			Network: NetworkOff, ReadOnlyRoot: true, Require: Properties(), Labels: map[string]string{strings.Repeat("k", 128): strings.Repeat("v", 4096)}, Expires: time.Now().Add(time.Hour),
		}, ""},
		{"backend with NUL", Spec{Backend: "a\x00"}, "backend"},
		{"long backend", Spec{Backend: strings.Repeat("a", 129)}, "backend"},
		{"image with NUL", Spec{Image: "a\x00"}, "image"},
		{"image with line end", Spec{Image: "a\nb"}, "image"},
		{"long image", Spec{Image: strings.Repeat("a", MaxPath+1)}, "image"},
		{"env", Spec{Env: map[string]string{"=": ""}}, "env"},
		{"workdir", Spec{Workdir: "w"}, "workdir"},
		{"user", Spec{User: ":"}, "user"},
		{"negative memory", Spec{Limits: Limits{Memory: -1}}, "limits.memory"},
		{"little memory", Spec{Limits: Limits{Memory: 4<<20 - 1}}, "limits.memory"},
		{"negative cpu", Spec{Limits: Limits{CPU: -1}}, "limits.cpu"},
		{"little cpu", Spec{Limits: Limits{CPU: 0.009}}, "limits.cpu"},
		{"NaN cpu", Spec{Limits: Limits{CPU: math.NaN()}}, "limits.cpu"},
		{"infinite cpu", Spec{Limits: Limits{CPU: math.Inf(1)}}, "limits.cpu"},
		{"negative pids", Spec{Limits: Limits{PIDs: -1}}, "limits.pids"},
		{"many pids", Spec{Limits: Limits{PIDs: 1<<22 + 1}}, "limits.pids"},
		{"negative disk", Spec{Limits: Limits{Disk: -1}}, "limits.disk"},
		{"little disk", Spec{Limits: Limits{Disk: 1<<20 - 1}}, "limits.disk"},
		{"relative source", mount(Mount{Source: "a", Target: "/b"}), "mounts.source"},
		{"no target", mount(Mount{Source: "/a"}), "mounts.target"},
		{"root", mount(Mount{Source: "/a", Target: "/"}), "mounts.target"},
		{"root in disguise", mount(Mount{Source: "/a", Target: "/x/.."}), "mounts.target"},
		{"proc", mount(Mount{Source: "/a", Target: "/proc"}), "mounts.target"},
		{"below proc", mount(Mount{Source: "/a", Target: "//proc//self"}), "mounts.target"},
		{"sys", mount(Mount{Source: "/a", Target: "/a/../sys"}), "mounts.target"},
		{"dev", mount(Mount{Source: "/a", Target: "/dev/shm"}), "mounts.target"},
		{"two at one place", mount(Mount{Source: "/a", Target: "/m"}, Mount{Source: "/b", Target: "/m/./"}), "mounts.target"},
		{"network", Spec{Network: "host"}, "network"},
		{"require", Spec{Require: []Property{Seccomp, "x"}}, "require"},
		{"many labels", Spec{Labels: many}, "labels"},
		{"empty key", Spec{Labels: map[string]string{"": "x"}}, "labels"},
		{"long key", Spec{Labels: map[string]string{strings.Repeat("k", 129): "x"}}, "labels"},
		{"long value", Spec{Labels: map[string]string{"k": strings.Repeat("v", 4097)}}, "labels"},
		{"expired", Spec{Expires: time.Now().Add(-time.Second)}, "expires"},
	} {
		wantField(t, c.what, c.spec.Check(), c.field)
	}
}

func TestCheckBackend(t *testing.T) {
	for _, name := range []string{"", "linux", "memory"} {
		if err := (&Spec{Backend: name}).CheckBackend("linux", "memory"); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"Linux", "docker", "linux,memory"} {
		err := (&Spec{Backend: name}).CheckBackend("linux", "memory")
		var e *Error
		if !errors.As(err, &e) || e.Kind != NotExist || e.Field != "backend" || e.Hint != "there is: linux, memory" {
			t.Errorf("%q: %v, want NotExist that lists what there is", name, err)
		}
	}
}

func TestCmdCheck(t *testing.T) {
	args := []string{"true"}
	for _, c := range []struct {
		what  string
		cmd   Cmd
		field string
	}{
		{"plain", Cmd{Args: args}, ""},
		{"full", Cmd{Args: []string{"a", "", "\xff", "b\nc"}, Env: map[string]string{"A": "b"}, Dir: "/", User: "root", Timeout: time.Second, Terminal: &Size{}}, ""},
		{"nothing", Cmd{}, "args"},
		{"empty program", Cmd{Args: []string{""}}, "args"},
		{"NUL", Cmd{Args: []string{"a", "\x00"}}, "args"},
		{"env", Cmd{Args: args, Env: map[string]string{"": ""}}, "env"},
		{"dir", Cmd{Args: args, Dir: "."}, "dir"},
		{"user", Cmd{Args: args, User: "-"}, "user"},
		{"timeout", Cmd{Args: args, Timeout: -1}, "timeout"},
	} {
		wantField(t, c.what, c.cmd.Check(), c.field)
	}
}

func TestPropertiesAreKnown(t *testing.T) {
	ps := Properties()
	for i, p := range ps {
		if !p.Known() || p == "" || slices.Contains(ps[:i], p) {
			t.Errorf("%q is not known, or comes twice", p)
		}
	}
	if Property("x").Known() || Property("").Known() {
		t.Error("anything is known")
	}
	if !(Isolation{Has: ps[:3]}).Holds(ps[1]) || (Isolation{Has: ps[:3]}).Holds(ps[3]) {
		t.Error("Holds does not look")
	}
}

// FuzzCheckPath: what passes can be handed to the kernel and is absolute when
// cleaned.
func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"", "/", "/a/../b", "a", "/\x00", "/\xff\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		err := CheckPath("path", p)
		if err == nil && (len(p) > MaxPath || strings.IndexByte(p, 0) >= 0 || !path.IsAbs(path.Clean(p))) {
			t.Errorf("%q passes", p)
		}
		if err != nil && KindOf(err) != Invalid {
			t.Errorf("%q: %v", p, err)
		}
	})
}

// FuzzSpecCheck: no Spec makes Check panic, and what passes keeps mounts away
// from the kernel's own places.
func FuzzSpecCheck(f *testing.F) {
	f.Add("host", "A", "b", "/w", "root", int64(1<<30), 1.0, 10, "/a", "/mnt", "off", "k", "v")
	f.Add("", "", "", "", "", int64(0), 0.0, 0, "", "/x/../proc", "", "", "")
	f.Fuzz(func(t *testing.T, image, k, v, dir, user string, memory int64, cpu float64, pids int, source, target, network, lk, lv string) {
		s := Spec{
			Image: image, Env: map[string]string{k: v}, Workdir: dir, User: user, Limits: Limits{Memory: memory, CPU: cpu, PIDs: pids},
			Mounts: []Mount{{Source: source, Target: target}}, Network: Network(network), Labels: map[string]string{lk: lv},
		}
		err := s.Check()
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || e.Kind != Invalid || e.Field == "" {
				t.Errorf("%v is not Invalid with a field", err)
			}
			return
		}
		for _, p := range []string{"/", "/proc", "/sys", "/dev"} {
			if c := path.Clean(target); c == p || p != "/" && strings.HasPrefix(c, p+"/") {
				t.Errorf("a mount at %q passes", target)
			}
		}
		if memory < 0 || cpu < 0 || pids < 0 || cpu != cpu {
			t.Errorf("limits %d, %v, %d pass", memory, cpu, pids)
		}
	})
}

// FuzzCheckUser: what passes has one or two parts that are not empty.
func FuzzCheckUser(f *testing.F) {
	for _, s := range []string{"", "root", "0:0", ":", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, u string) {
		if CheckUser("user", u) != nil || u == "" {
			return
		}
		parts := strings.Split(u, ":")
		if len(parts) > 2 || slices.Contains(parts, "") || strings.ContainsAny(u, "\x00\n /") {
			t.Errorf("%q passes", u)
		}
	})
}
