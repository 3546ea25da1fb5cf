package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/atoll-run/atoll/sandbox"
)

// root imports a root file system of one file.
func root(t testing.TB, s *Store, name, text string) Image {
	t.Helper()
	all, err := s.Import(t.Context(), bytes.NewReader(pack(t, file("f", text))), name)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

func tarOf(t *testing.T, dir string) []byte {
	t.Helper()
	var entries []entry
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		entries = append(entries, file(rel, string(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pack(t, entries...)
}

func TestImport(t *testing.T) {
	asUser(t)
	base, top := pack(t, file("base", "b")), pack(t, file("top", "t"))
	img := imageOf(t, base, top)
	tag, err := name.NewTag("me/mine:2")
	if err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if err := tarball.Write(tag, img, &saved); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": "2", "io.containerd.image.name": "docker.io/me/mine:2"}}})); err != nil {
		t.Fatal(err)
	}
	oci := tarOf(t, dir)
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for what, archive := range map[string][]byte{"docker save": saved.Bytes(), "layout": oci} {
		for _, kind := range []string{"plain", "gzip", "zstd"} {
			t.Run(what+" "+kind, func(t *testing.T) {
				s := storeIn(t, Options{})
				all, err := s.Import(t.Context(), bytes.NewReader(squeeze(t, kind, archive)), "")
				if err != nil || len(all) != 1 {
					t.Fatalf("%v, %v", all, err)
				}
				got := all[0]
				if got.Digest != id.String() || fmt.Sprint(got.Names) != "[me/mine:2]" || len(got.Layers) != 2 || got.Config.User != "user:1" {
					t.Errorf("the image is %+v", got)
				}
				if want := map[string]string{"docker save": "", "layout": digestIn(t, img)}[what]; got.Manifest != want {
					t.Errorf("the manifest is %q, want %q", got.Manifest, want)
				}
				checkEntry(t, got.Dirs()[0], "top = t")
				all, err = s.Import(t.Context(), bytes.NewReader(archive), "own")
				if err != nil || fmt.Sprint(all[0].Names) != "[me/mine:2 own:latest]" {
					t.Errorf("under another name: %+v, %v", all, err)
				}
				// A bit of a layer or of a configuration.
				for _, word := range []string{"docker save", "layout"} {
					if word != what {
						continue
					}
					bad := bytes.Replace(archive, []byte("user:1"), []byte("root:0"), 1)
					_, err = storeIn(t, Options{}).Import(t.Context(), bytes.NewReader(bad), "")
					wantKind(t, err, sandbox.Invalid, "")
				}
			})
		}
	}
	t.Run("folder", func(t *testing.T) {
		s := storeIn(t, Options{})
		all, err := s.ImportPath(t.Context(), dir, "")
		if err != nil || all[0].Digest != id.String() {
			t.Errorf("%v, %v", all, err)
		}
		_, err = s.ImportPath(t.Context(), filepath.Join(dir, "nothing"), "")
		wantKind(t, err, sandbox.NotExist, "no such file")
		_, err = s.ImportPath(t.Context(), t.TempDir(), "x")
		wantKind(t, err, sandbox.Invalid, "dir:/path")
	})
	t.Run("folder that leads out", func(t *testing.T) {
		out := t.TempDir()
		if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		blob := filepath.Join(out, blobName(digestIn(t, img)))
		away := filepath.Join(t.TempDir(), "manifest")
		if err := os.Rename(blob, away); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(away, blob); err != nil {
			t.Fatal(err)
		}
		_, err := storeIn(t, Options{}).ImportPath(t.Context(), out, "")
		wantKind(t, err, sandbox.Invalid, "no file")
	})
	t.Run("root file system", func(t *testing.T) {
		s := storeIn(t, Options{})
		rootfs := pack(t, folderOf("."), file("bin/sh", "#!"), link("proc", "/host"), file("manifest.json", `{"name": "a web app"}`))
		_, err := s.Import(t.Context(), bytes.NewReader(rootfs), "")
		wantKind(t, err, sandbox.Invalid, "give it one")
		all, err := s.Import(t.Context(), bytes.NewReader(squeeze(t, "zstd", rootfs)), "debian:mine")
		if err != nil || len(all[0].Layers) != 1 || all[0].Layers[0].DiffID != digestBytes(rootfs) {
			t.Fatalf("%+v, %v", all, err)
		}
		odd, err := all[0].Odd()
		if err != nil || fmt.Sprint(odd) != `[/proc: link to "/host"]` {
			t.Errorf("odd is %q, %v", odd, err)
		}
		raw, err := s.RawConfig("debian:mine")
		if err != nil || digestBytes(raw) != all[0].Digest {
			t.Errorf("the configuration is %s, %v", raw, err)
		}
	})
	t.Run("not an archive", func(t *testing.T) {
		s := storeIn(t, Options{})
		for _, text := range []string{"", "hello", strings.Repeat("no tar ", 1000)} {
			_, err := s.Import(t.Context(), strings.NewReader(text), "x")
			wantKind(t, err, sandbox.Invalid, "")
		}
		for _, n := range []string{"host", "UPPER", "a@sha256:" + strings.Repeat("1", 64), strings.Repeat("a", 600), "deadbeefdeadbeef"} {
			_, err := s.Import(t.Context(), bytes.NewReader(pack(t, file("f", "x"))), n)
			wantKind(t, err, sandbox.Invalid, "")
		}
	})
	t.Run("several", func(t *testing.T) {
		other, err := name.NewTag("other:1")
		if err != nil {
			t.Fatal(err)
		}
		var two bytes.Buffer
		if err := tarball.MultiWrite(map[name.Tag]v1.Image{tag: img, other: imageOf(t, base)}, &two); err != nil {
			t.Fatal(err)
		}
		s := storeIn(t, Options{})
		if all, err := s.Import(t.Context(), bytes.NewReader(two.Bytes()), ""); err != nil || len(all) != 2 {
			t.Errorf("%v, %v", all, err)
		}
		_, err = s.Import(t.Context(), bytes.NewReader(two.Bytes()), "third")
		wantKind(t, err, sandbox.Invalid, "2 images")
		if all, err := s.Import(t.Context(), bytes.NewReader(two.Bytes()), "other:1"); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
	})
	t.Run("old docker save", func(t *testing.T) {
		cf, err := img.RawConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		// Layers in folders, and one that is the same as another is a link.
		archive := pack(t, file("a/layer.tar", string(base)), link("b/layer.tar", "../a/layer.tar"), file("c/layer.tar", string(top)),
			file(hexOf(digestBytes(cf))+".json", string(cf)), file("manifest.json", `[{"Config":"`+hexOf(digestBytes(cf))+`.json","RepoTags":null,"Layers":["b/layer.tar","c/layer.tar"]}]`))
		all, err := storeIn(t, Options{}).Import(t.Context(), bytes.NewReader(archive), "x")
		if err != nil || all[0].Digest != id.String() {
			t.Errorf("%v, %v", all, err)
		}
		leading := pack(t, link("a", "/etc/passwd"), file("manifest.json", `[{"Config":"a","Layers":["a"]}]`))
		_, err = storeIn(t, Options{}).Import(t.Context(), bytes.NewReader(leading), "x")
		wantKind(t, err, sandbox.Invalid, "no file")
	})
}

func TestNamesAndRemoval(t *testing.T) {
	s := storeIn(t, Options{})
	a, b := root(t, s, "a", "a"), root(t, s, "localhost:5000/b:1", "b")
	if err := s.Tag("a", "c:2"); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"a", "a:latest", "docker.io/library/a", "c:2", a.Digest, hexOf(a.Digest)[:12]} {
		if got, err := s.Get(n); err != nil || got.Digest != a.Digest {
			t.Errorf("%s is %+v, %v", n, got, err)
		}
	}
	wantKind(t, s.Tag("nothing", "x"), sandbox.NotExist, "nothing")
	wantKind(t, s.Remove("nothing"), sandbox.NotExist, "nothing")
	if err := s.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("c:2"); err != nil {
		t.Errorf("the other name: %v", err)
	}
	img, release, err := s.Use("c:2", "holder")
	if err != nil || img.Name != "c:2" {
		t.Fatalf("%+v, %v", img, err)
	}
	wantKind(t, s.Remove("c:2"), sandbox.Conflict, "in use")
	wantKind(t, s.Remove(a.Digest), sandbox.Conflict, "in use")
	release()
	release()
	if err := s.Remove("c:2"); err != nil {
		t.Fatal(err)
	}
	if exists(img.Layers[0].Dir) || len(s.List()) != 1 {
		t.Error("the layer of a removed image is there")
	}
	if !exists(b.Layers[0].Dir) {
		t.Error("another's layer is gone")
	}
	_, _, err = s.Use("localhost:5000/b:1", "a/b")
	wantKind(t, err, sandbox.Invalid, "holder")
}

// TestSharedLayers: a layer goes with the last image that has it.
func TestSharedLayers(t *testing.T) {
	s := storeIn(t, Options{})
	base := root(t, s, "base", "b")
	top, err := s.Commit(t.Context(), CommitOptions{Base: "base", Layer: bytes.NewReader(pack(t, file("g", "x"))), Name: "top", Comment: "a test",
		Config: func(c *Config) { c.User, c.ExposedPorts, c.Env = "7", []string{"1/tcp"}, append(c.Env, "X=y") }})
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Layers) != 2 || top.Layers[0] != base.Layers[0] || top.Config.User != "7" || fmt.Sprint(top.Config.ExposedPorts, top.Config.Env) != "[1/tcp] [X=y]" {
		t.Errorf("the image is %+v", top)
	}
	if err := s.Remove("base"); err != nil {
		t.Fatal(err)
	}
	checkEntry(t, top.Layers[0].Dir, "f = b")
	if err := s.Remove("top"); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(s.path("layers"))
	if err != nil || len(left) != 0 {
		t.Errorf("layers are left: %v, %v", left, err)
	}
	_, err = s.Commit(t.Context(), CommitOptions{Base: "top", Layer: strings.NewReader("")})
	wantKind(t, err, sandbox.NotExist, "top")
	// A layer that hides all below.
	under := root(t, s, "under", "u")
	over, err := s.Commit(t.Context(), CommitOptions{Base: "under", Layer: bytes.NewReader(pack(t, file(".wh..wh..opq", ""), file("g", "x")))})
	if err != nil || len(over.Layers) != 2 || len(over.Dirs()) != 1 || over.Dirs()[0] == under.Layers[0].Dir {
		t.Errorf("%+v, %v", over, err)
	}
}

func TestEviction(t *testing.T) {
	text := noise(100 << 10)
	s := storeIn(t, Options{MaxBytes: 350 << 10})
	for _, n := range []string{"a", "b", "c"} {
		root(t, s, n, text+n)
	}
	_, release, err := s.Use("a", "sandbox1") // the longest unused, but for this
	if err != nil {
		t.Fatal(err)
	}
	names := func() string {
		var all []string
		for _, n := range []string{"a", "b", "c", "d", "e"} {
			if _, err := s.Get(n); err == nil {
				all = append(all, n)
			}
		}
		return strings.Join(all, "")
	}
	root(t, s, "d", text+"d")
	if names() != "acd" {
		t.Fatalf("%s are left", names())
	}
	for _, n := range []string{"c", "d"} {
		if _, _, err := s.Use(n, "sandbox2"); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Import(t.Context(), bytes.NewReader(pack(t, file("f", text+"e"))), "e")
	wantKind(t, err, sandbox.Exhausted, "in use")
	if names() != "acd" {
		t.Errorf("%s are left", names())
	}
	if dirs, err := os.ReadDir(s.path("layers")); err != nil || len(dirs) != 3 {
		t.Errorf("there are %d layers, %v", len(dirs), err)
	}
	s.Release("sandbox2")
	release()
	root(t, s, "e", text+"e")
	if names() != "ade" && names() != "cde" && names() != "ace" {
		t.Errorf("%s are left", names())
	}
	var total int64
	for _, img := range s.List() {
		total += img.Size
	}
	if total > 350<<10 {
		t.Errorf("the store has %d bytes", total)
	}
}

func TestPrune(t *testing.T) {
	s := storeIn(t, Options{})
	old := root(t, s, "a", "1")
	root(t, s, "a", "2") // takes the name
	root(t, s, "used", "3")
	if _, _, err := s.Use("used", "h"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path("blobs", "x-y"), []byte("part"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := s.Prune(false)
	if err != nil || fmt.Sprint(got.Images) != "["+old.Digest+"]" || got.Bytes < old.Size || exists(s.path("blobs", "x-y")) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = s.Prune(true)
	if err != nil || fmt.Sprint(got.Images) != "[a:latest]" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.Get("used"); err != nil {
		t.Error(err)
	}
}

// TestReopen: what was is there again, holders included; one process at a time.
func TestReopen(t *testing.T) {
	dir := filepath.Join(tempDir(t), "images")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := root(t, s, "a", "a")
	if _, _, err := s.Use("a", "box1"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); sandbox.KindOf(err) != sandbox.Conflict {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, err = s.Pull(t.Context(), "b", PullOptions{})
	wantKind(t, err, sandbox.Closed, "")
	_, _, err = s.Use("a", "box2")
	wantKind(t, err, sandbox.Closed, "")

	// What a crash leaves.
	for _, p := range []string{"tmp/layer-1/fs", "layers/half", "tmp/gone"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "tmp/layer-1/fs/f"), []byte("x"), 0o000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "tmp/layer-1/fs"), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pins/box9@"+strings.Repeat("0", 64)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * abandoned)
	part := filepath.Join(dir, "blobs", "part")
	if err := os.WriteFile(part, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(part, long, long); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	got, err := s.Get("a")
	if err != nil || got.Digest != a.Digest || got.Layers[0] != a.Layers[0] {
		t.Errorf("%+v, %v", got, err)
	}
	if h := s.Holders(); fmt.Sprint(h) != fmt.Sprintf("map[box1:[%s]]", a.Digest) {
		t.Errorf("the holders are %v", h)
	}
	wantKind(t, s.Remove("a"), sandbox.Conflict, "in use")
	for _, d := range []string{"tmp", "blobs"} {
		if left, err := os.ReadDir(s.path(d)); err != nil || len(left) != 0 {
			t.Errorf("%s has %v, %v", d, left, err)
		}
	}
	s.Release("box1")
	if err := s.Remove("a"); err != nil {
		t.Error(err)
	}
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v", st.Mode(), err)
	}
}

func TestDamage(t *testing.T) {
	for _, c := range []struct {
		text string
		kind sandbox.Kind
	}{{"{", sandbox.Internal}, {`{"version": 99}`, sandbox.Unsupported}} {
		dir := filepath.Join(tempDir(t), "images")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{})
		wantKind(t, err, c.kind, "")
	}
	// A layer that somebody deleted takes its images along, not the store.
	dir := filepath.Join(tempDir(t), "images")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := root(t, s, "a", "a")
	root(t, s, "b", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(a.Layers[0].Dir)); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	if all := s.List(); len(all) != 1 || all[0].Name != "b:latest" {
		t.Errorf("there are %+v", all)
	}
}

// TestKilledWhileUnpacking kills a process in the midst of an import: the next
// one finds a store that is whole and has nothing of it.
func TestKilledWhileUnpacking(t *testing.T) {
	if dir := os.Getenv("ATOLL_IMAGE_STORE"); dir != "" {
		s, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		root(t, s, "before", "x")
		// The layer ends only with us.
		ref := os.Getenv("ATOLL_IMAGE_REF")
		_, err = s.Pull(context.Background(), ref, PullOptions{Progress: func(p Progress) {
			if p.Phase == Unpacking {
				go func() {
					for {
						if m, _ := filepath.Glob(filepath.Join(dir, "tmp", "layer-*", "fs", "f*")); len(m) > 3 {
							syscall.Kill(os.Getpid(), syscall.SIGKILL)
						}
					}
				}()
			}
		}})
		t.Fatalf("not killed: %v", err)
	}
	h := newHub(t)
	var entries []entry
	for i := range 5000 {
		entries = append(entries, file(fmt.Sprintf("f%d", i), "some text"))
	}
	ref := h.push(t, "a", imageOf(t, pack(t, entries...)))
	dir := filepath.Join(tempDir(t), "images")
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKilledWhileUnpacking$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), "ATOLL_IMAGE_STORE="+dir, "ATOLL_IMAGE_REF="+ref)
	out, err := cmd.CombinedOutput()
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || st.Signal() != syscall.SIGKILL {
		t.Fatalf("the other was not killed: %v\n%s", err, out)
	}
	if m, _ := filepath.Glob(filepath.Join(dir, "tmp", "layer-*")); len(m) == 0 {
		t.Fatal("it left nothing half made")
	}
	s := open(t, dir, Options{})
	if all := s.List(); len(all) != 1 || all[0].Name != "before:latest" {
		t.Errorf("there are %+v", all)
	}
	if left, err := os.ReadDir(s.path("tmp")); err != nil || len(left) != 0 {
		t.Errorf("tmp has %v, %v", left, err)
	}
	if img, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil || img.Layers[0].Facts.Entries != 5000 {
		t.Errorf("%+v, %v", img, err)
	}
}

// TestCloseEndsPulls closes a store in the midst of a pull.
func TestCloseEndsPulls(t *testing.T) {
	h := newHub(t)
	layer := pack(t, file("f", noise(2<<20)))
	ref := h.push(t, "a", imageOf(t, layer))
	blob := digestIn(t, layerOf(t, layer))
	arrived := make(chan struct{})
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, blob) {
			return false
		}
		close(arrived)
		<-r.Context().Done()
		return true
	})
	s, err := Open(filepath.Join(tempDir(t), "images"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		done <- err
	}()
	<-arrived
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantKind(t, <-done, sandbox.Closed, "")
}

// failing is a reader that fails after a while.
type failing struct{ r io.Reader }

func (f failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err == io.EOF {
		err = io.ErrClosedPipe
	}
	return n, err
}

func TestImportOfBrokenReader(t *testing.T) {
	s := storeIn(t, Options{})
	if _, err := s.Import(t.Context(), failing{bytes.NewReader(pack(t, file("f", "x")))}, "x"); err == nil {
		t.Error("it is there")
	}
	if left, err := os.ReadDir(s.path("tmp")); err != nil || len(left) != 0 {
		t.Errorf("tmp has %v, %v", left, err)
	}
}
