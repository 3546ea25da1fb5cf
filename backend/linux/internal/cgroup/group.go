//go:build linux

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// A Group is the control group of one sandbox, in all hierarchies that serve.
// Its methods may be called concurrently, but for those that have to do with
// its making: Dir, Enter, Settle, Spawn and Close.
type Group struct {
	id     string
	limits sandbox.Limits
	kept   map[string]string

	v2    string            // directory, "" if there is none
	v1    map[string]string // controller to directory; nil without version 1
	files []*os.File        // for Close
	dir   *os.File
	spawn *os.File
	enter [2][]Write
}

// A Write is a step of the guest's: to write Data to File, which the daemon
// opened and whose rights count, in one write(2). Data "0" is who writes.
type Write struct {
	File *os.File
	Data string
}

// Create makes the group of the sandbox id and sets its limits where it can,
// which Kept tells. uid is whom the guest's root is outside: it may put
// processes into the group. A group that is there already is
// [sandbox.Conflict]. Close the group after its guest has been set up; Remove
// it in the end.
func (h *Host) Create(id string, limits sandbox.Limits, uid int) (_ *Group, err error) {
	if !isID(id) {
		return nil, sandbox.Errorf(sandbox.Invalid, "id", "%q cannot name a group", id)
	}
	g := &Group{id: id, limits: limits, kept: map[string]string{}}
	for limit, set := range map[string]bool{"memory": limits.Memory > 0, "pids": limits.PIDs > 0, "cpu": limits.CPU > 0} {
		if set {
			g.kept[limit] = h.Means(limit)
		}
	}
	made := false
	defer func() {
		if err == nil {
			return
		}
		g.Close()
		if made {
			err = errors.Join(err, g.Remove(context.Background()))
		}
		if errors.Is(err, unix.EEXIST) {
			err = &sandbox.Error{Kind: sandbox.Conflict, Msg: "the control group is there already", Err: err}
		} else if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) {
			err = &sandbox.Error{Kind: sandbox.Exhausted, Msg: "the host has room for no more control groups", Err: err}
		}
	}()
	if h.v2 != nil {
		g.v2 = filepath.Join(h.v2.parent, id)
		if err := g.createV2(h, uid, &made); err != nil {
			return nil, err
		}
	}
	if err := g.createV1(h, &made); err != nil {
		return nil, err
	}
	return g, nil
}

// Open returns the group of the sandbox id, which an earlier daemon may have
// made, or [sandbox.NotExist]. Dir and Enter have nothing to give then, and
// Kept is empty: the caller remembers it.
func (h *Host) Open(id string) (*Group, error) {
	if !isID(id) {
		return nil, sandbox.Errorf(sandbox.NotExist, "id", "%q cannot name a group", id)
	}
	g := &Group{id: id, kept: map[string]string{}}
	if h.v2 != nil {
		if dir := filepath.Join(h.v2.parent, id); exists(dir) {
			g.v2 = dir
		} else if h.parent == "" {
			g.v2 = h.v2.find(id)
		}
	}
	for c, t := range h.v1 {
		if dir := filepath.Join(t.parent, id); exists(dir) {
			g.setV1(c, dir)
		}
	}
	if g.v2 == "" && g.v1 == nil {
		return nil, sandbox.Errorf(sandbox.NotExist, "id", "there is no such control group")
	}
	return g, nil
}

