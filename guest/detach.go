package guest

import (
	"context"
	"io"
	"time"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// patience is how long one request for output waits; the guest is asked again.
const patience = time.Minute

// StartDetached starts a process that outlives the caller.
func (c *Client) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	m, err := request(&cmd)
	switch {
	case err != nil:
	case cmd.Stdin != nil:
		err = sandbox.Errorf(sandbox.Invalid, "stdin", "a detached process has no reader").WithHint("use Input")
	case cmd.Stdout != nil:
		err = sandbox.Errorf(sandbox.Invalid, "stdout", "a detached process has no writer").WithHint("use Output")
	case cmd.Stderr != nil:
		err = sandbox.Errorf(sandbox.Invalid, "stderr", "a detached process has no writer").WithHint("use Output")
	case cmd.Control != nil:
		err = sandbox.Errorf(sandbox.Invalid, "control", "a detached process has no writer").WithHint("have it write to a file")
	default:
		err = opt.Check()
	}
	if err != nil {
		return "", c.error("StartDetached", err)
	}
	m.Detached, m.Ring, m.Name = true, opt.Ring, opt.Name
	m.Out, m.Err = proto.Pipe, proto.Pipe
	if opt.Stdin {
		m.In = proto.Pipe
	}
	var s proto.Started
	got, err := c.callFor(ctx, proto.OpStart, m, &s, nil, nil, func(a answer) {
		var s proto.Started
		closeAll(a.fds)
		if decode(a, &s) == nil { // the caller was told that it did not start
			c.call(c.life, proto.OpSignal, &proto.Signal{Proc: s.Proc, Number: sandbox.KILL.Number()}, nil, nil)
			if _, err := c.call(c.life, proto.OpWait, &proto.Proc{Proc: s.Proc}, nil, nil); err == nil {
				c.call(c.life, proto.OpForget, &proto.Proc{Proc: s.Proc}, nil, nil)
			}
		}
	}, false)
	closeAll(got)
	if err != nil {
		return "", c.error("StartDetached", tooLong(err))
	}
	return processID(s.Proc), nil
}

// Processes returns the detached processes, the oldest first. Those that were
// attached to a lost connection of this daemon are among them.
func (c *Client) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	var ps proto.Processes
	if _, err := c.call(ctx, proto.OpProcesses, nil, &ps, nil); err != nil {
		return nil, c.error("Processes", err)
	}
	infos := make([]sandbox.ProcessInfo, 0, len(ps.List))
	for _, p := range ps.List {
		i := sandbox.ProcessInfo{ID: processID(p.Proc), Name: p.Name, PID: p.PID, Args: p.Args, Started: time.Unix(0, p.Started),
			Cursor: max(p.Cursor, 0), Dropped: max(p.Dropped, 0)}
		if p.Ended != 0 {
			exit := exitOf(&p.Exit)
			i.Ended, i.Exit = time.Unix(0, p.Ended), &exit
		}
		infos = append(infos, i)
	}
	return infos, nil
}

// info returns what Processes says of id.
func (c *Client) info(ctx context.Context, id sandbox.ProcessID) (sandbox.ProcessInfo, error) {
	ps, err := c.Processes(ctx)
	if err != nil {
		return sandbox.ProcessInfo{}, err
	}
	for _, p := range ps {
		if p.ID == id {
			return p, nil
		}
	}
	return sandbox.ProcessInfo{}, sandbox.Errorf(sandbox.NotExist, "id", "there is no such process")
}

// Attach returns the detached process with this id.
func (c *Client) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	info, err := c.info(ctx, id)
	if err != nil {
		return nil, c.error("Attach", err)
	}
	a := &attached{c: c, id: parseID(id), pid: info.PID, done: make(chan struct{})}
	cursor := opt.Cursor
	if cursor < 0 {
		cursor = info.Cursor
	}
	go a.follow(ctx, cursor, opt.Stdout, opt.Stderr)
	return a, nil
}

