package store

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"log/slog"
	"math/bits"
	"os"
)

// bbolt trusts its file. Where a page is not what it should be, it panics in
// goroutines of its own, recurses without end or reads beyond its mapping, and
// its own check does so too. So the file is looked at here first, without
// bbolt: that all pages are there, each is used once or free, and keys are in
// order and within their pages. What the pages hold has checksums.
//
// The layout is that of bbolt's file format version 2, in the byte order of
// the host. All of it that is needed:
//
//	page      id u64, flags u16, count u16, overflow u32 (further pages), content
//	meta      magic u32, version u32, page size u32, flags u32,
//	          root u64, sequence u64, freelist u64, pages u64, txid u64, fnv-1a u64
//	branch    count × (position u32, key size u32, page u64), keys
//	leaf      count × (flags u32, position u32, key size u32, value size u32), keys and values
//	freelist  count × page u64; a count of 0xffff is in the first of them
//	bucket    root u64, sequence u64, and if root is 0, a leaf page
//
// Positions count from the element that has them.

const (
	isBranch   = 0x01
	isLeaf     = 0x02
	isFreelist = 0x10

	pageHeader = 16
	element    = 16
)

// host is the byte order of the file.
var host = binary.NativeEndian

// A pages is a file that is looked at.
type pages struct {
	f    *os.File
	size int64  // of a page
	n    uint64 // how many there are
	used []bool // those that something refers to
}

// A boltMeta is what one of the two meta pages says.
type boltMeta struct {
	pageSize              int64
	root, freelist, n, tx uint64
}

// verify returns a damaged error if bbolt should not read f.
func verify(f *os.File, size int64, log *slog.Logger) error {
	m, both, err := findMeta(f, size)
	if err != nil {
		return err
	}
	if !both {
		// A host that fails while a meta page is written leaves one such.
		log.Warn("one of the two heads of the record of sandboxes is damaged; the other is used", "path", f.Name())
	}
	if m.n < 3 || m.n > uint64(size/m.pageSize) {
		return damage("it has %d bytes and should have %d pages of %d", size, m.n, m.pageSize)
	}
	p := &pages{f: f, size: m.pageSize, n: m.n, used: make([]bool, m.n)}
	p.used[0], p.used[1] = true, true
	if err := p.walk(m.root, nil, nil); err != nil {
		return err
	}
	return p.freelist(m.freelist)
}

// findMeta returns the meta page that bbolt uses, the valid one of the later
// transaction, and whether both are valid.
func findMeta(f *os.File, size int64) (m boltMeta, both bool, err error) {
	a, okA := readMeta(f, 0)
	if okA {
		b, okB := readMeta(f, a.pageSize)
		if okB && b.pageSize == a.pageSize && b.tx > a.tx {
			a = b
		}
		return a, okB, nil
	}
	// The second is at the page size, which only it knows.
	for at := int64(1024); at <= 1<<24 && at < size; at *= 2 {
		if b, ok := readMeta(f, at); ok && b.pageSize == at {
			return b, false, nil
		}
	}
	return m, false, damage("it does not begin as such a file does")
}

func readMeta(f *os.File, at int64) (m boltMeta, ok bool) {
	var b [pageHeader + 64]byte
	if n, _ := f.ReadAt(b[:], at); n < len(b) {
		return m, false
	}
	v := b[pageHeader:]
	h := fnv.New64a()
	h.Write(v[:56])
	m = boltMeta{
		pageSize: int64(host.Uint32(v[8:])),
		root:     host.Uint64(v[16:]), freelist: host.Uint64(v[32:]), n: host.Uint64(v[40:]), tx: host.Uint64(v[48:]),
	}
	return m, host.Uint32(v) == 0xED0CDAED && host.Uint32(v[4:]) == 2 && host.Uint64(v[56:]) == h.Sum64() &&
		m.pageSize >= 1024 && m.pageSize <= 1<<24 && bits.OnesCount64(uint64(m.pageSize)) == 1
}

// take reads the page id with those that belong to it, and marks them as used.
func (p *pages) take(id uint64) ([]byte, error) {
	if id < 2 || id >= p.n {
		return nil, damage("there is no page %d", id)
	}
	var head [pageHeader]byte
	if _, err := p.f.ReadAt(head[:], int64(id)*p.size); err != nil {
		return nil, err
	}
	more := uint64(host.Uint32(head[12:]))
	if host.Uint64(head[:]) != id || more >= p.n-id {
		return nil, damage("page %d is not itself", id)
	}
	for i := id; i <= id+more; i++ {
		if p.used[i] {
			return nil, damage("page %d is used twice", i)
		}
		p.used[i] = true
	}
	b := make([]byte, int64(more+1)*p.size)
	_, err := p.f.ReadAt(b, int64(id)*p.size)
	return b, err
}

// walk looks at the tree below page id, whose first key is lo, if that is not
// nil, and whose keys are less than hi, if that is not nil. bbolt finds a page
// in the one above by its first key: were that another, it would enter the
// page there once more.
func (p *pages) walk(id uint64, lo, hi []byte) error {
	b, err := p.take(id)
	if err != nil {
		return err
	}
	if lo != nil && host.Uint16(b[10:]) == 0 {
		return damage("page %d is empty", id)
	}
	switch flags := host.Uint16(b[8:]); flags {
	case isBranch:
		return p.branch(id, b, lo, hi)
	case isLeaf:
		return p.leaf(id, b, lo, hi)
	default:
		return damage("page %d has the type %#x", id, flags)
	}
}

