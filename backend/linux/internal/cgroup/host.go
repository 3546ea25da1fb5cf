//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// A Mode says which hierarchies serve.
type Mode string

const (
	V2     Mode = "v2"     // version 2 does all
	Hybrid Mode = "hybrid" // version 1 keeps limits, version 2 kills and freezes
	V1     Mode = "v1"     // version 1 does all
	None   Mode = "none"   // no group can be made
)

// Options says where groups are made. The zero Options is the place that the
// package comment names.
type Options struct {
	// Parent is the group that groups are made in, an absolute path within
	// each hierarchy such as "/atoll". It is made if it is not there.
	Parent string
}

// A Host is what the machine lets us do with control groups. It does not
// change; it is safe for concurrent use.
type Host struct {
	Mode Mode

	// Why says in a sentence what serves, or why nothing does; Hint is the
	// command or step that would give more, "" if there is none.
	Why, Hint string

	v2     *tree
	v1     map[string]*tree // by controller; co-mounted ones share a tree
	parent string
}

// A tree is a hierarchy in which groups can be made.
type tree struct {
	point  string   // its mount point
	parent string   // the directory that groups are made in
	gives  []string // controllers that they get
	made   []string // directories that Detect made, outermost first
}

// wanted are the controllers that limits need, in version 2's names.
var wanted = []string{"memory", "pids", "cpu"}

// leaf is the group that the daemon moves to. It cannot be an ID, which has
// eight characters and more.
const leaf = "daemon"

// Detect finds out by trying. It makes the parent group where there is none,
// and may move the calling process into a child of its own group, as the
// package comment says. That no group can be made is not an error but Mode
// None; a bad Parent is [sandbox.Invalid].
func Detect(opt Options) (*Host, error) {
	if p := opt.Parent; p != "" && (!path.IsAbs(p) || path.Clean(p) != p || p == "/") {
		return nil, sandbox.Errorf(sandbox.Invalid, "parent", "%q is not the path of a group", p).
			WithHint(`it is absolute and clean, such as "/atoll"`)
	}
	info, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return &Host{Mode: None, Why: "control groups cannot be looked for: " + err.Error()}, nil
	}
	mounts := parseMounts(info)
	info.Close()
	own := map[string]string{}
	if f, err := os.Open("/proc/self/cgroup"); err == nil {
		own = parseOwn(f)
		f.Close()
	}
	return detect(opt, mounts, own, os.Geteuid() == 0), nil
}

func detect(opt Options, mounts []mount, own map[string]string, root bool) *Host {
	h := &Host{Mode: None, v1: map[string]*tree{}, parent: opt.Parent}
	if h.parent == "" && root {
		h.parent = "/atoll"
	}
	mounts = slices.Clone(mounts)
	for i := len(mounts) - 1; i >= 0; i-- {
		over := func(m mount) bool { return m.point == mounts[i].point }
		if slices.ContainsFunc(mounts[i+1:], over) {
			mounts = slices.Delete(mounts, i, i+1) // hidden below another
		}
	}
	var not []string // why not
	for _, m := range mounts {
		if m.v2 && h.v2 == nil {
			t, err := v2tree(m, h.parent, own[""])
			if err != nil {
				not = append(not, "cgroup v2: "+err.Error())
				continue
			}
			h.v2 = t
		}
	}
	for _, m := range mounts {
		for _, c := range m.controllers {
			switch c {
			case "memory", "pids", "cpu", "cpuacct", "freezer":
			default:
				continue
			}
			if h.v1[c] != nil {
				continue
			}
			t, err := v1tree(m, h.parent)
			if err != nil {
				not = append(not, "cgroup v1 "+c+": "+err.Error())
				continue
			}
			for _, c := range m.controllers {
				h.v1[c] = t
			}
		}
	}
	h.say(len(mounts) > 0, root, not)
	return h
}

// say sets Mode, Why and Hint.
func (h *Host) say(mounted, root bool, not []string) {
	var by2, by1, none []string
	for _, c := range wanted {
		switch h.Means(c) {
		case "cgroup v2":
			by2 = append(by2, c)
		case "cgroup v1":
			by1 = append(by1, c)
		default:
			none = append(none, c)
		}
	}
	var does []string
	if len(by2) > 0 {
		does = append(does, "v2 limits "+strings.Join(by2, ", "))
	}
	if len(by1) > 0 {
		does = append(does, "v1 limits "+strings.Join(by1, ", "))
	}
	switch {
	case h.v2 != nil && len(by1) > 0:
		h.Mode = Hybrid
		does = append(does, "v2 kills and freezes")
	case h.v2 != nil:
		h.Mode = V2
		if len(by2) == 0 {
			does = append(does, "v2 kills and freezes")
		}
	case len(h.v1) > 0:
		h.Mode = V1
	}
	switch {
	case h.Mode != None:
		h.Why = strings.Join(does, "; ")
	case !mounted:
		h.Why = "no cgroup hierarchy is mounted"
	default:
		h.Why = "no group can be made"
	}
	if len(none) > 0 && h.Mode != None {
		h.Why += "; nothing limits " + strings.Join(none, ", ")
	}
	if len(none) > 0 && len(not) > 0 {
		h.Why += " (" + strings.Join(not, "; ") + ")"
	}
	if len(none) == 0 {
		return
	}
	switch {
	case root && !mounted:
		h.Hint = "mount -t cgroup2 none /sys/fs/cgroup"
	case root:
		h.Hint = "in a container, give it a writable cgroup namespace of its own: docker run --cgroupns private with /sys/fs/cgroup mounted rw"
	default:
		h.Hint = "systemd-run --user --scope -p Delegate=yes atoll serve"
	}
}

