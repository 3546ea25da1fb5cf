//go:build !linux

package linux

import (
	"context"
	"iter"

	"github.com/atoll-run/atoll/sandbox"
)

// A Runtime makes sandboxes on Linux. Here it cannot.
type Runtime struct{}

var errNotLinux = sandbox.Errorf(sandbox.Unsupported, "backend", "this is not Linux").WithHint("use another backend, or run atoll in a Linux machine")

// GuestProgram returns nil: none is built in here.
func GuestProgram() []byte { return nil }

// New answers [sandbox.Unsupported].
func New(Config) (*Runtime, error) { return nil, errNotLinux }

// Create answers [sandbox.Unsupported].
func (*Runtime) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, errNotLinux
}

// Open answers [sandbox.Unsupported].
func (*Runtime) Open(context.Context, sandbox.ID) (sandbox.Sandbox, error) { return nil, errNotLinux }

// List yields [sandbox.Unsupported].
func (*Runtime) List(context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) { yield(sandbox.Info{}, errNotLinux) }
}

// Close does nothing.
func (*Runtime) Close() error { return nil }

// Probe finds that this is not Linux.
func Probe(context.Context, Config) []Finding {
	return []Finding{{Name: "linux", Needed: true, Detail: "this is another operating system", Means: "no sandboxes by the kernel here"}}
}
