//go:build !linux

// Abuse tries things on Linux alone.
package main

func main() {}
