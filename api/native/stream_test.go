package native_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

func TestExecAsJSON(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	for _, c := range []struct {
		body string
		want wire.Result
	}{
		{`{"args":["sh","-c","echo out; echo err >&2; exit 3"]}`,
			wire.Result{Stdout: "out\n", Stderr: "err\n", Exit: sandbox.Exit{Code: 3, Reason: sandbox.Exited}}},
		{`{"args":["cat"],"stdin":"aGVsbG8="}`, wire.Result{Stdout: "hello", Exit: sandbox.Exit{Reason: sandbox.Exited}}},
		{`{"args":["printf","\\377"]}`, wire.Result{Stdout: "\xff", Exit: sandbox.Exit{Reason: sandbox.Exited}}},
		{`{"args":["echo","abcdef"],"max_output":3}`, wire.Result{Stdout: "abc", Truncated: true, Exit: sandbox.Exit{Reason: sandbox.Exited}}},
		{`{"args":["echo","ab"],"max_output":3}`, wire.Result{Stdout: "ab\n", Exit: sandbox.Exit{Reason: sandbox.Exited}}},
		{`{"args":["sh","-c","echo a; echo b >&2; echo c"],"merge":true}`, wire.Result{Stdout: "a\nb\nc\n", Exit: sandbox.Exit{Reason: sandbox.Exited}}},
		{`{"args":["sh","-c","echo a; echo b >&2"],"discard":["stdout"]}`, wire.Result{Stderr: "b\n", Exit: sandbox.Exit{Reason: sandbox.Exited}}},
		{`{"args":["sleep","1000"],"timeout":0.01}`, wire.Result{Exit: sandbox.Exit{Code: -1, Reason: sandbox.TimedOut}}},
	} {
		res := s.do(t, "POST", box+"/exec", strings.NewReader(c.body), nil)
		var got wire.Result
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil || res.StatusCode != 200 {
			t.Errorf("%s: status %d, %v", c.body, res.StatusCode, err)
			continue
		}
		if got.ID == "" {
			t.Errorf("%s: the process has no id", c.body)
		}
		got.Started, got.Exit.Usage, got.Exit.Signal = wire.Started{}, sandbox.Usage{}, ""
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.body, got, c.want)
		}
	}
}

func TestExecAsLines(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	// é comes in two writes, a byte that is no text at the end.
	res := s.do(t, "POST", box+"/exec", strings.NewReader(`{"args":["sh","-c","printf '\\303'; sleep 0.01; printf '\\251\\377'; echo err >&2; exit 3"]}`),
		[]string{"Accept", "application/x-ndjson"})
	if ct := res.Header.Get("Content-Type"); ct != wire.NDJSON {
		t.Fatalf("the content type is %q", ct)
	}
	var out, errOut string
	var exit *sandbox.Exit
	dec := json.NewDecoder(res.Body)
	for i := 0; ; i++ {
		var e wire.Event
		err := dec.Decode(&e)
		if err == io.EOF {
			break
		}
		if err != nil || exit != nil || (e.Started != nil) != (i == 0) {
			t.Fatalf("line %d: %+v, %v", i, e, err)
		}
		out, errOut, exit = out+string(e.Stdout), errOut+string(e.Stderr), e.Exit
	}
	if out != "\xc3\xa9\xff" || errOut != "err\n" || exit == nil || exit.Code != 3 {
		t.Errorf("got %q, %q, %+v", out, errOut, exit)
	}
}

