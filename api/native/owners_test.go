package native_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// tokens are those of the operator and of three owners.
var tokens = map[sandbox.Owner]sandbox.Secret{
	sandbox.Operator: token,
	"alice":          "e2b_a11ce0000000000000000000000000000000a11c",
	"alice/bot":      "e2b_b0700000000000000000000000000000000000b0",
	"bob":            "e2b_b0b00000000000000000000000000000000000b0",
}

// A house is a server of several owners.
type house struct {
	*server
	engine *engine.Engine
}

func newHouse(t *testing.T) *house {
	t.Helper()
	e := engineOver(t, memory.New(memory.Config{Programs: programs}))
	others := make(map[sandbox.Owner]sandbox.Secret)
	for o, s := range tokens {
		if o != sandbox.Operator {
			others[o] = s
		}
	}
	g, err := gate.New(gate.Config{Token: token, Owners: others})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{doc: readDocument(t)}
	s.api = native.New(func(o sandbox.Owner) sandbox.Runtime { return e.View(o, "native") }, native.Config{})
	s.Server = httptest.NewUnstartedServer(nil)
	s.Server.Config = gate.Server(s.doc.watch(t, g.Guard(s.api, s.api.Refuse, gate.Bearer)), nil)
	s.Server.Start()
	t.Cleanup(func() {
		s.api.Close()
		s.Server.Close()
		e.Close()
	})
	return &house{s, e}
}

