package sandboxtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// large is how much the claims about large streams carry.
const large = 32 << 20

var processClaims = []claim{
	{name: "FailureIsAResult", says: "A command that fails is a result; the error is nil whenever the Exit is the command's own doing.", check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"false"}})
		exit, err := t.wait(p)
		if err != nil || exit.Reason != sandbox.Exited || exit.Code != 1 || exit.Signal != "" || exit.Success() {
			t.errorf("false ended with %+v, %v", exit, err)
		}
		exit, err = t.wait(t.start(sandbox.Cmd{Args: []string{"true"}}))
		if err != nil || exit.Reason != sandbox.Exited || exit.Code != 0 || !exit.Success() {
			t.errorf("true ended with %+v, %v", exit, err)
		}
	}},
	{name: "ExitCodesArrive", says: "Code is as the process gave it.", shell: true, check: func(t *T) {
		for _, code := range []int{0, 2, 42, 126, 127, 128, 130, 143, 255} {
			exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "exit " + strconv.Itoa(code)}}))
			if err != nil || exit.Reason != sandbox.Exited || exit.Code != code {
				t.errorf("exit %d ended with %+v, %v", code, exit, err)
			}
		}
	}},
	{name: "SignalsAreResults", says: "An Exit says what signal killed the process, and then Code is -1.", shell: true, check: func(t *T) {
		for _, sig := range []sandbox.Signal{sandbox.TERM, sandbox.KILL, sandbox.INT, sandbox.HUP, sandbox.USR1, sandbox.PIPE} {
			exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "kill -" + string(sig) + " $$; sleep 60"}}))
			if err != nil || exit.Reason != sandbox.Signalled || exit.Signal != sig || exit.Code != -1 {
				t.errorf("kill -%s ended with %+v, %v", sig, exit, err)
			}
			if want := 128 + sig.Number(); exit.Status() != want {
				t.errorf("Status is %d, want %d", exit.Status(), want)
			}
		}
	}},
	{name: "OutputArrives", says: "Stdout and Stderr get the output.", shell: true, check: func(t *T) {
		var out, errs sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo to stdout; echo to stderr >&2; printf 'no newline'"}, Stdout: &out, Stderr: &errs}))
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v", exit, err)
		}
		if out.String() != "to stdout\nno newline" || errs.String() != "to stderr\n" {
			t.errorf("stdout %q, stderr %q", out.String(), errs.String())
		}
	}},
	{name: "ArgumentsArriveUnchanged", says: "Args is the program and its arguments.", check: func(t *T) {
		args := []string{"a b", "", "'quoted'", `"double"`, "$HOME", "*", "new\nline", `back\slash`, "--", "-n", ";true", "ünï", "`x`", "$(x)", "tab\t"}
		r := t.run(append([]string{"printf", `<%s>`}, args...)...)
		want := ""
		for _, a := range args {
			want += "<" + a + ">"
		}
		if string(r.Stdout) != want {
			t.errorf("printf printed %q, want %q", r.Stdout, want)
		}
	}},
	{name: "LargeStreamsArriveWhole", says: "Wait returns when everything that the process wrote has been handed over; Stdin is read until it ends.", check: func(t *T) {
		want := sha256.New()
		io.Copy(want, newNoise(large))
		got := sha256.New()
		n := &counter{w: got}
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"cat"}, Stdin: newNoise(large), Stdout: n}))
		if err != nil || !exit.Success() {
			t.fatalf("cat ended with %+v, %v", exit, err)
		}
		if n.n != large || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.errorf("%d bytes came, want %d; or they differ", n.n, large)
		}
	}},
	{name: "LargeErrorsArriveWhole", says: "Stderr gets the output, as Stdout does.", shell: true, check: func(t *T) {
		want := sha256.New()
		io.Copy(want, newNoise(large/4))
		out, errs := sha256.New(), sha256.New()
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "cat >&2"}, Stdin: newNoise(large / 4), Stdout: out, Stderr: errs}))
		if err != nil || !exit.Success() {
			t.fatalf("cat ended with %+v, %v", exit, err)
		}
		if !bytes.Equal(errs.Sum(nil), want.Sum(nil)) {
			t.errorf("stderr differs from what was sent")
		}
	}},
	{name: "BytesAreBytes", says: "Output is bytes: NUL, invalid UTF-8 and line ends arrive as they are.", check: func(t *T) {
		var all []byte
		for i := range 256 {
			all = append(all, byte(i), '\r', '\n', byte(255-i))
		}
		var out sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"cat"}, Stdin: bytes.NewReader(all), Stdout: &out}))
		if err != nil || !exit.Success() || out.String() != string(all) {
			t.errorf("cat ended with %+v, %v and gave %d bytes, want %d unchanged", exit, err, len(out.String()), len(all))
		}
	}},
	{name: "StreamsKeepTheirOrder", says: "Within a stream, order is kept.", shell: true, check: func(t *T) {
		var out, errs sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo $i; echo e$i >&2; i=$((i+1)); done"}, Stdout: &out, Stderr: &errs}))
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v", exit, err)
		}
		var wantOut, wantErr strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&wantOut, "%d\n", i)
			fmt.Fprintf(&wantErr, "e%d\n", i)
		}
		if out.String() != wantOut.String() {
			t.errorf("stdout is out of order or not whole: %d bytes, want %d", len(out.String()), wantOut.Len())
		}
		if errs.String() != wantErr.String() {
			t.errorf("stderr is out of order or not whole: %d bytes, want %d", len(errs.String()), wantErr.Len())
		}
	}},
	{name: "OneWriterForBothIsWrittenByOne", says: "Each is written by one goroutine at a time; if both are the same comparable Writer, they share one.", shell: true, check: func(t *T) {
		var both sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "i=0; while [ $i -lt 1000 ]; do echo out; echo err >&2; i=$((i+1)); done"}, Stdout: &both, Stderr: &both})
		exit, err := t.wait(p)
		both.seal()
		if err != nil || !exit.Success() {
			t.fatalf("ended with %+v, %v", exit, err)
		}
		if o, e := strings.Count(both.String(), "out\n"), strings.Count(both.String(), "err\n"); o != 1000 || e != 1000 {
			t.errorf("%d lines of stdout and %d of stderr came, want 1000 each", o, e)
		}
		if w := both.misuse(); w != "" {
			t.errorf("the Writer was misused: %s", w)
		}
	}},
	{name: "WaitComesAfterTheOutput", says: "Wait returns when the process has exited and everything that it wrote itself has been handed over; nothing is written after it.", shell: true, check: func(t *T) {
		outs := make([]sink, times(10))
		for i := range outs {
			out := &outs[i]
			p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "(sleep 0.02; echo late; sleep 0.02; echo later) & printf %65000s x; echo end"}, Stdout: &slowly{w: out}})
			exit, err := t.wait(p)
			out.seal()
			if err != nil || !exit.Success() {
				t.fatalf("ended with %+v, %v", exit, err)
			}
			if got := strings.ReplaceAll(strings.ReplaceAll(out.String(), "later\n", ""), "late\n", ""); len(got) != 65004 || !strings.HasSuffix(got, "end\n") {
				t.errorf("when Wait returned %d bytes had come, want 65004", len(got))
			}
		}
		t.never("the Writer was used after Wait had returned", func() bool {
			return used(outs)
		})
	}},
	{name: "SlowWriterSlowsTheProcess", says: "Output goes to writers, and a slow writer slows the process.", shell: true, check: func(t *T) {
		g := newGate()
		opened := sync.OnceFunc(func() { close(g.open) })
		t.after(opened)
		const n = 96 << 20
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; touch %s/done", n, t.dir())}, Stdout: g})
		<-g.first
		t.never("the process wrote 96 MiB to a writer that stood still", func() bool { return t.exists(t.dir() + "/done") })
		opened()
		exit, err := t.wait(p)
		if err != nil || !exit.Success() || g.n.Load() != n {
			t.errorf("ended with %+v, %v; %d bytes came, want %d", exit, err, g.n.Load(), n)
		}
	}},
	{name: "NilOutputIsDiscarded", says: "nil discards it.", shell: true, check: func(t *T) {
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"sh", "-c", "head -c 1000000 /dev/zero && head -c 1000000 /dev/zero >&2"}}))
		if err != nil || !exit.Success() {
			t.errorf("ended with %+v, %v", exit, err)
		}
	}},
	{name: "NilInputIsEmpty", says: "nil is an empty input.", check: func(t *T) {
		if r := t.run("cat"); !r.Success() || len(r.Stdout) > 0 {
			t.errorf("cat ended with %+v and printed %q", r.Exit, r.Stdout)
		}
	}},
	{name: "InputArrivesAndEnds", says: "Stdin is read until it ends, which closes the process's input.", shell: true, check: func(t *T) {
		in := newTap()
		t.after(in.end)
		var out sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "while read -r x; do echo \"<$x>\"; done; echo over"}, Stdin: in, Stdout: &out})
		in.send("one\n")
		t.until("the first line, before the second is sent", func() bool { return out.String() == "<one>\n" })
		in.send("two\n")
		in.end()
		exit, err := t.wait(p)
		if err != nil || !exit.Success() || out.String() != "<one>\n<two>\nover\n" {
			t.errorf("ended with %+v, %v and printed %q", exit, err, out.String())
		}
	}},
	{name: "UnreadInputHoldsNothing", says: "A process need not read its input.", check: func(t *T) {
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"true"}, Stdin: newNoise(8 << 20)}))
		if err != nil || !exit.Success() {
			t.errorf("true ended with %+v, %v", exit, err)
		}
	}},
	{name: "BlockedInputIsNotWaitedFor", says: "A Read that blocks when the process has ended is not waited for; who gave the Reader ends it.", check: func(t *T) {
		in := newTap()
		t.after(in.end)
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"echo", "done"}, Stdin: in, Stdout: io.Discard}))
		if err != nil || !exit.Success() {
			t.errorf("echo ended with %+v, %v", exit, err)
		}
	}},
	{name: "InputErrorIsReported", says: "The error is the first error of a Writer or of Stdin.", check: func(t *T) {
		var out sink
		exit, err := t.wait(t.start(sandbox.Cmd{Args: []string{"cat"}, Stdin: &failing{data: []byte("so far")}, Stdout: &out}))
		if !errors.Is(err, errFlow) {
			t.errorf("Wait: %+v, %v, want the Reader's error", exit, err)
		}
		if out.String() != "so far" {
			t.errorf("cat printed %q", out.String())
		}
	}},
	{name: "WriterErrorIsReported", says: "The error is the first error of a Writer, whose stream is then discarded, while the process goes on.", shell: true, check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "head -c 1000000 /dev/zero; echo $? > " + t.dir() + "/status"}, Stdout: writerFunc(func([]byte) (int, error) { return 0, errFlow })})
		exit, err := t.wait(p)
		if !errors.Is(err, errFlow) || !exit.Success() {
			t.errorf("Wait: %+v, %v, want success and the Writer's error", exit, err)
		}
		if s := t.read(t.dir() + "/status"); s != "0\n" {
			t.errorf("head ended with %q, want it to have written all", s)
		}
	}},
	{name: "WaitCanBeCalledByMany", says: "It may be called by many, and again; all get the same.", shell: true, check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "read x; exit 7"}, Stdin: strings.NewReader("x\n")})
		var wg sync.WaitGroup
		exits := make([]sandbox.Exit, 5)
		errs := make([]error, 5)
		for i := range exits {
			wg.Go(func() { exits[i], errs[i] = p.Wait() })
		}
		first, err := t.wait(p)
		wg.Wait()
		again, err2 := t.wait(p)
		if first.Code != 7 || err != nil || again != first || err2 != nil {
			t.errorf("Wait: %+v, %v, then %+v, %v", first, err, again, err2)
		}
		for i := range exits {
			if exits[i] != first || errs[i] != nil {
				t.errorf("another Wait: %+v, %v, want %+v", exits[i], errs[i], first)
			}
		}
	}},
	{name: "ProcessIDsAreUnique", says: "ID names the process within its sandbox. It is not used again in the sandbox's life.", check: func(t *T) {
		seen := make(map[sandbox.ProcessID]bool)
		for range 8 {
			p := t.start(sandbox.Cmd{Args: []string{"true"}})
			t.wait(p)
			if !p.ID().Valid() || seen[p.ID()] {
				t.errorf("the id %q is not well formed, or came before", p.ID())
			}
			seen[p.ID()] = true
		}
	}},
	{name: "PIDIsAsInside", says: "PID returns the process's pid as the sandbox sees it, or 0 where the backend has none.", shell: true, check: func(t *T) {
		var out sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo $$"}, Stdout: &out})
		t.wait(p)
		if p.PID() != 0 && out.String() != fmt.Sprintln(p.PID()) {
			t.errorf("PID is %d, the process sees %q", p.PID(), out.String())
		}
	}},
	{name: "DirIsWhereItStarts", says: "Dir is an absolute path; \"\" is the sandbox's Workdir.", check: func(t *T) {
		i, err := t.sb.Info(t.ctx)
		t.ok("Info", err)
		if r := t.run("pwd"); string(r.Stdout) != i.Workdir+"\n" {
			t.errorf("pwd printed %q, want %q", r.Stdout, i.Workdir)
		}
		for _, dir := range []string{"/", "/tmp", t.dir()} {
			if r := t.capture(t.sb, sandbox.Cmd{Args: []string{"pwd"}, Dir: dir}); string(r.Stdout) != dir+"\n" {
				t.errorf("in %s, pwd printed %q", dir, r.Stdout)
			}
		}
	}},
	{name: "UserIsWhoRunsIt", says: "User is as in Spec; \"\" is the sandbox's User.", shell: true, check: func(t *T) {
		i, err := t.sb.Info(t.ctx)
		t.ok("Info", err)
		if !i.Isolation.Holds(sandbox.ManyIDs) {
			r := t.capture(t.sb, sandbox.Cmd{Args: []string{"echo", "hi"}, User: "1000"})
			if string(r.Stdout) != "hi\n" {
				t.errorf("echo as the one id printed %q", r.Stdout)
			}
			return
		}
		for user, want := range map[string]string{"1000": "1000\n", "0": "0\n", "1234:5678": "1234\n5678\n", "root": "0\n"} {
			script := "id -u"
			if strings.Contains(user, ":") {
				script = "id -u; id -g"
			}
			if r := t.capture(t.sb, sandbox.Cmd{Args: []string{"sh", "-c", script}, User: user}); string(r.Stdout) != want {
				t.errorf("as %s, id printed %q, %q", user, r.Stdout, r.Stderr)
			}
		}
		dir := t.dir()
		t.write(dir+"/private", "x")
		t.ok("Chmod", t.sb.Files().Chmod(t.ctx, dir+"/private", 0o600))
		if r := t.capture(t.sb, sandbox.Cmd{Args: []string{"cat", dir + "/private"}, User: "1000"}); r.Success() {
			t.errorf("user 1000 can read a file of the administrator's")
		}
	}},
	{name: "MissingProgramIsNotExist", says: "A program that is not there is NotExist with Field \"args\".", check: func(t *T) {
		for _, name := range []string{"no-such-program-anywhere", "/no/such/program", t.dir() + "/nothing", "./nothing"} {
			p, err := t.sb.Start(t.ctx, sandbox.Cmd{Args: []string{name}})
			t.kind("Start "+name, err, "args", sandbox.NotExist)
			if err == nil {
				t.wait(p)
			}
		}
		p, err := t.sb.Start(t.ctx, sandbox.Cmd{Args: []string{"true"}, Env: map[string]string{"PATH": "/no/such/dir"}})
		t.kind("Start of true with another PATH", err, "args", sandbox.NotExist)
		if err == nil {
			t.wait(p)
		}
	}},
	{name: "ForbiddenProgramIsDenied", says: "A program that the user may not execute is Denied with Field \"args\".", check: func(t *T) {
		t.write(t.dir()+"/plain", "#!/bin/sh\n")
		for _, name := range []string{t.dir() + "/plain", t.dir()} {
			p, err := t.sb.Start(t.ctx, sandbox.Cmd{Args: []string{name}})
			t.kind("Start "+name, err, "args", sandbox.Denied)
			if err == nil {
				t.wait(p)
			}
		}
	}},
	{name: "MissingDirIsNotExist", says: "A working directory that is not there is NotExist with Field \"dir\".", check: func(t *T) {
		t.write(t.dir()+"/file", "x")
		for dir, kinds := range map[string][]sandbox.Kind{
			"/no/such/dir":          {sandbox.NotExist},
			t.dir() + "/nothing":    {sandbox.NotExist},
			t.dir() + "/file":       {sandbox.NotExist, sandbox.Invalid},
			t.dir() + "/file/below": {sandbox.NotExist, sandbox.Invalid},
		} {
			p, err := t.sb.Start(t.ctx, sandbox.Cmd{Args: []string{"true"}, Dir: dir})
			t.kind("Start in "+dir, err, "dir", kinds...)
			if err == nil {
				t.wait(p)
			}
		}
	}},
	{name: "MissingUserIsNotExist", says: "A user that is not there is NotExist with Field \"user\".", check: func(t *T) {
		for _, user := range []string{"no-such-user", "root:no-such-group"} {
			p, err := t.sb.Start(t.ctx, sandbox.Cmd{Args: []string{"true"}, User: user})
			t.kind("Start as "+user, err, "user", sandbox.NotExist)
			if err == nil {
				t.wait(p)
			}
		}
	}},
	{name: "PathIsThatOfTheProcess", says: "A program without a slash is looked for in PATH, as the process's environment has it, inside.", shell: true, check: func(t *T) {
		dir := t.dir()
		t.write(dir+"/suite-tool", "#!/bin/sh\necho found \"$1\"\n")
		t.ok("Chmod", t.sb.Files().Chmod(t.ctx, dir+"/suite-tool", 0o755))
		r := t.capture(t.sb, sandbox.Cmd{Args: []string{"suite-tool", "it"}, Env: map[string]string{"PATH": "/no/such:" + dir + ":/usr/bin:/bin"}})
		if string(r.Stdout) != "found it\n" {
			t.errorf("it printed %q, %q", r.Stdout, r.Stderr)
		}
	}},
	{name: "InvalidCmdsNameTheirField", says: "A Cmd with which nobody could do anything is Invalid and names the field.", check: func(t *T) {
		for _, c := range []struct {
			field string
			cmd   sandbox.Cmd
		}{
			{"args", sandbox.Cmd{}},
			{"args", sandbox.Cmd{Args: []string{""}}},
			{"args", sandbox.Cmd{Args: []string{"echo", "a\x00b"}}},
			{"env", sandbox.Cmd{Args: []string{"true"}, Env: map[string]string{"A=B": ""}}},
			{"env", sandbox.Cmd{Args: []string{"true"}, Env: map[string]string{"A": "\x00"}}},
			{"env", sandbox.Cmd{Args: []string{"true"}, Env: map[string]string{"": "x"}}},
			{"dir", sandbox.Cmd{Args: []string{"true"}, Dir: "relative"}},
			{"dir", sandbox.Cmd{Args: []string{"true"}, Dir: "/a\x00b"}},
			{"user", sandbox.Cmd{Args: []string{"true"}, User: "a:b:c"}},
			{"user", sandbox.Cmd{Args: []string{"true"}, User: "a b"}},
			{"timeout", sandbox.Cmd{Args: []string{"true"}, Timeout: -1}},
		} {
			p, err := t.sb.Start(t.ctx, c.cmd)
			t.kind("Start with a bad "+c.field, err, c.field, sandbox.Invalid)
			if err == nil {
				t.wait(p)
			}
		}
	}},
	{name: "EndedContextStartsNothing", says: "A context is the life of the thing that it is given to.", check: func(t *T) {
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		p, err := t.sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
		if err == nil {
			_, err = t.wait(p)
		}
		t.canceled("Start and Wait", err)
	}},
	{name: "SignalReachesTheProcess", says: "Signal sends sig to the process.", shell: true, check: func(t *T) {
		var out sink
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.05; done"}, Stdout: &out})
		t.until("the trap to be set", func() bool { return out.String() == "ready\n" })
		t.ok("Signal", p.Signal(t.ctx, sandbox.USR1))
		exit, err := t.wait(p)
		if err != nil || exit.Code != 3 || out.String() != "ready\ncaught\n" {
			t.errorf("ended with %+v, %v and printed %q", exit, err, out.String())
		}
	}},
	{name: "SignalEndsTheProcess", says: "The error is nil whenever the Exit is the command's own doing, a kill by Signal included.", check: func(t *T) {
		for _, sig := range []sandbox.Signal{sandbox.TERM, sandbox.INT, sandbox.KILL} {
			p := t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}})
			t.ok("Signal", p.Signal(t.ctx, sig))
			exit, err := t.wait(p)
			if err != nil || exit.Reason != sandbox.Signalled || exit.Signal != sig || exit.Code != -1 {
				t.errorf("after %s it ended with %+v, %v", sig, exit, err)
			}
		}
	}},
	{name: "SignalAfterTheEndIsNothing", says: "A process that has exited gets nothing, which is no error.", check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"true"}})
		t.wait(p)
		t.ok("Signal TERM", p.Signal(t.ctx, sandbox.TERM))
		t.ok("Signal KILL", p.Signal(t.ctx, sandbox.KILL))
	}},
	{name: "UnknownSignalIsInvalid", says: "A signal that is not one of the known names is Invalid.", check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}})
		for _, sig := range []sandbox.Signal{"", "NOPE", "SIGTERM", "9", "term"} {
			t.kind("Signal "+string(sig), p.Signal(t.ctx, sig), "", sandbox.Invalid)
		}
	}},
	{name: "StoppedProcessesGoOn", says: "Signal sends STOP and CONT like any other.", shell: true, check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; echo on > went"}, Dir: t.dir()})
		t.pids(t.dir()+"/pid", 1)
		t.ok("Signal STOP", p.Signal(t.ctx, sandbox.STOP))
		t.write(t.dir()+"/go", "")
		t.never("a stopped process went on", func() bool { return t.exists(t.dir() + "/went") })
		t.ok("Signal CONT", p.Signal(t.ctx, sandbox.CONT))
		exit, err := t.wait(p)
		if err != nil || !exit.Success() || !t.exists(t.dir()+"/went") {
			t.errorf("ended with %+v, %v", exit, err)
		}
	}},
	{name: "ResizeWithoutTerminalIsUnsupported", says: "Without a terminal Resize is Unsupported.", check: func(t *T) {
		p := t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}})
		t.kind("Resize", p.Resize(t.ctx, sandbox.Size{Rows: 10, Cols: 10}), "", sandbox.Unsupported)
	}},
	{name: "ManyGoSideBySide", says: "A Sandbox is safe for concurrent use.", check: func(t *T) {
		const n = 24
		dir := t.dir()
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				word := fmt.Sprintf("word %d", i)
				var out sink
				exit, err := sandbox.Run(t.ctx, t.sb, sandbox.Cmd{Args: []string{"cat"}, Stdin: strings.NewReader(word), Stdout: &out})
				if err == nil && (!exit.Success() || out.String() != word) {
					err = fmt.Errorf("cat ended with %+v and printed %q, want %q", exit, out.String(), word)
				}
				path := fmt.Sprintf("%s/%d", dir, i)
				err = errors.Join(err, sandbox.WriteFile(t.ctx, t.sb, path, []byte(word)))
				b, e := sandbox.ReadFile(t.ctx, t.sb, path, 100)
				if e == nil && string(b) != word {
					e = fmt.Errorf("%s has %q, want %q", path, b, word)
				}
				errs[i] = errors.Join(err, e)
			})
		}
		wg.Wait()
		t.ok("24 commands and files at once", errors.Join(errs...))
		if got := len(t.names(dir)); got != n {
			t.errorf("the directory has %d files, want %d", got, n)
		}
	}},
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A counter is a Writer that counts.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// used reports whether one of the sinks was misused.
func used(sinks []sink) bool {
	for i := range sinks {
		if sinks[i].misuse() != "" {
			return true
		}
	}
	return false
}

// slowly is a Writer that takes its time.
type slowly struct{ w io.Writer }

func (s *slowly) Write(p []byte) (int, error) {
	time.Sleep(2 * time.Millisecond)
	return s.w.Write(p)
}
