package docker

import "github.com/atoll-run/atoll/sandbox"

// CloseIdle closes the connections to the engine that nobody uses now.
func CloseIdle(rt *Runtime) { rt.api.Close() }

// AfterChecks has f called by each Create that has looked at its mounts.
func AfterChecks(rt *Runtime, f func()) { rt.checked = f }

// Disconnect ends the connection to a sandbox's guest.
func Disconnect(rt *Runtime, id sandbox.ID) {
	rt.mu.Lock()
	b := rt.live[id]
	rt.mu.Unlock()
	b.mu.Lock()
	g := b.guest
	b.mu.Unlock()
	g.Close()
}
