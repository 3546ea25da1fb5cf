package inside

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// dial answers "dial": it connects to a port on the loopback, of IPv4 or else
// of IPv6.
func dial(ctx context.Context, c *conn, b []byte) (proto.Message, []int, error) {
	var m proto.Dial
	if err := proto.Decode(b, &m); err != nil {
		return nil, nil, fail(kindInvalid, "", err.Error())
	}
	if m.Port < 1 || m.Port > 65535 {
		return nil, nil, fail(kindInvalid, "port", "it is not a port")
	}
	fd, err := connect(ctx, unix.AF_INET, &unix.SockaddrInet4{Port: m.Port, Addr: [4]byte{127, 0, 0, 1}})
	if err == unix.ECONNREFUSED {
		var e error
		if fd, e = connect(ctx, unix.AF_INET6, &unix.SockaddrInet6{Port: m.Port, Addr: [16]byte{15: 1}}); e == nil {
			err = nil
		}
	}
	switch {
	case err == nil && c.passing:
		return &proto.Opened{}, []int{fd}, nil
	case err == nil:
		h := &handle{f: os.NewFile(uintptr(fd), "port"), port: true}
		n, err := c.keepHandle(h)
		if err != nil {
			h.close()
			return nil, nil, err
		}
		return &proto.Opened{Handle: n}, nil, nil
	case ctx.Err() != nil:
		return nil, nil, fail(kindUnavailable, "", "the request was cancelled")
	}
	return nil, nil, &proto.Failure{Kind: kindUnavailable, Field: "port", Msg: "nobody listens there", Log: err.Error()}
}

// connect returns a connected socket, which does not block.
func connect(ctx context.Context, family int, to unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(fd, to)
	for err == unix.EINPROGRESS || err == unix.EINTR { // the listener's queue is full
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(p, int(100*time.Millisecond/time.Millisecond)); n == 0 {
			if err = ctx.Err(); err == nil {
				err = unix.EINPROGRESS
			}
			continue
		}
		e, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err = nil; e != 0 {
			err = unix.Errno(e)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// receive reads what comes next from a connection.
func (h *handle) receive(ctx context.Context, b []byte) (*proto.Data, error) {
	h.mu.Lock()
	f := h.f
	h.mu.Unlock()
	if f == nil {
		return nil, badHandle
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	n, err := f.Read(b)
	if !stop() {
		f.SetReadDeadline(time.Time{})
	}
	switch {
	case n > 0:
		return &proto.Data{Data: b[:n]}, nil
	case err == io.EOF:
		return &proto.Data{End: true}, nil
	case ctx.Err() != nil:
		return nil, fail(kindUnavailable, "", "the request was cancelled")
	}
	return nil, &proto.Failure{Kind: kindUnavailable, Msg: "the connection was broken off", Log: err.Error()}
}

// transmit writes to a connection, and with eof ends that half of it.
func (h *handle) transmit(ctx context.Context, b []byte, eof bool) *proto.Wrote {
	h.mu.Lock()
	f := h.f
	h.mu.Unlock()
	var w proto.Wrote
	if f == nil {
		w.Fail = *badHandle
		return &w
	}
	var err error
	if len(b) > 0 {
		stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
		w.N, err = f.Write(b)
		if !stop() {
			f.SetWriteDeadline(time.Time{})
		}
	}
	if eof && err == nil {
		raw, e := f.SyscallConn()
		if err = e; err == nil {
			raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_WR) })
		}
	}
	if err != nil {
		w.Fail = proto.Failure{Kind: kindUnavailable, Msg: "the connection was broken off", Log: err.Error()}
	}
	return &w
}
