package profile

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/quick"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-run/atoll/sandbox"
)

// builtin returns a built-in profile.
func builtin(t testing.TB, name string) *Profile {
	t.Helper()
	set, err := NewSet()
	if err != nil {
		t.Fatal(err)
	}
	p, err := set.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const box = "rockchin/langbot-sandbox:latest"

// TestSpec: what a request leaves open is filled in, what is locked is forced,
// what is above a bound becomes it. The cases of the built-in profiles are
// those of LangBot's BoxService.
func TestSpec(t *testing.T) {
	mount := func(readOnly bool) []sandbox.Mount {
		return []sandbox.Mount{{Source: "/srv/a", Target: "/a", ReadOnly: readOnly}}
	}
	for _, c := range []struct {
		name       string
		p          Profile
		asked, got sandbox.Spec
	}{
		{
			"nothing asked for gets the default", *builtin(t, BoxDefault),
			sandbox.Spec{},
			sandbox.Spec{Image: box, Network: "off", ReadOnlyRoot: true, Limits: sandbox.Limits{CPU: 1, Memory: 512 << 20, PIDs: 128}},
		},
		{
			"what is asked for wins over the default", *builtin(t, BoxDefault),
			sandbox.Spec{Image: "python:3.12", Network: "on", Limits: sandbox.Limits{CPU: 4, Memory: 2048 << 20, PIDs: 1000, Workspace: 5 << 20}},
			sandbox.Spec{Image: "python:3.12", Network: "on", ReadOnlyRoot: true, Limits: sandbox.Limits{CPU: 4, Memory: 2048 << 20, PIDs: 1000, Workspace: 5 << 20}},
		},
		{
			"a zero that is meant wins over the default", *builtin(t, BoxDefault),
			sandbox.Spec{Explicit: []string{"read_only_root", "limits.memory", "limits.cpu", "limits.pids"}},
			sandbox.Spec{Explicit: []string{"read_only_root", "limits.memory", "limits.cpu", "limits.pids"}, Image: box, Network: "off"},
		},
		{
			"a lock forces network and a read-only root", *builtin(t, BoxOfflineReadonly),
			sandbox.Spec{Network: "on", Explicit: []string{"read_only_root"}, Mounts: mount(false)},
			sandbox.Spec{Network: "off", Explicit: []string{"read_only_root"}, ReadOnlyRoot: true, Mounts: mount(true), Image: box, Limits: sandbox.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 64}},
		},
		{
			"what is not locked is free", *builtin(t, BoxOfflineReadonly),
			sandbox.Spec{Image: "mine", Limits: sandbox.Limits{CPU: 8}},
			sandbox.Spec{Image: "mine", Network: "off", ReadOnlyRoot: true, Limits: sandbox.Limits{CPU: 8, Memory: 256 << 20, PIDs: 64}},
		},
		{
			"network_basic has the network", *builtin(t, BoxNetworkBasic),
			sandbox.Spec{},
			sandbox.Spec{Image: box, Network: "on", ReadOnlyRoot: true, Limits: sandbox.Limits{CPU: 1, Memory: 512 << 20, PIDs: 128}},
		},
		{
			"network_extended has a root that can be written", *builtin(t, BoxNetworkExtended),
			sandbox.Spec{},
			sandbox.Spec{Image: box, Network: "on", Limits: sandbox.Limits{CPU: 2, Memory: 1024 << 20, PIDs: 256}},
		},
		{
			"native leaves everything", *builtin(t, Native),
			sandbox.Spec{Backend: "memory", User: "me", Mounts: mount(false), Idle: -1},
			sandbox.Spec{Backend: "memory", User: "me", Mounts: mount(false), Idle: -1},
		},
		{
			"a lock without a value forces the zero value",
			Profile{Locked: []string{"backend", "image", "user", "workdir", "limits.disk", "limits.workspace", "idle", "read_only_root"}},
			sandbox.Spec{Backend: "b", Image: "i", User: "u", Workdir: "/w", Limits: sandbox.Limits{Disk: 1 << 30, Workspace: 1, Memory: 1 << 30}, Idle: time.Hour, ReadOnlyRoot: true},
			sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 30}},
		},
		{
			"limits of more and limits of none become the bound",
			Profile{MaxLimits: sandbox.Limits{Memory: 1 << 30, CPU: 2, PIDs: 100, Disk: 1 << 30, Workspace: 1 << 20}},
			sandbox.Spec{Limits: sandbox.Limits{Memory: 2 << 30, CPU: 1.5, PIDs: 100}, Explicit: []string{"limits.disk"}},
			sandbox.Spec{Limits: sandbox.Limits{Memory: 1 << 30, CPU: 1.5, PIDs: 100, Disk: 1 << 30, Workspace: 1 << 20}, Explicit: []string{"limits.disk"}},
		},
		{
			"a bound holds for a locked field without a value too",
			Profile{MaxLimits: sandbox.Limits{PIDs: 100}, Locked: []string{"limits.pids"}},
			sandbox.Spec{Limits: sandbox.Limits{PIDs: 7}},
			sandbox.Spec{Limits: sandbox.Limits{PIDs: 100}},
		},
		{
			"never idle becomes the bound", Profile{Idle: time.Minute, MaxIdle: time.Hour},
			sandbox.Spec{Idle: -1}, sandbox.Spec{Idle: time.Hour},
		},
		{
			"no idle time gets the default", Profile{Idle: time.Minute, MaxIdle: time.Hour},
			sandbox.Spec{}, sandbox.Spec{Idle: time.Minute},
		},
		{
			"never idle can be asked for", Profile{Idle: time.Minute},
			sandbox.Spec{Idle: -1}, sandbox.Spec{Idle: -1},
		},
		{
			"requirements are added", Profile{Require: []sandbox.Property{sandbox.Seccomp, sandbox.KillTree}},
			sandbox.Spec{Require: []sandbox.Property{sandbox.KillTree, sandbox.OwnIDs}},
			sandbox.Spec{Require: []sandbox.Property{sandbox.KillTree, sandbox.OwnIDs, sandbox.Seccomp}},
		},
		{
			"mounts that may only be read stay so", Profile{MountMode: MountRW, Locked: []string{"mount_mode"}},
			sandbox.Spec{Mounts: mount(true)}, sandbox.Spec{Mounts: mount(true)},
		},
		{
			"no mounts, without a word", Profile{MountMode: MountNone, Locked: []string{"mount_mode"}},
			sandbox.Spec{Mounts: mount(true)}, sandbox.Spec{},
		},
		{
			"no mounts, and none asked for", Profile{MountMode: MountNone},
			sandbox.Spec{}, sandbox.Spec{},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.p.Name == "" {
				c.p.Name = "p"
			}
			if err := c.p.Check(); err != nil {
				t.Fatal(err)
			}
			got, err := c.p.Spec(c.asked)
			if err != nil {
				t.Fatal(err)
			}
			c.got.Profile = c.p.Name
			if diff := cmp.Diff(c.got, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestSpecRefuses(t *testing.T) {
	mounts := []sandbox.Mount{{Source: "/a", Target: "/b"}}
	p := Profile{Name: "walled", MountMode: MountNone}
	for _, c := range []struct {
		spec  sandbox.Spec
		kind  sandbox.Kind
		field string
	}{
		{sandbox.Spec{Mounts: mounts}, sandbox.Denied, "mounts"},
		{sandbox.Spec{Limits: sandbox.Limits{Memory: 1}}, sandbox.Invalid, "limits.memory"},
		{sandbox.Spec{Explicit: []string{"image"}}, sandbox.Invalid, "explicit"},
	} {
		_, err := p.Spec(c.spec)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != c.kind || e.Field != c.field || e.Hint == "" {
			t.Errorf("got %v of kind %q, want %s about %s with a hint", err, sandbox.KindOf(err), c.kind, c.field)
		}
	}
}

// TestExpires: the life of a sandbox, in time that stands still.
func TestExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Round(0)
		at := func(d time.Duration) time.Time { return now.Add(d) }
		for _, c := range []struct {
			name        string
			p           Profile
			asked, want time.Time
			explicit    bool
		}{
			{"none and none", Profile{}, time.Time{}, time.Time{}, false},
			{"none gets the default", Profile{TTL: time.Hour}, time.Time{}, at(time.Hour), false},
			{"never, and meant", Profile{TTL: time.Hour}, time.Time{}, time.Time{}, true},
			{"its own", Profile{TTL: time.Hour}, at(3 * time.Hour), at(3 * time.Hour), false},
			{"too far off", Profile{TTL: time.Hour, MaxTTL: 2 * time.Hour}, at(3 * time.Hour), at(2 * time.Hour), false},
			{"near enough", Profile{TTL: time.Hour, MaxTTL: 2 * time.Hour}, at(time.Minute), at(time.Minute), false},
			{"never is too far off", Profile{MaxTTL: 2 * time.Hour}, time.Time{}, at(2 * time.Hour), true},
			{"locked", Profile{TTL: time.Hour, Locked: []string{"ttl"}}, at(time.Minute), at(time.Hour), true},
			{"locked to never", Profile{Locked: []string{"ttl"}}, at(time.Minute), time.Time{}, false},
		} {
			s := sandbox.Spec{Expires: c.asked}
			if c.explicit {
				s.Explicit = []string{"expires"}
			}
			got, err := c.p.Spec(s)
			if err != nil || got.Expires != c.want { // == compares monotonic clocks as well: there is none
				t.Errorf("%s: got %v, %v, want %v", c.name, got.Expires, err, c.want)
			}
		}
	})
}

