package engine

import (
	"context"
	"errors"
	"path"
	"time"

	"github.com/atoll-run/atoll/profile"
	"github.com/atoll-run/atoll/sandbox"
)

// What a look at a workspace may cost.
const (
	// MaxEntries is how many files a workspace with a quota may have.
	MaxEntries = 100_000

	quotaTimeout = 30 * time.Second
)

// quota returns an error if the sandbox's workspace is larger than it may be.
// Where the profile says so the sandbox is removed when that is found after a
// command.
func (b box) quota(ctx context.Context, sb sandbox.Sandbox, when string) error {
	max := b.en.space
	if max <= 0 {
		return nil
	}
	bytes, entries, err := measure(ctx, sb, b.en.dir, max)
	if err != nil {
		return err
	}
	var over *sandbox.Error
	switch {
	case bytes > max:
		over = sandbox.Errorf(sandbox.Exhausted, "limits.workspace", "the workspace has more than %d bytes, %s", max, when)
	case entries > MaxEntries:
		over = sandbox.Errorf(sandbox.Exhausted, "limits.workspace", "the workspace has more than %d files, %s", MaxEntries, when)
	default:
		return nil
	}
	b.e.metrics.refused("quota")
	if when != "after the command" || b.en.prof.OverQuota != profile.Remove {
		return over.WithHint("remove files from it")
	}
	b.e.mu.Lock()
	b.e.condemn(b.en, sandbox.Gone{Why: sandbox.OverQuota, Note: over.Msg})
	b.e.mu.Unlock()
	select {
	case <-b.e.remove(b.en, true):
	case <-ctx.Done():
	}
	return over.WithHint("the sandbox was removed")
}

// measure adds up the sizes of the files and links below dir, mounts included,
// until they are more than max bytes or MaxEntries.
func measure(ctx context.Context, sb sandbox.Sandbox, dir string, max int64) (bytes int64, entries int, err error) {
	ctx, cancel := context.WithTimeout(ctx, quotaTimeout)
	defer cancel()
	files := sb.Files()
	for dirs := []string{dir}; len(dirs) > 0; {
		dir := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		for f, err := range files.List(ctx, dir) {
			if err != nil {
				if errors.Is(err, sandbox.NotExist) || errors.Is(err, sandbox.Invalid) { // it was removed or became something else
					if ctx.Err() == nil {
						break
					}
				}
				return 0, 0, &sandbox.Error{Kind: sandbox.KindOf(err), Field: "limits.workspace", Msg: "the size of the workspace cannot be found out", Err: err}
			}
			entries++
			if f.Mode.IsDir() {
				sub := path.Join(dir, f.Name)
				if len(sub) > sandbox.MaxPath { // or it would hold what nobody counts
					return 0, 0, sandbox.Errorf(sandbox.Exhausted, "limits.workspace", "the workspace has folders that are too deep to be measured").WithHint("remove them")
				}
				dirs = append(dirs, sub)
			} else {
				bytes += f.Size
			}
			if bytes > max || entries > MaxEntries {
				return bytes, entries, nil
			}
		}
	}
	return bytes, entries, nil
}
