package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// A liar is a guest that says what it likes.
type liar struct {
	t    *testing.T
	conn *net.UnixConn
	next chan proto.Frame // requests, but for hello
}

// lie returns a Client and the guest that it believes to speak with.
func lie(t *testing.T, hello proto.Hello) (*Client, *liar) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	l := &liar{t: t, conn: conns[1], next: make(chan proto.Frame, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		frames(func(b []byte) (int, error) {
			oob := make([]byte, 4096)
			n, oobn, _, _, err := l.conn.ReadMsgUnix(b, oob)
			msgs, _ := unix.ParseSocketControlMessage(oob[:oobn])
			for i := range msgs {
				fds, _ := unix.ParseUnixRights(&msgs[i])
				closeAll(fds)
			}
			if n == 0 && err == nil {
				err = io.EOF
			}
			return n, err
		}, func(f proto.Frame) error {
			f.Body = append([]byte(nil), f.Body...)
			if f.Op == proto.OpHello {
				l.answer(f, &hello)
			} else {
				l.next <- f
			}
			return nil
		})
		close(l.next)
	}()
	c, err := NewClient(conns[0], Options{Descriptors: true, Op: "liar"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		l.conn.Close()
		<-done
	})
	return c, l
}

var honest = proto.Hello{Version: 1, Descriptors: true, PID: 1, Ready: true}

func (l *liar) send(b []byte, fds ...int) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	l.conn.WriteMsgUnix(b, rights, nil)
}

func (l *liar) answer(f proto.Frame, m proto.Message, fds ...int) {
	l.send(proto.AppendFrame(nil, proto.OpAnswer, len(fds), f.ID, &proto.Answer{Body: m}), fds...)
}

// refuse answers every request with what answer sends.
func (l *liar) each(answer func(f proto.Frame)) {
	go func() {
		for f := range l.next {
			answer(f)
		}
	}()
}

