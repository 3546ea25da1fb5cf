package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// PullOptions say what to pull. The zero value pulls what is not here.
type PullOptions struct {
	Platform string         // of an image with several: "linux/arm64"; "" is the store's
	Progress func(Progress) // is told what happens, by one goroutine at a time, until Pull returns; it must be quick
	Always   bool           // asks the registry even if an image of that name is here, for a tag that moved
}

// A Phase is what is being done with a layer.
type Phase string

const (
	Waiting     Phase = "waiting"     // for its turn
	Downloading Phase = "downloading" // Done of Total bytes are here
	Unpacking   Phase = "unpacking"
	Ready       Phase = "ready" // also if it was here before
)

// Progress says how far a layer of an image is.
type Progress struct {
	Layer string // its digest in the registry
	Phase Phase
	Done  int64 // bytes
	Total int64 // bytes, compressed
}

// Pull fetches the image of that name from its registry, unless it is here:
// "python", "python:3.12", "ghcr.io/owner/name@sha256:…". A digest is
// verified, and so is every layer, as it comes and as it is unpacked. Layers
// that are here are not fetched, and parts of layers that came before an
// interruption are not fetched again. Pulls of one image at the same time do
// the work once. Who wants a bound in time sets one with ctx.
//
// Errors: [sandbox.NotExist] with Field "image" if there is no such image, or
// none for the platform; [sandbox.Denied] if the registry does not give it to
// us; [sandbox.Unavailable] if it cannot be reached, or has no time;
// [sandbox.Invalid] if what it gives is malformed or not what its digest says;
// [sandbox.Exhausted] if it is over a bound.
func (s *Store) Pull(ctx context.Context, image string, opt PullOptions) (Image, error) {
	img, err := s.pull(ctx, image, opt)
	return img, sandbox.At("image.Pull", "", err)
}

func (s *Store) pull(ctx context.Context, image string, opt PullOptions) (Image, error) {
	done, err := s.begin()
	if err != nil {
		return Image{}, err
	}
	defer done()
	platform := s.platform
	if opt.Platform != "" {
		if platform, err = parsePlatform(opt.Platform); err != nil {
			return Image{}, err
		}
	}
	if !opt.Always || isDigest(image) {
		img, err := s.Get(image)
		if err == nil && (isDigest(image) || suits(img.Platform, platform)) {
			return img, nil
		}
		if isDigest(image) {
			return Image{}, cmp.Or(err, noImage(image)) // which registry has it, nobody says
		}
	}
	ref, err := parse(image)
	if err != nil {
		return Image{}, err
	}
	digest, _, err := s.pulls.do(ctx, s.life, familiar(ref)+" "+platform.String(), opt.Progress, func(ctx context.Context, tell func(Progress)) (string, error) {
		digest, err := s.fetch(ctx, ref, platform, tell)
		if err != nil {
			s.afterFailure()
		}
		return digest, err
	})
	if err != nil {
		if s.life.Err() != nil {
			err = errClosed()
		}
		return Image{}, err
	}
	img, err := s.Get(digest)
	img.Name = familiar(ref)
	return img, err
}

// suits reports whether an image of the platform have runs where want is
// wanted.
func suits(have string, want v1.Platform) bool {
	p, err := v1.ParsePlatform(have)
	return err == nil && matches(*p, want)
}

func matches(p, want v1.Platform) bool {
	if p.OS != want.OS || p.Architecture != want.Architecture {
		return false
	}
	// arm64 is v8 unless it says otherwise; whoever names no variant takes any.
	return p.Variant == want.Variant || p.Variant == "" || want.Variant == ""
}

// fetch does what Pull promises, and returns the image's digest.
func (s *Store) fetch(ctx context.Context, ref name.Reference, platform v1.Platform, tell func(Progress)) (string, error) {
	var m *v1.Manifest
	var raw []byte
	var digest string
	from, err := s.ask(ctx, ref, func(from *origin) (err error) {
		m, digest, err = from.image(ctx, ref.Identifier(), platform, 0)
		if err != nil {
			return err
		}
		raw, err = from.small(ctx, m.Config)
		return err
	})
	if err != nil {
		return "", err
	}
	cf, err := readConfig(raw)
	if err != nil {
		return "", err
	}
	if cf.Architecture != "" && !matches(platformOf(cf), platform) {
		return "", wrongPlatform(ref.String(), platform, []string{platformOf(cf).String()})
	}
	if len(cf.RootFS.DiffIDs) != len(m.Layers) {
		return "", malformed("it has %d layers, and its configuration %d", len(m.Layers), len(cf.RootFS.DiffIDs))
	}
	if len(m.Layers) == 0 {
		return "", malformed("it has no layers")
	}
	diffs := make([]string, len(m.Layers))
	for i, d := range cf.RootFS.DiffIDs {
		diffs[i] = d.String()
	}
	defer s.hold(diffs)()
	if err := s.fetchLayers(ctx, from, m.Layers, diffs, tell); err != nil {
		return "", err
	}
	return s.record(raw, digest, []string{familiar(ref)})
}

