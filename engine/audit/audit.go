// Package audit keeps a record of who did what where: events as lines of JSON
// in a file that is bounded and rotated.
//
// It never stands in the way of what it records. An event that cannot be
// written, since the disk is full or slower than what happens, is counted, and
// the count is written when there is room again. So the record is not proof
// that nothing else happened; it says where it has holes. What was written
// outlives the daemon at once, and the host once the kernel wrote it out.
package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Lost is the kind of the event that stands where others were lost. Its Detail
// says how many.
const Lost sandbox.EventKind = "lost"

const (
	maxQueue  = 4096        // events that wait to be written
	maxDetail = 1024        // bytes of an event's Detail that are kept
	maxChunk  = 64 << 10    // bytes that are written at once, unless a line is longer
	quiet     = time.Minute // at most so often something is said of what cannot be written
)

// Options says how a Log is kept. The zero value will do.
type Options struct {
	MaxSize int64        // bytes of a file; 0 is 16 MiB
	Keep    int          // how many older files stay; 0 is 5, a negative one keeps none
	Log     *slog.Logger // gets what an operator should know of; nil discards it
}

// A Log writes events to a file. It is safe for concurrent use. Close ends it.
type Log struct {
	path string
	max  int64
	keep int
	log  *slog.Logger
	wake chan struct{} // there is something to do; holds one
	done chan struct{} // closed when the writer has ended

	mu     sync.Mutex
	queue  []sandbox.Event
	missed int64 // found the queue full, and were not yet written of
	lost   int64 // all that were lost
	closed bool
	before func() // called before it does, by tests
	end    error  // of the writer

	// The writer alone has these.
	f      *os.File // nil if it cannot be opened
	size   int64
	torn   bool      // the last line has no end
	failed int64     // could not be written, and were not yet written of
	said   time.Time // when something was last said of that
}

// Open opens the record in the file at path, and makes it if it is not there.
// Older files are path.1, the latest of them, path.2 and so on. The error is
// [sandbox.Denied] if path is not a regular file (a link to one is not), or may
// not be written, and [sandbox.Exhausted] if there is no room for it. It names
// the file, for whoever starts the daemon.
func Open(path string, opt Options) (*Log, error) {
	l := &Log{path: path, max: opt.MaxSize, keep: opt.Keep, log: opt.Log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	switch {
	case l.max < 0:
		return nil, sandbox.Errorf(sandbox.Invalid, "audit.max_size", "%d bytes is not a possible size", l.max).WithHint("give a positive number, or 0 for 16 MiB")
	case l.max == 0:
		l.max = 16 << 20
	}
	switch {
	case l.keep < 0:
		l.keep = 0
	case l.keep == 0:
		l.keep = 5
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if err := l.open(); err != nil {
		return nil, refusal(path, err)
	}
	go l.run()
	return l, nil
}

func refusal(path string, err error) error {
	e := &sandbox.Error{Op: "audit.Open", Kind: sandbox.Unavailable, Msg: path + " cannot be opened", Hint: "see the log for the cause", Err: err}
	switch {
	case errors.Is(err, errIrregular):
		e.Kind, e.Msg, e.Hint = sandbox.Denied, path+" is not a regular file", "move it away, or keep the audit record elsewhere"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		e.Kind, e.Msg, e.Hint = sandbox.Denied, path+" cannot be written", "let this user write to the folder and the file, or keep the audit record elsewhere"
	case errors.Is(err, fs.ErrNotExist):
		e.Kind, e.Msg, e.Hint = sandbox.NotExist, path+" has no folder to be in", "make the folder first"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Kind, e.Msg, e.Hint = sandbox.Exhausted, "there is no room for "+path, "make room on that disk, or keep the audit record elsewhere"
	}
	return e
}

var errIrregular = errors.New("not a regular file")

// open opens the file to add to what is in it.
func (l *Log) open() error {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	switch {
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO):
		return errIrregular
	case err != nil:
		return err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errIrregular
	case info.Mode().Perm()&0o077 != 0:
		err = f.Chmod(0o600)
	}
	last := []byte{'\n'}
	if err == nil && info.Size() > 0 {
		_, err = f.ReadAt(last, info.Size()-1)
	}
	if err != nil {
		f.Close()
		return err
	}
	// A program that was killed may have left half a line.
	l.f, l.size, l.torn = f, info.Size(), last[0] != '\n'
	return nil
}

// Write has e written soon. It waits for nothing. If too many wait already, or
// the Log was closed, e is lost, and counted.
func (l *Log) Write(e sandbox.Event) {
	if len(e.Detail) > maxDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:maxDetail-3], "") + "..."
	}
	l.mu.Lock()
	switch {
	case l.closed:
		l.lost++
	case len(l.queue) >= maxQueue:
		l.lost++
		l.missed++
	default:
		l.queue = append(l.queue, e)
	}
	l.mu.Unlock()
	l.poke()
}

