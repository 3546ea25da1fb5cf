package memory

import (
	"context"
	"errors"
	"io"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A process is a Proc that a caller started, with those who carry its streams.
type process struct {
	b    *box
	id   sandbox.ProcessID
	root *Proc
	tty  *tty
	done chan struct{} // closed when exit and err stand

	exit sandbox.Exit
	err  error

	// The Runtime's mutex guards what follows.
	cause    error // why it was killed, if it was us
	timedOut bool
	streams  error // the first error of a Writer or of Stdin
	ended    bool  // Wait's answer stands; nothing more is handed over
	marks    map[*pipe]int64
}

// Start starts a process.
func (b *box) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	p, err := b.start(ctx, cmd)
	if err != nil {
		return nil, sandbox.At(op("Start"), b.id, err)
	}
	return p, nil
}

func (b *box) start(ctx context.Context, cmd sandbox.Cmd) (*process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &process{b: b, done: make(chan struct{}), marks: make(map[*pipe]int64)}
	b.mu.Lock()
	defer b.mu.Unlock()
	root, prog, err := b.prepare(cmd)
	if err != nil {
		return nil, err
	}
	p.root = root
	var pumps sync.WaitGroup
	var carry []func() // the goroutines to start when nothing can fail any more
	pump := func(pi *pipe, w io.Writer) {
		p.marks[pi] = -1
		carry = append(carry, func() {
			pumps.Add(1)
			b.wg.Go(func() { defer pumps.Done(); p.pump(pi, w) })
		})
	}
	null := &file{stream: devFile{devNull}}
	out := func(w io.Writer) *file {
		if w == nil {
			return null
		}
		pi := newPipe(b)
		pi.readers++
		pump(pi, w)
		return pi.writer()
	}
	if cmd.Terminal != nil {
		p.tty = newTTY(b, *cmd.Terminal)
		f := &file{stream: ttyFile{p.tty}}
		root.fds = map[int]*file{0: f, 1: f, 2: f}
		f.refs = 3
		pump(p.tty.out, cmd.Stdout)
	} else {
		stdin := null
		var in *pipe
		if cmd.Stdin != nil {
			in = newPipe(b)
			in.writers++
			stdin = in.reader()
		}
		stdout := out(cmd.Stdout)
		stderr := stdout
		if !same(cmd.Stdout, cmd.Stderr) {
			stderr = out(cmd.Stderr)
		}
		root.fds = map[int]*file{0: stdin, 1: stdout, 2: stderr}
		for _, f := range root.fds {
			f.refs++
		}
		if in != nil {
			carry = append(carry, func() { go p.feed(cmd.Stdin, in) })
		}
	}
	if cmd.Control != nil {
		root.fds[3] = out(cmd.Control)
		root.fds[3].refs++
	}
	if err := b.admit(root); err != nil {
		return nil, sandbox.Errorf(sandbox.Exhausted, "limits.pids", "there are as many processes as there may be").WithHint("end some")
	}
	b.lastProc++
	p.id = sandbox.ProcessID(strconv.Itoa(b.lastProc))
	root.pgid, root.sid = root.pid, root.pid
	if p.tty != nil {
		root.tty, p.tty.session, p.tty.fg = p.tty, root.pid, root.pid
		if cmd.Stdin != nil {
			go p.typing(cmd.Stdin)
		}
	}
	for _, c := range carry {
		c()
	}
	root.run(prog)

	stopCtx := context.AfterFunc(ctx, func() { p.killFor(ctx.Err(), false) })
	var timer *time.Timer
	if cmd.Timeout > 0 {
		timer = time.AfterFunc(cmd.Timeout, func() { p.killFor(nil, true) })
	}
	b.wg.Go(func() {
		p.finish(ctx, &pumps)
		stopCtx()
		if timer != nil {
			timer.Stop()
		}
	})
	return p, nil
}

