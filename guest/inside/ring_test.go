package inside

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/guest/proto"
)

// readRing reads all that r has from cursor on, in pieces of max bytes.
func readRing(t *testing.T, r *ring, cursor int64, max int) (out, errs []byte, dropped int64, ended bool) {
	t.Helper()
	for {
		a := r.read(context.Background(), cursor, max, 0)
		dropped += a.Dropped
		n := cursor + a.Dropped
		for _, c := range a.Chunks {
			n += int64(len(c.Data))
			if c.Stderr {
				errs = append(errs, c.Data...)
			} else {
				out = append(out, c.Data...)
			}
		}
		if n != a.Next {
			t.Fatalf("from %d it has %d bytes and dropped %d, and goes on at %d", cursor, n-cursor-a.Dropped, a.Dropped, a.Next)
		}
		if a.Next == cursor || a.Ended {
			return out, errs, dropped, a.Ended
		}
		cursor = a.Next
	}
}

func TestRingKeepsTheLastOfBothStreams(t *testing.T) {
	r := newRing(1 << 20)
	var want [2]bytes.Buffer
	for i := range 1000 {
		b := bytes.Repeat([]byte{byte(i)}, i%300)
		r.add(i%3 == 0, b)
		w := &want[0]
		if i%3 == 0 {
			w = &want[1]
		}
		w.Write(b)
	}
	for _, max := range []int{1, 7, 4096, 1 << 20} {
		out, errs, dropped, ended := readRing(t, r, 0, max)
		if !bytes.Equal(out, want[0].Bytes()) || !bytes.Equal(errs, want[1].Bytes()) || dropped != 0 || ended {
			t.Errorf("by %d: %d and %d bytes, dropped %d, ended %v", max, len(out), len(errs), dropped, ended)
		}
	}
	r.end()
	if _, _, _, ended := readRing(t, r, 0, 100); !ended {
		t.Error("it does not say that it has ended")
	}
	if a := r.read(context.Background(), 1<<40, 10, 0); a.Next != r.next || len(a.Chunks) != 0 || !a.Ended {
		t.Errorf("past the end it is %+v", a)
	}
}

func TestRingIsBoundedWhateverComes(t *testing.T) {
	const size = 64 << 10
	for name, step := range map[string]int{"bytes of changing streams": 1, "lines": 80, "more than it holds": 3 * size} {
		r := newRing(size)
		var total int64
		b := bytes.Repeat([]byte("x"), step)
		for i := 0; total < 10*size; i++ {
			r.add(i%2 == 0, b)
			total += int64(step)
			held := 0
			for _, p := range r.pieces {
				held += cap(p.Data) + overhead
			}
			if held > 2*size+2*block || r.used > size {
				t.Fatalf("%s: it holds %d bytes and counts %d", name, held, r.used)
			}
		}
		_, _, dropped, _ := readRing(t, r, 0, 1000)
		if next, gone := r.state(); next != total || gone != dropped || dropped == 0 {
			t.Errorf("%s: of %d bytes it tells of %d, %d gone, %d dropped", name, total, next, gone, dropped)
		}
	}
}

func TestRingWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRing(1 << 20)
		got := make(chan *proto.Outputs, 3)
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			go func() { got <- r.read(ctx, 0, 10, time.Hour) }()
		}
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("it returned without anything to tell")
		}
		r.add(false, []byte("x"))
		for range 3 {
			if a := <-got; a.Next != 1 || len(a.Chunks) != 1 {
				t.Errorf("got %+v", a)
			}
		}
		began := time.Now()
		if a := r.read(ctx, 1, 10, time.Minute); len(a.Chunks) != 0 || time.Since(began) != time.Minute {
			t.Errorf("waited %v for %+v", time.Since(began), a)
		}
		go func() { got <- r.read(ctx, -1, 10, time.Hour) }()
		synctest.Wait()
		cancel()
		if a := <-got; a.Next != 1 || a.Ended {
			t.Errorf("cancelled it is %+v", a)
		}
		go func() { got <- r.read(context.Background(), 1, 10, time.Hour) }()
		synctest.Wait()
		r.end()
		if a := <-got; !a.Ended {
			t.Errorf("at the end it is %+v", a)
		}
	})
}

// FuzzRing plays a program of writes and compares with the plain text.
func FuzzRing(f *testing.F) {
	f.Add(uint16(4096), []byte("\x01abc\x02def\xffxyz"), uint8(5))
	f.Fuzz(func(t *testing.T, size uint16, program []byte, max uint8) {
		r := newRing(int(size))
		var order []byte
		var streams []bool
		for len(program) > 0 {
			n := min(int(program[0])*16, len(program)*97)
			b := bytes.Repeat(program[:1], n)
			r.add(program[0]&1 == 1, b)
			for range b {
				streams = append(streams, program[0]&1 == 1)
			}
			order = append(order, b...)
			program = program[1:]
		}
		next, start := r.state()
		if next != int64(len(order)) || start > next || r.used > r.size {
			t.Fatalf("%d bytes in, %d to %d kept, %d of %d used", len(order), start, next, r.used, r.size)
		}
		for cursor := int64(0); cursor < next; {
			a := r.read(context.Background(), cursor, int(max)+1, 0)
			at := cursor + a.Dropped
			for _, c := range a.Chunks {
				for _, x := range c.Data {
					if order[at] != x || streams[at] != c.Stderr {
						t.Fatalf("byte %d is %x of stderr %v", at, x, c.Stderr)
					}
					at++
				}
			}
			if at != a.Next || a.Next <= cursor {
				t.Fatalf("from %d to %d it has %d bytes", cursor, a.Next, at-cursor)
			}
			cursor = a.Next
		}
	})
}
