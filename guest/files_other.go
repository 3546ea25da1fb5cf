//go:build !linux

package guest

import (
	"io"
	"net"

	"github.com/atoll-run/atoll/guest/proto"
)

func (c *Client) reader(o *proto.Opened, _ []int) (content, error) {
	return &carriedFile{c: c, handle: o.Handle}, nil
}

func (c *Client) writer(o *proto.Opened, _ []int) (io.WriteCloser, error) {
	return &carriedDraft{c, o.Handle}, nil
}

func (c *Client) connection(o *proto.Opened, _ []int, port int) (net.Conn, error) {
	return newCarriedConn(c, o.Handle, port), nil
}
