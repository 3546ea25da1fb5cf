package edit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/edit"
)

func hits(m edit.Matches) []string {
	s := []string{}
	for _, h := range m.Matches {
		s = append(s, fmt.Sprintf("%s:%d:%s", h.Rel, h.Line, h.Text))
	}
	return s
}

func TestGrep(t *testing.T) {
	sb := newBox(t, map[string]string{
		"/w/a.go":       "package a\n\nfunc Foo() {}\r\nfunc bar() { Foo() }",
		"/w/sub/b.py":   "def foo():\n    return 'FOO'\n",
		"/w/sub/c.md":   "nothing\n",
		"/w/.hidden":    "foo\n",
		"/w/bin":        "foo\x00\nfoo\n",
		"/w/late":       strings.Repeat("y\n", 5000) + "\x00foo\n",
		"/w/link":       "-> a.go",
		"/w/loop":       "-> .",
		"/w/bad\xff\nx": "foo \xff\xfe\n",
		"/w/empty":      "",
	})
	for _, c := range []struct {
		pattern string
		opt     edit.GrepOptions
		want    []string
	}{
		{"foo", edit.GrepOptions{}, []string{"bad\xff\nx:1:foo \xff\xfe", "late:5001:\x00foo", "sub/b.py:1:def foo():"}},
		{"Foo", edit.GrepOptions{}, []string{"a.go:3:func Foo() {}", "a.go:4:func bar() { Foo() }"}},
		{"foo", edit.GrepOptions{IgnoreCase: true, Include: []string{"*.go", "sub/*.py"}}, []string{"a.go:3:func Foo() {}", "a.go:4:func bar() { Foo() }", "sub/b.py:1:def foo():", "sub/b.py:2:    return 'FOO'"}},
		{"FOO()", edit.GrepOptions{IgnoreCase: true, Literal: true}, []string{"a.go:3:func Foo() {}", "a.go:4:func bar() { Foo() }", "sub/b.py:1:def foo():"}},
		{"Foo()", edit.GrepOptions{Literal: true}, []string{"a.go:3:func Foo() {}", "a.go:4:func bar() { Foo() }"}},
		{`^func \w+\(\) \{\}$`, edit.GrepOptions{}, []string{"a.go:3:func Foo() {}"}},
		{"^$", edit.GrepOptions{Include: []string{"*.go", "*.md"}}, []string{"a.go:2:"}},
		{"(?i)return 'foo'|nothing", edit.GrepOptions{}, []string{"sub/b.py:2:    return 'FOO'", "sub/c.md:1:nothing"}},
		{"foo", edit.GrepOptions{Scope: edit.Scope{Hidden: true, Depth: 1, Ignore: []string{"bad*", "late"}}}, []string{".hidden:1:foo"}},
		{`\A.*\z`, edit.GrepOptions{Include: []string{"c.md"}}, []string{"c.md:1:nothing"}},
		{"\xff", edit.GrepOptions{Literal: true}, []string{"bad\xff\nx:1:foo \xff\xfe"}},
		{"nowhere", edit.GrepOptions{}, []string{}},
	} {
		m, err := edit.Grep(t.Context(), sb, "/w", c.pattern, c.opt)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		if len(c.want) == 1 && strings.HasPrefix(c.want[0], "c.md") {
			c.want[0] = "sub/" + c.want[0]
		}
		same(t, c.pattern, hits(m), c.want)
		if m.Cut != "" || m.Long != 0 {
			t.Errorf("%q: cut %q, long %d", c.pattern, m.Cut, m.Long)
		}
	}
	m, err := edit.Grep(t.Context(), sb, "/w", "foo", edit.GrepOptions{MaxFileSize: 1000})
	if ok(t, err); m.Binary != 1 || m.Large != 1 || m.Matched != 2 || m.Searched != 5 {
		t.Errorf("%+v", m)
	}

	// A root that is a file, or leads to one, is searched whatever its name.
	for _, root := range []string{"/w/.hidden", "/w/sub/b.py", "/w/link"} {
		m, err := edit.Grep(t.Context(), sb, root, "[fF]oo", edit.GrepOptions{Include: []string{"*.none"}})
		if ok(t, err); len(m.Matches) == 0 || m.Matches[0].Path != root || m.Matches[0].Rel != "" {
			t.Errorf("%s: %+v", root, m)
		}
	}
	m, err = edit.Grep(t.Context(), sb, "/w/loop", "foo", edit.GrepOptions{})
	if ok(t, err); len(m.Matches) != 3 || m.Matches[2].Path != "/w/loop/sub/b.py" {
		t.Errorf("through a link: %v", m.Matches)
	}
	_, err = edit.Grep(t.Context(), sb, "/dev/null", "foo", edit.GrepOptions{})
	wants(t, err, sandbox.Invalid, "path")
	_, err = edit.Grep(t.Context(), sb, "/none", "foo", edit.GrepOptions{})
	wants(t, err, sandbox.NotExist, "path")
}

