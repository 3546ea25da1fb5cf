package edit

import (
	"context"
	"io/fs"
	"iter"

	"github.com/atoll-run/atoll/sandbox"
)

// GrepOptions says what [Grep] finds. The zero value takes the pattern as a
// regular expression that tells capitals from small letters.
type GrepOptions struct {
	Scope

	Literal    bool // the pattern is text, not a regular expression
	IgnoreCase bool // capitals and small letters are the same

	// Multiline looks at each file as a whole, so that a match can span lines;
	// ^ and $ stand for the begin and end of a line, and . does not match
	// the end of a line. A file is then held in memory, and one of more than
	// 256 MiB divided by the size of the compiled expression (5 MiB, where that
	// has 50 steps) counts as too large.
	Multiline bool

	// Include, unless empty, limits the search to files that match one of
	// these patterns, which are as in Scope.Ignore. A root that is a file
	// itself is searched whatever its name is.
	Include []string

	Before, After int // lines to give along with a match, at most 20 each

	MaxResults  int   // matches given; 0 is 500
	MaxPerFile  int   // matches given of one file; 0 is any number
	MaxFiles    int   // files opened; 0 is 20000
	MaxFileSize int64 // larger files are left out, bytes; 0 is 1 MiB, or 64 MiB for a root that is a file
	MaxLine     int   // bytes of a line that are given; 0 is 2000
	MaxBytes    int   // bytes of text given in all; 0 is 4 MiB
}

// A Match is a line in which the pattern was found, or several with Multiline.
type Match struct {
	Path   string
	Rel    string   // as in [Entry]; "" for a root that is a file
	Line   int64    // number of the first line, from 1
	Text   string   // without the end of the line
	Cut    bool     // Text is only the first MaxLine bytes
	Before []string // the lines before, in their order
	After  []string // the lines after
}

// Matches is what [Grep] found.
type Matches struct {
	Matches  []Match // in the order of files in a walk, then of lines
	Searched int     // files that were looked into
	Matched  int     // files that had a match

	// What was left out.
	Binary  int // files that have a NUL byte in their first 8 KiB
	Large   int // files larger than MaxFileSize
	Skipped int // files and directories that could not be read
	More    int // files that have more matches than MaxPerFile
	Long    int // lines of which only the begin was searched

	Cut Cut // CutMatches, CutScan, CutBytes or CutTime
}

const (
	maxContext  = 20      // lines before or after a match
	binaryProbe = 8 << 10 // bytes in which a NUL makes a file binary
)

func (o *GrepOptions) check() error {
	if err := checkNumbers(
		number{"before", int64(o.Before)}, number{"after", int64(o.After)},
		number{"max_results", int64(o.MaxResults)}, number{"max_per_file", int64(o.MaxPerFile)},
		number{"max_files", int64(o.MaxFiles)}, number{"max_file_size", o.MaxFileSize},
		number{"max_line", int64(o.MaxLine)}, number{"max_bytes", int64(o.MaxBytes)}); err != nil {
		return err
	}
	for _, n := range []number{{"before", int64(o.Before)}, {"after", int64(o.After)}} {
		if n.n > maxContext {
			return sandbox.Errorf(sandbox.Invalid, n.field, "%d lines are more than %d", n.n, maxContext).WithHint("read the file instead")
		}
	}
	o.MaxResults = orDefault(o.MaxResults, 500)
	o.MaxPerFile = orDefault(o.MaxPerFile, o.MaxResults)
	o.MaxFiles = orDefault(o.MaxFiles, 20_000)
	o.MaxLine = orDefault(o.MaxLine, 2000)
	o.MaxBytes = orDefault(o.MaxBytes, 4<<20)
	return nil
}

// Grep finds the lines that match pattern in the regular files below root, or
// in root itself if that is a file. Regular expressions are RE2's, whose time
// is bounded whatever they are; one that is malformed or too large is
// [sandbox.Invalid] with Field "pattern" and says where. Of a line longer than
// 64 KiB (less, where the expression has more than 256 steps) only the begin
// is searched.
// A line ends with \n or \r\n, neither of which the pattern sees.
func Grep(ctx context.Context, sb sandbox.Sandbox, root, pattern string, opt GrepOptions) (Matches, error) {
	m, err := grep(ctx, sb.Files(), root, pattern, opt)
	return m, sandbox.At("edit.Grep", sb.ID(), err)
}

