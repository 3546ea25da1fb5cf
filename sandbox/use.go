package sandbox

import (
	"bytes"
	"context"
	"io"
	"math"
)

// Run starts cmd in sb and waits for it, as Start and Wait do.
func Run(ctx context.Context, sb Sandbox, cmd Cmd) (Exit, error) {
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	return p.Wait()
}

// A Result is what a command left: its exit, and its output as far as the
// bound given to [Capture] went.
type Result struct {
	Exit
	Stdout, Stderr []byte
	Truncated      bool // there was more
}

// Capture runs cmd in sb and keeps at most max bytes of each stream; what is
// more is discarded. cmd's own Stdout and Stderr are not used.
func Capture(ctx context.Context, sb Sandbox, max int, cmd Cmd) (Result, error) {
	out, err := &head{max: max}, &head{max: max}
	cmd.Stdout, cmd.Stderr = out, err
	exit, e := Run(ctx, sb, cmd)
	return Result{Exit: exit, Stdout: out.buf.Bytes(), Stderr: err.buf.Bytes(), Truncated: out.more || err.more}, e
}

// head keeps the first max bytes that are written to it.
type head struct {
	buf  bytes.Buffer
	max  int
	more bool
}

func (h *head) Write(p []byte) (int, error) {
	n := max(0, min(len(p), h.max-h.buf.Len()))
	h.buf.Write(p[:n])
	if n < len(p) {
		h.more = true
	}
	return len(p), nil
}

// ReadFile returns the file at path, or [Exhausted] with Field "path" if it
// has more than max bytes.
func ReadFile(ctx context.Context, sb Sandbox, path string, max int64) ([]byte, error) {
	f, err := sb.Files().Open(ctx, path, Range{})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	max = min(max, math.MaxInt64-1) // so that there is one more
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(b)) > max {
		err = Errorf(Exhausted, "path", "the file has more than %d bytes", max).WithHint("read it in parts")
	}
	return b, err
}

// WriteFile stores data as the file at path, with the defaults of
// [WriteOptions].
func WriteFile(ctx context.Context, sb Sandbox, path string, data []byte) error {
	_, err := sb.Files().Write(ctx, path, bytes.NewReader(data), WriteOptions{})
	return err
}
