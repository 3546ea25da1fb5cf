package client_test

import (
	"net/http/httptest"
	"testing"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
)

const token = "e2b_0123456789abcdef0123456789abcdef01234567"

// serve serves rt for the length of the test and returns a client of it.
func serve(t *testing.T, rt sandbox.Runtime) *client.Client {
	t.Helper()
	g, err := gate.New(gate.Config{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	api := native.New(rt, native.Config{Version: "test"})
	srv := httptest.NewUnstartedServer(g.Guard(api, api.Refuse, gate.Bearer))
	srv.Config = gate.Server(srv.Config.Handler, nil)
	srv.Start()
	c, err := client.New(client.Config{Host: srv.URL, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		api.Close()
		srv.Close()
	})
	return c
}

func TestSmoke(t *testing.T) {
	rt := memory.New(memory.Config{})
	defer rt.Close()
	c := serve(t, rt)
	sb, err := c.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		res, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"sh", "-c", "echo hi; echo lo >&2; exit 3"}})
		t.Logf("%+v %v", res, err)
	}
	if err := sandbox.WriteFile(t.Context(), sb, "/tmp/a\xff", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	for fi, err := range sb.Files().List(t.Context(), "/tmp") {
		t.Logf("%+v %v", fi, err)
	}
	b, err := sandbox.ReadFile(t.Context(), sb, "/tmp/a\xff", 10)
	t.Logf("%s %v", b, err)
	info, err := sb.Info(t.Context())
	t.Logf("%+v %v", info, err)
	_, err = sb.Start(t.Context(), sandbox.Cmd{Args: []string{"nosuch"}})
	t.Logf("%v", err)
}
