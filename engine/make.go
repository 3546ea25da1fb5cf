package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
)

// Create returns a new sandbox. A name or an id that another one has is a
// Conflict.
func (v *View) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	sb, _, err := v.make(ctx, "engine.Create", spec, false)
	return sb, err
}

// Acquire returns the sandbox with the Spec's name or id, or makes it.
func (v *View) Acquire(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
	return v.make(ctx, "engine.Acquire", spec, true)
}

// A wish is what a caller wants, in full.
type wish struct {
	asked sandbox.Spec // as the caller said it
	spec  sandbox.Spec // with the profile's defaults and bounds
	prof  *profile.Profile
}

// make makes a sandbox, or where reuse is set returns the one that is there.
func (v *View) make(ctx context.Context, op string, spec sandbox.Spec, reuse bool) (_ sandbox.Sandbox, made bool, err error) {
	if err := v.enter(); err != nil {
		return nil, false, err
	}
	e := v.e
	defer e.leave()
	begun := time.Now()
	en, made, err := v.get(ctx, spec, reuse)
	e.metrics.made(v.name, made, time.Since(begun), err)
	if err != nil {
		return nil, false, v.fail(op, spec.ID, err)
	}
	kind := sandbox.EventAcquired
	if made {
		kind = sandbox.EventMade
	}
	e.emit(sandbox.Event{Kind: kind, Owner: en.owner, By: v.owner, Sandbox: en.id, Name: spec.Name, Detail: spec.Image})
	return v.box(en), made, nil
}

func (v *View) get(ctx context.Context, spec sandbox.Spec, reuse bool) (*entry, bool, error) {
	if err := checkWish(spec, reuse); err != nil {
		return nil, false, err
	}
	w, err := v.wish(spec)
	if err != nil {
		return nil, false, err
	}
	// Whoever wants the same one waits for the first. The name is always
	// locked before the id, so nobody waits for each other.
	var keys []key
	if spec.Name != "" {
		keys = append(keys, key{owner: v.owner, name: spec.Name})
	}
	if spec.ID != "" {
		keys = append(keys, key{id: spec.ID})
	}
	for _, k := range keys {
		unlock, err := v.e.lock(ctx, k)
		if err != nil {
			return nil, false, err
		}
		defer unlock()
	}
	if len(keys) > 0 {
		en, err := v.known(ctx, w, keys, reuse)
		if en != nil || err != nil {
			return en, false, err
		}
	}
	en, err := v.create(ctx, w)
	return en, err == nil, err
}

func checkWish(spec sandbox.Spec, reuse bool) error {
	if err := spec.Check(); err != nil {
		return err
	}
	if reuse && spec.Name == "" && spec.ID == "" {
		return sandbox.Errorf(sandbox.Invalid, "name", "there is neither a name nor an id to acquire a sandbox by").WithHint("give one, or create a sandbox")
	}
	return nil
}

// wish returns what spec means to this owner and class.
func (v *View) wish(spec sandbox.Spec) (wish, error) {
	w := wish{asked: spec}
	bounds := v.e.tenant(v.owner)
	name := spec.Profile
	if name == "" {
		name = v.class.profile()
		if len(bounds.Profiles) > 0 && !slices.Contains(bounds.Profiles, name) {
			name = bounds.Profiles[0]
		}
	}
	prof, err := v.e.cfg.Profiles.Get(name)
	if err != nil {
		return w, err
	}
	if len(bounds.Profiles) > 0 && !slices.Contains(bounds.Profiles, name) {
		return w, sandbox.Errorf(sandbox.Denied, "profile", "%q is not among the profiles that you may use", name).WithHint("use one of %v", bounds.Profiles)
	}
	w.prof = prof
	if w.spec, err = prof.Spec(spec); err != nil {
		return w, err
	}
	w.spec.Profile = name
	if w.spec.Network == "" {
		w.spec.Network = sandbox.NetworkOff
	}
	w.spec.Mounts, err = v.e.walls(v.owner, w.spec.Mounts)
	return w, err
}

