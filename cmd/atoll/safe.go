package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable returns s with everything shown that a terminal would obey: see
// [safeWriter]. Newlines are shown too.
func printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		show(&b, r, s[:n])
		s = s[n:]
	}
	return b.String()
}

// show writes the rune r, whose bytes are raw, so that a terminal prints it
// and does nothing else.
func show(b *strings.Builder, r rune, raw string) {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r < 0x20:
		b.WriteByte('^')
		b.WriteByte(byte(r) + '@')
	case r == 0x7f:
		b.WriteString("^?")
	case unicode.Is(unicode.Cc, r), // C1: 0x9b is CSI
		unicode.Is(unicode.Cf, r), // what turns the direction of writing or is not seen
		r == '\u2028', r == '\u2029':
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		b.WriteString(raw)
	}
}

// A safeWriter passes text on and shows what a terminal would obey instead of
// printing it: escape sequences, other control characters, characters that
// turn the direction of writing, and bytes that are not UTF-8. Newlines and
// tabs pass. What a sandbox printed can so be looked at without giving it the
// terminal.
type safeWriter struct {
	w    io.Writer
	part []byte // the beginning of a rune, or a CR that may belong to a newline
}

// Write takes all of p, holding back the beginning of a character that is not
// complete.
func (s *safeWriter) Write(p []byte) (int, error) {
	data := append(s.part, p...)
	s.part = nil
	var b strings.Builder
	for len(data) > 0 {
		if !utf8.FullRune(data) || data[0] == '\r' && len(data) == 1 {
			s.part = append([]byte(nil), data...)
			break
		}
		r, n := utf8.DecodeRune(data)
		switch {
		case r == '\n', r == '\t', r == '\r' && data[1] == '\n':
			b.WriteRune(r)
		default:
			show(&b, r, string(data[:n]))
		}
		data = data[n:]
	}
	if _, err := io.WriteString(s.w, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush shows what was held back.
func (s *safeWriter) Flush() error {
	var b strings.Builder
	for _, c := range s.part {
		if c == '\r' {
			show(&b, '\r', "\r")
		} else {
			show(&b, utf8.RuneError, string([]byte{c}))
		}
	}
	s.part = nil
	_, err := io.WriteString(s.w, b.String())
	return err
}
