package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-run/atoll/sandbox"
)

// Options say how a store works. The zero value is a store for this machine
// that asks registries as docker does.
type Options struct {
	// MaxBytes is how much disk the layers may take. For what is new, the
	// store deletes what nothing uses, the longest unused first; an image that
	// does not fit even so is refused with [sandbox.Exhausted]. What is on
	// its way is not counted until its layers are unpacked: up to four at a
	// time. 0 is no bound.
	MaxBytes int64

	Bounds Bounds // what one image may cost

	// Mirrors says for a registry ("docker.io") which others to ask first, in
	// this order. What a tag means is up to the mirror; what a digest
	// means is not.
	Mirrors map[string][]string

	// Plain are the registries that may be spoken to without TLS, as "host" or
	// "host:port". Those on this machine's loopback always may.
	Plain []string

	// Auth knows who we are to each registry. nil is what docker login left:
	// ~/.docker/config.json, its credential helpers included.
	Auth authn.Keychain

	Platform string       // of images with several; "" is that of this machine
	Log      *slog.Logger // nil drops it

	// Transport carries what goes to registries; nil is one like
	// http.DefaultTransport.
	Transport http.RoundTripper
}

// A Store is a folder of images. It is safe for concurrent use, and its folder
// for use by one process at a time. Who opened it closes it.
type Store struct {
	dir      string
	opt      Options
	log      *slog.Logger
	platform v1.Platform
	lock     *os.File
	net      http.RoundTripper

	life context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup // what Close waits for

	pulls  flights[string]
	layers flights[struct{}]
	room   chan struct{} // one for each layer that is being fetched

	write sync.Mutex // held while index.json is changed

	mu     sync.Mutex
	closed bool
	index  index
	have   map[string]Facts               // layers that are there, by DiffID
	busy   map[string]int                 // layers that somebody is about to refer to
	pins   map[string]map[string]struct{} // holders, by image
}

// An index is what index.json has.
type index struct {
	Version int               `json:"version"`
	Images  map[string]record `json:"images"` // by digest
	Names   map[string]string `json:"names"`  // digests, by familiar name
}

const indexVersion = 1

// A record is what the index has about an image.
type record struct {
	Manifest string    `json:"manifest,omitempty"`
	Platform string    `json:"platform"`
	Layers   []string  `json:"layers"`
	Config   Config    `json:"config"`
	Created  time.Time `json:"created"`
	Used     time.Time `json:"used"`
}

func (x index) clone() index {
	x.Images, x.Names = maps.Clone(x.Images), maps.Clone(x.Names)
	return x
}

// abandoned is how long layers and parts of layers that belong to no image are
// kept for the pull that goes on from there.
const abandoned = 24 * time.Hour

