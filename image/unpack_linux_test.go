package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// testUser is an ordinary user, who has no entry in any file of the system's.
const testUser = 54321

// asUser runs this test again as an ordinary user, if we are root.
func asUser(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	t.Run("user", func(t *testing.T) {
		dir := t.TempDir()
		for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		tmp := filepath.Join(dir, "tmp")
		if err := errors.Join(os.Mkdir(tmp, 0o700), os.Chown(tmp, testUser, testUser)); err != nil {
			t.Fatal(err)
		}
		// The test's program lies where only root can enter.
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		exe := filepath.Join(dir, "image.test")
		if err := os.WriteFile(exe, self, 0o755); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(t.Name(), "/")
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+name+"$", "-test.v", "-test.timeout=2m")
		cmd.Dir = tmp
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "HOME="+tmp)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUser, Gid: testUser}}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: "+name)) {
			t.Fatalf("as an ordinary user: %v\n%s", err, out)
		}
	})
}

// small are bounds that tests reach.
var small = Bounds{Layer: 1 << 20, Image: 2 << 20, Entries: 400, Ratio: 200}

// unpackHere unpacks a tar into a new folder beside a host that must stay as
// it is.
func unpackHere(t testing.TB, src []byte, b Bounds) (root string, facts Facts, owners map[string]owner, err error) {
	t.Helper()
	dir := tempDir(t)
	host := filepath.Join(dir, "host")
	root = filepath.Join(dir, "root")
	for _, d := range []string{host, filepath.Join(host, "dir"), root} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(host, "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := listing(t, host)
	_, facts, owners, err = unpack(t.Context(), bytes.NewReader(src), root, b)
	if after := listing(t, host); after != before {
		t.Fatalf("the host has changed: %s\nwas %s", after, before)
	}
	entries, e := os.ReadDir(dir)
	if e != nil || len(entries) != 2 {
		t.Fatalf("beside the layer there is %v %v", entries, e)
	}
	return root, facts, owners, err
}

// TestHostileLayers unpacks layers that mean harm. None changes what is beside
// the layer's folder; want is what must then be in it, or the error.
func TestHostileLayers(t *testing.T) {
	asUser(t)
	long := strings.Repeat("n", 256)
	deep := strings.Repeat("d/", maxDepth+1)
	var whiteouts, many []entry
	for i := range 150 {
		whiteouts = append(whiteouts, file(fmt.Sprintf("d/.wh.f%d", i), ""))
	}
	for i := range 450 {
		many = append(many, file(fmt.Sprintf("f%d", i), ""))
	}
	loop := with(link("l", "l"), file("l/f", "x"))
	chain := with(folderOf("a"))
	for i := range 50 {
		chain = append(chain, link(fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i-1)))
	}
	chain = append(chain, file("l49/f", "x"))
	spiral := with(entry{name: strings.Repeat("d/", 200), kind: tar.TypeDir}, link("s", strings.Repeat("d/", 200)), file("s/"+strings.Repeat("e/", 100)+"f", "x"))

	for _, c := range []struct {
		name  string
		layer []entry
		kind  sandbox.Kind // "" if it is unpacked
		words string       // of the error
		there []string     // "path mode" or "path -> target" or "path = text", and "!path" for what must not be there
	}{
		{"dots", with(file("../host/secret", "x")), sandbox.Invalid, "upwards", nil},
		{"dots inside", with(folderOf("a"), file("a/../../host/secret", "x")), sandbox.Invalid, "upwards", nil},
		{"dots that stay", with(file("a/../b", "x")), sandbox.Invalid, "upwards", nil},
		{"dots at the end", with(entry{name: "a/..", kind: tar.TypeDir}), sandbox.Invalid, "upwards", nil},
		{"absolute name", with(file("/etc/passwd", "x")), "", "", []string{"etc/passwd = x"}},
		{"many slashes", with(file("///a////b", "x")), "", "", []string{"a/b = x"}},
		{"file through an absolute link", with(link("out", "/host"), file("out/secret", "x")), "", "", []string{"out -> /host", "host/secret = x"}},
		{"file through a dotted link", with(link("out", "../../../host"), file("out/secret", "x")), "", "", []string{"host/secret = x"}},
		{"file through the host's own path", with(link("out", "/etc"), file("out/passwd", "x")), "", "", []string{"etc/passwd = x"}},
		{"folder through a link", with(link("out", "../host"), entry{name: "out/dir/", kind: tar.TypeDir, mode: 0o777}), "", "", []string{"host/dir drwxrwxrwx"}},
		{"link through a link", with(link("out", "../host"), link("out/dir", "/")), "", "", []string{"host/dir -> /"}},
		{"chain of links", with(link("a", "b"), link("b", "/c"), link("c", "../.."), file("a/f", "x")), "", "", []string{"f = x"}},
		{"loop of links", loop, sandbox.Invalid, "too many links", nil},
		{"long chain of links", chain, sandbox.Invalid, "too many links", nil},
		{"depth by links", spiral, sandbox.Exhausted, "elements", nil},
		{"link over the file it leads to", with(link("f", "../host/secret"), file("f", "x")), "", "", []string{"f = x"}},
		{"file over a link", with(link("f", "/host/secret"), file("f", "x")), "", "", []string{"f = x"}},
		{"folder over a link", with(link("d", "../host"), folderOf("d"), file("d/secret", "x")), "", "", []string{"d drwxr-xr-x", "d/secret = x"}},
		{"link over a folder", with(folderOf("d"), file("d/f", "x"), link("d", "../host"), file("d/secret", "y")), "", "", []string{"d -> ../host", "host/secret = y"}},
		{"link over the way", with(folderOf("a/b"), file("a/b/f", "x"), link("a", "../host"), file("a/b/f", "y")), "", "", []string{"a -> ../host", "host/b/f = y"}},
		{"name through a file", with(file("f", "x"), file("f/g", "y")), sandbox.Invalid, "not a folder", nil},
		{"hard link out", with(hard("f", "../host/secret")), sandbox.Invalid, "upwards", nil},
		{"hard link to the host's file", with(hard("f", "/etc/passwd")), sandbox.Invalid, "not a file of its layer", nil},
		{"hard link through a link", with(link("out", "../host"), hard("f", "out/secret")), sandbox.Invalid, "not a file of its layer", nil},
		{"hard link to a link", with(link("s", "../host/secret"), hard("f", "s"), file("f", "x")), "", "", []string{"s -> ../host/secret", "f = x"}},
		{"hard link to a folder", with(folderOf("d"), hard("f", "d")), sandbox.Invalid, "not a file of its layer", nil},
		{"hard link to the root", with(hard("f", "/")), sandbox.Invalid, "no file", nil},
		{"hard link to a whiteout", with(file(".wh.w", ""), hard("f", "w")), sandbox.Invalid, "not a file of its layer", nil},
		{"hard link to itself", with(file("f", "x"), hard("f", "f")), "", "", []string{"f = x"}},
		{"hard link over a folder with its target", with(file("d/f", "x"), hard("d", "d/f")), sandbox.Invalid, "whose place", nil},
		{"hard link over the way to it", with(folderOf("d"), file("d/f", "x"), link("s", "d"), hard("s", "s/f"), file("g", "y")), "", "", []string{"s = x", "d/f = x", "g = y"}},
		{"file of two names written again", with(file("a", "x"), hard("b", "a"), file("b", "y")), "", "", []string{"a = x", "b = y"}},
		{"device", with(device("null"), entry{name: "sda", kind: tar.TypeBlock}, entry{name: "pipe", kind: tar.TypeFifo}, file("f", "x")), "", "", []string{"!null", "!sda", "!pipe", "f = x"}},
		{"hard link to a device", with(device("null"), hard("f", "null")), sandbox.Invalid, "not a file of its layer", nil},
		{"setuid", with(entry{name: "su", text: "x", mode: 0o4755}, entry{name: "sg", text: "x", mode: 0o2755}), "", "", []string{"su urwxr-xr-x", "sg grwxr-xr-x"}},
		{"sticky folder", with(entry{name: "t/", kind: tar.TypeDir, mode: 0o1777}), "", "", []string{"t dtrwxrwxrwx"}},
		{"proc, sys and dev as links", with(link("proc", "/host"), link("sys", "../sys"), link("dev", "/dev")), "", "", []string{"proc -> /host", "sys -> ../sys", "dev -> /dev"}},
		{"dev/null as a link", with(link("dev/null", "/proc/self/mem"), link("dev/pts/ptmx", "/host/secret"), link("etc/mtab", "/proc/mounts")), "", "", []string{"dev/null -> /proc/self/mem"}},
		{"file through dev", with(link("dev", "/dev"), file("dev/null", "x")), sandbox.Invalid, "too many links", nil},
		{"file through proc", with(link("p", "/proc/self/root"), file("p/f", "x")), "", "", []string{"proc/self/root/f = x"}},
		{"newline in a name", with(file("a\nb", "x"), link("c\nd", "e\nf")), "", "", []string{"a\nb = x"}},
		{"odd bytes in a name", with(file("\xff\x01 -rf", "x")), "", "", []string{"\xff\x01 -rf = x"}},
		{"name of 255 bytes", with(file(long[1:], "x")), "", "", []string{long[1:] + " = x"}},
		{"name of 256 bytes", with(file(long, "x")), sandbox.Invalid, "256 bytes", nil},
		{"link through a name of 256 bytes", with(link("l", long), file("l/f", "x")), sandbox.Invalid, "256 bytes", nil},
		{"deep", with(file(deep+"f", "x")), sandbox.Exhausted, "elements", nil},
		{"path of 5000 bytes", with(file(strings.Repeat(long[100:]+"/", 33)+"f", "x")), sandbox.Invalid, "bytes", nil},
		{"root as a file", with(file("./.", "x")), sandbox.Invalid, "root", nil},
		{"root as a link", with(link(".", "/host")), sandbox.Invalid, "root", nil},
		{"link to nothing", with(link("l", "")), sandbox.Invalid, "cannot be", nil},
		{"whiteout", with(file("d/.wh.f", "")), "", "", []string{"d/f whiteout"}},
		{"whiteout of the folder above", with(file("d/.wh...", "")), sandbox.Invalid, "hides", nil},
		{"whiteout of the folder itself", with(file("d/.wh..", "")), sandbox.Invalid, "hides", nil},
		{"whiteout of nothing", with(file(".wh.", "")), sandbox.Invalid, "hides", nil},
		{"whiteout through a link", with(link("out", "../host"), file("out/.wh.secret", "")), "", "", []string{"host/secret whiteout"}},
		{"whiteout before the file", with(file(".wh.f", ""), file("f", "x")), "", "", []string{"f = x"}},
		{"whiteout after the file", with(file("f", "x"), file(".wh.f", "")), "", "", []string{"f = x"}},
		{"whiteout before the folder", with(file(".wh.d", ""), file("d/f", "x")), "", "", []string{"d opaque", "d/f = x"}},
		{"whiteout after the folder", with(file("d/f", "x"), file(".wh.d", "")), "", "", []string{"d opaque", "d/f = x"}},
		{"opaque folder", with(folderOf("d"), file("d/.wh..wh..opq", "")), "", "", []string{"d opaque"}},
		{"opaque folder through a link", with(link("out", "../host"), file("out/dir/.wh..wh..opq", "")), "", "", []string{"host/dir opaque"}},
		{"folder over a file", with(file("d", "x"), folderOf("d")), "", "", []string{"d opaque"}},
		{"notes of aufs", with(folderOf(".wh..wh.plnk"), file(".wh..wh.aufs", "x")), "", "", []string{"!.wh..wh.plnk", "!.wh..wh.aufs"}},
		{"many whiteouts", whiteouts, "", "", []string{"d/f149 whiteout"}},
		{"too many entries", many, sandbox.Exhausted, "400 entries", nil},
		{"entries by folders nobody named", with(file(strings.Repeat("d/", 210)+"f", ""), file(strings.Repeat("e/", 210)+"f", "")), sandbox.Exhausted, "400 entries", nil},
		{"too large", with(file("f", strings.Repeat("x", 1<<20)), file("g", "x")), sandbox.Exhausted, "1048576 bytes", nil},
		{"owner that cannot be", with(entry{name: "f", uid: 1<<32 - 1}), sandbox.Invalid, "belongs to", nil},
		{"folders that nobody may enter", with(entry{name: "d/", kind: tar.TypeDir, mode: 0o400}, file("d/e/f", "x"), entry{name: "d/e/", kind: tar.TypeDir, mode: 0o100}), "", "", nil},
		{"overlay's attributes", with(entry{name: "f", pax: map[string]string{
			"SCHILY.xattr.user.overlay.redirect": "/host", "SCHILY.xattr.user.overlay.metacopy": "", "SCHILY.xattr.trusted.overlay.opaque": "y",
			"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.system.posix_acl_access": "x"}}), "", "", []string{"f no attributes"}},
		{"global header", with(entry{name: "pax", kind: tar.TypeXGlobalHeader, pax: map[string]string{"path": "../host/secret"}}, file("f", "x")), "", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, _, _, err := unpackHere(t, pack(t, c.layer...), small)
			wantKind(t, err, c.kind, c.words)
			for _, want := range c.there {
				checkEntry(t, root, want)
			}
		})
	}
}

