package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// What a query says is what net/url reads in it, or an error that names it.
func FuzzQuery(f *testing.F) {
	f.Add("path=/a%ff&offset=-1&length=3")
	f.Add("path=%2e%2e%2f&mode=0644&parents=true&wait=1e3")
	f.Add("a;b=c")
	known := []string{"path", "offset", "length", "mode", "parents", "wait"}
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseQuery(raw, known)
		var errs []error
		if err == nil {
			_, e1 := q.integer("offset", 0)
			_, e2 := q.boolean("parents")
			_, e3 := q.seconds("wait", 0, maxWait)
			_, e4 := q.mode("mode")
			errs = []error{e1, e2, e3, e4}
			if want, _ := url.ParseQuery(raw); want.Get("path") != q["path"] {
				t.Errorf("%q: the path is %q, want %q", raw, q["path"], want.Get("path"))
			}
		} else {
			errs = []error{err}
		}
		for _, err := range errs {
			var e *sandbox.Error
			if err != nil && (!errors.As(err, &e) || e.Kind != sandbox.Invalid) {
				t.Errorf("%q: %v", raw, err)
			}
			if e != nil && len(e.Public()) > 1000 {
				t.Errorf("%q: an error of %d bytes", raw, len(e.Public()))
			}
		}
	})
}

// A Range header never leads outside of the file.
func FuzzRange(f *testing.F) {
	f.Add("bytes=0-", int64(10))
	f.Add("bytes=-5", int64(3))
	f.Add("bytes=9223372036854775806-9223372036854775807", int64(1))
	f.Fuzz(func(t *testing.T, h string, size int64) {
		if size < 0 {
			return
		}
		r, ok := parseRange(h)
		if !ok {
			return
		}
		if start, n := part(size, r); start < 0 || n < 0 || n > size || n > 0 && start+n > size {
			t.Errorf("%q of %d bytes: %d from %d", h, size, n, start)
		}
	})
}

// Whatever is asked, the answer is one of ours: no panic, no 500, an error in
// JSON.
func FuzzRequest(f *testing.F) {
	rt := memory.New(memory.Config{})
	sb, err := rt.Create(f.Context(), sandbox.Spec{})
	if err != nil {
		f.Fatal(err)
	}
	api := New(One(rt), Config{})
	box := sandboxes + "/" + string(sb.ID())
	for _, r := range routes {
		f.Add(r.Method, strings.ReplaceAll(r.Path, "{id}", string(sb.ID())), "path=/tmp/x", `{"args":["true"],"path":"/tmp/x","signal":"TERM"}`)
	}
	f.Add("GET", box+"/../"+string(sb.ID()), "", "")
	f.Fuzz(func(t *testing.T, method, path, query, in string) {
		u := &url.URL{Path: path, RawQuery: query}
		r, err := http.NewRequest(method, u.String(), strings.NewReader(in))
		if err != nil || !strings.HasPrefix(r.URL.Path, wire.Prefix+"/") || r.URL.Path == box && method == "DELETE" ||
			strings.HasSuffix(path, "pause") {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // for commands that do not end
		defer cancel()
		r = r.WithContext(ctx)
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if w.Code >= 400 {
			var e wire.Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || !e.Kind.Known() || e.Message == "" {
				t.Errorf("%s %s?%s: %d %q", method, path, query, w.Code, w.Body)
			}
		}
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %s?%s %q: %q", method, path, query, in, w.Body)
		}
	})
}

// An input hands on what it takes, in order, and never holds more than the
// window.
func TestInputWindow(t *testing.T) {
	granted := wire.Window
	in := newInput(func(n int) { granted += n })
	want := make([]byte, 3*wire.Window)
	for i := range want {
		want[i] = byte(i * 7 / 3)
	}
	var got []byte
	buf := make([]byte, 100<<10)
	for sent := 0; len(got) < len(want); {
		for n := min(wire.MaxChunk/3, len(want)-sent); n > 0 && sent+n <= granted; n = min(n, len(want)-sent) {
			if err := in.take(bytes.NewReader(want[sent:sent+n]), n); err != nil {
				t.Fatal(err)
			}
			sent += n
		}
		if held := sent - len(got); held > wire.Window {
			t.Fatalf("%d bytes are held", held)
		}
		n, err := in.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	if !bytes.Equal(got, want) {
		t.Error("what came out is not what went in")
	}
	if err := in.take(bytes.NewReader(make([]byte, wire.Window+1)), wire.Window+1); !errors.Is(err, wire.ErrFrame) {
		t.Errorf("too much was taken: %v", err)
	}
	in.finish()
	if n, err := in.Read(buf); n != 0 || err != io.EOF {
		t.Errorf("got %d, %v at the end", n, err)
	}
}
