// Package store keeps which sandboxes there are, and what became of those that
// are gone, so that a daemon that starts anew knows both. What a call wrote is
// on the disk when the call returns.
//
// It knows nothing of sandboxes beyond their records: who is alive, what is
// allowed and what time it is are the engine's business. It never has an
// environment, since that may hold secrets.
//
// The file is a bbolt database. One process has it at a time. It is looked at
// page by page before it is used, and a damaged one is refused and left as it
// is.
package store

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Version is the version of the format that this package writes.
const Version = 1

// MaxTombstones is how many tombstones are kept. When there are more, those
// that were buried first go first.
const MaxTombstones = 100_000

// A Record is a sandbox that lives.
type Record struct {
	ID       sandbox.ID    `json:"id"`
	Inner    sandbox.ID    `json:"inner"` // what the runtime below calls it
	Owner    sandbox.Owner `json:"owner"`
	Class    string        `json:"class,omitempty"`
	Names    []string      `json:"names,omitempty"`
	Profile  string        `json:"profile,omitempty"`
	Spec     sandbox.Spec  `json:"spec"`             // what it got; Env is nil
	Wanted   string        `json:"wanted,omitempty"` // the image as its caller named it
	Created  time.Time     `json:"created"`
	Used     time.Time     `json:"used"` // see [Store.Used]
	Expires  time.Time     `json:"expires,omitzero"`
	Released bool          `json:"released,omitempty"`
}

// A Tombstone is a sandbox that is gone.
type Tombstone struct {
	ID    sandbox.ID    `json:"id"`
	Inner sandbox.ID    `json:"inner,omitempty"`
	Owner sandbox.Owner `json:"owner"`
	Names []string      `json:"names,omitempty"`
	sandbox.Gone
}

// Meta is what is known of the file itself.
type Meta struct {
	Version int       `json:"v"`    // of its format
	Made    time.Time `json:"made"` // when it was made

	// Boot is what Options.Boot was when a record was last put by whoever had
	// the file before; of a file that was just made it is the present one.
	// Where it is not the present one, the host was restarted since.
	Boot string `json:"boot"`

	// Unsettled is there until [Store.Settle].
	Unsettled bool `json:"unsettled,omitempty"`

	// Fresh says that the file was not there and was made now, or that
	// whoever made it did not come as far as Settle.
	Fresh bool `json:"-"`
}

// Options says how a Store is opened.
type Options struct {
	Boot string       // names this run of the host: its boot id
	Log  *slog.Logger // gets what an operator should know of; nil discards it
}

// A Store keeps records and tombstones. It is safe for concurrent use. After
// Close, calls fail with [sandbox.Closed].
//
// A call that fails because its context ended has written nothing. One that
// fails otherwise was not acknowledged: mostly nothing is written, but where
// the disk failed while it was written to, the next Open may find it. Either
// way it is written as a whole or not at all, and what was acknowledged
// before stays. Such errors are [sandbox.Exhausted] when the disk is full, and
// [sandbox.Unavailable] otherwise; in both cases later calls may succeed.
type Store struct {
	back     backing
	meta     Meta // as found when it was opened
	boot     string
	turn     chan struct{} // holding the one place in it is the turn to write
	maxTombs uint64
	end      sync.Once

	booted bool // the file says boot; belongs to whose turn it is

	mu      sync.Mutex
	queue   []*op     // wait for a turn
	written time.Time // when a write last succeeded; zero after one that failed
	closed  bool
}

// A backing keeps keys and values in buckets. Store sees to it that one update
// runs at a time.
type backing interface {
	// update makes all the changes of f durable, or none.
	update(f func(txn) error) error
	// view shows a state between two updates. What it shows is gone when f
	// returns.
	view(f func(txn) error) error
	close() error
}

// A txn is a look at a backing. Its methods never keep what they are given
// beyond the update.
type txn interface {
	get(b bucket, key []byte) []byte // nil if there is none
	put(b bucket, key, value []byte) error
	delete(b bucket, key []byte) error
	first(b bucket) (key, value []byte) // nil if the bucket is empty
	each(b bucket, f func(key, value []byte) error) error
	number(b bucket) uint64 // a number that belongs to the bucket
	setNumber(b bucket, n uint64) error
}

