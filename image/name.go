package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/atoll-run/atoll/sandbox"
)

// maxRef is how long a name may be.
const maxRef = 512

// parse reads a name as docker does: "python", "python:3.12",
// "ghcr.io/owner/name@sha256:…".
func parse(s string) (name.Reference, error) {
	if len(s) > maxRef {
		return nil, sandbox.Errorf(sandbox.Invalid, "image", "the name has %d bytes; %d is the most", len(s), maxRef)
	}
	ref, err := name.ParseReference(s)
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: fmt.Sprintf("%q is not the name of an image", s),
			Hint: "like python:3.12 or ghcr.io/owner/name:tag, without capitals", Err: err}
	}
	return ref, nil
}

// familiar is a reference as people write it, and what a store has it under.
func familiar(ref name.Reference) string {
	repo, reg := ref.Context().RepositoryStr(), ref.Context().RegistryStr()
	if reg == name.DefaultRegistry {
		repo = strings.TrimPrefix(repo, "library/")
	} else {
		repo = reg + "/" + repo
	}
	if d, ok := ref.(name.Digest); ok {
		return repo + "@" + d.DigestStr()
	}
	return repo + ":" + ref.Identifier()
}

// newName checks a name that somebody gives to an image.
func newName(s string) (string, error) {
	ref, err := parse(s)
	if err != nil {
		return "", err
	}
	if _, ok := ref.(name.Digest); ok {
		return "", sandbox.Errorf(sandbox.Invalid, "name", "a name cannot have a digest").WithHint("give it a tag: name:tag")
	}
	f := familiar(ref)
	if f == "host:latest" || isDigest(s) || isShort(s) {
		return "", sandbox.Errorf(sandbox.Invalid, "name", "%q has a meaning of its own", s)
	}
	return f, nil
}

// isDigest reports whether s is "sha256:" and 64 hexadecimal digits.
func isDigest(s string) bool {
	h, ok := strings.CutPrefix(s, "sha256:")
	return ok && len(h) == 64 && isHex(h)
}

// isShort reports whether s is the beginning of a digest, as lists show it.
func isShort(s string) bool { return len(s) >= 12 && len(s) <= 64 && isHex(s) }

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// hexOf is what a digest is called on the disk.
func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

func digestBytes(b []byte) string {
	h := sha256.New()
	h.Write(b)
	return digestOf(h)
}
