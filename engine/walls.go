package engine

import (
	"path"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// walls returns ms with each confined to the folder of the owner's in which it
// has to lie. The Runtime below opens the source once, and looks where it
// really is.
func (e *Engine) walls(o sandbox.Owner, ms []sandbox.Mount) ([]sandbox.Mount, error) {
	if len(ms) == 0 {
		return ms, nil
	}
	roots := e.cfg.MountRoots
	if o != sandbox.Operator {
		roots = e.tenant(o).MountRoots
	}
	hint := "start the daemon with --allow-mount DIR"
	if o != sandbox.Operator {
		hint = "ask the operator to allow it"
	}
	ms = slices.Clone(ms)
	for i, m := range ms {
		source := path.Clean(m.Source)
		if len(roots) == 0 {
			e.metrics.refused("mount")
			return nil, sandbox.Errorf(sandbox.Denied, "mounts.source", "no folder of the host is allowed here").WithHint("%s", hint)
		}
		within := ""
		for _, root := range roots {
			root = path.Clean(root)
			if (source == root || strings.HasPrefix(source, strings.TrimSuffix(root, "/")+"/")) && len(root) > len(within) {
				within = root
			}
		}
		if within == "" {
			e.metrics.refused("mount")
			return nil, sandbox.Errorf(sandbox.Denied, "mounts.source", "%q is not below a folder that is allowed here", m.Source).WithHint("%s", hint)
		}
		ms[i].Within = within
	}
	return ms, nil
}
