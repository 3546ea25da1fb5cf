package job

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// patience is how long one question for output waits; then it is asked again.
const patience = time.Minute

// piece is how many bytes of output are asked for at once.
const piece = 64 << 10

// A Stream says what output is wanted.
type Stream int

const (
	Both   Stream = iota
	Stdout        // of a job with a terminal, all there is
	Stderr
)

func (s Stream) has(c *sandbox.Chunk) bool { return s == Both || (s == Stderr) == c.Stderr }

// A Query says what output is wanted.
type Query struct {
	// Cursor is where to begin: 0, or the Next of an answer. Cursors count the
	// bytes of both streams, also where only one is wanted.
	Cursor int64

	Max    int           // at most so many bytes; 0 is 64 KiB
	Wait   time.Duration // how long to wait for the first one
	Stream Stream
}

// Output returns output of a job from a cursor on: what is there or, if that
// is nothing, what comes before Wait is over. It returns at once when the job
// has ended; its Exit is set once nothing of the stream follows. Where a
// single stream is wanted, Next lies behind what was left out of the other,
// and Dropped may count bytes of both. A cursor that no answer can have given
// is [sandbox.Invalid].
func (t *Table) Output(ctx context.Context, sb sandbox.Sandbox, ref Ref, q Query) (sandbox.Output, error) {
	d, i, err := t.find(ctx, sb, ref)
	var o sandbox.Output
	if err == nil {
		o, err = output(ctx, d, &i, q)
	}
	return o, sandbox.At("job.Output", sb.ID(), err)
}

func output(ctx context.Context, d sandbox.Detacher, i *Info, q Query) (sandbox.Output, error) {
	switch {
	case q.Cursor < 0 || q.Cursor > i.Cursor:
		return sandbox.Output{}, sandbox.Errorf(sandbox.Invalid, "cursor", "%d is not among the first %d bytes, which are all so far", q.Cursor, i.Cursor).WithHint("begin with 0, then use the Next of the answer before")
	case q.Max < 0:
		return sandbox.Output{}, sandbox.Errorf(sandbox.Invalid, "max", "%d bytes is no answer", q.Max).WithHint("give a positive number, or 0 for 65536")
	case q.Stream < Both || q.Stream > Stderr:
		return sandbox.Output{}, sandbox.Errorf(sandbox.Invalid, "stream", "there is no stream %d", q.Stream)
	case q.Max == 0:
		q.Max = piece
	}
	if q.Stream == Both {
		return d.Output(ctx, i.ID, q.Cursor, q.Max, q.Wait)
	}
	// All of the other stream that was there when we were asked is passed
	// over, whatever the time; what still comes, while there is some left.
	end := time.Now().Add(q.Wait)
	sum := sandbox.Output{Next: q.Cursor}
	for {
		left := max(0, time.Until(end))
		o, err := d.Output(ctx, i.ID, sum.Next, max(q.Max, piece), left)
		if err != nil {
			return sandbox.Output{}, err
		}
		sum.Dropped += o.Dropped
		only(&o, q.Stream, q.Max)
		sum.Chunks, sum.Next, sum.Exit = o.Chunks, o.Next, o.Exit
		if len(sum.Chunks) > 0 || sum.Exit != nil || left == 0 && sum.Next >= i.Cursor {
			return sum, nil
		}
	}
}

// only leaves at most max bytes of one stream in o.
func only(o *sandbox.Output, s Stream, max int) {
	at := o.Next
	for _, c := range o.Chunks {
		at -= int64(len(c.Data))
	}
	var kept []sandbox.Chunk
	for _, c := range o.Chunks {
		if s.has(&c) {
			if max == 0 {
				o.Next, o.Exit = at, nil
				break
			}
			if len(c.Data) > max {
				c.Data = c.Data[:max]
				o.Next, o.Exit = at+int64(max), nil
				kept = append(kept, c)
				break
			}
			max -= len(c.Data)
			kept = append(kept, c)
		}
		at += int64(len(c.Data))
	}
	o.Chunks = kept
}

// Follow yields output of a job from a cursor on as it comes, until it has
// ended and nothing follows: the last Output has the Exit. Any number may
// follow a job. A cursor below 0 begins with what comes next. It stops at the
// first error, which it yields, the end of ctx included.
func (t *Table) Follow(ctx context.Context, sb sandbox.Sandbox, ref Ref, cursor int64) iter.Seq2[sandbox.Output, error] {
	return func(yield func(sandbox.Output, error) bool) {
		d, i, err := t.find(ctx, sb, ref)
		if err == nil && cursor > i.Cursor {
			_, err = output(ctx, d, &i, Query{Cursor: cursor})
		}
		if cursor < 0 {
			cursor = i.Cursor
		}
		for err == nil {
			var o sandbox.Output
			if o, err = d.Output(ctx, i.ID, cursor, piece, patience); err != nil {
				break
			}
			cursor = o.Next
			if len(o.Chunks) == 0 && o.Dropped == 0 && o.Exit == nil {
				continue
			}
			if !yield(o, nil) || o.Exit != nil {
				return
			}
		}
		yield(sandbox.Output{}, sandbox.At("job.Follow", sb.ID(), err))
	}
}

// A tail is the last of a job's error output.
type tail struct {
	next  int64 // the cursor of what was not looked at yet
	bytes []byte
}

// preview returns the last of the error output. It looks only at what has come
// since somebody asked before.
func (t *Table) preview(ctx context.Context, sb sandbox.Sandbox, d sandbox.Detacher, i *Info) (string, error) {
	if t.cfg.Preview < 0 || i.Cursor == 0 {
		return "", nil
	}
	most := utf8.UTFMax * t.cfg.Preview
	t.mu.Lock()
	e := t.record(sb, i.ID).errs
	t.mu.Unlock()
	e.bytes = slices.Clone(e.bytes)
	for e.next < i.Cursor {
		o, err := d.Output(ctx, i.ID, e.next, 4*piece, 0)
		if err != nil {
			return "", err
		}
		if o.Dropped > 0 && len(e.bytes) > 0 && !bytes.HasSuffix(e.bytes, []byte("\n")) {
			e.bytes = append(e.bytes, '\n') // what followed is not known
		}
		for _, c := range o.Chunks {
			if !c.Stderr {
				continue
			}
			e.bytes = append(e.bytes, c.Data...)
			if over := len(e.bytes) - most; over > 0 {
				e.bytes = slices.Delete(e.bytes, 0, over)
			}
		}
		if o.Next <= e.next {
			break
		}
		e.next = o.Next
	}
	e.bytes = slices.Clone(last(e.bytes, t.cfg.Preview))
	t.mu.Lock()
	if r := t.record(sb, i.ID); e.next > r.errs.next {
		r.errs = e
	}
	t.mu.Unlock()
	return text(e.bytes, t.cfg.Preview), nil
}

// text returns the last n characters of b as UTF-8.
func text(b []byte, n int) string {
	for k := 0; k < utf8.UTFMax-1 && len(b) > 0 && !utf8.RuneStart(b[0]); k++ {
		b = b[1:] // the rest of a character whose beginning was cut off
	}
	b = b[:len(b)-unfinished(b)]
	return string(last(bytes.ToValidUTF8(b, []byte("\uFFFD")), n))
}

// last returns the last n characters of b.
func last(b []byte, n int) []byte {
	for over := utf8.RuneCount(b) - n; over > 0; over-- {
		_, size := utf8.DecodeRune(b)
		b = b[size:]
	}
	return b
}
