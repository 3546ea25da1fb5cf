package client

import (
	"bytes"
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// StartDetached starts a process that outlives the caller.
func (s *Sandbox) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	const op = "client.StartDetached"
	w, err := wire.CmdOf(cmd)
	if err == nil {
		for field, set := range map[string]bool{"stdin": cmd.Stdin != nil, "stdout": cmd.Stdout != nil, "stderr": cmd.Stderr != nil, "control": cmd.Control != nil} {
			if set {
				err = sandbox.Errorf(sandbox.Invalid, field, "a detached process has no %s of its caller's", field).WithHint("use Input and Output, or files")
			}
		}
	}
	if err != nil {
		return "", sandbox.At(op, s.id, err)
	}
	r := s.request(op, "POST", "/processes")
	r.body = wire.Detach{Cmd: w, Name: wire.Text(opt.Name), Input: opt.Stdin, Ring: opt.Ring}
	var started wire.Started
	err = s.c.json(ctx, r, &started)
	return started.ID, err
}

// Processes returns the detached processes, oldest first.
func (s *Sandbox) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	var w wire.Processes
	if err := s.c.json(ctx, s.request("client.Processes", "GET", "/processes"), &w); err != nil {
		return nil, err
	}
	ps := make([]sandbox.ProcessInfo, len(w.Processes))
	for i, p := range w.Processes {
		ps[i] = p.Info()
	}
	return ps, nil
}

// process returns a request about the detached process with this id.
func (s *Sandbox) process(op, method string, id sandbox.ProcessID, path string) (request, error) {
	r := s.request(op, method, "/processes/"+string(id)+path)
	if !id.Valid() {
		// Nothing has it, in a sandbox that is there or in one that is gone.
		return r, &sandbox.Error{Op: op, ID: s.id, Kind: sandbox.NotExist, Field: "process", Msg: "no process has this id"}
	}
	return r, nil
}

// Attach returns the detached process with this id.
func (s *Sandbox) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	const op = "client.Attach"
	p := &process{sb: s, op: op, ctx: ctx, stdout: opt.Stdout, stderr: opt.Stderr, attached: true, done: make(chan struct{})}
	r, err := s.process(op, "GET", id, "/attach")
	if err != nil {
		return nil, err
	}
	r.header = p.request("", "").header
	r.hangUp = true // the process lives on either way
	r.query = url.Values{"cursor": {strconv.FormatInt(opt.Cursor, 10)}}
	var discard []string
	if opt.Stdout == nil {
		discard = append(discard, "stdout")
	}
	if opt.Stderr == nil {
		discard = append(discard, "stderr")
	}
	if discard != nil {
		r.query.Set("discard", strings.Join(discard, ","))
	}
	if err := p.open(r); err != nil {
		return nil, err
	}
	return p, nil
}

// Output returns output that lies at or after cursor, at most max bytes of it,
// and no more than 1 MiB at a time.
func (s *Sandbox) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	r, err := s.process("client.Output", "GET", id, "/output")
	if err != nil {
		return sandbox.Output{}, err
	}
	r.hangUp = true
	for end := time.Now().Add(wait); ; {
		left := wire.Seconds(time.Until(end))
		if left < 0 {
			left = 0
		}
		text, _ := left.MarshalJSON()
		r.query = url.Values{"cursor": {strconv.FormatInt(cursor, 10)}, "max": {strconv.Itoa(max)}, "wait": {string(text)}}
		var o sandbox.Output
		if err := s.c.json(ctx, r, &o); err != nil {
			return o, err
		}
		// The daemon waits for a minute at most.
		if len(o.Chunks) > 0 || o.Exit != nil || !time.Now().Before(end) {
			return o, nil
		}
	}
}

// Input writes to a detached process's standard input. If ctx ends first, the
// count is what the process has taken, so far as the daemon could still tell.
func (s *Sandbox) Input(ctx context.Context, id sandbox.ProcessID, p []byte, eof bool) (int, error) {
	r, err := s.process("client.Input", "POST", id, "/input")
	if err != nil {
		return 0, err
	}
	total := 0
	for {
		part := p[total:min(len(p), total+wire.MaxInput)]
		last := total+len(part) == len(p)
		r.raw, r.length = bytes.NewReader(part), int64(len(part))
		r.query = url.Values{"eof": {strconv.FormatBool(eof && last)}}
		var w wire.Wrote
		if err := s.c.json(ctx, r, &w); err != nil {
			return total, err
		}
		total += w.Written
		if last && w.Written == len(part) {
			return total, nil
		}
		if err := ctx.Err(); err != nil {
			return total, err
		}
	}
}

// Forget drops what is remembered of an ended process.
func (s *Sandbox) Forget(ctx context.Context, id sandbox.ProcessID) error {
	r, err := s.process("client.Forget", "DELETE", id, "")
	if err != nil {
		return err
	}
	return s.c.json(ctx, r, nil)
}