// TestExpiresByTheWallClock: what is written down and read again is equal, so a
// monotonic clock must not be in it.
func TestExpiresByTheWallClock(t *testing.T) {
	for _, p := range []Profile{{TTL: time.Hour}, {MaxTTL: time.Hour}} {
		got, err := p.Spec(sandbox.Spec{})
		if err != nil || got.Expires.IsZero() || got.Expires != got.Expires.Round(0) {
			t.Errorf("got %v, %v", got.Expires, err)
		}
	}
}

// TestChange: a change is no way round the bounds of a profile.
func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Round(0)
		bounded := Profile{Idle: time.Minute, MaxIdle: time.Hour, MaxTTL: 2 * time.Hour}
		locked := bounded
		locked.Locked = []string{"idle", "ttl"}
		labels := map[string]string{"a": "b"}
		for _, c := range []struct {
			p           Profile
			asked, want sandbox.Change
		}{
			{Profile{}, sandbox.Change{Expires: new(time.Time{}), Idle: new(time.Duration(-1))}, sandbox.Change{Expires: new(time.Time{}), Idle: new(time.Duration(-1))}},
			{bounded, sandbox.Change{}, sandbox.Change{}},
			{bounded, sandbox.Change{Expires: new(time.Time{}), Idle: new(time.Duration(-1))}, sandbox.Change{Expires: new(now.Add(2 * time.Hour)), Idle: new(time.Hour)}},
			{bounded, sandbox.Change{Expires: new(now.Add(3 * time.Hour)), Idle: new(2 * time.Hour)}, sandbox.Change{Expires: new(now.Add(2 * time.Hour)), Idle: new(time.Hour)}},
			{bounded, sandbox.Change{Expires: new(now.Add(time.Minute)), Idle: new(time.Second)}, sandbox.Change{Expires: new(now.Add(time.Minute)), Idle: new(time.Second)}},
			{bounded, sandbox.Change{Idle: new(time.Duration(0))}, sandbox.Change{Idle: new(time.Minute)}},
			{locked, sandbox.Change{Expires: new(now.Add(time.Minute)), Idle: new(time.Second), Labels: labels}, sandbox.Change{Labels: labels}},
		} {
			before := c.asked
			var end time.Time
			if before.Expires != nil {
				end = *before.Expires
			}
			if diff := cmp.Diff(c.want, c.p.Change(c.asked)); diff != "" {
				t.Errorf("%+v -want +got:\n%s", c.p, diff)
			}
			if before.Expires != nil && *before.Expires != end {
				t.Error("Change wrote to what it was given")
			}
		}
	})
}

