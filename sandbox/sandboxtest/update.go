package sandboxtest

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// updater makes a sandbox that can be changed, or ends the claim.
func (t *T) updater(change func(*sandbox.Spec)) (sandbox.Sandbox, sandbox.Updater) {
	t.t.Helper()
	sb := t.create(change)
	u, ok := sb.(sandbox.Updater)
	if !ok {
		t.lack()
	}
	err := u.Update(t.ctx, sandbox.Change{})
	if errors.Is(err, sandbox.Unsupported) {
		t.lack()
	}
	t.ok("Update of nothing", err)
	return sb, u
}

// has fails unless the sandbox's Info says that it has these labels and this
// end.
func (t *T) has(what string, sb sandbox.Sandbox, labels map[string]string, expires time.Time) {
	t.t.Helper()
	i, err := sb.Info(t.ctx)
	t.ok("Info", err)
	if !maps.Equal(i.Labels, labels) {
		t.errorf("%s the labels are %q, want %q", what, i.Labels, labels)
	}
	if !i.Expires.Equal(expires) {
		t.errorf("%s Expires is %v, want %v", what, i.Expires, expires)
	}
}

// variable returns what processes of sb have for $name.
func (t *T) variable(sb sandbox.Sandbox, name string) string {
	t.t.Helper()
	r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", `printf %s "${` + name + `-unset}"`}})
	return string(r.Stdout)
}

