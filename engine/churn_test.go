package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
)

// TestManyLivesLeaveNothing makes, uses and removes sandboxes as fast as it
// goes. Afterwards nothing has grown but the tombstones, which are bounded by
// their age and number.
func TestManyLivesLeaveNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	rounds := 2000
	if os.Getenv("ATOLL_SOAK") != "" {
		rounds = 70_000 // more than there are ports, uids and process ids
	}
	file := filepath.Join(t.TempDir(), "engine.db")
	st, err := store.Open(file, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	rt := memory.New(memory.Config{})
	e, err := engine.New(t.Context(), rt, engine.Config{Store: st, Metrics: reg, MaxLive: 40,
		Owners: map[sandbox.Owner]engine.Tenant{"alice": {MaxLive: 20, MaxRunning: 20}, "bob": {MaxLive: 20, MaxRunning: 20}}})
	if err != nil {
		t.Fatal(err)
	}
	lives := func(n int) {
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				owner := sandbox.Owner([]string{"alice", "bob"}[w%2])
				for i := range n / 8 {
					name := fmt.Sprintf("worker %d life %d", w, i)
					sb, made, err := e.View(owner, "churn").Acquire(t.Context(), sandbox.Spec{Name: name, ID: sandbox.ID(fmt.Sprintf("%s%02dlife%06d", owner, w, i))})
					if err != nil || !made {
						t.Errorf("%s: made %v, %v", name, made, err)
						return
					}
					if i%10 == 0 {
						if exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil || !exit.Success() {
							t.Errorf("%s: %v, %v", name, exit, err)
						}
					}
					if err := sb.Remove(t.Context()); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
		wg.Wait()
	}
	size := func() (routines, series int, heap uint64, disk int64) {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			series += len(f.GetMetric())
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), series, m.HeapAlloc, info.Size()
	}
	lives(rounds / 2)
	routines, series, heap, _ := size()
	lives(rounds / 2) // the same names and ids again
	routines2, series2, heap2, disk2 := size()
	t.Logf("%d lives: %d and %d goroutines, %d and %d series, %d and %d bytes of heap, %d of disk", rounds, routines, routines2, series, series2, heap, heap2, disk2)
	if routines2 > routines+2 || series2 != series || heap2 > heap+heap/2+4<<20 {
		t.Error("something grew")
	}
	if most := int64(rounds)*4096 + 1<<20; disk2 > most {
		t.Errorf("the store has %d bytes", disk2)
	}
	recs, dead, _, err := st.Load()
	if err != nil || len(recs) != 0 || len(dead) != rounds/2/8*8 {
		t.Errorf("the store has %d records, %d tombstones, %v", len(recs), len(dead), err)
	}
	s, err := e.Status(t.Context())
	if err != nil || s.Live != 0 || s.Busy != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	// Every place is free again.
	for i := range 20 {
		for _, owner := range []sandbox.Owner{"alice", "bob"} {
			acquire(t, e.View(owner, "churn"), sandbox.Spec{Name: fmt.Sprint("after ", i)})
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
