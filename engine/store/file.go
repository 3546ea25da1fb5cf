package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/atoll-run/atoll/sandbox"
)

var (
	errHeld      = errors.New("another process holds the lock")
	errIrregular = errors.New("not a regular file")
	errThere     = errors.New("the file is there")
)

// Open opens the store in the file at path, and makes it if it is not there;
// the folder must be. Whoever has it closes it.
//
// Errors name the file and say how to go on: [sandbox.Conflict] if another
// process has it, [sandbox.Denied] if it or its folder cannot be written,
// [sandbox.Exhausted] if there is no room for it, [sandbox.Unsupported] if a
// newer version wrote it, [sandbox.Internal] if it is damaged. It is then left
// as it is.
func Open(path string, opt Options) (*Store, error) {
	log := opt.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	for range 10 {
		f, m, err := openFile(path, log)
		if errors.Is(err, fs.ErrNotExist) {
			f, m, err = makeFile(path, opt.Boot, log)
			if errors.Is(err, errThere) {
				continue // somebody else made it meanwhile
			}
		}
		if err != nil {
			return nil, refusal(path, err)
		}
		s := newStore(f, m, opt.Boot)
		s.booted = m.Boot == opt.Boot
		return s, nil
	}
	return nil, refusal(path, errHeld)
}

// A file is a backing in a bbolt database.
type file struct {
	db   *bbolt.DB
	f    *os.File // the db's own
	path string
	log  *slog.Logger

	// Whose turn it is has these.
	size    int64 // of the file when it was last looked at: it never shrinks
	broken  error // why nothing can be written until the file is opened again
	failing bool  // the last write failed

	panicked atomic.Bool // bbolt may hold locks for good
}

func openFile(path string, log *slog.Logger) (*file, Meta, error) {
	f, err := lockFile(path, os.O_RDWR)
	if err != nil {
		return nil, Meta{}, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, Meta{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := f.Chmod(0o600); err != nil {
			f.Close()
			return nil, Meta{}, err
		}
		log.Warn("others could read the record of sandboxes; they no longer can", "path", path, "mode", info.Mode().Perm())
	}
	if err := verify(f, info.Size(), log); err != nil {
		f.Close()
		return nil, Meta{}, err
	}
	b, err := openBolt(f, path, log)
	if err != nil {
		return nil, Meta{}, err
	}
	var m Meta
	err = b.view(func(t txn) (err error) {
		for i, name := range buckets {
			if t.(boltTxn).Bucket([]byte(name)) == nil {
				return damage("it has no %s", name)
			}
			if i > 0 {
				continue
			}
			// A newer version may have other buckets.
			if m, err = getMeta(t); err != nil {
				return err
			}
			m.Fresh = m.Unsettled
		}
		return verifyValues(t)
	})
	if err != nil {
		b.close()
		return nil, Meta{}, err
	}
	return b, m, nil
}

// makeFile makes the file under another name first, so that one that is there
// is whole, and returns errThere if it is there by now.
func makeFile(path, boot string, log *slog.Logger) (_ *file, _ Meta, err error) {
	tmp := path + ".new"
	f, err := lockFile(tmp, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, Meta{}, err
	}
	// Whoever makes the file holds this lock, until the file is closed. So
	// nobody else makes it now, and what was there before is of no use.
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		os.Remove(tmp)
		f.Close()
		return nil, Meta{}, errThere
	}
	if err := errors.Join(f.Truncate(0), f.Chmod(0o600)); err != nil {
		os.Remove(tmp)
		f.Close()
		return nil, Meta{}, err
	}
	b, err := openBolt(f, path, log)
	if err != nil {
		os.Remove(tmp)
		return nil, Meta{}, err
	}
	m := Meta{Version: Version, Made: time.Now().UTC().Round(0), Boot: boot, Unsettled: true, Fresh: true}
	err = b.change(func(tx *bbolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return putMeta(boltTxn{tx}, m)
	})
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		os.Remove(tmp)
		b.close()
		return nil, Meta{}, err
	}
	return b, m, nil
}

// lockFile opens the file at path and takes its lock.
func lockFile(path string, flag int) (*os.File, error) {
	for range 10 {
		f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
		switch {
		case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENXIO):
			return nil, errIrregular
		case err != nil:
			return nil, err
		}
		held, err := lock(f)
		if err != nil {
			f.Close()
			return nil, err
		}
		// It may have been renamed or removed between the two.
		if there, err := os.Lstat(path); err == nil && os.SameFile(held, there) {
			return f, nil
		}
		f.Close()
	}
	return nil, errHeld // somebody is busy with it
}

func lock(f *os.File) (fs.FileInfo, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errIrregular
	}
	for end := time.Now().Add(lockPatience); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			if time.Now().After(end) {
				return nil, errHeld
			}
			time.Sleep(10 * time.Millisecond)
		default:
			return info, err
		}
	}
}