func TestCmd(t *testing.T) {
	limited := *builtin(t, BoxDefault)
	locked := limited
	locked.Locked = []string{"timeout", "user"}
	open := Profile{MaxTimeout: time.Minute}
	for _, c := range []struct {
		p           Profile
		asked, want time.Duration
	}{
		{limited, 0, 30 * time.Second},
		{limited, time.Second, time.Second},
		{limited, 120 * time.Second, 120 * time.Second},
		{limited, 500 * time.Second, 120 * time.Second},
		{*builtin(t, BoxOfflineReadonly), 500 * time.Second, 60 * time.Second},
		{*builtin(t, BoxNetworkExtended), 500 * time.Second, 300 * time.Second},
		{*builtin(t, Native), 500 * time.Hour, 500 * time.Hour},
		{*builtin(t, Native), 0, 0},
		{locked, time.Second, 30 * time.Second},
		{open, 0, time.Minute},
		{limited, -1, -1},
		{locked, -1, -1},
	} {
		cmd := sandbox.Cmd{Args: []string{"true"}, User: "root", Timeout: c.asked}
		if got := c.p.Cmd(cmd).Timeout; got != c.want {
			t.Errorf("%s, locked %v: a timeout of %v becomes %v, want %v", c.p.Name, c.p.Locked, c.asked, got, c.want)
		}
		if got := c.p.DetachedCmd(cmd).Timeout; got != c.asked {
			t.Errorf("%s: detached, a timeout of %v becomes %v", c.p.Name, c.asked, got)
		}
		want := "root"
		if c.p.Locks("user") {
			want = ""
		}
		if c.p.Cmd(cmd).User != want || c.p.DetachedCmd(cmd).User != want {
			t.Errorf("locked %v: users are %q and %q, want %q", c.p.Locked, c.p.Cmd(cmd).User, c.p.DetachedCmd(cmd).User, want)
		}
	}
}

