// Package seccomp says which system calls the processes of a sandbox may make,
// and compiles that into a filter for the kernel (seccomp(2), Linux 3.17).
//
// The table in policy.go is the policy: every system call has a rule there,
// with a reason where it is not plain. The filter is compiled from it in Go,
// as a binary tree over ranges of numbers. The kernel runs a filter once for
// every system call when it is loaded (Linux 5.11), to remember what is always
// allowed; with a tree that costs some tens of microseconds, where a list of
// comparisons costs half a millisecond. Afterwards most calls cost nothing.
//
// What is refused fails with EPERM. What old or odd programs try first and can
// do without, and whatever is newer than the table, fails with ENOSYS, so that
// they take the older way. A call through another architecture's entry, such
// as int 0x80, ends the process (ACT_KILL_PROCESS, Linux 4.14).
//
// A filter sees numbers, not memory: what clone3 and openat2 are asked for is
// behind a pointer. clone3 is allowed because the guest itself starts
// processes with it; that nobody makes a user namespace by it is kept by
// max_user_namespaces, and no other namespace can be made without one.
//
// The guest loads the bytes by package load, which knows nothing of the table.
//
// What this package is not: it does not keep the sandbox in by itself.
// Namespaces, ids and the lack of capabilities do; the filter takes away the
// parts of the kernel that have broken those.
package seccomp
