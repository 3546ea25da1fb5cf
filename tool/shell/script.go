package shell

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// quote returns s as one word of a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// find runs bash, or else sh.
const find = `if command -v bash >/dev/null; then exec bash --noprofile --norc; else exec sh; fi`

// hello is the first line that a shell reads. From here on its own output and
// complaints go nowhere; it answers with its pid.
const hello = `exec 7>&3 8>&1 9>&2 3>&- >/dev/null 2>&1; command printf 'H%s %s\0' "$$" "${BASHPID-}" >&7` + "\n"

// hideBash moves the three descriptors to numbers that nobody uses, and marks
// them close-on-exec: commands do not have them. There is no word for that in
// bash, but what it saves while a redirection holds, here at 10 or above, has
// the mark, and a copy of it has it as well (bash: do_redirection_internal).
// That they are the same is checked, as long as /proc is there.
var hideBash = func() string {
	var b strings.Builder
	for from := 7; from <= 9; from++ {
		to := from + 54
		fmt.Fprintf(&b, "for __atoll_n in 10 11 12 13 14 15 16 17 18 19; do { exec %[2]d>&$__atoll_n; } %[1]d>&-; [ /proc/$$/fd/%[2]d -ef /proc/$$/fd/%[1]d ] && break; done; "+
			"[ /proc/$$/fd/%[2]d -ef /proc/$$/fd/%[1]d ] || exec %[2]d>&%[1]d\n", from, to)
	}
	b.WriteString("exec 7>&- 8>&- 9>&-; unset __atoll_n\nshopt -s expand_aliases execfail\n")
	return b.String()
}()

// setup defines what the lines below call. C, O and E are the descriptors of
// control, standard output and standard error.
//
//	s  sets $? to what the last command left, without set -e seeing a failure
//	r  writes the word that ends a command's output, then reports that it has ended
//	d  tells all that a new shell needs to go on
//	x  runs when the shell exits, which may be in the middle of another record:
//	   so many NUL bytes end any
//	n  answers when it stands idle
//	m  says that a command's directory is missing
const setup = `__atoll_s() { return "$1"; }
__atoll_r() { set -- "$1" "$2" "$?"; CHECK; command printf %s "$1" >&O; command printf %s "$1" >&E; { case ${!-} in '') command printf 'R%s %s\0' "$2" "$3" ;; *) command printf 'R%s %s ' "$2" "$3"; command jobs -p; command printf '\0' ;; esac; command pwdPWD; command printf '\0'; } >&C || exit; }
__atoll_d() { { command pwdPWD; command printf '\0'; DUMP; command printf '\0'; } >&C 2>/dev/null; }
__atoll_x() { command printf '\0\0\0\0\0\0\0\0\0X%s\0' "$?" >&C; trap '' URG; __atoll_d; }
__atoll_n() { command printf 'S\0' >&C; __atoll_d; }
__atoll_m() { command printf 'M\0' >&C; return 1; }
`

// A dialect is a family of shells.
type dialect struct {
	bash    bool
	c, o, e string // descriptors: control, standard output, standard error
	hide    string // puts them there
	check   string // ends who is not the shell
	away    string // redirections that take them from a command
	dump    string // tells a state: its fields but for the directory
	trap    string // ends the command that runs
}

const next = `; command printf '\0'; `

var (
	bash = &dialect{
		bash: true,
		c:    "61", o: "62", e: "63",
		hide:  hideBash,
		check: ":",
		dump:  "shopt -p; declare -p" + next + "declare -f; declare -F" + next + "alias -p" + next + "umask" + next + "trap -p" + next + "set +o",
		// break reaches the loop around every command, but not out of a function.
		trap: `case ${#FUNCNAME[@]} in 0) break 9999;; esac; exit 130`,
	}
	posix = &dialect{
		c: "7", o: "8", e: "9",
		// In BusyBox's ash, command catches the errors of what it runs. It does so
		// in a subshell too, which then believes to be the shell, and reads on.
		// Where /proc shows other pids than the shell's they cannot be told. dash
		// has no read -n, and does not need it.
		hide: `__atoll_c() { read -r -n 10 __atoll_p </proc/self/stat; case $__atoll_p in "$$ "*) ;; *) return 1 ;; esac; }
__atoll_c || __atoll_c() { :; }
`,
		check: `__atoll_c || exit "$3"`,
		dump:  "set" + next + "export -p; readonly -p" + next + "alias" + next + "umask" + next + "trap" + next + "set +o",
		// An error unwinds whatever runs, up to the command that runs it all.
		trap: `exec 2>/dev/null; : "${__atoll_stop?}"`,
		away: " 7>&- 8>&- 9>&-",
	}
)

// prepare is what a new shell reads after hello.
func (d *dialect) prepare(physical bool) string {
	p := ""
	if physical {
		p = " -P"
	}
	return d.hide + strings.NewReplacer(">&C", ">&"+d.c, ">&O", ">&"+d.o, ">&E", ">&"+d.e, "PWD", p, "DUMP", d.dump, "CHECK", d.check).Replace(setup)
}

