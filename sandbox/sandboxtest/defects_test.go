package sandboxtest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// A defect is a way to break the memory backend. Each replaces some calls; nil
// leaves them.
type defect struct {
	name  string
	fails []string // claims that must fail, by name

	create  func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error)
	list    func(seq iter.Seq2[sandbox.Info, error]) iter.Seq2[sandbox.Info, error]
	close   func(rt sandbox.Runtime) error
	start   func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error)
	files   func(sb full) sandbox.Files
	remove  func(sb full, ctx context.Context) error
	info    func(i sandbox.Info) sandbox.Info
	pause   func(sb full, ctx context.Context) error
	output  func(o sandbox.Output) sandbox.Output
	listed  func(ps []sandbox.ProcessInfo)
	update  func(sb full, ctx context.Context, c sandbox.Change) error
	attach  func(sb full, ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error)
	started func(sb full, ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error)
}

// full is a sandbox that can do everything.
type full interface {
	sandbox.Sandbox
	sandbox.Pauser
	sandbox.Dialer
	sandbox.Meter
	sandbox.Detacher
	sandbox.Updater
}

type brokenRuntime struct {
	sandbox.Runtime
	d *defect
}

func (r brokenRuntime) wrap(sb sandbox.Sandbox, err error) (sandbox.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return brokenSandbox{sb.(full), r.d}, nil
}

func (r brokenRuntime) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if r.d.create != nil {
		return r.wrap(r.d.create(r.Runtime, ctx, spec))
	}
	return r.wrap(r.Runtime.Create(ctx, spec))
}

func (r brokenRuntime) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	return r.wrap(r.Runtime.Open(ctx, id))
}

func (r brokenRuntime) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	if r.d.list != nil {
		return r.d.list(r.Runtime.List(ctx))
	}
	return r.Runtime.List(ctx)
}

func (r brokenRuntime) Close() error {
	if r.d.close != nil {
		return r.d.close(r.Runtime)
	}
	return r.Runtime.Close()
}

type brokenSandbox struct {
	full
	d *defect
}

func (s brokenSandbox) Info(ctx context.Context) (sandbox.Info, error) {
	i, err := s.full.Info(ctx)
	if err == nil && s.d.info != nil {
		i = s.d.info(i)
	}
	return i, err
}

func (s brokenSandbox) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	if s.d.start != nil {
		return s.d.start(s.full, ctx, cmd)
	}
	return s.full.Start(ctx, cmd)
}

func (s brokenSandbox) Files() sandbox.Files {
	if s.d.files != nil {
		return s.d.files(s.full)
	}
	return s.full.Files()
}

func (s brokenSandbox) Remove(ctx context.Context) error {
	if s.d.remove != nil {
		return s.d.remove(s.full, ctx)
	}
	return s.full.Remove(ctx)
}

func (s brokenSandbox) Pause(ctx context.Context) error {
	if s.d.pause != nil {
		return s.d.pause(s.full, ctx)
	}
	return s.full.Pause(ctx)
}

func (s brokenSandbox) Output(ctx context.Context, id sandbox.ProcessID, cursor int64, max int, wait time.Duration) (sandbox.Output, error) {
	o, err := s.full.Output(ctx, id, cursor, max, wait)
	if err == nil && s.d.output != nil {
		o = s.d.output(o)
	}
	return o, err
}

func (s brokenSandbox) Update(ctx context.Context, c sandbox.Change) error {
	if s.d.update != nil {
		return s.d.update(s.full, ctx, c)
	}
	return s.full.Update(ctx, c)
}

func (s brokenSandbox) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	ps, err := s.full.Processes(ctx)
	if s.d.listed != nil {
		s.d.listed(ps)
	}
	return ps, err
}

func (s brokenSandbox) Attach(ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
	if s.d.attach != nil {
		return s.d.attach(s.full, ctx, id, opt)
	}
	return s.full.Attach(ctx, id, opt)
}

func (s brokenSandbox) StartDetached(ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
	if s.d.started != nil {
		return s.d.started(s.full, ctx, cmd, opt)
	}
	return s.full.StartDetached(ctx, cmd, opt)
}

// waiter is a Process whose Wait is another.
type waiter struct {
	sandbox.Process
	wait func(p sandbox.Process) (sandbox.Exit, error)
}

func (w waiter) Wait() (sandbox.Exit, error) { return w.wait(w.Process) }

func withWait(wait func(p sandbox.Process) (sandbox.Exit, error)) func(full, context.Context, sandbox.Cmd) (sandbox.Process, error) {
	return func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
		p, err := sb.Start(ctx, cmd)
		if err != nil {
			return nil, err
		}
		return waiter{p, wait}, nil
	}
}

// signaller is a Process whose Signal and Resize are others.
type signaller struct {
	sandbox.Process
	signal func(p sandbox.Process, sig sandbox.Signal) error
	resize func(p sandbox.Process, size sandbox.Size) error
}

func (s signaller) Signal(ctx context.Context, sig sandbox.Signal) error {
	if s.signal != nil {
		return s.signal(s.Process, sig)
	}
	return s.Process.Signal(ctx, sig)
}