// TestTenThousandWhiteouts unpacks a layer that hides 10,000 names, each twice
// and some of its own.
func TestTenThousandWhiteouts(t *testing.T) {
	var entries []entry
	for i := range 10_000 {
		hides := file(fmt.Sprintf("d%d/.wh.f%d", i%10, i), "")
		entries = append(entries, hides, hides)
		if i%100 == 0 {
			entries = append(entries, file(fmt.Sprintf("d%d/f%d", i%10, i), "x"))
		}
	}
	b := small
	b.Entries = 30_000
	b.Layer = 1 << 30
	root, facts, _, err := unpackHere(t, pack(t, entries...), b)
	if err != nil || facts.Whiteouts != 20_000 {
		t.Fatalf("%+v, %v", facts, err)
	}
	checkEntry(t, root, "d9/f9999 whiteout")
	checkEntry(t, root, "d0/f9900 = x")
}

// checkEntry checks what a case of TestHostileLayers says is there.
func checkEntry(t *testing.T, root, want string) {
	t.Helper()
	if name, ok := strings.CutPrefix(want, "!"); ok {
		if exists(filepath.Join(root, name)) {
			t.Errorf("%q is there", name)
		}
		return
	}
	if name, text, ok := strings.Cut(want, " = "); ok {
		if b, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(b) != text {
			t.Errorf("%q has %q, %v", name, b, err)
		}
		return
	}
	if name, to, ok := strings.Cut(want, " -> "); ok {
		if got, err := os.Readlink(filepath.Join(root, name)); err != nil || got != to {
			t.Errorf("%q leads to %q, %v", name, got, err)
		}
		return
	}
	name, what, _ := strings.Cut(want, " ")
	p := filepath.Join(root, name)
	st, err := os.Lstat(p)
	if err != nil {
		t.Error(err)
		return
	}
	buf := make([]byte, 1000)
	switch what {
	case "whiteout":
		if st.Mode()&fs.ModeCharDevice == 0 || st.Sys().(*syscall.Stat_t).Rdev != 0 {
			t.Errorf("%q is %v", name, st.Mode())
		}
	case "opaque":
		if n, err := unix.Lgetxattr(p, "user.overlay.opaque", buf); err != nil || string(buf[:n]) != "y" {
			t.Errorf("%q is not opaque: %v", name, err)
		}
	case "no attributes":
		n, err := unix.Llistxattr(p, buf)
		if err != nil || strings.Contains(string(buf[:n]), "overlay") || strings.Contains(string(buf[:n]), "capability") || strings.Contains(string(buf[:n]), "acl") {
			t.Errorf("%q has %q, %v", name, buf[:n], err)
		}
	default:
		if st.Mode().String() != what {
			t.Errorf("%q is %v, want %s", name, st.Mode(), what)
		}
	}
}