// A bucket is a table of a backing.
type bucket string

const (
	about   bucket = "meta"       // "meta" -> Meta
	records bucket = "records"    // id -> Record; its number is how many there are
	uses    bucket = "used"       // id -> when it was used since its record was put
	tombs   bucket = "tombstones" // id -> number of the burial, Tombstone; its number is how many there are
	ages    bucket = "ages"       // number of the burial -> when, id; its number is that of the last
)

var buckets = []bucket{about, records, uses, tombs, ages}

// An op is a change that waits for its turn.
type op struct {
	apply func(txn) error
	put   bool
	done  chan struct{} // closed when it was written, or was not
	err   error
}

// Memory returns a Store that has no file and forgets everything when it is
// closed.
func Memory() *Store {
	s := newStore(newMemory(), Meta{Version: Version, Made: time.Now(), Fresh: true}, "")
	s.booted = true
	return s
}

func newStore(b backing, m Meta, boot string) *Store {
	return &Store{back: b, meta: m, boot: boot, turn: make(chan struct{}, 1), maxTombs: MaxTombstones}
}

// Load returns all that is kept, in no particular order.
func (s *Store) Load() ([]Record, []Tombstone, Meta, error) {
	var rs []Record
	var ds []Tombstone
	err := s.view(func(t txn) (err error) {
		if rs, err = loadRecords(t); err != nil {
			return err
		}
		ds = make([]Tombstone, 0, t.number(tombs))
		return t.each(tombs, func(k, v []byte) error {
			d, err := decodeTombstone(k, v)
			ds = append(ds, d)
			return err
		})
	})
	if err != nil {
		return nil, nil, Meta{}, sandbox.At("store.Load", "", err)
	}
	return rs, ds, s.meta, nil
}

// Records is Load without the tombstones, of which there may be many more.
func (s *Store) Records() ([]Record, Meta, error) {
	var rs []Record
	err := s.view(func(t txn) (err error) {
		rs, err = loadRecords(t)
		return err
	})
	if err != nil {
		return nil, Meta{}, sandbox.At("store.Records", "", err)
	}
	return rs, s.meta, nil
}

func loadRecords(t txn) ([]Record, error) {
	rs := make([]Record, 0, t.number(records))
	err := t.each(records, func(k, v []byte) error {
		r, err := decodeRecord(k, v)
		if err != nil {
			return err
		}
		if u := t.get(uses, k); u != nil {
			if r.Used, err = unsealTime(k, u); err != nil {
				return err
			}
		}
		rs = append(rs, r)
		return nil
	})
	return rs, err
}

// Tombstone returns what became of the sandbox with this id, and whether that
// is known.
func (s *Store) Tombstone(id sandbox.ID) (d Tombstone, known bool, err error) {
	k := []byte(id)
	err = s.view(func(t txn) (err error) {
		v := t.get(tombs, k)
		if known = v != nil; known {
			d, err = decodeTombstone(k, v)
		}
		return err
	})
	if err != nil {
		return Tombstone{}, false, sandbox.At("store.Tombstone", id, err)
	}
	return d, known, nil
}

// view shows f what is kept.
func (s *Store) view(f func(txn) error) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := s.back.view(f); err != nil {
		return failure(err)
	}
	return nil
}

// Put keeps r instead of what was kept of its id before, a tombstone included.
// It is on the disk when Put returns. Calls that come together share one
// write.
func (s *Store) Put(ctx context.Context, r Record) error {
	k, v, err := encodeRecord(r)
	if err == nil {
		err = s.do(ctx, &op{put: true, apply: func(t txn) error { return replace(t, k, v) }})
	}
	return sandbox.At("store.Put", r.ID, err)
}

func replace(t txn, k, v []byte) error {
	if err := unbury(t, k); err != nil {
		return err
	}
	if t.get(uses, k) != nil {
		if err := t.delete(uses, k); err != nil {
			return err
		}
	}
	if t.get(records, k) == nil {
		if err := t.setNumber(records, t.number(records)+1); err != nil {
			return err
		}
	}
	return t.put(records, k, v)
}

