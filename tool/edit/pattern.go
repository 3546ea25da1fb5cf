package edit

import (
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	maxPattern  = 4096 // bytes of a pattern
	maxBraces   = 256  // alternatives that its braces stand for
	maxElements = 1024 // elements in all of them
)

// A Pattern matches paths relative to some directory:
//
//   - any characters but /
//     ?         one character but /
//     [a-z]     one of a class; [!a-z] and [^a-z] one that is not
//     {a,b/c}   alternatives, which may be nested and have slashes
//     **        as a whole element, any number of elements, none included
//     \c        the character c
//
// It has to match the whole path: "*.go" matches "a.go", not "b/a.go", which
// "**/*.go" matches as well. Whatever the pattern, matching takes time that is
// bounded by the product of its length and the path's.
type Pattern struct {
	alts [][]element
}

// An element is what stands between two slashes of a pattern.
type element struct {
	glob string
	many bool // **
	text bool // it has no wildcards: glob is the name itself
}

func (e element) matches(name string) bool {
	if e.text {
		return e.glob == name
	}
	return doublestar.MatchUnvalidated(e.glob, name)
}

// dotted reports whether e begins with a dot of its own, so that it may match
// a hidden name.
func (e element) dotted() bool {
	return strings.HasPrefix(e.glob, ".") || strings.HasPrefix(e.glob, `\.`)
}

// Compile returns the Pattern that s stands for. A pattern that is empty,
// malformed or absolute, that has an element "..", or is larger than 4096
// bytes or 256 alternatives is [sandbox.Invalid] with Field "pattern".
func Compile(s string) (*Pattern, error) { return compile("pattern", s) }

