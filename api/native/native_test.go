package native_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

const token = "e2b_0123456789abcdef0123456789abcdef01234567"

// programs are those that a test wants beside the usual ones.
var programs = map[string]memory.Program{"echo-server": echoServer}

// echoServer accepts one connection on the port in its argument after the
// other, and echoes what it reads.
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

// A server serves a Runtime as the daemon does, and is judged by the document.
type server struct {
	*httptest.Server
	rt     *memory.Runtime
	api    *native.API
	doc    *document
	client *client.Client
	close  func()
}

func newServer(t *testing.T) *server {
	t.Helper()
	rt := memory.New(memory.Config{Programs: programs})
	s := serve(t, rt)
	s.rt = rt
	t.Cleanup(s.close)
	return s
}

// serve serves rt until close is called, which closes rt too.
func serve(t *testing.T, rt sandbox.Runtime) *server {
	t.Helper()
	g, err := gate.New(gate.Config{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{api: native.New(native.One(rt), native.Config{Version: "test"}), doc: readDocument(t)}
	s.Server = httptest.NewUnstartedServer(nil)
	s.Server.Config = gate.Server(s.doc.watch(t, g.Guard(s.api, s.api.Refuse, gate.Bearer)), nil)
	s.Server.Start()
	if s.client, err = client.New(client.Config{Host: s.URL, Token: token}); err != nil {
		t.Fatal(err)
	}
	s.close = sync.OnceFunc(func() {
		s.client.Close()
		s.api.Close()
		s.Server.Close()
		rt.Close()
	})
	return s
}

// do sends a request with the token. header is name, value, name, value, …
func (s *server) do(t *testing.T, method, path string, body io.Reader, header []string) *http.Response {
	t.Helper()
	return s.doContext(t, t.Context(), method, path, body, header)
}

func (s *server) doContext(t *testing.T, ctx context.Context, method, path string, body io.Reader, header []string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for h := range slices.Chunk(header, 2) {
		req.Header.Set(h[0], h[1])
	}
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// sandbox makes a sandbox and returns the path of its URL.
func (s *server) sandbox(t *testing.T) (sandbox.Sandbox, string) {
	t.Helper()
	sb, err := s.client.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	return sb, "/atoll/v1/sandboxes/" + string(sb.ID())
}

func readError(t *testing.T, res *http.Response) wire.Error {
	t.Helper()
	var e wire.Error
	b, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		t.Fatalf("status %d: %v: %q", res.StatusCode, err, b)
	}
	return e
}

// fields returns the sorted names of the members that v has in JSON.
func fields(v any) []string {
	var names []string
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" {
				add(f.Type)
			} else if name != "-" {
				names = append(names, name)
			}
		}
	}
	add(reflect.TypeOf(v))
	slices.Sort(names)
	return names
}

// filled returns the path of r with something in its places.
func filled(r native.Route, id string) string {
	return strings.NewReplacer("{id}", id, "{pid}", "abcdefgh", "{port}", "80", "{name}", "abcdefghabcdefgh").Replace(r.Path)
}

