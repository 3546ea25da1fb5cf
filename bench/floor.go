package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// floors are the C programs that do the least. They are built when they are
// needed, by whatever cc the machine has.
//
//go:embed floor
var floors embed.FS

// buildFloors compiles every floor into dir.
func buildFloors(ctx context.Context, dir string) error {
	for _, name := range []string{"bell.h", "true.c", "spawn.c", "sandbox.c"} {
		b, err := floors.ReadFile("floor/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"-static", "-nostdlib", "-nostartfiles", "-o", "true", "true.c"},
		{"-static", "-o", "spawn", "spawn.c"},
		{"-static", "-o", "sandbox", "sandbox.c"},
	} {
		cmd := exec.CommandContext(ctx, "cc", append([]string{"-O2"}, args...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cc %s: %w\n%s", args[len(args)-1], err, out)
		}
	}
	return nil
}

// A floor is a running C program that does one piece of work when it is asked
// to; see floor/bell.h.
type floor struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  io.Reader
	said bytes.Buffer // its complaint; read it when the floor has ended
}

// startFloor starts a floor. It ends with ctx or by close.
func startFloor(ctx context.Context, program string, args ...string) (*floor, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	f := &floor{cmd: cmd}
	cmd.Stderr = &f.said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	f.in, f.out = in, out
	return f, nil
}

// once asks for one sample.
func (f *floor) once(context.Context) (time.Duration, error) {
	if _, err := f.in.Write([]byte{'g'}); err != nil {
		return 0, err
	}
	var ns [8]byte
	if _, err := io.ReadFull(f.out, ns[:]); err != nil {
		return 0, errors.Join(f.close(), errors.New(strings.TrimSpace(f.said.String())))
	}
	return time.Duration(binary.NativeEndian.Uint64(ns[:])), nil
}

// close ends the floor; a second call returns an error and does nothing.
func (f *floor) close() error {
	f.in.Close()
	return f.cmd.Wait()
}

// makeLower makes the directories that the floor's sandboxes are built on: the
// mount point, and the skeleton that shows the host's /usr.
func (b *bench) makeLower() error {
	lower := filepath.Join(b.dir, "lower")
	for _, d := range []string{"base", "lower/proc", "lower/dev", "lower/usr"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			return err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + d); err == nil {
			if err := os.Symlink(target, filepath.Join(lower, d)); err != nil {
				return err
			}
		}
	}
	return nil
}
