package inside

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/internal/tail"
	"github.com/atoll-run/atoll/guest/proto"
)

// childScore is how much likelier than the guest its processes are chosen
// when the machine is out of memory (oom_score_adj).
const childScore = "300"

// A process is one that was started. It is in Server.procs until it has ended
// and, if detached, been forgotten.
type process struct {
	s       *Server
	id      uint64 // also its mark
	pid     int    // and its process group
	args    []string
	name    string // of a detached one
	started time.Time
	done    chan struct{} // closed at the end

	// Guarded by Server.mu.
	conn     *conn  // that it is attached to
	daemon   string // that left it behind
	detached bool

	mu       sync.Mutex
	over     bool // it has been reaped: pid means nothing any more
	released bool // nobody will read its output
	ended    time.Time
	exit     proto.Exit
	timedOut bool
	noMemory bool
	oomKills int64 // of the place, before it began; -1 if that is not known
	timer    *time.Timer
	outs     [3]*source // descriptors 1, 2 and 3, where the guest has an end of them
	in       *sink      // standard input, where the guest writes it
	tty      *os.File   // the terminal's master
	ring     *ring      // of a detached one; set once
	pumps    sync.WaitGroup
}

// start answers "start". It runs on the loop.
func (s *Server) start(c *conn, id uint32, m *proto.Start, fds []int) {
	p, answer, master, err := s.spawn(c, m, fds)
	if err != nil {
		c.answer(id, nil, err)
		return
	}
	// p.mu is held, so that its end is not told before its beginning.
	if master >= 0 {
		c.answer(id, answer, nil, master)
	} else {
		c.answer(id, answer, nil)
	}
	p.mu.Unlock()
	if s.parked.Swap(false) {
		s.born <- struct{}{}
	}
}

// spawn starts a process and returns it with its mutex locked, and a copy of
// its terminal's master, or -1, to send.
func (s *Server) spawn(c *conn, m *proto.Start, fds []int) (_ *process, _ *proto.Started, master int, err error) {
	master = -1
	var ends ends
	defer func() {
		closeAll(fds) // the ends of the process itself
		if err != nil {
			ends.close()
			if master >= 0 {
				unix.Close(master)
				master = -1
			}
		}
	}()
	if !s.ready.Load() {
		return nil, nil, master, fail(kindUnavailable, "", "the sandbox is not set up yet")
	}
	if len(m.Args) == 0 || m.Args[0] == "" {
		return nil, nil, master, fail(kindInvalid, "args", "there is no command")
	}
	if len(m.Name) > maxName {
		return nil, nil, master, fail(kindInvalid, "name", "the name is too long")
	}
	s.mu.Lock()
	full := len(s.pids) >= maxProcesses
	s.mu.Unlock()
	if full {
		return nil, nil, master, &proto.Failure{Kind: kindExhausted, Msg: "too many processes that were started here run", Hint: "end some"}
	}
	user := m.User
	if user == "" {
		user = s.place.User
	}
	who, err := s.users.find(user)
	if err != nil {
		return nil, nil, master, err
	}
	env := s.environ(m, who)
	dir := m.Dir
	if dir == "" {
		dir = s.place.Workdir
	}
	program, err := lookPath(m.Args[0], dir, env, who)
	if err != nil {
		if e := checkDir(dir, who); e != nil {
			err = e
		}
		return nil, nil, master, err
	}
	cwd, err := openDir(dir, who)
	if err != nil {
		return nil, nil, master, err
	}
	defer unix.Close(cwd)
	fds, err = ends.open(s, c, m, fds, who)
	if err != nil {
		return nil, nil, master, err
	}
	if m.Terminal && c.passing && !m.Detached {
		if master, err = unix.FcntlInt(uintptr(ends.master), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, nil, -1, errno("", err)
		}
	}

	sys := &syscall.SysProcAttr{Setsid: true}
	if m.Terminal {
		sys.Setctty = true
	}
	if !s.users.oneID {
		sys.Credential = &syscall.Credential{Uid: uint32(who.uid), Gid: uint32(who.gid), Groups: who.groups}
	}
	if g := s.place.Cgroup; g != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(g.Fd())
	}
	attr := &syscall.ProcAttr{Dir: "/proc/self/fd/" + strconv.Itoa(cwd), Env: env, Sys: sys,
		Files: []uintptr{uintptr(ends.child[0]), uintptr(ends.child[1]), uintptr(ends.child[2])}}
	if m.Control {
		attr.Files = append(attr.Files, uintptr(ends.control))
	}

	before := s.oomKills()
	s.fork.Lock()
	defer s.fork.Unlock()
	mark := s.mark.take()
	if s.score >= 0 {
		unix.Pwrite(s.score, []byte(childScore), 0)
	}
	limits := s.lowerNproc()
	pid, err := syscall.ForkExec(program, m.Args, attr)
	if s.score >= 0 {
		unix.Pwrite(s.score, []byte("0"), 0)
	}
	limits.restore(pid, err)
	if err != nil {
		return nil, nil, master, s.whyNot(err, program, dir, who)
	}
	p := &process{s: s, id: mark, pid: pid, args: m.Args, name: m.Name, started: time.Now(), done: make(chan struct{}), oomKills: before}
	p.mu.Lock()
	ends.give(p)
	s.mu.Lock()
	if m.Detached {
		p.detached = true
	} else {
		p.conn = c
	}
	s.procs[mark] = p
	s.pids[pid] = p
	s.mu.Unlock()
	if m.Detached {
		p.keepLocked(m.Ring)
	}
	if m.Timeout > 0 {
		p.timer = time.AfterFunc(time.Duration(m.Timeout), p.timeOut)
	}
	return p, &proto.Started{Proc: mark, PID: pid}, master, nil
}

