package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestSafeWriter(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"plain\ttext\n", "plain\ttext\n"},
		{"dos\r\nline", "dos\r\nline"},
		{"over\rwritten", "over^Mwritten"},
		{"\x1b]0;title\a", "^[]0;title^G"},
		{"\x1b[2J", "^[[2J"},
		{"\u009b2J", `\u009b2J`},
		{"\x9b2J", `\x9b2J`},
		{"a\u202eb", `a\u202eb`},
		{"del\x7f", "del^?"},
		{"Grüße 日本 🌴", "Grüße 日本 🌴"},
		{"cut \xf0\x9f", `cut \xf0\x9f`},
		{"end\r", "end^M"},
	} {
		// Whole, and byte by byte.
		for _, size := range []int{len(tc.in), 1} {
			var out bytes.Buffer
			w := &safeWriter{w: &out}
			for in := []byte(tc.in); len(in) > 0; in = in[min(size, len(in)):] {
				w.Write(in[:min(size, len(in))])
			}
			w.Flush()
			if out.String() != tc.want {
				t.Errorf("%q in pieces of %d: got %q, want %q", tc.in, size, out.String(), tc.want)
			}
		}
	}
}

func FuzzSafeWriter(f *testing.F) {
	f.Add([]byte("\x1b[31mred\r\n\u009b\xff"), 3)
	f.Fuzz(func(t *testing.T, in []byte, cut int) {
		var out bytes.Buffer
		w := &safeWriter{w: &out}
		cut = max(0, min(cut, len(in)))
		w.Write(in[:cut])
		w.Write(in[cut:])
		w.Flush()
		if !utf8.Valid(out.Bytes()) {
			t.Fatalf("%q became %q, which is not UTF-8", in, out.Bytes())
		}
		s := strings.ReplaceAll(out.String(), "\r\n", "\n")
		for _, r := range s {
			if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
				t.Fatalf("%q became %q, which has %U", in, s, r)
			}
		}
	})
}
