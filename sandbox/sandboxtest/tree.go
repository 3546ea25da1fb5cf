package sandboxtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// trees are the ways in which a descendant can get away. Each script makes
// one that sleeps, writes pids to the file pids, and goes on itself.
var trees = []struct {
	name   string
	pids   int
	script string
}{
	{"child", 2, `sleep 3600 & echo $! >> pids; echo $$ >> pids; wait`},
	{"stubborn child", 2, `sh -c 'trap "" TERM HUP INT QUIT; echo $$ >> pids; while :; do sleep 3600; done' & trap "" TERM HUP INT QUIT; echo $$ >> pids; while :; do sleep 3600; done`},
	{"orphan", 2, `sh -c '(sh -c "echo \$\$ >> pids; exec sleep 3600" &) ; exit 0'; echo $$ >> pids; sleep 3600`},
	{"session of its own", 2, `setsid sh -c 'echo $$ >> pids; exec sleep 3600' & echo $$ >> pids; sleep 3600`},
	{"daemon", 2, `setsid sh -c '(trap "" TERM HUP INT; sh -c "echo \$\$ >> pids; exec sleep 3600" </dev/null >/dev/null 2>&1 &) ; exit 0'; echo $$ >> pids; sleep 3600`},
	{"nohup", 2, `nohup sh -c 'echo $$ >> pids; exec sleep 3600' >/dev/null 2>&1 & echo $$ >> pids; sleep 3600`},
	{"stopped child", 2, `sh -c 'echo $$ >> pids; kill -STOP $$; sleep 3600' & echo $$ >> pids; sleep 3600`},
}

// grow starts each tree, one after the other, and has end end it. Then all
// that it was has to be gone.
func grow(t *T, cmd func(script string) sandbox.Cmd, end func(cancel func(), p sandbox.Process)) {
	t.t.Helper()
	i, err := t.sb.Info(t.ctx)
	t.ok("Info", err)
	for n, tree := range trees {
		dir := fmt.Sprintf("%s/%d", t.dir(), n)
		t.ok("Mkdir", t.sb.Files().Mkdir(t.ctx, dir, sandbox.MkdirOptions{}))
		c := cmd(tree.script)
		c.Dir = dir
		ctx, cancel := context.WithCancel(t.ctx)
		p, err := t.sb.Start(ctx, c)
		t.ok("Start", err)
		pids := t.pids(dir+"/pids", tree.pids)
		for _, pid := range pids {
			if !t.alive(pid) {
				t.errorf("%s: %s is dead before its time", tree.name, pid)
			}
		}
		end(cancel, p)
		t.wait(p)
		for _, pid := range pids {
			if !i.Isolation.Holds(sandbox.KillTree) && tree.name != "child" {
				continue // it says that it cannot
			}
			t.until(fmt.Sprintf("the %s's process %s to be gone", tree.name, pid), func() bool { return !t.alive(pid) })
		}
		cancel()
	}
}

func plainScript(script string) sandbox.Cmd { return sandbox.Cmd{Args: []string{"sh", "-c", script}} }

