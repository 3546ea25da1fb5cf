package sandboxtest

import (
	"context"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// screen runs script in a terminal and returns what it showed, with line ends
// made plain.
func (t *T) screen(size sandbox.Size, script string, env map[string]string) string {
	t.t.Helper()
	var out sink
	p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: &out, Terminal: &size, Env: env, Dir: t.dir()})
	exit, err := t.wait(p)
	if err != nil || !exit.Success() {
		t.errorf("%q ended with %+v, %v and showed %q", script, exit, err, out.String())
	}
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

var terminalClaims = []claim{
	{name: "TerminalIsOne", says: "Terminal gives the process a terminal as its input and output.", shell: true, check: func(t *T) {
		if got := t.screen(sandbox.Size{}, "test -t 0 && test -t 1 && test -t 2 && echo yes", nil); got != "yes\n" {
			t.errorf("it showed %q", got)
		}
		r := t.run("sh", "-c", "test -t 0 || test -t 1 || test -t 2 || echo none")
		if string(r.Stdout) != "none\n" {
			t.errorf("without Terminal there is one: %q", r.Stdout)
		}
	}},
	{name: "TerminalHasItsSize", says: "The terminal has this size; zero in either is the default, 24 by 80.", shell: true, check: func(t *T) {
		for want, size := range map[string]sandbox.Size{"31 97\n": {Rows: 31, Cols: 97}, "24 80\n": {}, "24 100\n": {Cols: 100}} {
			if got := t.screen(size, "stty size", nil); got != want {
				t.errorf("stty size printed %q, want %q", got, want)
			}
		}
	}},
	{name: "TerminalResizes", says: "Resize sets the size of the process's terminal.", shell: true, check: func(t *T) {
		in := newTap()
		t.after(in.end)
		var out sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "stty -echo; echo ready; read x; stty size"}, Stdin: in, Stdout: &out, Terminal: &sandbox.Size{Rows: 10, Cols: 20}})
		t.until("the process to be ready", func() bool { return strings.Contains(out.String(), "ready") })
		t.ok("Resize", p.Resize(t.ctx, sandbox.Size{Rows: 55, Cols: 132}))
		in.send("\n")
		exit, err := t.wait(p)
		if err != nil || !exit.Success() || !strings.Contains(out.String(), "55 132") {
			t.errorf("ended with %+v, %v and showed %q", exit, err, out.String())
		}
	}},
	{name: "TerminalControls", says: "The terminal is the process's controlling terminal.", shell: true, check: func(t *T) {
		if got := t.screen(sandbox.Size{}, "echo here > /dev/tty", nil); got != "here\n" {
			t.errorf("/dev/tty showed %q", got)
		}
	}},
	{name: "TerminalShowsAllOnStdout", says: "All output goes to Stdout.", shell: true, check: func(t *T) {
		var out, errs sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo a; echo b >&2; echo c"}, Stdout: &out, Stderr: &errs, Terminal: &sandbox.Size{}}))
		if err != nil || !exit.Success() {
			t.errorf("ended with %+v, %v", exit, err)
		}
		if got := strings.ReplaceAll(out.String(), "\r\n", "\n"); got != "a\nb\nc\n" || errs.String() != "" {
			t.errorf("stdout %q, stderr %q", got, errs.String())
		}
	}},
	{name: "TerminalOutputArrivesWhole", says: "Wait returns when everything that the process wrote has been handed over.", shell: true, check: func(t *T) {
		got := t.screen(sandbox.Size{}, "i=0; while [ $i -lt 1000 ]; do echo $i; i=$((i+1)); done", nil)
		if lines := strings.Split(got, "\n"); len(lines) != 1001 || lines[999] != "999" {
			t.errorf("%d lines came, want 1000", len(lines)-1)
		}
	}},
	{name: "TerminalNamesItself", says: "TERM is set to xterm-256color if nothing else sets it.", shell: true, check: func(t *T) {
		if got := t.screen(sandbox.Size{}, "echo $TERM", nil); got != "xterm-256color\n" {
			t.errorf("TERM is %q", got)
		}
		if got := t.screen(sandbox.Size{}, "echo $TERM", map[string]string{"TERM": "dumb"}); got != "dumb\n" {
			t.errorf("TERM is %q, though the Cmd set it", got)
		}
	}},
	{name: "TerminalInterrupts", says: "A person types ^C, and the process gets INT.", shell: true, check: func(t *T) {
		in := newTap()
		t.after(in.end)
		var out sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo ready; exec sleep 3600"}, Stdin: in, Stdout: &out, Terminal: &sandbox.Size{}})
		t.until("the process to be ready", func() bool { return strings.Contains(out.String(), "ready") })
		in.send("\x03")
		exit, err := t.wait(p)
		if err != nil || exit.Success() || exit.Reason == sandbox.Signalled && exit.Signal != sandbox.INT || exit.Status() != 130 {
			t.errorf("ended with %+v, %v, want INT", exit, err)
		}
	}},
	{name: "TerminalInputEndsByTyping", says: "The end of Stdin is then not passed on; a person types ^D.", shell: true, check: func(t *T) {
		var out sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"cat"}, Stdin: strings.NewReader("line\n\x04"), Stdout: &out, Terminal: &sandbox.Size{}}))
		if err != nil || !exit.Success() || strings.Count(out.String(), "line") != 2 {
			t.errorf("cat ended with %+v, %v and showed %q, want the echo and the line", exit, err, out.String())
		}
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		var out2 sink
		p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sh", "-c", "echo $$ > pid; exec cat"}, Stdin: strings.NewReader("line\n"), Stdout: &out2, Terminal: &sandbox.Size{}, Dir: t.dir()})
		t.ok("Start", err)
		pid := t.pids(t.dir()+"/pid", 1)[0]
		t.until("the line to come back", func() bool { return strings.Count(out2.String(), "line") == 2 })
		t.never("the end of Stdin ended the process", func() bool { return !t.alive(pid) })
		cancel()
		_, err = t.wait(p)
		t.canceled("Wait", err)
	}},
	{name: "TerminalWithoutInputWaits", says: "nil is an input at which nobody types.", shell: true, check: func(t *T) {
		if got := t.screen(sandbox.Size{}, "echo alone", nil); got != "alone\n" {
			t.errorf("it showed %q", got)
		}
	}},
	{name: "TerminalTreeIsKilled", says: "When ctx ends its whole tree is killed, in a terminal too.", shell: true, check: func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sh", "-c", `trap "" HUP; setsid sh -c 'trap "" HUP; echo $$ >> pids; exec sleep 3600' & echo $$ >> pids; sleep 3600`}, Dir: t.dir(), Stdout: &sink{}, Terminal: &sandbox.Size{}})
		t.ok("Start", err)
		pids := t.pids(t.dir()+"/pids", 2)
		cancel()
		_, err = t.wait(p)
		t.canceled("Wait", err)
		for _, pid := range pids {
			t.until("the process to be gone", func() bool { return !t.alive(pid) })
		}
	}},
}
