//go:build linux

package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// MinSize is the least size of an image in bytes.
const MinSize = 1 << 20

// A Maker makes images. The zero Maker is ready; it is safe for concurrent
// use.
type Maker struct {
	mu    sync.Mutex
	fresh []*image // the last used first
}

// An image is what mkfs makes of an empty file of some size.
type image struct {
	size   int64
	pieces []piece
}

type piece struct {
	offset int64
	data   []byte
}

const (
	remembered   = 8       // how many sizes
	largestImage = 4 << 20 // of one, in bytes of memory
)

// Make makes a new file of size bytes (a multiple of 4096 is made of it,
// downwards) with an empty file system in it, whose root directory belongs to
// uid and gid, and returns that as a detached mount, not set-user-id and
// without devices. The caller closes it, and removes the file in the end,
// which may be while it is mounted. On failure there is no file.
func (m *Maker) Make(ctx context.Context, file string, size int64, uid, gid int) (_ *os.File, err error) {
	if size < MinSize {
		return nil, sandbox.Errorf(sandbox.Invalid, "limits.disk", "%d bytes are too few for a file system", size).
			WithHint("give it %d or more", MinSize)
	}
	size -= size % 4096
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	defer func() {
		if err != nil {
			os.Remove(file)
		}
	}()
	if err := m.format(ctx, f, size); err != nil {
		return nil, err
	}
	mnt, err := mount(f)
	if err != nil {
		return nil, err
	}
	if err := unix.Fchownat(int(mnt.Fd()), "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		mnt.Close()
		return nil, &os.PathError{Op: "chown", Path: file, Err: err}
	}
	return mnt, nil
}

// Open mounts an image that Make made, as Make does.
func Open(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mount(f)
}

// format makes the empty file f a file system.
func (m *Maker) format(ctx context.Context, f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	if img := m.recall(size); img != nil {
		for _, p := range img.pieces {
			if _, err := f.WriteAt(p.data, p.offset); err != nil {
				return err
			}
		}
		return nil
	}
	mkfs, err := lookMkfs()
	if err != nil {
		return err
	}
	// No journal: after a crash of the host there is no sandbox to go on.
	// Tables of inodes are left for the kernel to zero when it needs them.
	cmd := exec.CommandContext(ctx, mkfs, "-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode",
		"-E", "lazy_itable_init=1,nodiscard", f.Name())
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w: %s", mkfs, err, strings.TrimSpace(said.String()))
	}
	img, err := snapshot(f, size)
	if err == nil && img != nil {
		m.remember(img)
	}
	return err
}

func (m *Maker) recall(size int64) *image {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, img := range m.fresh {
		if img.size == size {
			copy(m.fresh[1:i+1], m.fresh[:i])
			m.fresh[0] = img
			return img
		}
	}
	return nil
}

func (m *Maker) remember(img *image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, old := range m.fresh {
		if old.size == img.size {
			return
		}
	}
	m.fresh = append([]*image{img}, m.fresh[:min(len(m.fresh), remembered-1)]...)
}

// snapshot reads what of f is no hole; nil if that is much.
func snapshot(f *os.File, size int64) (*image, error) {
	img := &image{size: size}
	total := int64(0)
	for at := int64(0); at < size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		if total += end - start; total > largestImage {
			return nil, nil
		}
		p := piece{start, make([]byte, end-start)}
		if _, err := io.ReadFull(io.NewSectionReader(f, start, end-start), p.data); err != nil {
			return nil, err
		}
		img.pieces = append(img.pieces, p)
		at = end
	}
	return img, nil
}

// lookMkfs finds mkfs.ext4, which is not in the PATH of ordinary users.
func lookMkfs() (string, error) {
	for _, dir := range append([]string{"/usr/sbin", "/sbin"}, filepath.SplitList(os.Getenv("PATH"))...) {
		path := filepath.Join(dir, "mkfs.ext4")
		if filepath.IsAbs(path) && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", sandbox.Errorf(sandbox.Unsupported, "limits.disk", "this host has no mkfs.ext4").
		WithHint("apt-get install e2fsprogs")
}

// mount puts f on a loop device and mounts that, attached to nothing.
func mount(f *os.File) (*os.File, error) {
	loop, err := attach(f)
	if err != nil {
		return nil, err
	}
	defer loop.Close()
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fsopen ext4: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{{"source", loop.Name()}, {"errors", "remount-ro"}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return nil, fmt.Errorf("fsconfig %s: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("mount the image: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME)
	if err != nil {
		return nil, fmt.Errorf("fsmount: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// attach puts f on a free loop device, which is free again when its last user
// is gone.
func attach(f *os.File) (*os.File, error) {
	ctl, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/loop-control", Err: err}
	}
	defer unix.Close(ctl)
	for range 100 {
		n, err := unix.IoctlRetInt(ctl, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		name := fmt.Sprintf("/dev/loop%d", n)
		fd, err := openLoop(name, n)
		if err != nil {
			return nil, err
		}
		loop := os.NewFile(uintptr(fd), name)
		err = unix.IoctlLoopConfigure(fd, &unix.LoopConfig{
			Fd:   uint32(f.Fd()),
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if err != unix.EBUSY { // somebody else was quicker
			return nil, os.NewSyscallError("LOOP_CONFIGURE", err)
		}
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, "", "no loop device stays free").WithHint("try again")
}

// openLoop opens loop device n, whose node it makes where no devtmpfs does.
func openLoop(name string, n int) (int, error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		if err := unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil && err != unix.EEXIST {
			return -1, &os.PathError{Op: "mknod", Path: name, Err: err}
		}
		fd, err = unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// Probe makes a small image in dir, mounts it and removes it again. The error
// says why that cannot be done here.
func Probe(ctx context.Context, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("mounting an image needs root")
	}
	tmp, err := os.MkdirTemp(dir, "probe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	mnt, err := new(Maker).Make(ctx, filepath.Join(tmp, "disk"), MinSize, 0, 0)
	if err != nil {
		return err
	}
	return mnt.Close()
}
