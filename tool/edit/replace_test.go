package edit_test

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/edit"
)

func TestReplace(t *testing.T) {
	const text = "aaa\nfoo bar\nfoo\nlast foo"
	for _, c := range []struct {
		old, new string
		opt      edit.ReplaceOptions
		want     string
		count    int
		lines    []int64
	}{
		{"foo bar", "x", edit.ReplaceOptions{}, "aaa\nx\nfoo\nlast foo", 1, []int64{2}},
		{"foo\nlast", "", edit.ReplaceOptions{}, "aaa\nfoo bar\n foo", 1, []int64{3}},
		{"foo", "$1", edit.ReplaceOptions{Which: edit.Every}, "aaa\n$1 bar\n$1\nlast $1", 3, []int64{2, 3, 4}},
		{"foo", "x", edit.ReplaceOptions{Which: edit.First}, "aaa\nx bar\nfoo\nlast foo", 1, []int64{2}},
		{"foo", "x", edit.ReplaceOptions{Which: edit.Last}, "aaa\nfoo bar\nfoo\nlast x", 1, []int64{4}},
		{"aa", "b", edit.ReplaceOptions{}, "ba\nfoo bar\nfoo\nlast foo", 1, []int64{1}},
		{"none", "x", edit.ReplaceOptions{Optional: true}, text, 0, nil},
		{"none", "x", edit.ReplaceOptions{Optional: true, Regexp: true}, text, 0, nil},
		{`^(\w+) (\w+)$`, "$2 ${1}!$$", edit.ReplaceOptions{Regexp: true, Which: edit.Every}, "aaa\nbar foo!$\nfoo\nfoo last!$", 2, []int64{2, 4}},
		{`fo+`, "x", edit.ReplaceOptions{Regexp: true, Which: edit.Last}, "aaa\nfoo bar\nfoo\nlast x", 1, []int64{4}},
		{`fo+`, "x", edit.ReplaceOptions{Regexp: true, Which: edit.First}, "aaa\nx bar\nfoo\nlast foo", 1, []int64{2}},
		{`last.*`, "x", edit.ReplaceOptions{Regexp: true}, "aaa\nfoo bar\nfoo\nx", 1, []int64{4}},
		{`^`, "> ", edit.ReplaceOptions{Regexp: true, Which: edit.Every}, "> aaa\n> foo bar\n> foo\n> last foo", 4, []int64{1, 2, 3, 4}},
		{"foo", "foo", edit.ReplaceOptions{Which: edit.Every}, text, 3, []int64{2, 3, 4}},
	} {
		sb := newBox(t, map[string]string{"/w/f": text, "/w/l": "-> f"})
		ok(t, sb.Files().Chmod(t.Context(), "/w/f", 0o751))
		ok(t, sb.Files().Chown(t.Context(), "/w/f", "1234:77"))
		got, err := edit.Replace(t.Context(), sb, "/w/l", c.old, c.new, c.opt)
		if err != nil {
			t.Errorf("%q: %v", c.old, err)
			continue
		}
		if now := content(t, sb, "/w/f"); now != c.want || string(got.New) != c.want || string(got.Old) != text || got.Count != c.count {
			t.Errorf("%q: %d times, file %q, new %q, want %q", c.old, got.Count, now, got.New, c.want)
		}
		same(t, c.old, got.Lines, c.lines)
		info, err := sb.Files().Stat(t.Context(), "/w/f")
		if ok(t, err); info.Mode != 0o751 || info.UID != 1234 || info.GID != 77 || got.Version != edit.VersionOf(info) {
			t.Errorf("%q: the file became %+v, version %s", c.old, info, got.Version)
		}
		if l, err := sb.Files().Stat(t.Context(), "/w/l"); err != nil || l.Mode.Type() != fs.ModeSymlink {
			t.Errorf("%q: the link became %v, %v", c.old, l.Mode, err)
		}
	}
}