func TestDetach(t *testing.T) {
	for _, c := range []struct{ most, asked, want int }{
		{0, 0, 1 << 20},
		{0, 100, 100},
		{0, 8 << 20, 1 << 20},
		{4096, 0, 4096},
		{4096, 1 << 20, 4096},
		{RingLimit, 0, 1 << 20},
		{RingLimit, RingLimit, RingLimit},
		{4096, RingLimit + 1, RingLimit + 1}, // no backend takes it, and says so
		{4096, -1, -1},
	} {
		p := Profile{MaxRing: c.most}
		got := p.Detach(sandbox.DetachOptions{Stdin: true, Ring: c.asked, Name: "n"})
		if want := (sandbox.DetachOptions{Stdin: true, Ring: c.want, Name: "n"}); got != want {
			t.Errorf("at most %d: %d becomes %+v, want %d", c.most, c.asked, got, c.want)
		}
	}
}

// A trial is a profile that Check finds nothing wrong with, and a Spec.
type trial struct {
	p Profile
	s sandbox.Spec
}

// noon is when trials take place.
var noon = time.Now().Add(time.Hour).Round(0)

// newTrial makes a trial of random numbers: whatever is asked for, most fields
// of both are empty in some trials.
func newTrial(r *rand.Rand) trial {
	maybe := func(n int64) int64 { return n * r.Int64N(2) }
	text := func(some ...string) string { return append(some, "", "")[r.IntN(len(some)+2)] }
	limits := func(most sandbox.Limits) sandbox.Limits {
		up := func(n, bound int64) int64 {
			if bound > 0 {
				n = min(n, bound)
			}
			return maybe(n)
		}
		return sandbox.Limits{
			Memory:    up(4<<20+r.Int64N(1<<32), most.Memory),
			CPU:       float64(up(1+r.Int64N(64), int64(most.CPU))),
			PIDs:      int(up(1+r.Int64N(1000), int64(most.PIDs))),
			Disk:      up(1<<20+r.Int64N(1<<40), most.Disk),
			Workspace: up(1+r.Int64N(1<<40), most.Workspace),
		}
	}
	span := func(most time.Duration) time.Duration {
		d := time.Duration(1 + r.Int64N(int64(time.Hour)))
		if most > 0 {
			d = min(d, most)
		}
		return time.Duration(maybe(int64(d)))
	}
	some := func(all []string) []string {
		var chosen []string
		for _, s := range all {
			if r.IntN(3) == 0 {
				chosen = append(chosen, s)
			}
		}
		return chosen
	}

	p := Profile{Name: "trial", Backend: text("a"), Image: text("b"), Network: sandbox.Network(text("on", "off")), User: text("u"), Workdir: text("/w"),
		ReadOnlyRoot: r.IntN(2) == 0, MountMode: MountMode(text("rw", "ro", "none")), Locked: some(lockable)}
	p.MaxLimits = limits(sandbox.Limits{})
	p.Limits = limits(p.MaxLimits)
	p.MaxIdle, p.MaxTTL, p.MaxTimeout = span(0), span(0), span(0)
	p.Idle, p.TTL, p.Timeout = span(p.MaxIdle), span(p.MaxTTL), span(p.MaxTimeout)
	for _, f := range some([]string{"seccomp", "own-ids"}) {
		p.Require = append(p.Require, sandbox.Property(f))
	}

	s := sandbox.Spec{Backend: text("c"), Image: text("d"), Network: sandbox.Network(text("on", "off")), User: text("v"), Workdir: text("/x"),
		ReadOnlyRoot: r.IntN(2) == 0, Limits: limits(sandbox.Limits{}), Idle: span(0) * time.Duration(1-2*r.IntN(2)),
		Explicit: some([]string{"read_only_root", "limits.memory", "limits.cpu", "limits.pids", "limits.disk", "limits.workspace", "expires"}),
		Env:      map[string]string{"K": "V"}, Labels: map[string]string{"l": "m"}, Name: text("n")}
	if d := span(0); d > 0 {
		s.Expires = noon.Add(d)
	}
	for _, f := range some([]string{"/a", "/b"}) {
		s.Mounts = append(s.Mounts, sandbox.Mount{Source: f, Target: f, ReadOnly: r.IntN(2) == 0})
		s.Require = append(s.Require, sandbox.KillTree)
	}
	return trial{p, s}
}

