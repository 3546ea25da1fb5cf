package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// A hub is a registry on loopback.
type hub struct {
	*httptest.Server
	host string

	mu    sync.Mutex
	asked map[string]int                                           // requests for a path
	front func(w http.ResponseWriter, r *http.Request) (done bool) // sees each request before the registry does
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{asked: make(map[string]int)}
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if r.Method == http.MethodGet {
			h.asked[r.URL.Path]++
		}
		front := h.front
		h.mu.Unlock()
		if front == nil || !front(w, r) {
			reg.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.Close)
	h.host = strings.TrimPrefix(h.URL, "http://")
	return h
}

// before sets what sees each request first.
func (h *hub) before(f func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.front = f
}

// blobs returns how often blobs were asked for, each.
func (h *hub) blobs() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make(map[string]int)
	for p, n := range h.asked {
		if _, digest, ok := strings.Cut(p, "/blobs/sha256:"); ok {
			all["sha256:"+digest] = n
		}
	}
	return all
}

// push puts an image there and returns its reference.
func (h *hub) push(t *testing.T, repo string, img remote.Taggable) string {
	t.Helper()
	ref, err := name.ParseReference(h.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	switch img := img.(type) {
	case v1.Image:
		err = remote.Write(ref, img)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, img)
	default:
		err = remote.Put(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	clear(h.asked)
	h.mu.Unlock()
	return h.host + "/" + repo
}

// layerOf is a layer of that tar, compressed with gzip.
func layerOf(t *testing.T, b []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf is an image of those layers.
func imageOf(t *testing.T, layers ...[]byte) v1.Image {
	t.Helper()
	img := v1.Image(empty.Image)
	for _, l := range layers {
		var err error
		if img, err = mutate.AppendLayers(img, layerOf(t, l)); err != nil {
			t.Fatal(err)
		}
	}
	return configured(t, img, func(cf *v1.ConfigFile) {
		cf.OS, cf.Architecture = "linux", hostPlatform().Architecture
		cf.Config = v1.Config{Env: []string{"A=b"}, Entrypoint: []string{"/e"}, Cmd: []string{"c"}, User: "user:1", WorkingDir: "/w",
			ExposedPorts: map[string]struct{}{"80/tcp": {}, "443/tcp": {}}, Labels: map[string]string{"l": "m"}}
	})
}

func configured(t *testing.T, img v1.Image, do func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	do(cf)
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

func digestIn(t *testing.T, img interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// noise is data that does not compress.
func noise(n int) string {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

func storeIn(t *testing.T, opt Options) *Store {
	t.Helper()
	return open(t, filepath.Join(tempDir(t), "images"), opt)
}

func TestPull(t *testing.T) {
	asUser(t)
	h := newHub(t)
	img := imageOf(t, pack(t, file("base", "b")), pack(t, file("top", "t"), file(".wh.base", "")))
	ref := h.push(t, "a/b:1", img)
	s := storeIn(t, Options{Platform: "linux/" + hostPlatform().Architecture})
	var mu sync.Mutex
	phases := make(map[Phase]int)
	got, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		phases[p.Phase]++
		if p.Done > p.Total || !isDigest(p.Layer) {
			t.Errorf("progress %+v", p)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	// A phase that is over before anybody is told may be passed over.
	if phases[Ready] != 2 || phases[Unpacking]+phases[Downloading] == 0 {
		t.Errorf("the phases are %v", phases)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	c := got.Config
	if got.Digest != id.String() || got.Manifest != digestIn(t, img) || len(got.Names) != 1 || got.Names[0] != ref || len(got.Layers) != 2 ||
		fmt.Sprint(c) != "{[A=b] [/e] [c] user:1 /w [443/tcp 80/tcp] map[l:m]}" {
		t.Errorf("the image is %+v", got)
	}
	dirs := got.Dirs()
	if len(dirs) != 2 {
		t.Fatalf("the folders are %q", dirs)
	}
	checkEntry(t, dirs[0], "base whiteout")
	checkEntry(t, dirs[0], "top = t")
	checkEntry(t, dirs[1], "base = b")

	// What is here is not asked for, in any of its forms.
	asked := len(h.asked)
	for _, n := range []string{ref, got.Digest} {
		if again, err := s.Pull(t.Context(), n, PullOptions{}); err != nil || again.Digest != got.Digest {
			t.Errorf("%s again: %+v, %v", n, again, err)
		}
	}
	if len(h.asked) != asked {
		t.Error("the registry was asked for what is here")
	}
	if left, err := os.ReadDir(s.path("blobs")); err != nil || len(left) != 0 {
		t.Errorf("blobs are left: %v, %v", left, err)
	}

	// A tag that moved: only what is new comes.
	h.push(t, "a/b:1", imageOf(t, pack(t, file("base", "b")), pack(t, file("other", "o"))))
	moved, err := s.Pull(t.Context(), ref, PullOptions{Always: true})
	if err != nil || moved.Digest == got.Digest {
		t.Fatalf("the tag did not move: %v", err)
	}
	if n := len(h.blobs()); n != 2 { // the configuration and one layer
		t.Errorf("%d blobs were asked for: %v", n, h.blobs())
	}
	if old, err := s.Get(got.Digest); err != nil || len(old.Names) != 0 {
		t.Errorf("the old image is %+v, %v", old, err)
	}
}

func TestPullByDigest(t *testing.T) {
	h := newHub(t)
	img := imageOf(t, pack(t, file("f", "x")))
	h.push(t, "a:1", img)
	s := storeIn(t, Options{})
	ref := h.host + "/a@" + digestIn(t, img)
	got, err := s.Pull(t.Context(), ref, PullOptions{})
	if err != nil || got.Names[0] != ref {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := s.Pull(t.Context(), h.host+"/a:ignored@"+digestIn(t, img), PullOptions{}); err != nil {
		t.Errorf("with a tag besides: %v", err)
	}

	// A registry, or a mirror, that gives something else.
	other := imageOf(t, pack(t, file("f", "evil")))
	raw, err := other.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", string(types.DockerManifestSchema2))
		w.Write(raw)
		return true
	})
	_, err = storeIn(t, Options{}).Pull(t.Context(), ref, PullOptions{})
	wantKind(t, err, sandbox.Invalid, "digest")
}

// TestLies pulls images whose parts are not what they are said to be.
func TestLies(t *testing.T) {
	h := newHub(t)
	layer := pack(t, file("f", "x"))
	img := imageOf(t, layer)
	l := layerOf(t, layer)
	blob := digestIn(t, l)
	good := h.push(t, "good", img)
	diff, err := v1.NewHash("sha256:" + strings.Repeat("1", 64))
	if err != nil {
		t.Fatal(err)
	}
	wrongDiff := h.push(t, "diff", configured(t, img, func(cf *v1.ConfigFile) { cf.RootFS.DiffIDs = []v1.Hash{diff} }))
	fewer := h.push(t, "fewer", configured(t, img, func(cf *v1.ConfigFile) { cf.RootFS.DiffIDs = nil }))
	chart, err := mutate.AppendLayers(empty.Image, static.NewLayer([]byte("chart"), "application/vnd.cncf.helm.chart"))
	if err != nil {
		t.Fatal(err)
	}
	notLayers := h.push(t, "chart", chart)
	notTar := h.push(t, "nottar", configured(t, mustAppend(t, static.NewLayer([]byte(strings.Repeat("no tar ", 1000)), types.DockerLayer)), func(*v1.ConfigFile) {}))

	for _, c := range []struct {
		name  string
		ref   string
		blob  func(w http.ResponseWriter, r *http.Request) bool
		kind  sandbox.Kind
		words string
	}{
		{"wrong DiffID", wrongDiff, nil, sandbox.Invalid, "configuration says"},
		{"fewer DiffIDs", fewer, nil, sandbox.Invalid, "layers"},
		{"no file system", notLayers, nil, sandbox.Unsupported, "helm"},
		{"no tar", notTar, nil, sandbox.Invalid, ""},
		{"other bytes", good, func(w http.ResponseWriter, r *http.Request) bool {
			size, _ := l.Size()
			w.Write(bytes.Repeat([]byte{1}, int(size)))
			return true
		}, sandbox.Invalid, "not what its digest says"},
		{"more bytes", good, func(w http.ResponseWriter, r *http.Request) bool {
			w.Write(make([]byte, 1<<20))
			return true
		}, sandbox.Invalid, "not what its digest says"},
		{"nothing", good, func(w http.ResponseWriter, r *http.Request) bool { return true }, sandbox.Unavailable, "reached"},
		{"gone", good, func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true }, sandbox.NotExist, "no image"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.before(func(w http.ResponseWriter, r *http.Request) bool {
				return c.blob != nil && strings.HasSuffix(r.URL.Path, blob) && c.blob(w, r)
			})
			s := storeIn(t, Options{})
			_, err := s.Pull(t.Context(), c.ref, PullOptions{})
			wantKind(t, err, c.kind, c.words)
			if n := len(s.List()); n != 0 {
				t.Errorf("%d images are there", n)
			}
			for _, d := range []string{"layers", "tmp"} {
				if left, err := os.ReadDir(s.path(d)); err != nil || len(left) != 0 {
					t.Errorf("%s has %v, %v", d, left, err)
				}
			}
			h.before(nil)
			if c.blob != nil { // nothing wrong is kept
				if _, err := s.Pull(t.Context(), c.ref, PullOptions{}); err != nil {
					t.Errorf("and then: %v", err)
				}
			}
		})
	}
}

func mustAppend(t *testing.T, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestEndlessAnswers pulls from registries whose answers have no end, wherever
// they send us for them.
func TestEndlessAnswers(t *testing.T) {
	endless := func(w http.ResponseWriter, status int) bool {
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		w.WriteHeader(status)
		for {
			if _, err := w.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
				return true
			}
		}
	}
	for name, front := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"manifest": func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/manifests/") && endless(w, 200)
		},
		"manifest elsewhere": func(w http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				http.Redirect(w, r, "/elsewhere/blobs/x", http.StatusTemporaryRedirect)
				return true
			}
			return strings.HasPrefix(r.URL.Path, "/elsewhere") && endless(w, 200)
		},
		"an error": func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, "/blobs/") && endless(w, 404)
		},
		"hello": func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path == "/v2/" && endless(w, 500)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			ref := h.push(t, "a", imageOf(t, pack(t, file("f", "x"))))
			h.before(front)
			if _, err := storeIn(t, Options{}).Pull(t.Context(), ref, PullOptions{}); err == nil {
				t.Error("it is there")
			}
		})
	}
}

