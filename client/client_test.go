package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

const token = "e2b_0123456789abcdef0123456789abcdef01234567"

// served is a client whose daemon ends with it.
type served struct {
	*client.Client
	stop func()
}

func (s served) Close() error {
	err := s.Client.Close()
	s.stop()
	return err
}

func handler(t *testing.T, rt sandbox.Runtime) (http.Handler, *native.API) {
	t.Helper()
	g, err := gate.New(gate.Config{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	api := native.New(native.One(rt), native.Config{Version: "test"})
	return g.Guard(api, api.Refuse, gate.Bearer), api
}

// serve serves rt over a Unix socket and returns a client of it, whose Close
// ends all.
func serve(t *testing.T, rt sandbox.Runtime) served {
	t.Helper()
	h, api := handler(t, rt)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := gate.Server(h, nil)
	done := make(chan struct{})
	go func() { srv.Serve(l); close(done) }()
	c, err := client.New(client.Config{Host: "unix:" + path, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	return served{c, sync.OnceFunc(func() {
		api.Close()
		srv.Close()
		<-done
		rt.Close()
	})}
}

func echoServer(p *memory.Proc) int {
	port, err := strconv.Atoi(p.Args[1])
	if err != nil {
		return 2
	}
	l, err := p.Listen(port)
	if err != nil {
		return 1
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return 0
		}
		io.Copy(c, c)
		c.Close()
	}
}

// The contract holds without any exception, over a Unix socket.
func TestContract(t *testing.T) {
	var clients []*client.Client
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			s := serve(t, memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echoServer}}))
			clients = append(clients, s.Client)
			return s
		},
		Listen: func(port int) []string { return []string{"echo-server", strconv.Itoa(port)} },
		Settle: func() {
			for _, c := range clients {
				c.CloseIdle()
			}
		},
	})
}

func TestNewRefusesBadConfig(t *testing.T) {
	for _, c := range []struct {
		cfg   client.Config
		field string
	}{
		{client.Config{}, "host"},
		{client.Config{Host: "127.0.0.1:8080"}, "host"},
		{client.Config{Host: "unix:"}, "host"},
		{client.Config{Host: "ftp://x"}, "host"},
		{client.Config{Host: "http://"}, "host"},
		{client.Config{Host: "http://user:secret@x"}, "host"},
		{client.Config{Host: "http://x?y"}, "host"},
		{client.Config{Host: "http://x", Token: "a\n"}, "token"},
		{client.Config{Host: "http://x", Token: "a b"}, "token"},
	} {
		_, err := client.New(c.cfg)
		e, ok := err.(*sandbox.Error)
		if !ok || e.Kind != sandbox.Invalid || e.Field != c.field {
			t.Errorf("%+v: got %v", c.cfg, err)
		}
	}
}