// same reports whether two Writers are to share one pipe.
func same(a, b io.Writer) bool {
	return a == nil && b == nil || a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// prepare checks cmd against the sandbox and returns a process without a pid
// and open files, and what is to run in it.
func (b *box) prepare(cmd sandbox.Cmd) (*Proc, Program, error) {
	if err := b.live(); err != nil {
		return nil, nil, err
	}
	if err := cmd.Check(); err != nil {
		return nil, nil, err
	}
	if b.paused {
		return nil, nil, sandbox.Errorf(sandbox.Unavailable, "", "the sandbox is paused").WithHint("resume it")
	}
	who := b.admin
	if cmd.User != "" {
		var err error
		if who, err = b.user(cred{}, cmd.User); err != nil {
			return nil, nil, err
		}
	}
	env := map[string]string{"PATH": defaultPath, "HOME": b.home(who.uid)}
	if cmd.Terminal != nil {
		env["TERM"] = "xterm-256color"
	}
	maps.Copy(env, b.spec.Env)
	maps.Copy(env, cmd.Env)
	dir := cmd.Dir
	if dir == "" {
		dir = b.info.Workdir
	}
	w := walker{b: b, who: who}
	at, err := w.walk(b.root, dir, true)
	switch {
	case err == eacces || err == nil && at.node != nil && at.node.isDir() && !who.may(at.node, 1):
		return nil, nil, sandbox.Errorf(sandbox.Denied, "dir", "the user may not enter %q", dir).WithHint("choose another directory or user")
	case err == nil && at.node != nil && !at.node.isDir():
		return nil, nil, sandbox.Errorf(sandbox.NotExist, "dir", "%q is not a directory", dir).WithHint("make it first")
	case err != nil || at.node == nil:
		return nil, nil, sandbox.Errorf(sandbox.NotExist, "dir", "there is no directory %q", dir).WithHint("make it first")
	}
	prog, args, err := b.look(who, at.node, env, cmd.Args)
	switch {
	case err == eacces:
		return nil, nil, sandbox.Errorf(sandbox.Denied, "args", "the user may not execute %q", cmd.Args[0]).WithHint("chmod it, or use another user")
	case err == enoexec:
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "args", "%q is not a program", cmd.Args[0]).WithHint("begin it with #!/bin/sh")
	case err != nil:
		return nil, nil, sandbox.Errorf(sandbox.NotExist, "args", "there is no program %q", cmd.Args[0]).WithHint("check the name and PATH")
	}
	return &Proc{
		Args: args, Env: env, k: b, ppid: 1, tree: new(tree), who: who, umask: 0o022, cwd: at.node,
		traps: make(map[sandbox.Signal]trap),
	}, prog, nil
}

// user finds "name", "uid", "name:group" or "uid:gid" in /etc/passwd and
// /etc/group. What is left out is as in def.
func (b *box) user(def cred, user string) (cred, error) {
	if err := sandbox.CheckUser("user", user); err != nil {
		return def, err
	}
	name, group, both := strings.Cut(user, ":")
	unknown := func(what string) error {
		return sandbox.Errorf(sandbox.NotExist, "user", "there is no %s", what).WithHint("use root, user or nobody, or a number")
	}
	who := def
	uid, err := strconv.Atoi(name)
	if row := b.row("passwd", name, uid, err == nil); row != nil {
		who.uid, _ = strconv.Atoi(row[2])
		who.gid, _ = strconv.Atoi(row[3])
	} else if err == nil && uid >= 0 {
		who = cred{uid, uid}
	} else {
		return def, unknown("user " + strconv.Quote(name))
	}
	if both {
		gid, err := strconv.Atoi(group)
		if row := b.row("group", group, gid, err == nil); row != nil {
			who.gid, _ = strconv.Atoi(row[2])
		} else if err == nil && gid >= 0 {
			who.gid = gid
		} else {
			return def, unknown("group " + strconv.Quote(group))
		}
	}
	return who, nil
}

// row returns the line of /etc/passwd or /etc/group with this name or number.
func (b *box) row(file, name string, id int, number bool) []string {
	etc := b.root.entries["etc"]
	if etc == nil || etc.entries[file] == nil {
		return nil
	}
	for line := range strings.Lines(string(etc.entries[file].data)) {
		row := strings.Split(strings.TrimSpace(line), ":")
		if len(row) >= 4 || file == "group" && len(row) >= 3 {
			if row[0] == name || number && row[2] == strconv.Itoa(id) {
				return row
			}
		}
	}
	return nil
}

func (b *box) home(uid int) string {
	if row := b.row("passwd", "", uid, true); len(row) >= 6 {
		return row[5]
	}
	return "/"
}

// pump hands what comes through pi to w until the process has ended and all
// that it wrote is handed over. Then it lets the rest vanish, so that those
// who live on do not die of SIGPIPE.
func (p *process) pump(pi *pipe, w io.Writer) {
	buf := make([]byte, 32<<10)
	discard := w == nil
	for {
		p.b.mu.Lock()
		for !p.root.dead && len(pi.buf) == 0 && pi.writers > 0 {
			p.b.cond.Wait()
		}
		if p.root.dead && p.marks[pi] < 0 {
			p.marks[pi] = pi.written
		}
		if p.cause != nil || len(pi.buf) == 0 && (p.root.dead || pi.writers == 0) || p.root.dead && pi.taken >= p.marks[pi] {
			pi.drain, pi.buf = true, nil
			p.b.cond.Broadcast()
			p.b.mu.Unlock()
			return
		}
		n, _ := pi.take(buf)
		p.b.mu.Unlock()
		if discard {
			continue
		}
		m, err := w.Write(buf[:n])
		if err == nil && m < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			discard = true
			p.fail(err)
		}
	}
}

