package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// inBubble runs f in virtual time with a new sandbox.
func inBubble(t *testing.T, c Config, spec sandbox.Spec, f func(t *testing.T, rt *Runtime, b *box)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rt := New(c)
		defer rt.Close()
		sb, err := rt.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		f(t, rt, sb.(*box))
	})
}

// sh runs a script and returns all that it printed.
func sh(t *testing.T, b *box, script string) (string, sandbox.Exit) {
	t.Helper()
	var out bytes.Buffer
	exit, err := sandbox.Run(t.Context(), b, sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), exit
}

// TestTimeIsVirtual: days pass at once, and in order.
func TestTimeIsVirtual(t *testing.T) {
	inBubble(t, Config{}, sandbox.Spec{Expires: bubbleStart.Add(30 * 24 * time.Hour)}, func(t *testing.T, rt *Runtime, b *box) {
		start := time.Now()
		if out, _ := sh(t, b, "sleep 36000; echo ten hours"); out != "ten hours\n" || time.Since(start) != 10*time.Hour {
			t.Errorf("%q after %v", out, time.Since(start))
		}
		start = time.Now()
		exit, err := sandbox.Run(t.Context(), b, sandbox.Cmd{Args: []string{"sh", "-c", "while :; do sleep 1; done"}, Timeout: time.Hour})
		if err != nil || exit.Reason != sandbox.TimedOut || time.Since(start) != time.Hour {
			t.Errorf("%+v, %v after %v", exit, err, time.Since(start))
		}
		p, err := b.Start(t.Context(), sandbox.Cmd{Args: []string{"sleep", "infinity"}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Wait() // until it expires
		if !errors.Is(err, sandbox.NotExist) || !time.Now().Equal(bubbleStart.Add(30*24*time.Hour)) {
			t.Errorf("%v at %v", err, time.Now())
		}
		if _, err := rt.Open(t.Context(), b.ID()); !errors.Is(err, sandbox.NotExist) {
			t.Errorf("Open: %v", err)
		}
	})
}

// bubbleStart is the time at which testing/synctest begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// TestCloseWaits: nothing is left in the bubble, whatever runs.
func TestCloseWaits(t *testing.T) {
	inBubble(t, Config{}, sandbox.Spec{}, func(t *testing.T, rt *Runtime, b *box) {
		for _, script := range []string{"sleep 100 | cat", "yes > /dev/null", "mkfifo /tmp/f; cat /tmp/f", "while :; do :; done", "cat & wait", "kill -STOP $$"} {
			if _, err := b.Start(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", script}, Stdout: io.Discard}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sh", "-c", script}}, sandbox.DetachOptions{Stdin: true}); err != nil {
				t.Fatal(err)
			}
		}
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
		if len(b.procs) != 0 {
			t.Errorf("%d processes are left", len(b.procs))
		}
	})
}

