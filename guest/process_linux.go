package guest

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/internal/tail"
	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// pipes makes the pipes that m asks for and returns what is to be passed. A
// terminal takes the place of all but that of Control.
func (p *process) pipes(m *proto.Start) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			p.abandon()
		}
	}()
	pipe := func() (r, w int, err error) {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return -1, -1, &sandbox.Error{Kind: sandbox.Exhausted, Msg: "the host has no descriptors left", Err: err}
		}
		return p[0], p[1], nil
	}
	if m.In == proto.Pipe && !m.Terminal {
		r, w, err := pipe()
		if err != nil {
			return fds, err
		}
		fds = append(fds, r)
		unix.SetNonblock(w, true)
		p.stdin = &fileIn{os.NewFile(uintptr(w), "input")}
	}
	for i, want := range []bool{m.Out == proto.Pipe && !m.Terminal, m.Err == proto.Pipe && !m.Terminal, m.Control} {
		if !want {
			continue
		}
		r, w, err := pipe()
		if err != nil {
			return fds, err
		}
		fds = append(fds, w, r)
		p.outs[i] = &fileOut{fd: r}
	}
	return fds, nil
}

// abandon closes what a process that did not start would have used, but for
// what was to be passed: whoever has that list closes it.
func (p *process) abandon() {
	if p.stdin != nil {
		p.stdin.close()
	}
}

// streams makes p's streams ready, and closes of the descriptors that were
// passed those that are not p's to keep. got came with the answer.
func (p *process) streams(m *proto.Start, fds, got []int) error {
	if !p.c.conn.passing() {
		closeAll(got)
		p.carry(m)
		return nil
	}
	for _, fd := range fds {
		mine := false
		for _, o := range p.outs {
			if o, ok := o.(*fileOut); ok && o.fd == fd {
				mine = true
			}
		}
		if !mine {
			unix.Close(fd)
		}
	}
	for _, o := range p.outs {
		if o, ok := o.(*fileOut); ok {
			o.r = tail.New(o.fd, false)
		}
	}
	if !p.tty {
		closeAll(got)
		return nil
	}
	var st unix.Stat_t
	if len(got) != 1 || unix.Fstat(got[0], &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
		closeAll(got)
		if p.outs[2] != nil {
			p.outs[2].close()
		}
		p.c.conn.close()
		return &sandbox.Error{Kind: sandbox.Internal, Msg: "the guest passed no terminal"}
	}
	unix.SetNonblock(got[0], true)
	f := os.NewFile(uintptr(got[0]), "terminal")
	p.outs[0] = &fileOut{fd: got[0], r: tail.NewFile(f, got[0], true)}
	p.stdin = &fileIn{f}
	return nil
}

// fileOut is the reading end of a pipe, or a terminal.
type fileOut struct {
	fd int
	r  *tail.Reader
}

func (o *fileOut) read(b []byte) (int, bool) { return o.r.Read(context.Background(), b) }
func (o *fileOut) over()                     { o.r.Over() }
func (o *fileOut) close()                    { o.r.Close() }

// fileIn is the writing end of a pipe, or a terminal; closed with the process.
type fileIn struct{ f *os.File }

func (i *fileIn) Write(b []byte) (int, error) { return i.f.Write(b) }

func (i *fileIn) eof() {
	if tty := i.f.Name() == "terminal"; !tty {
		i.f.Close()
	}
}

func (i *fileIn) close() {
	i.f.SetWriteDeadline(time.Unix(1, 0))
	i.f.Close()
}
