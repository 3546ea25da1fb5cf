package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// exec runs a process and answers with its stream, or with its result if the
// caller accepts no stream.
func (c *call) exec() error {
	var req wire.Exec
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	if len(req.Stdin) > wire.MaxStdin {
		return sandbox.Errorf(sandbox.Invalid, "stdin", "the input has %d bytes, more than %d", len(req.Stdin), wire.MaxStdin).
			WithHint("write it to a file first, or upgrade the connection and stream it")
	}
	sb, err := c.open()
	if err != nil {
		return err
	}
	cmd := req.Cmd.Cmd()
	if len(req.Stdin) > 0 {
		cmd.Stdin = bytes.NewReader(req.Stdin)
	}
	if out := c.sink(); out != nil {
		if err := outputs(&cmd, req, out); err != nil {
			return err
		}
		return c.run(sb, cmd, out, nil)
	}
	return c.result(sb, cmd, req)
}

// sink returns the stream that the caller accepts, or nil.
func (c *call) sink() sink {
	rc := http.NewResponseController(c.w)
	switch {
	case c.accepts(wire.Frames):
		return frames{newLine(&lazy{c, wire.Frames}, rc.Flush)}
	case c.accepts(wire.NDJSON):
		return newEvents(&lazy{c, wire.NDJSON}, rc.Flush)
	}
	return nil
}

func (c *call) accepts(mediaType string) bool {
	for _, v := range c.r.Header.Values("Accept") {
		for t := range strings.SplitSeq(v, ",") {
			t, _, _ = strings.Cut(t, ";")
			if strings.EqualFold(strings.TrimSpace(t), mediaType) {
				return true
			}
		}
	}
	return false
}

// lazy is the ResponseWriter of c, whose answer it begins with the first
// write, so that until then an error still has a status.
type lazy struct {
	c           *call
	contentType string
}

func (l *lazy) Write(p []byte) (int, error) {
	if !l.c.begun {
		l.c.begun = true
		l.c.w.Header().Set("Content-Type", l.contentType)
		l.c.w.Header().Set("X-Accel-Buffering", "no") // nginx would hold back what is not much
	}
	return l.c.w.Write(p)
}

// outputs gives cmd the outputs of out that req wants.
func outputs(cmd *sandbox.Cmd, req wire.Exec, out sink) error {
	want, err := wanted(req.Discard)
	if err != nil {
		return err
	}
	if want[wire.FrameStdout] {
		cmd.Stdout = out.output(wire.FrameStdout)
	}
	if req.Merge {
		cmd.Stderr = cmd.Stdout
	} else if want[wire.FrameStderr] {
		cmd.Stderr = out.output(wire.FrameStderr)
	}
	if req.Control {
		cmd.Control = out.output(wire.FrameControl)
	}
	return nil
}

// wanted returns which streams are not in discard.
func wanted(discard []string) (map[wire.FrameType]bool, error) {
	want := map[wire.FrameType]bool{wire.FrameStdout: true, wire.FrameStderr: true}
	for _, d := range discard {
		switch d {
		case "stdout":
			want[wire.FrameStdout] = false
		case "stderr":
			want[wire.FrameStderr] = false
		default:
			return nil, sandbox.Errorf(sandbox.Invalid, "discard", "%q is not a stream", clip(d)).WithHint("use stdout or stderr")
		}
	}
	return want, nil
}

// run starts cmd, whose outputs are those of out, and tells out of it. If it
// returns an error nothing was told. started, if it is not nil, gets the
// process and has room for it.
func (c *call) run(sb sandbox.Sandbox, cmd sandbox.Cmd, out sink, started chan<- sandbox.Process) error {
	p, err := sb.Start(c.ctx, cmd)
	if err != nil {
		return err
	}
	defer c.api.watch(sb.ID(), p)()
	if started != nil {
		started <- p
	}
	c.follow(p, out)
	return nil
}

// follow tells out of p until it ends.
func (c *call) follow(p sandbox.Process, out sink) {
	out.begin(wire.Started{ID: p.ID(), PID: p.PID()})
	exit, err := p.Wait()
	if err != nil {
		_, e := c.fault(err)
		out.end(exit, &e)
		return
	}
	out.end(exit, nil)
}

// watch lets other requests find p until the returned function is called.
func (a *API) watch(id sandbox.ID, p sandbox.Process) (unwatch func()) {
	k := processKey{id, p.ID()}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.live[k] = p
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.live, k)
	}
}

// result runs cmd and answers with all of it at once, as far as the bound on
// its output goes.
func (c *call) result(sb sandbox.Sandbox, cmd sandbox.Cmd, req wire.Exec) error {
	switch n := req.MaxOutput; {
	case n < 0 || n > wire.MaxOutput:
		return sandbox.Errorf(sandbox.Invalid, "max_output", "%d is not from 0 to %d", n, wire.MaxOutput).WithHint("accept a stream if there is more: %s or %s", wire.NDJSON, wire.Frames)
	case n == 0:
		req.MaxOutput = wire.DefaultOutput
	}
	want, err := wanted(req.Discard)
	if err != nil {
		return err
	}
	out, errOut, control := &bounded{max: req.MaxOutput}, &bounded{max: req.MaxOutput}, &bounded{max: req.MaxOutput}
	if want[wire.FrameStdout] {
		cmd.Stdout = out
	}
	if req.Merge {
		cmd.Stderr = cmd.Stdout
	} else if want[wire.FrameStderr] {
		cmd.Stderr = errOut
	}
	if req.Control {
		cmd.Control = control
	}
	p, err := sb.Start(c.ctx, cmd)
	if err != nil {
		return err
	}
	defer c.api.watch(sb.ID(), p)()
	res := wire.Result{Started: wire.Started{ID: p.ID(), PID: p.PID()}}
	if res.Exit, err = p.Wait(); err != nil {
		return err
	}
	var more, moreErr, moreControl bool
	res.Stdout, more = out.text()
	res.Stderr, moreErr = errOut.text()
	res.Control, moreControl = control.text()
	res.Truncated = more || moreErr || moreControl
	return c.reply(http.StatusOK, res)
}

