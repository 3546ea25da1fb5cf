package shell_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/tool/shell"
)

// BenchmarkRun measures a command that needs no process in a live shell.
func BenchmarkRun(b *testing.B) {
	for _, sh := range []string{"bash", "dash"} {
		b.Run(sh, func(b *testing.B) {
			opt := shell.Options{}
			if sh == "dash" {
				opt.Program = []string{"dash"}
			}
			s, err := shell.Open(b.Context(), open(b), opt)
			if err != nil {
				b.Skip(err)
			}
			defer s.Close()
			var all []time.Duration
			for b.Loop() {
				start := time.Now()
				r, err := s.Run(b.Context(), shell.Command{Text: "echo hi", Stdout: io.Discard, Stderr: io.Discard})
				if err != nil || r.ExitCode != 0 {
					b.Fatal(r, err)
				}
				all = append(all, time.Since(start))
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}