// Open opens the store in the folder dir, and makes it if need be; dir's
// parent must be there. It deletes what was left half made, but for what a pull
// can go on from.
//
// Errors are [sandbox.Conflict] if another process has it, [sandbox.Unsupported]
// if a newer version wrote it, [sandbox.Internal] if it is damaged.
func Open(dir string, opt Options) (_ *Store, err error) {
	if err := opt.Bounds.setDefaults(); err != nil {
		return nil, err
	}
	if opt.MaxBytes < 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "max_bytes", "it is less than 0")
	}
	s := &Store{
		opt: opt, log: opt.Log, platform: hostPlatform(), net: opt.Transport, room: make(chan struct{}, 4),
		have: make(map[string]Facts), busy: make(map[string]int), pins: make(map[string]map[string]struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if opt.Platform != "" {
		if s.platform, err = parsePlatform(opt.Platform); err != nil {
			return nil, err
		}
	}
	if s.opt.Auth == nil {
		s.opt.Auth = authn.DefaultKeychain
	}
	if s.dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if s.net == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 30 * time.Second
		s.net = t
	}
	for _, name := range []string{"", "configs", "layers", "pins", "blobs", "tmp"} {
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := os.Chmod(filepath.Join(s.dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	if s.lock, err = lockDir(s.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.lock.Close()
		}
	}()
	if err := s.load(); err != nil {
		return nil, err
	}
	s.life, s.end = context.WithCancel(context.Background())
	return s, nil
}

func hostPlatform() v1.Platform {
	p := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	if p.Architecture == "arm64" {
		p.Variant = "v8"
	}
	return p
}

func parsePlatform(s string) (v1.Platform, error) {
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS == "" || p.Architecture == "" || p.OSVersion != "" {
		return v1.Platform{}, sandbox.Errorf(sandbox.Invalid, "platform", "%q is not a platform", s).WithHint("like linux/amd64 or linux/arm64/v8")
	}
	return *p, nil
}

// load reads what is there, and tidies up.
func (s *Store) load() error {
	s.index = index{Version: indexVersion, Images: make(map[string]record), Names: make(map[string]string)}
	b, err := os.ReadFile(s.path("index.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		var x index
		if err := json.Unmarshal(b, &x); err != nil {
			return &sandbox.Error{Kind: sandbox.Internal, Msg: "the list of images is damaged", Hint: "move " + s.path("index.json") + " away, and pull the images again", Err: err}
		}
		if x.Version != indexVersion {
			return sandbox.Errorf(sandbox.Unsupported, "", "version %d of the list of images is not known here", x.Version).WithHint("a newer atoll wrote it")
		}
		if x.Images != nil {
			s.index.Images = x.Images
		}
		if x.Names != nil {
			s.index.Names = x.Names
		}
	}
	if err := s.emptyTmp(); err != nil {
		return err
	}
	if err := s.loadLayers(); err != nil {
		return err
	}
	// An image that lost a layer, by whatever hand, is no image.
	for digest, r := range s.index.Images {
		for _, l := range r.Layers {
			if _, ok := s.have[l]; !ok {
				s.log.Warn("a layer of an image is gone; the image has to be pulled again", "image", digest, "layer", l)
				delete(s.index.Images, digest)
				break
			}
		}
	}
	for name, digest := range s.index.Names {
		if _, ok := s.index.Images[digest]; !ok {
			delete(s.index.Names, name)
		}
	}
	s.dropAbandoned()
	return s.loadPins()
}

func (s *Store) emptyTmp() error {
	left, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := removeTree(s.path("tmp", e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) loadLayers() error {
	dirs, err := os.ReadDir(s.path("layers"))
	if err != nil {
		return err
	}
	for _, d := range dirs {
		digest := "sha256:" + d.Name()
		file := s.path("layers", d.Name(), "meta.json")
		var f Facts
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &f)
		}
		if err != nil || !isDigest(digest) {
			s.log.Warn("what is no layer is among the layers, and is deleted", "folder", d.Name(), "err", err)
			if err := removeTree(s.path("layers", d.Name())); err != nil {
				return err
			}
			continue
		}
		s.have[digest] = f
	}
	return nil
}

// dropAbandoned deletes what no pull came back for.
func (s *Store) dropAbandoned() {
	used := s.referredLocked()
	for digest := range s.have {
		st, err := os.Stat(s.path("layers", hexOf(digest), "meta.json"))
		if _, ok := used[digest]; !ok && err == nil && time.Since(st.ModTime()) > abandoned {
			delete(s.have, digest)
			if err := removeTree(s.path("layers", hexOf(digest))); err != nil {
				s.log.Warn("a layer cannot be deleted", "layer", digest, "err", err)
			}
		}
	}
	parts, _ := os.ReadDir(s.path("blobs"))
	for _, p := range parts {
		if st, err := p.Info(); err == nil && time.Since(st.ModTime()) > abandoned {
			os.Remove(s.path("blobs", p.Name()))
		}
	}
	configs, _ := os.ReadDir(s.path("configs"))
	for _, c := range configs {
		if _, ok := s.index.Images["sha256:"+c.Name()]; !ok {
			os.Remove(s.path("configs", c.Name()))
		}
	}
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// Close ends what is under way, waits for it, and gives the folder free. Who
// uses what stays on record. Layers stay as they are: closing takes nothing
// from a sandbox.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.work.Wait()
	if t, ok := s.net.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	s.write.Lock()
	defer s.write.Unlock()
	err := s.save(s.index) // when each was used
	return cmp.Or(err, s.lock.Close())
}

// begin is for what Close has to wait for; done must be called.
func (s *Store) begin() (done func(), _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed()
	}
	s.work.Add(1)
	return s.work.Done, nil
}

func errClosed() error {
	return &sandbox.Error{Kind: sandbox.Closed, Msg: "the images are closed"}
}

// change changes the index, in memory and on the disk, or not at all. do has
// s.mu and may look at everything.
func (s *Store) change(do func(x *index) error) error {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed()
	}
	old := s.index
	next := old.clone()
	if err := do(&next); err != nil {
		s.mu.Unlock()
		return err
	}
	s.index = next
	s.mu.Unlock()
	err := s.save(next)
	if err != nil {
		s.mu.Lock()
		s.index = old
		s.mu.Unlock()
	}
	return classify(err)
}

// save writes the index. s.write is held; Use changes times meanwhile.
func (s *Store) save(x index) error {
	s.mu.Lock()
	b, err := json.MarshalIndent(x, "", "\t")
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return writeFile(s.path("index.json"), append(b, '\n'))
}

// findLocked returns the digest of what name means, and the name as the index
// has it if it is not a digest.
func (s *Store) findLocked(name string) (digest, key string, err error) {
	if isDigest(name) {
		if _, ok := s.index.Images[name]; ok {
			return name, "", nil
		}
		return "", "", noImage(name)
	}
	if isShort(name) {
		for d := range s.index.Images {
			if strings.HasPrefix(hexOf(d), name) {
				if digest != "" {
					return "", "", sandbox.Errorf(sandbox.Invalid, "image", "%q is the beginning of several digests", name).WithHint("give more of it")
				}
				digest = d
			}
		}
		if digest != "" {
			return digest, "", nil
		}
	}
	ref, err := parse(name)
	if err != nil {
		return "", "", err
	}
	key = familiar(ref)
	if d, ok := s.index.Names[key]; ok {
		return d, key, nil
	}
	return "", "", noImage(name)
}

func noImage(name string) error {
	return sandbox.Errorf(sandbox.NotExist, "image", "there is no image %q here", name).WithHint("pull or import it first")
}

// imageLocked is the image with that digest, which is there.
func (s *Store) imageLocked(digest, name string) Image {
	r := s.index.Images[digest]
	img := Image{Name: name, Digest: digest, Manifest: r.Manifest, Platform: r.Platform, Config: r.Config.clone(), Created: r.Created, Used: r.Used}
	for n, d := range s.index.Names {
		if d == digest {
			img.Names = append(img.Names, n)
		}
	}
	slices.Sort(img.Names)
	if img.Name == "" {
		img.Name = digest
		if len(img.Names) > 0 {
			img.Name = img.Names[0]
		}
	}
	counted := make(map[string]bool)
	for _, l := range r.Layers {
		f := s.have[l]
		img.Layers = append(img.Layers, Layer{DiffID: l, Dir: s.path("layers", hexOf(l), "fs"), Size: f.Size, Facts: f})
		if !counted[l] {
			img.Size += f.Size
		}
		counted[l] = true
	}
	return img
}

// Get returns the image of that name: "python:3.12", a digest, or the first 12
// digits or more of one. One that is not there is [sandbox.NotExist] with Field
// "image".
func (s *Store) Get(name string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, key, err := s.findLocked(name)
	if err != nil {
		return Image{}, err
	}
	return s.imageLocked(digest, key), nil
}

// List returns all images, the last used first.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Image
	for digest := range s.index.Images {
		all = append(all, s.imageLocked(digest, ""))
	}
	slices.SortFunc(all, func(a, b Image) int { return cmp.Or(b.Used.Compare(a.Used), cmp.Compare(a.Digest, b.Digest)) })
	return all
}

