// Package e2e has no code of its own: its tests try whole stacks, from the
// client down to the kernel, and the real programs.
package e2e
