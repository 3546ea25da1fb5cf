package warm

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// Prime has one ready for spec, whatever was asked for before.
func (rt *Runtime) Prime(ctx context.Context, spec sandbox.Spec) error {
	q := newRequest(spec)
	sb, err := rt.inner.Create(ctx, q.rest)
	if err != nil {
		return err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	d := rt.specs[q.key]
	if d == nil {
		d = newDemand(&q)
		rt.specs[q.key] = d
	}
	rt.holdLocked(d, sb)
	return nil
}

// Freeze ends the filler.
func (rt *Runtime) Freeze() {
	rt.end()
	rt.work.Wait()
}

// Known is how many sandboxes it remembers as somebody's.
func (rt *Runtime) Known() int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return len(rt.known)
}

// Held is how many sandboxes are hidden.
func (rt *Runtime) Held() int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return len(rt.held)
}

// Specs is how many Specs it remembers.
func (rt *Runtime) Specs() int {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return len(rt.specs)
}

var Key = key

const (
	MaxSpecs   = maxSpecs
	MinSweep   = minSweep
	RoomPause  = roomPause
	CheckEvery = checkEvery
	Polite     = polite
	Lull       = lull
	HandTime   = handTime
	FirstPause = firstPause
	LastPause  = lastPause
)

var (
	EnoughMemory = enoughMemory
	LittleLoad   = littleLoad
)
