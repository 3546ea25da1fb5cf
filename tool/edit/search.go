package edit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// fileMatches is what was found in one file.
type fileMatches struct {
	matches       []Match
	binary, large bool
	long          int
	cut           Cut // CutMatches or CutBytes: there is more in this file
	err           error
}

func (m *Match) size() int {
	n := len(m.Text)
	for _, s := range m.Before {
		n += len(s)
	}
	for _, s := range m.After {
		n += len(s)
	}
	return n
}

// blocks are the pieces in which files are read.
var blocks = sync.Pool{New: func() any { return new(block) }}

// A block is a piece of a file, and room for the same in small letters.
type block struct{ data, small [128 << 10]byte }

func searchFile(ctx context.Context, files sandbox.Files, e Entry, find *finder, opt *GrepOptions) (found fileMatches) {
	f, err := files.Open(ctx, e.Path, sandbox.Range{})
	if err != nil {
		found.err = err
		return found
	}
	defer f.Close()
	s := search{ctx: ctx, find: find, opt: opt, entry: e, found: &found, line: 1}
	if opt.Multiline {
		s.whole(f)
		return found
	}
	b := blocks.Get().(*block)
	defer blocks.Put(b)
	s.lines(f, b)
	return found
}

// A search is the search of one file.
type search struct {
	ctx   context.Context
	find  *finder
	opt   *GrepOptions
	entry Entry
	found *fileMatches
	line  int64 // the number of the next line
	bytes int   // given so far
	work  int   // done since the context was looked at

	before  []string // the lines just passed, if they are wanted
	waiting []int    // indices of matches that want more lines after them
	done    bool
}

// lines searches line by line, holding one block.
func (s *search) lines(r io.Reader, b *block) {
	buf := b.data[:]
	most := min(len(buf), s.find.maxLine)
	var (
		have     int   // bytes in buf
		total    int64 // bytes read
		skipping bool  // the rest of a line that was too long
		eof      bool
		probed   bool
	)
	for !s.done {
		for have < len(buf) && !eof {
			n, err := r.Read(buf[have:])
			have += n
			total += int64(n)
			if errors.Is(err, io.EOF) {
				eof = true
			} else if err != nil {
				s.found.err = err
				return
			}
		}
		if !probed {
			probed = true
			if bytes.IndexByte(buf[:min(have, binaryProbe)], 0) >= 0 {
				s.found.binary = true
				return
			}
		}
		if total > s.opt.MaxFileSize { // it has grown since
			s.found.large = true
			return
		}
		data := buf[:have]
		if skipping {
			i := bytes.IndexByte(data, '\n')
			if i < 0 {
				if eof {
					return
				}
				have = 0
				continue
			}
			data = data[i+1:]
			skipping = false
			s.line++
		}
		end := len(data)
		if !eof {
			end = bytes.LastIndexByte(data, '\n') + 1
		}
		switch {
		case end == 0 && len(data) == len(buf):
			s.each(data[:most])
			s.found.long++
			s.line-- // it has not ended
			have, skipping = 0, true
			continue
		case end > 0:
			s.block(data[:end], b.small[:end])
		}
		if eof {
			return
		}
		have = copy(buf, data[end:])
	}
}

// block searches lines that are whole, of which the last may lack its end.
func (s *search) block(data, small []byte) {
	wanted := s.opt.Before+s.opt.After > 0
	next := s.find.candidates(data, small)
	for at := 0; at < len(data) && !s.done; {
		if !wanted {
			i := next(at)
			if i < 0 {
				s.line += int64(bytes.Count(data[at:], newline))
				return
			}
			begin := at + bytes.LastIndexByte(data[at:i], '\n') + 1
			s.line += int64(bytes.Count(data[at:begin], newline))
			at = begin
		}
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i
		}
		s.each(data[at:end])
		at = end + 1
	}
}

var newline = []byte{'\n'}

