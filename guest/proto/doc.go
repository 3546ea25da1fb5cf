// Package proto has the messages of the guest's protocol and their encoding;
// what they mean stands in the comment of package guest. It is a package of
// its own because both ends need it and the guest program needs little else:
// encoding/json, net and fmt would cost it a third of its size and a tenth of
// the time it takes to start, which is part of making a sandbox.
package proto

// Environ is the environment to execute the guest program with. It spares the
// Go runtime to look for cgroup limits, and memory for processors that the
// guest has no use for. It is not what processes in the sandbox get.
func Environ() []string { return []string{"GOMAXPROCS=2", "GOGC=25"} }
