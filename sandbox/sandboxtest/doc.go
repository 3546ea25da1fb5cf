// Package sandboxtest is the suite that every sandbox.Runtime passes: each
// backend, each layer around one, and each protocol's client through its
// server. Its claims are the sentences of package sandbox, one by one, with a
// name each.
//
// The whole test of a new backend's contract is
//
//	func TestContract(t *testing.T) {
//		sandboxtest.Run(t, sandboxtest.Config{
//			New: func(t *testing.T) sandbox.Runtime { return mine.New(t.TempDir()) },
//		})
//	}
//
// A claim is a subtest, so `go test -run TestContract/FailureIsAResult` runs
// that one alone. [Claims] lists them with the sentences that they check.
//
// What a protocol or a backend cannot carry is named in [Config.Cannot], with
// a sentence why. It is allowed only where no documented call could carry it.
// Such claims are shown as skipped and counted at the end; a name that is no
// claim fails. Optional interfaces (Pauser, Dialer, Meter, Detacher; Keeper,
// Peeker, Releaser, Overseer) are checked where the assertion holds and the
// answer is not Unsupported.
//
// The commands used are those that any Linux image has: true, false, echo,
// printf, cat, sleep, env, pwd, and for most of what concerns processes sh
// with head, id, ln, mkfifo, stty, setsid, nohup and the like. A backend
// without a shell says so with [Config.NoShell].
//
// Most claims share one sandbox, each in a directory of its own; those that
// would harm it make theirs. After each claim the goroutines are counted: what
// a claim started has to end with it. A Runtime should come settled: what it
// starts on its own (a pool, say) runs before New returns.
//
// Nothing here measures time. Where a thing must happen "in time" the suite
// compares order, and gives up only after Config.Patience.
package sandboxtest
