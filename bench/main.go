// Bench measures what Atoll claims beside what others do, in one run, and
// prints a table. It drives the real daemon over HTTP with requests of its own
// rather than with the Go SDK, so that it and the plain net/http handlers
// beside it are asked by the same client.
//
//	bench [-short] [-only ROW,...] [-json FILE] [-atoll bin/atoll] [-state DIR]
//
// Everything that is compared is measured in turns within the same rounds;
// figures are medians over the rounds. What a machine lacks (a C compiler,
// bubblewrap, runc, crun, root's rights) is said and left out. The program
// removes all that it made, on an interrupt as well.
//
// It is not a test: it exits with 0 whether promises are met or missed, and
// with 1 if it could not measure.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	short := flag.Bool("short", false, "take less than a minute, with fewer samples")
	only := flag.String("only", "", "measure these alone, a list with commas: "+strings.Join(names(), ", "))
	jsonFile := flag.String("json", "", "also write the rows as a JSON array to `FILE`")
	atoll := flag.String("atoll", "bin/atoll", "the program to measure")
	backend := flag.String("backend", "linux", "its backend")
	state := flag.String("state", "", "a `DIR`ectory to make the daemon's state in, where the file system that counts is; the default is that of temporary files")
	plain := flag.Bool("plain", false, "serve the plain handlers until the input ends (bench starts itself so)")
	flag.Parse()

	if *plain {
		exit(servePlain())
	}
	// The daemon is told to end when the thread that started it ends, so that
	// thread has to last as long as this program.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, options{short: *short, only: *only, json: *jsonFile, atoll: *atoll, backend: *backend, state: *state}))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type options struct {
	short   bool
	only    string
	json    string
	atoll   string
	backend string
	state   string
}

// measurements are the parts of the table, in its order.
var measurements = []struct {
	name string
	take func(*bench, context.Context) error
}{
	{"exec", (*bench).exec},
	{"create", (*bench).create},
	{"warm", (*bench).warm},
	{"load", (*bench).load},
	{"added", (*bench).added},
	{"output", (*bench).output},
	{"files", (*bench).files},
	{"sustained", (*bench).sustained},
	{"alive", (*bench).alive},
}

func names() []string {
	var all []string
	for _, m := range measurements {
		all = append(all, m.name)
	}
	return all
}

// A bench is one run.
type bench struct {
	options
	dir      string // temporary, removed at the end
	stateDir string // the daemons', likewise
	root     string // a root file system with one program, /true
	cc       bool   // the floors are there
	groups   []group
	stage    *stage  // nil if there is none
	atoll    *daemon // has no pool
	others   []*daemon
	plain    *plainServer
	notes    io.Writer
	rows     []Row
}

// size chooses a number of samples.
func (b *bench) size(full, short int) int {
	if b.short {
		return short
	}
	return full
}

func (b *bench) add(rows ...Row) { b.rows = append(b.rows, rows...) }

// note says something about what is measured, or is not.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.notes, format+"\n", args...)
}

func run(ctx context.Context, opt options) (err error) {
	for _, name := range strings.FieldsFunc(opt.only, func(r rune) bool { return r == ',' }) {
		if !strings.Contains(","+strings.Join(names(), ",")+",", ","+name+",") {
			return fmt.Errorf("-only: there is no %q; there are %s", name, strings.Join(names(), ", "))
		}
	}
	b := &bench{options: opt, notes: os.Stderr}
	began := time.Now()
	patience := 20 * time.Second
	if b.short {
		patience = 2 * time.Second
	}
	quiet(ctx, b.notes, patience)

	defer func() { err = errors.Join(err, b.cleanUp()) }()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, m := range measurements {
		if b.only != "" && !strings.Contains(","+b.only+",", ","+m.name+",") {
			continue
		}
		b.note("%5.1fs  %s", time.Since(began).Seconds(), m.name)
		hc.CloseIdleConnections() // neither side goes on with a connection that knows the other's past
		if err := m.take(b, ctx); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			return fmt.Errorf("%s: %w%s", m.name, err, b.atoll.lastWords())
		}
	}
	made := 0
	var left []string
	for _, d := range append(b.others, b.atoll) {
		more, err := d.stop()
		if err != nil {
			return err
		}
		left = append(left, more...)
		made += len(d.ids)
	}
	b.add(Row{Row: "left over after all was removed", Unit: "things", N: made, P50: float64(len(left)), P99: float64(len(left))}.promise(len(left) == 0, "none"))
	for _, what := range left[:min(len(left), 5)] {
		b.note("left over: %s", what)
	}
	fmt.Printf("%s, state on %s; %d s\n\n", describe(), fileSystem(b.stateDir), int(time.Since(began).Seconds()))
	if err := printTable(os.Stdout, b.rows); err != nil {
		return err
	}
	if b.json != "" {
		return writeJSON(b.json, b.rows)
	}
	return nil
}

