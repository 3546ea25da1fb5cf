package native

import (
	"encoding/json"
	"io"
	"sync"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// A sink is the stream of a process on its way to the caller: frames or lines.
// Its outputs may be written to from the moment it is made; they wait for
// begin.
type sink interface {
	// begin tells which process it is.
	begin(wire.Started)
	// output returns where the process's output goes: wire.FrameStdout,
	// wire.FrameStderr or wire.FrameControl.
	output(wire.FrameType) io.Writer
	// end tells how it ended, or of what the stream dies, if e is not nil.
	// After that nothing is written any more.
	end(exit sandbox.Exit, e *wire.Error)
}

// chunk is how much output goes into one frame: what a pipe holds.
const chunk = 64 << 10

var buffers = sync.Pool{New: func() any { return new([wire.HeaderLen + chunk]byte) }}

// A line is the way out that a sink's writers share: one write at a time, and
// none before the first or after the last.
type line struct {
	w     io.Writer
	flush func() error // nil if w has no buffer

	opened chan struct{} // closed when the first write is done
	mu     sync.Mutex
	err    error // guarded by mu; why nothing is written any more
}

func newLine(w io.Writer, flush func() error) *line {
	return &line{w: w, flush: flush, opened: make(chan struct{})}
}

// open makes the first write.
func (l *line) open(b []byte) {
	l.put(b, true)
	close(l.opened)
}

// send writes b, which holds whole frames or lines.
func (l *line) send(b []byte) error {
	<-l.opened
	return l.put(b, true)
}

func (l *line) put(b []byte, flush bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	_, l.err = l.w.Write(b)
	if l.err == nil && flush && l.flush != nil {
		l.err = l.flush()
	}
	return l.err
}

// shut makes the last write. The handler returns next, which flushes it
// together with the end of the answer.
func (l *line) shut(b []byte) {
	l.put(b, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = io.ErrClosedPipe
	}
	select {
	case <-l.opened:
	default:
		close(l.opened)
	}
}

// frames is the sink that writes frames.
type frames struct{ *line }

func (f frames) begin(s wire.Started)              { f.open(wire.FrameJSON(wire.FrameStarted, s)) }
func (f frames) output(t wire.FrameType) io.Writer { return &framed{f.line, t} }

func (f frames) end(exit sandbox.Exit, e *wire.Error) {
	if e != nil {
		f.shut(wire.FrameJSON(wire.FrameError, e))
		return
	}
	f.shut(wire.FrameJSON(wire.FrameExit, exit))
}

// framed makes frames of what is written to it.
type framed struct {
	line *line
	t    wire.FrameType
}

// Write writes p in frames, each in one write together with its header.
func (f *framed) Write(p []byte) (n int, err error) {
	buf := buffers.Get().(*[wire.HeaderLen + chunk]byte)
	defer buffers.Put(buf)
	for len(p) > 0 {
		k := copy(buf[wire.HeaderLen:], p)
		if err := f.put(buf, k); err != nil {
			return n, err
		}
		n, p = n+k, p[k:]
	}
	return n, nil
}

// ReadFrom makes frames of what it reads, straight into the place behind the
// header. It is what makes io.Copy from a pipe copy nothing.
func (f *framed) ReadFrom(r io.Reader) (n int64, err error) {
	buf := buffers.Get().(*[wire.HeaderLen + chunk]byte)
	defer buffers.Put(buf)
	for {
		k, err := r.Read(buf[wire.HeaderLen:])
		if k > 0 {
			n += int64(k)
			if err := f.put(buf, k); err != nil {
				return n, err
			}
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (f *framed) put(buf *[wire.HeaderLen + chunk]byte, n int) error {
	wire.PutHeader(buf[:], f.t, n)
	return f.line.send(buf[:wire.HeaderLen+n])
}

// events is the sink that writes NDJSON.
type events struct {
	*line
	outs [3]lined
}

func newEvents(w io.Writer, flush func() error) *events {
	e := &events{line: newLine(w, flush)}
	e.outs[0] = lined{line: e.line, put: func(t wire.Text) wire.Event { return wire.Event{Stdout: t} }}
	e.outs[1] = lined{line: e.line, put: func(t wire.Text) wire.Event { return wire.Event{Stderr: t} }}
	e.outs[2] = lined{line: e.line, put: func(t wire.Text) wire.Event { return wire.Event{Control: t} }}
	return e
}

func (e *events) begin(s wire.Started) { e.open(jsonLine(wire.Event{Started: &s})) }

func (e *events) output(t wire.FrameType) io.Writer {
	switch t {
	case wire.FrameStderr:
		return &e.outs[1]
	case wire.FrameControl:
		return &e.outs[2]
	}
	return &e.outs[0]
}

func (e *events) end(exit sandbox.Exit, fault *wire.Error) {
	var last []byte
	for i := range e.outs {
		if rest := e.outs[i].take(); rest != "" {
			last = append(last, jsonLine(e.outs[i].put(rest))...)
		}
	}
	ev := wire.Event{Exit: &exit}
	if fault != nil {
		ev = wire.Event{Error: fault}
	}
	e.shut(append(last, jsonLine(ev)...))
}

// lined makes lines of what is written to it. It keeps back the beginning of a
// character whose end has not come yet, so that text stays text.
type lined struct {
	line *line
	put  func(wire.Text) wire.Event

	mu   sync.Mutex
	part []byte // guarded by mu; at most 3 bytes
}

func (l *lined) Write(p []byte) (int, error) {
	<-l.line.opened
	for rest := p; len(rest) > 0; {
		k := min(len(rest), chunk)
		if text := l.cut(rest[:k]); text != "" {
			if err := l.line.send(jsonLine(l.put(text))); err != nil {
				return 0, err
			}
		}
		rest = rest[k:]
	}
	return len(p), nil
}

// cut returns what was kept back and p, less what it keeps back now.
func (l *lined) cut(p []byte) wire.Text {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append(l.part, p...)
	n := len(all)
	for i := 1; i < utf8.UTFMax && i <= n; i++ {
		if utf8.RuneStart(all[n-i]) {
			if !utf8.FullRune(all[n-i:]) {
				n -= i
			}
			break
		}
	}
	l.part = append([]byte(nil), all[n:]...)
	return wire.Text(all[:n])
}

func (l *lined) take() wire.Text {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := wire.Text(l.part)
	l.part = nil
	return t
}

func jsonLine(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own shapes cannot fail to encode
	}
	return append(b, '\n')
}

// bounded keeps the first max bytes that are written to it.
type bounded struct {
	mu   sync.Mutex
	buf  []byte // guarded by mu
	max  int
	more bool // guarded by mu
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), b.max-len(b.buf))
	b.buf = append(b.buf, p[:n]...)
	b.more = b.more || n < len(p)
	return len(p), nil
}

func (b *bounded) text() (wire.Text, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return wire.Text(b.buf), b.more
}