var treeClaims = []claim{
	{name: "CancelEndsTheProcess", says: "The process lives until ctx ends; Wait's error is then the context's.", check: func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
		t.ok("Start", err)
		cancel()
		_, err = t.wait(p)
		t.canceled("Wait", err)
	}},
	{name: "DeadlineEndsTheProcess", says: "It is the context's error when the context given to Start ended first.", check: func(t *T) {
		ctx, cancel := context.WithTimeout(t.ctx, 100*time.Millisecond)
		defer cancel()
		p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
		if err == nil {
			_, err = t.wait(p)
		}
		t.canceled("Wait", err)
	}},
	{name: "CancelKillsTheTree", says: "When ctx ends its whole tree is killed: every descendant, whether it changed its session, lost its parent or ignores signals.", shell: true, check: func(t *T) {
		grow(t, plainScript, func(cancel func(), p sandbox.Process) { cancel() })
	}},
	{name: "CancelMayComeAtAnyTime", says: "The process lives until ctx ends, even if that is while it starts.", shell: true, check: func(t *T) {
		t.write(t.dir()+"/pids", "")
		for i := range times(30) {
			ctx, cancel := context.WithCancel(t.ctx)
			go func() {
				time.Sleep(time.Duration(i%30) * 150 * time.Microsecond)
				cancel()
			}()
			p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sh", "-c", "echo $$ >> pids; exec sleep 3600"}, Dir: t.dir(), Stdin: newNoise(1 << 20), Stdout: &sink{}})
			if err == nil {
				_, err = t.wait(p)
			}
			t.canceled("Start and Wait", err)
		}
		t.until("every process to be gone", func() bool {
			for _, pid := range strings.Fields(t.read(t.dir() + "/pids")) {
				if t.alive(pid) {
					return false
				}
			}
			return true
		})
	}},
	{name: "CancelWhileReadingKillsTheTree", says: "When ctx ends its whole tree is killed, whatever its streams do.", shell: true, check: func(t *T) {
		in := newTap()
		t.after(in.end)
		ctx, cancel := context.WithCancel(t.ctx)
		p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sh", "-c", "echo $$ >> pids; cat"}, Stdin: in, Stdout: &sink{}, Dir: t.dir()})
		t.ok("Start", err)
		pid := t.pids(t.dir()+"/pids", 1)[0]
		cancel()
		_, err = t.wait(p)
		t.canceled("Wait", err)
		t.until("the reader to be gone", func() bool { return !t.alive(pid) })
	}},
	{name: "TimeoutKillsTheTree", says: "When Timeout passes its whole tree is killed.", shell: true, check: func(t *T) {
		p := t.start(sandbox.Cmd{
			Args:    []string{"sh", "-c", `sleep 3600 & echo $! >> pids; setsid sh -c '(trap "" TERM HUP INT; sh -c "echo \$\$ >> pids; exec sleep 3600" </dev/null >/dev/null 2>&1 &) ; exit 0'; trap "" TERM; echo $$ >> pids; while :; do sleep 3600; done`},
			Dir:     t.dir(),
			Timeout: 2 * time.Second,
		})
		pids := t.pids(t.dir()+"/pids", 3)
		if exit, err := t.wait(p); err != nil || exit.Reason != sandbox.TimedOut {
			t.errorf("ended with %+v, %v", exit, err)
		}
		for _, pid := range pids {
			t.until("all of the tree to be gone", func() bool { return !t.alive(pid) })
		}
	}},
	{name: "TimeoutIsAResult", says: "Timeout, if positive, is how long the process may run. Then the Exit's Reason is TimedOut, and the error is nil.", shell: true, check: func(t *T) {
		var out sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo before; sleep 3600"}, Stdout: &out, Timeout: 500 * time.Millisecond}))
		if err != nil || exit.Reason != sandbox.TimedOut || exit.Code != -1 || exit.Status() != 124 {
			t.errorf("ended with %+v, %v", exit, err)
		}
		if out.String() != "before\n" {
			t.errorf("printed %q", out.String())
		}
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"true"}, Timeout: time.Hour}))
		if err != nil || !exit.Success() {
			t.errorf("true within its time ended with %+v, %v", exit, err)
		}
	}},
	{name: "KillGoesToTheTree", says: "KILL goes to the whole tree.", shell: true, check: func(t *T) {
		grow(t, plainScript, func(_ func(), p sandbox.Process) { t.ok("Signal", p.Signal(t.ctx, sandbox.KILL)) })
	}},
	{name: "SignalGoesToTheGroup", says: "Signal sends sig to the process and its process group.", shell: true, check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", `sleep 3600 & echo $! >> pids; setsid sh -c 'echo $$ >> apart; exec sleep 3600' & echo $$ >> pids; while :; do sleep 3600; done`}, Dir: t.dir()})
		apart := t.pids(t.dir()+"/apart", 1)[0]
		pids := t.pids(t.dir()+"/pids", 2)
		t.ok("Signal", p.Signal(t.ctx, sandbox.TERM))
		exit, err := t.wait(p)
		if err != nil || exit.Signal != sandbox.TERM {
			t.errorf("ended with %+v, %v", exit, err)
		}
		for _, pid := range pids {
			t.until("the group to be gone", func() bool { return !t.alive(pid) })
		}
		if !t.alive(apart) {
			t.errorf("TERM reached a process of another group")
		}
		t.run("kill", "-KILL", apart)
	}},
	{name: "KillLeavesOthersAlone", says: "The process's whole tree is killed, and nothing else.", shell: true, check: func(t *T) {
		dir := t.dir()
		other := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo $$ > other; exec sleep 3600"}, Dir: dir})
		pid := t.pids(dir+"/other", 1)[0]
		p := t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}})
		t.ok("Signal", p.Signal(t.ctx, sandbox.KILL))
		t.wait(p)
		ctx, cancel := context.WithCancel(t.ctx)
		q, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
		t.ok("Start", err)
		cancel()
		t.wait(q)
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}, Timeout: time.Millisecond}))
		if err != nil || exit.Reason != sandbox.TimedOut {
			t.errorf("sleep with a timeout ended with %+v, %v", exit, err)
		}
		if !t.alive(pid) {
			t.errorf("another command died along")
		}
		t.ok("Signal", other.Signal(t.ctx, sandbox.KILL))
	}},
	{name: "SurvivorHoldsNothing", says: "Wait does not wait for a descendant that still holds the output open.", shell: true, check: func(t *T) {
		var out, errs sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "sleep 3600 & echo $!"}, Stdin: newNoise(1 << 20), Stdout: &out, Stderr: &errs})
		exit, err := t.wait(p)
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v", exit, err)
		}
		pid := out.String()
		if len(pid) < 2 {
			t.fatalf("it printed %q, want a pid", pid)
		}
		pid = pid[:len(pid)-1]
		if !t.alive(pid) {
			t.errorf("the background child is dead when Wait has returned")
		}
		t.run("kill", "-KILL", pid)
	}},
	{name: "SurvivorStays", says: "A descendant that is still alive when the process itself has exited stays, and belongs to the sandbox.", shell: true, check: func(t *T) {
		// It prints when nobody reads any more, and must not die of it.
		dir := t.dir()
		ctx, cancel := context.WithCancel(t.ctx)
		var out sink
		p, err := t.sb.Start(ctx, sandbox.Cmd{
			Args:    []string{"sh", "-c", `(echo started > state; while [ ! -e go ]; do sleep 0.05; done; i=0; while [ $i -lt 300 ]; do printf '%1000d\n' $i; printf '%1000d\n' $i >&2; i=$((i+1)); done; echo done > done) & while [ ! -e state ]; do sleep 0.02; done`},
			Dir:     dir,
			Stdout:  &out,
			Stderr:  &out,
			Timeout: time.Hour,
		})
		t.ok("Start", err)
		exit, err := t.wait(p)
		out.seal()
		cancel()
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v", exit, err)
		}
		// Another command in between: what the end of ctx might do is done.
		t.run("true")
		t.write(dir+"/go", "")
		t.until("the background child to print 600 kB that nobody reads, and to live on", func() bool { return t.exists(dir + "/done") })
		if w := out.misuse(); w != "" {
			t.errorf("the Writer was misused: %s", w)
		}
	}},
}
