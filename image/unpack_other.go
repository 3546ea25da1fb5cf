//go:build !linux

package image

import (
	"context"
	"io"
	"os"

	"github.com/atoll-run/atoll/sandbox"
)

type owner struct{ uid, gid int }

// unpack fails: what hides files of lower layers are devices of Linux.
func unpack(context.Context, io.Reader, string, Bounds) (string, Facts, map[string]owner, error) {
	return "", Facts{}, nil, sandbox.Errorf(sandbox.Unsupported, "image", "images can be unpacked on Linux only")
}

func removeTree(dir string) error { return os.RemoveAll(dir) }