func grep(ctx context.Context, files sandbox.Files, root, pattern string, opt GrepOptions) (Matches, error) {
	var m Matches
	single := opt.MaxFileSize == 0
	if err := opt.check(); err != nil {
		return m, err
	}
	find, err := newFinder(pattern, opt)
	if err != nil {
		return m, err
	}
	include, err := compileFilter("include", opt.Include)
	if err != nil {
		return m, err
	}
	w, err := newWalker(files, root, opt.Scope, nil)
	if err != nil {
		return m, err
	}
	ctx, cancel, over := budget(ctx, w.scope.Time)
	defer cancel()

	in, err := rootFile(ctx, files, root)
	switch {
	case err != nil && over():
		m.Cut = CutTime
		return m, nil
	case err != nil:
		return m, err
	case in != nil && single:
		opt.MaxFileSize = 64 << 20
	case in == nil:
		in = w.entries(ctx)
	}
	opt.MaxFileSize = orDefault(opt.MaxFileSize, 1<<20)

	// What the search of files is not told about is counted by the goroutine
	// that ordered ranges in, which has ended when collect returns.
	opened, large, scan := 0, 0, Cut("")
	chosen := func(yield func(Entry, error) bool) {
		for e, err := range in {
			if err == nil {
				switch {
				case !regular(e.Info) || e.Rel != "" && !include.empty() && !include.matches(e.Rel, e.Info.Name):
					continue
				case e.Info.Size > opt.MaxFileSize:
					large++
					continue
				}
				if opened++; opened > opt.MaxFiles {
					scan = CutScan
					return
				}
			}
			if !yield(e, err) {
				return
			}
		}
	}
	search := func(ctx context.Context, e Entry) fileMatches { return searchFile(ctx, files, e, find, &opt) }
	left := opt.MaxBytes
	var broken error
	err = collect(ordered(ctx, chosen, search, nil), over, func(f fileMatches) (enough bool) {
		switch {
		case f.err != nil && passing(f.err):
			m.Skipped++
			return false
		case f.err != nil:
			broken = f.err
			return true
		case f.binary:
			m.Binary++
			return false
		case f.large:
			m.Large++
			return false
		}
		m.Searched++
		m.Long += f.long
		if len(f.matches) > 0 {
			m.Matched++
		}
		for _, one := range f.matches {
			if len(m.Matches) == opt.MaxResults {
				m.Cut = CutMatches
				return true
			}
			if left -= one.size(); left < 0 {
				m.Cut = CutBytes
				return true
			}
			m.Matches = append(m.Matches, one)
		}
		switch {
		case f.cut == CutMatches && opt.MaxPerFile < opt.MaxResults:
			m.More++
			return false
		case f.cut != "":
			m.Cut = f.cut
			return true
		}
		return false
	})
	m.Skipped += w.skipped.Count
	m.Large += large
	switch {
	case broken != nil && over(), err == errOver:
		m.Cut, err = CutTime, nil
	case broken != nil:
		err = broken
	case m.Cut == "" && scan != "":
		m.Cut = scan
	case m.Cut == "":
		m.Cut = w.cut
	}
	return m, err
}

// rootFile returns root as the only entry, if it is a file or a link to one,
// and nil if it is something else.
func rootFile(ctx context.Context, files sandbox.Files, root string) (iter.Seq2[Entry, error], error) {
	if err := sandbox.CheckPath("path", root); err != nil {
		return nil, err
	}
	info, err := files.Stat(ctx, root)
	if err != nil {
		return nil, err
	}
	if info.Mode&fs.ModeSymlink != 0 {
		f, err := files.Open(ctx, root, sandbox.Range{Length: 1})
		if err != nil {
			return nil, ctx.Err() // to a directory, or to nothing: whoever lists it will say
		}
		info = f.Info()
		f.Close()
	}
	if info.Mode.IsDir() || info.Mode&fs.ModeSymlink != 0 {
		return nil, nil
	}
	if !regular(info) {
		return nil, sandbox.Errorf(sandbox.Invalid, "path", "%q is neither a file nor a directory", root).WithHint("name one of these")
	}
	return func(yield func(Entry, error) bool) { yield(Entry{Path: root, Info: info}, nil) }, nil
}
