// Package tail reads the output of a process to the end of what the process
// itself wrote. That is not the end of the pipe: another process may hold it
// open for years. Both ends of the guest's protocol need it.
package tail

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// most is how much is read of a terminal after its process has ended: more
// than a terminal holds, so what comes later is another process's.
const most = 128 << 10

var past = time.Unix(1, 0)

// A Reader reads from a pipe or from the master of a terminal.
type Reader struct {
	fd   int
	f    *os.File
	tty  bool
	over atomic.Bool // the process has ended

	mu      sync.Mutex // held by who reads
	counted bool
	left    int // bytes that the process itself left, once counted
}

// New returns a Reader of fd, which it closes in the end and makes
// non-blocking, for all who share it.
func New(fd int, terminal bool) *Reader {
	unix.SetNonblock(fd, true)
	return &Reader{fd: fd, f: os.NewFile(uintptr(fd), "output"), tty: terminal}
}

// NewFile is New of a non-blocking file that others use as well. The file is
// closed by Close.
func NewFile(f *os.File, fd int, terminal bool) *Reader {
	return &Reader{fd: fd, f: f, tty: terminal}
}

// Over says that the process has ended: what it wrote is in the pipe, or has
// been read.
func (r *Reader) Over() {
	r.over.Store(true)
	r.f.SetReadDeadline(past) // wakes who waits
}

// Read reads what is there, waiting for some to come. end says that nothing
// follows that the process itself wrote. If ctx ends first Read returns 0 and
// false.
func (r *Reader) Read(ctx context.Context, b []byte) (n int, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over.Load() {
		n, err := r.wait(ctx, b)
		switch {
		case n > 0:
			return n, false
		case r.over.Load() && os.IsTimeout(err):
		case ctx.Err() != nil && os.IsTimeout(err):
			return 0, false
		default:
			return 0, true
		}
	}
	if !r.counted {
		r.counted, r.left = true, most
		if !r.tty {
			r.left, _ = unix.IoctlGetInt(r.fd, unix.TIOCINQ) // FIONREAD
		}
	}
	for r.left > 0 {
		n, err := unix.Read(r.fd, b[:min(len(b), r.left)])
		if err == syscall.EINTR {
			continue
		}
		if n > 0 && err == nil {
			r.left -= n
			return n, r.left == 0
		}
		r.left = 0 // the end, or an empty terminal
	}
	return 0, true
}

// wait reads, and returns when ctx ends.
func (r *Reader) wait(ctx context.Context, b []byte) (int, error) {
	if ctx.Done() == nil {
		return r.f.Read(b)
	}
	stop := context.AfterFunc(ctx, func() { r.f.SetReadDeadline(past) })
	n, err := r.f.Read(b)
	if !stop() {
		r.f.SetReadDeadline(time.Time{})
		if r.over.Load() { // which may have set it meanwhile
			r.f.SetReadDeadline(past)
		}
	}
	return n, err
}

// Discard reads to nowhere until nobody can write any more, and closes.
func (r *Reader) Discard() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f.SetReadDeadline(time.Time{})
	b := make([]byte, 4096)
	for {
		if _, err := r.f.Read(b); err != nil {
			r.f.Close()
			return
		}
	}
}

// Close closes the file. It waits for nobody who reads.
func (r *Reader) Close() { r.f.Close() }