func (p *pages) branch(id uint64, b, lo, hi []byte) error {
	count := int(host.Uint16(b[10:]))
	if count == 0 {
		return damage("page %d leads nowhere", id)
	}
	keys := make([][]byte, count+1)
	keys[count] = hi
	var prev []byte
	for i := range count {
		e, err := from(b, i)
		if err == nil {
			keys[i], err = cut(e, host.Uint32(e), host.Uint32(e[4:]))
		}
		if err == nil {
			err = inOrder(keys[i], prev, lo, hi)
		}
		if err != nil {
			return damage("page %d: %v", id, err)
		}
		prev = keys[i]
	}
	for i := range count {
		e, _ := from(b, i)
		if err := p.walk(host.Uint64(e[8:]), keys[i], keys[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (p *pages) leaf(id uint64, b, lo, hi []byte) error {
	var prev []byte
	for i := range int(host.Uint16(b[10:])) {
		e, err := from(b, i)
		if err != nil {
			return damage("page %d: %v", id, err)
		}
		flags, pos, k, v := host.Uint32(e), host.Uint32(e[4:]), host.Uint32(e[8:]), host.Uint32(e[12:])
		key, err := cut(e, pos, k)
		if err == nil {
			err = inOrder(key, prev, lo, hi)
		}
		var value []byte
		if err == nil {
			value, err = cut(e[pos:], k, v)
		}
		if err != nil {
			return damage("page %d: %v", id, err)
		}
		prev = key
		switch flags {
		case 0:
		case 1:
			err = p.bucket(id, value)
		default:
			err = damage("page %d: an entry has the type %#x", id, flags)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pages) bucket(id uint64, b []byte) error {
	if len(b) < 16 {
		return damage("page %d: a bucket is cut short", id)
	}
	if root := host.Uint64(b); root != 0 {
		return p.walk(root, nil, nil)
	}
	if len(b) < 16+pageHeader || host.Uint16(b[16+8:]) != isLeaf {
		return damage("page %d: a bucket is not one", id)
	}
	return p.leaf(id, b[16:], nil, nil)
}

func (p *pages) freelist(id uint64) error {
	b, err := p.take(id)
	if err != nil {
		return err
	}
	if host.Uint16(b[8:]) != isFreelist {
		return damage("page %d is not the list of free pages", id)
	}
	count, ids := uint64(host.Uint16(b[10:])), b[pageHeader:]
	if count == 0xffff {
		count, ids = host.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return damage("the list of free pages is cut short")
	}
	for i := range count {
		f := host.Uint64(ids[8*i:])
		if f < 2 || f >= p.n || p.used[f] {
			return damage("page %d is not free", f)
		}
		p.used[f] = true
	}
	return nil
}

// from returns page b from its element i on.
func from(b []byte, i int) ([]byte, error) {
	at := pageHeader + i*element
	if at+element > len(b) {
		return nil, damage("it has too many entries")
	}
	return b[at:], nil
}

// cut returns n bytes of b at pos.
func cut(b []byte, pos, n uint32) ([]byte, error) {
	if uint64(pos)+uint64(n) > uint64(len(b)) {
		return nil, damage("an entry reaches beyond it")
	}
	return b[pos : pos+n], nil
}

// inOrder returns an error unless key is more than prev and less than hi, and
// if there is no prev, is lo; nil is no bound.
func inOrder(key, prev, lo, hi []byte) error {
	if len(key) == 0 || prev != nil && bytes.Compare(key, prev) <= 0 || prev == nil && lo != nil && !bytes.Equal(key, lo) || hi != nil && bytes.Compare(key, hi) >= 0 {
		return damage("its keys are not in order")
	}
	return nil
}

// verifyValues looks at every value, and whether there are as many as there
// should be.
func verifyValues(t txn) error {
	count := func(b bucket, want uint64, check func(k, v []byte) error) error {
		var n uint64
		err := t.each(b, func(k, v []byte) error {
			n++
			return check(k, v)
		})
		if err == nil && n != want {
			err = damage("there are %d %s, not %d", n, b, want)
		}
		return err
	}
	err := count(records, t.number(records), func(k, v []byte) error {
		_, err := unseal(k, v)
		return err
	})
	if err != nil {
		return err
	}
	err = count(tombs, t.number(tombs), func(k, v []byte) error {
		_, body, err := splitTombstone(v)
		if err == nil {
			_, err = unseal(k, body)
		}
		return err
	})
	if err != nil {
		return err
	}
	// Each age is that of a tombstone, and there are as many.
	err = count(ages, t.number(tombs), func(k, v []byte) error {
		if len(k) != 8 || len(v) < 8 || binary.BigEndian.Uint64(k) > t.number(ages) {
			return damage("an age is not one")
		}
		number, _, err := splitTombstone(t.get(tombs, v[8:]))
		if err == nil && !bytes.Equal(number, k) {
			err = damage("an age is that of no tombstone")
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.each(uses, func(k, v []byte) error {
		_, err := unsealTime(k, v)
		return err
	})
}
