package engine

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// What is remembered of events and errors.
const (
	MaxEvents = 4096 // in all
	MaxFaults = 50   // of each tenant
	maxTenant = 1024 // tenants whose errors are remembered
)

// events are those that happened last.
type events struct {
	mu     sync.Mutex
	ring   []sandbox.Event // guarded by mu; ring[n % MaxEvents] has number n+1
	last   int64           // guarded by mu; the number of the newest
	more   chan struct{}   // guarded by mu; closed when one comes, if somebody waits
	closed bool            // guarded by mu
}

// emit tells all who want to know of ev.
func (e *Engine) emit(ev sandbox.Event) {
	ev.At = time.Now()
	v := &e.events
	v.mu.Lock()
	v.last++
	ev.Number = v.last
	if len(v.ring) < MaxEvents {
		v.ring = append(v.ring, ev)
	} else {
		v.ring[(ev.Number-1)%MaxEvents] = ev
	}
	if v.more != nil {
		close(v.more)
		v.more = nil
	}
	if e.cfg.Audit != nil {
		e.cfg.Audit(ev) // in order
	}
	v.mu.Unlock()
}

// after returns the events after number n, and a channel that is closed when
// there are more, which is nil when there will be none.
func (v *events) after(n int64) ([]sandbox.Event, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n = max(n, v.last-int64(len(v.ring)))
	var evs []sandbox.Event
	for ; n < v.last; n++ {
		evs = append(evs, v.ring[n%MaxEvents])
	}
	if v.closed {
		return evs, nil
	}
	if v.more == nil {
		v.more = make(chan struct{})
	}
	return evs, v.more
}

func (v *events) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.more != nil {
		close(v.more)
		v.more = nil
	}
}

// Events yields what happened, as far as the owner may see it.
func (v *View) Events(ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) {
		if err := v.enter(); err != nil {
			yield(sandbox.Event{}, err)
			return
		}
		defer v.e.leave()
		if after < 0 {
			yield(sandbox.Event{}, sandbox.Errorf(sandbox.Invalid, "after", "%d is negative", after))
			return
		}
		for {
			evs, more := v.e.events.after(after)
			for _, ev := range evs {
				after = ev.Number
				if v.owner.Sees(ev.Owner) && !yield(ev, nil) {
					return
				}
			}
			if !follow {
				return
			}
			if more == nil {
				yield(sandbox.Event{}, errClosed)
				return
			}
			select {
			case <-more:
			case <-ctx.Done():
				return
			}
		}
	}
}

// faults are the errors that callers got last.
type faults struct {
	mu sync.Mutex
	of map[sandbox.Owner][]sandbox.Fault // guarded by mu; by tenant, oldest first
}

// fault remembers an error that a caller got.
func (e *Engine) fault(by, owner sandbox.Owner, op string, id sandbox.ID, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sandbox.Closed) {
		return
	}
	f := sandbox.Fault{At: time.Now(), Owner: by, Sandbox: id, Op: op, Kind: sandbox.KindOf(err)}
	var se *sandbox.Error
	if errors.As(err, &se) {
		f.Message = clip(se.Public())
	} else {
		f.Message = string(f.Kind)
	}
	if f.Kind == sandbox.Internal {
		e.log.Error("a call failed", "op", op, "id", id, "err", err)
	}
	v := &e.faults
	v.mu.Lock()
	if v.of == nil {
		v.of = make(map[sandbox.Owner][]sandbox.Fault)
	}
	tenant := root(by)
	if v.of[tenant] == nil && len(v.of) >= maxTenant {
		v.mu.Unlock()
		return
	}
	ring := append(v.of[tenant], f)
	if len(ring) > MaxFaults {
		ring = append(ring[:0], ring[1:]...)
	}
	v.of[tenant] = ring
	v.mu.Unlock()
	if f.Kind == sandbox.Exhausted || f.Kind == sandbox.Denied {
		e.emit(sandbox.Event{Kind: sandbox.EventRefused, Owner: by, By: by, Sandbox: id, Detail: f.Message})
	}
}