// lockPatience is how long a lock may stay after who held it was killed: a
// child that it had begun to fork has the descriptor until it executes.
const lockPatience = 500 * time.Millisecond

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openBolt gives f, which is locked, to bbolt. If it fails, f is closed.
func openBolt(f *os.File, path string, log *slog.Logger) (_ *file, err error) {
	b := &file{f: f, path: path, log: log}
	err = b.guard(func() (err error) {
		b.db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout:      time.Millisecond, // the lock is ours already
			FreelistType: bbolt.FreelistMapType,
			NoStatistics: true,
			OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return f, nil },
		})
		return err
	})
	if err != nil {
		b.drop()
		return nil, err
	}
	return b, nil
}

// drop gives the lock back without bbolt. What bbolt has mapped keeps the lock
// when the file is closed.
func (b *file) drop() error {
	return errors.Join(syscall.Flock(int(b.f.Fd()), syscall.LOCK_UN), b.f.Close())
}

// guard calls f and makes its panics errors: bbolt panics when it reads what
// it did not write, and a page that the disk cannot read is a fault.
func (b *file) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			b.panicked.Store(true)
			err = damage("%v", p)
		}
	}()
	return f()
}

func (b *file) view(f func(txn) error) error {
	if b.panicked.Load() {
		return damage("it was found damaged before")
	}
	return b.guard(func() error {
		return b.db.View(func(tx *bbolt.Tx) error { return f(boltTxn{tx}) })
	})
}

func (b *file) update(f func(txn) error) error {
	err := b.tryUpdate(f)
	switch {
	case err != nil && !b.failing:
		b.log.Error("the record of sandboxes cannot be written", "path", b.path, "err", err)
	case err == nil && b.failing:
		b.log.Info("the record of sandboxes can be written again", "path", b.path)
	}
	b.failing = err != nil
	return err
}

func (b *file) tryUpdate(f func(txn) error) error {
	switch {
	case b.panicked.Load():
		return damage("it was found damaged before")
	case b.broken != nil:
		return b.broken
	}
	if err := b.there(); err != nil {
		return err
	}
	return b.change(func(tx *bbolt.Tx) error { return f(boltTxn{tx}) })
}

func (b *file) change(f func(*bbolt.Tx) error) error {
	err := b.guard(func() error { return b.db.Update(f) })
	var d damaged
	switch {
	case err == nil:
	case unsynced(err):
		// The kernel forgets what it could not write, and says so once. What
		// was built on that would not stand.
		b.broken = &sandbox.Error{Kind: sandbox.Unavailable, Msg: "the disk that keeps the record of sandboxes failed", Hint: "ask the operator to see to the disk and start the daemon again", Err: err}
		return b.broken
	case errors.As(err, &d):
		b.broken = err
	}
	return err
}

// unsynced reports whether err is that of a sync, and so not of a write.
func unsynced(err error) bool {
	if _, ok := err.(syscall.Errno); ok { //nolint:errorlint // fdatasync's error comes as it is, others wrapped
		return true
	}
	var p *fs.PathError
	return errors.As(err, &p) && p.Op == "sync"
}

// there returns an error unless the file is still at its path and as long as
// bbolt made it: what is written to another is not kept.
func (b *file) there() error {
	held, err := b.f.Stat()
	if err != nil {
		return err
	}
	if held.Size() < b.size {
		b.broken = damage("it was cut from %d bytes to %d", b.size, held.Size())
		return b.broken
	}
	b.size = held.Size()
	at, err := os.Lstat(b.path)
	if err == nil && os.SameFile(held, at) {
		return nil
	}
	return &sandbox.Error{
		Kind: sandbox.Unavailable, Msg: "the record of sandboxes was moved away", Hint: "ask the operator to put it back and start the daemon again",
		Err: errors.Join(fmt.Errorf("%s is not the file that was opened", b.path), err),
	}
}

func (b *file) close() error {
	if b.panicked.Load() {
		return b.drop()
	}
	return b.db.Close()
}

// A boltTxn is a txn of bbolt.
type boltTxn struct{ *bbolt.Tx }

func (t boltTxn) bucket(b bucket) *bbolt.Bucket {
	if x := t.Bucket([]byte(b)); x != nil {
		return x
	}
	panic("there is no bucket " + string(b))
}

func (t boltTxn) get(b bucket, key []byte) []byte       { return t.bucket(b).Get(key) }
func (t boltTxn) put(b bucket, key, value []byte) error { return t.bucket(b).Put(key, value) }
func (t boltTxn) delete(b bucket, key []byte) error     { return t.bucket(b).Delete(key) }
func (t boltTxn) first(b bucket) (key, value []byte)    { return t.bucket(b).Cursor().First() }
func (t boltTxn) number(b bucket) uint64                { return t.bucket(b).Sequence() }
func (t boltTxn) setNumber(b bucket, n uint64) error    { return t.bucket(b).SetSequence(n) }

func (t boltTxn) each(b bucket, f func(key, value []byte) error) error {
	return t.bucket(b).ForEach(f)
}
