package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
)

const crashToken = "e2b_0123456789abcdef0123456789abcdef01234567"

// A daemon is the real program, which a test may kill.
type daemon struct {
	*exec.Cmd
	client *client.Client
	host   string // where it listens
}

// startDaemon starts the program on the state folder dir and returns when it
// is ready.
func startDaemon(t *testing.T, program, dir string) *daemon {
	t.Helper()
	cmd := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--state", dir, "--log", "warn", "--config", filepath.Join(dir, "atoll.toml"))
	cmd.Env = append(os.Environ(), "ATOLL_TOKEN="+crashToken)
	said, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, ok := strings.Cut(strings.TrimSpace(line), "ready on ")
	if !ok {
		cmd.Process.Kill()
		cmd.Wait()
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Fatalf("the daemon said %q, %v, and on standard error\n%s", line, err, log)
	}
	c, err := client.New(client.Config{Host: address, Token: crashToken})
	if err != nil {
		t.Fatal(err)
	}
	return &daemon{cmd, c, address}
}

// kill ends the daemon as a crash would.
func (d *daemon) kill() {
	d.Process.Kill()
	d.Wait()
	d.client.Close()
}

// A promise is what a daemon acknowledged of one name.
type promise struct {
	id      sandbox.ID
	file    string // the content of /workspace/f
	removed bool
	unsure  bool // a call was under way when the daemon died
}

// TestNothingAcknowledgedIsLost kills the daemon at random moments while eight
// workers make, use, change and remove sandboxes. What it said is done must be
// done when it comes back; what it had not said may be either, and only one of
// them.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	kills := 12
	if os.Getenv("ATOLL_SOAK") != "" {
		kills = 200
	}
	dir, err := os.MkdirTemp("", "atoll-e2e-crash-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program, err := buildDaemon()
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("[linux]\nguest = %q\n[warm]\nmax = 2\nafter = 1\n", guestProgram)
	if err := os.WriteFile(filepath.Join(dir, "atoll.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, program, dir)
	defer func() { d.kill() }()
	if s, err := d.client.Status(t.Context()); err != nil || !s.Available {
		if os.Getenv("ATOLL_REQUIRE") == "" {
			t.Skipf("this machine cannot make sandboxes: %+v, %v", s, err)
		}
		t.Fatalf("status %+v, %v", s, err)
	}

	const workers = 8
	made, checked := 0, 0
	kept := make([]map[string]*promise, workers) // each worker's own names
	for w := range kept {
		kept[w] = make(map[string]*promise)
	}
	for round := range kills {
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		acknowledged := make(chan struct{})
		for w := range workers {
			wg.Go(func() {
				work(ctx, t, d.client, w, kept[w], rand.New(rand.NewPCG(uint64(round), uint64(w))), func() {
					select {
					case acknowledged <- struct{}{}:
					case <-ctx.Done():
					}
				})
			})
		}
		// After so many answers, and a little later, so that it comes in the
		// middle of something.
		patience := time.After(time.Minute)
		for range rand.IntN(60) {
			select {
			case <-acknowledged:
			case <-patience:
				t.Fatal("nothing happens any more")
			}
		}
		go func() { // nobody waits for us meanwhile
			for range acknowledged {
			}
		}()
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		d.Process.Kill()
		stop()
		wg.Wait()
		close(acknowledged)
		d.kill()
		d = startDaemon(t, program, dir)
		for w := range workers {
			for name, p := range kept[w] {
				checked++
				p.check(t, d.client, name)
				if p.removed {
					delete(kept[w], name)
				} else {
					made++
				}
			}
		}
		// Nobody has what nobody asked for.
		for info, err := range d.client.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if len(info.Names) != 1 {
				t.Errorf("%s has the names %q", info.ID, info.Names)
				continue
			}
			var w, n int
			fmt.Sscanf(info.Names[0], "worker %d name %d", &w, &n)
			if p := kept[w][info.Names[0]]; p == nil || p.id != info.ID {
				t.Errorf("%s of %q is not what was acknowledged: %+v", info.ID, info.Names[0], p)
			}
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d kills, %d promises looked at, of sandboxes that lived %d", kills, checked, made)
	if checked < kills {
		t.Errorf("only %d promises were looked at", checked)
	}
	for info, err := range d.client.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		sb, err := d.client.Open(t.Context(), info.ID)
		if err == nil {
			err = sb.Remove(t.Context())
		}
		if err != nil {
			t.Error(err)
		}
	}
	// The pool's own go when the daemon ends in peace.
	if err := d.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	d.Wait()
	left, err := filepath.Glob(filepath.Join(dir, "linux", "sandboxes", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// work is one worker until the daemon dies. It says when a call was
// acknowledged.
func work(ctx context.Context, t *testing.T, c *client.Client, w int, kept map[string]*promise, rng *rand.Rand, acknowledged func()) {
	for ctx.Err() == nil {
		name := fmt.Sprintf("worker %d name %d", w, rng.IntN(3))
		p := kept[name]
		if p == nil {
			p = &promise{unsure: true}
			kept[name] = p
			sb, made, err := c.Acquire(ctx, sandbox.Spec{Name: name})
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, sandbox.Unavailable) {
					t.Errorf("acquire %s: %v", name, err)
				}
				return
			}
			if !made {
				t.Errorf("%s was there before anybody made it: %s", name, sb.ID())
			}
			p.id, p.unsure = sb.ID(), false
			acknowledged()
			continue
		}
		sb, err := c.Open(ctx, p.id)
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, sandbox.Unavailable) {
				t.Errorf("open %s: %v", name, err)
			}
			return
		}
		p.unsure = true
		switch rng.IntN(4) {
		case 0:
			if err := sb.Remove(ctx); err != nil {
				return
			}
			p.removed = true
		case 1:
			text := fmt.Sprint(rng.Int64())
			if err := sandbox.WriteFile(ctx, sb, "/workspace/f", []byte(text)); err != nil {
				p.file = "" // either
				return
			}
			p.file = text
		case 2:
			if err := sb.(sandbox.Updater).Update(ctx, sandbox.Change{Labels: map[string]string{"a": "b"}}); err != nil {
				return
			}
		default:
			exit, err := sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"true"}})
			if err != nil {
				return
			}
			if !exit.Success() {
				t.Errorf("true: %v", exit)
			}
		}
		p.unsure = false
		if p.removed {
			delete(kept, name)
		}
		acknowledged()
	}
}

// check holds the daemon that came back to p, and settles what was open.
func (p *promise) check(t *testing.T, c *client.Client, name string) {
	sb, err := c.Lookup(t.Context(), name)
	switch {
	case p.id == "" && errors.Is(err, sandbox.NotExist): // it was not made
		p.removed = true
		return
	case p.id == "" && err == nil: // it was made, and nobody was told
		p.id = sb.ID()
	case p.unsure && errors.Is(err, sandbox.NotExist):
		p.removed = true
		return
	case err != nil:
		t.Errorf("%s is lost: %v", name, err)
		return
	case sb.ID() != p.id:
		t.Errorf("%s is %s, was %s", name, sb.ID(), p.id)
		return
	}
	exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"true"}})
	if err != nil || !exit.Success() {
		t.Errorf("%s does not work: %v, %v", name, exit, err)
	}
	if p.file != "" && !p.unsure {
		b, err := sandbox.ReadFile(t.Context(), sb, "/workspace/f", 100)
		if err != nil || string(b) != p.file {
			t.Errorf("the file of %s holds %q, %v, want %q", name, b, err, p.file)
		}
	}
	p.unsure = false
}
