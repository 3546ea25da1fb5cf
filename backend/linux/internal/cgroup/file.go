//go:build linux

package cgroup

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Group files are read and written with bare system calls: os.OpenFile would
// hand each descriptor to the poller first, which cgroup files accept.

func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err == nil {
			return fd, nil
		}
		if err != unix.EINTR {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// openFile opens path for somebody else to use.
func openFile(path string, flags int) (*os.File, error) {
	fd, err := open(path, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func write(path, data string) error {
	fd, err := open(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		if _, err = unix.Write(fd, []byte(data)); err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &os.PathError{Op: "write " + data + " to", Path: path, Err: err}
		}
	}
}

func read(path string) (string, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var data []byte
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return string(data), nil
		default:
			data = append(data, buf[:n]...)
		}
	}
}

// readInt reads a file that holds a number; "max" is -1.
func readInt(path string) (int64, error) {
	s, err := read(path)
	if err != nil {
		return 0, err
	}
	if s = strings.TrimSpace(s); s == "max" {
		return -1, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// readKey reads the number after key in a file of "key number" lines, and
// whether it is there.
func readKey(path, key string) (int64, bool, error) {
	s, err := read(path)
	if err != nil {
		return 0, false, err
	}
	n, ok := lookup(s, key)
	return n, ok, nil
}

func lookup(s, key string) (int64, bool) {
	for line := range strings.Lines(s) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == key {
			n, err := strconv.ParseInt(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func exists(path string) bool {
	var st unix.Stat_t
	return unix.Lstat(path, &st) == nil
}
