package shell

import (
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxText is the longest command, in bytes.
const MaxText = 4 << 20

// An ID names a command within its Shell. IDs are 1 and up, in the order in
// which commands were given.
type ID int64

// A Command says what is to run.
type Command struct {
	// Text is what a person would type: any number of lines of shell. Text
	// with a NUL byte, and more than MaxText bytes, is Invalid.
	Text string

	// Env is for this command alone: neither the shell nor later commands see
	// it, not even if the command exports it. Names are those of shells:
	// letters, digits and _.
	Env map[string]string

	// Dir is where the shell goes first, as by cd: an absolute path. If it is
	// not there, nothing runs and the error is NotExist with Field "dir".
	Dir string

	// Stdin is the command's standard input; nil is an empty one. What of it
	// the command does not read is lost. As with sandbox.Cmd, a Read that
	// blocks when the command has ended is not waited for.
	Stdin io.Reader

	// Input gives the command a standard input to which Shell.Input writes. It
	// stays open until that closes it.
	Input bool

	// Merge sends standard error where standard output goes, so that both keep
	// their order.
	Merge bool

	// Timeout, if positive, is how long the command may run. Then it is killed
	// with its children, and its Status is TimedOut.
	Timeout time.Duration

	// Stdout and Stderr get the output while Run waits; nil discards it. As
	// long as one blocks the command is slowed.
	Stdout, Stderr io.Writer

	// Patience and Quiet say how long Run waits: see Patience.
	Patience Patience
}

// Patience says how long somebody waits for a command, which goes on when the
// wait is over. The zero Patience waits for the end.
type Patience struct {
	// Total, if positive, bounds the wait, time in the queue included. When it
	// has passed the Status is Running, or Queued.
	Total time.Duration

	// Quiet, if positive, is how long the command may write nothing. Then the
	// Status is NoOutput. It counts from the last output, the command's begin
	// or that of the wait, whichever is latest.
	Quiet time.Duration
}

// A Status says what has become of a command.
type Status string

const (
	Queued      Status = "queued"      // others are before it
	Running     Status = "running"     // it runs, and the wait for it took long enough
	NoOutput    Status = "no-output"   // it runs, and has written nothing for a while
	Completed   Status = "completed"   // it ended by itself, whatever its exit code
	TimedOut    Status = "timed-out"   // its Timeout passed, and it was killed
	Killed      Status = "killed"      // Kill ended it, or the end of a context, or Close
	Interrupted Status = "interrupted" // Interrupt ended it
)

// Ended reports whether a command with this status is over.
func (s Status) Ended() bool { return s != Queued && s != Running && s != NoOutput }

// A Result says how a command went.
type Result struct {
	ID     ID
	Status Status

	// ExitCode is the command's, as $? would show it: 124 after TimedOut, 137
	// after Killed, 130 after Interrupted unless the command gave another. It
	// is -1 while the command has not ended.
	ExitCode int

	// Dir is where the shell is now: after the command, if that has ended.
	Dir string

	// Duration is how long it ran, or has run.
	Duration time.Duration

	// Cursor is where output that the writers did not get begins.
	Cursor int64

	// Replaced reports that the shell itself ended with the command, by exit
	// say. The next command has a new one, with the state of the old: see the
	// package comment.
	Replaced bool

	// Stale reports that the state is older than the command: what that
	// changed, except perhaps the directory, is lost.
	Stale bool
}

// name is what a shell takes for the name of a variable.
var name = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check returns an Invalid error that names the first field with which nothing
// can be done.
func (c *Command) check() error {
	switch {
	case c.Text == "":
		return sandbox.Errorf(sandbox.Invalid, "command", "there is no command").WithHint("give a line of shell")
	case len(c.Text) > MaxText:
		return sandbox.Errorf(sandbox.Invalid, "command", "the command has %d bytes, more than %d", len(c.Text), MaxText).WithHint("write it to a file and run that")
	case strings.IndexByte(c.Text, 0) >= 0:
		return sandbox.Errorf(sandbox.Invalid, "command", "the command has a NUL byte").WithHint("remove it")
	case c.Timeout < 0 || c.Patience.Total < 0 || c.Patience.Quiet < 0:
		return sandbox.Errorf(sandbox.Invalid, "timeout", "a time is negative").WithHint("give a positive one, or 0 for none")
	case c.Stdin != nil && c.Input:
		return sandbox.Errorf(sandbox.Invalid, "stdin", "the command has two inputs").WithHint("choose Stdin or Input")
	}
	if err := checkEnv(c.Env); err != nil {
		return err
	}
	if c.Dir != "" {
		return sandbox.CheckPath("dir", c.Dir)
	}
	return nil
}

func checkEnv(env map[string]string) error {
	for k := range env {
		if !name.MatchString(k) {
			return sandbox.Errorf(sandbox.Invalid, "env", "%q is not the name of a variable", k).WithHint("use letters, digits and _, and begin with none of the digits")
		}
		if strings.HasPrefix(k, "__atoll_") {
			return sandbox.Errorf(sandbox.Invalid, "env", "%q is the shell's own", k).WithHint("choose another name")
		}
	}
	return sandbox.CheckEnv("env", env)
}

// A command is a Command that was given to a Shell.
type command struct {
	Command
	id   ID
	made time.Time
	stop chan Status   // why it is to end: the first one counts
	intr chan struct{} // it is to be interrupted
	done chan struct{} // it has ended

	// What it reads, if anything. Of the loop until fed is closed.
	fed   chan struct{}
	input *input

	// Writers are written to, and changed, with this held. A writer that
	// blocks holds it.
	write   sync.Mutex
	readers []*reader

	mu      sync.Mutex
	status  Status
	begun   time.Time
	last    time.Time // of its last output
	out     ring
	changed chan struct{} // closed at the next output, if somebody waits for it
	result  Result        // when it has ended
	err     error         // why it could not, or not until its end
}

// A reader is somebody who waits, and gets output meanwhile.
type reader struct {
	stdout, stderr io.Writer
	next           int64
	err            error // the first of a writer, which gets nothing more
}

func newCommand(req Command, history int) *command {
	now := time.Now()
	return &command{Command: req, made: now, stop: make(chan Status, 1), intr: make(chan struct{}, 1), done: make(chan struct{}),
		fed: make(chan struct{}), status: Queued, out: ring{max: history}}
}

// end asks for the command's end; the first reason counts.
func (c *command) end(why Status) {
	select {
	case c.stop <- why:
	default:
	}
}

// begin notes that it runs.
func (c *command) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status, c.begun = Running, time.Now()
}