// traps are set last, so that none that was restored replaces them.
func (d *dialect) traps() string {
	return "trap __atoll_x EXIT; trap " + quote(d.trap) + " URG\n"
}

// report is the line after a command.
func report(nonce string, id ID) string { return "__atoll_r " + nonce + " " + id.String() + "\n" }

// line is what runs c in a shell whose last status was status, and stdin the
// file that c reads.
func (d *dialect) line(c *Command, status int, stdin string) string {
	var b strings.Builder
	b.Grow(len(c.Text) + 200)
	if c.Dir != "" {
		fmt.Fprintf(&b, "if \\command cd -- %s;then ", quote(c.Dir))
	}
	b.WriteString("for _ in _;do ")
	if status != 0 {
		fmt.Fprintf(&b, "__atoll_s %d&&:;", status)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		b.WriteString(k + "=" + quote(c.Env[k]) + " ")
	}
	// Elsewhere a syntax error in what eval gets would end the shell.
	if !d.bash {
		b.WriteString("\\command ")
	}
	b.WriteString("\\eval ")
	b.WriteString(quote(c.Text))
	errs := d.e
	if c.Merge {
		errs = d.o
	}
	b.WriteString(" <" + stdin + " >&" + d.o + " 2>&" + errs + d.away + ";done")
	if c.Dir != "" {
		b.WriteString(";else __atoll_m;fi")
	}
	b.WriteByte('\n')
	return b.String()
}

// killer is a script that ends what a command started, and leaves the rest. Its
// arguments are the pid of the shell, what to do, the age of the command in
// hundredths of a second, and the pids of processes that earlier commands left.
//
//	kill  URG to the shell, which then abandons the command; KILL to the command's
//	      children. A process that does not catch URG (23) is no shell any more:
//	      as all
//	int   URG to the shell; INT to the children
//	all   as kill, and the shell too, after telling its directory
//	rest  KILL to what is left of shells that have ended: of their sessions.
//	      The first argument then is their pids
//
// A child of the command is a descendant of the shell that is neither
// one of those pids, nor below one, nor older than the command; or one of
// the shell's session that is younger and has lost its parents. Reading /proc
// needs no fork. Ages are compared with the script's own, whose clock is theirs.
const killer = `shell=$1 how=$2 age=$3 left=" $4 " sid= seen=
stat() {
	l=; read -r l 2>/dev/null </proc/$1/stat || return 1
	l=${l##*) }; set -f; set -- $l; set +f
	st=$1 pp=$2 ss=$4; shift 10; t=${10}
	case $t in ''|*[!0-9]*) return 1 ;; esac
}
stat $$ || exit 3
since=$((t - age)) me=$$
if [ $how = rest ]; then
	for p in $shell; do [ -d /proc/$p ] || sid="$sid $p"; done
	[ -n "$sid" ] || exit 0
	shell= sid="$sid "
else
	stat $shell || exit 0
	[ "$ss" = $shell ] && sid=$ss
	while read -r k v; do
		[ "$k" = SigCgt: ] && [ $((0x$v & 0x400000)) = 0 ] && [ $how = kill ] && how=all
	done 2>/dev/null </proc/$shell/status
	[ $how = all ] && { cd -P /proc/$shell/cwd && pwd -P; cd /; }
	kill -URG $shell
	kill -CONT $shell
fi
n=0
while [ $n -lt 40 ]; do
	n=$((n + 1)) table=
	for p in /proc/[0-9]*; do
		p=${p#/proc/}
		stat $p || continue
		[ $p = $me ] && continue
		table="$table $p:$pp:$ss:$t:$st"
	done
	theirs=" $shell " members=" "
	for e in $table; do
		IFS=:; set -- $e; unset IFS
		[ "$3" = "$sid" ] && members="$members$1 "
	done
	more=1 hit=
	while [ -n "$more" ]; do
		more=
		for e in $table; do
			IFS=:; set -- $e; unset IFS
			case "$left$theirs" in *" $1 "*) continue ;; esac
			if [ $how = rest ]; then
				case $sid in *" $3 "*) ;; *) continue ;; esac
			else
				case $2 in
				$shell) [ $4 -ge $((since - 5)) ] || continue ;;
				*) case $theirs in
					*" $2 "*) ;;
					*)
						[ "$3" = "$sid" ] && [ $4 -ge $since ] || continue
						case $members in *" $2 "*) continue ;; esac ;;
					esac ;;
				esac
			fi
			theirs="$theirs$1 " more=1
			[ $5 = Z ] || hit="$hit $1"
		done
	done
	[ -n "$hit" ] || break
	[ $how = int ] && { kill -INT $hit 2>/dev/null; break; }
	kill -KILL $hit 2>/dev/null
done
[ $how = all ] && kill -KILL $shell
exit 0
`

func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }
