// Package image keeps OCI images on this machine, with no daemon: it fetches
// them from registries, reads them from archives, unpacks each layer once, and
// shares it among all that use it. It runs nothing and mounts nothing; what a
// layer is on the disk is below, for those who do.
//
// # Layers
//
// A layer is a folder, made for overlayfs with the option userxattr: what the
// layer hides of those below it is a character device 0/0 (an ordinary user may
// make one, since Linux 5.8), a folder that hides all below it has
// user.overlay.opaque=y. Images are unpacked on Linux only.
//
// Layers come from strangers. A layer is unpacked without one link being
// followed by the kernel: where an entry's path leads through a link of its
// layer, the link's text is walked by hand, the layer's root being "/" and
// what is above it. Names with ".." and hard links to what is not a file of
// the same layer are refused. What is in a layer but cannot do harm as data
// (links to anywhere, /proc being a link) stays: whoever mounts it copes, see
// [Image.Odd].
//
//   - Device nodes and FIFOs are left out, and counted.
//   - Setuid and setgid bits are kept, and counted. Folders above a store's
//     layers can be entered by their owner alone, so that nobody on this
//     machine gets at them; whoever mounts a layer mounts it nosuid.
//   - Of extended attributes, user.* is kept but for user.overlay.*: no
//     capabilities, ACLs, labels or trusted attributes.
//   - As root, files belong to the image's own ids; an idmapped mount shifts
//     them. Without root all belong to the caller, and the ids that they should
//     have are in the file [Layer.Owners] reads. The same holds for single
//     files whose ids root cannot give in its user namespace.
//   - Times of modification are kept. A file's zeros are left out where there
//     are 64 KiB of them, aligned.
//   - A folder that has entries but none of its own gets 0755 and user 0 (/tmp,
//     /var/tmp and /dev/shm 1777, /root 0700): layers do not know those below.
//
// # The folder of a store
//
//	lock              held by the process that has it open
//	index.json        images and names
//	configs/HEX       the images' configurations, as they came
//	layers/HEX/fs     what DiffID HEX unpacks to; beside it meta.json, owners
//	pins/HOLDER@HEX   who uses what
//	blobs/            what was downloaded in part, to go on from there
//	tmp/              what is being made; emptied by Open
package image

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// An Image is what a store has under a name, or had when it was asked.
type Image struct {
	Name     string   // by which it was asked for, in its short form: "python:3.12"
	Names    []string // all, sorted; none for one whose names went to others
	Digest   string   // of its configuration, "sha256:…": what it is
	Manifest string   // digest of what its registry has; "" if it came from elsewhere
	Platform string   // "linux/amd64", "linux/arm64/v8"
	Layers   []Layer  // the lowest first
	Config   Config
	Size     int64     // bytes on the disk, of all layers, shared or not
	Created  time.Time // as the image says; zero if it does not
	Used     time.Time // when it was last used, pulled or imported
}

// A Config is what an image says about running it.
type Config struct {
	Env          []string // "NAME=value"
	Entrypoint   []string
	Cmd          []string
	User         string // "", "name", "1000", "name:group"; names are in the image's own /etc/passwd
	Workdir      string
	ExposedPorts []string // "8080/tcp", sorted
	Labels       map[string]string
}

// A Layer is one folder of an image's file system.
type Layer struct {
	DiffID string // digest of its tar, "sha256:…"
	Dir    string // absolute; not to be changed
	Size   int64  // bytes on the disk, about
	Facts  Facts
}

// Facts say what was in a layer's archive.
type Facts struct {
	Size      int64 `json:"size"` // bytes on the disk, about
	Entries   int   `json:"entries"`
	Whiteouts int   `json:"whiteouts,omitempty"`
	Setuid    int   `json:"setuid,omitempty"`  // files with setuid or setgid, which they keep
	Devices   int   `json:"devices,omitempty"` // device nodes and FIFOs left out
	Xattrs    int   `json:"xattrs,omitempty"`  // extended attributes left out
	Opaque    bool  `json:"opaque,omitempty"`  // hides all layers below
}

// Dirs returns the folders of the image's layers for an overlay's lowerdir,
// the uppermost first. Those that a layer above hides as a whole are left out:
// overlayfs has no mark for that.
func (img *Image) Dirs() []string {
	var dirs []string
	for _, l := range slices.Backward(img.Layers) {
		dirs = append(dirs, l.Dir)
		if l.Facts.Opaque {
			break
		}
	}
	return dirs
}

