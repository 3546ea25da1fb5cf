package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

// TestUnderLoad has eight workers make, use, release, change and remove
// sandboxes of 200 names of which only some can live at once. What a worker
// holds must not be lost: while it has a command running in a sandbox, nobody
// may evict that, and a file that it wrote is there as long as the sandbox is.
func TestUnderLoad(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	span := 3 * time.Second
	if os.Getenv("ATOLL_SOAK") != "" {
		span = time.Minute
	}
	st, err := store.Open(filepath.Join(t.TempDir(), "engine.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mem := memory.New(memory.Config{})
	pool, err := warm.New(mem, warm.Config{Max: 4, Room: func(context.Context) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	const most = 64
	e, err := engine.New(t.Context(), pool, engine.Config{Store: st,
		Classes: map[string]engine.Class{"load": {MaxLive: most, Full: engine.Evict, Wait: 10 * time.Second}}})
	if err != nil {
		t.Fatal(err)
	}
	var owners [2]*engine.View
	for i := range owners {
		owners[i] = e.View(sandbox.Owner(fmt.Sprint("owner", i)), "load")
	}
	var execs, evicted, replaced atomic.Int64
	deadline := time.Now().Add(span)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 7))
			for (time.Now().Before(deadline) || execs.Load() < 100) && !t.Failed() {
				v, name := owners[rng.IntN(2)], fmt.Sprint("name ", rng.IntN(200))
				sb, made, err := v.Acquire(t.Context(), sandbox.Spec{Name: name})
				if err != nil {
					if !errors.Is(err, sandbox.Exhausted) {
						t.Errorf("acquire: %v", err)
					}
					continue
				}
				id := string(sb.ID())
				r, err := sandbox.Capture(t.Context(), sb, 4096, sandbox.Cmd{Args: []string{"sh", "-c", "cat /workspace/id 2>/dev/null || { printf " + id + " > /workspace/id; cat /workspace/id; }"}})
				switch {
				case errors.Is(err, sandbox.NotExist): // evicted or removed between the two
					var g *sandbox.Gone
					if made && !errors.As(err, &g) {
						t.Errorf("it is not there, and nobody says why: %v", err)
					}
					evicted.Add(1)
					continue
				case err != nil || !r.Success():
					t.Errorf("exec: %v, %v, %s", r.Exit, err, r.Stderr)
					continue
				case string(r.Stdout) != "" && string(r.Stdout) != id:
					t.Errorf("%s holds the file of %s: two sandboxes are one", id, r.Stdout)
				}
				execs.Add(1)
				switch rng.IntN(10) {
				case 0:
					if err := sb.Remove(t.Context()); err != nil {
						t.Errorf("remove: %v", err)
					}
					replaced.Add(1)
				case 1, 2, 3:
					if err := sb.(sandbox.Releaser).Release(t.Context()); err != nil && !errors.Is(err, sandbox.NotExist) {
						t.Errorf("release: %v", err)
					}
				case 4:
					if err := sb.(sandbox.Updater).Update(t.Context(), sandbox.Change{Labels: map[string]string{"by": fmt.Sprint(worker)}}); err != nil && !errors.Is(err, sandbox.NotExist) {
						t.Errorf("update: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d execs, %d sandboxes gone under a worker's hands, %d removed", execs.Load(), evicted.Load(), replaced.Load())

	// What the engine, the store and the backend have is the same.
	known := make(map[sandbox.ID]bool)
	for info, err := range e.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		known[info.ID] = true
		if !strings.HasPrefix(string(info.Owner), "owner") || len(info.Names) != 1 || info.Busy != 0 {
			t.Errorf("%+v", info)
		}
	}
	if len(known) > most || len(known) == 0 {
		t.Errorf("%d live, at most %d may", len(known), most)
	}
	recs, _, _, err := st.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range recs {
		if !known[rec.ID] {
			t.Errorf("the store has %s, the engine has not", rec.ID)
		}
	}
	if len(recs) != len(known) {
		t.Errorf("the store has %d, the engine %d", len(recs), len(known))
	}
	below := 0
	for _, err := range mem.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		below++
	}
	if ready := pool.Stats().Ready; below < len(known) || below > len(known)+ready+1 { // one may be being made
		t.Errorf("the backend has %d, the engine %d, %d are ready", below, len(known), ready)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
