//go:build linux

package linux_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
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

// BenchmarkCreateLayers is what each layer of an image adds.
func BenchmarkCreateLayers(b *testing.B) {
	for _, n := range []int{1, 10, 40, linux.MaxLayers} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			root := linux.Root{}
			for i := range n {
				dir := filepath.Join(b.TempDir(), "layer")
				if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o644)); err != nil {
					b.Fatal(err)
				}
				root.Layers = append(root.Layers, dir)
			}
			rt, err := linux.New(linux.Config{State: b.TempDir(), Guest: guestProgram,
				Images: func(context.Context, string) (linux.Root, error) { return root, nil }})
			if err != nil {
				b.Fatal(err)
			}
			defer rt.Close()
			for b.Loop() {
				sb, err := rt.Create(b.Context(), sandbox.Spec{Image: "layers"})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := sb.Remove(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