// TestLayerAsItIs holds what is kept: modes, times, owners, attributes, links,
// holes.
func TestLayerAsItIs(t *testing.T) {
	asUser(t)
	big := strings.Repeat("\x00", 600<<10) + "end"
	root, facts, owners, err := unpackHere(t, pack(t,
		entry{name: "./", kind: tar.TypeDir, mode: 0o711},
		entry{name: "d/", kind: tar.TypeDir, mode: 0o750, uid: 33},
		entry{name: "d/f", text: "text", mode: 0o4640, uid: 33, pax: map[string]string{"SCHILY.xattr.user.note": "hello", "SCHILY.xattr.security.selinux": "x"}},
		hard("d/g", "d/f"),
		entry{name: "s", kind: tar.TypeSymlink, link: "d/f", uid: 44},
		file("big", big),
		file("tmp/x", "x"),
		device("null"),
		file(".wh.gone", ""),
	), small)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Facts{Entries: 9, Whiteouts: 1, Setuid: 1, Devices: 1, Xattrs: 1, Size: facts.Size}); facts != want {
		t.Errorf("the facts are %+v, want %+v", facts, want)
	}
	for _, want := range []string{". drwx--x--x", "d drwxr-x---", "d/f urw-r-----", "d/f = text", "d/g = text", "s -> d/f", "big = " + big, "tmp dtrwxrwxrwx"} {
		checkEntry(t, root, want)
	}
	uid := func(name string) int {
		st, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return int(st.Sys().(*syscall.Stat_t).Uid)
	}
	if os.Geteuid() == 0 {
		if uid("d") != 33 || uid("d/f") != 33 || uid("s") != 44 || uid("big") != 0 || len(owners) != 0 {
			t.Errorf("the owners are %d, %d, %d, and beside %v", uid("d"), uid("d/f"), uid("s"), owners)
		}
	} else if len(owners) != 4 || owners["d"] != (owner{33, 33}) || owners["d/f"] != (owner{33, 33}) || owners["d/g"] != (owner{33, 33}) || owners["s"] != (owner{44, 44}) {
		t.Errorf("the owners beside are %v", owners)
	}
	for _, name := range []string{".", "d", "d/f", "s", "big"} {
		st, err := os.Lstat(filepath.Join(root, name))
		if err != nil || !st.ModTime().Equal(day) {
			t.Errorf("%s is from %v, %v", name, st.ModTime(), err)
		}
	}
	var a, b, hole syscall.Stat_t
	if err := errors.Join(syscall.Stat(filepath.Join(root, "d/f"), &a), syscall.Stat(filepath.Join(root, "d/g"), &b), syscall.Stat(filepath.Join(root, "big"), &hole)); err != nil || a.Ino != b.Ino {
		t.Errorf("the hard link is a copy: %v", err)
	}
	if hole.Blocks*512 > 300<<10 {
		t.Errorf("a file of zeros takes %d bytes", hole.Blocks*512)
	}
	buf := make([]byte, 100)
	if n, err := unix.Getxattr(filepath.Join(root, "d/f"), "user.note", buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("the attribute is %q, %v", buf[:n], err)
	}
}