// attached is a detached process that somebody looks at.
type attached struct {
	c    *Client
	id   uint64
	pid  int
	done chan struct{}
	exit sandbox.Exit // once done
	err  error
}

// follow hands on output until the process ends.
func (a *attached) follow(ctx context.Context, cursor int64, stdout, stderr io.Writer) {
	defer close(a.done)
	var first error
	for stdout != nil || stderr != nil {
		o, err := a.c.output(ctx, a.id, cursor, proto.MaxPayload, patience)
		if err != nil {
			a.err = err
			if first != nil && ctx.Err() == nil {
				a.err = first
			}
			return
		}
		for _, c := range o.Chunks {
			w := &stdout
			if c.Stderr {
				w = &stderr
			}
			if *w == nil {
				continue
			}
			if _, err := (*w).Write(c.Data); err != nil {
				if first == nil {
					first = err
				}
				*w = nil
			}
		}
		cursor = o.Next
		if o.Exit != nil {
			a.exit, a.err = *o.Exit, first
			return
		}
	}
	var e proto.Exit
	if _, err := a.c.call(ctx, proto.OpWait, &proto.Proc{Proc: a.id}, &e, nil); err != nil {
		a.err = a.c.error("Wait", err)
		return
	}
	a.exit, a.err = exitOf(&e), first
}

func (a *attached) ID() sandbox.ProcessID { return processID(a.id) }
func (a *attached) PID() int              { return a.pid }

func (a *attached) Wait() (sandbox.Exit, error) {
	<-a.done
	return a.exit, a.err
}

func (a *attached) Signal(ctx context.Context, sig sandbox.Signal) error {
	return a.c.signal(ctx, a.id, sig)
}

func (a *attached) Resize(ctx context.Context, size sandbox.Size) error {
	return a.c.resize(ctx, a.id, size)
}

// Output returns output of a detached process.
func (c *Client) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	return c.output(ctx, parseID(id), cursor, max, wait)
}

func (c *Client) output(ctx context.Context, id uint64, cursor int64, most int, wait time.Duration) (sandbox.Output, error) {
	req := &proto.Output{Proc: id, Cursor: cursor, Max: min(max(most, 0), proto.MaxPayload), Wait: int64(max(wait, 0))}
	var o proto.Outputs
	if _, err := c.call(ctx, proto.OpOutput, req, &o, nil); err != nil {
		return sandbox.Output{}, c.error("Output", err)
	}
	out := sandbox.Output{Next: max(o.Next, 0), Dropped: max(o.Dropped, 0)}
	for _, ch := range o.Chunks {
		out.Chunks = append(out.Chunks, sandbox.Chunk{Stderr: ch.Stderr, Data: ch.Data})
	}
	if o.Ended {
		exit := exitOf(&o.Exit)
		out.Exit = &exit
	}
	return out, nil
}

// Input writes to the input of a detached process.
func (c *Client) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	n := 0
	for {
		part := p[n:min(len(p), n+proto.MaxPayload)]
		last := n+len(part) == len(p)
		var w proto.Wrote
		if _, err := c.callFor(ctx, proto.OpWrite, &proto.Write{Proc: parseID(id), Data: part, EOF: last && eof}, &w, nil, nil, nil, true); err != nil {
			return n, c.error("Input", err)
		}
		n += min(max(w.N, 0), len(part))
		if w.Fail.Kind != "" && ctx.Err() != nil {
			return n, ctx.Err()
		}
		if w.Fail.Kind != "" {
			return n, c.error("Input", failed(&w.Fail))
		}
		if last {
			return n, nil
		}
		if w.N < len(part) {
			return n, c.error("Input", io.ErrShortWrite)
		}
	}
}

// Forget drops what the guest remembers of an ended process.
func (c *Client) Forget(ctx context.Context, id sandbox.ProcessID) error {
	_, err := c.call(ctx, proto.OpForget, &proto.Proc{Proc: parseID(id)}, nil, nil)
	return c.error("Forget", err)
}
