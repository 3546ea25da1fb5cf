package inside_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestDialledConnectionIsOne holds a connection to what net.Conn promises.
func TestDialledConnectionIsOne(t *testing.T) {
	each(t, func(t *testing.T, c *guest.Client, dir string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		conn, err := c.Dial(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()

		large := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(large)
			if err == nil {
				err = conn.(interface{ CloseWrite() error }).CloseWrite()
			}
			sent <- err
		}()
		if got, err := io.ReadAll(other); err != nil || !bytes.Equal(got, large) {
			t.Errorf("the other side read %d bytes, %v", len(got), err)
		}
		if err := <-sent; err != nil {
			t.Errorf("write: %v", err)
		}

		b := make([]byte, 10)
		conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		if _, err := conn.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read past the deadline: %v", err)
		}
		conn.SetReadDeadline(time.Time{})
		other.Write([]byte("late"))
		if n, err := conn.Read(b); string(b[:n]) != "late" || err != nil {
			t.Errorf("read: %q, %v", b[:n], err)
		}

		read := make(chan error, 1)
		go func() {
			_, err := conn.Read(b)
			read <- err
		}()
		time.Sleep(time.Millisecond)
		conn.Close()
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Errorf("read from what was closed: %v", err)
		}
		if _, err := other.Read(b); err != io.EOF {
			t.Errorf("the other side is not told: %v", err)
		}
		if _, err := conn.Write(b); err == nil {
			t.Error("it can be written to when closed")
		}

		l.Close()
		if _, err := c.Dial(t.Context(), port); !errors.Is(err, sandbox.Unavailable) {
			t.Errorf("dial of nobody: %v", err)
		}
		if _, err := c.Dial(t.Context(), 70000); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("dial of no port: %v", err)
		}
	})
}
