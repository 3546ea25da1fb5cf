package sandboxtest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// descriptors prints which of the descriptors that a shell can name beside the
// standard streams are open.
const descriptors = `for n in 3 4 5 6 7 8 9; do if (eval "echo x >&$n") 2>/dev/null; then echo $n; fi; done`

var controlClaims = []claim{
	{name: "ControlGetsDescriptorThree", says: "Control gets what the process writes to its descriptor 3, which is a pipe of its own.", shell: true, check: func(t *T) {
		var out, errs, control sink
		// Where a program has it from its parent, it is the same pipe.
		const script = `i=0; while [ $i -lt 500 ]; do echo $i; echo e$i >&2; echo c$i >&3; i=$((i+1)); done; sh -c 'echo inner >&3'`
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs, Control: &control}))
		control.seal()
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v, and said %q", exit, err, errs.String())
		}
		var want [3]strings.Builder
		for i := range 500 {
			fmt.Fprintf(&want[0], "%d\n", i)
			fmt.Fprintf(&want[1], "e%d\n", i)
			fmt.Fprintf(&want[2], "c%d\n", i)
		}
		want[2].WriteString("inner\n")
		for i, s := range []*sink{&out, &errs, &control} {
			if s.String() != want[i].String() {
				t.errorf("descriptor %d gave %d bytes, want %d, or others", i+1, len(s.String()), want[i].Len())
			}
		}
		if w := control.misuse(); w != "" {
			t.errorf("the Writer was misused: %s", w)
		}
		// It is there without the other two, and there is no further one.
		var alone sink
		var list sink
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo alone >&3"}, Control: &alone}))
		if err != nil || !exit.Success() || alone.String() != "alone\n" {
			t.errorf("without other Writers it gave %q and ended with %+v, %v", alone.String(), exit, err)
		}
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", descriptors}, Stdout: &list, Control: io.Discard}))
		if err != nil || !exit.Success() || list.String() != "3\n" {
			t.errorf("the descriptors above 2 are %q, want 3 alone; it ended with %+v, %v", list.String(), exit, err)
		}
	}},
	{name: "ControlIsBytes", says: "Control gets bytes as they are, and Wait returns after what the process itself wrote there.", shell: true, check: func(t *T) {
		want, got := sha256.New(), sha256.New()
		io.Copy(want, newNoise(large/4))
		n := &counter{w: got}
		var all []byte
		for i := range 256 {
			all = append(all, byte(i), '\r', '\n', byte(255-i))
		}
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "cat >&3"}, Stdin: newNoise(large / 4), Control: n}))
		if err != nil || !exit.Success() {
			t.fatalf("cat ended with %+v, %v", exit, err)
		}
		if n.n != large/4 || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.errorf("%d bytes came, want %d; or they differ", n.n, large/4)
		}
		var small sink
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "cat >&3"}, Stdin: bytes.NewReader(all), Control: &slowly{w: &small}}))
		small.seal()
		if err != nil || !exit.Success() || small.String() != string(all) {
			t.errorf("cat ended with %+v, %v and gave %d bytes, want %d unchanged", exit, err, len(small.String()), len(all))
		}
	}},
	{name: "ControlGoesBesideTheOthers", says: "Control, Stdout and Stderr are read at the same time: who writes now here, now there waits for nobody.", shell: true, check: func(t *T) {
		const size = 200_000 // more than a pipe holds
		var out, errs, control counterSink
		script := fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&3; head -c %d /dev/zero >&2; head -c %d /dev/zero >&3; head -c %d /dev/zero", size, size, size, size, size)
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errs, Control: &control}))
		if err != nil || !exit.Success() || out.n != 2*size || errs.n != size || control.n != 2*size {
			t.errorf("ended with %+v, %v; %d, %d and %d bytes came, want %d, %d and %d", exit, err, out.n, errs.n, control.n, 2*size, size, 2*size)
		}
	}},
	{name: "NoControlNoDescriptorThree", says: "With nil there is no descriptor 3.", shell: true, check: func(t *T) {
		var out sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", descriptors}, Stdout: &out}))
		if err != nil || !exit.Success() || out.String() != "" {
			t.errorf("the descriptors above 2 are %q, want none; it ended with %+v, %v", out.String(), exit, err)
		}
	}},
	{name: "ControlHeldIsNotWaitedFor", says: "Wait waits for no descendant that still holds descriptor 3, and what that writes later goes nowhere.", shell: true, check: func(t *T) {
		var out, control sink
		const script = `(while [ ! -e go ]; do sleep 0.05; done; i=0; while [ $i -lt 300 ]; do printf '%1000d\n' $i >&3; i=$((i+1)); done; echo done > done) & echo $!; printf %60000s x >&3; echo end >&3`
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", script}, Dir: t.dir(), Stdout: &out, Control: &control}))
		control.seal()
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v", exit, err)
		}
		if got := control.String(); len(got) != 60004 || !strings.HasSuffix(got, "end\n") {
			t.errorf("when Wait returned %d bytes had come, want 60004", len(got))
		}
		if pid := strings.TrimSpace(out.String()); !t.alive(pid) {
			t.errorf("the background child is dead when Wait has returned")
		}
		t.write(t.dir()+"/go", "")
		t.until("the child to have written what nobody reads", func() bool { return t.exists(t.dir() + "/done") })
		if w := control.misuse(); w != "" {
			t.errorf("the Writer was misused: %s", w)
		}
	}},
	{name: "SlowControlSlowsTheProcess", says: "A slow Control slows the process, and loses nothing.", shell: true, check: func(t *T) {
		g := newGate()
		opened := sync.OnceFunc(func() { close(g.open) })
		t.after(opened)
		const n = 64 << 20
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero >&3; touch %s/done", n, t.dir())}, Control: g})
		<-g.first
		t.never("the process wrote 64 MiB to a writer that stood still", func() bool { return t.exists(t.dir() + "/done") })
		opened()
		exit, err := t.wait(p)
		if err != nil || !exit.Success() || g.n.Load() != n {
			t.errorf("ended with %+v, %v; %d bytes came, want %d", exit, err, g.n.Load(), n)
		}
	}},
	{name: "ControlErrorIsReported", says: "The error is the first error of a Writer, Control included, whose stream is then discarded, while the process goes on.", shell: true, check: func(t *T) {
		var out sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "head -c 1000000 /dev/zero >&3; echo $?"}, Stdout: &out, Control: writerFunc(func([]byte) (int, error) { return 0, errFlow })})
		exit, err := t.wait(p)
		if !errors.Is(err, errFlow) || !exit.Success() {
			t.errorf("Wait: %+v, %v, want success and the Writer's error", exit, err)
		}
		if out.String() != "0\n" {
			t.errorf("head ended with %q, want it to have written all", out.String())
		}
	}},
	{name: "ControlBesideATerminal", says: "Control has a pipe of its own beside a terminal.", shell: true, check: func(t *T) {
		var out, control sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "test -t 1 && echo shown; test -t 3 || printf 'a\\nb\\n' >&3; sh -c 'printf %70000s x >&3'"}, Stdout: &out, Control: &control, Terminal: &sandbox.Size{}})
		exit, err := t.wait(p)
		if err != nil || !exit.Success() || !strings.Contains(out.String(), "shown") {
			t.errorf("ended with %+v, %v and showed %q", exit, err, out.String())
		}
		if got := control.String(); len(got) != 70004 || !strings.HasPrefix(got, "a\nb\n ") {
			t.errorf("%d bytes came through descriptor 3, want 70004", len(got))
		}
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo alone >&3"}, Control: &control, Terminal: &sandbox.Size{}}))
		if err != nil || !exit.Success() || !strings.HasSuffix(control.String(), "alone\n") {
			t.errorf("with nobody to look at the terminal it ended with %+v, %v", exit, err)
		}
		var list sink
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", descriptors}, Stdout: &list, Terminal: &sandbox.Size{}}))
		if err != nil || !exit.Success() || list.String() != "" {
			t.errorf("the descriptors above 2 are %q, want none; it ended with %+v, %v", list.String(), exit, err)
		}
	}},
}

// counterSink counts what one goroutine at a time writes to it.
type counterSink struct{ n int }

func (c *counterSink) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}