// TestOwnersFile reads what was written, whatever the names.
func TestOwnersFile(t *testing.T) {
	dir := t.TempDir()
	want := map[string]owner{"a b": {1, 2}, "new\nline": {3, 4}, "\xff\"": {5, 6}, ".": {7, 1 << 31}}
	if err := writeOwners(filepath.Join(dir, "owners"), want); err != nil {
		t.Fatal(err)
	}
	l := Layer{Dir: filepath.Join(dir, "fs")}
	got, err := l.Owners()
	if err != nil || len(got) != len(want) {
		t.Fatalf("read %v, %v", got, err)
	}
	for name, o := range want {
		if got[name] != (Owner{o.uid, o.gid}) {
			t.Errorf("%q belongs to %v, want %v", name, got[name], o)
		}
	}
}

func squeeze(t testing.TB, kind string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	switch kind {
	case "gzip":
		w := gzip.NewWriter(&out)
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	case "zstd":
		w, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	default:
		return b
	}
	return out.Bytes()
}

func TestCompressions(t *testing.T) {
	layer := pack(t, file("f", strings.Repeat("text ", 1000)))
	for _, kind := range []string{"plain", "gzip", "zstd"} {
		t.Run(kind, func(t *testing.T) {
			packed := squeeze(t, kind, layer)
			dir := t.TempDir()
			diff, _, _, err := unpack(t.Context(), bytes.NewReader(packed), dir, small)
			if err != nil || diff != digestBytes(layer) {
				t.Fatalf("the DiffID is %s, %v", diff, err)
			}
			if kind == "plain" {
				return
			}
			_, _, _, err = unpack(t.Context(), bytes.NewReader(packed[:len(packed)-9]), t.TempDir(), small)
			wantKind(t, err, sandbox.Invalid, "damaged")
			packed[len(packed)/2] ^= 0xff
			_, _, _, err = unpack(t.Context(), bytes.NewReader(packed), t.TempDir(), small)
			if err == nil {
				t.Error("damaged data passes")
			}
		})
	}
	_, _, _, err := unpack(t.Context(), bytes.NewReader(append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, layer...)), t.TempDir(), small)
	wantKind(t, err, sandbox.Unsupported, "xz")
	_, _, _, err = unpack(t.Context(), strings.NewReader(strings.Repeat("no tar ", 200)), t.TempDir(), small)
	wantKind(t, err, sandbox.Invalid, "tar")
}

