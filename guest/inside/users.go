package inside

import (
	"bytes"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/guest/proto"
)

// maxDatabase is how much of /etc/passwd and /etc/group is read. Whoever is in
// the sandbox may have written them, and the guest's memory is in no limit.
const maxDatabase = 1 << 20

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
	seen fileVersion
	text []byte
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
	who, err := lookUp(spec, u.passwd.text, u.group.text)
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

// lookUp is find over the text of the two files.
func lookUp(spec string, passwd, group []byte) (identity, error) {
	name, grp, hasGroup := strings.Cut(spec, ":")
	if spec == "" {
		name = "0"
	}
	who := identity{home: "/"}
	id, isID := number(name)
	found := false
	for f := range entries(passwd, 7) {
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
		case name == "root": // of a sandbox without /etc/passwd
		default:
			return identity{}, &proto.Failure{Kind: kindNotExist, Field: "user", Msg: "there is no user " + quote(name), Hint: "use one of the sandbox's /etc/passwd, or a number"}
		}
	}
	if !found && who.uid == 0 {
		who.name, who.home = "root", "/root"
	}
	if hasGroup {
		gid, isGID := number(grp)
		ok := isGID
		for f := range entries(group, 4) {
			if string(f[0]) != grp {
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
		for f := range entries(group, 4) {
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

// entries yields the lines of passwd or group, split into n fields or more, of
// which the last has the rest.
func entries(text []byte, n int) iter.Seq[[][]byte] {
	return func(yield func([][]byte) bool) {
		var room [8][]byte
		for len(text) > 0 {
			var line []byte
			line, text, _ = bytes.Cut(text, []byte("\n"))
			if len(line) == 0 || line[0] == '#' || line[0] == ':' {
				continue
			}
			f := room[:0]
			for more := true; more && len(f) < n; {
				var one []byte
				one, line, more = bytes.Cut(line, []byte(":"))
				f = append(f, one)
			}
			if len(f) == n && !yield(f) {
				return
			}
		}
	}
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
