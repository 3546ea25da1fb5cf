package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// median reports the middle of what was measured, and the 99th percentile.
func median(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkPut is one after the other, with 1,000 records there.
func BenchmarkPut(b *testing.B) { benchmarkPut(b, 1) }

// BenchmarkPutByEight is of eight that put at once.
func BenchmarkPutByEight(b *testing.B) { benchmarkPut(b, 8) }

func benchmarkPut(b *testing.B, writers int) {
	s := large(b, filepath.Join(b.TempDir(), "store"), 1000)
	defer s.Close()
	took := make([][]time.Duration, writers)
	var all sync.WaitGroup
	b.ResetTimer()
	for w := range writers {
		all.Go(func() {
			for i := w; i < b.N; i += writers {
				start := time.Now()
				if err := s.Put(b.Context(), record(i%10_000)); err != nil {
					b.Error(err)
					return
				}
				took[w] = append(took[w], time.Since(start))
			}
		})
	}
	all.Wait()
	b.StopTimer()
	median(b, slices.Concat(took...))
}

// large makes a store with n records.
func large(b *testing.B, path string, n int) *Store {
	s, err := Open(path, Options{Boot: "boot-1"})
	if err != nil {
		b.Fatal(err)
	}
	s.back.(*file).db.NoSync = true
	for i := range n {
		if err := s.Put(b.Context(), record(i)); err != nil {
			b.Fatal(err)
		}
	}
	s.back.(*file).db.NoSync = false
	return s
}

// BenchmarkOpen opens a store with 10,000 records, and loads it.
func BenchmarkOpen(b *testing.B) { benchmarkOpen(b, 10_000, 0) }

// BenchmarkOpenFull is with as many tombstones as there may be, besides.
func BenchmarkOpenFull(b *testing.B) { benchmarkOpen(b, 10_000, MaxTombstones) }

func benchmarkOpen(b *testing.B, records, tombstones int) {
	path := filepath.Join(b.TempDir(), "store")
	s := large(b, path, records)
	// All in one write.
	errs := s.back.update(func(t txn) error {
		for n := range tombstones {
			d := tombstone(n, t0)
			d.ID = sandbox.NewID()
			k, v, err := encodeTombstone(d)
			if err := errors.Join(err, s.bury(t, k, v, d)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(errs, s.Close()); err != nil {
		b.Fatal(err)
	}
	var open, load []time.Duration
	for b.Loop() {
		start := time.Now()
		s, err := Open(path, Options{Boot: "boot-1"})
		if err != nil {
			b.Fatal(err)
		}
		opened := time.Now()
		rs, ds, _, err := s.Load()
		if err != nil || len(rs) != records || len(ds) != tombstones {
			b.Fatalf("%d records, %d tombstones, %v", len(rs), len(ds), err)
		}
		open, load = append(open, opened.Sub(start)), append(load, time.Since(opened))
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(open)
	slices.Sort(load)
	b.ReportMetric(float64(open[len(open)/2].Microseconds())/1000, "open-ms")
	b.ReportMetric(float64(load[len(load)/2].Microseconds())/1000, "load-ms")
	if info, err := os.Stat(path); err == nil {
		b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
	}
}

// BenchmarkUsed keeps the last use of 1,000 of 10,000 records.
func BenchmarkUsed(b *testing.B) {
	s := large(b, filepath.Join(b.TempDir(), "store"), 10_000)
	defer s.Close()
	last := make(map[sandbox.ID]time.Time)
	for i := range 1000 {
		last[id(i*10)] = t0
	}
	for b.Loop() {
		if err := s.Used(last); err != nil {
			b.Fatal(err)
		}
	}
}
