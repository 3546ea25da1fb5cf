package gate_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/sandbox"
)

const token = "e2b_0123456789abcdef0123456789abcdef01234567"

func refuse(w http.ResponseWriter, r *http.Request, no gate.Refusal) {
	w.WriteHeader(no.Status)
	io.WriteString(w, no.Err.Public())
}

func inside(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "inside") }

func newGate(t *testing.T, cfg gate.Config) *gate.Gate {
	t.Helper()
	cfg.Token = token
	g, err := gate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

type owners = map[sandbox.Owner]sandbox.Secret

const (
	aliceToken = "e2b_a11ce0000000000000000000000000000000a11c"
	bobToken   = "e2b_b0b00000000000000000000000000000000000b0"
)

func TestNewRefusesBadConfig(t *testing.T) {
	for _, c := range []struct {
		cfg   gate.Config
		field string
	}{
		{gate.Config{}, "token"},
		{gate.Config{Token: "short"}, "token"},
		{gate.Config{Token: token, Hosts: []string{""}}, "host"},
		{gate.Config{Token: token, Hosts: []string{"*"}}, "host"},
		{gate.Config{Token: token, Hosts: []string{"a b"}}, "host"},
		{gate.Config{Token: token, Hosts: []string{"http://example.org"}}, "host"},
		{gate.Config{Token: token, Hosts: []string{"example.org:80"}}, "host"},
		{gate.Config{Token: token, Owners: owners{"alice": ""}}, "owners.alice"},
		{gate.Config{Token: token, Owners: owners{"alice": "short"}}, "owners.alice"},
		{gate.Config{Token: token, Owners: owners{"alice": token}}, "owners.alice"},
		{gate.Config{Token: token, Owners: owners{"alice": aliceToken, "bob": aliceToken}}, "owners.bob"},
		{gate.Config{Token: token, Owners: owners{sandbox.Operator: aliceToken}}, "owners.operator"},
		{gate.Config{Token: token, Owners: owners{"": aliceToken}}, "owners"},
		{gate.Config{Token: token, Owners: owners{"a b": aliceToken}}, "owners"},
		{gate.Config{Token: token, Owners: owners{"alice/": aliceToken}}, "owners"},
	} {
		_, err := gate.New(c.cfg)
		e, ok := err.(*sandbox.Error)
		if !ok || e.Kind != sandbox.Invalid || e.Field != c.field {
			t.Errorf("%+v: got %v", c.cfg, err)
		}
		if err != nil && (strings.Contains(err.Error(), token) || strings.Contains(err.Error(), aliceToken)) {
			t.Errorf("the error has the token: %v", err)
		}
	}
}

// at returns the status of a request that came to local.
func at(g *gate.Gate, local net.Addr, set func(*http.Request)) int {
	r := httptest.NewRequest("GET", "/", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
	r.Host = "127.0.0.1"
	r.Header.Set("Authorization", "Bearer "+token)
	set(r)
	w := httptest.NewRecorder()
	g.Guard(http.HandlerFunc(inside), refuse, gate.Bearer, gate.Header("X-Key")).ServeHTTP(w, r)
	return w.Code
}

func TestHost(t *testing.T) {
	g := newGate(t, gate.Config{Hosts: []string{"Sandbox.Example.org", "10.0.0.9", "fd00::9"}})
	loop := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	lan := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8080}
	lan6 := &net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 8080}
	unix := &net.UnixAddr{Net: "unix", Name: "/x"}
	for _, c := range []struct {
		local net.Addr
		host  string
		ok    bool
	}{
		{loop, "localhost", true},
		{loop, "localhost:8080", true},
		{loop, "localhost:99", true},
		{loop, "a.localhost", true},
		{loop, "127.0.0.1:8080", true},
		{loop, "127.9.9.9", true},
		{loop, "[::1]:8080", true},
		{loop, "[::1]", true},
		{loop, "[::ffff:127.0.0.1]:8080", true},
		{loop, "sandbox.example.org", true},
		{loop, "SANDBOX.example.org.:443", true},
		{loop, "10.0.0.9", true},
		{loop, "[fd00::9]:80", true},
		{loop, "[fd00:0::9]:80", true},
		{lan, "192.0.2.1:8080", true},
		{lan, "[::ffff:192.0.2.1]:8080", true},
		{lan6, "[2001:db8::1]:8080", true},
		{lan6, "[2001:db8:0::1]", true},
		{unix, "evil.example", true},
		{unix, "", true},
		{loop, "", false},
		{loop, "192.0.2.1", false},
		{lan, "192.0.2.2", false},
		{lan, "192.0.2.1.evil.example", false},
		{loop, "evil.example", false},
		{loop, "example.org", false},
		{loop, "x.sandbox.example.org", false},
		{loop, "localhost.evil.example", false},
		{loop, "localhost@evil.example", false},
		{loop, "evil.example#localhost", false},
		{loop, "evil.example\x00.localhost", false},
		{loop, "evil.example/.localhost", false},
		{loop, "localhost:evil.example", false},
		{loop, "0x7f000001", false},
		{loop, "2130706433", false},
		{loop, "0.0.0.0", false},
		{loop, "[::]", false},
		{nil, "192.0.2.1", false},
		{nil, "localhost", true},
	} {
		want := 403
		if c.ok {
			want = 200
		}
		if got := at(g, c.local, func(r *http.Request) { r.Host = c.host }); got != want {
			t.Errorf("Host %q at %v: status %d, want %d", c.host, c.local, got, want)
		}
	}
}

