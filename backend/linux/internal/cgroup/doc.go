// Package cgroup makes the control groups of sandboxes, in whichever hierarchy
// the host has: version 2 (Linux 4.5; its limits of memory, pids and CPU), one
// version 1 hierarchy per controller, or both at once. It bounds, counts,
// kills, freezes and removes. It decides nothing about which limits are
// wanted, and touches no group that it did not make, but for writing
// "+memory +pids +cpu" where children of ours need it.
//
// # Where groups are
//
// As root the group of a sandbox is /atoll/ID below the mount point of each
// hierarchy. Without root it is a child of the daemon's own version 2 group,
// where that was delegated (systemd's Delegate=yes); the daemon then moves
// itself to the child "daemon", because a group with processes of its own
// cannot give controllers to its children. Version 1 cannot be delegated
// safely and serves root alone.
//
// # What is in a group
//
// The guest, process 1 of the sandbox, stays outside of the limits: a Go
// program cannot live where it may fail to make a thread. What it starts is
// inside.
//
// In version 2 a sandbox has three groups:
//
//	ID        the guest is cloned into it (CLONE_INTO_CGROUP, Linux 5.7), so that a cgroup
//	          namespace made there has it as its root; afterwards it holds no process
//	ID/guest  the guest, moved there by itself; where version 2 has no controller
//	          to give it stays in ID, because moving costs milliseconds
//	ID/run    all else, with the limits; the guest clones children into it
//
// In version 1 it has one group per controller, with the limits, which one
// thread of the guest joins, the one that starts processes. They inherit it.
// The limit of pids is one higher there, for that thread. It must not be the
// first thread of its process: what that one allocates is the process's, and
// the kernel would kill the guest when the sandbox wants memory.
//
// # What is relied on
//
//	version 2 memory, pids   4.5, 4.5     cpu 4.15
//	CLONE_INTO_CGROUP        5.7
//	cgroup.freeze            5.2          version 1: the freezer, 2.6.28
//	cgroup.kill              5.14         before, and in version 1: signals, repeated
//	memory.peak              5.19         before: unknown
//	version 1 oom_kill count 4.13         before: unknown
//
// The memory limit counts swap, page cache, tmpfs and kernel structures such
// as page tables, pipes and stacks. Version 1 counts TCP buffers apart, with
// the same bound; and on a kernel that was told not to count swap
// (swapaccount=0) swapping is discouraged, not prevented.
package cgroup
