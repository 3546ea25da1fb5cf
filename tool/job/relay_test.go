package job

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

func (p *place) attach(name string, a Attachment) *Relay {
	p.Helper()
	r, err := p.tab.Attach(p.ctx, p.sb, ByName(name), a)
	if err != nil {
		p.Fatalf("Attach to %q: %v", name, err)
	}
	p.Cleanup(func() { r.Close() })
	return r
}

// next returns the next piece in words: "out:…", "err:…", "part:…", "gap:N",
// or the error.
func (p *place) next(r *Relay) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 100*24*time.Hour)
	defer cancel()
	piece, err := r.Next(ctx)
	return said(piece, err)
}

func said(p Piece, err error) string {
	switch {
	case err == io.EOF:
		return "EOF"
	case err != nil:
		return "error:" + string(sandbox.KindOf(err))
	case p.Dropped > 0:
		return fmt.Sprintf("gap:%d", p.Dropped)
	case p.Stderr:
		return "err:" + string(p.Data)
	case p.Partial:
		return "part:" + string(p.Data)
	}
	return "out:" + string(p.Data)
}

func (p *place) expect(r *Relay, want ...string) {
	p.Helper()
	for _, w := range want {
		if got := p.next(r); got != w {
			p.Fatalf("the next is %q, want %q", got, w)
		}
	}
}

func (p *place) write(r *Relay, text string) {
	p.Helper()
	if n, err := r.Write(p.ctx, []byte(text)); n != len(text) || err != nil {
		p.Fatalf("Write of %q: %d, %v", text, n, err)
	}
	synctest.Wait()
}

// echo prints each line that it reads, those that begin with ! as errors.
const echo = "while IFS= read -r x; do case $x in !*) echo \"$x\" >&2;; *) echo \"$x\";; esac; done; echo over; exit 3"

func TestARelayCarriesBothWays(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "echo hello; "+echo))
		synctest.Wait()
		r := p.attach("x", Attachment{})
		p.expect(r, "out:hello\n") // what came before anybody was there
		p.write(r, "one\n")
		p.expect(r, "out:one\n")
		p.write(r, "!not for the relay\n")
		p.write(r, "two\nthree\n")
		p.expect(r, "out:two\nthree\n")
		if !p.get(ByName("x")).Attached {
			t.Error("it does not look attached")
		}
		if err := r.CloseInput(p.ctx); err != nil {
			t.Error(err)
		}
		p.expect(r, "out:over\n", "EOF", "EOF")
		if e, ok := r.Exit(); !ok || e.Code != 3 {
			t.Errorf("Exit: %+v, %v", e, ok)
		}
		if p.get(ByName("x")).Attached {
			t.Error("it looks attached after its end")
		}
		_, err := r.Write(p.ctx, []byte("x"))
		p.kind("Write after the end", err, sandbox.Conflict, "")
		if err := r.CloseInput(p.ctx); err != nil {
			t.Errorf("CloseInput after the end: %v", err)
		}
		r2 := p.attach("x", Attachment{From: Beginning}) // to one that has ended
		p.expect(r2, "out:hello\none\n", "out:two\nthree\nover\n", "EOF")
	})
}

func TestErrorOutputIsKeptApart(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", echo))
		r := p.attach("x", Attachment{Stderr: true, Lines: 1000})
		p.write(r, "one\n!oops\ntwo\n")
		p.expect(r, "out:one", "err:!oops\n", "out:two")
	})
}