// Output is there while the process runs, and another request can signal it.
func TestStreamsAsItGoes(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	for _, accept := range []string{wire.NDJSON, wire.Frames} {
		res := s.do(t, "POST", box+"/exec", strings.NewReader(`{"args":["sh","-c","echo ready; sleep 1000"]}`), []string{"Accept", accept})
		var id sandbox.ProcessID
		r := bufio.NewReader(res.Body)
		var rest func() sandbox.Exit
		if accept == wire.NDJSON {
			dec := json.NewDecoder(r)
			var first, second, last wire.Event
			if dec.Decode(&first) != nil || dec.Decode(&second) != nil || first.Started == nil || second.Stdout != "ready\n" {
				t.Fatalf("got %+v, %+v", first, second)
			}
			id = first.Started.ID
			rest = func() sandbox.Exit {
				if err := dec.Decode(&last); err != nil || last.Exit == nil {
					t.Fatalf("got %+v, %v", last, err)
				}
				return *last.Exit
			}
		} else {
			fr := wire.NewFrameReader(r)
			var started wire.Started
			if ft, _, err := fr.Next(); err != nil || ft != wire.FrameStarted || fr.JSON(&started) != nil {
				t.Fatalf("got %d, %v", ft, err)
			}
			if ft, _, err := fr.Next(); err != nil || ft != wire.FrameStdout {
				t.Fatalf("got %d, %v", ft, err)
			}
			id = started.ID
			rest = func() (exit sandbox.Exit) {
				if ft, _, err := fr.Next(); err != nil || ft != wire.FrameExit || fr.JSON(&exit) != nil {
					t.Fatalf("got %d, %v", ft, err)
				}
				return exit
			}
		}
		if res := s.do(t, "POST", box+"/processes/"+string(id)+"/signal", strings.NewReader(`{"signal":"TERM"}`), nil); res.StatusCode != 204 {
			t.Errorf("signal: %+v", readError(t, res))
		}
		if exit := rest(); exit.Reason != sandbox.Signalled || exit.Signal != sandbox.TERM {
			t.Errorf("got %+v", exit)
		}
		if res := s.do(t, "POST", box+"/processes/"+string(id)+"/signal", strings.NewReader(`{"signal":"TERM"}`), nil); res.StatusCode != 404 {
			t.Errorf("a signal after the end: status %d", res.StatusCode)
		}
	}
}

// upgrade returns a connection of which protocol has hold: a WebSocket as any
// language has it, or the connection itself.
func (s *server) upgrade(t *testing.T, path, protocol string) net.Conn {
	t.Helper()
	if protocol == "websocket" {
		ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(s.URL, "http")+path,
			&websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
		if err != nil {
			t.Fatal(err)
		}
		return websocket.NetConn(context.WithoutCancel(t.Context()), ws, websocket.MessageBinary)
	}
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", path, token, protocol)
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("Upgrade") != protocol {
		t.Fatalf("got %+v, %v", res, err)
	}
	return &rawConn{c, br}
}

// rawConn is a connection of which a part may have been read already.
type rawConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *rawConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func TestExecUpgraded(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	for _, protocol := range []string{"websocket", wire.UpgradeExec} {
		t.Run(protocol, func(t *testing.T) {
			c := s.upgrade(t, box+"/exec", protocol)
			defer c.Close()
			// Everything in one write, the last frame in two: boundaries of
			// messages mean nothing.
			all := bytes.Join([][]byte{
				wire.FrameJSON(wire.FrameStart, wire.Exec{Cmd: wire.Cmd{Args: []wire.Text{"sh", "-c", "cat; echo err >&2; exit 3"}}}),
				wire.Frame(wire.FrameStdin, []byte("hel")),
				wire.Frame(wire.FrameStdin, []byte("lo")),
				wire.Frame(wire.FrameStdin, nil),
				wire.Frame(wire.FrameStdinEnd, nil),
			}, nil)
			c.Write(all[:len(all)-2])
			c.Write(all[len(all)-2:])
			out, errOut, exit, fault := followAll(t, c)
			if out != "hello" || errOut != "err\n" || exit.Code != 3 || fault != nil {
				t.Errorf("got %q, %q, %+v, %+v", out, errOut, exit, fault)
			}
		})
	}
}

