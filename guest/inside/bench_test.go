package inside_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/atoll-run/atoll/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// BenchmarkExec runs a program that does nothing, over both kinds of
// connection, beside the same by os/exec.
func BenchmarkExec(b *testing.B) {
	b.Run("os-exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("os-exec-captured", func(b *testing.B) {
		for b.Loop() {
			var out, err bytes.Buffer
			c := exec.Command("/bin/true")
			c.Stdout, c.Stderr = &out, &err
			if err := c.Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, mode := range modes {
		c := start(b, mode, b.TempDir(), guest.Options{})
		for _, captured := range []bool{false, true} {
			name := mode
			if captured {
				name += "-captured"
			}
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					cmd := sandbox.Cmd{Args: []string{"/bin/true"}}
					if captured {
						cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, io.Discard
					}
					p, err := c.Start(b.Context(), cmd)
					if err != nil {
						b.Fatal(err)
					}
					if x, err := p.Wait(); err != nil || !x.Success() {
						b.Fatal(x, err)
					}
				}
			})
		}
	}
}

// BenchmarkOutput is how fast a process's output comes through.
func BenchmarkOutput(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode, func(b *testing.B) {
			c := start(b, mode, b.TempDir(), guest.Options{})
			const size = 256 << 20
			b.SetBytes(size)
			for b.Loop() {
				p, err := c.Start(b.Context(), sandbox.Cmd{Args: []string{"head", "-c", "268435456", "/dev/zero"}, Stdout: io.Discard})
				if err != nil {
					b.Fatal(err)
				}
				if x, err := p.Wait(); err != nil || !x.Success() {
					b.Fatal(x, err)
				}
			}
		})
	}
}

// BenchmarkFile writes and reads 1 MiB.
func BenchmarkFile(b *testing.B) {
	data := make([]byte, 1<<20)
	for _, mode := range modes {
		c := start(b, mode, b.TempDir(), guest.Options{})
		name := b.TempDir() + "/f"
		b.Run(mode+"/write", func(b *testing.B) {
			for b.Loop() {
				if _, err := c.Files().Write(b.Context(), name, bytes.NewReader(data), sandbox.WriteOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(mode+"/read", func(b *testing.B) {
			for b.Loop() {
				f, err := c.Files().Open(b.Context(), name, sandbox.Range{})
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, f); n != 1<<20 || err != nil {
					b.Fatal(n, err)
				}
				f.Close()
			}
		})
	}
	name := b.TempDir() + "/f"
	b.Run("os/write", func(b *testing.B) {
		for b.Loop() {
			if err := os.WriteFile(name, data, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("os/read", func(b *testing.B) {
		for b.Loop() {
			if _, err := os.ReadFile(name); err != nil {
				b.Fatal(err)
			}
		}
	})
}
