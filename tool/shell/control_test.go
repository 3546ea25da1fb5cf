package shell

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestRecordsAreReadHoweverTheyArrive(t *testing.T) {
	const stream = "H12 12\x00R3 4 5 6\x00/a\nb\n\x00M\x00" + "noise\x00\x00\x01\x00" +
		"X7\x00/d\n\x00v\x00f\x00a\x00u\x00t\x00o\x00S\x00\x00\x00\x00\x00\x00\x00\x00"
	want := []record{
		{kind: 'H', head: "12 12"},
		{kind: 'R', head: "3 4 5 6", fields: []string{"/a\nb\n"}},
		{kind: 'M'},
		{kind: 'X', head: "7", fields: []string{"/d\n", "v", "f", "a", "u", "t", "o"}},
		{kind: 'S', fields: []string{"", "", "", "", "", "", ""}},
	}
	for size := 1; size <= len(stream); size++ {
		var p parser
		var got []record
		for b := range slices.Chunk([]byte(stream), size) {
			p.feed(b, func(r record) { got = append(got, r) })
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("in pieces of %d: %+v", size, got)
		}
	}
	if id, status, jobs, ok := want[1].ended(); id != 3 || status != 4 || !slices.Equal(jobs, []int{5, 6}) || !ok {
		t.Error(id, status, jobs, ok)
	}
}

func TestARecordMayBreakOff(t *testing.T) {
	const last = "\x00\x00\x00\x00\x00\x00\x00\x00\x00X7\x00/d\n\x00v\x00f\x00a\x00u\x00t\x00o\x00"
	const first = "R1 0 \x00/dir\n\x00S\x00/d\n\x00v\x00f\x00a\x00u\x00t\x00o\x00"
	for i := range len(first) {
		var p parser
		var got record
		p.feed([]byte(first[:i]+last), func(r record) { got = r })
		if got.kind != 'X' || got.head != "7" || len(got.fields) != 7 || got.fields[6] != "o" {
			t.Errorf("after %q: %+v", first[:i], got)
		}
	}
}

func TestAStateThatIsTooLargeIsCut(t *testing.T) {
	var p parser
	var got []record
	long := strings.Repeat("x", maxState)
	p.feed([]byte("S\x00/\x00"+long+"\x00"+long+"\x00a\x00u\x00t\x00o\x00R1 2\x00/\x00"), func(r record) { got = append(got, r) })
	if len(got) != 2 || !got[0].cut || got[1].cut || got[1].kind != 'R' {
		t.Errorf("%d records", len(got))
	}
	if cap(p.field) > 1<<16 {
		t.Errorf("keeps %d bytes", cap(p.field))
	}
}

func FuzzControl(f *testing.F) {
	f.Add([]byte("R3 4 5 6\x00/a\x00X7\x00/d\n\x00v\x00f\x00a\x00u\x00t\x00o\x00"), 3)
	f.Add([]byte("\x00\x00R\x00\x00H\x00S\x00"), 1)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		var whole, parts parser
		var all, got []record
		whole.feed(b, func(r record) { all = append(all, r) })
		for c := range slices.Chunk(b, max(1, size)) {
			parts.feed(c, func(r record) { got = append(got, r) })
		}
		if !reflect.DeepEqual(all, got) {
			t.Errorf("whole %+v, in parts %+v", all, got)
		}
		for _, r := range all {
			if n, ok := kinds[r.kind]; !ok || len(r.fields) != n {
				t.Errorf("%+v has %d fields", r, len(r.fields))
			}
			r.ended()
			if len(r.fields) == stateFields {
				for _, d := range []*dialect{bash, posix} {
					d.restore(r.state(), nil)
				}
			}
		}
	})
}

// FuzzWord holds back no more than it must, and loses nothing: what comes
// before the word is the command's, what follows is not.
func FuzzWord(f *testing.F) {
	f.Add("out", "late", 1)
	f.Add("\x1e\x1eW\x1eWO", "\x1eWORD", 2)
	f.Fuzz(func(t *testing.T, out, late string, size int) {
		const word = "\x1eWORD"
		if strings.Contains(out, word) {
			return
		}
		var l live
		c := newCommand(Command{}, 1<<20)
		var mine strings.Builder
		c.readers = []*reader{{stdout: &mine}}
		l.ready = make(chan struct{}, 1)
		l.cur, l.nonce = c, []byte(word)
		l.seen[1], l.ended = true, true
		s := &stream{live: &l}
		for b := range slices.Chunk([]byte(out+word+late), max(1, size)) {
			if n, err := s.Write(b); n != len(b) || err != nil {
				t.Fatal(n, err)
			}
			if len(s.held) >= len(word) {
				t.Fatalf("holds %q back", s.held)
			}
		}
		// out may end with a beginning of the word
		if i := strings.Index(out+word, word); mine.String() != out[:min(i, len(out))] {
			t.Errorf("got %q of %q", mine.String(), out)
		}
		select {
		case <-l.ready:
		default:
			t.Error("the end was not seen")
		}
		if got := c.out.end; got != int64(len(out)+len(late)) {
			t.Errorf("kept %d bytes of %q and %q", got, out, late)
		}
	})
}

func TestEntriesAreTakenApartOutsideQuotes(t *testing.T) {
	got := entries("a='1'\nb='x\ny'\"'\"'z\n'\n\nc=\"q\n\"\nd=\\'\ne=1")
	want := []string{"a='1'", "b='x\ny'\"'\"'z\n'", "c=\"q\n\"", "d=\\'", "e=1"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestARingKeepsTheLastBytes(t *testing.T) {
	r := ring{max: 200}
	var all strings.Builder
	for i := range 300 {
		p := strings.Repeat(string(rune('a'+i%26)), i%7)
		r.add(i%3 == 0, []byte(p))
		all.WriteString(p)
		if r.size > r.max || len(r.chunks) > r.max/64+1 {
			t.Fatalf("%d bytes in %d chunks", r.size, len(r.chunks))
		}
		o := r.read(0, 1000)
		var got strings.Builder
		for _, c := range o.Chunks {
			got.Write(c.Data)
		}
		if o.Next != int64(all.Len()) || got.String() != all.String()[o.Dropped:] {
			t.Fatalf("after %d: %+v", i, o)
		}
	}
	r.add(false, []byte(strings.Repeat("x", 1000)))
	if o := r.read(r.end-5, 3); len(o.Chunks) != 1 || string(o.Chunks[0].Data) != "xxx" || o.Next != r.end-2 || o.Dropped != 0 {
		t.Errorf("%+v", o)
	}
	if o := r.read(r.end+5, 3); len(o.Chunks) != 0 || o.Next != r.end {
		t.Errorf("%+v", o)
	}
}
