// Package atoll has no code of its own: its tests hold the whole tree to its
// rules. See ARCHITECTURE.md for what the layers are.
package atoll

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/atoll-run/atoll"

// A layer says what the packages at and below a folder may import. The
// standard library is always allowed. An entry of imports is a folder of this
// module or the path of another module; "x/..." takes what lies below x as
// well, and x itself.
type layer struct {
	imports []string // of the program
	tests   []string // of test files, besides
}

// layers is the table. The longest folder that fits a package decides. A
// folder that is not in it fails, so that who adds one says where it stands.
var layers = map[string]layer{
	// The words. They know nothing and run nothing.
	"sandbox":             {tests: []string{"backend/memory"}},
	"sandbox/sandboxtest": {imports: []string{"sandbox", "go.uber.org/goleak"}, tests: []string{"backend/memory", "engine"}},

	// Ways to make a sandbox. None knows another.
	"backend/memory": {imports: []string{"sandbox", "mvdan.cc/sh/v3/..."}, tests: []string{"sandbox/sandboxtest"}},
	"backend/linux": {
		imports: []string{"sandbox", "guest", "guest/proto", "backend/linux/...", "golang.org/x/sys/..."},
		tests:   []string{"sandbox/sandboxtest", "guest/inside"},
	},

	"backend/docker": {
		imports: []string{"sandbox", "guest", "guest/proto", "backend/docker/place", "github.com/moby/moby/...", "github.com/containerd/errdefs", "golang.org/x/sys/..."},
		tests:   []string{"sandbox/sandboxtest", "internal/dockerd", "github.com/google/go-containerregistry/..."},
	},
	"backend/docker/place": {imports: []string{"guest/proto", "golang.org/x/sys/..."}},

	// Layers around any Runtime, which know none by name.
	"warm": {imports: []string{"sandbox"}, tests: []string{"backend/memory", "sandbox/sandboxtest", "go.uber.org/goleak"}},

	// Images: data for backends.
	"image": {imports: []string{"sandbox", "github.com/google/go-containerregistry/...", "github.com/klauspost/compress/...", "golang.org/x/sys/..."}, tests: []string{"go.uber.org/goleak"}},

	// Each mechanism of the kernel stands alone.
	"backend/linux/internal/cgroup":       {imports: []string{"sandbox", "golang.org/x/sys/..."}},
	"backend/linux/internal/seccomp":      {imports: []string{"sandbox", "backend/linux/internal/seccomp/load", "golang.org/x/sys/..."}},
	"backend/linux/internal/seccomp/load": {imports: []string{"golang.org/x/sys/..."}},
	"backend/linux/launch":                {imports: []string{"guest/proto", "golang.org/x/sys/..."}},
	"backend/linux/enter":                 {imports: []string{"guest/proto", "backend/linux/internal/seccomp/load", "golang.org/x/sys/..."}},

	// What runs inside stays small: no HTTP, no configuration, no logs.
	"guest/proto":         {},
	"guest/internal/tail": {imports: []string{"golang.org/x/sys/..."}},
	"guest":               {imports: []string{"sandbox", "guest/proto", "guest/internal/...", "golang.org/x/sys/..."}, tests: []string{"guest/inside", "sandbox/sandboxtest"}},
	"guest/inside":        {imports: []string{"guest/proto", "guest/internal/...", "golang.org/x/sys/..."}, tests: []string{"sandbox", "guest", "sandbox/sandboxtest"}},
	"cmd/atoll-guest":     {imports: []string{"guest/inside", "guest/proto", "backend/linux/enter", "backend/linux/launch", "backend/docker/place", "golang.org/x/sys/..."}, tests: []string{"guest", "sandbox"}},

	// Policy. Pure: what a caller gets who does not say, and at most.
	"profile": {imports: []string{"sandbox"}},

	// Policy. Pure: what of the network a sandbox may reach.
	"egress": {imports: []string{"sandbox", "golang.org/x/net/idna"}},

	// What agents do inside, written once over the words.
	"tool":       {imports: []string{"sandbox"}, tests: []string{"backend/memory"}},
	"tool/job":   {imports: []string{"sandbox"}, tests: []string{"backend/memory", "backend/linux"}},
	"tool/shell": {imports: []string{"sandbox"}, tests: []string{"backend/linux", "guest", "guest/inside", "golang.org/x/sys/..."}},
	"tool/edit":  {imports: []string{"sandbox", "github.com/bmatcuk/doublestar/v4"}, tests: []string{"backend/memory"}},

	// Shapes of protocols, their servers, and the Go SDK. An adapter knows
	// neither another nor what makes its sandboxes.
	"wire":         {imports: []string{"sandbox"}},
	"api/internal": {imports: []string{"sandbox"}, tests: []string{"wire/native"}},
	"api/gate":     {imports: []string{"sandbox"}},
	"api/native": {
		imports: []string{"sandbox", "wire/native", "api/gate", "api/internal/...", "github.com/coder/websocket"},
		tests:   []string{"backend/memory", "engine", "client", "sandbox/sandboxtest", "github.com/goccy/go-yaml", "github.com/santhosh-tekuri/jsonschema/v6"},
	},
	"client": {imports: []string{"sandbox", "wire/native"}, tests: []string{"backend/memory", "api/gate", "api/native", "sandbox/sandboxtest"}},

	// Policy over any runtime, and what it keeps.
	"engine":       {imports: []string{"sandbox", "profile", "engine/...", "go.etcd.io/bbolt", "github.com/prometheus/client_golang/...", "golang.org/x/sys/..."}, tests: []string{"backend/memory", "backend/linux", "warm", "sandbox/sandboxtest", "github.com/prometheus/client_model/...", "go.uber.org/goleak"}},
	"engine/store": {imports: []string{"sandbox", "go.etcd.io/bbolt/..."}},
	"engine/audit": {imports: []string{"sandbox"}},

	// The only place that knows everything, and those that try it whole.
	"cmd/atoll": {imports: []string{"...", "github.com/...", "golang.org/x/..."}},
	"e2e":       {imports: []string{"...", "github.com/...", "golang.org/x/..."}, tests: []string{"go.uber.org/goleak"}},
	"bench":     {imports: []string{"...", "github.com/...", "golang.org/x/..."}},

	// What builds and tests the project.
	"internal/testsum": {},
	"internal/dockerd": {},
	".":                {},
}

