package guest

import (
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

func newWire(conn net.Conn, descriptors bool) (wire, error) {
	if !descriptors {
		return &stream{conn: conn}, nil
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, &sandbox.Error{Kind: sandbox.Invalid, Msg: "only a Unix socket can pass descriptors"}
	}
	return &socket{conn: u}, nil
}

// A socket is a Unix socket: frames travel with descriptors.
type socket struct {
	conn *net.UnixConn
	mu   sync.Mutex // held while a frame is sent
}

func (s *socket) passing() bool { return true }
func (s *socket) close() error  { return s.conn.Close() }

func (s *socket) send(b []byte, fds []int) error {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _, err := s.conn.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = s.conn.Write(b[n:])
	}
	return err
}

// maxWaiting is how many descriptors may have come that no frame has claimed.
const maxWaiting = 16

func (s *socket) receive(f func(proto.Frame, []int) error) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	oob := make([]byte, unix.CmsgSpace(4*maxWaiting))
	return frames(func(b []byte) (int, error) {
		n, oobn, flags, _, err := s.conn.ReadMsgUnix(b, oob)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if oobn > 0 {
			msgs, e := unix.ParseSocketControlMessage(oob[:oobn])
			for i := range msgs {
				got, e := unix.ParseUnixRights(&msgs[i])
				if e == nil {
					fds = append(fds, got...)
				}
			}
			if e != nil || flags&unix.MSG_CTRUNC != 0 || len(fds) > maxWaiting {
				return 0, errors.New("the guest passes more descriptors than it may")
			}
		}
		return n, err
	}, func(fr proto.Frame) error {
		if fr.FDs > len(fds) {
			return errors.New("descriptors are missing")
		}
		got := append([]int(nil), fds[:fr.FDs]...)
		fds = append(fds[:0], fds[fr.FDs:]...)
		return f(fr, got)
	})
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
