package warm

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Create hands out a ready sandbox if there is one for spec, and makes one
// otherwise.
func (rt *Runtime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q := newRequest(spec)
	for range rt.cfg.Max {
		r, err := rt.take(&q)
		if err != nil {
			return nil, err
		}
		if r == nil {
			break
		}
		sb, again, err := rt.handOut(ctx, r, &q)
		if sb != nil || err != nil {
			return sb, err
		}
		if !again {
			break
		}
	}
	return rt.make(ctx, &q)
}

// take reserves the oldest ready sandbox that will do for q, if there is one.
// It counts as work until handOut is through with it.
func (rt *Runtime) take(q *request) (*ready, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closed {
		return nil, sandbox.At("warm.Create", "", sandbox.Errorf(sandbox.Closed, "", "the runtime is closed"))
	}
	d := rt.specs[q.key]
	if d == nil {
		return nil, nil
	}
	// A change that is wrong is for the one below to refuse.
	if !q.plain() && (d.fixed || q.change.Check() != nil) {
		return nil, nil
	}
	now := time.Now()
	for i, r := range d.ready {
		if now.Sub(r.made) >= rt.cfg.MaxAge {
			continue // the filler removes it
		}
		if _, ok := r.sb.(sandbox.Updater); !ok && !q.plain() {
			return nil, nil
		}
		d.ready = slices.Delete(d.ready, i, i+1)
		d.taken++
		rt.work.Add(1)
		return r, nil
	}
	return nil, nil
}

// handOut gives a reserved sandbox to its caller, if it lives and can be
// changed. Without a sandbox and an error, another may be tried, or not.
func (rt *Runtime) handOut(ctx context.Context, r *ready, q *request) (_ sandbox.Sandbox, again bool, err error) {
	defer rt.work.Done()
	defer rt.tell()
	brief, cancel := context.WithTimeout(ctx, handTime)
	defer cancel()
	id := r.sb.ID()
	sb, err := rt.look(brief, id)
	looked, touched := err == nil, false
	if looked && !q.plain() {
		u, ok := sb.(sandbox.Updater)
		if err = errFixed; ok {
			err = u.Update(brief, q.change)
		}
		touched = !errors.Is(err, sandbox.Unsupported)
	}

	rt.mu.Lock()
	defer rt.mu.Unlock()
	r.of.taken--
	switch {
	case err == nil:
		now := time.Now()
		r.of.hits++
		r.of.note(now)
		rt.stats.Hits++
		rt.handed = now
		delete(rt.held, id)
		rt.known[id] = now.UTC().Round(0)
		return &taken{Sandbox: sb, rt: rt, created: rt.known[id]}, false, nil
	case errors.Is(err, sandbox.NotExist):
		rt.dropLocked(r)
		rt.log.Warn("a ready sandbox has died", "id", id)
		return nil, true, nil
	case errors.Is(err, sandbox.Unsupported) && !touched:
		// The next one would say the same; this one is as it was.
		r.of.fixed = true
		r.of.ready = slices.Insert(r.of.ready, 0, r)
		return nil, false, nil
	case ctx.Err() != nil && !touched:
		r.of.ready = slices.Insert(r.of.ready, 0, r)
		return nil, false, ctx.Err()
	}
	rt.dropLocked(r)
	if ctx.Err() != nil {
		return nil, false, ctx.Err()
	}
	rt.log.Warn("a ready sandbox could not be handed out", "id", id, "err", err)
	return nil, !looked && brief.Err() == nil, nil
}

var errFixed = sandbox.Errorf(sandbox.Unsupported, "", "the sandbox takes no changes")

// look returns the sandbox with this id if it lives. Open of some backends
// answers from memory, so the sandbox itself is asked for something small.
func (rt *Runtime) look(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	sb, err := rt.inner.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	_, err = sb.Files().Stat(ctx, "/")
	return sb, err
}

// make has the Runtime below make a sandbox.
func (rt *Runtime) make(ctx context.Context, q *request) (sandbox.Sandbox, error) {
	rt.mu.Lock()
	if rt.cold == 0 {
		rt.since = time.Now()
	}
	rt.cold++
	rt.stats.Misses++
	rt.mu.Unlock()
	sb, err := rt.inner.Create(ctx, q.spec)
	defer rt.tell()
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.cold--
	if err != nil {
		return nil, err
	}
	rt.known[sb.ID()] = time.Time{}
	rt.learnLocked(q, sb)
	return sb, nil
}