// known returns the live sandbox that has one of keys, if there is one and it
// is what w asks for. It removes one that is there and must be made anew.
func (v *View) known(ctx context.Context, w wish, keys []key, reuse bool) (*entry, error) {
	e := v.e
	for {
		e.mu.Lock()
		en := e.live[keys[0]]
		for _, k := range keys[1:] {
			other := e.live[k]
			if en == nil && other != nil && other.gone != nil && v.owner.Sees(other.owner) {
				en = other // whose id is free soon
			}
			if other != nil && other != en {
				e.mu.Unlock()
				return nil, sandbox.Errorf(sandbox.Conflict, "id", "another sandbox has the id %s", k.id).WithHint("choose another id, or none")
			}
		}
		if en == nil {
			e.mu.Unlock()
			return nil, nil
		}
		if !v.owner.Sees(en.owner) { // by a chosen id
			e.mu.Unlock()
			return nil, sandbox.Errorf(sandbox.Conflict, "id", "another sandbox has the id %s", en.id).WithHint("choose another id, or none")
		}
		if en.gone != nil {
			e.mu.Unlock()
			if err := v.e.awaitEnd(ctx, en); err != nil {
				return nil, err
			}
			continue
		}
		if !reuse {
			e.mu.Unlock()
			if keys[0].name != "" {
				return nil, sandbox.Errorf(sandbox.Conflict, "name", "a sandbox has this name already").WithHint("acquire it, or choose another name")
			}
			return nil, sandbox.Errorf(sandbox.Conflict, "id", "a sandbox has this id already").WithHint("acquire it, or choose another id")
		}
		have := en.rec.Spec
		wanted := en.rec.Wanted
		en.touched(e)
		e.mu.Unlock()

		if err := w.conflict(have, wanted); err != nil {
			return nil, err
		}
		if !sameExtra(have.Mounts, w.spec.Mounts) {
			if err := e.endNow(ctx, en, sandbox.Gone{Why: sandbox.Replaced, By: v.owner, Note: "other extra mounts were asked for"}, false); err != nil {
				return nil, err
			}
			continue
		}
		if !v.class.NoRestart {
			alive, err := e.alive(ctx, en)
			if err != nil {
				return nil, err
			}
			if !alive {
				e.died(ctx, en)
				continue
			}
		}
		if err := v.meets(ctx, en, w); err != nil {
			return nil, err
		}
		e.mu.Lock()
		ok := en.gone == nil
		e.mu.Unlock()
		if ok {
			return en, nil
		}
	}
}

// awaitEnd waits until a sandbox that is going is gone.
func (e *Engine) awaitEnd(ctx context.Context, en *entry) error {
	select {
	case <-e.remove(en, true):
	case <-ctx.Done():
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if en.endErr != nil {
		return &sandbox.Error{Kind: sandbox.Unavailable, ID: en.id, Msg: "the sandbox that was there could not be removed yet", Hint: "try again in a minute", Err: en.endErr}
	}
	return nil
}

// meets reports whether en has all that w requires.
func (v *View) meets(ctx context.Context, en *entry, w wish) error {
	if len(w.spec.Require) == 0 {
		return nil
	}
	info, err := v.box(en).Info(ctx)
	if err != nil {
		return err
	}
	for _, p := range w.spec.Require {
		if !info.Isolation.Holds(p) {
			return sandbox.Errorf(sandbox.Conflict, "require", "the sandbox that is there lacks %s", p).WithHint("remove it, or use another name")
		}
	}
	return nil
}

// create makes a new sandbox. The locks of its name and id are held.
func (v *View) create(ctx context.Context, w wish) (_ *entry, err error) {
	e := v.e
	room, err := e.room(ctx, v)
	if err != nil {
		return nil, err
	}
	defer e.unreserve(room)

	sb, err := e.rt.Create(ctx, v.below(w))
	if err != nil {
		return nil, err
	}
	rec := store.Record{ID: w.spec.ID, Inner: sb.ID(), Owner: v.owner, Class: v.name, Profile: w.spec.Profile, Spec: w.spec, Wanted: w.asked.Image,
		Created: time.Now(), Used: time.Now(), Expires: w.spec.Expires}
	if rec.ID == "" {
		rec.ID = sb.ID()
	}
	if w.spec.Name != "" {
		rec.Names = []string{w.spec.Name}
	}
	rec.Spec.Env = nil
	en := e.entry(rec, w.prof)
	en.sb = sb

	if e.known(rec.ID) != nil { // an id from below that somebody chose
		err = sandbox.Errorf(sandbox.Unavailable, "", "the new sandbox's id is taken").WithHint("try again")
	} else if err = e.store.Put(ctx, rec); err == nil {
		err = ctx.Err()
		e.mu.Lock()
		if e.closed {
			err = errClosed
		}
		if err == nil {
			e.add(en)
			e.free(room) // now it counts by itself
			e.rearm(en)
		}
		e.mu.Unlock()
	}
	if err == nil {
		return en, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), RemoveTimeout)
	defer cancel()
	if failed := sb.Remove(undo); failed != nil && !errors.Is(failed, sandbox.NotExist) {
		err = errors.Join(err, failed)
		e.leftOver(en)
	}
	return nil, errors.Join(err, e.store.Forget(undo, rec.ID, rec.Inner))
}

// leftOver has en, which nobody gets and which could not be removed, counted
// and removed later.
func (e *Engine) leftOver(en *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.condemn(en, sandbox.Gone{Why: sandbox.Removed, Note: "it was never handed out"}) {
		return
	}
	en.rec.Names = nil
	en.retry = time.Now().Add(retryAfter)
	e.below[en.inner] = en
	e.rearm(en)
}

// known returns the live sandbox with this id, or nil.
func (e *Engine) known(id sandbox.ID) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[key{id: id}]
}

// below returns the Spec that the Runtime below gets: what the Engine itself
// keeps is not in it.
func (v *View) below(w wish) sandbox.Spec {
	s := w.spec
	s.ID, s.Name, s.Profile, s.Explicit, s.Idle, s.Labels, s.Expires = "", "", "", nil, 0, nil, time.Time{}
	s.Limits.Workspace = 0
	if image, ok := v.e.cfg.Images.Resolve(s.Image); ok {
		s.Image = image
	}
	s.Mounts = slices.Clone(s.Mounts)
	for i := range s.Mounts {
		s.Mounts[i].Extra = false
	}
	return s
}