// Replace is Put for a sandbox that is kept already: if there is no record of
// its id with its Inner, nothing is written, and there is false. So a change
// that comes too late brings back nothing that was buried, and spoils nothing
// that was made anew under the id.
func (s *Store) Replace(ctx context.Context, r Record) (there bool, err error) {
	k, v, err := encodeRecord(r)
	if err == nil {
		err = s.do(ctx, &op{put: true, apply: func(t txn) error {
			there = false
			old := t.get(records, k)
			if old == nil {
				return nil
			}
			kept, err := decodeRecord(k, old)
			if err != nil || kept.Inner != r.Inner {
				return err
			}
			there = true
			return replace(t, k, v)
		}})
	}
	if err != nil {
		return false, sandbox.At("store.Replace", r.ID, err)
	}
	return there, nil
}

// Settle writes down that what was there when the file was made has been
// adopted: the next Open does not find it fresh.
func (s *Store) Settle(ctx context.Context) error {
	if !s.meta.Unsettled {
		return s.open()
	}
	err := s.do(ctx, &op{apply: func(t txn) error {
		m, err := getMeta(t)
		if err != nil || !m.Unsettled {
			return err
		}
		m.Unsettled = false
		return putMeta(t, m)
	}})
	return sandbox.At("store.Settle", "", err)
}

// Bury keeps d and forgets the record of its id, in one step. It is on the
// disk when Bury returns. That there is no such record is no error. A record
// with another Inner is of a sandbox that was made anew under the id: it stays,
// and d is not kept.
func (s *Store) Bury(ctx context.Context, d Tombstone) error {
	k, v, err := encodeTombstone(d)
	if err == nil {
		err = s.do(ctx, &op{apply: func(t txn) error { return s.bury(t, k, v, d) }})
	}
	return sandbox.At("store.Bury", d.ID, err)
}

func (s *Store) bury(t txn, k, v []byte, d Tombstone) error {
	if v := t.get(records, k); v != nil {
		r, err := decodeRecord(k, v)
		if err != nil {
			return err
		}
		if r.Inner != d.Inner {
			return nil
		}
	}
	if err := forget(t, k); err != nil {
		return err
	}
	if err := unbury(t, k); err != nil {
		return err
	}
	n := t.number(ages) + 1
	if err := t.setNumber(ages, n); err != nil {
		return err
	}
	if err := t.put(ages, encodeNumber(n), append(encodeTime(d.At), k...)); err != nil {
		return err
	}
	if err := t.put(tombs, k, append(encodeNumber(n), v...)); err != nil {
		return err
	}
	if err := t.setNumber(tombs, t.number(tombs)+1); err != nil {
		return err
	}
	for t.number(tombs) > s.maxTombs {
		_, old := t.first(ages)
		if len(old) < 8 {
			return damage("a tombstone has no age")
		}
		if err := unbury(t, slices.Clone(old[8:])); err != nil {
			return err
		}
	}
	return nil
}

// Forget drops the record of a sandbox that was never handed out, as if it had
// not been put. One with another Inner stays.
func (s *Store) Forget(ctx context.Context, id, inner sandbox.ID) error {
	err := checkID(id)
	if err == nil {
		err = s.do(ctx, &op{apply: func(t txn) error {
			v := t.get(records, []byte(id))
			if v == nil {
				return nil
			}
			r, err := decodeRecord([]byte(id), v)
			if err != nil || r.Inner != inner {
				return err
			}
			return forget(t, []byte(id))
		}})
	}
	return sandbox.At("store.Forget", id, err)
}

// forget removes the record of k, if there is one.
func forget(t txn, k []byte) error {
	if t.get(records, k) == nil {
		return nil
	}
	if err := t.delete(records, k); err != nil {
		return err
	}
	if err := t.delete(uses, k); err != nil {
		return err
	}
	return t.setNumber(records, t.number(records)-1)
}

// unbury removes the tombstone of k, if there is one.
func unbury(t txn, k []byte) error {
	v := t.get(tombs, k)
	if v == nil {
		return nil
	}
	number, _, err := splitTombstone(v)
	if err != nil {
		return err
	}
	if err := t.delete(ages, slices.Clone(number)); err != nil {
		return err
	}
	if err := t.delete(tombs, k); err != nil {
		return err
	}
	return t.setNumber(tombs, t.number(tombs)-1)
}

