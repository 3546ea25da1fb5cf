package image

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BenchmarkUnpack unpacks a layer of 5,000 files of 8 KiB, beside tar doing so.
func BenchmarkUnpack(b *testing.B) {
	var entries []entry
	text := noise(8 << 10)
	for i := range 5000 {
		entries = append(entries, file(fmt.Sprintf("usr/lib/d%d/f%d", i/50, i), text))
	}
	raw := pack(b, entries...)
	packed := squeeze(b, "gzip", raw)
	archive := filepath.Join(b.TempDir(), "layer.tar.gz")
	if err := os.WriteFile(archive, packed, 0o600); err != nil {
		b.Fatal(err)
	}
	bounds := Bounds{}
	if err := bounds.setDefaults(); err != nil {
		b.Fatal(err)
	}
	b.Run("atoll", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, _, _, err := unpack(b.Context(), bytes.NewReader(packed), tempDir(b), bounds); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tar and sync", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			dir := tempDir(b)
			if out, err := exec.CommandContext(b.Context(), "sh", "-c", `tar -xzf "$0" -C "$1" && sync -f "$1"`, archive, dir).CombinedOutput(); err != nil {
				b.Fatalf("%v %s", err, out)
			}
		}
	})
}
