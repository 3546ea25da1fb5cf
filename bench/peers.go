package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A stage is an operating system thread whose children see a mount table of
// their own. crun refuses a machine whose v2 hierarchy has a controller while
// the others are v1; on the stage that hierarchy seems to have none. Nothing
// of it is seen by the rest of the machine, and it ends with this process.
type stage struct{ work chan func() }

// raise makes a stage.
func raise() (*stage, error) {
	s := &stage{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread is not fit for others
		ready <- s.furnish()
		for do := range s.work {
			do()
		}
	}()
	if err := <-ready; err != nil {
		close(s.work)
		return nil, err
	}
	return s, nil
}

// plainStage makes a stage like any other thread.
func plainStage() *stage {
	s := &stage{work: make(chan func())}
	go func() {
		for do := range s.work {
			do()
		}
	}()
	return s
}

func (s *stage) furnish() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const controllers = "/sys/fs/cgroup/unified/cgroup.controllers"
	if !exists(controllers) {
		return nil
	}
	if err := unix.Mount("/dev/null", controllers, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("hide %s: %w", controllers, err)
	}
	return nil
}

// run starts the command on the stage, waits for it, and returns how long both
// took. A command that fails is an error that has its output.
func (s *stage) run(ctx context.Context, args ...string) (time.Duration, error) {
	var took time.Duration
	var out bytes.Buffer
	done := make(chan error)
	s.work <- func() {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Stderr = &out
		start := time.Now()
		err := cmd.Run()
		took = time.Since(start)
		done <- err
	}
	if err := <-done; err != nil {
		return 0, fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return took, nil
}

// A peer is a program of others that makes a sandbox, runs one command in it
// and removes it.
type peer struct {
	name string
	args func() []string // of one run
}

// contestant makes a peer one, or says what is wrong with it.
func (p peer) contestant(ctx context.Context, s *stage) (contestant, error) {
	once := func(ctx context.Context) (time.Duration, error) { return s.run(ctx, p.args()...) }
	_, err := once(ctx)
	return contestant{p.name, once}, err
}

// bwrap returns bubblewrap with all namespaces and the usual mounts, around
// the root file system at root, or around the host's /usr if root is "".
func bwrap(root, program string) peer {
	args := []string{"bwrap", "--unshare-all", "--die-with-parent"}
	if root != "" {
		args = append(args, "--bind", root, "/")
	} else {
		args = append(args, "--ro-bind", "/usr", "/usr")
		for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
			if target, err := os.Readlink("/" + d); err == nil {
				args = append(args, "--symlink", target, "/"+d)
			} else if exists("/" + d) {
				args = append(args, "--ro-bind", "/"+d, "/"+d)
			}
		}
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", program)
	return peer{"bubblewrap", func() []string { return args }}
}

// oci returns runc or crun around the root file system at root, with the
// limits that all get. What is not said here is what "runc spec" says: no user
// namespace and no system call filter, so it does less than Atoll does.
func oci(program, dir, root, cgroup, command string) (peer, error) {
	bundle := filepath.Join(dir, program)
	if err := os.Mkdir(bundle, 0o755); err != nil {
		return peer{}, err
	}
	if out, err := exec.Command(program, "spec", "--bundle", bundle).CombinedOutput(); err != nil {
		return peer{}, fmt.Errorf("%s spec: %w: %s", program, err, bytes.TrimSpace(out))
	}
	path := filepath.Join(bundle, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return peer{}, err
	}
	var config map[string]any
	if err := json.Unmarshal(b, &config); err != nil {
		return peer{}, fmt.Errorf("%s: %w", path, err)
	}
	config["root"] = map[string]any{"path": root, "readonly": false}
	process, linux := config["process"].(map[string]any), config["linux"].(map[string]any)
	process["terminal"] = false
	process["args"] = []string{command}
	linux["cgroupsPath"] = "/" + cgroup + "/" + program
	linux["resources"] = map[string]any{
		"memory": map[string]any{"limit": limitMemory},
		"cpu":    map[string]any{"quota": limitCPU * 100000, "period": 100000},
		"pids":   map[string]any{"limit": limitPIDs},
	}
	if b, err = json.Marshal(config); err != nil {
		return peer{}, err
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return peer{}, err
	}
	n := 0
	return peer{program, func() []string {
		n++
		return []string{program, "--root", filepath.Join(dir, program+"-state"), "run", "--bundle", bundle, "bench-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(n)}
	}}, nil
}
