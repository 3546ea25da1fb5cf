package shell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Options say what shell is wanted. The zero Options are bash, or else sh, in
// the sandbox's working directory.
type Options struct {
	// Program is the shell and its arguments: it has to read commands from
	// its standard input as POSIX says. nil is bash if it is there, else sh.
	Program []string

	Dir  string            // where it starts, an absolute path; "" is the sandbox's
	Env  map[string]string // added to the sandbox's; names as those of Command.Env
	User string            // as in sandbox.Cmd

	// Physical has directories reported without symbolic links, as pwd -P does.
	Physical bool

	// History is how many bytes of each command's output are kept to be read
	// by cursor; 0 is 256 KiB, at most 16 MiB.
	History int

	// Commands is how many commands are remembered once they have ended; 0 is
	// 16, at most 1000.
	Commands int

	// Rest, if positive, is how long an idle shell keeps its process. A sandbox
	// with a process that somebody waits for is in use; one whose shells rest is
	// not. The next command then takes some milliseconds longer, and what
	// belongs to a process is lost: see the package comment. Only bash
	// rests, as others would lose their functions, and only
	// without jobs and without a trap on EXIT.
	Rest time.Duration

	// Queue is how many commands may wait for their turn; 0 is 64. One more
	// is Exhausted.
	Queue int
}

// Times that do not come from callers.
const (
	startTime = 10 * time.Second       // a new shell has to speak within it
	idleTime  = 20 * time.Millisecond  // after it, an idle shell tells its state
	killTime  = 5 * time.Second        // for what kills
	closeTime = 15 * time.Second       // for Close
	firstWait = 300 * time.Millisecond // a shell has to be back this long after its command was killed
	nextWait  = 2 * time.Second        // and this long after the second time
	maxOld    = 64                     // shells that have ended, whose leftovers Close looks for
)

// A Shell is a shell in a sandbox. It is safe for concurrent use. It lives
// until Close: a Shell whose process ends gets a new one with its next command.
// When the sandbox is gone, commands fail with NotExist.
type Shell struct {
	sb      sandbox.Sandbox
	opt     Options
	life    context.Context // ends with Close
	end     context.CancelFunc
	wake    chan struct{}
	stopped chan struct{} // the loop has ended

	mu     sync.Mutex
	closed bool
	queue  []*command
	known  []*command // oldest first, those in the queue included
	cur    *command
	last   ID
	dir    string
	pid    int
	bash   bool
	used   time.Time
	made   time.Time

	// Of the loop alone.
	live   *live
	again  bool     // there was one before
	state  *state   // of the shell before
	forget []string // variables of its last command alone
	status int      // $?
	old    []int    // pids of shells that have ended
}

// Open starts a shell in sb. ctx bounds the starting; the shell lives until
// Close, which always needs calling. A Dir or User that is not there is
// NotExist with Field "dir" or "user", and so is a sandbox without any shell,
// with Field "args". A sandbox whose processes can have no Control has no
// shells: Unsupported or Unavailable.
func Open(ctx context.Context, sb sandbox.Sandbox, opt Options) (*Shell, error) {
	const op = "shell.Open"
	if err := opt.check(); err != nil {
		return nil, sandbox.At(op, sb.ID(), err)
	}
	s := &Shell{sb: sb, opt: opt, wake: make(chan struct{}, 1), stopped: make(chan struct{}), made: time.Now(), used: time.Now()}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.start(ctx); err != nil {
		s.end()
		return nil, sandbox.At(op, sb.ID(), err)
	}
	go func() {
		defer close(s.stopped)
		s.loop()
	}()
	return s, nil
}

func (o *Options) check() error {
	switch {
	case o.History < 0 || o.History > 16<<20:
		return sandbox.Errorf(sandbox.Invalid, "history", "%d bytes of history are not possible", o.History).WithHint("give 1 to 16777216, or 0 for 262144")
	case o.Commands < 0 || o.Commands > 1000:
		return sandbox.Errorf(sandbox.Invalid, "commands", "%d commands cannot be remembered", o.Commands).WithHint("give 1 to 1000, or 0 for 16")
	case o.Rest < 0:
		return sandbox.Errorf(sandbox.Invalid, "rest", "%v is negative", o.Rest).WithHint("give a positive time, or 0 for never")
	case o.Queue < 0:
		return sandbox.Errorf(sandbox.Invalid, "queue", "%d commands cannot wait", o.Queue).WithHint("give a positive number, or 0 for 64")
	}
	if o.History == 0 {
		o.History = 256 << 10
	}
	if o.Commands == 0 {
		o.Commands = 16
	}
	if o.Queue == 0 {
		o.Queue = 64
	}
	return checkEnv(o.Env)
}

