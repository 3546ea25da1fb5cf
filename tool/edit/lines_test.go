package edit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/edit"
)

func TestLines(t *testing.T) {
	sb := newBox(t, map[string]string{"/f": "one\ntwo\r\n\nfour", "/end": "a\nb\n", "/empty": "", "/nl": "\n", "/nul": "a\x00\n"})
	for _, c := range []struct {
		path              string
		opt               edit.LinesOptions
		want              string
		first, last, next int64
		total             int64
		cut               edit.Cut
	}{
		{"/f", edit.LinesOptions{}, "one\ntwo\r\n\nfour", 1, 4, 0, 4, ""},
		{"/f", edit.LinesOptions{From: 2, To: 3}, "two\r\n\n", 2, 3, 0, -1, ""},
		{"/f", edit.LinesOptions{From: 2, To: 3, Count: true}, "two\r\n\n", 2, 3, 0, 4, ""},
		{"/f", edit.LinesOptions{From: 4}, "four", 4, 4, 0, 4, ""},
		{"/f", edit.LinesOptions{From: 5}, "", 0, 0, 0, 4, ""},
		{"/f", edit.LinesOptions{To: 4}, "one\ntwo\r\n\nfour", 1, 4, 0, 4, ""},
		{"/f", edit.LinesOptions{MaxLines: 2}, "one\ntwo\r\n", 1, 2, 3, -1, edit.CutLines},
		{"/f", edit.LinesOptions{MaxLines: 4}, "one\ntwo\r\n\nfour", 1, 4, 0, 4, ""},
		{"/f", edit.LinesOptions{From: 2, MaxLines: 1, To: 2}, "two\r\n", 2, 2, 0, -1, ""},
		{"/f", edit.LinesOptions{MaxBytes: 8}, "one\n", 1, 1, 2, -1, edit.CutBytes},
		{"/f", edit.LinesOptions{MaxBytes: 9}, "one\ntwo\r\n", 1, 2, 3, -1, edit.CutBytes},
		{"/f", edit.LinesOptions{MaxBytes: 9, Count: true}, "one\ntwo\r\n", 1, 2, 3, 4, edit.CutBytes},
		{"/f", edit.LinesOptions{From: 4, MaxBytes: 4}, "four", 4, 4, 0, 4, ""},
		{"/end", edit.LinesOptions{}, "a\nb\n", 1, 2, 0, 2, ""},
		{"/end", edit.LinesOptions{MaxBytes: 4}, "a\nb\n", 1, 2, 0, 2, ""},
		{"/empty", edit.LinesOptions{}, "", 0, 0, 0, 0, ""},
		{"/nl", edit.LinesOptions{}, "\n", 1, 1, 0, 1, ""},
	} {
		got, err := edit.Lines(t.Context(), sb, c.path, c.opt)
		if err != nil {
			t.Errorf("%s %+v: %v", c.path, c.opt, err)
			continue
		}
		if string(got.Content) != c.want || got.First != c.first || got.Last != c.last || got.Next != c.next || got.Total != c.total || got.Cut != c.cut || got.Long != nil {
			t.Errorf("%s %+v: got %q, %+v", c.path, c.opt, got.Content, got)
		}
	}
	b, err := edit.Lines(t.Context(), sb, "/nul", edit.LinesOptions{})
	if ok(t, err); !b.Binary || string(b.Content) != "a\x00\n" || b.Info.Size != 3 {
		t.Errorf("binary: %+v", b)
	}
	for _, c := range []struct {
		opt   edit.LinesOptions
		field string
	}{
		{edit.LinesOptions{From: -1}, "from"}, {edit.LinesOptions{From: 3, To: 2}, "from"}, {edit.LinesOptions{To: -1}, "to"},
		{edit.LinesOptions{MaxLines: -1}, "max_lines"}, {edit.LinesOptions{MaxBytes: -1}, "max_bytes"}, {edit.LinesOptions{MaxLine: -1}, "max_line"},
	} {
		_, err := edit.Lines(t.Context(), sb, "/f", c.opt)
		wants(t, err, sandbox.Invalid, c.field)
	}
	_, err = edit.Lines(t.Context(), sb, "/none", edit.LinesOptions{})
	wants(t, err, sandbox.NotExist, "path")
	_, err = edit.Lines(t.Context(), sb, "/tmp", edit.LinesOptions{})
	wants(t, err, sandbox.Invalid, "path")
}

func TestLongLinesAreCutAndSaidToBe(t *testing.T) {
	long := strings.Repeat("é", 100_000)
	sb := newBox(t, map[string]string{"/f": "a\nx" + long + "\nb\n" + long})
	got, err := edit.Lines(t.Context(), sb, "/f", edit.LinesOptions{MaxLine: 10})
	ok(t, err)
	if want := "a\nxéééé\nb\nééééé"; string(got.Content) != want || got.Cut != "" || got.Total != 4 {
		t.Errorf("got %q, %+v", got.Content, got)
	}
	same(t, "long", got.Long, []int64{2, 4})

	got, err = edit.Lines(t.Context(), sb, "/f", edit.LinesOptions{From: 2, MaxBytes: 1000})
	if ok(t, err); len(got.Content) != 1000 || got.Content[999] != 0x0a || got.Cut != edit.CutBytes || got.Next != 3 || got.Last != 2 {
		t.Errorf("the first line: %d bytes, %+v", len(got.Content), got)
	}
	got, err = edit.Lines(t.Context(), sb, "/f", edit.LinesOptions{From: 4, MaxBytes: 1000})
	if ok(t, err); len(got.Content) != 1000 || got.Next != 0 || got.Total != 4 || len(got.Long) != 1 {
		t.Errorf("the last line: %d bytes, %+v", len(got.Content), got)
	}
}