// holds tries what must hold of every profile and every Spec.
func (c trial) holds(t *testing.T) {
	t.Helper()
	p := &c.p
	if err := p.Check(); err != nil {
		t.Fatalf("%+v: %v", c.p, err)
	}
	before := deep(c.s)
	got, err := p.specAt(c.s, noon)
	if diff := cmp.Diff(before, c.s); diff != "" {
		t.Fatalf("the request changed:\n%s", diff)
	}
	if err != nil {
		if sandbox.KindOf(err) != sandbox.Denied || p.MountMode != MountNone || len(c.s.Mounts) == 0 {
			t.Fatalf("%+v: %v", c, err)
		}
		return
	}

	for _, b := range []struct {
		field        string
		n, most, own float64
		asked        float64
	}{
		{"limits.memory", float64(got.Limits.Memory), float64(p.MaxLimits.Memory), float64(p.Limits.Memory), float64(c.s.Limits.Memory)},
		{"limits.cpu", got.Limits.CPU, p.MaxLimits.CPU, p.Limits.CPU, c.s.Limits.CPU},
		{"limits.pids", float64(got.Limits.PIDs), float64(p.MaxLimits.PIDs), float64(p.Limits.PIDs), float64(c.s.Limits.PIDs)},
		{"limits.disk", float64(got.Limits.Disk), float64(p.MaxLimits.Disk), float64(p.Limits.Disk), float64(c.s.Limits.Disk)},
		{"limits.workspace", float64(got.Limits.Workspace), float64(p.MaxLimits.Workspace), float64(p.Limits.Workspace), float64(c.s.Limits.Workspace)},
		{"idle", float64(got.Idle), float64(p.MaxIdle), float64(p.Idle), float64(c.s.Idle)},
	} {
		if b.most > 0 && (b.n <= 0 || b.n > b.most) {
			t.Errorf("%s is %v, at most %v", b.field, b.n, b.most)
		}
		if p.Locks(b.field) && b.own > 0 && b.n != b.own {
			t.Errorf("%s is %v, locked to %v", b.field, b.n, b.own)
		}
		if !p.Locks(b.field) && b.asked > 0 && (b.most == 0 || b.asked <= b.most) && b.n != b.asked {
			t.Errorf("%s is %v, asked for %v", b.field, b.n, b.asked)
		}
	}
	if last := noon.Add(p.MaxTTL); p.MaxTTL > 0 && (got.Expires.IsZero() || got.Expires.After(last)) {
		t.Errorf("it ends at %v, at the latest %v", got.Expires, last)
	}
	for _, f := range []struct{ field, got, own string }{
		{"backend", got.Backend, p.Backend}, {"image", got.Image, p.Image}, {"network", string(got.Network), string(p.Network)},
		{"user", got.User, p.User}, {"workdir", got.Workdir, p.Workdir},
	} {
		if p.Locks(f.field) && f.got != f.own {
			t.Errorf("%s is %q, locked to %q", f.field, f.got, f.own)
		}
	}
	if p.Locks("read_only_root") && got.ReadOnlyRoot != p.ReadOnlyRoot {
		t.Error("the lock on a read-only root did not hold")
	}
	for _, m := range got.Mounts {
		if p.MountMode == MountNone || p.MountMode == MountRO && !m.ReadOnly {
			t.Errorf("there is the mount %+v in mode %q", m, p.MountMode)
		}
	}
	for _, r := range slices.Concat(p.Require, c.s.Require) {
		if !slices.Contains(got.Require, r) {
			t.Errorf("%s is not required any more", r)
		}
	}
	if got.Name != c.s.Name || got.Profile != p.Name {
		t.Errorf("it is called %q, of the profile %q", got.Name, got.Profile)
	}

	again, err := p.specAt(got, noon)
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("applied again, %v:\n%s", err, diff)
	}
	scribble(got)
	if diff := cmp.Diff(before, c.s); diff != "" {
		t.Errorf("the request shares with what it became:\n%s", diff)
	}

	cmd := sandbox.Cmd{Timeout: c.s.Idle}
	if run := p.Cmd(cmd).Timeout; p.MaxTimeout > 0 && cmd.Timeout >= 0 && (run <= 0 || run > p.MaxTimeout) {
		t.Errorf("a timeout of %v becomes %v, at most %v", cmd.Timeout, run, p.MaxTimeout)
	}
}