// RawConfig returns the image's configuration as it came, JSON whose SHA-256
// is the image's digest.
func (s *Store) RawConfig(name string) ([]byte, error) {
	img, err := s.Get(name)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(s.path("configs", hexOf(img.Digest)))
	if err == nil && digestBytes(b) != img.Digest {
		err = fmt.Errorf("the configuration of %s has changed on the disk", img.Digest)
	}
	return b, err
}

// Tag gives the image another name. An image that had that name loses it.
func (s *Store) Tag(name, as string) error {
	as, err := newName(as)
	if err != nil {
		return err
	}
	return s.change(func(x *index) error {
		digest, _, err := s.findLocked(name)
		if err != nil {
			return err
		}
		x.Names[as] = digest
		return nil
	})
}

// Remove takes the name from its image, and deletes an image that has no other
// name, with the layers that no other image has. Given a digest, it deletes the
// image with all its names. One that is in use is [sandbox.Conflict].
func (s *Store) Remove(name string) error {
	var gone []string
	err := s.change(func(x *index) error {
		digest, key, err := s.findLocked(name)
		if err != nil {
			return err
		}
		if key != "" {
			delete(x.Names, key)
			for _, d := range x.Names {
				if d == digest {
					return nil
				}
			}
		}
		if n := len(s.pins[digest]); n > 0 {
			return sandbox.Errorf(sandbox.Conflict, "image", "%q is in use by %d", name, n).WithHint("remove the sandboxes that use it first")
		}
		gone = x.forget(digest)
		return nil
	})
	if err != nil {
		return err
	}
	_, err = s.deleteLayers(gone)
	return err
}

