//go:build linux

package linux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
)

// fileCalls are the calls that take a path, each with what it gives away.
var fileCalls = []struct {
	name string
	do   func(context.Context, sandbox.Files, string) (string, error)
}{
	{"open", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		file, err := f.Open(ctx, p, sandbox.Range{})
		if err != nil {
			return "", err
		}
		defer file.Close()
		b := make([]byte, 200)
		n, _ := file.Read(b)
		return string(b[:n]), nil
	}},
	{"write", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		_, err := f.Write(ctx, p, strings.NewReader("abuse"), sandbox.WriteOptions{})
		return "", err
	}},
	{"append", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		_, err := f.Write(ctx, p, strings.NewReader("abuse"), sandbox.WriteOptions{Append: true})
		return "", err
	}},
	{"write with parents", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		_, err := f.Write(ctx, p, strings.NewReader("abuse"), sandbox.WriteOptions{Parents: true, Mode: 0o777})
		return "", err
	}},
	{"stat", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		info, err := f.Stat(ctx, p)
		return info.Name, err
	}},
	{"list", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		var names []string
		for info, err := range f.List(ctx, p) {
			if err != nil {
				return strings.Join(names, "\n"), err
			}
			names = append(names, info.Name)
		}
		return strings.Join(names, "\n"), nil
	}},
	{"mkdir", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Mkdir(ctx, p, sandbox.MkdirOptions{})
	}},
	{"mkdir with parents", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Mkdir(ctx, p, sandbox.MkdirOptions{Parents: true})
	}},
	{"chmod", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Chmod(ctx, p, 0o777)
	}},
	{"chown", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Chown(ctx, p, "0:0")
	}},
	{"rename from", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Rename(ctx, p, "/workspace/renamed")
	}},
	{"rename to", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Rename(ctx, "/workspace/from", p)
	}},
	{"remove", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Remove(ctx, p, false)
	}},
	{"remove all", func(ctx context.Context, f sandbox.Files, p string) (string, error) {
		return "", f.Remove(ctx, p, true)
	}},
}

// canary makes a folder on the host whose name no sandbox has, with a file in
// it, and fails the test in the end if either was touched.
func canary(t *testing.T) (dir, secret string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-canary-")
	if err != nil {
		t.Fatal(err)
	}
	secret = "secret of the host"
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b, err := os.ReadFile(filepath.Join(dir, "file"))
		entries, e := os.ReadDir(dir)
		st, es := os.Stat(filepath.Join(dir, "file"))
		if err != nil || e != nil || es != nil || string(b) != secret || len(entries) != 1 || st.Mode().Perm() != 0o644 {
			t.Errorf("the host's files were touched: %q %v %v %v %v", b, entries, err, e, es)
		}
		os.RemoveAll(dir)
	})
	return dir, secret
}

// Paths that are not well formed are refused by name; those that look like
// something else mean what they say, inside.
func TestAbusePaths(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	dir, secret := canary(t)
	refused := []string{"", "x", "../x", "./x", "~", "~/x", "..", ".", "etc/passwd", "C:\\x", "\\etc\\passwd", "file:///etc/passwd", "%2fetc", " /etc", "\x00", "/\x00", "/etc/pass\x00wd",
		"/" + strings.Repeat("a/", 2048), "/" + strings.Repeat("x", 4095)}
	for _, call := range fileCalls {
		for _, p := range refused {
			_, err := call.do(t.Context(), c.Files(), p)
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "path" {
				t.Errorf("%s of %.30q: %v", call.name, p, err)
			}
		}
	}
	for _, p := range []string{dir + "/file", "/.." + dir + "/file", "/../../../../../../../.." + dir + "/file", "//" + dir + "//file", "/workspace/../.." + dir + "/file", "/proc/../.." + dir + "/file",
		"/%2e%2e" + dir + "/file", "/workspace/..%2f..%2f" + dir + "/file", "/\xc0\xae\xc0\xae" + dir + "/file", "/..\u2025" + dir + "/file", "/...." + dir + "/file", "/workspace/.. /" + dir} {
		for _, call := range fileCalls {
			got, err := call.do(t.Context(), c.Files(), p)
			if strings.Contains(got, secret) {
				t.Errorf("%s of %q: %q", call.name, p, got)
			}
			if call.name == "stat" && err == nil && !strings.HasPrefix(p, "/workspace") {
				// It may have been made by a call before: then it is inside.
				if r, e := sandbox.Capture(t.Context(), c, 100, sandbox.Cmd{Args: []string{"ls", "-d", "--", p}}); e != nil || !r.Success() {
					t.Errorf("%s of %q: it is there, but not inside", call.name, p)
				}
			}
		}
	}
}

