package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-run/atoll/sandbox"
)

// both runs a claim for a Store in memory and for one in a file.
func both(t *testing.T, claim func(t *testing.T, s *Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		s := Memory()
		claim(t, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("file", func(t *testing.T) {
		s := reopen(t, filepath.Join(t.TempDir(), "store"))
		claim(t, s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// reopen opens a store for the rest of the test.
func reopen(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, Options{Boot: "boot-1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var t0 = time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC)

func id(n int) sandbox.ID { return sandbox.ID(fmt.Sprintf("sandbox%05d", n)) }

func record(n int) Record {
	return Record{ID: id(n), Inner: id(n) + "inner", Owner: "alice", Names: []string{fmt.Sprint("name ", n)}, Created: t0, Used: t0,
		Spec: sandbox.Spec{Image: "host", Workdir: "/workspace", Network: sandbox.NetworkOff, Labels: map[string]string{"n": fmt.Sprint(n)}}}
}

func tombstone(n int, at time.Time) Tombstone {
	r := record(n)
	return Tombstone{ID: r.ID, Inner: r.Inner, Owner: r.Owner, Names: r.Names, Gone: sandbox.Gone{Why: sandbox.Expired, At: at}}
}

func put(t *testing.T, s *Store, rs ...Record) {
	t.Helper()
	for _, r := range rs {
		if err := s.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func bury(t *testing.T, s *Store, ds ...Tombstone) {
	t.Helper()
	for _, d := range ds {
		if err := s.Bury(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
}

// holds asks for these records and tombstones, and for nothing else.
func holds(t *testing.T, s *Store, rs []Record, ds []Tombstone) {
	t.Helper()
	gotR, gotD, _, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(gotR, func(a, b Record) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortFunc(gotD, func(a, b Tombstone) int { return strings.Compare(string(a.ID), string(b.ID)) })
	if len(gotR)+len(rs) > 0 {
		if d := cmp.Diff(rs, gotR); d != "" {
			t.Errorf("records, -want +got:\n%s", d)
		}
	}
	if len(gotD)+len(ds) > 0 {
		if d := cmp.Diff(ds, gotD); d != "" {
			t.Errorf("tombstones, -want +got:\n%s", d)
		}
	}
	err = s.back.view(verifyValues)
	if err != nil {
		t.Errorf("what is kept does not fit together: %v", err)
	}
}

// fill sets every field that v has to something that is not its zero value.
func fill(v reflect.Value, n int) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(t0.Add(time.Duration(n) * time.Nanosecond)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d <&> \u2028 \ufffd \\ufffd", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(math.MaxInt64 - int64(n))
	case reflect.Float64:
		v.SetFloat(0.1 + float64(n))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n+1)
		fill(v.Index(1), n+2)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, n+1)
		fill(e, n+2)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n+i)
		}
	default:
		panic("the test cannot fill " + v.Type().String())
	}
}

// Every field, those that are added later included.
func TestEveryFieldComesBack(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		var r Record
		fill(reflect.ValueOf(&r).Elem(), 1)
		r.ID, r.Spec.Env = id(1), nil
		var d Tombstone
		fill(reflect.ValueOf(&d).Elem(), 1)
		d.ID = id(2)
		put(t, s, r)
		bury(t, s, d)
		holds(t, s, []Record{r}, []Tombstone{d})
	})
}

func TestTimesComeBackAsInstants(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		r := record(1)
		r.Created = time.Now() // with a monotonic clock
		r.Expires = t0.In(time.FixedZone("", 5*3600))
		put(t, s, r)
		got, _, _, err := s.Load()
		if err != nil {
			t.Fatal(err)
		}
		if !got[0].Created.Equal(r.Created) || !got[0].Expires.Equal(r.Expires) {
			t.Errorf("got %v and %v, want %v and %v", got[0].Created, got[0].Expires, r.Created, r.Expires)
		}
	})
}

func TestPutRefusesAnEnvironment(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		r := record(1)
		r.Spec.Env = map[string]string{"TOKEN": "hunter2"}
		err := s.Put(t.Context(), r)
		if !errors.Is(err, sandbox.Internal) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want Internal without the value", err)
		}
		r.Spec.Env = map[string]string{}
		if err := s.Put(t.Context(), r); err != nil {
			t.Errorf("an empty environment: %v", err)
		}
		holds(t, s, []Record{record(1)}, nil)
	})
}

func TestPutRefusesWhatWouldNotComeBack(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		for name, change := range map[string]func(*Record){
			"no id":            func(r *Record) { r.ID = "" },
			"an id of a path":  func(r *Record) { r.ID = "../../etc/passwd" },
			"a name in bytes":  func(r *Record) { r.Names = []string{"a\xff"} },
			"a label in bytes": func(r *Record) { r.Spec.Labels = map[string]string{"\xc0": "v"} },
			"not a number":     func(r *Record) { r.Spec.Limits.CPU = math.NaN() },
			"the year 10000":   func(r *Record) { r.Expires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		} {
			r := record(1)
			change(&r)
			var e *sandbox.Error
			if err := s.Put(t.Context(), r); !errors.As(err, &e) {
				t.Errorf("%s: got %v, want an error of ours", name, err)
			}
		}
		holds(t, s, nil, nil)
	})
}