func TestGrepRefusals(t *testing.T) {
	sb := newBox(t, nil)
	for _, c := range []struct {
		pattern, says, hint string
		opt                 edit.GrepOptions
	}{
		{pattern: "", says: "empty"},
		{pattern: strings.Repeat("x", 5000), says: "5000 bytes"},
		{pattern: "ab(cd", says: "missing closing ) at byte 0"},
		{pattern: "abc[z-a]", says: `at byte 4: "z-a"`},
		{pattern: `x(?=y)`, says: "at byte 1", hint: "RE2"},
		{pattern: `(x)\1`, says: `at byte 3: "\\1"`, hint: "RE2"},
		{pattern: strings.Repeat("(", 1500), says: "at byte"},
		{pattern: "((a{30}){30}){30}", says: ""},
		{pattern: `(abcdefgh){900}`, says: "too large"},
		{pattern: "a\nb", opt: edit.GrepOptions{Literal: true}, says: "end of line"},
	} {
		_, err := edit.Grep(t.Context(), sb, "/workspace", c.pattern, c.opt)
		e := wants(t, err, sandbox.Invalid, "pattern")
		if !strings.Contains(e.Msg, c.says) || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("%.20q: %v", c.pattern, err)
		}
	}
	for _, c := range []struct {
		opt   edit.GrepOptions
		field string
	}{
		{edit.GrepOptions{MaxResults: -1}, "max_results"}, {edit.GrepOptions{MaxPerFile: -1}, "max_per_file"},
		{edit.GrepOptions{MaxFiles: -1}, "max_files"}, {edit.GrepOptions{MaxFileSize: -1}, "max_file_size"},
		{edit.GrepOptions{MaxLine: -1}, "max_line"}, {edit.GrepOptions{MaxBytes: -1}, "max_bytes"},
		{edit.GrepOptions{Before: 21}, "before"}, {edit.GrepOptions{After: -1}, "after"},
		{edit.GrepOptions{Include: []string{"{"}}, "include"},
	} {
		_, err := edit.Grep(t.Context(), sb, "/workspace", "x", c.opt)
		wants(t, err, sandbox.Invalid, c.field)
	}
}

func TestGrepBounds(t *testing.T) {
	long := strings.Repeat("é", 3000)
	sb := newBox(t, map[string]string{
		"/w/a": strings.Repeat("hit\n", 50), "/w/b": strings.Repeat("hit\n", 50),
		"/l/long": "x" + long + "\n", "/l/huge": strings.Repeat("z", 300<<10) + "tail\nnext tail\n",
	})
	for _, c := range []struct {
		opt   edit.GrepOptions
		cut   edit.Cut
		n     int
		more  int
		last  string
		found int
	}{
		{edit.GrepOptions{}, "", 100, 0, "b:50:hit", 2},
		{edit.GrepOptions{MaxResults: 60}, edit.CutMatches, 60, 0, "b:10:hit", 2},
		{edit.GrepOptions{MaxResults: 100}, "", 100, 0, "b:50:hit", 2},
		{edit.GrepOptions{MaxResults: 50}, edit.CutMatches, 50, 0, "a:50:hit", 2},
		{edit.GrepOptions{MaxPerFile: 2}, "", 4, 2, "b:2:hit", 2},
		{edit.GrepOptions{MaxPerFile: 2, MaxResults: 3}, edit.CutMatches, 3, 1, "b:1:hit", 2},
		{edit.GrepOptions{MaxBytes: 30}, edit.CutBytes, 10, 0, "a:10:hit", 1},
		{edit.GrepOptions{MaxBytes: 3*50 + 30}, edit.CutBytes, 60, 0, "b:10:hit", 2},
	} {
		m, err := edit.Grep(t.Context(), sb, "/w", "hit", c.opt)
		if ok(t, err); m.Cut != c.cut || len(m.Matches) != c.n || m.More != c.more || m.Matched != c.found {
			t.Errorf("%+v: cut %q, %d matches in %d files, more in %d", c.opt, m.Cut, len(m.Matches), m.Matched, m.More)
		} else if h := hits(m); h[len(h)-1] != c.last {
			t.Errorf("%+v: ends with %q", c.opt, h[len(h)-1])
		}
	}
	m, err := edit.Grep(t.Context(), sb, "/l", "^x|tail|zz", edit.GrepOptions{MaxLine: 100})
	ok(t, err)
	if len(m.Matches) != 3 || m.Long != 1 || m.Matches[1].Line != 2 || m.Matches[1].Text != "next tail" ||
		!m.Matches[0].Cut || len(m.Matches[0].Text) != 100 ||
		!m.Matches[2].Cut || m.Matches[2].Text != "x"+strings.Repeat("é", 49) {
		t.Errorf("%+v", m)
	}
}