// Links are followed inside alone, whatever they say.
func TestAbuseLinks(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	dir, secret := canary(t)
	targets := []string{dir, dir + "/file", "../../../../../../../.." + dir + "/file", "/../.." + dir, "/proc/1/root" + dir + "/file", "/proc/self/root" + dir + "/file", "/proc/1/cwd/../.." + dir, "/proc/self/fd/3", "/dev/fd/4"}
	for i, to := range targets {
		if r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{"ln", "-s", to, fmt.Sprintf("/workspace/l%d", i)}}); err != nil || !r.Success() {
			t.Fatalf("%v %s", err, r.Stderr)
		}
	}
	for i, to := range targets {
		for _, call := range fileCalls {
			if call.name == "remove" || call.name == "remove all" || call.name == "rename from" {
				continue // below
			}
			for _, p := range []string{fmt.Sprintf("/workspace/l%d", i), fmt.Sprintf("/workspace/l%d/file", i), fmt.Sprintf("/workspace/l%d/../file", i)} {
				got, _ := call.do(t.Context(), c.Files(), p)
				if strings.Contains(got, secret) {
					t.Errorf("%s of %s, a link to %s: %q", call.name, p, to, got)
				}
			}
		}
	}
	// To remove a link is to remove the link.
	if r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "mkdir -p /workspace/kept && touch /workspace/kept/file && ln -s /workspace/kept /workspace/lk"}}); err != nil || !r.Success() {
		t.Fatalf("%v %s", err, r.Stderr)
	}
	if err := c.Files().Remove(t.Context(), "/workspace/lk", true); err != nil {
		t.Error(err)
	}
	if _, err := c.Files().Stat(t.Context(), "/workspace/kept/file"); err != nil {
		t.Errorf("what the link led to is gone: %v", err)
	}
}

// The links that the kernel makes up lead nowhere.
func TestAbuseMagicLinks(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	for _, p := range []string{"/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd", "/proc/self/cwd/x", "/proc/1/cwd/x", "/proc/self/fd/0", "/proc/self/fd/3", "/proc/1/fd/3", "/proc/1/fd/2", "/proc/thread-self/fd/1",
		"/proc/self/exe", "/proc/1/exe", "/proc/self/ns/user", "/proc/1/ns/mnt", "/dev/fd/0", "/dev/stdin", "/dev/stdout", "/proc/self/map_files/x", "/proc/1/mem", "/proc/self/mem", "/proc/1/environ", "/proc/self/environ",
		"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"} {
		for _, call := range fileCalls {
			if call.name == "stat" || call.name == "list" {
				continue // what a process can see, Files may see as well
			}
			if call.name == "rename to" {
				if err := sandbox.WriteFile(t.Context(), c, "/workspace/from", []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := call.do(t.Context(), c.Files(), p); err == nil && call.name != "remove all" {
				t.Errorf("%s of %s: %q", call.name, p, got)
			}
		}
	}
	works(t, c)
}

// Nothing that blocks is waited for.
func TestAbuseBlockingFiles(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	if r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "cd /workspace && mkfifo fifo && ln -s fifo to-fifo && ln -s /dev/tty tty && ln -s /dev/zero zero && ln -s /dev/ptmx ptmx"}}); err != nil || !r.Success() {
		t.Fatalf("%v %s", err, r.Stderr)
	}
	p := c.start(t, "listen", "/workspace/socket")
	p.next(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // far more than any of these may take
	defer cancel()
	for _, p := range []string{"/workspace/fifo", "/workspace/to-fifo", "/workspace/socket", "/workspace/tty", "/workspace/zero", "/workspace/ptmx", "/dev/zero", "/dev/tty", "/dev/null", "/dev/random", "/proc/kmsg", "/proc/self/mounts"} {
		for _, call := range fileCalls {
			switch call.name {
			case "open", "write", "append":
				got, err := call.do(ctx, c.Files(), p)
				if k := sandbox.KindOf(err); k != sandbox.Invalid && k != sandbox.Denied && k != sandbox.NotExist {
					t.Errorf("%s of %s: %q, %v", call.name, p, got, err)
				}
			}
		}
	}
	if ctx.Err() != nil {
		t.Error("they took for ever")
	}
	info, err := c.Files().Stat(t.Context(), "/workspace/fifo")
	if err != nil || info.Mode.Type() != fs.ModeNamedPipe {
		t.Errorf("the fifo: %v %v", info.Mode, err)
	}
}

