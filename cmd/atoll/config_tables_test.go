package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/audit"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

// configured returns the configuration of a file with this text.
func configured(t *testing.T, text string) (Config, error) {
	t.Helper()
	env := map[string]string{"HOME": "/home/me", "XDG_STATE_HOME": "/home/me/state", "ATOLL_CONFIG": write(t, "atoll.toml", text)}
	return testApp(env).load(given(t))
}

// mustConfigure is configured of what is right.
func mustConfigure(t *testing.T, text string) Config {
	t.Helper()
	c, err := configured(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestProfileTable(t *testing.T) {
	c := mustConfigure(t, `
backend = ["memory", "linux"]

[profiles.full]
backend = "linux"
image = "host"
network = "on"
user = "me"
workdir = "/w"
read_only_root = true
limits = { memory = "512m", cpu = 1, pids = 100, disk = "1g", workspace = 1000 }
idle = "30m"
ttl = "1h"
timeout = "30s"
require = ["seccomp"]
max_limits = { memory = 1073741824, cpu = 1.5, pids = 200, disk = "2g", workspace = "1m" }
max_idle = "1h"
max_ttl = "2h"
max_timeout = "1m30s"
max_output = "64k"
max_jobs = 7
max_ring = "8k"
mount_mode = "ro"
over_quota = "remove"
locked = ["image", "limits.cpu"]

[profiles.empty]
`)
	want := []profile.Profile{{Name: "empty"}, {
		Name: "full", Backend: "linux", Image: "host", Network: sandbox.NetworkOn, User: "me", Workdir: "/w", ReadOnlyRoot: true,
		Limits: sandbox.Limits{Memory: 512 << 20, CPU: 1, PIDs: 100, Disk: 1 << 30, Workspace: 1000},
		Idle:   30 * time.Minute, TTL: time.Hour, Timeout: 30 * time.Second, Require: []sandbox.Property{sandbox.Seccomp},
		MaxLimits: sandbox.Limits{Memory: 1 << 30, CPU: 1.5, PIDs: 200, Disk: 2 << 30, Workspace: 1 << 20},
		MaxIdle:   time.Hour, MaxTTL: 2 * time.Hour, MaxTimeout: 90 * time.Second,
		MaxOutput: 64 << 10, MaxJobs: 7, MaxRing: 8 << 10,
		MountMode: profile.MountRO, OverQuota: profile.Remove, Locked: []string{"image", "limits.cpu"},
	}}
	got, err := c.profiles()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	full := reflect.ValueOf(got[1])
	for i := range full.NumField() {
		if full.Field(i).IsZero() {
			t.Errorf("no key sets %s", full.Type().Field(i).Name)
		}
	}
	set, err := c.profileSet()
	if err != nil {
		t.Fatal(err)
	}
	if p, err := set.Get("empty"); err != nil || p.MaxJobs != profile.DefaultJobs {
		t.Errorf("got %+v, %v", p, err)
	}
}

// TestProfileBase: what a profile says nothing about is its base's, what it
// says replaces that, zeros and empty lists included.
func TestProfileBase(t *testing.T) {
	c := mustConfigure(t, `
[profiles.a]
base = "offline_readonly"
limits.memory = "1g"
locked = []

[profiles.b]
base = "a"
network = "on"
read_only_root = false
limits.cpu = 0
timeout = "0s"
image = ""

[profiles.default]
base = "default"
limits.pids = 7

[profiles.c]
base = "default"
`)
	got, err := c.profiles()
	if err != nil {
		t.Fatal(err)
	}
	builtin := func(name string) profile.Profile {
		all := profile.Builtin()
		return all[slices.IndexFunc(all, func(p profile.Profile) bool { return p.Name == name })]
	}
	a := builtin("offline_readonly")
	a.Name, a.Limits.Memory, a.Locked = "a", 1<<30, []string{}
	b := a
	b.Name, b.Network, b.ReadOnlyRoot, b.Limits.CPU, b.Timeout, b.Image = "b", sandbox.NetworkOn, false, 0, 0, ""
	d := builtin("default")
	d.Limits.PIDs = 7
	e := d
	e.Name = "c"
	if diff := cmp.Diff([]profile.Profile{a, b, e, d}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestImageTable(t *testing.T) {
	c := mustConfigure(t, "[images]\n'python:3.12' = 'dir:/p'\n'*' = 'host'\n'rockchin/*' = ''\n")
	images, err := c.imageTable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"python:3.12": "dir:/p", "node": "host", "rockchin/x": ""} {
		if got, ok := images.Resolve(name); !ok || got != want {
			t.Errorf("%s stands for %q, %v, want %q", name, got, ok, want)
		}
	}
}

func TestOtherTables(t *testing.T) {
	c := mustConfigure(t, `
max_live = 9

[protocols.native]
profile = "deerflow"
max_live = 0
when_full = "evict"
wait = "30s"
auto_restart = false

[owners.alice]
token_file = "/t/./alice"
max_live = 1
max_running = 2
allow_mount = ["/a/../b/"]
profiles = ["default", "e2b"]

[owners."b:2"]
token_file = "/t/b"

[audit]
file = "/log/a"
max_size = "1m"
keep = 0
args = true
`)
	wait := duration(30 * time.Second)
	want := map[string]ProtocolConfig{"native": {Profile: "deerflow", MaxLive: new(0), WhenFull: "evict", Wait: &wait, AutoRestart: new(false)}}
	if diff := cmp.Diff(want, c.Protocols); diff != "" {
		t.Errorf("protocols -want +got:\n%s", diff)
	}
	owners := map[string]OwnerConfig{
		"alice": {TokenFile: "/t/alice", MaxLive: 1, MaxRunning: 2, AllowMount: []string{"/b"}, Profiles: []string{"default", "e2b"}},
		"b:2":   {TokenFile: "/t/b"},
	}
	if diff := cmp.Diff(owners, c.Owners); diff != "" {
		t.Errorf("owners -want +got:\n%s", diff)
	}
	if got := c.Audit.options(nil); got != (audit.Options{MaxSize: 1 << 20, Keep: -1}) {
		t.Errorf("the record is kept by %+v", got)
	}
	if want := (AuditConfig{File: "/log/a", MaxSize: 1 << 20, Args: true}); c.Audit != want || c.Audit.path("/state") != "/log/a" {
		t.Errorf("audit: got %+v, want %+v", c.Audit, want)
	}
	if c.MaxLive != 9 {
		t.Errorf("max_live is %d", c.MaxLive)
	}

	c = mustConfigure(t, "")
	if got, want := c.Audit.path(c.State), filepath.Join(c.State, "audit.jsonl"); got != want {
		t.Errorf("the record is %s, want %s", got, want)
	}
	c = mustConfigure(t, "[audit]\nfile = ''\n")
	if got := c.Audit.path(c.State); got != "" {
		t.Errorf("the record is %s, want none", got)
	}
}

func TestWarmTable(t *testing.T) {
	native := sandbox.Spec{Network: "off"}
	small := sandbox.Spec{Network: "off", Image: "dir:/p", ReadOnlyRoot: true, Limits: sandbox.Limits{Memory: 64 << 20}}
	for _, c := range []struct {
		text string
		want warm.Config
		on   bool
	}{
		{"", warm.Config{Max: 4, After: 2, Window: 10 * time.Minute, MaxAge: 10 * time.Minute}, true},
		{"[warm]\nmax = 0", warm.Config{After: 2, Window: 10 * time.Minute, MaxAge: 10 * time.Minute}, false},
		{"[warm]\nmax = 3\nafter = 0\nwindow = '1m'\nmax_age = '2m'\npin = { native = 1, small = 2 }",
			warm.Config{Max: 3, After: -1, Window: time.Minute, MaxAge: 2 * time.Minute, Specs: []warm.Pin{{Spec: native, N: 1}, {Spec: small, N: 2}}}, true},
	} {
		cfg := mustConfigure(t, c.text+`
[profiles.small]
image = "python"
read_only_root = true
idle = "1h"
ttl = "2h"
limits = { memory = "64m", workspace = "1m" }
[images]
python = "dir:/p"
`)
		set, err := cfg.profileSet()
		if err != nil {
			t.Fatal(err)
		}
		images, err := cfg.imageTable()
		if err != nil {
			t.Fatal(err)
		}
		got, on, err := cfg.warmConfig(set, images)
		if err != nil || on != c.on {
			t.Errorf("%s: on %v, %v", c.text, on, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", c.text, diff)
		}
		for _, p := range got.Specs {
			if err := p.Spec.CheckBackend(); err != nil {
				t.Errorf("no backend takes it: %v", err)
			}
		}
	}
}

// TestPrivate: no sandbox is shown what lets somebody into the daemon, nor the
// record of what happened.
func TestPrivate(t *testing.T) {
	c := mustConfigure(t, `
state = "/srv/state"
listen = ["127.0.0.1:1", "unix:/srv/atoll.sock"]
token_file = "/srv/token"
[owners.alice]
token_file = "/srv/alice"
[audit]
file = "/srv/audit"
keep = 2
`)
	want := []string{"/srv/alice", "/srv/atoll.sock", "/srv/audit", "/srv/audit.1", "/srv/audit.2", "/srv/state", "/srv/token"}
	got := c.private()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	c.Audit.File = ""
	if got := c.Audit.files(c.State); len(got) != 0 {
		t.Errorf("there is no record, and its files are %v", got)
	}
}

// An overheard Runtime remembers the Specs that it was asked for.
type overheard struct {
	sandbox.Runtime
	specs []sandbox.Spec
}

func (o *overheard) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	o.specs = append(o.specs, spec)
	return o.Runtime.Create(ctx, spec)
}

// TestPinIsWhatTheEngineAsksFor: a pool in which other Specs are ready than
// those that the engine asks for would be of no use to anybody.
func TestPinIsWhatTheEngineAsksFor(t *testing.T) {
	c := mustConfigure(t, `
[profiles.small]
image = "python"
user = "nobody"
workdir = "/w"
read_only_root = true
idle = "1h"
ttl = "2h"
limits = { memory = "64m", cpu = 1, pids = 10, workspace = "1m" }
require = ["kill-tree"]
[images]
python = "memory"
`)
	set, err := c.profileSet()
	if err != nil {
		t.Fatal(err)
	}
	images, err := c.imageTable()
	if err != nil {
		t.Fatal(err)
	}
	below := &overheard{Runtime: memory.New(memory.Config{})}
	e, err := engine.New(t.Context(), below, engine.Config{Profiles: set, Images: images})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i, name := range []string{"native", "small"} {
		if _, err := e.Create(t.Context(), sandbox.Spec{Profile: name}); err != nil {
			t.Fatal(err)
		}
		want, err := plainSpec(name, set, images)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, below.specs[i], cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: -pinned +asked for:\n%s", name, diff)
		}
	}
}

// TestWrongTablesAreRefused looks for words that help in every refusal.
func TestWrongTablesAreRefused(t *testing.T) {
	owner := "[owners.alice]\ntoken_file = '/t/alice'\n"
	for _, c := range []struct {
		name, file string
		want       []string // parts of the message
	}{
		{"unknown key of a profile", "[profiles.x]\nimag = 'a'", []string{`"profiles.x.imag"`, "backend, base, idle, image"}},
		{"unknown limit", "[profiles.x.limits]\nmem = 1", []string{`"profiles.x.limits.mem"`, "cpu, disk, memory, pids, workspace"}},
		{"unknown table of a profile", "[profiles.x.foo.bar]\na = 1", []string{`"profiles.x.foo"`, "backend, base"}},
		{"unknown key of a protocol", "[protocols.native]\nmax = 1", []string{`"protocols.native.max"`, "auto_restart, max_live, profile, wait, when_full"}},
		{"unknown key of an owner", owner + "mount = 1", []string{`"owners.alice.mount"`, "allow_mount, max_live"}},
		{"unknown key of warm", "[warm]\nmin = 1", []string{`"warm.min"`, "after, max, max_age, pin, window"}},
		{"unknown key of audit", "[audit]\nsize = 1", []string{`"audit.size"`, "args, file, keep, max_size"}},
		{"token of an owner", "[owners.alice]\ntoken = 'e2b_secret'", []string{"token_file"}},
		{"no table", "profiles = 1", []string{"profiles is a table", "[profiles]"}},
		{"no table, in capitals", "OWNERS = 'me'", []string{"OWNERS is a table", "[owners]"}},
		{"no table of images", "images = ['a']", []string{"images is a table"}},
		{"no table of pins", "[warm]\npin = 1", []string{"warm.pin is a table", "[warm.pin]"}},
		{"tables in a row", "[[profiles]]\nx = 1", []string{"profiles is a table"}},
		{"tables of one profile in a row", "[[profiles.x]]", []string{"profiles.x"}},

		{"number without unit", "[profiles.x]\nidle = 30", []string{"profiles.x.idle", `"30"`, "30s"}},
		{"no duration", "[profiles.x]\nttl = 'long'", []string{"profiles.x.ttl", `"long"`}},
		{"no size", "[profiles.x.limits]\nmemory = 'much'", []string{"profiles.x.limits.memory", `"much"`, "512m"}},
		{"too little memory", "[profiles.x.limits]\nmemory = '1m'", []string{"profiles.x.limits.memory: ", "4194304"}},
		{"default above the bound", "[profiles.x]\nlimits.memory = '2g'\nmax_limits.memory = '1g'", []string{"profiles.x.limits.memory: ", "max_limits.memory"}},
		{"idle above its bound", "[profiles.x]\nidle = '2h'\nmax_idle = '1h'", []string{"profiles.x.idle: 2h0m0s", "1h0m0s"}},
		{"ring that is too large", "[profiles.x]\nmax_ring = '9000000t'", []string{"profiles.x.max_ring"}},
		{"lock of nothing", "[profiles.x]\nlocked = ['memory']", []string{"profiles.x.locked", `"memory"`, "limits.memory"}},
		{"unknown mode of mounts", "[profiles.x]\nmount_mode = 'w'", []string{"profiles.x.mount_mode", "rw, ro, none"}},
		{"unknown backend", "[profiles.x]\nbackend = 'docker'", []string{"profiles.x.backend", `"docker"`, "linux"}},
		{"backend that is not on", "[profiles.x]\nbackend = 'memory'", []string{"profiles.x.backend", "there is: linux"}},
		{"name of a profile", "[profiles.'a b']", []string{`"a b"`}},
		{"unknown base", "[profiles.x]\nbase = 'y'\n[profiles.z]", []string{"profiles.x.base", `"y"`, "deerflow, default, e2b, native, network_basic, network_extended, offline_readonly, z"}},
		{"its own base", "[profiles.x]\nbase = 'x'", []string{"profiles.x.base", "its own base"}},
		{"bases in a circle", "[profiles.x]\nbase = 'y'\n[profiles.y]\nbase = 'z'\n[profiles.z]\nbase = 'x'", []string{"base", "its own base"}},

		{"image without a name", "[images]\n'' = 'host'", []string{"images", "empty"}},
		{"no image", "[images]\npython = 3", []string{"images.python"}},

		{"negative max_live", "max_live = -1", []string{"max_live"}},
		{"unknown protocol", "[protocols.grpc]", []string{"protocols.grpc", "known ones: native"}},
		{"unknown profile of a protocol", "[protocols.native]\nprofile = 'x'\n[profiles.y]", []string{"protocols.native.profile", `"x"`, "known ones: deerflow, default, e2b, native, network_basic, network_extended, offline_readonly, y"}},
		{"negative max_live of a protocol", "[protocols.native]\nmax_live = -1", []string{"protocols.native.max_live"}},
		{"unknown mode", "[protocols.native]\nwhen_full = 'panic'", []string{"protocols.native.when_full", `"panic"`, "refuse, evict or soft"}},
		{"negative wait", "[protocols.native]\nwait = '-1s'", []string{"protocols.native.wait"}},
		{"wait for nothing", "[protocols.native]\nwhen_full = 'soft'\nwait = '1s'", []string{"protocols.native.wait", "evict"}},
		{"wait for nothing said", "[protocols.native]\nwait = '1s'", []string{"protocols.native.wait", "evict"}},

		{"owner with a slash", "[owners.'a/b']\ntoken_file = '/t'", []string{"owners", `"a/b"`}},
		{"owner with a space", "[owners.'a b']\ntoken_file = '/t'", []string{"owners", `"a b"`}},
		{"operator", "[owners.operator]\ntoken_file = '/t'", []string{"owners.operator", "daemon's own token"}},
		{"no token file", "[owners.alice]", []string{"owners.alice.token_file"}},
		{"relative token file", "[owners.alice]\ntoken_file = 'alice'", []string{"owners.alice.token_file", "alice"}},
		{"shared token file", owner + "[owners.bob]\ntoken_file = '/t/../t/alice'", []string{"owners.bob.token_file", "alice"}},
		{"token file that the daemon makes", "state = '/t'\n[owners.alice]\ntoken_file = '/t/token'", []string{"owners.alice.token_file", "the daemon"}},
		{"negative max_live of an owner", owner + "max_live = -1", []string{"owners.alice.max_live"}},
		{"negative max_running", owner + "max_running = -1", []string{"owners.alice.max_running"}},
		{"relative mount", owner + "allow_mount = ['x']", []string{"owners.alice.allow_mount", `"x"`}},
		{"no profile at all", owner + "profiles = []", []string{"owners.alice.profiles"}},
		{"unknown profile of an owner", owner + "profiles = ['default', 'x']", []string{"owners.alice.profiles", `"x"`, "known ones"}},

		{"negative warm", "[warm]\nmax = -1", []string{"warm.max"}},
		{"no window", "[warm]\nwindow = '0s'", []string{"warm.window"}},
		{"no age", "[warm]\nmax_age = '0s'", []string{"warm.max_age"}},
		{"negative after", "[warm]\nafter = -1", []string{"warm.after"}},
		{"pin of nothing", "[warm]\npin = { x = 1 }", []string{"warm.pin", `"x"`, "known ones"}},
		{"pin of none", "[warm]\npin = { native = 0 }", []string{"warm.pin.native"}},
		{"too many pins", "[warm]\nmax = 2\npin = { default = 1, native = 2 }", []string{"warm.pin.native", "3", "warm.max"}},

		{"tiny audit", "[audit]\nmax_size = 10", []string{"audit.max_size"}},
		{"negative keep", "[audit]\nkeep = -1", []string{"audit.keep"}},
		{"endless keep", "[audit]\nkeep = 1000000000", []string{"audit.keep"}},
		{"no path", "[audit]\nfile = \"a\\n\"", []string{"audit.file"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := configured(t, c.file)
			if k := sandbox.KindOf(err); k != sandbox.Invalid {
				t.Fatalf("got %v of kind %q, want a refusal", err, k)
			}
			msg, hints := phrase(err)
			text := msg + "\n" + strings.Join(hints, "\n")
			for _, w := range c.want {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in\n%s", w, text)
				}
			}
			if strings.Contains(text, "e2b_secret") {
				t.Errorf("the token is in\n%s", text)
			}
		})
	}
}

// An owner's token file may be what a command takes its token from. A daemon
// does not take it for its own.
func TestDaemonRefusesAnOwnersToken(t *testing.T) {
	c, err := configured(t, "token_file = '/t/alice'\n[owners.alice]\ntoken_file = '/t/alice'")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.ownerTokens()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "owners.alice.token_file" {
		t.Errorf("got %v", err)
	}
}

// TestConfigurationPage: the example of docs/configuration.md is right, and the
// page has every key and every built-in profile.
func TestConfigurationPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	_, example, _ := strings.Cut(page, "```toml\n")
	example, rest, ok := strings.Cut(example, "```\n")
	if !ok {
		t.Fatal("there is no example")
	}
	c := mustConfigure(t, example)
	if len(c.Profiles) == 0 || len(c.Images) == 0 || len(c.Protocols) == 0 || len(c.Owners) == 0 || len(c.Warm.Pin) == 0 {
		t.Errorf("the example lacks a table: %+v", c)
	}

	// What a table is about stands below its heading.
	sections := strings.Split(rest, "\n## ")
	for _, at := range append([]table{{title: "Before the tables"}}, tables...) {
		title := at.title
		if title == "  .limits" {
			title = "[profiles.NAME]"
		}
		i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, title+"\n") })
		if i < 0 {
			t.Errorf("there is nothing about %s", title)
			continue
		}
		for _, key := range keys(reflect.TypeFor[Config](), at.path) {
			isTable := at.path == nil && slices.ContainsFunc(tables, func(t table) bool { return t.path[0] == key })
			if !isTable && !strings.Contains(sections[i], "`"+key+"`") {
				t.Errorf("%s: nothing is said about %s", title, key)
			}
		}
	}
	for _, p := range profile.Builtin() {
		if !strings.Contains(rest, "| `"+p.Name+"` |") {
			t.Errorf("nothing is said about the profile %s", p.Name)
		}
	}
}
