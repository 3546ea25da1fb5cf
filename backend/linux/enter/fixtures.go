package enter

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// devices are the host's nodes that are shown in /dev, by bind mounts: a user
// namespace can make none.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// MakeFixtures makes, in the empty folder dir, what every sandbox is shown
// read-only: dev, with a file for each device to be mounted over, sys, with
// the number of processors, and the masks. It is made once and costs a sandbox
// three mounts.
func MakeFixtures(dir string) error {
	for _, d := range []string{"dev", "dev/pts", "dev/shm", "mask", "mask/dir", "sys", "sys/fs", "sys/fs/cgroup",
		"sys/devices", "sys/devices/system", "sys/devices/system/cpu"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, d), 0o755); err != nil { // whatever the umask
			return err
		}
	}
	files := map[string][]byte{"mask/file": nil}
	for _, name := range devices {
		files["dev/"+name] = nil
	}
	for _, name := range []string{"online", "possible", "present"} {
		b, err := os.ReadFile("/sys/devices/system/cpu/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		files["sys/devices/system/cpu/"+name] = b
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o444); err != nil {
			return err
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o444); err != nil {
			return err
		}
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, filepath.Join(dir, "dev", name)); err != nil {
			return err
		}
	}
	return nil
}