// While something in the sandbox turns a directory into a link and back, calls
// that go through it touch neither the host nor, when they remove, what the
// link leads to.
func TestAbuseFileRaces(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	dir, secret := canary(t)
	ctx := t.Context()
	if err := c.Files().Mkdir(ctx, "/workspace/precious/deep", sandbox.MkdirOptions{Parents: true}); err != nil {
		t.Fatal(err)
	}
	if err := sandbox.WriteFile(ctx, c, "/workspace/precious/file", []byte("keep")); err != nil {
		t.Fatal(err)
	}
	inside := c.start(t, "swap", "/workspace/x", "/workspace/precious")
	inside.next(t)
	outside := c.start(t, "swap", "/workspace/y", dir)
	outside.next(t)
	removed := 0
	for i := range count(1000, 10_000) {
		if c.Files().Remove(ctx, "/workspace/x", true) == nil {
			removed++
		}
		if _, err := c.Files().Stat(ctx, "/workspace/precious/file"); err != nil {
			t.Fatalf("after %d tries, what the link led to was removed: %v", i, err)
		}
		call := fileCalls[i%len(fileCalls)]
		for _, p := range []string{"/workspace/y/file", "/workspace/y", "/workspace/y/deep/../../y/file"} {
			if got, _ := call.do(ctx, c.Files(), p); strings.Contains(got, secret) {
				t.Fatalf("%s of %s: %q", call.name, p, got)
			}
		}
	}
	if removed == 0 {
		t.Error("nothing was ever removed: this tried nothing")
	}
	works(t, c)
}

// A file that is mostly holes is read in parts, and no more of it than asked
// for; a link to a file of another mount cannot be made.
func TestAbuseSparseAndLinked(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	if r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{"truncate", "-s", "1T", "/workspace/sparse"}}); err != nil || !r.Success() {
		t.Fatalf("%v %s", err, r.Stderr)
	}
	if _, err := sandbox.ReadFile(t.Context(), c, "/workspace/sparse", 1<<20); !errors.Is(err, sandbox.Exhausted) {
		t.Errorf("a terabyte of holes: %v", err)
	}
	f, err := c.Files().Open(t.Context(), "/workspace/sparse", sandbox.Range{Offset: 1 << 39, Length: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if n, err := b.ReadFrom(f); n != 10 || err != nil {
		t.Errorf("ten bytes of it: %d, %v", n, err)
	}
	r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "for f in /etc/passwd /usr/bin/env /bin/sh /proc/1/exe /dev/null; do ln -L $f /tmp/hard-$(basename $f) 2>&1 && echo LINKED $f; done"}})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(r.Stdout, []byte("LINKED")) {
		t.Errorf("hard links: %s", r.Stdout)
	}
}

