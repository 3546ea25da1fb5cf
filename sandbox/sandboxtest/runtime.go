package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

var runtimeClaims = []claim{
	{name: "CreateIsReady", says: "Create returns a new sandbox that is ready to run commands.", check: func(t *T) {
		sb := t.create(nil)
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"echo", "ready"}}); string(r.Stdout) != "ready\n" || !r.Success() {
			t.errorf("echo printed %q and ended with %+v", r.Stdout, r.Exit)
		}
	}},
	{name: "CreateContextIsNotTheLife", says: "ctx bounds the making, not the sandbox's life.", check: func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		sb, err := t.rt.Create(ctx, t.Spec)
		cancel()
		t.ok("Create", err)
		t.after(func() { sb.Remove(context.WithoutCancel(t.ctx)) })
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"true"}}); !r.Success() {
			t.errorf("true ended with %+v", r.Exit)
		}
		if _, err := t.rt.Open(t.ctx, sb.ID()); err != nil {
			t.errorf("Open after the context ended: %v", err)
		}
	}},
	{name: "IDsAreUnique", says: "An ID is 8 to 40 characters of a-z and 0-9, unique.", check: func(t *T) {
		a, b := t.create(nil), t.create(nil)
		if a.ID() == b.ID() || a.ID() == t.sb.ID() {
			t.errorf("two sandboxes have the id %s", a.ID())
		}
		for _, sb := range []sandbox.Sandbox{a, b} {
			if !sb.ID().Valid() {
				t.errorf("the id %q is not well formed", sb.ID())
			}
			if i, err := sb.Info(t.ctx); err != nil || i.ID != sb.ID() {
				t.errorf("Info: id %s, %v, want %s", i.ID, err, sb.ID())
			}
		}
	}},
	{name: "OpenFindsWhatLives", says: "Open returns the live sandbox with the given id.", check: func(t *T) {
		t.write(t.dir()+"/f", "seen")
		sb, err := t.rt.Open(t.ctx, t.sb.ID())
		t.ok("Open", err)
		if sb.ID() != t.sb.ID() {
			t.errorf("Open returned %s, want %s", sb.ID(), t.sb.ID())
		}
		if b, err := sandbox.ReadFile(t.ctx, sb, t.dir()+"/f", 100); err != nil || string(b) != "seen" {
			t.errorf("a file through the opened sandbox: %q, %v", b, err)
		}
	}},
	{name: "OpenOfNothingIsNotExist", says: "Open of an unknown id, or of one that is not well formed, is NotExist.", check: func(t *T) {
		for _, id := range []sandbox.ID{"nosuchsandbox0000000", "", "short", "UPPERCASE12345", "../../etc/passwd", "a/b/c/d/e/f/g", "with space 12", "\x00\x00\x00\x00\x00\x00\x00\x00", sandbox.ID(strings.Repeat("a", 4000))} {
			_, err := t.rt.Open(t.ctx, id)
			t.kind("Open of "+string(id[:min(len(id), 40)]), err, "", sandbox.NotExist)
		}
	}},
	{name: "ListYieldsWhatLives", says: "List yields the live sandboxes.", check: func(t *T) {
		a, b := t.create(nil), t.create(nil)
		ids := t.ids()
		for _, sb := range []sandbox.Sandbox{a, b, t.sb} {
			if !slices.Contains(ids, sb.ID()) {
				t.errorf("List lacks %s", sb.ID())
			}
		}
		if n := len(slices.Compact(slices.Clone(ids))); n != len(ids) {
			t.errorf("List yields one twice: %v", ids)
		}
		t.ok("Remove", a.Remove(t.ctx))
		if slices.Contains(t.ids(), a.ID()) {
			t.errorf("List yields what was removed")
		}
	}},
	{name: "ListCanBeLeft", says: "List is an iterator, which its reader may leave.", check: func(t *T) {
		t.create(nil)
		n := 0
		for _, err := range t.rt.List(t.ctx) {
			t.ok("List", err)
			n++
			break
		}
		if n != 1 {
			t.errorf("the loop ran %d times", n)
		}
	}},
	{name: "ListOfEndedContextYieldsItsError", says: "List stops at the first error, which it yields.", check: func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		var got []error
		for _, err := range t.rt.List(ctx) {
			got = append(got, err)
			if len(got) > 10 {
				break
			}
		}
		if len(got) == 0 || got[len(got)-1] == nil {
			t.errorf("List with an ended context yielded %v, want an error at the end", got)
		}
	}},
	{name: "InfoIsTrue", says: "Info returns what is true of the sandbox now.", check: func(t *T) {
		start := time.Now()
		sb := t.create(func(s *sandbox.Spec) { s.Labels = map[string]string{"a": "1", "long key.with/all": "välue\n"} })
		i, err := sb.Info(t.ctx)
		t.ok("Info", err)
		if i.State != sandbox.Running {
			t.errorf("State is %q", i.State)
		}
		for name, v := range map[string]string{"Backend": i.Backend, "Image": i.Image, "User": i.User, "Workdir": i.Workdir, "Network": string(i.Network)} {
			if v == "" {
				t.errorf("%s is empty", name)
			}
		}
		if i.Wanted != t.Spec.Image {
			t.errorf("Wanted is %q, want %q", i.Wanted, t.Spec.Image)
		}
		if i.Network != sandbox.NetworkOff && t.Spec.Network == "" {
			t.errorf("Network is %q, want off by default", i.Network)
		}
		if i.Labels["a"] != "1" || i.Labels["long key.with/all"] != "välue\n" || len(i.Labels) < 2 {
			t.errorf("Labels are %q", i.Labels)
		}
		if d := i.Created.Sub(start); d < -time.Hour || d > time.Hour {
			t.errorf("Created is %v, made after %v", i.Created, start)
		}
		if !i.Expires.IsZero() {
			t.errorf("Expires is %v, want none", i.Expires)
		}
		if !slices.IsSorted(i.Isolation.Has) {
			t.errorf("Isolation.Has is not sorted: %v", i.Isolation.Has)
		}
		for _, p := range i.Isolation.Has {
			if !p.Known() {
				t.errorf("Isolation.Has has %q", p)
			}
		}
		for _, g := range i.Isolation.Missing {
			if !g.Property.Known() || g.Why == "" || i.Isolation.Holds(g.Property) {
				t.errorf("Isolation.Missing has %+v", g)
			}
		}
		for l, err := range t.rt.List(t.ctx) {
			t.ok("List", err)
			if l.ID == sb.ID() && (l.Labels["a"] != "1" || l.Backend != i.Backend || l.State != i.State || !l.Created.Equal(i.Created)) {
				t.errorf("List says %+v, Info %+v", l, i)
			}
		}
		if i.User != "" && i.Workdir != "" {
			if r := t.capture(sb, sandbox.Cmd{Args: []string{"pwd"}}); string(r.Stdout) != i.Workdir+"\n" {
				t.errorf("pwd printed %q, Workdir is %q", r.Stdout, i.Workdir)
			}
		}
	}},
	{name: "ExpiresIsShown", says: "Expires is when the sandbox is removed; it stands in Info.", check: func(t *T) {
		want := time.Now().Add(time.Hour)
		sb := t.create(func(s *sandbox.Spec) { s.Expires = want })
		i, err := sb.Info(t.ctx)
		t.ok("Info", err)
		if d := i.Expires.Sub(want); d < -2*time.Second || d > 2*time.Second {
			t.errorf("Expires is %v, want %v", i.Expires, want)
		}
	}},
	{name: "ExpiredIsRemoved", says: "Expires is when the sandbox is removed.", check: func(t *T) {
		spec := t.Spec
		spec.Expires = time.Now().Add(2 * time.Second)
		sb, err := t.rt.Create(t.ctx, spec)
		t.ok("Create", err)
		t.until("Open to say NotExist", func() bool {
			_, err := t.rt.Open(t.ctx, sb.ID())
			if err != nil && !errors.Is(err, sandbox.NotExist) {
				t.fatalf("Open: %v", err)
			}
			return err != nil
		})
		if now := time.Now(); now.Before(spec.Expires) {
			t.errorf("it was gone at %v, before %v", now, spec.Expires)
		}
		if slices.Contains(t.ids(), sb.ID()) {
			t.errorf("List yields what has expired")
		}
		_, err = sb.Info(t.ctx)
		t.kind("Info", err, "", sandbox.NotExist)
	}},
	{name: "LimitsAreReported", says: "Info.Limits is what was asked for; Info.Kept says of each limit how it is kept.", check: func(t *T) {
		want := sandbox.Limits{Memory: 256 << 20, CPU: 1.5, PIDs: 200, Disk: 256 << 20}
		sb := t.create(func(s *sandbox.Spec) { s.Limits = want })
		i, err := sb.Info(t.ctx)
		t.ok("Info", err)
		if i.Limits != want {
			t.errorf("Limits are %+v, want %+v", i.Limits, want)
		}
		for name, p := range map[string]sandbox.Property{"memory": sandbox.LimitMemory, "cpu": sandbox.LimitCPU, "pids": sandbox.LimitPIDs, "disk": sandbox.LimitDisk} {
			how, told := i.Kept[name]
			if !told {
				t.errorf("Kept does not mention %s", name)
			}
			if (how != "") != i.Isolation.Holds(p) {
				t.errorf("%s is kept by %q, but %s holds: %v", name, how, p, i.Isolation.Holds(p))
			}
		}
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"echo", "within"}}); string(r.Stdout) != "within\n" {
			t.errorf("echo printed %q", r.Stdout)
		}
	}},
	{name: "NoLimitIsNoLimit", says: "Zero means no limit: nothing is kept that was not asked for.", check: func(t *T) {
		i, err := t.create(nil).Info(t.ctx)
		t.ok("Info", err)
		if t.Spec.Limits == (sandbox.Limits{}) && len(i.Kept) > 0 {
			t.errorf("Kept is %v", i.Kept)
		}
	}},
	{name: "RequiredIsGivenOrRefused", says: "Require lists what the sandbox must have. If one cannot be given, Create fails with Unsupported and Field \"require\".", check: func(t *T) {
		i, err := t.sb.Info(t.ctx)
		t.ok("Info", err)
		sb := t.create(func(s *sandbox.Spec) { s.Require = slices.Clone(i.Isolation.Has) })
		j, err := sb.Info(t.ctx)
		t.ok("Info", err)
		for _, p := range i.Isolation.Has {
			if !j.Isolation.Holds(p) {
				t.errorf("%s was required and does not hold", p)
			}
		}
		for _, p := range sandbox.Properties() {
			if i.Isolation.Holds(p) {
				continue
			}
			spec := t.Spec
			spec.Require = []sandbox.Property{p}
			switch p { // a limit that is not there cannot be kept
			case sandbox.LimitMemory:
				spec.Limits.Memory = 256 << 20
			case sandbox.LimitCPU:
				spec.Limits.CPU = 2
			case sandbox.LimitPIDs:
				spec.Limits.PIDs = 200
			case sandbox.LimitDisk:
				spec.Limits.Disk = 256 << 20
			}
			sb, err := t.rt.Create(t.ctx, spec)
			if err != nil {
				t.kind("Create that requires "+string(p), err, "require", sandbox.Unsupported)
				continue
			}
			k, err := sb.Info(t.ctx)
			if err == nil && !k.Isolation.Holds(p) {
				t.errorf("Create gave a sandbox without %s, which was required", p)
			}
			t.ok("Remove", errors.Join(err, sb.Remove(t.ctx)))
		}
	}},
	{name: "InvalidSpecsNameTheirField", says: "A Spec that nobody could keep is Invalid, names the field, and leaves nothing.", check: func(t *T) {
		before := t.ids()
		for _, c := range []struct {
			field string
			spec  func(*sandbox.Spec)
		}{
			{"image", func(s *sandbox.Spec) { s.Image = "a\x00b" }},
			{"env", func(s *sandbox.Spec) { s.Env = map[string]string{"": "x"} }},
			{"env", func(s *sandbox.Spec) { s.Env = map[string]string{"A=B": "x"} }},
			{"env", func(s *sandbox.Spec) { s.Env = map[string]string{"A": "x\x00"} }},
			{"workdir", func(s *sandbox.Spec) { s.Workdir = "relative" }},
			{"workdir", func(s *sandbox.Spec) { s.Workdir = "/nul\x00" }},
			{"workdir", func(s *sandbox.Spec) { s.Workdir = "/" + strings.Repeat("long/", 1000) }},
			{"user", func(s *sandbox.Spec) { s.User = ":group" }},
			{"user", func(s *sandbox.Spec) { s.User = "-rf" }},
			{"limits.memory", func(s *sandbox.Spec) { s.Limits.Memory = -1 }},
			{"limits.memory", func(s *sandbox.Spec) { s.Limits.Memory = 1 }},
			{"limits.cpu", func(s *sandbox.Spec) { s.Limits.CPU = -0.5 }},
			{"limits.cpu", func(s *sandbox.Spec) { s.Limits.CPU = 0.001 }},
			{"limits.pids", func(s *sandbox.Spec) { s.Limits.PIDs = -1 }},
			{"limits.disk", func(s *sandbox.Spec) { s.Limits.Disk = -1 }},
			{"limits.disk", func(s *sandbox.Spec) { s.Limits.Disk = 1000 }},
			{"mounts.source", func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "relative", Target: "/mnt"}} }},
			{"mounts.target", func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/tmp", Target: ""}} }},
			{"mounts.target", func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/tmp", Target: "/"}} }},
			{"mounts.target", func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/tmp", Target: "/x/../proc/self"}} }},
			{"mounts.target", func(s *sandbox.Spec) {
				s.Mounts = []sandbox.Mount{{Source: "/tmp", Target: "/mnt"}, {Source: "/usr", Target: "/mnt/"}}
			}},
			{"network", func(s *sandbox.Spec) { s.Network = "host" }},
			{"require", func(s *sandbox.Spec) { s.Require = []sandbox.Property{"invincible"} }},
			{"labels", func(s *sandbox.Spec) { s.Labels = map[string]string{"": "x"} }},
			{"labels", func(s *sandbox.Spec) { s.Labels = map[string]string{strings.Repeat("k", 129): "x"} }},
			{"labels", func(s *sandbox.Spec) { s.Labels = map[string]string{"k": strings.Repeat("v", 4097)} }},
			{"expires", func(s *sandbox.Spec) { s.Expires = time.Now().Add(-time.Hour) }},
		} {
			spec := t.Spec
			c.spec(&spec)
			sb, err := t.rt.Create(t.ctx, spec)
			t.kind("Create with a bad "+c.field, err, c.field, sandbox.Invalid)
			if err == nil {
				sb.Remove(t.ctx)
			}
		}
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
	}},
	{name: "PolicyIsKeptOrRefused", says: "ID, Name, Profile, Idle, Explicit, Limits.Workspace and Mount.Extra are policy: a Keeper acts on them, what makes sandboxes and nothing more refuses them with Unsupported.", check: func(t *T) {
		before := t.ids()
		id, name := sandbox.NewID(), t.name("policy")
		for _, c := range []struct {
			field string
			spec  func(*sandbox.Spec)
			kept  func(sandbox.Info) bool
		}{
			{"id", func(s *sandbox.Spec) { s.ID = id }, func(i sandbox.Info) bool { return i.ID == id }},
			{"name", func(s *sandbox.Spec) { s.Name = name }, func(i sandbox.Info) bool { return slices.Contains(i.Names, name) }},
			{"profile", func(s *sandbox.Spec) { s.Profile = "no-such-profile" }, func(sandbox.Info) bool { return false }},
			{"explicit", func(s *sandbox.Spec) { s.Explicit = []string{"limits.memory"} }, func(i sandbox.Info) bool { return i.Owner != "" }},
			{"idle", func(s *sandbox.Spec) { s.Idle = time.Hour }, func(i sandbox.Info) bool { return i.Idle == time.Hour }},
			{"limits.workspace", func(s *sandbox.Spec) { s.Limits.Workspace = 1 << 30 }, func(i sandbox.Info) bool { return i.Limits.Workspace == 1<<30 }},
			{"mounts.extra", func(s *sandbox.Spec) {
				s.Mounts = []sandbox.Mount{{Source: "/no/such/folder", Target: "/mnt/extra", Extra: true}}
			}, func(i sandbox.Info) bool { return len(i.Mounts) == 1 && i.Mounts[0].Extra }},
		} {
			spec := t.Spec
			c.spec(&spec)
			sb, err := t.rt.Create(t.ctx, spec)
			switch {
			case err == nil:
				i, err := sb.Info(t.ctx)
				if t.ok("Info", err); !c.kept(i) {
					t.errorf("%s was neither refused nor kept: %+v", c.field, i)
				}
				t.ok("Remove", sb.Remove(t.ctx))
			case c.field == "profile" && errors.Is(err, sandbox.NotExist), c.field == "mounts.extra" && !errors.Is(err, sandbox.Unsupported):
				// a Keeper has no such profile, or goes on to the folder
			default:
				t.kind("Create with "+c.field, err, c.field, sandbox.Unsupported)
			}
		}
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
	}},
	{name: "UnknownBackendIsRefused", says: "Backend names what makes the sandbox; one that a Runtime has not is NotExist with Field \"backend\".", check: func(t *T) {
		before := t.ids()
		spec := t.Spec
		spec.Backend = "no-such-backend-anywhere"
		sb, err := t.rt.Create(t.ctx, spec)
		t.kind("Create of another backend", err, "backend", sandbox.NotExist)
		if err == nil {
			sb.Remove(t.ctx)
		}
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
		i, err := t.create(nil).Info(t.ctx)
		t.ok("Info", err)
		named, err := t.create(func(s *sandbox.Spec) { s.Backend = i.Backend }).Info(t.ctx)
		if t.ok("Info", err); named.Backend != i.Backend {
			t.errorf("asked for %s got %s", i.Backend, named.Backend)
		}
	}},
	{name: "UnknownImageIsRefused", says: "An image that is not there is NotExist with Field \"image\"; one of a form that the backend does not know is Unsupported or Invalid; one that may not be used is Denied.", check: func(t *T) {
		before := t.ids()
		for _, image := range []string{"no-such-image-anywhere", "dir:/no/such/directory", "dir:relative", "no such scheme:x"} {
			spec := t.Spec
			spec.Image = image
			sb, err := t.rt.Create(t.ctx, spec)
			t.kind("Create of "+image, err, "image", sandbox.NotExist, sandbox.Unsupported, sandbox.Invalid, sandbox.Denied)
			if err == nil {
				sb.Remove(t.ctx)
			}
		}
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
	}},
	{name: "NetworkIsGivenOrRefused", says: "A Spec that cannot be kept is refused.", check: func(t *T) {
		spec := t.Spec
		spec.Network = sandbox.NetworkOn
		sb, err := t.rt.Create(t.ctx, spec)
		if err != nil {
			t.kind("Create with the network on", err, "network", sandbox.Unsupported, sandbox.Denied)
			return
		}
		t.after(func() { sb.Remove(context.WithoutCancel(t.ctx)) })
		i, err := sb.Info(t.ctx)
		if t.ok("Info", err); i.Network != sandbox.NetworkOn {
			t.errorf("Network is %q, want on", i.Network)
		}
	}},
	{name: "FailedCreateLeavesNothing", says: "If Create fails it leaves nothing behind.", check: func(t *T) {
		before := t.ids()
		for _, change := range []func(*sandbox.Spec){
			func(s *sandbox.Spec) { s.Image = "no-such-image-anywhere" },
			func(s *sandbox.Spec) { s.User = "no-such-user-anywhere" },
			func(s *sandbox.Spec) { s.Workdir = "/etc/passwd/below-a-file" },
			func(s *sandbox.Spec) { s.Require = []sandbox.Property{"invincible"} },
		} {
			spec := t.Spec
			change(&spec)
			if sb, err := t.rt.Create(t.ctx, spec); err == nil {
				// Some of these are found out only by Start.
				t.ok("Remove", sb.Remove(t.ctx))
			}
			if after := t.ids(); !slices.Equal(before, after) {
				t.errorf("the sandboxes were %v, are %v", before, after)
			}
		}
	}},
	{name: "CancelledCreateLeavesNothing", says: "If ctx ends first, Create leaves nothing behind.", check: func(t *T) {
		before := t.ids()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		if sb, err := t.rt.Create(ctx, t.Spec); err == nil {
			t.errorf("Create with an ended context returned %s", sb.ID())
			sb.Remove(t.ctx)
		}
		for i := range times(12) {
			i %= 12
			ctx, cancel := context.WithCancel(t.ctx)
			go func() {
				time.Sleep(time.Duration(i*i) * 100 * time.Microsecond)
				cancel()
			}()
			sb, err := t.rt.Create(ctx, t.Spec)
			cancel()
			if err == nil {
				t.ok("Remove", sb.Remove(t.ctx))
			}
		}
		// What was made while nobody waited goes away, if not at once.
		t.until("the sandboxes that were there before, alone", func() bool { return slices.Equal(before, t.ids()) })
	}},
	{name: "CreatesGoSideBySide", says: "A Runtime is safe for concurrent use.", check: func(t *T) {
		const n = 6
		before := t.ids()
		sbs := make([]sandbox.Sandbox, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if sbs[i], errs[i] = t.rt.Create(t.ctx, t.Spec); errs[i] != nil {
					return
				}
				var r sandbox.Result
				if r, errs[i] = sandbox.Capture(t.ctx, sbs[i], 100, sandbox.Cmd{Args: []string{"echo", "hi"}}); errs[i] == nil && string(r.Stdout) != "hi\n" {
					errs[i] = errors.New("echo printed " + string(r.Stdout))
				}
				errs[i] = errors.Join(errs[i], sbs[i].Remove(t.ctx))
			})
		}
		wg.Wait()
		t.ok("Create, echo and Remove side by side", errors.Join(errs...))
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
	}},
	{name: "SandboxesAreApart", says: "A Sandbox is one isolated place.", check: func(t *T) {
		a, b := t.create(nil), t.create(nil)
		t.ok("Write", sandbox.WriteFile(t.ctx, a, "/tmp/mine", []byte("x")))
		t.ok("Write", sandbox.WriteFile(t.ctx, a, "/workspace/mine", []byte("x")))
		for _, p := range []string{"/tmp/mine", "/workspace/mine"} {
			_, err := b.Files().Stat(t.ctx, p)
			t.kind("Stat in the other sandbox", err, "", sandbox.NotExist)
		}
	}},
	{name: "EnvOfSpecIsForAll", says: "Env is the environment of every process, to which the Cmd's is added, and wins.", check: func(t *T) {
		r := t.capture(t.sb, sandbox.Cmd{Args: []string{"env"}, Env: map[string]string{"SUITE_CMD": "a=b 'c' \"d\" $HOME", "SUITE_BOTH": "from cmd", "SUITE_EMPTY": ""}})
		lines := strings.Split(string(r.Stdout), "\n")
		for _, want := range []string{"SUITE_SPEC=from spec", "SUITE_BOTH=from cmd", "SUITE_CMD=a=b 'c' \"d\" $HOME", "SUITE_EMPTY="} {
			if !slices.Contains(lines, want) {
				t.errorf("env lacks %q: %q", want, lines)
			}
		}
		if slices.Contains(lines, "SUITE_BOTH=from spec") {
			t.errorf("env has the Spec's value beside the Cmd's")
		}
		if r := t.run("env"); strings.Contains(string(r.Stdout), "SUITE_CMD") || !strings.Contains(string(r.Stdout), "SUITE_BOTH=from spec\n") {
			t.errorf("the Cmd's environment stayed: %q", r.Stdout)
		}
	}},
	{name: "EnvOfTheHostStaysOut", says: "A Sandbox is one isolated place: the caller's own environment is not in it.", check: func(t *T) {
		t.t.Setenv("SUITE_HOST_SECRET", "secret")
		if r := t.run("env"); strings.Contains(string(r.Stdout), "SUITE_HOST_SECRET") {
			t.errorf("env has the host's variable: %q", r.Stdout)
		}
	}},
	{name: "EnvIsNotShown", says: "It may hold secrets: it is never logged, listed or written to state.", check: func(t *T) {
		sb := t.create(func(s *sandbox.Spec) { s.Env = map[string]string{"SUITE_TOKEN": "suite-secret-value"} })
		i, err := sb.Info(t.ctx)
		t.ok("Info", err)
		all := fmt.Sprintf("%+v", i)
		for l, err := range t.rt.List(t.ctx) {
			t.ok("List", err)
			all += fmt.Sprintf("%+v", l)
		}
		if strings.Contains(all, "suite-secret-value") {
			t.errorf("Info or List shows the environment: %s", all)
		}
	}},
	{name: "MountsShowTheSource", says: "A Mount shows a directory or file of the host in the sandbox; default: the sandbox may write.", shell: true, check: func(t *T) {
		if t.Source == nil {
			t.lack()
		}
		m := []sandbox.Mount{{Source: t.Source(t.t), Target: "/mnt/suite"}}
		a := t.create(func(s *sandbox.Spec) { s.Mounts = m })
		b := t.create(func(s *sandbox.Spec) { s.Mounts = m })
		if i, err := a.Info(t.ctx); err != nil || !slices.Equal(i.Mounts, m) {
			t.errorf("Info says %v, %v, want %v", i.Mounts, err, m)
		}
		if r := t.capture(a, sandbox.Cmd{Args: []string{"sh", "-c", "echo one > /mnt/suite/by-process"}}); !r.Success() {
			t.errorf("a process cannot write: %+v, %s", r.Exit, r.Stderr)
		}
		t.ok("Write", sandbox.WriteFile(t.ctx, a, "/mnt/suite/by-files", []byte("two")))
		if r := t.capture(b, sandbox.Cmd{Args: []string{"cat", "/mnt/suite/by-process", "/mnt/suite/by-files"}}); string(r.Stdout) != "one\ntwo" {
			t.errorf("another sandbox with the same source sees %q, %s", r.Stdout, r.Stderr)
		}
		if c, err := sandbox.ReadFile(t.ctx, b, "/mnt/suite/by-process", 100); err != nil || string(c) != "one\n" {
			t.errorf("Open in the other sandbox: %q, %v", c, err)
		}
		t.ok("Remove", a.Remove(t.ctx))
		if _, err := b.Files().Stat(t.ctx, "/mnt/suite/by-files"); err != nil {
			t.errorf("with the sandbox went the source's file: %v", err)
		}
	}},
	{name: "ReadOnlyMountsAreReadOnly", says: "ReadOnly: the sandbox may not write.", shell: true, check: func(t *T) {
		if t.Source == nil {
			t.lack()
		}
		m := []sandbox.Mount{{Source: t.Source(t.t), Target: "/mnt/suite", ReadOnly: true}}
		sb := t.create(func(s *sandbox.Spec) { s.Mounts = m })
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo x > /mnt/suite/f"}}); r.Success() {
			t.errorf("a process can write")
		}
		t.kind("Write", sandbox.WriteFile(t.ctx, sb, "/mnt/suite/g", []byte("x")), "", sandbox.Denied)
		t.kind("Mkdir", sb.Files().Mkdir(t.ctx, "/mnt/suite/d", sandbox.MkdirOptions{}), "", sandbox.Denied)
		t.kind("Chmod", sb.Files().Chmod(t.ctx, "/mnt/suite", 0o700), "", sandbox.Denied)
		for i, err := range sb.Files().List(t.ctx, "/mnt/suite") {
			t.errorf("List: %+v, %v, want nothing", i, err)
		}
	}},
	{name: "WorkdirIsMade", says: "Workdir is where processes start. It is made if it is not there.", check: func(t *T) {
		sb := t.create(func(s *sandbox.Spec) { s.Workdir = "/workspace/made/for me" })
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"pwd"}}); string(r.Stdout) != "/workspace/made/for me\n" {
			t.errorf("pwd printed %q, %q", r.Stdout, r.Stderr)
		}
	}},
	{name: "UserOfSpecRunsProcesses", says: "User is whom processes run as.", shell: true, check: func(t *T) {
		sb := t.create(func(s *sandbox.Spec) { s.User = "1000:1000" })
		i, err := sb.Info(t.ctx)
		if t.ok("Info", err); i.User != "1000:1000" {
			t.errorf("Info says the user is %q", i.User)
		}
		if !i.Isolation.Holds(sandbox.ManyIDs) {
			return // every name stands for the one id
		}
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "id -u; id -g; echo x > /workspace/by-process"}}); string(r.Stdout) != "1000\n1000\n" || !r.Success() {
			t.errorf("id printed %q, %q, %+v; want 1000 and a writable workspace", r.Stdout, r.Stderr, r.Exit)
		}
		info, err := sb.Files().Write(t.ctx, "/tmp/by-files", strings.NewReader("x"), sandbox.WriteOptions{})
		if t.ok("Write", err); info.UID != 1000 || info.GID != 1000 {
			t.errorf("what Files makes belongs to %d:%d, want the sandbox's user", info.UID, info.GID)
		}
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "id -u"}, User: "0"}); string(r.Stdout) != "0\n" {
			t.errorf("with User 0, id printed %q", r.Stdout)
		}
	}},
	{name: "ReadOnlyRootKeepsItsPromise", says: "ReadOnlyRoot makes the root file system read-only. /tmp, /home and /workspace stay writable.", shell: true, check: func(t *T) {
		sb := t.create(func(s *sandbox.Spec) { s.ReadOnlyRoot = true })
		i, err := sb.Info(t.ctx)
		if t.ok("Info", err); !i.ReadOnlyRoot {
			t.errorf("Info does not say so")
		}
		for _, dir := range []string{"/tmp", "/home", "/workspace"} {
			if r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo x > " + dir + "/f && cat " + dir + "/f"}}); string(r.Stdout) != "x\n" {
				t.errorf("%s is not writable: %q", dir, r.Stderr)
			}
			t.ok("Write in "+dir, sandbox.WriteFile(t.ctx, sb, dir+"/g", []byte("x")))
		}
		for _, dir := range []string{"/", "/etc", "/usr"} {
			if r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo x > " + dir + "/suite-f"}}); r.Success() {
				t.errorf("a process can write in %s", dir)
			}
			t.kind("Write in "+dir, sandbox.WriteFile(t.ctx, sb, strings.TrimRight(dir, "/")+"/suite-g", []byte("x")), "", sandbox.Denied)
		}
	}},
	{name: "RemoveIsIdempotent", says: "To remove what is already gone is no error.", check: func(t *T) {
		sb := t.create(nil)
		other, err := t.rt.Open(t.ctx, sb.ID())
		t.ok("Open", err)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() {
				if i%2 == 0 {
					errs[i] = sb.Remove(t.ctx)
				} else {
					errs[i] = other.Remove(t.ctx)
				}
			})
		}
		wg.Wait()
		t.ok("Remove four times at once", errors.Join(errs...))
		t.ok("Remove again", sb.Remove(t.ctx))
	}},
	{name: "RemovedIsGone", says: "Once the sandbox is gone, whoever removed it, calls fail with NotExist.", check: func(t *T) {
		sb := t.create(nil)
		t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/tmp/f", []byte("x")))
		other, err := t.rt.Open(t.ctx, sb.ID())
		t.ok("Open", err)
		t.ok("Remove", other.Remove(t.ctx))
		if slices.Contains(t.ids(), sb.ID()) {
			t.errorf("List yields it")
		}
		_, err = t.rt.Open(t.ctx, sb.ID())
		t.kind("Open", err, "", sandbox.NotExist)
		_, err = sb.Info(t.ctx)
		t.kind("Info", err, "", sandbox.NotExist)
		p, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"true"}})
		t.kind("Start", err, "", sandbox.NotExist)
		if err == nil {
			t.wait(p)
		}
		f := sb.Files()
		_, err = f.Open(t.ctx, "/tmp/f", sandbox.Range{})
		t.kind("Files.Open", err, "", sandbox.NotExist)
		_, err = f.Stat(t.ctx, "/tmp/f")
		t.kind("Files.Stat", err, "", sandbox.NotExist)
		_, err = f.Write(t.ctx, "/tmp/g", strings.NewReader("x"), sandbox.WriteOptions{})
		t.kind("Files.Write", err, "", sandbox.NotExist)
		t.kind("Files.Mkdir", f.Mkdir(t.ctx, "/tmp/d", sandbox.MkdirOptions{}), "", sandbox.NotExist)
		t.kind("Files.Chmod", f.Chmod(t.ctx, "/tmp", 0o755), "", sandbox.NotExist)
		for _, err = range f.List(t.ctx, "/tmp") {
		}
		t.kind("Files.List", err, "", sandbox.NotExist)
	}},
	{name: "RemoveEndsProcesses", says: "Remove kills every process of the sandbox; Wait then returns NotExist.", check: func(t *T) {
		sb := t.create(nil)
		out := &sink{}
		p, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}, Stdout: out})
		t.ok("Start", err)
		q, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"cat"}, Stdin: strings.NewReader("x"), Stdout: out})
		t.ok("Start", err)
		t.wait(q)
		t.ok("Remove", sb.Remove(t.ctx))
		_, err = t.wait(p)
		t.kind("Wait", err, "", sandbox.NotExist)
		if err := p.Signal(t.ctx, sandbox.TERM); err != nil {
			t.kind("Signal", err, "", sandbox.NotExist)
		}
	}},
	{name: "RemoveMayComeAtAnyTime", says: "Once the sandbox is gone, whoever removed it, calls fail with NotExist, those on their way included.", check: func(t *T) {
		for i := range times(4) {
			sb := t.create(nil)
			var wg sync.WaitGroup
			var mu sync.Mutex
			var errs []error
			repeat := func(what string, call func(n int) error) {
				wg.Go(func() {
					for n := 0; ; n++ {
						if err := call(n); err != nil {
							if !errors.Is(err, sandbox.NotExist) {
								mu.Lock()
								errs = append(errs, fmt.Errorf("%s: %w", what, err))
								mu.Unlock()
							}
							if t.ctx.Err() != nil || errors.Is(err, sandbox.NotExist) {
								return
							}
						}
					}
				})
			}
			repeat("Run", func(int) error {
				_, err := sandbox.Run(t.ctx, sb, sandbox.Cmd{Args: []string{"echo", "x"}, Stdout: &sink{}})
				return err
			})
			repeat("Run of what hangs", func(int) error {
				_, err := sandbox.Run(t.ctx, sb, sandbox.Cmd{Args: []string{"sleep", "3600"}})
				return err
			})
			repeat("Write", func(n int) error {
				return sandbox.WriteFile(t.ctx, sb, fmt.Sprintf("/tmp/%d", n%10), make([]byte, 10_000))
			})
			repeat("Open", func(int) error {
				_, err := sandbox.ReadFile(t.ctx, sb, "/etc/passwd", 1<<20)
				return err
			})
			repeat("List", func(int) error {
				for _, err := range sb.Files().List(t.ctx, "/tmp") {
					if err != nil {
						return err
					}
				}
				return nil
			})
			repeat("Info", func(int) error { _, err := sb.Info(t.ctx); return err })
			time.Sleep(time.Duration(10+i%4*10) * time.Millisecond)
			t.ok("Remove", sb.Remove(t.ctx))
			wg.Wait()
			t.ok("calls while Remove came", errors.Join(errs...))
		}
	}},
	{name: "CloseIsIdempotent", says: "A second Close does nothing and returns nil. After Close, calls fail with Closed.", check: func(t *T) {
		rt := t.New(t.t)
		sb, err := rt.Create(t.ctx, t.Spec)
		t.ok("Create", err)
		id := sb.ID()
		t.ok("Remove", sb.Remove(t.ctx))
		t.ok("Close", rt.Close())
		t.ok("Close again", rt.Close())
		_, err = rt.Create(t.ctx, t.Spec)
		t.kind("Create", err, "", sandbox.Closed)
		_, err = rt.Open(t.ctx, id)
		t.kind("Open", err, "", sandbox.Closed)
		n := 0
		for _, err = range rt.List(t.ctx) {
			n++
		}
		if n != 1 {
			t.errorf("List yielded %d times, want its error alone", n)
		}
		t.kind("List", err, "", sandbox.Closed)
	}},
}
