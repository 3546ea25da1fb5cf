package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// Import reads images from an archive and returns them: what docker save
// writes, an OCI layout in a tar, or a root file system in a tar, which becomes
// an image of one layer; each as it is or compressed with gzip or zstd. What it
// is shows in it. What it says about its digests is verified.
//
// The images get the names that the archive has for them, or name, if that is
// not "": then the archive must have one image, or one of that name. A root
// file system needs a name. Of an image for several platforms, the store's is
// taken.
//
// Import cannot end while src blocks: when ctx ends, the caller makes src fail.
func (s *Store) Import(ctx context.Context, src io.Reader, name string) ([]Image, error) {
	img, err := s.importing(func() ([]Image, error) { return s.importFrom(ctx, src, name) })
	return img, sandbox.At("image.Import", "", err)
}

// ImportPath is Import of the archive, or of the folder with an OCI layout, at
// a path of this machine.
func (s *Store) ImportPath(ctx context.Context, file, name string) ([]Image, error) {
	img, err := s.importing(func() ([]Image, error) {
		f, err := os.Open(file)
		if err != nil {
			return nil, noFile(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			return s.importFrom(ctx, f, name)
		}
		root, err := os.OpenRoot(file)
		if err != nil {
			return nil, noFile(err)
		}
		defer root.Close()
		a := folder{root}
		if _, err := root.Stat("index.json"); err != nil {
			return nil, malformed("the folder has no OCI layout").WithHint("pack a root file system with tar, or use image dir:/path as it is")
		}
		return s.importLayout(ctx, a, name)
	})
	return img, sandbox.At("image.Import", "", err)
}

func (s *Store) importing(do func() ([]Image, error)) ([]Image, error) {
	done, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	img, err := do()
	if err != nil {
		s.afterFailure()
	}
	return img, err
}

func noFile(err error) error {
	e := &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: "it cannot be read", Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Kind, e.Msg = sandbox.NotExist, "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		e.Kind = sandbox.Denied
	}
	return e
}

// An archive has files by name. Who opens one closes it.
type archive interface {
	open(name string) (io.ReadCloser, int64, error)
}

type folder struct{ *os.Root }

func (f folder) open(name string) (io.ReadCloser, int64, error) {
	st, err := f.Stat(name) // a FIFO would block
	if err != nil || !st.Mode().IsRegular() {
		return nil, 0, malformed("it has no file %q", name)
	}
	file, err := f.Open(name)
	if err != nil {
		return nil, 0, &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: fmt.Sprintf("its file %q cannot be read", name), Err: err}
	}
	return file, st.Size(), nil
}

// A tarFile is an archive in a file that was spooled.
type tarFile struct {
	f     *os.File
	files map[string][2]int64 // where in f, and how long
	links map[string]string
}

func (t *tarFile) open(name string) (io.ReadCloser, int64, error) {
	for range 8 {
		if at, ok := t.files[name]; ok {
			return io.NopCloser(io.NewSectionReader(t.f, at[0], at[1])), at[1], nil
		}
		to, ok := t.links[name]
		if !ok {
			break
		}
		name = to
	}
	return nil, 0, malformed("it has no file %q", name)
}

// scan finds out where the files are.
func scan(ctx context.Context, f *os.File, most int) (*tarFile, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	t := &tarFile{f: f, files: make(map[string][2]int64), links: make(map[string]string)}
	r := tar.NewReader(f)
	for n := 0; ; n++ {
		hdr, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, badTar(err)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if n > most {
			return nil, bomb("it has more than %d entries", most)
		}
		name := strings.TrimPrefix(path.Clean("/"+hdr.Name), "/")
		if len(name) > 256 {
			continue // no part of an image has such a name
		}
		delete(t.files, name)
		delete(t.links, name)
		switch hdr.Typeflag {
		case tar.TypeReg:
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if sparse(hdr) {
				continue
			}
			t.files[name] = [2]int64{at, hdr.Size}
		case tar.TypeSymlink: // old versions of docker save each layer once
			t.links[name] = strings.TrimPrefix(path.Join("/", path.Dir(name), hdr.Linkname), "/")
		case tar.TypeLink:
			t.links[name] = strings.TrimPrefix(path.Clean("/"+hdr.Linkname), "/")
		}
	}
}

