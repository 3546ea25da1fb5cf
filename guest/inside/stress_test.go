package inside_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// load is how much of what could go on for ever is done: more in make soak.
func load(short int) int {
	if n, err := strconv.Atoi(os.Getenv("ATOLL_SOAK")); err == nil && n > 0 {
		return short * n
	}
	return short
}

// descriptors counts what the process pid has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	es, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	if testing.Verbose() {
		for _, e := range es {
			to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
			t.Log(e.Name(), to)
		}
	}
	return len(es)
}

// TestManyAtOnce starts processes of all kinds from many goroutines, cancels
// some at any moment, and then looks at what is left: nothing.
func TestManyAtOnce(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			dir := t.TempDir()
			c, cmd, err := launch(t, mode, []string{"ATOLL_TEST_GUEST=descriptors", "ATOLL_TEST_WORKDIR=" + dir, "PATH=" + os.Getenv("PATH")}, nil, guest.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				c.Close()
				if err := wait(cmd, 10*time.Second); err != nil {
					t.Errorf("the guest ended with %v", err)
				}
			}()
			one := func(r *rand.Rand) error {
				word := strconv.Itoa(r.Int())
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var out, errs bytes.Buffer
				switch r.IntN(5) {
				case 0: // cancelled some time
					time.AfterFunc(time.Duration(r.IntN(5000))*time.Microsecond, cancel)
					p, err := c.Start(ctx, sandbox.Cmd{Args: sh("(sleep 1000 & sleep 1000) & sleep 1000"), Stdout: &out})
					if err == nil {
						_, err = p.Wait()
					}
					if !errors.Is(err, context.Canceled) {
						return fmt.Errorf("cancelled: %v", err)
					}
				case 1:
					p, err := c.Start(ctx, sandbox.Cmd{Args: sh("cat; echo " + word + " >&2; exit 7"), Stdin: strings.NewReader(word), Stdout: &out, Stderr: &errs})
					if err != nil {
						return err
					}
					if x, err := p.Wait(); err != nil || x.Code != 7 || out.String() != word || errs.String() != word+"\n" {
						return fmt.Errorf("%+v, %v, %q, %q", x, err, &out, &errs)
					}
				case 2:
					p, err := c.Start(ctx, sandbox.Cmd{Args: []string{"/bin/echo", word}, Terminal: &sandbox.Size{}, Stdout: &out})
					if err != nil {
						return err
					}
					if x, err := p.Wait(); err != nil || !x.Success() || out.String() != word+"\r\n" {
						return fmt.Errorf("%+v, %v, %q", x, err, &out)
					}
				case 3:
					id, err := c.StartDetached(ctx, sandbox.Cmd{Args: sh("echo " + word + "; read x; exit $x")}, sandbox.DetachOptions{Stdin: true})
					if err != nil {
						return err
					}
					a, err := c.Attach(ctx, id, sandbox.AttachOptions{Stdout: &out})
					if err != nil {
						return err
					}
					if _, err := c.Input(ctx, id, []byte("9\n"), true); err != nil {
						return err
					}
					if x, err := a.Wait(); err != nil || x.Code != 9 || out.String() != word+"\n" {
						return fmt.Errorf("%+v, %v, %q", x, err, &out)
					}
					return c.Forget(ctx, id)
				default:
					p := filepath.Join(dir, word)
					data := bytes.Repeat([]byte(word), r.IntN(20000))
					if _, err := c.Files().Write(ctx, p, bytes.NewReader(data), sandbox.WriteOptions{}); err != nil {
						return err
					}
					f, err := c.Files().Open(ctx, p, sandbox.Range{})
					if err != nil {
						return err
					}
					defer f.Close()
					if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
						return fmt.Errorf("the file has %d bytes, %v", len(got), err)
					}
					return c.Files().Remove(ctx, p, false)
				}
				return nil
			}
			round := func(n int) {
				var wg sync.WaitGroup
				for w := range 8 {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(uint64(w), uint64(n)))
						for range n {
							if err := one(r); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
			}
			settled := func() int {
				for {
					u, err := c.Usage(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					ps, err := c.Processes(t.Context())
					if err != nil || len(ps) != 0 {
						t.Fatalf("%d detached ones are left, %v", len(ps), err)
					}
					if u.PIDs == 0 {
						return descriptors(t, cmd.Process.Pid)
					}
				}
			}
			round(5)
			before := settled()
			round(load(30))
			after := settled()
			for i := 0; after > before && i < 3; i++ { // the last are being closed
				time.Sleep(time.Millisecond)
				after = settled()
			}
			if after > before {
				t.Errorf("the guest had %d descriptors open, and now %d", before, after)
			}
		})
	}
}

