package sandboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// A keeperDefect is a way to break what keeps sandboxes by name. Each replaces
// some calls; nil leaves them.
type keeperDefect struct {
	name  string
	fails []string // claims that must fail, by name

	spec    func(s *sandbox.Spec) // changes every Spec
	acquire func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error)
	create  func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error)
	open    func(k keeper, ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error)
	lookup  func(k keeper, ctx context.Context, name string) (sandbox.Sandbox, error)
	peek    func(k keeper, id sandbox.ID) (sandbox.Sandbox, bool)
	status  func(s *sandbox.Status)
	events  func(k keeper, ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error]
	prune   func(k keeper, ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error)
	fault   func(err error) error // changes every error
	info    func(i *sandbox.Info)
	release func(k keeper, sb kept, ctx context.Context) error
	update  func(sb kept, ctx context.Context, c sandbox.Change) error
}

// keeper is a Runtime that can do everything, and kept a sandbox of it.
type keeper interface {
	sandbox.Keeper
	sandbox.Peeker
	sandbox.Overseer
}

type kept interface {
	full
	sandbox.Updater
	sandbox.Releaser
}

type brokenKeeper struct {
	keeper
	d *keeperDefect
}

func (k brokenKeeper) wrap(sb sandbox.Sandbox, err error) (sandbox.Sandbox, error) {
	if err != nil {
		if k.d.fault != nil {
			err = k.d.fault(err)
		}
		return nil, err
	}
	return brokenKept{sb.(kept), k}, nil
}

func (k brokenKeeper) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if k.d.spec != nil {
		k.d.spec(&spec)
	}
	if k.d.create != nil {
		return k.wrap(k.d.create(k.keeper, ctx, spec))
	}
	return k.wrap(k.keeper.Create(ctx, spec))
}

func (k brokenKeeper) Acquire(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
	if k.d.spec != nil {
		k.d.spec(&spec)
	}
	acquire := keeper.Acquire
	if k.d.acquire != nil {
		acquire = k.d.acquire
	}
	sb, made, err := acquire(k.keeper, ctx, spec)
	sb, err = k.wrap(sb, err)
	return sb, made, err
}

func (k brokenKeeper) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	if k.d.open != nil {
		return k.wrap(k.d.open(k.keeper, ctx, id))
	}
	return k.wrap(k.keeper.Open(ctx, id))
}

func (k brokenKeeper) Lookup(ctx context.Context, name string) (sandbox.Sandbox, error) {
	if k.d.lookup != nil {
		return k.wrap(k.d.lookup(k.keeper, ctx, name))
	}
	return k.wrap(k.keeper.Lookup(ctx, name))
}

func (k brokenKeeper) Peek(id sandbox.ID) (sandbox.Sandbox, bool) {
	if k.d.peek != nil {
		return k.d.peek(k.keeper, id)
	}
	return k.keeper.Peek(id)
}

func (k brokenKeeper) Status(ctx context.Context) (sandbox.Status, error) {
	s, err := k.keeper.Status(ctx)
	if k.d.status != nil {
		k.d.status(&s)
	}
	return s, err
}

func (k brokenKeeper) Events(ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
	if k.d.events != nil {
		return k.d.events(k.keeper, ctx, after, follow)
	}
	return k.keeper.Events(ctx, after, follow)
}

func (k brokenKeeper) Prune(ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error) {
	if k.d.prune != nil {
		return k.d.prune(k.keeper, ctx, p)
	}
	return k.keeper.Prune(ctx, p)
}

type brokenKept struct {
	kept
	k brokenKeeper
}

func (s brokenKept) Info(ctx context.Context) (sandbox.Info, error) {
	i, err := s.kept.Info(ctx)
	if s.k.d.info != nil {
		s.k.d.info(&i)
	}
	return i, err
}

func (s brokenKept) Release(ctx context.Context) error {
	if s.k.d.release != nil {
		return s.k.d.release(s.k.keeper, s.kept, ctx)
	}
	return s.kept.Release(ctx)
}

func (s brokenKept) Update(ctx context.Context, c sandbox.Change) error {
	if s.k.d.update != nil {
		return s.k.d.update(s.kept, ctx, c)
	}
	return s.kept.Update(ctx, c)
}

