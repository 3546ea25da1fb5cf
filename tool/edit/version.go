package edit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// A Version tells one state of a file from another. It is made by [VersionOf]
// or [HashOf], and opaque to whoever keeps it.
type Version string

// VersionOf returns the Version of a file whose time and size are info's. It
// costs nothing more than a Stat, and misses a change of the same length
// within the resolution of the file system's clock.
func VersionOf(info sandbox.FileInfo) Version {
	return Version(fmt.Sprintf("stat:%x-%x", info.Size, info.Time.UnixNano()))
}

// HashOf returns the Version of a file with this content, whenever it was
// written.
func HashOf(content []byte) Version {
	sum := sha256.Sum256(content)
	return Version("sha256:" + hex.EncodeToString(sum[:]))
}

// same reports whether a file is still the one that v is of.
func (v Version) same(info sandbox.FileInfo, content []byte) (bool, error) {
	switch {
	case v == "":
		return true, nil
	case strings.HasPrefix(string(v), "stat:"):
		return v == VersionOf(info), nil
	case strings.HasPrefix(string(v), "sha256:"):
		return v == HashOf(content), nil
	}
	return false, sandbox.Errorf(sandbox.Invalid, "if_unchanged", "%.64q is not a version", string(v)).WithHint("give one that was given to you")
}

// A file is one file of one sandbox, by the path that its editors use.
type file struct {
	id   sandbox.ID
	path string
}

// editing holds the files that this process is changing. Files has no
// exchange that fails if somebody was faster, so that two changes of one file
// take turns here; without it, agents that call two tools at once lose one.
var editing = turns{busy: make(map[file]*turn)}

type turns struct {
	mu   sync.Mutex
	busy map[file]*turn
}

// A turn is waited for by receiving from its channel.
type turn struct {
	free chan struct{}
	want int // who has it or waits for it
}

// take waits until nobody else has f, and returns how to give it back.
func (t *turns) take(ctx context.Context, f file) (release func(), err error) {
	t.mu.Lock()
	n := t.busy[f]
	if n == nil {
		n = &turn{free: make(chan struct{}, 1)}
		n.free <- struct{}{}
		t.busy[f] = n
	}
	n.want++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		if n.want--; n.want == 0 {
			delete(t.busy, f)
		}
		t.mu.Unlock()
	}
	select {
	case <-n.free:
		return func() { n.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