func TestReplaceRefusals(t *testing.T) {
	const text = "foo\nfoo\nbar\nfoo\n"
	sb := newBox(t, map[string]string{"/f": text, "/nul": "a\x00b", "/many": strings.Repeat("y\n", 500), "/big": strings.Repeat("z", 5<<20)})
	for _, c := range []struct {
		path, old, new string
		opt            edit.ReplaceOptions
		kind           sandbox.Kind
		field, says    string
	}{
		{"/f", "none", "", edit.ReplaceOptions{}, sandbox.Conflict, "old", "not in the file"},
		{"/f", "none", "", edit.ReplaceOptions{Which: edit.Every}, sandbox.Conflict, "old", "not in the file"},
		{"/f", "foo", "", edit.ReplaceOptions{}, sandbox.Conflict, "old", "3 times, in lines 1, 2, 4"},
		{"/f", "fo+", "", edit.ReplaceOptions{Regexp: true}, sandbox.Conflict, "old", "3 times, in lines 1, 2, 4"},
		{"/many", "y", "", edit.ReplaceOptions{}, sandbox.Conflict, "old", "500 times, in lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …"},
		{"/f", "", "x", edit.ReplaceOptions{}, sandbox.Invalid, "old", "empty"},
		{"/f", "(", "x", edit.ReplaceOptions{Regexp: true}, sandbox.Invalid, "old", "at byte 0"},
		{"/f", "foo", "x", edit.ReplaceOptions{Which: "some"}, sandbox.Invalid, "which", ""},
		{"/nul", "a", "x", edit.ReplaceOptions{}, sandbox.Invalid, "path", "NUL"},
		{"/big", "z", "x", edit.ReplaceOptions{Which: edit.First}, sandbox.Exhausted, "path", "4194304"},
		{"/f", "foo", strings.Repeat("x", 2<<20), edit.ReplaceOptions{Which: edit.Every}, sandbox.Exhausted, "path", ""},
		{"/f", "foo", strings.Repeat("x", 2<<20), edit.ReplaceOptions{Which: edit.Every, Regexp: true}, sandbox.Exhausted, "path", ""},
		{"/many", "", "", edit.ReplaceOptions{ChangeOptions: edit.ChangeOptions{MaxSize: -1}}, sandbox.Invalid, "old", ""},
		{"/many", "y", "", edit.ReplaceOptions{ChangeOptions: edit.ChangeOptions{MaxSize: -1}}, sandbox.Invalid, "max_size", ""},
		{"/f", "bar", "x", edit.ReplaceOptions{ChangeOptions: edit.ChangeOptions{IfUnchanged: "what"}}, sandbox.Invalid, "if_unchanged", ""},
		{"/none", "foo", "x", edit.ReplaceOptions{}, sandbox.NotExist, "path", ""},
		{"/tmp", "foo", "x", edit.ReplaceOptions{}, sandbox.Invalid, "path", ""},
		{"f", "foo", "x", edit.ReplaceOptions{}, sandbox.Invalid, "path", ""},
	} {
		_, err := edit.Replace(t.Context(), sb, c.path, c.old, c.new, c.opt)
		if e := wants(t, err, c.kind, c.field); !strings.Contains(e.Msg, c.says) || e.Hint == "" {
			t.Errorf("%q: %v", c.old, err)
		}
	}
	if got := content(t, sb, "/f"); got != text {
		t.Errorf("the file became %q", got)
	}
	c, err := edit.Replace(t.Context(), sb, "/nul", "a\x00", "x", edit.ReplaceOptions{ChangeOptions: edit.ChangeOptions{Binary: true}})
	if ok(t, err); string(c.New) != "xb" {
		t.Errorf("binary: %q", c.New)
	}
	c, err = edit.Replace(t.Context(), sb, "/big", "z", "x", edit.ReplaceOptions{Which: edit.Last, ChangeOptions: edit.ChangeOptions{MaxSize: 5 << 20}})
	if ok(t, err); c.New[5<<20-1] != 'x' || c.New[5<<20-2] != 'z' {
		t.Error("the last of many is another")
	}
}

