package image

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestOverlay mounts an image's layers as backends do, in a user namespace:
// what upper layers hide is hidden.
func TestOverlay(t *testing.T) {
	asUser(t)
	try := exec.CommandContext(t.Context(), "unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b && mount -t overlay -o userxattr,lowerdir=/mnt/a:/mnt/b none /mnt")
	if out, err := try.CombinedOutput(); err != nil {
		t.Skipf("no overlay can be mounted here: %v %s", err, out)
	}
	s := storeIn(t, Options{})
	root(t, s, "base", "gone")
	layers := [][]entry{
		{file("dir/a", "1"), file("dir/b", "1"), file("hidden/old", "1"), file("swap/old", "1"), file("keep/k", "1")},
		{file(".wh.f", ""), file("dir/.wh.a", ""), file("hidden/.wh..wh..opq", ""), file("hidden/new", "2"), file(".wh.swap", ""), file("swap/new", "2"), link("keep2", "keep")},
	}
	for _, l := range layers {
		if _, err := s.Commit(t.Context(), CommitOptions{Base: "base", Layer: bytes.NewReader(pack(t, l...)), Name: "base"}); err != nil {
			t.Fatal(err)
		}
	}
	img, err := s.Get("base")
	if err != nil {
		t.Fatal(err)
	}
	// Its folders can be entered by their owner alone, who here is root inside.
	cmd := exec.CommandContext(t.Context(), "unshare", "-rm", "sh", "-c", `mount -t overlay -o "userxattr,lowerdir=$DIRS" none /mnt && cd /mnt && find . -type f -o -type l -o -type c | LC_ALL=C sort && cat dir/b keep2/k`)
	cmd.Env = append(os.Environ(), "DIRS="+strings.Join(img.Dirs(), ":"))
	out, err := cmd.CombinedOutput()
	if want := "./dir/b\n./hidden/new\n./keep/k\n./keep2\n./swap/new\n11"; err != nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}