// output takes what the command wrote. Late is what came after its end, which
// writers do not get.
func (c *command) output(stderr bool, p []byte, late bool) {
	if len(p) == 0 {
		return
	}
	c.write.Lock()
	defer c.write.Unlock()
	c.mu.Lock()
	c.last = time.Now()
	c.out.add(stderr, p)
	end := c.out.end
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	c.mu.Unlock()
	if late {
		return
	}
	for _, r := range c.readers {
		r.get(stderr, p)
		r.next = end
	}
}

func (r *reader) get(stderr bool, p []byte) {
	w := r.stdout
	if stderr {
		w = r.stderr
	}
	if w == nil || r.err != nil {
		return
	}
	n, err := w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	r.err = err
}

// attach gives r what there is from cursor on, and what comes.
func (c *command) attach(r *reader, cursor int64) {
	c.write.Lock()
	defer c.write.Unlock()
	c.mu.Lock()
	if cursor < 0 {
		cursor = c.out.end
	}
	old := c.out.read(cursor, c.out.max)
	c.mu.Unlock()
	for _, k := range old.Chunks {
		r.get(k.Stderr, k.Data)
	}
	r.next = old.Next
	c.readers = append(c.readers, r)
}

// detach returns when nobody writes to r any more.
func (c *command) detach(r *reader) {
	c.write.Lock()
	defer c.write.Unlock()
	for i, q := range c.readers {
		if q == r {
			c.readers = append(c.readers[:i], c.readers[i+1:]...)
			return
		}
	}
}

// finish says how it ended.
func (c *command) finish(r Result, err error) {
	c.mu.Lock()
	r.ID = c.id
	if !c.begun.IsZero() {
		r.Duration = time.Since(c.begun)
	}
	c.status, c.result, c.err = r.Status, r, err
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	c.mu.Unlock()
	close(c.done)
}

// wait waits for the end, for as long as the patience lasts or ctx does.
func (c *command) wait(ctx context.Context, p Patience) (Status, error) {
	select { // without a timer, where it has ended already
	case <-c.done:
		return c.ended(), nil
	default:
	}
	start := time.Now()
	var total, quiet <-chan time.Time
	if p.Total > 0 {
		t := time.NewTimer(p.Total)
		defer t.Stop()
		total = t.C
	}
	var again *time.Timer
	if p.Quiet > 0 {
		again = time.NewTimer(p.Quiet)
		defer again.Stop()
		quiet = again.C
	}
	for {
		select {
		case <-c.done:
			return c.ended(), nil
		case <-ctx.Done():
			return "", ctx.Err()
		case <-total:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.status, nil
		case <-quiet:
			c.mu.Lock()
			since := start
			for _, t := range []time.Time{c.begun, c.last} {
				if t.After(since) {
					since = t
				}
			}
			if c.status == Queued {
				since = time.Now()
			}
			c.mu.Unlock()
			left := p.Quiet - time.Since(since)
			if left <= 0 {
				return NoOutput, nil
			}
			again.Reset(left)
		}
	}
}

func (c *command) ended() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}
