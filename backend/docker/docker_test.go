//go:build linux

package docker_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/atoll-run/atoll/backend/docker"
	"github.com/atoll-run/atoll/internal/dockerd"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// imageName is what the engine of a test has.
const imageName = "atoll-suite:latest"

// frozen is why some claims about paused sandboxes do not hold.
const frozen = "the engine freezes the whole container, the guest included, so that nothing in it answers until it is resumed"

// TestRuntime is the whole contract against a real engine.
func TestRuntime(t *testing.T) {
	e := dockerd.Start(t)
	e.Import(t, imageName, dockerd.HostRoot(t))
	guest := dockerd.Guest(t)
	var all []*docker.Runtime
	t.Run("suite", func(suite *testing.T) {
		sandboxtest.Run(suite, sandboxtest.Config{
			New: func(*testing.T) sandbox.Runtime {
				rt := newRuntime(t, docker.Config{Host: e.Host, Guest: guest, MountRoots: []string{t.TempDir(), "/tmp"}})
				all = append(all, rt)
				return rt
			},
			Spec:   sandbox.Spec{Image: imageName},
			Listen: dockerd.Listener,
			Source: func(t *testing.T) string { return t.TempDir() },
			Settle: func() {
				for _, rt := range all {
					docker.CloseIdle(rt)
				}
			},
			Cannot: map[string]string{
				"PauseStopsProcesses":            frozen,
				"PausedRefusesProcesses":         frozen,
				"PausedCanBeRemovedAndCancelled": frozen,
			},
		})
	})
}

// newRuntime returns a Runtime of the test's own, never pulling.
func newRuntime(t *testing.T, cfg docker.Config) *docker.Runtime {
	t.Helper()
	if cfg.State == "" {
		cfg.State = t.TempDir()
	}
	cfg.Pull = docker.PullNever
	cfg.Log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	rt, err := docker.New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt
}

// testWriter is a test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