// fail records the first error of a Writer or of Stdin.
func (p *process) fail(err error) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.streams == nil {
		p.streams = err
	}
}

// feed carries Stdin to the process. Nobody waits for it.
func (p *process) feed(r io.Reader, pi *pipe) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		p.b.mu.Lock()
		for b := buf[:n]; len(b) > 0; {
			for !pi.ready() && !p.over() {
				p.b.cond.Wait()
			}
			m, e := pi.put(b)
			if p.over() || e != nil {
				err = io.EOF // nobody reads it
				break
			}
			b = b[m:]
		}
		if p.over() || pi.readers == 0 {
			err = io.EOF
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && p.streams == nil {
				p.streams = err
			}
			pi.writers--
			p.b.cond.Broadcast()
			p.b.mu.Unlock()
			return
		}
		p.b.mu.Unlock()
	}
}

// over reports whether the process has ended.
func (p *process) over() bool { return p.root.dead }

// typing carries Stdin to the terminal. Its end is not passed on.
func (p *process) typing(r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.Read(buf)
		p.b.mu.Lock()
		for _, c := range buf[:n] {
			for p.tty.full() && !p.over() {
				p.b.cond.Wait()
			}
			if !p.over() {
				p.tty.typed(c)
			}
		}
		if p.over() {
			err = io.EOF
		}
		if err != nil && !errors.Is(err, io.EOF) && p.streams == nil {
			p.streams = err
		}
		p.b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// killFor kills the tree because the context ended or the time ran out.
func (p *process) killFor(cause error, timedOut bool) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.root.dead {
		if !p.ended && cause != nil && p.cause == nil {
			p.cause = cause // the rest of the output is not wanted
			p.b.cond.Broadcast()
		}
		return
	}
	p.cause, p.timedOut = cause, timedOut
	p.b.killTree(p.root.tree)
}

// finish waits for the end and settles what Wait says.
func (p *process) finish(ctx context.Context, pumps *sync.WaitGroup) {
	b := p.b
	b.mu.Lock()
	for !p.root.dead {
		b.cond.Wait()
	}
	b.mu.Unlock()
	pumps.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	p.ended = true
	p.exit = exitOf(p.root, p.timedOut)
	switch {
	case p.cause != nil:
		p.err = p.cause
	case b.gone && p.root.status.sig == sandbox.KILL && !p.timedOut:
		p.err = sandbox.At(op("Wait"), b.id, errGone())
	case p.streams != nil:
		p.err = p.streams
	}
	close(p.done)
}

// exitOf returns how p, which is dead, ended.
func exitOf(p *Proc, timedOut bool) sandbox.Exit {
	e := sandbox.Exit{Code: -1, Signal: p.status.sig}
	switch {
	case timedOut:
		e.Reason = sandbox.TimedOut
	case p.oom:
		e.Reason = sandbox.OutOfMemory
	case p.status.sig != "":
		e.Reason = sandbox.Signalled
	default:
		e.Reason, e.Code = sandbox.Exited, p.status.code
	}
	return e
}

// ID names the process.
func (p *process) ID() sandbox.ProcessID { return p.id }

// PID returns the pid.
func (p *process) PID() int { return p.root.pid }

// Wait waits for the end.
func (p *process) Wait() (sandbox.Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Signal sends a signal to the group.
func (p *process) Signal(ctx context.Context, sig sandbox.Signal) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return sandbox.At(op("Signal"), p.b.id, p.b.signal(p.root, sig))
}

func (b *box) signal(root *Proc, sig sandbox.Signal) error {
	if sig.Number() == 0 {
		return sandbox.Errorf(sandbox.Invalid, "signal", "%q is not a signal", sig).WithHint("use a name such as TERM, INT or KILL")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.live(); err != nil {
		return err
	}
	switch {
	case root.dead:
	case sig == sandbox.KILL:
		b.killTree(root.tree)
	default:
		b.signalWhere(sig, func(p *Proc) bool { return p.pgid == root.pgid })
	}
	return nil
}

// Resize sets the terminal's size.
func (p *process) Resize(ctx context.Context, size sandbox.Size) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.tty == nil {
		return sandbox.At(op("Resize"), p.b.id, errNoTerminal())
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if err := p.b.live(); err != nil {
		return sandbox.At(op("Resize"), p.b.id, err)
	}
	p.tty.resize(size)
	return nil
}

func errNoTerminal() error {
	return sandbox.Errorf(sandbox.Unsupported, "", "the process has no terminal").WithHint("start it with one")
}
