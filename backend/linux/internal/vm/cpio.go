//go:build linux

package vm

import (
	"fmt"
	"io"
	"os"
	"path"
)

// An archive writes cpio's "newc" form, which the kernel unpacks as its first
// file system (Documentation/driver-api/early-userspace/buffer-format.rst).
// After an error it does nothing.
type archive struct {
	w    io.Writer
	have map[string]bool
	n    int64
	ino  int
	err  error
}

func (a *archive) write(p []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(p)
		a.n += int64(len(p))
	}
}

func (a *archive) pad() {
	if over := a.n % 4; over > 0 {
		a.write(make([]byte, 4-over))
	}
}

func (a *archive) header(name string, mode uint32, size int64) {
	if a.err == nil && size >= 1<<32 {
		a.err = fmt.Errorf("%s is too large for this archive", name)
	}
	a.ino++
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name))
	a.pad()
}

// dir adds a directory and those above it, once.
func (a *archive) dir(name string) {
	if name == "." || name == "/" || a.have[name] {
		return
	}
	a.dir(path.Dir(name))
	a.have[name] = true
	a.header(name, 0o040755, 0)
}

func (a *archive) bytes(name string, perm uint32, data []byte) {
	a.dir(path.Dir(name))
	a.header(name, 0o100000|perm, int64(len(data)))
	a.write(data)
	a.pad()
}

// file adds the file that is at here.
func (a *archive) file(name, here string) {
	if a.err != nil {
		return
	}
	f, err := os.Open(here)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	if !st.Mode().IsRegular() {
		a.err = fmt.Errorf("%s is no regular file", here)
		return
	}
	a.dir(path.Dir(name))
	mode := 0o100000 | uint32(st.Mode().Perm())
	if st.Mode()&os.ModeSetuid != 0 {
		mode |= 0o4000
	}
	a.header(name, mode, st.Size())
	n, err := io.Copy(a.w, io.LimitReader(f, st.Size()))
	a.n += n
	if err == nil && n < st.Size() {
		err = fmt.Errorf("%s became shorter", here)
	}
	a.err = err
	a.pad()
}

func (a *archive) end() { a.header("TRAILER!!!", 0, 0) }