// TestKillFindsWhoFlees kills trees that do nothing but fork away.
func TestKillFindsWhoFlees(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		for range load(5) {
			ctx, cancel := context.WithCancel(t.Context())
			out := make(lines, 1)
			// At most 30 generations of two times 20, should nobody find them.
			p, err := c.Start(ctx, sandbox.Cmd{Args: sh(`flee() { (setsid sh -c "$1" sh "$1" 30 >/dev/null 2>&1 &) ; }
				s='i=0; while [ $i -lt 20 ]; do i=$((i+1)); (setsid sleep 60 &) ; done; [ $2 = 0 ] || exec setsid sh -c "$1" sh "$1" $(($2-1))'
				flee "$s"; flee "$s"; echo ready; sleep 60`), Stdout: out})
			if err != nil {
				t.Fatal(err)
			}
			<-out
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
			cancel()
			if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
				t.Errorf("wait: %v", err)
			}
			for n := 1; n > 0; {
				u, err := c.Usage(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				n = u.PIDs
			}
		}
	})
}

// TestKillSparesOthers kills one of two trees.
func TestKillSparesOthers(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		ctx, cancel := context.WithCancel(t.Context())
		first, err := c.Start(ctx, sandbox.Cmd{Args: sh("sleep 1000 & sleep 1000")})
		if err != nil {
			t.Fatal(err)
		}
		r, w := io.Pipe()
		second, err := c.Start(t.Context(), sandbox.Cmd{Args: sh("setsid cat & cat; wait; exit 4"), Stdin: r})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		first.Wait()
		w.Close()
		if x, err := second.Wait(); err != nil || x.Code != 4 {
			t.Errorf("the other ended with %+v, %v", x, err)
		}
	})
}

func jailed(t *testing.T, limits sandbox.Limits, env ...string) *guest.Client {
	t.Helper()
	rt := newJails(t, "descriptors")
	rt.env = env
	sb, err := rt.Create(t.Context(), sandbox.Spec{Limits: limits})
	if err != nil {
		t.Skipf("this host makes no jails: %v", err)
	}
	t.Cleanup(func() { rt.Close() })
	return sb.(*jail).client
}

func TestGuestKeepsTheMemoryLimitItself(t *testing.T) {
	c := jailed(t, sandbox.Limits{Memory: 64 << 20})
	x, _, _ := run(t, c, sandbox.Cmd{Args: []string{"/guest", "eat"}, Timeout: time.Minute})
	if x.Reason != sandbox.OutOfMemory || x.Code != -1 || x.Signal != sandbox.KILL {
		t.Errorf("what eats memory ended with %+v", x)
	}
	if x, out, _ := run(t, c, sandbox.Cmd{Args: sh("echo fine")}); !x.Success() || out != "fine\n" {
		t.Errorf("then echo ended with %+v", x)
	}
}

func TestGuestKeepsTheProcessLimitItself(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("the processes of an ordinary user are counted with those of the host's")
	}
	c := jailed(t, sandbox.Limits{}, "ATOLL_TEST_PIDS=40", "ATOLL_TEST_USER=1000")
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(lines, 100)
	r, w := io.Pipe()
	p, err := c.Start(ctx, sandbox.Cmd{Args: sh(`sh -c 'for i in $(seq 100); do sleep 1000 & done'; read x`), Stdin: r, Stderr: errs})
	if err != nil {
		t.Fatal(err)
	}
	for got := ""; !strings.Contains(got, "fork") && !strings.Contains(got, "Resource"); {
		got += <-errs
	}
	for range 100 {
		if _, err = c.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "1000"}}); err != nil {
			break
		}
	}
	if !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("start at the limit: %v", err)
	}
	cancel()
	p.Wait()
	for n := 1; n > 0; {
		u, err := c.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n = u.PIDs
	}
	w.Close()
	r, w = io.Pipe()
	var out bytes.Buffer
	p, err = c.Start(t.Context(), sandbox.Cmd{Args: sh("read x; cat /proc/self/limits"), Stdin: r, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "now\n") // the limit is made a hard one as it starts
	p.Wait()
	w.Close()
	_, line, _ := strings.Cut(out.String(), "Max processes")
	if f := strings.Fields(line); len(f) < 2 || f[0] != "40" || f[1] != "40" {
		t.Errorf("the limit inside is %v", f)
	}
}

// eat uses memory until something stops it.
func eat() {
	for {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		eaten = append(eaten, b)
		time.Sleep(time.Millisecond)
	}
}

var eaten [][]byte
