package engine

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
)

// An entry is a sandbox that there is.
type entry struct {
	id    sandbox.ID
	inner sandbox.ID // what the Runtime below calls it
	owner sandbox.Owner
	class string
	prof  *profile.Profile // its bounds, as they were when it was made
	name  string           // the first that it got, or ""
	space int64            // bytes that its workspace may have; 0 is any number
	dir   string           // the workspace

	rec      store.Record    // guarded by Engine.mu, as is all that follows
	sb       sandbox.Sandbox // the one below; nil until it is opened again
	used     time.Time       // when it was last in use
	uses     int64           // how often; tells whether it was used since one looked
	busy     int             // how many use it now
	detached bool            // it may have detached processes
	released bool

	gone    *sandbox.Gone // why it is going; nil while it lives
	ending  bool          // somebody is removing it now
	endErr  error         // what the last attempt to remove it said
	attempt chan struct{} // closed when the attempt under way has ended
	retry   time.Time     // when the next one is due, if the last one failed
	looking bool          // somebody finds out whether it is idle
	done    chan struct{} // closed when nothing is left of it

	changing chan struct{} // holds one element while somebody changes it
}

func (e *Engine) entry(rec store.Record, prof *profile.Profile) *entry {
	en := &entry{id: rec.ID, inner: rec.Inner, owner: rec.Owner, class: rec.Class, prof: prof,
		space: rec.Spec.Limits.Workspace, dir: cmp.Or(rec.Spec.Workdir, "/workspace"),
		rec: rec, used: rec.Used, released: rec.Released, done: make(chan struct{}), changing: make(chan struct{}, 1)}
	if len(rec.Names) > 0 {
		en.name = rec.Names[0]
	}
	return en
}

// add makes en known. mu is held.
func (e *Engine) add(en *entry) {
	e.live[key{id: en.id}] = en
	e.below[en.inner] = en
	for _, name := range en.rec.Names {
		e.live[key{owner: en.owner, name: name}] = en
	}
}

// drop forgets en, unless somebody took its place. mu is held.
func (e *Engine) drop(en *entry) {
	for _, k := range en.keys() {
		if e.live[k] == en {
			delete(e.live, k)
		}
	}
	if e.below[en.inner] == en {
		delete(e.below, en.inner)
	}
	delete(e.dirty, en.id)
	e.roomChanged()
}

// keys returns all by which en is known. Engine.mu is held.
func (en *entry) keys() []key {
	ks := []key{{id: en.id}}
	for _, name := range en.rec.Names {
		ks = append(ks, key{owner: en.owner, name: name})
	}
	return ks
}

// idleAt returns when en has been idle for too long, or zero for never.
// Engine.mu is held.
func (en *entry) idleAt() time.Time {
	if en.busy > 0 || en.rec.Spec.Idle <= 0 {
		return time.Time{}
	}
	return en.used.Add(en.rec.Spec.Idle)
}

// info returns what is true of en, given what the Runtime below says of it.
// Engine.mu is held.
func (en *entry) info(below sandbox.Info) sandbox.Info {
	s := &en.rec.Spec
	info := below
	info.ID = en.id
	info.Owner = en.owner
	info.Names = slices.Clone(en.rec.Names)
	info.Profile = en.rec.Profile
	info.Wanted = en.rec.Wanted
	info.Labels = maps.Clone(s.Labels)
	info.Created = en.rec.Created
	info.Expires = s.Expires
	info.Idle = s.Idle
	info.Used = en.used
	if en.busy > 0 {
		info.Used = time.Now()
	}
	info.Busy = en.busy
	info.Released = en.released
	info.Limits.Workspace = s.Limits.Workspace
	if s.Limits.Workspace > 0 {
		info.Kept = maps.Clone(info.Kept)
		if info.Kept == nil {
			info.Kept = make(map[string]string)
		}
		info.Kept["workspace"] = "counted before and after each command"
	}
	info.Mounts = slices.Clone(info.Mounts)
	for i := range info.Mounts {
		m := &info.Mounts[i]
		m.Within = "" // nobody's business
		m.Extra = slices.ContainsFunc(s.Mounts, func(o sandbox.Mount) bool { return o.Extra && o.Target == m.Target })
	}
	return info
}

// buried returns the error of a call to a sandbox that does not live: that it
// is gone and why, if v may know, else that nobody has the key.
func (e *Engine) buried(v *View, k key) error {
	if k.id == "" {
		return nobody(k)
	}
	e.mu.Lock()
	t, ok := e.graves[k.id]
	e.mu.Unlock()
	if !ok {
		var err error
		if t, ok, err = e.store.Tombstone(k.id); err != nil {
			e.log.Error("what became of a sandbox cannot be read", "id", k.id, "err", err)
		}
	}
	if !ok || !v.owner.Sees(t.Owner) {
		return nobody(k)
	}
	return wasGone(&t.Gone)
}

