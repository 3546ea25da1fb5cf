package linux

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/enter"
	"github.com/atoll-run/atoll/sandbox"
)

// An image is what a sandbox's file system starts as.
type image struct {
	name   string // what Info says
	host   bool   // it is the host's own
	layers []imageLayer

	env           map[string]string // below the Spec's
	workdir, user string            // where the Spec names none
	release       func()            // lets go of it; never nil
}

// An imageLayer is an overlay.
type imageLayer struct {
	target string   // "/", "/usr"
	name   string   // of its writable part in the volume
	dirs   []string // its lower directories on the host, the highest first
	file   *os.File // the only directory, where a Spec named it; closed by who made it with Create
}

// hostDirs are the host's directories that image host shows, where they are
// directories and not links into /usr.
var hostDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// hostEtc are the parts of the host's /etc that programs need. None holds a
// secret; private keys that stand beside certificates are left out.
var hostEtc = []string{"alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "ca-certificates", "ca-certificates.conf",
	"pki/tls/certs", "pki/tls/cert.pem", "pki/ca-trust/extracted", "localtime", "timezone", "mime.types", "services", "protocols"}

// ownEtc is the rest of /etc.
var ownEtc = map[string]string{
	"passwd": "root:x:0:0:root:/root:/bin/sh\n" +
		"user:x:1000:1000:user:/home/user:/bin/sh\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
	"group": "root:x:0:\n" +
		"tty:x:5:\n" +
		"user:x:1000:\n" +
		"nogroup:x:65534:\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"profile":       "PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\nexport PATH\n",
}

// madeVersion changes whenever what is made once for all sandboxes does.
const madeVersion = "2"

// image finds what spec names.
func (rt *Runtime) image(ctx context.Context, name string) (*image, error) {
	name = cmp.Or(name, rt.cfg.DefaultImage, "host")
	switch {
	case name == "host":
		return rt.hostImage()
	case strings.HasPrefix(name, "dir:"):
		dir := strings.TrimPrefix(name, "dir:")
		if err := sandbox.CheckPath("image", dir); err != nil {
			return nil, err
		}
		f, real, st, err := rt.openAllowed(allowance{"image", "--allow-image", rt.cfg.ImageRoots}, dir)
		if err != nil {
			return nil, err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			f.Close()
			return nil, sandbox.Errorf(sandbox.NotExist, "image", "%q is not a folder", name).WithHint("give the folder of an unpacked root file system")
		}
		return &image{name: name, layers: []imageLayer{{target: "/", name: "root", dirs: []string{real}, file: f}}, release: func() {}}, nil
	case rt.cfg.Images == nil:
		return nil, sandbox.Errorf(sandbox.NotExist, "image", "there is no image %q", name).WithHint("use host, or dir:/path for an unpacked root file system")
	}
	// What is being fetched is not waited for when the Runtime is closed.
	fetching, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(rt.life, cancel)()
	root, err := rt.cfg.Images(fetching, name)
	if err != nil && ctx.Err() == nil && rt.life.Err() != nil {
		return nil, sandbox.Errorf(sandbox.Closed, "", "the backend was closed")
	}
	if err != nil {
		return nil, err
	}
	img, err := rt.layeredImage(name, root)
	if err != nil && root.Release != nil {
		root.Release()
	}
	return img, err
}

// layeredImage is the image that somebody else keeps, looked at: what it says
// of itself may have been written by anybody.
func (rt *Runtime) layeredImage(name string, root Root) (*image, error) {
	img := &image{name: cmp.Or(root.Name, name), user: root.User, env: make(map[string]string, len(root.Env)), release: func() {}}
	if root.Release != nil {
		img.release = sync.OnceFunc(root.Release)
	}
	bad := func(format string, args ...any) error {
		return sandbox.Errorf(sandbox.Invalid, "image", "%q: "+format, append([]any{name}, args...)...).WithHint("use another image, or mend this one")
	}
	if img.name == "host" || strings.HasPrefix(img.name, "dir:") { // which nobody keeps: see hold
		return nil, fmt.Errorf("image %q: it says that it is %q", name, img.name)
	}
	over := imageLayer{target: "/", name: "root"}
	for _, dir := range slices.Backward(root.Layers) {
		if !filepath.IsAbs(dir) {
			return nil, fmt.Errorf("image %q: its layer %q is not an absolute path", name, dir)
		}
		// overlayfs takes no directory twice. The higher one alone is the same.
		if dir = filepath.Clean(dir); !slices.Contains(over.dirs, dir) {
			over.dirs = append(over.dirs, dir)
		}
	}
	switch n := len(over.dirs); {
	case n == 0:
		return nil, fmt.Errorf("image %q: it has no layers", name)
	case n > MaxLayers:
		return nil, bad("it has %d layers, more than %d", n, MaxLayers)
	}
	img.layers = []imageLayer{over}
	if root.Workdir != "" {
		img.workdir = path.Clean("/" + root.Workdir) // a relative one is from the root, where images are made
	}
	if img.workdir != "" && sandbox.CheckPath("image", img.workdir) != nil {
		return nil, bad("its working directory is not a path")
	}
	if sandbox.CheckUser("image", img.user) != nil {
		return nil, bad("its user is none: %q", clip(img.user, 128))
	}
	size := 0
	for k, v := range root.Env {
		if err := sandbox.CheckEnv("image", map[string]string{k: v}); err != nil {
			rt.log.Warn("a variable of an image is left out", "image", img.name, "name", clip(k, 128))
			continue
		}
		size += len(k) + len(v) + 2
		img.env[k] = v
	}
	if size > maxImageEnv {
		return nil, bad("its environment is longer than %d bytes", maxImageEnv)
	}
	return img, nil
}

