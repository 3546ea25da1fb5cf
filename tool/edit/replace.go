package edit

import (
	"bytes"
	"context"
	"errors"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Which says which matches [Replace] replaces.
type Which string

const (
	Only  Which = "" // the one match there is: none or several are a Conflict
	Every Which = "every"
	First Which = "first"
	Last  Which = "last"
)

// ReplaceOptions says how [Replace] works.
type ReplaceOptions struct {
	Which  Which
	Regexp bool // old is a regular expression of RE2 in which ^ and $ are of lines; in the new text $1 or ${name} is a group, $$ a $

	// Optional makes it no error that there is no match.
	Optional bool

	ChangeOptions
}

// ChangeOptions is what all that change a file have in common.
type ChangeOptions struct {
	// IfUnchanged, unless "", refuses with [sandbox.Conflict] a file that is no
	// longer the one that this is the Version of.
	IfUnchanged Version

	Binary  bool  // change a file that has NUL bytes, too
	MaxSize int64 // a larger file, before or after, is refused, bytes; 0 is 4 MiB, at most 64 MiB
}

// A Change is what was done to a file.
type Change struct {
	Count    int     // matches replaced, or lines inserted
	Lines    []int64 // the lines in which they begin, of the old file; for an insertion, its first line in the new one. At most 100
	Old, New []byte  // the whole content
	Info     sandbox.FileInfo
	Version  Version // by time and size
}

const maxLines = 100 // line numbers that a Change tells

// Replace replaces the text old in the file at path by new. It is atomic, and
// keeps the file's owner and permissions; a link is followed. Matches do not
// overlap. An old that is not there, or is there more than once with [Only],
// is [sandbox.Conflict] with Field "old", which says how often and in which
// lines.
//
// Two changes of one file through this package take turns. If somebody else
// changed it after it was read, it is [sandbox.Conflict] with Field "path";
// what changes it in the moment between the last look and the writing, well
// under a millisecond, is lost.
func Replace(ctx context.Context, sb sandbox.Sandbox, p, old, new string, opt ReplaceOptions) (Change, error) {
	var c Change
	find, err := replacer(old, new, opt)
	if err == nil {
		c, err = change(ctx, sb, p, opt.ChangeOptions, find)
	}
	return c, sandbox.At("edit.Replace", sb.ID(), err)
}

// A result is what a file becomes.
type result struct {
	data  []byte
	count int
	at    []int // where the first changes begin in the old content, at most maxLines
}

// An editor makes a result of what is in a file, of at most max bytes.
type editor func(ctx context.Context, data []byte, max int64) (result, error)

func replacer(old, new string, opt ReplaceOptions) (editor, error) {
	switch opt.Which {
	case Only, Every, First, Last:
	default:
		return nil, sandbox.Errorf(sandbox.Invalid, "which", "%q is not known", string(opt.Which)).WithHint("use %q, %q, %q or none", Every, First, Last)
	}
	if old == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "old", "the text to replace is empty").WithHint("give a piece of the file, or insert at a line")
	}
	if !opt.Regexp {
		return func(_ context.Context, data []byte, max int64) (result, error) {
			return replaceText(data, []byte(old), []byte(new), opt, max)
		}, nil
	}
	re, size, err := compileRegexp(old, false, true)
	if err != nil {
		var e *sandbox.Error
		if errors.As(err, &e) {
			e.Field = "old"
		}
		return nil, err
	}
	return func(ctx context.Context, data []byte, max int64) (result, error) {
		if len(data) > maxWhole/size {
			return result{}, sandbox.Errorf(sandbox.Exhausted, "old", "the file is too large for so large a regular expression").WithHint("use a simpler one, or text")
		}
		return replaceRegexp(ctx, data, re, []byte(new), opt, max)
	}, nil
}