// seen returns the last errors that o may see, newest first.
func (v *faults) seen(o sandbox.Owner) []sandbox.Fault {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []sandbox.Fault
	for _, ring := range v.of {
		for _, f := range ring {
			if o.Sees(f.Owner) {
				all = append(all, f)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b sandbox.Fault) int { return b.At.Compare(a.At) })
	return all[:min(len(all), MaxFaults)]
}

// fail returns err as the caller gets it, and remembers it.
func (v *View) fail(op string, id sandbox.ID, err error) error {
	if err == nil {
		return nil
	}
	err = v.e.translate(op, id, err)
	v.e.fault(v.owner, v.owner, op, id, err)
	return err
}

// Status returns how things are.
func (v *View) Status(ctx context.Context) (sandbox.Status, error) {
	if err := v.enter(); err != nil {
		return sandbox.Status{}, err
	}
	defer v.e.leave()
	e := v.e
	s := sandbox.Status{Started: e.started, Backends: e.backends(ctx), Errors: e.faults.seen(v.owner)}
	for _, b := range s.Backends {
		s.Available = s.Available || b.Available
		if s.Reason == "" && !b.Available {
			s.Reason = b.Reason
		}
	}
	if err := e.store.Check(); err != nil {
		s.Available, s.Reason = false, "the store cannot be written: "+public(err)
	}
	if s.Available {
		s.Reason = ""
	}
	e.mu.Lock()
	for _, en := range e.below {
		if en.gone != nil || !v.owner.Sees(en.owner) {
			continue
		}
		s.Live++
		if en.busy > 0 {
			s.Busy++
		}
		if en.released {
			s.Released++
		}
	}
	e.mu.Unlock()
	s.MaxLive = e.cfg.MaxLive
	if v.owner != sandbox.Operator {
		s.MaxLive = e.tenant(v.owner).MaxLive
	} else if e.cfg.Warm != nil {
		s.Warm = e.cfg.Warm()
	}
	return s, nil
}

// backends returns how what is below is.
func (e *Engine) backends(ctx context.Context) []sandbox.BackendStatus {
	ctx, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	if e.cfg.Backends != nil {
		return e.cfg.Backends(ctx)
	}
	b := sandbox.BackendStatus{Name: "backend", Available: true}
	for info, err := range e.rt.List(ctx) {
		if err != nil {
			b.Available, b.Reason = false, public(err)
			break
		}
		b.Name = info.Backend
		break
	}
	return []sandbox.BackendStatus{b}
}

func public(err error) string {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.Public()
	}
	return string(sandbox.KindOf(err))
}

// Prune removes the sandboxes that p says, of those that nothing uses.
func (v *View) Prune(ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error) {
	const op = "engine.Prune"
	if err := v.enter(); err != nil {
		return nil, err
	}
	defer v.e.leave()
	e := v.e
	if p.Unused < 0 {
		return nil, v.fail(op, "", sandbox.Errorf(sandbox.Invalid, "unused", "%v is negative", p.Unused))
	}
	var pruned []sandbox.Info
	for info, err := range v.List(ctx) {
		if err != nil {
			return pruned, err
		}
		e.mu.Lock()
		en := e.live[key{id: info.ID}]
		var uses int64
		fits := en != nil && en.idle(p)
		if fits {
			uses = en.uses
		}
		e.mu.Unlock()
		if !fits || e.working(en) {
			continue
		}
		if !p.DryRun {
			e.mu.Lock()
			going := en.uses == uses && en.busy == 0 && e.condemn(en, sandbox.Gone{Why: sandbox.Pruned, By: v.owner})
			e.mu.Unlock()
			if !going {
				continue
			}
			if err := e.endNow(ctx, en, sandbox.Gone{}, true); err != nil {
				return pruned, v.fail(op, en.id, err)
			}
		}
		pruned = append(pruned, info)
	}
	return pruned, nil
}

// idle reports whether en is what p asks for. Engine.mu is held.
func (en *entry) idle(p sandbox.Prune) bool {
	if en.gone != nil || en.busy > 0 || time.Since(en.used) < p.Unused || p.Released && !en.released {
		return false
	}
	for k, want := range p.Labels {
		if have, ok := en.rec.Spec.Labels[k]; !ok || have != want {
			return false
		}
	}
	return true
}
