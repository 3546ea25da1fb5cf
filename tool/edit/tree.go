package edit

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
)

// TreeOptions says what [Tree] gives.
type TreeOptions struct {
	Scope
	MaxResults int // how many entries are given; 0 is 10000
}

// Listed is what [Tree] gives.
type Listed struct {
	Entries []Entry // sorted by path, each directory before what is in it
	Skipped int     // directories that could not be read
	Cut     Cut     // CutMatches, CutScan or CutTime
}

// Tree returns what is in the directory at root and below. Links are listed,
// and not followed.
func Tree(ctx context.Context, sb sandbox.Sandbox, root string, opt TreeOptions) (Listed, error) {
	const op = "edit.Tree"
	var t Listed
	w, err := newWalker(sb.Files(), root, opt.Scope, nil)
	if err == nil {
		err = checkNumbers(number{"max_results", int64(opt.MaxResults)})
	}
	if err != nil {
		return t, sandbox.At(op, sb.ID(), err)
	}
	most := orDefault(opt.MaxResults, 10_000)
	ctx, cancel, over := budget(ctx, w.scope.Time)
	defer cancel()
	err = collect(w.entries(ctx), over, func(e Entry) bool {
		if len(t.Entries) == most {
			t.Cut = CutMatches
			return true
		}
		t.Entries = append(t.Entries, e)
		return false
	})
	t.Skipped = w.skipped.Count
	if err == errOver {
		t.Cut, err = CutTime, nil
	} else if t.Cut == "" {
		t.Cut = w.cut
	}
	sortEntries(t.Entries)
	return t, sandbox.At(op, sb.ID(), err)
}