// prepare makes what the measurements need and starts both servers.
func (b *bench) prepare(ctx context.Context) error {
	var err error
	if b.dir, err = os.MkdirTemp("", "atoll-bench-"); err != nil {
		return err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil { // who is root inside is nobody here
		return err
	}
	if b.stateDir, err = os.MkdirTemp(cmp.Or(b.options.state, b.dir), "atoll-bench-"); err != nil {
		return err
	}
	if err := os.Chmod(b.stateDir, 0o711); err != nil {
		return err
	}
	b.root = filepath.Join(b.dir, "root")
	for _, d := range []string{"proc", "dev", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(b.root, d), 0o755); err != nil {
			return err
		}
	}
	if err := buildFloors(ctx, b.dir); err != nil {
		b.note("left out: the floors in C, and what runs their program: %v", err)
	} else {
		b.cc = true
		program, err := os.ReadFile(filepath.Join(b.dir, "true"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.root, "true"), program, 0o755); err != nil {
			return err
		}
	}
	if b.groups, err = ownGroups(filepath.Base(b.dir)); err != nil {
		b.note("the floor and the peers run without limits: %v", err)
	} else if b.groups == nil {
		b.note("not root: the floor and bubblewrap run without limits; runc and crun are left out")
	}
	if isRoot() {
		if b.stage, err = raise(); err != nil {
			b.note("left out: bubblewrap, runc, crun: %v", err)
		}
	} else {
		b.stage = plainStage()
	}
	if b.plain, err = startPlain(ctx); err != nil {
		return fmt.Errorf("the plain handlers: %w", err)
	}
	b.atoll, err = b.start(ctx, "daemon", noPool)
	return err
}

// start starts a daemon of this name with a configuration in TOML.
func (b *bench) start(ctx context.Context, name, config string) (*daemon, error) {
	return startDaemon(ctx, b.options.atoll, b.backend, filepath.Join(b.dir, name), filepath.Join(b.stateDir, name), config)
}

// another starts a daemon beside the one that most rows share. It is ended
// when the program ends, if nobody stops it before.
func (b *bench) another(ctx context.Context, name, config string) (*daemon, error) {
	d, err := b.start(ctx, name, config)
	if err == nil {
		b.others = append(b.others, d)
	}
	return d, err
}

// cleanUp ends and removes all that prepare made, whatever came of it.
func (b *bench) cleanUp() error {
	var errs []error
	for _, d := range append(b.others, b.atoll) {
		if d != nil {
			_, err := d.stop()
			errs = append(errs, err)
		}
	}
	if b.plain != nil {
		errs = append(errs, b.plain.stop())
	}
	if b.dir != "" {
		errs = append(errs, removeGroups(filepath.Base(b.dir)), os.RemoveAll(b.dir))
	}
	if b.stateDir != "" {
		errs = append(errs, os.RemoveAll(b.stateDir))
	}
	return errors.Join(errs...)
}

// has reports whether the machine has a program, and says so if it has not.
func (b *bench) has(program string) bool {
	_, err := exec.LookPath(program)
	if err != nil {
		b.note("left out: %s is not installed", program)
	}
	return err == nil
}