func replaceText(data, old, new []byte, opt ReplaceOptions, max int64) (result, error) {
	r := result{count: bytes.Count(data, old)}
	for at := 0; len(r.at) < min(r.count, maxLines); {
		at += bytes.Index(data[at:], old)
		r.at = append(r.at, at)
		at += len(old)
	}
	if err := opt.enough(r, data); err != nil || r.count == 0 {
		return result{data: data}, err
	}
	if opt.Which != Every {
		at := r.at[0]
		if opt.Which == Last {
			// Matches are counted from the begin, the last of them as well:
			// of "aa" in "aaa" there is one, at 0.
			at = lastOf(data, old)
		}
		r.count, r.at = 1, []int{at}
	}
	if int64(len(data))+int64(r.count)*int64(len(new)-len(old)) > max {
		return result{}, tooLarge(max)
	}
	if opt.Which == Every {
		r.data = bytes.ReplaceAll(data, old, new)
	} else {
		r.data = slices.Concat(data[:r.at[0]], new, data[r.at[0]+len(old):])
	}
	return r, nil
}

// lastOf returns where the last of the matches is that bytes.Count counts.
func lastOf(data, old []byte) int {
	last := -1
	for at := 0; ; {
		i := bytes.Index(data[at:], old)
		if i < 0 {
			return last
		}
		last = at + i
		at = last + len(old)
	}
}

// maxMatches is how many matches of a regular expression are handled.
const maxMatches = 100_000

func replaceRegexp(ctx context.Context, data []byte, re *regexp.Regexp, new []byte, opt ReplaceOptions, max int64) (result, error) {
	// An expression that looks at the whole rest for each match takes its
	// time, so the clock is looked at in between. What is done again is half.
	var all [][]int
	for n := 64; ; n *= 2 {
		if all = re.FindAllSubmatchIndex(data, n); len(all) < n {
			break
		}
		if n > maxMatches {
			return result{}, sandbox.Errorf(sandbox.Exhausted, "old", "there are more than %d matches", maxMatches).WithHint("use text, or an expression that matches less often")
		}
		if err := ctx.Err(); err != nil {
			return result{}, err
		}
	}
	r := result{count: len(all)}
	for _, loc := range all[:min(len(all), maxLines)] {
		r.at = append(r.at, loc[0])
	}
	if err := opt.enough(r, data); err != nil || r.count == 0 {
		return result{data: data}, err
	}
	switch opt.Which {
	case First, Only:
		all = all[:1]
	case Last:
		all = all[len(all)-1:]
	}
	if opt.Which != Every {
		r.count, r.at = 1, []int{all[0][0]}
	}
	at := 0
	for _, loc := range all {
		r.data = append(r.data, data[at:loc[0]]...)
		r.data = re.Expand(r.data, new, data, loc)
		if at = loc[1]; int64(len(r.data)+len(data)-at) > max {
			return result{}, tooLarge(max)
		}
	}
	r.data = append(r.data, data[at:]...)
	return r, nil
}

// enough returns an error unless there are as many matches as are wanted.
func (o *ReplaceOptions) enough(r result, data []byte) error {
	switch {
	case r.count == 0 && !o.Optional:
		return sandbox.Errorf(sandbox.Conflict, "old", "the text to replace is not in the file").WithHint("read the file again, and give the text as it is there, blanks included")
	case r.count > 1 && o.Which == Only:
		more := ""
		if r.count > 10 {
			more = ", …"
		}
		var where []string
		for _, n := range lineNumbers(data, r.at[:min(10, len(r.at))]) {
			where = append(where, strconv.FormatInt(n, 10))
		}
		return sandbox.Errorf(sandbox.Conflict, "old", "the text to replace is in the file %d times, in lines %s%s", r.count, strings.Join(where, ", "), more).WithHint("give more of what is around it, or replace all")
	}
	return nil
}

// lineNumbers returns the numbers of the lines in which offsets are, which are
// in order.
func lineNumbers(data []byte, at []int) []int64 {
	var lines []int64
	line, from := int64(1), 0
	for _, i := range at {
		line += int64(bytes.Count(data[from:i], newline))
		from = i
		lines = append(lines, line)
	}
	return lines
}

func tooLarge(max int64) error {
	return sandbox.Errorf(sandbox.Exhausted, "path", "the file has, or would have, more than %d bytes", max).WithHint("change it with a command in the sandbox")
}

