//go:build !linux

package enter

import (
	"errors"
	"os"
)

// Setup is Linux's alone.
func Setup(*Request, []*os.File) (Done, error) { return Done{}, errors.ErrUnsupported }

// Parse is Linux's alone.
func Parse([]byte, int) (*Request, error) { return nil, errors.ErrUnsupported }