func (l *Log) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Dropped returns how many events were lost since Open.
func (l *Log) Dropped() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Close writes what waits and closes the file. Its error says that something
// of that was lost, or may be if the host fails. A second Close returns the
// same.
func (l *Log) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.poke()
	<-l.done
	return l.end
}

// run writes until the Log is closed.
func (l *Log) run() {
	defer close(l.done)
	var spare []sandbox.Event
	for range l.wake {
		l.mu.Lock()
		batch, missed, closed, before := l.queue, l.missed, l.closed, l.before
		l.queue, l.missed = spare[:0], 0
		l.mu.Unlock()
		if before != nil {
			before()
		}
		err := l.write(batch, missed)
		clear(batch) // so that nothing holds their texts
		spare = batch
		if closed {
			if l.f != nil {
				err = errors.Join(err, l.f.Sync(), l.f.Close())
			}
			if err != nil {
				err = &sandbox.Error{Op: "audit.Close", Kind: sandbox.Unavailable, Msg: "the end of the audit record could not be written", Hint: "see to the disk that keeps it", Err: err}
			}
			l.end = err
			return
		}
	}
}

// write writes a batch, and that so many more were missed after it.
func (l *Log) write(batch []sandbox.Event, missed int64) error {
	err := l.gap(&l.failed)
	left := int64(len(batch))
	var chunk []byte
	for i := 0; err == nil && i < len(batch); {
		chunk = chunk[:0]
		for limit := int(min(maxChunk, l.max/4)); i < len(batch); i++ {
			line := encode(batch[i])
			if len(chunk) > 0 && len(chunk)+len(line) > limit {
				break
			}
			chunk = append(chunk, line...)
		}
		var n int64
		n, err = l.put(chunk)
		left -= n
	}
	if err == nil {
		err = l.gap(&missed)
	}
	if err != nil {
		l.failed += left + missed
		l.mu.Lock()
		l.lost += left
		l.mu.Unlock()
		if now := time.Now(); l.said.IsZero() || now.Sub(l.said) >= quiet {
			l.said = now
			l.log.Error("audit events are lost", "path", l.path, "events", l.failed, "err", err)
		}
	}
	return err
}

// gap writes that *n events were lost, if any were, and sets it to 0.
func (l *Log) gap(n *int64) error {
	if *n == 0 {
		return nil
	}
	_, err := l.put(encode(sandbox.Event{
		At: time.Now().UTC().Round(0), Kind: Lost, Owner: sandbox.Operator, Detail: fmt.Sprintf("%d events were not recorded", *n),
	}))
	if err == nil {
		*n = 0
	}
	return err
}

func encode(e sandbox.Event) []byte {
	line, err := json.Marshal(e)
	if err != nil { // nothing but the time can be what JSON does not have
		e.At = time.Time{}
		line, _ = json.Marshal(e)
	}
	return append(line, '\n')
}

// put writes whole lines, and returns how many of them are written. If there
// are too many for the file, it is rotated first.
func (l *Log) put(lines []byte) (int64, error) {
	if err := l.ready(int64(len(lines))); err != nil {
		return 0, err
	}
	if l.torn {
		lines = slices.Concat([]byte{'\n'}, lines)
	}
	n, err := l.f.Write(lines)
	l.size += int64(n)
	whole := int64(bytes.Count(lines[:n], []byte{'\n'}))
	if l.torn && n > 0 {
		whole--
	}
	if n > 0 {
		l.torn = lines[n-1] != '\n'
	}
	return whole, err
}

// ready makes l.f the file at l.path, with room for n bytes.
func (l *Log) ready(n int64) error {
	if l.f != nil {
		held, err := l.f.Stat()
		if err != nil {
			return err
		}
		// Somebody else may have rotated it, or removed it.
		if at, err := os.Lstat(l.path); err != nil || !os.SameFile(held, at) {
			l.f.Close()
			l.f = nil
		} else {
			l.size = held.Size()
		}
	}
	if l.f == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	if l.size == 0 || l.size+n <= l.max {
		return nil
	}
	if err := l.rotate(); err != nil {
		return fmt.Errorf("rotate: %w", err)
	}
	l.f.Close()
	l.f = nil
	return l.open()
}

// rotate renames the file, and those that were renamed before.
func (l *Log) rotate() error {
	if l.keep == 0 {
		return os.Remove(l.path)
	}
	for i := l.keep - 1; i > 0; i-- {
		if err := os.Rename(old(l.path, i), old(l.path, i+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(l.path, old(l.path, 1))
}

func old(path string, i int) string { return path + "." + strconv.Itoa(i) }
