//go:build linux

package linux_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// What a layer has at a path: "text" is a file, and
const (
	folder   = "\x00folder"
	opaque   = "\x00opaque"   // a folder that hides what is below
	whiteout = "\x00whiteout" // what hides what is below
	linkTo   = "\x00link "    // and where to
	program  = "\x00program " // and where it is on the host
	fifo     = "\x00fifo"
)

// A layer is what one holds, by path.
type layer map[string]string

// unpack makes the folders of layers.
func unpack(t testing.TB, layers ...layer) []string {
	t.Helper()
	top, err := os.MkdirTemp("", "atoll-layers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	if err := os.Chmod(top, 0o755); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for i, l := range layers {
		dir := filepath.Join(top, strconv.Itoa(i))
		dirs = append(dirs, dir)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(l)) { // a folder before what is in it
			if err := put(filepath.Join(dir, name), l[name]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dirs
}

func put(p, what string) error {
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	switch kind, arg, _ := strings.Cut(what, " "); kind + " " {
	case folder + " ":
		return os.MkdirAll(p, 0o755)
	case opaque + " ":
		return errors.Join(os.MkdirAll(p, 0o755), unix.Setxattr(p, "user.overlay.opaque", []byte("y"), 0))
	case whiteout + " ":
		return unix.Mknod(p, unix.S_IFCHR, 0)
	case fifo + " ":
		return unix.Mkfifo(p, 0o644)
	case linkTo:
		return os.Symlink(arg, p)
	case program:
		b, err := os.ReadFile(arg)
		if err != nil {
			return err
		}
		return os.WriteFile(p, b, 0o755)
	}
	return os.WriteFile(p, []byte(what), 0o644)
}

// A keeper keeps images, and counts who holds them.
type keeper struct {
	mu    sync.Mutex
	roots map[string]linux.Root
	asked []string
	held  int
	twice bool // something was released twice
}

// add keeps an image made of layers, the lowest first.
func (k *keeper) add(name string, root linux.Root) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.roots == nil {
		k.roots = make(map[string]linux.Root)
	}
	root.Name = name + "@sha256:abc"
	k.roots[name], k.roots[root.Name] = root, root
}

func (k *keeper) image(_ context.Context, name string) (linux.Root, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, name)
	root, ok := k.roots[name]
	if !ok {
		return linux.Root{}, sandbox.Errorf(sandbox.NotExist, "image", "there is no image %q among those that are kept", name)
	}
	k.held++
	once := false
	root.Release = func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.held--
		k.twice = k.twice || once
		once = true
	}
	return root, nil
}

func (k *keeper) holds(t *testing.T, want int) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held != want || k.twice {
		t.Errorf("%d images are held, want %d; one was released twice: %v", k.held, want, k.twice)
	}
}

// keeping is a Runtime with one image, "it", made of layers.
func keeping(t *testing.T, root linux.Root, layers ...layer) (*linux.Runtime, *keeper) {
	t.Helper()
	root.Layers = unpack(t, layers...)
	k := new(keeper)
	k.add("it", root)
	cfg := config(t)
	cfg.Images = k.image
	return newRuntimeWith(t, cfg), k
}

// userland is two layers: libraries, and the programs that need them.
func userland(t testing.TB) (libraries, programs layer) {
	t.Helper()
	libraries, programs = layer{}, layer{}
	for _, name := range []string{"sh", "sleep", "nohup", "setsid", "perl", "ls", "cat", "stat", "env", "id", "dd", "head", "tail", "seq", "timeout",
		"mkfifo", "mkdir", "rm", "tr", "sort", "touch", "ln", "mv", "cp", "chmod", "true", "false", "wc", "grep", "sed", "pwd", "hostname", "rmdir", "kill", "stty", "tty", "readlink", "cut", "echo", "printf", "test", "uname", "sha256sum", "yes", "date", "nice", "find", "ps"} {
		file, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		programs["bin/"+name] = program + file
		out, err := exec.Command("ldd", file).Output()
		if err != nil {
			continue // a static one
		}
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				libraries[f[1:]] = program + f
			}
		}
	}
	dirs, _ := filepath.Glob("/usr/lib/*/perl-base")
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				libraries[p[1:]] = program + p
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return libraries, programs
}