// fetchLayers sees to it that all layers are here.
func (s *Store) fetchLayers(ctx context.Context, from *origin, layers []v1.Descriptor, diffs []string, tell func(Progress)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	started := make(map[string]bool)
	for i, l := range layers {
		if started[diffs[i]] {
			continue
		}
		started[diffs[i]] = true
		wg.Go(func() {
			err := s.fetchLayer(ctx, from, l, diffs[i], tell)
			if err == nil {
				tell(Progress{Layer: l.Digest.String(), Phase: Ready, Done: l.Size, Total: l.Size})
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = err
				cancel(err)
			}
		})
	}
	wg.Wait()
	if first != nil {
		return first
	}
	var all int64
	s.mu.Lock()
	for d := range started {
		all += s.have[d].Size
	}
	s.mu.Unlock()
	if all > s.opt.Bounds.Image {
		return bomb("its layers have more than %d bytes", s.opt.Bounds.Image)
	}
	return nil
}

func (s *Store) fetchLayer(ctx context.Context, from *origin, l v1.Descriptor, diff string, tell func(Progress)) error {
	if err := checkLayer(l, s.opt.Bounds); err != nil {
		return err
	}
	for {
		if s.has(diff) {
			return nil
		}
		_, joined, err := s.layers.do(ctx, s.life, diff, tell, func(ctx context.Context, tell func(Progress)) (struct{}, error) {
			if s.has(diff) {
				return struct{}{}, nil
			}
			p := Progress{Layer: l.Digest.String(), Phase: Waiting, Total: l.Size}
			tell(p)
			select {
			case s.room <- struct{}{}:
				defer func() { <-s.room }()
			case <-ctx.Done():
				return struct{}{}, context.Cause(ctx)
			}
			f, err := from.blob(ctx, l, diff, tell)
			if err != nil {
				return struct{}{}, err
			}
			defer f.Close()
			p.Phase, p.Done = Unpacking, l.Size
			tell(p)
			_, letGo, err := s.addLayer(ctx, f, diff, s.opt.Bounds)
			if err == nil {
				letGo()
			}
			if err == nil || ctx.Err() == nil {
				f.remove() // also if it cannot be unpacked: it would be the same again
			}
			return struct{}{}, err
		})
		// What went wrong for another, who may ask elsewhere or not be let in,
		// need not go wrong for us.
		if err == nil || !joined || ctx.Err() != nil || s.life.Err() != nil {
			return err
		}
	}
}

// checkLayer refuses what is no layer, and what is too large, before it is
// fetched. How it is compressed shows when it is there.
func checkLayer(l v1.Descriptor, b Bounds) error {
	switch mt := string(l.MediaType); {
	case strings.Contains(mt, "encrypted"):
		return sandbox.Errorf(sandbox.Unsupported, "image", "its layers are encrypted")
	case !strings.Contains(mt, "tar") && !strings.Contains(mt, "rootfs"):
		return sandbox.Errorf(sandbox.Unsupported, "image", "it has a layer of type %.80q, which is no file system", mt).WithHint("it is not an image of a container")
	case !isDigest(l.Digest.String()):
		return sandbox.Errorf(sandbox.Unsupported, "image", "a layer has the digest %.80q", l.Digest)
	case l.Size < 0:
		return malformed("a layer has %d bytes", l.Size)
	case l.Size > b.Layer:
		return bomb("a layer has %d bytes; %d is the most", l.Size, b.Layer)
	}
	return nil
}

// image finds the manifest of what ref, a tag or a digest, means for the
// platform.
func (from *origin) image(ctx context.Context, ref string, platform v1.Platform, depth int) (*v1.Manifest, string, error) {
	raw, mt, err := from.manifest(ctx, ref)
	if err != nil {
		return nil, "", err
	}
	if mt == "" || mt == "application/json" || mt == "text/plain" {
		var kind struct {
			MediaType types.MediaType `json:"mediaType"`
			Manifests []any           `json:"manifests"`
		}
		if err := json.Unmarshal(raw, &kind); err != nil {
			return nil, "", badManifest(err)
		}
		if mt = kind.MediaType; mt == "" {
			mt = types.OCIManifestSchema1
			if kind.Manifests != nil {
				mt = types.OCIImageIndex
			}
		}
	}
	switch {
	case mt.IsIndex():
		if depth > 2 {
			return nil, "", malformed("its lists of platforms are nested too deep")
		}
		child, err := choose(raw, from.ref, platform)
		if err != nil {
			return nil, "", err
		}
		return from.image(ctx, child, platform, depth+1)
	case mt.IsImage():
		m, err := readManifest(raw)
		return m, digestBytes(raw), err
	}
	return nil, "", sandbox.Errorf(sandbox.Unsupported, "image", "its manifest is of type %.80q", mt).WithHint("it is not an image, or one from before 2016")
}

