package native_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// A document is the OpenAPI document, by which a test judges what the server
// says.
type document struct {
	root     map[string]any
	compiler *jsonschema.Compiler

	mu      sync.Mutex
	schemas map[string]*jsonschema.Schema // guarded by mu
	seen    map[string]bool               // guarded by mu; "METHOD PATH STATUS"
}

func readDocument(t *testing.T) *document {
	t.Helper()
	text, err := yaml.YAMLToJSON(native.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	d := &document{root: root.(map[string]any), compiler: jsonschema.NewCompiler(), schemas: make(map[string]*jsonschema.Schema), seen: make(map[string]bool)}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource("openapi.json", root); err != nil {
		t.Fatal(err)
	}
	return d
}

// at returns what is at a path of keys, $refs followed, and its JSON pointer.
func (d *document) at(keys ...string) (any, string) {
	var v any = d.root
	pointer := ""
	for _, k := range keys {
		for {
			m, ok := v.(map[string]any)
			if !ok {
				return nil, ""
			}
			ref, ok := m["$ref"].(string)
			if !ok {
				break
			}
			v, pointer = d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
		}
		v = v.(map[string]any)[k]
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1", "%", "%25", "{", "%7B", "}", "%7D", " ", "%20").Replace(k)
	}
	return v, pointer
}

func (d *document) validate(pointer string, body []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.schemas[pointer]
	if s == nil {
		var err error
		if s, err = d.compiler.Compile("openapi.json#" + pointer); err != nil {
			return fmt.Errorf("compile: %w", err)
		}
		d.schemas[pointer] = s
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// watch returns h, and fails t for each answer, and for each request that was
// granted, which is not as the document says.
func (d *document) watch(t *testing.T, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked []byte
		if r.Header.Get("Content-Type") == wire.JSON && r.ContentLength > 0 && r.ContentLength < wire.MaxBody {
			asked, _ = io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(asked))
		}
		rec := &recorder{ResponseWriter: w}
		defer func() {
			if recover() != nil {
				panic(http.ErrAbortHandler) // the answer is not whole
			}
			d.judge(t, r, rec, asked)
		}()
		h.ServeHTTP(rec, r)
	})
}

func (d *document) judge(t *testing.T, r *http.Request, rec *recorder, asked []byte) {
	if rec.status == 0 {
		rec.status = http.StatusOK
	}
	method, path, ok := strings.Cut(r.Pattern, " ")
	if rec.status == http.StatusSwitchingProtocols || rec.hijacked {
		rec.status = http.StatusSwitchingProtocols
	}
	status := strconv.Itoa(rec.status)
	d.mu.Lock()
	d.seen[r.Pattern+" "+status] = true
	d.mu.Unlock()
	keys := []string{"components", "responses", "Error"}
	if ok {
		keys = []string{"paths", path, strings.ToLower(method), "responses", status}
		if v, _ := d.at(keys...); v == nil {
			keys[4] = "default"
			if rec.status < 400 {
				t.Errorf("%s answers %s, of which the document knows nothing", r.Pattern, status)
				return
			}
		}
		if rec.status < 300 && asked != nil {
			if _, p := d.at("paths", path, strings.ToLower(method), "requestBody", "content", wire.JSON, "schema"); d.validate(p, asked) != nil {
				t.Errorf("%s takes %s, which is not as the document says: %v", r.Pattern, clipped(asked), d.validate(p, asked))
			}
		}
	}
	contentType := rec.Header().Get("Content-Type")
	if rec.status == http.StatusNoContent || rec.hijacked || rec.status == http.StatusRequestedRangeNotSatisfiable {
		if rec.body.Len() > 0 && !rec.hijacked {
			t.Errorf("%s answers %s with a body", r.Pattern, status)
		}
		return
	}
	v, _ := d.at(append(keys, "content", contentType)...)
	if v == nil {
		t.Errorf("%s answers %s with the content type %q, of which the document knows nothing", r.Pattern, status, contentType)
		return
	}
	_, pointer := d.at(append(keys, "content", contentType, "schema")...)
	var bodies [][]byte
	switch contentType {
	case wire.JSON:
		bodies = [][]byte{rec.body.Bytes()}
	case wire.NDJSON:
		if rec.body.Len() == 0 { // a stream without a line
			return
		}
		bodies = bytes.Split(bytes.TrimSuffix(rec.body.Bytes(), []byte("\n")), []byte("\n"))
	}
	if rec.more {
		return
	}
	for _, b := range bodies {
		if err := d.validate(pointer, b); err != nil {
			t.Errorf("%s answers %s with %s, which is not as the document says: %v", r.Pattern, status, clipped(b), err)
		}
	}
}