// mapped is a defect that maps names to others, and says of each sandbox that
// it has the name by which it was asked for last.
func mapped(name string, f func(string) string) keeperDefect {
	var last sync.Map // by id
	return keeperDefect{
		name:  name,
		fails: []string{"TwoNamesTwoSandboxes"},
		acquire: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
			asked := spec.Name
			spec.Name = f(asked)
			sb, made, err := k.Acquire(ctx, spec)
			if err == nil {
				last.Store(sb.ID(), asked)
			}
			return sb, made, err
		},
		lookup: func(k keeper, ctx context.Context, asked string) (sandbox.Sandbox, error) {
			sb, err := k.Lookup(ctx, f(asked))
			if err == nil {
				last.Store(sb.ID(), asked)
			}
			return sb, err
		},
		info: func(i *sandbox.Info) {
			if asked, ok := last.Load(i.ID); ok {
				i.Names = []string{asked.(string)}
			}
		},
	}
}

var keeperDefects = []keeperDefect{
	{
		name:  "acquiring makes a new one each time",
		fails: []string{"AcquireGivesTheSameSandbox", "ConcurrentAcquiresGetOne", "EnvLabelsExpiryDoNotConflict", "ReleaseThenAcquireGivesTheSame"},
		acquire: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
			spec.Name, spec.ID = "", ""
			sb, err := k.Create(ctx, spec)
			return sb, true, err
		},
	},
	{
		name:  "it does not know what it made",
		fails: []string{"AcquireGivesTheSameSandbox", "ConcurrentAcquiresGetOne", "NamesAreFreeAfterRemoval"},
		acquire: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
			sb, _, err := k.Acquire(ctx, spec)
			return sb, false, err
		},
	},
	{
		name:  "to look and to make are two steps",
		fails: []string{"ConcurrentAcquiresGetOne"},
		acquire: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
			if sb, ok := k.PeekName(spec.Name); ok {
				return sb, false, nil
			}
			time.Sleep(50 * time.Millisecond)
			sb, err := k.Create(ctx, spec)
			return sb, true, err
		},
	},
	{
		name:  "what is there will do",
		fails: []string{"ConflictNamesTheFieldAndBothValues", "ExtraMountsMakeItAnew"},
		acquire: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
			if sb, err := k.Lookup(ctx, spec.Name); err == nil {
				return sb, false, nil
			}
			return k.Acquire(ctx, spec)
		},
	},
	{
		name:  "a conflict does not say in what",
		fails: []string{"ConflictNamesTheFieldAndBothValues"},
		fault: func(err error) error {
			var e *sandbox.Error
			if errors.As(err, &e) && e.Kind == sandbox.Conflict {
				return &sandbox.Error{Kind: sandbox.Conflict, Field: e.Field, Msg: "the sandbox differs"}
			}
			return err
		},
	},
	{
		name:  "labels must be the same",
		fails: []string{"EnvLabelsExpiryDoNotConflict"},
		acquire: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, bool, error) {
			if sb, ok := k.PeekName(spec.Name); ok && len(spec.Labels) > 0 {
				if i, err := sb.Info(ctx); err != nil || i.Labels["suite"] != spec.Labels["suite"] {
					return nil, false, sandbox.Errorf(sandbox.Conflict, "labels", "they differ")
				}
			}
			return k.Acquire(ctx, spec)
		},
	},
	{
		name:  "extra mounts are like others",
		fails: []string{"ExtraMountsMakeItAnew"},
		spec: func(s *sandbox.Spec) {
			s.Mounts = slices.Clone(s.Mounts)
			for i := range s.Mounts {
				s.Mounts[i].Extra = false
			}
		},
	},
	mapped("names become slugs", func(name string) string {
		return strings.Map(func(r rune) rune {
			if r == ' ' || r == '/' || r == '_' {
				return '-'
			}
			return r
		}, name)
	}),
	mapped("names have no case", strings.ToLower),
	mapped("names are trimmed", strings.TrimSpace),
	mapped("names are cut", func(name string) string { return name[:min(len(name), sandbox.MaxName-1)] }),
	mapped("names are normalised", func(name string) string { return strings.ReplaceAll(name, "a\u0308", "\u00e4") }),
	{
		name:  "an id is a wish",
		fails: []string{"AcquireGivesTheSameSandbox", "ChosenIDIsKept", "TakenIDIsConflict", "BadNamesAreInvalid"},
		spec:  func(s *sandbox.Spec) { s.ID = "" },
	},
	{
		name:  "who asks for a taken id or name gets what has it",
		fails: []string{"TakenIDIsConflict", "CreateWithATakenNameIsConflict"},
		create: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			sb, err := k.Create(ctx, spec)
			if errors.Is(err, sandbox.Conflict) {
				if spec.ID != "" {
					return k.Open(ctx, spec.ID)
				}
				return k.Lookup(ctx, spec.Name)
			}
			return sb, err
		},
	},
	{
		name:  "Create has no names",
		fails: []string{"LookupByName", "NamesAreFreeAfterRemoval"},
		create: func(k keeper, ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
			spec.Name = ""
			return k.Create(ctx, spec)
		},
	},
	{
		name:  "Lookup knows no difference between large and small letters",
		fails: []string{"LookupByName"},
		lookup: func(k keeper, ctx context.Context, name string) (sandbox.Sandbox, error) {
			for i, err := range k.List(ctx) {
				if err == nil && slices.ContainsFunc(i.Names, func(n string) bool { return strings.EqualFold(n, name) }) {
					return k.Open(ctx, i.ID)
				}
			}
			return k.Lookup(ctx, name)
		},
	},
	{
		name:  "bad names are mended",
		fails: []string{"BadNamesAreInvalid"},
		spec: func(s *sandbox.Spec) {
			if sandbox.CheckName("name", s.Name) != nil {
				s.Name = fmt.Sprintf("%.100q", s.Name)
			}
		},
	},
	{
		name:    "to release is to remove",
		fails:   []string{"ReleaseThenAcquireGivesTheSame"},
		release: func(k keeper, sb kept, ctx context.Context) error { return sb.Remove(ctx) },
	},
	{
		name:  "what is released stays so",
		fails: []string{"ReleaseThenAcquireGivesTheSame"},
		info:  func(i *sandbox.Info) { i.Released = true },
	},
	{
		name:    "nothing is ever released",
		fails:   []string{"ReleaseThenAcquireGivesTheSame"},
		release: func(keeper, kept, context.Context) error { return nil },
	},
	{
		name:  "nobody knows why it is gone",
		fails: []string{"GoneSaysWhy", "IdleRemovesWhatNobodyUses", "PruneTakesWhatItSays"},
		fault: func(err error) error {
			if errors.Is(err, sandbox.NotExist) {
				return sandbox.Errorf(sandbox.NotExist, "", "no sandbox has this id")
			}
			return err
		},
	},
	{
		name:  "everything that is not there was removed",
		fails: []string{"GoneSaysWhy", "IdleRemovesWhatNobodyUses"},
		fault: func(err error) error {
			if errors.Is(err, sandbox.NotExist) {
				return &sandbox.Error{Kind: sandbox.NotExist, Err: &sandbox.Gone{Why: sandbox.Removed, At: time.Now()}}
			}
			return err
		},
	},
	{
		name:  "a further name replaces the first",
		fails: []string{"UpdateNameAddsAName"},
		info:  func(i *sandbox.Info) { i.Names = i.Names[max(0, len(i.Names)-1):] },
	},
	{
		name:  "a change is made by halves",
		fails: []string{"UpdateNameAddsAName"},
		update: func(sb kept, ctx context.Context, c sandbox.Change) error {
			if c.Labels != nil {
				if err := sb.Update(ctx, sandbox.Change{Labels: c.Labels}); err != nil {
					return err
				}
			}
			return sb.Update(ctx, c)
		},
	},
	{
		name:  "nothing is ever idle",
		fails: []string{"IdleRemovesWhatNobodyUses", "IdleSparesWhatIsBusy"},
		spec:  func(s *sandbox.Spec) { s.Idle = 0 },
	},
	{
		name:  "idle time is a time to live",
		fails: []string{"IdleSparesWhatIsBusy", "IdleRemovesWhatNobodyUses"},
		spec: func(s *sandbox.Spec) {
			if s.Idle > 0 {
				s.Expires, s.Idle = time.Now().Add(s.Idle), 0
			}
		},
	},
	{
		name:  "to peek is to open",
		fails: []string{"PeekSaysWhatOpenWould"},
		peek: func(k keeper, id sandbox.ID) (sandbox.Sandbox, bool) {
			sb, err := k.Open(context.Background(), id)
			return sb, err == nil
		},
	},
	{
		name:  "one can peek at anything",
		fails: []string{"PeekSaysWhatOpenWould"},
		peek: func(k keeper, id sandbox.ID) (sandbox.Sandbox, bool) {
			if sb, ok := k.Peek(id); ok {
				return sb, true
			}
			return ghost{id: id}, true
		},
	},
	{
		name:   "the busy are not counted",
		fails:  []string{"StatusCounts"},
		status: func(s *sandbox.Status) { s.Busy = 0 },
	},
	{
		name:   "the status is always the same",
		fails:  []string{"StatusCounts"},
		status: func(s *sandbox.Status) { s.Live = 7 },
	},
	{
		name:  "there are no new events",
		fails: []string{"EventsTellWhatHappened"},
		events: func(k keeper, ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
			return k.Events(ctx, after, false)
		},
	},
	{
		name:  "events begin anew each time",
		fails: []string{"EventsTellWhatHappened"},
		events: func(k keeper, ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
			return k.Events(ctx, 0, follow)
		},
	},
	{
		name:  "the end of the context is an error",
		fails: []string{"EventsTellWhatHappened"},
		events: func(k keeper, ctx context.Context, after int64, follow bool) iter.Seq2[sandbox.Event, error] {
			return func(yield func(sandbox.Event, error) bool) {
				for e, err := range k.Events(ctx, after, follow) {
					if !yield(e, err) {
						return
					}
				}
				if ctx.Err() != nil {
					yield(sandbox.Event{}, ctx.Err())
				}
			}
		},
	},
	{
		name:  "a dry run is not",
		fails: []string{"PruneTakesWhatItSays"},
		prune: func(k keeper, ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error) {
			p.DryRun = false
			return k.Prune(ctx, p)
		},
	},
	{
		name:  "Prune takes all",
		fails: []string{"PruneTakesWhatItSays"},
		prune: func(k keeper, ctx context.Context, p sandbox.Prune) ([]sandbox.Info, error) {
			p.Labels = nil
			return k.Prune(ctx, p)
		},
	},
}