func (s signaller) Resize(ctx context.Context, size sandbox.Size) error {
	if s.resize != nil {
		return s.resize(s.Process, size)
	}
	return s.Process.Resize(ctx, size)
}

// toOne sends a signal to the process alone.
func toOne(sb full, p sandbox.Process, sig sandbox.Signal) error {
	_, err := sandbox.Run(context.Background(), sb, sandbox.Cmd{Args: []string{"kill", "-" + string(sig), pidOf(p)}})
	return err
}

// withCmd starts another Cmd.
func withCmd(change func(cmd *sandbox.Cmd)) func(full, context.Context, sandbox.Cmd) (sandbox.Process, error) {
	return func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
		change(&cmd)
		return sb.Start(ctx, cmd)
	}
}

// withOutput starts with other writers.
func withOutput(change func(io.Writer) io.Writer) func(full, context.Context, sandbox.Cmd) (sandbox.Process, error) {
	return func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
		if cmd.Stdout != nil {
			cmd.Stdout = change(cmd.Stdout)
		}
		return sb.Start(ctx, cmd)
	}
}

// withControl starts with another writer for descriptor 3.
func withControl(change func(io.Writer) io.Writer) func(full, context.Context, sandbox.Cmd) (sandbox.Process, error) {
	return withCmd(func(cmd *sandbox.Cmd) {
		if cmd.Control != nil {
			cmd.Control = change(cmd.Control)
		}
	})
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// hoard takes all at once and hands it over in its own time.
type hoard struct {
	mu   sync.Mutex
	cond *sync.Cond
	buf  []byte
}

func newHoard(w io.Writer) *hoard {
	h := &hoard{}
	h.cond = sync.NewCond(&h.mu)
	go func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for {
			for len(h.buf) == 0 {
				h.cond.Wait()
			}
			b := h.buf
			h.buf = nil
			h.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			w.Write(b)
			h.mu.Lock()
		}
	}()
	return h
}

func (h *hoard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf = append(h.buf, p...)
	h.cond.Signal()
	return len(p), nil
}

// brokenFiles replaces some calls of Files.
type brokenFiles struct {
	sandbox.Files
	open   func(f sandbox.Files, ctx context.Context, p string, r sandbox.Range) (sandbox.File, error)
	write  func(f sandbox.Files, ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error)
	list   func(f sandbox.Files, ctx context.Context, p string) iter.Seq2[sandbox.FileInfo, error]
	rename func(f sandbox.Files, ctx context.Context, from, to string) error
	remove func(f sandbox.Files, ctx context.Context, p string, all bool) error
	chmod  func(f sandbox.Files, ctx context.Context, p string, m fs.FileMode) error
}

func (b brokenFiles) Open(ctx context.Context, p string, r sandbox.Range) (sandbox.File, error) {
	if b.open != nil {
		return b.open(b.Files, ctx, p, r)
	}
	return b.Files.Open(ctx, p, r)
}

func (b brokenFiles) Write(ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
	if b.write != nil {
		return b.write(b.Files, ctx, p, src, opt)
	}
	return b.Files.Write(ctx, p, src, opt)
}

func (b brokenFiles) List(ctx context.Context, p string) iter.Seq2[sandbox.FileInfo, error] {
	if b.list != nil {
		return b.list(b.Files, ctx, p)
	}
	return b.Files.List(ctx, p)
}

func (b brokenFiles) Rename(ctx context.Context, from, to string) error {
	if b.rename != nil {
		return b.rename(b.Files, ctx, from, to)
	}
	return b.Files.Rename(ctx, from, to)
}

func (b brokenFiles) Remove(ctx context.Context, p string, all bool) error {
	if b.remove != nil {
		return b.remove(b.Files, ctx, p, all)
	}
	return b.Files.Remove(ctx, p, all)
}

func (b brokenFiles) Chmod(ctx context.Context, p string, m fs.FileMode) error {
	if b.chmod != nil {
		return b.chmod(b.Files, ctx, p, m)
	}
	return b.Files.Chmod(ctx, p, m)
}

func withFiles(b brokenFiles) func(full) sandbox.Files {
	return func(sb full) sandbox.Files {
		c := b
		c.Files = sb.Files()
		return c
	}
}

// hostFile is a file of the host as a sandbox.File.
type hostFile struct{ *os.File }

func (hostFile) Info() sandbox.FileInfo { return sandbox.FileInfo{} }

