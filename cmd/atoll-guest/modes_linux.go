package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/atoll-run/atoll/backend/linux/launch"
)

// mode runs the program as one of backend/linux's other helpers, if args ask
// for one.
func mode(args []string) (bool, error) {
	switch {
	case len(args) == 1 && args[0] == "--version":
		_, err := os.Stdout.WriteString("atoll-guest\n")
		return true, err
	case len(args) == 1 && args[0] == "--connect":
		return true, connect()
	case len(args) == 1 && args[0] == "--hold":
		wait()
		return true, nil
	case len(args) == 1 && args[0] == "--launch":
		return true, launch.Serve(3, 4)
	case len(args) == 2 && args[0] == "--delete":
		wait()
		said := "ok"
		if err := deleteAll(args[1]); err != nil {
			said = err.Error()
		}
		_, err := os.Stdout.WriteString(said)
		return true, err
	}
	return false, nil
}

// wait reads standard input to its end.
func wait() {
	var b [64]byte
	for {
		if n, err := os.Stdin.Read(b[:]); n == 0 || err != nil {
			return
		}
	}
}

// deleteAll deletes a tree as user 0 of the namespace that the program is in.
func deleteAll(dir string) error {
	if err := syscall.Setresgid(0, 0, 0); err != nil {
		return err
	}
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		return err
	}
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
