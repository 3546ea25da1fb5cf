package engine

import "context"

// A keyLock is the lock of one key, as long as somebody wants it.
type keyLock struct {
	held chan struct{} // holds one element while the lock is held
	want int           // guarded by Engine.mu
}

// lock waits for the lock of k, or until ctx ends.
func (e *Engine) lock(ctx context.Context, k key) (unlock func(), err error) {
	e.mu.Lock()
	l := e.locks[k]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		e.locks[k] = l
	}
	l.want++
	e.mu.Unlock()
	forget := func() {
		e.mu.Lock()
		if l.want--; l.want == 0 {
			delete(e.locks, k)
		}
		e.mu.Unlock()
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, ctx.Err()
	case <-e.life.Done():
		forget()
		return nil, errClosed
	}
}
