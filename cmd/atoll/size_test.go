package main

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1048576": 1 << 20, "1k": 1 << 10, "512m": 512 << 20, "512M": 512 << 20, "1g": 1 << 30, "2t": 2 << 40,
		"1.5g": 3 << 29, "512MiB": 512 << 20, "512mb": 512 << 20, "100b": 100, " 1m ": 1 << 20, "9223372036854775807": 1<<63 - 1,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "m", "-1", "+1", "1e3", "1.5", "1x", "1 m", "0x10", "1_000", "nan", "inf", "1..5m", "9223372036854775808", "8388608t", "9999999999999999999g", "mm", "1mm", "١m"} {
		if got, err := parseSize(text); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%q: got %d, %v, want an error", text, got, err)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1: "1", 1023: "1023", 1024: "1k", 1536: "1.5k", 512 << 20: "512m", 5 << 40: "5t"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	f.Add("1.5g")
	f.Add("512MiB")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseSize(text)
		if err == nil && n < 0 || err != nil && sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%q: got %d, %v", text, n, err)
		}
	})
}