// Whatever becomes of a mount's source while a sandbox is made, what it shows
// is what was allowed (CVE-2021-30465).
func TestAbuseMountRaces(t *testing.T) {
	base, err := os.MkdirTemp("", "atoll-mounts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	forbidden, err := os.MkdirTemp("", "atoll-forbidden-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(forbidden) })
	for dir, name := range map[string]string{forbidden: "forbidden", base + "/dir": "allowed"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(forbidden, base+"/link"); err != nil {
		t.Fatal(err)
	}
	cfg := config(t)
	cfg.MountRoots = []string{base}
	rt := newRuntimeWith(t, cfg)

	swapping, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for swapping.Err() == nil {
			unix.Renameat2(unix.AT_FDCWD, base+"/dir", unix.AT_FDCWD, base+"/link", unix.RENAME_EXCHANGE)
			time.Sleep(50 * time.Microsecond)
		}
	}()
	defer func() { stop(); <-done }()
	made, denied := 0, 0
	for i := range count(300, 10_000) {
		name := []string{"/dir", "/link"}[i%2]
		sb, err := rt.Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Source: base + name, Target: "/mnt/it"}}})
		if err != nil {
			denied++
			continue
		}
		made++
		for info, err := range sb.Files().List(t.Context(), "/mnt/it") {
			if err != nil {
				t.Fatal(err)
			}
			if info.Name != "allowed" {
				t.Fatalf("after %d tries: what is mounted has %s", i, info.Name)
			}
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if made == 0 || denied == 0 {
		t.Errorf("%d were made and %d refused: the race was never run", made, denied)
	}
}

// What must not be mounted is not, by whatever name.
func TestAbuseMountSources(t *testing.T) {
	cfg := config(t)
	cfg.MountRoots, cfg.ImageRoots = []string{"/"}, []string{"/"}
	rt := newRuntimeWith(t, cfg)
	links := t.TempDir()
	for name, to := range map[string]string{"etc": "/etc", "up": "../../../../../../../../../../..", "state": cfg.State, "proc": "/proc/self/root"} {
		if err := os.Symlink(to, filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"/", "/etc", "/etc/ssl", "/etc/passwd", "/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/dev", "/dev/null", "/boot", "/run", "/var", "/var/run", "/var/lib/docker", "/var/run/docker.sock",
		cfg.State, filepath.Join(cfg.State, "sandboxes"), filepath.Dir(cfg.State), links + "/etc", links + "/up", links + "/state", links + "/etc/ssl", links + "/proc", links + "/proc/etc", "//etc", "/usr/../etc", "/proc/1/root", "/proc/self/fd/0"} {
		_, err := rt.Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Source: p, Target: "/mnt/it"}}})
		if k := sandbox.KindOf(err); k != sandbox.Denied && k != sandbox.Invalid && k != sandbox.NotExist {
			t.Errorf("%s: %v", p, err)
		}
	}
	// An image is read like a mount.
	for _, p := range []string{"/", "/etc", "/etc/ssl", "/var", "/proc", "/proc/self", "/sys", "/dev", "/boot", "/run", "/var/lib", "/var/lib/docker",
		cfg.State, filepath.Join(cfg.State, "sandboxes"), filepath.Dir(cfg.State), cfg.Cache, links + "/etc", links + "/up", links + "/state", links + "/proc", links + "/etc/ssl", "//etc", "/usr/../etc", "/proc/1/root"} {
		_, err := rt.Create(t.Context(), sandbox.Spec{Image: "dir:" + p})
		if k := sandbox.KindOf(err); k != sandbox.Denied && k != sandbox.Invalid && k != sandbox.NotExist {
			t.Errorf("image dir:%s: %v", p, err)
		}
	}
}