// each looks at the next line.
func (s *search) each(line []byte) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if len(line) > s.find.maxLine {
		line = line[:s.find.maxLine]
		s.found.long++
	}
	if s.work += len(line) * s.find.size; s.work > maxWork {
		s.work = 0
		if s.found.err = s.ctx.Err(); s.found.err != nil {
			s.done = true
			return
		}
	}
	hit := s.find.line(line)
	if hit || s.opt.Before+s.opt.After > 0 {
		text, cut := clip(line, s.opt.MaxLine)
		s.follow(text)
		if hit {
			s.add(Match{Line: s.line, Text: text, Cut: cut, Before: append([]string(nil), s.before...)})
		}
		if s.opt.Before > 0 {
			if len(s.before) == s.opt.Before {
				s.before = append(s.before[:0], s.before[1:]...)
			}
			s.before = append(s.before, text)
		}
	}
	s.line++
}

// follow gives a line to the matches before it that want one.
func (s *search) follow(text string) {
	for len(s.waiting) > 0 && len(s.found.matches[s.waiting[0]].After) == s.opt.After {
		s.waiting = s.waiting[1:]
	}
	for _, i := range s.waiting {
		s.found.matches[i].After = append(s.found.matches[i].After, text)
		s.bytes += len(text)
	}
	if s.found.cut != "" && (len(s.waiting) == 0 || len(s.found.matches[s.waiting[len(s.waiting)-1]].After) == s.opt.After) {
		s.done = true
	}
}

// add takes a match, unless there are enough; then it waits for the lines that
// the last one wants, and ends.
func (s *search) add(m Match) {
	if s.found.cut != "" {
		return
	}
	switch size := m.size(); {
	case len(s.found.matches) >= min(s.opt.MaxPerFile, s.opt.MaxResults):
		s.found.cut = CutMatches
	case s.bytes+size > s.opt.MaxBytes:
		s.found.cut = CutBytes
	default:
		s.bytes += size
		m.Path, m.Rel = s.entry.Path, s.entry.Rel
		s.found.matches = append(s.found.matches, m)
		if s.opt.After > 0 {
			s.waiting = append(s.waiting, len(s.found.matches)-1)
		}
		return
	}
	s.done = s.opt.After == 0
}

// whole searches the file as a whole.
func (s *search) whole(r io.Reader) {
	most := min(s.opt.MaxFileSize, int64(max(64<<10, maxWhole/s.find.size)))
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		s.found.err = err
		return
	case int64(len(data)) > most:
		s.found.large = true
		return
	case bytes.IndexByte(data[:min(len(data), binaryProbe)], 0) >= 0:
		s.found.binary = true
		return
	}
	at, counted := 0, 0
	for at <= len(data) && s.found.cut == "" {
		if s.found.err = s.ctx.Err(); s.found.err != nil {
			return
		}
		loc := s.find.in(data, at)
		if loc == nil {
			return
		}
		begin := bytes.LastIndexByte(data[:loc[0]], '\n') + 1
		end := len(data)
		if i := bytes.IndexByte(data[max(loc[0], loc[1]-1):], '\n'); i >= 0 {
			end = max(loc[0], loc[1]-1) + i
		}
		if begin == len(data) && begin > 0 { // behind the last line
			return
		}
		s.line += int64(bytes.Count(data[counted:begin], newline))
		counted = begin
		text, cut := clip(bytes.TrimSuffix(data[begin:end], []byte{'\r'}), s.opt.MaxLine)
		s.add(Match{Line: s.line, Text: text, Cut: cut, Before: s.around(data[:begin], -s.opt.Before), After: s.around(data[min(len(data), end+1):], s.opt.After)})
		at = end + 1
	}
}

// around returns the first n lines of data, or the last -n.
func (s *search) around(data []byte, n int) []string {
	var lines []string
	for ; n > 0 && len(data) > 0; n-- {
		line, rest, _ := bytes.Cut(data, newline)
		text, _ := clip(bytes.TrimSuffix(line, []byte{'\r'}), s.opt.MaxLine)
		lines, data = append(lines, text), rest
	}
	for ; n < 0 && len(data) > 0; n++ {
		data = bytes.TrimSuffix(data, newline)
		i := bytes.LastIndexByte(data, '\n') + 1
		text, _ := clip(bytes.TrimSuffix(data[i:], []byte{'\r'}), s.opt.MaxLine)
		lines, data = append([]string{text}, lines...), data[:i]
	}
	return lines
}
