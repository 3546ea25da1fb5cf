package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A contestant does one piece of work and says how long the part of it took
// that counts. What it does before and after, such as removing a sandbox, is
// its own business.
type contestant struct {
	name string
	once func(context.Context) (time.Duration, error)
}

// A result is what a contestant did in a race: its samples in milliseconds,
// sorted, per round.
type result struct {
	name   string
	rounds [][]float64
}

// race lets the contestants work in turns, A B C, B C A, C A B, so that
// whatever else the machine does hits all alike and nobody always follows the
// same one. Before the first round each works warm times unmeasured.
func race(ctx context.Context, rounds, n, warm int, all ...contestant) ([]result, error) {
	results := make([]result, len(all))
	for i, c := range all {
		results[i].name = c.name
		for range warm {
			if _, err := c.once(ctx); err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	for range rounds {
		round := make([][]float64, len(all))
		for k := range n {
			for i := range all {
				who := (k + i) % len(all)
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				d, err := all[who].once(ctx)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", all[who].name, err)
				}
				round[who] = append(round[who], ms(d))
			}
		}
		for i := range all {
			slices.Sort(round[i])
			results[i].rounds = append(results[i].rounds, round[i])
		}
	}
	return results, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// n returns how many samples there are.
func (r result) n() int {
	n := 0
	for _, s := range r.rounds {
		n += len(s)
	}
	return n
}

// at returns the median over the rounds of their q-quantile.
func (r result) at(q float64) float64 {
	per := make([]float64, 0, len(r.rounds))
	for _, s := range r.rounds {
		per = append(per, quantile(s, q))
	}
	slices.Sort(per)
	return quantile(per, 0.5)
}

// row makes a row in milliseconds of r.
func (r result) row(name string) Row {
	return Row{Row: name, Unit: "ms", N: r.n(), P50: r.at(0.5), P99: r.at(0.99)}
}

// beside makes the row of r's median against that of other.
func (r result) beside(name string, other result) Row {
	return r.row(name).against(other.name, other.at(0.5), other.at(0.99))
}

// besideP99 makes the row whose ratio is that of the 99th percentiles.
func (r result) besideP99(name string, other result) Row {
	row := r.row(name)
	row.onP99 = true
	return row.against(other.name, other.at(0.5), other.at(0.99))
}

// longer makes the row of how much longer r took than other, in microseconds:
// the medians over the rounds of the differences of their quantiles. Beside it
// is what other took.
func (r result) longer(name string, other result) Row {
	at := func(q float64) float64 {
		var per []float64
		for i := range r.rounds {
			per = append(per, 1000*(quantile(r.rounds[i], q)-quantile(other.rounds[i], q)))
		}
		slices.Sort(per)
		return quantile(per, 0.5)
	}
	return Row{Row: name, Unit: "µs", N: r.n(), P50: at(0.5), P99: at(0.99)}.against(other.name, 1000*other.at(0.5), 1000*other.at(0.99))
}

// micros makes a row in microseconds of r.
func (r result) micros(name string) Row {
	return Row{Row: name, Unit: "µs", N: r.n(), P50: 1000 * r.at(0.5), P99: 1000 * r.at(0.99)}
}

// quantile returns the smallest of the sorted samples that at least the part q
// of them do not exceed; 0 if there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// A rate is a figure of which more is better, one sample per round.
type rate struct {
	name   string
	rounds []float64
}

// row makes a row of r: the median of the rounds, and the worst.
func (r rate) row(name, unit string) Row {
	s := slices.Sorted(slices.Values(r.rounds))
	return Row{Row: name, Unit: unit, N: len(s), P50: quantile(s, 0.5), P99: quantile(s, 0)}
}

// beside makes the row of r's median against that of other.
func (r rate) beside(name, unit string, other rate) Row {
	o := other.row("", unit)
	return r.row(name, unit).against(other.name, o.P50, o.P99)
}
