//go:build linux

package docker_test

import (
	"context"
	"io"
	"os/exec"
	"testing"

	"github.com/atoll-run/atoll/backend/docker"
	"github.com/atoll-run/atoll/sandbox"
)

// BenchmarkEngine is what things take on a real engine, beside the engine's
// own program.
func BenchmarkEngine(b *testing.B) {
	s := newStage(b)
	rt := newRuntime(b, docker.Config{Host: s.Host, Guest: s.guest})
	sb := create(b, rt, nil)
	defer sb.Remove(context.Background())
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			if _, err := sandbox.Run(b.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("output", func(b *testing.B) {
		b.SetBytes(64 << 20)
		for b.Loop() {
			if _, err := sandbox.Run(b.Context(), sb, sandbox.Cmd{Args: []string{"head", "-c", "64M", "/dev/zero"}, Stdout: io.Discard}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("create+exec+remove", func(b *testing.B) {
		for b.Loop() {
			sb, err := rt.Create(b.Context(), sandbox.Spec{Image: imageName})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := sandbox.Run(b.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil {
				b.Fatal(err)
			}
			if err := sb.Remove(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	program, err := exec.LookPath("docker")
	if err != nil {
		return
	}
	for name, args := range map[string][]string{
		"docker run":  {"run", "--rm", "--network", "none", imageName, "true"},
		"docker exec": {"exec", "atoll-" + string(sb.ID()), "true"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if out, err := exec.Command(program, append([]string{"-H", s.Host}, args...)...).CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}
