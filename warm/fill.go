package warm

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// minSweep is how many sandboxes may be known before anybody looks which of
// them are gone.
const minSweep = 1024

// run is the filler: it does what is to be done, one thing after the other,
// and sleeps until something changes.
func (rt *Runtime) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for rt.life.Err() == nil {
		do, next := rt.plan(time.Now())
		if do != nil {
			do()
			continue
		}
		timer.Reset(next)
		select {
		case <-rt.life.Done():
		case <-rt.wake:
		case <-timer.C:
		}
	}
}

// plan returns the next thing to do, or how long there will be none if nothing
// changes.
func (rt *Runtime) plan(now time.Time) (do func(), sleep time.Duration) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	sleep = time.Hour
	// due reports whether the time t has come, and has run come back when it
	// does.
	due := func(t time.Time) bool {
		d := t.Sub(now)
		if d > 0 {
			sleep = min(sleep, d)
		}
		return d <= 0
	}
	rt.share(now)
	for _, d := range rt.specs {
		for len(d.ready) > 0 && (len(d.ready) > d.want || due(d.ready[0].made.Add(rt.cfg.MaxAge))) {
			rt.dropLocked(d.ready[0])
			d.ready = d.ready[1:]
		}
	}
	for i, r := range rt.leaving {
		if due(r.pause.until) {
			rt.leaving = slices.Delete(rt.leaving, i, i+1)
			return func() { rt.leave(r) }, 0
		}
	}
	var next *demand
	for _, d := range rt.specs {
		for _, r := range d.ready {
			if due(r.seen.Add(checkEvery)) {
				return func() { rt.check(r) }, 0
			}
		}
		if len(d.asked) > 0 && len(d.ready) > d.pinned {
			due(d.asked[0].Add(rt.cfg.Window))
		}
		if len(d.ready) < d.want && due(d.pause.until) && (next == nil || before(d, next)) {
			next = d
		}
	}
	if len(rt.known) >= rt.sweepAt {
		return rt.sweep, 0
	}
	if next != nil && due(rt.roomAt) && due(rt.turnLocked(next, now)) {
		return func() { rt.fill(next) }, 0
	}
	return nil, sleep
}

// before reports whether a gets its next one before b: who has none first,
// then who is pinned, then who is asked for most.
func before(a, b *demand) bool {
	for _, c := range []int{empty(b) - empty(a), missing(b) - missing(a), len(b.asked) - len(a.asked)} {
		if c != 0 {
			return c < 0
		}
	}
	return a.key < b.key
}

func empty(d *demand) int { return 1 - min(1, len(d.ready)) }

func missing(d *demand) int { return max(0, d.pinned-len(d.ready)) }

// turnLocked is when the filler may begin with the next one for d. While
// requests wait for theirs, that is when they have held it up long enough. Else
// it is now, unless there are still some for d: then what somebody has just got
// is left alone with the machine for its first moments.
func (rt *Runtime) turnLocked(d *demand, now time.Time) time.Time {
	switch {
	case rt.cold > 0:
		return rt.since.Add(polite)
	case 2*len(d.ready) >= d.want:
		return rt.handed.Add(lull)
	}
	return now
}

// fill makes one for d.
func (rt *Runtime) fill(d *demand) {
	ctx, cancel := context.WithTimeout(rt.life, fillTime)
	defer cancel()
	if !rt.hasRoom(ctx) {
		return
	}
	f := &fill{of: d, began: time.Now(), done: make(chan struct{})}
	rt.mu.Lock()
	if rt.turnLocked(d, f.began).After(f.began) || rt.closed {
		rt.mu.Unlock()
		return
	}
	rt.since = f.began
	rt.filling = f
	rt.mu.Unlock()

	sb, err := rt.inner.Create(ctx, clone(d.spec))

	rt.mu.Lock()
	defer rt.mu.Unlock()
	defer close(f.done)
	rt.filling = nil
	now := time.Now()
	if err != nil {
		if rt.life.Err() == nil {
			d.err = err
			d.pause.fail(now)
			rt.stats.Failed++
			level := slog.LevelDebug
			if d.pause.failed == 1 {
				level = slog.LevelWarn
			}
			rt.log.Log(ctx, level, "no sandbox could be made ready", "image", d.spec.Image, "err", err, "pause", d.pause.until.Sub(now))
		}
		return
	}
	d.err, d.pause = nil, pause{}
	rt.holdLocked(d, sb)
	rt.log.Debug("a sandbox is ready", "id", sb.ID(), "image", d.spec.Image, "took", now.Sub(f.began))
}

