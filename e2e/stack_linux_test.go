package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
	"github.com/atoll-run/atoll/warm"
)

// guestProgram is the program that runs inside, built once.
var guestProgram string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "atoll-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	guestProgram = filepath.Join(dir, "atoll-guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", guestProgram, "github.com/atoll-run/atoll/cmd/atoll-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the guest: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// openStack returns the daemon's stack over the kernel: an engine with its
// store, a pool of ready sandboxes, the linux backend. Whatever lives when the
// test ends is removed then.
func openStack(t *testing.T, all *testing.T) *engine.Engine {
	t.Helper()
	state, err := os.MkdirTemp("", "atoll-e2e-state-")
	if err != nil {
		t.Fatal(err)
	}
	below := func() (*linux.Runtime, error) {
		return linux.New(linux.Config{State: filepath.Join(state, "linux"), Cache: filepath.Join(filepath.Dir(guestProgram), "cache"), Guest: guestProgram,
			MountRoots: []string{"/tmp", "/var/tmp"}, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}
	rt, err := below()
	if err != nil {
		os.RemoveAll(state)
		if sandbox.KindOf(err) == sandbox.Unsupported && os.Getenv("ATOLL_REQUIRE") == "" {
			t.Skipf("this machine cannot make sandboxes: %v", err)
		}
		t.Fatal(err)
	}
	all.Cleanup(func() {
		rt, err := below()
		if err != nil {
			all.Error(err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for info, err := range rt.List(ctx) {
			if err != nil {
				all.Error(err)
				break
			}
			sb, err := rt.Open(ctx, info.ID)
			if err == nil {
				err = sb.Remove(ctx)
			}
			if err != nil && !errors.Is(err, sandbox.NotExist) {
				all.Error(err)
			}
		}
		if err := errors.Join(rt.Close(), os.RemoveAll(state)); err != nil {
			all.Error(err)
		}
	})
	pool, err := warm.New(rt, warm.Config{Max: 2, Specs: []warm.Pin{{N: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(state, "engine.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(t.Context(), pool, engine.Config{Store: st, MountRoots: []string{"/tmp", "/var/tmp"}, Warm: func() int { return pool.Stats().Ready }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// listener is a server that needs nothing but the host's Perl.
func listener(port int) []string {
	return []string{"perl", "-MIO::Socket::INET", "-e", `
		my $l = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 8, ReuseAddr => 1) or die $!;
		while (my $c = $l->accept) { while (sysread($c, my $b, 65536)) { syswrite($c, $b) } close $c }`, strconv.Itoa(port)}
}

// ready are the goroutines of sandboxes that the pool has ready, which come and
// go as it likes. That the backend's own end with its sandboxes is what its
// tests see to.
var ready = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/atoll-run/atoll/backend/linux.(*box).watch"),
	goleak.IgnoreAnyFunction("github.com/atoll-run/atoll/guest.(*Client).read"),
}

// TestEngineOverWarmOverLinux is the whole contract of what the daemon has.
func TestEngineOverWarmOverLinux(t *testing.T) {
	t.Run("suite", func(suite *testing.T) {
		sandboxtest.Run(suite, sandboxtest.Config{
			New:    func(s *testing.T) sandbox.Runtime { return openStack(s, t) },
			Listen: listener,
			Source: func(t *testing.T) string { return t.TempDir() },
			Leaks:  ready,
		})
	})
}

// wired is a client whose server and stack end with it.
type wired struct {
	*client.Client
	end func() error
}

func (w wired) Close() error { return errors.Join(w.Client.Close(), w.end()) }

// TestClientDownToLinux is the whole contract through all layers.
func TestClientDownToLinux(t *testing.T) {
	t.Run("suite", func(suite *testing.T) {
		const token = "e2b_0123456789abcdef0123456789abcdef01234567"
		var clients []*client.Client
		sandboxtest.Run(suite, sandboxtest.Config{
			New: func(s *testing.T) sandbox.Runtime {
				e := openStack(s, t)
				api := native.New(func(o sandbox.Owner) sandbox.Runtime { return e.View(o, "native") }, native.Config{Version: "test"})
				guard, err := gate.New(gate.Config{Token: token})
				if err != nil {
					s.Fatal(err)
				}
				server := httptest.NewServer(guard.Guard(api, api.Refuse, gate.Bearer))
				c, err := client.New(client.Config{Host: server.URL, Token: token})
				if err != nil {
					s.Fatal(err)
				}
				clients = append(clients, c)
				var ended bool
				return wired{c, func() error {
					if ended {
						return nil
					}
					ended = true
					err := api.Close()
					server.Close()
					return errors.Join(err, e.Close())
				}}
			},
			Listen: listener,
			Source: func(t *testing.T) string { return t.TempDir() },
			Leaks:  ready,
			Settle: func() {
				for _, c := range clients {
					c.CloseIdle()
				}
			},
		})
	})
}