const imagePasswd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"

// TestRuntimeOfLayers is the whole contract with an image of layers.
func TestRuntimeOfLayers(t *testing.T) {
	libraries, programs := userland(t)
	k := new(keeper)
	k.add("suite", linux.Root{Layers: unpack(t, libraries, programs,
		layer{"etc/passwd": imagePasswd, "etc/group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n", "etc/gone": "gone", "home/user": folder, "var/old/gone": "gone"},
		layer{"etc/gone": whiteout, "var/old": opaque})})
	t.Run("suite", func(suite *testing.T) {
		sandboxtest.Run(suite, sandboxtest.Config{
			New: func(*testing.T) sandbox.Runtime {
				cfg := config(t)
				cfg.Images = k.image
				return newRuntimeWith(t, cfg)
			},
			Spec:   sandbox.Spec{Image: "suite"},
			Listen: listener,
			Source: func(t *testing.T) string { return t.TempDir() },
		})
	})
}

// TestLayersAsUser is the rest of this file as an ordinary user, who has one
// id. TestAbuseAsUser has TestAbuseLayers.
func TestLayersAsUser(t *testing.T) {
	t.Setenv("ATOLL_TEST_ABUSE", abuseProgram(t))
	asUser(t, "^(TestLayers|TestManyLayers|TestScratch|TestImageSays|TestImageIsHeld|TestMountOfImageUser|TestImageNamesLoopback|TestRuntimeOfLayers)$")
}

// TestLayersAsUserWithRange is the same for a user who was given a range of
// ids. There only the sandbox's root may write what is mounted.
func TestLayersAsUserWithRange(t *testing.T) {
	t.Setenv("ATOLL_TEST_ABUSE", abuseProgram(t))
	asUserWithRange(t, "^(TestLayers|TestManyLayers|TestScratch|TestImageSays|TestImageIsHeld|TestImageNamesLoopback|TestAbuseLayers)$")
}

// tree returns every path of a sandbox's folder, with what files hold.
func tree(t *testing.T, sb sandbox.Sandbox, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for f, err := range sb.Files().List(t.Context(), dir) {
		if err != nil {
			t.Fatal(err)
		}
		p := path.Join(dir, f.Name)
		switch {
		case f.Mode.IsDir():
			got[p] = folder
			maps.Copy(got, tree(t, sb, p))
		case f.Mode.IsRegular():
			b, err := sandbox.ReadFile(t.Context(), sb, p, 1000)
			if err != nil {
				t.Fatal(err)
			}
			got[p] = string(b)
		default:
			got[p] = f.Mode.String()
		}
	}
	return got
}

