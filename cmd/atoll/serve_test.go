package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// beginDaemon starts a daemon on a free port and returns where it is.
func beginDaemon(t *testing.T, args ...string) (*session, string) {
	t.Helper()
	d := begin(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	at, ok := strings.CutPrefix(d.line(t), "atoll: ready on ")
	if !ok {
		t.Fatal(d.errs.String())
	}
	return d, at
}

// at returns a command that uses the daemon d, not started.
func (d *session) at(t *testing.T, at string, args ...string) *session {
	s := prepare(t, args...)
	s.Env = append(s.Env, "ATOLL_HOST="+at, "ATOLL_STATE="+d.state)
	return s
}

// answer returns what a command that uses the daemon d prints.
func (d *session) answer(t *testing.T, at string, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	s := d.at(t, at, args...)
	s.Stderr = &errs
	out, err := s.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	return strings.TrimSuffix(string(out), "\n")
}

// TestDrain tells a daemon to end while a command runs over it.
func TestDrain(t *testing.T) {
	d, at := beginDaemon(t, "--drain", "10m")
	id := d.answer(t, at, "create")
	s := d.at(t, at, "exec", "-i", id, "--", "sh", "-c", "echo ready; cat")
	in, err := s.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil {
		t.Fatal(err)
	}
	d.Process.Signal(syscall.SIGTERM)
	// It takes no more connections, and what runs goes on.
	for {
		c, err := net.Dial("tcp", strings.TrimPrefix(at, "http://"))
		if err != nil {
			break
		}
		c.Close()
	}
	io.WriteString(in, "still there")
	in.Close()
	if b, err := io.ReadAll(out); string(b) != "still there" {
		t.Errorf("got %q, %v", b, err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("the command ended with %v", err)
	}
	d.end(t, 0)
}

func TestDrainHasAnEnd(t *testing.T) {
	d, at := beginDaemon(t, "--drain", "1ms")
	id := d.answer(t, at, "create")
	s := d.at(t, at, "exec", id, "--", "sh", "-c", "echo ready; exec sleep 100000")
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	d.Process.Signal(syscall.SIGTERM)
	d.end(t, 0)
	if s.Wait(); s.ProcessState.ExitCode() != exitOurs {
		t.Errorf("the command ended with %v, want status %d", s.ProcessState, exitOurs)
	}
}

func TestDaemonOnASocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "atoll.sock")
	at := "unix:" + path
	start := func() *session {
		d := begin(t, "serve", "--listen", at)
		if got, want := d.line(t), "atoll: ready on "+at; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		return d
	}
	d := start()
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	if got := d.answer(t, at, "ls", "-q"); got != "" {
		t.Errorf("got %q", got)
	}
	// Another daemon does not take it away.
	other := begin(t, "serve", "--listen", at)
	other.end(t, exitFailed)
	if !strings.Contains(other.errs.String(), "somebody listens") {
		t.Errorf("the other said %q", other.errs.String())
	}
	// What a killed one left is no obstacle.
	d.Process.Kill()
	d.Wait()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	d = start()
	d.Process.Signal(syscall.SIGTERM)
	d.end(t, 0)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) > 0 {
		t.Errorf("left %q", left)
	}
	// A file that is no socket is.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	other = begin(t, "serve", "--listen", at)
	other.end(t, exitUsage)
}

func TestDaemonKnowsItsNames(t *testing.T) {
	d, at := beginDaemon(t, "--host", "box.example.org")
	token, err := readToken(tokenFile(d.state), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path, host, token string
		want              int
	}{
		{"/healthz", "", "", 200},
		{"/atoll/v1/sandboxes", "", token.Reveal(), 200},
		{"/atoll/v1/sandboxes", "box.example.org", token.Reveal(), 200},
		{"/atoll/v1/sandboxes", "evil.example.org", token.Reveal(), 403},
		{"/atoll/v1/sandboxes", "", "", 401},
		{"/atoll/v1/sandboxes", "", "e2b_wrong", 401},
		{"/", "", "", 401},
	} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", at+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = tc.host
		if tc.token != "" {
			req.Header.Set("Authorization", "Bearer "+tc.token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.want {
			t.Errorf("%+v: got %d", tc, resp.StatusCode)
		}
	}
	d.Process.Signal(syscall.SIGTERM)
	d.end(t, 0)
	if strings.Contains(d.errs.String(), token.Reveal()) {
		t.Error("the token is in the log")
	}
}

func TestListenAll(t *testing.T) {
	for _, at := range []string{"", "nonsense", "unix:", "unix:relative", "127.0.0.1", "127.0.0.1:99999"} {
		all, err := listenAll([]string{"127.0.0.1:0", at})
		if err == nil {
			t.Errorf("%q is taken as an address: %v", at, all)
		}
	}
}
