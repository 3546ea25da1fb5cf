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

// keeper returns the Runtime as one that keeps sandboxes by name, or ends the
// claim.
func (t *T) keeper() sandbox.Keeper {
	t.t.Helper()
	k, ok := t.rt.(sandbox.Keeper)
	if !ok {
		t.lack()
	}
	if _, err := k.Lookup(t.ctx, t.name("nobody")); errors.Is(err, sandbox.Unsupported) {
		t.lack()
	}
	return k
}

// name returns a name that no other claim uses.
func (t *T) name(what string) string { return fmt.Sprintf("%s %d: %s", t.Name, t.n, what) }

// acquire returns the sandbox with the Spec's name or id, which is removed
// when the claim ends.
func (t *T) acquire(k sandbox.Keeper, change func(*sandbox.Spec)) (sandbox.Sandbox, bool) {
	t.t.Helper()
	spec := t.Spec
	change(&spec)
	sb, made, err := k.Acquire(t.ctx, spec)
	if err != nil {
		t.fatalf("Acquire of %q: %v", spec.Name, err)
	}
	t.after(func() {
		if err := sb.Remove(context.WithoutCancel(t.ctx)); err != nil {
			t.errorf("Remove: %v", err)
		}
	})
	return sb, made
}

// named makes a Spec one of this name.
func named(name string) func(*sandbox.Spec) {
	return func(s *sandbox.Spec) { s.Name = name }
}

// infoOf returns what is true of sb.
func (t *T) infoOf(sb sandbox.Sandbox) sandbox.Info {
	t.t.Helper()
	i, err := sb.Info(t.ctx)
	t.ok("Info", err)
	return i
}

// gone fails unless Open of id says that it is gone, and why.
func (t *T) gone(id sandbox.ID, why sandbox.Why) {
	t.t.Helper()
	_, err := t.rt.Open(t.ctx, id)
	t.kind("Open of what is gone", err, "", sandbox.NotExist)
	var g *sandbox.Gone
	switch {
	case err == nil:
	case !errors.As(err, &g):
		t.errorf("Open of what is gone does not say why: %v", err)
	case g.Why != why:
		t.errorf("Open says that it is gone because it was %s, want %s", g.Why, why)
	case g.At.IsZero() || g.At.After(time.Now().Add(time.Hour)) || g.At.Before(time.Now().Add(-time.Hour)):
		t.errorf("Open says that it is gone since %v", g.At)
	}
}

// vanishes waits until List yields id no more, which does not use it.
func (t *T) vanishes(id sandbox.ID) {
	t.t.Helper()
	t.until(fmt.Sprintf("%s to be gone", id), func() bool { return !slices.Contains(t.ids(), id) })
}

// releaser returns sb as one that can be released, or ends the claim.
func (t *T) releaser(sb sandbox.Sandbox) sandbox.Releaser {
	t.t.Helper()
	r, ok := sb.(sandbox.Releaser)
	if !ok {
		t.lack()
	}
	return r
}

// alike are names that are alike, or that a careless mapping to ids or paths
// makes alike.
var alike = []string{
	"a b", "a-b", "a_b", "a/b", "a.b", "a:b", "A-B", "a  b", " a b", "a b ", "ab", "a%20b", "a+b", "a?b", "a#b", "a&b=c", `a\b`,
	".", "..", "../a-b", "-", "0", "/", "会话", "\u00e4", "a\u0308", "🏝", "\u202ea-b", strings.Repeat("n", sandbox.MaxName), strings.Repeat("n", sandbox.MaxName-1), strings.Repeat("n", sandbox.MaxName-1) + "m",
}

