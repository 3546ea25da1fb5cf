// Testsum runs go test and says what came of it: a line for each package as
// it finishes, the whole output of what failed, at the end what was skipped
// and why, and as its very last line
//
//	N passed, N failed, N skipped
//
// Its arguments are those of go test. It counts the tests that have no
// subtests; a package that fails without a failing test (it does not build, it
// panicked, its time ran out) counts as one failure. It exits with 1 if
// anything failed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run runs go test with args and reports whether all went well.
func run(ctx context.Context, args []string) (bool, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	s := newSummary(os.Stdout)
	readErr := s.read(out)
	waitErr := cmd.Wait()
	if waitErr != nil && s.failed == 0 {
		s.failed++ // go test itself: a bad flag, a module that is not there
		fmt.Fprintf(os.Stderr, "testsum: go test: %v\n", waitErr)
	}
	s.close()
	return s.failed == 0, readErr
}
