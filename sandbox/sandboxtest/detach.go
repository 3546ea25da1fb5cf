package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// detacher returns the shared sandbox's Detacher, or ends the claim.
func (t *T) detacher() sandbox.Detacher {
	t.t.Helper()
	d, ok := t.sb.(sandbox.Detacher)
	if !ok {
		t.lack()
	}
	if _, err := d.Processes(t.ctx); errors.Is(err, sandbox.Unsupported) {
		t.lack()
	}
	return d
}

// detach starts a detached script in the claim's directory. It is killed and
// forgotten when the claim ends.
func (t *T) detach(script string, opt sandbox.DetachOptions, change ...func(*sandbox.Cmd)) (sandbox.Detacher, sandbox.ProcessID) {
	t.t.Helper()
	d := t.detacher()
	cmd := sandbox.Cmd{Args: []string{"sh", "-c", script}, Dir: t.dir()}
	for _, c := range change {
		c(&cmd)
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel() // it outlives this
	id, err := d.StartDetached(ctx, cmd, opt)
	t.ok("StartDetached", err)
	t.after(func() {
		if p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{Cursor: -1}); err == nil {
			p.Signal(t.ctx, sandbox.KILL)
			p.Wait()
			d.Forget(t.ctx, id)
		}
	})
	return d, id
}

// all reads output from cursor on until the process has ended.
func (t *T) all(d sandbox.Detacher, id sandbox.ProcessID, cursor int64) (out, errs string, exit sandbox.Exit, dropped int64) {
	t.t.Helper()
	var o, e strings.Builder
	for {
		got, err := d.Output(t.ctx, id, cursor, 10_000, time.Second)
		t.ok("Output", err)
		n := int64(0)
		for _, c := range got.Chunks {
			n += int64(len(c.Data))
			if c.Stderr {
				e.Write(c.Data)
			} else {
				o.Write(c.Data)
			}
		}
		if n > 10_000 || got.Next != cursor+got.Dropped+n {
			t.fatalf("from %d Output gave %d bytes, dropped %d, next %d", cursor, n, got.Dropped, got.Next)
		}
		dropped += got.Dropped
		cursor = got.Next
		if got.Exit != nil {
			return o.String(), e.String(), *got.Exit, dropped
		}
	}
}

func (t *T) info(d sandbox.Detacher, id sandbox.ProcessID) (sandbox.ProcessInfo, bool) {
	t.t.Helper()
	ps, err := d.Processes(t.ctx)
	t.ok("Processes", err)
	for _, p := range ps {
		if p.ID == id {
			return p, true
		}
	}
	return sandbox.ProcessInfo{}, false
}