func badManifest(err error) error {
	return &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: "its manifest cannot be read", Err: err}
}

func readManifest(raw []byte) (*v1.Manifest, error) {
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, badManifest(err)
	}
	if ct := m.Config.MediaType; !ct.IsConfig() && ct != "" && ct != "application/octet-stream" {
		return nil, sandbox.Errorf(sandbox.Unsupported, "image", "it has %.80q and is no image of a container", ct)
	}
	if len(m.Layers) > maxLayers {
		return nil, bomb("it has more than %d layers", maxLayers)
	}
	if !isDigest(m.Config.Digest.String()) {
		return nil, malformed("its configuration has the digest %.80q", m.Config.Digest)
	}
	if m.Config.Size < 0 || m.Config.Size > maxJSON {
		return nil, bomb("its configuration has %d bytes; %d is the most", m.Config.Size, maxJSON)
	}
	return m, nil
}

// choose returns the digest of what suits the platform best.
func choose(raw []byte, image string, platform v1.Platform) (string, error) {
	x, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return "", badManifest(err)
	}
	var best *v1.Descriptor
	var offered []string
	for i, d := range x.Manifests {
		switch {
		case !d.MediaType.IsImage() && !d.MediaType.IsIndex() && d.MediaType != "":
			continue
		case d.Platform == nil:
			if len(x.Manifests) == 1 {
				best = &x.Manifests[i]
			}
			continue
		}
		if d.Platform.OS != "unknown" && len(offered) < 20 {
			offered = append(offered, d.Platform.String())
		}
		if matches(*d.Platform, platform) && (best == nil || d.Platform.Variant == platform.Variant && best.Platform != nil && best.Platform.Variant != platform.Variant) {
			best = &x.Manifests[i]
		}
	}
	if best == nil {
		return "", wrongPlatform(image, platform, offered)
	}
	if !isDigest(best.Digest.String()) {
		return "", malformed("it has the digest %.80q", best.Digest)
	}
	return best.Digest.String(), nil
}

func wrongPlatform(image string, want v1.Platform, have []string) error {
	slices.Sort(have)
	e := sandbox.Errorf(sandbox.NotExist, "image", "%q is not there for %v", image, want)
	if len(have) > 0 {
		e = e.WithHint("it is there for %s", strings.Join(slices.Compact(have), ", "))
	}
	return e
}

// ask tries the mirrors of the image's registry and then itself, until one
// does what is wanted.
func (s *Store) ask(ctx context.Context, ref name.Reference, do func(*origin) error) (*origin, error) {
	repo := ref.Context()
	var missed []error
	for _, m := range s.mirrors(repo.RegistryStr()) {
		reg, err := s.registry(m)
		if err == nil {
			var from *origin
			if from, err = s.origin(ctx, reg.Repo(strings.Split(repo.RepositoryStr(), "/")...), ref.String()); err == nil {
				if err = do(from); err == nil {
					return from, nil
				}
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		s.log.Warn("a mirror does not have an image, or cannot be asked", "mirror", m, "image", ref.String(), "err", err)
		missed = append(missed, fmt.Errorf("mirror %s: %w", m, err))
	}
	reg, err := s.registry(repo.RegistryStr())
	if err != nil {
		return nil, err
	}
	from, err := s.origin(ctx, reg.Repo(strings.Split(repo.RepositoryStr(), "/")...), ref.String())
	if err == nil {
		err = do(from)
	}
	if err != nil {
		var e *sandbox.Error
		if len(missed) > 0 && errors.As(err, &e) {
			c := *e
			c.Err = errors.Join(append([]error{c.Err}, missed...)...)
			err = &c
		}
		return nil, err
	}
	return from, nil
}

func (s *Store) mirrors(registry string) []string {
	if registry == name.DefaultRegistry {
		return slices.Concat(s.opt.Mirrors["docker.io"], s.opt.Mirrors[registry])
	}
	return s.opt.Mirrors[registry]
}
