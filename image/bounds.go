package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/atoll-run/atoll/sandbox"
)

// What a layer may have, whatever the operator says.
const (
	maxName   = 4095 // bytes of a path, and of a link's target, as in Linux
	maxPart   = 255  // bytes of one element of a path, likewise
	maxDepth  = 256  // elements of a path, links on the way followed
	maxLinks  = 40   // links that one name may lead through, as in Linux
	maxXattr  = 64 << 10
	maxLayers = 500 // as many as an overlay takes
	maxJSON   = 8 << 20
)

// Bounds are what an image may cost. What is over one is refused with
// [sandbox.Exhausted].
type Bounds struct {
	Layer   int64 // bytes of a layer's files, holes counted; 0 is 16 GiB
	Image   int64 // bytes of all layers of an image; 0 is 64 GiB
	Entries int   // of a layer; 0 is 2,000,000
	Ratio   int   // how much larger than its compressed form a layer may be, once it has more than 256 MiB; 0 is 200
}

// slack is what a layer may have before its ratio counts: a small one that
// compresses well costs nobody anything.
const slack = 256 << 20

func (b *Bounds) setDefaults() error {
	if b.Layer < 0 || b.Image < 0 || b.Entries < 0 || b.Ratio < 0 {
		return sandbox.Errorf(sandbox.Invalid, "bounds", "a bound is less than 0")
	}
	if b.Layer == 0 {
		b.Layer = 16 << 30
	}
	if b.Image == 0 {
		b.Image = 64 << 30
	}
	if b.Entries == 0 {
		b.Entries = 2_000_000
	}
	if b.Ratio == 0 {
		b.Ratio = 200
	}
	return nil
}

// A bomb is the error of what is over a bound.
func bomb(format string, args ...any) *sandbox.Error {
	return sandbox.Errorf(sandbox.Exhausted, "image", format, args...)
}

// malformed is the error of an image that is not as it must be.
func malformed(format string, args ...any) *sandbox.Error {
	return sandbox.Errorf(sandbox.Invalid, "image", format, args...)
}

// entryName returns where in the layer the entry goes: a relative path without
// "." and ".." and without links being looked at, "." for the layer's root. An
// absolute name counts from the root, as docker does it.
func entryName(name string) (string, error) {
	if len(name) > maxName {
		return "", malformed("a name in a layer has %d bytes; %d is the most", len(name), maxName)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", malformed("a name in a layer has a NUL byte")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return "", malformed("a name in a layer leads upwards: %q", name)
		case len(part) > maxPart:
			return "", malformed("a name in a layer has an element of %d bytes; %d is the most", len(part), maxPart)
		case part != "" && part != ".":
			depth++
		}
	}
	if depth > maxDepth {
		return "", tooDeep(name)
	}
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return ".", nil
	}
	return name, nil
}

func tooDeep(name string) error {
	return bomb("a path in a layer has more than %d elements: %.60q…", maxDepth, name)
}

// The prefix of whiteouts, and the one that hides all that is below.
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
)

// whiteout looks whether an entry's last element stands for something else.
// hides is what it hides in the layers below, "" for nothing (aufs left other
// notes of its own in layers).
func whiteout(base string) (is, opaque bool, hides string, err error) {
	switch {
	case !strings.HasPrefix(base, whiteoutPrefix):
		return false, false, "", nil
	case base == opaqueMarker:
		return true, true, "", nil
	case strings.HasPrefix(base, whiteoutPrefix+whiteoutPrefix):
		return true, false, "", nil
	}
	switch hides = base[len(whiteoutPrefix):]; hides {
	case "", ".", "..":
		return true, false, "", malformed("a layer hides %q", hides)
	}
	return true, false, hides, nil
}

// classify gives errors of the disk their kind.
func classify(err error) error {
	var e *sandbox.Error
	switch {
	case err == nil || errors.As(err, &e):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &sandbox.Error{Kind: sandbox.Exhausted, Field: "image", Msg: "there is no room left for the image", Hint: "delete images that nothing uses", Err: err}
	case errors.Is(err, syscall.EMLINK):
		return &sandbox.Error{Kind: sandbox.Exhausted, Field: "image", Msg: "a file of the image has more names than the file system can give it", Err: err}
	case errors.Is(err, syscall.ENAMETOOLONG):
		return &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: "a name in a layer is too long for the file system", Err: err}
	}
	return err
}

// badTar gives an error of a tar reader its kind.
func badTar(err error) error {
	if sandbox.KindOf(err) != sandbox.Internal {
		return err
	}
	var p *fs.PathError
	if errors.As(err, &p) {
		return err // of the disk
	}
	return &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: "a layer is not a sound tar archive", Err: err}
}

// A limitedCount fails once more than left was added.
type limitedCount struct {
	left int64
	what string
}

func (c *limitedCount) add(n int64) error {
	if n < 0 || n > c.left {
		return bomb("%s", c.what)
	}
	c.left -= n
	return nil
}

func newCount(most int64, format string) *limitedCount {
	return &limitedCount{most, fmt.Sprintf(format, most)}
}
