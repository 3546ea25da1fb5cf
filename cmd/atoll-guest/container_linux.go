package main

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/docker/place"
	"github.com/atoll-run/atoll/guest/inside"
	"github.com/atoll-run/atoll/guest/proto"
)

// container is how the guest behaves as process 1 of a container.
var container = inside.Config{Setup: setupContainer, Patient: true, Admit: fromOutside}

// setupContainer carries out what backend/docker sends with "setup".
func setupContainer(body []byte, files []*os.File) (inside.Place, []byte, error) {
	for _, f := range files {
		f.Close()
	}
	req := new(place.Request)
	if err := proto.Decode(body, req); err != nil {
		return inside.Place{}, nil, err
	}
	done, err := place.Setup(req)
	if err != nil {
		return inside.Place{}, nil, err
	}
	p := inside.Place{Env: environ(req.Env), Workdir: req.Workdir, User: req.User}
	for _, name := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if p.OOM, err = os.Open(name); err == nil {
			break
		}
		p.OOM = nil
	}
	return p, proto.Append(nil, &done), nil
}

// listen makes the socket that --connect finds.
func listen(s *inside.Server) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: place.Socket}); err != nil {
		return err
	}
	if err := unix.Listen(fd, 16); err != nil {
		return err
	}
	return s.Listen(fd)
}

// peerPIDFD is SO_PEERPIDFD of socket(7), Linux 6.5.
const peerPIDFD = 77

// fromOutside reports whether who connects was started by the engine, not by
// anything in the sandbox: its parent is then in another PID namespace, which
// no process of the sandbox can have of itself.
func fromOutside(fd int) bool {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Uid != 0 || cred.Pid <= 1 {
		return false
	}
	held, pidErr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, peerPIDFD)
	if pidErr == nil {
		defer unix.Close(held)
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(int(cred.Pid)) + "/stat")
	if err != nil {
		return false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 || string(f[1]) != "0" {
		return false
	}
	if pidErr == nil { // that it still lives says that nobody else has its pid
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(held), Events: unix.POLLIN}}, 0)
		return n == 0 && err == nil
	}
	return true
}

// connect passes on bytes between standard input and output and the guest that
// listens. It ends with either side.
func connect() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); ; {
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: place.Socket}); err == nil {
			break
		}
		if err != unix.ECONNREFUSED && err != unix.EAGAIN || time.Now().After(end) {
			return errors.New("connect: " + err.Error())
		}
		time.Sleep(2 * time.Millisecond)
	}
	done := make(chan error, 2)
	go func() { done <- pass(fd, 0) }()
	go func() { done <- pass(1, fd) }()
	return <-done
}

// pass copies from one descriptor to another until either ends.
func pass(to, from int) error {
	buf := make([]byte, 128<<10)
	for {
		n, err := unix.Read(from, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return nil
		}
		for b := buf[:n]; len(b) > 0; {
			n, err := unix.Write(to, b)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return nil
			}
			b = b[n:]
		}
	}
}
