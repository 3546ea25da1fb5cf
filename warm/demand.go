package warm

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	// maxAsked is how many requests for a Spec are remembered: enough to tell
	// which of two is asked for more.
	maxAsked = 32

	// maxSpecs is how many Specs are remembered; those for which something is
	// kept are remembered in any case.
	maxSpecs = 256
)

// A demand is what is known of a Spec. The Runtime's mutex guards it, its key
// and spec aside, which do not change.
type demand struct {
	key    string
	spec   sandbox.Spec // without what belongs to a request
	pinned int
	asked  []time.Time // the last requests within the Window, oldest first
	ready  []*ready    // oldest first
	taken  int         // ready ones that are being handed out
	want   int         // how many should be ready; set by share
	fixed  bool        // its sandboxes take no changes
	pause  pause       // after failed attempts to make one
	err    error       // why the last one failed

	hits, misses int64
}

func newDemand(q *request) *demand { return &demand{key: q.key, spec: clone(q.rest)} }

func clone(s sandbox.Spec) sandbox.Spec {
	s.Explicit, s.Mounts, s.Require = slices.Clone(s.Explicit), slices.Clone(s.Mounts), slices.Clone(s.Require)
	return s
}

// A request is a Spec, and what of it a ready sandbox can be given afterwards.
type request struct {
	spec   sandbox.Spec
	rest   sandbox.Spec // without what is in change
	key    string       // of rest
	change sandbox.Change
}

func newRequest(spec sandbox.Spec) request {
	q := request{spec: spec, rest: spec, change: sandbox.Change{Env: spec.Env, Labels: spec.Labels}}
	if !spec.Expires.IsZero() {
		q.change.Expires = new(spec.Expires)
	}
	q.rest.Env, q.rest.Labels, q.rest.Expires = nil, nil, time.Time{}
	q.key = key(q.rest)
	return q
}

// plain reports whether there is nothing to change.
func (q *request) plain() bool {
	return len(q.change.Env) == 0 && len(q.change.Labels) == 0 && q.change.Expires == nil
}

// poolable reports whether there can be two sandboxes of the Spec.
func (q *request) poolable() bool { return q.spec.ID == "" && q.spec.Name == "" }

// key returns a string that two Specs share if and only if they are equal. Go
// syntax is that: it quotes strings and has every field, one that Spec gets
// later included.
func key(s sandbox.Spec) string {
	if len(s.Explicit) == 0 {
		s.Explicit = nil
	}
	if len(s.Mounts) == 0 {
		s.Mounts = nil
	}
	if len(s.Require) == 0 {
		s.Require = nil
	}
	return fmt.Sprintf("%#v", s)
}

// note counts a request for d.
func (d *demand) note(now time.Time) {
	if len(d.asked) == maxAsked {
		d.asked = slices.Delete(d.asked, 0, 1)
	}
	d.asked = append(d.asked, now)
}

// last is when d was last asked for.
func (d *demand) last() time.Time {
	if len(d.asked) == 0 {
		return time.Time{}
	}
	return d.asked[len(d.asked)-1]
}

// learnLocked counts a request for which sb has just been made, if a ready one
// would have done.
func (rt *Runtime) learnLocked(q *request, sb sandbox.Sandbox) {
	d := rt.specs[q.key]
	_, updater := sb.(sandbox.Updater)
	if !q.poolable() || !q.plain() && (!updater || d != nil && d.fixed) {
		return
	}
	if d == nil {
		if rt.cfg.After < 0 || len(q.rest.Mounts) > 0 {
			return
		}
		rt.forgetLocked(maxSpecs - 1)
		d = newDemand(q)
		rt.specs[q.key] = d
	}
	d.misses++
	d.note(time.Now())
}

// forgetLocked drops those Specs that were asked for least recently until at
// most n are left, as far as nothing is kept for them.
func (rt *Runtime) forgetLocked(n int) {
	for len(rt.specs) > n {
		var oldest *demand
		for _, d := range rt.specs {
			if rt.idleLocked(d) && (oldest == nil || d.last().Before(oldest.last())) {
				oldest = d
			}
		}
		if oldest == nil {
			return
		}
		delete(rt.specs, oldest.key)
	}
}

// idleLocked reports whether nothing is kept for d, nor on its way.
func (rt *Runtime) idleLocked(d *demand) bool {
	return d.pinned == 0 && len(d.ready) == 0 && d.taken == 0 && (rt.filling == nil || rt.filling.of != d)
}

// share says for every Spec how many should be ready. The pinned ones come
// first. What room is left goes, one after the other, to whoever has the most
// requests for each that it would then have (D'Hondt's method); who has one
// already keeps it unless another is asked for twice as much, so that nothing
// is removed and made in turns. Nobody gets more than it was asked for since
// it became worth keeping.
//
// rt.mu is held.
func (rt *Runtime) share(now time.Time) {
	room := rt.cfg.Max
	var worth []*demand
	for _, d := range rt.specs {
		d.asked = slices.DeleteFunc(d.asked, func(t time.Time) bool { return now.Sub(t) >= rt.cfg.Window })
		if len(d.asked) == 0 && rt.idleLocked(d) {
			delete(rt.specs, d.key)
			continue
		}
		d.want = d.pinned
		room -= d.pinned
		if rt.cfg.After > 0 && len(d.asked) >= rt.cfg.After && len(d.spec.Mounts) == 0 {
			worth = append(worth, d)
		}
	}
	slices.SortFunc(worth, func(a, b *demand) int { return cmp.Or(b.last().Compare(a.last()), cmp.Compare(a.key, b.key)) })
	for ; room > 0; room-- {
		var best *demand
		for _, d := range worth {
			if d.want <= len(d.asked)-rt.cfg.After && (best == nil || d.claim() > best.claim()) {
				best = d
			}
		}
		if best == nil {
			return
		}
		best.want++
	}
}

// claim is how strongly d wants one more.
func (d *demand) claim() float64 {
	c := float64(len(d.asked)) / float64(d.want+1)
	if d.want < len(d.ready) {
		c *= 2
	}
	return c
}

// A pause is the time between attempts, which grows with each that failed.
type pause struct {
	failed int
	until  time.Time
}

func (p *pause) fail(now time.Time) {
	d := lastPause
	if p.failed < 16 {
		d = min(d, firstPause<<p.failed)
	}
	p.failed++
	p.until = now.Add(d)
}
