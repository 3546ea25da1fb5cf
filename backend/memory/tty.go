package memory

import (
	"io"

	"github.com/atoll-run/atoll/sandbox"
)

// A tty is a terminal with a line discipline: it echoes, edits lines, and
// turns ^C into a signal. Its master is the process's Stdin and Stdout.
type tty struct {
	b       *box
	size    sandbox.Size
	session int
	fg      int // the process group that ^C goes to

	icanon, echo, isig, onlcr bool

	line []byte   // typed, not yet entered
	in   [][]byte // what reads return, one after the other; an empty one is an end
	out  *pipe
	hung bool
}

func newTTY(b *box, size sandbox.Size) *tty {
	t := &tty{b: b, icanon: true, echo: true, isig: true, onlcr: true, out: newPipe(b)}
	t.out.readers++ // the pump
	t.out.writers++ // the terminal itself
	t.resize(size)
	return t
}

func (t *tty) resize(size sandbox.Size) {
	if size.Rows == 0 {
		size.Rows = 24
	}
	if size.Cols == 0 {
		size.Cols = 80
	}
	if size != t.size {
		t.size = size
		t.signal(sandbox.WINCH)
	}
}

func (t *tty) signal(sig sandbox.Signal) {
	t.b.signalWhere(sig, func(p *Proc) bool { return p.pgid == t.fg })
}

// hangUp is what the end of the session's leader does.
func (t *tty) hangUp() {
	if t.hung {
		return
	}
	t.hung = true
	t.out.writers--
	t.signal(sandbox.HUP)
	t.b.cond.Broadcast()
}

// ttyFile is the terminal as a process has it open.
type ttyFile struct{ *tty }

func (t ttyFile) close() {}

func (t ttyFile) read(p *Proc, b []byte) (int, error) {
	p.wait(func() bool { return len(t.in) > 0 || t.hung })
	if len(t.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, t.in[0])
	if t.in[0] = t.in[0][n:]; len(t.in[0]) == 0 {
		t.in = t.in[1:]
	}
	t.b.cond.Broadcast()
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (t ttyFile) write(p *Proc, b []byte) (int, error) {
	for i, c := range b {
		p.wait(func() bool { return len(t.out.buf)+2 <= pipeSize || t.out.drain || t.hung })
		if t.hung {
			return i, eio
		}
		t.emit(c)
	}
	return len(b), nil
}

// emit puts c on the screen.
func (t *tty) emit(c byte) {
	if c == '\n' && t.onlcr {
		t.out.put([]byte("\r\n"))
		return
	}
	t.out.put([]byte{c})
}

func (t *tty) echoes(b ...byte) {
	if t.echo && len(t.out.buf)+len(b)+2 <= pipeSize {
		for _, c := range b {
			t.emit(c)
		}
	}
}

// full reports whether so much was typed ahead that typing must wait.
func (t *tty) full() bool { return len(t.in) >= 1024 }

// typed takes a key that was pressed.
func (t *tty) typed(c byte) {
	if c == '\r' {
		c = '\n'
	}
	if t.isig {
		sig := map[byte]sandbox.Signal{3: sandbox.INT, 28: sandbox.QUIT, 26: sandbox.TSTP}[c]
		if sig != "" {
			t.line = nil
			t.echoes('^', c+'@')
			t.signal(sig)
			t.b.cond.Broadcast()
			return
		}
	}
	switch {
	case !t.icanon:
		t.echoes(c)
		t.in = append(t.in, []byte{c})
	case c == 4: // ^D: enters the line as it is
		t.in = append(t.in, t.line)
		t.line = nil
	case c == 0x7f:
		if len(t.line) > 0 {
			t.line = t.line[:len(t.line)-1]
			t.echoes('\b', ' ', '\b')
		}
	case len(t.line) < 4095 || c == '\n': // as Linux: what is longer is lost
		t.echoes(c)
		t.line = append(t.line, c)
		if c == '\n' {
			t.in = append(t.in, t.line)
			t.line = nil
		}
	}
	t.b.cond.Broadcast()
}
