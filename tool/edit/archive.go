package edit

import (
	"path"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A Format is a kind of archive.
type Format string

const (
	Tar     Format = "tar"
	TarGzip Format = "tar.gz"
	Zip     Format = "zip"
)

func badFormat(f Format) error {
	return sandbox.Errorf(sandbox.Invalid, "format", "%q is not a kind of archive", string(f)).WithHint("use %s, %s or %s", Tar, TarGzip, Zip)
}

// A Skipped is what was left out of an archive, or of a directory.
type Skipped struct {
	Path string // relative to the directory, or as the archive has it
	Why  string // a few words
}

// maxSkipped is how many are told by name.
const maxSkipped = 1000

// An Omission counts what was left out, and names the first 1000.
type Omission struct {
	Count int
	First []Skipped
}

func (o *Omission) add(path, why string) {
	if o.Count++; len(o.First) < maxSkipped {
		o.First = append(o.First, Skipped{path, why})
	}
}

func (o *Omission) join(more Omission) {
	o.Count += more.Count
	o.First = append(o.First, more.First[:min(len(more.First), maxSkipped-len(o.First))]...)
}

// entryName returns the clean relative path that an archive's entry is for, ""
// for the directory itself. It refuses whatever could be for another place.
func entryName(name string, format Format, depth int) (string, error) {
	bad := func(what string) error {
		shown, _ := clip([]byte(name), 200)
		return sandbox.Errorf(sandbox.Invalid, "archive", "the name %q %s", shown, what).WithHint("make the archive from within the directory, with plain relative names")
	}
	switch {
	case name == "":
		return "", bad("is empty")
	case strings.IndexByte(name, 0) >= 0:
		return "", bad("has a NUL byte")
	case name[0] == '/':
		return "", bad("is absolute")
	// A backslash is a character like others here, but where zip archives
	// come from it may be meant as a slash.
	case format == Zip && strings.IndexByte(name, '\\') >= 0:
		return "", bad("has a backslash")
	case format == Zip && len(name) >= 2 && name[1] == ':':
		return "", bad("has a drive letter")
	}
	n := 0
	for e := range strings.SplitSeq(name, "/") {
		switch {
		case e == "..":
			return "", bad("has an element ..")
		case len(e) > 255:
			return "", bad("has an element of more than 255 bytes")
		case e != "" && e != ".":
			n++
		}
	}
	if n > depth {
		return "", bad("is too deep")
	}
	clean := path.Clean(name)
	if clean == "." {
		return "", nil
	}
	return clean, nil
}
