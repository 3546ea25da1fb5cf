package job

import (
	"bytes"
	"context"
	"io"

	"github.com/atoll-run/atoll/sandbox"
)

// A Position says where a Relay begins.
type Position int

const (
	// Continue begins where the last reader stopped. What that one got and
	// did not acknowledge comes again. With none so far it begins with the
	// first byte; so it does after a restart of the daemon, which forgets the
	// readers: Info.Read is then -1.
	Continue Position = iota
	Beginning
	Now // with what comes next
	At  // Attachment.Cursor
)

// Busy says what an Attach does when somebody else is attached.
type Busy int

const (
	// Refuse is a [sandbox.Conflict] with Field "attached".
	Refuse Busy = iota
	// Steal ends the other's Relay, whose calls fail with [sandbox.Conflict].
	Steal
	// Queue waits until the other has left.
	Queue
)

// An Attachment says what a reader wants. The zero value wants the output from
// where the last reader stopped, as it comes, if nobody else is attached.
type Attachment struct {
	From   Position
	Cursor int64 // for At
	Busy   Busy

	// Stderr asks for the error output as well. It comes apart, and as it
	// comes.
	Stderr bool

	// Lines, if positive, asks for whole lines of output, as a Splitter with
	// this Max makes them. A line of which a part was dropped is dropped
	// whole.
	Lines int
}

// A Piece is what a Relay delivers: output of one stream, or the news that
// some was lost.
type Piece struct {
	Stderr bool

	// Data is valid until the next call. With Attachment.Lines it is a line
	// without its newline, and may be empty; Partial then says that it had
	// none: the line is longer than Lines, or the job ended without it.
	Data    []byte
	Partial bool

	// Dropped, if positive, is how many bytes were lost between what came
	// before and what follows, of both streams: this reader was slower than
	// the job and its ring. There is no Data then.
	Dropped int64

	Cursor int64 // of what follows
}

// A Relay carries the output of a job to the one reader that is attached, and
// its input back. It has no goroutine: Next asks for more when the reader
// wants more. Next may run beside Write; Close ends both.
type Relay struct {
	t    *Table
	sb   sandbox.Sandbox
	d    sandbox.Detacher
	id   sandbox.ProcessID
	rec  *record
	want Attachment

	life  context.Context // ends when the reader is not attached any more
	leave context.CancelCauseFunc
	left  chan struct{} // closed then, once

	reading chan struct{} // held by Next
	writing chan struct{} // held by Write

	// Next alone uses what follows.
	from    [2]int64 // of each stream, what lies before is not for this reader
	start   int64    // the cursor that it began with
	at      int64    // the cursor of what was not looked at yet
	chunks  []sandbox.Chunk
	lines   Splitter
	begin   int64    // the cursor of the first byte that lines holds
	ends    [3]int64 // the cursors of the last three bytes that lines got
	torn    bool     // the line that comes has lost its beginning
	lost    int64    // bytes, not told yet
	tearing int64    // bytes of the torn line
	ended   bool
	exit    sandbox.Exit // once ended
}

// Attach attaches a reader to a job, which may have ended. There is at most one
// at a time. ctx bounds the attaching alone; Close detaches, and the job lives
// on. A Relay that has come to its end is detached.
func (t *Table) Attach(ctx context.Context, sb sandbox.Sandbox, ref Ref, a Attachment) (*Relay, error) {
	r, err := t.attach(ctx, sb, ref, a)
	if err != nil {
		return nil, sandbox.At("job.Attach", sb.ID(), err)
	}
	return r, nil
}