// Insert inserts text after a line of the file at path: 0 puts it before the
// first, and the number of the last puts it at the end. Text without an end of
// line gets one, and so does a last line that the text comes after. A line that
// is not there is [sandbox.Invalid] with Field "line". Otherwise Insert is as
// [Replace].
func Insert(ctx context.Context, sb sandbox.Sandbox, path string, line int64, text string, opt ChangeOptions) (Change, error) {
	c, err := change(ctx, sb, path, opt, func(_ context.Context, data []byte, max int64) (result, error) {
		at, lines := 0, int64(0)
		for at < len(data) && lines < line {
			lines++
			if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
				at += i + 1
			} else {
				at = len(data)
			}
		}
		if line < 0 || lines < line {
			return result{}, sandbox.Errorf(sandbox.Invalid, "line", "the file has no line %d", line).WithHint("give 0 to %d", lines)
		}
		before, after := "", ""
		if at > 0 && data[at-1] != '\n' {
			before = "\n"
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			after = "\n"
		}
		if text == "" {
			return result{data: data}, nil
		}
		if int64(len(data)+len(before)+len(text)+len(after)) > max {
			return result{}, tooLarge(max)
		}
		return result{
			data:  slices.Concat(data[:at], []byte(before), []byte(text), []byte(after), data[at:]),
			count: strings.Count(text+after, "\n"),
			at:    []int{at},
		}, nil
	})
	if c.Count > 0 {
		c.Lines = []int64{line + 1}
	}
	return c, sandbox.At("edit.Insert", sb.ID(), err)
}

// maxFile is how large a file may be that is changed as a whole.
const maxFile = 64 << 20

// change reads a file, has it edited, and writes it unless it is as it was.
func change(ctx context.Context, sb sandbox.Sandbox, p string, opt ChangeOptions, do editor) (c Change, err error) {
	if err := sandbox.CheckPath("path", p); err != nil {
		return c, err
	}
	if err := checkNumbers(number{"max_size", opt.MaxSize}); err != nil {
		return c, err
	}
	most := min(orDefault(opt.MaxSize, 4<<20), maxFile)
	ctx, cancel, over := budget(ctx, changeTime)
	defer cancel()
	defer func() {
		if err != nil && over() {
			err = sandbox.Errorf(sandbox.Exhausted, "", "it took more than %v", changeTime).WithHint("change the file with a command in the sandbox")
		}
	}()
	release, err := editing.take(ctx, file{sb.ID(), path.Clean(p)})
	if err != nil {
		return c, err
	}
	defer release()

	files := sb.Files()
	data, info, err := piece(ctx, files, p, sandbox.Range{}, most+1)
	if err != nil {
		return c, err
	}
	if int64(len(data)) > most {
		return c, tooLarge(most)
	}
	switch same, err := opt.IfUnchanged.same(info, data); {
	case err != nil:
		return c, err
	case !same:
		return c, changed(p)
	}
	if !opt.Binary && bytes.IndexByte(data, 0) >= 0 {
		return c, sandbox.Errorf(sandbox.Invalid, "path", "%q is not a text file: it has a NUL byte", p).WithHint("write the whole file instead")
	}
	r, err := do(ctx, data, most)
	if err != nil {
		return c, err
	}
	c = Change{Count: r.count, Lines: lineNumbers(data, r.at), Old: data, New: r.data, Info: info}
	if !bytes.Equal(data, r.data) {
		now, err := look(ctx, files, p)
		switch {
		case err != nil:
			return Change{}, err
		case VersionOf(now) != VersionOf(info):
			return Change{}, changed(p)
		}
		if c.Info, err = files.Write(ctx, p, bytes.NewReader(r.data), sandbox.WriteOptions{}); err != nil {
			return Change{}, err
		}
	}
	c.Version = VersionOf(c.Info)
	return c, nil
}

// changeTime is how long a change may take: the time is the file system's, or
// that of a regular expression.
const changeTime = 30 * time.Second

// look returns the Info of the file that path leads to, which Stat does not.
func look(ctx context.Context, files sandbox.Files, path string) (sandbox.FileInfo, error) {
	f, err := files.Open(ctx, path, sandbox.Range{Length: 1})
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	return f.Info(), f.Close()
}

func changed(p string) error {
	return sandbox.Errorf(sandbox.Conflict, "path", "%q was changed meanwhile", p).WithHint("read it again")
}