func TestLinesTime(t *testing.T) {
	text := strings.Repeat("x\n", 100_000)
	synctest.Test(t, func(t *testing.T) {
		sb := odd{Sandbox: newBox(t, map[string]string{"/f": text}), read: func() { time.Sleep(time.Second) }}
		got, err := edit.Lines(t.Context(), sb, "/f", edit.LinesOptions{From: 99_999, Time: 1500 * time.Millisecond})
		if ok(t, err); got.Cut != edit.CutTime || len(got.Content) > 0 || got.Total != -1 {
			t.Errorf("%+v", got)
		}
	})
}

func TestTail(t *testing.T) {
	var b strings.Builder
	for i := 1; i <= 50_000; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	sb := newBox(t, map[string]string{"/f": b.String(), "/short": "a\nb\nc", "/empty": "", "/one": strings.Repeat("x", 200<<10), "/blank": "\n\n"})
	for _, c := range []struct {
		path        string
		n           int
		most        int
		want        string
		first, last int64
		cut         edit.Cut
	}{
		{"/f", 2, 0, "line 49999\nline 50000\n", 0, 0, ""},
		{"/f", 2, 22, "line 49999\nline 50000\n", 0, 0, ""},
		{"/f", 2, 21, "line 50000\n", 0, 0, edit.CutBytes},
		{"/f", 2, 11, "line 50000\n", 0, 0, edit.CutBytes},
		{"/f", 2, 5, "0000\n", 0, 0, edit.CutBytes},
		{"/f", 50_000, 0, b.String(), 1, 50_000, ""},
		{"/f", 20_000, 0, b.String()[strings.Index(b.String(), "line 30001\n"):], 0, 0, ""},
		{"/short", 2, 0, "b\nc", 2, 3, ""},
		{"/short", 3, 0, "a\nb\nc", 1, 3, ""},
		{"/short", 9, 5, "a\nb\nc", 1, 3, ""},
		{"/short", 9, 4, "b\nc", 0, 0, edit.CutBytes},
		{"/empty", 3, 0, "", 0, 0, ""},
		{"/blank", 1, 0, "\n", 2, 2, ""},
		{"/one", 1, 1000, strings.Repeat("x", 1000), 0, 0, edit.CutBytes},
		{"/one", 1, 0, strings.Repeat("x", 200<<10), 1, 1, ""},
	} {
		got, err := edit.Tail(t.Context(), sb, c.path, c.n, edit.TailOptions{MaxBytes: c.most})
		ok(t, err)
		if string(got.Content) != c.want || got.First != c.first && got.Total < 0 || got.Cut != c.cut {
			t.Errorf("%s %d %d: got %.60q (%d bytes), %d to %d, cut %q", c.path, c.n, c.most, got.Content, len(got.Content), got.First, got.Last, got.Cut)
		}
	}
	_, err := edit.Tail(t.Context(), sb, "/f", 0, edit.TailOptions{})
	wants(t, err, sandbox.Invalid, "lines")
}

// Head, tail and the middle agree with splitting the text.
func TestLinesAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		var lines []string
		for range r.IntN(40) {
			lines = append(lines, strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(5)*r.IntN(8_000))+"\n")
		}
		if n := len(lines); n > 0 && r.IntN(2) == 0 && lines[n-1] != "\n" {
			lines[n-1] = strings.TrimSuffix(lines[n-1], "\n")
		}
		sb := newBox(t, map[string]string{"/f": strings.Join(lines, "")})
		from, to := 1+r.IntN(45), 1+r.IntN(45)
		if from > to {
			from, to = to, from
		}
		got, err := edit.Lines(t.Context(), sb, "/f", edit.LinesOptions{From: int64(from), To: int64(to), Count: true, MaxBytes: 1 << 30})
		ok(t, err)
		want := strings.Join(lines[min(from-1, len(lines)):min(to, len(lines))], "")
		if string(got.Content) != want || got.Total != int64(len(lines)) {
			t.Fatalf("lines %d to %d of %d: got %d bytes, want %d; %d lines", from, to, len(lines), len(got.Content), len(want), got.Total)
		}
		n := 1 + r.IntN(45)
		got, err = edit.Tail(t.Context(), sb, "/f", n, edit.TailOptions{MaxBytes: 1 << 30})
		ok(t, err)
		if want := strings.Join(lines[max(0, len(lines)-n):], ""); string(got.Content) != want {
			t.Fatalf("the last %d of %d: got %d bytes, want %d", n, len(lines), len(got.Content), len(want))
		}
		// By pages, everything comes once.
		var all []byte
		for next := int64(1); next > 0; {
			got, err := edit.Lines(t.Context(), sb, "/f", edit.LinesOptions{From: next, MaxLines: 3, MaxBytes: 50_000})
			ok(t, err)
			all = append(all, got.Content...)
			next = got.Next
		}
		if !slices.Equal(all, []byte(strings.Join(lines, ""))) {
			t.Fatalf("by pages: got %d bytes", len(all))
		}
	}
}

func TestBytes(t *testing.T) {
	sb := newBox(t, map[string]string{"/f": "0123456789"})
	for _, c := range []struct {
		off  int64
		max  int
		want string
	}{{0, 4, "0123"}, {8, 4, "89"}, {20, 4, ""}, {-3, 2, "78"}} {
		b, info, err := edit.Bytes(t.Context(), sb, "/f", c.off, c.max)
		if ok(t, err); string(b) != c.want || info.Size != 10 {
			t.Errorf("%+v: got %q of %d", c, b, info.Size)
		}
	}
	_, _, err := edit.Bytes(t.Context(), sb, "/f", 0, 0)
	wants(t, err, sandbox.Invalid, "max_bytes")
}