func TestReattachContinuesWhereTheLastReaderStopped(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", echo))
		r := p.attach("x", Attachment{Lines: 1000})
		p.write(r, "one\ntwo\nthree\n")
		p.expect(r, "out:one", "out:two", "out:three")
		r.Close() // three was not acknowledged
		if i := p.get(ByName("x")); i.Attached || i.Read != 8 || !i.Running() {
			t.Errorf("in between it is %+v", i)
		}
		p.input(ByName("x"), "four\n") // while nobody is there
		synctest.Wait()
		r = p.attach("x", Attachment{Lines: 1000})
		p.expect(r, "out:three", "out:four")
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		if _, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Next: %v", err)
		}
		p.write(r, "five\n") // a Next that was given up changes nothing
		p.expect(r, "out:five")
		r.Close()
		for from, want := range map[Position]string{Beginning: "out:one", Continue: "out:five"} {
			r := p.attach("x", Attachment{From: from, Lines: 1000})
			p.expect(r, want)
			r.Close()
			// Not acknowledged, so the others begin where they would have.
		}
		r = p.attach("x", Attachment{From: At, Cursor: 4, Lines: 1000})
		p.expect(r, "out:two")
		r.Close()
		r = p.attach("x", Attachment{From: Now, Lines: 1000})
		p.write(r, "six\n")
		p.expect(r, "out:six")
	})
}

func TestReattachBeginsWithAWholeLine(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "printf 'one\\ntw'; read x; printf 'err\\n' >&2; printf 'o\\nthree'; read x; echo ' and a half'; printf end"))
		synctest.Wait()
		r := p.attach("x", Attachment{Lines: 1000})
		p.expect(r, "out:one")
		short, cancel := context.WithTimeout(p.ctx, time.Second)
		defer cancel()
		r.Next(short) // it holds "tw" now
		r.Close()
		r = p.attach("x", Attachment{Lines: 1000})
		p.write(r, "\n")
		p.expect(r, "out:two")
		short, cancel = context.WithTimeout(p.ctx, time.Second)
		defer cancel()
		r.Next(short)
		r.Close()
		p.input(ByName("x"), "\n")
		r = p.attach("x", Attachment{Lines: 1000})
		p.expect(r, "out:three and a half", "part:end", "EOF")
	})
}

func TestASlowReaderLosesNothingItIsToldSo(t *testing.T) {
	for _, lines := range []int{0, 1000} {
		inPlace(t, Config{}, func(p *place) {
			s := sh("x", "i=0; while [ $i -lt 100 ]; do printf '%099d\\n' $i; i=$((i+1)); done; sleep 100; i=0; while [ $i -lt 100 ]; do printf '%098d+\\n' $i; i=$((i+1)); done")
			s.Ring = 5050
			p.start(s)
			r := p.attach("x", Attachment{Lines: lines})
			synctest.Wait()
			var got strings.Builder
			var dropped int64
			gaps := 0
			for n := 0; ; n++ {
				if n == 3 {
					time.Sleep(time.Hour)
				}
				piece, err := r.Next(p.ctx)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if lines > 0 && piece.Dropped == 0 && (len(piece.Data) != 99 || piece.Partial) {
					t.Errorf("a torn line came: %q", piece.Data)
				}
				if piece.Dropped > 0 {
					gaps++
				}
				dropped += piece.Dropped
				got.Write(piece.Data)
				if lines > 0 && piece.Dropped == 0 {
					got.WriteByte('\n')
				}
			}
			if int64(got.Len())+dropped != 20_000 || dropped == 0 || gaps == 0 {
				t.Errorf("%d bytes came and %d were said to be dropped, of 20000", got.Len(), dropped)
			}
			if !strings.HasSuffix(got.String(), "99+\n") {
				t.Error("the last line is not there")
			}
		})
	}
}

func TestOneReaderAtATime(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", echo))
		p.start(sh("y", echo))
		first := p.attach("x", Attachment{})
		p.attach("y", Attachment{}) // one per job
		_, err := p.tab.Attach(p.ctx, p.sb, ByName("x"), Attachment{})
		p.kind("a second Attach", err, sandbox.Conflict, "attached")
		first.Close()
		first.Close()
		_, err = first.Next(p.ctx)
		p.kind("Next after Close", err, sandbox.Closed, "")
		_, err = first.Write(p.ctx, []byte("x"))
		p.kind("Write after Close", err, sandbox.Closed, "")
		p.kind("CloseInput after Close", first.CloseInput(p.ctx), sandbox.Closed, "")
		second := p.attach("x", Attachment{})
		p.write(second, "a\n")
		p.expect(second, "out:a\n")
	})
}

