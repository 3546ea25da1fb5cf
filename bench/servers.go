package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/wire/native"
)

// hc asks both servers.
var hc = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10}}

// A caller sends requests to one server.
type caller struct{ base, token string }

// do sends a request and returns an answer of status 2xx, or an error that
// has what the server said. A body that is not bytes or nil is sent as JSON.
func (c caller) do(ctx context.Context, method, path, accept string, body any) (*http.Response, error) {
	var r io.Reader
	kind := native.JSON
	switch b := body.(type) {
	case nil:
	case []byte:
		r, kind = bytes.NewReader(b), native.Bytes
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return nil, err
	}
	if r != nil {
		req.Header.Set("Content-Type", kind)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return nil, &refusal{method + " " + path, resp.StatusCode, string(bytes.TrimSpace(said))}
	}
	return resp, nil
}

// A refusal is an answer whose status is not 2xx.
type refusal struct {
	asked  string
	status int
	said   string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%s: %d %s: %s", r.asked, r.status, http.StatusText(r.status), r.said)
}

// refused reports whether err is an answer with this status.
func refused(err error, status int) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == status
}

// ask does a request whose answer is JSON, into out unless that is nil.
func (c caller) ask(ctx context.Context, method, path string, body, out any) error {
	resp, err := c.do(ctx, method, path, native.JSON, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(b, out)
}

// fetch reads a body of bytes that has to be want.
func (c caller) fetch(ctx context.Context, path string, want []byte) error {
	resp, err := c.do(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got := make([]byte, len(want)+1)
	n, err := io.ReadFull(resp.Body, got)
	if err != io.ErrUnexpectedEOF {
		return fmt.Errorf("GET %s: %d bytes came, not %d: %v", path, n, len(want), err)
	}
	if !bytes.Equal(got[:n], want) {
		return fmt.Errorf("GET %s: other bytes came than were sent", path)
	}
	return nil
}

// A plainServer is the process that has the plain handlers.
type plainServer struct {
	caller
	cmd *exec.Cmd
	in  io.Closer
}

// startPlain starts this program once more, as the plain handlers.
func startPlain(ctx context.Context) (*plainServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-plain")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is ours to handle
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &plainServer{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	p.base = "http://" + strings.TrimSpace(line)
	return p, nil
}

func (p *plainServer) stop() error {
	p.in.Close()
	return p.cmd.Wait()
}

// timedExec runs a command and returns how long the answer took.
func (p *plainServer) timedExec(ctx context.Context, args ...string) (time.Duration, error) {
	start := time.Now()
	var a plainAnswer
	err := p.ask(ctx, http.MethodPost, "/exec", map[string]any{"args": args}, &a)
	if err == nil && a.Code != 0 {
		err = fmt.Errorf("%s ended with code %d: %s", args[0], a.Code, a.Stderr)
	}
	return time.Since(start), err
}

// stream runs a command and returns how many bytes it wrote.
func (p *plainServer) stream(ctx context.Context, args ...string) (int64, error) {
	resp, err := p.do(ctx, http.MethodPost, "/stream", "", map[string]any{"args": args})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(io.Discard, onlyReader{resp.Body}, make([]byte, 256<<10))
	if code := resp.Trailer.Get("Exit-Code"); err == nil && code != "0" {
		err = fmt.Errorf("%s ended with code %q", args[0], code)
	}
	return n, err
}

func (p *plainServer) upload(ctx context.Context, path string, data []byte) error {
	return p.ask(ctx, http.MethodPut, "/file?path="+url.QueryEscape(path), data, nil)
}

func (p *plainServer) download(ctx context.Context, path string, want []byte) error {
	return p.fetch(ctx, "/file?path="+url.QueryEscape(path), want)
}

// onlyReader hides all of a reader but Read.
type onlyReader struct{ io.Reader }

// A spec is what the benchmark asks of a sandbox.
type spec struct {
	image      string // "" is host
	noCPULimit bool   // where several commands run at once, as on the plain side
}

// A daemon is a running atoll.
type daemon struct {
	caller
	cmd   *exec.Cmd
	log   string // its standard error's file
	ended chan error

	mu  sync.Mutex
	ids []string // of all sandboxes that were ever made

	stopped bool
	left    []string
}

// noPool is the configuration of a daemon that makes every sandbox when it is
// asked for.
const noPool = "[warm]\nmax = 0\n"

// startDaemon starts program on a free port, with a folder for its state, and
// with its log and its configuration, in TOML, in files whose names are that
// of dir and a suffix. The machine's own configuration is not read.
func startDaemon(ctx context.Context, program, backend, dir, state, config string) (*daemon, error) {
	if !exists(program) {
		return nil, fmt.Errorf("there is no %s: run make build first, or name it with -atoll", program)
	}
	d := &daemon{log: dir + ".log", ended: make(chan error, 1)}
	if err := os.WriteFile(dir+".toml", []byte(config), 0o600); err != nil {
		return nil, err
	}
	d.token = "e2b_" + fmt.Sprintf("%x", randomBytes(20))
	log, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.cmd = exec.Command(program, "serve", "--config", dir+".toml", "--listen", "127.0.0.1:0", "--state", state, "--backend", backend, "--allow-image", "/", "--remove-on-exit")
	d.cmd.Env = append(os.Environ(), "ATOLL_TOKEN="+d.token)
	d.cmd.Stderr = log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			if _, address, ok := strings.Cut(s.Text(), "ready on "); ok {
				ready <- strings.TrimSpace(address)
			}
		}
	}()
	go func() { d.ended <- d.cmd.Wait() }()
	select {
	case d.base = <-ready:
		return d, nil
	case err := <-d.ended:
		d.stopped = true
		return nil, fmt.Errorf("%s serve ended: %v%s", program, err, d.lastWords())
	case <-ctx.Done():
		d.stop()
		return nil, ctx.Err()
	case <-time.After(20 * time.Second):
		d.stop()
		return nil, fmt.Errorf("%s serve was not ready after 20 s%s", program, d.lastWords())
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

// lastWords returns the end of the daemon's log, fit to be appended to an
// error.
func (d *daemon) lastWords() string {
	b, _ := os.ReadFile(d.log)
	if len(b) == 0 {
		return ""
	}
	return "\nthe daemon's log ends with:\n" + string(b[max(0, len(b)-2000):])
}

// wanted returns what is asked for.
func (s spec) wanted() native.Spec {
	want := native.Spec{Image: s.image, Limits: sandbox.Limits{Memory: limitMemory, CPU: limitCPU, PIDs: limitPIDs}}
	if s.noCPULimit {
		want.Limits.CPU = 0
	}
	return want
}

func (d *daemon) create(ctx context.Context, s spec) (string, error) {
	var info struct{ ID string }
	if err := d.ask(ctx, http.MethodPost, native.Prefix+"/sandboxes", s.wanted(), &info); err != nil {
		return "", err
	}
	d.made(info.ID)
	return info.ID, nil
}

func (d *daemon) made(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids = append(d.ids, id)
}

// acquire returns the sandbox with this name, and makes it if there is none.
func (d *daemon) acquire(ctx context.Context, name string, s spec) (string, error) {
	want := s.wanted()
	want.Name = name
	var got native.Acquired
	if err := d.ask(ctx, http.MethodPost, native.Prefix+"/acquire", want, &got); err != nil {
		return "", err
	}
	id := string(got.Sandbox.ID)
	if got.Made {
		d.made(id)
	}
	return id, nil
}

func (d *daemon) release(ctx context.Context, id string) error {
	return d.ask(ctx, http.MethodPost, native.Prefix+"/sandboxes/"+id+"/release", nil, nil)
}

func (d *daemon) status(ctx context.Context) (s sandbox.Status, err error) {
	err = d.ask(ctx, http.MethodGet, native.Prefix+"/status", nil, &s)
	return s, err
}

func (d *daemon) remove(ctx context.Context, id string) error {
	return d.ask(ctx, http.MethodDelete, native.Prefix+"/sandboxes/"+id, nil, nil)
}

// timedExec runs a command and returns how long the whole answer took.
func (d *daemon) timedExec(ctx context.Context, id string, args ...string) (time.Duration, error) {
	start := time.Now()
	var r native.Result
	err := d.ask(ctx, http.MethodPost, native.Prefix+"/sandboxes/"+id+"/exec", native.Exec{Cmd: native.Cmd{Args: native.Texts(args)}}, &r)
	if err == nil && !r.Exit.Success() {
		err = fmt.Errorf("%s ended with %+v: %s", args[0], r.Exit, r.Stderr)
	}
	return time.Since(start), err
}

// stream runs a command and returns how many bytes it wrote.
func (d *daemon) stream(ctx context.Context, id string, args ...string) (int64, error) {
	resp, err := d.do(ctx, http.MethodPost, native.Prefix+"/sandboxes/"+id+"/exec", native.Frames, native.Exec{Cmd: native.Cmd{Args: native.Texts(args)}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	frames := native.NewFrameReader(bufio.NewReaderSize(resp.Body, 256<<10))
	buf := make([]byte, 256<<10)
	var total int64
	for {
		kind, _, err := frames.Next()
		if err != nil {
			return total, fmt.Errorf("the stream ended early: %w", err)
		}
		switch kind {
		case native.FrameStdout:
			n, err := io.CopyBuffer(io.Discard, onlyReader{frames}, buf)
			total += n
			if err != nil {
				return total, err
			}
		case native.FrameExit:
			var exit sandbox.Exit
			if err := frames.JSON(&exit); err != nil {
				return total, err
			}
			if !exit.Success() {
				return total, fmt.Errorf("%s ended with %+v", args[0], exit)
			}
			return total, nil
		case native.FrameError:
			b, err := frames.Payload()
			return total, errors.Join(err, errors.New(string(b)))
		}
	}
}

func (d *daemon) file(id, path string) string {
	return native.Prefix + "/sandboxes/" + id + "/files?path=" + url.QueryEscape(path)
}

func (d *daemon) upload(ctx context.Context, id, path string, data []byte) error {
	return d.ask(ctx, http.MethodPut, d.file(id, path), data, nil)
}

func (d *daemon) download(ctx context.Context, id, path string, want []byte) error {
	return d.fetch(ctx, d.file(id, path), want)
}

// resetPeak makes the kernel forget the daemon's largest size and returns the
// size now, in KiB.
func (d *daemon) resetPeak() (int64, error) {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.pid()), []byte("5"), 0); err != nil {
		return 0, err
	}
	return d.peak()
}

// peak returns the daemon's largest size, in KiB.
func (d *daemon) peak() (int64, error) {
	m := figures(fmt.Sprintf("/proc/%d/status", d.pid()))
	if m["VmHWM"] == 0 {
		return 0, errors.New("the daemon has no VmHWM")
	}
	return m["VmHWM"], nil
}

// stop ends the daemon, which removes its sandboxes, and returns what there
// still is of those that it ever made. A second call does nothing.
func (d *daemon) stop() ([]string, error) {
	if d.stopped {
		return d.left, nil
	}
	d.stopped = true
	children := d.children()
	d.cmd.Process.Signal(syscall.SIGTERM)
	var err error
	select {
	case err = <-d.ended:
		if err != nil {
			err = fmt.Errorf("the daemon ended: %w%s", err, d.lastWords())
		}
	case <-time.After(60 * time.Second):
		d.cmd.Process.Kill()
		<-d.ended
		err = fmt.Errorf("the daemon did not end within a minute of SIGTERM%s", d.lastWords())
	}
	now := firsts()
	for pid := range children {
		if now[pid] {
			d.left = append(d.left, fmt.Sprintf("the guest %d", pid))
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	d.left = append(d.left, traces(d.ids)...)
	return d.left, err
}

// stopAfter stops the daemon after a measurement that ended with err, to which
// it appends what the daemon said.
func (d *daemon) stopAfter(err error) error {
	if err != nil {
		err = fmt.Errorf("%w%s", err, d.lastWords())
	}
	_, e := d.stop()
	return errors.Join(err, e)
}

// children returns the guests that the daemon has started.
func (d *daemon) children() map[int]bool {
	all := firsts()
	for pid := range all {
		if figures(fmt.Sprintf("/proc/%d/status", pid))["PPid"] != int64(d.pid()) {
			delete(all, pid)
		}
	}
	return all
}

// traces returns the cgroups and the mounts whose path has one of the ids.
func traces(ids []string) []string {
	known := make(map[string]bool, len(ids))
	for _, id := range ids {
		known[id] = true
	}
	ours := func(path string) bool {
		for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '.' || r == '-' || r == ' ' }) {
			if known[part] {
				return true
			}
		}
		return false
	}
	var found []string
	filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && ours(path) {
			found = append(found, "the cgroup "+path)
		}
		return nil
	})
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if ours(line) {
			found = append(found, "the mount "+strings.TrimSpace(line))
		}
	}
	return found
}
