package inside

import (
	"bytes"
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// maxPending is how many bytes a daemon may leave unread before its
// connection is given up. Answers with content wait for it to read instead.
const maxPending = 4 << 20

// softPending is how many bytes may be waiting when an answer with content is
// added.
const softPending = 512 << 10

// A conn is one connection. The loop alone reads from it; anyone writes.
type conn struct {
	s       *Server
	in, out int
	socket  bool // a Unix socket
	buf     []byte
	fds     []int // received, not yet claimed by a frame
	hello   proto.Hello
	greeted bool
	passing bool // descriptors are passed, in both directions

	mu      sync.Mutex
	closed  bool
	doomed  bool     // the loop will drop it
	pending []packet // what the socket did not take yet
	waiting int      // bytes in pending
	room    sync.Cond
	calls   map[uint32]context.CancelFunc
	working int
	handles map[uint32]*handle
	last    uint32 // handle given out
}

// A packet is bytes with descriptors, which are closed once they are sent.
type packet struct {
	b   []byte
	fds []int
}

// receive reads once and handles the frames that are complete. It reports
// whether the connection goes on.
func (c *conn) receive() bool {
	if cap(c.buf)-len(c.buf) < 1024 {
		c.buf = append(make([]byte, 0, max(4096, 2*len(c.buf))), c.buf...)
	}
	room := c.buf[len(c.buf):cap(c.buf)]
	var n int
	var err error
	if c.socket {
		oob := c.s.rights[:]
		var oobn, flags int
		n, oobn, flags, _, err = unix.Recvmsg(c.in, room, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err == nil && oobn > 0 {
			if !c.keepRights(oob[:oobn]) || flags&unix.MSG_CTRUNC != 0 {
				return false
			}
		}
	} else {
		n, err = unix.Read(c.in, room)
	}
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return true
	case err != nil || n == 0:
		return false
	}
	c.buf = c.buf[:len(c.buf)+n]
	at := 0
	for {
		f, n, need, err := proto.Next(c.buf[at:])
		if err != nil || len(c.fds) < f.FDs {
			return false
		}
		if n == 0 {
			rest := c.buf[at:]
			if cap(c.buf) < need || cap(c.buf) > 64<<10 && len(rest) < 1024 && need < 4096 {
				c.buf = append(make([]byte, 0, max(4096, need)), rest...)
			} else {
				c.buf = c.buf[:copy(c.buf, rest)]
			}
			return len(c.fds) <= proto.MaxFDs
		}
		at += n
		fds := c.fds[:f.FDs:f.FDs]
		c.fds = c.fds[f.FDs:]
		if !c.handle(f, fds) {
			return false
		}
	}
}

// unixRights is room for the most descriptors that Linux passes at once.
const unixRights = 16 + 4*253 + 4

// keepRights takes the descriptors out of a control message.
func (c *conn) keepRights(oob []byte) bool {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // of another type
		}
		c.fds = append(c.fds, fds...)
	}
	return true
}

// send sends a frame, and closes fds when they are sent. It never blocks: what
// the socket does not take is kept, up to a bound.
func (c *conn) send(b []byte, fds ...int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sendLocked(b, fds)
}

func (c *conn) sendLocked(b []byte, fds []int) {
	if c.closed || c.doomed {
		closeAll(fds)
		return
	}
	if len(c.pending) == 0 {
		n, err := c.write(b, fds)
		if n > 0 {
			closeAll(fds)
			fds = nil
		}
		if n == len(b) {
			return
		}
		if err != nil && err != unix.EAGAIN {
			closeAll(fds)
			c.hangUp()
			return
		}
		b = b[n:]
	}
	if c.waiting+len(b) > maxPending {
		closeAll(fds)
		c.hangUp()
		return
	}
	c.pending = append(c.pending, packet{bytes.Clone(b), fds})
	c.waiting += len(b)
	c.s.await(c, true)
}

// write hands bytes to the socket as far as it takes them.
func (c *conn) write(b []byte, fds []int) (n int, err error) {
	for {
		if c.socket {
			var oob []byte
			if len(fds) > 0 {
				oob = unix.UnixRights(fds...)
			}
			n, err = unix.SendmsgN(c.out, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		} else {
			n, err = unix.Write(c.out, b)
		}
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// flush sends what is pending. It reports whether the connection goes on.
func (c *conn) flush() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) > 0 {
		p := &c.pending[0]
		n, err := c.write(p.b, p.fds)
		if n > 0 {
			closeAll(p.fds)
			p.fds = nil
			p.b = p.b[n:]
			c.waiting -= n
		}
		if len(p.b) == 0 {
			c.pending = c.pending[1:]
			continue
		}
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			return false
		}
	}
	if c.waiting < softPending && c.room.L != nil {
		c.room.Broadcast()
	}
	if len(c.pending) == 0 {
		c.pending = nil
		c.s.await(c, false)
	}
	return true
}

// await tells the loop whether c has bytes to send.
func (s *Server) await(c *conn, out bool) {
	if c.in == c.out {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.in)}
		if out {
			e.Events |= unix.EPOLLOUT
		}
		unix.EpollCtl(s.ep, unix.EPOLL_CTL_MOD, c.in, &e)
		return
	}
	// Standard input and output: the loop looks for the connection by its
	// input, and learns of the output by that number.
	e := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(c.in)}
	if out {
		unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, c.out, &e)
	} else {
		unix.EpollCtl(s.ep, unix.EPOLL_CTL_DEL, c.out, nil)
	}
}

// hangUp makes the loop drop the connection.
func (c *conn) hangUp() {
	if c.doomed {
		return
	}
	c.doomed = true
	c.s.doom(c)
}

