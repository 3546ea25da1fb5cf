package image

import (
	"context"
	"sync"
)

// flights do work once for all who want it at the same time. The zero value is
// ready.
type flights[T any] struct {
	mu  sync.Mutex
	all map[string]*flight[T]
}

// A flight is one piece of work. It goes on while anybody waits for it.
type flight[T any] struct {
	cancel  context.CancelFunc
	waiting int  // guarded by flights.mu
	left    bool // everybody went away; likewise
	done    chan struct{}
	value   T     // once done
	err     error // likewise

	mu   sync.Mutex // held while those who watch are told
	told map[*watcher]struct{}
}

type watcher struct{ tell func(Progress) }

// do returns what work for that key gives: work under way, or its own. When
// ctx ends it returns; the work ends with the last who waits for it, who waits
// for its end, or with life. joined says that the work was another's.
func (g *flights[T]) do(ctx, life context.Context, key string, tell func(Progress), work func(context.Context, func(Progress)) (T, error)) (_ T, joined bool, _ error) {
	var f *flight[T]
	for {
		g.mu.Lock()
		f = g.all[key]
		if f == nil || !f.left {
			break
		}
		g.mu.Unlock() // it is ending
		<-f.done
	}
	joined = f != nil
	if !joined {
		f = &flight[T]{done: make(chan struct{}), told: make(map[*watcher]struct{})}
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(life, cancel)
		f.cancel = cancel
		if g.all == nil {
			g.all = make(map[string]*flight[T])
		}
		g.all[key] = f
		go func() {
			defer close(f.done)
			defer stop()
			defer cancel()
			f.value, f.err = work(own, f.progress)
			g.mu.Lock()
			delete(g.all, key)
			g.mu.Unlock()
		}()
	}
	f.waiting++
	g.mu.Unlock()

	if tell != nil {
		w := &watcher{tell}
		f.mu.Lock()
		f.told[w] = struct{}{}
		f.mu.Unlock()
		defer func() {
			f.mu.Lock()
			delete(f.told, w)
			f.mu.Unlock()
		}()
	}
	select {
	case <-f.done:
		return f.value, joined, f.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	f.waiting--
	last := f.waiting == 0
	if last {
		f.left = true
		f.cancel()
	}
	g.mu.Unlock()
	if last {
		<-f.done
	}
	var none T
	return none, joined, context.Cause(ctx)
}

func (f *flight[T]) progress(p Progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.told {
		w.tell(p)
	}
}