// ends are the ends of a process's standard streams, and of its descriptor 3.
type ends struct {
	child   [3]int // the process's own: closed by spawn with the descriptors that came
	control int    // the process's own as well
	in      int    // the guest's: writes standard input
	out     [3]int // the guest's: read the output
	master  int
	passed  bool // the daemon has the other ends
}

// open makes what m asks for. It returns the descriptors that are to be closed
// once the process has them.
func (e *ends) open(s *Server, c *conn, m *proto.Start, fds []int, who identity) ([]int, error) {
	null := s.null
	*e = ends{child: [3]int{null, null, null}, control: -1, in: -1, out: [3]int{-1, -1, -1}, master: -1}
	if m.Control && m.Detached {
		return fds, fail(kindInvalid, "control", "a detached process has no writer")
	}
	passed := c.passing && !m.Detached
	e.passed = passed
	want := 0
	if passed {
		if m.In == proto.Pipe && !m.Terminal {
			want++
		}
		for _, w := range []bool{m.Out == proto.Pipe && !m.Terminal, m.Err == proto.Pipe && !m.Terminal, m.Control} {
			if w {
				want += 2
			}
		}
	}
	if len(fds) != want {
		return fds, fail(kindInvalid, "", "the descriptors are not those that the request needs")
	}
	next := fds
	pipe := func(input bool) (child, own int, err error) {
		switch {
		case passed && input:
			child, own, next = next[0], -1, next[1:]
		case passed:
			child, own, next = next[0], next[1], next[2:]
		default:
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
				return -1, -1, errno("", err)
			}
			child, own = p[1], p[0]
			if input {
				child, own = p[0], p[1]
			}
			fds = append(fds, child)
		}
		return child, own, nil
	}
	var err error
	if m.Terminal {
		var slave int
		if e.master, slave, err = openTerminal(m.Rows, m.Cols, who); err != nil {
			return fds, err
		}
		e.child = [3]int{slave, slave, slave}
		fds = append(fds, slave)
	} else if err = e.streams(m, pipe); err != nil {
		return fds, err
	}
	if m.Control {
		if e.control, e.out[2], err = pipe(false); err != nil {
			return fds, err
		}
	}
	if passed { // the guest keeps the reading ends open: they are not for spawn to close
		var rest []int
		for _, fd := range fds {
			if !slices.Contains(e.out[:], fd) {
				rest = append(rest, fd)
			}
		}
		fds = rest
	}
	return fds, nil
}

