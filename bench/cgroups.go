package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// What every contestant that makes a sandbox gets as its limits.
const (
	limitMemory = 512 << 20 // bytes
	limitCPU    = 1         // cores
	limitPIDs   = 128
)

// A group is a cgroup below which floors make theirs.
type group struct {
	dir     string
	unified bool     // processes can be started in it
	limits  []string // file=value
}

// ownGroups makes one cgroup of our own in each hierarchy that bounds memory,
// processes or processor time, and in the unified one. Who is not allowed to
// gets none.
func ownGroups(name string) ([]group, error) {
	var want []group
	memory, pids := strconv.Itoa(limitMemory), strconv.Itoa(limitPIDs)
	const root = "/sys/fs/cgroup"
	switch {
	case !isRoot():
		return nil, nil
	case exists(root + "/cgroup.controllers"):
		for _, control := range []string{"+memory", "+pids", "+cpu"} {
			if err := os.WriteFile(root+"/cgroup.subtree_control", []byte(control), 0); err != nil {
				return nil, err
			}
		}
		want = []group{{root + "/" + name, true, []string{"memory.max=" + memory, "pids.max=" + pids, fmt.Sprintf("cpu.max=%d 100000", limitCPU*100000)}}}
	default:
		want = []group{
			{root + "/memory/" + name, false, []string{"memory.limit_in_bytes=" + memory}},
			{root + "/pids/" + name, false, []string{"pids.max=" + pids}},
			{root + "/cpu/" + name, false, []string{fmt.Sprintf("cpu.cfs_quota_us=%d", limitCPU*100000)}},
		}
		if exists(root + "/unified/cgroup.procs") {
			want = append(want, group{root + "/unified/" + name, true, nil})
		}
	}
	for _, g := range want {
		err := os.Mkdir(g.dir, 0o755)
		if err == nil && g.unified && len(g.limits) > 0 {
			err = os.WriteFile(filepath.Join(g.dir, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0)
		}
		if err != nil {
			removeGroups(name)
			return nil, err
		}
	}
	return want, nil
}

// removeGroups removes the cgroup of that name in every hierarchy, with what is
// left below it: runc makes its own in hierarchies that we do not use.
func removeGroups(name string) error {
	var errs error
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, top := range append(tops, "/sys/fs/cgroup/"+name) {
		var dirs []string
		filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			err := os.Remove(dir)
			for tries := 0; errors.Is(err, syscall.EBUSY) && tries < 100; tries++ {
				time.Sleep(10 * time.Millisecond) // what was in it is still ending
				err = os.Remove(dir)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = errors.Join(errs, err)
			}
		}
	}
	return errs
}

// groupFlags returns how floor/sandbox.c is told of the groups.
func groupFlags(groups []group) []string {
	var args []string
	for _, g := range groups {
		flag := "-group"
		if g.unified {
			flag = "-into"
		}
		args = append(args, flag, g.dir)
		for _, l := range g.limits {
			args = append(args, "-limit", l)
		}
	}
	return args
}
