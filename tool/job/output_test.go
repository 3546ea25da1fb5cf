package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

func joined(cs []sandbox.Chunk, s Stream) []byte {
	var b []byte
	for _, c := range cs {
		if s.has(&c) {
			b = append(b, c.Data...)
		}
	}
	return b
}

// TestOutputByCursorIsExact: whatever pieces are asked for, and whenever,
// together they are what was written.
func TestOutputByCursorIsExact(t *testing.T) {
	for seed := range uint64(20) {
		inPlace(t, Config{}, func(p *place) {
			r := rand.New(rand.NewPCG(seed, 2))
			n := r.IntN(60_000)
			p.start(Spec{Name: "x", Cmd: sandbox.Cmd{Args: []string{"mix", fmt.Sprint(n), fmt.Sprint(seed)}}})
			want := mixed(n, seed)
			for _, s := range []Stream{Both, Stdout, Stderr} {
				var got []byte
				q := Query{Stream: s}
				for {
					q.Max, q.Wait = 1+r.IntN(3000), time.Duration(r.IntN(2))*time.Second
					o, err := p.tab.Output(p.ctx, p.sb, ByName("x"), q)
					if err != nil {
						t.Fatal(err)
					}
					piece := joined(o.Chunks, Both)
					if len(piece) > q.Max || len(piece) != len(joined(o.Chunks, s)) || o.Dropped != 0 {
						t.Fatalf("at most %d bytes of stream %d: %d bytes, %d dropped", q.Max, s, len(piece), o.Dropped)
					}
					if o.Next < q.Cursor+int64(len(piece)) {
						t.Fatalf("%d bytes from %d lead to %d", len(piece), q.Cursor, o.Next)
					}
					got = append(got, piece...)
					if q.Cursor = o.Next; o.Exit != nil {
						break
					}
				}
				if !bytes.Equal(got, joined(want, s)) {
					t.Errorf("seed %d, stream %d: %d bytes came, %d were written", seed, s, len(got), len(joined(want, s)))
				}
			}
			// Any cursor whatever gives what lies there.
			all := joined(want, Both)
			for range 20 {
				at := r.IntN(n + 1)
				o, err := p.tab.Output(p.ctx, p.sb, ByName("x"), Query{Cursor: int64(at), Max: 100})
				if err != nil || !bytes.Equal(joined(o.Chunks, Both), all[at:min(n, at+100)]) && o.Next-int64(at) == 100 {
					t.Errorf("at %d: %d bytes, %v", at, len(o.Chunks), err)
				}
			}
		})
	}
}

func TestOutputWaitsForItsStreamAlone(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "for i in 1 2 3; do sleep 10; echo noise; done; echo late >&2; sleep 100"))
		began := time.Now()
		o, err := p.tab.Output(p.ctx, p.sb, ByName("x"), Query{Stream: Stderr, Wait: 25 * time.Second})
		if err != nil || len(o.Chunks) != 0 || o.Next != 12 || o.Exit != nil || time.Since(began) != 25*time.Second {
			t.Errorf("%+v, %v after %v", o, err, time.Since(began))
		}
		o, err = p.tab.Output(p.ctx, p.sb, ByName("x"), Query{Stream: Stderr, Cursor: o.Next, Wait: time.Minute})
		if err != nil || string(joined(o.Chunks, Both)) != "late\n" || o.Next != 23 || time.Since(began) != 30*time.Second {
			t.Errorf("%+v, %v after %v", o, err, time.Since(began))
		}
		// Without waiting, what is there of the other stream is passed over.
		o, err = p.tab.Output(p.ctx, p.sb, ByName("x"), Query{Stream: Stderr})
		if err != nil || string(joined(o.Chunks, Both)) != "late\n" {
			t.Errorf("%+v, %v", o, err)
		}
		for _, q := range []Query{{Cursor: -1}, {Cursor: 24}, {Max: -1}, {Stream: 3}} {
			if _, err := p.tab.Output(p.ctx, p.sb, ByName("x"), q); sandbox.KindOf(err) != sandbox.Invalid {
				t.Errorf("%+v: %v", q, err)
			}
		}
	})
}

