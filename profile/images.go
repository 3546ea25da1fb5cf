package profile

import (
	"cmp"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A Rule says what stands for the images of some names.
type Rule struct {
	// Pattern is a name, such as "python:3.12", or one with stars. A star
	// stands for any text, nothing and slashes included, since "*" shall fit
	// "docker.io/library/python" too; no other character is special.
	Pattern string

	// Image is what they get, in the backend's terms; "" is the backend's
	// default.
	Image string
}

// Images says what stands for the images that clients name. The zero value, and
// a nil one, know none.
type Images struct {
	exact map[string]string
	globs []Rule // the most telling first
}

// NewImages returns what rules say, in whatever order they come: a name of its
// own goes before patterns that fit; of these the one with the longest text
// before its first star, then the one with the most text besides its stars,
// then the first in the alphabet. An Invalid error has the Field "images".
func NewImages(rules ...Rule) (*Images, error) {
	all := &Images{exact: make(map[string]string)}
	for _, r := range rules {
		if r.Pattern == "" {
			return nil, sandbox.Errorf(sandbox.Invalid, "images", "a name is empty").WithHint("use a name such as python:3.12, or * for any")
		}
		for _, name := range []string{r.Pattern, r.Image} {
			s := sandbox.Spec{Image: name}
			if s.Check() != nil {
				return nil, sandbox.Errorf(sandbox.Invalid, "images", "%.64q is not the name of an image", name)
			}
		}
		same := func(g Rule) bool { return g.Pattern == r.Pattern }
		if _, ok := all.exact[r.Pattern]; ok || slices.ContainsFunc(all.globs, same) {
			return nil, sandbox.Errorf(sandbox.Invalid, "images", "%.64q is there twice", r.Pattern)
		}
		if strings.Contains(r.Pattern, "*") {
			all.globs = append(all.globs, r)
		} else {
			all.exact[r.Pattern] = r.Image
		}
	}
	slices.SortFunc(all.globs, func(a, b Rule) int {
		return cmp.Or(
			cmp.Compare(strings.IndexByte(b.Pattern, '*'), strings.IndexByte(a.Pattern, '*')),
			cmp.Compare(letters(b.Pattern), letters(a.Pattern)),
			cmp.Compare(a.Pattern, b.Pattern),
		)
	})
	return all, nil
}

// letters returns how many bytes of pattern are no stars.
func letters(pattern string) int { return len(pattern) - strings.Count(pattern, "*") }

// Resolve returns what stands for the image that a client called name, and
// whether anything does. It is text that is compared: "python" is neither
// "python:latest" nor "docker.io/library/python". For "", no image, nothing
// stands, and what it returns is not looked up again.
func (i *Images) Resolve(name string) (string, bool) {
	if i == nil || name == "" {
		return "", false
	}
	if image, ok := i.exact[name]; ok {
		return image, true
	}
	for _, g := range i.globs {
		if fits(g.Pattern, name) {
			return g.Image, true
		}
	}
	return "", false
}

// fits reports whether name is what pattern says. When a text behind a star
// does not fit, only the last star needs to take more: what those before it
// took was as little as possible.
func fits(pattern, name string) bool {
	p, n := 0, 0
	star, taken := -1, 0 // the last star, and where what it took ends
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			taken++
			p, n = star+1, taken
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