// ghost is a sandbox that is not there.
type ghost struct {
	sandbox.Sandbox
	id sandbox.ID
}

func (g ghost) ID() sandbox.ID { return g.id }

func newKeeper(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), memory.New(memory.Config{}), engine.Config{MountRoots: []string{"/srv"}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestKeeperDefect is what TestSuiteFindsKeeperDefects runs, in a process of
// its own.
func TestKeeperDefect(t *testing.T) {
	name := os.Getenv("SUITE_DEFECT")
	if name == "" {
		t.Skip("run by TestSuiteFindsKeeperDefects")
	}
	i := slices.IndexFunc(keeperDefects, func(d keeperDefect) bool { return d.name == name })
	if i < 0 {
		t.Fatalf("there is no defect %q", name)
	}
	sandboxtest.Run(t, sandboxtest.Config{
		New:      func(t *testing.T) sandbox.Runtime { return brokenKeeper{newKeeper(t), &keeperDefects[i]} },
		Source:   func(t *testing.T) string { return "/srv/" + t.Name() },
		Patience: 8 * time.Second,
	})
}

// TestSuiteFindsKeeperDefects breaks what keeps sandboxes by name, in one way
// after the other, and expects the suite to say so.
func TestSuiteFindsKeeperDefects(t *testing.T) {
	var all []broken
	for _, d := range keeperDefects {
		all = append(all, broken{d.name, d.fails})
	}
	findDefects(t, "TestKeeperDefect", all)
}
