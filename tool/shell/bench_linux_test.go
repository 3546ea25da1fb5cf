package shell_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/shell"
)

// BenchmarkRun measures a command that needs no process, in a live shell of
// each kind.
func BenchmarkRun(b *testing.B) {
	for _, sh := range shells {
		b.Run(sh.name, func(b *testing.B) { measure(b, open(b), sh.program) })
	}
}

func measure(b *testing.B, sb sandbox.Sandbox, program []string) {
	s, err := shell.Open(b.Context(), sb, shell.Options{Program: program})
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
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
}