// streams makes the standard streams that m asks for of pipes.
func (e *ends) streams(m *proto.Start, pipe func(input bool) (child, own int, err error)) (err error) {
	if m.In == proto.Pipe {
		if e.child[0], e.in, err = pipe(true); err != nil {
			return err
		}
	}
	if m.Out == proto.Pipe {
		if e.child[1], e.out[0], err = pipe(false); err != nil {
			return err
		}
	}
	switch m.Err {
	case proto.Share:
		e.child[2] = e.child[1]
	case proto.Pipe:
		if e.child[2], e.out[1], err = pipe(false); err != nil {
			return err
		}
	}
	return nil
}

// close closes what the guest would have kept.
func (e *ends) close() {
	for _, fd := range []int{e.in, e.out[0], e.out[1], e.out[2], e.master} {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

// give hands the guest's ends to p.
func (e *ends) give(p *process) {
	if e.in >= 0 {
		p.in = newSink(e.in)
	}
	for i, fd := range e.out {
		if fd >= 0 {
			p.outs[i] = &source{fd: fd}
			if !e.passed {
				p.outs[i].open()
			}
		}
	}
	if e.master >= 0 {
		unix.SetNonblock(e.master, true)
		p.tty = os.NewFile(uintptr(e.master), "terminal")
		p.outs[0] = &source{fd: e.master, r: tail.NewFile(p.tty, e.master, true), tty: true}
		p.in = &sink{f: p.tty, tty: true}
	}
}

// whyNot says why a process could not be started.
func (s *Server) whyNot(err error, program, dir string, who identity) error {
	if e := checkDir(dir, who); e != nil {
		return e
	}
	switch err {
	case syscall.ENOENT, syscall.ENOTDIR:
		if exists(program) {
			return &proto.Failure{Kind: kindNotExist, Field: "args", Msg: "the interpreter or loader of " + quote(program) + " is not there", Log: err.Error()}
		}
		return fail(kindNotExist, "args", "there is no program "+quote(program))
	case syscall.EACCES, syscall.EPERM:
		return &proto.Failure{Kind: kindDenied, Field: "args", Msg: "the user may not execute " + quote(program), Log: err.Error()}
	case syscall.ENOEXEC, syscall.EINVAL, syscall.ELIBBAD:
		return &proto.Failure{Kind: kindInvalid, Field: "args", Msg: quote(program) + " is not a program that can be executed here", Hint: "a script begins with #! and its interpreter", Log: err.Error()}
	case syscall.E2BIG:
		return &proto.Failure{Kind: kindInvalid, Field: "args", Msg: "arguments and environment are too long", Hint: "pass them in a file", Log: err.Error()}
	case syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
		return &proto.Failure{Kind: kindExhausted, Msg: "the sandbox has no room for another process", Hint: "end some, or raise limits.pids", Log: err.Error()}
	case syscall.ELOOP, syscall.ENAMETOOLONG:
		return &proto.Failure{Kind: kindInvalid, Field: "args", Msg: quote(program) + " cannot be resolved", Log: err.Error()}
	case syscall.ETXTBSY:
		return &proto.Failure{Kind: kindUnavailable, Field: "args", Msg: quote(program) + " is open for writing", Hint: "try again when it is written", Log: err.Error()}
	}
	return &proto.Failure{Kind: kindInternal, Msg: "the process could not be started", Log: err.Error()}
}

// timeOut ends p for running too long.
func (p *process) timeOut() {
	p.mu.Lock()
	over := p.over
	p.timedOut = !over
	p.mu.Unlock()
	if !over {
		p.s.killTree(p)
	}
}

// Reap reaps every child of the process for ever, and tells the daemons how
// those ended that they started. It wants a thread to itself.
//
// Waiting blocks in the kernel: a signal would have to find its way through
// the runtime first.
func (s *Server) Reap() {
	usage := new(unix.Rusage)
	for {
		pid, code, status, err := await(true, usage)
		switch {
		case err == unix.ECHILD:
			s.parked.Store(true)
			if _, _, _, err := await(false, usage); err == unix.ECHILD {
				<-s.born
			}
			s.parked.Store(false)
			continue
		case err != nil:
			continue
		}
		s.mu.Lock()
		p := s.pids[pid]
		s.mu.Unlock()
		if p == nil { // an orphan, or one that is just being started
			s.fork.Lock() // until the start under way, if any, has told of it
			s.mu.Lock()
			p = s.pids[pid]
			s.mu.Unlock()
			s.fork.Unlock()
		}
		if p == nil {
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
			s.mu.Lock()
			s.reaped += cpu(usage)
			s.mu.Unlock()
			continue
		}
		p.end(code, status, usage)
		if s.fork.TryLock() {
			s.mark.prepare()
			s.fork.Unlock()
		}
	}
}

// The values of si_code in the siginfo_t of waitid(2).
const (
	cldExited = 1
)

// end reaps p, which has ended, and tells who wants to know.
func (p *process) end(code, status int, usage *unix.Rusage) {
	s := p.s
	p.mu.Lock()
	// Only here does the pid become free for another process, and nobody
	// signals it any more.
	unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
	p.over = true
	p.ended = time.Now()
	if p.timer != nil {
		p.timer.Stop()
	}
	p.exit = proto.Exit{Proc: p.id, Code: -1, CPU: int64(cpu(usage)), Memory: usage.Maxrss << 10}
	switch {
	case code == cldExited:
		p.exit.Reason, p.exit.Code = proto.Exited, status
	default:
		p.exit.Reason, p.exit.Signal = proto.Signalled, status
	}
	killed := code != cldExited && status == int(unix.SIGKILL)
	switch {
	case p.timedOut && killed:
		p.exit.Reason, p.exit.Code, p.exit.Signal = proto.TimedOut, -1, status
	case (killed || code == cldExited && status == 128+9) && (p.noMemory || p.oomKills >= 0 && s.oomKills() > p.oomKills):
		p.exit.Reason, p.exit.Code, p.exit.Signal = proto.OutOfMemory, -1, int(unix.SIGKILL)
	}
	s.mu.Lock()
	delete(s.pids, p.pid)
	s.reaped += cpu(usage)
	c, detached := p.conn, p.detached
	s.mu.Unlock()

	if detached && p.ring == nil { // it is being adopted
		p.keepLocked(defaultRing)
	}
	for i, o := range p.outs {
		if o == nil {
			continue
		}
		if held := o.finish(c != nil && c.passing); held {
			p.exit.Held = true
		} else if c != nil && c.passing {
			p.outs[i] = nil
		}
	}
	if p.in != nil {
		p.in.end()
	}
	exit, released := p.exit, p.released
	p.mu.Unlock()
	s.tidyLater()

	switch {
	case detached: // its end is told when all that it printed is in the ring
		go func() {
			p.pumps.Wait()
			s.remember(p)
			close(p.done)
			p.ring.end()
		}()
		return
	case c != nil:
		var b [64]byte
		c.send(proto.AppendFrame(b[:0], proto.OpExit, 0, 0, &exit))
		if released {
			s.forgetProc(p)
			p.release()
		} else if c.passing && !exit.Held {
			s.forgetProc(p)
		}
	default:
		s.forgetProc(p)
		p.release()
	}
	close(p.done)
}

func (s *Server) forgetProc(p *process) {
	s.mu.Lock()
	delete(s.procs, p.id)
	s.mu.Unlock()
}

// remember keeps an ended detached process, and drops the oldest ones.
func (s *Server) remember(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, p)
	for len(s.ended) > maxEnded {
		delete(s.procs, s.ended[0].id)
		s.ended = s.ended[1:]
	}
}

// release gives up what the guest holds of an ended process's output: what
// still comes is read to nowhere until nobody can write any more.
func (p *process) release() {
	p.mu.Lock()
	outs := p.outs
	in := p.in
	p.outs, p.in = [3]*source{}, nil
	p.mu.Unlock()
	for _, o := range outs {
		if o != nil {
			go o.discard()
		}
	}
	if in != nil {
		in.close()
	}
}

// find returns the process with this id.
func (s *Server) find(id uint64) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[id]; p != nil {
		return p, nil
	}
	return nil, fail(kindNotExist, "", "there is no such process")
}