// find looks for the group id in all of the hierarchy: the daemon that made it
// without root had its own group, which may not have been ours.
func (t *tree) find(id string) (found string) {
	filepath.WalkDir(t.point, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil // what cannot be read, or is gone, cannot have it
		}
		if e.Name() == id && unix.Access(path+"/run/cgroup.procs", unix.W_OK) == nil {
			found = path
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

func (g *Group) createV2(h *Host, uid int, made *bool) error {
	for _, dir := range []string{g.v2, g.v2 + "/guest", g.v2 + "/run"} {
		if err := unix.Mkdir(dir, 0o755); err != nil {
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		*made = true
	}
	// To clone into run, the guest must be allowed to write to the procs file
	// of run and of the nearest group that it shares with the guest's own
	// (cgroup_attach_permissions). It gets no directory, so that nothing
	// inside can make groups, and not that of ID/guest, which has no limits.
	if uid != os.Geteuid() {
		for _, dir := range []string{g.v2, g.v2 + "/run"} {
			file := dir + "/cgroup.procs"
			if err := unix.Lchown(file, uid, -1); err != nil {
				return &os.PathError{Op: "chown", Path: file, Err: err}
			}
		}
	}
	var err error
	if g.dir, err = g.keep(g.v2, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return err
	}
	if g.spawn, err = g.keep(g.v2+"/run", unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return err
	}
	// Moving a process makes every fork of the machine wait for a grace period
	// of RCU (cgroup_threadgroup_rwsem), which costs milliseconds. Where
	// version 2 has no controller to give, a group with groups below may have
	// processes as well, and the guest stays where it was born.
	if len(h.v2.gives) == 0 {
		return nil
	}
	procs, err := g.keep(g.v2+"/guest/cgroup.procs", unix.O_WRONLY)
	if err != nil {
		return err
	}
	g.enter[1] = append(g.enter[1], Write{procs, "0"})
	return nil
}

// createV1 makes the version 1 groups: memory and pids even without limits,
// for what they count, the others when they have something to do.
func (g *Group) createV1(h *Host, made *bool) error {
	for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "freezer"} {
		t := h.v1[c]
		switch {
		case t == nil:
			continue
		case slices.Contains(wanted, c) && h.Means(c) == "cgroup v2":
			continue
		case c == "cpu" && g.limits.CPU == 0:
			continue
		case (c == "cpuacct" || c == "freezer") && g.v2 != "":
			continue // version 2 counts processor time and freezes without a controller
		}
		dir := filepath.Join(t.parent, g.id)
		first := !g.hasV1(dir)
		if first {
			if err := unix.Mkdir(dir, 0o755); err != nil {
				return &os.PathError{Op: "mkdir", Path: dir, Err: err}
			}
			*made = true
		}
		g.setV1(c, dir)
		if err := g.limitV1(c, dir); err != nil {
			return err
		}
		if first {
			tasks, err := g.keep(dir+"/tasks", unix.O_WRONLY)
			if err != nil {
				return err
			}
			g.enter[0] = append(g.enter[0], Write{tasks, "0"})
		}
	}
	return nil
}

func (g *Group) limitV1(controller, dir string) error {
	switch n := g.limits.Memory; {
	case controller != "memory" || n == 0:
	default:
		// Lowering: the limit without swap first, as memsw may not be below it.
		if err := write(dir+"/memory.limit_in_bytes", strconv.FormatInt(n, 10)); err != nil {
			return err
		}
		if memsw := dir + "/memory.memsw.limit_in_bytes"; exists(memsw) {
			if err := write(memsw, strconv.FormatInt(n, 10)); err != nil {
				return err
			}
		} else if err := write(dir+"/memory.swappiness", "0"); err != nil {
			return err
		}
		if tcp := dir + "/memory.kmem.tcp.limit_in_bytes"; exists(tcp) {
			if err := write(tcp, strconv.FormatInt(n, 10)); err != nil {
				return err
			}
		}
	}
	if n := g.limits.PIDs; controller == "pids" && n > 0 {
		if err := write(dir+"/pids.max", strconv.Itoa(n+1)); err != nil {
			return err
		}
	}
	if n := g.limits.CPU; controller == "cpu" && n > 0 {
		if err := write(dir+"/cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
			return err
		}
		if err := write(dir+"/cpu.cfs_quota_us", quota(n)); err != nil {
			return err
		}
	}
	return nil
}

// period is that of processor time in microseconds, the kernel's own default.
// A quota within it is at least a millisecond (sched-bwc.rst), which is what
// 0.01 cores get.
const period = 100_000

func quota(cores float64) string {
	return strconv.FormatInt(max(int64(cores*period+0.5), 1000), 10)
}

// keep opens path until Close.
func (g *Group) keep(path string, flags int) (*os.File, error) {
	f, err := openFile(path, flags)
	if err == nil {
		g.files = append(g.files, f)
	}
	return f, err
}

func (g *Group) setV1(controller, dir string) {
	if g.v1 == nil {
		g.v1 = map[string]string{}
	}
	g.v1[controller] = dir
}

func (g *Group) hasV1(dir string) bool {
	for _, d := range g.v1 {
		if d == dir {
			return true
		}
	}
	return false
}

// dirs returns each of the group's directories once, version 2 first.
func (g *Group) dirs() []string {
	var dirs []string
	if g.v2 != "" {
		dirs = append(dirs, g.v2)
	}
	for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "freezer"} {
		if d := g.v1[c]; d != "" && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// Dir is the directory to clone the guest into (CLONE_INTO_CGROUP), nil
// without version 2. It is the group's: do not close it.
func (g *Group) Dir() *os.File { return g.dir }

// Spawn is the directory that the guest clones children into, nil without
// version 2. It is the group's, but the guest needs a copy that stays open.
// After Open it is nil: the guest has it.
func (g *Group) Spawn() *os.File { return g.spawn }

// Enter is what the guest does, in order, on the thread that starts
// processes: before it makes its cgroup namespace, so that the namespace
// shows the group as its root, and after. Then the daemon calls Settle. The
// files are the group's.
func (g *Group) Enter() (before, after []Write) { return g.enter[0], g.enter[1] }

// Settle sets the limits of version 2, which cannot be set before the guest
// has left the group itself for the one below. The daemon calls it when the
// guest has done the writes of Enter, and before anything is started.
func (g *Group) Settle() error {
	if g.v2 == "" {
		return nil
	}
	by2 := func(limit string) bool { return g.kept[limit] == "cgroup v2" }
	// Memory and pids are counted even when they have no limit.
	has, err := read(g.v2 + "/cgroup.controllers")
	if err != nil {
		return err
	}
	var on []string
	for _, c := range strings.Fields(has) {
		if c == "memory" || c == "pids" || (c == "cpu" && by2("cpu")) {
			on = append(on, "+"+c)
		}
	}
	if len(on) > 0 {
		if err := write(g.v2+"/cgroup.subtree_control", strings.Join(on, " ")); err != nil {
			return err
		}
	}
	run := g.v2 + "/run"
	var limits []struct{ file, value string }
	add := func(file, value string) { limits = append(limits, struct{ file, value string }{file, value}) }
	if by2("memory") {
		add("memory.max", strconv.FormatInt(g.limits.Memory, 10))
		add("memory.oom.group", "0")
		if exists(run + "/memory.swap.max") {
			add("memory.swap.max", "0")
		}
	}
	if by2("pids") {
		add("pids.max", strconv.Itoa(g.limits.PIDs))
	}
	if by2("cpu") {
		add("cpu.max", fmt.Sprintf("%s %d", quota(g.limits.CPU), period))
	}
	for _, l := range limits {
		if err := write(run+"/"+l.file, l.value); err != nil {
			return err
		}
	}
	return nil
}

// Close closes what Dir, Spawn and Enter gave. The group stays.
func (g *Group) Close() error {
	for _, f := range g.files {
		f.Close()
	}
	g.files, g.dir, g.spawn, g.enter = nil, nil, nil, [2][]Write{}
	return nil
}

// Kept says for each limit that was asked of Create ("memory", "pids", "cpu")
// by what it is kept, "" if by nothing.
func (g *Group) Kept() map[string]string { return g.kept }

// OOMKills returns how many processes of the group the kernel has killed for
// want of memory, 0 where nothing counts it.
func (g *Group) OOMKills() (int64, error) {
	file := g.v2 + "/run/memory.events"
	if dir := g.v1["memory"]; dir != "" {
		file = dir + "/memory.oom_control"
	} else if g.v2 == "" || !exists(file) {
		return 0, nil
	}
	n, _, err := readKey(file, "oom_kill")
	return n, err
}

// Usage returns what the group uses: its memory now and at most, its processor
// time, and its processes and threads. The guest is not counted. What nothing
// counts is zero.
func (g *Group) Usage() (sandbox.Usage, error) {
	var u sandbox.Usage
	run := g.v2 + "/run"
	set := func(to *int64, file string) error {
		n, err := readInt(file)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		*to = n
		return err
	}
	var threads int64
	var errs []error
	if dir := g.v1["memory"]; dir != "" {
		errs = append(errs, set(&u.Memory, dir+"/memory.usage_in_bytes"), set(&u.PeakMemory, dir+"/memory.max_usage_in_bytes"))
	} else if g.v2 != "" {
		errs = append(errs, set(&u.Memory, run+"/memory.current"), set(&u.PeakMemory, run+"/memory.peak"))
	}
	if dir := g.v1["pids"]; dir != "" {
		errs = append(errs, set(&threads, dir+"/pids.current"))
		threads = max(threads-1, 0) // the guest's thread
	} else if g.v2 != "" {
		errs = append(errs, set(&threads, run+"/pids.current"))
	}
	u.PIDs = int(threads)
	if g.v2 != "" {
		us, _, err := readKey(run+"/cpu.stat", "usage_usec")
		u.CPU = time.Duration(us) * time.Microsecond
		if !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	} else if dir := g.v1["cpuacct"]; dir != "" {
		var ns int64
		errs = append(errs, set(&ns, dir+"/cpuacct.usage"))
		u.CPU = time.Duration(ns)
	}
	return u, errors.Join(errs...)
}

// Kill sends KILL to everything in the group, the guest included, however fast
// it forks. What is frozen dies too. It does not wait for the end of what it
// killed.
func (g *Group) Kill() error {
	if g.v2 != "" {
		err := write(g.v2+"/cgroup.kill", "1")
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		if !exists(g.v2) {
			return nil
		}
	}
	return g.signalAll()
}

// signalAll is Kill without cgroup.kill. It stands everything still first,
// where it can, and repeats until a round finds nobody new.
func (g *Group) signalAll() error {
	if f := g.freezer(); f != nil {
		if f.set(true) == nil {
			defer f.set(false) // what is frozen dies only when it thaws, in version 1
		}
	}
	seen := map[string]bool{}
	for range 1000 {
		again := false
		for _, dir := range g.dirs() {
			tids, err := members(dir)
			if err != nil {
				return err
			}
			for _, tid := range tids {
				who, err := g.killMember(tid)
				if err != nil {
					return err
				}
				again = again || (who != "" && !seen[who])
				seen[who] = true
			}
		}
		if !again {
			return nil
		}
	}
	return sandbox.Errorf(sandbox.Unavailable, "", "the sandbox makes processes faster than they can be killed")
}

// members returns the threads of the group at dir and of those below it.
// Version 1's cgroup.procs would leave out the guest, whose first thread is
// elsewhere.
func members(dir string) ([]int, error) {
	var tids []int
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		s, err := read(path + "/tasks")
		if errors.Is(err, unix.ENOENT) {
			s, err = read(path + "/cgroup.threads")
		}
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
			return err
		}
		for _, f := range strings.Fields(s) {
			if tid, err := strconv.Atoi(f); err == nil && tid > 0 {
				tids = append(tids, tid)
			}
		}
		return nil
	})
	return tids, err
}