func (t *Table) attach(ctx context.Context, sb sandbox.Sandbox, ref Ref, a Attachment) (*Relay, error) {
	d, i, err := t.find(ctx, sb, ref)
	switch {
	case err != nil:
		return nil, err
	case a.From == At && (a.Cursor < 0 || a.Cursor > i.Cursor):
		return nil, sandbox.Errorf(sandbox.Invalid, "cursor", "%d is not among the first %d bytes, which are all so far", a.Cursor, i.Cursor).WithHint("use the Cursor of a Piece")
	case a.Lines < 0 || a.Lines > MaxLine:
		return nil, sandbox.Errorf(sandbox.Invalid, "lines", "%d bytes is not a possible bound", a.Lines).WithHint("give %d to %d, or 0 for output as it comes", MinLine, MaxLine)
	}
	r := &Relay{t: t, sb: sb, d: d, id: i.ID, want: a, left: make(chan struct{}), reading: make(chan struct{}, 1), writing: make(chan struct{}, 1)}
	r.lines.Max = a.Lines
	r.life, r.leave = context.WithCancelCause(context.Background())
	for {
		other := t.seat(r)
		if other == nil {
			break
		}
		if a.Busy != Queue {
			return nil, sandbox.Errorf(sandbox.Conflict, "attached", "somebody else is attached to the %s", ref).WithHint("wait for them to leave, or take over")
		}
		select {
		case <-other.left:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// What is there now is older than what comes next.
	switch a.From {
	case Beginning:
		r.from = [2]int64{}
	case Now:
		r.from = [2]int64{i.Cursor, i.Cursor}
	case At:
		r.from = [2]int64{a.Cursor, a.Cursor}
	}
	switch {
	case a.From != Continue:
		r.torn, r.tearing = false, 0
	case a.Lines == 0: // who wants all of it may have the rest of the line
		r.torn, r.tearing, r.lost = false, 0, r.tearing
	}
	r.start = r.from[0]
	if a.Stderr {
		r.start = min(r.from[0], r.from[1])
	}
	r.at = r.start
	return r, nil
}

// seat makes r the reader, or returns who is.
func (t *Table) seat(r *Relay) *Relay {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.rec = t.record(r.sb, r.id)
	if other := r.rec.reader; other != nil {
		if r.want.Busy != Steal {
			return other
		}
		t.unseat(other, sandbox.Errorf(sandbox.Conflict, "attached", "somebody else has taken over").WithHint("attach again"))
	}
	r.rec.reader = r
	r.from, r.torn, r.tearing = r.rec.read, r.rec.torn, r.rec.tearing
	return nil
}

// unseat ends r for the reason given, if it is still attached. The mutex is
// held.
func (t *Table) unseat(r *Relay, why error) {
	if r.rec.reader == r {
		r.rec.reader = nil
		r.leave(why)
		close(r.left)
	}
}

// over ends the relay by itself.
func (r *Relay) over(why error) error {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.t.unseat(r, why)
	return context.Cause(r.life)
}

// ID returns the job's id.
func (r *Relay) ID() sandbox.ProcessID { return r.id }

// Exit returns how the job ended, once Next has returned io.EOF.
func (r *Relay) Exit() (exit sandbox.Exit, ok bool) {
	select {
	case r.reading <- struct{}{}:
		defer func() { <-r.reading }()
		return r.exit, r.ended
	default: // Next is waiting, so it has not
		return sandbox.Exit{}, false
	}
}

// Next returns the next piece of output, waiting for one as long as it takes.
// To call it is to acknowledge what it returned before, also when ctx has
// ended: that is not delivered to the next reader again.
//
// After the last output of a job that has ended it returns io.EOF. When ctx
// ends it returns its error, and may be called again. It is
// [sandbox.Conflict] when somebody else took over, [sandbox.NotExist] when the
// job was forgotten or the sandbox is gone, [sandbox.Closed] after Close.
func (r *Relay) Next(ctx context.Context) (Piece, error) {
	p, err := r.next(ctx)
	if err == io.EOF {
		return p, err
	}
	return p, sandbox.At("job.Next", r.sb.ID(), err)
}

func (r *Relay) next(ctx context.Context) (Piece, error) {
	ctx, done, err := r.turn(ctx, r.reading)
	if err != nil {
		r.Acknowledge() // it got what it got, though it wants no more
		return Piece{}, err
	}
	defer done()
	for {
		r.acknowledge()
		if p, ok := r.deliver(); ok {
			return p, nil
		}
		if r.ended {
			return Piece{}, r.over(io.EOF)
		}
		o, err := r.d.Output(ctx, r.id, r.at, piece, patience)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return Piece{}, r.why(ctx)
		case sandbox.KindOf(err) == sandbox.NotExist:
			return Piece{}, r.over(err)
		default:
			return Piece{}, err
		}
		if o.Dropped > 0 {
			r.gap(o.Dropped)
		}
		r.chunks = o.Chunks
		if o.Exit != nil {
			r.ended, r.exit = true, *o.Exit
		}
	}
}

// turn waits for ch, and returns a context that ends with ctx and with r.
func (r *Relay) turn(ctx context.Context, ch chan struct{}) (context.Context, func(), error) {
	if err := context.Cause(r.life); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.life, func() { cancel(context.Cause(r.life)) })
	end := func() { stop(); cancel(nil) }
	select {
	case ch <- struct{}{}:
		return ctx, func() { <-ch; end() }, nil
	case <-ctx.Done():
		end()
		return nil, nil, r.why(ctx)
	}
}

// why returns why a context of turn ended.
func (r *Relay) why(ctx context.Context) error {
	if err := context.Cause(r.life); err != nil {
		return err
	}
	return ctx.Err()
}

// Acknowledge says that what Next returned last has arrived, for who does not
// call Next again.
func (r *Relay) Acknowledge() {
	select {
	case r.reading <- struct{}{}:
		r.acknowledge()
		<-r.reading
	default: // Next is under way, and has said so
	}
}

// acknowledge tells the record that all that deliver returned has arrived.
func (r *Relay) acknowledge() {
	if r.at == r.start || r.lost > 0 {
		return // it got nothing yet, or is still to be told what it did not get
	}
	at := r.at
	if r.lines.Held() > 0 {
		at = r.begin
	}
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	if r.rec.reader != r {
		return
	}
	r.rec.read[0], r.rec.known = max(r.from[0], at), true
	r.rec.torn, r.rec.tearing = r.torn, r.tearing
	if r.want.Stderr {
		r.rec.read[1] = max(r.from[1], r.at)
	}
}

