package inside

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/guest/proto"
)

// block is how large the pieces are in which a ring keeps output, and the
// most that one of them can waste.
const block = 16 << 10

// overhead is what a piece counts for beside its bytes, so that output which
// changes its stream with every byte is bounded as well.
const overhead = 64

// maxChunks is how many pieces one reading has at most.
const maxChunks = 4096

// A ring keeps the last of what a process printed: pieces, each of one stream,
// in the order in which they came. The cursor of a byte is how many bytes came
// before it.
type ring struct {
	mu      sync.Mutex
	size    int // bound for used
	used    int
	pieces  []proto.Chunk
	start   int64 // cursor of the first byte of pieces
	next    int64 // cursor of what comes next
	ended   bool
	changed chan struct{} // if not nil, closed at the next change
}

func newRing(size int) *ring { return &ring{size: max(size, 4096)} }

// add appends output of one stream.
func (r *ring) add(stderr bool, b []byte) {
	if len(b) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next += int64(len(b))
	for len(b) > 0 {
		var last *proto.Chunk
		if n := len(r.pieces); n > 0 {
			last = &r.pieces[n-1]
		}
		if last == nil || last.Stderr != stderr || len(last.Data) >= block {
			r.pieces = append(r.pieces, proto.Chunk{Stderr: stderr})
			r.used += overhead
			last = &r.pieces[len(r.pieces)-1]
		}
		n := min(len(b), block-len(last.Data))
		last.Data = append(last.Data, b[:n]...)
		b = b[n:]
		r.used += n
		for r.used > r.size {
			r.drop(r.used - r.size)
		}
	}
	r.change()
}

// drop removes the first bytes: n of them, or those of the first piece.
func (r *ring) drop(n int) {
	p := &r.pieces[0]
	if len(r.pieces) > 1 && n >= len(p.Data) || n >= len(p.Data) {
		n = len(p.Data)
		r.used -= n + overhead
		r.pieces[0] = proto.Chunk{}
		r.pieces = r.pieces[1:]
	} else {
		r.used -= n
		p.Data = p.Data[n:]
	}
	r.start += int64(n)
}

// end says that nothing follows.
func (r *ring) end() {
	r.mu.Lock()
	r.ended = true
	r.change()
	r.mu.Unlock()
}

func (r *ring) change() {
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// state returns the cursor of what comes next, and how many bytes are gone.
func (r *ring) state() (next, dropped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next, r.start
}

// read returns at most max bytes from cursor on, waiting for some to come.
func (r *ring) read(ctx context.Context, cursor int64, max int, wait time.Duration) *proto.Outputs {
	var timer *time.Timer
	r.mu.Lock()
	defer r.mu.Unlock()
	if cursor < 0 {
		cursor = r.next
	}
	for cursor >= r.next && !r.ended && wait > 0 && max > 0 && ctx.Err() == nil {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		if timer == nil {
			timer = time.NewTimer(wait)
			defer timer.Stop()
		}
		r.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			wait = 0
		case <-ctx.Done():
		}
		r.mu.Lock()
	}
	a := &proto.Outputs{Next: cursor}
	if cursor > r.next {
		a.Next = r.next // nobody was told of such a cursor
		cursor = r.next
	}
	if cursor < r.start {
		a.Dropped = r.start - cursor
		cursor = r.start
		a.Next = cursor
	}
	at := r.start
	for _, p := range r.pieces {
		if max == 0 || len(a.Chunks) == maxChunks {
			break
		}
		from := at
		at += int64(len(p.Data))
		if at <= cursor {
			continue
		}
		d := p.Data[cursor-from:]
		d = d[:min(len(d), max)]
		a.Chunks = append(a.Chunks, proto.Chunk{Stderr: p.Stderr, Data: append([]byte(nil), d...)})
		max -= len(d)
		cursor += int64(len(d))
		a.Next = cursor
	}
	a.Ended = r.ended && cursor == r.next
	return a
}