// dropLocked has the filler remove a sandbox that nobody got. One that seems
// gone is removed as well: something may be left of it.
func (rt *Runtime) dropLocked(r *ready) {
	rt.stats.Dropped++
	rt.leaving = append(rt.leaving, r)
}

// buryLocked forgets a sandbox that nobody got and that is gone. A List that
// has read it before does not show it.
func (rt *Runtime) buryLocked(r *ready) {
	delete(rt.held, r.sb.ID())
	if rt.lists > 0 {
		rt.buried[r.sb.ID()] = true
	}
}

// tell wakes the filler.
func (rt *Runtime) tell() {
	select {
	case rt.wake <- struct{}{}:
	default:
	}
}

// skew is how far the clocks of a backend and of this program may differ.
const skew = time.Minute

// whose says what is known of an id: whether it is hidden, or else when it was
// created if that is not what the Runtime below says. If there is a fill, it
// may be the one that is being made.
func (rt *Runtime) whose(id sandbox.ID) (created time.Time, hidden bool, f *fill) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.held[id] != nil || rt.buried[id] {
		return time.Time{}, true, nil
	}
	created, ok := rt.known[id]
	if !ok {
		f = rt.filling
	}
	return created, false, f
}

// whoseElse is whose for a live sandbox that may be the one that is being made:
// it waits until that is known. made is when the Runtime below says that the
// sandbox was created.
func (rt *Runtime) whoseElse(ctx context.Context, id sandbox.ID, made time.Time, f *fill) (created time.Time, hidden bool, err error) {
	if !made.Before(f.began.Add(-skew)) {
		select {
		case <-f.done:
		case <-ctx.Done():
			return time.Time{}, false, ctx.Err()
		}
		if created, hidden, _ = rt.whose(id); hidden || !created.IsZero() {
			return created, hidden, nil
		}
		// If the making failed, this may be what was left for a moment.
		if _, err := rt.inner.Open(ctx, id); err != nil {
			return time.Time{}, errors.Is(err, sandbox.NotExist), ignoreNotExist(err)
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.held[id] != nil {
		return time.Time{}, true, nil
	}
	if _, ok := rt.known[id]; !ok {
		rt.known[id] = time.Time{}
	}
	return rt.known[id], false, nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, sandbox.NotExist) {
		return nil
	}
	return err
}

func errGone(op string, id sandbox.ID) error {
	return sandbox.At(op, id, sandbox.Errorf(sandbox.NotExist, "", "there is no such sandbox").WithHint("create one"))
}

// Open returns the live sandbox with this id, unless nobody got it yet.
func (rt *Runtime) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	if _, hidden, _ := rt.whose(id); hidden {
		return nil, errGone("warm.Open", id)
	}
	sb, err := rt.inner.Open(ctx, id)
	if err != nil {
		return nil, err
	}
	created, hidden, f := rt.whose(id)
	if f != nil {
		info, err := sb.Info(ctx)
		if err == nil {
			created, hidden, err = rt.whoseElse(ctx, id, info.Created, f)
		}
		if err != nil {
			return nil, err
		}
	}
	if hidden {
		return nil, errGone("warm.Open", id)
	}
	if created.IsZero() {
		return sb, nil
	}
	return &taken{Sandbox: sb, rt: rt, created: created}, nil
}

// List yields the live sandboxes but those that nobody got yet.
func (rt *Runtime) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		rt.mu.Lock()
		rt.lists++
		rt.mu.Unlock()
		defer func() {
			rt.mu.Lock()
			defer rt.mu.Unlock()
			if rt.lists--; rt.lists == 0 {
				clear(rt.buried)
			}
		}()
		for info, err := range rt.inner.List(ctx) {
			if err != nil {
				yield(info, err)
				return
			}
			created, hidden, f := rt.whose(info.ID)
			if f != nil {
				if created, hidden, err = rt.whoseElse(ctx, info.ID, info.Created, f); err != nil {
					yield(sandbox.Info{}, err)
					return
				}
			}
			if hidden {
				continue
			}
			if !created.IsZero() {
				info.Created = created
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}
