package inside

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/guest/proto"
)

// maxDatabase is how much of /etc/passwd and /etc/group is read.
const maxDatabase = 4 << 20

// An identity is whom a process runs as, or whom a file belongs to.
type identity struct {
	uid, gid int
	groups   []uint32 // the supplementary ones, gid included
	name     string   // "" if the id has none
	home     string
}

// users looks up users in the sandbox's own /etc/passwd and /etc/group, and
// remembers what it read as long as the files do not change.
type users struct {
	oneID bool

	mu     sync.Mutex
	passwd database
	group  database
	found  map[string]identity
}

// A database is one of the two files, and what it was when it was read.
type database struct {
	seen  fileVersion
	lines [][]byte
}

// find returns the user that spec ("", "name", "uid", "name:group", "uid:gid")
// stands for. "" is root. An id that no line has is what it says.
func (u *users) find(spec string) (identity, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	changed := u.passwd.refresh("/etc/passwd")
	if u.group.refresh("/etc/group") || changed {
		u.found = nil
	}
	if who, ok := u.found[spec]; ok {
		return who, nil
	}
	who, err := lookUp(spec, u.passwd.lines, u.group.lines)
	if err != nil {
		return identity{}, err
	}
	if len(u.found) > 64 {
		u.found = nil
	}
	if u.found == nil {
		u.found = make(map[string]identity)
	}
	u.found[spec] = who
	return who, nil
}

// lookUp is find over the lines of the two files.
func lookUp(spec string, passwd, group [][]byte) (identity, error) {
	name, grp, hasGroup := strings.Cut(spec, ":")
	if spec == "" {
		name = "0"
	}
	who := identity{home: "/"}
	id, isID := number(name)
	found := false
	for _, line := range passwd {
		f := fields(line, 7)
		if f == nil {
			continue
		}
		uid, ok1 := number(string(f[2]))
		gid, ok2 := number(string(f[3]))
		if !ok1 || !ok2 || !(string(f[0]) == name || isID && uid == id) {
			continue
		}
		who.uid, who.gid, who.name, found = uid, gid, string(f[0]), true
		if len(f[5]) > 0 && f[5][0] == '/' {
			who.home = string(f[5])
		}
		break
	}
	if !found {
		switch {
		case isID:
			who.uid = id // and gid 0, as Docker has it
		case name == "root":
			who.name, who.home = "root", "/root"
		default:
			return identity{}, &proto.Failure{Kind: kindNotExist, Field: "user", Msg: "there is no user " + quote(name), Hint: "use one of the sandbox's /etc/passwd, or a number"}
		}
	}
	if found || who.uid == 0 {
		if who.uid == 0 && !found {
			who.name, who.home = "root", "/root"
		}
	}
	if hasGroup {
		gid, isGID := number(grp)
		ok := isGID
		for _, line := range group {
			f := fields(line, 4)
			if f == nil || string(f[0]) != grp {
				continue
			}
			if n, isNum := number(string(f[2])); isNum {
				gid, ok = n, true
				break
			}
		}
		if !ok {
			return identity{}, &proto.Failure{Kind: kindNotExist, Field: "user", Msg: "there is no group " + quote(grp), Hint: "use one of the sandbox's /etc/group, or a number"}
		}
		who.gid = gid
	}
	who.groups = []uint32{uint32(who.gid)}
	if !hasGroup && who.name != "" {
		for _, line := range group {
			f := fields(line, 4)
			if f == nil {
				continue
			}
			gid, ok := number(string(f[2]))
			if !ok || gid == who.gid || !member(f[3], who.name) || slices.Contains(who.groups, uint32(gid)) {
				continue
			}
			if who.groups = append(who.groups, uint32(gid)); len(who.groups) == 1024 {
				break
			}
		}
	}
	return who, nil
}

// number reads a user or group id. The largest is kept for "no id".
func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil && n < 1<<32-1 && s[0] != '+'
}

// fields splits a line of passwd or group; nil if it has fewer than n fields.
func fields(line []byte, n int) [][]byte {
	f := bytes.Split(line, []byte(":"))
	if len(f) < n || len(f[0]) == 0 || f[0][0] == '#' {
		return nil
	}
	return f
}

// member reports whether a comma-separated list has name.
func member(list []byte, name string) bool {
	for len(list) > 0 {
		var one []byte
		one, list, _ = bytes.Cut(list, []byte(","))
		if string(one) == name {
			return true
		}
	}
	return false
}

// quote puts a name of the caller's into a message: what is not plain ASCII is
// escaped, and a long one is cut.
func quote(s string) string {
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	return strconv.Quote(s)
}

func splitLines(b []byte) [][]byte { return bytes.Split(b, []byte("\n")) }
