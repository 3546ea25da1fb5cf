package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signals turns the signals that end a program into the end of a context, so
// that what was begun is also cleaned up. Somebody may take the first of them
// instead, to hand it on to a command.
type signals struct {
	ctx    context.Context // ends with the first signal that nobody takes
	cancel context.CancelCauseFunc
	c      chan os.Signal
	done   chan struct{}

	mu    sync.Mutex
	taker func(syscall.Signal) bool // nil: nobody
	last  func()                    // called before the program ends in the middle of things; nil: nothing
}

// A signalled error is the cause of a context that a signal ended.
type signalled struct{ sig syscall.Signal }

func (s signalled) Error() string { return s.sig.String() }

// catchSignals begins to catch signals. SIGPIPE is among them: a write to a
// closed pipe then fails, and does not end the program before it has cleaned
// up.
func catchSignals() *signals {
	s := &signals{c: make(chan os.Signal, 8), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	signal.Notify(s.c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	go s.loop()
	return s
}

func (s *signals) loop() {
	defer close(s.done)
	ended := 0
	for sig := range s.c {
		n, ok := sig.(syscall.Signal)
		if !ok || n == syscall.SIGPIPE {
			continue
		}
		s.mu.Lock()
		taken := s.taker != nil && s.taker(n)
		s.mu.Unlock()
		if taken {
			continue
		}
		s.cancel(signalled{n})
		// Whoever insists does not want to wait for the cleaning up.
		if ended++; ended == 3 {
			s.mu.Lock()
			if s.last != nil {
				s.last()
			}
			os.Exit(128 + int(n))
		}
	}
}

// take hands signals to f until the returned function is called. f must not
// block. A signal for which it returns false ends the context.
func (s *signals) take(f func(syscall.Signal) bool) (release func()) {
	s.mu.Lock()
	s.taker = f
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.taker = nil
		s.mu.Unlock()
	}
}

// onInsisted has f called if somebody insists on the program's end before it
// has cleaned up, until the returned function is called.
func (s *signals) onInsisted(f func()) (release func()) {
	set := func(f func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last = f
	}
	set(f)
	return func() { set(nil) }
}

// stop ends the catching.
func (s *signals) stop() {
	signal.Stop(s.c)
	close(s.c)
	<-s.done
	s.cancel(nil)
}

// signalOf returns the signal that ended ctx, or 0.
func signalOf(ctx context.Context) syscall.Signal {
	var s signalled
	if errors.As(context.Cause(ctx), &s) {
		return s.sig
	}
	return 0
}