// forget takes an image from the index and returns its layers.
func (x *index) forget(digest string) []string {
	layers := x.Images[digest].Layers
	delete(x.Images, digest)
	maps.DeleteFunc(x.Names, func(_, d string) bool { return d == digest })
	return layers
}

// Pruned says what [Store.Prune] deleted.
type Pruned struct {
	Images []string // their names, or the digests of those without
	Bytes  int64    // of layers
}

// Prune deletes what nothing uses: images without a name, with all set those
// with names too, and what pulls that failed left.
func (s *Store) Prune(all bool) (Pruned, error) {
	var out Pruned
	err := s.change(func(x *index) error {
		named := make(map[string]bool)
		for _, d := range x.Names {
			named[d] = true
		}
		for _, digest := range slices.Sorted(maps.Keys(x.Images)) {
			if len(s.pins[digest]) == 0 && (all || !named[digest]) && !s.busyLocked(digest) {
				out.Images = append(out.Images, s.imageLocked(digest, "").Name)
				x.forget(digest)
			}
		}
		return nil
	})
	if err != nil {
		return Pruned{}, err
	}
	s.mu.Lock()
	layers := slices.Collect(maps.Keys(s.have))
	s.mu.Unlock()
	out.Bytes, err = s.deleteLayers(layers)
	if err != nil {
		return out, err
	}
	parts, err := os.ReadDir(s.path("blobs"))
	for _, p := range parts {
		_, diff, _ := strings.Cut(p.Name(), "-")
		s.mu.Lock()
		if s.busy["sha256:"+diff] == 0 {
			if st, err := p.Info(); err == nil && os.Remove(s.path("blobs", p.Name())) == nil {
				out.Bytes += st.Size()
			}
		}
		s.mu.Unlock()
	}
	return out, err
}

// busyLocked reports whether somebody is about to refer to a layer of the image.
func (s *Store) busyLocked(digest string) bool {
	return slices.ContainsFunc(s.index.Images[digest].Layers, func(l string) bool { return s.busy[l] > 0 })
}

