package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
)

// What LangBot's Box runtime and service promise their callers.

func TestANameGetsTheSandboxThatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		first, made := acquire(t, e, sandbox.Spec{Name: "person 张三"})
		if !made {
			t.Error("the first was not made")
		}
		run(t, first, "echo kept > /workspace/f")
		second, made := acquire(t, e, sandbox.Spec{Name: "person 张三", Env: map[string]string{"A": "1"}, Workdir: "/tmp", Labels: map[string]string{"a": "b"}})
		if made || second.ID() != first.ID() {
			t.Errorf("got %s, made %v, want %s", second.ID(), made, first.ID())
		}
		if got := run(t, second, "cat /workspace/f"); got != "kept\n" {
			t.Errorf("the file holds %q", got)
		}
		other, made := acquire(t, e, sandbox.Spec{Name: "person 李四"})
		if !made || other.ID() == first.ID() {
			t.Error("another name got the same sandbox")
		}
	})
}

func TestADifferenceIsAConflictThatNamesItAndBothValues(t *testing.T) {
	base := sandbox.Spec{Name: "s", Image: "one", Network: sandbox.NetworkOff, Limits: sandbox.Limits{CPU: 1, Memory: 512 << 20, PIDs: 128, Disk: 1 << 30, Workspace: 1 << 20},
		Mounts: []sandbox.Mount{{Source: "/srv/a", Target: "/w"}}, Idle: minute, User: "root"}
	for _, c := range []struct {
		field      string
		change     func(*sandbox.Spec)
		have, want string
	}{
		{"network", func(s *sandbox.Spec) { s.Network = sandbox.NetworkOn }, "off", "on"},
		{"image", func(s *sandbox.Spec) { s.Image = "two" }, "one", "two"},
		{"user", func(s *sandbox.Spec) { s.User = "nobody" }, "root", "nobody"},
		{"mounts", func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/srv/b", Target: "/w"}} }, "/srv/a:/w:rw", "/srv/b:/w:rw"},
		{"mounts", func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/srv/a", Target: "/v"}} }, "/srv/a:/w:rw", "/srv/a:/v:rw"},
		{"mounts", func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: "/srv/a", Target: "/w", ReadOnly: true}}
		}, "/srv/a:/w:rw", "/srv/a:/w:ro"},
		{"idle", func(s *sandbox.Spec) { s.Idle = -1 }, "1m0s", "never"},
		{"limits.cpu", func(s *sandbox.Spec) { s.Limits.CPU = 0.5 }, "1", "0.5"},
		{"limits.memory", func(s *sandbox.Spec) { s.Limits.Memory = 256 << 20 }, "536870912", "268435456"},
		{"limits.pids", func(s *sandbox.Spec) { s.Limits.PIDs = 64 }, "128", "64"},
		{"limits.disk", func(s *sandbox.Spec) { s.Limits.Disk = 2 << 30 }, "1073741824", "2147483648"},
		{"limits.workspace", func(s *sandbox.Spec) { s.Limits.Workspace = 0 }, "1048576", "none"},
		{"read_only_root", func(s *sandbox.Spec) { s.ReadOnlyRoot = true }, "false", "true"},
		{"profile", func(s *sandbox.Spec) { s.Profile = "other" }, "native", "other"},
	} {
		t.Run(c.field, func(t *testing.T) {
			set, err := profile.NewSet(profile.Profile{Name: "other"})
			if err != nil {
				t.Fatal(err)
			}
			b := newBelow()
			b.Runtime = bare{b.Runtime} // the memory backend has not all of this
			e := start(t, b, engine.Config{MountRoots: []string{"/srv"}, Profiles: set})
			first, _ := acquire(t, e, base)
			spec := base
			c.change(&spec)
			_, _, err = e.Acquire(t.Context(), spec)
			got := refused(t, err, sandbox.Conflict, c.field)
			if !strings.Contains(got.Msg, c.have) || !strings.Contains(got.Msg, c.want) {
				t.Errorf("the message is %q, want %s and %s in it", got.Msg, c.have, c.want)
			}
			if again, made := acquire(t, e, base); made || again.ID() != first.ID() {
				t.Error("the conflict changed the sandbox")
			}
		})
	}
}