func TestWhoTakesOverIsTheOnlyReader(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", echo))
		first := p.attach("x", Attachment{Lines: 100})
		p.write(first, "a\nb\n")
		p.expect(first, "out:a")
		said := make(chan string, 1)
		p.expect(first, "out:b")
		go func() { said <- p.next(first) }()
		synctest.Wait()
		second := p.attach("x", Attachment{Lines: 100, Busy: Steal})
		if got := <-said; got != "error:conflict" {
			t.Errorf("the first got %q", got)
		}
		_, err := first.Write(p.ctx, []byte("x"))
		p.kind("Write of the first", err, sandbox.Conflict, "attached")
		first.Close() // and that does not detach the second
		if i := p.get(ByName("x")); !i.Attached {
			t.Error("it does not look attached")
		}
		p.write(second, "c\n")
		p.expect(second, "out:c")
	})
}

func TestWhoQueuesIsNext(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", echo))
		first := p.attach("x", Attachment{})
		got := make(chan *Relay, 1)
		go func() {
			r, err := p.tab.Attach(p.ctx, p.sb, ByName("x"), Attachment{Busy: Queue})
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		if _, err := p.tab.Attach(ctx, p.sb, ByName("x"), Attachment{Busy: Queue}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who gave up queueing got %v", err)
		}
		p.write(first, "a\nb\n")
		p.expect(first, "out:a\nb\n")
		select {
		case <-got:
			t.Fatal("two are attached")
		default:
		}
		first.Close()
		second := <-got
		defer second.Close()
		p.expect(second, "out:a\nb\n")
	})
}

// TestManyReadersOneAfterTheOtherLoseAndRepeatNothing: whoever acknowledges
// what it got before it leaves, leaves the rest to the next.
func TestManyReadersOneAfterTheOtherLoseAndRepeatNothing(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		const lines = 300
		p.start(sh("x", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); case $i in *0) sleep 1;; esac; done", lines)))
		got := make(chan string, lines+10)
		var readers sync.WaitGroup
		for n := range 10 {
			readers.Go(func() {
				for {
					r, err := p.tab.Attach(p.ctx, p.sb, ByName("x"), Attachment{Lines: 100, Busy: Queue})
					if err != nil {
						t.Error(err)
						return
					}
					for range 1 + n {
						piece, err := r.Next(p.ctx)
						if err == io.EOF {
							r.Close()
							return
						}
						if err != nil || piece.Dropped > 0 || piece.Partial {
							t.Errorf("%+v, %v", piece, err)
						}
						got <- string(piece.Data)
					}
					over, cancel := context.WithCancel(p.ctx)
					cancel()
					if _, err := r.Next(over); !errors.Is(err, context.Canceled) {
						t.Errorf("Next of one who leaves: %v", err)
					}
					r.Close()
				}
			})
		}
		readers.Wait()
		close(got)
		n := 0
		for s := range got {
			if s != fmt.Sprint(n) {
				t.Fatalf("line %d is %q", n, s)
			}
			n++
		}
		if n != lines {
			t.Errorf("%d lines came, want %d", n, lines)
		}
	})
}

func TestAnIdleRelayStaysAttached(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 864000; echo awake; sleep 1"))
		r := p.attach("x", Attachment{Lines: 1000})
		p.expect(r, "out:awake")
		p.expect(r, "EOF")
	})
}

func TestARelayEndsAfterTheLastOutput(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "printf '%s\\n' a b; printf c; echo e >&2; exit 1"))
		p.wait(ByName("x"))
		r := p.attach("x", Attachment{Lines: 100, Stderr: true})
		p.expect(r, "out:a", "out:b", "err:e\n", "part:c", "EOF")
		if e, ok := r.Exit(); !ok || e.Code != 1 {
			t.Errorf("Exit: %+v, %v", e, ok)
		}
	})
}

func TestAJobThatIsReadIsNotForgotten(t *testing.T) {
	inPlace(t, Config{Retention: time.Minute}, func(p *place) {
		p.start(sh("x", "echo hello"))
		r := p.attach("x", Attachment{})
		time.Sleep(time.Hour)
		if i := p.get(ByName("x")); !i.Attached || i.Running() {
			t.Errorf("it is %+v", i)
		}
		p.expect(r, "out:hello\n", "EOF")
		p.gone(ByName("x"))
	})
}