func TestWhatTheRingDroppedIsTold(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		s := sh("x", "i=0; while [ $i -lt 1000 ]; do printf '%099d\\n' $i; i=$((i+1)); done")
		s.Ring = 10_000
		p.start(s)
		p.wait(ByName("x"))
		for _, s := range []Stream{Both, Stdout} {
			o, err := p.tab.Output(p.ctx, p.sb, ByName("x"), Query{Stream: s, Max: 1 << 20})
			if n := int64(len(joined(o.Chunks, Both))); err != nil || n == 0 || o.Dropped+n != 100_000 || o.Next != 100_000 {
				t.Errorf("%d bytes, %d dropped, next %d, %v", n, o.Dropped, o.Next, err)
			}
		}
		if i := p.get(ByName("x")); i.Cursor != 100_000 || i.Dropped != 90_000 {
			t.Errorf("Info says %+v", i)
		}
	})
}

func TestAnyNumberMayFollow(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "for i in 1 2 3; do echo $i; sleep 100; done; echo err >&2; exit 2"))
		synctest.Wait()
		type end struct {
			text string
			exit *sandbox.Exit
			err  error
		}
		ends := make(chan end, 4)
		for _, from := range []int64{0, 0, -1} {
			go func() {
				var e end
				for o, err := range p.tab.Follow(p.ctx, p.sb, ByName("x"), from) {
					e.text += string(joined(o.Chunks, Both))
					e.exit, e.err = o.Exit, err
				}
				ends <- e
			}()
		}
		texts := map[string]int{}
		for range 3 {
			e := <-ends
			if e.err != nil || e.exit == nil || e.exit.Code != 2 {
				t.Errorf("it ended with %+v", e)
			}
			texts[e.text]++
		}
		if texts["1\n2\n3\nerr\n"] != 2 || texts["2\n3\nerr\n"] != 1 {
			t.Errorf("they saw %v", texts)
		}
		ctx, cancel := context.WithCancel(p.ctx)
		p.start(sh("y", "sleep 1000"))
		go cancel()
		for _, err := range p.tab.Follow(ctx, p.sb, ByName("y"), 0) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("with the context it ended with %v", err)
			}
		}
		for _, err := range p.tab.Follow(p.ctx, p.sb, ByName("y"), 1) {
			p.kind("Follow from the future", err, sandbox.Invalid, "cursor")
		}
	})
}

func TestStderrPreviewIsBounded(t *testing.T) {
	inPlace(t, Config{Preview: 40}, func(p *place) {
		s := sh("x", "while read -r a b; do if [ $a = e ]; then echo \"$b\" >&2; else echo \"$b\"; fi; done")
		s.Ring = 1000
		p.start(s)
		want := func(what, text string) {
			t.Helper()
			synctest.Wait()
			if i := p.get(ByName("x")); i.Stderr != text {
				t.Errorf("%s: the preview is %q, want %q", what, i.Stderr, text)
			}
		}
		want("at first", "")
		p.input(ByName("x"), "o out\n")
		want("after output", "")
		p.input(ByName("x"), "e one\no out\ne two\n")
		want("after two lines", "one\ntwo\n")
		p.input(ByName("x"), "e "+strings.Repeat("é", 60)+"\n")
		want("after many characters", strings.Repeat("é", 39)+"\n")
		p.input(ByName("x"), strings.Repeat("o "+strings.Repeat("x", 99)+"\n", 9))
		want("after much output", strings.Repeat("é", 39)+"\n")
		p.input(ByName("x"), "e last\n")
		want("again", strings.Repeat("é", 34)+"\nlast\n")
		for _, i := range p.list(p.tab) {
			if i.Stderr != "" {
				t.Errorf("List has %q", i.Stderr)
			}
		}
		// Another Table sees what the ring has.
		i, err := newTable(t, Config{Preview: 3}).Get(p.ctx, p.sb, ByName("x"))
		if err != nil || i.Stderr != "st\n" {
			t.Errorf("another Table has %q, %v", i.Stderr, err)
		}
		i, err = newTable(t, Config{Preview: -1}).Get(p.ctx, p.sb, ByName("x"))
		if err != nil || i.Stderr != "" {
			t.Errorf("one that wants none has %q, %v", i.Stderr, err)
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("plain"), 3)
	f.Add([]byte("\x80\x80\x80é\xff\xf0\x9f"), 4)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n &= 0xff
		s := text(b, n)
		if !utf8.ValidString(s) || utf8.RuneCountInString(s) > n {
			t.Fatalf("%q of at most %d characters", s, n)
		}
		if utf8.Valid(b) && !strings.HasSuffix(string(b), s) {
			t.Fatalf("%q is not the end of %q", s, b)
		}
	})
}
