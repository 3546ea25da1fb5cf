//go:build linux

package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

func need(t testing.TB) {
	t.Helper()
	if err := Probe(t.Context(), t.TempDir()); err != nil {
		if slices.Contains(strings.Split(os.Getenv("ATOLL_REQUIRE"), ","), "disk") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// at is the path of name in a mount that is nowhere.
func at(mnt *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", mnt.Fd(), name)
}

// fill writes to name until there is no room, and returns how much that was.
func fill(t *testing.T, mnt *os.File, name string) int64 {
	t.Helper()
	f, err := os.Create(at(mnt, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	for i := range b {
		b[i] = byte(i) | 1
	}
	total := int64(0)
	for {
		n, err := f.Write(b)
		total += int64(n)
		if errors.Is(err, unix.ENOSPC) {
			return total
		}
		if err != nil {
			t.Fatal(err)
		}
		if total > 1<<30 {
			t.Fatal("no end")
		}
	}
}

func TestIsBounded(t *testing.T) {
	need(t)
	var m Maker
	for _, size := range []int64{MinSize, MinSize + 1, 16 << 20} {
		for _, how := range []string{"mkfs", "remembered"} {
			file := filepath.Join(t.TempDir(), "disk")
			mnt, err := m.Make(t.Context(), file, size, 100000, 100007)
			if err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(mnt.Fd()), &st); err != nil || st.Uid != 100000 || st.Gid != 100007 || st.Mode != unix.S_IFDIR|0o755 {
				t.Errorf("%s: the root is %o of %d:%d, %v", how, st.Mode, st.Uid, st.Gid, err)
			}
			if got := fill(t, mnt, "full"); got > size || got < size/2 {
				t.Errorf("%s: %d bytes go into %d", how, got, size)
			}
			if err := os.Remove(at(mnt, "full")); err != nil {
				t.Error(err)
			}
			// Names fill it too.
			for i := 0; ; i++ {
				err := os.WriteFile(at(mnt, fmt.Sprint("f", i)), nil, 0o644)
				if errors.Is(err, unix.ENOSPC) {
					break
				}
				if err != nil || i > 1<<16 {
					t.Fatalf("file %d: %v", i, err)
				}
			}
			mnt.Close()
			if st, err := os.Stat(file); err != nil || st.Size() > size || st.Mode().Perm() != 0o600 {
				t.Errorf("the image: %v, %v", st, err)
			}
		}
	}
}

func TestShowsNowhereAndGoesAway(t *testing.T) {
	need(t)
	before := loops(t)
	var m Maker
	file := filepath.Join(t.TempDir(), "disk-of-the-test")
	mnt, err := m.Make(t.Context(), file, MinSize, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(info), "disk-of-the-test") {
		t.Errorf("it is in the mount table: %v", err)
	}
	if err := os.WriteFile(at(mnt, "x"), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at(mnt, "suid"), nil, 0o4755); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(mnt.Fd()), &fs); err != nil || fs.Flags&unix.ST_NOSUID == 0 || fs.Flags&unix.ST_NODEV == 0 {
		t.Errorf("flags %#x, %v", fs.Flags, err)
	}
	mnt.Close()
	// What was written is there again.
	again, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(at(again, "x")); err != nil || string(b) != "kept" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	again.Close()
	for range 1000 {
		if after := loops(t); !slices.ContainsFunc(after, func(s string) bool { return strings.Contains(s, "disk-of-the-test") }) {
			if len(after) > len(before) {
				t.Logf("loop devices before: %v, after: %v", before, after)
			}
			return
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	t.Errorf("the loop device stays: %v", loops(t))
}

// loops returns the files on loop devices.
func loops(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil {
			files = append(files, strings.TrimSpace(string(b)))
		}
	}
	return files
}

func TestFailureLeavesNothing(t *testing.T) {
	need(t)
	dir := t.TempDir()
	var m Maker
	file := filepath.Join(dir, "disk")
	if _, err := m.Make(t.Context(), file, MinSize-1, 0, 0); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("too small: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Make(ctx, file, MinSize, 0, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	mnt, err := m.Make(t.Context(), file, MinSize, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mnt.Close()
	if _, err := m.Make(t.Context(), file, MinSize, 0, 0); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the first is gone: %v", err)
	}
}

func TestMany(t *testing.T) {
	need(t)
	var m Maker
	dir := t.TempDir()
	errs := make(chan error)
	const n = 20
	for i := range n {
		go func() {
			mnt, err := m.Make(t.Context(), filepath.Join(dir, fmt.Sprint(i)), int64(MinSize+(i%3)<<20), i, i)
			if err == nil {
				defer mnt.Close()
				err = os.WriteFile(at(mnt, "x"), []byte("x"), 0o600)
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for size := range int64(2 * remembered) {
		m.remember(&image{size: size})
	}
	if len(m.fresh) != remembered {
		t.Errorf("remembers %d", len(m.fresh))
	}
}

func BenchmarkMake(b *testing.B) {
	need(b)
	var m Maker
	dir := b.TempDir()
	i := 0
	for b.Loop() {
		file := filepath.Join(dir, fmt.Sprint(i))
		i++
		mnt, err := m.Make(b.Context(), file, 1<<30, 1, 1)
		if err != nil {
			b.Fatal(err)
		}
		mnt.Close()
		os.Remove(file)
	}
}