var detachClaims = []claim{
	{name: "DetachedOutlivesItsContext", says: "ctx bounds the starting alone.", shell: true, check: func(t *T) {
		d, id := t.detach("echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; echo went on; exit 5", sandbox.DetachOptions{})
		t.pids(t.dir()+"/pid", 1)
		t.run("true")
		if i, ok := t.info(d, id); !ok || i.Exit != nil || !i.Ended.IsZero() || i.Started.IsZero() || len(i.Args) != 3 {
			t.errorf("Processes says %+v, %v", i, ok)
		}
		t.write(t.dir()+"/go", "")
		out, _, exit, _ := t.all(d, id, 0)
		if out != "went on\n" || exit.Code != 5 || exit.Reason != sandbox.Exited {
			t.errorf("it printed %q and ended with %+v", out, exit)
		}
		if i, ok := t.info(d, id); !ok || i.Exit == nil || i.Exit.Code != 5 || i.Ended.IsZero() || i.Cursor != int64(len(out)) {
			t.errorf("Processes says %+v, %v", i, ok)
		}
	}},
	{name: "DetachedStreamsMustBeNil", says: "cmd.Stdin, Stdout, Stderr and Control must be nil (Invalid).", check: func(t *T) {
		d := t.detacher()
		for _, cmd := range []sandbox.Cmd{
			{Args: []string{"true"}, Stdin: strings.NewReader("")},
			{Args: []string{"true"}, Stdout: io.Discard},
			{Args: []string{"true"}, Stderr: io.Discard},
		} {
			_, err := d.StartDetached(t.ctx, cmd, sandbox.DetachOptions{})
			t.kind("StartDetached", err, "", sandbox.Invalid)
		}
		_, err := d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"true"}, Control: io.Discard}, sandbox.DetachOptions{})
		t.kind("StartDetached with a Control", err, "control", sandbox.Invalid)
		_, err = d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{Ring: 17 << 20})
		t.kind("StartDetached with a ring of 17 MiB", err, "", sandbox.Invalid)
		_, err = d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"no-such-program-anywhere"}}, sandbox.DetachOptions{})
		t.kind("StartDetached of nothing", err, "args", sandbox.NotExist)
		_, err = d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"true"}, Dir: "/no/such/dir"}, sandbox.DetachOptions{})
		t.kind("StartDetached nowhere", err, "dir", sandbox.NotExist)
	}},
	{name: "DetachedKeepsItsName", says: "Name is what the caller calls the process: up to 256 bytes, which come back in its ProcessInfo. It need not differ from others.", shell: true, check: func(t *T) {
		long := strings.Repeat("n\xff\x00\n", 64) // 256 bytes, not all of them text
		names := []string{"", "a name", "a name", "ünï/codé \U0001F600", long}
		ids := make([]sandbox.ProcessID, len(names))
		var d sandbox.Detacher
		for i, name := range names {
			d, ids[i] = t.detach("read x", sandbox.DetachOptions{Name: name, Stdin: true})
		}
		kept := func(when string, d sandbox.Detacher) {
			for i, name := range names {
				if p, ok := t.info(d, ids[i]); !ok || p.Name != name {
					t.errorf("%s the name is %q, want %q", when, p.Name, name)
				}
			}
		}
		kept("while it runs", d)
		sb, err := t.rt.Open(t.ctx, t.sb.ID())
		t.ok("Open", err)
		kept("in an opened sandbox", sb.(sandbox.Detacher))
		for _, id := range ids {
			_, err := d.Input(t.ctx, id, nil, true)
			t.ok("Input", err)
			t.all(d, id, 0)
		}
		kept("after the end", d)
		_, err = d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{Name: long + "x"})
		t.kind("StartDetached with a name of 257 bytes", err, "name", sandbox.Invalid)
	}},
	{name: "DetachedInputIsEmpty", says: "With opt.Stdin unset the process's standard input is empty.", shell: true, check: func(t *T) {
		d, id := t.detach("cat; echo over", sandbox.DetachOptions{})
		if out, _, exit, _ := t.all(d, id, 0); out != "over\n" || !exit.Success() {
			t.errorf("it printed %q and ended with %+v", out, exit)
		}
		_, err := d.Input(t.ctx, id, []byte("x"), false)
		t.kind("Input", err, "", sandbox.Conflict)
	}},
	{name: "DetachedOutputIsReadByCursor", says: "Output returns output that lies at or after cursor (0 is the very first byte), at most max bytes of it.", shell: true, check: func(t *T) {
		d, id := t.detach("echo 0123456789; echo errors >&2; echo last", sandbox.DetachOptions{})
		out, errs, exit, dropped := t.all(d, id, 0)
		if out != "0123456789\nlast\n" || errs != "errors\n" || !exit.Success() || dropped != 0 {
			t.errorf("stdout %q, stderr %q, %+v, dropped %d", out, errs, exit, dropped)
		}
		o, err := d.Output(t.ctx, id, 3, 4, 0)
		if err != nil || len(o.Chunks) != 1 || string(o.Chunks[0].Data) != "3456" || o.Next != 7 || o.Exit != nil || o.Dropped != 0 {
			t.errorf("Output of 4 bytes from 3: %+v, %v", o, err)
		}
		end := int64(len(out) + len(errs))
		o, err = d.Output(t.ctx, id, end, 100, time.Hour)
		if err != nil || len(o.Chunks) != 0 || o.Next != end || o.Exit == nil || !o.Exit.Success() {
			t.errorf("Output at the end: %+v, %v", o, err)
		}
		again, _, _, _ := t.all(d, id, 0)
		if again != out {
			t.errorf("read again it is %q", again)
		}
	}},
	{name: "DetachedOutputWaits", says: "Output waits up to wait for some to come. It returns at once when the process has ended.", shell: true, check: func(t *T) {
		d, id := t.detach("read x; echo got \"$x\"; read y", sandbox.DetachOptions{Stdin: true})
		o, err := d.Output(t.ctx, id, 0, 100, 0)
		if err != nil || len(o.Chunks) != 0 || o.Next != 0 || o.Exit != nil {
			t.errorf("Output before there is any: %+v, %v", o, err)
		}
		o, err = d.Output(t.ctx, id, 0, 100, 20*time.Millisecond)
		if err != nil || len(o.Chunks) != 0 || o.Exit != nil {
			t.errorf("Output with a short wait: %+v, %v", o, err)
		}
		type answer struct {
			o   sandbox.Output
			err error
		}
		c := make(chan answer, 2)
		ask := func(cursor int64) {
			o, err := d.Output(t.ctx, id, cursor, 100, time.Hour)
			c <- answer{o, err}
		}
		go ask(0)
		_, err = d.Input(t.ctx, id, []byte("it\n"), false)
		t.ok("Input", err)
		a := <-c
		if a.err != nil || len(a.o.Chunks) != 1 || string(a.o.Chunks[0].Data) != "got it\n" {
			t.errorf("Output that waited: %+v, %v", a.o, a.err)
		}
		go ask(a.o.Next)
		_, err = d.Input(t.ctx, id, nil, true)
		t.ok("Input", err)
		if a = <-c; a.err != nil || a.o.Exit == nil {
			t.errorf("Output that waited for the end: %+v, %v", a.o, a.err)
		}
		ctx, cancel := context.WithCancel(t.ctx)
		_, id = t.detach("sleep 3600", sandbox.DetachOptions{})
		go func() {
			_, err := d.Output(ctx, id, 0, 100, time.Hour)
			c <- answer{err: err}
		}()
		cancel()
		t.canceled("Output", (<-c).err)
	}},
	{name: "DetachedRingDropsTheOldest", says: "The output is kept in a ring of bounded size; Dropped counts the bytes that are no longer there.", shell: true, check: func(t *T) {
		const ring, total = 64 << 10, 400_000
		d, id := t.detach("i=0; while [ $i -lt 4000 ]; do printf '%99d\\n' $i; i=$((i+1)); done", sandbox.DetachOptions{Ring: ring})
		p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{Cursor: -1})
		t.ok("Attach", err)
		t.wait(p)
		out, _, exit, dropped := t.all(d, id, 0)
		if !exit.Success() || dropped+int64(len(out)) != total || len(out) > ring || len(out) < ring/2 {
			t.errorf("%d bytes are there and %d dropped of %d, with a ring of %d; %+v", len(out), dropped, total, ring, exit)
		}
		if want := fmt.Sprintf("%99d\n", 3999); !strings.HasSuffix(out, want) {
			t.errorf("the newest output is not there")
		}
		if i, _ := t.info(d, id); i.Cursor != total || i.Dropped != dropped {
			t.errorf("Processes says %+v, dropped were %d", i, dropped)
		}
	}},
	{name: "DetachedIsNotSlowedByReaders", says: "The output of a detached process is kept in a ring: nobody needs to read it.", shell: true, check: func(t *T) {
		d, id := t.detach("head -c 20000000 /dev/zero; echo done > done", sandbox.DetachOptions{Ring: 4096})
		t.until("it to write 20 MB that nobody reads", func() bool { return t.exists(t.dir() + "/done") })
		_, _, exit, _ := t.all(d, id, 0)
		if !exit.Success() {
			t.errorf("it ended with %+v", exit)
		}
	}},
	{name: "DetachedOutputIsBytes", says: "Output is bytes, within a stream in order.", shell: true, check: func(t *T) {
		d, id := t.detach("cat", sandbox.DetachOptions{Stdin: true})
		var all []byte
		for i := range 2560 {
			all = append(all, byte(i), byte(i>>8))
		}
		n, err := d.Input(t.ctx, id, all, true)
		if err != nil || n != len(all) {
			t.errorf("Input: %d, %v, want %d", n, err, len(all))
		}
		if out, _, _, _ := t.all(d, id, 0); out != string(all) {
			t.errorf("%d bytes came, want %d unchanged", len(out), len(all))
		}
	}},
	{name: "InputReachesTheProcess", says: "Input writes to the process's standard input and, with eof, closes it afterwards. A closed input is Conflict.", shell: true, check: func(t *T) {
		d, id := t.detach("while read -r x; do echo \"<$x>\"; done; echo over; while [ ! -e go ]; do sleep 0.05; done", sandbox.DetachOptions{Stdin: true})
		for _, s := range []string{"one\ntw", "o\n"} {
			n, err := d.Input(t.ctx, id, []byte(s), false)
			if err != nil || n != len(s) {
				t.errorf("Input: %d, %v", n, err)
			}
		}
		n, err := d.Input(t.ctx, id, []byte("three\n"), true)
		if err != nil || n != 6 {
			t.errorf("Input with eof: %d, %v", n, err)
		}
		_, err = d.Input(t.ctx, id, []byte("x"), false)
		t.kind("Input after eof", err, "", sandbox.Conflict)
		t.write(t.dir()+"/go", "")
		if out, _, _, _ := t.all(d, id, 0); out != "<one>\n<two>\n<three>\nover\n" {
			t.errorf("it printed %q", out)
		}
		_, err = d.Input(t.ctx, id, []byte("x"), false)
		t.kind("Input after the end", err, "", sandbox.Conflict)
	}},
	{name: "InputWaitsForRoom", says: "It returns when the process has taken the bytes or its pipe has. If ctx ends first, part of it may have been written; the count says how much.", shell: true, check: func(t *T) {
		d, id := t.detach("while [ ! -e go ]; do sleep 0.05; done; wc -c", sandbox.DetachOptions{Stdin: true})
		ctx, cancel := context.WithTimeout(t.ctx, 300*time.Millisecond)
		defer cancel()
		n, err := d.Input(ctx, id, make([]byte, 4<<20), false)
		t.canceled("Input of 4 MiB that nobody reads", err)
		if n >= 4<<20 || n < 0 {
			t.errorf("it took %d bytes", n)
		}
		t.write(t.dir()+"/go", "")
		_, err = d.Input(t.ctx, id, nil, true)
		t.ok("Input", err)
		if out, _, _, _ := t.all(d, id, 0); strings.TrimSpace(out) != fmt.Sprint(n) {
			t.errorf("the process got %q bytes, the count says %d", out, n)
		}
	}},
	{name: "AttachFollows", says: "Where Stdout or Stderr are given they get the output from the cursor on, and Wait returns after the last of it.", shell: true, check: func(t *T) {
		d, id := t.detach("echo first; while [ ! -e go ]; do sleep 0.02; done; echo second; echo third >&2; exit 4", sandbox.DetachOptions{})
		t.until("the first line", func() bool { i, _ := t.info(d, id); return i.Cursor == 6 })
		var all, errs, rest, next sink
		ps := make([]sandbox.Process, 3)
		for i, opt := range []sandbox.AttachOptions{{Stdout: &all, Stderr: &errs}, {Cursor: 2, Stdout: &rest}, {Cursor: -1, Stdout: &next}} {
			p, err := d.Attach(t.ctx, id, opt)
			t.ok("Attach", err)
			if p.ID() != id {
				t.errorf("Attach returned the process %s, want %s", p.ID(), id)
			}
			ps[i] = p
		}
		t.write(t.dir()+"/go", "")
		for _, p := range ps {
			exit, err := t.wait(p)
			if err != nil || exit.Code != 4 || exit.Reason != sandbox.Exited {
				t.errorf("Wait: %+v, %v", exit, err)
			}
		}
		if all.String() != "first\nsecond\n" || errs.String() != "third\n" || rest.String() != "rst\nsecond\n" || next.String() != "second\n" {
			t.errorf("from 0: %q and %q; from 2: %q; from now: %q", all.String(), errs.String(), rest.String(), next.String())
		}
		p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{})
		t.ok("Attach to what has ended", err)
		if exit, err := t.wait(p); err != nil || exit.Code != 4 {
			t.errorf("Wait: %+v, %v", exit, err)
		}
	}},
	{name: "AttachmentEndsAlone", says: "ctx bounds this attachment, not the process: when it ends first, Wait returns its error and the process lives on.", shell: true, check: func(t *T) {
		d, id := t.detach("echo $$ > pid; exec sleep 3600", sandbox.DetachOptions{})
		pid := t.pids(t.dir()+"/pid", 1)[0]
		ctx, cancel := context.WithCancel(t.ctx)
		p, err := d.Attach(ctx, id, sandbox.AttachOptions{Stdout: &sink{}})
		t.ok("Attach", err)
		cancel()
		_, err = t.wait(p)
		t.canceled("Wait", err)
		t.never("the process ended with the attachment", func() bool { return !t.alive(pid) })
		_, err = d.Attach(t.ctx, "nosuchprocess", sandbox.AttachOptions{})
		t.kind("Attach to nothing", err, "", sandbox.NotExist)
		_, err = d.Output(t.ctx, "nosuchprocess", 0, 1, 0)
		t.kind("Output of nothing", err, "", sandbox.NotExist)
		_, err = d.Input(t.ctx, "nosuchprocess", nil, true)
		t.kind("Input to nothing", err, "", sandbox.NotExist)
		t.kind("Forget of nothing", d.Forget(t.ctx, "nosuchprocess"), "", sandbox.NotExist)
	}},
	{name: "AttachedSignals", says: "A detached process lives until it exits, its Timeout passes, it is signalled, or the sandbox is removed.", shell: true, check: func(t *T) {
		d, id := t.detach("echo $$ >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 3600' & sleep 3600", sandbox.DetachOptions{})
		pids := t.pids(t.dir()+"/pids", 2)
		p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{})
		t.ok("Attach", err)
		t.kind("Resize", p.Resize(t.ctx, sandbox.Size{Rows: 1, Cols: 1}), "", sandbox.Unsupported)
		t.ok("Signal", p.Signal(t.ctx, sandbox.KILL))
		if exit, err := t.wait(p); err != nil || exit.Signal != sandbox.KILL {
			t.errorf("it ended with %+v, %v", exit, err)
		}
		for _, pid := range pids {
			t.until("the tree to be gone", func() bool { return !t.alive(pid) })
		}
		d, id = t.detach("echo before; sleep 3600", sandbox.DetachOptions{}, func(c *sandbox.Cmd) { c.Timeout = 500 * time.Millisecond })
		if out, _, exit, _ := t.all(d, id, 0); exit.Reason != sandbox.TimedOut || out != "before\n" {
			t.errorf("with a timeout it printed %q and ended with %+v", out, exit)
		}
	}},
	{name: "KillReachesWhatAnEndedOneLeft", says: "KILL also reaches what an ended process left running, until it is forgotten.", shell: true, check: func(t *T) {
		d, id := t.detach("setsid sh -c 'echo $$ >> pids; exec sleep 3600' & while [ ! -s pids ]; do sleep 0.02; done; exit 3", sandbox.DetachOptions{})
		pid := t.pids(t.dir()+"/pids", 1)[0]
		_, other := t.detach("echo $$ > other; exec sleep 3600", sandbox.DetachOptions{})
		bystander := t.pids(t.dir()+"/other", 1)[0]
		if _, _, exit, _ := t.all(d, id, 0); exit.Code != 3 {
			t.errorf("it ended with %+v", exit)
		}
		p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{})
		t.ok("Attach", err)
		t.wait(p)
		t.ok("Signal TERM", p.Signal(t.ctx, sandbox.TERM))
		if !t.alive(pid) {
			t.errorf("TERM to a process that has ended ended what it left running")
		}
		t.ok("Signal KILL", p.Signal(t.ctx, sandbox.KILL))
		t.until("what it left running to be gone", func() bool { return !t.alive(pid) })
		if !t.alive(bystander) {
			t.errorf("another process was killed as well")
		}
		if i, _ := t.info(d, other); i.Exit != nil {
			t.errorf("another process ended with %+v", i.Exit)
		}
	}},
	{name: "ProcessesAreInOrder", says: "Processes returns the detached processes that run, and those ended ones that are still remembered, oldest first.", shell: true, check: func(t *T) {
		var want []sandbox.ProcessID
		var d sandbox.Detacher
		for _, script := range []string{"sleep 3600", "exit 1", "sleep 3600"} {
			var id sandbox.ProcessID
			d, id = t.detach(script, sandbox.DetachOptions{})
			want = append(want, id)
		}
		t.all(d, want[1], 0)
		ps, err := d.Processes(t.ctx)
		t.ok("Processes", err)
		var got []sandbox.ProcessID
		for _, p := range ps {
			if slices.Contains(want, p.ID) {
				got = append(got, p.ID)
			}
		}
		if !slices.Equal(got, want) {
			t.errorf("Processes has %v, want %v", got, want)
		}
		// What is not detached is not among them.
		p := t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}})
		if i, ok := t.info(d, p.ID()); ok && !slices.Contains(want, p.ID()) {
			t.errorf("Processes has %+v, which was not detached", i)
		}
	}},
	{name: "ForgetForgets", says: "Forget drops what is remembered of an ended process. A running one is Conflict.", shell: true, check: func(t *T) {
		d, id := t.detach("read x", sandbox.DetachOptions{Stdin: true})
		t.kind("Forget of what runs", d.Forget(t.ctx, id), "", sandbox.Conflict)
		_, err := d.Input(t.ctx, id, nil, true)
		t.ok("Input", err)
		t.all(d, id, 0)
		t.ok("Forget", d.Forget(t.ctx, id))
		if _, ok := t.info(d, id); ok {
			t.errorf("Processes has it still")
		}
		_, err = d.Output(t.ctx, id, 0, 1, 0)
		t.kind("Output", err, "", sandbox.NotExist)
		_, err = d.Attach(t.ctx, id, sandbox.AttachOptions{})
		t.kind("Attach", err, "", sandbox.NotExist)
	}},
	{name: "DetachedTerminal", says: "Terminal gives a detached process a terminal too: Input types, Output shows.", shell: true, check: func(t *T) {
		d, id := t.detach("stty size; read x; stty size; echo \"got $x\"", sandbox.DetachOptions{}, func(c *sandbox.Cmd) { c.Terminal = &sandbox.Size{Rows: 12, Cols: 34} })
		t.until("the size to be shown", func() bool { i, _ := t.info(d, id); return i.Cursor >= 6 })
		p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{})
		t.ok("Attach", err)
		t.ok("Resize", p.Resize(t.ctx, sandbox.Size{Rows: 56, Cols: 78}))
		if n, err := d.Input(t.ctx, id, []byte("typed\n"), false); err != nil || n != 6 {
			t.errorf("Input: %d, %v", n, err)
		}
		out, _, exit, _ := t.all(d, id, 0)
		if !exit.Success() || !strings.Contains(out, "12 34") || !strings.Contains(out, "56 78") || !strings.Contains(out, "got typed") {
			t.errorf("it showed %q and ended with %+v", out, exit)
		}
	}},
	{name: "DetachedEndsWithTheSandbox", says: "It lives until the sandbox is removed.", shell: true, check: func(t *T) {
		t.detacher()
		sb := t.create(nil)
		d := sb.(sandbox.Detacher)
		id, err := d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}}, sandbox.DetachOptions{Stdin: true})
		t.ok("StartDetached", err)
		p, err := d.Attach(t.ctx, id, sandbox.AttachOptions{Stdout: &bytes.Buffer{}})
		t.ok("Attach", err)
		c := make(chan error, 1)
		go func() {
			_, err := d.Output(t.ctx, id, 0, 100, time.Hour)
			c <- err
		}()
		t.ok("Remove", sb.Remove(t.ctx))
		_, err = t.wait(p)
		t.kind("Wait", err, "", sandbox.NotExist)
		if err := <-c; err != nil {
			t.kind("Output", err, "", sandbox.NotExist)
		}
		_, err = d.Processes(t.ctx)
		t.kind("Processes", err, "", sandbox.NotExist)
		_, err = d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{})
		t.kind("StartDetached", err, "", sandbox.NotExist)
	}},
}