// guestBudget is what the guest and what it imports must not import: each
// costs start-up time or memory in every sandbox.
var guestBudget = []string{"net/http", "crypto/tls", "text/template", "html/template", "log", "log/slog", "flag", "encoding/xml", "expvar", "github.com/spf13/..."}

// A source is a Go file of the tree.
type source struct {
	dir  string // relative to the root, with slashes
	name string
	test bool
	*ast.File
}

// sources parses every Go file of the module.
func sources(t *testing.T) (*token.FileSet, []source) {
	t.Helper()
	fset := token.NewFileSet()
	var all []source
	walk(t, func(p string) {
		if path.Ext(p) != ".go" {
			return
		}
		f, err := parser.ParseFile(fset, filepath.FromSlash(p), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, source{path.Dir(p), path.Base(p), strings.HasSuffix(p, "_test.go"), f})
	})
	if len(all) == 0 {
		t.Fatal("found no Go file")
	}
	return fset, all
}

// walk calls visit with every file of the project: not with what is built,
// nor with what belongs to tools (folders that begin with a dot, .ci aside).
func walk(t *testing.T, visit func(p string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS("."), ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (p == "bin" || p == "backend/linux/guestbin" || d.Name() == "testdata" && strings.Contains(p, "/fuzz/") ||
			p != "." && d.Name()[0] == '.' && p != ".ci"):
			return fs.SkipDir
		case d.Type().IsRegular():
			visit(p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func layerOf(dir string) (layer, bool) {
	for {
		if l, ok := layers[dir]; ok {
			return l, true
		}
		if dir == "." || path.Dir(dir) == "." {
			return layer{}, false
		}
		dir = path.Dir(dir)
	}
}

// covers reports whether an entry of the table allows imp, a folder of this
// module or the path of another.
func covers(entry, imp string, ours bool) bool {
	if entry == "..." {
		return ours
	}
	if root, ok := strings.CutSuffix(entry, "/..."); ok {
		return imp == root || strings.HasPrefix(imp, root+"/")
	}
	return imp == entry
}

func TestLayers(t *testing.T) {
	fset, all := sources(t)
	for _, f := range all {
		l, ok := layerOf(f.dir)
		if !ok {
			t.Errorf("%s: the folder is not in the table of layers_test.go", f.dir)
			continue
		}
		allowed := l.imports
		if f.test {
			allowed = slices.Concat(l.imports, l.tests, []string{"github.com/google/go-cmp/...", "github.com/rogpeppe/go-internal/...", "golang.org/x/sys/..."})
		}
		for _, spec := range f.Imports {
			imp := strings.Trim(spec.Path.Value, `"`)
			rel, ours := strings.CutPrefix(imp, module+"/")
			if first, _, _ := strings.Cut(imp, "/"); !ours && !strings.Contains(first, ".") {
				continue // the standard library
			}
			if ours && rel == f.dir { // an external test of its own package
				continue
			}
			if !slices.ContainsFunc(allowed, func(e string) bool { return covers(e, rel, ours) }) {
				t.Errorf("%v: %s must not import %s", fset.Position(spec.Pos()), f.dir, rel)
			}
		}
	}
}

// TestGuestIsSmall holds what goes into the guest to its budget, through
// every package of ours that it imports.
func TestGuestIsSmall(t *testing.T) {
	fset, all := sources(t)
	seen := map[string]bool{"cmd/atoll-guest": true}
	for queue := []string{"cmd/atoll-guest"}; len(queue) > 0; queue = queue[1:] {
		for _, f := range all {
			if f.dir != queue[0] || f.test {
				continue
			}
			for _, spec := range f.Imports {
				imp := strings.Trim(spec.Path.Value, `"`)
				if rel, ours := strings.CutPrefix(imp, module+"/"); ours && !seen[rel] {
					seen[rel] = true
					queue = append(queue, rel)
				}
				if slices.ContainsFunc(guestBudget, func(e string) bool { return covers(e, imp, false) }) {
					t.Errorf("%v: the guest must not import %s", fset.Position(spec.Pos()), imp)
				}
			}
		}
	}
	if !seen["guest/inside"] {
		t.Error("the guest does not import guest/inside: this test looks at the wrong program")
	}
}

// TestDocumented asks for a comment on every package and every exported name.
func TestDocumented(t *testing.T) {
	fset, all := sources(t)
	packages := make(map[string]bool)
	for _, f := range all {
		if f.test {
			continue
		}
		packages[f.dir] = packages[f.dir] || f.Doc != nil
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && !plain(d) {
					t.Errorf("%v: %s has no comment", fset.Position(d.Pos()), d.Name)
				}
			case *ast.GenDecl:
				covered, last := false, 0 // by the comment of the lines right above
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
							t.Errorf("%v: %s has no comment", fset.Position(s.Pos()), s.Name)
						}
					case *ast.ValueSpec:
						// One comment above some values, or one beside each, will do.
						covered = s.Doc != nil || s.Comment != nil || covered && last+1 == fset.Position(s.Pos()).Line
						last = fset.Position(s.End()).Line
						if s.Names[0].IsExported() && d.Doc == nil && !covered && !typed(d) {
							t.Errorf("%v: %s has no comment", fset.Position(s.Pos()), s.Names[0])
						}
					}
				}
			}
		}
	}
	for dir, ok := range packages {
		if !ok {
			t.Errorf("%s: the package has no comment", dir)
		}
	}
}

