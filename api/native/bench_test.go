package native_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
)

// plain is a sandbox that is none: commands and files of this machine, by the
// shortest way. What the API adds to that is what the benchmarks show.
type plain struct {
	sandbox.Runtime // nil: what is not here is not called
	dir             string
}

func (p plain) Open(context.Context, sandbox.ID) (sandbox.Sandbox, error) {
	return plainBox{dir: p.dir}, nil
}

type plainBox struct {
	sandbox.Sandbox
	dir string
}

func (plainBox) ID() sandbox.ID { return "abcdefghijklmnopqrst" }

func (plainBox) Info(context.Context) (sandbox.Info, error) {
	return sandbox.Info{ID: "abcdefghijklmnopqrst"}, nil
}

func (plainBox) Start(ctx context.Context, cmd sandbox.Cmd) (sandbox.Process, error) {
	c := exec.CommandContext(ctx, cmd.Args[0], cmd.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = cmd.Stdin, cmd.Stdout, cmd.Stderr
	return plainProcess{c: c}, c.Start()
}

func (b plainBox) Files() sandbox.Files { return plainFiles{dir: b.dir} }

type plainProcess struct {
	sandbox.Process
	c *exec.Cmd
}

func (plainProcess) ID() sandbox.ProcessID { return "abcdefgh" }
func (p plainProcess) PID() int            { return p.c.Process.Pid }
func (p plainProcess) Wait() (sandbox.Exit, error) {
	return sandbox.Exit{Reason: sandbox.Exited}, p.c.Wait()
}

type plainFiles struct {
	sandbox.Files
	dir string
}

func (f plainFiles) Open(_ context.Context, path string, _ sandbox.Range) (sandbox.File, error) {
	file, err := os.Open(filepath.Join(f.dir, path))
	return plainFile{file}, err
}

func (f plainFiles) Write(_ context.Context, path string, src io.Reader, _ sandbox.WriteOptions) (sandbox.FileInfo, error) {
	tmp, err := os.CreateTemp(f.dir, "")
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	if _, err := io.Copy(tmp, src); err != nil {
		return sandbox.FileInfo{}, err
	}
	tmp.Close()
	return sandbox.FileInfo{}, os.Rename(tmp.Name(), filepath.Join(f.dir, path))
}

// plainFile is a file that can be read and no more, as those of a guest are.
type plainFile struct{ f *os.File }

func (f plainFile) Read(p []byte) (int, error) { return f.f.Read(p) }
func (f plainFile) Close() error               { return f.f.Close() }

func (f plainFile) Info() sandbox.FileInfo {
	fi, _ := f.f.Stat()
	return sandbox.FileInfo{Size: fi.Size(), Time: fi.ModTime()}
}

func benchmark(b *testing.B) (string, sandbox.Sandbox) {
	g, _ := gate.New(gate.Config{Token: token})
	dir := b.TempDir()
	api := native.New(native.One(plain{dir: dir}), native.Config{})
	srv := httptest.NewServer(g.Guard(api, api.Refuse, gate.Bearer))
	c, err := client.New(client.Config{Host: srv.URL, Token: token})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(); api.Close(); srv.Close() })
	sb, err := c.Open(b.Context(), "abcdefghijklmnopqrst")
	if err != nil {
		b.Fatal(err)
	}
	return dir, sb
}

// plainServer serves h and returns a function that gets what it answers.
func plainServer(b *testing.B, h http.HandlerFunc) func(method string, body []byte) int64 {
	srv := httptest.NewServer(h)
	b.Cleanup(srv.Close)
	return func(method string, body []byte) int64 {
		req, _ := http.NewRequest(method, srv.URL, bytes.NewReader(body))
		res, err := srv.Client().Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer res.Body.Close()
		n, err := io.Copy(io.Discard, res.Body)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
}

func BenchmarkExec(b *testing.B) {
	b.Run("native", func(b *testing.B) {
		_, sb := benchmark(b)
		for b.Loop() {
			if _, err := sandbox.Capture(b.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"/bin/true"}}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		get := plainServer(b, func(w http.ResponseWriter, r *http.Request) {
			out, err := exec.CommandContext(r.Context(), "/bin/true").CombinedOutput()
			if err != nil {
				b.Error(err)
			}
			w.Write(out)
		})
		for b.Loop() {
			get("POST", nil)
		}
	})
}

func BenchmarkExecWithInput(b *testing.B) {
	_, sb := benchmark(b)
	for b.Loop() {
		in := struct{ io.Reader }{bytes.NewReader([]byte("hello"))}
		res, err := sandbox.Capture(b.Context(), sb, 1<<20, sandbox.Cmd{Args: []string{"/bin/cat"}, Stdin: in})
		if err != nil || string(res.Stdout) != "hello" {
			b.Fatal(res, err)
		}
	}
}

type count int64

func (c *count) Write(p []byte) (int, error) {
	*c += count(len(p))
	return len(p), nil
}

func BenchmarkOutput(b *testing.B) {
	const size = 256 << 20
	cmd := []string{"/usr/bin/head", "-c", "268435456", "/dev/zero"}
	b.Run("native", func(b *testing.B) {
		_, sb := benchmark(b)
		b.SetBytes(size)
		for b.Loop() {
			var n count
			if _, err := sandbox.Run(b.Context(), sb, sandbox.Cmd{Args: cmd, Stdout: &n}); err != nil || n != size {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		get := plainServer(b, func(w http.ResponseWriter, r *http.Request) {
			c := exec.CommandContext(r.Context(), cmd[0], cmd[1:]...)
			c.Stdout = w
			if err := c.Run(); err != nil {
				b.Error(err)
			}
		})
		b.SetBytes(size)
		for b.Loop() {
			if get("POST", nil) != size {
				b.Fatal("short")
			}
		}
	})
}

func BenchmarkUpload(b *testing.B) {
	data := make([]byte, 1<<20)
	b.Run("native", func(b *testing.B) {
		_, sb := benchmark(b)
		b.SetBytes(1 << 20)
		for b.Loop() {
			if err := sandbox.WriteFile(b.Context(), sb, "/f", data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		dir := b.TempDir()
		put := plainServer(b, func(w http.ResponseWriter, r *http.Request) {
			f, err := os.Create(filepath.Join(dir, "f"))
			if err != nil {
				b.Error(err)
			}
			defer f.Close()
			io.Copy(f, r.Body)
		})
		b.SetBytes(1 << 20)
		for b.Loop() {
			put("PUT", data)
		}
	})
}

func BenchmarkDownload(b *testing.B) {
	data := make([]byte, 1<<20)
	b.Run("native", func(b *testing.B) {
		dir, sb := benchmark(b)
		if err := os.WriteFile(filepath.Join(dir, "f"), data, 0o600); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(1 << 20)
		for b.Loop() {
			f, err := sb.Files().Open(b.Context(), "/f", sandbox.Range{})
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.Copy(io.Discard, f)
			f.Close()
			if err != nil || n != 1<<20 {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		name := filepath.Join(b.TempDir(), "f")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			b.Fatal(err)
		}
		get := plainServer(b, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) })
		b.SetBytes(1 << 20)
		for b.Loop() {
			get("GET", nil)
		}
	})
}
