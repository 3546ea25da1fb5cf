//go:build linux

package docker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/backend/docker"
	"github.com/atoll-run/atoll/internal/dockerd"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// imageName is what the engine of a test has.
const imageName = "atoll-suite:latest"

// frozen is why some claims about paused sandboxes do not hold.
const frozen = "the engine freezes the whole container, the guest included, so that nothing in it answers until it is resumed"

// TestRuntime is the whole contract against Docker.
func TestRuntime(t *testing.T) {
	e := dockerd.Start(t)
	suite(t, e)
}

// TestPodman is the whole contract against Podman.
func TestPodman(t *testing.T) {
	e := dockerd.StartPodman(t)
	suite(t, e)
}

func suite(t *testing.T, e *dockerd.Engine) {
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
func newRuntime(t testing.TB, cfg docker.Config) *docker.Runtime {
	t.Helper()
	if cfg.State == "" {
		cfg.State = t.TempDir()
	}
	if cfg.Pull == "" {
		cfg.Pull = docker.PullNever
	}
	cfg.Log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	rt, err := docker.New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt
}

// testWriter is a test's log.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// stage is an engine with the image of the tests.
type stage struct {
	*dockerd.Engine
	guest string
	api   *client.Client
}

func newStage(t testing.TB) *stage {
	t.Helper()
	e := dockerd.Start(t)
	e.Import(t, imageName, dockerd.HostRoot(t))
	api, err := client.New(client.WithHost(e.Host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return &stage{e, dockerd.Guest(t), api}
}

// ours returns the engine's containers.
func (s *stage) ours(t *testing.T) []container.Summary {
	t.Helper()
	l, err := s.api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// create makes a sandbox, which is removed in the end if rt still is open.
func create(t testing.TB, rt sandbox.Runtime, change func(*sandbox.Spec)) sandbox.Sandbox {
	t.Helper()
	spec := sandbox.Spec{Image: imageName}
	if change != nil {
		change(&spec)
	}
	sb, err := rt.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// run returns what a script prints.
func run(t testing.TB, sb sandbox.Sandbox, script string) string {
	t.Helper()
	r, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"sh", "-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if !r.Success() {
		t.Logf("%s: %+v: %s", script, r.Exit, r.Stderr)
	}
	return string(r.Stdout)
}

func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for this: %s", what)
		}
	}
}

// TestLife is what the suite does not look at, on one engine.
func TestLife(t *testing.T) {
	s := newStage(t)
	config := func() docker.Config { return docker.Config{Host: s.Host, Guest: s.guest} }

	t.Run("Restart", func(t *testing.T) {
		cfg := config()
		cfg.State = t.TempDir()
		rt := newRuntime(t, cfg)
		sb := create(t, rt, func(s *sandbox.Spec) {
			s.Env = map[string]string{"SECRET": "hush"}
			s.Labels = map[string]string{"a": "b"}
		})
		id, err := sb.(sandbox.Detacher).StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", "while :; do echo tick; sleep 0.05; done"}}, sandbox.DetachOptions{})
		if err != nil {
			t.Fatal(err)
		}
		bound, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", "while :; do sleep 1; done"}})
		if err != nil {
			t.Fatal(err)
		}
		paused := create(t, rt, nil)
		if err := paused.(sandbox.Pauser).Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		expired := create(t, rt, func(s *sandbox.Spec) { s.Expires = time.Now().Add(5 * time.Second) })
		info, err := expired.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := bound.Wait(); err == nil {
			t.Error("Wait says nothing of the daemon's end")
		}
		before := len(s.ours(t))
		time.Sleep(time.Until(info.Expires))

		rt = newRuntime(t, cfg)
		if n := len(s.ours(t)); before != 3 || n != 2 {
			t.Errorf("%d containers, then %d, want 3 and without the expired one 2", before, n)
		}
		again, err := rt.Open(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		i, err := again.Info(t.Context())
		if err != nil || i.Labels["a"] != "b" || i.State != sandbox.Running {
			t.Errorf("Info after the restart: %+v, %v", i, err)
		}
		if got := run(t, again, "echo $SECRET"); got != "hush\n" {
			t.Errorf("the environment is %q", got)
		}
		out, err := again.(sandbox.Detacher).Output(t.Context(), id, 0, 100, time.Minute)
		if err != nil || len(out.Chunks) == 0 || !strings.HasPrefix(string(out.Chunks[0].Data), "tick\n") {
			t.Errorf("output of the detached process: %+v, %v", out, err)
		}
		ps, err := again.(sandbox.Detacher).Processes(t.Context())
		if err != nil || len(ps) != 2 {
			t.Errorf("processes: %+v, %v; want the detached one and the one that was bound", ps, err)
		}
		p, err := rt.Open(t.Context(), paused.ID())
		if err != nil {
			t.Fatal(err)
		}
		if i, err := p.Info(t.Context()); err != nil || i.State != sandbox.Paused {
			t.Errorf("the paused one: %+v, %v", i.State, err)
		}
		if err := p.(sandbox.Pauser).Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := run(t, p, "echo awake"); got != "awake\n" {
			t.Errorf("the resumed one printed %q", got)
		}
		for _, sb := range []sandbox.Sandbox{again, p} {
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if left := s.ours(t); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
	})

	t.Run("Secrets", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, func(s *sandbox.Spec) {
			s.Env = map[string]string{"TOKEN": "hush-hush"}
			s.Labels = map[string]string{"of": "the tenant's"}
		})
		defer sb.Remove(context.Background())
		for _, c := range s.ours(t) {
			r, err := s.api.ContainerInspect(t.Context(), c.ID, client.ContainerInspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(r.Raw, []byte("hush")) || bytes.Contains(r.Raw, []byte("tenant")) {
				t.Errorf("the engine shows what it must not know: %s", r.Raw)
			}
		}
	})

	t.Run("Hardened", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, nil)
		defer sb.Remove(context.Background())
		status := run(t, sb, "cat /proc/self/status")
		for _, want := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(status, want+"\n") {
				t.Errorf("a process lacks %q: %s", want, status)
			}
		}
		for script, want := range map[string]string{
			"rm -f /.atoll/atoll-guest; echo x > /.atoll/atoll-guest; ls /.atoll":       "atoll-guest\n", // read-only
			"cat /etc/resolv.conf | grep -v '^#' | grep -v 127.0.0.1 | grep nameserver": "",
			"mount -t tmpfs x /mnt; unshare -r true && echo nested":                     "",
			"prlimit --locks=5 true && echo shed":                                       "",
		} {
			if got := run(t, sb, script); got != want {
				t.Errorf("%s printed %q, want %q", script, got, want)
			}
		}
		// The guest's socket is for the engine's execs alone.
		r, err := sandbox.Capture(t.Context(), sb, 1000, sandbox.Cmd{Args: []string{"perl", "-e",
			`use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0) or die; connect(S, pack("Sa*", 1, "\0atoll-guest")) or die "connect: $!"; $n = sysread(S, $b, 1); print defined $n ? "end $n" : "$!"`}})
		if err != nil || string(r.Stdout) != "end 0" && !strings.Contains(string(r.Stdout), "reset") {
			t.Errorf("who connects to the guest gets %q, %q, %v", r.Stdout, r.Stderr, err)
		}
	})

	t.Run("OutOfMemory", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, func(s *sandbox.Spec) { s.Limits.Memory = 64 << 20 })
		defer sb.Remove(context.Background())
		r, err := sandbox.Capture(t.Context(), sb, 1000, sandbox.Cmd{Args: []string{"perl", "-e", "$x = 'x' x 300_000_000; print 1"}})
		if err != nil || r.Reason != sandbox.OutOfMemory {
			t.Errorf("it ended with %+v, %v", r.Exit, err)
		}
		if got := run(t, sb, "echo alive"); got != "alive\n" {
			t.Errorf("the sandbox printed %q", got)
		}
	})

	t.Run("ForkBomb", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, func(s *sandbox.Spec) { s.Limits.PIDs = 50 })
		defer sb.Remove(context.Background())
		r, err := sandbox.Capture(t.Context(), sb, 1000, sandbox.Cmd{Args: []string{"perl", "-e",
			`while ($n < 200) { my $p = fork; last unless defined $p; if (!$p) { sleep 60; exit } $n++ } print $n`}})
		if n, _ := strconv.Atoi(string(r.Stdout)); err != nil || n < 30 || n > 50+32 {
			t.Errorf("%q processes under a limit of 50: %v", r.Stdout, err)
		}
		if u, err := sb.(sandbox.Meter).Usage(t.Context()); err != nil || u.PIDs < 30 {
			t.Errorf("Usage: %+v, %v", u, err)
		}
	})

	t.Run("ReadOnlyRoot", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, func(s *sandbox.Spec) { s.ReadOnlyRoot = true; s.Workdir = "/srv/app"; s.User = "user" })
		defer sb.Remove(context.Background())
		if got := run(t, sb, "pwd; for d in /tmp /workspace /var/tmp; do touch $d/x && echo $d; done; touch /opt/x 2>/dev/null && echo wrong"); got != "/srv/app\n/tmp\n/workspace\n/var/tmp\n" {
			t.Errorf("it printed %q", got)
		}
	})

	t.Run("Mounts", func(t *testing.T) {
		cfg := config()
		allowed, other := t.TempDir(), t.TempDir()
		cfg.MountRoots = []string{allowed}
		if err := os.Symlink(other, filepath.Join(allowed, "out")); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(allowed, "in"), 0o755); err != nil {
			t.Fatal(err)
		}
		rt := newRuntime(t, cfg)
		for source, within := range map[string]string{other: "", filepath.Join(allowed, "out"): "", "/etc": "", "/": "", filepath.Join(allowed, "in"): filepath.Join(allowed, "elsewhere"), s.Dir: ""} {
			sb, err := rt.Create(t.Context(), sandbox.Spec{Image: imageName, Mounts: []sandbox.Mount{{Source: source, Target: "/mnt/x", Within: within}}})
			if !errors.Is(err, sandbox.Denied) {
				t.Errorf("%s within %q: %v, want Denied", source, within, err)
			}
			if err == nil {
				sb.Remove(context.Background())
			}
		}
		sb := create(t, rt, func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: filepath.Join(allowed, "in"), Target: "/mnt/x", Within: allowed}}
		})
		run(t, sb, "echo x > /mnt/x/f")
		sb.Remove(context.Background())
		if _, err := os.Stat(filepath.Join(allowed, "in", "f")); err != nil {
			t.Error(err)
		}
	})

	// The path leads elsewhere once it was looked at, before the engine does.
	t.Run("MountRace", func(t *testing.T) {
		cfg := config()
		root, secret := t.TempDir(), t.TempDir()
		cfg.MountRoots = []string{root}
		dir := filepath.Join(root, "d")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		rt := newRuntime(t, cfg)
		docker.AfterChecks(rt, func() {
			if err := os.Rename(dir, dir+".was"); err != nil {
				t.Error(err)
			}
			if err := os.Symlink(secret, dir); err != nil {
				t.Error(err)
			}
		})
		sb, err := rt.Create(t.Context(), sandbox.Spec{Image: imageName, Mounts: []sandbox.Mount{{Source: dir, Target: "/mnt/x"}}})
		if !errors.Is(err, sandbox.Denied) {
			t.Errorf("Create: %v, want Denied", err)
		}
		if err == nil {
			sb.Remove(context.Background())
		}
		if left := s.ours(t); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
	})

	t.Run("TwoDaemons", func(t *testing.T) {
		a, b := newRuntime(t, config()), newRuntime(t, config())
		sa, sb := create(t, a, nil), create(t, b, nil)
		defer sb.Remove(context.Background())
		defer sa.Remove(context.Background())
		if _, err := b.Open(t.Context(), sa.ID()); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("one finds the other's: %v", err)
		}
		c := newRuntime(t, config()) // which recovers, and leaves both alone
		c.Close()
		if n := len(s.ours(t)); n != 2 {
			t.Errorf("%d containers, want 2", n)
		}
		if got := run(t, sa, "echo a") + run(t, sb, "echo b"); got != "a\nb\n" {
			t.Errorf("they printed %q", got)
		}
	})

	t.Run("Orphans", func(t *testing.T) {
		cfg := config()
		cfg.State = t.TempDir()
		rt := newRuntime(t, cfg)
		sb := create(t, rt, nil)
		rt.Close()
		// As after a crash in the middle of Create, and with the state lost.
		if err := os.Remove(filepath.Join(cfg.State, "sandboxes", string(sb.ID())+".json")); err != nil {
			t.Fatal(err)
		}
		rt = newRuntime(t, cfg)
		if left := s.ours(t); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
		rt.Close()
	})

	t.Run("RemovedByOthers", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, nil)
		p, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"sleep", "3600"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.api.ContainerRemove(t.Context(), "atoll-"+string(sb.ID()), client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("Wait: %v, want NotExist", err)
		}
		until(t, "Open to say NotExist", func() bool {
			_, err := rt.Open(t.Context(), sb.ID())
			return errors.Is(err, sandbox.NotExist)
		})
	})

	t.Run("Linger", func(t *testing.T) {
		if testing.Short() {
			t.Skip("takes half a minute")
		}
		cfg := config()
		cfg.State = t.TempDir()
		rt := newRuntime(t, cfg)
		sb := create(t, rt, nil)
		if _, err := sb.(sandbox.Detacher).StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sleep", "4001"}}, sandbox.DetachOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"sleep", "4002"}}); err != nil {
			t.Fatal(err)
		}
		rt.Close()
		top := func() string {
			r, err := s.api.ContainerTop(t.Context(), "atoll-"+string(sb.ID()), client.ContainerTopOptions{Arguments: []string{"-eo", "pid,args"}})
			if err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(r.Processes)
		}
		if !strings.Contains(top(), "sleep 4002") {
			t.Errorf("what was bound ended with the daemon: %s", top())
		}
		until(t, "what was bound to end", func() bool { return !strings.Contains(top(), "sleep 4002") })
		if !strings.Contains(top(), "sleep 4001") || strings.Contains(top(), "--connect") {
			t.Errorf("there is %s, want the detached one and no connection", top())
		}
		newRuntime(t, cfg)
	})

	t.Run("VolumeGone", func(t *testing.T) {
		rt := newRuntime(t, config())
		create(t, rt, nil).Remove(context.Background())
		for _, c := range s.ours(t) {
			s.api.ContainerRemove(t.Context(), c.ID, client.ContainerRemoveOptions{Force: true})
		}
		l, err := s.api.VolumeList(t.Context(), client.VolumeListOptions{})
		if err != nil || len(l.Items) != 1 {
			t.Fatalf("volumes: %+v, %v; want the guest's alone", l.Items, err)
		}
		if _, err := s.api.VolumeRemove(t.Context(), l.Items[0].Name, client.VolumeRemoveOptions{}); err != nil {
			t.Fatal(err)
		}
		sb := create(t, rt, nil)
		defer sb.Remove(context.Background())
		if got := run(t, sb, "echo filled"); got != "filled\n" {
			t.Errorf("it printed %q", got)
		}
	})

	t.Run("Pull", func(t *testing.T) {
		reg := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		defer reg.Close()
		name := reg.Listener.Addr().String() + "/some/image:1"
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(dockerd.HostRoot(t)), nil })
		if err != nil {
			t.Fatal(err)
		}
		img, err := mutate.AppendLayers(empty.Image, layer)
		if err == nil {
			img, err = mutate.Config(img, v1.Config{Env: []string{"FROM_IMAGE=yes", "BOTH=image"}, User: "user", WorkingDir: "/srv", Entrypoint: []string{"false"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		ref, err := imagename.ParseReference(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, img); err != nil {
			t.Fatal(err)
		}
		never := newRuntime(t, config())
		if _, err := never.Create(t.Context(), sandbox.Spec{Image: name}); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("Create where nothing is pulled: %v, want NotExist", err)
		}
		cfg := config()
		cfg.Pull = docker.PullMissing
		var steps []docker.Progress
		cfg.Progress = func(p docker.Progress) { steps = append(steps, p) }
		rt := newRuntime(t, cfg)
		sb := create(t, rt, func(s *sandbox.Spec) { s.Image = name; s.Env = map[string]string{"BOTH": "spec"} })
		defer sb.Remove(context.Background())
		if len(steps) == 0 {
			t.Error("nothing was said about the pull")
		}
		if got := run(t, sb, "id -un; pwd; echo $FROM_IMAGE $BOTH"); got != "user\n/srv\nyes spec\n" {
			t.Errorf("it printed %q", got)
		}
		i, err := sb.Info(t.Context())
		if err != nil || !strings.Contains(i.Image, "@sha256:") || i.Wanted != name || i.User != "user" || i.Workdir != "/srv" {
			t.Errorf("Info: %+v, %v", i, err)
		}
		if _, err := rt.Create(t.Context(), sandbox.Spec{Image: reg.Listener.Addr().String() + "/no/such:1"}); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("Create of what the registry has not: %v, want NotExist", err)
		}
	})

	// What connects the daemon to the guest may end by itself.
	t.Run("LostConnection", func(t *testing.T) {
		rt := newRuntime(t, config())
		sb := create(t, rt, nil)
		defer sb.Remove(context.Background())
		docker.Disconnect(rt, sb.ID())
		until(t, "the sandbox to be reached again", func() bool {
			r, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"echo", "back"}})
			return err == nil && string(r.Stdout) == "back\n"
		})
	})
}

// TestNoEngine is about what is said when there is none.
func TestNoEngine(t *testing.T) {
	guest := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(guest, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.24")
		w.Header().Set("Ostype", "linux")
	}))
	defer old.Close()
	dead := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", dead)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	for _, c := range []struct {
		name, host string
		kind       sandbox.Kind
		says       string
	}{
		{"missing", "unix:///no/such/docker.sock", sandbox.Unavailable, "start the engine"},
		{"nobody listens", "unix://" + dead, sandbox.Unavailable, "nobody listens"},
		{"too old", "tcp://" + old.Listener.Addr().String(), sandbox.Unsupported, "too old"},
		{"ssh", "ssh://host", sandbox.Invalid, "unix:///PATH"},
		{"nonsense", "nonsense", sandbox.Invalid, "unix:///PATH"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt, err := docker.New(t.Context(), docker.Config{Host: c.host, State: t.TempDir(), Guest: guest})
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %s with %q", err, c.kind, c.says)
			}
			if err == nil {
				rt.Close()
			}
		})
	}
}
