package memory

import "io"

// pipeSize is how many bytes a pipe holds, as in Linux.
const pipeSize = 64 << 10

// A stream is what an open file reads from and writes to. Its methods are
// called with the mutex held, may wait, and then end a killed process's
// goroutine without it.
type stream interface {
	read(p *Proc, b []byte) (int, error)
	write(p *Proc, b []byte) (int, error)
	close()
}

// A file is an open file, which several descriptors of several processes may
// share.
type file struct {
	stream
	refs int
}

func (f *file) release() {
	f.refs--
	if f.refs == 0 {
		f.stream.close()
	}
}

// A pipe is a bounded buffer between writers and readers. Besides processes
// the Runtime's own goroutines may stand at either end.
type pipe struct {
	b                        *box
	buf                      []byte
	readers                  int
	writers                  int
	readerOpens, writerOpens int   // of a FIFO: how often it was opened
	written                  int64 // bytes that ever came in
	taken                    int64 // bytes that a pump has taken out
	drain                    bool  // nobody wants the rest: take and drop it
}

// pipeEnd is one end of a pipe as a process has it.
type pipeEnd struct {
	*pipe
	reading, writing bool
}

// newPipe returns a pipe whose ends are counted by whoever opens them.
func newPipe(b *box) *pipe { return &pipe{b: b} }

func (p *pipe) reader() *file { p.readers++; return &file{stream: &pipeEnd{p, true, false}} }
func (p *pipe) writer() *file { p.writers++; return &file{stream: &pipeEnd{p, false, true}} }

func (e *pipeEnd) close() {
	if e.reading {
		e.readers--
	}
	if e.writing {
		e.writers--
	}
	e.b.cond.Broadcast()
}

func (e *pipeEnd) read(p *Proc, b []byte) (int, error) {
	if !e.reading {
		return 0, ebadf
	}
	p.wait(func() bool { return len(e.buf) > 0 || e.writers == 0 })
	return e.take(b)
}

func (e *pipeEnd) write(p *Proc, b []byte) (int, error) {
	if !e.writing {
		return 0, ebadf
	}
	n := 0
	for n < len(b) {
		p.wait(func() bool { return e.ready() })
		m, err := e.put(b[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// ready reports whether put would do something.
func (p *pipe) ready() bool { return len(p.buf) < pipeSize || p.readers == 0 || p.drain }

// put adds as much of b as there is room for.
func (p *pipe) put(b []byte) (int, error) {
	if p.drain {
		return len(b), nil
	}
	if p.readers == 0 {
		return 0, epipe
	}
	n := min(len(b), pipeSize-len(p.buf))
	p.buf = append(p.buf, b[:n]...)
	p.written += int64(n)
	p.b.cond.Broadcast()
	return n, nil
}

// take takes what there is, or tells the end.
func (p *pipe) take(b []byte) (int, error) {
	if len(p.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.buf)
	p.buf = p.buf[n:]
	if len(p.buf) == 0 {
		p.buf = nil
	}
	p.taken += int64(n)
	p.b.cond.Broadcast()
	return n, nil
}

// nodeFile is an open regular file or directory.
type nodeFile struct {
	b        *box
	node     *inode
	off      int
	append   bool
	readable bool
	writable bool
}

func (f *nodeFile) close() {}

func (f *nodeFile) read(p *Proc, b []byte) (int, error) {
	switch {
	case f.node.isDir():
		return 0, eisdir
	case !f.readable:
		return 0, ebadf
	case f.off >= len(f.node.data):
		return 0, io.EOF
	}
	n := copy(b, f.node.data[f.off:])
	f.off += n
	return n, nil
}

func (f *nodeFile) write(p *Proc, b []byte) (int, error) {
	if !f.writable {
		return 0, ebadf
	}
	if f.append {
		f.off = len(f.node.data)
	}
	if end := f.off + len(b); end > len(f.node.data) {
		if err := f.b.grow(f.node, end); err != nil {
			return 0, err
		}
	}
	n := copy(f.node.data[f.off:], b)
	f.off += n
	f.node.mtime = f.b.now()
	return n, nil
}

// devFile is an open device.
type devFile struct{ dev device }

func (f devFile) close() {}

func (f devFile) read(p *Proc, b []byte) (int, error) {
	switch f.dev {
	case devZero, devFull:
		clear(b)
		return len(b), nil
	case devRandom:
		p.k.fill(b)
		return len(b), nil
	}
	return 0, io.EOF
}

func (f devFile) write(p *Proc, b []byte) (int, error) {
	if f.dev == devFull {
		return 0, enospc
	}
	return len(b), nil
}