// deep returns a copy of s that shares nothing with it.
func deep(s sandbox.Spec) sandbox.Spec {
	c := s
	c.Env, c.Labels = map[string]string{}, map[string]string{}
	for k, v := range s.Env {
		c.Env[k] = v
	}
	for k, v := range s.Labels {
		c.Labels[k] = v
	}
	c.Mounts = append([]sandbox.Mount(nil), s.Mounts...)
	c.Require = append([]sandbox.Property(nil), s.Require...)
	c.Explicit = append([]string(nil), s.Explicit...)
	return c
}

// scribble changes all that s points to.
func scribble(s sandbox.Spec) {
	s.Env["K"], s.Labels["l"] = "scribbled", "scribbled"
	for i := range s.Mounts {
		s.Mounts[i].Target = "scribbled"
	}
	for i := range s.Require {
		s.Require[i] = "scribbled"
	}
	for i := range s.Explicit {
		s.Explicit[i] = "scribbled"
	}
}

// TestSpecHolds tries some thousand random profiles and requests.
func TestSpecHolds(t *testing.T) {
	err := quick.Check(func(seed uint64) bool {
		newTrial(rand.New(rand.NewPCG(seed, 0))).holds(t)
		return !t.Failed()
	}, &quick.Config{MaxCount: 5000})
	if err != nil {
		t.Error(err)
	}
}

// FuzzSpec tries the same with numbers that the fuzzer chooses, which may be
// ones that are no limits at all.
func FuzzSpec(f *testing.F) {
	f.Add(uint64(1), int64(1<<30), 1.5, 10, int64(0), int64(time.Minute), int64(time.Hour))
	f.Add(uint64(2), int64(-1), -1.0, -1, int64(-1), int64(-1), int64(-1))
	f.Add(uint64(3), int64(1)<<62, 1e300, 1<<22, int64(1)<<62, int64(1)<<62, int64(1)<<62)
	f.Fuzz(func(t *testing.T, seed uint64, memory int64, cpu float64, pids int, disk, idle, ttl int64) {
		c := newTrial(rand.New(rand.NewPCG(seed, 0)))
		c.s.Limits = sandbox.Limits{Memory: memory, CPU: cpu, PIDs: pids, Disk: disk, Workspace: disk}
		c.s.Idle = time.Duration(idle)
		if ttl != 0 {
			c.s.Expires = noon.Add(time.Duration(ttl))
		}
		if err := c.s.Check(); err != nil {
			if _, got := c.p.specAt(c.s, noon); got == nil || got.Error() != err.Error() {
				t.Errorf("got %v, want %v", got, err)
			}
			return
		}
		c.holds(t)
	})
}