func TestChangesSeeOthers(t *testing.T) {
	sb := newBox(t, map[string]string{"/f": "one two"})
	info, err := sb.Files().Stat(t.Context(), "/f")
	ok(t, err)
	for _, v := range []edit.Version{edit.VersionOf(info), edit.HashOf([]byte("one two"))} {
		put(t, sb, map[string]string{"/f": "one two"})
		now, err := sb.Files().Stat(t.Context(), "/f")
		ok(t, err)
		if strings.HasPrefix(string(v), "stat:") {
			v = edit.VersionOf(now)
		}
		opt := edit.ReplaceOptions{ChangeOptions: edit.ChangeOptions{IfUnchanged: v}}
		_, err = edit.Replace(t.Context(), sb, "/f", "one", "1", opt)
		ok(t, err)
		_, err = edit.Replace(t.Context(), sb, "/f", "two", "2", opt)
		wants(t, err, sandbox.Conflict, "path")
		_, err = edit.Insert(t.Context(), sb, "/f", 0, "x", opt.ChangeOptions)
		wants(t, err, sandbox.Conflict, "path")
		if got := content(t, sb, "/f"); got != "1 two" {
			t.Errorf("the file is %q", got)
		}
	}

	// Somebody writes between our reading and our writing.
	opens := 0
	busy := odd{Sandbox: sb, open: func(context.Context, string) error {
		if opens++; opens == 2 {
			put(t, sb, map[string]string{"/f": "theirs"})
		}
		return nil
	}}
	_, err = edit.Replace(t.Context(), busy, "/f", "two", "2", edit.ReplaceOptions{})
	wants(t, err, sandbox.Conflict, "path")
	if got := content(t, sb, "/f"); got != "theirs" {
		t.Errorf("the file is %q", got)
	}
}

func TestChangesTakeTurns(t *testing.T) {
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "<%d>\n", i)
	}
	synctest.Test(t, func(t *testing.T) {
		sb := newBox(t, map[string]string{"/f": text.String()})
		slow := odd{Sandbox: sb, open: func(context.Context, string) error { time.Sleep(time.Millisecond); return nil }}
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				// By other spellings too.
				p := []string{"/f", "//f", "/tmp/../f"}[i%3]
				if _, err := edit.Replace(t.Context(), slow, p, fmt.Sprintf("<%d>\n", i), fmt.Sprintf("(%d)\n", i), edit.ReplaceOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := content(t, sb, "/f"); strings.Count(got, "(") != 40 {
			t.Errorf("some changes are lost: %q", got)
		}
	})

	// Who waits can be called off.
	sb := newBox(t, map[string]string{"/f": "(1) (2)"})
	var wg sync.WaitGroup
	held, free := make(chan bool), make(chan bool)
	slow := odd{Sandbox: sb, open: func(context.Context, string) error { held <- true; <-free; return nil }}
	wg.Go(func() { edit.Replace(t.Context(), slow, "/f", "(1)", "[1]", edit.ReplaceOptions{}) })
	<-held
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := edit.Replace(ctx, sb, "/f", "(2)", "[2]", edit.ReplaceOptions{}); err != context.Canceled {
		t.Errorf("waiting with a context that ended: %v", err)
	}
	free <- true
	<-held
	free <- true
	wg.Wait()
}

func TestInsert(t *testing.T) {
	for _, c := range []struct {
		before, text string
		line         int64
		want         string
		count        int
	}{
		{"a\nb\n", "x", 0, "x\na\nb\n", 1},
		{"a\nb\n", "x\ny\n", 1, "a\nx\ny\nb\n", 2},
		{"a\nb\n", "x", 2, "a\nb\nx\n", 1},
		{"a\nb", "x", 2, "a\nb\nx\n", 1},
		{"", "x", 0, "x\n", 1},
		{"a", "", 1, "a", 0},
	} {
		sb := newBox(t, map[string]string{"/f": c.before})
		got, err := edit.Insert(t.Context(), sb, "/f", c.line, c.text, edit.ChangeOptions{})
		if ok(t, err); content(t, sb, "/f") != c.want || got.Count != c.count || c.count > 0 && got.Lines[0] != c.line+1 {
			t.Errorf("%q after %d of %q: got %q, %d lines", c.text, c.line, c.before, content(t, sb, "/f"), got.Count)
		}
	}
	sb := newBox(t, map[string]string{"/f": "a\nb\n"})
	for _, n := range []int64{-1, 3, 1 << 40} {
		_, err := edit.Insert(t.Context(), sb, "/f", n, "x", edit.ChangeOptions{})
		if e := wants(t, err, sandbox.Invalid, "line"); e.Hint != "give 0 to 2" && n > 0 {
			t.Errorf("%d: %v", n, err)
		}
	}
	_, err := edit.Insert(t.Context(), sb, "/f", 0, strings.Repeat("x", 100), edit.ChangeOptions{MaxSize: 50})
	wants(t, err, sandbox.Exhausted, "path")
}