var keeperClaims = []claim{
	{name: "AcquireGivesTheSameSandbox", says: "Acquire returns the sandbox that has spec.Name (where that is \"\", the one that has spec.ID), or makes it; made says which.", check: func(t *T) {
		k := t.keeper()
		name := t.name("one")
		first, made := t.acquire(k, named(name))
		if !made {
			t.errorf("the first Acquire did not make it")
		}
		t.ok("Write", sandbox.WriteFile(t.ctx, first, "/workspace/mark", []byte("here")))
		second, made := t.acquire(k, named(name))
		if made || second.ID() != first.ID() {
			t.errorf("the second Acquire gave %s, made %v, want %s again", second.ID(), made, first.ID())
		}
		if b, err := sandbox.ReadFile(t.ctx, second, "/workspace/mark", 10); err != nil || string(b) != "here" {
			t.errorf("a file through the second: %q, %v", b, err)
		}
		if i := t.infoOf(second); !slices.Equal(i.Names, []string{name}) {
			t.errorf("Names are %q, want %q", i.Names, name)
		}
		id := sandbox.NewID()
		byID := func(s *sandbox.Spec) { s.ID = id }
		third, made := t.acquire(k, byID)
		if !made || third.ID() != id {
			t.errorf("Acquire of the id %s gave %s, made %v", id, third.ID(), made)
		}
		if again, made := t.acquire(k, byID); made || again.ID() != id {
			t.errorf("Acquire of the id %s again gave %s, made %v", id, again.ID(), made)
		}
	}},
	{name: "ConcurrentAcquiresGetOne", says: "Calls of Acquire for one name that come together get the same sandbox.", check: func(t *T) {
		k := t.keeper()
		for round := range times(3) {
			name := t.name(fmt.Sprint(round))
			const n = 8
			var all sync.WaitGroup
			var ids [n]sandbox.ID
			var made [n]bool
			var errs [n]error
			begin := make(chan struct{})
			for i := range n {
				all.Go(func() {
					spec := t.Spec
					spec.Name = name
					<-begin
					var sb sandbox.Sandbox
					if sb, made[i], errs[i] = k.Acquire(t.ctx, spec); errs[i] == nil {
						ids[i] = sb.ID()
					}
				})
			}
			before := t.ids()
			close(begin)
			all.Wait()
			t.ok("Acquire", errors.Join(errs[:]...))
			sb, _ := t.acquire(k, named(name))
			makers := 0
			for i := range n {
				if ids[i] != sb.ID() {
					t.errorf("one got %s, another %s", ids[i], sb.ID())
				}
				if made[i] {
					makers++
				}
			}
			if makers != 1 {
				t.errorf("%d of them say that they made it", makers)
			}
			if after := t.ids(); len(after) != len(before)+1 {
				t.errorf("the sandboxes were %v, are %v", before, after)
			}
		}
	}},
	{name: "ConflictNamesTheFieldAndBothValues", says: "Where the sandbox that is there differs from what Acquire asks for, that is a Conflict whose Field says in what, and whose Msg both values.", check: func(t *T) {
		k := t.keeper()
		source := ""
		if t.Source != nil {
			source = t.Source(t.t)
		}
		mount := func(target string) func(*sandbox.Spec) {
			return func(s *sandbox.Spec) {
				s.Mounts = []sandbox.Mount{{Source: source, Target: target, ReadOnly: true}}
			}
		}
		cases := []struct {
			field     string
			have, ask func(*sandbox.Spec)
			values    []string
		}{
			{"limits.memory", func(s *sandbox.Spec) { s.Limits.Memory = 256 << 20 }, func(s *sandbox.Spec) { s.Limits.Memory = 512 << 20 }, []string{"268435456", "536870912"}},
			{"limits.cpu", func(s *sandbox.Spec) { s.Limits.CPU = 1.5 }, func(s *sandbox.Spec) { s.Limits.CPU = 1.25 }, []string{"1.5", "1.25"}},
			{"limits.pids", func(s *sandbox.Spec) { s.Limits.PIDs = 200 }, func(s *sandbox.Spec) { s.Limits.PIDs = 300 }, []string{"200", "300"}},
			{"limits.disk", func(s *sandbox.Spec) { s.Limits.Disk = 256 << 20 }, func(s *sandbox.Spec) { s.Limits.Disk = 512 << 20 }, []string{"268435456", "536870912"}},
			{"limits.workspace", func(s *sandbox.Spec) { s.Limits.Workspace = 64 << 20 }, func(s *sandbox.Spec) { s.Limits.Workspace = 128 << 20 }, []string{"67108864", "134217728"}},
			{"network", func(s *sandbox.Spec) { s.Network = sandbox.NetworkOff }, func(s *sandbox.Spec) { s.Network = sandbox.NetworkOn }, []string{"off", "on"}},
			{"image", nil, func(s *sandbox.Spec) { s.Image = "another-image-anywhere" }, []string{t.Spec.Image, "another-image-anywhere"}},
			{"user", nil, func(s *sandbox.Spec) { s.User = "65533" }, []string{"65533"}},
			{"read_only_root", func(s *sandbox.Spec) { s.ReadOnlyRoot = true }, nil, []string{"true", "false"}},
			{"idle", func(s *sandbox.Spec) { s.Idle = time.Hour }, func(s *sandbox.Spec) { s.Idle = 2 * time.Hour }, []string{"1h", "2h"}},
			{"mounts", mount("/mnt/one"), mount("/mnt/two"), []string{"/mnt/one", "/mnt/two"}},
		}
		for _, c := range cases {
			if c.field == "mounts" && source == "" {
				continue
			}
			name := t.name(c.field)
			spec := func(change func(*sandbox.Spec)) func(*sandbox.Spec) {
				return func(s *sandbox.Spec) {
					s.Name = name
					if change != nil {
						change(s)
					}
				}
			}
			sb, _ := t.acquire(k, spec(c.have))
			other := t.Spec
			spec(c.ask)(&other)
			_, _, err := k.Acquire(t.ctx, other)
			t.kind("Acquire with another "+c.field, err, c.field, sandbox.Conflict)
			var e *sandbox.Error
			if errors.As(err, &e) {
				for _, v := range c.values {
					if !strings.Contains(e.Msg, v) {
						t.errorf("%s: %q does not tell of the value %s", c.field, e.Msg, v)
					}
				}
			}
			if again, made := t.acquire(k, spec(c.have)); made || again.ID() != sb.ID() {
				t.errorf("%s: after the conflict Acquire gave %s, made %v, want %s again", c.field, again.ID(), made, sb.ID())
			}
		}
	}},
	{name: "EnvLabelsExpiryDoNotConflict", says: "Env, Workdir, Labels and Expires do not count.", check: func(t *T) {
		k := t.keeper()
		name := t.name("one")
		spec := func(v string, life time.Duration) func(*sandbox.Spec) {
			return func(s *sandbox.Spec) {
				s.Name, s.Env, s.Labels, s.Expires = name, map[string]string{"SUITE": v}, map[string]string{"suite": v}, time.Now().Add(life)
				s.Workdir = "/tmp/" + v
			}
		}
		first, _ := t.acquire(k, spec("one", time.Hour))
		second, made := t.acquire(k, spec("two", 2*time.Hour))
		if made || second.ID() != first.ID() {
			t.errorf("Acquire gave %s, made %v, want %s again", second.ID(), made, first.ID())
		}
	}},
	{name: "ExtraMountsMakeItAnew", says: "Where Extra mounts differ, or the sandbox has died, it is made anew, under the same id if spec.ID says so.", check: func(t *T) {
		k := t.keeper()
		if t.Source == nil {
			t.lack()
		}
		source := t.Source(t.t)
		for _, id := range []sandbox.ID{"", sandbox.NewID()} {
			name := t.name("with the id " + string(id))
			spec := func(targets ...string) func(*sandbox.Spec) {
				return func(s *sandbox.Spec) {
					s.Name, s.ID = name, id
					for _, target := range targets {
						s.Mounts = append(s.Mounts, sandbox.Mount{Source: source, Target: target, ReadOnly: true, Extra: true})
					}
				}
			}
			first, made := t.acquire(k, spec("/mnt/one"))
			if !made {
				t.errorf("the first Acquire did not make it")
			}
			t.ok("Write", sandbox.WriteFile(t.ctx, first, "/workspace/mark", nil))
			if again, made := t.acquire(k, spec("/mnt/one")); made || again.ID() != first.ID() {
				t.errorf("with the same mounts Acquire gave %s, made %v, want %s again", again.ID(), made, first.ID())
			}
			second, made := t.acquire(k, spec("/mnt/one", "/mnt/two"))
			if !made || (second.ID() == first.ID()) != (id != "") {
				t.errorf("with other mounts Acquire gave %s, made %v; the id asked for is %q, the former was %s", second.ID(), made, id, first.ID())
			}
			for p, want := range map[string]bool{"/mnt/one": true, "/mnt/two": true, "/workspace/mark": false} {
				if _, err := second.Files().Stat(t.ctx, p); (err == nil) != want {
					t.errorf("in the new one, Stat of %s: %v", p, err)
				}
			}
			if id == "" {
				t.gone(first.ID(), sandbox.Replaced)
			}
			if third, made := t.acquire(k, spec()); !made || (third.ID() == second.ID()) != (id != "") {
				t.errorf("without mounts Acquire gave %s, made %v; the id asked for is %q, the former was %s", third.ID(), made, id, second.ID())
			}
		}
	}},
	{name: "TwoNamesTwoSandboxes", says: "Name is what its owner calls the sandbox; two names never are one sandbox.", check: func(t *T) {
		k := t.keeper()
		ids := make(map[sandbox.ID]string)
		byName := make(map[string]sandbox.ID)
		for _, name := range alike {
			sb, made := t.acquire(k, named(name))
			if other, taken := ids[sb.ID()]; taken || !made {
				t.errorf("%.40q and %.40q are one sandbox", name, other)
			}
			ids[sb.ID()], byName[name] = name, sb.ID()
		}
		for _, name := range alike {
			sb, err := k.Lookup(t.ctx, name)
			t.ok(fmt.Sprintf("Lookup of %.40q", name), err)
			if sb.ID() != byName[name] {
				t.errorf("%.40q has %s, Lookup gave %s", name, byName[name], sb.ID())
			}
			if i := t.infoOf(sb); !slices.Equal(i.Names, []string{name}) {
				t.errorf("Names are %.60q, want %.40q", i.Names, name)
			}
		}
	}},
	{name: "NamesAreFreeAfterRemoval", says: "No two sandboxes of an owner have one name; that of one that is gone is free.", check: func(t *T) {
		k := t.keeper()
		name := t.name("one")
		first, _ := t.acquire(k, named(name))
		t.ok("Remove", first.Remove(t.ctx))
		_, err := k.Lookup(t.ctx, name)
		t.kind("Lookup of what was removed", err, "", sandbox.NotExist)
		second, made := t.acquire(k, named(name))
		if !made || second.ID() == first.ID() {
			t.errorf("Acquire gave %s, made %v; %s was removed", second.ID(), made, first.ID())
		}
		t.ok("Remove of the first again", first.Remove(t.ctx))
		if sb, err := k.Lookup(t.ctx, name); err != nil || sb.ID() != second.ID() {
			t.errorf("after that, Lookup of the second: %v", err)
		}
		t.ok("Remove", second.Remove(t.ctx))
		third := t.create(named(name))
		if i := t.infoOf(third); !slices.Equal(i.Names, []string{name}) {
			t.errorf("Names are %q, want %q", i.Names, name)
		}
	}},
	{name: "ChosenIDIsKept", says: "ID is the id that the sandbox gets.", check: func(t *T) {
		t.keeper()
		for _, id := range []sandbox.ID{sandbox.NewID(), sandbox.NewID()[:8], sandbox.NewID() + sandbox.NewID()} {
			choose := func(s *sandbox.Spec) { s.ID = id }
			sb := t.create(choose)
			if i := t.infoOf(sb); sb.ID() != id || i.ID != id {
				t.errorf("the id is %s, in Info %s, want %s", sb.ID(), i.ID, id)
			}
			t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/workspace/mark", nil))
			if opened, err := t.rt.Open(t.ctx, id); err != nil || opened.ID() != id {
				t.errorf("Open: %v", err)
			}
			if !slices.Contains(t.ids(), id) {
				t.errorf("List lacks %s", id)
			}
			if r := t.capture(sb, sandbox.Cmd{Args: []string{"echo", "works"}}); string(r.Stdout) != "works\n" {
				t.errorf("echo printed %q", r.Stdout)
			}
			t.ok("Remove", sb.Remove(t.ctx))
			if slices.Contains(t.ids(), id) {
				t.errorf("List yields what was removed")
			}
			again := t.create(choose)
			if again.ID() != id {
				t.errorf("after its removal the id is %s, want %s again", again.ID(), id)
			}
			if _, err := again.Files().Stat(t.ctx, "/workspace/mark"); !errors.Is(err, sandbox.NotExist) {
				t.errorf("the new one has a file of the former: %v", err)
			}
		}
	}},
	{name: "TakenIDIsConflict", says: "An id that another sandbox has is Conflict.", check: func(t *T) {
		k := t.keeper()
		id := sandbox.NewID()
		sb := t.create(func(s *sandbox.Spec) { s.ID, s.Name = id, t.name("one") })
		before := t.ids()
		spec := t.Spec
		spec.ID = id
		_, err := t.rt.Create(t.ctx, spec)
		t.kind("Create with an id that is taken", err, "id", sandbox.Conflict)
		other := t.create(named(t.name("other")))
		spec.Name = t.name("other")
		_, _, err = k.Acquire(t.ctx, spec)
		t.kind("Acquire of a name with another's id", err, "id", sandbox.Conflict)
		t.ok("Remove", other.Remove(t.ctx))
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"true"}}); !r.Success() {
			t.errorf("the one that has it is spoilt: %+v", r.Exit)
		}
	}},
	{name: "CreateWithATakenNameIsConflict", says: "No two sandboxes of an owner have one name: Create with one that is taken is Conflict.", check: func(t *T) {
		k := t.keeper()
		name := t.name("one")
		sb, _ := t.acquire(k, named(name))
		before := t.ids()
		spec := t.Spec
		spec.Name = name
		_, err := t.rt.Create(t.ctx, spec)
		t.kind("Create with a name that is taken", err, "name", sandbox.Conflict)
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
		if found, err := k.Lookup(t.ctx, name); err != nil || found.ID() != sb.ID() {
			t.errorf("Lookup: %v, want %s still", err, sb.ID())
		}
	}},
	{name: "LookupByName", says: "Lookup returns the live sandbox with this name, or NotExist.", check: func(t *T) {
		k := t.keeper()
		name := t.name("One")
		made := t.create(named(name))
		t.create(nil)
		sb, err := k.Lookup(t.ctx, name)
		t.ok("Lookup", err)
		if sb.ID() != made.ID() {
			t.errorf("Lookup gave %s, want %s", sb.ID(), made.ID())
		}
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"echo", "works"}}); string(r.Stdout) != "works\n" {
			t.errorf("echo printed %q", r.Stdout)
		}
		for _, other := range []string{strings.ToLower(name), strings.ToUpper(name), name + " ", " " + name, name[1:], name + "\x00", string(made.ID()), "*"} {
			_, err := k.Lookup(t.ctx, other)
			t.kind(fmt.Sprintf("Lookup of %q", other), err, "", sandbox.NotExist, sandbox.Invalid)
		}
		t.ok("Remove", made.Remove(t.ctx))
		_, err = k.Lookup(t.ctx, name)
		t.kind("Lookup of what was removed", err, "", sandbox.NotExist)
	}},
	{name: "BadNamesAreInvalid", says: "A name is UTF-8 without control characters, of at most 512 bytes; an id is 8 to 40 characters of a-z and 0-9; others are Invalid.", check: func(t *T) {
		k := t.keeper()
		before := t.ids()
		for _, c := range []struct {
			field string
			spec  sandbox.Spec
		}{
			{"name", sandbox.Spec{Name: strings.Repeat("n", sandbox.MaxName+1)}},
			{"name", sandbox.Spec{Name: "line\nbreak"}},
			{"name", sandbox.Spec{Name: "nul\x00"}},
			{"name", sandbox.Spec{Name: "delete\x7f"}},
			{"name", sandbox.Spec{Name: "not UTF-8 \xff"}},
			{"id", sandbox.Spec{ID: "short"}},
			{"id", sandbox.Spec{ID: "With-Dash-And-Capitals"}},
			{"id", sandbox.Spec{ID: "../../etc/passwd"}},
			{"id", sandbox.Spec{ID: sandbox.ID(strings.Repeat("a", 41))}},
			{"profile", sandbox.Spec{Profile: "two\nlines"}},
			{"explicit", sandbox.Spec{Explicit: []string{"everything"}}},
		} {
			spec := t.Spec
			spec.Name, spec.ID, spec.Profile, spec.Explicit = c.spec.Name, c.spec.ID, c.spec.Profile, c.spec.Explicit
			_, err := t.rt.Create(t.ctx, spec)
			t.kind(fmt.Sprintf("Create with %+.60q", spec.Name+string(spec.ID)), err, c.field, sandbox.Invalid)
			if c.field != "name" && spec.ID == "" {
				spec.Name = t.name("any")
			}
			_, _, err = k.Acquire(t.ctx, spec)
			t.kind(fmt.Sprintf("Acquire of %+.60q", spec.Name+string(spec.ID)), err, c.field, sandbox.Invalid)
		}
		spec := t.Spec
		spec.Profile = "no-such-profile-anywhere"
		_, err := t.rt.Create(t.ctx, spec)
		t.kind("Create with an unknown profile", err, "profile", sandbox.NotExist)
		if after := t.ids(); !slices.Equal(before, after) {
			t.errorf("the sandboxes were %v, are %v", before, after)
		}
	}},
	{name: "ReleaseThenAcquireGivesTheSame", says: "Release says that nobody needs the sandbox until it is acquired or opened again. It lives on. To release what is released is no error.", check: func(t *T) {
		k := t.keeper()
		name := t.name("one")
		sb, _ := t.acquire(k, named(name))
		r := t.releaser(sb)
		t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/workspace/mark", []byte("here")))
		err := r.Release(t.ctx)
		if errors.Is(err, sandbox.Unsupported) {
			t.lack()
		}
		t.ok("Release", err)
		t.ok("Release again", r.Release(t.ctx))
		if i := t.infoOf(sb); !i.Released {
			t.errorf("Info does not say that it is released")
		}
		again, made := t.acquire(k, named(name))
		if made || again.ID() != sb.ID() {
			t.errorf("Acquire gave %s, made %v, want %s again", again.ID(), made, sb.ID())
		}
		if i := t.infoOf(again); i.Released {
			t.errorf("what was acquired again is released")
		}
		if b, err := sandbox.ReadFile(t.ctx, again, "/workspace/mark", 10); err != nil || string(b) != "here" {
			t.errorf("its file: %q, %v", b, err)
		}
		t.ok("Release", r.Release(t.ctx))
		opened, err := t.rt.Open(t.ctx, sb.ID())
		t.ok("Open", err)
		if i := t.infoOf(opened); i.Released {
			t.errorf("what was opened again is released")
		}
		t.ok("Remove", sb.Remove(t.ctx))
		t.kind("Release of what is gone", r.Release(t.ctx), "", sandbox.NotExist)
	}},
	{name: "GoneSaysWhy", says: "A Keeper knows of those that are gone why they are: the error NotExist of its Open has a Gone in its chain.", check: func(t *T) {
		t.keeper()
		removed := t.create(nil)
		expires := time.Now().Add(2 * time.Second)
		expired := t.create(func(s *sandbox.Spec) { s.Expires = expires })
		t.ok("Remove", removed.Remove(t.ctx))
		t.gone(removed.ID(), sandbox.Removed)
		t.vanishes(expired.ID())
		t.gone(expired.ID(), sandbox.Expired)
		_, err := t.rt.Open(t.ctx, sandbox.NewID())
		var g *sandbox.Gone
		if errors.As(err, &g) {
			t.errorf("one that never was is gone because it was %s", g.Why)
		}
		t.kind("Open of one that never was", err, "", sandbox.NotExist)
	}},
	{name: "UpdateNameAddsAName", says: "Update can give a further name; one that another sandbox of the owner has is Conflict, and then nothing is changed.", check: func(t *T) {
		k := t.keeper()
		one, two, other := t.name("one"), t.name("two"), t.name("other")
		sb, _ := t.acquire(k, named(one))
		t.acquire(k, named(other))
		u, ok := sb.(sandbox.Updater)
		if !ok {
			t.lack()
		}
		err := u.Update(t.ctx, sandbox.Change{Name: &two})
		if errors.Is(err, sandbox.Unsupported) {
			t.lack()
		}
		t.ok("Update", err)
		for _, name := range []string{one, two} {
			if found, err := k.Lookup(t.ctx, name); err != nil || found.ID() != sb.ID() {
				t.errorf("Lookup of %q: %v, want %s", name, err, sb.ID())
			}
			if again, made := t.acquire(k, named(name)); made || again.ID() != sb.ID() {
				t.errorf("Acquire of %q gave %s, made %v, want %s", name, again.ID(), made, sb.ID())
			}
		}
		err = u.Update(t.ctx, sandbox.Change{Name: &other, Labels: map[string]string{"suite": "changed"}})
		t.kind("Update with a name that is taken", err, "name", sandbox.Conflict)
		bad := "line\nbreak"
		t.kind("Update with a bad name", u.Update(t.ctx, sandbox.Change{Name: &bad}), "name", sandbox.Invalid)
		if i := t.infoOf(sb); !slices.Equal(i.Names, []string{one, two}) || i.Labels["suite"] != "" {
			t.errorf("Names are %q, want %q; Labels are %q", i.Names, []string{one, two}, i.Labels)
		}
		t.ok("Remove", sb.Remove(t.ctx))
		for _, name := range []string{one, two} {
			_, err := k.Lookup(t.ctx, name)
			t.kind("Lookup of what was removed", err, "", sandbox.NotExist)
		}
	}},
	{name: "IdleRemovesWhatNobodyUses", says: "Idle is how long nothing may use the sandbox before it is removed; a negative one is never.", check: func(t *T) {
		t.keeper()
		const idle = time.Second
		never := t.create(func(s *sandbox.Spec) { s.Idle = -1 })
		begun := time.Now()
		sb := t.create(func(s *sandbox.Spec) { s.Idle = idle })
		if i := t.infoOf(sb); i.Idle != idle {
			t.errorf("Idle is %v, want %v", i.Idle, idle)
		}
		t.vanishes(sb.ID())
		if now := time.Now(); now.Before(begun.Add(idle)) {
			t.errorf("it was gone %v after it was made", now.Sub(begun))
		}
		t.gone(sb.ID(), sandbox.Unused)
		if i := t.infoOf(never); i.Idle >= 0 {
			t.errorf("of the one that is never idle, Idle is %v", i.Idle)
		}
	}},
	{name: "IdleSparesWhatIsBusy", says: "What uses a sandbox is a process that somebody waits for, a running detached process, an open file, a connection.", check: func(t *T) {
		t.keeper()
		short := func(s *sandbox.Spec) { s.Idle = time.Second }
		type user struct {
			what string
			sb   sandbox.Sandbox
			end  func()
		}
		var users []user
		add := func(what string, begin func(sb sandbox.Sandbox) (end func())) {
			sb := t.create(short)
			if end := begin(sb); end != nil {
				users = append(users, user{what, sb, sync.OnceFunc(end)})
				t.after(users[len(users)-1].end)
			}
		}
		add("a process", func(sb sandbox.Sandbox) func() {
			ctx, cancel := context.WithCancel(t.ctx)
			p, err := sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
			t.ok("Start", err)
			if i := t.infoOf(sb); i.Busy < 1 {
				t.errorf("with a process Busy is %d", i.Busy)
			}
			return func() { cancel(); p.Wait() }
		})
		add("an open file", func(sb sandbox.Sandbox) func() {
			t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/workspace/file", make([]byte, large)))
			f, err := sb.Files().Open(t.ctx, "/workspace/file", sandbox.Range{})
			t.ok("Open", err)
			return func() { f.Close() }
		})
		add("a detached process", func(sb sandbox.Sandbox) func() {
			d, ok := sb.(sandbox.Detacher)
			if !ok {
				return nil
			}
			id, err := d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}}, sandbox.DetachOptions{})
			if errors.Is(err, sandbox.Unsupported) {
				return nil
			}
			t.ok("StartDetached", err)
			return func() {
				if p, err := d.Attach(context.WithoutCancel(t.ctx), id, sandbox.AttachOptions{}); err == nil {
					p.Signal(context.WithoutCancel(t.ctx), sandbox.KILL)
					p.Wait()
				}
			}
		})
		add("a connection", func(sb sandbox.Sandbox) func() {
			d, ok := sb.(sandbox.Dialer)
			if !ok || t.Listen == nil || t.NoShell != "" {
				return nil
			}
			// The server is a descendant that nobody waits for, so that it is not
			// what keeps the sandbox.
			const port = 61997
			if r := t.capture(sb, sandbox.Cmd{Args: append([]string{"sh", "-c", `"$@" >/dev/null 2>&1 &`, "sh"}, t.Listen(port)...)}); !r.Success() {
				t.fatalf("the server was not started: %+v", r.Exit)
			}
			var end func()
			t.until("the server to listen", func() bool {
				c, err := d.Dial(t.ctx, port)
				if err == nil {
					end = func() { c.Close() }
				}
				return err == nil || errors.Is(err, sandbox.Unsupported)
			})
			return end
		})
		// One that is made after them and that nothing uses goes before them.
		witness := t.create(short)
		t.vanishes(witness.ID())
		left := t.ids()
		for _, u := range users {
			if !slices.Contains(left, u.sb.ID()) {
				t.errorf("%s did not keep its sandbox", u.what)
			}
		}
		for _, u := range users {
			u.end()
			t.vanishes(u.sb.ID())
		}
	}},
	{name: "PeekSaysWhatOpenWould", says: "A Peeker can say from memory what it would open. To peek is not to use.", check: func(t *T) {
		k := t.keeper()
		p, ok := t.rt.(sandbox.Peeker)
		if !ok {
			t.lack()
		}
		name := t.name("one")
		sb, _ := t.acquire(k, named(name))
		if got, ok := p.Peek(sb.ID()); !ok || got.ID() != sb.ID() {
			t.errorf("Peek does not find %s", sb.ID())
		}
		if got, ok := p.PeekName(name); !ok || got.ID() != sb.ID() {
			t.errorf("PeekName does not find %s", sb.ID())
		}
		if r, ok := sb.(sandbox.Releaser); ok && r.Release(t.ctx) == nil {
			got, ok := p.Peek(sb.ID())
			if !ok || !t.infoOf(got).Released {
				t.errorf("to peek was to use")
			}
		}
		t.ok("Remove", sb.Remove(t.ctx))
		for _, id := range []sandbox.ID{sb.ID(), sandbox.NewID(), "", "../x"} {
			if _, ok := p.Peek(id); ok {
				t.errorf("Peek finds %q, which is not there", id)
			}
		}
		for _, n := range []string{name, t.name("nobody"), ""} {
			if _, ok := p.PeekName(n); ok {
				t.errorf("PeekName finds %q, which is not there", n)
			}
		}
	}},
	{name: "StatusCounts", says: "Status returns how things are.", check: func(t *T) {
		o := t.overseer()
		was, err := o.Status(t.ctx)
		t.ok("Status", err)
		sb := t.create(nil)
		t.use(sb)
		now, err := o.Status(t.ctx)
		t.ok("Status", err)
		if !now.Available || len(now.Backends) == 0 || now.Started.IsZero() {
			t.errorf("Status is %+v", now)
		}
		if now.Live != was.Live+1 || now.Busy < 1 || now.Live < now.Busy+now.Released {
			t.errorf("Status was %+v, with one more in use it is %+v", was, now)
		}
	}},
	{name: "EventsTellWhatHappened", says: "Events yields what happened after an event, oldest first; with follow it waits for more, until ctx ends, which is no error.", check: func(t *T) {
		o := t.overseer()
		var last int64
		for e, err := range o.Events(t.ctx, 0, false) {
			t.ok("Events", err)
			if e.Number <= last {
				t.errorf("after the event %d comes %d", last, e.Number)
			}
			last = e.Number
		}
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		type seen struct {
			kinds []sandbox.EventKind
			err   error
		}
		sb := t.create(named(t.name("one")))
		begun, done := make(chan struct{}), make(chan seen, 1)
		go func() {
			var s seen
			for e, err := range o.Events(ctx, last, true) {
				if s.err = err; err != nil {
					break
				}
				if e.Sandbox == sb.ID() {
					s.kinds = append(s.kinds, e.Kind)
					if len(s.kinds) == 1 {
						close(begun)
					}
					if e.Kind == sandbox.EventGone {
						cancel()
					}
				}
			}
			done <- s
		}()
		// So that the end is one that it had to wait for.
		select {
		case <-begun:
		case s := <-done:
			t.fatalf("Events with follow ends after %q, %v", s.kinds, s.err)
		case <-t.ctx.Done():
			t.fatalf("Events does not tell of a sandbox that was made")
		}
		t.ok("Remove", sb.Remove(t.ctx))
		select {
		case s := <-done:
			if s.err != nil || len(s.kinds) < 2 || s.kinds[0] != sandbox.EventMade || s.kinds[len(s.kinds)-1] != sandbox.EventGone {
				t.errorf("the events are %q, %v, want made first and gone last", s.kinds, s.err)
			}
		case <-t.ctx.Done():
			t.fatalf("Events does not tell of a sandbox that is gone, or does not end with ctx")
		}
		for e, err := range o.Events(t.ctx, last, false) {
			t.ok("Events", err)
			if e.Number <= last {
				t.errorf("Events after %d yields %d", last, e.Number)
			}
		}
	}},
	{name: "PruneTakesWhatItSays", says: "Prune removes the sandboxes that it is told to, of those that nothing uses, and returns them.", check: func(t *T) {
		o := t.overseer()
		mark := map[string]string{"suite": t.name("mark")}
		labelled := func(s *sandbox.Spec) { s.Labels = map[string]string{"suite": mark["suite"], "more": "x"} }
		idle, busy, other := t.create(labelled), t.create(labelled), t.create(nil)
		t.use(busy)
		for _, dry := range []bool{true, false} {
			got, err := o.Prune(t.ctx, sandbox.Prune{Labels: mark, DryRun: dry})
			t.ok("Prune", err)
			if len(got) != 1 || got[0].ID != idle.ID() {
				t.errorf("Prune returned %v, want %s alone", got, idle.ID())
			}
			if slices.Contains(t.ids(), idle.ID()) != dry {
				t.errorf("with DryRun %v, the sandboxes are %v", dry, t.ids())
			}
		}
		for _, sb := range []sandbox.Sandbox{busy, other} {
			if !slices.Contains(t.ids(), sb.ID()) {
				t.errorf("Prune removed %s", sb.ID())
			}
		}
		t.gone(idle.ID(), sandbox.Pruned)
		if got, err := o.Prune(t.ctx, sandbox.Prune{Labels: mark, Unused: time.Hour}); err != nil || len(got) != 0 {
			t.errorf("Prune of what was not used for an hour returned %v, %v", got, err)
		}
	}},
}

// overseer returns the Runtime as one that tells what goes on in it, or ends
// the claim.
func (t *T) overseer() sandbox.Overseer {
	t.t.Helper()
	o, ok := t.rt.(sandbox.Overseer)
	if !ok {
		t.lack()
	}
	if _, err := o.Status(t.ctx); errors.Is(err, sandbox.Unsupported) {
		t.lack()
	}
	return o
}

// use starts a process in sb that is killed when the claim ends.
func (t *T) use(sb sandbox.Sandbox) {
	t.t.Helper()
	ctx, cancel := context.WithCancel(t.ctx)
	p, err := sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
	if err != nil {
		cancel()
		t.fatalf("Start: %v", err)
	}
	t.after(func() { cancel(); p.Wait() })
}
