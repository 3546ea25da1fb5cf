//go:build linux

package linux_test

import (
	"testing"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
)

func benchRuntime(b *testing.B) *linux.Runtime {
	rt, err := linux.New(linux.Config{State: b.TempDir(), Guest: guestProgram})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := removeAll(rt); err != nil {
			b.Error(err)
		}
		rt.Close()
	})
	return rt
}

func BenchmarkExec(b *testing.B) {
	sb, err := benchRuntime(b).Create(b.Context(), sandbox.Spec{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if e, err := sandbox.Run(b.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil || !e.Success() {
			b.Fatal(e, err)
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	rt := benchRuntime(b)
	for b.Loop() {
		sb, err := rt.Create(b.Context(), sandbox.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := sb.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkCreateRemove(b *testing.B) {
	rt := benchRuntime(b)
	for b.Loop() {
		sb, err := rt.Create(b.Context(), sandbox.Spec{})
		if err != nil {
			b.Fatal(err)
		}
		if err := sb.Remove(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