// zeroReader has zeros without end.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestBombs unpacks what becomes much larger than it is.
func TestBombs(t *testing.T) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	const size = slack + 64<<20
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for range size >> 20 {
		if _, err := w.Write(buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	_, _, _, err = unpack(t.Context(), &b, dir, Bounds{Layer: 16 << 30, Image: 16 << 30, Entries: 100, Ratio: 50})
	wantKind(t, err, sandbox.Exhausted, "50 times")
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(dir, "zeros"), &st); err != nil || st.Blocks > 16 {
		t.Errorf("it took %d blocks, %v", st.Blocks, err)
	}

	// A tar that never ends.
	_, _, _, err = unpack(t.Context(), zeroReader{}, tempDir(t), small)
	wantKind(t, err, sandbox.Exhausted, "bytes")

	// A file that says it is large.
	var huge bytes.Buffer
	if err := tar.NewWriter(&huge).WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 1 << 60}); err != nil {
		t.Fatal(err)
	}
	_, _, _, err = unpack(t.Context(), &huge, tempDir(t), small)
	wantKind(t, err, sandbox.Exhausted, "bytes")
}

func TestUnpackEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _, err := unpack(ctx, bytes.NewReader(pack(t, file("f", "x"))), t.TempDir(), small)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

// TestTimesThatCannotBe keeps them within what file systems have.
func TestTimesThatCannotBe(t *testing.T) {
	for _, when := range []time.Time{time.Unix(1<<60, 0), time.Unix(-1<<60, 0), {}} {
		if s := clampTime(when).Unix(); s < -1<<31 || s >= 1<<33 {
			t.Errorf("%v becomes %d", when, s)
		}
	}
}