// Info describes a Shell.
type Info struct {
	Shell   string // "bash", or "sh" for any other
	PID     int    // of the process, as the sandbox sees it
	Dir     string // where it is
	Running ID     // the command that runs, or 0
	Text    string // of that command, or else of the last one
	Queued  int    // commands that wait for their turn
	Opened  time.Time
	Used    time.Time // when a command was last given, or ended
}

// Info returns what is true of the shell now. It asks nobody.
func (s *Shell) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := Info{Shell: "sh", PID: s.pid, Dir: s.dir, Queued: len(s.queue), Opened: s.made, Used: s.used}
	if s.bash {
		i.Shell = "bash"
	}
	if s.cur != nil {
		i.Running, i.Text = s.cur.id, s.cur.Text
	} else if n := len(s.known); n > 0 {
		i.Text = s.known[n-1].Text
	}
	return i
}

// Run runs a command and waits for it, as long as its Patience lasts. Commands
// that are given at the same time run one after the other.
//
// ctx is the command's life: if it ends while Run waits, the command leaves
// the queue or is killed, and the error is the context's. A command whose
// Patience ran out lives on, until its Timeout, Kill or Close.
//
// Nobody writes to Stdout and Stderr after Run has returned; a Write that blocks
// keeps it from returning, and from ending what it is asked to end. The error is nil
// whenever the Result is the command's own doing. It is the first error of a
// writer, NotExist when the sandbox is gone, Closed after Close, otherwise ours.
func (s *Shell) Run(ctx context.Context, req Command) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{ExitCode: -1}, err
	}
	r := &reader{stdout: req.Stdout, stderr: req.Stderr}
	c, err := s.give(req, r)
	if err != nil {
		return Result{ExitCode: -1}, sandbox.At("shell.Run", s.sb.ID(), err)
	}
	res, err := s.wait(ctx, c, r, req.Patience)
	if err != nil && ctx.Err() != nil && !c.over() {
		if !s.leave(c) {
			c.end(Killed)
		}
		<-c.done
		res, _ := s.result(c, r, Killed)
		return res, ctx.Err()
	}
	return res, sandbox.At("shell.Run", s.sb.ID(), err)
}

// Start gives the shell a command and returns at once. Its Stdout, Stderr and
// Patience are not used: see Wait and Output.
func (s *Shell) Start(req Command) (ID, error) {
	c, err := s.give(req, nil)
	if err != nil {
		return 0, sandbox.At("shell.Start", s.sb.ID(), err)
	}
	return c.id, nil
}

// WaitOptions say how to wait for a command.
type WaitOptions struct {
	Patience       Patience
	Cursor         int64     // where Stdout and Stderr begin; a negative one begins with what comes next
	Stdout, Stderr io.Writer // get the output from there on, as far as it is kept
}

// Wait waits for a command that was given before. ctx bounds the wait alone. A
// command that is not known, or no longer, is NotExist.
func (s *Shell) Wait(ctx context.Context, id ID, opt WaitOptions) (Result, error) {
	c, err := s.command(id)
	if err != nil {
		return Result{ExitCode: -1}, sandbox.At("shell.Wait", s.sb.ID(), err)
	}
	r := &reader{stdout: opt.Stdout, stderr: opt.Stderr}
	c.attach(r, opt.Cursor)
	res, err := s.wait(ctx, c, r, opt.Patience)
	return res, sandbox.At("shell.Wait", s.sb.ID(), err)
}

