//go:build linux

package linux_test

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// TestRuntime is the whole contract, as whoever runs it.
func TestRuntime(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime { return newRuntime(t) },
	})
}

// TestRuntimeAsUser is the whole contract as an ordinary user, who has one id
// and no cgroup.
func TestRuntimeAsUser(t *testing.T) { asUser(t, "^TestRuntime$") }