// A mount that has to lie within one folder does not leave it by a link, though
// where that leads to is allowed to somebody else; nor is the folder of any use
// where it is not allowed itself.
func TestAbuseMountWithin(t *testing.T) {
	cfg := config(t)
	top := t.TempDir()
	alice, bob := filepath.Join(top, "alice"), filepath.Join(top, "bob")
	for _, dir := range []string{filepath.Join(alice, "own"), bob} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"bobs": bob, "up": "..", "same": "own"} {
		if err := os.Symlink(to, filepath.Join(alice, name)); err != nil {
			t.Fatal(err)
		}
	}
	cfg.MountRoots = []string{alice, bob}
	rt := newRuntimeWith(t, cfg)
	for _, c := range []struct {
		source, within string
		ok             bool
	}{
		{alice + "/own", alice, true}, {alice, alice, true}, {alice + "/same", alice, true}, {bob, "", true},
		{bob, alice, false}, {alice + "/bobs", alice, false}, {alice + "/up", alice, false}, {alice + "/up/bob", alice, false},
		{alice + "/own", top, false}, {"/srv", "/srv", false}, {alice + "/own", alice + "/own/../../bob", false},
	} {
		_, err := rt.Create(t.Context(), sandbox.Spec{Mounts: []sandbox.Mount{{Source: c.source, Target: "/mnt/it", Within: c.within}}})
		if c.ok && err != nil || !c.ok && !errors.Is(err, sandbox.Denied) {
			t.Errorf("%s within %q: %v", strings.ReplaceAll(c.source, top, ""), strings.ReplaceAll(c.within, top, ""), err)
		}
	}
}

// Images come from the folders that are allowed for them and from nowhere
// else; where mounts may come from says nothing about it, nor the other way
// round.
func TestAbuseImageSources(t *testing.T) {
	dir, links := smallImage(t), t.TempDir()
	if err := os.Symlink(dir, filepath.Join(links, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, dir+"-by-link"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir + "-by-link") })
	for _, c := range []struct {
		name   string
		images []string
		mounts []string
		source string // of a mount, else dir is the image
		image  string
		denied string // the field; "" is allowed
		flag   string
	}{
		{name: "none", mounts: []string{"/"}, image: dir, denied: "image", flag: "--allow-image"},
		{name: "the home of root with none", mounts: []string{"/"}, image: "/root", denied: "image", flag: "--allow-image"},
		{name: "another", mounts: []string{"/"}, images: []string{links}, image: dir, denied: "image", flag: "--allow-image"},
		{name: "another, by a link", images: []string{links}, image: links + "/out", denied: "image", flag: "--allow-image"},
		{name: "one that is nowhere", images: []string{links}, image: "/nowhere/at/all", denied: "image", flag: "--allow-image"},
		{name: "one beside with the same beginning", images: []string{dir[:len(dir)-1]}, image: dir, denied: "image", flag: "--allow-image"},
		{name: "itself", images: []string{dir}, image: dir},
		{name: "below", images: []string{filepath.Dir(dir)}, image: dir},
		{name: "below, by the root's link", images: []string{dir + "-by-link"}, image: dir + "-by-link"},
		{name: "any", images: []string{"/"}, image: dir},
		{name: "mount", images: []string{"/"}, source: dir, denied: "mounts.source", flag: "--allow-mount"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			cfg := config(t)
			cfg.ImageRoots, cfg.MountRoots = c.images, c.mounts
			rt := newRuntimeWith(t, cfg)
			spec := sandbox.Spec{}
			if c.image != "" {
				spec.Image = "dir:" + c.image
			}
			if c.source != "" {
				spec.Mounts = []sandbox.Mount{{Source: c.source, Target: "/mnt/it"}}
			}
			sb, err := rt.Create(t.Context(), spec)
			if c.denied == "" {
				if err != nil {
					t.Fatal(err)
				}
				if _, err := sb.Files().Stat(t.Context(), "/abuse"); err != nil {
					t.Errorf("the image is not there: %v", err)
				}
				return
			}
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Kind != sandbox.Denied || e.Field != c.denied || !strings.Contains(e.Hint, c.flag+" DIR") {
				t.Errorf("got %v, want Denied of %s with a hint that names %s", err, c.denied, c.flag)
			}
		})
	}
}

