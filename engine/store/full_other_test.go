//go:build !linux

package store

import "errors"

func mountSmall(string, int64) error { return errors.ErrUnsupported }
func growSmall(string, int64) error  { return errors.ErrUnsupported }
func freezeSmall(string) error       { return errors.ErrUnsupported }
