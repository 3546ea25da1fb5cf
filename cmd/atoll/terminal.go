package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/atoll-run/atoll/sandbox"
)

// A terminal is the one in front of the person, in raw mode: what is typed
// goes to the command as it is.
type terminal struct {
	fd      int
	restore func() // puts the terminal back as it was; may be called again
}

// openTerminal puts the terminal f into raw mode.
func openTerminal(f *os.File) (*terminal, error) {
	fd := int(f.Fd())
	if !term.IsTerminal(fd) {
		return nil, hint(usage("standard input is not a terminal"), "leave out -t")
	}
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return &terminal{fd, sync.OnceFunc(func() { term.Restore(fd, old) })}, nil
}

// size returns how large the terminal is now.
func (t *terminal) size() sandbox.Size {
	cols, rows, err := term.GetSize(t.fd)
	if err != nil || cols > 0xffff || rows > 0xffff {
		return sandbox.Size{}
	}
	return sandbox.Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// watch calls f with the new size whenever it changes, until stop is called.
func (t *terminal) watch(f func(sandbox.Size)) (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range c {
			f(t.size())
		}
	})
	return func() {
		signal.Stop(c)
		close(c)
		wg.Wait()
	}
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