// TestPrograms: a test adds programs of its own.
func TestPrograms(t *testing.T) {
	c := Config{Programs: map[string]Program{
		"greet": func(p *Proc) int {
			name, _ := io.ReadAll(p.Stdin())
			data, err := p.ReadFile("greeting")
			if err != nil {
				p.Printf("%v", err)
				return 1
			}
			fmt.Fprintf(p.Stderr(), "in %s as %s\n", p.Dir(), p.Env["WHO"])
			p.Printf("%s, %s!\n", data, name)
			return 7
		},
		"eat": func(p *Proc) int { p.OutOfMemory(); return 0 },
		"wait": func(p *Proc) int {
			<-p.Context().Done()
			return 0
		},
		"true": func(p *Proc) int { return 42 },
	}}
	inBubble(t, c, sandbox.Spec{Env: map[string]string{"WHO": "me"}}, func(t *testing.T, rt *Runtime, b *box) {
		out, exit := sh(t, b, "cd /tmp; printf Hello > greeting; printf World | greet; echo $?; /bin/true; echo $?")
		if want := "in /tmp as me\nHello, World!\n7\n42\n"; out != want || !exit.Success() {
			t.Errorf("%q, %+v, want %q", out, exit, want)
		}
		exit, err := sandbox.Run(t.Context(), b, sandbox.Cmd{Args: []string{"eat"}})
		if err != nil || exit.Reason != sandbox.OutOfMemory || exit.Code != -1 || exit.Status() != 137 {
			t.Errorf("%+v, %v", exit, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := sandbox.Run(ctx, b, sandbox.Cmd{Args: []string{"wait"}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait: %v", err)
		}
	})
}

// TestMountsAreShared: who names the same source sees the same files, and
// read-only is each sandbox's own.
func TestMountsAreShared(t *testing.T) {
	mount := func(target string, ro bool) sandbox.Spec {
		return sandbox.Spec{Mounts: []sandbox.Mount{{Source: "/srv/data", Target: target, ReadOnly: ro}}}
	}
	inBubble(t, Config{}, mount("/mnt/one", false), func(t *testing.T, rt *Runtime, a *box) {
		sb, err := rt.Create(t.Context(), mount("/data", true))
		if err != nil {
			t.Fatal(err)
		}
		b := sb.(*box)
		sh(t, a, "mkdir /mnt/one/d; echo shared > /mnt/one/d/f")
		if out, _ := sh(t, b, "cd /data/d && pwd && cat f && cd ../.. && pwd; echo x > /data/d/f || echo refused"); out != "/data/d\nshared\n/\nsh: cannot open /data/d/f: Read-only file system\nrefused\n" {
			t.Errorf("the other sandbox sees %q", out)
		}
		if err := sandbox.WriteFile(t.Context(), b, "/data/g", nil); !errors.Is(err, sandbox.Denied) {
			t.Errorf("Write: %v", err)
		}
		if out, _ := sh(t, a, "cd /mnt/one/d/.. && pwd; rm -r /mnt/one/d; ls /mnt/one | wc -l"); out != "/mnt/one\n0\n" {
			t.Errorf("the first sandbox sees %q", out)
		}
	})
}

// TestLimitsBite: of those that are kept.
func TestLimitsBite(t *testing.T) {
	inBubble(t, Config{}, sandbox.Spec{Limits: sandbox.Limits{PIDs: 3, Disk: 1 << 20}}, func(t *testing.T, rt *Runtime, b *box) {
		out, exit := sh(t, b, "sleep 1 & sleep 1 & sleep 1 & wait")
		if !strings.Contains(out, "cannot fork") || exit.Code != 2 {
			t.Errorf("%q, %+v", out, exit)
		}
		time.Sleep(time.Minute)
		for range 3 {
			if _, err := b.Start(t.Context(), sandbox.Cmd{Args: []string{"sleep", "9"}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.Start(t.Context(), sandbox.Cmd{Args: []string{"true"}}); !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("the fourth: %v", err)
		}
		if _, err := b.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{}); !errors.Is(err, sandbox.Exhausted) {
			t.Errorf("the fourth, detached: %v", err)
		}
		time.Sleep(time.Minute)
		// What is removed or replaced is free again.
		for i := range 5 {
			if err := sandbox.WriteFile(t.Context(), b, "/tmp/f", make([]byte, 900<<10)); err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		}
		if out, _ := sh(t, b, "head -c 900000 /dev/zero > /tmp/g || echo full; rm /tmp/f /tmp/g; head -c 900000 /dev/zero > /tmp/g && echo fits"); !strings.HasSuffix(out, "full\nfits\n") {
			t.Errorf("%q", out)
		}
	})
}

// TestForkBombEnds: with an error, not with the machine. In real time, since
// virtual time stands still while anything is busy.
func TestForkBombEnds(t *testing.T) {
	rt := New(Config{})
	defer rt.Close()
	sb, err := rt.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"sh", "-c", "f() { f | f & }; f; sleep 60"}, Timeout: 200 * time.Millisecond})
	if err != nil || exit.Reason != sandbox.TimedOut {
		t.Errorf("%+v, %v", exit, err)
	}
	if out, exit := sh(t, sb.(*box), "f() { f; }; f"); exit.Code != 2 || !strings.Contains(out, "too deep") {
		t.Errorf("%q, %+v", out, exit)
	}
}

// TestImages: which names Create takes.
func TestImages(t *testing.T) {
	for _, c := range []struct {
		images []string
		image  string
		ok     bool
	}{{nil, "", true}, {nil, "memory", true}, {nil, "host", true}, {nil, "python", false}, {[]string{"python"}, "python", true}, {[]string{"python"}, "node", false}, {[]string{"*"}, "node", true}} {
		rt := New(Config{Images: c.images})
		sb, err := rt.Create(t.Context(), sandbox.Spec{Image: c.image})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, sandbox.NotExist) {
			t.Errorf("of %v, %q: %v", c.images, c.image, err)
		}
		if err == nil {
			if i, err := sb.Info(t.Context()); err != nil || i.Wanted != c.image || i.Image != "memory" {
				t.Errorf("Info: %+v, %v", i, err)
			}
		}
		rt.Close()
	}
}