// makeRoom waits until an answer with content may be added.
func (c *conn) makeRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.room.L == nil {
		c.room.L = &c.mu
	}
	for c.waiting >= softPending && !c.closed {
		c.room.Wait()
	}
}

// close frees what the connection holds. The loop has forgotten it.
func (c *conn) close() {
	c.mu.Lock()
	c.closed = true
	calls, handles, pending := c.calls, c.handles, c.pending
	c.calls, c.handles, c.pending, c.waiting = nil, nil, nil, 0
	if c.room.L != nil {
		c.room.Broadcast()
	}
	if c.out != c.in {
		unix.Close(c.out)
	}
	unix.Close(c.in)
	c.mu.Unlock()
	for _, cancel := range calls {
		cancel()
	}
	for _, h := range handles {
		h.close()
	}
	for _, p := range pending {
		closeAll(p.fds)
	}
	closeAll(c.fds)
	c.fds = nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// answer answers the request id with body, or with err.
func (c *conn) answer(id uint32, body proto.Message, err error, fds ...int) {
	var b [256]byte
	c.send(proto.AppendFrame(b[:0], proto.OpAnswer, len(fds), id, reply(body, err)), fds...)
}

func reply(body proto.Message, err error) *proto.Answer {
	if err != nil {
		return &proto.Answer{Failed: true, Body: failure(err)}
	}
	return &proto.Answer{Body: body}
}

// handle works on a request. It reports whether the connection goes on.
func (c *conn) handle(f proto.Frame, fds []int) (ok bool) {
	if !c.greeted && f.Op != proto.OpHello {
		closeAll(fds)
		return false
	}
	defer func() {
		if r := recover(); r != nil {
			c.answer(f.ID, nil, panicked(r))
			ok = true
		}
	}()
	switch f.Op { // what takes no time is done at once, on the loop
	case proto.OpHello:
		return c.greet(f)
	case proto.OpSetup:
		var m proto.Raw
		if proto.Decode(f.Body, &m) != nil {
			return false
		}
		files := make([]*os.File, len(fds))
		for i, fd := range fds {
			files[i] = os.NewFile(uintptr(fd), "setup/"+strconv.Itoa(i))
		}
		b, err := c.s.setup(m.Body, files)
		c.answer(f.ID, &proto.Raw{Body: b}, err)
		return true
	case proto.OpStart:
		var m proto.Start
		if proto.Decode(f.Body, &m) != nil {
			closeAll(fds)
			return false
		}
		c.s.start(c, f.ID, &m, fds)
		return true
	}
	closeAll(fds)
	if f.Op == proto.OpCancel {
		var m proto.Cancel
		if proto.Decode(f.Body, &m) != nil {
			return false
		}
		c.mu.Lock()
		cancel := c.calls[m.ID]
		c.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return true
	}
	if !c.s.ready.Load() {
		c.answer(f.ID, nil, fail(kindUnavailable, "", "the sandbox is not set up yet"))
		return true
	}
	if do := quick[f.Op]; do != nil {
		m, err := do(c, f.Body)
		if err == proto.ErrMalformed {
			return false
		}
		c.answer(f.ID, m, err)
		return true
	}
	do := slow[f.Op]
	if do == nil {
		c.answer(f.ID, nil, fail(kindUnsupported, "", "the guest does not know this operation"))
		return true
	}
	c.mu.Lock()
	if c.working >= maxCalls {
		c.mu.Unlock()
		c.answer(f.ID, nil, fail(kindExhausted, "", "too many requests are being worked on"))
		return true
	}
	if c.calls[f.ID] != nil {
		c.mu.Unlock()
		return false // an id twice
	}
	ctx, cancel := context.WithCancel(context.Background())
	if c.calls == nil {
		c.calls = make(map[uint32]context.CancelFunc)
	}
	c.calls[f.ID] = cancel
	c.working++
	c.mu.Unlock()
	go c.work(ctx, f.ID, do, bytes.Clone(f.Body))
	return true
}

// work does what may take its time.
func (c *conn) work(ctx context.Context, id uint32, do func(context.Context, *conn, []byte) (proto.Message, []int, error), body []byte) {
	var m proto.Message
	var fds []int
	err := func() (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = panicked(r)
			}
		}()
		m, fds, err = do(ctx, c, body)
		return err
	}()
	c.makeRoom()
	c.mu.Lock()
	if cancel := c.calls[id]; cancel != nil {
		cancel()
		delete(c.calls, id)
	}
	c.working--
	var b [256]byte
	c.sendLocked(proto.AppendFrame(b[:0], proto.OpAnswer, len(fds), id, reply(m, err)), fds)
	c.mu.Unlock()
}

func panicked(r any) error {
	log := "panic"
	switch r := r.(type) {
	case error:
		log += ": " + r.Error()
	case string:
		log += ": " + r
	}
	return &proto.Failure{Kind: kindInternal, Msg: "the guest failed", Log: log + "\n" + string(debug.Stack())}
}

// greet answers "hello".
func (c *conn) greet(f proto.Frame) bool {
	if c.greeted || proto.Decode(f.Body, &c.hello) != nil {
		return false
	}
	if c.hello.Version < 1 {
		c.answer(f.ID, nil, fail(kindUnsupported, "", "this version of the protocol is not known"))
		return true
	}
	c.s.mu.Lock()
	c.greeted = true
	c.s.mu.Unlock()
	c.passing = c.socket && c.hello.Descriptors
	c.answer(f.ID, &proto.Hello{Version: proto.Version, Descriptors: c.passing, PID: unix.Getpid(), Ready: c.s.ready.Load()}, nil)
	c.s.adopt(c.hello.Daemon)
	return true
}
