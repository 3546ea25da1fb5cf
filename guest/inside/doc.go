// Package inside is the guest: the server of the protocol that package guest
// describes. cmd/atoll-guest is it as a program.
//
// It resolves every path from its own root, which must be the sandbox's, and
// starts processes with what its own thread has, which must be what they may
// have: see Config.Setup. It protects itself against its daemon's mistakes and
// against what runs beside it, not against its daemon.
//
// Everything here is paid for with every sandbox: it imports neither net nor
// fmt nor encoding/json, and measures before it adds anything.
//
// Kernel features: openat2 (5.6), O_TMPFILE, TIOCGPTPEER (4.13), prlimit.
package inside