// TestEndedAreForgotten: a sandbox remembers so many and no more.
func TestEndedAreForgotten(t *testing.T) {
	inBubble(t, Config{}, sandbox.Spec{}, func(t *testing.T, rt *Runtime, b *box) {
		var ids []sandbox.ProcessID
		for range remembered + 10 {
			id, err := b.StartDetached(t.Context(), sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
			if _, err := b.Output(t.Context(), id, 0, 1, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		ps, err := b.Processes(t.Context())
		if err != nil || len(ps) != remembered || ps[0].ID != ids[10] {
			t.Errorf("%d are remembered, %v, want %d", len(ps), err, remembered)
		}
	})
}

// TestInteractiveShell: a person at a terminal.
func TestInteractiveShell(t *testing.T) {
	inBubble(t, Config{}, sandbox.Spec{}, func(t *testing.T, rt *Runtime, b *box) {
		var out bytes.Buffer
		exit, err := sandbox.Run(t.Context(), b, sandbox.Cmd{
			Args: []string{"sh"}, Stdin: strings.NewReader("x=5\necho $x\nfor i in 1 2; do\necho i$i\ndone\nbadd\x7f\nexit 3\n"), Stdout: &out, Terminal: &sandbox.Size{}, User: "user",
		})
		if err != nil || exit.Code != 3 {
			t.Errorf("%+v, %v", exit, err)
		}
		for _, want := range []string{"$ ", "5\r\n", "i1\r\ni2\r\n", "bad: not found"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the screen lacks %q: %q", want, out.String())
			}
		}
	})
}

// TestScriptReadsItsInput: a shell that reads commands leaves the rest of its
// input to them.
func TestScriptReadsItsInput(t *testing.T) {
	inBubble(t, Config{}, sandbox.Spec{}, func(t *testing.T, rt *Runtime, b *box) {
		var out bytes.Buffer
		exit, err := sandbox.Run(t.Context(), b, sandbox.Cmd{Args: []string{"sh"}, Stdin: strings.NewReader("read x\nfirst\necho \"<$x>\"\ncat\nrest\n"), Stdout: &out})
		if err != nil || !exit.Success() || out.String() != "<first>\nrest\n" {
			t.Errorf("%+v, %v, %q", exit, err, out.String())
		}
	})
}

// FuzzWalk: whatever the path and the links, nothing leaves the root, and
// what is found is what its real path leads to.
func FuzzWalk(f *testing.F) {
	f.Add("/a/b", "../../x", "/")
	f.Add("/l/../l", "l", "..")
	f.Add("//tmp/./m/l/etc/passwd", "/proc/self/root", "/tmp")
	rt := New(Config{})
	f.Cleanup(func() { rt.Close() })
	f.Fuzz(func(t *testing.T, p, target, other string) {
		sb, err := rt.Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Source: "/srv", Target: "/tmp/m"}}})
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Remove(t.Context())
		b := sb.(*box)
		b.mu.Lock()
		b.put("/l", fs.ModeSymlink|0o777).target = target
		b.put("/tmp/m2", fs.ModeSymlink|0o777).target = other
		w := walker{b: b}
		at, err := w.walk(b.root, p, true)
		if err == nil && at.node != nil && at.node.isDir() {
			full := b.pathOf(at.node)
			again := walker{b: b}
			if at2, err := again.walk(b.root, full, false); err != nil || at2.node != at.node || full != path.Clean(full) {
				t.Errorf("%q leads to %q, which leads elsewhere: %v", p, full, err)
			}
		}
		b.mu.Unlock()
		// Files refuses the kernel's interfaces whatever the way.
		file, err := sb.Files().Open(t.Context(), p, sandbox.Range{})
		if err == nil {
			file.Close()
			if n := file.(*openFile).node; n.vol.kernel || n.dev != "" {
				t.Errorf("Open of %q gave an interface of the kernel", p)
			}
		}
		if err != nil && sandbox.KindOf(err) == sandbox.Internal {
			t.Errorf("Open of %q: %v", p, err)
		}
	})
}

// FuzzShell: no script brings the model down, and none outlives its timeout.
func FuzzShell(f *testing.F) {
	for _, s := range []string{"echo hi", "f() { f; }; f", "while :; do :; done", "cat <<E\n$(x)\nE", "exec 9>&1; kill -9 $$", "trap 'trap' 15; kill $$", "a=b c=$d e", "(( 1 / 0 ))", "${x:?}", "set -e; ! :", "x | y |& z & wait", "case a in a) break 9;; esac", "echo $((1<<-1)) {1..3} ~nobody \\",
		"()f{ f; }", "f() f; }\xeb", "<()", // found by fuzzing
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script string) {
		rt := New(Config{})
		defer rt.Close()
		sb, err := rt.Create(t.Context(), sandbox.Spec{Limits: sandbox.Limits{PIDs: 50, Disk: 8 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		if strings.IndexByte(script, 0) >= 0 {
			return
		}
		for _, shell := range []string{"sh", "bash"} {
			if _, err := sandbox.Capture(t.Context(), sb, 1<<16, sandbox.Cmd{Args: []string{shell, "-c", script}, Timeout: 50 * time.Millisecond}); err != nil {
				t.Errorf("%q: %v", script, err)
			}
		}
	})
}