func sparse(hdr *tar.Header) bool {
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// spool copies src, decompressed, into a file without a name.
func (s *Store) spool(ctx context.Context, src io.Reader) (_ *os.File, digest string, err error) {
	f, err := os.CreateTemp(s.path("tmp"), "spool-")
	if err != nil {
		return nil, "", classify(err)
	}
	os.Remove(f.Name())
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	b := s.opt.Bounds
	b.Layer = b.Image
	in := newLayerStream(ctx, src, b)
	defer in.Close()
	if _, err := io.Copy(f, in); err != nil {
		return nil, "", classify(err)
	}
	<-in.ended
	return f, digestOf(in.hash), nil
}

func (s *Store) importFrom(ctx context.Context, src io.Reader, name string) ([]Image, error) {
	f, _, err := s.spool(ctx, src)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := scan(ctx, f, s.opt.Bounds.Entries)
	if err != nil {
		return nil, err
	}
	if _, ok := t.files["manifest.json"]; ok {
		if saved, ok := readSaved(t); ok {
			return s.importSaved(ctx, t, saved, name)
		}
	}
	_, isLayout := t.files["oci-layout"]
	if _, ok := t.files["index.json"]; ok && isLayout {
		return s.importLayout(ctx, t, name)
	}
	if len(t.files) == 0 && len(t.links) == 0 {
		return nil, malformed("it is an empty archive, or none")
	}
	return s.importRoot(ctx, f, name)
}

// read reads a small file.
func read(a archive, name string) ([]byte, error) {
	r, size, err := a.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxJSON {
		return nil, bomb("its file %q has %d bytes; %d is the most", name, size, maxJSON)
	}
	return io.ReadAll(io.LimitReader(r, maxJSON))
}

// saved is what docker save says about one image.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// readSaved tells a saved image from a root file system which has a file of
// that name.
func readSaved(a archive) ([]saved, bool) {
	b, err := read(a, "manifest.json")
	var all []saved
	if err != nil || json.Unmarshal(b, &all) != nil || len(all) == 0 {
		return nil, false
	}
	for _, m := range all {
		if m.Config == "" || m.Layers == nil {
			return nil, false
		}
	}
	return all, true
}

func (s *Store) importSaved(ctx context.Context, a archive, all []saved, name string) ([]Image, error) {
	tags := make([][]string, len(all))
	for i, m := range all {
		tags[i] = m.RepoTags
	}
	which, names, err := pick(tags, name)
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, i := range which {
		m := all[i]
		raw, err := read(a, path.Clean(m.Config))
		if err != nil {
			return nil, err
		}
		// Its name is its digest, with or without a folder or an ending.
		if base := strings.TrimPrefix(strings.TrimSuffix(path.Base(m.Config), ".json"), "sha256:"); len(base) == 64 && isHex(base) && digestBytes(raw) != "sha256:"+base {
			return nil, malformed("its configuration is not what its digest says")
		}
		digest, err := s.assemble(ctx, a, raw, m.Layers, "", names[i])
		if err != nil {
			return nil, err
		}
		img, err := s.Get(digest)
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	return out, nil
}

// pick says which of the images to take, and what their names are.
func pick(tags [][]string, name string) (which []int, names [][]string, err error) {
	names = make([][]string, len(tags))
	if name == "" {
		for i := range tags {
			which = append(which, i)
			for _, t := range tags[i] {
				n, err := newName(t)
				if err != nil {
					return nil, nil, err
				}
				names[i] = append(names[i], n)
			}
		}
		return which, names, nil
	}
	want, err := newName(name)
	if err != nil {
		return nil, nil, err
	}
	one := -1
	for i := range tags {
		if slices.ContainsFunc(tags[i], func(t string) bool { n, err := newName(t); return err == nil && n == want }) {
			one = i
		}
	}
	if one < 0 && len(tags) > 1 {
		return nil, nil, sandbox.Errorf(sandbox.Invalid, "name", "it has %d images, and none is %q", len(tags), name).WithHint("give no name to import all")
	}
	one = max(one, 0)
	names[one] = []string{want}
	return []int{one}, names, nil
}

// assemble adds an image whose layers are files of an archive.
func (s *Store) assemble(ctx context.Context, a archive, raw []byte, files []string, manifest string, names []string) (string, error) {
	cf, err := readConfig(raw)
	if err != nil {
		return "", err
	}
	if len(cf.RootFS.DiffIDs) != len(files) || len(files) == 0 {
		return "", malformed("it has %d layers, and its configuration %d", len(files), len(cf.RootFS.DiffIDs))
	}
	diffs := make([]string, len(files))
	for i, d := range cf.RootFS.DiffIDs {
		diffs[i] = d.String()
	}
	defer s.hold(diffs)()
	left := s.opt.Bounds.Image
	for i, file := range files {
		if !s.has(diffs[i]) {
			// At the same time as a pull of it, once.
			_, _, err := s.layers.do(ctx, s.life, diffs[i], nil, func(ctx context.Context, _ func(Progress)) (struct{}, error) {
				r, _, err := a.open(path.Clean(file))
				if err != nil {
					return struct{}{}, err
				}
				defer r.Close()
				b := s.opt.Bounds
				b.Layer = min(b.Layer, left)
				_, letGo, err := s.addLayer(ctx, r, diffs[i], b)
				if err == nil {
					letGo()
				}
				return struct{}{}, err
			})
			if err != nil {
				return "", err
			}
		}
		s.mu.Lock()
		left -= s.have[diffs[i]].Size
		s.mu.Unlock()
		if left < 0 {
			return "", bomb("its layers have more than %d bytes", s.opt.Bounds.Image)
		}
	}
	return s.record(raw, manifest, names)
}

// importLayout reads an OCI layout.
func (s *Store) importLayout(ctx context.Context, a archive, name string) ([]Image, error) {
	b, err := read(a, "index.json")
	if err != nil {
		return nil, err
	}
	x, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return nil, badManifest(err)
	}
	// Several manifests without a name, each for a platform, are one image.
	var list []v1.Descriptor
	var tags [][]string
	for _, d := range x.Manifests {
		if !d.MediaType.IsImage() && !d.MediaType.IsIndex() {
			continue
		}
		if tag := nameOf(d.Annotations); tag != "" {
			list, tags = append(list, d), append(tags, []string{tag})
		}
	}
	if len(list) == 0 {
		if len(x.Manifests) == 0 {
			return nil, malformed("it has no image")
		}
		digest := x.Manifests[0].Digest.String()
		if len(x.Manifests) > 1 {
			if digest, err = choose(b, "the layout", s.platform); err != nil {
				return nil, err
			}
		}
		hash, err := v1.NewHash(digest)
		if err != nil {
			return nil, malformed("it has the digest %.80q", digest)
		}
		list, tags = []v1.Descriptor{{Digest: hash}}, [][]string{nil}
	}
	which, names, err := pick(tags, name)
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, i := range which {
		m, digest, err := s.layoutImage(a, list[i].Digest.String(), 0)
		if err != nil {
			return nil, err
		}
		raw, err := readBlob(a, m.Config.Digest.String())
		if err != nil {
			return nil, err
		}
		var files []string
		for _, l := range m.Layers {
			if err := checkLayer(l, s.opt.Bounds); err != nil {
				return nil, err
			}
			if err := s.verify(ctx, a, l); err != nil {
				return nil, err
			}
			files = append(files, blobName(l.Digest.String()))
		}
		id, err := s.assemble(ctx, a, raw, files, digest, names[i])
		if err != nil {
			return nil, err
		}
		img, err := s.Get(id)
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	return out, nil
}

// nameOf returns the name that a layout has for an image: whole, as containerd
// and docker write it, or a tag alone, which names nothing.
func nameOf(annotations map[string]string) string {
	for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if n := annotations[key]; n != "" && (strings.ContainsAny(n, "/:") || key == "io.containerd.image.name") {
			if _, err := newName(n); err == nil {
				return n
			}
		}
	}
	return ""
}

func blobName(digest string) string { return "blobs/sha256/" + hexOf(digest) }

func readBlob(a archive, digest string) ([]byte, error) {
	if !isDigest(digest) {
		return nil, malformed("it has the digest %.80q", digest)
	}
	b, err := read(a, blobName(digest))
	if err == nil && digestBytes(b) != digest {
		err = malformed("what it has as %s is something else", digest)
	}
	return b, err
}

// verify reads a layer to see whether it is what it is said to be.
func (s *Store) verify(ctx context.Context, a archive, l v1.Descriptor) error {
	r, size, err := a.open(blobName(l.Digest.String()))
	if err != nil {
		return err
	}
	defer r.Close()
	if size != l.Size {
		return malformed("a layer has %d bytes, and its manifest says %d", size, l.Size)
	}
	digest, err := hashOf(ctx, r)
	if err == nil && digest != l.Digest.String() {
		err = malformed("a layer is not what its digest says")
	}
	return err
}

func (s *Store) layoutImage(a archive, digest string, depth int) (*v1.Manifest, string, error) {
	b, err := readBlob(a, digest)
	if err != nil {
		return nil, "", err
	}
	var kind struct {
		MediaType types.MediaType `json:"mediaType"`
		Manifests []any           `json:"manifests"`
	}
	if err := json.Unmarshal(b, &kind); err != nil {
		return nil, "", badManifest(err)
	}
	if kind.Manifests == nil && !kind.MediaType.IsIndex() {
		m, err := readManifest(b)
		return m, digest, err
	}
	if depth > 2 {
		return nil, "", malformed("its lists of platforms are nested too deep")
	}
	child, err := choose(b, "the layout", s.platform)
	if err != nil {
		return nil, "", err
	}
	return s.layoutImage(a, child, depth+1)
}

// importRoot makes an image of a root file system.
func (s *Store) importRoot(ctx context.Context, f *os.File, name string) ([]Image, error) {
	if name == "" {
		return nil, sandbox.Errorf(sandbox.Invalid, "name", "it is a root file system, which has no name").WithHint("give it one")
	}
	name, err := newName(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	cf := &v1.ConfigFile{OS: s.platform.OS, Architecture: s.platform.Architecture, Variant: s.platform.Variant}
	img, err := s.addOn(ctx, cf, nil, f, "imported", name)
	if err != nil {
		return nil, err
	}
	return []Image{img}, nil
}

// addOn adds an image of the layers below and one more.
func (s *Store) addOn(ctx context.Context, cf *v1.ConfigFile, below []string, layer io.Reader, how, name string) (Image, error) {
	defer s.hold(below)()
	diff, letGo, err := s.addLayer(ctx, layer, "", s.opt.Bounds)
	if err != nil {
		return Image{}, err
	}
	defer letGo()
	now := v1.Time{Time: time.Now().UTC().Truncate(time.Second)}
	hash, err := v1.NewHash(diff)
	if err != nil {
		return Image{}, err
	}
	cf.Created = now
	cf.RootFS.Type = "layers"
	cf.RootFS.DiffIDs = append(slices.Clone(cf.RootFS.DiffIDs), hash)
	if len(cf.RootFS.DiffIDs) > maxLayers {
		return Image{}, bomb("it has more than %d layers", maxLayers)
	}
	cf.History = append(slices.Clone(cf.History), v1.History{Created: now, CreatedBy: "atoll", Comment: how})
	raw, err := json.Marshal(cf)
	if err != nil {
		return Image{}, err
	}
	var names []string
	if name != "" {
		names = []string{name}
	}
	digest, err := s.record(raw, "", names)
	if err != nil {
		return Image{}, err
	}
	return s.Get(digest)
}