// Output returns output of a command that lies at or after cursor (0 is the
// first byte), at most that many bytes of it, waiting for some to come as long
// as the command runs and wait and ctx last. What a command's children write
// after its end, until the next one begins, is there as well. Exit is
// set when the command has ended and nothing follows.
func (s *Shell) Output(ctx context.Context, id ID, cursor int64, most int, wait time.Duration) (sandbox.Output, error) {
	c, err := s.command(id)
	if err != nil {
		return sandbox.Output{}, sandbox.At("shell.Output", s.sb.ID(), err)
	}
	if cursor < 0 || most < 0 || wait < 0 {
		return sandbox.Output{}, sandbox.At("shell.Output", s.sb.ID(), sandbox.Errorf(sandbox.Invalid, "cursor", "a number is negative").WithHint("give none that is"))
	}
	var timer <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		timer = t.C
	}
	for {
		c.mu.Lock()
		out := c.out.read(cursor, most)
		ended := c.status.Ended()
		if ended && out.Next == c.out.end {
			out.Exit = &sandbox.Exit{Code: c.result.ExitCode, Reason: sandbox.Exited}
			if c.status == TimedOut {
				out.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.TimedOut}
			}
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		if len(out.Chunks) > 0 || ended || timer == nil || most == 0 {
			return out, nil
		}
		select {
		case <-changed:
		case <-timer:
			return out, nil
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// Input writes to the standard input of a command that runs and was given one
// with Command.Input, and with eof closes it. It returns when the bytes are on
// their way, and how many are. A command without input, or one whose input is
// closed, is Conflict.
func (s *Shell) Input(ctx context.Context, id ID, p []byte, eof bool) (int, error) {
	n, err := s.feed(ctx, id, p, eof)
	return n, sandbox.At("shell.Input", s.sb.ID(), err)
}

func (s *Shell) feed(ctx context.Context, id ID, p []byte, eof bool) (int, error) {
	c, err := s.command(id)
	if err != nil {
		return 0, err
	}
	closed := sandbox.Errorf(sandbox.Conflict, "input", "the command has no input that could be written to")
	if !c.Command.Input {
		return 0, closed
	}
	select {
	case <-c.fed:
	case <-c.done:
		return 0, closed
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	in := c.input
	if in == nil || c.over() {
		return 0, closed
	}
	// A pipe's Write cannot be called off but by closing it: the command then
	// reads no more.
	stop := context.AfterFunc(ctx, func() { in.w.CloseWithError(io.ErrClosedPipe) })
	defer stop()
	n, err := 0, error(nil)
	if len(p) > 0 {
		n, err = in.w.Write(p)
	}
	if eof && err == nil {
		err = in.w.Close()
	}
	switch {
	case err == nil:
		return n, nil
	case ctx.Err() != nil:
		return n, ctx.Err()
	case errors.Is(err, io.ErrClosedPipe):
		return n, closed
	}
	return n, err
}

// Interrupt does to a command what ^C does: its children get INT, and what
// follows in it does not run. It does not wait for that. A command that has
// ended is left alone; one that still waits for its turn leaves the queue.
func (s *Shell) Interrupt(id ID) error {
	c, err := s.command(id)
	if err != nil {
		return sandbox.At("shell.Interrupt", s.sb.ID(), err)
	}
	if s.leave(c) {
		return nil
	}
	select {
	case c.intr <- struct{}{}:
	default:
	}
	return nil
}

// Kill ends a command and its children, and waits for that as long as ctx
// lasts. The shell goes on, with its variables, functions and directory as far
// as the package comment says. Processes that earlier commands left are spared. A
// command that has ended is left alone.
func (s *Shell) Kill(ctx context.Context, id ID) error {
	c, err := s.command(id)
	if err != nil {
		return sandbox.At("shell.Kill", s.sb.ID(), err)
	}
	if s.leave(c) {
		return nil
	}
	c.end(Killed)
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the shell and all processes that its commands left, and waits for
// that: at most 15 seconds, after which it says so. Commands that run or wait
// fail with Closed. A second Close does nothing and returns nil.
func (s *Shell) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	s.end()
	if !first {
		return nil
	}
	select {
	case <-s.stopped:
		return nil
	case <-time.After(closeTime):
		return sandbox.At("shell.Close", s.sb.ID(), sandbox.Errorf(sandbox.Unavailable, "", "the shell has not ended in time").WithHint("remove the sandbox"))
	}
}

var errClosed = sandbox.Errorf(sandbox.Closed, "", "the shell was closed")

// give puts a command into the queue.
func (s *Shell) give(req Command, r *reader) (*command, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	c := newCommand(req, s.opt.History)
	if r != nil {
		c.readers = []*reader{r}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if len(s.queue) >= s.opt.Queue {
		return nil, sandbox.Errorf(sandbox.Exhausted, "", "%d commands wait for this shell", len(s.queue)).WithHint("wait for them, or open another shell")
	}
	s.last++
	c.id = s.last
	s.queue = append(s.queue, c)
	s.known = append(s.known, c)
	s.used = time.Now()
	s.prune()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return c, nil
}

// prune forgets the oldest commands that have ended. mu is held.
func (s *Shell) prune() {
	over := 0
	for _, c := range s.known {
		if c.over() {
			over++
		}
	}
	s.known = slices.DeleteFunc(s.known, func(c *command) bool {
		if over <= s.opt.Commands || !c.over() {
			return false
		}
		over--
		return true
	})
}

func (c *command) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// leave takes c out of the queue, if it is still there.
func (s *Shell) leave(c *command) bool {
	s.mu.Lock()
	i := slices.Index(s.queue, c)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	dir := s.dir
	s.mu.Unlock()
	if i >= 0 {
		c.finish(Result{Status: Killed, ExitCode: 137, Dir: dir}, nil)
	}
	return i >= 0
}

func (s *Shell) command(id ID) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.known {
		if c.id == id {
			return c, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.NotExist, "command", "there is no command %d", id)
}

// wait waits, and takes r from c.
func (s *Shell) wait(ctx context.Context, c *command, r *reader, p Patience) (Result, error) {
	status, err := c.wait(ctx, p)
	if err != nil {
		c.detach(r)
		return Result{ID: c.id, ExitCode: -1}, err
	}
	return s.result(c, r, status)
}

// result returns what is known of c.
func (s *Shell) result(c *command, r *reader, status Status) (Result, error) {
	c.detach(r)
	s.mu.Lock()
	dir := s.dir
	s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status.Ended() {
		res := c.result
		res.Cursor = r.next
		if c.err != nil {
			return res, c.err
		}
		return res, r.err
	}
	res := Result{ID: c.id, Status: status, ExitCode: -1, Dir: dir, Cursor: r.next}
	if !c.begun.IsZero() {
		res.Duration = time.Since(c.begun)
	}
	return res, r.err
}

// loop runs one command after the other until the shell's life ends.
func (s *Shell) loop() {
	idle := time.NewTimer(0)
	idle.Stop()
	told := false
	for {
		s.mu.Lock()
		var c *command
		if len(s.queue) > 0 && s.life.Err() == nil {
			c, s.queue = s.queue[0], s.queue[1:]
		}
		s.cur = c
		s.mu.Unlock()
		if c != nil {
			idle.Stop()
			s.run(c)
			idle.Reset(idleTime)
			told = false
			continue
		}
		select {
		case <-s.wake:
		case <-idle.C:
			switch {
			case s.live == nil:
			case told:
				s.rest()
			default:
				s.live.in.put("__atoll_n\n")
				if told = true; s.opt.Rest > 0 {
					idle.Reset(s.opt.Rest)
				}
			}
		case <-s.life.Done():
			s.quit()
			return
		}
	}
}

// rest ends an idle process that the next command can do without.
func (s *Shell) rest() {
	l := s.live
	l.mu.Lock()
	// A trap on EXIT is for the end of the shell, which this is not.
	can := l.dialect.bash && l.fresh && len(l.jobs) == 0 && strings.Contains(l.state.traps, "'__atoll_x' EXIT")
	l.mu.Unlock()
	if !can {
		return
	}
	l.in.put("trap - EXIT\nexit 0\n")
	if !l.back(killTime) {
		l.kill()
		<-l.done
	}
	s.bury(nil)
}

// quit ends what is left when the shell's life has.
func (s *Shell) quit() {
	if s.live != nil {
		<-s.live.done // its tree dies with life
		s.live = nil
	}
	s.mu.Lock()
	left := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, c := range left {
		c.finish(Result{Status: Killed, ExitCode: 137}, errClosed)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), killTime)
	defer cancel()
	if len(s.old) > 0 { // if it fails, the sandbox is gone, or will not
		s.killer(ctx, s.old, "rest", 0, nil)
	}
}

// start starts the shell's process, with the state of the one before.
func (s *Shell) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	cmd := sandbox.Cmd{Args: s.opt.Program, Env: s.opt.Env, Dir: s.opt.Dir, User: s.opt.User}
	if len(cmd.Args) == 0 {
		cmd.Args = []string{"sh", "-c", find}
	}
	if s.again { // where it started may be gone
		cmd.Dir = "/"
	}
	l, err := start(ctx, s.life, s.sb, cmd)
	if err != nil {
		return err
	}
	late := func(what string) error {
		l.kill()
		<-l.done
		if err := ctx.Err(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if l.err != nil && !errors.Is(l.err, context.Canceled) {
			return l.err
		}
		return sandbox.Errorf(sandbox.Unavailable, "", "the shell %s", what)
	}
	l.in.put(hello)
	select {
	case <-l.hello:
	case <-l.done:
		return late(fmt.Sprintf("ended at once, with %d", l.exit.Status()))
	case <-ctx.Done():
		return late("did not speak in time")
	}
	l.in.put(l.dialect.prepare(s.opt.Physical))
	if s.again {
		if s.state != nil {
			l.in.put(l.dialect.restore(s.state, s.forget))
		}
		var where []string
		for _, d := range []string{s.dir, s.opt.Dir} {
			if path.IsAbs(d) {
				where = append(where, "command cd -- "+quote(d))
			}
		}
		l.in.put(strings.Join(append(where, ":"), " || ") + "\n")
	}
	l.in.put(l.dialect.traps())
	l.in.put(report(l.begin(nil, 0), 0))
	select {
	case <-l.ready:
	case <-l.done:
		return late(fmt.Sprintf("ended at its start, with %d", l.exit.Status()))
	case <-ctx.Done():
		return late("was not ready in time")
	}
	s.live, s.again = l, true
	s.learn(l)
	return nil
}

// learn notes where the shell is.
func (s *Shell) learn(l *live) {
	l.mu.Lock()
	dir, pid, bash := l.dir, l.pid, l.dialect.bash
	l.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if dir != "" {
		s.dir = dir
	}
	s.pid, s.bash, s.used = pid, bash, time.Now()
}

// bury takes the state of a process that has ended, for the next. It reports
// whether that is what the process had when it ended.
func (s *Shell) bury(env map[string]string) (fresh bool) {
	l := s.live
	s.live = nil
	s.learn(l)
	s.mu.Lock()
	s.pid = 0
	s.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != nil || l.last {
		s.state, s.forget = l.state, nil
	}
	if l.last {
		for k := range env {
			s.forget = append(s.forget, k)
		}
		slices.Sort(s.forget)
	}
	if l.pid > 0 {
		if s.old = append(s.old, l.pid); len(s.old) > maxOld {
			s.old = s.old[1:]
		}
	}
	return l.last && l.state != nil
}

// run runs one command to its end.
func (s *Shell) run(c *command) {
	r, err := s.try(c)
	if c.input != nil {
		c.input.close()
	}
	s.mu.Lock()
	s.cur = nil
	// It is remembered for its output: not for its secrets, nor for a
	// megabyte of text.
	c.Env, c.Stdin, c.Text = nil, nil, strings.Clone(c.Text[:min(len(c.Text), 4096)])
	if r.Dir == "" {
		r.Dir = s.dir
	}
	s.used = time.Now()
	s.mu.Unlock()
	if s.life.Err() != nil {
		r.Status, r.ExitCode, err = Killed, 137, errClosed
	}
	c.finish(r, err)
}

func (s *Shell) try(c *command) (Result, error) {
	failed := Result{Status: Killed, ExitCode: -1}
	if l := s.live; l != nil {
		select {
		case <-l.done: // between commands
			s.bury(nil)
		default:
		}
	}
	if s.live == nil {
		err := s.start(s.life)
		if err != nil && s.state != nil && errors.Is(err, sandbox.Unavailable) && s.life.Err() == nil {
			s.state = nil // with which no shell comes up
			err = s.start(s.life)
		}
		if err != nil {
			return failed, err
		}
	}
	l := s.live
	stdin := "/dev/null"
	if c.Stdin != nil || c.Command.Input {
		ctx, cancel := context.WithTimeout(s.life, startTime)
		in, err := openInput(ctx, s.life, s.sb, sandbox.Cmd{Args: s.script(hold), Dir: "/", User: s.opt.User}, c.Stdin)
		cancel()
		if err != nil {
			return failed, err
		}
		c.input, stdin = in, in.path()
	}
	close(c.fed)
	c.begin()
	nonce := l.begin(c, c.id)
	l.in.put(l.dialect.line(&c.Command, s.status, stdin) + report(nonce, c.id))

	var hard <-chan time.Time
	if c.Timeout > 0 {
		t := time.NewTimer(c.Timeout)
		defer t.Stop()
		hard = t.C
	}
	var why Status
	var jobs []int
	l.mu.Lock()
	jobs = l.jobs
	l.mu.Unlock()
	for done := false; !done; {
		select {
		case <-l.ready:
			done = true
		case <-l.done:
			done = true
		case <-hard:
			why, done = TimedOut, true
			s.halt(c, jobs)
		case why = <-c.stop:
			done = true
			s.halt(c, jobs)
		case <-c.intr:
			why = Interrupted
			ctx, cancel := context.WithTimeout(s.life, killTime)
			if _, err := s.killer(ctx, []int{l.pid}, "int", time.Since(c.started()), jobs); err != nil {
				l.proc.Signal(ctx, sandbox.INT)
			}
			cancel()
		}
	}
	return s.verdict(c, why)
}

// settle returns when no signal that was sent to the shell can reach the next
// command: the shell has run another line since, or has ended.
func (s *Shell) settle(c *command) {
	l := s.live
	l.in.put(report(l.begin(c, 0), 0))
	if l.back(killTime) {
		return
	}
	l.kill()
	<-l.done
}

func (c *command) started() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begun
}

// verdict says how a command ended that did, and whether the shell did too.
func (s *Shell) verdict(c *command, why Status) (Result, error) {
	l := s.live
	r := Result{Status: Completed}
	var err error
	l.mu.Lock()
	status, missing := l.status, l.missing
	l.mu.Unlock()
	if why != "" {
		s.settle(c)
	}
	select {
	case <-l.done:
		r.Replaced = true
		r.Stale = !s.bury(c.Env)
		r.ExitCode = l.exit.Status()
		if l.err != nil && !errors.Is(l.err, context.Canceled) {
			err = l.err
		}
	default:
		s.learn(l)
		r.ExitCode = status
		if missing {
			err = sandbox.Errorf(sandbox.NotExist, "dir", "there is no directory %s", c.Dir)
		}
	}
	switch why {
	case TimedOut:
		r.Status, r.ExitCode = TimedOut, 124
	case Killed:
		r.Status, r.ExitCode = Killed, 137
	case Interrupted:
		r.Status = Interrupted
		if r.ExitCode == 0 {
			r.ExitCode = 130
		}
	}
	s.status = max(r.ExitCode, 0)
	return r, err
}

// halt kills the command that runs: its children first, and the shell as well
// if it does not come back. When it returns, one of both has happened.
func (s *Shell) halt(c *command, jobs []int) {
	l := s.live
	for _, t := range []time.Duration{firstWait, nextWait} {
		ctx, cancel := context.WithTimeout(s.life, killTime)
		dir, err := s.killer(ctx, []int{l.pid}, "kill", time.Since(c.started()), jobs)
		cancel()
		if err != nil {
			break
		}
		if l.back(t) {
			l.at(dir)
			return
		}
	}
	ctx, cancel := context.WithTimeout(s.life, killTime)
	defer cancel()
	dir, err := s.killer(ctx, []int{l.pid}, "all", time.Since(c.started()), jobs)
	if err == nil && l.back(killTime) {
		l.at(dir)
		return
	}
	l.kill() // with all that it left; nothing else is known to help
	<-l.done
}

// at notes where a shell was that could not say so itself.
func (l *live) at(dir string) {
	if path.IsAbs(dir) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.dir = dir
	}
}

// back reports whether the command, or the shell itself, has ended within t.
func (l *live) back(t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-l.ready:
	case <-timer.C:
		return false
	}
	return true
}

// killer runs the script of that name, and returns the line that it printed.
func (s *Shell) killer(ctx context.Context, pids []int, how string, age time.Duration, left []int) (string, error) {
	args := append(s.script(killer), "atoll", words(pids), how, strconv.Itoa(int(age/(10*time.Millisecond))), words(left))
	r, err := sandbox.Capture(ctx, s.sb, sandbox.MaxPath+1, sandbox.Cmd{Args: args, Dir: "/", User: s.opt.User})
	if err == nil && !r.Success() {
		err = sandbox.Errorf(sandbox.Unavailable, "", "what kills ended with %d", r.Status())
	}
	return strings.TrimSuffix(string(r.Stdout), "\n"), err
}

// words writes numbers as words of a shell.
func words(n []int) string { return strings.Trim(fmt.Sprint(n), "[]") }

// script returns what runs a script.
func (s *Shell) script(text string) []string {
	args := []string{"sh"}
	if len(s.opt.Program) > 0 {
		args = slices.Clone(s.opt.Program)
	}
	return append(args, "-c", text)
}
