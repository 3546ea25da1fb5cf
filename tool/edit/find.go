package edit

import (
	"bytes"
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	maxProgram = 4096      // instructions of a compiled regular expression
	maxWork    = 16 << 20  // instructions times bytes that may pass without a look at the clock
	maxWhole   = 256 << 20 // the same, for a file that is searched as a whole
)

// A finder finds a pattern in text. It is safe for concurrent use.
//
// Looking for a piece of text is far quicker than a regular expression, so a
// finder looks for one that every match has, where there is one, and tries the
// expression only on lines that have it.
type finder struct {
	re      *regexp.Regexp // nil if need is all there is to find
	need    []byte         // part of every match; nil if nothing is
	fold    bool           // need is in small letters, ASCII, and capitals are the same
	size    int            // instructions of re; 1 if that is nil
	maxLine int            // bytes of a line that are searched, so that each takes bounded time
}

func newFinder(pattern string, opt GrepOptions) (*finder, error) {
	bad := func(format string, args ...any) *sandbox.Error {
		return sandbox.Errorf(sandbox.Invalid, "pattern", format, args...)
	}
	switch {
	case pattern == "":
		return nil, bad("the pattern is empty").WithHint("give what to look for")
	case len(pattern) > maxPattern:
		return nil, bad("the pattern has %d bytes, more than %d", len(pattern), maxPattern).WithHint("use a shorter one")
	case !opt.Multiline && opt.Literal && strings.Contains(pattern, "\n"):
		return nil, bad("no line has an end of line in it").WithHint("ask for multiline, or look for one of the lines")
	}
	f := &finder{size: 1, maxLine: 64 << 10}
	if opt.Literal {
		f.need = []byte(pattern)
		if !opt.IgnoreCase {
			return f, nil
		}
		pattern = regexp.QuoteMeta(pattern)
	}
	re, size, err := compileRegexp(pattern, opt.IgnoreCase, opt.Multiline)
	if err != nil {
		return nil, err
	}
	f.re, f.size = re, size
	f.maxLine = min(f.maxLine, maxWork/size)
	f.need, f.fold = required(pattern, opt.IgnoreCase)
	return f, nil
}

// compileRegexp compiles a regular expression of RE2, and returns the size of
// the program.
func compileRegexp(pattern string, ignoreCase, multiline bool) (*regexp.Regexp, int, error) {
	flags := syntax.Perl
	prefix := ""
	if ignoreCase {
		flags, prefix = flags|syntax.FoldCase, "(?i)"
	}
	if multiline {
		flags, prefix = flags&^syntax.OneLine, prefix+"(?m)"
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, 0, badRegexp(pattern, err)
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, 0, badRegexp(pattern, err)
	}
	if len(prog.Inst) > maxProgram {
		return nil, 0, sandbox.Errorf(sandbox.Invalid, "pattern", "the regular expression is too large: %d steps, more than %d", len(prog.Inst), maxProgram).WithHint("repeat less, or use several")
	}
	re, err := regexp.Compile(prefix + pattern)
	if err != nil {
		return nil, 0, badRegexp(pattern, err)
	}
	return re, len(prog.Inst), nil
}

// badRegexp says what is wrong with a regular expression, and where.
func badRegexp(pattern string, err error) error {
	var e *syntax.Error
	if !errors.As(err, &e) {
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "pattern", Msg: "the regular expression is malformed", Err: err}
	}
	hint := `mend it, or look for literal text; \ makes a character literal`
	if e.Code == syntax.ErrInvalidPerlOp || e.Code == syntax.ErrInvalidEscape {
		hint = "the syntax is RE2's, which has no look-around and no back references"
	}
	where, _ := clip([]byte(e.Expr), 64)
	return sandbox.Errorf(sandbox.Invalid, "pattern", "%s at byte %d: %q", e.Code, max(0, strings.Index(pattern, e.Expr)), where).WithHint("%s", hint)
}

// required returns text that every match of a regular expression has, the
// longest that is easily found, and whether it is in small letters and stands
// for capitals too.
func required(pattern string, ignoreCase bool) (text []byte, fold bool) {
	flags := syntax.Perl
	if ignoreCase {
		flags |= syntax.FoldCase
	}
	tree, err := syntax.Parse(pattern, flags)
	if err != nil {
		return nil, false
	}
	return literal(tree)
}

func literal(re *syntax.Regexp) (text []byte, fold bool) {
	switch re.Op {
	case syntax.OpLiteral:
		fold = re.Flags&syntax.FoldCase != 0
		for _, r := range re.Rune {
			// Bytes that are not UTF-8 match U+FFFD, and the folding of
			// other letters may change their length.
			if r == utf8.RuneError || fold && r >= utf8.RuneSelf {
				return nil, false
			}
			text = utf8.AppendRune(text, r)
		}
		if fold {
			text = bytes.ToLower(text)
		}
		return text, fold
	case syntax.OpCapture, syntax.OpPlus:
		return literal(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return literal(re.Sub[0])
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if t, f := literal(sub); len(t) > len(text) {
				text, fold = t, f
			}
		}
		return text, fold
	}
	return nil, false
}

// The letters outside ASCII that are the same as k and s but for their case.
var (
	kelvin = []byte("\u212a")
	longS  = []byte("\u017f")
)

// candidates returns a function that gives the first place in data, from at
// on, where a match can be, or -1. small is room for as many bytes.
func (f *finder) candidates(data, small []byte) func(at int) int {
	if len(f.need) == 0 {
		return func(at int) int { return at }
	}
	if f.fold {
		if bytes.Contains(data, kelvin) || bytes.Contains(data, longS) {
			return func(at int) int { return at }
		}
		for i, c := range data {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			small[i] = c
		}
		data = small[:len(data)]
	}
	return func(at int) int {
		i := bytes.Index(data[at:], f.need)
		if i < 0 {
			return -1
		}
		return at + i
	}
}

// line reports whether a line has a match.
func (f *finder) line(line []byte) bool {
	if f.re == nil {
		return bytes.Contains(line, f.need)
	}
	if len(f.need) > 0 && !f.fold && !bytes.Contains(line, f.need) {
		return false
	}
	return f.re.Match(line)
}

// in returns where the first match in data is that begins at or after at,
// which is the begin of a line; nil if there is none.
func (f *finder) in(data []byte, at int) []int {
	if f.re == nil {
		i := bytes.Index(data[at:], f.need)
		if i < 0 {
			return nil
		}
		return []int{at + i, at + i + len(f.need)}
	}
	loc := f.re.FindIndex(data[at:])
	if loc == nil {
		return nil
	}
	return []int{at + loc[0], at + loc[1]}
}

// clip returns the first max bytes of b, less what is left of a character that
// would be cut, and whether that is not all.
func clip(b []byte, max int) (string, bool) {
	if len(b) <= max {
		return string(b), false
	}
	return string(whole(b[:max])), true
}