// findDetached returns the detached process with this id.
func (s *Server) findDetached(id uint64) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[id]; p != nil && p.detached {
		return p, nil
	}
	return nil, fail(kindNotExist, "id", "there is no such process")
}

// signal sends a signal to p's process group.
func (p *process) signal(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return nil
	}
	sig := syscall.Signal(n)
	err := unix.Kill(-p.pid, sig)
	if e := unix.Kill(p.pid, 0); err == unix.ESRCH && e == nil { // not its group's leader yet, or no more
		err = unix.Kill(p.pid, sig)
	}
	if err == unix.ESRCH {
		return nil
	}
	return errno("signal", err)
}

func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fail(kindUnavailable, "", "the request was cancelled")
	}
}

func cpu(u *unix.Rusage) time.Duration {
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// quick and slow are the operations but for those that conn.handle does
// itself. The quick ones run on the loop and must not block.
var quick = map[proto.Op]func(*conn, []byte) (proto.Message, error){
	proto.OpResize: func(c *conn, b []byte) (proto.Message, error) {
		var m proto.Resize
		if err := proto.Decode(b, &m); err != nil {
			return nil, err
		}
		p, err := c.s.find(m.Proc)
		if err != nil {
			return nil, err
		}
		return nil, p.resize(m.Rows, m.Cols)
	},
	proto.OpRelease: func(c *conn, b []byte) (proto.Message, error) {
		var m proto.Proc
		if err := proto.Decode(b, &m); err != nil {
			return nil, err
		}
		p, err := c.s.find(m.Proc)
		if err != nil {
			return nil, nil // it has gone already
		}
		p.mu.Lock()
		over := p.over
		p.released = !over // when it has ended
		p.mu.Unlock()
		c.s.mu.Lock()
		mine := p.conn == c
		c.s.mu.Unlock()
		if over && mine {
			c.s.forgetProc(p)
			p.release()
		}
		return nil, nil
	},
	proto.OpForget: func(c *conn, b []byte) (proto.Message, error) {
		var m proto.Proc
		if err := proto.Decode(b, &m); err != nil {
			return nil, err
		}
		return nil, c.s.forget(m.Proc)
	},
	proto.OpEnv: func(c *conn, b []byte) (proto.Message, error) {
		var m proto.Env
		if err := proto.Decode(b, &m); err != nil {
			return nil, err
		}
		undo, err := c.s.setEnv(&m)
		if err != nil {
			return nil, err
		}
		return undo, nil
	},
	proto.OpProcesses: func(c *conn, b []byte) (proto.Message, error) {
		return c.s.list(), nil
	},
	proto.OpClose: func(c *conn, b []byte) (proto.Message, error) {
		var m proto.Handle
		if err := proto.Decode(b, &m); err != nil {
			return nil, err
		}
		if h := c.takeHandle(m.Handle); h != nil {
			go h.close()
		}
		return nil, nil
	},
}

type slowOp = func(context.Context, *conn, []byte) (proto.Message, []int, error)

// on makes a slowOp of a function that takes a decoded request.
func on[T any, P interface {
	*T
	proto.Message
}](do func(context.Context, *conn, *T) (proto.Message, error)) slowOp {
	return func(ctx context.Context, c *conn, b []byte) (proto.Message, []int, error) {
		var m T
		if err := proto.Decode(b, P(&m)); err != nil {
			return nil, nil, fail(kindInvalid, "", err.Error())
		}
		r, err := do(ctx, c, &m)
		return r, nil, err
	}
}

var slow map[proto.Op]slowOp

func init() {
	slow = map[proto.Op]slowOp{
		proto.OpSignal: on(func(_ context.Context, c *conn, m *proto.Signal) (proto.Message, error) {
			p, err := c.s.find(m.Proc)
			if err != nil {
				return nil, nil // it has ended: a signal to it is no error
			}
			if m.Number < 1 || m.Number > 64 {
				return nil, fail(kindInvalid, "signal", "there is no such signal")
			}
			if m.Number == int(unix.SIGKILL) {
				c.s.killTree(p)
				return nil, nil
			}
			return nil, p.signal(m.Number)
		}),
		proto.OpRead:   on(readOutput),
		proto.OpWrite:  on(writeInput),
		proto.OpWait:   on(waitFor),
		proto.OpOutput: on(output),
		proto.OpUsage: func(_ context.Context, c *conn, _ []byte) (proto.Message, []int, error) {
			return c.s.usage(), nil, nil
		},
	}
	fileOps(slow)
}