// referredLocked returns the layers that images have.
func (s *Store) referredLocked() map[string]struct{} {
	used := make(map[string]struct{})
	for _, r := range s.index.Images {
		for _, l := range r.Layers {
			used[l] = struct{}{}
		}
	}
	return used
}

// deleteLayers deletes those of the layers that no image has and nobody is
// about to use.
func (s *Store) deleteLayers(layers []string) (freed int64, err error) {
	var doomed []string
	s.mu.Lock()
	used := s.referredLocked()
	for _, l := range layers {
		f, there := s.have[l]
		if _, ok := used[l]; ok || !there || s.busy[l] > 0 {
			continue
		}
		// Whoever needs it from now on makes it anew, while this one goes.
		trash := s.path("tmp", fmt.Sprintf("gone-%s-%d", hexOf(l), time.Now().UnixNano()))
		if e := os.Rename(s.path("layers", hexOf(l)), trash); e != nil {
			err = cmp.Or(err, e)
			continue
		}
		delete(s.have, l)
		freed += f.Size
		doomed = append(doomed, trash)
	}
	s.mu.Unlock()
	for _, dir := range doomed {
		if e := removeTree(dir); e != nil {
			err = cmp.Or(err, e)
		}
	}
	return freed, err
}

// hold keeps layers from being deleted while an image is made of them.
func (s *Store) hold(layers []string) (letGo func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range layers {
		s.busy[l]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range layers {
			if s.busy[l]--; s.busy[l] == 0 {
				delete(s.busy, l)
			}
		}
	}
}

// totalLocked is what all layers take.
func (s *Store) totalLocked() (n int64) {
	for _, f := range s.have {
		n += f.Size
	}
	return n
}

// makeRoom deletes what nothing uses until the layers take no more than they
// may. The layers that are held stay.
func (s *Store) makeRoom() error {
	if s.opt.MaxBytes == 0 {
		return nil
	}
	over := func() bool { return s.totalLocked() > s.opt.MaxBytes }
	s.mu.Lock()
	if !over() {
		s.mu.Unlock()
		return nil
	}
	loose := slices.Collect(maps.Keys(s.have))
	s.mu.Unlock()
	if _, err := s.deleteLayers(loose); err != nil {
		return err
	}
	for {
		var layers []string
		enough, none := false, false
		err := s.change(func(x *index) error {
			if enough = !over(); enough {
				return nil
			}
			var oldest string
			for digest, r := range x.Images {
				if len(s.pins[digest]) == 0 && !s.busyLocked(digest) && (oldest == "" || r.Used.Before(x.Images[oldest].Used)) {
					oldest = digest
				}
			}
			if none = oldest == ""; none {
				return nil
			}
			s.log.Info("an image that nothing uses makes room", "image", s.imageLocked(oldest, "").Name)
			layers = x.forget(oldest)
			return nil
		})
		if err != nil || enough {
			return err
		}
		if none {
			return sandbox.Errorf(sandbox.Exhausted, "image", "there is no room for the image: what is in use fills the store").WithHint("remove sandboxes of other images, or raise the store's bound")
		}
		if _, err := s.deleteLayers(layers); err != nil {
			return err
		}
	}
}

// afterFailure deletes the layers of an image that did not come to be, if they
// are more than there may be. Otherwise they wait for another attempt.
func (s *Store) afterFailure() {
	s.mu.Lock()
	var loose []string
	if s.opt.MaxBytes > 0 && s.totalLocked() > s.opt.MaxBytes {
		loose = slices.Collect(maps.Keys(s.have))
	}
	s.mu.Unlock()
	if _, err := s.deleteLayers(loose); err != nil {
		s.log.Warn("layers of an image that failed cannot be deleted", "err", err)
	}
}