// maxImageEnv is how long the environment of an image may be: Linux takes
// 2 MiB with the arguments.
const maxImageEnv = 512 << 10

// clip cuts what is not ours to be short.
func clip(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func (rt *Runtime) hostImage() (*image, error) {
	made, err := rt.made()
	if err != nil {
		return nil, fmt.Errorf("image host: %w", err)
	}
	img := &image{name: "host", host: true, layers: []imageLayer{{target: "/", name: "root", dirs: []string{filepath.Join(made, "root")}}}, release: func() {}}
	for _, d := range hostDirs {
		if st, err := os.Lstat("/" + d); err == nil && st.IsDir() {
			img.layers = append(img.layers, imageLayer{target: "/" + d, name: d, dirs: []string{"/" + d}})
		}
	}
	return img, nil
}

// sweepCache deletes what daemons that died were making: what takes a moment is
// not being made any more after an hour.
func (rt *Runtime) sweepCache() {
	left, _ := filepath.Glob(filepath.Join(rt.cfg.Cache, "making-*"))
	for _, dir := range left {
		if st, err := os.Lstat(dir); err == nil && time.Since(st.ModTime()) > time.Hour {
			if err := os.RemoveAll(dir); err != nil {
				rt.log.Warn("what is left of an earlier daemon cannot be deleted", "folder", dir, "err", err)
			}
		}
	}
}

// made returns the folder with what is made once for all sandboxes: "root", the
// root of image host, and "fixtures", see [enter.MakeFixtures]. It is made again if
// what it is made of has changed. Many Runtimes may do so at once.
func (rt *Runtime) made() (string, error) {
	rt.madeMu.Lock()
	defer rt.madeMu.Unlock()
	h := sha256.New()
	fmt.Fprintln(h, madeVersion, os.Geteuid())
	for _, name := range slices.Concat(hostDirs, []string{"etc"}) {
		st, err := os.Lstat("/" + name)
		if err == nil {
			fmt.Fprintln(h, name, st.Mode())
		}
	}
	for _, name := range hostEtc {
		if st, err := os.Stat("/etc/" + name); err == nil {
			fmt.Fprintln(h, name, st.ModTime().UnixNano(), st.Size())
		}
	}
	cpus, _ := os.ReadFile("/sys/devices/system/cpu/online")
	h.Write(cpus)
	dir := filepath.Join(rt.cfg.Cache, fmt.Sprintf("made-%x", h.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	rt.sweepCache()
	tmp, err := os.MkdirTemp(rt.cfg.Cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	for name, do := range map[string]func(string) error{"root": makeSkeleton, "fixtures": enter.MakeFixtures} {
		if err := os.Mkdir(filepath.Join(tmp, name), 0o755); err != nil {
			return "", err
		}
		if err := do(filepath.Join(tmp, name)); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return "", err
	}
	return dir, nil
}

func makeSkeleton(root string) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		mode os.FileMode
		user int
	}{
		{"dev", 0o755, 0}, {"etc", 0o755, 0}, {"home", 0o755, 0}, {"home/user", 0o755, 1000}, {"mnt", 0o755, 0}, {"opt", 0o755, 0},
		{"proc", 0o555, 0}, {"root", 0o700, 0}, {"run", 0o755, 0}, {"srv", 0o755, 0}, {"sys", 0o555, 0}, {"tmp", 0o777 | os.ModeSticky, 0},
		{"var", 0o755, 0}, {"var/cache", 0o755, 0}, {"var/lib", 0o755, 0}, {"var/log", 0o755, 0}, {"var/tmp", 0o777 | os.ModeSticky, 0},
		{"workspace", 0o777 | os.ModeSticky, 0},
	} {
		p := filepath.Join(root, d.name)
		if err := os.Mkdir(p, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(p, d.mode); err != nil {
			return err
		}
		if d.user != 0 && os.Geteuid() == 0 {
			if err := os.Chown(p, d.user, d.user); err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
		}
	}
	for _, name := range hostDirs {
		st, err := os.Lstat("/" + name)
		if err != nil {
			continue
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			err = os.Mkdir(filepath.Join(root, name), 0o755)
		} else if to, e := os.Readlink("/" + name); e == nil {
			err = os.Symlink(to, filepath.Join(root, name))
		}
		if err != nil {
			return err
		}
	}
	for name, text := range ownEtc {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, name := range hostEtc {
		if err := copyPublic("/etc/"+name, filepath.Join(root, "etc", name)); err != nil {
			return err
		}
	}
	return nil
}

// copyPublic copies what everybody may read. It keeps links, unless they are
// /etc/localtime's kind of absolute link out of what is copied, which lead
// into /usr, which is there.
func copyPublic(from, to string) error {
	st, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case st.IsDir():
		if st.Mode().Perm()&0o005 != 0o005 || filepath.Base(from) == "private" {
			return nil
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := copyPublic(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	case st.Mode().IsRegular() && st.Mode().Perm()&0o004 != 0:
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, st.Mode().Perm()&0o755)
	}
	return nil
}