// Whoever brings no token, or a wrong one, or comes from a web page, or calls
// us by a foreign name, is refused on every route, and nothing happens.
func TestRefusedOnEveryRoute(t *testing.T) {
	s := newServer(t)
	sb, _ := s.sandbox(t)
	cases := []struct {
		name   string
		status int
		set    func(*http.Request)
	}{
		{"no token", 401, func(r *http.Request) { r.Header.Del("Authorization") }},
		{"empty token", 401, func(r *http.Request) { r.Header.Set("Authorization", "Bearer ") }},
		{"wrong token", 401, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:len(token)-1]+"0") }},
		{"longer token", 401, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token+"0") }},
		{"shorter token", 401, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token[:len(token)-1]) }},
		{"other scheme", 401, func(r *http.Request) { r.SetBasicAuth("", token) }},
		{"token in the query", 401, func(r *http.Request) {
			r.Header.Del("Authorization")
			r.URL.RawQuery = "token=" + token + "&access_token=" + token
		}},
		{"token in a cookie", 401, func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(&http.Cookie{Name: "token", Value: token})
		}},
		{"foreign Origin", 403, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }},
		{"Origin of another port", 403, func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }},
		{"Origin null", 403, func(r *http.Request) { r.Header.Set("Origin", "null") }},
		{"empty Origin", 403, func(r *http.Request) { r.Header["Origin"] = []string{""} }},
		{"two Origins", 403, func(r *http.Request) { r.Header["Origin"] = []string{"http://" + r.URL.Host, "http://evil.example"} }},
		{"preflight", 403, func(r *http.Request) {
			r.Header.Set("Origin", "http://evil.example")
			r.Header.Set("Access-Control-Request-Method", r.Method)
			r.Header.Set("Access-Control-Request-Headers", "authorization")
			r.Method = "OPTIONS"
		}},
		{"fetch from another site", 403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		{"fetch from the same site", 403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }},
		{"foreign Host", 403, func(r *http.Request) { r.Host = "evil.example" }},
		{"foreign Host with our port", 403, func(r *http.Request) { r.Host = "evil.example:80" }},
		{"Host that begins like ours", 403, func(r *http.Request) { r.Host = "127.0.0.1.evil.example" }},
		{"Host that ends like ours", 403, func(r *http.Request) { r.Host = "evillocalhost" }},
		{"another address", 403, func(r *http.Request) { r.Host = "192.0.2.1" }},
		{"foreign page after rebinding", 403, func(r *http.Request) {
			r.Host = "evil.example"
			r.Header.Set("Origin", "http://evil.example")
			r.Header.Set("Sec-Fetch-Site", "same-origin")
		}},
	}
	for _, rt := range native.Routes() {
		for _, c := range cases {
			for _, upgrade := range []string{"", "websocket", wire.UpgradeExec, wire.UpgradeTCP} {
				if upgrade != "" && (rt.Method != "GET" || c.name == "preflight") {
					continue
				}
				req, err := http.NewRequestWithContext(t.Context(), rt.Method, s.URL+filled(rt, string(sb.ID())), nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+token)
				if upgrade != "" {
					req.Header.Set("Connection", "Upgrade")
					req.Header.Set("Upgrade", upgrade)
					req.Header.Set("Sec-WebSocket-Version", "13")
					req.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
				}
				c.set(req)
				res, err := s.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				e := readError(t, res)
				res.Body.Close()
				if res.StatusCode != c.status || e.Kind != sandbox.Denied {
					t.Errorf("%s %s, %s, upgrade %q: got %d %+v", rt.Method, rt.Path, c.name, upgrade, res.StatusCode, e)
				}
				if h := res.Header.Get("WWW-Authenticate"); (h != "") != (c.status == 401) {
					t.Errorf("%s: WWW-Authenticate is %q", c.name, h)
				}
				for h := range res.Header {
					if strings.HasPrefix(h, "Access-Control-") {
						t.Errorf("%s: there is a header %s", c.name, h)
					}
				}
			}
		}
	}
	if _, err := s.rt.Open(t.Context(), sb.ID()); err != nil {
		t.Errorf("the sandbox is gone: %v", err)
	}
	n := 0
	for _, err := range s.rt.List(t.Context()) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
}

// And nobody else is.
func TestLetInWithToken(t *testing.T) {
	s := newServer(t)
	port := s.Listener.Addr().(*net.TCPAddr).Port
	for name, set := range map[string]func(*http.Request){
		"plain":             func(*http.Request) {},
		"own Origin":        func(r *http.Request) { r.Header.Set("Origin", s.URL); r.Header.Set("Sec-Fetch-Site", "same-origin") },
		"typed by a person": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") },
		"localhost":         func(r *http.Request) { r.Host = "localhost" },
		"LOCALHOST.":        func(r *http.Request) { r.Host = "LOCALHOST." },
		"IPv6 loopback":     func(r *http.Request) { r.Host = "[::1]:8080" },
		"other loopback":    func(r *http.Request) { r.Host = "127.0.0.2" },
		"lower-case bearer": func(r *http.Request) { r.Header.Set("Authorization", "bearer "+token) },
	} {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/atoll/v1", nil)
		req.Header.Set("Authorization", "Bearer "+token)
		set(req)
		res, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s (port %d): status %d", name, port, res.StatusCode)
		}
	}
}
