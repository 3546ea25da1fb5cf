package inside_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/guest/proto"
	"github.com/atoll-run/atoll/sandbox"
)

// raw is a connection to the guest without a Client.
func (h *host) raw() *net.UnixConn {
	h.t.Helper()
	conn, err := net.Dial("unix", h.path)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

func hello() []byte {
	return proto.AppendFrame(nil, proto.OpHello, 0, 1, &proto.Hello{Version: 1, Descriptors: true})
}

// next reads one answer.
func next(t *testing.T, conn net.Conn) (proto.Frame, bool) {
	t.Helper()
	head := make([]byte, proto.HeadLen)
	if _, err := io.ReadFull(conn, head); err != nil {
		return proto.Frame{}, false
	}
	b := append(head, make([]byte, int(binary.BigEndian.Uint32(head))-8)...)
	if _, err := io.ReadFull(conn, b[proto.HeadLen:]); err != nil {
		return proto.Frame{}, false
	}
	f, _, _, err := proto.Next(b)
	if err != nil {
		t.Fatal(err)
	}
	return f, true
}

func TestMalformedFramesEndTheirConnectionAlone(t *testing.T) {
	h, c := listening(t, guest.Options{})
	frame := func(op proto.Op, m proto.Message) []byte { return proto.AppendFrame(nil, op, 0, 2, m) }
	for name, b := range map[string][]byte{
		"no hello":               frame(proto.OpUsage, nil),
		"a second hello":         append(hello(), hello()...),
		"a hello of garbage":     frame(proto.OpHello, &proto.Raw{Body: bytes.Repeat([]byte{0xff}, 20)})[:20],
		"an enormous frame":      append(hello(), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0),
		"a frame without a head": append(hello(), 0, 0, 0, 1, 0),
		"descriptors not sent":   append(hello(), proto.AppendFrame(nil, proto.OpStart, 3, 2, &proto.Start{Args: []string{"x"}})...),
		"too many descriptors":   append(hello(), proto.AppendFrame(nil, proto.OpStart, 200, 2, nil)...),
		"a start that is none":   append(hello(), 0, 0, 0, 10, byte(proto.OpStart), 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff),
		"a cancel that is none":  append(hello(), 0, 0, 0, 10, byte(proto.OpCancel), 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff),
	} {
		t.Run(name, func(t *testing.T) {
			conn := h.raw()
			conn.Write(b)
			conn.CloseWrite() // so that what the guest waits for does not come
			for {
				if _, ok := next(t, conn); !ok {
					break
				}
			}
			if x, out, _ := run(t, c, sandbox.Cmd{Args: sh("echo fine")}); !x.Success() || out != "fine\n" {
				t.Errorf("another connection got %+v, %q", x, out)
			}
		})
	}
	t.Run("an operation that is not known", func(t *testing.T) {
		conn := h.raw()
		conn.Write(append(hello(), frame(250, nil)...))
		next(t, conn)
		var f proto.Failure
		if a, ok := next(t, conn); !ok || proto.Decode(a.Body, &proto.Answer{Body: &f}) != nil || f.Kind != string(sandbox.Unsupported) {
			t.Errorf("it answers %+v", f)
		}
	})
}

func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	h, c := listening(t, guest.Options{})
	run(t, c, sandbox.Cmd{Args: sh("cat"), Stdin: bytes.NewReader(nil)}) // it has all that it needs itself
	if _, err := c.Usage(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t, h.cmd.Process.Pid)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	conn := h.raw()
	rights := unix.UnixRights(int(w.Fd()), int(w.Fd()), int(w.Fd()))
	conn.WriteMsgUnix(hello(), rights, nil)
	next(t, conn)
	for _, op := range []proto.Op{proto.OpUsage, proto.OpStart, proto.OpSetup, proto.OpCancel, 250} {
		var m proto.Message = &proto.Raw{}
		if op == proto.OpStart { // three descriptors, where none is wanted
			m = &proto.Start{Args: []string{"/bin/true"}}
		}
		conn.WriteMsgUnix(proto.AppendFrame(nil, op, 3, 5, m), rights, nil)
		if op != proto.OpCancel {
			if _, ok := next(t, conn); !ok {
				t.Fatalf("operation %d ends the connection", op)
			}
		}
	}
	for name, m := range map[string]*proto.Start{
		"three for descriptor 3":            {Args: []string{"/bin/true"}, Control: true},
		"three beside a terminal":           {Args: []string{"/bin/true"}, Control: true, Terminal: true},
		"descriptor 3 of a detached one":    {Args: []string{"/bin/true"}, Control: true, Detached: true},
		"a detached one's that are its own": {Args: []string{"/bin/true"}, Out: proto.Pipe, Detached: true},
		"too long a name":                   {Args: []string{"/bin/true"}, Out: proto.Pipe, Control: true, Name: strings.Repeat("n", 257)},
	} {
		conn.WriteMsgUnix(proto.AppendFrame(nil, proto.OpStart, 3, 5, m), rights, nil)
		if f, ok := next(t, conn); !ok || len(f.Body) == 0 || f.Body[0] == 0 {
			t.Errorf("%s: answered with %q, %v", name, f.Body, ok)
		}
	}
	conn.Close()
	w.Close()
	if _, err := r.Read(make([]byte, 1)); err != io.EOF { // the last copy is closed with the connection
		t.Errorf("read: %v", err)
	}
	if _, err := c.Usage(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := descriptors(t, h.cmd.Process.Pid); after != before {
		t.Errorf("the guest had %d descriptors open, and now %d", before, after)
	}
}

func TestDaemonThatDoesNotReadIsLeft(t *testing.T) {
	h, c := listening(t, guest.Options{})
	conn := h.raw()
	conn.Write(hello())
	next(t, conn)
	done := make(chan error, 1)
	go func() {
		b := bytes.Repeat(proto.AppendFrame(nil, proto.OpForget, 0, 3, &proto.Proc{Proc: 1}), 1000)
		for {
			if _, err := conn.Write(b); err != nil {
				done <- err
				return
			}
		}
	}()
	if err := <-done; err == nil {
		t.Error("it could write for ever")
	}
	if x, out, _ := run(t, c, sandbox.Cmd{Args: sh("echo fine")}); !x.Success() || out != "fine\n" {
		t.Errorf("another connection got %+v, %q", x, out)
	}
}

func TestRequestsAndFilesAreBounded(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		id, err := c.StartDetached(t.Context(), sandbox.Cmd{Args: sh("read x")}, sandbox.DetachOptions{Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 400)
		for range 400 {
			go func() {
				_, err := c.Output(t.Context(), id, 0, 1, time.Hour)
				errs <- err
			}()
		}
		for range 400 - 256 { // the others wait
			if err := <-errs; !errors.Is(err, sandbox.Exhausted) {
				t.Errorf("output: %v", err)
			}
		}
	})
	c := start(t, "stream", t.TempDir(), guest.Options{})
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	var files []sandbox.File
	for {
		f, err := c.Files().Open(t.Context(), name, sandbox.Range{})
		if err != nil {
			if !errors.Is(err, sandbox.Exhausted) || len(files) != 1024 {
				t.Errorf("file %d: %v", len(files), err)
			}
			break
		}
		files = append(files, f)
	}
	for _, f := range files {
		f.Close()
	}
	if f, err := c.Files().Open(t.Context(), name, sandbox.Range{}); err != nil {
		t.Errorf("after closing: %v", err)
	} else {
		f.Close()
	}
}
