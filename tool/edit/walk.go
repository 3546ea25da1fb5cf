package edit

import (
	"context"
	"io/fs"
	"iter"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A Scope says which part of a directory is looked at, and for how long.
type Scope struct {
	// Hidden takes names that begin with a dot as well.
	Hidden bool

	// Ignore leaves out what matches one of these patterns, and all below it:
	// a pattern without a slash is for names wherever they are
	// ("node_modules", "*.pyc"), one with a slash for the path below the root.
	Ignore []string

	// Keep, unless nil, has the last word on each path that would be found.
	// Directories that it refuses are entered nevertheless. It is called by
	// one goroutine at a time.
	Keep func(rel string, info sandbox.FileInfo) bool

	// Depth is how deep to go: 1 is what is in the root itself, 0 is any depth.
	Depth int

	// MaxEntries is how many paths are looked at, found or not; 0 is 100000.
	MaxEntries int

	// Time is how long it may take; 0 is 10 seconds.
	Time time.Duration
}

func (s *Scope) check() error {
	if err := checkNumbers(number{"depth", int64(s.Depth)}, number{"max_entries", int64(s.MaxEntries)}, number{"time", int64(s.Time)}); err != nil {
		return err
	}
	if s.MaxEntries == 0 {
		s.MaxEntries = 100_000
	}
	if s.Time == 0 {
		s.Time = 10 * time.Second
	}
	return nil
}

// An Entry is something in a directory that was searched.
type Entry struct {
	Path string // Rel below the root that the caller named
	Rel  string // the path from the root, without a slash at its begin
	Info sandbox.FileInfo
}

// A walker goes through a directory: what is in it by name, and then what is
// in each of its directories in the same way. It lists directories ahead, up
// to atOnce at a time.
type walker struct {
	files  sandbox.Files
	root   string
	scope  Scope
	ignore filter
	pat    *Pattern // nil: everything matches

	// What is known when entries has ended.
	cut     Cut
	skipped Omission // directories that could not be read
}

func newWalker(files sandbox.Files, root string, scope Scope, pat *Pattern) (*walker, error) {
	if err := sandbox.CheckPath("path", root); err != nil {
		return nil, err
	}
	if err := scope.check(); err != nil {
		return nil, err
	}
	ignore, err := compileFilter("ignore", scope.Ignore)
	if err != nil {
		return nil, err
	}
	return &walker{files: files, root: root, scope: scope, ignore: ignore, pat: pat}, nil
}

// A dir is a directory that is still to be gone through.
type dir struct {
	rel   string
	depth int
	front front
	ahead chan listing // nil until somebody lists it
}

// A listing is what is in a directory, as far as the walker may look.
type listing struct {
	infos []sandbox.FileInfo
	err   error
}

// entries yields what matches. It stops at the first error that is not of one
// path alone, which it yields; that ctx ended is one. It is used once.
func (w *walker) entries(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()

		root := dir{}
		if w.pat != nil {
			root.front = w.pat.front()
		}
		seen, ahead := 0, 0
		for stack := []*dir{&root}; len(stack) > 0; {
			for i := len(stack) - 1; i >= max(0, len(stack)-atOnce) && ahead < atOnce; i-- {
				if d := stack[i]; d.ahead == nil {
					d.ahead = make(chan listing, 1)
					ahead++
					wg.Go(func() { d.ahead <- w.list(ctx, d) })
				}
			}
			d := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			var l listing
			if d.ahead != nil {
				l = <-d.ahead
				ahead--
			} else {
				l = w.list(ctx, d)
			}
			if l.err != nil {
				if d.rel == "" || !passing(l.err) {
					yield(Entry{}, l.err)
					return
				}
				w.skipped.add(d.rel, "a directory that cannot be read")
			}
			below := len(stack)
			for _, info := range l.infos {
				if seen++; seen > w.scope.MaxEntries {
					w.cut = CutScan
					return
				}
				e, next, found := w.look(d, info)
				if next != nil {
					stack = append(stack, next)
				}
				if found && !yield(e, nil) {
					return
				}
			}
			reverse(stack[below:])
		}
	}
}

// look says whether info, which is in d, is found, and whether to go into it.
func (w *walker) look(d *dir, info sandbox.FileInfo) (e Entry, next *dir, found bool) {
	var f front
	switch {
	case w.pat != nil:
		if f = w.pat.step(d.front, info.Name, w.scope.Hidden); len(f) == 0 {
			return e, nil, false
		}
	case hidden(info.Name) && !w.scope.Hidden:
		return e, nil, false
	}
	e = Entry{Rel: info.Name, Info: info}
	if d.rel != "" {
		e.Rel = d.rel + "/" + info.Name
	}
	if w.ignore.matches(e.Rel, info.Name) {
		return e, nil, false
	}
	e.Path = join(w.root, e.Rel)
	depth := d.depth + 1
	if info.Mode.IsDir() && (w.scope.Depth == 0 || depth < w.scope.Depth) && (w.pat == nil || w.pat.leads(f)) {
		next = &dir{rel: e.Rel, depth: depth, front: f}
	}
	found = (w.pat == nil || w.pat.accepts(f)) && (w.scope.Keep == nil || w.scope.Keep(e.Rel, info))
	return e, next, found
}

func (w *walker) list(ctx context.Context, d *dir) listing {
	var l listing
	for info, err := range w.files.List(ctx, join(w.root, d.rel)) {
		if err != nil {
			l.err = err
			break
		}
		if l.infos = append(l.infos, info); len(l.infos) > w.scope.MaxEntries {
			break
		}
	}
	return l
}

func reverse(s []*dir) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

func orDefault[T int | int64 | time.Duration](n, def T) T {
	if n == 0 {
		return def
	}
	return n
}

// regular reports whether info is of a file that can be read.
func regular(info sandbox.FileInfo) bool { return info.Mode&fs.ModeType == 0 }