func TestPutReplaces(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		a, b := record(1), record(1)
		b.Released, b.Names = true, []string{"other"}
		put(t, s, a, record(2), b)
		holds(t, s, []Record{b, record(2)}, nil)
	})
}

func TestBuryMovesARecordToATombstone(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1), record(2))
		bury(t, s, tombstone(1, t0), tombstone(3, t0)) // 3 was never put
		holds(t, s, []Record{record(2)}, []Tombstone{tombstone(1, t0), tombstone(3, t0)})
		bury(t, s, tombstone(1, t0.Add(time.Hour)))
		holds(t, s, []Record{record(2)}, []Tombstone{tombstone(1, t0.Add(time.Hour)), tombstone(3, t0)})
	})
}

// A sandbox of a known id is made anew while what it was before is cleaned up.
func TestBuryAndForgetSpareWhatWasMadeAnew(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		anew := record(1)
		anew.Inner = "anotherinner"
		put(t, s, record(1), anew)
		bury(t, s, tombstone(1, t0))
		if err := s.Forget(t.Context(), id(1), record(1).Inner); err != nil {
			t.Fatal(err)
		}
		holds(t, s, []Record{anew}, nil)
		for range 2 {
			if err := s.Forget(t.Context(), id(1), anew.Inner); err != nil {
				t.Fatal(err)
			}
		}
		holds(t, s, nil, nil)
	})
}

// A change may come after the end of what it changes.
func TestReplaceBringsNothingBack(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		replace := func(r Record, want bool) {
			t.Helper()
			if there, err := s.Replace(t.Context(), r); err != nil || there != want {
				t.Errorf("replace: %v, %v, want %v", there, err, want)
			}
		}
		changed := record(1)
		changed.Names = []string{"other"}
		replace(changed, false)
		holds(t, s, nil, nil)
		put(t, s, record(1))
		replace(changed, true)
		holds(t, s, []Record{changed}, nil)
		bury(t, s, tombstone(1, t0))
		replace(changed, false)
		holds(t, s, nil, []Tombstone{tombstone(1, t0)})
		anew := record(1)
		anew.Inner = "anotherinner"
		put(t, s, anew)
		replace(changed, false)
		holds(t, s, []Record{anew}, nil)
	})
}

func TestPutForgetsTheTombstoneOfItsID(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1))
		bury(t, s, tombstone(1, t0))
		put(t, s, record(1))
		holds(t, s, []Record{record(1)}, nil)
	})
}

func TestUsedIsWhatLoadSays(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1), record(2))
		later := t0.Add(time.Minute)
		if err := s.Used(map[sandbox.ID]time.Time{id(1): later, id(9): later, "": later}); err != nil {
			t.Fatal(err)
		}
		used := record(1)
		used.Used = later
		holds(t, s, []Record{used, record(2)}, nil)

		// A clock that was set back says what it says.
		early := t0.Add(-time.Hour)
		if err := s.Used(map[sandbox.ID]time.Time{id(1): early}); err != nil {
			t.Fatal(err)
		}
		used.Used = early
		holds(t, s, []Record{used, record(2)}, nil)

		put(t, s, record(1)) // its Used is newer than what was kept apart
		holds(t, s, []Record{record(1), record(2)}, nil)
		if err := s.Used(nil); err != nil {
			t.Fatal(err)
		}
	})
}

func TestUsedGoesWithItsRecord(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1))
		if err := s.Used(map[sandbox.ID]time.Time{id(1): t0.Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		bury(t, s, tombstone(1, t0))
		put(t, s, record(1))
		holds(t, s, []Record{record(1)}, nil)
	})
}

func TestTombstoneSaysWhatBecameOfOne(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1), record(2))
		bury(t, s, tombstone(1, t0))
		got, known, err := s.Tombstone(id(1))
		if d := cmp.Diff(tombstone(1, t0), got); err != nil || !known || d != "" {
			t.Errorf("%v, %v, -want +got:\n%s", known, err, d)
		}
		for _, n := range []sandbox.ID{id(2), id(3), "", sandbox.ID(strings.Repeat("x", 1<<16))} {
			if _, known, err := s.Tombstone(n); known || err != nil {
				t.Errorf("%.20s: got %v, %v, want nothing", n, known, err)
			}
		}
		if _, err := s.Sweep(t0.Add(1)); err != nil {
			t.Fatal(err)
		}
		if _, known, err := s.Tombstone(id(1)); known || err != nil {
			t.Errorf("after a sweep: got %v, %v", known, err)
		}
	})
}