// followAll reads frames until the stream ends, which must be right after the
// last.
func followAll(t *testing.T, c net.Conn) (out, errOut string, exit sandbox.Exit, fault *wire.Error) {
	t.Helper()
	fr := wire.NewFrameReader(c)
	last := false
	for {
		ft, _, err := fr.Next()
		if last {
			if err == nil {
				t.Errorf("a frame of type %d follows the last", ft)
			}
			return
		}
		if err != nil {
			t.Fatalf("no last frame: %v", err)
		}
		switch ft {
		case wire.FrameStdout, wire.FrameStderr:
			b, err := fr.Payload()
			if err != nil {
				t.Fatal(err)
			}
			if ft == wire.FrameStdout {
				out += string(b)
			} else {
				errOut += string(b)
			}
		case wire.FrameExit:
			last = true
			if err := fr.JSON(&exit); err != nil {
				t.Fatal(err)
			}
		case wire.FrameError:
			last = true
			fault = new(wire.Error)
			if err := fr.JSON(fault); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A client that breaks the rules is told so, and its process is killed.
func TestBadFrames(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	start := wire.FrameJSON(wire.FrameStart, wire.Exec{Cmd: wire.Cmd{Args: []wire.Text{"sh", "-c", "sleep 1000; echo late >/tmp/late"}}})
	huge := make([]byte, wire.HeaderLen)
	wire.PutHeader(huge, wire.FrameStdin, wire.MaxChunk+1)
	full := append(bytes.Clone(start), wire.Frame(wire.FrameStdin, make([]byte, wire.MaxChunk))...)
	for _, c := range []struct {
		name, field string
		send        []byte
	}{
		{"not a start", "frame", wire.Frame(wire.FrameStdin, []byte("x"))},
		{"unknown type first", "frame", []byte{99, 0, 0, 0, 0}},
		{"start that is no JSON", "body", wire.Frame(wire.FrameStart, []byte("x"))},
		{"start with an unknown field", "argss", wire.Frame(wire.FrameStart, []byte(`{"argss":[]}`))},
		{"start with input", "stdin", wire.Frame(wire.FrameStart, []byte(`{"args":["cat"],"stdin":"eA=="}`))},
		{"start without a command", "args", wire.Frame(wire.FrameStart, []byte(`{}`))},
		{"start of a missing program", "args", wire.Frame(wire.FrameStart, []byte(`{"args":["no-such-program"]}`))},
		{"two starts", "frame", append(bytes.Clone(start), start...)},
		{"unknown type", "frame", append(bytes.Clone(start), 99, 0, 0, 0, 0)},
		{"a frame of the server's", "frame", append(bytes.Clone(start), wire.Frame(wire.FrameStdout, []byte("x"))...)},
		{"a frame that is too long", "frame", append(bytes.Clone(start), huge...)},
		{"more input than there is room for", "frame", append(bytes.Clone(full), wire.Frame(wire.FrameStdin, []byte("x"))...)},
		{"input after its end", "frame", append(append(bytes.Clone(start), wire.Frame(wire.FrameStdinEnd, nil)...), wire.Frame(wire.FrameStdin, []byte("x"))...)},
		{"a size that is none", "frame", append(bytes.Clone(start), wire.Frame(wire.FrameResize, []byte("x"))...)},
	} {
		for _, protocol := range []string{"websocket", wire.UpgradeExec} {
			t.Run(protocol+"/"+c.name, func(t *testing.T) {
				conn := s.upgrade(t, box+"/exec", protocol)
				defer conn.Close()
				go conn.Write(c.send)
				_, _, exit, fault := followAll(t, conn)
				if fault == nil || fault.Field != c.field || fault.Kind != sandbox.Invalid && fault.Kind != sandbox.NotExist {
					t.Errorf("got %+v, %+v", exit, fault)
				}
			})
		}
	}
	if _, err := sb.Files().Stat(t.Context(), "/tmp/late"); sandbox.KindOf(err) != sandbox.NotExist {
		t.Errorf("a process went on: %v", err)
	}
	quiet(t, s, sb)
}

// quiet waits until no process of sb runs.
func quiet(t *testing.T, s *server, sb sandbox.Sandbox) {
	t.Helper()
	own, err := s.rt.Open(t.Context(), sb.ID())
	if err != nil {
		t.Fatal(err)
	}
	var u sandbox.Usage
	for range 1000 {
		if u, err = own.(sandbox.Meter).Usage(t.Context()); err != nil {
			t.Fatal(err)
		}
		if u.PIDs == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d processes still run", u.PIDs)
}

// Whoever hangs up ends what the request started, however it was sent.
func TestHangingUpKills(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	const stubborn = `{"args":["sh","-c","trap '' TERM HUP; echo ready; (setsid sleep 1000 &); sleep 1000"]}`
	for _, accept := range []string{wire.JSON, wire.NDJSON, wire.Frames} {
		ctx, cancel := context.WithCancel(t.Context())
		if accept == wire.JSON {
			req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+box+"/exec", strings.NewReader(stubborn))
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Content-Type", "application/json")
			go func() { busy(t, s, sb); cancel() }()
			if res, err := s.Client().Do(req); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, %v", res, err)
			}
		} else {
			res := s.doContext(t, ctx, "POST", box+"/exec", strings.NewReader(stubborn), []string{"Accept", accept})
			busy(t, s, sb)
			cancel()
			res.Body.Close()
		}
		cancel()
		quiet(t, s, sb)
	}
	for _, protocol := range []string{"websocket", wire.UpgradeExec} {
		// The process takes no input, of which there is as much as may be.
		c := s.upgrade(t, box+"/exec", protocol)
		c.Write(append(wire.Frame(wire.FrameStart, []byte(stubborn)), wire.Frame(wire.FrameStdin, make([]byte, wire.Window))...))
		busy(t, s, sb)
		if nc, ok := c.(*rawConn); ok {
			nc.Conn.Close()
		} else {
			c.Close()
		}
		quiet(t, s, sb)
	}
}

// busy waits until a process of sb runs.
func busy(t *testing.T, s *server, sb sandbox.Sandbox) {
	own, err := s.rt.Open(context.WithoutCancel(t.Context()), sb.ID())
	if err != nil {
		t.Error(err)
		return
	}
	for range 1000 {
		if u, _ := own.(sandbox.Meter).Usage(context.WithoutCancel(t.Context())); u.PIDs >= 2 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("nothing runs")
}

// Close ends streams and tells them why, and waits for them.
func TestCloseEndsStreams(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	var streams []func() *wire.Error
	res := s.do(t, "POST", box+"/exec", strings.NewReader(`{"args":["sleep","1000"]}`), []string{"Accept", wire.NDJSON})
	dec := json.NewDecoder(res.Body)
	var e wire.Event
	if err := dec.Decode(&e); err != nil {
		t.Fatal(err)
	}
	streams = append(streams, func() *wire.Error {
		var e wire.Event
		if err := dec.Decode(&e); err != nil {
			t.Error(err)
		}
		return e.Error
	})
	for _, protocol := range []string{"websocket", wire.UpgradeExec} {
		c := s.upgrade(t, box+"/exec", protocol)
		defer c.Close()
		c.Write(wire.Frame(wire.FrameStart, []byte(`{"args":["sleep","1000"]}`)))
		fr := wire.NewFrameReader(c)
		if ft, _, err := fr.Next(); ft != wire.FrameStarted {
			t.Fatalf("got %d, %v", ft, err)
		}
		var started wire.Started
		fr.JSON(&started)
		streams = append(streams, func() *wire.Error {
			_, _, _, fault := followAll(t, c)
			return fault
		})
	}
	closed := make(chan struct{})
	go func() { s.api.Close(); close(closed) }()
	for i, stream := range streams {
		if e := stream(); e == nil || e.Kind != sandbox.Unavailable || !strings.Contains(e.Message, "shutting down") {
			t.Errorf("stream %d: got %+v", i, e)
		}
	}
	<-closed
	res = s.do(t, "GET", box, nil, nil)
	if e := readError(t, res); res.StatusCode != 503 || e.Kind != sandbox.Unavailable {
		t.Errorf("after Close: %d %+v", res.StatusCode, e)
	}
	quiet(t, s, sb)
}

// A caller that reads nothing of what it asked for cannot hold up Close, nor
// the killing of its process.
func TestCloseWaitsForNoReader(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/f", make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	const endless = `{"args":["sh","-c","while :; do cat /tmp/f; done"]}`
	for _, accept := range []string{wire.Frames, wire.NDJSON} {
		s.do(t, "POST", box+"/exec", strings.NewReader(endless), []string{"Accept", accept})
	}
	s.do(t, "GET", box+"/files?path=/tmp/f", nil, nil)
	for _, protocol := range []string{"websocket", wire.UpgradeExec} {
		c := s.upgrade(t, box+"/exec", protocol)
		defer c.Close()
		c.Write(wire.Frame(wire.FrameStart, []byte(endless)))
	}
	busy(t, s, sb)
	s.api.Close()
	quiet(t, s, sb)
}

func TestDialUpgraded(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	if _, err := sb.Start(t.Context(), sandbox.Cmd{Args: []string{"echo-server", "8000"}}); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"websocket", wire.UpgradeTCP} {
		c := s.upgrade(t, box+"/ports/8000", protocol)
		fmt.Fprint(c, "hello")
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("%s: got %q, %v", protocol, b, err)
		}
		c.Close()
	}
	res := s.do(t, "GET", box+"/ports/8001", nil, []string{"Connection", "Upgrade", "Upgrade", wire.UpgradeTCP})
	if e := readError(t, res); res.StatusCode != 503 || e.Kind != sandbox.Unavailable {
		t.Errorf("nobody listens: %d %+v", res.StatusCode, e)
	}
}

func TestRanges(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/f", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		query, header, body, contentRange string
		status                            int
	}{
		{"", "", "0123456789", "", 200},
		{"&offset=3", "", "3456789", "", 200},
		{"&offset=3&length=2", "", "34", "", 200},
		{"&offset=-3&length=2", "", "78", "", 200},
		{"&offset=99", "", "", "", 200},
		{"", "bytes=3-4", "34", "bytes 3-4/10", 206},
		{"", "bytes=3-", "3456789", "bytes 3-9/10", 206},
		{"", "bytes=3-99", "3456789", "bytes 3-9/10", 206},
		{"", "bytes=-3", "789", "bytes 7-9/10", 206},
		{"", "bytes=-99", "0123456789", "bytes 0-9/10", 206},
		{"", "bytes=99-", "", "bytes */10", 416},
		{"", "bytes=4-3", "0123456789", "", 200},
		{"", "bytes=0-1,3-4", "0123456789", "", 200},
		{"", "bytes=-0", "0123456789", "", 200},
		{"", "bytes=+1-2", "0123456789", "", 200},
		{"", "bytes=99999999999999999999-", "0123456789", "", 200},
		{"", "lines=1-2", "0123456789", "", 200},
		{"&offset=1", "bytes=3-4", "123456789", "", 200},
	} {
		res := s.do(t, "GET", box+"/files?path=/tmp/f"+c.query, nil, []string{"Range", c.header})
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != c.status || string(b) != c.body || res.Header.Get("Content-Range") != c.contentRange {
			t.Errorf("%q %q: got %d %q %q, %v", c.query, c.header, res.StatusCode, b, res.Header.Get("Content-Range"), err)
		}
	}
}