// startTimeout is how long an upgraded connection may wait with the command,
// lingerTimeout how long it may stay open when all has been said.
const (
	startTimeout  = 10 * time.Second
	lingerTimeout = time.Second
)

// execUpgraded runs the process that the first frame asks for and carries
// frames both ways.
func (c *call) execUpgraded() error {
	sb, err := c.open()
	if err != nil {
		return err
	}
	up, err := c.upgradable(wire.UpgradeExec)
	if err != nil {
		return err
	}
	conn, err := up()
	if err != nil {
		return err
	}
	defer conn.Close()

	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	c.ctx = ctx

	out := frames{newLine(conn, nil)}
	in := newInput(func(n int) { out.send(wire.WindowFrame(n)) })
	fr := wire.NewFrameReader(conn)
	conn.SetReadDeadline(time.Now().Add(startTimeout))
	req, err := readStart(fr)
	conn.SetReadDeadline(time.Time{})
	cmd := req.Cmd.Cmd()
	cmd.Stdin = in
	if err == nil {
		err = outputs(&cmd, req, out)
	}
	if err == nil {
		started, received := make(chan sandbox.Process, 1), make(chan struct{})
		go func() {
			defer close(received)
			c.receive(fr, in, started, cancel)
		}()
		defer func() { <-received }()
		err = c.run(sb, cmd, out, started)
	} else {
		defer drain(fr)
	}
	if err != nil {
		_, e := c.fault(err)
		out.end(sandbox.Exit{}, &e)
		cancel(err)
	}
	in.close()
	// To close with something unread would make the kernel throw away what
	// the other side has not read yet. So it is told, and its answer awaited.
	closeWrite(conn)
	conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	return nil
}

// drain reads until the other side has closed the connection too.
func drain(fr *wire.FrameReader) {
	for {
		if _, _, err := fr.Next(); err != nil {
			return
		}
	}
}

// readStart reads the first frame.
func readStart(fr *wire.FrameReader) (wire.Exec, error) {
	var req wire.Exec
	t, _, err := fr.Next()
	if err != nil {
		return req, badFrames(err)
	}
	if t != wire.FrameStart {
		return req, badFrames(fmt.Errorf("%w: the first is of type %d", wire.ErrFrame, t))
	}
	b, err := fr.Payload()
	if err != nil {
		return req, badFrames(err)
	}
	if err := body.Decode(b, &req); err != nil {
		return req, err
	}
	if len(req.Stdin) > 0 {
		return req, sandbox.Errorf(sandbox.Invalid, "stdin", "the input comes in frames here").WithHint("send it in frames of type %d", wire.FrameStdin)
	}
	return req, nil
}

// badFrames returns err as the caller's fault, or as that of the line.
func badFrames(err error) error {
	if errors.Is(err, wire.ErrFrame) {
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "frame", Msg: err.Error(), Hint: "see wire/native for the frames", Err: err}
	}
	return &sandbox.Error{Kind: sandbox.Unavailable, Msg: "the connection broke", Err: err}
}

// receive takes what the caller sends until it hangs up or breaks the rules,
// both of which end the process by fail. started gives the process once there
// is one.
func (c *call) receive(fr *wire.FrameReader, in *input, started <-chan sandbox.Process, fail context.CancelCauseFunc) {
	err := badFrames(c.receiveFrames(fr, in, started))
	fail(err)
	in.fail(err)
	drain(fr)
}

func (c *call) receiveFrames(fr *wire.FrameReader, in *input, started <-chan sandbox.Process) error {
	var p sandbox.Process
	process := func() bool {
		if p == nil {
			select {
			case p = <-started:
			case <-c.ctx.Done():
			}
		}
		return p != nil
	}
	for {
		t, n, err := fr.Next()
		if err != nil {
			return err
		}
		switch t {
		case wire.FrameStdin:
			err = in.take(fr, n)
		case wire.FrameStdinEnd:
			in.finish()
		case wire.FrameResize:
			var size sandbox.Size
			if err = fr.JSON(&size); err == nil && process() {
				c.minor(p.Resize(c.ctx, size))
			}
		case wire.FrameSignal:
			var sig wire.Signal
			if err = fr.JSON(&sig); err == nil && process() {
				c.minor(p.Signal(c.ctx, sig.Signal))
			}
		default:
			err = fmt.Errorf("%w: type %d from a client", wire.ErrFrame, t)
		}
		if err != nil {
			return err
		}
	}
}

// minor logs an error for which the stream has no place.
func (c *call) minor(err error) {
	if err != nil {
		c.api.log.DebugContext(c.ctx, "frame had no effect", "request", c.name, "err", err)
	}
}