func TestNoDaemon(t *testing.T) {
	for _, host := range []string{"unix:" + filepath.Join(t.TempDir(), "none"), "http://127.0.0.1:1"} {
		c, err := client.New(client.Config{Host: host, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Create(t.Context(), sandbox.Spec{})
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Unavailable || e.Hint == "" {
			t.Errorf("%s: got %v", host, err)
		}
		if strings.Contains(fmt.Sprint(err, c), token) {
			t.Errorf("the token shows: %v", err)
		}
		c.Close()
	}
}

// Whatever another server answers is an error of a kind that fits.
func TestStrangeServers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request)
		kind   sandbox.Kind
	}{
		"a page":     {func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }, sandbox.Unavailable},
		"nothing":    {func(w http.ResponseWriter, r *http.Request) {}, sandbox.Unavailable},
		"hanging up": {func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, sandbox.Unavailable},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://evil.example/", http.StatusTemporaryRedirect)
		}, sandbox.Internal},
		"404":             {http.NotFound, sandbox.Internal},
		"502":             {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(502) }, sandbox.Unavailable},
		"403":             {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403) }, sandbox.Denied},
		"an unknown kind": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500); io.WriteString(w, `{"kind":"odd"}`) }, sandbox.Internal},
		"a bad id":        {func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, `{"id":"../../x"}`) }, sandbox.Internal},
		"half an answer": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{`)
		}, sandbox.Unavailable},
		"an endless answer": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			w.Write(bytes.Repeat([]byte("x"), 10<<20))
		}, sandbox.Internal},
	} {
		srv := httptest.NewServer(http.HandlerFunc(c.answer))
		cl, err := client.New(client.Config{Host: srv.URL, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.Create(t.Context(), sandbox.Spec{}); sandbox.KindOf(err) != c.kind {
			t.Errorf("%s: got %v, want %s", name, err, c.kind)
		}
		cl.Close()
		srv.Close()
	}
}

// Streams that are no frames, or end too early, are errors, not results.
func TestStrangeStreams(t *testing.T) {
	for name, stream := range map[string]string{
		"empty":             "",
		"no frame":          "hello there",
		"output first":      "\x02\x00\x00\x00\x01x",
		"no exit":           "\x01\x00\x00\x00\x0c{\"id\":\"abc\"}\x02\x00\x00\x00\x01x",
		"half a frame":      "\x01\x00\x00\x00\x0c{\"id\":\"abc\"}\x02\x00\x00\x00\x09x",
		"exit is no JSON":   "\x01\x00\x00\x00\x0c{\"id\":\"abc\"}\x04\x00\x00\x00\x01x",
		"a frame of ours":   "\x01\x00\x00\x00\x0c{\"id\":\"abc\"}\x10\x00\x00\x00\x02{}",
		"started, no JSON":  "\x01\x00\x00\x00\x01x",
		"longer than it is": "\x01\xff\xff\xff\xff",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" && strings.HasSuffix(r.URL.Path, "/exec") {
				io.WriteString(w, stream)
				return
			}
			io.WriteString(w, `{"id":"abcdefghijklmnopqrst"}`)
		}))
		cl, err := client.New(client.Config{Host: srv.URL, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		sb, err := cl.Create(t.Context(), sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		if res, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"true"}}); sandbox.KindOf(err) != sandbox.Unavailable {
			t.Errorf("%s: got %+v, %v", name, res, err)
		}
		cl.Close()
		srv.Close()
	}
}

func TestWrongToken(t *testing.T) {
	rt := memory.New(memory.Config{})
	defer rt.Close()
	h, api := handler(t, rt)
	srv := httptest.NewTLSServer(h)
	defer srv.Close()
	defer api.Close()
	conf := &tls.Config{RootCAs: srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	for tok, kind := range map[sandbox.Secret]sandbox.Kind{token: "", "e2b_wrong": sandbox.Denied, "": sandbox.Denied} {
		c, err := client.New(client.Config{Host: srv.URL, Token: tok, TLS: conf})
		if err != nil {
			t.Fatal(err)
		}
		sb, err := c.Create(t.Context(), sandbox.Spec{})
		if sandbox.KindOf(err) != kind {
			t.Errorf("%q: got %v, want kind %q", tok.Reveal(), err, kind)
		}
		if err == nil { // streamed input works over TLS, too
			res, err := sandbox.Capture(t.Context(), sb, 100, sandbox.Cmd{Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("hi"))})
			if err != nil || string(res.Stdout) != "hi" {
				t.Errorf("got %+v, %v", res, err)
			}
		}
		c.Close()
	}
}

// Close ends what is under way, each with Closed, and leaves the sandbox.
func TestCloseEndsCalls(t *testing.T) {
	rt := memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echoServer}})
	s := serve(t, rt)
	defer s.stop()
	sb, err := s.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/f", make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	f, err := sb.Files().Open(t.Context(), "/tmp/f", sandbox.Range{})
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	a, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"cat"}, Stdin: pr})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"echo-server", "80"}}); err != nil {
		t.Fatal(err)
	}
	var conn net.Conn
	for {
		if conn, err = sb.(sandbox.Dialer).Dial(t.Context(), 80); err == nil {
			break
		} else if sandbox.KindOf(err) != sandbox.Unavailable {
			t.Fatal(err)
		}
	}
	if err := s.Client.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []sandbox.Process{a, b} {
		if _, err := p.Wait(); sandbox.KindOf(err) != sandbox.Closed {
			t.Errorf("Wait: %v", err)
		}
	}
	if _, err := io.Copy(io.Discard, f); sandbox.KindOf(err) != sandbox.Closed {
		t.Errorf("Read: %v", err)
	}
	f.Close()
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("a connection outlived its client: %d", n)
	}
	conn.Close()
	if _, err := rt.Open(t.Context(), sb.ID()); err != nil {
		t.Errorf("the sandbox: %v", err)
	}
}

// A connection to a port has deadlines and can be closed by halves.
func TestDialedConnection(t *testing.T) {
	s := serve(t, memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echoServer}}))
	defer s.Close()
	sb, err := s.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"echo-server", "80"}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var c net.Conn
	for {
		if c, err = sb.(sandbox.Dialer).Dial(ctx, 80); err == nil {
			break
		} else if sandbox.KindOf(err) != sandbox.Unavailable {
			t.Fatal(err)
		}
	}
	defer c.Close()
	cancel() // ctx bounded the connecting alone
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	var timeout net.Error
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("after the deadline: %v", err)
	}
	c.SetReadDeadline(time.Time{})
	fmt.Fprint(c, "hello")
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
		t.Errorf("got %q, %v", b, err)
	}
}

func TestServer(t *testing.T) {
	s := serve(t, memory.New(memory.Config{}))
	defer s.Close()
	if got, err := s.Server(t.Context()); err != nil || got.Version != "test" {
		t.Errorf("got %+v, %v", got, err)
	}
}
