package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A size is a number of bytes, written as 512m, 1.5g or 1048576. The letters
// k, m, g and t stand for powers of 1024, in either case, with or without B or
// iB behind them.
type size int64

// Set reads s.
func (z *size) Set(s string) error {
	n, err := parseSize(s)
	if err == nil {
		*z = size(n)
	}
	return err
}

func (z *size) String() string { return formatSize(int64(*z)) }

// Type is what the help calls the value.
func (z *size) Type() string { return "size" }

// parseSize reads a size.
func parseSize(s string) (int64, error) {
	wrong := sandbox.Errorf(sandbox.Invalid, "", "%q is not a size", s).WithHint("use bytes, or a number with k, m, g or t, such as 512m")
	low := strings.ToLower(strings.TrimSpace(s))
	low = strings.TrimSuffix(strings.TrimSuffix(low, "b"), "i")
	unit := 1.0
	if n := len(low); n > 0 {
		if i := strings.IndexByte("kmgt", low[n-1]); i >= 0 {
			unit = math.Pow(1024, float64(i+1))
			low = low[:n-1]
		}
	}
	if low == "" || strings.Trim(low, "0123456789.") != "" || unit == 1 && strings.Contains(low, ".") {
		return 0, wrong
	}
	if unit == 1 {
		n, err := strconv.ParseInt(low, 10, 64)
		if err != nil {
			return 0, wrong
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(low, 64)
	if err != nil || f*unit >= math.MaxInt64 {
		return 0, wrong
	}
	return int64(f * unit), nil
}

// formatSize writes n with at most one decimal, in the largest unit that
// leaves a number of at least one.
func formatSize(n int64) string {
	f, unit := float64(n), 0
	for ; f >= 1024 && unit < 4; unit++ {
		f /= 1024
	}
	text := strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0")
	return text + []string{"", "k", "m", "g", "t"}[unit]
}