func TestARelayOfWhatIsStoppedEnds(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "cat"))
		r := p.attach("x", Attachment{})
		said := make(chan string, 1)
		go func() { said <- p.next(r) }()
		synctest.Wait()
		if _, err := p.tab.Stop(p.ctx, p.sb, ByName("x")); err != nil {
			t.Fatal(err)
		}
		if got := <-said; got != "EOF" && got != "error:not-exist" {
			t.Errorf("the reader got %q", got)
		}
	})
}

func TestWritesWaitForRoomAndKeepTheirOrder(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 100; cat"))
		r := p.attach("x", Attachment{})
		ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
		defer cancel()
		big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		n, err := r.Write(ctx, big)
		if !errors.Is(err, context.DeadlineExceeded) || n <= 0 || n >= len(big) {
			t.Fatalf("Write to one that does not read: %d, %v", n, err)
		}
		wrote := make(chan error, 2)
		go func() { _, err := r.Write(p.ctx, big[n:]); wrote <- err }()
		synctest.Wait()
		go func() { _, err := p.tab.Input(p.ctx, p.sb, ByName("x"), []byte("last"), true); wrote <- err }()
		var got []byte
		for {
			piece, err := r.Next(p.ctx)
			if err == io.EOF {
				break
			}
			if err != nil || piece.Dropped > 0 {
				t.Fatalf("%+v, %v", piece, err)
			}
			got = append(got, piece.Data...)
		}
		for range 2 {
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		}
		if !bytes.Equal(got, append(bytes.Clone(big), "last"...)) {
			t.Errorf("%d bytes came back, want %d", len(got), len(big)+4)
		}
	})
}

func TestCloseEndsWhatWaits(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 1000"))
		r := p.attach("x", Attachment{})
		ends := make(chan error, 2)
		go func() { _, err := r.Next(p.ctx); ends <- err }()
		go func() { _, err := r.Write(p.ctx, make([]byte, 1<<20)); ends <- err }()
		synctest.Wait()
		r.Close()
		for range 2 {
			select {
			case err := <-ends:
				if !errors.Is(err, sandbox.Closed) {
					t.Errorf("it got %v", err)
				}
			case <-time.After(time.Second):
				t.Fatal("it waits still")
			}
		}
		if i := p.get(ByName("x")); !i.Running() || i.Attached {
			t.Errorf("it is %+v", i)
		}
	})
}

func TestAnAttachmentThatMeansNothingIsRefused(t *testing.T) {
	inPlace(t, Config{}, func(p *place) {
		p.start(sh("x", "sleep 10"))
		for field, a := range map[string]Attachment{"cursor": {From: At, Cursor: 1}, "lines": {Lines: -1}} {
			_, err := p.tab.Attach(p.ctx, p.sb, ByName("x"), a)
			p.kind("Attach", err, sandbox.Invalid, field)
		}
		_, err := p.tab.Attach(p.ctx, p.sb, ByName("y"), Attachment{})
		p.kind("Attach to nothing", err, sandbox.NotExist, "process")
		if i := p.get(ByName("x")); i.Attached {
			t.Error("it looks attached")
		}
	})
}

// A tape is a job whose output was written beforehand: of each question for
// output it reveals a little more, and forgets what its ring has no room for.
type tape struct {
	sandbox.Sandbox
	sandbox.Detacher
	chunks []sandbox.Chunk
	size   int64 // of all
	shown  int64
	ring   int64
	rand   *rand.Rand
}

func (t *tape) ID() sandbox.ID { return "tapetapetape" }

func (t *tape) Processes(context.Context) ([]sandbox.ProcessInfo, error) {
	return []sandbox.ProcessInfo{{ID: "1", Name: "x", Cursor: t.shown, Dropped: max(0, t.shown-t.ring)}}, nil
}

