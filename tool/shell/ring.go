package shell

import "github.com/atoll-run/atoll/sandbox"

// A ring keeps the last bytes of a command's output, both streams in the
// order in which they came.
type ring struct {
	max    int
	chunks []sandbox.Chunk
	size   int   // bytes in chunks
	end    int64 // bytes that were ever added
}

// chunkSize is where a new chunk begins.
const chunkSize = 4096

// add keeps a copy of p.
func (r *ring) add(stderr bool, p []byte) {
	r.end += int64(len(p))
	if drop := len(p) - r.max; drop > 0 {
		p, r.chunks, r.size = p[drop:], nil, 0
	}
	if len(p) == 0 {
		return
	}
	n := len(r.chunks)
	if n > 0 && r.chunks[n-1].Stderr == stderr && len(r.chunks[n-1].Data)+len(p) <= chunkSize {
		r.chunks[n-1].Data = append(r.chunks[n-1].Data, p...)
	} else {
		r.chunks = append(r.chunks, sandbox.Chunk{Stderr: stderr, Data: append([]byte(nil), p...)})
	}
	r.size += len(p)
	// Short chunks cost more than their bytes, so that they are counted too.
	for r.size > r.max || len(r.chunks) > r.max/64+1 {
		first := &r.chunks[0]
		if cut := r.size - r.max; cut > 0 && cut < len(first.Data) {
			first.Data = first.Data[cut:]
			r.size -= cut
			continue
		}
		r.size -= len(first.Data)
		*first = sandbox.Chunk{}
		r.chunks = r.chunks[1:]
	}
}

// read returns copies of at most that many bytes from cursor on.
func (r *ring) read(cursor int64, most int) sandbox.Output {
	start := r.end - int64(r.size)
	cursor = min(cursor, r.end)
	out := sandbox.Output{Dropped: max(start-cursor, 0)}
	at := start
	cursor = max(cursor, start)
	out.Next = cursor
	for _, c := range r.chunks {
		end := at + int64(len(c.Data))
		if end > out.Next && most > 0 {
			data := c.Data[out.Next-at:]
			data = data[:min(len(data), most)]
			most -= len(data)
			out.Next += int64(len(data))
			out.Chunks = append(out.Chunks, sandbox.Chunk{Stderr: c.Stderr, Data: append([]byte(nil), data...)})
		}
		at = end
	}
	return out
}
