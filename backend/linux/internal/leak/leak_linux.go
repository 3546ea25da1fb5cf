// Package leak finds what sandboxes leave behind on a host: processes,
// namespaces, control groups, mounts, loop devices, files, open descriptors.
// It is for tests, and looks only for what bears the marks of the sandboxes
// that it was told of, since a host has other tenants.
package leak

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
)

// A Watch remembers the sandboxes of one state folder.
type Watch struct {
	state  string
	ids    map[string]bool
	spaces map[string]space // by what the kernel calls it: "pid:[4026532001]"
}

// A space is a sandbox's namespace of pids, in which all its processes are. It
// is held open, so that its number is not given to another.
type space struct {
	id   string
	file *os.File
}

// New watches the sandboxes whose state is below state.
func New(state string) *Watch {
	if real, err := filepath.EvalSymlinks(state); err == nil {
		state = real
	}
	return &Watch{state: state, ids: map[string]bool{}, spaces: map[string]space{}}
}

// Saw tells of a sandbox. While it lives, its namespace is remembered.
func (w *Watch) Saw(id string) {
	w.ids[id] = true
	for pid, guest := range Guests() {
		if guest != id {
			continue
		}
		w.hold(pid, id)
	}
}

func (w *Watch) hold(pid int, id string) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return // it has ended
	}
	ns, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if own, e := os.Readlink("/proc/self/ns/pid"); err != nil || e != nil || ns == own || w.spaces[ns].file != nil {
		f.Close()
		return
	}
	w.spaces[ns] = space{id, f}
}

// Left returns what is still there of the sandboxes that were told of, and
// what waits to be deleted below the state folder, a line each. Processes that were killed a
// moment ago, and groups of theirs, get a while to go.
func (w *Watch) Left() []string {
	var left []string
	for range 100 {
		if left = w.look(); len(left) == 0 {
			for _, s := range w.spaces {
				s.file.Close()
			}
			clear(w.spaces)
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return left
}

// look returns what is there now.
func (w *Watch) look() []string {
	var left []string
	add := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	for pid, id := range Guests() {
		if w.ids[id] {
			add("process %d: the guest of %s", pid, id)
		}
	}
	for _, pid := range pids() {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && w.spaces[ns].file != nil {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			add("process %d (%q) of %s", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}), w.spaces[ns].id)
		}
	}
	for _, dir := range w.groups() {
		add("control group %s", dir)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if w.ours(line) {
				add("mount %s", strings.TrimSpace(line))
			}
		}
	}
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range backing {
		if b, err := os.ReadFile(f); err == nil && w.ours(string(b)) {
			add("loop device %s: %s", f, bytes.TrimSpace(b))
		}
	}
	for _, dir := range []string{"sandboxes", "trash"} {
		entries, _ := os.ReadDir(filepath.Join(w.state, dir))
		for _, e := range entries {
			if dir == "sandboxes" && !w.ids[e.Name()] {
				continue
			}
			add("file %s/%s", dir, e.Name())
		}
	}
	sort.Strings(left)
	return left
}

// ours reports whether text names a sandbox.
func (w *Watch) ours(text string) bool {
	for id := range w.ids {
		if strings.Contains(text, id) {
			return true
		}
	}
	return false
}

// groups returns the control groups named after a sandbox.
func (w *Watch) groups() []string {
	var dirs []string
	filepath.WalkDir("/sys/fs/cgroup", func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // it went meanwhile
		}
		if w.ids[d.Name()] {
			dirs = append(dirs, p)
			return fs.SkipDir
		}
		return nil
	})
	return dirs
}

// Guests returns the guests of the host's processes: their pids, and the
// sandboxes that they name.
func Guests() map[int]string {
	guests := map[int]string{}
	for _, pid := range pids() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue
		}
		if id, ok := strings.CutPrefix(string(line), "atoll-guest\x00"); ok {
			if id = strings.TrimSuffix(id, "\x00"); !strings.HasPrefix(id, "-") {
				guests[pid] = id
			}
		}
	}
	return guests
}

// Descriptors returns what a process has open, by what it is: sorted, with the
// numbers of sockets and pipes left out, so that two lists compare.
func Descriptors(pid int) ([]string, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var open []string
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed since
		}
		for _, kind := range []string{"socket:", "pipe:", "anon_inode:"} {
			if strings.HasPrefix(to, kind) {
				to = strings.TrimRight(to, "[]0123456789")
			}
		}
		open = append(open, to)
	}
	sort.Strings(open)
	return open, nil
}

func pids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var ps []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			ps = append(ps, pid)
		}
	}
	return ps
}
