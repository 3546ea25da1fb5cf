package memory

import (
	"context"
	"errors"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A Program is a command of a sandbox: a Go function that runs as a process
// and returns its exit code.
//
// When the process is killed, the call to a [Proc]'s method that it is in, or
// the next one, does not return: it ends the goroutine as runtime.Goexit does,
// deferred functions included. A program that waits for anything else must
// also wait for [Proc.Context], or Remove and Close wait for it.
type Program func(p *Proc) int

// A Proc is a process, as the [Program] that runs in it sees it.
type Proc struct {
	// Args are the program's name and arguments, Env its environment. They
	// are the process's own.
	Args []string
	Env  map[string]string

	k    *box
	life context.Context // ends with the process
	kill context.CancelFunc

	// The Runtime's mutex guards what follows.
	pid, ppid int
	pgid, sid int
	tree      *tree
	tty       *tty // the controlling terminal
	who       cred
	umask     uint32
	cwd       *inode
	fds       map[int]*file
	dead      bool
	status    status
	stopped   bool
	held      []sandbox.Signal        // came while it was stopped
	traps     map[sandbox.Signal]trap // what is not default
	pending   []sandbox.Signal        // trapped and not yet looked at
	oom       bool
}

// A trap is what a process does about a signal.
type trap int

const (
	trapIgnore trap = iota + 1
	trapCatch
)

// A tree is all that came of one command that was started.
type tree struct{ _ byte }

// A status is how a process ended.
type status struct {
	code int
	sig  sandbox.Signal
}

// shell returns s as the shell's $? shows it.
func (s status) shell() int {
	if s.sig != "" {
		return 128 + s.sig.Number()
	}
	return s.code
}

// enter begins a system call: it takes the mutex and lets a stopped or killed
// process go no further.
func (p *Proc) enter() {
	p.k.mu.Lock()
	p.gate()
}

func (p *Proc) leave() { p.k.mu.Unlock() }

// gate is passed by processes that live and run.
func (p *Proc) gate() {
	for {
		if p.dead {
			p.k.mu.Unlock()
			runtime.Goexit()
		}
		if !p.stopped && !p.k.paused {
			return
		}
		p.k.cond.Wait()
	}
}

// wait waits until ready says so, and for the process to run.
func (p *Proc) wait(ready func() bool) {
	for !ready() {
		p.k.cond.Wait()
		p.gate()
	}
}

// Context returns a context that ends when the process does.
func (p *Proc) Context() context.Context { return p.life }

// Stdin returns the process's standard input.
func (p *Proc) Stdin() io.Reader { return fdReader{p, 0} }

// Stdout returns the process's standard output.
func (p *Proc) Stdout() io.Writer { return fdWriter{p, 1} }

// Stderr returns the process's standard error.
func (p *Proc) Stderr() io.Writer { return fdWriter{p, 2} }

type fdReader struct {
	p  *Proc
	fd int
}

func (r fdReader) Read(b []byte) (int, error) { return r.p.read(r.fd, b) }

type fdWriter struct {
	p  *Proc
	fd int
}

func (w fdWriter) Write(b []byte) (int, error) { return w.p.write(w.fd, b) }

// No system call defers leave: gate unlocks before it ends the goroutine.

func (p *Proc) read(fd int, b []byte) (int, error) {
	p.enter()
	f := p.fds[fd]
	if f == nil {
		p.leave()
		return 0, ebadf
	}
	n, err := f.read(p, b)
	p.leave()
	return n, err
}

func (p *Proc) write(fd int, b []byte) (int, error) {
	p.enter()
	f := p.fds[fd]
	if f == nil {
		p.leave()
		return 0, ebadf
	}
	n, err := f.write(p, b)
	if err == epipe {
		p.deliver(sandbox.PIPE)
		p.gate()
	}
	p.leave()
	return n, err
}

// Sleep waits for d to pass.
func (p *Proc) Sleep(d time.Duration) {
	p.enter()
	passed := false
	t := time.AfterFunc(d, func() {
		p.k.mu.Lock()
		defer p.k.mu.Unlock()
		passed = true
		p.k.cond.Broadcast()
	})
	defer t.Stop()
	p.wait(func() bool { return passed })
	p.leave()
}

// PID returns the process's id.
func (p *Proc) PID() int { return p.pid }

// OutOfMemory ends the process as the kernel does when memory runs out. It
// does not return.
func (p *Proc) OutOfMemory() {
	p.enter()
	p.oom = true
	p.die(sandbox.KILL)
	p.gate()
}

// A plan says what is different in a child process.
type plan struct {
	prog    Program
	args    []string
	env     map[string]string
	fds     map[int]*file // nil: the parent's
	group   bool          // becomes the leader of a group
	session bool          // becomes the leader of a session, without a terminal
}

// fork makes a child of p. The mutex is held.
func (p *Proc) fork(pl plan) (*Proc, error) {
	fds := pl.fds
	if fds == nil {
		fds = p.fds
	}
	c := &Proc{
		Args: pl.args, Env: pl.env, k: p.k, ppid: p.pid, pgid: p.pgid, sid: p.sid, tree: p.tree, tty: p.tty,
		who: p.who, umask: p.umask, cwd: p.cwd, fds: make(map[int]*file, len(fds)), traps: make(map[sandbox.Signal]trap),
	}
	if c.Args == nil {
		c.Args = p.Args
	}
	if c.Env == nil {
		c.Env = maps.Clone(p.Env)
	}
	for sig, t := range p.traps {
		if t == trapIgnore {
			c.traps[sig] = t
		}
	}
	if err := p.k.admit(c); err != nil {
		return nil, err
	}
	for fd, f := range fds {
		if fd >= 0 { // below are a shell's own, see hide
			f.refs++
			c.fds[fd] = f
		}
	}
	if pl.group || pl.session {
		c.pgid = c.pid
	}
	if pl.session {
		c.sid, c.tty = c.pid, nil
	}
	c.run(pl.prog)
	return c, nil
}

// maxProcs is how many processes a sandbox has at most, so that a fork bomb
// ends with an error as it would elsewhere.
const maxProcs = 4096

// admit gives a new process its pid and a life.
func (b *box) admit(p *Proc) error {
	if b.gone {
		return eagain
	}
	if max := b.spec.Limits.PIDs; max > 0 && len(b.procs) >= max || len(b.procs) >= maxProcs {
		return eagain
	}
	b.lastPID++
	p.pid = b.lastPID
	b.procs[p.pid] = p
	p.life, p.kill = context.WithCancel(context.Background())
	return nil
}

// run lets prog run in p, which is in the table.
func (p *Proc) run(prog Program) {
	p.k.wg.Go(func() {
		code := 255
		defer func() {
			p.k.mu.Lock()
			defer p.k.mu.Unlock()
			p.end(status{code: code & 0xff})
		}()
		p.enter()
		p.leave()
		code = prog(p)
	})
}

// end makes p a dead process. The mutex is held.
func (p *Proc) end(st status) {
	if p.dead {
		return
	}
	p.dead, p.status = true, st
	p.kill()
	for _, f := range p.fds {
		f.release()
	}
	clear(p.fds)
	for _, c := range p.k.procs {
		if c.ppid == p.pid {
			c.ppid = 1
			if c.dead {
				delete(p.k.procs, c.pid)
			}
		}
	}
	if p.ppid == 1 {
		delete(p.k.procs, p.pid)
	}
	if p.tty != nil && p.sid == p.pid {
		p.tty.hangUp()
	}
	p.k.cond.Broadcast()
}

func (p *Proc) die(sig sandbox.Signal) { p.end(status{code: -1, sig: sig}) }

// deliver sends sig to p. The mutex is held.
func (p *Proc) deliver(sig sandbox.Signal) {
	switch {
	case p.dead:
		return
	case sig == sandbox.KILL:
		p.die(sig)
		return
	case sig == sandbox.STOP:
		p.stopped = true
		return
	case sig == sandbox.CONT:
		p.stopped = false
		held := p.held
		p.held = nil
		for _, s := range held {
			p.deliver(s)
		}
		p.k.cond.Broadcast()
		return
	}
	switch p.traps[sig] {
	case trapIgnore:
		return
	case trapCatch:
		p.pending = append(p.pending, sig)
		p.k.cond.Broadcast()
		return
	}
	switch sig {
	case sandbox.CHLD, sandbox.WINCH, sandbox.URG:
		return
	case sandbox.TSTP, sandbox.TTIN, sandbox.TTOU:
		p.stopped = true
		return
	}
	if p.stopped {
		p.held = append(p.held, sig)
		return
	}
	p.die(sig)
}

// signalWhere sends sig to every process that match picks, and returns how
// many there were.
func (b *box) signalWhere(sig sandbox.Signal, match func(*Proc) bool) int {
	n := 0
	for _, pid := range slices.Sorted(maps.Keys(b.procs)) {
		if p := b.procs[pid]; p != nil && match(p) {
			p.deliver(sig)
			n++
		}
	}
	return n
}

func (b *box) killTree(t *tree) {
	b.signalWhere(sandbox.KILL, func(p *Proc) bool { return p.tree == t })
}

// reap waits for the child c to end and forgets it.
func (p *Proc) reap(c *Proc) status {
	p.enter()
	p.wait(func() bool { return c.dead })
	delete(p.k.procs, c.pid)
	p.leave()
	return c.status
}

// chdirTo makes n the working directory.
func (p *Proc) chdir(path string) error {
	p.enter()
	defer p.leave()
	at, err := p.walk(path, true)
	switch {
	case err != nil:
		return err
	case at.node == nil:
		return enoent
	case !at.node.isDir():
		return enotdir
	case !p.who.may(at.node, 1):
		return eacces
	}
	p.cwd = at.node
	return nil
}

// walk resolves path for p. The mutex is held.
func (p *Proc) walk(path string, follow bool) (place, error) {
	w := walker{b: p.k, who: p.who}
	return w.walk(p.cwd, path, follow)
}

// Dir returns the working directory.
func (p *Proc) Dir() string {
	p.enter()
	defer p.leave()
	return p.k.pathOf(p.cwd)
}

// pathOf returns the path of directory n.
func (b *box) pathOf(n *inode) string {
	var parts []string
	for b.up(n) != n {
		name := "(deleted)"
		for k, v := range b.up(n).entries {
			if v == n {
				name = k
			}
		}
		parts = append(parts, name)
		n = b.up(n)
	}
	slices.Reverse(parts)
	return "/" + strings.Join(parts, "/")
}

// look finds the program args[0] as execve(2) and execvp(3) do: with PATH, as
// who, from cwd, and through #! lines. It returns the arguments with which the
// Program is to be called. The mutex is held.
func (b *box) look(who cred, cwd *inode, env map[string]string, args []string) (Program, []string, error) {
	name := args[0]
	if strings.Contains(name, "/") {
		return b.load(who, cwd, name, args, 4)
	}
	found := error(enoent)
	search, ok := env["PATH"]
	if !ok {
		search = defaultPath
	}
	for dir := range strings.SplitSeq(search, ":") {
		if dir == "" {
			dir = "."
		}
		prog, full, err := b.load(who, cwd, dir+"/"+name, args, 4)
		if err == nil || errors.Is(err, enoexec) {
			return prog, full, err
		}
		if err == eacces {
			found = err
		}
	}
	return nil, nil, found
}

// magic begins the files of programs that are Go functions; their name
// follows.
const magic = "\x7fATOLL "

func (b *box) load(who cred, cwd *inode, path string, args []string, depth int) (Program, []string, error) {
	w := walker{b: b, who: who}
	at, err := w.walk(cwd, path, true)
	switch {
	case err != nil:
		return nil, nil, err
	case at.node == nil:
		return nil, nil, enoent
	case !at.node.mode.IsRegular() || !who.may(at.node, 1):
		return nil, nil, eacces
	case depth == 0:
		return nil, nil, eloop
	}
	head, _, _ := strings.Cut(string(at.node.data[:min(len(at.node.data), 256)]), "\n")
	if name, ok := strings.CutPrefix(head, magic); ok {
		if prog := b.rt.programs[name]; prog != nil {
			return prog, args, nil
		}
		return nil, nil, enoexec
	}
	line, ok := strings.CutPrefix(head, "#!")
	if !ok {
		return nil, nil, enoexec
	}
	interp, arg, both := strings.Cut(strings.TrimSpace(line), " ")
	full := []string{interp}
	if both {
		full = append(full, strings.TrimSpace(arg))
	}
	full = append(append(full, path), args[1:]...)
	return b.load(who, cwd, interp, full, depth-1)
}