func (t *tape) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, most int, wait time.Duration) (sandbox.Output, error) {
	t.shown = min(t.size, t.shown+t.rand.Int64N(100))
	start := max(0, t.shown-t.ring)
	var o sandbox.Output
	if cursor < start {
		o.Dropped, cursor = start-cursor, start
	}
	most = 1 + t.rand.IntN(min(most, 150))
	o.Next = cursor
	at := int64(0)
	for _, c := range t.chunks {
		from, end := at, at+int64(len(c.Data))
		at = end
		lo, hi := max(from, o.Next), min(end, t.shown, o.Next+int64(most))
		if lo >= hi || lo != o.Next {
			continue
		}
		o.Chunks = append(o.Chunks, sandbox.Chunk{Stderr: c.Stderr, Data: bytes.Clone(c.Data[lo-from : hi-from])})
		most -= int(hi - lo)
		o.Next = hi
	}
	if o.Next == t.size {
		o.Exit = &sandbox.Exit{Reason: sandbox.Exited}
	}
	return o, nil
}

// A play is a job whose answers were written beforehand.
type play struct {
	sandbox.Sandbox
	sandbox.Detacher
	chunks []sandbox.Chunk // of which those without Data are gaps of 10 bytes
}

func (p *play) ID() sandbox.ID { return "playplayplay" }

func (p *play) Processes(context.Context) ([]sandbox.ProcessInfo, error) {
	return []sandbox.ProcessInfo{{ID: "1", Name: "x", Cursor: 1 << 20}}, nil
}

func (p *play) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, most int, wait time.Duration) (sandbox.Output, error) {
	o := sandbox.Output{Next: cursor}
	var at int64
	for _, c := range p.chunks {
		n := int64(len(c.Data))
		if n == 0 {
			n = 10
		}
		if at += n; at <= o.Next {
			continue
		}
		skip := n - (at - o.Next)
		o.Next = at
		if len(c.Data) == 0 {
			o.Dropped = n - skip
			continue
		}
		o.Chunks = []sandbox.Chunk{{Stderr: c.Stderr, Data: bytes.Clone(c.Data[skip:])}}
		return o, nil
	}
	o.Exit = &sandbox.Exit{Reason: sandbox.Exited}
	return o, nil
}

// played returns the pieces that readers get of chunks, of which "" is a gap
// of ten bytes. After stay pieces a reader leaves, and another goes on.
func played(t *testing.T, a Attachment, stay int, chunks ...string) []string {
	t.Helper()
	p := new(play)
	for _, c := range chunks {
		p.chunks = append(p.chunks, sandbox.Chunk{Data: []byte(c)})
	}
	tab := newTable(t, Config{})
	var got []string
	for {
		r, err := tab.Attach(t.Context(), p, ByName("x"), a)
		if err != nil {
			t.Fatal(err)
		}
		for range stay {
			got = append(got, said(r.Next(t.Context())))
			if got[len(got)-1] == "EOF" {
				return got
			}
		}
		r.Acknowledge()
		r.Close()
	}
}

func TestALineThatLostAPartIsDroppedWhole(t *testing.T) {
	for _, stay := range []int{1, 2, 100} {
		got := played(t, Attachment{Lines: 64}, stay, "one\ntw", "", "o", "ther\nthree\n", "", "four")
		want := []string{"out:one", "gap:12", "gap:6", "out:three", "gap:10", "gap:4", "EOF"}
		if !slices.Equal(got, want) {
			t.Errorf("in stays of %d: %q, want %q", stay, got, want)
		}
		got = played(t, Attachment{}, stay, "one\ntw", "", "o", "ther\n")
		want = []string{"out:one\ntw", "gap:10", "out:o", "out:ther\n", "EOF"}
		if !slices.Equal(got, want) {
			t.Errorf("as it comes, in stays of %d: %q, want %q", stay, got, want)
		}
	}
}

func TestAPartOfALongLineEndsWithACharacter(t *testing.T) {
	as := strings.Repeat("a", 61)
	for _, stay := range []int{1, 100} {
		for cut := 1; cut < 4; cut++ {
			got := played(t, Attachment{Lines: 64}, stay, as[:30], as[30:]+"\U0001F600"[:cut], "\U0001F600"[cut:]+"b\n")
			want := []string{"part:" + as, "out:\U0001F600b", "EOF"}
			if !slices.Equal(got, want) {
				t.Errorf("cut at %d, in stays of %d: %q, want %q", cut, stay, got, want)
			}
		}
	}
}