// Means says what would keep a limit ("memory", "pids", "cpu"): "cgroup v2",
// "cgroup v1", or "" if nothing would.
func (h *Host) Means(limit string) string {
	if h.v2 != nil && slices.Contains(h.v2.gives, limit) {
		return "cgroup v2"
	}
	if h.v1[limit] != nil {
		return "cgroup v1"
	}
	return ""
}

// Close removes the parent groups that Detect made, if nothing is in them.
// Groups of sandboxes stay. No other method is called after it.
func (h *Host) Close() error {
	for _, t := range h.trees() {
		for _, dir := range slices.Backward(t.made) {
			if unix.Rmdir(dir) != nil {
				break
			}
		}
	}
	return nil
}

// trees returns each tree once, version 2 first.
func (h *Host) trees() []*tree {
	var trees []*tree
	if h.v2 != nil {
		trees = append(trees, h.v2)
	}
	for _, c := range []string{"memory", "pids", "cpu", "cpuacct", "freezer"} {
		if t := h.v1[c]; t != nil && !slices.Contains(trees, t) {
			trees = append(trees, t)
		}
	}
	return trees
}

// Groups returns the ids of the groups that are there, sorted. Other daemons'
// may be among them.
func (h *Host) Groups() ([]string, error) {
	var ids []string
	for _, t := range h.trees() {
		entries, err := os.ReadDir(t.parent)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && isID(e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// isID reports whether name can be that of a sandbox's group, which is a
// [sandbox.ID].
func isID(name string) bool {
	if len(name) < 8 || len(name) > 40 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// v1tree makes the parent group in a version 1 hierarchy.
func v1tree(m mount, parent string) (*tree, error) {
	switch {
	case m.readOnly:
		return nil, errors.New(m.point + " is mounted read-only")
	case parent == "":
		return nil, errors.New("is for root alone")
	case slices.Contains(m.controllers, "cpuset"):
		// A new cpuset has no processor, and nobody can join it.
		return nil, errors.New("is mounted together with cpuset")
	}
	t := &tree{point: m.point, parent: filepath.Join(m.point, parent), gives: m.controllers}
	if err := t.mkdirs(nil); err != nil {
		return nil, err
	}
	return t, nil
}

// v2tree makes the parent group in version 2, or takes our own where parent
// is "" or cannot be made, and lets its children have what controllers it can.
func v2tree(m mount, parent, own string) (*tree, error) {
	if m.readOnly {
		return nil, errors.New(m.point + " is mounted read-only")
	}
	if parent != "" {
		t := &tree{point: m.point, parent: filepath.Join(m.point, parent)}
		err := t.mkdirs(t.delegate)
		if err == nil {
			t.settle()
			return t, nil
		}
		if parent != "/atoll" {
			return nil, err
		}
	}
	dir := m.at(own)
	if dir == "" {
		return nil, errors.New("our own group is not visible")
	}
	if path.Base(dir) == leaf {
		dir = path.Dir(dir) // where an earlier Detect of this process has moved it
	}
	for _, p := range []string{dir, filepath.Join(dir, "cgroup.procs")} {
		if err := unix.Access(p, unix.W_OK); err != nil {
			return nil, fmt.Errorf("our own group %s is not ours to divide: %w", dir, err)
		}
	}
	t := &tree{point: m.point, parent: dir}
	t.settle()
	return t, nil
}

// mkdirs makes the parent and what is missing above it, calling each for every
// group from the mount point to above the parent.
func (t *tree) mkdirs(each func(dir string)) error {
	rel, err := filepath.Rel(t.point, t.parent)
	if err != nil {
		return err
	}
	dir := t.point
	for _, name := range strings.Split(rel, "/") {
		if each != nil {
			each(dir)
		}
		dir = filepath.Join(dir, name)
		err := unix.Mkdir(dir, 0o755)
		if err != nil && err != unix.EEXIST {
			return &os.PathError{Op: "mkdir", Path: dir, Err: err}
		}
		if err == nil {
			t.made = append(t.made, dir)
		}
	}
	// What is there already may still not be ours.
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return &os.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}

// settle lets the children of the parent have controllers, and notes which
// they get.
func (t *tree) settle() {
	t.delegate(t.parent)
	on, err := read(filepath.Join(t.parent, "cgroup.subtree_control"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(on) {
		if slices.Contains(wanted, c) {
			t.gives = append(t.gives, c)
		}
	}
}

// delegate lets the children of dir have the wanted controllers that dir has.
// That it fails shows in what they then have.
func (t *tree) delegate(dir string) {
	has, err := read(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	on, err := read(file)
	if err != nil {
		return
	}
	for _, c := range wanted {
		if !slices.Contains(strings.Fields(has), c) || slices.Contains(strings.Fields(on), c) {
			continue
		}
		err := write(file, "+"+c)
		if errors.Is(err, unix.EBUSY) && stepDown(dir) {
			write(file, "+"+c)
		}
	}
}

// stepDown moves this process from dir, if it is there, to the leaf below. It
// reports whether it did.
func stepDown(dir string) bool {
	procs, err := read(filepath.Join(dir, "cgroup.procs"))
	if err != nil || !slices.Contains(strings.Fields(procs), strconv.Itoa(os.Getpid())) {
		return false
	}
	to := filepath.Join(dir, leaf)
	if err := unix.Mkdir(to, 0o755); err != nil && err != unix.EEXIST {
		return false
	}
	return write(filepath.Join(to, "cgroup.procs"), "0") == nil
}
