package edit

import (
	"context"
	"errors"
	"iter"
	"sync"
)

// ordered calls do with each of in, up to atOnce at a time, and yields what it
// returns in the order of in. It stops at the first error of in, which it
// yields. What do returned and nobody got goes to drop, unless that is nil.
func ordered[A, B any](ctx context.Context, in iter.Seq2[A, error], do func(context.Context, A) B, drop func(B)) iter.Seq2[B, error] {
	type slot struct {
		out chan B
		err error
	}
	return func(yield func(B, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		queue := make(chan slot, atOnce-1)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(queue)
			for a, err := range in {
				s := slot{err: err}
				if err == nil {
					s.out = make(chan B, 1)
				}
				select {
				case queue <- s:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
				wg.Go(func() { s.out <- do(ctx, a) })
			}
		})
		defer func() {
			cancel()
			for s := range queue {
				if s.err == nil {
					if b := <-s.out; drop != nil {
						drop(b)
					}
				}
			}
			wg.Wait()
		}()
		for s := range queue {
			var b B
			if s.err == nil {
				b = <-s.out
			}
			if !yield(b, s.err) || s.err != nil {
				return
			}
		}
	}
}

// errOver is a budget's end, for those who give what they have.
var errOver = errors.New("the time is over")

// collect calls each with what in yields until it says that it has enough,
// in is over, or the time is, which it reports as errOver.
func collect[T any](in iter.Seq2[T, error], over func() bool, each func(T) (enough bool)) error {
	for v, err := range in {
		switch {
		case over():
			return errOver
		case err != nil:
			return err
		case each(v):
			return nil
		}
	}
	return nil
}