// as returns a client of who.
func (h *house) as(t *testing.T, who sandbox.Owner) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Host: h.URL, Token: tokens[who]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request of who and returns its answer and the body.
func (h *house) ask(t *testing.T, who sandbox.Owner, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	res := h.do(t, method, path, in, append([]string{"Authorization", "Bearer " + tokens[who].Reveal()}, header...))
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// On every route that names a sandbox, its owner, who is above that and the
// operator get through. To everybody else it is as if it had never been.
func TestOwnersOnEveryRoute(t *testing.T) {
	h := newHouse(t)
	bodies := map[string]string{
		"/exec": `{"args":["true"]}`, "/processes": `{"args":["true"]}`, "/signal": `{"signal":"CONT"}`, "/resize": `{}`,
		"/mkdir": `{"path":"/tmp/d"}`, "/rename": `{"from":"/tmp/f","to":"/tmp/g"}`, "/chmod": `{"path":"/tmp/f","mode":"0600"}`, "/chown": `{"path":"/tmp/f","user":"0"}`,
	}
	owner := h.as(t, "alice/bot")
	for _, rt := range native.Routes() {
		if !strings.Contains(rt.Path, "{id}") {
			continue
		}
		for who, allowed := range map[sandbox.Owner]bool{sandbox.Operator: true, "alice": true, "alice/bot": true, "bob": false, "": false} {
			box, err := owner.Create(t.Context(), sandbox.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			if err := sandbox.WriteFile(t.Context(), box, "/tmp/f", nil); err != nil {
				t.Fatal(err)
			}
			pid, err := box.(sandbox.Detacher).StartDetached(t.Context(), sandbox.Cmd{Args: []string{"sleep", "3600"}}, sandbox.DetachOptions{Stdin: true})
			if err != nil {
				t.Fatal(err)
			}
			ask := func(id sandbox.ID) (*http.Response, string) {
				path := strings.NewReplacer("{id}", string(id), "{pid}", string(pid), "{port}", "80").Replace(rt.Path)
				if slices.Contains(rt.Query, "path") {
					path += "?path=/tmp/f"
				}
				if strings.HasSuffix(rt.Path, "/list") {
					path = strings.Replace(path, "/tmp/f", "/tmp", 1)
				}
				body := ""
				if rt.Method != "GET" && rt.Method != "DELETE" {
					body = "{}"
					for end, b := range bodies {
						if strings.HasSuffix(rt.Path, end) {
							body = b
						}
					}
				}
				if strings.HasSuffix(rt.Path, "/attach") { // it does not end by itself
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					defer cancel()
					res := h.doContext(t, ctx, rt.Method, path, nil, []string{"Authorization", "Bearer " + tokens[who].Reveal()})
					b, _ := io.ReadAll(res.Body)
					return res, string(b)
				}
				return h.ask(t, who, rt.Method, path, body)
			}
			res, body := ask(box.ID())
			switch s := res.StatusCode; {
			case who == "":
				if s != 401 {
					t.Errorf("%s %s without a token: status %d", rt.Method, rt.Path, s)
				}
			case allowed:
				// What the request needs may be missing, but not the sandbox.
				if s >= 500 && s != 503 && s != 501 || s == 401 || s == 403 || s == 404 {
					t.Errorf("%s %s as %s: status %d: %s", rt.Method, rt.Path, who, s, body)
				}
			default:
				none := sandbox.NewID()
				never, want := ask(none)
				plain := func(res *http.Response, body string, id sandbox.ID) string {
					body = strings.ReplaceAll(body, string(id), "ID")
					return strings.ReplaceAll(body, res.Header.Get(wire.HeaderRequest), "REQUEST")
				}
				if s != 404 || never.StatusCode != 404 || plain(res, body, box.ID()) != plain(never, want, none) || len(res.Header) != len(never.Header) {
					t.Errorf("%s %s as %s: status %d, %s; of one that never was: %d, %s", rt.Method, rt.Path, who, s, body, never.StatusCode, want)
				}
			}
			if _, err := h.engine.Open(t.Context(), box.ID()); err != nil && !allowed {
				t.Errorf("%s %s as %q: the sandbox is gone: %v", rt.Method, rt.Path, who, err)
			}
			if err := box.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Nor is anything told of what has been.
			if who == "bob" {
				if _, body := h.ask(t, who, "GET", "/atoll/v1/sandboxes/"+string(box.ID()), ""); strings.Contains(body, "gone") {
					t.Errorf("to bob is told what became of the sandbox of another: %s", body)
				}
			}
		}
	}
}

// What is not below a sandbox is each owner's own: lists, names, counts,
// events.
func TestOwnersDoNotMeet(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	alice, bot, bob, op := h.as(t, "alice"), h.as(t, "alice/bot"), h.as(t, "bob"), h.as(t, sandbox.Operator)
	spec := sandbox.Spec{Name: "chat 1", Labels: map[string]string{"l": "x"}}
	made := make(map[sandbox.Owner]sandbox.Sandbox)
	for o, c := range map[sandbox.Owner]*client.Client{"alice": alice, "alice/bot": bot, "bob": bob} {
		sb, fresh, err := c.Acquire(ctx, spec)
		if err != nil || !fresh {
			t.Fatalf("%s: made %v, %v", o, fresh, err)
		}
		if made[o] = sb; slices.ContainsFunc(slices.Collect(mapValues(made, o)), func(other sandbox.Sandbox) bool { return other.ID() == sb.ID() }) {
			t.Errorf("%s got the sandbox of another", o)
		}
	}
	for o, want := range map[*client.Client][]sandbox.Owner{alice: {"alice", "alice/bot"}, bot: {"alice/bot"}, bob: {"bob"}, op: {"alice", "alice/bot", "bob"}} {
		var got []sandbox.Owner
		for i, err := range o.List(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, i.Owner)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("listed are those of %q, want %q", got, want)
		}
		if s, err := o.Status(ctx); err != nil || s.Live != len(want) {
			t.Errorf("Status counts %d, %v, want %d", s.Live, err, len(want))
		}
		for e, err := range o.Events(ctx, 0, false) {
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(want, e.Owner) {
				t.Errorf("who sees %q is told of %+v", want, e)
			}
		}
	}
	if sb, err := bob.Lookup(ctx, "chat 1"); err != nil || sb.ID() != made["bob"].ID() {
		t.Errorf("bob's name leads him elsewhere: %v", err)
	}
	if _, err := op.Lookup(ctx, "chat 1"); !errors.Is(err, sandbox.NotExist) {
		t.Errorf("the operator has no such name, but: %v", err)
	}
	// An id is one for all, and a taken one tells no more than that.
	_, _, err := bob.Acquire(ctx, sandbox.Spec{ID: made["alice"].ID()})
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != sandbox.Conflict || e.Field != "id" || strings.Contains(err.Error(), "alice") {
		t.Errorf("Acquire of another's id: %v", err)
	}
	if gone, err := bob.Prune(ctx, sandbox.Prune{Labels: spec.Labels}); err != nil || len(gone) != 1 || gone[0].Owner != "bob" {
		t.Errorf("bob pruned %v, %v", gone, err)
	}
	if _, err := alice.Open(ctx, made["alice"].ID()); err != nil {
		t.Errorf("alice's is gone: %v", err)
	}
	// She is told why hers is gone, and he of none.
	if err := made["alice"].Remove(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = alice.Open(ctx, made["alice"].ID())
	var g *sandbox.Gone
	if !errors.As(err, &g) || g.Why != sandbox.Removed || g.By != "alice" {
		t.Errorf("alice is told %v", err)
	}
	g = nil
	if _, err = bob.Open(ctx, made["alice"].ID()); !errors.Is(err, sandbox.NotExist) || errors.As(err, &g) {
		t.Errorf("bob is told %v", err)
	}
}

func mapValues(m map[sandbox.Owner]sandbox.Sandbox, but sandbox.Owner) func(func(sandbox.Sandbox) bool) {
	return func(yield func(sandbox.Sandbox) bool) {
		for o, sb := range m {
			if o != but && !yield(sb) {
				return
			}
		}
	}
}

// An owner can neither call off the requests of another nor signal the
// processes that they wait for.
func TestOwnersCannotInterfere(t *testing.T) {
	h := newHouse(t)
	sb, err := h.as(t, "alice").Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	box := "/atoll/v1/sandboxes/" + string(sb.ID())
	const name = "abcdefghijklmnop"
	res := h.do(t, "POST", box+"/exec", strings.NewReader(`{"args":["sleep","3600"]}`),
		[]string{"Authorization", "Bearer " + tokens["alice"].Reveal(), wire.HeaderRequest, name, "Accept", wire.NDJSON})
	lines := json.NewDecoder(res.Body)
	var begun wire.Event
	if err := lines.Decode(&begun); err != nil || begun.Started == nil {
		t.Fatalf("got %+v, %v", begun, err)
	}
	pid := string(begun.Started.ID)

	for _, who := range []sandbox.Owner{"bob", "alice/bot", sandbox.Operator} {
		if res, body := h.ask(t, who, "DELETE", "/atoll/v1/requests/"+name, ""); res.StatusCode != 404 {
			t.Errorf("%s called off alice's request: %d %s", who, res.StatusCode, body)
		}
	}
	for _, who := range []sandbox.Owner{"bob", "alice/bot"} {
		if res, body := h.ask(t, who, "POST", box+"/processes/"+pid+"/signal", `{"signal":"KILL"}`); res.StatusCode != 404 {
			t.Errorf("%s signalled alice's process: %d %s", who, res.StatusCode, body)
		}
	}
	// Another's request may have the same name.
	if res, body := h.ask(t, "bob", "GET", "/atoll/v1", "", wire.HeaderRequest, name); res.StatusCode != 200 {
		t.Errorf("bob cannot use a name that alice uses: %d %s", res.StatusCode, body)
	}
	if res, body := h.ask(t, "alice", "DELETE", "/atoll/v1/requests/"+name, ""); res.StatusCode != 204 {
		t.Errorf("alice cannot call off her own request: %d %s", res.StatusCode, body)
	}
	var last wire.Event
	if err := lines.Decode(&last); err != nil || last.Error == nil || last.Error.Kind != sandbox.Unavailable {
		t.Errorf("the request ended with %+v, %v", last, err)
	}
}

// Both ends of a stream of events notice when the other is gone, and it tells
// of what it cannot go on with.
func TestEventsEnd(t *testing.T) {
	h := newHouse(t)
	op := h.as(t, sandbox.Operator)
	sb, err := op.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for e, err := range op.Events(ctx, 0, true) {
		if err != nil {
			t.Fatalf("the end of the context is told as %v", err)
		}
		if n++; e.Kind == sandbox.EventMade && e.Sandbox == sb.ID() {
			cancel()
		}
	}
	if n == 0 {
		t.Error("there was no event")
	}
	// A server that is about to end waits for what ends by itself alone.
	var got error
	for e, err := range op.Events(t.Context(), 0, true) {
		if got = err; err != nil {
			break
		}
		if e.Kind == sandbox.EventMade {
			h.api.Drain()
		}
	}
	if !errors.Is(got, sandbox.Unavailable) {
		t.Errorf("when the server drains, Events ends with %v", got)
	}
	for _, err := range op.Events(t.Context(), 0, false) {
		if err != nil {
			t.Errorf("then, what has happened is told with %v", err)
		}
	}
	if _, err := sb.Info(t.Context()); err != nil {
		t.Errorf("then, Info says %v", err)
	}
	h.api.Close()
	if _, err := sb.Info(t.Context()); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("when it has ended, Info says %v", err)
	}
}

// Where nobody keeps sandboxes, that is said.
func TestNoKeeper(t *testing.T) {
	s := newServer(t)
	sb, box := s.sandbox(t)
	ctx := t.Context()
	_, _, acquired := s.client.Acquire(ctx, sandbox.Spec{Name: "a"})
	_, lookedUp := s.client.Lookup(ctx, "a")
	_, status := s.client.Status(ctx)
	_, pruned := s.client.Prune(ctx, sandbox.Prune{})
	_, created := s.client.Create(ctx, sandbox.Spec{Name: "a"})
	var events error
	for _, events = range s.client.Events(ctx, 0, false) {
	}
	released := sb.(sandbox.Releaser).Release(ctx)
	for what, err := range map[string]error{"Acquire": acquired, "Lookup": lookedUp, "Status": status, "Prune": pruned, "Create": created, "Events": events, "Release": released} {
		if !errors.Is(err, sandbox.Unsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct{ method, path, body, field string }{
		{"GET", "/atoll/v1/lookup", "", "name"},
		{"GET", "/atoll/v1/events?follow=yes", "", "follow"},
		{"GET", "/atoll/v1/events?after=x", "", "after"},
		{"GET", box + "?peek=1", "", "peek"},
		{"POST", "/atoll/v1/prune", `{"unused":-1}`, "unused"},
		{"POST", "/atoll/v1/prune", `{"everything":true}`, "everything"},
		{"POST", "/atoll/v1/acquire", `{"nam":"x"}`, "nam"},
		{"POST", "/atoll/v1/acquire", `{"idle":"1h"}`, "idle"},
	} {
		var in io.Reader
		if c.body != "" {
			in = bytes.NewBufferString(c.body)
		}
		res := s.do(t, c.method, c.path, in, nil)
		if e := readError(t, res); res.StatusCode != 400 || e.Kind != sandbox.Invalid || e.Field != c.field {
			t.Errorf("%s %s %s: got %d %+v", c.method, c.path, c.body, res.StatusCode, e)
		}
	}
}
