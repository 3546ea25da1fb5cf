package edit

import (
	"cmp"
	"container/heap"
	"context"
	"io/fs"
	"slices"

	"github.com/atoll-run/atoll/sandbox"
)

// A Sort is an order of results.
type Sort string

const (
	ByPath Sort = ""     // by path, each directory before what is in it
	ByTime Sort = "time" // the last changed first
)

// GlobOptions says what [Glob] finds.
type GlobOptions struct {
	Scope

	// Dirs takes directories as well. What is neither a regular file nor a
	// directory nor a link is never found.
	Dirs bool

	// Links takes links as well, as links.
	Links bool

	MaxResults int // how many are given; 0 is 1000

	// Sort is the order. With ByPath a Glob that meets MaxResults ends there,
	// with those nearest the root; with ByTime it looks at everything, and
	// gives the newest.
	Sort Sort
}

// Found is what [Glob] found.
type Found struct {
	Entries []Entry
	Total   int // how many matches were seen; with ByPath and CutMatches there may be more
	Skipped int // directories that could not be read
	Cut     Cut // CutMatches, CutScan or CutTime
}

// Glob finds the files below root whose path, relative to root, matches
// pattern: see [Pattern]. A hidden name is matched, unless opt.Hidden is set,
// only by an element of the pattern that begins with a dot itself. Glob does
// not go where nothing can match.
func Glob(ctx context.Context, sb sandbox.Sandbox, root, pattern string, opt GlobOptions) (Found, error) {
	const op = "edit.Glob"
	var f Found
	pat, err := Compile(pattern)
	if err == nil {
		err = checkNumbers(number{"max_results", int64(opt.MaxResults)})
	}
	if err == nil && opt.Sort != ByPath && opt.Sort != ByTime {
		err = sandbox.Errorf(sandbox.Invalid, "sort", "%q is not an order", opt.Sort).WithHint("use %q or none", ByTime)
	}
	if err != nil {
		return f, sandbox.At(op, sb.ID(), err)
	}
	keep := opt.Keep
	opt.Keep = func(rel string, info sandbox.FileInfo) bool {
		return opt.takes(info) && (keep == nil || keep(rel, info))
	}
	w, err := newWalker(sb.Files(), root, opt.Scope, pat)
	if err != nil {
		return f, sandbox.At(op, sb.ID(), err)
	}
	most := orDefault(opt.MaxResults, 1000)
	ctx, cancel, over := budget(ctx, w.scope.Time)
	defer cancel()
	var newest oldestFirst
	err = collect(w.entries(ctx), over, func(e Entry) bool {
		f.Total++
		switch {
		case f.Total <= most:
			heap.Push(&newest, e)
		case opt.Sort == ByPath:
			f.Cut = CutMatches
			return true
		default:
			f.Cut = CutMatches
			if newer(e, newest[0]) < 0 {
				newest[0] = e
				heap.Fix(&newest, 0)
			}
		}
		return false
	})
	f.Entries, f.Skipped = newest, w.skipped.Count
	switch {
	case err == errOver:
		f.Cut, err = CutTime, nil
	case w.cut != "":
		f.Cut = w.cut
	}
	if opt.Sort == ByTime {
		slices.SortFunc(f.Entries, newer)
	} else {
		sortEntries(f.Entries)
	}
	return f, sandbox.At(op, sb.ID(), err)
}

func (o *GlobOptions) takes(info sandbox.FileInfo) bool {
	switch info.Mode.Type() {
	case 0:
		return true
	case fs.ModeDir:
		return o.Dirs
	case fs.ModeSymlink:
		return o.Links
	}
	return false
}

// newer orders by time, the last changed first, and then by path.
func newer(a, b Entry) int {
	if c := b.Info.Time.Compare(a.Info.Time); c != 0 {
		return c
	}
	return byPath(a, b)
}

// byPath orders by the elements of a path: what is in a directory comes right
// after it.
func byPath(a, b Entry) int {
	x, y := a.Rel, b.Rel
	n := min(len(x), len(y))
	for i := range n {
		if x[i] == y[i] {
			continue
		}
		switch {
		case x[i] == '/':
			return -1
		case y[i] == '/':
			return 1
		}
		return cmp.Compare(x[i], y[i])
	}
	return cmp.Compare(len(x), len(y))
}

func sortEntries(s []Entry) { slices.SortFunc(s, byPath) }

// oldestFirst is a heap whose first is the one to give up.
type oldestFirst []Entry

func (h oldestFirst) Len() int           { return len(h) }
func (h oldestFirst) Less(i, j int) bool { return newer(h[i], h[j]) > 0 }
func (h oldestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *oldestFirst) Push(x any)        { *h = append(*h, x.(Entry)) }
func (h *oldestFirst) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}