var updateClaims = []claim{
	{name: "UpdateExpires", says: "Update changes when the sandbox is removed: later, sooner, never.", check: func(t *T) {
		later, u := t.updater(nil)
		never, v := t.updater(nil)
		sooner, w := t.updater(nil)
		// Only now: to make one may take long.
		soon := time.Now().Add(2 * time.Second)
		t.ok("Update to soon", u.Update(t.ctx, sandbox.Change{Expires: &soon}))
		t.ok("Update to soon", v.Update(t.ctx, sandbox.Change{Expires: &soon}))
		hour := time.Now().Add(time.Hour).Round(0)
		t.ok("Update to later", u.Update(t.ctx, sandbox.Change{Expires: &hour}))
		t.ok("Update to never", v.Update(t.ctx, sandbox.Change{Expires: new(time.Time)}))
		t.ok("Update from never", w.Update(t.ctx, sandbox.Change{Expires: &hour}))
		t.has("updated to later,", later, nil, hour)
		t.has("updated to never,", never, nil, time.Time{})
		t.has("updated from never,", sooner, nil, hour)
		gone := func(sb sandbox.Sandbox) bool {
			_, err := sb.Info(t.ctx)
			if err != nil && !errors.Is(err, sandbox.NotExist) {
				t.fatalf("Info: %v", err)
			}
			return err != nil
		}
		t.ok("Update to sooner", w.Update(t.ctx, sandbox.Change{Expires: new(time.Now().Add(300 * time.Millisecond))}))
		t.until("the sandbox to be gone whose end came sooner", func() bool { return gone(sooner) })
		t.until("the end to come that is none any more", func() bool { return time.Now().After(soon) })
		t.never("a sandbox is gone at the end that it had before", func() bool { return gone(later) || gone(never) })
		t.kind("Update to what has passed", u.Update(t.ctx, sandbox.Change{Expires: new(time.Now().Add(-time.Hour))}), "expires", sandbox.Invalid)
		t.has("after that", later, nil, hour)
	}},
	{name: "UpdateLabels", says: "Labels are instead of those there are; nil leaves them.", check: func(t *T) {
		hour := time.Now().Add(time.Hour).Round(0)
		first := map[string]string{"a": "1", "b": "2"}
		sb, u := t.updater(func(s *sandbox.Spec) { s.Labels = maps.Clone(first); s.Expires = hour })
		t.ok("Update of something else", u.Update(t.ctx, sandbox.Change{Expires: &hour}))
		t.has("untouched,", sb, first, hour)
		second := map[string]string{"b": "välue\n", "c": ""}
		given := maps.Clone(second)
		t.ok("Update", u.Update(t.ctx, sandbox.Change{Labels: given}))
		given["d"] = "changed by the caller"
		t.has("changed,", sb, second, hour)
		opened, err := t.rt.Open(t.ctx, sb.ID())
		t.ok("Open", err)
		t.has("opened again,", opened, second, hour)
		for i, err := range t.rt.List(t.ctx) {
			t.ok("List", err)
			if i.ID == sb.ID() && !maps.Equal(i.Labels, second) {
				t.errorf("List shows the labels %q, want %q", i.Labels, second)
			}
		}
		t.ok("Update", u.Update(t.ctx, sandbox.Change{Labels: map[string]string{}}))
		t.has("emptied,", sb, nil, hour)
		t.kind("Update to what cannot be a label", u.Update(t.ctx, sandbox.Change{Labels: map[string]string{"": "x"}}), "labels", sandbox.Invalid)
	}},
	{name: "UpdateEnv", says: "Env is added to the sandbox's, for processes that are started later, and is shown nowhere.", shell: true, check: func(t *T) {
		labels := map[string]string{"a": "1"}
		sb, u := t.updater(func(s *sandbox.Spec) {
			s.Env = map[string]string{"SUITE_OLD": "old", "SUITE_BOTH": "old"}
			s.Labels = labels
		})
		t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/tmp/kept", []byte("kept")))
		var out sink
		in := newTap()
		t.after(in.end)
		p, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"sh", "-c", `echo ready; read x; echo "$SUITE_OLD $SUITE_BOTH ${SUITE_NEW-unset}"`}, Stdin: in, Stdout: &out})
		t.ok("Start", err)
		t.until("it to be ready", func() bool { return out.String() == "ready\n" })
		const secret = "suite-secret-value 'x' \"y\"\n$z=\xff"
		t.ok("Update", u.Update(t.ctx, sandbox.Change{Env: map[string]string{"SUITE_BOTH": "new", "SUITE_NEW": secret, "SUITE_EMPTY": ""}}))
		in.send("go\n")
		in.end()
		if exit, err := t.wait(p); err != nil || !exit.Success() || out.String() != "ready\nold old unset\n" {
			t.errorf("what was started before printed %q and ended with %+v, %v", out.String(), exit, err)
		}
		for name, want := range map[string]string{"SUITE_OLD": "old", "SUITE_BOTH": "new", "SUITE_NEW": secret, "SUITE_EMPTY": "", "SUITE_NONE": "unset"} {
			if got := t.variable(sb, name); got != want {
				t.errorf("%s is %q, want %q", name, got, want)
			}
		}
		r := t.capture(sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo $SUITE_BOTH; cat /tmp/kept"}, Env: map[string]string{"SUITE_BOTH": "of the command"}})
		if string(r.Stdout) != "of the command\nkept" {
			t.errorf("with an environment of its own the command printed %q", r.Stdout)
		}
		if d, ok := sb.(sandbox.Detacher); ok {
			id, err := d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"sh", "-c", "echo $SUITE_BOTH"}}, sandbox.DetachOptions{})
			if !errors.Is(err, sandbox.Unsupported) {
				t.ok("StartDetached", err)
				if got, _, _, _ := t.all(d, id, 0); got != "new\n" {
					t.errorf("a detached process printed %q", got)
				}
			}
		}
		t.ok("Update again", u.Update(t.ctx, sandbox.Change{Env: map[string]string{"SUITE_BOTH": "newest"}}))
		if a, b := t.variable(sb, "SUITE_BOTH"), t.variable(sb, "SUITE_NEW"); a != "newest" || b != secret {
			t.errorf("after another Update the variables are %q and %q", a, b)
		}
		i, err := sb.Info(t.ctx)
		t.ok("Info", err)
		if shown := fmt.Sprintf("%+v", i); strings.Contains(shown, "suite-secret-value") || !maps.Equal(i.Labels, labels) {
			t.errorf("Info is %s", shown)
		}
		t.kind("Update to what cannot be a variable", u.Update(t.ctx, sandbox.Change{Env: map[string]string{"A=B": ""}}), "env", sandbox.Invalid)
	}},
	{name: "UpdateIsAllOrNothing", says: "Update makes all of the change, or none and returns an error.", shell: true, check: func(t *T) {
		labels := map[string]string{"a": "1"}
		hour := time.Now().Add(time.Hour).Round(0)
		sb, u := t.updater(func(s *sandbox.Spec) {
			s.Env, s.Labels, s.Expires = map[string]string{"SUITE_OLD": "old"}, labels, hour
		})
		good := func() sandbox.Change {
			return sandbox.Change{Labels: map[string]string{"b": "2"}, Env: map[string]string{"SUITE_OLD": "new", "SUITE_NEW": "new"}, Expires: new(hour.Add(time.Hour))}
		}
		for field, spoil := range map[string]func(*sandbox.Change){
			"expires": func(c *sandbox.Change) { c.Expires = new(time.Now().Add(-time.Hour)) },
			"labels":  func(c *sandbox.Change) { c.Labels[strings.Repeat("x", 129)] = "" },
			"env":     func(c *sandbox.Change) { c.Env["\x00"] = "" },
			"name":    func(c *sandbox.Change) { c.Name = new("a\nb") },
		} {
			c := good()
			spoil(&c)
			t.kind("Update with a bad "+field, u.Update(t.ctx, c), field, sandbox.Invalid)
			t.has("after a bad "+field, sb, labels, hour)
			if a, b := t.variable(sb, "SUITE_OLD"), t.variable(sb, "SUITE_NEW"); a != "old" || b != "unset" {
				t.errorf("after a bad %s the variables are %q and %q", field, a, b)
			}
		}
		for field, c := range map[string]sandbox.Change{"idle": {Idle: new(time.Hour)}, "name": {Name: new("a name")}} {
			c.Labels = map[string]string{"b": "2"}
			if err := u.Update(t.ctx, c); err == nil { // it is a Keeper's
				t.ok("Update of the labels", u.Update(t.ctx, sandbox.Change{Labels: labels}))
			} else {
				t.kind("Update of the "+field, err, field, sandbox.Unsupported)
				t.has("after a refused "+field, sb, labels, hour)
			}
		}
		c := good()
		t.ok("Update of all", u.Update(t.ctx, c))
		t.has("changed,", sb, c.Labels, *c.Expires)
		if a, b := t.variable(sb, "SUITE_OLD"), t.variable(sb, "SUITE_NEW"); a != "new" || b != "new" {
			t.errorf("changed, the variables are %q and %q", a, b)
		}
	}},
	{name: "UpdatesComeOneAfterTheOther", says: "Of updates that come together one is the last, in all that it changes.", shell: true, check: func(t *T) {
		sb, u := t.updater(nil)
		for range times(2) {
			const n = 12
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				v := fmt.Sprint(i)
				wg.Go(func() {
					errs[i] = u.Update(t.ctx, sandbox.Change{Labels: map[string]string{"v": v}, Env: map[string]string{"SUITE_V": v}})
				})
			}
			wg.Wait()
			t.ok("12 updates at once", errors.Join(errs...))
			i, err := sb.Info(t.ctx)
			t.ok("Info", err)
			if got := t.variable(sb, "SUITE_V"); got != i.Labels["v"] {
				t.fatalf("the environment is that of update %s, the labels are those of %s", got, i.Labels["v"])
			}
		}
	}},
	{name: "UpdateOfTheGone", says: "Once the sandbox is gone Update is NotExist.", check: func(t *T) {
		sb, u := t.updater(nil)
		t.ok("Remove", sb.Remove(t.ctx))
		for what, c := range map[string]sandbox.Change{
			"nothing": {},
			"expires": {Expires: new(time.Now().Add(time.Hour))},
			"labels":  {Labels: map[string]string{"a": "1"}},
			"env":     {Env: map[string]string{"A": "1"}},
		} {
			t.kind("Update of "+what, u.Update(t.ctx, c), "", sandbox.NotExist)
		}
	}},
}
