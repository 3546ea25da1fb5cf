package profile

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// TestResolve: names before patterns, the most telling pattern first, whatever
// the order in which they were given.
func TestResolve(t *testing.T) {
	rules := []Rule{
		{"*", "any"},
		{"python:*", "a python"},
		{"*python*", "something with python"},
		{"python:3.*", "a python 3"},
		{"python:3.*-slim", "a slim python 3"},
		{"python:3.12", "dir:/python312"},
		{"rockchin/*", ""},
		{"*:3.12", "a 3.12"},
		{"*:3.13", "a 3.13"},
		{"*:3.13-alpine", "an alpine"},
		{"zz*b*", "a late one"},
		{"zz*a*", "an early one"},
	}
	for range 20 {
		rand.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		images, err := NewImages(rules...)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{
			"python:3.12":                     "dir:/python312",
			"python:3.13":                     "a python 3",
			"python:3.13-slim":                "a slim python 3",
			"python:3.13-alpine":              "a python 3",
			"zzba":                            "an early one",
			"python:2.7":                      "a python",
			"python":                          "something with python",
			"docker.io/library/python":        "something with python",
			"ghcr.io/a/b:3.12":                "a 3.12",
			"rockchin/langbot-sandbox:latest": "",
			"base":                            "any",
		} {
			if got, ok := images.Resolve(name); !ok || got != want {
				t.Errorf("%s stands for %q, %v, want %q", name, got, ok, want)
			}
		}
		if got, ok := images.Resolve(""); ok || got != "" {
			t.Errorf("no image stands for %q", got)
		}
	}
}

func TestResolveNothing(t *testing.T) {
	some, err := NewImages(Rule{"python", "host"}, Rule{"node:*", "host"})
	if err != nil {
		t.Fatal(err)
	}
	for _, images := range []*Images{nil, {}, some} {
		for _, name := range []string{"", "python:latest", "Python", "node", "xnode:1"} {
			if got, ok := images.Resolve(name); ok || got != "" {
				t.Errorf("%q stands for %q", name, got)
			}
		}
	}
}

func TestNewImagesRefuses(t *testing.T) {
	for _, rules := range [][]Rule{
		{{"", "host"}},
		{{"a\nb", "host"}},
		{{"a", "h\x00"}},
		{{strings.Repeat("a", sandbox.MaxPath+1), "host"}},
		{{"a", "x"}, {"a", "y"}},
		{{"a*", "x"}, {"b", "x"}, {"a*", "x"}},
	} {
		if _, err := NewImages(rules...); sandbox.KindOf(err) != sandbox.Invalid || !strings.HasPrefix(err.Error(), "images: ") {
			t.Errorf("%.40q: got %v", rules, err)
		}
	}
}

// FuzzFits compares patterns with regular expressions.
func FuzzFits(f *testing.F) {
	for _, p := range []string{"", "*", "a*b", "**", "*a*b*", "a.b"} {
		f.Add(p, "aab/b")
		f.Add(p, "")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		re, err := regexp.Compile("(?s)^" + strings.Join(parts, ".*") + "$")
		if err != nil || !isText(pattern, name) {
			t.Skip("no text")
		}
		if got, want := fits(pattern, name), re.MatchString(name); got != want {
			t.Errorf("%q fits %q: %v, want %v", pattern, name, got, want)
		}
	})
}

// isText reports whether all are UTF-8: a regular expression sees nothing else.
func isText(all ...string) bool {
	return !slices.ContainsFunc(all, func(s string) bool { return strings.ToValidUTF8(s, "") != s })
}
