// Package job runs processes that outlive the request that started them, over
// any sandbox whose backend can keep such (a [sandbox.Detacher]): what
// protocols call a managed process, a background command, a process to connect
// to, an asynchronous execution. It gives them names, bounds and a retention,
// tells how they are, hands out their output by cursor, and relays their input
// and output to one attached reader at a time.
//
// What has to survive the daemon lives with the process, inside: its name, its
// output, how it ended. A [Table] remembers only what may be lost: who is
// attached, where the last reader stopped, the words of a command in full. A
// Table that was just made over a sandbox full of jobs knows them all.
//
// The Table has no goroutines and no timers, and so needs no closing: what has
// been ended for longer than the retention is gone because whoever looks
// forgets it first.
//
// What this package is not: it does not slow a process whose output nobody
// reads. Output goes to a ring, and who comes too late for a part of it is told
// how much that was. A command that its caller waits for, and that has to lose
// nothing, is a [sandbox.Sandbox.Start].
package job