// Used keeps when sandboxes were last used, which [Store.Load] then says
// instead of the Used of their records. Ids that have no record are ignored.
func (s *Store) Used(last map[sandbox.ID]time.Time) error {
	if len(last) == 0 {
		return s.open()
	}
	ids := make([]sandbox.ID, 0, len(last))
	for id := range last {
		ids = append(ids, id)
	}
	slices.Sort(ids) // neighbours share pages
	values := make([][]byte, len(ids))
	for i, id := range ids {
		values[i] = sealTime([]byte(id), last[id])
	}
	err := s.do(context.Background(), &op{apply: func(t txn) error {
		for i, id := range ids {
			k := []byte(id)
			if len(k) == 0 || t.get(records, k) == nil {
				continue
			}
			if err := t.put(uses, k, values[i]); err != nil {
				return err
			}
		}
		return nil
	}})
	return sandbox.At("store.Used", "", err)
}

// Sweep forgets the tombstones of what was gone before the given time, and
// returns how many those were.
func (s *Store) Sweep(before time.Time) (int, error) {
	var n int
	err := s.do(context.Background(), &op{apply: func(t txn) error {
		var old [][]byte
		err := t.each(ages, func(_, v []byte) error {
			if len(v) < 8 {
				return damage("a tombstone has no age")
			}
			at, err := decodeTime(v[:8])
			if err == nil && at.Before(before) {
				old = append(old, slices.Clone(v[8:]))
			}
			return err
		})
		if err != nil {
			return err
		}
		n = len(old)
		for _, k := range old {
			if err := unbury(t, k); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		return 0, sandbox.At("store.Sweep", "", err)
	}
	return n, nil
}

// fresh is for how long a write that succeeded answers Check.
const fresh = 5 * time.Second

// Check returns an error if nothing can be written now. It writes something
// itself unless something was written a few seconds ago.
func (s *Store) Check() error {
	s.mu.Lock()
	recent := !s.closed && time.Since(s.written) < fresh
	s.mu.Unlock()
	if recent {
		return nil
	}
	return sandbox.At("store.Check", "", s.do(context.Background(), &op{apply: func(t txn) error {
		return t.put(about, []byte("checked"), encodeTime(time.Now().UTC()))
	}}))
}

// open returns an error if s was closed.
func (s *Store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	return nil
}

// do has o written and returns when it is, or is not. Whose turn it is writes
// for all who wait.
func (s *Store) do(ctx context.Context, o *op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.done = make(chan struct{})
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.queue = append(s.queue, o)
	s.mu.Unlock()

	select {
	case s.turn <- struct{}{}:
		s.writeQueue()
		<-s.turn
	case <-o.done:
	case <-ctx.Done():
		s.mu.Lock()
		i := slices.Index(s.queue, o)
		if i >= 0 {
			s.queue = slices.Delete(s.queue, i, i+1)
		}
		s.mu.Unlock()
		if i >= 0 {
			return ctx.Err()
		}
		// It is being written. Only the outcome is a true answer.
	}
	<-o.done
	return o.err
}

// writeQueue writes all that waits. The caller has the turn.
func (s *Store) writeQueue() {
	s.mu.Lock()
	batch := s.queue
	s.queue = nil
	s.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	err := s.write(batch)
	for _, o := range batch {
		o.err = err
		close(o.done)
	}
}

func (s *Store) write(batch []*op) error {
	boot := false
	err := s.back.update(func(t txn) error {
		for _, o := range batch {
			if err := o.apply(t); err != nil {
				return err
			}
			boot = boot || o.put
		}
		if boot = boot && !s.booted; boot {
			m, err := getMeta(t)
			if err != nil {
				return err
			}
			m.Boot = s.boot
			return putMeta(t, m)
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.written = time.Time{}
		return failure(err)
	}
	s.booted = s.booted || boot
	s.written = time.Now()
	return nil
}

// Close waits for what is being written and gives the file back. A second
// Close does nothing.
func (s *Store) Close() error {
	var err error
	s.end.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.turn <- struct{}{} // and kept: nobody writes again
		s.writeQueue()
		err = s.back.close()
	})
	return sandbox.At("store.Close", "", err)
}
