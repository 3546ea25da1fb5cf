package job

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// split gives text to a Splitter in the pieces that cut says, and returns its
// lines, each with its newline if it is whole.
func split(t *testing.T, s *Splitter, text []byte, cut func(left int) int) []string {
	t.Helper()
	var lines []string
	for len(text) > 0 {
		p := bytes.Clone(text[:cut(len(text))])
		text = text[len(p):]
		for len(p) > 0 {
			before := s.Held()
			l, n, ok := s.Next(p)
			if !ok && n != len(p) {
				t.Fatalf("it took %d of %d bytes and found no line", n, len(p))
			}
			if n == 0 && before < s.max() {
				t.Fatalf("it took nothing of %q while it held %d bytes", p, before)
			}
			p = p[n:]
			if ok {
				text := string(l.Data)
				if l.Whole {
					text += "\n"
				}
				lines = append(lines, text)
			}
			if s.Held() > s.max() {
				t.Fatalf("it holds %d bytes", s.Held())
			}
		}
	}
	if l, ok := s.Rest(); ok {
		lines = append(lines, string(l.Data))
	}
	if s.Held() != 0 {
		t.Fatalf("after the rest it holds %d bytes", s.Held())
	}
	return lines
}

func TestLinesAreWholeHoweverTheyCome(t *testing.T) {
	text := []byte("{\"a\":1}\n{\"b\":\"张三\"}\n\n\r\nno end")
	want := []string{"{\"a\":1}\n", "{\"b\":\"张三\"}\n", "\n", "\r\n", "no end"}
	for size := 1; size <= len(text); size++ {
		got := split(t, new(Splitter), text, func(left int) int { return min(size, left) })
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
}

func TestALongLineComesInPartsThatAreText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var text []byte
		for range r.IntN(400) {
			text = utf8.AppendRune(text, []rune{'a', 'é', '张', '\U0001F600'}[r.IntN(4)])
		}
		text = append(text, '\n')
		for i, l := range split(t, &Splitter{Max: 64}, text, func(left int) int { return min(1+r.IntN(100), left) }) {
			whole := strings.HasSuffix(l, "\n")
			if !utf8.ValidString(l) || len(strings.TrimSuffix(l, "\n")) > 64 || !whole && len(l) <= 64-utf8.UTFMax {
				t.Fatalf("part %d of %q is %q", i, text, l)
			}
		}
	}
}

func TestALineOfTheLargestSizeIsWhole(t *testing.T) {
	line := append(bytes.Repeat([]byte("x"), 64), '\n')
	for _, at := range []int{1, 63, 64, 65} {
		got := split(t, &Splitter{Max: 64}, line, func(left int) int { return min(at, left) })
		if len(got) != 1 || got[0] != string(line) {
			t.Errorf("cut at %d: %q", at, got)
		}
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("one\ntwo\n\nthree"), 64, uint64(1))
	f.Add([]byte(strings.Repeat("张", 100)+"\n"), 65, uint64(2))
	f.Add(bytes.Repeat([]byte{0x80}, 300), 0, uint64(3))
	f.Add([]byte("\xf0\x9f\x98\n\xf0"), -1, uint64(4))
	f.Fuzz(func(t *testing.T, text []byte, max int, seed uint64) {
		s := &Splitter{Max: max & 0xff}
		r := rand.New(rand.NewPCG(seed, 0))
		lines := split(t, s, text, func(left int) int { return 1 + r.IntN(left) })
		if got := strings.Join(lines, ""); got != string(text) {
			t.Fatalf("%q became %q", text, lines)
		}
		for i, l := range lines {
			body := strings.TrimSuffix(l, "\n")
			if strings.Contains(body, "\n") || len(body) > s.max() {
				t.Fatalf("%q is not a line of at most %d bytes", l, s.max())
			}
			if utf8.Valid(text) && !utf8.ValidString(l) {
				t.Fatalf("%q cuts a character", l)
			}
			if l == body && i < len(lines)-1 && len(l) <= s.max()-utf8.UTFMax {
				t.Fatalf("%q of %q need not have been cut", l, lines)
			}
		}
	})
}
