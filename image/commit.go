package image

import (
	"context"
	"crypto/sha256"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/atoll-run/atoll/sandbox"
)

// CommitOptions say what a new image is made of.
type CommitOptions struct {
	Base string // what is below: an image's name or digest; "" for nothing

	// Layer is the tar of what changed, as OCI has it: what is gone is an empty
	// file .wh.NAME. It may be compressed.
	Layer io.Reader

	// Config changes the configuration of the base, if it is not nil.
	Config func(*Config)

	Name    string // of the new image; "" leaves it without one
	Comment string // for the image's history
}

// Commit makes an image of another and one more layer. It cannot end while
// Layer blocks: when ctx ends, the caller makes that fail.
func (s *Store) Commit(ctx context.Context, opt CommitOptions) (Image, error) {
	img, err := s.commit(ctx, opt)
	return img, sandbox.At("image.Commit", "", err)
}

func (s *Store) commit(ctx context.Context, opt CommitOptions) (Image, error) {
	done, err := s.begin()
	if err != nil {
		return Image{}, err
	}
	defer done()
	if opt.Layer == nil {
		return Image{}, sandbox.Errorf(sandbox.Invalid, "layer", "there is none")
	}
	name := opt.Name
	if name != "" {
		if name, err = newName(name); err != nil {
			return Image{}, err
		}
	}
	cf := &v1.ConfigFile{OS: s.platform.OS, Architecture: s.platform.Architecture, Variant: s.platform.Variant}
	var below []string
	if opt.Base != "" {
		raw, err := s.RawConfig(opt.Base)
		if err != nil {
			return Image{}, err
		}
		if cf, err = readConfig(raw); err != nil {
			return Image{}, err
		}
		for _, d := range cf.RootFS.DiffIDs {
			below = append(below, d.String())
		}
	}
	if opt.Config != nil {
		c := configOf(cf.Config).clone()
		opt.Config(&c)
		c.apply(&cf.Config)
	}
	img, err := s.addOn(ctx, cf, below, opt.Layer, opt.Comment, name)
	if err != nil {
		s.afterFailure()
	}
	return img, err
}

// apply puts c into an image's configuration, and leaves the rest of that as
// it is.
func (c Config) apply(to *v1.Config) {
	to.Env, to.Entrypoint, to.Cmd, to.User, to.WorkingDir, to.Labels = c.Env, c.Entrypoint, c.Cmd, c.User, c.Workdir, c.Labels
	to.ExposedPorts = nil
	for _, p := range slices.Compact(slices.Clone(c.ExposedPorts)) {
		if to.ExposedPorts == nil {
			to.ExposedPorts = make(map[string]struct{})
		}
		to.ExposedPorts[p] = struct{}{}
	}
}

// hashOf reads all of r and returns its digest.
func hashOf(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	buf := make([]byte, 256<<10)
	for {
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return digestOf(h), nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return "", err
		}
	}
}