// record adds an image of layers that are there and held.
func (s *Store) record(raw []byte, manifest string, names []string) (string, error) {
	cf, err := readConfig(raw)
	if err != nil {
		return "", err
	}
	digest := digestBytes(raw)
	if err := s.makeRoom(); err != nil {
		return "", err
	}
	file := s.path("configs", hexOf(digest))
	if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, raw) {
		if err := writeFile(file, raw); err != nil {
			return "", classify(err)
		}
	}
	return digest, s.change(func(x *index) error {
		r := record{Manifest: manifest, Platform: platformOf(cf).String(), Config: configOf(cf.Config), Created: cf.Created.UTC(), Used: time.Now().UTC()}
		if r.Manifest == "" {
			r.Manifest = x.Images[digest].Manifest
		}
		for _, d := range cf.RootFS.DiffIDs {
			if _, ok := s.have[d.String()]; !ok {
				return fmt.Errorf("layer %v is not there", d)
			}
			r.Layers = append(r.Layers, d.String())
		}
		x.Images[digest] = r
		for _, n := range names {
			x.Names[n] = digest
		}
		return nil
	})
}

// readConfig reads and checks an image's configuration.
func readConfig(raw []byte) (*v1.ConfigFile, error) {
	if len(raw) > maxJSON {
		return nil, bomb("its configuration has more than %d bytes", maxJSON)
	}
	cf, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: "its configuration cannot be read", Err: err}
	}
	if cf.RootFS.Type != "" && cf.RootFS.Type != "layers" {
		return nil, sandbox.Errorf(sandbox.Unsupported, "image", "it is not made of layers")
	}
	if len(cf.RootFS.DiffIDs) > maxLayers {
		return nil, bomb("it has more than %d layers", maxLayers)
	}
	for _, d := range cf.RootFS.DiffIDs {
		if !isDigest(d.String()) {
			return nil, malformed("%q is not the digest of a layer", d)
		}
	}
	return cf, nil
}

func platformOf(cf *v1.ConfigFile) v1.Platform {
	p := v1.Platform{OS: cf.OS, Architecture: cf.Architecture, Variant: cf.Variant}
	p.OS = cmp.Or(p.OS, "linux")
	p.Architecture = cmp.Or(p.Architecture, runtime.GOARCH)
	return p
}

// addLayer unpacks a layer and puts it among the others, unless it is there.
// want is its DiffID, "" if that is not known; the layer then is held, until
// letGo is called.
func (s *Store) addLayer(ctx context.Context, src io.Reader, want string, b Bounds) (diffID string, letGo func(), err error) {
	tmp, err := os.MkdirTemp(s.path("tmp"), "layer-")
	if err != nil {
		return "", nil, classify(err)
	}
	defer func() {
		if e := removeTree(tmp); e != nil {
			s.log.Warn("what is left of a layer cannot be deleted", "folder", tmp, "err", e)
		}
	}()
	root := filepath.Join(tmp, "fs")
	if err := os.Mkdir(root, 0o700); err != nil {
		return "", nil, classify(err)
	}
	diffID, facts, owners, err := unpack(ctx, src, root, b)
	if err != nil {
		return "", nil, err
	}
	if want != "" && diffID != want {
		return "", nil, malformed("a layer is not what the image's configuration says: its content has the digest %s, not %s", diffID, want)
	}
	if err := writeOwners(filepath.Join(tmp, "owners"), owners); err != nil {
		return "", nil, classify(err)
	}
	meta, err := json.Marshal(facts)
	if err != nil {
		return "", nil, err
	}
	if err := writeFile(filepath.Join(tmp, "meta.json"), meta); err != nil {
		return "", nil, classify(err)
	}
	letGo = s.hold([]string{diffID})
	s.mu.Lock()
	_, there := s.have[diffID]
	if !there {
		if err = os.Rename(tmp, s.path("layers", hexOf(diffID))); err == nil {
			s.have[diffID] = facts
		}
	}
	s.mu.Unlock()
	if err == nil && !there {
		err = syncDir(s.path("layers"))
	}
	if err != nil {
		letGo()
		return "", nil, classify(err)
	}
	return diffID, letGo, nil
}

// has reports whether the layer is there.
func (s *Store) has(diffID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.have[diffID]
	return ok
}