// FuzzRelay reads a tape with readers that come and go: what was written comes
// once and in order, but for what they are told is lost.
func FuzzRelay(f *testing.F) {
	f.Add([]byte("one\ntwo\n!err\nthree\n"), uint64(1), 1000, true, true)
	f.Add(bytes.Repeat([]byte("0123456789\n!x\n"), 60), uint64(2), 100, true, true)
	f.Add(bytes.Repeat([]byte("0123456789"), 60), uint64(3), 100, false, true)
	f.Add(bytes.Repeat([]byte("张三\n!"), 90), uint64(4), 200, true, false)
	f.Add(bytes.Repeat([]byte("\U0001F600"), 90), uint64(5), 5000, true, false)
	f.Fuzz(func(t *testing.T, text []byte, seed uint64, ring int, lines, both bool) {
		if len(text) > 5000 {
			t.Skip("longer texts have no more to say")
		}
		r := rand.New(rand.NewPCG(seed, 3))
		tp := &tape{size: int64(len(text)), ring: int64(150 + (ring&0xffff)%8000), rand: r}
		stderr := false
		for rest := text; len(rest) > 0; {
			n := 1 + r.IntN(min(len(rest), 40))
			if i := bytes.IndexByte(rest[:n], '!'); i > 0 {
				n = i
			} else if i == 0 {
				stderr = !stderr
			}
			tp.chunks = append(tp.chunks, sandbox.Chunk{Stderr: stderr, Data: rest[:n]})
			rest = rest[n:]
		}
		tab, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		a := Attachment{Stderr: both}
		if lines {
			a.Lines = 64
		}
		var got [2][]byte
		var dropped int64
		for over := false; !over; {
			rel, err := tab.Attach(t.Context(), tp, ByName("x"), a)
			if err != nil {
				t.Fatal(err)
			}
			// A piece counts when the next call acknowledges it.
			var pending *Piece
			settle := func() {
				if pending == nil {
					return
				}
				n := 0
				if pending.Stderr {
					n = 1
				}
				got[n] = append(got[n], pending.Data...)
				if lines && n == 0 && !pending.Partial && pending.Dropped == 0 {
					got[0] = append(got[0], '\n')
				}
				dropped += pending.Dropped
				pending = nil
			}
			for range 1 + r.IntN(30) {
				settle()
				p, err := rel.Next(t.Context())
				if err == io.EOF {
					over = true
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if p.Cursor > tp.size || p.Dropped < 0 || p.Dropped > 0 && len(p.Data) > 0 {
					t.Fatalf("%+v of %d bytes", p, tp.size)
				}
				p.Data = slices.Clone(p.Data)
				pending = &p
			}
			if !over && pending != nil && pending.Dropped > 0 {
				pending = nil // it is told again
			}
			rel.Close()
		}
		if dropped > 0 {
			want := [2][]byte{joined(tp.chunks, Stdout), joined(tp.chunks, Stderr)}
			for n := range got {
				if !within(got[n], want[n]) {
					t.Fatalf("stream %d: %q is not a part of %q", n, got[n], want[n])
				}
			}
			came := len(got[0]) + len(got[1])
			if !both {
				came += len(want[1])
			}
			if int64(came)+dropped < tp.size {
				t.Fatalf("%d bytes came and %d were said to be dropped, of %d", came, dropped, tp.size)
			}
			return
		}
		if want := joined(tp.chunks, Stdout); !bytes.Equal(got[0], want) {
			t.Fatalf("the output is %q, want %q", got[0], want)
		}
		if want := joined(tp.chunks, Stderr); both && !bytes.Equal(got[1], want) {
			t.Fatalf("the error output is %q, want %q", got[1], want)
		}
	})
}

// within reports whether got is want with some bytes left out.
func within(got, want []byte) bool {
	for _, c := range want {
		if len(got) > 0 && got[0] == c {
			got = got[1:]
		}
	}
	return len(got) == 0
}
