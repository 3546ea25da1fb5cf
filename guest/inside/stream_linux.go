package inside

import (
	"context"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/internal/tail"
	"github.com/atoll-run/atoll/guest/proto"
)

// A source is the guest's reading end of a process's output.
type source struct {
	fd  int
	r   *tail.Reader // of fd, where the guest reads it; nil while only the daemon does
	tty bool
}

// open makes o readable here. The process's mutex is held, or nobody else
// knows o yet.
func (o *source) open() {
	if o.r == nil {
		o.r = tail.New(o.fd, o.tty)
	}
}

// finish says that the process has ended. If the daemon reads the pipe
// (passing), the guest's end is closed, unless another process can still
// write: then it is held.
func (o *source) finish(passing bool) (held bool) {
	if passing {
		p := []unix.PollFd{{Fd: int32(o.fd)}}
		unix.Poll(p, 0)
		if p[0].Revents&unix.POLLHUP == 0 {
			return true
		}
		o.close()
		return false
	}
	if o.r != nil {
		o.r.Over()
	}
	return false
}

func (o *source) close() {
	if o.r != nil {
		o.r.Close()
	} else {
		unix.Close(o.fd)
	}
}

// discard reads to nowhere until nobody can write any more.
func (o *source) discard() {
	o.open()
	o.r.Discard()
}