// killMember kills the process of thread tid if that still is in the group,
// and returns what tells the thread from all others, "" if it was not there
// any more. The process is held by a pidfd (Linux 5.3) while that is looked
// up, so that no number can come to mean another.
func (g *Group) killMember(tid int) (string, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return "", nil
	}
	_, after, _ := strings.Cut(string(status), "\nTgid:")
	var pid int
	if _, err := fmt.Sscan(after, &pid); err != nil {
		return "", nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH || err == unix.EINVAL {
		return "", nil
	}
	if err != nil {
		return "", os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	task := fmt.Sprintf("/proc/%d/task/%d/", pid, tid)
	own, err := os.ReadFile(task + "cgroup")
	if err != nil || !slices.ContainsFunc(strings.FieldsFunc(string(own), func(r rune) bool { return r == '/' || r == '\n' }),
		func(name string) bool { return name == g.id }) {
		return "", nil
	}
	stat, err := os.ReadFile(task + "stat")
	if err != nil {
		return "", nil
	}
	// Field 22 is when it was started; the second may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 {
		return "", nil
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err == unix.ESRCH {
		return "", nil
	}
	return fmt.Sprint(tid, " ", fields[19]), os.NewSyscallError("pidfd_send_signal", err)
}

// A freezer is what freezes the group: version 2's file, or version 1's.
type freezer struct {
	file, on, off string
}

func (g *Group) freezer() *freezer {
	if g.v2 != "" && exists(g.v2+"/run/cgroup.freeze") {
		return &freezer{g.v2 + "/run/cgroup.freeze", "1", "0"}
	}
	if dir := g.v1["freezer"]; dir != "" {
		return &freezer{dir + "/freezer.state", "FROZEN", "THAWED"}
	}
	return nil
}

func (f *freezer) set(on bool) error {
	if on {
		return write(f.file, f.on)
	}
	return write(f.file, f.off)
}

// reached reports whether all stand still, or none does.
func (f *freezer) reached(on bool) (bool, error) {
	if f.on != "1" {
		s, err := read(f.file)
		return strings.TrimSpace(s) == map[bool]string{true: f.on, false: f.off}[on], err
	}
	n, ok, err := readKey(filepath.Dir(f.file)+"/cgroup.events", "frozen")
	return ok && (n == 1) == on, err
}

// Freeze stops everything that the guest started where it is and returns when
// all stand. With version 2 the guest itself goes on; in version 1 alone the
// thread that starts processes stands too, so the guest must not start any
// until Thaw. If ctx ends first all go on, and its error is returned.
func (g *Group) Freeze(ctx context.Context) error {
	f := g.freezer()
	if f == nil {
		return sandbox.Errorf(sandbox.Unsupported, "", "nothing here can stop a sandbox's processes").
			WithHint("it needs a cgroup hierarchy in which groups can be made")
	}
	if err := f.set(true); err != nil {
		return err
	}
	err := f.wait(ctx, true)
	if err != nil {
		f.set(false)
	}
	return err
}

// Thaw lets what Freeze stopped go on. To thaw what runs is no error.
func (g *Group) Thaw(ctx context.Context) error {
	f := g.freezer()
	if f == nil {
		return nil
	}
	if err := f.set(false); err != nil {
		return err
	}
	return f.wait(ctx, false)
}

func (f *freezer) wait(ctx context.Context, on bool) error {
	for delay := 100 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		done, err := f.reached(on)
		if done || err != nil {
			return err
		}
		if on && f.on == "FROZEN" {
			// Version 1 tries once per write; who was busy then is tried again.
			if err := f.set(true); err != nil {
				return err
			}
		}
		if err := sleep(ctx, delay); err != nil {
			return err
		}
	}
}