func TestNoAnswerOfTheGuestHurtsTheDaemon(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(name string, flags int) int {
		fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	pipe, null := open(fifo, unix.O_RDWR), open("/dev/null", unix.O_RDWR)
	for name, answer := range map[string]func(*liar, proto.Frame){
		"nothing at all":         func(l *liar, f proto.Frame) { l.conn.Close() },
		"half a frame":           func(l *liar, f proto.Frame) { l.send([]byte{0, 0, 0, 20, 0, 0}); l.conn.Close() },
		"a frame of 4 GiB":       func(l *liar, f proto.Frame) { l.send([]byte{0xff, 0xff, 0xff, 0xff}) },
		"a frame of 0 bytes":     func(l *liar, f proto.Frame) { l.send([]byte{0, 0, 0, 0}) },
		"an answer to nobody":    func(l *liar, f proto.Frame) { f.ID += 1000; l.answer(f, nil) },
		"garbage for a body":     func(l *liar, f proto.Frame) { l.answer(f, &proto.Raw{Body: []byte{0xff, 0xff}}) },
		"descriptors it has not": func(l *liar, f proto.Frame) { l.send(proto.AppendFrame(nil, 0, 1, f.ID, nil)) },
		"a FIFO":                 func(l *liar, f proto.Frame) { l.answer(f, &proto.Opened{Handle: 1}, pipe) },
		"a device":               func(l *liar, f proto.Frame) { l.answer(f, &proto.Opened{Handle: 1}, null) },
		"two files":              func(l *liar, f proto.Frame) { l.answer(f, &proto.Opened{Handle: 1}, null, null) },
		"forty files": func(l *liar, f proto.Frame) {
			var fds []int
			for range 40 {
				fds = append(fds, null)
			}
			l.send(proto.AppendFrame(nil, proto.OpAnswer, 40, f.ID, &proto.Answer{}), fds...)
		},
		"an event that is none": func(l *liar, f proto.Frame) {
			l.send(proto.AppendFrame(nil, proto.OpExit, 0, 0, nil)[:12])
			l.conn.Close()
		},
		"a failure of no kind": func(l *liar, f proto.Frame) {
			l.send(proto.AppendFrame(nil, proto.OpAnswer, 0, f.ID, &proto.Answer{Failed: true, Body: &proto.Failure{Kind: "closed", Msg: strings.Repeat("\x1b[2J", 1000)}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, l := lie(t, honest)
			l.each(func(f proto.Frame) { answer(l, f) })
			f, err := c.Files().Open(t.Context(), "/file", sandbox.Range{})
			if err == nil {
				f.Close()
				t.Fatal("it opened something")
			}
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Kind != sandbox.Internal && e.Kind != sandbox.Unavailable {
				t.Errorf("the error is %v", err)
			}
			if strings.ContainsRune(err.Error(), 0x1b) || len(err.Error()) > 16<<10 {
				t.Errorf("the error is %q", err)
			}
		})
	}
}

func TestGuestThatSpeaksOtherwiseIsLeft(t *testing.T) {
	for _, hello := range []proto.Hello{{}, {Version: 1}, {Version: -5, Descriptors: true}} {
		c, l := lie(t, hello)
		l.each(func(proto.Frame) {})
		_, err := c.Usage(t.Context())
		if !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("%+v: %v", hello, err)
		}
		<-c.Done()
	}
}

func TestListEndsWhateverTheGuestSays(t *testing.T) {
	for name, entries := range map[string]proto.Entries{
		"the same again": {List: []proto.Entry{{Name: "a"}, {Name: "b"}}, More: true},
		"backwards":      {List: []proto.Entry{{Name: "b"}, {Name: "a"}}, More: true},
		"nothing":        {More: true},
	} {
		t.Run(name, func(t *testing.T) {
			c, l := lie(t, honest)
			l.each(func(f proto.Frame) { l.answer(f, &entries) })
			n := 0
			for _, err := range c.Files().List(t.Context(), "/") {
				if n++; n > 10 {
					t.Fatal("it does not end")
				}
				_ = err
			}
		})
	}
}

func TestProcessEndsWhateverTheGuestSays(t *testing.T) {
	start := func(t *testing.T, then func(l *liar, f proto.Frame)) (sandbox.Exit, error) {
		c, l := lie(t, honest)
		l.each(func(f proto.Frame) {
			if f.Op == proto.OpStart {
				then(l, f)
			}
		})
		p, err := c.Start(t.Context(), sandbox.Cmd{Args: []string{"x"}, Stdout: io.Discard, Stderr: io.Discard, Stdin: strings.NewReader("x")})
		if err != nil {
			return sandbox.Exit{}, err
		}
		return p.Wait()
	}
	exit := func(l *liar, e *proto.Exit) { l.send(proto.AppendFrame(nil, proto.OpExit, 0, 0, e)) }
	t.Run("the end before the beginning", func(t *testing.T) {
		x, err := start(t, func(l *liar, f proto.Frame) {
			exit(l, &proto.Exit{Proc: 5, Reason: proto.Exited})
			l.answer(f, &proto.Started{Proc: 5, PID: 6})
			exit(l, &proto.Exit{Proc: 5, Reason: proto.Exited, Code: 256 + 3, CPU: -1, Memory: -1, Held: true})
		})
		if err != nil || x.Code != 3 || x.Usage.CPU != 0 {
			t.Errorf("it ended with %+v, %v", x, err)
		}
	})
	t.Run("no reason", func(t *testing.T) {
		x, err := start(t, func(l *liar, f proto.Frame) {
			l.answer(f, &proto.Started{Proc: 5, PID: 6})
			exit(l, &proto.Exit{Proc: 5, Reason: 77, Signal: 1 << 30})
			exit(l, &proto.Exit{Proc: 5, Reason: proto.Exited})
		})
		if err != nil || x.Reason != sandbox.Signalled || x.Code != -1 || x.Signal != "" {
			t.Errorf("it ended with %+v, %v", x, err)
		}
	})
	t.Run("a terminal that is none", func(t *testing.T) {
		c, l := lie(t, honest)
		l.each(func(f proto.Frame) { l.answer(f, &proto.Started{Proc: 5, PID: 6}) })
		if _, err := c.Start(t.Context(), sandbox.Cmd{Args: []string{"x"}, Terminal: &sandbox.Size{}}); !errors.Is(err, sandbox.Internal) {
			t.Errorf("start: %v", err)
		}
	})
	t.Run("the same number twice", func(t *testing.T) {
		c, l := lie(t, honest)
		l.each(func(f proto.Frame) {
			if f.Op == proto.OpStart {
				l.answer(f, &proto.Started{Proc: 5, PID: 6})
			}
		})
		for range 2 {
			if p, err := c.Start(t.Context(), sandbox.Cmd{Args: []string{"x"}}); err == nil {
				defer p.Wait()
			}
		}
		<-c.Done()
	})
}

func TestContextEndsACallThatIsNotAnswered(t *testing.T) {
	c, l := lie(t, honest)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		f := <-l.next
		cancel()
		g := <-l.next
		var m proto.Cancel
		if proto.Decode(g.Body, &m) != nil || g.Op != proto.OpCancel || m.ID != f.ID {
			t.Errorf("it sent %+v", g)
		}
		// The answer comes all the same: what it brings has to be given back.
		l.answer(f, &proto.Opened{Handle: 9})
		l.each(func(g proto.Frame) {
			if g.Op == proto.OpClose {
				l.conn.Close()
			}
		})
	}()
	if _, err := c.Files().Open(ctx, "/f", sandbox.Range{}); !errors.Is(err, context.Canceled) {
		t.Errorf("open: %v", err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Error("the handle that came too late was not closed")
	}
}
