package job

import (
	"bytes"
	"unicode/utf8"
)

// Bounds of a line, in bytes.
const (
	MinLine = 64
	MaxLine = 16 << 20
)

// A Line is what a [Splitter] found.
type Line struct {
	Data  []byte // without the newline; valid until the next call
	Whole bool   // it ended with a newline: if not, it goes on, or was the last
}

// A Splitter makes lines of bytes that come in pieces, as messages of JSON-RPC
// do over a process's output. It holds at most one unfinished line.
//
// A line that is longer than Max comes in parts of at most that many bytes, of
// which the last alone is Whole. If the bytes are UTF-8 then so is each part:
// no character is cut in two. The zero Splitter takes lines up to MaxLine.
type Splitter struct {
	Max int // longest line; 0 is MaxLine, less than MinLine is that

	buf  []byte // the unfinished line, then what was handed out
	lent int    // how many bytes of buf were handed out last
}

func (s *Splitter) max() int {
	if s.Max == 0 {
		return MaxLine
	}
	return max(s.Max, MinLine)
}

// Next takes bytes from the beginning of p and returns how many it took. It
// stops after the first line that is complete with them, which it returns;
// without one it takes all of p. The bytes that a part of an overlong line
// leaves over, three at most, are held for the next.
func (s *Splitter) Next(p []byte) (line Line, n int, ok bool) {
	s.settle()
	room := s.max() - len(s.buf)
	if i := bytes.IndexByte(p[:min(len(p), room+1)], '\n'); i >= 0 {
		if len(s.buf) == 0 {
			return Line{p[:i:i], true}, i + 1, true
		}
		s.buf = append(s.buf, p[:i]...)
		s.lent = len(s.buf)
		return Line{s.buf[:s.lent:s.lent], true}, i + 1, true
	}
	if len(p) <= room {
		s.buf = append(s.buf, p...)
		return Line{}, len(p), false
	}
	s.buf = append(s.buf, p[:room]...)
	s.lent = len(s.buf) - unfinished(s.buf)
	return Line{Data: s.buf[:s.lent:s.lent]}, room, true
}

// Held returns how many bytes of an unfinished line it holds.
func (s *Splitter) Held() int { return len(s.buf) - s.lent }

// Rest returns the unfinished line when nothing follows, and begins anew.
func (s *Splitter) Rest() (line Line, ok bool) {
	s.settle()
	rest := s.buf
	s.buf = nil
	return Line{Data: rest}, len(rest) > 0
}

// settle drops what was handed out.
func (s *Splitter) settle() {
	if s.lent == 0 {
		return
	}
	n := copy(s.buf, s.buf[s.lent:])
	s.buf, s.lent = s.buf[:n], 0
	if n == 0 && cap(s.buf) > 64<<10 { // one long line is no reason to keep so much
		s.buf = nil
	}
}

// unfinished returns how many bytes at the end of p begin a character of which
// the rest may follow.
func unfinished(p []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(p)); n++ {
		tail := p[len(p)-n:]
		if utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
