package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestStaysWithin(t *testing.T) {
	for _, tc := range []struct {
		at, target string
		want       bool
	}{
		{"link", "file", true},
		{"link", "./a/b", true},
		{"a/link", "../b", true},
		{"a/b/link", "../../c", true},
		{"link", "", false},
		{"link", "/etc/passwd", false},
		{"link", "..", false},
		{"link", "../x", false},
		{"a/link", "../../x", false},
		{"a/link", "b/../../x", false},
		{"x/y/link", "s/../..", false}, // s may be a link itself
		{"link", "a/../b", false},
	} {
		if got := staysWithin(tc.at, tc.target); got != tc.want {
			t.Errorf("%s -> %s: got %v", tc.at, tc.target, got)
		}
	}
}

// FuzzStaysWithin makes the links that are allowed, and asks the system where
// they lead.
func FuzzStaysWithin(f *testing.F) {
	f.Add("a/link", "../b", "b/c", "../..")
	f.Fuzz(func(t *testing.T, at1, target1, at2, target2 string) {
		root := t.TempDir()
		top := filepath.Join(root, "top")
		for _, l := range [][2]string{{at1, target1}, {at2, target2}} {
			at := filepath.Clean(l[0])
			if !filepath.IsLocal(at) || at == "." || !staysWithin(at, l[1]) {
				return
			}
			dir, err := os.OpenRoot(root)
			if err != nil {
				t.Fatal(err)
			}
			err = dir.MkdirAll(filepath.Join("top", filepath.Dir(at)), 0o755)
			dir.Close()
			if err != nil || os.Symlink(l[1], filepath.Join(top, at)) != nil {
				return
			}
		}
		real, err := filepath.EvalSymlinks(filepath.Join(top, filepath.Clean(at2)))
		if err != nil {
			return
		}
		if rel, err := filepath.Rel(top, real); err != nil || !filepath.IsLocal(rel) {
			t.Errorf("%q -> %q with %q -> %q leads to %s", at2, target2, at1, target1, real)
		}
	})
}

func TestParsePlace(t *testing.T) {
	for text, want := range map[string]place{
		"file":             {path: "file"},
		"abc12345:/f":      {"abc12345", "/f"},
		"abc12345:f":       {"abc12345", "f"},
		"abc12345:":        {"abc12345", ""},
		"./a:b":            {path: "./a:b"},
		"dir/a:b":          {path: "dir/a:b"},
		"a.b:c":            {path: "a.b:c"},
		"-":                {path: "-"},
		":x":               {path: ":x"},
		"abc12345:/a:b:c/": {"abc12345", "/a:b:c/"},
	} {
		if got := parsePlace(text); got != want {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
}

func TestParseMount(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"/a:/b":    "/a /b false",
		"/a:/b:ro": "/a /b true",
		"/a:/b:rw": "/a /b false",
		".:/b":     wd + " /b false",
	} {
		m, err := parseMount(text)
		if got := m.Source + " " + m.Target + map[bool]string{true: " true", false: " false"}[m.ReadOnly]; err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "/a", ":/b", "/a:", "/a:/b:x", "/a:/b:ro:x", "/a:/b:"} {
		if m, err := parseMount(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, m)
		}
	}
}
