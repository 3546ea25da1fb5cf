package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describe says in one line what kind of machine this is; never its name.
func describe() string {
	var u unix.Utsname
	unix.Uname(&u)
	release, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	who := "an ordinary user"
	if isRoot() {
		who = "root"
	}
	return fmt.Sprintf("%d cores, %.0f GiB, Linux %s %s, %s, %s, %s", runtime.NumCPU(), float64(meminfo()["MemTotal"])/(1<<20),
		release, runtime.GOARCH, hierarchy(), runtime.Version(), who)
}

// hierarchy says what the machine's cgroups are.
func hierarchy() string {
	switch {
	case exists("/sys/fs/cgroup/cgroup.controllers"):
		return "cgroup v2"
	case exists("/sys/fs/cgroup/unified/cgroup.controllers"):
		return "cgroup v1 with an empty v2 beside it"
	case exists("/sys/fs/cgroup/memory"):
		return "cgroup v1"
	}
	return "no cgroups"
}

func isRoot() bool { return os.Geteuid() == 0 }

// fileSystem names what path is on.
func fileSystem(path string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err.Error()
	}
	for magic, name := range map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.TMPFS_MAGIC: "tmpfs", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay"} {
		if int64(st.Type) == magic {
			if name == "ext4" && !journalled(path) {
				return "ext4 without a journal"
			}
			return name
		}
	}
	return fmt.Sprintf("file system %#x", st.Type)
}

// journalled reports whether the ext4 that path is on has a journal. Without
// one, ext4 looks through all inodes that were deleted in the last minutes each
// time it makes a file.
func journalled(path string) bool {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return true
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return true
	}
	journals, _ := filepath.Glob("/proc/fs/jbd2/" + filepath.Base(device) + "-*")
	return len(journals) > 0
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tooBusy is the share of the time, in percent, in which somebody waited for a
// processor, above which figures are not worth having.
const tooBusy = 6

// quiet waits up to patience for the machine to become quiet, and says to w
// if it did not.
func quiet(ctx context.Context, w io.Writer, patience time.Duration) {
	deadline := time.Now().Add(patience)
	for {
		p, err := pressure()
		if err != nil {
			if load := loadavg(); load > 0.5*float64(runtime.NumCPU()) {
				fmt.Fprintf(w, "warning: the load is %.1f: the figures below are those of a busy machine\n", load)
			}
			return
		}
		if p <= tooBusy {
			return
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			fmt.Fprintf(w, "warning: processes waited for a processor in %.0f %% of the last ten seconds: the figures below are those of a busy machine\n", p)
			return
		}
		time.Sleep(time.Second)
	}
}

// pressure returns "some avg10" of /proc/pressure/cpu.
func pressure() (float64, error) {
	b, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), "some avg10=")
	if !ok {
		return 0, fmt.Errorf("/proc/pressure/cpu has no avg10")
	}
	figure, _, _ := strings.Cut(rest, " ")
	return strconv.ParseFloat(figure, 64)
}

func loadavg() float64 {
	b, _ := os.ReadFile("/proc/loadavg")
	figure, _, _ := strings.Cut(string(b), " ")
	f, _ := strconv.ParseFloat(figure, 64)
	return f
}

// meminfo returns /proc/meminfo in KiB.
func meminfo() map[string]int64 { return figures("/proc/meminfo") }

// figures reads a file of lines "Name: 123 kB" and adds up what bears the same
// name. A file that cannot be read has no figures.
func figures(path string) map[string]int64 {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	m := make(map[string]int64)
	for s := bufio.NewScanner(f); s.Scan(); {
		name, rest, ok := strings.Cut(s.Text(), ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) == 0 {
			continue
		}
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil {
			m[name] += n
		}
	}
	return m
}

// firsts returns the process ids of all that are process 1 of a PID namespace
// of their own: the guests, of whomever.
func firsts() map[int]bool {
	found := make(map[int]bool)
	dirs, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range dirs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, ok := strings.Cut(string(b), "\nNSpid:")
		if !ok {
			continue
		}
		line, _, _ := strings.Cut(rest, "\n")
		ids := strings.Fields(line)
		if len(ids) > 1 && ids[len(ids)-1] == "1" {
			if pid, err := strconv.Atoi(ids[0]); err == nil {
				found[pid] = true
			}
		}
	}
	return found
}

// private returns the memory in KiB that belongs to a process alone.
func private(pid int) (int64, bool) {
	m := figures(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if m == nil {
		return 0, false
	}
	return m["Private_Clean"] + m["Private_Dirty"] + m["Private_Hugetlb"], true
}

// resident returns the memory in MiB that a process has resident.
func resident(pid int) float64 {
	return float64(figures(fmt.Sprintf("/proc/%d/status", pid))["VmRSS"]) / 1024
}