// goFirst gives what is in o, or has just been read from it, a moment to go
// into the ring first. A process that writes now here, now there is then mostly
// shown in its own order, which two pipes do not keep.
func (o *source) goFirst() {
	runtime.Gosched()
	if o == nil {
		return
	}
	for range 20 {
		if n, err := unix.IoctlGetInt(o.fd, unix.TIOCINQ); n == 0 || err != nil {
			return
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// A sink is the guest's writing end of a process's standard input.
type sink struct {
	f    *os.File
	tty  bool
	done atomic.Bool // nothing can be written any more

	mu sync.Mutex // held by who writes
}

func newSink(fd int) *sink {
	unix.SetNonblock(fd, true)
	return &sink{f: os.NewFile(uintptr(fd), "input")}
}

// write writes b, and then closes the input if eof is set.
func (i *sink) write(ctx context.Context, b []byte, eof bool) (n int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.done.Load() {
		return 0, fail(kindConflict, "", "the process's input is closed")
	}
	if len(b) > 0 {
		stop := context.AfterFunc(ctx, func() { i.f.SetWriteDeadline(time.Unix(1, 0)) })
		n, err = i.f.Write(b)
		if !stop() {
			i.f.SetWriteDeadline(time.Time{})
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return n, fail(kindUnavailable, "", "the request was cancelled")
		default: // nobody reads it any more
			i.end()
			return n, fail(kindConflict, "", "the process's input is closed")
		}
	}
	if eof && !i.tty {
		i.end()
	}
	return n, nil
}

// end closes the input, or for a terminal forgets it.
func (i *sink) end() {
	if !i.done.Swap(true) && !i.tty {
		i.f.Close()
	}
}

func (i *sink) close() { i.end() }

// keep makes p's output go to a ring of size bytes from now on.
func (p *process) keep(size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keepLocked(size)
}

func (p *process) keepLocked(size int) {
	if p.ring != nil {
		return
	}
	if size <= 0 {
		size = defaultRing
	}
	p.ring = newRing(min(size, maxRing))
	if o := p.outs[2]; o != nil { // its reader is gone, and the ring is not for it
		p.outs[2] = nil
		go o.discard()
	}
	first := p.outs[0]
	for i, o := range p.outs {
		if o == nil {
			continue
		}
		o.open()
		if p.over {
			o.r.Over()
		}
		p.pumps.Go(func() {
			b := make([]byte, 4096)
			for {
				n, end := o.r.Read(context.Background(), b)
				if i == 1 && n > 0 {
					first.goFirst()
				}
				p.ring.add(i == 1, b[:n])
				if end {
					go o.discard()
					return
				}
				if n == len(b) && n < 64<<10 {
					b = make([]byte, 4*n)
				}
			}
		})
	}
}

// readOutput answers "read".
func readOutput(ctx context.Context, c *conn, m *proto.Read) (proto.Message, error) {
	p, err := c.s.find(m.Proc)
	if err != nil {
		return nil, err
	}
	if m.Stream < 1 || m.Stream > len(p.outs) {
		return nil, fail(kindInvalid, "", "there is no such stream")
	}
	p.mu.Lock()
	o := p.outs[m.Stream-1]
	p.mu.Unlock()
	if o == nil || o.r == nil {
		return &proto.Data{End: true}, nil
	}
	b := make([]byte, min(max(m.Max, 1), proto.MaxPayload))
	n, end := o.r.Read(ctx, b)
	if n == 0 && !end {
		return nil, fail(kindUnavailable, "", "the request was cancelled")
	}
	return &proto.Data{Data: b[:n], End: end}, nil
}

// writeInput answers "write".
func writeInput(ctx context.Context, c *conn, m *proto.Write) (proto.Message, error) {
	p, err := c.s.find(m.Proc)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	in := p.in
	over := p.over
	p.mu.Unlock()
	var w proto.Wrote
	switch {
	case over:
		err = fail(kindConflict, "", "the process has ended")
	case in == nil:
		err = fail(kindConflict, "", "the process has no input that can be written to")
	default:
		w.N, err = in.write(ctx, m.Data, m.EOF)
	}
	if err != nil {
		w.Fail = *failure(err)
	}
	return &w, nil
}

// waitFor answers "wait".
func waitFor(ctx context.Context, c *conn, m *proto.Proc) (proto.Message, error) {
	p, err := c.s.findDetached(m.Proc)
	if err != nil {
		return nil, err
	}
	if err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.exit
	return &e, nil
}

// output answers "output".
func output(ctx context.Context, c *conn, m *proto.Output) (proto.Message, error) {
	p, err := c.s.findDetached(m.Proc)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	r := p.ring
	p.mu.Unlock()
	if r == nil {
		return nil, fail(kindUnavailable, "", "the process is being adopted")
	}
	a := r.read(ctx, m.Cursor, min(max(m.Max, 0), proto.MaxPayload), time.Duration(m.Wait))
	if a.Ended {
		p.mu.Lock()
		a.Exit = p.exit
		p.mu.Unlock()
	}
	return a, nil
}

// list answers "processes".
func (s *Server) list() *proto.Processes {
	s.mu.Lock()
	var ps []*process
	for _, p := range s.procs {
		if p.detached {
			ps = append(ps, p)
		}
	}
	s.mu.Unlock()
	sortProcesses(ps)
	var a proto.Processes
	for _, p := range ps {
		p.mu.Lock()
		d := proto.Process{Proc: p.id, PID: p.pid, Name: p.name, Args: short(p.args), Started: p.started.UnixNano()}
		select {
		case <-p.done:
			d.Ended, d.Exit = p.ended.UnixNano(), p.exit
		default:
		}
		if p.ring != nil {
			d.Cursor, d.Dropped = p.ring.state()
		}
		p.mu.Unlock()
		a.List = append(a.List, d)
	}
	return &a
}

// short returns args, cut so that a list of processes fits into a frame.
func short(args []string) []string {
	const most = 512
	n := 0
	for i, a := range args {
		if n += len(a) + 2; n > most {
			return append(append([]string(nil), args[:i]...), "…")
		}
	}
	return args
}

func sortProcesses(ps []*process) {
	for i := 1; i < len(ps); i++ { // few, and nearly sorted is the rule
		for j := i; j > 0 && ps[j].id < ps[j-1].id; j-- {
			ps[j], ps[j-1] = ps[j-1], ps[j]
		}
	}
}

// forget answers "forget".
func (s *Server) forget(id uint64) error {
	p, err := s.findDetached(id)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	default:
		return &proto.Failure{Kind: kindConflict, Field: "id", Msg: "the process is still running", Hint: "kill it first"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.procs, id)
	for i, q := range s.ended {
		if q == p {
			s.ended = append(s.ended[:i:i], s.ended[i+1:]...)
			break
		}
	}
	return nil
}