// exportedReceiver reports whether d is a function or a method of an exported
// type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	x := d.Recv.List[0].Type
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			x = y.X
		case *ast.IndexExpr:
			x = y.X
		case *ast.IndexListExpr:
			x = y.X
		case *ast.Ident:
			return y.IsExported()
		default:
			return false
		}
	}
}

// plain reports whether d is a method whose meaning its interface gives: those
// of sort, fmt, io, encoding and the like.
func plain(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{
		"String", "GoString", "Error", "Unwrap", "Is", "As", "LogValue", "MarshalText", "UnmarshalText", "MarshalJSON", "UnmarshalJSON",
		"Len", "Less", "Swap", "Read", "Write", "Close", "ReadFrom", "WriteTo", "Set", "Type",
		"Fields", // of a message of guest/proto
	}, d.Name.Name)
}

// typed reports whether d is a group of constants whose first names a type of
// this package: the type's comment speaks for them.
func typed(d *ast.GenDecl) bool {
	if d.Tok != token.CONST || !d.Lparen.IsValid() || len(d.Specs) == 0 {
		return false
	}
	s, ok := d.Specs[0].(*ast.ValueSpec)
	return ok && s.Type != nil
}

// TestNoForeignWords looks for what belongs to the machine where somebody
// worked, not to the project.
func TestNoForeignWords(t *testing.T) {
	words := []string{"/wo" + "rk/", "/fa" + "rm/"}
	walk(t, func(p string) {
		b, err := os.ReadFile(filepath.FromSlash(p))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range words {
			if i := bytes.Index(b, []byte(w)); i >= 0 {
				t.Errorf("%s:%d: has %q", p, 1+bytes.Count(b[:i], []byte("\n")), w)
			}
		}
	})
}
