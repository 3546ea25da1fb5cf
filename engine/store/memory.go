package store

import (
	"slices"
	"sync"
)

// memory is a backing without a file.
type memory struct {
	mu     sync.RWMutex
	tables map[bucket]*table
}

// A table is a bucket of a memory.
type table struct {
	keys   []string // sorted
	values map[string][]byte
	number uint64
}

func newMemory() *memory {
	m := &memory{tables: make(map[bucket]*table)}
	for _, b := range buckets {
		m.tables[b] = &table{values: make(map[string][]byte)}
	}
	return m
}

// update relies on that no change here fails half way: what Store applies to
// what it wrote itself does not.
func (m *memory) update(f func(txn) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f(tables(m.tables))
}

func (m *memory) view(f func(txn) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return f(tables(m.tables))
}

func (m *memory) close() error { return nil }

type tables map[bucket]*table

func (t tables) get(b bucket, key []byte) []byte { return t[b].values[string(key)] }

func (t tables) put(b bucket, key, value []byte) error {
	k := string(key)
	if _, ok := t[b].values[k]; !ok {
		i, _ := slices.BinarySearch(t[b].keys, k)
		t[b].keys = slices.Insert(t[b].keys, i, k)
	}
	t[b].values[k] = slices.Clone(value)
	return nil
}

func (t tables) delete(b bucket, key []byte) error {
	k := string(key)
	if i, ok := slices.BinarySearch(t[b].keys, k); ok {
		t[b].keys = slices.Delete(t[b].keys, i, i+1)
		delete(t[b].values, k)
	}
	return nil
}

func (t tables) first(b bucket) (key, value []byte) {
	if len(t[b].keys) == 0 {
		return nil, nil
	}
	k := t[b].keys[0]
	return []byte(k), t[b].values[k]
}

func (t tables) each(b bucket, f func(key, value []byte) error) error {
	for _, k := range t[b].keys {
		if err := f([]byte(k), t[b].values[k]); err != nil {
			return err
		}
	}
	return nil
}

func (t tables) number(b bucket) uint64 { return t[b].number }

func (t tables) setNumber(b bucket, n uint64) error {
	t[b].number = n
	return nil
}