func nobody(k key) *sandbox.Error {
	if k.name != "" {
		return sandbox.Errorf(sandbox.NotExist, "", "no sandbox has this name")
	}
	return sandbox.Errorf(sandbox.NotExist, "", "no sandbox has this id")
}

func wasGone(g *sandbox.Gone) *sandbox.Error {
	return &sandbox.Error{Kind: sandbox.NotExist, Msg: "the sandbox is gone: " + g.Error(), Err: g}
}

// touch finds a sandbox and notes that it is used.
func (e *Engine) touch(v *View, k key) (*entry, error) {
	e.mu.Lock()
	en := e.live[k]
	if en == nil || !v.owner.Sees(en.owner) {
		e.mu.Unlock()
		return nil, e.buried(v, k)
	}
	defer e.mu.Unlock()
	if en.gone != nil {
		return nil, wasGone(en.gone)
	}
	en.touched(e)
	return en, nil
}

// touched notes a use. mu is held.
func (en *entry) touched(e *Engine) {
	en.used = time.Now()
	en.uses++
	en.released = false
	e.dirty[en.id] = true
}

// begin notes that something uses en from now on, until done is called. What
// it returns is the sandbox below, which may be nil.
func (e *Engine) begin(en *entry) (sandbox.Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, errClosed
	}
	if en.gone != nil {
		return nil, wasGone(en.gone)
	}
	e.busy.Add(1)
	en.busy++
	en.touched(e)
	return en.sb, nil
}

// finish undoes begin.
func (e *Engine) finish(en *entry) {
	e.rest(en)
	e.leave()
}

// rest is the part of finish for which Close does not wait.
func (e *Engine) rest(en *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en.busy--
	en.used = time.Now()
	if e.below[en.inner] == en {
		e.dirty[en.id] = true
	}
	if en.busy == 0 {
		e.roomChanged()
		e.rearm(en)
	}
}

// open returns the sandbox below, which sb is if it is known.
func (e *Engine) open(ctx context.Context, en *entry, sb sandbox.Sandbox) (sandbox.Sandbox, error) {
	if sb != nil {
		return sb, nil
	}
	sb, err := e.rt.Open(ctx, en.inner)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	en.sb = sb
	e.mu.Unlock()
	return sb, nil
}

// alive reports whether en lives, as far as that can be found out in time: one
// of which nobody knows counts as alive. It fails only when ctx ends.
func (e *Engine) alive(ctx context.Context, en *entry) (bool, error) {
	look, cancel := context.WithTimeout(ctx, CheckTimeout)
	defer cancel()
	sb, err := e.rt.Open(look, en.inner)
	switch {
	case err == nil:
		e.mu.Lock()
		en.sb = sb
		e.mu.Unlock()
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, sandbox.Closed):
		return false, err
	case errors.Is(err, sandbox.NotExist):
		return false, nil
	}
	e.log.Warn("it is not known whether a sandbox lives", "id", en.id, "err", err)
	return true, nil
}

// died ends an entry that was found dead. What is left of it below is removed
// in passing, once; died waits for that, or until ctx ends.
func (e *Engine) died(ctx context.Context, en *entry) {
	e.mu.Lock()
	if !e.condemn(en, sandbox.Gone{Why: sandbox.Died}) {
		e.mu.Unlock()
		return
	}
	sb := en.sb
	e.drop(en)
	e.graves[en.id] = en.tombstone() // until it is written down
	en.ending, en.attempt = true, make(chan struct{})
	e.busy.Add(1)
	e.mu.Unlock()
	e.log.Warn("a sandbox was found dead", "id", en.id, "below", en.inner)
	go func() {
		defer e.leave()
		e.removeDead(en, sb)
	}()
	select {
	case <-en.done:
	case <-ctx.Done():
	}
}

func (e *Engine) removeDead(en *entry, sb sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), RemoveTimeout)
	defer cancel()
	e.bury(ctx, en)
	if sb != nil {
		if err := sb.Remove(ctx); err != nil && !errors.Is(err, sandbox.NotExist) {
			e.log.Warn("what is left of a dead sandbox could not be removed", "id", en.id, "err", err)
		}
	}
	e.ended(en)
	e.mu.Lock()
	en.settle()
	e.mu.Unlock()
}

// settle says that nothing is left of en. Engine.mu is held.
func (en *entry) settle() {
	en.ending = false
	close(en.done)
	if en.attempt == nil {
		en.attempt = en.done
	} else {
		close(en.attempt)
	}
}