func clipped(b []byte) string { return string(b[:min(len(b), 1000)]) }

// recorder keeps what is answered, up to a bound.
type recorder struct {
	http.ResponseWriter
	status   int
	hijacked bool
	mu       sync.Mutex
	body     bytes.Buffer
	more     bool
}

func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.hijacked = true
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.hijacked = r.hijacked || status == http.StatusSwitchingProtocols
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	if r.body.Len()+len(p) > 4<<20 {
		r.more = true
	} else {
		r.body.Write(p)
	}
	r.mu.Unlock()
	return r.ResponseWriter.Write(p)
}

// Every route is in the document, with its parameters, and nothing else is.
func TestDocumentKnowsTheRoutes(t *testing.T) {
	d := readDocument(t)
	got := make(map[string][]string)
	paths, _ := d.at("paths")
	for path, item := range paths.(map[string]any) {
		shared := params(d, item.(map[string]any)["parameters"])
		for method, op := range item.(map[string]any) {
			if method == "parameters" {
				continue
			}
			got[strings.ToUpper(method)+" "+path] = append(slices.Clone(shared), params(d, op.(map[string]any)["parameters"])...)
		}
	}
	want := make(map[string][]string)
	for _, r := range native.Routes() {
		var ps []string
		for rest := r.Path; ; {
			_, after, ok := strings.Cut(rest, "{")
			if !ok {
				break
			}
			name, after, _ := strings.Cut(after, "}")
			ps, rest = append(ps, "path "+name), after
		}
		for _, q := range r.Query {
			ps = append(ps, "query "+q)
		}
		want[r.Method+" "+r.Path] = ps
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[name]; !ok {
			t.Errorf("the document lacks %s", name)
		}
	}
	for name, ps := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("the document has %s, which is not served", name)
		}
		slices.Sort(ps)
		slices.Sort(want[name])
		if !slices.Equal(ps, want[name]) {
			t.Errorf("%s: the document has the parameters %q, the route %q", name, ps, want[name])
		}
	}
}

func params(d *document, list any) (names []string) {
	l, _ := list.([]any)
	for _, p := range l {
		m := p.(map[string]any)
		if ref, ok := m["$ref"].(string); ok {
			v, _ := d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
			m = v.(map[string]any)
		}
		names = append(names, m["in"].(string)+" "+m["name"].(string))
	}
	return names
}

// Every schema compiles, and names the members that the wire's type has.
func TestDocumentKnowsTheShapes(t *testing.T) {
	d := readDocument(t)
	schemas, _ := d.at("components", "schemas")
	for name := range schemas.(map[string]any) {
		if err := d.validate("/components/schemas/"+name, []byte("0")); err != nil && strings.HasPrefix(err.Error(), "compile") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, v := range map[string]any{
		"Server": wire.Server{}, "Error": wire.Error{}, "Spec": wire.Spec{}, "Exec": wire.Exec{}, "Detach": wire.Detach{},
		"Started": wire.Started{}, "Result": wire.Result{}, "Event": wire.Event{}, "Signal": wire.Signal{}, "Process": wire.Process{},
		"Processes": wire.Processes{}, "Wrote": wire.Wrote{}, "FileInfo": wire.FileInfo{}, "Entries": wire.Entries{}, "Sandboxes": wire.Sandboxes{},
		"Gone": sandbox.Gone{}, "Acquired": wire.Acquired{}, "Prune": wire.Prune{}, "Change": wire.Change{}, "Status": sandbox.Status{}, "News": wire.News{}, "Sandbox": sandbox.Info{},
		"Mount": sandbox.Mount{}, "Limits": sandbox.Limits{}, "Mkdir": wire.Mkdir{}, "Rename": wire.Rename{}, "Chmod": wire.Chmod{}, "Chown": wire.Chown{},
	} {
		props, _ := d.at("components", "schemas", name, "properties")
		got := slices.Sorted(maps.Keys(props.(map[string]any)))
		if want := fields(v); !slices.Equal(got, want) {
			t.Errorf("%s: the document has %q, the wire %q", name, got, want)
		}
	}
}

func TestDocumentIsServed(t *testing.T) {
	s := newServer(t)
	res := s.do(t, "GET", "/atoll/v1/openapi.yaml", nil, nil)
	b, _ := io.ReadAll(res.Body)
	if res.StatusCode != 200 || !bytes.Equal(b, native.OpenAPI()) {
		t.Errorf("got status %d and %d bytes", res.StatusCode, len(b))
	}
	var server wire.Server
	res = s.do(t, "GET", "/atoll/v1", nil, nil)
	if err := json.NewDecoder(res.Body).Decode(&server); err != nil || server.API != "v1" {
		t.Errorf("got %+v, %v", server, err)
	}
}
