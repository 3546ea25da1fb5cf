// Package sandbox holds the words of Atoll: what a sandbox is, what runs in it,
// what can go wrong. It is the whole contract between those who make
// sandboxes (packages below backend), those who wrap them (engine, warm), and
// those who use them (tools, protocols, the Go SDK).
//
// The contract is small on purpose. A [Runtime] makes, opens and lists
// sandboxes; a [Sandbox] starts processes and reaches files. Everything else
// is built once, above it, or is an optional interface that a caller finds by
// a plain type assertion on the value in hand:
//
//	if p, ok := sb.(sandbox.Pauser); ok { ... }
//
// A layer spells out every method, so an assertion that holds may still
// answer [Unsupported]; callers treat both alike.
//
// Three rules hold everywhere:
//
//   - A command that fails is a result ([Exit]); an error is ours ([*Error]).
//   - A context is the life of the thing that it is given to. When the context
//     of [Sandbox.Start] ends, the process and its whole tree are killed.
//   - Output goes to writers, and a slow writer slows the process.
//
// What this package is not: it runs nothing, opens nothing, and imports the
// standard library alone. Each sentence of a doc comment here is a claim that
// package sandboxtest checks against every backend, layer and client.
package sandbox
