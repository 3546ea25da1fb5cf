package client

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A daemon that says nothing any more is taken for dead, and the call ends.
func TestSilenceEndsEvents(t *testing.T) {
	dead := make(chan struct{}) // closed when the client has hung up
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for range 3 {
			io.WriteString(w, "{\"beat\":true}\n")
			rc.Flush()
		}
		io.WriteString(w, "{\"event\":{\"number\":7,\"kind\":\"made\"}}\n")
		rc.Flush()
		<-r.Context().Done()
		close(dead)
	}))
	defer srv.Close()
	c, err := New(Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.silence = time.Second
	var got []int64
	var last error
	for e, err := range c.Events(t.Context(), 0, true) {
		if last = err; err != nil {
			break
		}
		got = append(got, e.Number)
	}
	<-dead
	if len(got) != 1 || got[0] != 7 {
		t.Errorf("the events are %v", got)
	}
	if e := (*sandbox.Error)(nil); !errors.As(last, &e) || e.Kind != sandbox.Unavailable || e.Msg != "nothing is heard of the daemon any more" {
		t.Errorf("it ended with %v", last)
	}
}