func TestHead(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/ä\xff", []byte("0123456789")); err != nil {
		t.Fatal(err)
	}
	res := s.do(t, "HEAD", box+"/files?path=/tmp/%C3%A4%FF", nil, nil)
	if res.StatusCode != 200 || res.ContentLength != 10 {
		t.Errorf("got status %d, %d bytes", res.StatusCode, res.ContentLength)
	}
	var fi wire.FileInfo
	h := res.Header.Get(wire.HeaderFile)
	if err := json.Unmarshal([]byte(h), &fi); err != nil || fi.Name != "ä\xff" || fi.Size != 10 {
		t.Errorf("got %q, %v", h, err)
	}
	for i := range len(h) {
		if h[i] < ' ' || h[i] > '~' {
			t.Errorf("the header has the byte %d", h[i])
		}
	}
}

// No token, no environment, no argument, no output and no content of a file is
// ever in the log, and no cause of an error in an answer.
func TestLogHasNoSecrets(t *testing.T) {
	var log lockedBuffer
	logger := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g, err := gate.New(gate.Config{Token: token, Log: logger})
	if err != nil {
		t.Fatal(err)
	}
	rt := memory.New(memory.Config{})
	defer rt.Close()
	api := native.New(native.One(failing{rt}), native.Config{Log: logger})
	defer api.Close()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = gate.Server(g.Guard(api, api.Refuse, gate.Bearer), logger)
	srv.Start()
	defer srv.Close()
	c, err := client.New(client.Config{Host: srv.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const secret = "s3cr3t"
	ctx := t.Context()
	sb, err := c.Create(ctx, sandbox.Spec{Env: map[string]string{"KEY": secret}})
	if err != nil {
		t.Fatal(err)
	}
	sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"sh", "-c", "echo " + secret}, Env: map[string]string{"OTHER": secret}})
	sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"no-such-program", secret}})
	sandbox.Run(ctx, sb, sandbox.Cmd{Args: []string{"true"}, Env: map[string]string{"A=": secret}})
	sandbox.WriteFile(ctx, sb, "/no/such/dir", []byte(secret))
	c.Create(ctx, sandbox.Spec{Env: map[string]string{"KEY": secret}, Image: "nonsense"})
	_, err = c.Create(ctx, sandbox.Spec{Image: "fail"})
	if sandbox.KindOf(err) != sandbox.Internal || strings.Contains(err.Error(), "/host/path") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(log.String(), "/host/path") {
		t.Errorf("the log has no cause: %s", log.String())
	}
	for _, s := range []string{secret, token} {
		if strings.Contains(log.String(), s) {
			t.Errorf("the log has %q: %s", s, log.String())
		}
	}
}