// Higher layers win, whiteouts and opaque folders hide what is below, and what
// the sandbox writes is in none of them.
func TestLayers(t *testing.T) {
	rt, k := keeping(t, linux.Root{},
		layer{"d/a": "a0", "d/b": "b0", "d/c": "c0", "d/o/x": "x0", "d/o/y": "y0", "d/f/in": "in", "d/t": "file", "d/w/deep/x": "x"},
		layer{"d/a": "a1", "d/b": whiteout, "d/o": opaque, "d/o/y": "y1", "d/f": whiteout, "d/t/now": "a folder", "d/w": whiteout},
		layer{"d/new": "n2", "d/f": "f2", "d/o/z": "z2", "d/w/y": "again"})
	sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "it"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"/d/a": "a1", "/d/c": "c0", "/d/o": folder, "/d/o/y": "y1", "/d/o/z": "z2", "/d/f": "f2", "/d/new": "n2",
		"/d/t": folder, "/d/t/now": "a folder", "/d/w": folder, "/d/w/y": "again"}
	if got := tree(t, sb, "/d"); !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	info, err := sb.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Image != "it@sha256:abc" || info.Wanted != "it" {
		t.Errorf("Info says %q of %q", info.Image, info.Wanted)
	}
	for _, p := range []string{"/d/a", "/d/c", "/d/b"} {
		if err := sandbox.WriteFile(t.Context(), sb, p, []byte("mine")); err != nil {
			t.Error(err)
		}
	}
	if err := sb.Files().Remove(t.Context(), "/d/o", true); err != nil {
		t.Error(err)
	}
	if err := sb.Files().Remove(t.Context(), "/d/w/y", false); err != nil {
		t.Error(err)
	}
	if f, err := sb.Files().Stat(t.Context(), "/d/c"); err != nil || f.UID != 0 || f.GID != 0 {
		t.Errorf("what was copied up is %+v %v", f, err)
	}
	other, err := rt.Create(t.Context(), sandbox.Spec{Image: "it"})
	if err != nil {
		t.Fatal(err)
	}
	if got := tree(t, other, "/d"); !maps.Equal(got, want) {
		t.Errorf("after another has written:\ngot  %q\nwant %q", got, want)
	}
	k.holds(t, 2)
	if err := errors.Join(sb.Remove(t.Context()), other.Remove(t.Context())); err != nil {
		t.Error(err)
	}
	k.holds(t, 0)
	if _, err := rt.Create(t.Context(), sandbox.Spec{Image: "other"}); !errors.Is(err, sandbox.NotExist) || !strings.Contains(err.Error(), "among those that are kept") {
		t.Errorf("an image that is not kept: %v", err)
	}
}

// An image may have 128 layers, and the same one more than once.
func TestManyLayers(t *testing.T) {
	var layers []layer
	for i := range linux.MaxLayers {
		l := layer{"all/" + strconv.Itoa(i): "x", "top": strconv.Itoa(i)}
		if i > 0 {
			l["all/"+strconv.Itoa(i-1)] = whiteout
		}
		layers = append(layers, l)
	}
	rt, k := keeping(t, linux.Root{}, layers...)
	root := k.roots["it"]
	root.Layers = append(slices.Clone(root.Layers), root.Layers[:1]...)
	k.add("again", root)
	root.Layers = append(root.Layers, unpack(t, layer{"one": "more"})...)
	k.add("more", root)
	for name, want := range map[string]map[string]string{"it": {"/all/127": "x"}, "again": {"/all/127": "x", "/all/0": "x"}} {
		sb, err := rt.Create(t.Context(), sandbox.Spec{Image: name})
		if err != nil {
			t.Fatal(err)
		}
		if got := tree(t, sb, "/all"); !maps.Equal(got, want) {
			t.Errorf("%s: got %q", name, got)
		}
	}
	var e *sandbox.Error
	if _, err := rt.Create(t.Context(), sandbox.Spec{Image: "more"}); !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "image" {
		t.Errorf("129 layers: %v", err)
	}
	k.holds(t, 2)
}

// An image that has one program and nothing else will do.
func TestScratch(t *testing.T) {
	rt, _ := keeping(t, linux.Root{}, layer{"abuse": program + abuseProgram(t)})
	for _, spec := range []sandbox.Spec{{}, {ReadOnlyRoot: true}, {User: "1000:1000"}, {Workdir: "/made/for/it"}} {
		spec.Image = "it"
		sb, err := rt.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := sandbox.WriteFile(t.Context(), sb, "/workspace/.nonce", []byte("0123456789abcdef0123")); err != nil {
			t.Fatal(err)
		}
		r, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"/abuse", "0123456789abcdef0123", "mountinfo"}})
		if err != nil || !r.Success() {
			t.Fatalf("%+v: %v %+v %s", spec, err, r.Exit, r.Stderr)
		}
		mounts := verdicts(t, r.Stdout)
		for _, p := range []string{"/", "/proc", "/dev", "/sys", "/tmp"} {
			if mounts[p] == "" {
				t.Errorf("%+v: nothing is mounted on %s: %v", spec, p, mounts)
			}
		}
	}
}

