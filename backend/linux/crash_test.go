//go:build linux

package linux_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/backend/linux/internal/leak"
	"github.com/atoll-run/atoll/sandbox"
)

// TestCrash kills a daemon at random points of making, using and removing
// sandboxes, and looks at what the next one finds: what was acknowledged is
// there, what was removed is not, detached processes still run and their output
// is whole, and in the end nothing is left.
func TestCrash(t *testing.T) { crash(t, count(100, 300)) }

// TestCrashAsUser does the same without root.
func TestCrashAsUser(t *testing.T) { asUser(t, "^TestCrash$") }

func crash(t *testing.T, times int) {
	if os.Getenv("ATOLL_TEST_USER") != "" && !soak {
		times /= 4
	}
	// Skips where there are no sandboxes, and makes what all of them share,
	// which takes longer than any daemon lives here.
	if _, err := newRuntime(t).Create(t.Context(), sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	w := leak.New(state)
	type fate struct {
		removing, removed bool // asked for; acknowledged
		detached          []string
	}
	known := map[string]*fate{} // acknowledged sandboxes
	var mu sync.Mutex           // guards known, what it points to, and did
	did := map[string]int{}     // requests that were acknowledged
	seed := uint64(time.Now().UnixNano())
	t.Log("seed ", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	check := func(round int, d *crashDaemon) {
		t.Helper()
		list, err := d.ask("list")
		if err != nil {
			t.Fatalf("round %d: list: %v", round, err)
		}
		live := strings.Fields(list)
		for _, id := range live {
			w.Saw(id)
			if known[id] == nil { // made, but the answer was lost
				known[id] = &fate{}
			}
		}
		for id, f := range known {
			is := slices.Contains(live, id)
			if !is && !f.removing {
				t.Errorf("round %d: sandbox %s was acknowledged and is gone", round, id)
			}
			if is && f.removed {
				t.Errorf("round %d: sandbox %s was removed and is there", round, id)
			}
			if !is {
				delete(known, id)
				continue
			}
			f.removing = false // it was not done
			for _, p := range f.detached {
				out, err := d.ask("output", id, p)
				if err != nil || out != "begun" {
					t.Errorf("round %d: process %s of %s: %q %v", round, p, id, out, err)
				}
			}
			if out, err := d.ask("exec", id, "echo", "well"); err != nil || out != "well" {
				t.Errorf("round %d: %s does not work: %q %v", round, id, out, err)
			}
		}
		entries, err := os.ReadDir(filepath.Join(state, "sandboxes"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !slices.Contains(live, e.Name()) {
				t.Errorf("round %d: a folder of no sandbox is left: %s", round, e.Name())
			}
		}
		if trash, err := os.ReadDir(filepath.Join(state, "trash")); err != nil || len(trash) > 0 {
			t.Errorf("round %d: trash is left: %v %v", round, trash, err)
		}
	}

	for round := range times {
		d := startCrashDaemon(t, state)
		check(round, d)
		if t.Failed() {
			d.kill()
			return
		}
		var wg sync.WaitGroup
		for worker := range 3 {
			r := rand.New(rand.NewPCG(seed, uint64(round*3+worker+1)))
			wg.Go(func() {
				for { // until the daemon is killed
					mu.Lock()
					var mine []string // that no other worker removes
					for id, f := range known {
						if !f.removing {
							mine = append(mine, id)
						}
					}
					slices.Sort(mine)
					id := ""
					if len(mine) > 0 {
						id = mine[r.IntN(len(mine))]
					}
					what := r.IntN(10)
					remove := id != "" && (len(mine) > 5 || what < 2)
					if remove {
						known[id].removing = true
					}
					mu.Unlock()
					switch {
					case remove:
						if _, err := d.ask("remove", id); err != nil {
							if !errors.Is(err, errCrashed) {
								t.Errorf("round %d: %s could not be removed: %v", round, id, err)
							}
							return
						}
						mu.Lock()
						did["remove"]++
						known[id].removed = true
						mu.Unlock()
					case id == "" || what < 5:
						made, err := d.ask("create")
						if err != nil {
							if !errors.Is(err, errCrashed) {
								t.Errorf("round %d: a sandbox could not be made: %v", round, err)
							}
							return
						}
						mu.Lock()
						did["create"]++
						known[made] = &fate{}
						mu.Unlock()
					case what < 8:
						p, err := d.ask("detach", id)
						if errors.Is(err, errCrashed) {
							return
						}
						mu.Lock()
						if f := known[id]; err == nil {
							did["detach"]++
							f.detached = append(f.detached, p)
						} else if !f.removing {
							t.Errorf("round %d: %s: a process could not be started: %v", round, id, err)
						}
						mu.Unlock()
					default:
						if _, err := d.ask("bound", id); errors.Is(err, errCrashed) {
							return
						}
						mu.Lock()
						did["bound"]++
						mu.Unlock()
					}
				}
			})
		}
		time.Sleep(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
		d.kill()
		wg.Wait()
		// What is there now had begun, and is known to nobody else.
		for _, dir := range []string{"sandboxes", "trash"} {
			entries, err := os.ReadDir(filepath.Join(state, dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				w.Saw(e.Name())
			}
		}
	}
	d := startCrashDaemon(t, state)
	check(times, d)
	if _, err := d.ask("clear"); err != nil {
		t.Error(err)
	}
	d.kill()
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	t.Logf("acknowledged: %v", did)
	for _, what := range []string{"create", "remove", "detach", "bound"} {
		if did[what] < times/20 {
			t.Errorf("%s was acknowledged %d times in %d rounds: this tried nothing", what, did[what], times)
		}
	}
}

// TestCrashLinger kills the daemon and does not start another: what was bound
// to its requests is ended by the guest, what was detached goes on.
func TestCrashLinger(t *testing.T) {
	if !soak {
		t.Skip("takes as long as the guest waits for a daemon, half a minute")
	}
	newRuntime(t)
	state := t.TempDir()
	w := leak.New(state)
	d := startCrashDaemon(t, state)
	id, err := d.ask("create")
	if err != nil {
		t.Fatal(err)
	}
	w.Saw(id)
	kept, err := d.ask("detach", id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.ask("bound", id); err != nil {
		t.Fatal(err)
	}
	alive := func() (n int) {
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte("bound-"+id)) {
				n++
			}
		}
		return n
	}
	if alive() == 0 {
		t.Fatal("the process that is bound to its request does not run")
	}
	d.kill()
	for alive() > 0 { // the test's own time limit bounds it
		time.Sleep(100 * time.Millisecond)
	}
	d = startCrashDaemon(t, state)
	if out, err := d.ask("output", id, kept); err != nil || out != "begun" {
		t.Errorf("the detached process: %q %v", out, err)
	}
	if _, err := d.ask("clear"); err != nil {
		t.Error(err)
	}
	d.kill()
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestCrashKeepsChanges kills the daemon after an update: the next one finds
// what was changed, and the end that was given, though of the environment
// nothing is written down.
func TestCrashKeepsChanges(t *testing.T) {
	newRuntime(t)
	state := t.TempDir()
	w := leak.New(state)
	d := startCrashDaemon(t, state)
	id, err := d.ask("create")
	if err != nil {
		t.Fatal(err)
	}
	w.Saw(id)
	kept, err := d.ask("detach", id)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := d.ask("change", id, "1h")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	filepath.WalkDir(state, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files++
			if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte("crash-secret")) {
				t.Errorf("%s has what was added to the environment", p)
			}
		}
		return nil
	})
	if files == 0 {
		t.Error("there is no state to look through")
	}
	d.kill()
	d = startCrashDaemon(t, state)
	if said, err := d.ask("changed", id); err != nil || said != changed || !strings.Contains(said, "crash-secret") {
		t.Errorf("what was changed is now %s %v, want %s", said, err, changed)
	}
	if name, err := d.ask("name", id, kept); err != nil || name != strconv.Quote(keptName) {
		t.Errorf("the detached process is called %s %v, want %q", name, err, keptName)
	}
	if _, err := d.ask("change", id, "2s"); err != nil {
		t.Fatal(err)
	}
	d.kill()
	d = startCrashDaemon(t, state)
	for { // the test's own time limit bounds it
		ids, err := d.ask("list")
		if err != nil {
			t.Fatal(err)
		}
		if ids == "" {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.kill() // which may still be freeing it
	d = startCrashDaemon(t, state)
	if ids, err := d.ask("list"); err != nil || ids != "" {
		t.Errorf("there is %q %v", ids, err)
	}
	d.kill()
	if left := w.Left(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// A crashDaemon is this test's program run again, as a daemon.
type crashDaemon struct {
	cmd *exec.Cmd
	in  io.Writer

	mu    sync.Mutex
	next  int
	calls map[int]chan string
	dead  bool
}

var errCrashed = errors.New("the daemon is dead")

func startCrashDaemon(t *testing.T, state string) *crashDaemon {
	t.Helper()
	d := &crashDaemon{cmd: exec.Command("/proc/self/exe"), calls: map[int]chan string{}}
	d.cmd.Env = append(os.Environ(), "ATOLL_TEST_DAEMON="+state, "ATOLL_TEST_GUEST="+guestProgram, "ATOLL_TEST_CACHE="+cacheDir(t))
	d.cmd.Stderr = os.Stderr
	in, err := d.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.in = in
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			n, rest, _ := strings.Cut(sc.Text(), " ")
			i, err := strconv.Atoi(n)
			if err != nil {
				fmt.Fprintln(os.Stderr, "daemon:", sc.Text())
				continue
			}
			d.mu.Lock()
			if ch := d.calls[i]; ch != nil {
				ch <- rest
				delete(d.calls, i)
			}
			d.mu.Unlock()
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dead = true
		for _, ch := range d.calls {
			close(ch)
		}
		d.calls = nil
	}()
	return d
}

// ask sends a request and waits for its answer, which comes before the
// daemon's death or not at all.
func (d *crashDaemon) ask(words ...string) (string, error) {
	ch := make(chan string, 1)
	d.mu.Lock()
	if d.dead {
		d.mu.Unlock()
		return "", errCrashed
	}
	d.next++
	d.calls[d.next] = ch
	fmt.Fprintf(d.in, "%d %s\n", d.next, strings.Join(words, " "))
	d.mu.Unlock()
	answer, ok := <-ch
	if !ok {
		return "", errCrashed
	}
	if answer, ok := strings.CutPrefix(answer, "ok "); ok {
		return answer, nil
	}
	return "", errors.New(answer)
}

func (d *crashDaemon) kill() {
	d.cmd.Process.Kill()
	d.cmd.Wait()
}

// keptName is what detached processes are called.
const keptName = "kept \xff\x00 by its guest"

// serveCrash is what a crashDaemon's process does: it answers lines.
func serveCrash(state string) int {
	rt, err := linux.New(linux.Config{State: state, Cache: os.Getenv("ATOLL_TEST_CACHE"), Guest: guestProgram, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		return 1
	}
	var mu sync.Mutex // guards os.Stdout
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		words := strings.Fields(sc.Text())
		go func() {
			answer, err := answerCrash(context.Background(), rt, words[1:])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				fmt.Printf("%s error %s\n", words[0], strings.ReplaceAll(err.Error(), "\n", " "))
				return
			}
			fmt.Printf("%s ok %s\n", words[0], answer)
		}()
	}
	return 0
}

// changedCrash says what is true of sb that an Update changes.
func changedCrash(ctx context.Context, sb sandbox.Sandbox) (string, error) {
	i, err := sb.Info(ctx)
	if err != nil {
		return "", err
	}
	r, err := sandbox.Capture(ctx, sb, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "echo $CRASH"}})
	return fmt.Sprintf("%v %s %s", i.Labels, i.Expires.UTC().Format(time.RFC3339Nano), bytes.TrimSpace(r.Stdout)), err
}

func answerCrash(ctx context.Context, rt *linux.Runtime, words []string) (string, error) {
	switch words[0] {
	case "create":
		sb, err := rt.Create(ctx, sandbox.Spec{Limits: sandbox.Limits{PIDs: 50}})
		if err != nil {
			return "", err
		}
		return string(sb.ID()), nil
	case "list", "clear":
		var ids []string
		for info, err := range rt.List(ctx) {
			if err != nil {
				return "", err
			}
			ids = append(ids, string(info.ID))
			if words[0] == "clear" {
				sb, err := rt.Open(ctx, info.ID)
				if err == nil {
					err = sb.Remove(ctx)
				}
				if err != nil {
					return "", err
				}
			}
		}
		return strings.Join(ids, " "), nil
	}
	sb, err := rt.Open(ctx, sandbox.ID(words[1]))
	if err != nil {
		return "", err
	}
	d := sb.(sandbox.Detacher)
	switch words[0] {
	case "remove":
		return "", sb.Remove(ctx)
	case "exec":
		r, err := sandbox.Capture(ctx, sb, 1000, sandbox.Cmd{Args: words[2:]})
		return strings.TrimSpace(string(r.Stdout)), err
	case "bound": // answers when it runs, and goes on
		begun, say := io.Pipe()
		_, err := sb.Start(ctx, sandbox.Cmd{Args: []string{"sh", "-c", "echo begun; sleep 1000; : bound-" + words[1]}, Stdout: say})
		if err != nil {
			return "", err
		}
		_, err = begun.Read(make([]byte, 10))
		return "", err
	case "detach":
		id, err := d.StartDetached(ctx, sandbox.Cmd{Args: []string{"sh", "-c", "echo begun; sleep 1000; echo ended"}}, sandbox.DetachOptions{Name: keptName})
		return string(id), err
	case "change":
		in, err := time.ParseDuration(words[2])
		if err != nil {
			return "", err
		}
		err = sb.(sandbox.Updater).Update(ctx, sandbox.Change{Labels: map[string]string{"crash": "test"}, Expires: new(time.Now().Add(in)), Env: map[string]string{"CRASH": "crash-secret"}})
		if err != nil {
			return "", err
		}
		return changedCrash(ctx, sb)
	case "changed":
		return changedCrash(ctx, sb)
	case "name":
		ps, err := d.Processes(ctx)
		i := slices.IndexFunc(ps, func(p sandbox.ProcessInfo) bool { return string(p.ID) == words[2] })
		if err != nil || i < 0 {
			return "", errors.Join(err, fs.ErrNotExist)
		}
		return strconv.Quote(ps[i].Name), nil
	case "output":
		out, err := d.Output(ctx, sandbox.ProcessID(words[2]), 0, 1000, 10*time.Second)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		for _, c := range out.Chunks {
			b.Write(c.Data)
		}
		if out.Exit != nil {
			fmt.Fprintf(&b, " and ended: %+v", *out.Exit)
		}
		return strings.TrimSpace(b.String()), nil
	}
	return "", fs.ErrInvalid
}
