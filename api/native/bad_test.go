package native_test

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// Bad input gets an error that names the field, with the right status, and
// leaves nothing behind.
func TestBadInput(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	const none = "/atoll/v1/sandboxes/abcdefghijklmnopqrst"
	const all = "/atoll/v1/sandboxes"
	cases := []struct {
		name, method, path, body string
		status                   int
		kind                     sandbox.Kind
		field                    string
	}{
		{"create: unknown field", "POST", all, `{"imagee":"x"}`, 400, sandbox.Invalid, "imagee"},
		{"create: negative limit", "POST", all, `{"limits":{"memory":-1}}`, 400, sandbox.Invalid, "limits.memory"},
		{"create: too little memory", "POST", all, `{"limits":{"memory":1}}`, 400, sandbox.Invalid, "limits.memory"},
		{"create: fraction of a process", "POST", all, `{"limits":{"pids":1.5}}`, 400, sandbox.Invalid, "limits.pids"},
		{"create: overflow", "POST", all, `{"limits":{"memory":99999999999999999999}}`, 400, sandbox.Invalid, "limits.memory"},
		{"create: NaN", "POST", all, `{"limits":{"cpu":NaN}}`, 400, sandbox.Invalid, "limits.cpu"},
		{"create: relative workdir", "POST", all, `{"workdir":"here"}`, 400, sandbox.Invalid, "workdir"},
		{"create: unknown image", "POST", all, `{"image":"no such image"}`, 404, sandbox.NotExist, "image"},
		{"create: bad variable", "POST", all, `{"env":{"A=B":"c"}}`, 400, sandbox.Invalid, "env"},
		{"create: variable that is no text", "POST", all, `{"env":{"A":1}}`, 400, sandbox.Invalid, "env"},
		{"create: bad user", "POST", all, `{"user":"-x"}`, 400, sandbox.Invalid, "user"},
		{"create: bad network", "POST", all, `{"network":"maybe"}`, 400, sandbox.Invalid, "network"},
		{"create: unknown property", "POST", all, `{"require":["luck"]}`, 400, sandbox.Invalid, "require"},
		{"create: mount over /", "POST", all, `{"mounts":[{"source":"/a","target":"/"}]}`, 400, sandbox.Invalid, "mounts.target"},
		{"create: unknown field of a mount", "POST", all, `{"mounts":[{"source":"/a","target":"/b","ro":true}]}`, 400, sandbox.Invalid, "mounts.ro"},
		{"create: expired", "POST", all, `{"expires":"2001-01-01T00:00:00Z"}`, 400, sandbox.Invalid, "expires"},
		{"create: no time", "POST", all, `{"expires":"soon"}`, 400, sandbox.Invalid, "expires"},
		{"create: too many labels", "POST", all, `{"labels":{` + strings.TrimSuffix(strings.Repeat(`"":"",`, 1), ",") + `}}`, 400, sandbox.Invalid, "labels"},
		{"create: twice", "POST", all, `{"image":"a","image":"b"}`, 400, sandbox.Invalid, "image"},
		{"create: other letters", "POST", all, `{"Image":"a"}`, 400, sandbox.Invalid, "Image"},
		{"create: malformed", "POST", all, `{"image":`, 400, sandbox.Invalid, "image"},
		{"create: empty", "POST", all, ``, 400, sandbox.Invalid, "body"},
		{"create: trailing garbage", "POST", all, `{} {}`, 400, sandbox.Invalid, "body"},
		{"create: deep", "POST", all, strings.Repeat(`{"limits":`, 10000), 400, sandbox.Invalid, "body"},
		{"create: parameter", "POST", all + "?image=x", `{}`, 400, sandbox.Invalid, "image"},

		{"no such sandbox", "GET", none, "", 404, sandbox.NotExist, ""},
		{"no such sandbox: remove", "DELETE", none, "", 404, sandbox.NotExist, ""},
		{"no such sandbox: exec", "POST", none + "/exec", `{"args":["true"]}`, 404, sandbox.NotExist, ""},
		{"no such sandbox: file", "GET", none + "/files?path=/etc/passwd", "", 404, sandbox.NotExist, ""},
		{"no id", "GET", all + "/UPPER-CASE!", "", 404, sandbox.NotExist, ""},
		{"id with a slash", "GET", all + "/abc%2f..%2fdef", "", 404, sandbox.NotExist, ""},
		{"id with a NUL", "GET", all + "/abcdefgh%00", "", 404, sandbox.NotExist, ""},
		{"nothing there", "GET", "/atoll/v1/nonsense", "", 404, sandbox.NotExist, "url"},
		{"wrong method", "PUT", box, "", 405, sandbox.Invalid, "method"},
		{"wrong method below", "GET", box + "/pause", "", 405, sandbox.Invalid, "method"},

		{"exec: no arguments", "POST", box + "/exec", `{}`, 400, sandbox.Invalid, "args"},
		{"exec: empty arguments", "POST", box + "/exec", `{"args":[]}`, 400, sandbox.Invalid, "args"},
		{"exec: text for a list", "POST", box + "/exec", `{"args":"echo hi"}`, 400, sandbox.Invalid, "args"},
		{"exec: null for an argument", "POST", box + "/exec", `{"args":[null]}`, 400, sandbox.Invalid, "args"},
		{"exec: NUL", "POST", box + "/exec", `{"args":["a\u0000b"]}`, 400, sandbox.Invalid, "args"},
		{"exec: command not found", "POST", box + "/exec", `{"args":["no-such-program"]}`, 404, sandbox.NotExist, "args"},
		{"exec: missing directory", "POST", box + "/exec", `{"args":["true"],"dir":"/no/such"}`, 404, sandbox.NotExist, "dir"},
		{"exec: relative directory", "POST", box + "/exec", `{"args":["true"],"dir":"x"}`, 400, sandbox.Invalid, "dir"},
		{"exec: missing user", "POST", box + "/exec", `{"args":["true"],"user":"nosuchuser"}`, 404, sandbox.NotExist, "user"},
		{"exec: negative timeout", "POST", box + "/exec", `{"args":["true"],"timeout":-1}`, 400, sandbox.Invalid, "timeout"},
		{"exec: endless timeout", "POST", box + "/exec", `{"args":["true"],"timeout":1e300}`, 400, sandbox.Invalid, "timeout"},
		{"exec: timeout with a unit", "POST", box + "/exec", `{"args":["true"],"timeout":"30s"}`, 400, sandbox.Invalid, "timeout"},
		{"exec: huge terminal", "POST", box + "/exec", `{"args":["true"],"terminal":{"rows":65536}}`, 400, sandbox.Invalid, "terminal.rows"},
		{"exec: input that is not base64", "POST", box + "/exec", `{"args":["true"],"stdin":"!"}`, 400, sandbox.Invalid, "stdin"},
		{"exec: too much input", "POST", box + "/exec", `{"args":["true"],"stdin":"` + strings.Repeat("AAAA", 400<<10) + `"}`, 400, sandbox.Invalid, "stdin"},
		{"exec: unknown stream", "POST", box + "/exec", `{"args":["true"],"discard":["stdin"]}`, 400, sandbox.Invalid, "discard"},
		{"exec: too much output", "POST", box + "/exec", `{"args":["true"],"max_output":99999999}`, 400, sandbox.Invalid, "max_output"},
		{"exec: no upgrade", "GET", box + "/exec", "", 426, sandbox.Invalid, "upgrade"},
		{"ports: no upgrade", "GET", box + "/ports/80", "", 426, sandbox.Invalid, "upgrade"},
		{"ports: no number", "GET", box + "/ports/http", "", 400, sandbox.Invalid, "port"},

		{"detach: text for a ring", "POST", box + "/processes", `{"args":["true"],"ring":"big"}`, 400, sandbox.Invalid, "ring"},
		{"detach: input as for exec", "POST", box + "/processes", `{"args":["true"],"stdin":"eA=="}`, 400, sandbox.Invalid, "stdin"},
		{"no such process", "POST", box + "/processes/nosuch/signal", `{"signal":"TERM"}`, 404, sandbox.NotExist, "process"},
		{"no process id", "GET", box + "/processes/NO/output", "", 404, sandbox.NotExist, "process"},
		{"output: bad cursor", "GET", box + "/processes/x/output?cursor=start", "", 400, sandbox.Invalid, "cursor"},
		{"output: cursor that overflows", "GET", box + "/processes/x/output?cursor=9223372036854775808", "", 400, sandbox.Invalid, "cursor"},
		{"output: bad wait", "GET", box + "/processes/x/output?wait=NaN", "", 400, sandbox.Invalid, "wait"},
		{"output: negative wait", "GET", box + "/processes/x/output?wait=-1", "", 400, sandbox.Invalid, "wait"},

		{"update: bad time", "PATCH", box, `{"expires":"soon"}`, 400, sandbox.Invalid, "expires"},
		{"update: passed", "PATCH", box, `{"expires":"2001-01-02T15:04:05Z"}`, 400, sandbox.Invalid, "expires"},
		{"update: no label", "PATCH", box, `{"labels":{"":"x"}}`, 400, sandbox.Invalid, "labels"},
		{"update: no variable", "PATCH", box, `{"env":{"A=B":"x"}}`, 400, sandbox.Invalid, "env"},
		{"update: empty name", "PATCH", box, `{"name":""}`, 400, sandbox.Invalid, "name"},
		{"update: idle of a backend", "PATCH", box, `{"idle":60}`, 501, sandbox.Unsupported, "idle"},
		{"update: unknown member", "PATCH", box, `{"image":"host"}`, 400, sandbox.Invalid, "image"},
		{"update: nothing there", "PATCH", "/atoll/v1/sandboxes/nosuchsandbox", `{}`, 404, sandbox.NotExist, ""},
		{"file: no path", "GET", box + "/files", "", 400, sandbox.Invalid, "path"},
		{"file: relative", "GET", box + "/files?path=etc/passwd", "", 400, sandbox.Invalid, "path"},
		{"file: NUL", "GET", box + "/files?path=/etc%00", "", 400, sandbox.Invalid, "path"},
		{"file: long", "GET", box + "/files?path=/" + strings.Repeat("a", 4096), "", 400, sandbox.Invalid, "path"},
		{"file: missing", "GET", box + "/files?path=/no/such", "", 404, sandbox.NotExist, ""},
		{"file: above the root", "GET", box + "/files?path=/../../../../no/such", "", 404, sandbox.NotExist, ""},
		{"file: escaped twice", "GET", box + "/files?path=%252e%252e/etc", "", 400, sandbox.Invalid, "path"},
		{"file: a directory", "GET", box + "/files?path=/", "", 400, sandbox.Invalid, ""},
		{"file: path twice", "GET", box + "/files?path=/a&path=/b", "", 400, sandbox.Invalid, "path"},
		{"file: unknown parameter", "GET", box + "/files?path=/a&follow=1", "", 400, sandbox.Invalid, "follow"},
		{"file: semicolon", "GET", box + "/files?path=/a;b", "", 400, sandbox.Invalid, "query"},
		{"file: bad escape", "GET", box + "/files?path=%zz", "", 400, sandbox.Invalid, "query"},
		{"file: bad offset", "GET", box + "/files?path=/a&offset=1.5", "", 400, sandbox.Invalid, "offset"},
		{"write: bad mode", "PUT", box + "/files?path=/a&mode=rw", "x", 400, sandbox.Invalid, "mode"},
		{"write: bad truth", "PUT", box + "/files?path=/a&parents=yes", "x", 400, sandbox.Invalid, "parents"},
		{"write: missing directory", "PUT", box + "/files?path=/no/such", "x", 404, sandbox.NotExist, ""},
		{"write: missing user", "PUT", box + "/files?path=/tmp/a&user=nosuchuser", "x", 404, sandbox.NotExist, "user"},
		{"mkdir: there already", "POST", box + "/files/mkdir", `{"path":"/tmp"}`, 409, sandbox.Conflict, ""},
		{"mkdir: bad mode", "POST", box + "/files/mkdir", `{"path":"/tmp/a","mode":"9"}`, 400, sandbox.Invalid, "mode"},
		{"chmod: no mode", "POST", box + "/files/chmod", `{"path":"/tmp"}`, 400, sandbox.Invalid, "mode"},
		{"remove: not empty", "DELETE", box + "/files?path=/etc", "", 409, sandbox.Conflict, ""},
		{"call off nothing", "DELETE", "/atoll/v1/requests/abcdefghabcdefgh", "", 404, sandbox.NotExist, "request"},
	}
	for _, c := range cases {
		var in io.Reader
		if c.method == "POST" || c.method == "PUT" || c.method == "PATCH" {
			in = strings.NewReader(c.body)
		}
		res := s.do(t, c.method, c.path, in, nil)
		e := readError(t, res)
		if res.StatusCode != c.status || e.Kind != c.kind || c.field != "" && e.Field != c.field {
			t.Errorf("%s: got status %d, %+v; want %d, %s, field %q", c.name, res.StatusCode, e, c.status, c.kind, c.field)
		}
		if e.Message == "" || e.Request == "" || e.Request != res.Header.Get(wire.HeaderRequest) {
			t.Errorf("%s: got %+v, header %q", c.name, e, res.Header.Get(wire.HeaderRequest))
		}
	}
	n := 0
	for range s.rt.List(t.Context()) {
		n++
	}
	if n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
	for _, p := range []string{"/tmp/a", "/a"} {
		if _, err := sandboxOf(t, s).Files().Stat(t.Context(), p); sandbox.KindOf(err) != sandbox.NotExist {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func sandboxOf(t *testing.T, s *server) sandbox.Sandbox {
	t.Helper()
	for info := range s.rt.List(t.Context()) {
		sb, err := s.rt.Open(t.Context(), info.ID)
		if err != nil {
			t.Fatal(err)
		}
		return sb
	}
	t.Fatal("there is no sandbox")
	return nil
}

// A body of 100 MB is refused where JSON is wanted, on every route, whether
// its length was announced or not, and takes no memory.
func TestHugeBody(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	for _, path := range []string{"/atoll/v1/sandboxes", box + "/exec", box + "/processes", box + "/files/mkdir", box + "/files/chmod",
		box + "/processes/x/signal", box + "/processes/x/resize", box + "/processes/x/input"} {
		for _, announced := range []bool{true, false} {
			src := &counter{r: io.LimitReader(spaces{}, 100<<20)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+path, src)
			if err != nil {
				t.Fatal(err)
			}
			if announced {
				req.ContentLength = 100 << 20
			}
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Content-Type", "application/json")
			res, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Errorf("%s, announced %v: %v", path, announced, err)
				continue
			}
			e := readError(t, res)
			res.Body.Close()
			runtime.ReadMemStats(&after)
			if res.StatusCode != 413 || e.Kind != sandbox.Invalid || e.Field != "body" {
				t.Errorf("%s, announced %v: got %d %+v", path, announced, res.StatusCode, e)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("%s, announced %v: it took %d bytes of memory", path, announced, n)
			}
		}
	}
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	return copy(p, bytes.Repeat([]byte(" "), min(len(p), 4096))), nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func TestWrongContentType(t *testing.T) {
	s := newServer(t)
	_, box := s.sandbox(t)
	for _, contentType := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""} {
		res := s.do(t, "POST", box+"/exec", strings.NewReader(`{"args":["true"]}`), []string{"Content-Type", contentType})
		if e := readError(t, res); res.StatusCode != 415 || e.Kind != sandbox.Invalid || e.Field != "content-type" {
			t.Errorf("%q: got %d %+v", contentType, res.StatusCode, e)
		}
	}
}