// TestLayerElsewhere pulls a layer that the registry has elsewhere, as most do.
func TestLayerElsewhere(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "a", imageOf(t, pack(t, file("f", noise(maxJSON+1<<20)))))
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		rest, ok := strings.CutPrefix(r.URL.Path, "/elsewhere/")
		if ok {
			r.URL.Path = "/v2/a/blobs/" + rest
		} else if _, digest, ok := strings.Cut(r.URL.Path, "/blobs/"); ok {
			http.Redirect(w, r, "/elsewhere/"+digest, http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	if _, err := storeIn(t, Options{}).Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Error(err)
	}
}

func TestPlatforms(t *testing.T) {
	h := newHub(t)
	x := v1.ImageIndex(empty.Index)
	for _, p := range []string{"linux/amd64", "linux/arm64/v8", "linux/arm/v6", "linux/arm/v7"} {
		platform, err := v1.ParsePlatform(p)
		if err != nil {
			t.Fatal(err)
		}
		img := configured(t, imageOf(t, pack(t, file("platform", p))), func(cf *v1.ConfigFile) {
			cf.OS, cf.Architecture, cf.Variant = platform.OS, platform.Architecture, platform.Variant
		})
		x = mutate.AppendManifests(x, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	x = mutate.AppendManifests(x, mutate.IndexAddendum{Add: imageOf(t, pack(t, file("a", "attestation"))),
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}})
	ref := h.push(t, "multi", x)
	for want, platform := range map[string]string{"linux/amd64": "linux/amd64", "linux/arm64/v8": "linux/arm64", "linux/arm/v7": "linux/arm/v7", "linux/arm/v6": "linux/arm"} {
		img, err := storeIn(t, Options{Platform: platform}).Pull(t.Context(), ref, PullOptions{})
		if err != nil || img.Platform != want {
			t.Errorf("%s gets %s, %v", platform, img.Platform, err)
			continue
		}
		checkEntry(t, img.Dirs()[0], "platform = "+want)
	}
	s := storeIn(t, Options{})
	_, err := s.Pull(t.Context(), ref, PullOptions{Platform: "linux/s390x"})
	wantKind(t, err, sandbox.NotExist, "it is there for linux/amd64, linux/arm/v6, linux/arm/v7, linux/arm64/v8")
	_, err = s.Pull(t.Context(), ref, PullOptions{Platform: "amd64"})
	wantKind(t, err, sandbox.Invalid, "platform")
	if _, err := s.Pull(t.Context(), ref+"@"+digestIn(t, x), PullOptions{Platform: "linux/amd64"}); err != nil {
		t.Errorf("by the list's digest: %v", err)
	}
	// An image for one platform alone.
	single := h.push(t, "single", configured(t, imageOf(t, pack(t, file("f", "x"))), func(cf *v1.ConfigFile) { cf.Architecture = "s390x" }))
	_, err = s.Pull(t.Context(), single, PullOptions{Platform: "linux/amd64"})
	wantKind(t, err, sandbox.NotExist, "linux/s390x")
}

// TestResume cuts the connection in the midst of a layer: the same pull goes
// on, and so does one after a restart.
func TestResume(t *testing.T) {
	h := newHub(t)
	layer := pack(t, file("f", noise(3<<20)))
	img := imageOf(t, layer)
	ref := h.push(t, "big", img)
	l := layerOf(t, layer)
	blob := digestIn(t, l)
	size, err := l.Size()
	if err != nil {
		t.Fatal(err)
	}
	rc, err := l.Compressed()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(rc)
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	var ranges sync.Map
	cut := func(always bool) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, blob) {
				return false
			}
			var from int64
			if rg := r.Header.Get("Range"); rg != "" {
				ranges.Store(rg, true)
				fmt.Sscanf(rg, "bytes=%d-", &from)
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size))
				w.WriteHeader(http.StatusPartialContent)
			}
			to := min(from+1<<20, size)
			n, _ := w.Write(raw[from:to])
			sent.Add(int64(n))
			if to < size || always {
				panic(http.ErrAbortHandler)
			}
			return true
		}
	}
	h.before(cut(false))
	s := storeIn(t, Options{})
	got, err := s.Pull(t.Context(), ref, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkEntry(t, got.Dirs()[0], "f = "+noise(3<<20))
	if sent.Load() > size+1<<20 {
		t.Errorf("%d bytes were sent for %d", sent.Load(), size)
	}

	// A restart in between.
	dir := filepath.Join(tempDir(t), "images")
	s2, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, blob) {
			return false
		}
		if r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			w.Write(raw[:1<<20])
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		return true
	})
	_, err = s2.Pull(ctx, ref, PullOptions{Progress: func(p Progress) {
		if p.Done >= 1<<19 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("the error is %v", err)
	}
	if err := s2.Close(); err != nil {
		t.Fatal(err)
	}
	parts, err := filepath.Glob(filepath.Join(dir, "blobs", "*"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("the parts are %v, %v", parts, err)
	}
	ranges.Clear()
	h.before(cut(false))
	if _, err := open(t, dir, Options{}).Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Fatal(err)
	}
	again := false
	ranges.Range(func(_, _ any) bool { again = true; return false })
	if !again {
		t.Error("it began anew")
	}
}

// TestPullsAtOnce fetches each blob once, however many want it.
func TestPullsAtOnce(t *testing.T) {
	h := newHub(t)
	shared := pack(t, file("shared", noise(1<<20)))
	a := h.push(t, "a", imageOf(t, shared, pack(t, file("a", "a"))))
	b := h.push(t, "b", imageOf(t, shared, pack(t, file("b", "b"))))
	s := storeIn(t, Options{})
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			ref := a
			if i%2 == 0 {
				ref = b
			}
			if _, err := s.Pull(t.Context(), ref, PullOptions{Progress: func(Progress) {}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for digest, n := range h.blobs() {
		if n != 1 {
			t.Errorf("%s was fetched %d times", digest, n)
		}
	}
}

// TestWorkOutlivesWhoBegan: a flight goes on for who is left, and ends with the
// last.
func TestWorkOutlivesWhoBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g flights[int]
		ctx, cancel := context.WithCancel(t.Context())
		land := make(chan struct{})
		work := func(ctx context.Context, _ func(Progress)) (int, error) {
			select {
			case <-land:
				return 7, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := g.do(ctx, context.Background(), "k", nil, work); !errors.Is(err, context.Canceled) {
				t.Errorf("who began gets %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if v, joined, err := g.do(t.Context(), context.Background(), "k", nil, work); v != 7 || !joined || err != nil {
				t.Errorf("who joined gets %d, %v, %v", v, joined, err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(land)
		wg.Wait()

		ctx, cancel = context.WithCancel(t.Context())
		ended := false
		wg.Go(func() {
			_, _, err := g.do(ctx, context.Background(), "k", nil, func(ctx context.Context, _ func(Progress)) (int, error) {
				<-ctx.Done()
				ended = true
				return 0, ctx.Err()
			})
			if !errors.Is(err, context.Canceled) || !ended {
				t.Errorf("the last gets %v, ended %v", err, ended)
			}
		})
		synctest.Wait()
		cancel()
		wg.Wait()
	})
}

func TestAuth(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "private/a", imageOf(t, pack(t, file("f", "x"))))
	keys := func(user, password string) authn.Keychain {
		return keychain{h.host: &authn.Basic{Username: user, Password: password}}
	}
	for _, kind := range []string{"basic", "bearer"} {
		t.Run(kind, func(t *testing.T) {
			h.before(func(w http.ResponseWriter, r *http.Request) bool {
				user, password, _ := r.BasicAuth()
				known := user == "me" && password == "secret"
				switch {
				case r.URL.Path == "/token":
					if !known {
						w.WriteHeader(http.StatusUnauthorized)
						return true
					}
					if scope := r.URL.Query().Get("scope"); scope != "repository:private/a:pull" {
						t.Errorf("the scope is %q", scope)
					}
					fmt.Fprint(w, `{"token": "t0ken"}`)
					return true
				case kind == "basic" && known, kind == "bearer" && r.Header.Get("Authorization") == "Bearer t0ken":
					return false
				}
				challenge := `Basic realm="r"`
				if kind == "bearer" {
					challenge = fmt.Sprintf(`Bearer realm="%s/token",service="s"`, h.URL)
				}
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
				return true
			})
			if _, err := storeIn(t, Options{Auth: keys("me", "secret")}).Pull(t.Context(), ref, PullOptions{}); err != nil {
				t.Error(err)
			}
			for _, k := range []authn.Keychain{keys("me", "wrong"), keychain{}} {
				_, err := storeIn(t, Options{Auth: k}).Pull(t.Context(), ref, PullOptions{})
				wantKind(t, err, sandbox.Denied, "docker login")
				if strings.Contains(err.Error(), "wrong") {
					t.Errorf("the error has the password: %v", err)
				}
			}
		})
	}
}

type keychain map[string]authn.Authenticator

func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if a, ok := k[r.RegistryStr()]; ok {
		return a, nil
	}
	return authn.Anonymous, nil
}

func TestRefusals(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "a", imageOf(t, pack(t, file("f", "x"))))
	s := storeIn(t, Options{})
	_, err := s.Pull(t.Context(), h.host+"/nothing", PullOptions{})
	wantKind(t, err, sandbox.NotExist, "no image")
	_, err = s.Pull(t.Context(), ref+":other", PullOptions{})
	wantKind(t, err, sandbox.NotExist, "no image")
	_, err = s.Pull(t.Context(), "Capital", PullOptions{})
	wantKind(t, err, sandbox.Invalid, "capitals")
	_, err = s.Pull(t.Context(), "sha256:"+strings.Repeat("a", 64), PullOptions{})
	wantKind(t, err, sandbox.NotExist, "")

	gone := httptest.NewServer(nil)
	gone.Close()
	_, err = s.Pull(t.Context(), strings.TrimPrefix(gone.URL, "http://")+"/a", PullOptions{})
	wantKind(t, err, sandbox.Unavailable, "mirror")

	var tries atomic.Int64
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") && tries.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil || tries.Load() != 3 {
		t.Errorf("after %d tries: %v", tries.Load(), err)
	}
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	_, err = s.Pull(t.Context(), ref, PullOptions{Always: true})
	wantKind(t, err, sandbox.Unavailable, "enough")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = s.Pull(ctx, ref, PullOptions{Always: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

// TestNoPlainText: what has no TLS is not spoken to, nor followed to.
func TestNoPlainText(t *testing.T) {
	h := newHub(t)
	img := imageOf(t, pack(t, file("f", "x")))
	h.push(t, "a", img)
	far := "registry.example:80"
	dialer := &http.Transport{DisableKeepAlives: true}
	dialer.Proxy = nil
	to := redirect{h.host, dialer}
	_, err := storeIn(t, Options{Transport: to}).Pull(t.Context(), far+"/a", PullOptions{})
	if err == nil {
		t.Fatal("it came without TLS")
	}
	if _, err := storeIn(t, Options{Transport: to, Plain: []string{"registry.example"}}).Pull(t.Context(), far+"/a", PullOptions{}); err != nil {
		t.Errorf("allowed: %v", err)
	}
	// A registry on a private network is no exception, as it is for the library.
	if _, err := storeIn(t, Options{Transport: to}).Pull(t.Context(), "10.1.2.3:80/a", PullOptions{}); err == nil {
		t.Error("it came without TLS from a private network")
	}
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, "http://cdn.example/x", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	_, err = storeIn(t, Options{Transport: to}).Pull(t.Context(), h.host+"/a", PullOptions{})
	wantKind(t, err, sandbox.Denied, "TLS")

	// Nor does one elsewhere send us to what listens on this machine.
	h.before(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, "http://127.0.0.1:1/admin", http.StatusTemporaryRedirect)
			return true
		}
		if r.URL.Path == "/admin" {
			t.Error("it got there")
		}
		return false
	})
	_, err = storeIn(t, Options{Transport: to, Plain: []string{"registry.example"}}).Pull(t.Context(), far+"/a", PullOptions{})
	wantKind(t, err, sandbox.Denied, "where we do not go")
}

// redirect sends requests without TLS to one host, whoever they are for, and
// fails others.
type redirect struct {
	host string
	rt   http.RoundTripper
}

func (d redirect) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "http" {
		return nil, errors.New("no TLS here")
	}
	c := r.Clone(r.Context())
	c.URL.Host = d.host
	return d.rt.RoundTrip(c)
}

func TestMirrors(t *testing.T) {
	h, mirror := newHub(t), newHub(t)
	img := imageOf(t, pack(t, file("f", "x")))
	ref := h.push(t, "a", img)
	mirror.push(t, "a", img)
	mirror.push(t, "library/python:3", img)
	gone := httptest.NewServer(nil)
	gone.Close()
	opt := Options{Mirrors: map[string][]string{h.host: {strings.TrimPrefix(gone.URL, "http://"), mirror.host}, "docker.io": {mirror.host}}}
	s := storeIn(t, opt)
	if _, err := s.Pull(t.Context(), ref, PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(h.blobs()) != 0 || len(mirror.blobs()) != 2 {
		t.Errorf("asked %v, and the mirror %v", h.blobs(), mirror.blobs())
	}
	if img, err := s.Pull(t.Context(), "python:3", PullOptions{}); err != nil || img.Names[1] != "python:3" {
		t.Errorf("from docker's: %+v, %v", img, err)
	}
	// What the mirrors do not have comes from the registry.
	only := h.push(t, "only", imageOf(t, pack(t, file("only", "x"))))
	if _, err := s.Pull(t.Context(), only, PullOptions{}); err != nil {
		t.Error(err)
	}
}