// An Owner is whom a file of a layer should belong to.
type Owner struct {
	UID, GID int
}

// Owners returns whom files of the layer should belong to and do not, because
// the store's process could not give them away; by their path in the layer,
// "." for its root. What it does not name belongs to whom it should, or
// without root to user and group 0.
func (l *Layer) Owners() (map[string]Owner, error) {
	f, err := os.Open(filepath.Join(filepath.Dir(l.Dir), "owners"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	owners := make(map[string]Owner)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		var o Owner
		var quoted string
		if _, err := fmt.Sscanf(lines.Text(), "%d %d %q", &o.UID, &o.GID, &quoted); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", f.Name(), lines.Text(), err)
		}
		owners[quoted] = o
	}
	return owners, lines.Err()
}

func writeOwners(file string, owners map[string]owner) error {
	if len(owners) == 0 {
		return nil
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(owners)) {
		o := owners[name]
		fmt.Fprintf(&b, "%d %d %s\n", o.uid, o.gid, strconv.QuoteToASCII(name))
	}
	return writeFile(file, []byte(b.String()))
}

// oddDirs and oddFiles are what a sandbox gets mounted or written, and expects
// to be folders and files, if they are there at all.
var (
	oddDirs  = []string{"proc", "sys", "dev", "dev/pts", "dev/shm", "etc", "run", "tmp", "home", "root", "usr", "var", "var/tmp", "workspace"}
	oddFiles = []string{"dev/null", "dev/zero", "dev/full", "dev/random", "dev/urandom", "dev/tty", "dev/console", "dev/ptmx", "dev/pts/ptmx",
		"etc/mtab", "etc/passwd", "etc/group", "etc/hosts", "etc/hostname", "etc/resolv.conf"}
)

// Odd returns what of /proc, /dev, /etc/passwd and the like is not in the
// image as a folder or file, but as something else, each as "/proc: link to
// /host". Nothing is wrong with it as data, and images have such (/etc/mtab
// leads to /proc/mounts in most, and is left out then); but whoever mounts over
// it or opens it must not follow.
func (img *Image) Odd() ([]string, error) {
	var odd []string
	strange := make(map[string]bool)
	look := func(name string, dir bool) error {
		parts := strings.Split(name, "/")
		for i := range parts[:len(parts)-1] {
			if strange[strings.Join(parts[:i+1], "/")] {
				return nil // said already
			}
		}
		for _, l := range img.Dirs() {
			st, target, err := lookAt(l, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			var what string
			switch {
			case st.Mode()&fs.ModeCharDevice != 0: // hidden
				return nil
			case st.Mode()&fs.ModeSymlink != 0:
				if name == "etc/mtab" && slices.Contains([]string{"/proc/mounts", "../proc/mounts", "/proc/self/mounts", "../proc/self/mounts"}, target) {
					return nil
				}
				what = "link to " + strconv.Quote(target)
			case st.IsDir() && !dir:
				what = "folder"
			case !st.IsDir() && dir:
				what = "file"
			default:
				return nil
			}
			strange[name] = true
			odd = append(odd, "/"+name+": "+what)
			return nil
		}
		return nil
	}
	for _, name := range oddDirs {
		if err := look(name, true); err != nil {
			return nil, err
		}
	}
	for _, name := range oddFiles {
		if err := look(name, false); err != nil {
			return nil, err
		}
	}
	return odd, nil
}

// lookAt is Lstat below a layer, with no link followed on the way.
func lookAt(dir, name string) (st fs.FileInfo, target string, err error) {
	at := dir
	for part := range strings.SplitSeq(name, "/") {
		if st != nil && !st.IsDir() {
			return nil, "", fs.ErrNotExist
		}
		at = filepath.Join(at, part)
		if st, err = os.Lstat(at); err != nil {
			return nil, "", err
		}
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		target, err = os.Readlink(at)
	}
	return st, target, err
}

func configOf(c v1.Config) Config {
	return Config{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd, User: c.User, Workdir: c.WorkingDir,
		ExposedPorts: slices.Sorted(maps.Keys(c.ExposedPorts)), Labels: c.Labels,
	}
}

// clone copies what a caller could change.
func (c Config) clone() Config {
	c.Env, c.Entrypoint, c.Cmd = slices.Clone(c.Env), slices.Clone(c.Entrypoint), slices.Clone(c.Cmd)
	c.ExposedPorts, c.Labels = slices.Clone(c.ExposedPorts), maps.Clone(c.Labels)
	return c
}
