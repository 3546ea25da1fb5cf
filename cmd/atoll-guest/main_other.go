//go:build !linux

// Atoll-guest runs inside sandboxes, on Linux alone.
package main

import "os"

func main() {
	os.Stderr.WriteString("atoll-guest: it runs on Linux alone\n")
	os.Exit(1)
}
