package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// guestPath is where a container has the guest program.
const guestPath = guestDir + "/atoll-guest"

// guestDir is where the volume with it is mounted.
const guestDir = "/.atoll"

// dial connects to the guest of a running container: it has the engine execute
// the guest program, which passes on what comes on its standard streams.
func (b *box) dial(ctx context.Context) (*guest.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	api := b.rt.api
	x, err := api.ExecCreate(ctx, b.container, client.ExecCreateOptions{
		User: "0:0", WorkingDir: "/", Cmd: []string{guestPath, "--connect"},
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, b.rt.fail(err)
	}
	h, err := api.ExecAttach(ctx, x.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, b.rt.fail(err)
	}
	conn := &stream{Conn: h.Conn, r: h.Reader}
	g, err := guest.NewClient(conn, guest.Options{Daemon: b.rt.name, Linger: linger, Op: "docker", ID: b.id, Gone: b.check})
	if err != nil {
		return nil, err
	}
	if _, err := g.Processes(ctx); err != nil && sandbox.KindOf(err) != sandbox.Unavailable || ctx.Err() != nil || isDone(g) {
		g.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &sandbox.Error{Kind: sandbox.Unavailable, Msg: "the sandbox's guest does not answer", Err: errors.Join(err, conn.why())}
	}
	return g, nil
}

func isDone(g *guest.Client) bool {
	select {
	case <-g.Done():
		return true
	default:
		return false
	}
}

// A stream is the connection of an exec without a terminal: what is read comes
// in pieces, each with a header of eight bytes that says of which stream and
// how long it is (Docker Engine API, "Attach to a container"). Read gives what
// is of standard output.
type stream struct {
	net.Conn
	r    *bufio.Reader
	left uint32 // of the piece that is being read
	kind byte
	said []byte // the beginning of standard error
}

func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if s.left == 0 {
			var h [8]byte
			if _, err := io.ReadFull(s.r, h[:]); err != nil {
				return 0, err
			}
			s.kind, s.left = h[0], binary.BigEndian.Uint32(h[4:])
			continue
		}
		if s.kind == 1 {
			n, err := s.r.Read(p[:min(len(p), int(s.left))])
			s.left -= uint32(n)
			return n, err
		}
		var skip [512]byte
		n, err := s.r.Read(skip[:min(len(skip), int(s.left))])
		s.left -= uint32(n)
		if room := 4096 - len(s.said); s.kind == 2 && room > 0 {
			s.said = append(s.said, skip[:min(n, room)]...)
		}
		if err != nil {
			return 0, err
		}
	}
}

// why is what came on standard error, once nobody reads any more.
func (s *stream) why() error {
	if len(s.said) == 0 {
		return nil
	}
	return errors.New(string(s.said))
}