var defects = []defect{
	{
		name:  "a cancelled Create leaks",
		fails: []string{"CancelledCreateLeavesNothing"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			sb, err := rt.Create(context.WithoutCancel(ctx), spec)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return sb, err
		},
	},
	{
		name:  "a failed Create leaks",
		fails: []string{"FailedCreateLeavesNothing", "InvalidSpecsNameTheirField", "UnknownImageIsRefused"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			sb, err := rt.Create(ctx, spec)
			if err != nil {
				rt.Create(ctx, sandbox.Spec{})
			}
			return sb, err
		},
	},
	{
		name:  "policy is taken and not kept",
		fails: []string{"PolicyIsKeptOrRefused"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.ID, spec.Name, spec.Profile, spec.Explicit, spec.Idle, spec.Limits.Workspace = "", "", "", nil, 0, 0
			return rt.Create(ctx, spec)
		},
	},
	{
		name:  "a backend that is not there is another one",
		fails: []string{"UnknownBackendIsRefused"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.Backend = ""
			return rt.Create(ctx, spec)
		},
	},
	{
		name:  "the Spec's environment is lost",
		fails: []string{"EnvOfSpecIsForAll"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.Env = nil
			return rt.Create(ctx, spec)
		},
	},
	{
		name:  "what is required is ignored",
		fails: []string{"RequiredIsGivenOrRefused"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.Require = nil
			return rt.Create(ctx, spec)
		},
	},
	{
		name:  "it never expires",
		fails: []string{"ExpiredIsRemoved", "ExpiresIsShown"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.Expires = time.Time{}
			return rt.Create(ctx, spec)
		},
	},
	{
		name:  "a read-only root is not",
		fails: []string{"ReadOnlyRootKeepsItsPromise"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.ReadOnlyRoot = false
			return rt.Create(ctx, spec)
		},
		info: func(i sandbox.Info) sandbox.Info { i.ReadOnlyRoot = true; return i },
	},
	{
		name:  "List misses one",
		fails: []string{"ListYieldsWhatLives"},
		list: func(seq iter.Seq2[sandbox.Info, error]) iter.Seq2[sandbox.Info, error] {
			return func(yield func(sandbox.Info, error) bool) {
				skipped := false
				for i, err := range seq {
					if !skipped {
						skipped = true
						continue
					}
					if !yield(i, err) {
						return
					}
				}
			}
		},
	},
	{
		name:  "a second Close fails",
		fails: []string{"CloseIsIdempotent"},
		close: func(rt sandbox.Runtime) error {
			for _, err := range rt.List(context.Background()) {
				if errors.Is(err, sandbox.Closed) {
					return err
				}
			}
			return rt.Close()
		},
	},
	{
		name:  "a second Remove fails",
		fails: []string{"RemoveIsIdempotent"},
		remove: func(sb full, ctx context.Context) error {
			if _, err := sb.Info(ctx); err != nil {
				return err
			}
			return sb.Remove(ctx)
		},
	},
	{
		name:  "kept limits are not told",
		fails: []string{"LimitsAreReported"},
		info:  func(i sandbox.Info) sandbox.Info { delete(i.Kept, "memory"); return i },
	},
	{
		name:  "a failing command is an error",
		fails: []string{"FailureIsAResult", "ExitCodesArrive"},
		start: withWait(func(p sandbox.Process) (sandbox.Exit, error) {
			e, err := p.Wait()
			if err == nil && !e.Success() {
				err = errors.New("exit status")
			}
			return e, err
		}),
	},
	{
		name:  "a timeout is an error",
		fails: []string{"TimeoutIsAResult"},
		start: withWait(func(p sandbox.Process) (sandbox.Exit, error) {
			e, err := p.Wait()
			if e.Reason == sandbox.TimedOut {
				err = context.DeadlineExceeded
			}
			return e, err
		}),
	},
	{
		name:  "exit codes are a byte with a sign",
		fails: []string{"ExitCodesArrive"},
		start: withWait(func(p sandbox.Process) (sandbox.Exit, error) {
			e, err := p.Wait()
			e.Code = int(int8(e.Code))
			return e, err
		}),
	},
	{
		name:  "Wait returns before the output",
		fails: []string{"WaitComesAfterTheOutput", "OutputArrives"},
		start: withOutput(func(w io.Writer) io.Writer { return newHoard(w) }),
	},
	{
		name:  "output is hoarded without bound",
		fails: []string{"SlowWriterSlowsTheProcess"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if cmd.Stdout != nil {
				cmd.Stdout = newHoard(cmd.Stdout)
			}
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "output is made UTF-8",
		fails: []string{"BytesAreBytes", "LargeStreamsArriveWhole"},
		start: withOutput(func(w io.Writer) io.Writer {
			return writer(func(p []byte) (int, error) {
				_, err := w.Write(bytes.ToValidUTF8(p, []byte("?")))
				return len(p), err
			})
		}),
	},
	{
		name:  "output ends at a megabyte",
		fails: []string{"LargeStreamsArriveWhole"},
		start: withOutput(func(w io.Writer) io.Writer {
			left := 1 << 20
			return writer(func(p []byte) (int, error) {
				n := min(left, len(p))
				left -= n
				w.Write(p[:n])
				return len(p), nil
			})
		}),
	},
	{
		name:  "chunks overtake each other",
		fails: []string{"StreamsKeepTheirOrder", "LargeStreamsArriveWhole"},
		start: withOutput(func(w io.Writer) io.Writer {
			var held []byte
			return writer(func(p []byte) (int, error) {
				if held == nil {
					held = bytes.Clone(p)
					return len(p), nil
				}
				w.Write(p)
				w.Write(held)
				held = nil
				return len(p), nil
			})
		}),
	},
	{
		name:  "two goroutines write to one Writer",
		fails: []string{"OneWriterForBothIsWrittenByOne"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if cmd.Stdout != nil {
				w := cmd.Stdout
				cmd.Stdout = writer(func(p []byte) (int, error) { return w.Write(p) })
			}
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "Wait waits for Stdin",
		fails: []string{"BlockedInputIsNotWaitedFor"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if cmd.Stdin == nil {
				return sb.Start(ctx, cmd)
			}
			r, w := io.Pipe()
			done := make(chan struct{})
			in := cmd.Stdin
			cmd.Stdin = r
			p, err := sb.Start(ctx, cmd)
			if err != nil {
				return nil, err
			}
			go func() {
				io.Copy(w, in)
				w.Close()
				close(done)
			}()
			return waiter{p, func(p sandbox.Process) (sandbox.Exit, error) {
				e, err := p.Wait()
				r.Close()
				<-done
				return e, err
			}}, nil
		},
	},
	{
		name:  "Wait waits for the children",
		fails: []string{"SurvivorHoldsNothing"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			p, err := sb.Start(ctx, cmd)
			if err != nil {
				return nil, err
			}
			return waiter{p, func(p sandbox.Process) (sandbox.Exit, error) {
				e, err := p.Wait()
				for {
					if u, err := sb.Usage(context.Background()); err != nil || u.PIDs == 0 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				return e, err
			}}, nil
		},
	},
	{
		name:  "the end of the command ends its children",
		fails: []string{"SurvivorHoldsNothing", "SurvivorStays"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if cmd.Args[0] == "sh" && strings.Contains(strings.Join(cmd.Args, " "), "&") {
				cmd.Args = []string{"sh", "-c", cmd.Args[2] + "\nkill -KILL $! 2>/dev/null; exit 0"}
			}
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "the end of the context kills the command alone",
		fails: []string{"CancelKillsTheTree"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			p, err := sb.Start(context.WithoutCancel(ctx), cmd)
			if err != nil {
				return nil, err
			}
			over := make(chan struct{})
			go func() { p.Wait(); close(over) }()
			return waiter{p, func(p sandbox.Process) (sandbox.Exit, error) {
				select {
				case <-ctx.Done():
					sandbox.Run(context.WithoutCancel(ctx), sb, sandbox.Cmd{Args: []string{"kill", "-KILL", pidOf(p)}})
					p.Wait()
					return sandbox.Exit{Code: -1}, ctx.Err()
				case <-over:
					return p.Wait()
				}
			}}, nil
		},
	},
	{
		name:  "a timeout kills the command alone",
		fails: []string{"TimeoutKillsTheTree"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			limit := cmd.Timeout
			cmd.Timeout = 0
			p, err := sb.Start(ctx, cmd)
			if err != nil || limit == 0 {
				return p, err
			}
			var late atomic.Bool
			timer := time.AfterFunc(limit, func() { late.Store(true); toOne(sb, p, sandbox.KILL) })
			return waiter{p, func(p sandbox.Process) (sandbox.Exit, error) {
				e, err := p.Wait()
				timer.Stop()
				if late.Load() {
					e.Reason = sandbox.TimedOut
				}
				return e, err
			}}, nil
		},
	},
	{
		name:  "signals go to the command alone",
		fails: []string{"KillGoesToTheTree", "SignalGoesToTheGroup"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			p, err := sb.Start(ctx, cmd)
			if err != nil {
				return nil, err
			}
			return signaller{Process: p, signal: func(p sandbox.Process, sig sandbox.Signal) error { return toOne(sb, p, sig) }}, nil
		},
	},
	{
		name:  "a signal to what has ended is an error",
		fails: []string{"SignalAfterTheEndIsNothing"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			p, err := sb.Start(ctx, cmd)
			if err != nil {
				return nil, err
			}
			return signaller{Process: p, signal: func(p sandbox.Process, sig sandbox.Signal) error {
				if r, err := sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"kill", "-0", pidOf(p)}}); err != nil || !r.Success() {
					return sandbox.Errorf(sandbox.NotExist, "", "no such process")
				}
				return p.Signal(ctx, sig)
			}}, nil
		},
	},
	{
		name:  "Resize does nothing",
		fails: []string{"TerminalResizes", "ResizeWithoutTerminalIsUnsupported"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			p, err := sb.Start(ctx, cmd)
			if err != nil {
				return nil, err
			}
			return signaller{Process: p, resize: func(sandbox.Process, sandbox.Size) error { return nil }}, nil
		},
	},
	{
		name:  "the user is ignored",
		fails: []string{"UserIsWhoRunsIt", "MissingUserIsNotExist"},
		start: withCmd(func(cmd *sandbox.Cmd) { cmd.User = "" }),
	},
	{
		name:  "the directory is ignored",
		fails: []string{"DirIsWhereItStarts", "MissingDirIsNotExist"},
		start: withCmd(func(cmd *sandbox.Cmd) { cmd.Dir = "" }),
	},
	{
		name:  "the host's environment is passed on",
		fails: []string{"EnvOfTheHostStaysOut"},
		start: withCmd(func(cmd *sandbox.Cmd) {
			env := make(map[string]string)
			for _, kv := range os.Environ() {
				if k, v, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "SUITE_HOST") {
					env[k] = v
				}
			}
			maps.Copy(env, cmd.Env)
			cmd.Env = env
		}),
	},
	{
		name:  "commands go through a shell",
		fails: []string{"ArgumentsArriveUnchanged", "MissingProgramIsNotExist"},
		start: withCmd(func(cmd *sandbox.Cmd) { cmd.Args = []string{"sh", "-c", strings.Join(cmd.Args, " ")} }),
	},
	{
		name:  "the end of the input is not passed on",
		fails: []string{"InputArrivesAndEnds", "BytesAreBytes"},
		start: withCmd(func(cmd *sandbox.Cmd) {
			if cmd.Stdin != nil {
				cmd.Stdin = io.MultiReader(cmd.Stdin, forever{})
			}
		}),
	},
	{
		name:  "errors of writers are dropped",
		fails: []string{"WriterErrorIsReported"},
		start: withOutput(func(w io.Writer) io.Writer {
			return writer(func(p []byte) (int, error) {
				w.Write(p)
				return len(p), nil
			})
		}),
	},
	{
		name:  "all sandboxes are one",
		fails: []string{"SandboxesAreApart", "IDsAreUnique"},
		create: func(rt sandbox.Runtime, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			for i := range rt.List(ctx) {
				return rt.Open(ctx, i.ID)
			}
			return rt.Create(ctx, spec)
		},
	},
	{
		name:  "Remove leaves the sandbox in the list",
		fails: []string{"ListYieldsWhatLives", "RemovedIsGone"},
		list: func(seq iter.Seq2[sandbox.Info, error]) iter.Seq2[sandbox.Info, error] {
			return func(yield func(sandbox.Info, error) bool) {
				for i, err := range seq {
					if err == nil {
						everListed.Store(i.ID, i)
					} else {
						yield(i, err)
						return
					}
				}
				everListed.Range(func(_, i any) bool { return yield(i.(sandbox.Info), nil) })
			}
		},
		remove: func(sb full, ctx context.Context) error {
			if i, err := sb.Info(ctx); err == nil {
				everListed.Store(i.ID, i)
			}
			return sb.Remove(ctx)
		},
	},
	{
		name:  "Remove forgets to remove",
		fails: []string{"RemovedIsGone", "RemoveEndsProcesses"},
		remove: func(full, context.Context) error {
			return nil
		},
	},
	{
		name:  "Info shows the environment",
		fails: []string{"EnvIsNotShown"},
		info: func(i sandbox.Info) sandbox.Info {
			i.Wanted += " SUITE_TOKEN=suite-secret-value"
			return i
		},
	},
	{
		name:  "errors name no field",
		fails: []string{"MissingProgramIsNotExist", "InvalidCmdsNameTheirField", "MissingUserIsNotExist"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			p, err := sb.Start(ctx, cmd)
			var e *sandbox.Error
			if errors.As(err, &e) {
				return nil, &sandbox.Error{Kind: e.Kind, Msg: e.Msg}
			}
			return p, err
		},
	},
	{
		name:  "a goroutine is left behind by each command",
		fails: []string{"FailureIsAResult", "OutputArrives"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			go func() { select {} }()
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "every terminal is 24 by 80",
		fails: []string{"TerminalHasItsSize"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if cmd.Terminal != nil {
				cmd.Terminal = &sandbox.Size{}
			}
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "files follow links to the host",
		fails: []string{"LinksStayInside"},
		files: withFiles(brokenFiles{
			open: func(f sandbox.Files, ctx context.Context, p string, r sandbox.Range) (sandbox.File, error) {
				if i, err := f.Stat(ctx, p); err == nil && path.IsAbs(i.Target) {
					if h, err := os.Open(i.Target); err == nil {
						return hostFile{h}, nil
					}
				}
				return f.Open(ctx, p, r)
			},
		}),
	},
	{
		name:  "chmod follows links to the host",
		fails: []string{"LinksStayInside"},
		files: withFiles(brokenFiles{
			chmod: func(f sandbox.Files, ctx context.Context, p string, m fs.FileMode) error {
				if i, err := f.Stat(ctx, p); err == nil && path.IsAbs(i.Target) {
					return os.Chmod(i.Target, m)
				}
				return f.Chmod(ctx, p, m)
			},
		}),
	},
	{
		name:  "writes are not atomic",
		fails: []string{"WriteIsAtomic", "FailedWriteChangesNothing"},
		files: withFiles(brokenFiles{
			write: func(f sandbox.Files, ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
				if !opt.Append {
					if i, err := f.Write(ctx, p, strings.NewReader(""), opt); err != nil {
						return i, err
					}
					opt.Append, opt.Exclusive = true, false
				}
				return f.Write(ctx, p, src, opt)
			},
		}),
	},
	{
		name:  "a failed write leaves a temporary file",
		fails: []string{"FailedWriteChangesNothing"},
		files: withFiles(brokenFiles{
			write: func(f sandbox.Files, ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
				i, err := f.Write(ctx, p, src, opt)
				if err != nil {
					f.Write(context.WithoutCancel(ctx), p+".tmp", strings.NewReader("half"), sandbox.WriteOptions{})
				}
				return i, err
			},
		}),
	},
	{
		name:  "exclusive writes are checked too early",
		fails: []string{"WriteExclusiveWritesOnce"},
		files: withFiles(brokenFiles{
			write: func(f sandbox.Files, ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
				if opt.Exclusive {
					if _, err := f.Stat(ctx, p); err == nil {
						return sandbox.FileInfo{}, sandbox.Errorf(sandbox.Conflict, "path", "it is there")
					}
					time.Sleep(20 * time.Millisecond)
					opt.Exclusive = false
				}
				return f.Write(ctx, p, src, opt)
			},
		}),
	},
	{
		name:  "ranges count from the start alone",
		fails: []string{"OpenSelectsARange"},
		files: withFiles(brokenFiles{
			open: func(f sandbox.Files, ctx context.Context, p string, r sandbox.Range) (sandbox.File, error) {
				r.Offset = max(r.Offset, 0)
				return f.Open(ctx, p, r)
			},
		}),
	},
	{
		name:  "to open a FIFO blocks",
		fails: []string{"FIFOsDoNotHang"},
		files: withFiles(brokenFiles{
			open: func(f sandbox.Files, ctx context.Context, p string, r sandbox.Range) (sandbox.File, error) {
				if i, err := f.Stat(ctx, p); err == nil && i.Mode&fs.ModeNamedPipe != 0 {
					select {}
				}
				return f.Open(ctx, p, r)
			},
		}),
	},
	{
		name:  "lists are in the order of the disk",
		fails: []string{"ListIsSorted"},
		files: withFiles(brokenFiles{
			list: func(f sandbox.Files, ctx context.Context, p string) iter.Seq2[sandbox.FileInfo, error] {
				return func(yield func(sandbox.FileInfo, error) bool) {
					var all []sandbox.FileInfo
					for i, err := range f.List(ctx, p) {
						if err != nil {
							yield(i, err)
							return
						}
						all = append(all, i)
					}
					for _, i := range slices.Backward(all) {
						if !yield(i, nil) {
							return
						}
					}
				}
			},
		}),
	},
	{
		name:  "names are cleaned",
		fails: []string{"NamesAreBytes"},
		files: withFiles(brokenFiles{
			write: func(f sandbox.Files, ctx context.Context, p string, src io.Reader, opt sandbox.WriteOptions) (sandbox.FileInfo, error) {
				return f.Write(ctx, strings.ToValidUTF8(p, "_"), src, opt)
			},
		}),
	},
	{
		name:  "nothing is moved between file systems",
		fails: []string{"RenameCrossesFileSystems"},
		files: withFiles(brokenFiles{
			rename: func(f sandbox.Files, ctx context.Context, from, to string) error {
				if strings.HasPrefix(from, "/tmp/") != strings.HasPrefix(to, "/tmp/") {
					return sandbox.Errorf(sandbox.Unsupported, "path", "another file system")
				}
				return f.Rename(ctx, from, to)
			},
		}),
	},
	{
		name:  "remove all follows links",
		fails: []string{"RemoveAllRemovesTrees"},
		files: withFiles(brokenFiles{
			remove: func(f sandbox.Files, ctx context.Context, p string, all bool) error {
				if i, err := f.Stat(ctx, p+"/link"); all && err == nil && i.Target != "" {
					f.Remove(ctx, path.Join(p, i.Target), true)
				}
				return f.Remove(ctx, p, all)
			},
		}),
	},
	{
		name:  "there is never a descriptor 3",
		fails: []string{"ControlGetsDescriptorThree", "ControlIsBytes", "ControlBesideATerminal"},
		start: withCmd(func(cmd *sandbox.Cmd) { cmd.Control = nil }),
	},
	{
		name:  "there is always a descriptor 3",
		fails: []string{"NoControlNoDescriptorThree", "ControlBesideATerminal"},
		start: withCmd(func(cmd *sandbox.Cmd) {
			if cmd.Control == nil {
				cmd.Control = io.Discard
			}
		}),
	},
	{
		name:  "what comes through descriptor 3 goes to the error output too",
		fails: []string{"ControlGetsDescriptorThree", "ControlGoesBesideTheOthers"},
		start: withCmd(func(cmd *sandbox.Cmd) {
			if cmd.Control != nil && cmd.Stderr != nil {
				var mu sync.Mutex
				errs, control := cmd.Stderr, cmd.Control
				locked := func(p []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return errs.Write(p) }
				cmd.Stderr = writer(locked)
				cmd.Control = io.MultiWriter(control, writer(locked))
			}
		}),
	},
	{
		name:  "descriptor 3 is hoarded without bound",
		fails: []string{"SlowControlSlowsTheProcess", "ControlIsBytes"},
		start: withControl(func(w io.Writer) io.Writer { return newHoard(w) }),
	},
	{
		name:  "descriptor 3 is made UTF-8",
		fails: []string{"ControlIsBytes"},
		start: withControl(func(w io.Writer) io.Writer {
			return writer(func(p []byte) (int, error) {
				_, err := w.Write(bytes.ToValidUTF8(p, []byte("?")))
				return len(p), err
			})
		}),
	},
	{
		name:  "errors of Control are dropped",
		fails: []string{"ControlErrorIsReported"},
		start: withControl(func(w io.Writer) io.Writer {
			return writer(func(p []byte) (int, error) {
				w.Write(p)
				return len(p), nil
			})
		}),
	},
	{
		name:  "the streams take turns",
		fails: []string{"ControlGoesBesideTheOthers"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if cmd.Control != nil && cmd.Stdout != nil && cmd.Stderr != nil {
				control, errs, said := cmd.Control, cmd.Stderr, make(chan struct{})
				once := sync.OnceFunc(func() { close(said) })
				cmd.Stderr = writer(func(p []byte) (int, error) { once(); return errs.Write(p) })
				cmd.Control = writer(func(p []byte) (int, error) {
					select {
					case <-said:
					case <-ctx.Done():
					}
					return control.Write(p)
				})
			}
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "Wait waits for who holds descriptor 3",
		fails: []string{"ControlHeldIsNotWaitedFor"},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			p, err := sb.Start(ctx, cmd)
			if err != nil || cmd.Control == nil {
				return p, err
			}
			return waiter{p, func(p sandbox.Process) (sandbox.Exit, error) {
				e, err := p.Wait()
				for {
					if u, err := sb.Usage(context.Background()); err != nil || u.PIDs == 0 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				return e, err
			}}, nil
		},
	},
	{
		name:  "who holds descriptor 3 dies with the command",
		fails: []string{"ControlHeldIsNotWaitedFor"},
		start: withCmd(func(cmd *sandbox.Cmd) {
			if cmd.Control != nil && strings.Contains(cmd.Args[2], "&") {
				cmd.Args = []string{"sh", "-c", cmd.Args[2] + "\nkill -KILL $! 2>/dev/null; exit 0"}
			}
		}),
	},
	{
		name:  "a detached process's Control is ignored",
		fails: []string{"DetachedStreamsMustBeNil"},
		started: func(sb full, ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
			cmd.Control = nil
			return sb.StartDetached(ctx, cmd, opt)
		},
	},
	{
		name:  "names of processes are made UTF-8",
		fails: []string{"DetachedKeepsItsName"},
		listed: func(ps []sandbox.ProcessInfo) {
			for i := range ps {
				ps[i].Name = strings.ToValidUTF8(ps[i].Name, "?")
			}
		},
	},
	{
		name:  "names of ended processes are forgotten",
		fails: []string{"DetachedKeepsItsName"},
		listed: func(ps []sandbox.ProcessInfo) {
			for i := range ps {
				if ps[i].Exit != nil {
					ps[i].Name = ""
				}
			}
		},
	},
	{
		name:  "long names of processes are cut",
		fails: []string{"DetachedKeepsItsName"},
		started: func(sb full, ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
			opt.Name = opt.Name[:min(len(opt.Name), 256)]
			return sb.StartDetached(ctx, cmd, opt)
		},
	},
	{
		name:  "Update changes nothing",
		fails: []string{"UpdateExpires", "UpdateLabels", "UpdateEnv", "UpdateOfTheGone"},
		update: func(sb full, _ context.Context, c sandbox.Change) error {
			if err := c.Check(); err != nil {
				return err
			}
			return c.CheckBackend()
		},
	},
	{
		name:  "a new end is shown and not kept",
		fails: []string{"UpdateExpires"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			if c.Expires != nil && !c.Expires.IsZero() && time.Until(*c.Expires) < 10*time.Minute {
				c.Expires = new(time.Now().Add(time.Hour))
			}
			return sb.Update(ctx, c)
		},
	},
	{
		name:  "an end cannot be taken away",
		fails: []string{"UpdateExpires"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			if c.Expires != nil && c.Expires.IsZero() {
				c.Expires = nil
			}
			return sb.Update(ctx, c)
		},
	},
	{
		name:  "labels are added to those there are",
		fails: []string{"UpdateLabels"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			if i, err := sb.Info(ctx); err == nil && c.Labels != nil {
				maps.Copy(i.Labels, c.Labels)
				c.Labels = i.Labels
			}
			return sb.Update(ctx, c)
		},
	},
	{
		name:  "labels that are not mentioned go",
		fails: []string{"UpdateLabels", "UpdateEnv"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			return sb.Update(ctx, c)
		},
	},
	{
		name:  "an environment that is added is shown",
		fails: []string{"UpdateEnv"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			if i, err := sb.Info(ctx); err == nil && len(c.Env) > 0 {
				c.Labels = maps.Clone(c.Env)
				maps.Copy(c.Labels, i.Labels)
			}
			return sb.Update(ctx, c)
		},
	},
	{
		name:  "what is added to the environment beats the command's own",
		fails: []string{"UpdateEnv"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			updated.Store(sb.ID(), c.Env)
			return sb.Update(ctx, c)
		},
		start: func(sb full, ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
			if env, ok := updated.Load(sb.ID()); ok {
				cmd.Env = maps.Clone(cmd.Env)
				if cmd.Env == nil {
					cmd.Env = make(map[string]string)
				}
				maps.Copy(cmd.Env, env.(map[string]string))
			}
			return sb.Start(ctx, cmd)
		},
	},
	{
		name:  "an update is made as far as it goes",
		fails: []string{"UpdateIsAllOrNothing"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			err := sb.Update(ctx, c)
			if err != nil {
				sb.Update(ctx, sandbox.Change{Labels: c.Labels})
				sb.Update(ctx, sandbox.Change{Env: c.Env})
			}
			return err
		},
	},
	{
		name:  "updates mix",
		fails: []string{"UpdatesComeOneAfterTheOther"},
		update: func(sb full, ctx context.Context, c sandbox.Change) error {
			if len(c.Env) == 0 || c.Labels == nil || c.Check() != nil || c.CheckBackend() != nil {
				return sb.Update(ctx, c)
			}
			if err := sb.Update(ctx, sandbox.Change{Labels: c.Labels}); err != nil {
				return err
			}
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
			return sb.Update(ctx, sandbox.Change{Env: c.Env})
		},
	},
	{
		name:  "what is dropped is not told",
		fails: []string{"DetachedRingDropsTheOldest"},
		output: func(o sandbox.Output) sandbox.Output {
			o.Dropped = 0
			return o
		},
	},
	{
		name:  "the end of an attachment ends the process",
		fails: []string{"AttachmentEndsAlone"},
		attach: func(sb full, ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
			p, err := sb.Attach(ctx, id, opt)
			if err == nil {
				context.AfterFunc(ctx, func() { p.Signal(context.WithoutCancel(ctx), sandbox.KILL) })
			}
			return p, err
		},
	},
	{
		name:  "what has ended cannot be signalled",
		fails: []string{"KillReachesWhatAnEndedOneLeft"},
		attach: func(sb full, ctx context.Context, id sandbox.ProcessID, opt sandbox.AttachOptions) (sandbox.Process, error) {
			p, err := sb.Attach(ctx, id, opt)
			if err != nil {
				return nil, err
			}
			return deaf{p}, nil
		},
	},
	{
		name:  "detached processes die with their context",
		fails: []string{"DetachedOutlivesItsContext"},
		started: func(sb full, ctx context.Context, cmd sandbox.Cmd, opt sandbox.DetachOptions) (sandbox.ProcessID, error) {
			id, err := sb.StartDetached(ctx, cmd, opt)
			if err == nil {
				context.AfterFunc(ctx, func() {
					if p, err := sb.Attach(context.WithoutCancel(ctx), id, sandbox.AttachOptions{}); err == nil {
						p.Signal(context.WithoutCancel(ctx), sandbox.KILL)
					}
				})
			}
			return id, err
		},
	},
	{
		name:  "Pause stops nothing",
		fails: []string{"PauseStopsProcesses", "PausedRefusesProcesses"},
		pause: func(full, context.Context) error { return nil },
	},
}

// everListed is what the defect "Remove leaves the sandbox in the list" shows.
var everListed sync.Map

// updated is what the defect "what is added to the environment beats the
// command's own" remembers.
var updated sync.Map

// forever is a Reader that blocks.
type forever struct{}

func (forever) Read([]byte) (int, error) { select {} }

func pidOf(p sandbox.Process) string { return strconv.Itoa(p.PID()) }

// TestDefect is run by TestSuiteFindsDefects, in a process of its own, since
// it fails.
func TestDefect(t *testing.T) {
	name := os.Getenv("SUITE_DEFECT")
	if name == "" {
		t.Skip("run by TestSuiteFindsDefects")
	}
	i := slices.IndexFunc(defects, func(d defect) bool { return d.name == name })
	if i < 0 {
		t.Fatalf("there is no defect %q", name)
	}
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			return brokenRuntime{memory.New(memory.Config{}), &defects[i]}
		},
		Patience: 3 * time.Second,
	})
}

