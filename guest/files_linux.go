package guest

import (
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// one takes the descriptor out of an answer that has to have one, of a regular
// file: from anything else a read or a write may never return.
func (c *Client) one(fds []int) (int, error) {
	var st unix.Stat_t
	if len(fds) != 1 || unix.Fstat(fds[0], &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		closeAll(fds)
		c.conn.close()
		return -1, &sandbox.Error{Kind: sandbox.Internal, Msg: "the guest passed no regular file"}
	}
	return fds[0], nil
}

// reader returns the file that was opened.
func (c *Client) reader(o *proto.Opened, fds []int) (content, error) {
	if !c.conn.passing() {
		closeAll(fds)
		return &carriedFile{c: c, handle: o.Handle}, nil
	}
	fd, err := c.one(fds)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		o.Entry.Size = st.Size
	}
	return os.NewFile(uintptr(fd), "file"), nil
}

// writer returns the file that was created.
func (c *Client) writer(o *proto.Opened, fds []int) (io.WriteCloser, error) {
	if !c.conn.passing() {
		closeAll(fds)
		return &carriedDraft{c, o.Handle}, nil
	}
	fd, err := c.one(fds)
	if err != nil {
		return nil, err
	}
	return &draft{os.NewFile(uintptr(fd), "draft")}, nil
}

// draft is a new file.
type draft struct{ f *os.File }

func (d *draft) Close() error { return d.f.Close() }

func (d *draft) Write(b []byte) (int, error) {
	n, err := d.f.Write(b)
	if err != nil {
		e := &sandbox.Error{Kind: sandbox.Internal, Field: "path", Msg: "the file cannot be written", Err: err}
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
			e.Kind, e.Msg, e.Hint = sandbox.Exhausted, "the disk is full", "remove files, or ask for a larger limits.disk"
		}
		return n, e
	}
	return n, nil
}

// connection returns the connection that was dialled.
func (c *Client) connection(o *proto.Opened, fds []int, port int) (net.Conn, error) {
	if !c.conn.passing() {
		closeAll(fds)
		return newCarriedConn(c, o.Handle, port), nil
	}
	if len(fds) != 1 {
		closeAll(fds)
		c.conn.close()
		return nil, &sandbox.Error{Kind: sandbox.Internal, Msg: "the guest passed no connection"}
	}
	f := os.NewFile(uintptr(fds[0]), "port")
	defer f.Close()
	conn, err := net.FileConn(f)
	if _, tcp := conn.(*net.TCPConn); err == nil && !tcp {
		conn.Close()
		return nil, &sandbox.Error{Kind: sandbox.Internal, Msg: "the guest passed something else than a connection"}
	}
	return conn, err
}
