// Package engine is the layer where policy lives, once, for every protocol: a
// sandbox.Runtime around any other that knows owners, names, profiles, limits
// on how many may live, idle time and expiry, what survives a restart, and
// what became of the sandboxes that are gone.
//
// It makes no sandbox and speaks no protocol. What is below it gets plain
// Specs, without names, labels or times, so that a pool of ready sandboxes can
// answer them; what is above gets a [View]: the Runtime as one owner sees it,
// under the policy of one protocol, its [Class].
//
// # Ids
//
// A sandbox has the id that the Runtime below gave it, unless its Spec asked
// for another. Both are in the store, so a sandbox that died can be made anew
// under the id that its caller knows.
//
// # In use, idle, released
//
// A sandbox is busy while somebody waits for one of its processes, has one of
// its files open, or is connected to one of its ports. When that ends its idle
// time begins. Before it is removed for being idle, or to make room, it is
// asked for detached processes: while one runs, it is not idle. A released
// sandbox is one that its caller does not need for now; it is the first to make
// room, and in a class that is [Soft] the only one.
//
// # What is durable
//
// A sandbox is in the store before Create or Acquire returns it, a change
// before Update returns. When it was last used is written now and then. An
// environment is never written. At start the store and the Runtime below are
// compared: what both have goes on, and its idle time begins anew; what only the
// store has is gone, and its tombstone says why; what only the Runtime has was
// never acknowledged, and is removed - unless the store is new, because then it is
// the store that was lost, and everything is adopted for the operator. If the
// Runtime cannot be asked, nothing is decided: unknown is not dead.
//
// # Locks
//
// One mutex guards all maps and counters and is never held during I/O. Who
// makes or looks for a sandbox by name or by a chosen id holds that name's own
// lock, so that a slow one keeps nobody else waiting.
package engine
