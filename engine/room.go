package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A reservation is room for one sandbox that is being made.
type reservation struct {
	owner sandbox.Owner
	class string
}

// tenant returns the bounds of o: its own, or those of the nearest above it.
func (e *Engine) tenant(o sandbox.Owner) Tenant {
	for {
		if t, ok := e.cfg.Owners[o]; ok {
			return t
		}
		i := strings.LastIndexByte(string(o), '/')
		if i < 0 {
			return Tenant{}
		}
		o = o[:i]
	}
}

// above returns o and all that are above it, and have bounds.
func (e *Engine) above(o sandbox.Owner) []sandbox.Owner {
	var all []sandbox.Owner
	for {
		if _, ok := e.cfg.Owners[o]; ok {
			all = append(all, o)
		}
		i := strings.LastIndexByte(string(o), '/')
		if i < 0 {
			return all
		}
		o = o[:i]
	}
}

// root returns the first name of o: who pays for it.
func root(o sandbox.Owner) sandbox.Owner {
	if i := strings.IndexByte(string(o), '/'); i >= 0 {
		return o[:i]
	}
	return o
}

// A bound is a number of sandboxes that may not be passed.
type bound struct {
	what  string // "in all", …
	max   int
	has   func(owner sandbox.Owner, class string) bool // who counts
	class bool                                         // it is the class's own
}

func (e *Engine) bounds(v *View) []bound {
	var bs []bound
	for _, o := range e.above(v.owner) {
		if max := e.cfg.Owners[o].MaxLive; max > 0 {
			bs = append(bs, bound{"for " + string(o), max, func(owner sandbox.Owner, _ string) bool { return o.Sees(owner) }, false})
		}
	}
	if v.class.MaxLive > 0 {
		bs = append(bs, bound{"of this kind", v.class.MaxLive, func(_ sandbox.Owner, class string) bool { return class == v.name }, true})
	}
	if e.cfg.MaxLive > 0 {
		bs = append(bs, bound{"in all", e.cfg.MaxLive, func(sandbox.Owner, string) bool { return true }, false})
	}
	return bs
}

// count returns how many count for b: those that live, those that are going
// and those that are being made. mu is held.
func (e *Engine) count(b bound) int {
	n := 0
	for _, en := range e.below {
		if b.has(en.owner, en.class) {
			n++
		}
	}
	for _, r := range e.making {
		if b.has(r.owner, r.class) {
			n++
		}
	}
	return n
}

// room takes room for one sandbox, evicting another where the class says so.
// It is given back with unreserve, or with free when the sandbox counts by
// itself.
func (e *Engine) room(ctx context.Context, v *View) (*reservation, error) {
	bounds := e.bounds(v)
	r := &reservation{v.owner, v.name}
	spared := make(map[*entry]int64) // those found working, and how often they had been used
	stuck := false                   // what should have made room could not be removed
	var timeout <-chan time.Time
	if v.class.Wait > 0 && v.class.Full == Evict {
		t := time.NewTimer(v.class.Wait)
		defer t.Stop()
		timeout = t.C
	}
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return nil, errClosed
		}
		var full *bound
		for i := range bounds {
			if e.count(bounds[i]) >= bounds[i].max {
				full = &bounds[i]
				break
			}
		}
		if full == nil {
			e.making = append(e.making, r)
			e.mu.Unlock()
			return r, nil
		}
		going, victim := e.victim(v, *full, spared)
		soft := v.class.Full == Soft && full.class
		if soft && (stuck || victim == nil && going == nil) {
			e.making = append(e.making, r)
			n := e.count(*full)
			e.mu.Unlock()
			e.log.Warn("over the soft bound: every sandbox is needed", "class", v.name, "max", full.max, "now", n)
			return r, nil
		}
		changed := e.roomWait()
		var uses int64
		if victim != nil {
			uses = victim.uses
		}
		e.mu.Unlock()

		switch {
		case victim != nil:
			if e.working(victim) {
				spared[victim] = uses
				continue
			}
			e.mu.Lock()
			idle := victim.gone == nil && victim.busy == 0 && victim.uses == uses
			if idle {
				e.condemn(victim, sandbox.Gone{Why: sandbox.Evicted})
			}
			e.mu.Unlock()
			if !idle {
				continue
			}
			e.metrics.evicted(v.name)
			going = victim
			fallthrough
		case going != nil:
			// Room comes when it is gone.
			select {
			case <-e.remove(going, true):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			e.mu.Lock()
			err := going.endErr
			e.mu.Unlock()
			if err != nil && !soft {
				return nil, e.noRoom(*full)
			}
			stuck = stuck || err != nil
			continue
		case timeout == nil:
			return nil, e.noRoom(*full)
		}
		poll := time.NewTimer(time.Second) // detached processes end without a word
		select {
		case <-changed:
		case <-poll.C:
			clear(spared)
		case <-timeout:
			poll.Stop()
			return nil, e.noRoom(*full)
		case <-ctx.Done():
			poll.Stop()
			return nil, ctx.Err()
		}
		poll.Stop()
	}
}

func (e *Engine) noRoom(b bound) error {
	e.metrics.refused("room")
	return sandbox.Errorf(sandbox.Exhausted, "", "there are %d sandboxes %s, as many as there may be", b.max, b.what).WithHint("remove one, or wait until one is idle")
}

// unreserve gives back the room that r took, if it still has it.
func (e *Engine) unreserve(r *reservation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.free(r) {
		e.roomChanged()
	}
}

// free forgets r and reports whether it took room. mu is held.
func (e *Engine) free(r *reservation) bool {
	i := slices.Index(e.making, r)
	if i >= 0 {
		e.making = slices.Delete(e.making, i, i+1)
	}
	return i >= 0
}

// victim returns a sandbox that counts for b and is going already, and the one
// that should go next, if there is one: the least recently used idle one that
// belongs to the same tenant, released ones first. mu is held.
func (e *Engine) victim(v *View, b bound, spared map[*entry]int64) (going, victim *entry) {
	if v.class.Full != Evict && v.class.Full != Soft {
		return nil, nil
	}
	for _, en := range e.below {
		if !b.has(en.owner, en.class) || root(en.owner) != root(v.owner) {
			continue
		}
		if en.gone != nil {
			if en.ending || en.endErr == nil {
				going = en
			}
			continue
		}
		if en.busy > 0 || v.class.Full == Soft && !en.released {
			continue
		}
		if uses, ok := spared[en]; ok && uses == en.uses {
			continue
		}
		if victim == nil || en.released && !victim.released || en.released == victim.released && en.used.Before(victim.used) {
			victim = en
		}
	}
	if going != nil {
		victim = nil
	}
	return going, victim
}

// roomWait returns a channel that is closed when room may have come. mu is
// held.
func (e *Engine) roomWait() <-chan struct{} {
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// roomChanged wakes those who wait for room. mu is held.
func (e *Engine) roomChanged() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}