func TestOrigin(t *testing.T) {
	g := newGate(t, gate.Config{})
	for _, c := range []struct {
		host, origin string
		ok           bool
	}{
		{"localhost:8080", "http://localhost:8080", true},
		{"localhost:8080", "https://LOCALHOST:8080", true},
		{"[::1]:8080", "http://[::1]:8080", true},
		{"localhost:8080", "http://localhost", false},
		{"localhost:8080", "http://localhost:8081", false},
		{"localhost:8080", "http://127.0.0.1:8080", false},
		{"localhost:8080", "null", false},
		{"localhost:8080", "file://", false},
		{"localhost:8080", "localhost:8080", false},
		{"localhost:8080", "//localhost:8080", false},
		{"localhost:8080", "ws://localhost:8080", false},
		{"localhost:8080", "chrome-extension://localhost:8080", false},
		{"localhost:8080", "http://evil@localhost:8080", false},
		{"localhost:8080", "http://localhost:8080/path", false},
		{"localhost:8080", "http://localhost:8080 http://evil.example", false},
		{"localhost:8080", "http://evil.example", false},
		{"localhost:8080", "%", false},
	} {
		want := 403
		if c.ok {
			want = 200
		}
		if got := at(g, nil, func(r *http.Request) { r.Host = c.host; r.Header.Set("Origin", c.origin) }); got != want {
			t.Errorf("Host %q, Origin %q: status %d, want %d", c.host, c.origin, got, want)
		}
	}
}

// Each protocol says where its clients send the token.
func TestTakers(t *testing.T) {
	g := newGate(t, gate.Config{})
	for name, c := range map[string]struct {
		set  func(*http.Request)
		want int
	}{
		"in the other header": {func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("X-Key", token) }, 200},
		"wrong in one, right in the other": {func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer nonsense")
			r.Header.Set("X-Key", token)
		}, 200},
		"wrong in both":                {func(r *http.Request) { r.Header.Set("Authorization", "Bearer x"); r.Header.Set("X-Key", "y") }, 401},
		"in a header that nobody said": {func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("X-Other", token) }, 401},
		"with spaces":                  {func(r *http.Request) { r.Header.Set("Authorization", "Bearer   "+token) }, 200},
		"without scheme":               {func(r *http.Request) { r.Header.Set("Authorization", token) }, 401},
	} {
		if got := at(g, nil, c.set); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
}

// The request's context says whose token it brought, behind the gate alone.
func TestOwnerOf(t *testing.T) {
	g := newGate(t, gate.Config{Owners: owners{"alice": aliceToken, "alice/bot": bobToken}})
	if o := gate.OwnerOf(t.Context()); o != "" {
		t.Errorf("without a gate the owner is %q", o)
	}
	for _, c := range []struct {
		name string
		set  func(*http.Request)
		want sandbox.Owner
	}{
		{"the daemon's token", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }, sandbox.Operator},
		{"alice's", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+aliceToken) }, "alice"},
		{"alice's, in the other header", func(r *http.Request) { r.Header.Set("X-Key", aliceToken) }, "alice"},
		{"her bot's", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+bobToken) }, "alice/bot"},
		{"two: the first counts", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+bobToken)
			r.Header.Set("X-Key", token)
		}, "alice/bot"},
		{"a wrong one and a right one", func(r *http.Request) {
			r.Header.Set("Authorization", "Bearer "+token+"0")
			r.Header.Set("X-Key", aliceToken)
		}, "alice"},
		{"nobody's", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[1:]) }, ""},
		{"an owner's name", func(r *http.Request) { r.Header.Set("Authorization", "Bearer alice") }, ""},
		{"none", func(*http.Request) {}, ""},
	} {
		var got sandbox.Owner
		h := g.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got = gate.OwnerOf(r.Context())
			if got == "" {
				t.Errorf("%s: let in as nobody", c.name)
			}
		}), refuse, gate.Bearer, gate.Header("X-Key"))
		r := httptest.NewRequest("GET", "http://localhost/", nil)
		c.set(r)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got != c.want || (w.Code == 200) != (c.want != "") {
			t.Errorf("%s: the owner is %q, want %q; status %d", c.name, got, c.want, w.Code)
		}
	}
}

