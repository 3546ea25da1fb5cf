package edit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// LinesOptions says which lines [Lines] gives. The zero value wants all, as
// far as the bounds go.
type LinesOptions struct {
	From int64 // number of the first, from 1; 0 is 1
	To   int64 // number of the last; 0 is the last there is

	MaxLines int           // lines given; 0 is 10000
	MaxBytes int           // bytes given; 0 is 1 MiB
	MaxLine  int           // bytes given of one line, less its end; 0 is MaxBytes
	Count    bool          // say how many lines there are, which takes reading all of the file
	Time     time.Duration // how long it may take; 0 is 30 seconds
}

// Text is a part of a text file.
type Text struct {
	Content []byte // as it is in the file, ends of lines included

	// First and Last are the numbers of the first and the last line, from 1;
	// both are 0 if there is none, and with [Tail] if they are not known.
	First, Last int64

	// Total is how many lines there are, or -1 if that is not known. A last
	// line without an end is one.
	Total int64

	// Next is the number of the line to go on with, or 0 if nothing follows
	// that was asked for. With [Tail] it is 0.
	Next int64

	Long   []int64 // numbers of the lines that are cut to MaxLine
	Binary bool    // there is a NUL byte in the first 8 KiB that were read
	Cut    Cut     // CutLines, CutBytes or CutTime
	Info   sandbox.FileInfo
}

// Lines returns some lines of the file at path. It reads no more of the file
// than it must, and holds no more than it gives. A From behind the end gives
// nothing, with Total set; one behind To is [sandbox.Invalid] with Field "from".
//
// A line that does not fit into MaxBytes ends the content before it, unless it
// is the first: of that, what fits is given.
func Lines(ctx context.Context, sb sandbox.Sandbox, path string, opt LinesOptions) (Text, error) {
	t, err := lines(ctx, sb.Files(), path, opt)
	return t, sandbox.At("edit.Lines", sb.ID(), err)
}

func lines(ctx context.Context, files sandbox.Files, path string, opt LinesOptions) (Text, error) {
	t := Text{Total: -1}
	if err := checkNumbers(number{"from", opt.From}, number{"to", opt.To}, number{"max_lines", int64(opt.MaxLines)},
		number{"max_bytes", int64(opt.MaxBytes)}, number{"max_line", int64(opt.MaxLine)}, number{"time", int64(opt.Time)}); err != nil {
		return t, err
	}
	opt.From = orDefault(opt.From, 1)
	opt.To = orDefault(opt.To, math.MaxInt64)
	if opt.From > opt.To {
		return t, sandbox.Errorf(sandbox.Invalid, "from", "line %d is after line %d", opt.From, opt.To).WithHint("give the smaller one first")
	}
	opt.MaxLines = orDefault(opt.MaxLines, 10_000)
	opt.MaxBytes = orDefault(opt.MaxBytes, 1<<20)
	opt.MaxLine = min(orDefault(opt.MaxLine, opt.MaxBytes), opt.MaxBytes)
	ctx, cancel, over := budget(ctx, orDefault(opt.Time, 30*time.Second))
	defer cancel()

	f, err := files.Open(ctx, path, sandbox.Range{})
	if err != nil {
		return t, err
	}
	defer f.Close()
	t.Info = f.Info()
	in := bufio.NewReaderSize(f, 64<<10)
	probe, _ := in.Peek(binaryProbe)
	t.Binary = bytes.IndexByte(probe, 0) >= 0
	r := lineReader{text: &t, opt: opt}
	for {
		piece, err := in.ReadSlice('\n')
		if err != nil && err != bufio.ErrBufferFull && !errors.Is(err, io.EOF) {
			if over() {
				t.Cut, err = CutTime, nil
			}
			return t, err
		}
		if len(piece) > 0 {
			r.take(piece)
		}
		if errors.Is(err, io.EOF) {
			r.finish(false)
			t.Total = r.line
			return t, nil
		}
		if r.done && !opt.Count {
			return t, nil
		}
	}
}

// A lineReader takes a file piece by piece and keeps the lines that are wanted.
type lineReader struct {
	text *Text
	opt  LinesOptions

	line  int64 // the number of the line that was begun last
	open  bool  // it has not ended
	begin int   // where it begins in text.Content
	long  bool  // part of it was left out
	done  bool  // nothing more is wanted
}

// take takes a piece of one line, with its end if that was reached.
func (r *lineReader) take(piece []byte) {
	if !r.open {
		r.line++
		r.open, r.begin, r.long = true, len(r.text.Content), false
		switch {
		case r.done:
		case r.line-r.opt.From >= int64(r.opt.MaxLines):
			r.stop(CutLines)
		}
	}
	body, ended := bytes.CutSuffix(piece, newline)
	if !r.done && r.line >= r.opt.From {
		r.keep(body, ended)
	}
	if ended {
		r.finish(true)
	}
}