// bare makes sandboxes of nothing, whatever is asked for.
type bare struct{ sandbox.Runtime }

func (r bare) Create(ctx context.Context, _ sandbox.Spec) (sandbox.Sandbox, error) {
	return r.Runtime.Create(ctx, sandbox.Spec{})
}

func TestOtherExtraMountsMakeItAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{MountRoots: []string{"/srv"}})
		mount := func(names ...string) (ms []sandbox.Mount) {
			for _, n := range names {
				ms = append(ms, sandbox.Mount{Source: "/srv/" + n, Target: "/skills/" + n, Extra: true})
			}
			return ms
		}
		first, _ := acquire(t, e, sandbox.Spec{Name: "s", Mounts: mount("a", "b")})
		if same, made := acquire(t, e, sandbox.Spec{Name: "s", Mounts: mount("b", "a")}); made || same.ID() != first.ID() {
			t.Error("the same mounts in another order made it anew")
		}
		second, made := acquire(t, e, sandbox.Spec{Name: "s", Mounts: mount("a")})
		if !made || second.ID() == first.ID() {
			t.Error("other mounts did not make it anew")
		}
		if g := gone(t, e, first.ID(), sandbox.Replaced); g.By != sandbox.Operator {
			t.Errorf("replaced by %q", g.By)
		}
		if n := len(b.all(t)); n != 1 {
			t.Errorf("there are %d sandboxes below, want 1", n)
		}
	})
}

func TestIdleTime(t *testing.T) {
	const idle = 300 * time.Second
	claims := map[string]func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox){
		"removes what nobody uses": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			time.Sleep(idle - time.Second)
			if _, ok := e.Peek(sb.ID()); !ok {
				t.Fatal("it went too early")
			}
			time.Sleep(2 * time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
		"begins anew with each use": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			for range 5 {
				time.Sleep(idle - time.Second)
				run(t, sb, "true")
			}
			time.Sleep(idle + time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
		"spares a sandbox whose command runs": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			_, end := background(t, sb, "sleep", "100000")
			time.Sleep(10 * idle)
			if _, ok := e.Peek(sb.ID()); !ok {
				t.Fatal("it went while its command ran")
			}
			end()
			time.Sleep(idle + time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
		"spares a sandbox whose detached process runs": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			d := sb.(sandbox.Detacher)
			if _, err := d.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sleep", "3000"}}, sandbox.DetachOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2900 * time.Second)
			if _, ok := e.Peek(sb.ID()); !ok {
				t.Fatal("it went while its detached process ran")
			}
			time.Sleep(100*time.Second + 2*idle + 2*time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
		"spares a sandbox one of whose files is open": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			if err := sandbox.WriteFile(t.Context(), sb, "/workspace/f", []byte("x")); err != nil {
				t.Fatal(err)
			}
			f, err := sb.Files().Open(t.Context(), "/workspace/f", sandbox.Range{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * idle)
			if _, ok := e.Peek(sb.ID()); !ok {
				t.Fatal("it went while its file was open")
			}
			f.Close()
			f.Close() // which is no second end of the use
			time.Sleep(idle + time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
		"can be changed": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			if err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Idle: new(time.Minute)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute + time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
		"is no use when one looks": func(t *testing.T, e *engine.Engine, sb sandbox.Sandbox) {
			for range 10 {
				time.Sleep(idle / 10)
				sb.Info(t.Context())
				sb.(sandbox.Meter).Usage(t.Context())
				sb.(sandbox.Detacher).Processes(t.Context())
				e.Peek(sb.ID())
				for range e.List(t.Context()) {
				}
			}
			time.Sleep(time.Second)
			gone(t, e, sb.ID(), sandbox.Unused)
		},
	}
	for name, claim := range claims {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBelow()
				e := start(t, b, engine.Config{})
				sb, _ := acquire(t, e, sandbox.Spec{Name: "s", Idle: idle})
				claim(t, e, sb)
				if n := len(b.all(t)); n != 0 {
					t.Errorf("there are %d sandboxes below", n)
				}
				if _, made := acquire(t, e, sandbox.Spec{Name: "s"}); !made {
					t.Error("the name is not free again")
				}
			})
		})
	}
	t.Run("never comes to the persistent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			set, err := profile.NewSet(profile.Profile{Name: "short", Idle: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			e := start(t, newBelow(), engine.Config{Profiles: set, Classes: map[string]engine.Class{"": {Profile: "short"}}})
			kept, _ := acquire(t, e, sandbox.Spec{Name: "kept", Idle: -1})
			lost, _ := acquire(t, e, sandbox.Spec{Name: "lost"})
			time.Sleep(1000 * time.Hour)
			if _, ok := e.Peek(kept.ID()); !ok {
				t.Error("the persistent one went")
			}
			if _, ok := e.Peek(lost.ID()); ok {
				t.Error("the other stayed")
			}
		})
	})
}

func TestTimeToLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{})
		sb, err := e.Create(t.Context(), sandbox.Spec{Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		p, end := background(t, sb, "sleep", "100000") // which does not save it
		defer end()
		time.Sleep(time.Hour - time.Second)
		if err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Expires: new(time.Now().Add(time.Hour))}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - time.Second)
		if _, ok := e.Peek(sb.ID()); !ok {
			t.Fatal("it went in spite of the change")
		}
		time.Sleep(2 * time.Second)
		gone(t, e, sb.ID(), sandbox.Expired)
		if _, err := p.Wait(); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("the command ended with %v", err)
		}
	})
}

func TestCapacityRefusesAndEvictsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{Classes: map[string]engine.Class{"box": {MaxLive: 64}}})
		v := e.View("alice", "box")
		var all []sandbox.Sandbox
		for _, name := range names(64) {
			sb, _ := acquire(t, v, sandbox.Spec{Name: name})
			all = append(all, sb)
		}
		_, _, err := v.Acquire(t.Context(), sandbox.Spec{Name: "one more"})
		if got := refused(t, err, sandbox.Exhausted, ""); !strings.Contains(got.Msg, "64") {
			t.Errorf("the message is %q", got.Msg)
		}
		for _, sb := range all {
			if _, ok := v.Peek(sb.ID()); !ok {
				t.Error("one was evicted")
			}
		}
		// Those of another protocol do not count.
		acquire(t, e.View("alice", "other"), sandbox.Spec{Name: "elsewhere"})

		// One that is going counts until it is gone.
		going, hold := make(chan struct{}), make(chan struct{})
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { close(going); <-hold; return nil }
		})
		var wg sync.WaitGroup
		wg.Go(func() { all[0].Remove(t.Context()) })
		<-going
		_, _, err = v.Acquire(t.Context(), sandbox.Spec{Name: "one more"})
		refused(t, err, sandbox.Exhausted, "")
		b.with(func(b *below) { b.onRemove = nil })
		close(hold)
		wg.Wait()
		acquire(t, v, sandbox.Spec{Name: "one more"})
	})
}

func TestASlowOneKeepsNobodyElseWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		hold := make(chan struct{})
		b.with(func(b *below) {
			b.onCreate = func(ctx context.Context, s sandbox.Spec) error {
				if s.Image == "slow" {
					<-hold
					return sandbox.Errorf(sandbox.Unavailable, "", "no luck")
				}
				return nil
			}
		})
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, _, err := e.Acquire(t.Context(), sandbox.Spec{Name: "slow", Image: "slow"})
				errs <- err
			}()
		}
		synctest.Wait()
		acquire(t, e, sandbox.Spec{Name: "quick"})
		// Who waits for the name may give up.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := e.Acquire(ctx, sandbox.Spec{Name: "slow"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the context's error", err)
		}
		close(hold)
		for range 2 {
			refused(t, <-errs, sandbox.Unavailable, "")
		}
		// Nothing is left of what failed, and the name is free.
		acquire(t, e, sandbox.Spec{Name: "slow"})
		if n := len(b.all(t)); n != 2 {
			t.Errorf("there are %d below, want 2", n)
		}
	})
}

func TestASlowRemovalBlocksItsNameAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{})
		first, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		hold := make(chan struct{})
		b.with(func(b *below) {
			b.onRemove = func(context.Context, sandbox.ID) error { <-hold; return nil }
		})
		var wg sync.WaitGroup
		wg.Go(func() { first.Remove(t.Context()) })
		synctest.Wait()
		acquire(t, e, sandbox.Spec{Name: "another"})
		var second sandbox.Sandbox
		wg.Go(func() { second, _ = acquire(t, e, sandbox.Spec{Name: "s"}) })
		synctest.Wait()
		if second != nil {
			t.Error("it was made while the old one was still going")
		}
		gone(t, e, first.ID(), sandbox.Removed)
		close(hold)
		wg.Wait()
		if second.ID() == first.ID() {
			t.Error("the new one has the old one's id")
		}
	})
}

func TestQuota(t *testing.T) {
	set, err := profile.NewSet(profile.Profile{Name: "soft"}, profile.Profile{Name: "hard", OverQuota: profile.Remove})
	if err != nil {
		t.Fatal(err)
	}
	fill := func(t *testing.T, prof string) (*engine.Engine, sandbox.Sandbox) {
		e := start(t, newBelow(), engine.Config{Profiles: set})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s", Profile: prof, Limits: sandbox.Limits{Workspace: 1000}})
		run(t, sb, "mkdir -p /workspace/a/b; head -c 999 /dev/zero > /workspace/a/b/f; ln -s x /workspace/l")
		exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo more > /workspace/a/g"}})
		got := refused(t, err, sandbox.Exhausted, "limits.workspace")
		if !exit.Success() || !strings.Contains(got.Msg, "after the command") {
			t.Errorf("exit %v, message %q", exit, got.Msg)
		}
		return e, sb
	}
	t.Run("refuses until there is room again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, sb := fill(t, "soft")
			_, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"true"}})
			if got := refused(t, err, sandbox.Exhausted, "limits.workspace"); !strings.Contains(got.Msg, "before the command") {
				t.Errorf("the message is %q", got.Msg)
			}
			_, err = sb.(sandbox.Detacher).StartDetached(t.Context(), sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{})
			refused(t, err, sandbox.Exhausted, "limits.workspace")
			if err := sb.Files().Remove(t.Context(), "/workspace/a", true); err != nil {
				t.Fatal(err)
			}
			run(t, sb, "true")
		})
	})
	t.Run("removes where the profile says so", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e, sb := fill(t, "hard")
			gone(t, e, sb.ID(), sandbox.OverQuota)
			if _, made := acquire(t, e, sandbox.Spec{Name: "s", Profile: "hard", Limits: sandbox.Limits{Workspace: 1000}}); !made {
				t.Error("it was not made anew")
			}
		})
	})
}

func TestTheLastFiftyErrorsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, newBelow(), engine.Config{})
		alice, bob := e.View("alice", "box"), e.View("bob", "box")
		for i := range 60 {
			time.Sleep(time.Second)
			alice.Open(t.Context(), sandbox.ID(fmt.Sprintf("nosuchsandbox%02d", i)))
		}
		time.Sleep(time.Second)
		bob.Open(t.Context(), "bobsandbox")
		s, err := alice.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(s.Errors); n != 50 {
			t.Fatalf("there are %d", n)
		}
		if f := s.Errors[0]; f.Sandbox != "nosuchsandbox59" || f.Kind != sandbox.NotExist || f.Owner != "alice" || f.Message == "" || !f.At.Before(time.Now().Add(time.Nanosecond)) {
			t.Errorf("the newest is %+v", f)
		}
		if f := s.Errors[49]; f.Sandbox != "nosuchsandbox10" {
			t.Errorf("the oldest is %+v", f)
		}
		if s, err = e.Status(t.Context()); err != nil || len(s.Errors) != 50 || s.Errors[0].Owner != "bob" {
			t.Errorf("the operator sees %v, %v", s.Errors, err)
		}
	})
}

func TestStatusSaysWhetherTheBackendWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBelow()
		e := start(t, b, engine.Config{MaxLive: 7})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		other, _ := acquire(t, e.View("alice", "box"), sandbox.Spec{Name: "s"})
		if err := other.(sandbox.Releaser).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, end := background(t, sb, "sleep", "1000")
		defer end()
		s, err := e.Status(t.Context())
		if err != nil || !s.Available || s.Live != 2 || s.Busy != 1 || s.Released != 1 || s.MaxLive != 7 || s.Reason != "" {
			t.Errorf("status %+v, %v", s, err)
		}
		if s, err := e.View("alice", "box").Status(t.Context()); err != nil || s.Live != 1 || s.Busy != 0 {
			t.Errorf("alice's status %+v, %v", s, err)
		}
		b.with(func(b *below) {
			b.onList = func(context.Context) error {
				return sandbox.Errorf(sandbox.Unavailable, "", "the socket is closed")
			}
		})
		if s, err = e.Status(t.Context()); err != nil || s.Available || s.Reason != "the socket is closed" || len(s.Backends) != 1 || s.Backends[0].Available {
			t.Errorf("status %+v, %v", s, err)
		}
		b.with(func(b *below) {
			b.onList = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		})
		if s, err = e.Status(t.Context()); err != nil || s.Available {
			t.Errorf("of a backend that does not answer: %+v, %v", s, err)
		}
	})
}

func TestAProfileBoundsCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := profile.NewSet(profile.Profile{Name: "tight", Timeout: 30 * time.Second, MaxTimeout: time.Minute, MaxOutput: 100, MaxJobs: 2, MaxRing: 4096})
		if err != nil {
			t.Fatal(err)
		}
		e := start(t, newBelow(), engine.Config{Profiles: set, Classes: map[string]engine.Class{"": {Profile: "tight"}}})
		sb, _ := acquire(t, e, sandbox.Spec{Name: "s"})
		for timeout, want := range map[time.Duration]time.Duration{0: 30 * time.Second, 10 * time.Second: 10 * time.Second, time.Hour: time.Minute} {
			begun := time.Now()
			exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"sleep", "10000"}, Timeout: timeout})
			if err != nil || exit.Reason != sandbox.TimedOut || time.Since(begun) != want {
				t.Errorf("with a timeout of %v: %v, %v after %v, want one after %v", timeout, exit, err, time.Since(begun), want)
			}
		}
		r, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"sh", "-c", "head -c 200 /dev/zero; echo done > /workspace/done"}})
		refused(t, err, sandbox.Exhausted, "stdout")
		if len(r.Stdout) != 100 {
			t.Errorf("got %d bytes", len(r.Stdout))
		}
		if got := run(t, sb, "cat /workspace/done"); got != "done\n" {
			t.Error("the command did not go on")
		}
		d := sb.(sandbox.Detacher)
		var last sandbox.ProcessID
		for range 2 {
			if last, err = d.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{Ring: 1 << 20}); err != nil {
				t.Fatal(err)
			}
		}
		_, err = d.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{})
		refused(t, err, sandbox.Exhausted, "")
		synctest.Wait()
		if err := d.Forget(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		if _, err = d.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{}); err != nil {
			t.Error(err)
		}
	})
}