// FuzzUnpack unpacks whatever comes: nothing beside the layer changes, and
// nothing panics.
func FuzzUnpack(f *testing.F) {
	for _, l := range [][]entry{
		with(link("out", "../host"), file("out/secret", "x")), with(file(".wh.f", ""), file("f/g", "x"), hard("h", "f/g")),
		with(folderOf("d"), link("d", "/host"), file("d/dir/.wh..wh..opq", "")), with(device("n"), entry{name: "s", text: "x", mode: 0o4755}),
	} {
		f.Add(pack(f, l...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _, err := unpackHere(t, b, small)
		if k := sandbox.KindOf(err); err != nil && k != sandbox.Invalid && k != sandbox.Exhausted && k != sandbox.Unsupported {
			t.Errorf("the error is %v (%s)", err, k)
		}
	})
}

// FuzzName holds names to what follows from them.
func FuzzName(f *testing.F) {
	for _, s := range []string{"python", "python:3.12", "ghcr.io/a/b@sha256:" + strings.Repeat("0", 64), "localhost:5000/x", "HOST", "../x", "a//b", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := parse(s)
		if err != nil {
			wantKind(t, err, sandbox.Invalid, "name")
			return
		}
		short := familiar(ref)
		again, err := parse(short)
		if err != nil || familiar(again) != short || again.Name() != ref.Name() {
			t.Errorf("%q is %q, which is %v, %v", s, short, again, err)
		}
		if strings.Contains(short, "..") && !strings.Contains(s, "..") {
			t.Errorf("%q is %q", s, short)
		}
	})
}