// What the image says holds where the Spec says nothing.
func TestImageSays(t *testing.T) {
	libraries, programs := userland(t)
	rt, k := keeping(t, linux.Root{Workdir: "/srv/app", User: "node", Env: map[string]string{"A": "image", "B": "image", "bad=name": "x"}}, libraries, programs,
		layer{"etc/passwd": imagePasswd + "node:x:1234:1235::/home/node:/bin/sh\n", "etc/group": "node:x:1235:\nmore:x:1300:node\n"})
	many := os.Getenv("ATOLL_TEST_USER") == "" // ids
	for _, c := range []struct {
		spec sandbox.Spec
		want string
		user string
		dir  string
	}{
		{sandbox.Spec{}, "image image /srv/app 1234 1235", "node", "/srv/app"},
		{sandbox.Spec{Env: map[string]string{"A": "spec"}, Workdir: "/mine", User: "1000"}, "spec image /mine 1000 1000", "1000", "/mine"},
		{sandbox.Spec{User: "root"}, "image image /srv/app 0 0", "root", "/srv/app"},
		{sandbox.Spec{User: "77:78"}, "image image /srv/app 77 78", "77:78", "/srv/app"},
	} {
		c.spec.Image = "it"
		sb, err := rt.Create(t.Context(), c.spec)
		if err != nil {
			t.Fatal(err)
		}
		r, err := sandbox.Capture(t.Context(), sb, 1000, sandbox.Cmd{Args: []string{"sh", "-c", `echo "$A" "$B" $(pwd) $(id -u) $(id -g)`}})
		if err != nil {
			t.Fatal(err)
		}
		got := strings.TrimSpace(string(r.Stdout))
		if !many { // whoever one is, one id may stand for all
			c.want = c.want[:strings.LastIndex(c.want, "/")]
			got = got[:min(len(got), len(c.want))]
		}
		if got != c.want {
			t.Errorf("%+v: got %q, want %q; %s", c.spec, got, c.want, r.Stderr)
		}
		if info, err := sb.Info(t.Context()); err != nil || info.User != c.user || info.Workdir != c.dir {
			t.Errorf("Info says %q in %q, %v", info.User, info.Workdir, err)
		}
	}
	for name, change := range map[string]func(*linux.Root){
		"user":    func(r *linux.Root) { r.User = "a\nb" },
		"workdir": func(r *linux.Root) { r.Workdir = "/a\x00b" },
		"file":    func(r *linux.Root) { r.Workdir = "/bin/sh" },
		"env":     func(r *linux.Root) { r.Env = map[string]string{"A": strings.Repeat("x", 1<<20)} },
	} {
		root := k.roots["it"]
		change(&root)
		k.add("bad", root)
		var e *sandbox.Error
		if _, err := rt.Create(t.Context(), sandbox.Spec{Image: "bad"}); !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "image" {
			t.Errorf("%s: %v", name, err)
		}
	}
	var e *sandbox.Error
	if _, err := rt.Create(t.Context(), sandbox.Spec{Image: "it", Workdir: "/bin/sh/x"}); !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "workdir" {
		t.Errorf("a working directory that cannot be: %v", err)
	}
	k.holds(t, 4)
}