// failing fails to make sandboxes of the image "fail", in a way that only the
// operator may know.
type failing struct{ sandbox.Runtime }

func (f failing) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Image == "fail" {
		return nil, errors.New("open /host/path: permission denied")
	}
	return f.Runtime.Create(ctx, spec)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// An upload that does not arrive whole changes nothing, whichever way it
// breaks off, and what is refused is refused before the body has come.
func TestBrokenUploads(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/f", []byte("old")); err != nil {
		t.Fatal(err)
	}
	raw := func(header, body string) *http.Response {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "PUT %s/files?path=/tmp/f HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n%s", box, token, header, body)
		c.(*net.TCPConn).CloseWrite()
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body = io.NopCloser(bytes.NewReader(b))
		return res
	}
	for name, c := range map[string][2]string{
		"short":             {"Content-Length: 100", "new"},
		"chunked, cut off":  {"Transfer-Encoding: chunked", "3\r\nnew\r\n"},
		"chunked, given up": {"Transfer-Encoding: chunked\r\nTrailer: Atoll-Abort", "3\r\nnew\r\n0\r\nAtoll-Abort: 1\r\n\r\n"},
		"chunked, broken":   {"Transfer-Encoding: chunked", "zz\r\nnew\r\n"},
	} {
		res := raw(c[0], c[1])
		if e := readError(t, res); res.StatusCode != 400 || e.Field != "body" {
			t.Errorf("%s: got %d %+v", name, res.StatusCode, e)
		}
	}
	// Refused at once: not a byte of the body is there.
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "PUT %s/files?path=/no/such/file HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 100000000\r\n\r\n", box, token)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if e := readError(t, res); res.StatusCode != 404 {
		t.Errorf("got %d %+v", res.StatusCode, e)
	}
	if b, err := sandbox.ReadFile(t.Context(), sb, "/tmp/f", 100); string(b) != "old" {
		t.Errorf("the file is %q, %v", b, err)
	}
	for fi, err := range sb.Files().List(t.Context(), "/tmp") {
		if fi.Name != "f" {
			t.Errorf("something is left behind: %q, %v", fi.Name, err)
		}
	}
}