func compile(field, s string) (*Pattern, error) {
	bad := func(hint, format string, args ...any) error {
		return sandbox.Errorf(sandbox.Invalid, field, format, args...).WithHint("%s", hint)
	}
	switch {
	case s == "":
		return nil, bad("give one such as **/*.go", "the pattern is empty")
	case len(s) > maxPattern:
		return nil, bad("use a shorter one", "the pattern has %d bytes, more than %d", len(s), maxPattern)
	case strings.IndexByte(s, 0) >= 0:
		return nil, bad("remove it", "the pattern has a NUL byte")
	case !doublestar.ValidatePattern(s):
		return nil, bad(`close every [ and {, and write \[ for the character`, "%q is not a pattern", s)
	}
	whole, ok := expand(s)
	if !ok {
		return nil, bad("use several patterns", "the braces of the pattern stand for more than %d alternatives", maxBraces)
	}
	p, total := new(Pattern), 0
	for _, w := range whole {
		if strings.HasPrefix(w, "/") {
			return nil, bad("patterns are relative to the directory that is searched", "%q is absolute", s)
		}
		var alt []element
		for g := range strings.SplitSeq(w, "/") {
			switch {
			case g == "" || g == ".":
				continue
			case g == "..":
				return nil, bad("name the directory above as the one to search", "%q has an element ..", s)
			case !doublestar.ValidatePattern(g):
				return nil, bad(`keep classes within an element, and write \[ for the character`, "%q is not a pattern", s)
			case g == "**" && len(alt) > 0 && alt[len(alt)-1].many:
				continue
			}
			alt = append(alt, element{glob: g, many: g == "**", text: !strings.ContainsAny(g, `*?[]{}\`)})
		}
		if total += len(alt); total > maxElements {
			return nil, bad("use several patterns", "the pattern has more than %d elements", maxElements)
		}
		p.alts = append(p.alts, alt)
	}
	return p, nil
}

// expand returns what the braces of s stand for, unless that is too much.
func expand(s string) ([]string, bool) {
	from, to, alts := braces(s)
	if alts == nil {
		return []string{s}, true
	}
	var all []string
	for _, a := range alts {
		// The first part has no braces left: only what comes after it grows.
		more, ok := expand(a + s[to:])
		if !ok || len(all)+len(more) > maxBraces {
			return nil, false
		}
		for _, m := range more {
			all = append(all, s[:from]+m)
		}
	}
	return all, true
}

// braces finds the first group in s, which is s[from:to], and its parts.
func braces(s string) (from, to int, alts []string) {
	depth, begin := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '[':
			i = class(s, i)
		case '{':
			if depth == 0 {
				from, begin = i, i+1
			}
			depth++
		case ',':
			if depth == 1 {
				alts, begin = append(alts, s[begin:i]), i+1
			}
		case '}':
			if depth == 0 {
				continue
			}
			if depth--; depth == 0 {
				return from, i + 1, append(alts, s[begin:i])
			}
		}
	}
	return 0, 0, nil
}

// class returns the index of the bracket that closes the one at i, or i if
// none does.
func class(s string, i int) int {
	for j := i + 1; j < len(s); j++ {
		switch s[j] {
		case '\\':
			j++
		case ']':
			return j
		}
	}
	return i
}

// Match reports whether the relative path rel matches.
func (p *Pattern) Match(rel string) bool {
	f := p.front()
	for name := range strings.SplitSeq(rel, "/") {
		if f = p.step(f, name, true); len(f) == 0 {
			return false
		}
	}
	return p.accepts(f)
}

// A front is how far a path has come in a Pattern: every place where what has
// been matched may end. It is empty when nothing below the path can match.
type front []place

// A place is before an element of an alternative, or behind its last.
type place struct{ alt, at int }

// front returns where every path begins.
func (p *Pattern) front() front {
	var f front
	for alt := range p.alts {
		f = p.add(f, place{alt, 0})
	}
	return f
}

// add adds a place, and those that ** makes one with it.
func (p *Pattern) add(f front, at place) front {
	for {
		if !slices.Contains(f, at) {
			f = append(f, at)
		}
		if alt := p.alts[at.alt]; at.at == len(alt) || !alt[at.at].many {
			return f
		}
		at.at++
	}
}

// step returns where f is after one more element. Unless dots is set, a
// hidden name is matched only by an element that begins with a dot.
func (p *Pattern) step(f front, name string, dots bool) front {
	dots = dots || !hidden(name)
	var next front
	for _, at := range f {
		alt := p.alts[at.alt]
		if at.at == len(alt) {
			continue
		}
		switch e := alt[at.at]; {
		case e.many:
			if dots {
				next = p.add(next, at)
			}
		case (dots || e.dotted()) && e.matches(name):
			next = p.add(next, place{at.alt, at.at + 1})
		}
	}
	return next
}

// accepts reports whether a path that ends at f is matched.
func (p *Pattern) accepts(f front) bool {
	return slices.ContainsFunc(f, func(at place) bool { return at.at == len(p.alts[at.alt]) })
}

// leads reports whether something below a path at f can be matched.
func (p *Pattern) leads(f front) bool {
	return slices.ContainsFunc(f, func(at place) bool { return at.at < len(p.alts[at.alt]) })
}

// A filter is a list of patterns of which those without a slash match a name
// wherever it is, and those with one match the path below the root.
type filter struct {
	names []element
	paths []*Pattern
}

// maxFilter is how many patterns a list may have.
const maxFilter = 256

func compileFilter(field string, patterns []string) (filter, error) {
	var f filter
	if len(patterns) > maxFilter {
		return f, sandbox.Errorf(sandbox.Invalid, field, "there are %d patterns, more than %d", len(patterns), maxFilter).WithHint("use fewer")
	}
	for _, s := range patterns {
		p, err := compile(field, s)
		if err != nil {
			return f, err
		}
		if strings.Contains(s, "/") {
			f.paths = append(f.paths, p)
			continue
		}
		for _, alt := range p.alts {
			f.names = append(f.names, alt...)
		}
	}
	return f, nil
}

func (f filter) empty() bool { return len(f.names) == 0 && len(f.paths) == 0 }

func (f filter) matches(rel, name string) bool {
	return slices.ContainsFunc(f.names, func(e element) bool { return e.many || e.matches(name) }) ||
		slices.ContainsFunc(f.paths, func(p *Pattern) bool { return p.Match(rel) })
}