// Whom the image's own user is decides whose a mount is, inside and outside.
func TestMountOfImageUser(t *testing.T) {
	libraries, programs := userland(t)
	rt, _ := keeping(t, linux.Root{User: "node"}, libraries, programs, layer{"etc/passwd": imagePasswd + "node:x:77:77::/:/bin/sh\n"},
		layer{"etc/passwd": imagePasswd + "node:x:1234:1235::/home/node:/bin/sh\n"}, layer{"etc/other": ""})
	source := t.TempDir()
	sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "it", Mounts: []sandbox.Mount{{Source: source, Target: "/mnt/it"}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := sandbox.Capture(t.Context(), sb, 1000, sandbox.Cmd{Args: []string{"sh", "-c", "stat -c %u /mnt/it; echo well >/mnt/it/file"}})
	if err != nil || !r.Success() || os.Getenv("ATOLL_TEST_USER") == "" && string(r.Stdout) != "1234\n" {
		t.Errorf("%v %+v %s%s", err, r.Exit, r.Stdout, r.Stderr)
	}
	if b, err := os.ReadFile(filepath.Join(source, "file")); string(b) != "well\n" {
		t.Errorf("outside: %q %v", b, err)
	}
}

// "localhost" is known in an image that says nothing of it, and as the image
// says in one that does.
func TestImageNamesLoopback(t *testing.T) {
	for name, c := range map[string]struct {
		layer layer
		want  string
	}{
		"none":  {layer{"file": ""}, "127.0.0.1 localhost\n::1 localhost\n"},
		"empty": {layer{"etc/hosts": ""}, "127.0.0.1 localhost\n::1 localhost\n"},
		"own":   {layer{"etc/hosts": "10.0.0.1 it\n"}, "10.0.0.1 it\n"},
		"link":  {layer{"etc/hosts": linkTo + "/etc/hostile", "etc/hostile": ""}, ""},
	} {
		rt, _ := keeping(t, linux.Root{}, c.layer)
		for _, spec := range []sandbox.Spec{{Image: "it"}, {Image: "it", ReadOnlyRoot: true}} {
			sb, err := rt.Create(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := sandbox.ReadFile(t.Context(), sb, "/etc/hosts", 1000); err != nil || string(b) != c.want {
				t.Errorf("%s: %q %v", name, b, err)
			}
		}
	}
}

// A daemon that comes back holds the images of what runs, and does without.
func TestImageIsHeld(t *testing.T) {
	libraries, programs := userland(t)
	k := new(keeper)
	k.add("it", linux.Root{Layers: unpack(t, libraries, programs, layer{"file": "text"})})
	cfg := config(t)
	cfg.Images, cfg.DefaultImage = k.image, "it"
	rt := newRuntimeWith(t, cfg)
	sb, err := rt.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	works := func(rt sandbox.Runtime) sandbox.Sandbox {
		t.Helper()
		sb, err := rt.Open(t.Context(), sb.ID())
		if err != nil {
			t.Fatal(err)
		}
		r, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"cat", "/file"}})
		if err != nil || string(r.Stdout) != "text" {
			t.Fatalf("%v %q %s", err, r.Stdout, r.Stderr)
		}
		if info, err := sb.Info(t.Context()); err != nil || info.Image != "it@sha256:abc" || info.Wanted != "" {
			t.Errorf("Info says %q of %q, %v", info.Image, info.Wanted, err)
		}
		return sb
	}
	works(rt)
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	k.holds(t, 1) // the sandbox lives
	k.mu.Lock()
	k.asked, k.held = nil, 0 // another process
	k.mu.Unlock()

	if rt, err = linux.New(cfg); err != nil {
		t.Fatal(err)
	}
	works(rt)
	if !slices.Equal(k.asked, []string{"it@sha256:abc"}) {
		t.Errorf("asked for %q", k.asked)
	}
	k.holds(t, 1)
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	k.roots, k.held = nil, 0
	k.mu.Unlock()

	if rt, err = linux.New(cfg); err != nil {
		t.Fatal(err)
	}
	k.holds(t, 0)
	if err := works(rt).Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.holds(t, 0)
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
}