// holdLocked makes sb one of those that are ready for d.
func (rt *Runtime) holdLocked(d *demand, sb sandbox.Sandbox) {
	now := time.Now()
	r := &ready{sb: sb, of: d, made: now, seen: now}
	rt.held[sb.ID()] = r
	d.ready = append(d.ready, r)
	rt.stats.Filled++
}

// hasRoom asks whether there is room, and says so in the log when the answer
// changes.
func (rt *Runtime) hasRoom(ctx context.Context) bool {
	err := rt.cfg.Room(ctx)
	if rt.life.Err() != nil {
		return false
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	switch {
	case err != nil && rt.noRoom == nil:
		rt.log.Info("no sandboxes are made ready: there is no room", "err", err)
	case err == nil && rt.noRoom != nil:
		rt.log.Info("sandboxes are made ready again")
	}
	rt.noRoom = err
	if err != nil {
		rt.roomAt = time.Now().Add(roomPause)
	}
	return err == nil
}

// leave removes a sandbox that is not wanted any more, or has it tried again.
func (rt *Runtime) leave(r *ready) {
	if err := rt.remove(r); err != nil && rt.life.Err() == nil {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		r.pause.fail(time.Now())
		rt.leaving = append(rt.leaving, r)
		rt.log.Warn("a ready sandbox could not be removed", "id", r.sb.ID(), "err", err)
	}
}

// remove ends a sandbox that nobody got. It stays hidden until it is gone.
func (rt *Runtime) remove(r *ready) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(rt.life), removeTime)
	defer cancel()
	if err := r.sb.Remove(ctx); err != nil && !errors.Is(err, sandbox.NotExist) {
		return sandbox.At("warm.remove", r.sb.ID(), err)
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.buryLocked(r)
	return nil
}

// check looks whether a ready sandbox lives, and forgets it if not. One of
// which that cannot be said stays.
func (rt *Runtime) check(r *ready) {
	ctx, cancel := context.WithTimeout(rt.life, handTime)
	defer cancel()
	_, err := rt.look(ctx, r.sb.ID())
	rt.mu.Lock()
	defer rt.mu.Unlock()
	r.seen = time.Now()
	if !errors.Is(err, sandbox.NotExist) {
		return
	}
	if i := slices.Index(r.of.ready, r); i >= 0 { // else somebody took it, who looks as well
		r.of.ready = slices.Delete(r.of.ready, i, i+1)
		rt.dropLocked(r)
		rt.log.Warn("a ready sandbox has died", "id", r.sb.ID())
	}
}

// sweep forgets the known sandboxes that are gone.
func (rt *Runtime) sweep() {
	ctx, cancel := context.WithTimeout(rt.life, fillTime)
	defer cancel()
	rt.mu.Lock()
	gone := make(map[sandbox.ID]bool, len(rt.known))
	for id := range rt.known {
		gone[id] = true
	}
	rt.mu.Unlock()
	var err error
	for info, e := range rt.inner.List(ctx) {
		if err = e; err != nil {
			break
		}
		delete(gone, info.ID)
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if err == nil {
		for id := range gone {
			delete(rt.known, id)
		}
	}
	rt.sweepAt = max(minSweep, 2*len(rt.known))
}
