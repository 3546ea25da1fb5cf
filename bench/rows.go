package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// exec measures a command in a sandbox that lives, beside the plain handler
// that runs the same command on the host.
func (b *bench) exec(ctx context.Context) error {
	id, err := b.atoll.create(ctx, spec{noCPULimit: true})
	if err != nil {
		return err
	}
	defer b.atoll.remove(context.WithoutCancel(ctx), id)

	all := []contestant{
		{"atoll", func(ctx context.Context) (time.Duration, error) { return b.atoll.timedExec(ctx, id, "true") }},
		{"net/http + os/exec", func(ctx context.Context) (time.Duration, error) { return b.plain.timedExec(ctx, "true") }},
	}
	if b.cc {
		for _, f := range []struct{ name, how, program string }{
			{"posix_spawn of true", "posix", "/bin/true"},
			{"posix_spawn of a static true", "posix", filepath.Join(b.dir, "true")},
			{"vfork of a static true", "vfork", filepath.Join(b.dir, "true")},
		} {
			c, err := startFloor(ctx, filepath.Join(b.dir, "spawn"), f.how, f.program)
			if err != nil {
				return err
			}
			defer c.close()
			all = append(all, contestant{f.name, c.once})
		}
	}
	results, err := race(ctx, 5, b.size(400, 60), b.size(50, 20), all...)
	if err != nil {
		return err
	}
	ours, plain := results[0], results[1]
	b.add(ours.beside("exec", plain).atMost(1.5), ours.besideP99("exec, p99", plain).atMost(5))
	for _, f := range results[2:] {
		b.add(plain.beside("the plain handler's exec", f))
	}

	const clients = 8
	us, them := rate{name: "atoll"}, rate{name: plain.name}
	for range b.size(5, 3) {
		for _, turn := range []struct {
			to   *rate
			exec func(context.Context) (time.Duration, error)
		}{{&us, all[0].once}, {&them, all[1].once}} {
			n, took, err := crowd(ctx, clients, time.Duration(b.size(2000, 500))*time.Millisecond, turn.exec)
			if err != nil {
				return err
			}
			turn.to.rounds = append(turn.to.rounds, float64(n)/took.Seconds())
		}
	}
	row := us.beside("exec, 8 clients", "per s", them)
	b.add(row.promise(row.P50 >= 1000, "≥ 1000"))
	return nil
}

