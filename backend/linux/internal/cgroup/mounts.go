//go:build linux

package cgroup

import (
	"bufio"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A mount is one mounted cgroup hierarchy.
type mount struct {
	point       string   // where it is mounted
	root        string   // which of its groups is at the mount point
	v2          bool     //
	controllers []string // of version 1, and "name=..." of a hierarchy without any
	readOnly    bool
}

// parseMounts reads the cgroup mounts out of /proc/self/mountinfo, whose
// format proc_pid_mountinfo(5) has. Lines that it does not understand are
// skipped: they cannot be ours.
func parseMounts(r io.Reader) []mount {
	var mounts []mount
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
		before, after, ok := strings.Cut(lines.Text(), " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 6 || len(tail) < 3 {
			continue
		}
		m := mount{root: unescape(head[3]), point: unescape(head[4])}
		switch tail[0] {
		case "cgroup2":
			m.v2 = true
		case "cgroup":
			for _, o := range strings.Split(tail[2], ",") {
				switch o {
				case "rw", "ro", "xattr", "clone_children", "noprefix", "none", "favordynmods", "cpuset_v2_mode":
				default:
					m.controllers = append(m.controllers, o)
				}
			}
		default:
			continue
		}
		m.readOnly = slices.Contains(strings.Split(head[5], ","), "ro") ||
			slices.Contains(strings.Split(tail[2], ","), "ro")
		mounts = append(mounts, m)
	}
	return mounts
}

// unescape undoes the octal escapes of blanks in mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseOwn reads a /proc/PID/cgroup (cgroups(7)) and returns the group in each
// hierarchy, keyed by controller, "name=..." or, for version 2, "".
func parseOwn(r io.Reader) map[string]string {
	own := map[string]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// 4:memory:/path and, for version 2, 0::/path
		id, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		names, path, ok := strings.Cut(rest, ":")
		if !ok || !strings.HasPrefix(path, "/") || (names == "" && id != "0") {
			continue
		}
		for _, name := range strings.Split(names, ",") {
			own[name] = path
		}
	}
	return own
}

// at returns the directory of the group that /proc names path, or "" if the
// mount does not show it.
func (m mount) at(path string) string {
	if m.root != "/" {
		rest, ok := strings.CutPrefix(path, m.root)
		if !ok || (rest != "" && rest[0] != '/') {
			return ""
		}
		path = rest
	}
	if slices.Contains(strings.Split(path, "/"), "..") {
		return "" // outside of our cgroup namespace
	}
	return filepath.Join(m.point, path)
}
