package native

import (
	"bufio"
	"context"
	"iter"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// quiet is a Runtime in which nothing happens.
type quiet struct{ sandbox.Runtime }

func (quiet) Status(context.Context) (sandbox.Status, error) { return sandbox.Status{}, nil }
func (quiet) Prune(context.Context, sandbox.Prune) ([]sandbox.Info, error) {
	return nil, nil
}
func (quiet) Events(ctx context.Context, _ int64, follow bool) iter.Seq2[sandbox.Event, error] {
	return func(func(sandbox.Event, error) bool) {
		if follow {
			<-ctx.Done()
		}
	}
}

// Where nothing happens, there are beats; and who hangs up ends the call.
func TestEventsBeat(t *testing.T) {
	api := New(One(quiet{}), Config{})
	api.beat = time.Millisecond
	srv := httptest.NewServer(api)
	defer srv.Close()
	res, err := srv.Client().Get(srv.URL + "/atoll/v1/events?follow=true")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(res.Body)
	for range 3 {
		if !lines.Scan() || lines.Text() != `{"beat":true}` {
			t.Fatalf("got %q, %v", lines.Text(), lines.Err())
		}
	}
	res.Body.Close()
	api.busy.Wait() // the call ends
	if res, err = srv.Client().Get(srv.URL + "/atoll/v1/events"); err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("got %+v, %v", res, err)
	}
	res.Body.Close()
	// Once the API is closed, such a stream tells so in its last line.
	if res, err = srv.Client().Get(srv.URL + "/atoll/v1/events?follow=true"); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines = bufio.NewScanner(res.Body)
	lines.Scan()
	api.Close()
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	if lines.Err() != nil || last == `{"beat":true}` {
		t.Errorf("the last line is %q, %v", last, lines.Err())
	}
}
