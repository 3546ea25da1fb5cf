package linux

import (
	"crypto/rand"
	"fmt"
	"hash/fnv"

	"github.com/atoll-run/atoll/sandbox"
)

// Each sandbox made as root has a range of host ids of its own, so that no
// file and no process of one could be another's, or a host user's, even if a
// wall fell.
const (
	rangeSize = 65536
	maxSlots  = 4096
)

// takeSlot reserves a range. Where to begin depends on the state folder, so
// that two daemons on one host rarely give out the same.
func (rt *Runtime) takeSlot() (int, error) {
	h := fnv.New32a()
	h.Write([]byte(rt.cfg.State))
	first := int(h.Sum32() % maxSlots)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for i := range maxSlots {
		if slot := (first + i) % maxSlots; !rt.slots[slot] {
			rt.slots[slot] = true
			return slot, nil
		}
	}
	return 0, sandbox.Errorf(sandbox.Exhausted, "", "all %d ranges of user ids are in use", maxSlots).WithHint("remove sandboxes that are not needed")
}

func (rt *Runtime) freeSlot(slot int) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.slots, slot)
}

// firstID is the host id of a range's user 0.
func (rt *Runtime) firstID(slot int) int { return rt.cfg.FirstID + slot*rangeSize }

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