// Whatever becomes of an image's path while a sandbox is made, what it shows
// is what was allowed.
func TestAbuseImageRaces(t *testing.T) {
	allowed, forbidden := smallImage(t), smallImage(t)
	if err := os.WriteFile(forbidden+"/forbidden", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp("", "atoll-images-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	if err := errors.Join(os.Chmod(base, 0o755), os.Rename(allowed, base+"/dir"), os.Symlink(forbidden, base+"/link")); err != nil {
		t.Fatal(err)
	}
	cfg := config(t)
	cfg.ImageRoots = []string{base}
	rt := newRuntimeWith(t, cfg)

	swapping, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for swapping.Err() == nil {
			unix.Renameat2(unix.AT_FDCWD, base+"/dir", unix.AT_FDCWD, base+"/link", unix.RENAME_EXCHANGE)
			time.Sleep(50 * time.Microsecond)
		}
	}()
	defer func() { stop(); <-done }()
	made, denied := 0, 0
	for i := range count(60, 10_000) {
		sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "dir:" + base + []string{"/dir", "/link"}[i%2]})
		if err != nil {
			denied++
			continue
		}
		made++
		if _, err := sb.Files().Stat(t.Context(), "/forbidden"); !errors.Is(err, sandbox.NotExist) {
			t.Fatalf("after %d tries: the image is another one (%v)", i, err)
		}
		if err := sb.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if made == 0 || denied == 0 {
		t.Errorf("%d were made and %d refused: the race was never run", made, denied)
	}
}

// A mount whose target is a link of the image's does not cover what the sandbox
// is made of (CVE-2019-16884).
func TestAbuseMountTargets(t *testing.T) {
	cfg := config(t)
	dir := smallImage(t)
	fake, err := os.MkdirTemp("", "atoll-fake-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(fake) })
	for _, d := range []string{"self", "sys/user", "sys/kernel", "1"} {
		if err := os.MkdirAll(filepath.Join(fake, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"self/stat", "null"} {
		if err := os.WriteFile(filepath.Join(fake, f), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for i, to := range []string{"/proc", "/proc/sys", "/proc/self", "/proc/sys/user", "/dev", "../proc", "/dev/null"} {
		link := fmt.Sprintf("link%d", i)
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	rt := newRuntimeWith(t, cfg)
	for i, to := range []string{"/proc", "/proc/sys", "/proc/self", "/proc/sys/user", "/dev", "../proc", "/dev/null"} {
		source := fake
		if to == "/dev/null" {
			source = filepath.Join(fake, "null")
		}
		sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "dir:" + dir, Mounts: []sandbox.Mount{{Source: source, Target: fmt.Sprintf("/link%d", i)}}})
		if err != nil {
			t.Logf("%s: %v", to, err)
			continue
		}
		c := &cell{Sandbox: sb, nonce: "0123456789abcdef0123"}
		if err := sandbox.WriteFile(t.Context(), sb, "/workspace/.nonce", []byte(c.nonce)); err != nil {
			t.Fatal(err)
		}
		r, err := sandbox.Capture(t.Context(), sb, 1<<16, sandbox.Cmd{Args: []string{"/abuse", c.nonce, "open", "/proc/self/stat", "/dev/null"}})
		if err != nil || !r.Success() {
			t.Errorf("%s: nothing runs: %v %s", to, err, r.Stderr)
			continue
		}
		said := verdicts(t, r.Stdout)
		if !strings.Contains(said["/proc/self/stat"], "(abuse)") || said["/dev/null"] != "empty" {
			t.Errorf("%s could be covered: %v", to, said)
		}
	}
}

// Nobody else on the host reaches into a sandbox's folder, not even who knows
// its id.
func TestAbuseStateFolder(t *testing.T) {
	cfg := config(t)
	rt, err := linux.New(cfg)
	if errors.Is(err, sandbox.Unsupported) {
		skip(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	c := newCell(t, rt, sandbox.Spec{Env: map[string]string{"SECRET": "s3cret-value"}})
	defer c.Remove(context.Background())
	for _, name := range []string{"sandboxes", "trash"} {
		st, err := os.Stat(filepath.Join(cfg.State, name))
		if err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
	}
	// What is written there has no secret of the sandbox's environment.
	filepath.WalkDir(filepath.Join(cfg.State, "sandboxes", string(c.ID())), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.Contains(p, "/volume/") {
			return nil
		}
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte("s3cret-value")) {
			t.Errorf("%s has the environment", p)
		}
		return nil
	})
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", guestPID(t, c.ID()))); err != nil || bytes.Contains(b, []byte("s3cret")) {
		t.Errorf("the guest's command line: %q %v", b, err)
	}
}
