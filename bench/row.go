package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// A Row is one figure of the table, beside what it is compared with.
type Row struct {
	Row  string `json:"row"`
	Unit string `json:"unit"` // ms, µs, MB/s, per s, MiB, KiB, count

	// N is how many samples there are, over all rounds.
	N int `json:"n"`

	// P50 and P99 are percentiles of each round, of which the median is
	// taken. Where more is better (MB/s, per s) a round is one sample: P50 is
	// the median of the rounds and P99 the worst.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`

	// Against names what stands beside the row, "" if nothing does. Its
	// figures were taken in the same rounds.
	Against    string  `json:"against"`
	AgainstP50 float64 `json:"against_p50,omitempty"`
	AgainstP99 float64 `json:"against_p99,omitempty"`

	// Ratio is P50 over AgainstP50, or P99 over AgainstP99 where the row's
	// name says so; nil where nothing is compared.
	Ratio *float64 `json:"ratio"`

	// Promise is what the design promises of this row, "" if nothing;
	// Verdict is "met", "missed" or "".
	Promise string `json:"promise,omitempty"`
	Verdict string `json:"verdict,omitempty"`

	onP99 bool // Ratio is that of the 99th percentiles
}

// against sets what the row stands beside.
func (r Row) against(name string, p50, p99 float64) Row {
	r.Against, r.AgainstP50, r.AgainstP99 = name, p50, p99
	ratio := r.P50 / p50
	if r.onP99 {
		ratio = r.P99 / p99
	}
	if !math.IsNaN(ratio) && !math.IsInf(ratio, 0) {
		r.Ratio = &ratio
	}
	return r
}

// promise sets the promise and whether it is kept.
func (r Row) promise(kept bool, format string, args ...any) Row {
	r.Promise, r.Verdict = fmt.Sprintf(format, args...), "missed"
	if kept {
		r.Verdict = "met"
	}
	return r
}

// atMost promises that the ratio is at most most. Without a ratio nothing was
// measured, and a promise is missed.
func (r Row) atMost(most float64) Row {
	return r.promise(r.Ratio != nil && *r.Ratio <= most, "≤ %.2g ×", most)
}

// lessThan promises that the ratio is less than most.
func (r Row) lessThan(most float64) Row {
	return r.promise(r.Ratio != nil && *r.Ratio < most, "< %.2g ×", most)
}

// number writes a figure with three digits that mean something.
func number(f float64) string {
	switch a := math.Abs(f); {
	case f == math.Trunc(f) && a < 1e6:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case a >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(f, 'f', 2, 64)
	}
	return strconv.FormatFloat(f, 'f', 3, 64)
}

// printTable writes the rows for people.
func printTable(w io.Writer, rows []Row) error {
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\tn\tp50\tp99\tunit\tagainst\tp50\tp99\tratio\tpromise\tverdict")
	for _, r := range rows {
		against, p50, p99, ratio := "–", "", "", ""
		if r.Against != "" {
			against, p50, p99 = r.Against, number(r.AgainstP50), number(r.AgainstP99)
		}
		if r.Ratio != nil {
			ratio = fmt.Sprintf("%.2f", *r.Ratio)
		}
		cells := []string{r.Row, strconv.Itoa(r.N), number(r.P50), number(r.P99), r.Unit, against, p50, p99, ratio, r.Promise, r.Verdict}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	t.Flush()
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON stores the rows as a JSON array.
func writeJSON(path string, rows []Row) error {
	b, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
