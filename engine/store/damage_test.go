package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// sample returns a file with some of everything: several levels of pages, free
// ones, a record that takes more than a page.
func sample(t testing.TB, records int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "store")
	s, err := Open(path, Options{Boot: "boot-1"})
	if err != nil {
		t.Fatal(err)
	}
	s.back.(*file).db.NoSync = true
	last := make(map[sandbox.ID]time.Time)
	for n := range records {
		r := record(n)
		if n%50 == 7 {
			r.Names = []string{strings.Repeat("long", 3000)}
		}
		err := s.Put(t.Context(), r)
		switch {
		case n%3 == 0:
			err = errors.Join(err, s.Bury(t.Context(), tombstone(n, t0.Add(time.Duration(n)))))
		case n%3 == 1:
			last[id(n)] = t0
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Used(last), s.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// survives asks that a damaged file either opens and works, or is refused as
// damaged and left as it is. It reports which.
func survives(t *testing.T, path string, content []byte) (opened bool) {
	t.Helper()
	os.Remove(path)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{Boot: "boot-2"})
	if err != nil {
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Internal && e.Kind != sandbox.Unsupported || e.Hint == "" {
			t.Errorf("got %v, want Internal with a hint", err)
		}
		if after, err := os.ReadFile(path); err != nil || string(after) != string(content) {
			t.Errorf("the file was changed, %v", err)
		}
		return false
	}
	s.back.(*file).db.NoSync = true // the disk is not what is tried
	rs, ds, _, err := s.Load()
	if err != nil {
		t.Errorf("it opened, but does not load: %v", err)
	}
	for i, r := range rs {
		if i%7 == 0 {
			err = errors.Join(err, s.Bury(t.Context(), Tombstone{ID: r.ID, Inner: r.Inner, Gone: sandbox.Gone{At: t0}}))
		}
	}
	for i, d := range ds {
		if i%7 == 0 {
			err = errors.Join(err, s.Put(t.Context(), Record{ID: d.ID}))
		}
	}
	_, sweep := s.Sweep(t0.Add(time.Nanosecond * 20))
	if err := errors.Join(err, sweep, s.Close()); err != nil {
		t.Errorf("it opened, but does not work: %v", err)
	}
	s, err = Open(path, Options{})
	if err != nil {
		t.Errorf("it opened once, and not again: %v", err)
		return true
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return true
}

func TestACutFileIsRefused(t *testing.T) {
	b, path := sample(t, 300), filepath.Join(t.TempDir(), "store")
	end := 0 // of what is in use
	for end = len(b); strings.Trim(string(b[end-4096:end]), "\x00") == ""; end -= 4096 {
	}
	r := rand.New(rand.NewPCG(1, 2))
	cuts := []int{0, 1, 15, 16, 80, 4095, 4096, 4097, 8192, 8200, 12288, end / 2, end - 4096, end - 4095}
	for range 50 {
		cuts = append(cuts, r.IntN(end-4095))
	}
	for _, n := range cuts {
		if survives(t, path, b[:n]) {
			t.Errorf("cut to %d of %d bytes it opened", n, end)
		}
	}
	if !survives(t, path, b) {
		t.Error("uncut it did not open")
	}
}

// flip changes one bit of a copy of b.
func flip(b []byte, bit int) []byte {
	c := append([]byte(nil), b...)
	c[bit/8] ^= 1 << (bit % 8)
	return c
}

func TestADamagedFileIsNoCrash(t *testing.T) {
	b, path := sample(t, 120), filepath.Join(t.TempDir(), "store")
	r := rand.New(rand.NewPCG(3, 4))
	rounds := 600
	if soak {
		rounds = 20_000
	}
	refused := 0
	for i := range rounds {
		var c []byte
		switch i % 4 {
		case 0: // anywhere
			c = flip(b, r.IntN(8*len(b)))
		case 1: // the heads of pages and of what is in them
			c = flip(b, 8*(4096*r.IntN(len(b)/4096)+r.IntN(256))+r.IntN(8))
		case 2: // a page that is lost
			c = append([]byte(nil), b...)
			clear(c[4096*(2+r.IntN(len(b)/4096-2)):][:4096])
		case 3: // a page that is in the place of another
			c = append([]byte(nil), b...)
			from, to := r.IntN(len(b)/4096), r.IntN(len(b)/4096)
			copy(c[4096*to:][:4096], b[4096*from:][:4096])
		}
		if !survives(t, path, c) {
			refused++
		}
		if t.Failed() {
			kept := filepath.Join(os.TempDir(), fmt.Sprintf("store-damaged-%d", i))
			os.WriteFile(kept, c, 0o600)
			t.Fatalf("round %d; the file is kept at %s", i, kept)
		}
	}
	if refused == 0 || refused == rounds {
		t.Errorf("%d of %d were refused: the test tries one thing only", refused, rounds)
	}
}

// Every bit of what is kept of a sandbox is covered by a checksum.
func TestNoBitOfARecordChangesUnnoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := reopen(t, path)
	put(t, s, record(1))
	bury(t, s, tombstone(2, t0))
	if err := s.Used(map[sandbox.ID]time.Time{id(1): t0}); err != nil {
		t.Fatal(err)
	}
	rs, ds, _, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var tried, refused int
	for bit := 0; bit < 8*len(b); bit += 241 {
		os.Remove(path)
		if err := os.WriteFile(path, flip(b, bit), 0o600); err != nil {
			t.Fatal(err)
		}
		tried++
		s, err := Open(path, Options{})
		if err != nil {
			refused++
			continue
		}
		_, _, m, err := s.Load()
		if err != nil || m.Version != Version {
			t.Errorf("bit %d: got %+v, %v", bit, m, err)
		}
		// An older head may be used: then there is less, and nothing else.
		if got, gone, _, _ := s.Load(); len(got) > 0 && fmt.Sprint(got[0].Spec, got[0].Names) != fmt.Sprint(rs[0].Spec, rs[0].Names) || len(gone) > 0 && fmt.Sprint(gone) != fmt.Sprint(ds) {
			t.Errorf("bit %d: got %+v and %+v", bit, got, gone)
		}
		s.Close()
	}
	if refused == 0 || refused == tried {
		t.Errorf("%d of %d were refused", refused, tried)
	}
}

func FuzzOpen(f *testing.F) {
	b := sample(f, 60)
	f.Add(0, []byte{}, len(b))
	f.Add(4096*3+8, []byte{1, 0}, len(b))
	f.Add(4096, []byte("\x00\x00\x00\x00\x00\x00\x00\x00\x04"), 8192)
	f.Add(16384, make([]byte, 4096), 1<<20)
	path := filepath.Join(f.TempDir(), "store")
	f.Fuzz(func(t *testing.T, at int, put []byte, size int) {
		c := append([]byte(nil), b...)
		if size >= 0 && size < len(c) {
			c = c[:size]
		}
		if at >= 0 && at < len(c) {
			copy(c[at:], put)
		}
		survives(t, fmt.Sprintf("%s-%d", path, os.Getpid()), c)
	})
}

// Whatever is done, what bbolt writes passes for undamaged, and the file holds
// what the memory does.
func TestWhatIsDoneAtRandomPassesForUndamaged(t *testing.T) {
	rounds := 15
	if soak {
		rounds = 2000
	}
	path, model := filepath.Join(t.TempDir(), "store"), Memory()
	defer model.Close()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range rounds {
		s := reopen(t, path)
		s.back.(*file).db.NoSync = true
		bound := uint64(1 + r.IntN(500))
		s.maxTombs, model.maxTombs = bound, bound
		do := func(f func(s *Store) error) {
			if err := errors.Join(f(s), f(model)); err != nil {
				t.Fatal(err)
			}
		}
		for range r.IntN(300) {
			n, at := r.IntN(800), t0.Add(time.Duration(r.IntN(1000)))
			switch k := r.IntN(80); {
			case k < 40:
				rec := record(n)
				rec.Wanted = strings.Repeat("x", r.IntN(100)*r.IntN(100)*(1-min(1, k)))
				do(func(s *Store) error { return s.Put(t.Context(), rec) })
			case k < 60:
				do(func(s *Store) error { return s.Bury(t.Context(), tombstone(n, at)) })
			case k < 65:
				do(func(s *Store) error { return s.Forget(t.Context(), id(n), record(n).Inner) })
			case k < 75:
				used := make(map[sandbox.ID]time.Time)
				for range r.IntN(50) {
					used[id(r.IntN(800))] = at
				}
				do(func(s *Store) error { return s.Used(used) })
			case k < 76:
				do(func(s *Store) error { _, err := s.Sweep(at); return err })
			case k < 77 && r.IntN(3) == 0: // nearly all goes
				for n := range 700 {
					do(func(s *Store) error { return s.Bury(t.Context(), tombstone(n, at)) })
				}
			}
		}
		rs, ds, _, err := model.Load()
		if err != nil {
			t.Fatal(err)
		}
		holds(t, s, rs, ds)
		if err := s.Close(); err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
}