// A file that has grown since it was listed is as large as it is.
func TestGrepSeesFilesGrow(t *testing.T) {
	plain := newBox(t, map[string]string{"/w/f": "x\n"})
	sb := odd{Sandbox: plain, open: func(context.Context, string) error {
		put(t, plain, map[string]string{"/w/f": strings.Repeat("x\n", 1000)})
		return nil
	}}
	for _, multi := range []bool{false, true} {
		m, err := edit.Grep(t.Context(), sb, "/w", "x", edit.GrepOptions{MaxFileSize: 1000, Multiline: multi})
		if ok(t, err); m.Large != 1 || len(m.Matches) != 0 {
			t.Errorf("%+v", m)
		}
		put(t, plain, map[string]string{"/w/f": "x\n"})
	}
}

func TestGrepContext(t *testing.T) {
	var b strings.Builder
	for i := 1; i <= 30; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	sb := newBox(t, map[string]string{"/w/f": b.String(), "/w/g": "line 5"})
	for _, multi := range []bool{false, true} {
		m, err := edit.Grep(t.Context(), sb, "/w", `line (1|4|5|30)$`, edit.GrepOptions{Before: 2, After: 3, Multiline: multi})
		if ok(t, err); len(m.Matches) != 5 {
			t.Fatalf("%+v", m)
		}
		for i, want := range [][2][]string{
			{{}, {"line 2", "line 3", "line 4"}},
			{{"line 2", "line 3"}, {"line 5", "line 6", "line 7"}},
			{{"line 3", "line 4"}, {"line 6", "line 7", "line 8"}},
			{{"line 28", "line 29"}, {}},
			{{}, {}},
		} {
			same(t, fmt.Sprintf("before %d", i), m.Matches[i].Before, want[0])
			same(t, fmt.Sprintf("after %d", i), m.Matches[i].After, want[1])
		}
		// The last match that is given has the lines after it all the same.
		m, err = edit.Grep(t.Context(), sb, "/w/f", `line`, edit.GrepOptions{After: 3, MaxResults: 2, Multiline: multi})
		if ok(t, err); m.Cut != edit.CutMatches || len(m.Matches) != 2 {
			t.Fatalf("%+v", m)
		}
		same(t, "after the last", m.Matches[1].After, []string{"line 3", "line 4", "line 5"})
	}
}

func TestGrepMultiline(t *testing.T) {
	sb := newBox(t, map[string]string{"/w/f": "a {\n  b\n}\nc\na {\n}\n", "/w/crlf": "one\r\ntwo\r\n"})
	m, err := edit.Grep(t.Context(), sb, "/w/f", `\{[^}]*\}`, edit.GrepOptions{Multiline: true})
	ok(t, err)
	same(t, "regexp", hits(m), []string{":1:a {\n  b\n}", ":5:a {\n}"})
	m, err = edit.Grep(t.Context(), sb, "/w/f", "}\nc", edit.GrepOptions{Multiline: true, Literal: true})
	ok(t, err)
	same(t, "literal", hits(m), []string{":3:}\nc"})
	m, err = edit.Grep(t.Context(), sb, "/w/f", `^`, edit.GrepOptions{Multiline: true})
	if ok(t, err); len(m.Matches) != 6 || m.Matches[5].Line != 6 {
		t.Errorf("%v", hits(m))
	}
	m, err = edit.Grep(t.Context(), sb, "/w/crlf", `two`, edit.GrepOptions{Multiline: true})
	ok(t, err)
	same(t, "crlf", hits(m), []string{":2:two"})
}