// keep adds a piece of a line to the content, or ends the content before the
// line.
func (r *lineReader) keep(body []byte, ended bool) {
	t := r.text
	if n := r.opt.MaxLine - (len(t.Content) - r.begin); len(body) > n {
		body, r.long = body[:n], true
	}
	need := len(body)
	if ended {
		need++
	}
	if r.begin > 0 && len(t.Content)+need > r.opt.MaxBytes {
		t.Content = t.Content[:r.begin]
		r.stop(CutBytes)
		return
	}
	t.Content = append(t.Content, body...)
}

// finish ends a line, if there is one.
func (r *lineReader) finish(end bool) {
	t := r.text
	if r.open && !r.done && r.line >= r.opt.From {
		if r.long {
			t.Long = append(t.Long, r.line)
			t.Content = t.Content[:r.begin+len(whole(t.Content[r.begin:]))]
		}
		if end && len(t.Content) < r.opt.MaxBytes {
			t.Content = append(t.Content, '\n')
		}
		if t.First == 0 {
			t.First = r.line
		}
		t.Last = r.line
		r.done = r.line == r.opt.To
	}
	r.open = false
}

// stop ends the content before the line that is being read.
func (r *lineReader) stop(why Cut) {
	r.text.Cut, r.text.Next, r.done = why, r.line, true
}

// TailOptions says what [Tail] gives.
type TailOptions struct {
	MaxBytes int // bytes given; 0 is 1 MiB
}

// Tail returns the last n lines of the file at path. It reads the file from
// its end, and no more of it than MaxBytes and a bit. If the lines are more
// than MaxBytes, it gives the last of them that fit, or the end of the last
// one. The numbers of the lines are known only if the file was read whole.
func Tail(ctx context.Context, sb sandbox.Sandbox, path string, n int, opt TailOptions) (Text, error) {
	t, err := tail(ctx, sb.Files(), path, n, opt)
	return t, sandbox.At("edit.Tail", sb.ID(), err)
}

func tail(ctx context.Context, files sandbox.Files, path string, n int, opt TailOptions) (Text, error) {
	t := Text{Total: -1}
	if err := checkNumbers(number{"max_bytes", int64(opt.MaxBytes)}); err != nil {
		return t, err
	}
	if n < 1 {
		return t, sandbox.Errorf(sandbox.Invalid, "lines", "%d is not a number of lines", n).WithHint("give 1 or more")
	}
	most := int64(orDefault(opt.MaxBytes, 1<<20))
	for size := min(most, 32<<10); ; size = min(most, 8*size) {
		// One byte more says whether the first line is whole.
		data, info, err := piece(ctx, files, path, sandbox.Range{Offset: -size - 1}, size+1)
		if err != nil {
			return t, err
		}
		t.Info = info
		all := int64(len(data)) <= size
		begin, count := lastLines(data, n)
		if begin == 0 && !all { // the first of them may have begun before
			if size < most {
				continue
			}
			t.Cut = CutBytes
			begin = 1
			if i := bytes.IndexByte(data, '\n'); i >= 0 && i+1 < len(data) {
				begin = i + 1
			}
		}
		if all {
			t.Total = int64(bytes.Count(data, newline))
			if len(data) > 0 && data[len(data)-1] != '\n' {
				t.Total++
			}
			if t.Last = t.Total; t.Last > 0 {
				t.First = t.Total - int64(count) + 1
			}
		}
		t.Content = data[begin:]
		t.Binary = bytes.IndexByte(t.Content[:min(len(t.Content), binaryProbe)], 0) >= 0
		return t, nil
	}
}

// lastLines returns where the last n lines of data begin, and how many of them
// there are.
func lastLines(data []byte, n int) (begin, count int) {
	begin = len(data)
	for end := len(data); end > 0 && count < n; {
		i := bytes.LastIndexByte(data[:end-1], '\n')
		begin, count = i+1, count+1
		end = begin
	}
	return begin, count
}

// piece returns a part of a file of at most max bytes.
func piece(ctx context.Context, files sandbox.Files, path string, r sandbox.Range, max int64) ([]byte, sandbox.FileInfo, error) {
	f, err := files.Open(ctx, path, r)
	if err != nil {
		return nil, sandbox.FileInfo{}, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max))
	return data, f.Info(), err
}

// Bytes returns at most max bytes of the file at path, from offset on, which
// counts from the end if it is negative, and the file's Info. There are more if
// offset and what was given do not reach Info.Size.
func Bytes(ctx context.Context, sb sandbox.Sandbox, path string, offset int64, max int) ([]byte, sandbox.FileInfo, error) {
	const op = "edit.Bytes"
	if max < 1 {
		return nil, sandbox.FileInfo{}, sandbox.At(op, sb.ID(), sandbox.Errorf(sandbox.Invalid, "max_bytes", "%d is not a number of bytes", max).WithHint("give 1 or more"))
	}
	data, info, err := piece(ctx, sb.Files(), path, sandbox.Range{Offset: offset, Length: int64(max)}, int64(max))
	return data, info, sandbox.At(op, sb.ID(), err)
}

// whole returns b without the begin of a character at its end.
func whole(b []byte) []byte {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}
