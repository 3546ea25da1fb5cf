package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// crowded is the configuration of a daemon that has room for a part of those
// who want to get in.
const crowded = `[protocols.native]
max_live = 64
when_full = "evict"
`

// load measures a command in a sandbox that lives while others make, use,
// release and remove sandboxes, and evict each other's: beside the same command
// when nobody does, and beside the plain handler's while they do.
func (b *bench) load(ctx context.Context) (err error) {
	d, err := b.another(ctx, "crowded", crowded)
	if err != nil {
		return err
	}
	defer func() { err = d.stopAfter(err) }()
	id, err := d.create(ctx, spec{noCPULimit: true}) // the one used last, so it is never evicted
	if err != nil {
		return err
	}
	exec := contestant{"exec", func(ctx context.Context) (time.Duration, error) { return d.timedExec(ctx, id, "true") }}
	plain := contestant{"net/http + os/exec", func(ctx context.Context) (time.Duration, error) { return b.plain.timedExec(ctx, "true") }}

	idle, busy, handler := result{name: "the same, nobody else there"}, result{name: "exec"}, result{name: "net/http + os/exec, likewise"}
	var mob mob
	n := b.size(200, 40)
	for range b.size(5, 2) {
		before, err := race(ctx, 1, n, 10, exec)
		if err != nil {
			return err
		}
		end := mob.begin(ctx, d, 8)
		select { // let it get crowded
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		during, err := race(ctx, 1, n, 0, exec, plain)
		end()
		if err != nil {
			return err
		}
		idle.rounds = append(idle.rounds, before[0].rounds...)
		busy.rounds = append(busy.rounds, during[0].rounds...)
		handler.rounds = append(handler.rounds, during[1].rounds...)
	}
	if err := mob.failure(); err != nil {
		b.note("under load: %v", err)
	}
	b.note("under load: %d found no room, and %d lost their sandbox to another", mob.noRoom.Load(), mob.lost.Load())
	turns, failed := float64(mob.turns.Load())/mob.spent.Seconds(), float64(mob.failed.Load())
	b.add(busy.beside("exec under load", idle), busy.besideP99("exec under load, p99", idle),
		busy.beside("exec under load", handler), busy.besideP99("exec under load, p99", handler),
		Row{Row: "that load: acquire, run, release or remove", Unit: "per s", N: int(mob.turns.Load()), P50: turns, P99: turns},
		Row{Row: "that load: failures", Unit: "count", N: int(mob.turns.Load()), P50: failed, P99: failed}.promise(failed == 0, "none"))
	return nil
}

// A mob is those who want sandboxes of 200 names, more than may live.
type mob struct {
	turns, noRoom, lost, failed atomic.Int64
	spent                       time.Duration

	mu   sync.Mutex
	last error // guarded by mu; of those that failed
}

// begin lets as many workers as that loose on d, until end is called, which
// waits for them.
func (m *mob) begin(ctx context.Context, d *daemon, workers int) (end func()) {
	running, stop := context.WithCancel(ctx)
	start := time.Now()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for running.Err() == nil {
				m.count(ctx, m.turn(ctx, d))
			}
		})
	}
	return func() {
		stop()
		all.Wait()
		m.spent += time.Since(start)
	}
}

// turn has one worker get a sandbox, use it, and be done with it: it removes
// every fourth, releases another, and leaves the rest as they are.
func (m *mob) turn(ctx context.Context, d *daemon) error {
	id, err := d.acquire(ctx, fmt.Sprint("name ", rand.IntN(200)), spec{})
	if err != nil {
		return err
	}
	if _, err := d.timedExec(ctx, id, "true"); err != nil {
		return err
	}
	switch rand.IntN(4) {
	case 0:
		return d.remove(ctx, id)
	case 1:
		return d.release(ctx, id)
	}
	return nil
}

// count counts a turn that ended with err. That all sandboxes are in use, or
// that another took what one has just got, is no failure.
func (m *mob) count(ctx context.Context, err error) {
	switch {
	case err == nil:
		m.turns.Add(1)
	case refused(err, http.StatusNotFound):
		m.lost.Add(1)
	case refused(err, http.StatusTooManyRequests):
		m.noRoom.Add(1)
	case ctx.Err() == nil:
		m.failed.Add(1)
		m.mu.Lock()
		m.last = err
		m.mu.Unlock()
	}
}

// failure returns the last failure.
func (m *mob) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}