// tombstone returns what is remembered of en. Engine.mu is held.
func (en *entry) tombstone() store.Tombstone {
	return store.Tombstone{ID: en.id, Inner: en.inner, Owner: en.owner, Names: slices.Clone(en.rec.Names), Gone: *en.gone}
}

// bury writes down that en is gone. If it was made anew under its id, the store
// keeps that.
func (e *Engine) bury(ctx context.Context, en *entry) {
	e.mu.Lock()
	t := en.tombstone()
	e.mu.Unlock()
	if err := e.store.Bury(ctx, t); err != nil {
		e.log.Error("the end of a sandbox could not be written down", "id", en.id, "err", err)
		e.mu.Lock()
		e.graves[en.id] = t // until buryAgain has written it down
		e.mu.Unlock()
		return
	}
	e.mu.Lock()
	delete(e.graves, en.id)
	e.mu.Unlock()
}

// buryAgain writes down the ends that could not be written down before.
func (e *Engine) buryAgain() {
	e.mu.Lock()
	graves := slices.Collect(maps.Values(e.graves))
	e.mu.Unlock()
	for _, t := range graves {
		if err := e.store.Bury(e.life, t); err != nil {
			return // it was said before
		}
		e.mu.Lock()
		if g := e.graves[t.ID]; g.Inner == t.Inner {
			delete(e.graves, t.ID)
		}
		e.mu.Unlock()
	}
}

// ended tells of the end of en.
func (e *Engine) ended(en *entry) {
	e.metrics.gone(en)
	e.emit(sandbox.Event{Kind: sandbox.EventGone, Owner: en.owner, By: en.gone.By, Sandbox: en.id, Name: en.name, Why: en.gone.Why, Detail: en.gone.Note})
}

// condemn marks en as going for the reason g, if it lives; then start removes
// it. mu is held.
func (e *Engine) condemn(en *entry, g sandbox.Gone) bool {
	if en.gone != nil || e.closed {
		return false
	}
	g.At = time.Now()
	en.gone = &g
	return true
}

// remove has an attempt to remove en under way, which is condemned, and
// returns a channel that is closed when it has ended. early says that the
// reason is written down first, so that the next daemon goes on with what this
// one began.
func (e *Engine) remove(en *entry, early bool) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if en.ending || isClosed(en.done) {
		return en.attempt
	}
	en.attempt = make(chan struct{})
	if e.closed {
		close(en.attempt)
		return en.attempt
	}
	en.ending, en.endErr, en.retry = true, nil, time.Time{}
	attempt, sb := en.attempt, en.sb
	e.busy.Add(1)
	go func() {
		defer e.leave()
		ctx, cancel := context.WithTimeout(context.Background(), RemoveTimeout)
		defer cancel()
		if early {
			e.bury(ctx, en)
		}
		sb, err := e.open(ctx, en, sb)
		if err == nil {
			err = sb.Remove(ctx)
		}
		if errors.Is(err, sandbox.NotExist) {
			err = nil
		}
		if err == nil && !early {
			e.bury(ctx, en)
		}
		e.mu.Lock()
		en.endErr = err
		if err != nil {
			en.ending = false
			close(attempt)
			en.retry = time.Now().Add(retryAfter)
			e.rearm(en)
			e.mu.Unlock()
			e.log.Error("a sandbox could not be removed; it will be tried again", "id", en.id, "err", err)
			return
		}
		e.drop(en)
		en.settle()
		e.mu.Unlock()
		e.ended(en)
	}()
	return attempt
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// endNow removes en for the reason g and waits for it, or until ctx ends. If it
// is going already, it waits for that.
func (e *Engine) endNow(ctx context.Context, en *entry, g sandbox.Gone, early bool) error {
	e.mu.Lock()
	e.condemn(en, g)
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return errClosed
	}
	select {
	case <-e.remove(en, early):
	case <-ctx.Done():
		return ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return en.endErr
}

// working reports whether a detached process runs in en. If nobody can say in
// time, one does.
func (e *Engine) working(en *entry) bool {
	e.mu.Lock()
	may, sb := en.detached, en.sb
	e.mu.Unlock()
	if !may {
		return false
	}
	ctx, cancel := context.WithTimeout(e.life, CheckTimeout)
	defer cancel()
	sb, err := e.open(ctx, en, sb)
	if err != nil {
		return !errors.Is(err, sandbox.NotExist)
	}
	d, ok := sb.(sandbox.Detacher)
	if !ok {
		return false
	}
	ps, err := d.Processes(ctx)
	switch sandbox.KindOf(err) {
	case "":
		return slices.ContainsFunc(ps, func(p sandbox.ProcessInfo) bool { return p.Ended.IsZero() })
	case sandbox.Unsupported, sandbox.NotExist:
		return false
	}
	return true
}
