// Package memory is a sandbox.Runtime of maps and Go functions: the fake that
// the tests of everything above use instead of mocks. It keeps the whole
// contract, because package sandboxtest says so: output has back-pressure, a
// killed command takes its tree along, files are written atomically, links do
// not lead outside, sandboxes expire.
//
// A sandbox of this package is a small model of a Unix system. It has inodes,
// users, pipes, process groups, sessions, signals and terminals; its programs
// are Go functions ([Program]), among them a POSIX shell and as many of the
// usual small commands as tests want. A program's file lies in /bin, so that
// PATH, permissions and #! lines work as ever. Nothing inside reaches the
// host: a Mount shows a directory of a pretended host, which is empty at first
// and which all sandboxes of one Runtime that name the same source share.
//
// It runs under testing/synctest: it waits on nothing but sync.Cond, channels
// and timers, and starts no goroutine that outlives Close, except one that
// hangs in the Read of a Cmd.Stdin.
//
// What it is not: isolation of any kind from a Program that its user added,
// a measure of speed, or complete. It keeps the limits of processes and of
// disk, not those of memory and processor time. The sandboxes end with the
// Runtime.
package memory