// Who stands before the gate sees what those behind it note in the request.
func TestRequestIsTheSame(t *testing.T) {
	g := newGate(t, gate.Config{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /here", inside)
	r := httptest.NewRequest("GET", "http://localhost/here", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	g.Guard(mux, refuse, gate.Bearer).ServeHTTP(httptest.NewRecorder(), r)
	if r.Pattern != "GET /here" {
		t.Errorf("the pattern is %q", r.Pattern)
	}
}

// A token that was sent is in no line of the log, nor is ours.
func TestLogHasNoToken(t *testing.T) {
	var out bytes.Buffer
	g := newGate(t, gate.Config{Log: slog.New(slog.NewJSONHandler(&out, nil))})
	const wrong = "e2b_ffffffffffffffffffffffffffffffffffffffff"
	at(g, nil, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+wrong); r.Header.Set("X-Key", wrong) })
	at(g, nil, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") })
	if out.Len() == 0 {
		t.Error("nothing was logged")
	}
	for _, secret := range []string{wrong, token} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the log has a token: %s", out.String())
		}
	}
}

// Through a Unix socket any Host does, but not without the token.
func TestUnixSocket(t *testing.T) {
	g := newGate(t, gate.Config{})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := gate.Server(g.Guard(http.HandlerFunc(inside), refuse, gate.Bearer), nil)
	go srv.Serve(l)
	defer srv.Close()
	for header, want := range map[string]string{"Authorization: Bearer " + token: "200", "X: y": "401"} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: whatever\r\nConnection: close\r\n%s\r\n\r\n", header)
		b, _ := io.ReadAll(c)
		c.Close()
		if !strings.HasPrefix(string(b), "HTTP/1.1 "+want) {
			t.Errorf("%s: got %q", header, b)
		}
	}
}

// Who is refused cannot hold the connection by a body that does not come.
func TestRefusedBodyIsNotAwaited(t *testing.T) {
	g := newGate(t, gate.Config{})
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = gate.Server(g.Guard(http.HandlerFunc(inside), refuse, gate.Bearer), nil)
	srv.Start()
	defer srv.Close()
	for _, framing := range []string{"Content-Length: 100", "Content-Length: 1000000000", "Transfer-Encoding: chunked"} {
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", framing)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != 401 {
			t.Fatalf("%s: got %+v, %v", framing, res, err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil { // until the server closes it
			t.Errorf("%s: %v", framing, err)
		}
		c.Close()
	}
}

// Headers that do not come, or are too long, hold nothing for long.
func TestServerBoundsHeaders(t *testing.T) {
	s := gate.Server(http.HandlerFunc(inside), nil)
	if s.ReadHeaderTimeout <= 0 || s.ReadHeaderTimeout > time.Minute || s.IdleTimeout <= 0 || s.IdleTimeout > time.Hour {
		t.Errorf("the timeouts are %v and %v", s.ReadHeaderTimeout, s.IdleTimeout)
	}
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = s
	srv.Start()
	defer srv.Close()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n", strings.Repeat("x", 1<<20))
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestHealth(t *testing.T) {
	w := httptest.NewRecorder()
	gate.Health(w, httptest.NewRequest("GET", "/healthz", nil))
	if w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"status":"healthy"}` {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
}

// No Host or Origin makes the gate panic, and a page's own name is never one
// that its Host header does not have.
func FuzzGate(f *testing.F) {
	f.Add("localhost:8080", "http://localhost:8080")
	f.Add("[::1%25lo]:80", "null")
	f.Add("evil.example", "http://evil.example")
	g, err := gate.New(gate.Config{Token: token})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, origin string) {
		got := at(g, nil, func(r *http.Request) { r.Host = host; r.Header["Origin"] = []string{origin} })
		if got == 200 && !strings.Contains(strings.ToLower(host), "localhost") && !strings.Contains(host, "127.") && !strings.Contains(host, ":") {
			t.Errorf("Host %q with Origin %q was let in", host, origin)
		}
		if got == 200 && !strings.Contains(strings.ToLower(origin), strings.ToLower(host)) {
			t.Errorf("Origin %q was let in at Host %q", origin, host)
		}
	})
}
