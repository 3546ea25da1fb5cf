package linux

import (
	"embed"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// guestbin has the guest program as atoll-guest, if make put it there.
//
//go:embed all:guestbin
var guestbin embed.FS

// GuestProgram returns the guest program that is built into this one, nil if
// none is. It is for backends that bring it to other places.
func GuestProgram() []byte {
	b, err := guestbin.ReadFile("guestbin/atoll-guest")
	if err != nil {
		return nil
	}
	return b
}

// guestProgram returns a descriptor of the guest program, sealed so that
// nothing that ever runs it can change it (CVE-2019-5736). All sandboxes share
// its pages.
func guestProgram(file string) (*os.File, error) {
	var b []byte
	var err error
	if file == "" {
		b, err = guestbin.ReadFile("guestbin/atoll-guest")
		if err != nil {
			exe, e := os.Executable()
			if e != nil {
				return nil, e
			}
			file = filepath.Join(filepath.Dir(exe), "atoll-guest")
		}
	}
	if file != "" {
		if b, err = os.ReadFile(file); err != nil {
			return nil, &sandbox.Error{Kind: sandbox.Unsupported, Msg: "the guest program is not built into this one, nor beside it", Hint: "build with: make build", Err: err}
		}
	}
	fd, err := unix.MemfdCreate("atoll-guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if err == unix.EINVAL { // before Linux 6.3 there is no MFD_EXEC, nor need of it
		fd, err = unix.MemfdCreate("atoll-guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "atoll-guest")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, fmt.Errorf("memfd: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the guest: %w", err)
	}
	return f, nil
}
