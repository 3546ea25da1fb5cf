//go:build !linux

package guest

import (
	"context"
	"io"
	"net"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

func (c *Client) reader(o *proto.Opened, _ []int) (content, error) {
	return &carriedFile{c: c, handle: o.Handle}, nil
}

func (c *Client) writer(o *proto.Opened, _ []int) (io.WriteCloser, error) {
	return &carriedDraft{c, o.Handle}, nil
}

// Dial connects to a TCP port on the sandbox's loopback.
func (c *Client) Dial(context.Context, int) (net.Conn, error) {
	return nil, c.error("Dial", sandbox.Errorf(sandbox.Unsupported, "", "ports are reached on Linux alone"))
}
