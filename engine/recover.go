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

// recover finds again what the store says exists, and compares it with what is
// below.
func (e *Engine) recover(ctx context.Context) error {
	recs, meta, err := e.store.Records()
	if err != nil {
		return err
	}
	// Nobody could use them while there was no daemon, whose clock may have
	// been another. So their idle time begins anew, but who was used before
	// whom stays.
	slices.SortFunc(recs, func(a, b store.Record) int { return a.Used.Compare(b.Used) })
	now := time.Now()
	for i, rec := range recs {
		prof, err := e.cfg.Profiles.Get(rec.Profile)
		if err != nil {
			e.log.Warn("a sandbox has a profile that is no longer there; it goes on without bounds", "id", rec.ID, "profile", rec.Profile)
			prof = &profile.Profile{Name: rec.Profile, MaxJobs: profile.DefaultJobs, MaxRing: profile.DefaultRing}
		}
		en := e.entry(rec, prof)
		en.detached = true // who knows
		en.used = now.Add(time.Duration(i - len(recs)))
		// Until somebody comes back to it, nobody needs it, and in a Soft
		// class only such a one can make room.
		en.released = en.released || e.cfg.Classes[rec.Class].Full == Soft
		e.add(en)
	}
	e.sweep(now)
	if err := e.compare(ctx, meta); err != nil {
		if errors.Is(err, context.Canceled) || len(recs) == 0 {
			return err
		}
		e.log.Error("what is below does not say which sandboxes it has; all are taken to live", "err", err)
		e.unsure = true
	}
	return nil
}

// compare settles what only the store has, and what only the Runtime below has.
func (e *Engine) compare(ctx context.Context, meta store.Meta) error {
	found := make(map[sandbox.ID]sandbox.Info)
	for info, err := range e.rt.List(ctx) {
		if err != nil {
			return err
		}
		found[info.ID] = info
	}
	e.mu.Lock()
	var missing []*entry
	for id, en := range e.below {
		if _, ok := found[id]; !ok && en.gone == nil && en.sb == nil {
			missing = append(missing, en)
		}
		delete(found, id)
	}
	e.mu.Unlock()
	for _, en := range missing {
		e.missed(ctx, en, meta)
	}
	for _, info := range found {
		if meta.Fresh {
			if err := e.adopt(ctx, info); err != nil {
				return err
			}
			continue
		}
		e.log.Warn("a sandbox that was never handed out is removed", "below", info.ID)
		if err := e.removeOrphan(ctx, info.ID); err != nil {
			e.log.Error("a sandbox that was never handed out could not be removed", "below", info.ID, "err", err)
		}
	}
	return e.store.Settle(ctx)
}

// missed buries a sandbox that did not outlive the last daemon.
func (e *Engine) missed(ctx context.Context, en *entry, meta store.Meta) {
	g := sandbox.Gone{Why: sandbox.Died, Note: "while no daemon ran", At: time.Now()}
	switch expires := en.rec.Spec.Expires; {
	case !expires.IsZero() && !expires.After(g.At):
		g = sandbox.Gone{Why: sandbox.Expired, At: g.At}
	case e.cfg.Boot != "" && meta.Boot != "" && meta.Boot != e.cfg.Boot:
		g = sandbox.Gone{Why: sandbox.HostBoot, At: g.At}
	}
	e.mu.Lock()
	en.gone = &g
	e.drop(en)
	e.graves[en.id] = en.tombstone() // until it is written down
	en.settle()
	e.mu.Unlock()
	e.bury(ctx, en)
	e.ended(en)
}

// adopt makes a sandbox of which the store knows nothing the operator's.
func (e *Engine) adopt(ctx context.Context, info sandbox.Info) error {
	prof, err := e.cfg.Profiles.Get(profile.Native)
	if err != nil {
		return err
	}
	rec := store.Record{ID: info.ID, Inner: info.ID, Owner: sandbox.Operator, Profile: prof.Name, Wanted: info.Wanted,
		Spec: sandbox.Spec{Backend: info.Backend, Image: info.Wanted, Workdir: info.Workdir, User: info.User, Limits: info.Limits, Mounts: info.Mounts,
			Network: info.Network, ReadOnlyRoot: info.ReadOnlyRoot, Labels: info.Labels, Expires: info.Expires, Profile: prof.Name},
		Created: info.Created, Used: time.Now(), Expires: info.Expires}
	if err := e.store.Put(ctx, rec); err != nil {
		return err
	}
	en := e.entry(rec, prof)
	en.detached = true
	e.mu.Lock()
	e.add(en)
	e.mu.Unlock()
	e.log.Info("adopted a sandbox", "id", info.ID)
	return nil
}

func (e *Engine) removeOrphan(ctx context.Context, id sandbox.ID) error {
	ctx, cancel := context.WithTimeout(ctx, RemoveTimeout)
	defer cancel()
	sb, err := e.rt.Open(ctx, id)
	if err == nil {
		err = sb.Remove(ctx)
	}
	if errors.Is(err, sandbox.NotExist) {
		return nil
	}
	return err
}

// compareAgain tries what could not be done at start. Orphans are left alone:
// by now somebody may be making sandboxes.
func (e *Engine) compareAgain() {
	ctx, cancel := context.WithTimeout(e.life, CheckTimeout)
	defer cancel()
	e.mu.Lock()
	all := make([]*entry, 0, len(e.below))
	for _, en := range e.below {
		if en.sb == nil && en.gone == nil {
			all = append(all, en)
		}
	}
	e.mu.Unlock()
	for _, en := range all {
		alive, err := e.alive(ctx, en)
		if err != nil {
			return
		}
		if !alive {
			e.died(ctx, en)
		}
	}
	for _, err := range e.rt.List(ctx) {
		if err != nil {
			return
		}
	}
	e.mu.Lock()
	e.unsure = false
	e.mu.Unlock()
}
