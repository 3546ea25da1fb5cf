package guest

import (
	"net"
	"sync"

	"github.com/atoll-run/atoll/guest/proto"
)

// A stream is any connection: everything is carried.
type stream struct {
	conn net.Conn
	mu   sync.Mutex // held while a frame is sent
}

func (s *stream) passing() bool { return false }
func (s *stream) close() error  { return s.conn.Close() }

func (s *stream) send(b []byte, fds []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.Write(b)
	return err
}

func (s *stream) receive(f func(proto.Frame, []int) error) error {
	return frames(s.conn.Read, func(fr proto.Frame) error {
		if fr.FDs != 0 {
			return proto.ErrFrame
		}
		return f(fr, nil)
	})
}

// frames cuts what read returns into frames.
func frames(read func([]byte) (int, error), f func(proto.Frame) error) error {
	buf := make([]byte, 0, 8<<10)
	for {
		n, err := read(buf[len(buf):cap(buf)])
		n = max(n, 0)
		buf = buf[:len(buf)+n]
		at := 0
		for n > 0 {
			fr, size, need, e := proto.Next(buf[at:])
			if e != nil {
				return e
			}
			if size == 0 {
				rest := buf[at:]
				if cap(buf) < need || cap(buf) > 64<<10 && need <= 8<<10 && len(rest) < 8<<10 {
					buf = append(make([]byte, 0, max(8<<10, need)), rest...)
				} else {
					buf = buf[:copy(buf[:cap(buf)], rest)]
				}
				break
			}
			at += size
			if e := f(fr); e != nil {
				return e
			}
		}
		if err != nil {
			return err
		}
	}
}
