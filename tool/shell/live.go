package shell

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// A live is one process of a shell, from its start to its end.
type live struct {
	proc  sandbox.Process
	kill  context.CancelFunc // ends its whole tree
	in    feed
	out   [2]*stream
	hello chan struct{} // it has said who it is
	ready chan struct{} // gets one when a command has ended, all its output there
	done  chan struct{} // the process has ended

	// When done.
	exit sandbox.Exit
	err  error

	mu      sync.Mutex
	pid     int
	dialect *dialect
	parser  parser
	cur     *command // to whom output belongs
	id      ID       // that the shell answers with
	nonce   []byte   // that ends its output
	seen    [2]bool  // where it did
	ended   bool     // the shell said so
	missing bool     // its directory was not there
	status  int
	dir     string
	jobs    []int  // that it left running
	state   *state // the last that it told
	fresh   bool   // no command came since
	last    bool   // and that was when it ended, with exited
	exited  int
}

// start starts one. When life ends its tree is killed.
func start(ctx, life context.Context, sb sandbox.Sandbox, cmd sandbox.Cmd) (*live, error) {
	l := &live{hello: make(chan struct{}), ready: make(chan struct{}, 1), done: make(chan struct{})}
	l.in.wake.L = &l.in.mu
	life, l.kill = context.WithCancel(life)
	cmd.Stdin, cmd.Control = &l.in, control{l}
	l.out = [2]*stream{{live: l}, {live: l, stderr: true}}
	cmd.Stdout, cmd.Stderr = l.out[0], l.out[1]
	stop := context.AfterFunc(ctx, l.kill) // starting takes no longer than the caller does
	var err error
	l.proc, err = sb.Start(life, cmd)
	stop()
	if err != nil {
		l.kill()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	go func() {
		defer close(l.done)
		l.exit, l.err = l.proc.Wait()
		for _, s := range l.out { // nobody writes there any more
			s.give(l.cur, s.held, false)
			s.held = nil
		}
		l.in.close()
		l.kill()
	}()
	return l, nil
}

// begin makes c the command whose output comes, and returns the word that ends it.
func (l *live) begin(c *command, id ID) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ready:
	default:
	}
	// A word that nobody can know (80 bits), which needs no quotes; its
	// beginning is not likely in any output, so that little is held back.
	nonce := "\x1e" + rand.Text()[:16]
	l.cur, l.id, l.nonce = c, id, []byte(nonce)
	l.seen, l.ended, l.missing, l.fresh = [2]bool{}, false, false, false
	return nonce
}

// A control takes what the shell says.
type control struct{ l *live }

func (c control) Write(p []byte) (int, error) {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parser.feed(p, l.record)
	return len(p), nil
}

// record takes one record. mu is held.
func (l *live) record(r record) {
	switch r.kind {
	case 'H':
		if l.dialect != nil {
			return
		}
		pid, bashpid, _ := strings.Cut(r.head, " ")
		l.dialect = posix
		if pid == bashpid {
			l.dialect = bash
		}
		l.pid, _ = strconv.Atoi(pid)
		close(l.hello)
	case 'R':
		id, status, jobs, ok := r.ended()
		if !ok || id != l.id || l.ended {
			return
		}
		l.ended, l.status, l.jobs = true, status, jobs
		if d := dir(r.fields[0]); d != "" && !r.cut {
			l.dir = d
		}
		l.check()
	case 'M':
		l.missing = true
	case 'S', 'X':
		l.last = r.kind == 'X'
		if l.last {
			l.exited, _ = strconv.Atoi(r.head)
		}
		if r.cut { // it is too large to be kept
			l.state, l.fresh = nil, false
			return
		}
		l.state, l.fresh = r.state(), true
		if l.state.dir != "" {
			l.dir = l.state.dir
		}
	}
}

// check says so when nothing is missing any more. mu is held.
func (l *live) check() {
	if l.ended && l.seen[0] && l.seen[1] {
		select {
		case l.ready <- struct{}{}:
		default:
		}
	}
}

// A stream takes the shell's standard output, or its standard error.
type stream struct {
	live   *live
	stderr bool
	held   []byte // the end of what came, which may be the beginning of the word
}

func (s *stream) Write(p []byte) (int, error) {
	n := len(p)
	if len(s.held) > 0 {
		p = append(s.held, p...)
		s.held = nil
	}
	i := 0
	if s.stderr {
		i = 1
	}
	l := s.live
	l.mu.Lock()
	c, nonce, seen := l.cur, l.nonce, l.seen[i]
	l.mu.Unlock()
	if !seen && len(nonce) > 0 {
		at := bytes.Index(p, nonce)
		if at < 0 {
			keep := partial(p, nonce)
			s.held = append([]byte(nil), p[len(p)-keep:]...)
			s.give(c, p[:len(p)-keep], false)
			return n, nil
		}
		s.give(c, p[:at], false)
		p = p[at+len(nonce):]
		s.give(c, p, true)
		l.mu.Lock()
		l.seen[i] = true
		l.check()
		l.mu.Unlock()
		return n, nil
	}
	s.give(c, p, true)
	return n, nil
}

// give hands output to the command that it belongs to; a shell that starts has none.
func (s *stream) give(c *command, p []byte, late bool) {
	if c != nil {
		c.output(s.stderr, p, late)
	}
}

// partial returns how many bytes at the end of p are a beginning of word.
func partial(p, word []byte) int {
	for n := min(len(p), len(word)-1); n > 0; n-- {
		if bytes.HasSuffix(p, word[:n]) {
			return n
		}
	}
	return 0
}

// A feed is what a shell reads: what is put into it, as soon as it is there.
type feed struct {
	mu   sync.Mutex
	wake sync.Cond
	buf  []byte
	over bool
}

func (f *feed) put(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf, s...)
	f.wake.Signal()
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.wake.Broadcast()
}

func (f *feed) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.buf) == 0 && !f.over {
		f.wake.Wait()
	}
	if f.over {
		return 0, io.EOF
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	if len(f.buf) == 0 {
		f.buf = nil
	}
	return n, nil
}
