package shell

import (
	"strconv"
	"strings"
)

// maxState is how many bytes of a shell's state are taken; a larger state is
// not kept.
const maxState = 1 << 20

// A record is what a shell says on its control descriptor: fields, each ended
// by a NUL byte, of which the first begins with a letter.
type record struct {
	kind   byte
	head   string   // the rest of the first field
	fields []string // the others
	cut    bool     // a field was too long
}

// kinds says how many fields follow the first.
var kinds = map[byte]int{
	'H': 0,           // "pid bashpid": a new shell
	'R': 1,           // "id status jobs": a command has ended; the directory
	'M': 0,           // its directory is missing
	'X': stateFields, // "status": the shell exits
	'S': stateFields, // "": it stands idle
}

// A parser takes a stream apart. What is no record is skipped: commands
// cannot write there, unless they mean to.
type parser struct {
	field []byte
	left  int // fields that are missing
	size  int // of the record
	rec   record
}

// feed takes what comes next, and calls got with every record that it ends.
func (p *parser) feed(b []byte, got func(record)) {
	for _, c := range b {
		if c != 0 {
			if p.size++; p.size <= maxState {
				p.field = append(p.field, c)
			} else {
				p.rec.cut = true
			}
			continue
		}
		f := string(p.field)
		p.field = p.field[:0]
		if p.left > 0 {
			p.rec.fields = append(p.rec.fields, f)
			p.left--
		} else {
			n, ok := 0, false
			if f != "" {
				n, ok = kinds[f[0]]
			}
			if !ok {
				p.rec, p.size = record{}, 0
				continue
			}
			p.rec.kind, p.rec.head, p.left = f[0], f[1:], n
		}
		if p.left == 0 {
			got(p.rec)
			p.rec, p.size = record{}, 0
			if cap(p.field) > 1<<16 {
				p.field = nil
			}
		}
	}
}

// ended reads the head of a record that says that a command has ended.
func (r *record) ended() (id ID, status int, jobs []int, ok bool) {
	f := strings.Fields(r.head)
	if len(f) < 2 {
		return
	}
	n, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		return
	}
	if status, err = strconv.Atoi(f[1]); err != nil {
		return
	}
	for _, j := range f[2:] {
		if pid, err := strconv.Atoi(j); err == nil && len(jobs) < 1000 {
			jobs = append(jobs, pid)
		}
	}
	return ID(n), status, jobs, true
}

// dir is what pwd printed, without its newline. One that a command took away
// from under the shell may be "".
func dir(s string) string { return strings.TrimSuffix(s, "\n") }