// Remove kills what is in the group and removes it, with groups that something
// made below. What is not there is no error. It waits for processes to end, at
// most until ctx ends or half a minute has passed; a process that hangs in the
// kernel is [sandbox.Unavailable], and Remove may be called again.
func (g *Group) Remove(ctx context.Context) error {
	g.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for delay := 100 * time.Microsecond; ; delay = min(2*delay, 50*time.Millisecond) {
		var busy error
		for _, dir := range g.dirs() {
			if err := rmdir(dir); errors.Is(err, unix.EBUSY) {
				busy = err
			} else if err != nil {
				return err
			}
		}
		if busy == nil {
			return nil
		}
		if err := g.Kill(); err != nil {
			return err
		}
		if sleep(ctx, delay) != nil {
			return &sandbox.Error{Kind: sandbox.Unavailable, Msg: "processes of the sandbox have not ended yet", Hint: "try again", Err: busy}
		}
	}
}

// rmdir removes the group at dir and those below it.
func rmdir(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	// EBUSY may be because of groups below.
	entries, rerr := os.ReadDir(dir)
	if errors.Is(rerr, os.ErrNotExist) {
		return nil
	}
	below := false
	for _, e := range entries {
		if e.IsDir() {
			below = true
			if err := rmdir(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if below {
		err = unix.Rmdir(dir)
	}
	if err == nil || err == unix.ENOENT {
		return nil
	}
	return &os.PathError{Op: "rmdir", Path: dir, Err: err}
}

// sleep waits for d, or returns ctx's error if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