// A request that is called off is answered when what it began is undone.
func TestCallOff(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	const name = "abcdefghijklmnop"
	res := s.do(t, "POST", box+"/exec", strings.NewReader(`{"args":["sh","-c","(setsid sleep 1000 &) ; sleep 1000"]}`), []string{"Accept", wire.NDJSON, wire.HeaderRequest, name})
	if got := res.Header.Get(wire.HeaderRequest); got != name {
		t.Errorf("the request is called %q", got)
	}
	if twin := s.do(t, "GET", box, nil, []string{wire.HeaderRequest, name}); twin.StatusCode != 409 {
		t.Errorf("a second request of that name: %d", twin.StatusCode)
	}
	for _, bad := range []string{"short", strings.Repeat("x", 65), "abcdefghijklmno!"} {
		if res := s.do(t, "GET", box, nil, []string{wire.HeaderRequest, bad}); res.StatusCode != 400 {
			t.Errorf("a request called %q: %d", bad, res.StatusCode)
		}
	}
	if off := s.do(t, "DELETE", "/atoll/v1/requests/"+name, nil, nil); off.StatusCode != 204 {
		t.Errorf("calling off: %d", off.StatusCode)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(b), "called off") {
		t.Errorf("got %q, %v", b, err)
	}
	own, _ := s.rt.Open(t.Context(), sb.ID())
	if u, _ := own.(sandbox.Meter).Usage(t.Context()); u.PIDs != 0 {
		t.Errorf("the answer was there before the tree was dead: %d processes", u.PIDs)
	}
}