func TestRecordsIsLoadWithoutTombstones(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1), record(2))
		bury(t, s, tombstone(3, t0))
		if err := s.Used(map[sandbox.ID]time.Time{id(2): t0.Add(1)}); err != nil {
			t.Fatal(err)
		}
		want, _, meta, err := s.Load()
		if err != nil {
			t.Fatal(err)
		}
		got, m, err := s.Records()
		if err != nil || m != meta || cmp.Diff(want, got) != "" || len(got) != 2 {
			t.Errorf("got %+v, %+v, %v, want %+v, %+v", got, m, err, want, meta)
		}
	})
}

func TestSweepForgetsWhatIsOlder(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		for n := range 10 {
			bury(t, s, tombstone(n, t0.Add(time.Duration(n)*time.Hour)))
		}
		bury(t, s, tombstone(10, t0.Add(-time.Hour))) // the clock was set back
		bury(t, s, tombstone(11, time.Time{}))
		n, err := s.Sweep(t0.Add(7 * time.Hour))
		if err != nil || n != 9 {
			t.Errorf("got %d, %v, want 9", n, err)
		}
		var want []Tombstone
		for n := 7; n < 10; n++ {
			want = append(want, tombstone(n, t0.Add(time.Duration(n)*time.Hour)))
		}
		holds(t, s, nil, want)
		if n, err := s.Sweep(t0); n != 0 || err != nil {
			t.Errorf("again: got %d, %v, want 0", n, err)
		}
	})
}

// Whatever the clock says, what was buried first goes first.
func TestTombstonesAreBounded(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		s.maxTombs = 5
		for n := range 12 {
			bury(t, s, tombstone(n, t0.Add(-time.Duration(n)*time.Hour)))
		}
		var want []Tombstone
		for n := 7; n < 12; n++ {
			want = append(want, tombstone(n, t0.Add(-time.Duration(n)*time.Hour)))
		}
		holds(t, s, nil, want)
	})
}

func TestClosed(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		put(t, s, record(1))
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		_, _, _, load := s.Load()
		_, sweep := s.Sweep(t0)
		_, _, records := s.Records()
		_, _, tombstone1 := s.Tombstone(id(1))
		for name, err := range map[string]error{
			"Load": load, "Records": records, "Tombstone": tombstone1, "Sweep": sweep, "Put": s.Put(t.Context(), record(1)), "Bury": s.Bury(t.Context(), tombstone(1, t0)),
			"Forget": s.Forget(t.Context(), id(1), ""), "Used": s.Used(map[sandbox.ID]time.Time{id(1): t0}), "nothing used": s.Used(nil), "Check": s.Check(),
		} {
			if !errors.Is(err, sandbox.Closed) {
				t.Errorf("%s: got %v, want Closed", name, err)
			}
		}
	})
}

// A slow backing takes updates when it is told to, and fails when it is told
// to.
type slow struct {
	backing
	gate    chan error // what the next update does; closed lets all pass
	updates int
}

func (b *slow) update(f func(txn) error) error {
	b.updates++
	if err := <-b.gate; err != nil {
		return err
	}
	return b.backing.update(f)
}

func newSlow() (*Store, *slow) {
	s := Memory()
	b := &slow{backing: s.back, gate: make(chan error)}
	s.back = b
	return s, b
}

func TestPutsThatComeTogetherShareAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := newSlow()
		errs := make(chan error)
		for n := range 9 {
			go func() { errs <- s.Put(t.Context(), record(n)) }()
			if n == 0 {
				synctest.Wait() // it is alone, and being written
			}
		}
		synctest.Wait()
		close(b.gate)
		for range 9 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if b.updates != 2 {
			t.Errorf("9 puts took %d updates, want 2: the first, and one for all others", b.updates)
		}
		if rs, _, _, err := s.Load(); len(rs) != 9 || err != nil {
			t.Errorf("there are %d records, %v, want 9", len(rs), err)
		}
		s.Close()
	})
}

func TestAPutAloneWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Memory()
		defer s.Close()
		start := time.Now()
		put(t, s, record(1))
		if d := time.Since(start); d != 0 {
			t.Errorf("it waited for %v", d)
		}
	})
}

func TestAContextThatEndsBeforeTheTurnWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := newSlow()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- s.Put(t.Context(), record(1)) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { second <- s.Put(ctx, record(2)) }()
		synctest.Wait()
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
		if err := s.Put(ctx, record(3)); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that has ended: got %v, want Canceled", err)
		}
		close(b.gate)
		if err := <-first; err != nil {
			t.Error(err)
		}
		holds(t, s, []Record{record(1)}, nil)
		s.Close()
	})
}

func TestAContextThatEndsWhileItIsWrittenChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := newSlow()
		ctx, cancel := context.WithCancel(t.Context())
		leader, follower := make(chan error, 1), make(chan error, 1)
		go func() { leader <- s.Put(t.Context(), record(1)) }()
		synctest.Wait()
		go func() { follower <- s.Put(ctx, record(2)) }()
		go func() { leader <- s.Put(ctx, record(3)) }()
		synctest.Wait()
		b.gate <- nil // now one of the two writes for both
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(follower)+len(leader) != 1 {
			t.Error("a put returned before it was known whether it was written")
		}
		close(b.gate)
		for _, err := range []error{<-leader, <-leader, <-follower} {
			if err != nil {
				t.Error(err)
			}
		}
		holds(t, s, []Record{record(1), record(2), record(3)}, nil)
		s.Close()
	})
}

func TestAWriteThatFailsLosesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want sandbox.Kind
	}{
		"full":  {fmt.Errorf("write /srv/state/store: %w", os.ErrPermission), sandbox.Unavailable},
		"other": {fmt.Errorf("file resize error: truncate /srv/state/store: no space left on device"), sandbox.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, b := newSlow()
				go func() {
					b.gate <- nil
					b.gate <- c.err
					b.gate <- c.err
					close(b.gate)
				}()
				put(t, s, record(1))
				err := s.Put(t.Context(), record(2))
				var e *sandbox.Error
				if !errors.As(err, &e) || e.Kind != c.want || e.Hint == "" || e.ID != id(2) || strings.Contains(e.Public(), "/srv") {
					t.Errorf("got %v, want %s with a hint, the id, and no path but in the cause", err, c.want)
				}
				if err := s.Check(); !errors.Is(err, c.want) {
					t.Errorf("Check after a write that failed: got %v, want %s", err, c.want)
				}
				put(t, s, record(3))
				if err := s.Check(); err != nil {
					t.Errorf("Check after one that did not: %v", err)
				}
				holds(t, s, []Record{record(1), record(3)}, nil)
				s.Close()
			})
		})
	}
}

func TestCheckWritesNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, b := newSlow()
		close(b.gate)
		for range 60 {
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if b.updates != 12 {
			t.Errorf("it wrote %d times in a minute, want 12", b.updates)
		}
		s.Close()
	})
}

func TestCloseWaitsForWhatIsWritten(t *testing.T) {
	for _, puts := range []int{1, 2} { // the second waits for its turn
		synctest.Test(t, func(t *testing.T) {
			s, b := newSlow()
			errs := make(chan error, puts)
			for n := range puts {
				go func() { errs <- s.Put(t.Context(), record(n)) }()
			}
			synctest.Wait()
			ended := make(chan struct{}, 1)
			go func() { s.Close(); ended <- struct{}{} }()
			synctest.Wait()
			if len(ended) > 0 {
				t.Errorf("%d puts: Close did not wait", puts)
			}
			close(b.gate)
			<-ended
			for range puts {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Many do everything at once; at the end there is what each left.
func TestConcurrent(t *testing.T) {
	both(t, func(t *testing.T, s *Store) {
		const workers, rounds = 8, 40
		var all sync.WaitGroup
		left := make([]map[sandbox.ID]Record, workers)
		for w := range workers {
			left[w] = make(map[sandbox.ID]Record)
			all.Go(func() {
				for i := range rounds {
					r := record(w*100 + i%10)
					r.Wanted = fmt.Sprint(i)
					var err error
					switch i % 5 {
					case 3:
						err = s.Bury(t.Context(), tombstone(w*100+i%10, t0))
						delete(left[w], r.ID)
					case 4:
						err = s.Used(map[sandbox.ID]time.Time{r.ID: t0})
						_, _, _, load := s.Load()
						err = errors.Join(err, load, s.Check())
					default:
						err = s.Put(t.Context(), r)
						left[w][r.ID] = r
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		var want []Record
		for _, m := range left {
			want = slices.AppendSeq(want, maps.Values(m))
		}
		slices.SortFunc(want, func(a, b Record) int { return strings.Compare(string(a.ID), string(b.ID)) })
		_, ds, _, err := s.Load()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(ds, func(a, b Tombstone) int { return strings.Compare(string(a.ID), string(b.ID)) })
		holds(t, s, want, ds)
	})
}
