package inside_test

import (
	"bytes"
	"io"
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