// Whatever the layers of an image have where a sandbox needs a place of its
// own, they make either no sandbox, and the image is named as the reason, or
// one that is as tight as any. Nothing of the host changes.
func TestAbuseLayers(t *testing.T) {
	places := []string{"proc", "dev", "sys", "tmp", "etc", "workspace", "home"}
	base := layer{"abuse": program + abuseProgram(t)}
	for _, p := range places {
		base[p] = folder
	}
	type attempt struct {
		name   string
		layers []layer
		must   string // "be made", "be refused", or "" for either
	}
	tries := []attempt{
		{"plain", nil, "be made"},
		{"nothing left", []layer{{"proc": whiteout, "dev": whiteout, "sys": whiteout, "tmp": whiteout, "etc": whiteout, "workspace": whiteout, "home": whiteout}}, "be made"},
		{"loops", []layer{{"proc": linkTo + "sys", "sys": linkTo + "proc"}}, "be refused"},
		{"a ring", []layer{{"proc": linkTo + "dev", "dev": linkTo + "/tmp", "tmp": linkTo + "../home", "home": linkTo + "proc"}}, "be refused"},
		{"devices", []layer{{"dev/null": linkTo + "/proc/kcore", "dev/pts": linkTo + "/proc", "dev/shm": linkTo + "/etc", "dev/tty": fifo}}, "be made"},
		{"users", []layer{{"etc/passwd": fifo, "etc/group": linkTo + "/dev/zero"}}, "be made"},
		{"mtab", []layer{{"etc/mtab": linkTo + "/proc/1/root/etc/shadow", "etc/passwd": linkTo + "/proc/1/root/etc/passwd"}}, "be made"},
		{"marks that mean nothing", []layer{{".wh.abuse": "", "etc/.wh..wh..opq": ""}}, "be made"},
		{"names", []layer{{"a\nb": "1", "a,upperdir=,b": "2", "x:y\\:z": "3", "\xff\xfe": "4"}}, "be made"},
		{"a link and then a folder", []layer{{"proc": linkTo + "/etc"}, {"proc/self/status": "fake"}}, "be made"},
		{"a folder and then a link", []layer{{"tmp/x": "fake"}, {"tmp": linkTo + "/proc/sys"}}, ""},
		{"fakes", []layer{{"proc/self/status": "fake", "proc/sys/kernel/core_pattern": "fake", "sys/fs/cgroup/x": "fake", "dev/kmsg": "fake"}}, "be made"},
	}
	hidden := layer{}
	for i := range count(2_000, 10_000) {
		hidden["many/"+strconv.Itoa(i)] = whiteout
	}
	tries = append(tries, attempt{"many whiteouts", []layer{hidden}, "be made"})
	outside := t.TempDir() // a folder of the host, where links lead to
	if err := errors.Join(os.Chmod(outside, 0o777), os.WriteFile(filepath.Join(outside, "file"), []byte("text"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for _, p := range places {
		must := "be refused"
		if p == "etc" { // which nothing is mounted on
			must = "be made"
		}
		tries = append(tries, attempt{p + " is a file", []layer{{p: "file"}}, must}, attempt{p + " is a pipe", []layer{{p: fifo}}, must},
			attempt{p + " is opaque", []layer{{p: opaque}}, "be made"}, attempt{p + " is back", []layer{{p: whiteout}, {p + "/x": "x"}}, "be made"})
		for _, to := range []string{"/", "..", "../../../../../" + p, outside, "../../.." + outside, "/proc/1/root", "/proc/self/cwd", "/proc/1/fd", "/proc/sys/user", "abuse"} {
			tries = append(tries, attempt{p + " to " + strings.ReplaceAll(to, outside, "/outside"), []layer{{p: linkTo + to}}, ""})
		}
		for _, other := range places {
			tries = append(tries, attempt{p + " to " + other, []layer{{p: linkTo + "/" + other}}, ""})
		}
	}
	k := new(keeper)
	cfg := config(t)
	cfg.Images = k.image
	rt := newRuntimeWith(t, cfg)
	before := contents(t, []string{outside})
	bottom := unpack(t, base)
	made := 0
	for _, c := range tries {
		t.Run(strings.ReplaceAll(strings.ReplaceAll(c.name, " ", "-"), "/", "_"), func(t *testing.T) {
			root := linux.Root{Layers: append(slices.Clone(bottom), unpack(t, c.layers...)...)}
			k.add("it", root)
			were := contents(t, root.Layers)
			sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "it"})
			if err != nil {
				refusedImage(t, err)
				if c.must == "be made" {
					t.Errorf("it was refused: %v", err)
				}
				k.holds(t, 0)
				return
			}
			made++
			if c.must == "be refused" {
				t.Error("it was made")
			}
			judgeImage(t, sb, slices.ContainsFunc(c.layers, func(l layer) bool { return strings.HasPrefix(l["proc"], linkTo) }), c.must == "be made")
			if err := sb.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			k.holds(t, 0)
			if are := contents(t, root.Layers); !slices.Equal(were, are) {
				t.Errorf("a layer has changed: %q, was %q", are, were)
			}
		})
	}
	if after := contents(t, []string{outside}); !slices.Equal(before, after) {
		t.Errorf("a folder of the host was %q, is %q", before, after)
	}
	if made == 0 || made == len(tries) {
		t.Errorf("%d of %d were made", made, len(tries))
	}
}

// Devices and setuid programs of a layer are neither: its keeper should have
// left them out, and the mounts say so again.
func TestAbuseLayerDevices(t *testing.T) {
	if os.Getenv("ATOLL_TEST_USER") != "" {
		t.Skip("needs root, to make devices")
	}
	rt, k := keeping(t, linux.Root{User: "1000"}, layer{"abuse": program + abuseProgram(t), "file": "text"})
	dir := k.roots["it"].Layers[0]
	if err := errors.Join(unix.Chmod(filepath.Join(dir, "abuse"), 0o6755), os.Mkdir(filepath.Join(dir, "hidden"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, dev := range map[string]uint64{"null": unix.Mkdev(1, 3), "mem": unix.Mkdev(1, 1), "kmsg": unix.Mkdev(1, 11), "hidden/zero": unix.Mkdev(1, 5)} {
		p := filepath.Join(dir, name)
		if err := errors.Join(unix.Mknod(p, unix.S_IFCHR, int(dev)), unix.Chmod(p, 0o666)); err != nil {
			t.Skipf("no device can be made here: %v", err)
		}
	}
	sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "it"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sandbox.WriteFile(t.Context(), sb, "/workspace/.nonce", []byte("0123456789abcdef0123")); err != nil {
		t.Fatal(err)
	}
	c := &cell{Sandbox: sb, nonce: "0123456789abcdef0123"}
	try := func(probe ...string) map[string]string {
		t.Helper()
		r, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: append([]string{"/abuse", c.nonce}, probe...)})
		if err != nil || !r.Success() {
			t.Fatalf("%v %+v %s", err, r.Exit, r.Stderr)
		}
		return verdicts(t, r.Stdout)
	}
	for p, got := range try("open", "/null", "/mem", "/kmsg", "/hidden/zero") {
		if got != "EACCES" {
			t.Errorf("a device of the image, %s: %s", p, got)
		}
	}
	if got := try("open", "/file"); !strings.HasPrefix(got["/file"], "ok") {
		t.Errorf("a file of the image: %s", got["/file"])
	}
	if s := try("status"); strings.Join(strings.Fields(s["Uid"]), " ") != "1000 1000 1000 1000" {
		t.Errorf("a setuid program of the image runs as %q: %v", s["Uid"], s)
	}
}

// An image that is being fetched is not waited for by who closes the Runtime.
func TestCloseWhileFetching(t *testing.T) {
	begun := make(chan struct{})
	cfg := config(t)
	cfg.Images = func(ctx context.Context, name string) (linux.Root, error) {
		close(begun)
		<-ctx.Done()
		return linux.Root{}, ctx.Err()
	}
	rt := newRuntimeWith(t, cfg)
	result := make(chan error)
	go func() {
		_, err := rt.Create(t.Context(), sandbox.Spec{Image: "slow"})
		result <- err
	}()
	<-begun
	closed := make(chan error)
	go func() { closed <- rt.Close() }()
	if err := <-result; !errors.Is(err, sandbox.Closed) {
		t.Errorf("Create: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// contents is what folders hold, and how.
func contents(t *testing.T, dirs []string) (all []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			i, err := d.Info()
			if err == nil {
				all = append(all, p+" "+i.Mode().String()+" "+strconv.FormatInt(i.Size(), 10))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}
