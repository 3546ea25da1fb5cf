package shell

import (
	"slices"
	"strings"
)

// A state is what a shell told of itself, for the next one to go on with.
type state struct {
	dir     string
	vars    string // shopt -p and declare -p, or set
	more    string // functions, or export -p and readonly -p
	aliases string
	umask   string
	traps   string
	options string // set +o
}

// stateFields is how many fields a state has in a record.
const stateFields = 7

// state reads a record.
func (r *record) state() *state {
	f := r.fields
	return &state{dir(f[0]), f[1], f[2], f[3], f[4], f[5], f[6]}
}

// restore returns the lines that give a new shell the state, all but the
// directory. forget are variables that it does not get: those that the last
// command had for itself.
func (d *dialect) restore(s *state, forget []string) string {
	var b strings.Builder
	// Each is evaluated for itself: what fails in one, such as a variable that
	// no shell may set, does not keep the others away.
	eval := func(text string) {
		if text = strings.TrimSpace(text); text != "" {
			b.WriteString("\\command eval " + quote(text) + " </dev/null\n")
		}
	}
	if d.bash {
		eval(s.vars)
		eval(s.more)
	} else {
		var vars []string
		for _, v := range entries(s.vars) {
			name, _, ok := strings.Cut(v, "=")
			if !ok || slices.Contains(own, name) {
				continue
			}
			vars = append(vars, v)
		}
		eval(strings.Join(vars, "\n"))
		eval(s.more)
	}
	if len(forget) > 0 {
		eval("unset " + strings.Join(forget, " "))
	}
	var aliases []string
	for _, a := range entries(s.aliases) {
		if !strings.HasPrefix(a, "alias ") {
			a = "alias " + a
		}
		aliases = append(aliases, a)
	}
	eval(strings.Join(aliases, "\n"))
	if s.umask != "" {
		eval("umask " + s.umask)
	}
	eval(s.traps)
	// Last: with set -e, what fails afterwards would end the shell.
	eval(s.options)
	return b.String()
}

// own are variables that a shell sets itself.
var own = []string{"_", "PPID", "PWD", "LINENO", "FUNCNAME", "RANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME"}

// entries takes apart what set and alias print: one entry to a line, whose
// quoted parts may have newlines.
func entries(s string) []string {
	var all []string
	var quoted byte
	from := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted == 0 && c == '\\':
			i++
		case quoted == 0 && (c == '\'' || c == '"'):
			quoted = c
		case c == quoted:
			quoted = 0
		case c == '\n' && quoted == 0:
			if i > from {
				all = append(all, s[from:i])
			}
			from = i + 1
		}
	}
	if from < len(s) {
		all = append(all, s[from:])
	}
	return all
}