// gap notes that the n bytes from r.at on are gone.
func (r *Relay) gap(n int64) {
	r.at += n
	r.lost += n
	if r.want.Lines > 0 && r.at > r.from[0] {
		rest, _ := r.lines.Rest()
		r.lost += int64(len(rest.Data))
		r.torn = true
	}
}

// deliver returns the next piece of what is there.
func (r *Relay) deliver() (Piece, bool) {
	for {
		if n := r.lost; n > 0 {
			r.lost = 0
			return Piece{Dropped: n, Cursor: r.at}, true
		}
		if len(r.chunks) == 0 {
			break
		}
		c := &r.chunks[0]
		stream := 0
		if c.Stderr {
			stream = 1
		}
		if skip := min(r.from[stream]-r.at, int64(len(c.Data))); stream == 1 && !r.want.Stderr {
			r.take(len(c.Data))
		} else if skip > 0 {
			r.take(int(skip))
		} else if stream == 1 || r.want.Lines == 0 {
			data := c.Data
			r.take(len(data))
			return Piece{Stderr: c.Stderr, Data: data, Cursor: r.at}, true
		} else if p, ok := r.line(c.Data); ok {
			return p, true
		}
	}
	if !r.ended {
		return Piece{}, false
	}
	if r.torn {
		r.torn, r.lost, r.tearing = false, r.tearing, 0
		if r.lost > 0 {
			return r.deliver()
		}
	}
	if rest, ok := r.lines.Rest(); ok {
		return Piece{Data: rest.Data, Partial: true, Cursor: r.at}, true
	}
	return Piece{}, false
}

// take moves past n bytes of the first chunk.
func (r *Relay) take(n int) {
	r.at += int64(n)
	c := &r.chunks[0]
	if c.Data = c.Data[n:]; len(c.Data) == 0 {
		r.chunks = r.chunks[1:]
	}
}

// line gives data, which begins at r.at, to the Splitter.
func (r *Relay) line(data []byte) (Piece, bool) {
	if r.torn {
		i := bytes.IndexByte(data, '\n') + 1
		if i == 0 {
			r.tearing += int64(len(data))
			r.take(len(data))
			return Piece{}, false
		}
		r.torn, r.lost, r.tearing = false, r.tearing+int64(i), 0
		r.take(i)
		return Piece{}, false
	}
	held := r.lines.Held()
	l, n, ok := r.lines.Next(data)
	if held == 0 {
		r.begin = r.at
	}
	for k := max(0, n-len(r.ends)); k < n; k++ {
		r.ends = [3]int64{r.ends[1], r.ends[2], r.at + int64(k)}
	}
	r.take(n)
	if !ok {
		return Piece{}, false
	}
	if h := r.lines.Held(); h > 0 { // the beginning of a character that did not fit
		r.begin = r.ends[len(r.ends)-h]
	}
	return Piece{Data: l.Data, Partial: !l.Whole, Cursor: r.at}, true
}

// Write writes to the job's standard input, after those who write already. It
// returns when the job or its pipe has taken the bytes, so one who does not
// read holds up who writes. When ctx ends first, or the reader is no longer
// attached, the count says how much was written. A job that has no input, or
// has closed it, is [sandbox.Conflict].
func (r *Relay) Write(ctx context.Context, p []byte) (int, error) {
	n, err := r.write(ctx, p, false)
	return n, sandbox.At("job.Write", r.sb.ID(), shut(err))
}

// CloseInput closes the job's standard input, after what was written. That it
// is closed already is no error.
func (r *Relay) CloseInput(ctx context.Context) error {
	_, err := r.write(ctx, nil, true)
	if err == io.EOF || sandbox.KindOf(err) == sandbox.Conflict && context.Cause(r.life) == nil {
		return nil
	}
	return sandbox.At("job.CloseInput", r.sb.ID(), err)
}

func (r *Relay) write(ctx context.Context, p []byte, eof bool) (int, error) {
	ctx, done, err := r.turn(ctx, r.writing)
	if err != nil {
		return 0, err
	}
	defer done()
	n, err := r.t.input(ctx, r.sb.ID(), r.d, r.id, p, eof)
	if err != nil && ctx.Err() != nil {
		err = r.why(ctx)
	}
	return n, err
}

// shut is what Write says once Next has said io.EOF.
func shut(err error) error {
	if err == io.EOF {
		return sandbox.Errorf(sandbox.Conflict, "", "the process has ended").WithHint("start another")
	}
	return err
}

// Close detaches the reader and returns when no call of it is under way. The
// job lives on. A second Close does nothing. It always returns nil.
func (r *Relay) Close() error {
	r.over(sandbox.Errorf(sandbox.Closed, "", "the relay was closed"))
	for _, ch := range []chan struct{}{r.reading, r.writing} {
		ch <- struct{}{}
		<-ch
	}
	return nil
}