// Grep agrees with trying every line, whatever it does to be quick.
func TestGrepAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	words := []string{"foo", "Foo", "BAR", "bar baz", "K", "\u212a", "s", "ſ", "x.y", "\xff", "é", "É", "(", "\t", "", "aaa", "func main()", "\r"}
	text := func(lines int) string {
		var b strings.Builder
		for range lines {
			for range r.IntN(6) {
				b.WriteString(words[r.IntN(len(words))])
			}
			b.WriteString("\n")
		}
		return strings.TrimSuffix(b.String(), "\n")
	}
	// More than a block, so that lines lie across two of them.
	sb := newBox(t, map[string]string{"/w/small": text(20), "/w/large": text(20_000)})
	if n := len(content(t, sb, "/w/large")); n < 140<<10 {
		t.Fatalf("large has only %d bytes", n)
	}
	total := 0
	for i, pattern := range []string{
		"foo", "(?i)foo", "bar baz$", "^foo", "k", "s", "[kK]+foo", "x.y", `x\.y`, "é", `(foo|bar) ?baz`, `\bfoo\b`, `a{3}b`, "(func)+ main", `\(`, `^\s*$`, "fo+.*bar", "\ufffd", `\x{fffd}x`, `(?:foo)?K`, `foo\r?`,
	} {
		for _, fold := range []bool{false, true} {
			for _, literal := range []bool{false, true} {
				expr := pattern
				if literal {
					expr = regexp.QuoteMeta(expr)
				}
				if fold {
					expr = "(?i)" + expr
				}
				re := regexp.MustCompile(expr)
				for _, name := range []string{"/w/small", "/w/large"} {
					if name == "/w/large" && fold == (i%2 == 0) {
						continue // half of them will do
					}
					var want []int64
					all := content(t, sb, name)
					for i, line := range strings.Split(all, "\n") {
						line = strings.TrimSuffix(line, "\r")
						if literal && !fold && strings.Contains(line, pattern) || !(literal && !fold) && re.MatchString(line) {
							want = append(want, int64(i+1))
						}
					}
					if strings.HasSuffix(all, "\n") && len(want) > 0 && want[len(want)-1] == int64(strings.Count(all, "\n")+1) {
						want = want[:len(want)-1] // what Split sees after the last end is no line
					}
					m, err := edit.Grep(t.Context(), sb, name, pattern, edit.GrepOptions{IgnoreCase: fold, Literal: literal, MaxResults: 1 << 20, MaxBytes: 1 << 30})
					ok(t, err)
					var got []int64
					for _, h := range m.Matches {
						got = append(got, h.Line)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%q fold %v literal %v in %s: got %d lines, want %d", pattern, fold, literal, name, len(got), len(want))
					}
					total += len(want)
				}
			}
		}
	}
	if total < 20_000 {
		t.Errorf("only %d matches: this test tries too little", total)
	}
}

// A pattern that is costly even for RE2 ends with the time given, or near it.
func TestGrepEndsWithItsTime(t *testing.T) {
	sb := newBox(t, map[string]string{"/w/f": strings.Repeat(strings.Repeat("a", 4000)+"\n", 100)})
	for pattern, multi := range map[string]bool{`(.*a){600}x`: false, `(?s)a(.*z)?`: true} {
		// Without a look at the clock each takes far longer.
		m, err := edit.Grep(t.Context(), sb, "/w", pattern, edit.GrepOptions{Multiline: multi, Scope: edit.Scope{Time: 50 * time.Millisecond}})
		if ok(t, err); m.Cut != edit.CutTime {
			t.Errorf("%s: cut %q", pattern, m.Cut)
		}
	}
	m, err := edit.Grep(t.Context(), sb, "/w", "(a*)*(a|aa)*(x+x+)+y", edit.GrepOptions{})
	if ok(t, err); m.Cut != "" || m.Searched != 1 {
		t.Errorf("%+v", m)
	}
}
