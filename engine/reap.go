package engine

import (
	"maps"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// reap removes what has expired or was idle for too long, until the Engine is
// closed. It sleeps until the next such time.
func (e *Engine) reap() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	written, swept := time.Now(), time.Now()
	for {
		select {
		case <-e.life.Done():
			return
		case <-e.wake:
		case <-timer.C:
		}
		now := time.Now()
		next := e.reapAt(now)
		if now.Sub(written) >= writeUsedAt {
			if err := e.writeUsed(); err != nil {
				e.log.Error("when sandboxes were used could not be written down", "err", err)
			}
			e.buryAgain()
			written = now
		}
		if now.Sub(swept) >= time.Hour {
			e.sweep(now)
			swept = now
		}
		timer.Reset(max(time.Millisecond, next.Sub(now)))
	}
}

// reapAt has what is due at now removed, and returns when to look again.
func (e *Engine) reapAt(now time.Time) time.Time {
	next := now.Add(writeUsedAt)
	sooner := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	var expired, unused, again []*entry
	e.mu.Lock()
	for _, en := range e.below {
		switch {
		case en.gone != nil:
			if !en.retry.IsZero() && !en.ending {
				if en.retry.After(now) {
					sooner(en.retry)
				} else {
					again = append(again, en)
				}
			}
		case !en.rec.Spec.Expires.IsZero() && !en.rec.Spec.Expires.After(now):
			e.condemn(en, sandbox.Gone{Why: sandbox.Expired})
			expired = append(expired, en)
		default:
			if !en.rec.Spec.Expires.IsZero() {
				sooner(en.rec.Spec.Expires)
			}
			if at := en.idleAt(); !at.IsZero() {
				if at.After(now) {
					sooner(at)
				} else if !en.looking {
					en.looking = true
					unused = append(unused, en)
				}
			}
		}
	}
	unsure := e.unsure
	e.look = next
	e.mu.Unlock()
	for _, en := range expired {
		e.remove(en, true)
	}
	for _, en := range again {
		e.remove(en, true)
	}
	for _, en := range unused {
		e.spawn(func() { e.removeUnused(en) })
	}
	if len(unused) > 0 {
		sooner(now.Add(time.Second)) // to see what came of it
	}
	if unsure {
		e.spawn(e.compareAgain)
	}
	return next
}

// removeUnused removes en, which was idle for too long, unless a detached
// process runs there or somebody came meanwhile.
func (e *Engine) removeUnused(en *entry) {
	e.mu.Lock()
	uses := en.uses
	e.mu.Unlock()
	working := e.working(en)
	e.mu.Lock()
	at := en.idleAt()
	en.looking = false
	due := en.uses == uses && !at.IsZero() && !at.After(time.Now())
	if due && working {
		en.used = time.Now()
	}
	going := due && !working && e.condemn(en, sandbox.Gone{Why: sandbox.Unused})
	e.mu.Unlock()
	if going {
		e.remove(en, true)
	}
}

// rearm has the reaper look at en in time. mu is held.
func (e *Engine) rearm(en *entry) {
	if t := en.due(); !t.IsZero() && t.Before(e.look) {
		e.look = t
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// due returns when something has to be done about en; zero is never.
// Engine.mu is held.
func (en *entry) due() time.Time {
	if en.gone != nil {
		return en.retry
	}
	t := en.rec.Spec.Expires
	if at := en.idleAt(); t.IsZero() || !at.IsZero() && at.Before(t) {
		t = at
	}
	return t
}

// writeUsed writes down when sandboxes were last used.
func (e *Engine) writeUsed() error {
	e.mu.Lock()
	last := make(map[sandbox.ID]time.Time, len(e.dirty))
	for id := range e.dirty {
		if en := e.live[key{id: id}]; en != nil {
			last[id] = en.used
		}
	}
	dirty := e.dirty
	e.dirty = make(map[sandbox.ID]bool)
	e.mu.Unlock()
	err := e.store.Used(last)
	if err != nil {
		e.mu.Lock()
		maps.Copy(e.dirty, dirty)
		e.mu.Unlock()
	}
	return err
}

// sweep forgets what has been gone for long.
func (e *Engine) sweep(now time.Time) {
	if _, err := e.store.Sweep(now.Add(-Memory)); err != nil {
		e.log.Error("old tombstones could not be forgotten", "err", err)
	}
}
