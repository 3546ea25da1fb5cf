package native

import (
	"fmt"
	"io"
	"sync"

	wire "github.com/atoll-run/atoll/wire/native"
)

// An input is the standard input of a process whose caller sends it in
// frames. It holds what the process has not taken yet, which is never more
// than wire.Window bytes, so that the connection is always read.
type input struct {
	grant func(n int) // tells the caller of room for n more bytes

	mu    sync.Mutex
	more  sync.Cond // there are bytes, or the end
	buf   []byte    // guarded by mu; buf[off:] is what there is
	off   int       // guarded by mu
	owed  int       // guarded by mu; bytes taken of which the caller was not told
	room  int       // guarded by mu; bytes that the caller may send
	err   error     // guarded by mu; the end, once buf is empty
	ended bool      // guarded by mu; nobody reads any more
}

func newInput(grant func(int)) *input {
	in := &input{grant: grant, room: wire.Window}
	in.more.L = &in.mu
	return in
}

// Read returns what has arrived. It is what the process's input is read from.
func (in *input) Read(p []byte) (int, error) {
	in.mu.Lock()
	for in.off == len(in.buf) && in.err == nil {
		in.more.Wait()
	}
	n := copy(p, in.buf[in.off:])
	in.off += n
	if in.off == len(in.buf) {
		in.buf, in.off = in.buf[:0], 0
		if n == 0 && len(p) > 0 {
			defer in.mu.Unlock()
			return 0, in.err
		}
	}
	in.owed += n
	grant := 0
	if in.owed >= wire.Window/4 && in.err == nil {
		grant, in.owed = in.owed, 0
		in.room += grant
	}
	in.mu.Unlock()
	if grant > 0 {
		in.grant(grant)
	}
	return n, nil
}

// take reads n bytes from r.
func (in *input) take(r io.Reader, n int) error {
	in.mu.Lock()
	ended, err, room := in.ended, in.err, in.room
	in.room -= n
	in.mu.Unlock()
	switch {
	case ended:
		return nil // whoever reads the next frame skips what is in this
	case err != nil:
		return fmt.Errorf("%w: stdin after its end", wire.ErrFrame)
	case n > room:
		return fmt.Errorf("%w: %d bytes of stdin, but there was room for %d", wire.ErrFrame, n, room)
	}
	buf := buffers.Get().(*[wire.HeaderLen + chunk]byte)
	defer buffers.Put(buf)
	for n > 0 {
		k, err := r.Read(buf[:min(n, len(buf))])
		n -= k
		in.add(buf[:k])
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *input) add(p []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return
	}
	if in.off > 0 && len(in.buf)+len(p) > cap(in.buf) {
		in.buf, in.off = in.buf[:copy(in.buf, in.buf[in.off:])], 0
	}
	in.buf = append(in.buf, p...)
	in.more.Broadcast()
}

// finish says that nothing follows.
func (in *input) finish() { in.fail(io.EOF) }

// fail says that nothing follows, because of err.
func (in *input) fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
	}
	in.more.Broadcast()
}

// close says that nobody reads any more.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended, in.buf, in.off = true, nil, 0
	if in.err == nil {
		in.err = io.EOF
	}
	in.more.Broadcast()
}