// crowd lets as many clients as that work for the time given and returns how
// often they did and how long it took. The first error ends it.
func crowd(ctx context.Context, clients int, span time.Duration, once func(context.Context) (time.Duration, error)) (int64, time.Duration, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var done atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range clients {
		all.Go(func() {
			for time.Since(start) < span && ctx.Err() == nil {
				if _, err := once(ctx); err != nil {
					stop(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	if ctx.Err() != nil {
		return 0, 0, context.Cause(ctx)
	}
	return done.Load(), took, nil
}

// create measures a new sandbox up to its first result, beside all that make
// one. Removing it is not in the figures of Atoll and the floor; it is in those
// of the peers, which give the result when they have removed the rest.
func (b *bench) create(ctx context.Context) error {
	host := contestant{"atoll, image host", creator(b.atoll, spec{}, "true")}
	all := []contestant{host}
	if b.cc {
		if err := b.makeLower(); err != nil {
			return err
		}
		all = append(all, contestant{"atoll, image dir", creator(b.atoll, spec{image: "dir:" + b.root}, "/true")})
		for _, f := range []struct {
			name string
			args []string
		}{
			{"C floor", []string{b.root, filepath.Join(b.dir, "base"), "/true"}},
			{"C floor, the host's true", []string{"-usr", filepath.Join(b.dir, "lower"), filepath.Join(b.dir, "base"), "/usr/bin/true"}},
		} {
			c, err := b.sandboxFloor(ctx, f.args...)
			if err != nil {
				return err
			}
			defer c.close()
			all = append(all, contestant{f.name, c.once})
		}
	}
	all = append(all, b.peers(ctx)...)

	results, err := race(ctx, 5, b.size(50, 8), 5, all...)
	if err != nil {
		return err
	}
	compare := b.comparer(results)
	const dir, onHost = "create → first result, image dir", "create → first result, image host"
	compare(dir, "atoll, image dir", "C floor", func(r Row) Row { return r.atMost(3) })
	compare(dir, "atoll, image dir", "bubblewrap", func(r Row) Row { return r.lessThan(1) })
	compare(dir, "atoll, image dir", "crun", none)
	compare(dir, "atoll, image dir", "runc", func(r Row) Row { return r.atMost(1. / 3) })
	compare(onHost, host.name, "C floor", func(r Row) Row { return r.atMost(3) })
	compare(onHost, host.name, "C floor, the host's true", none)
	compare(onHost, host.name, "bubblewrap, the host's true", func(r Row) Row { return r.lessThan(1) })
	return nil
}

// comparer returns a function that adds the row of what ours did beside what
// theirs did, if both took part.
func (b *bench) comparer(results []result) func(row, ours, theirs string, promised func(Row) Row) {
	byName := make(map[string]result)
	for _, r := range results {
		byName[r.name] = r
	}
	return func(row, ours, theirs string, promised func(Row) Row) {
		us, ok := byName[ours]
		them, also := byName[theirs]
		if ok && also {
			b.add(promised(us.beside(row, them)))
		}
	}
}

// none promises nothing.
func none(r Row) Row { return r }

// creator makes a sandbox, runs a command in it, and removes it unmeasured.
func creator(d *daemon, s spec, command string) func(context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		start := time.Now()
		id, err := d.create(ctx, s)
		if err != nil {
			return 0, err
		}
		_, err = d.timedExec(ctx, id, command)
		took := time.Since(start)
		if e := d.remove(context.WithoutCancel(ctx), id); err == nil {
			err = e
		}
		return took, err
	}
}

// sandboxFloor starts floor/sandbox.c with the limits and ids that all get.
func (b *bench) sandboxFloor(ctx context.Context, args ...string) (*floor, error) {
	flags := groupFlags(b.groups)
	if isRoot() {
		flags = append(flags, "-uid", "100000")
	}
	return startFloor(ctx, filepath.Join(b.dir, "sandbox"), append(flags, args...)...)
}

// peers returns the contestants among the programs of others.
func (b *bench) peers(ctx context.Context) []contestant {
	all := b.bubblewrap(ctx)
	if b.stage == nil || !isRoot() || !b.cc {
		return all
	}
	for _, program := range []string{"crun", "runc"} {
		if !b.has(program) {
			continue
		}
		p, err := oci(program, b.dir, b.root, filepath.Base(b.dir), "/true")
		if err != nil {
			b.note("left out: %v", err)
			continue
		}
		all = b.enter(ctx, all, p)
	}
	return all
}

// bubblewrap returns the contestants that are bubblewrap.
func (b *bench) bubblewrap(ctx context.Context) []contestant {
	if b.stage == nil || !b.has("bwrap") {
		return nil
	}
	var all []contestant
	if b.cc {
		all = b.enter(ctx, all, bwrap(b.root, "/true"))
	}
	p := bwrap("", "/usr/bin/true")
	p.name += ", the host's true"
	return b.enter(ctx, all, p)
}

// enter appends p to all, if it works here.
func (b *bench) enter(ctx context.Context, all []contestant, p peer) []contestant {
	c, err := p.contestant(ctx, b.stage)
	if err != nil {
		b.note("left out: %s: %v", p.name, err)
		return all
	}
	return append(all, c)
}

// output measures how fast the output of a process comes through the API, and
// whether the daemon keeps it.
func (b *bench) output(ctx context.Context) error {
	id, err := b.atoll.create(ctx, spec{noCPULimit: true})
	if err != nil {
		return err
	}
	defer b.atoll.remove(context.WithoutCancel(ctx), id)
	size := int64(b.size(2048, 512))
	args := []string{"dd", "if=/dev/zero", "bs=1M", fmt.Sprint("count=", size), "status=none"}

	before, err := b.atoll.resetPeak()
	if err != nil {
		return err
	}
	us, them := rate{name: "atoll"}, rate{name: "net/http + os/exec"}
	for range 3 {
		for _, turn := range []struct {
			to     *rate
			stream func(context.Context, ...string) (int64, error)
		}{
			{&us, func(ctx context.Context, args ...string) (int64, error) { return b.atoll.stream(ctx, id, args...) }},
			{&them, b.plain.stream},
		} {
			start := time.Now()
			n, err := turn.stream(ctx, args...)
			if err != nil {
				return err
			}
			if n != size<<20 {
				return fmt.Errorf("%s: %d bytes came, not %d", turn.to.name, n, size<<20)
			}
			turn.to.rounds = append(turn.to.rounds, float64(n)/1e6/time.Since(start).Seconds())
		}
	}
	peak, err := b.atoll.peak()
	if err != nil {
		return err
	}
	row := us.beside("output of a process", "MB/s", them)
	grown := max(float64(peak-before)/1024, 0)
	b.add(row.promise(row.P50 >= 500, "≥ 500"),
		Row{Row: fmt.Sprintf("memory that the daemon takes for %d MiB of output", 3*size), Unit: "MiB", N: 3, P50: grown, P99: grown}.
			promise(grown < 32, "bounded (< 32)"))
	return nil
}

// files measures an upload and a download of 1 MiB.
func (b *bench) files(ctx context.Context) error {
	id, err := b.atoll.create(ctx, spec{noCPULimit: true})
	if err != nil {
		return err
	}
	defer b.atoll.remove(context.WithoutCancel(ctx), id)

	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(data)
	inside, outside := "/workspace/bench.bin", filepath.Join(b.stateDir, "bench.bin")
	const plain = "net/http + a file"
	up, err := race(ctx, 5, b.size(100, 20), 5,
		contestant{"atoll", timed(func(ctx context.Context) error { return b.atoll.upload(ctx, id, inside, data) })},
		contestant{plain, timed(func(ctx context.Context) error { return b.plain.upload(ctx, outside, data) })})
	if err != nil {
		return err
	}
	down, err := race(ctx, 5, b.size(100, 20), 5,
		contestant{"atoll", timed(func(ctx context.Context) error { return b.atoll.download(ctx, id, inside, data) })},
		contestant{plain, timed(func(ctx context.Context) error { return b.plain.download(ctx, outside, data) })})
	if err != nil {
		return err
	}
	b.add(up[0].beside("upload of 1 MiB", up[1]).atMost(2), down[0].beside("download of 1 MiB", down[1]).atMost(2))
	return nil
}

// sustained measures how many sandboxes can be made and removed for seconds on
// end.
func (b *bench) sustained(ctx context.Context) error {
	for range 5 { // the daemon's first one finds out what the machine can
		if _, err := creator(b.atoll, spec{}, "true")(ctx); err != nil {
			return err
		}
	}
	for _, clients := range []int{1, 2, 4, 8} {
		made, failed := rate{}, atomic.Int64{}
		for range b.size(3, 1) {
			n, took, err := crowd(ctx, clients, time.Duration(b.size(3000, 2000))*time.Millisecond, func(ctx context.Context) (time.Duration, error) {
				id, err := b.atoll.create(ctx, spec{})
				if err == nil {
					err = b.atoll.remove(ctx, id)
				}
				if err != nil && ctx.Err() == nil {
					if failed.Add(1) > 100 {
						return 0, err
					}
					b.note("a create or remove failed: %v", err)
				}
				return 0, nil
			})
			if err != nil {
				return err
			}
			made.rounds = append(made.rounds, float64(n)/took.Seconds())
		}
		row := made.row(fmt.Sprintf("create and remove, %d %s", clients, plural(clients, "client")), "per s")
		b.add(row.promise(row.P50 >= 100 && failed.Load() == 0, "≥ 100, no failure"))
	}
	return nil
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// alive makes many sandboxes, uses them while all live, looks at what they
// weigh, and removes them.
func (b *bench) alive(ctx context.Context) error {
	const makers = 4
	n := b.size(1000, 200)
	label := fmt.Sprintf("%d alive", n)

	time.Sleep(time.Second) // what was removed before is still ending
	daemonBefore, _ := private(b.atoll.pid())
	residentBefore := resident(b.atoll.pid())
	before, own := meminfo(), firsts()

	ids := make([]string, n)
	took := make([]float64, n)
	failed := atomic.Int64{}
	var lastErr atomic.Value
	start := time.Now()
	inParallel(makers, n, func(i int) {
		if ctx.Err() != nil {
			return
		}
		at := time.Now()
		id, err := b.atoll.create(ctx, spec{})
		if err != nil {
			failed.Add(1)
			lastErr.Store(err)
			return
		}
		ids[i], took[i] = id, ms(time.Since(at))
	})
	spent := time.Since(start)
	if err := ctx.Err(); err != nil {
		return err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	took = slices.DeleteFunc(took, func(t float64) bool { return t == 0 })
	slices.Sort(took)
	if err := lastErr.Load(); err != nil {
		b.note("%s: a create failed: %v", label, err)
	}
	if len(ids) == 0 {
		return fmt.Errorf("no sandbox could be made")
	}
	perSecond := float64(len(ids)) / spent.Seconds()
	b.add(Row{Row: label + ": made by 4 clients", Unit: "per s", N: len(ids), P50: perSecond, P99: perSecond}.promise(perSecond >= 100, "≥ 100"),
		Row{Row: label + ": create", Unit: "ms", N: len(ids), P50: quantile(took, 0.5), P99: quantile(took, 0.99)})

	// Each runs one command, in a random order, so that what is weighed
	// afterwards has been used.
	order := rand.Perm(len(ids))
	next := 0
	results, err := race(ctx, 1, len(ids), 0,
		contestant{"atoll", func(ctx context.Context) (time.Duration, error) {
			id := ids[order[next]]
			next++
			return b.atoll.timedExec(ctx, id, "true")
		}},
		contestant{"net/http + os/exec", func(ctx context.Context) (time.Duration, error) { return b.plain.timedExec(ctx, "true") }})
	if err != nil {
		return err
	}
	b.add(results[0].beside(label+": exec", results[1]).atMost(1.5), results[0].besideP99(label+": exec, p99", results[1]).atMost(5))

	if err := b.weigh(ctx, label, len(ids), before, own, daemonBefore); err != nil {
		return err
	}
	grown := resident(b.atoll.pid())
	b.add(Row{Row: label + ": the daemon's resident memory", Unit: "MiB", N: len(ids), P50: grown, P99: grown}.against("before any was made", residentBefore, residentBefore))

	gone := make([]float64, len(ids))
	start = time.Now()
	inParallel(makers, len(ids), func(i int) {
		at := time.Now()
		if err := b.atoll.remove(context.WithoutCancel(ctx), ids[i]); err != nil {
			failed.Add(1)
			lastErr.Store(err)
		}
		gone[i] = ms(time.Since(at))
	})
	spent = time.Since(start)
	slices.Sort(gone)
	perSecond = float64(len(ids)) / spent.Seconds()
	failures := float64(failed.Load())
	b.add(Row{Row: label + ": remove", Unit: "ms", N: len(ids), P50: quantile(gone, 0.5), P99: quantile(gone, 0.99)},
		Row{Row: label + ": removed by 4 clients", Unit: "per s", N: len(ids), P50: perSecond, P99: perSecond},
		Row{Row: label + ": failures", Unit: "count", N: n, P50: failures, P99: failures}.promise(failures == 0, "none"))
	return nil
}

// weigh adds the rows of what n idle sandboxes take.
func (b *bench) weigh(ctx context.Context, label string, n int, before map[string]int64, own map[int]bool, daemonBefore int64) error {
	select { // idle is idle: let garbage be collected and the last exits be reaped
	case <-time.After(time.Duration(b.size(5, 2)) * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	after := meminfo()
	var guests []float64
	for pid := range firsts() {
		if !own[pid] {
			if kib, ok := private(pid); ok {
				guests = append(guests, float64(kib))
			}
		}
	}
	slices.Sort(guests)
	if len(guests) < n {
		b.note("%s: only %d guests can be seen", label, len(guests))
	}
	if len(guests) > 0 {
		row := Row{Row: "an idle sandbox: its guest's private memory", Unit: "KiB", N: len(guests), P50: quantile(guests, 0.5), P99: quantile(guests, 0.99)}
		b.add(row.promise(row.P50 <= 1536, "≤ 1536"))
	}
	each := func(names ...string) float64 {
		sum := int64(0)
		for _, name := range names {
			sum += after[name] - before[name]
		}
		return float64(sum) / float64(n)
	}
	kernel := each("Slab", "KernelStack", "PageTables", "Percpu")
	b.add(Row{Row: "an idle sandbox: kernel memory (slab, stacks, page tables, per-CPU)", Unit: "KiB", N: n, P50: kernel, P99: kernel}.promise(kernel <= 410, "≤ 410"))
	b.note("kernel memory of each, KiB: slab %.0f (not reclaimable %.0f), stacks %.0f, page tables %.0f, per-CPU %.0f",
		each("Slab"), each("SUnreclaim"), each("KernelStack"), each("PageTables"), each("Percpu"))
	all := -each("MemAvailable")
	b.add(Row{Row: "an idle sandbox: all that the machine has less (MemAvailable)", Unit: "KiB", N: n, P50: all, P99: all})
	if daemonAfter, ok := private(b.atoll.pid()); ok {
		daemon := float64(daemonAfter-daemonBefore) / float64(n)
		b.add(Row{Row: "an idle sandbox: memory of the daemon", Unit: "KiB", N: n, P50: daemon, P99: daemon})
	}
	return nil
}

// inParallel calls do with 0 to n-1 from as many goroutines as given.
func inParallel(workers, n int, do func(int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	all.Wait()
}