// deaf is a process that can be signalled only while it runs.
type deaf struct{ sandbox.Process }

func (d deaf) Signal(ctx context.Context, sig sandbox.Signal) error {
	ended := make(chan struct{})
	go func() { d.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(100 * time.Millisecond):
		return d.Process.Signal(ctx, sig)
	}
}

// TestSuiteFindsDefects tries the suite itself: it breaks the memory backend
// in one way after the other, and each time the claims that say so must fail,
// by name.
func TestSuiteFindsDefects(t *testing.T) {
	var all []broken
	for _, d := range defects {
		all = append(all, broken{d.name, d.fails})
	}
	findDefects(t, "TestDefect", all)
}

// broken names a defect, and the claims that must fail.
type broken struct {
	name  string
	fails []string
}

// findDefects runs test in a process of its own for each defect, with its name
// in the environment, and expects those claims of it to fail.
func findDefects(t *testing.T, test string, defects []broken) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, c := range sandboxtest.Claims() {
		known[c.Name] = true
	}
	// They wait more than they work.
	type result struct {
		out []byte
		err error
	}
	results := make([]result, len(defects))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, d := range defects {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+test+"$/^("+strings.Join(d.fails, "|")+")$", "-test.v")
			cmd.Env = append(os.Environ(), "SUITE_DEFECT="+d.name)
			results[i].out, results[i].err = cmd.CombinedOutput()
		})
	}
	wg.Wait()
	for i, d := range defects {
		t.Run(d.name, func(t *testing.T) {
			r := results[i]
			if r.err == nil {
				t.Errorf("the suite passes:\n%s", r.out)
			}
			for _, claim := range d.fails {
				if !known[claim] {
					t.Errorf("%s is no claim", claim)
				}
				if !bytes.Contains(r.out, []byte("--- FAIL: "+test+"/"+claim+" ")) {
					t.Errorf("%s does not fail:\n%s", claim, r.out)
				}
			}
		})
	}
}
