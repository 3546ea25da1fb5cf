package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"
)

// A shell interprets scripts in a process. Parsing and expansion are those of
// mvdan.cc/sh; that its interpreter could not be used is said in
// docs/decisions/memory-shell.md.
type shell struct {
	p      *Proc
	cfg    *expand.Config
	lang   syntax.LangVariant
	vars   map[string]expand.Variable
	scopes []map[string]expand.Variable // what the functions' locals hide
	funcs  map[string]*syntax.Stmt
	name   string   // $0
	args   []string // $1 and up
	pid    int      // $$
	last   int      // $?
	bg     int      // $!
	jobs   map[int]*Proc
	traps  map[sandbox.Signal]string
	onExit string
	sub    bool // a subshell

	errexit, nounset, xtrace, noglob bool

	tested int // inside a condition, where errexit does not count
	loops  int
	depth  int
	flow   flow
	levels int // of break and continue
}

// flow is where control goes after a command.
type flow int

const (
	goOn flow = iota
	breaking
	continuing
	returning
	exiting
)

func runShell(p *Proc) int {
	sh := &shell{
		p: p, lang: syntax.LangPOSIX, vars: make(map[string]expand.Variable), funcs: make(map[string]*syntax.Stmt),
		name: p.Args[0], pid: p.pid, jobs: make(map[int]*Proc), traps: make(map[sandbox.Signal]string),
	}
	if path.Base(p.Args[0]) == "bash" {
		sh.lang = syntax.LangBash
	}
	for k, v := range p.Env {
		sh.vars[k] = expand.Variable{Set: true, Exported: true, Kind: expand.String, Str: v}
	}
	sh.assign("PWD", p.Dir())
	sh.configure()

	args := p.Args[1:]
	script, interactive := "", false
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		a := args[0]
		args = args[1:]
		if a == "--" {
			break
		}
		if a == "--login" || a == "--norc" || a == "--noprofile" {
			continue
		}
		for _, c := range a[1:] {
			switch c {
			case 'c':
				script = "c"
			case 'i':
				interactive = true
			case 's', 'l':
			default:
				sh.option(c, a[0] == '-')
			}
		}
	}
	switch {
	case script == "c":
		if len(args) == 0 {
			return p.fail("-c requires an argument") + 1
		}
		text := args[0]
		if len(args) > 1 {
			sh.name, sh.args = args[1], args[2:]
		}
		sh.script(text, true)
	case len(args) > 0:
		text, err := p.slurp(args[0])
		if err != nil {
			p.fail("%s: %v", args[0], err)
			return 127
		}
		sh.name, sh.args = args[0], args[1:]
		sh.script(string(text), true)
	default:
		sh.interact(interactive)
	}
	return sh.exit()
}

// exit runs the EXIT trap and returns the shell's code.
func (sh *shell) exit() int {
	if t := sh.onExit; t != "" && !sh.sub {
		sh.onExit = ""
		code := sh.last
		sh.flow = goOn
		sh.script(t, false)
		if sh.flow != exiting {
			sh.last = code
		}
	}
	return sh.last
}

func (sh *shell) parser() *syntax.Parser { return syntax.NewParser(syntax.Variant(sh.lang)) }

// maxDepth is how deep functions, eval and the like may nest. Go's stack ends
// the whole test, not the script.
const maxDepth = 500

// deeper notes that a script or function runs inside another, and reports
// whether it may.
func (sh *shell) deeper() bool {
	sh.depth++
	if sh.depth > maxDepth {
		sh.stop(errors.New("the nesting is too deep"))
		return false
	}
	return true
}

// script runs text command by command. If it is the last that this process
// does, the last command may take its place.
func (sh *shell) script(text string, tail bool) {
	defer func() { sh.depth-- }()
	if !sh.deeper() {
		return
	}
	var held *syntax.Stmt // runs when it is known whether it is the last
	for st, err := range sh.parser().StmtsSeq(strings.NewReader(text)) {
		// The loop is never left: after some errors the parser yields once
		// more, and would panic.
		if held != nil {
			sh.stmt(held, false)
			held = nil
		}
		switch {
		case sh.flow != goOn:
		case err != nil:
			sh.syntaxError(err)
		default:
			held = st
		}
	}
	if held != nil {
		sh.stmt(held, tail)
	}
}

func (sh *shell) syntaxError(err error) {
	fmt.Fprintf(sh.p.Stderr(), "%s: Syntax error: %v\n", sh.name, err)
	sh.last, sh.flow = 2, exiting
}

// interact reads commands from the standard input, byte by byte so that they
// can read what follows.
func (sh *shell) interact(interactive bool) {
	sh.p.sys(func() error {
		for _, fd := range []int{0, 2} {
			f := sh.p.fds[fd]
			if f == nil {
				return nil
			}
			if _, ok := f.stream.(ttyFile); !ok {
				return nil
			}
		}
		interactive = true
		return nil
	})
	prompt := func() {}
	if interactive {
		sh.p.sys(func() error {
			sh.p.traps[sandbox.INT], sh.p.traps[sandbox.TERM], sh.p.traps[sandbox.QUIT] = trapCatch, trapIgnore, trapIgnore
			return nil
		})
		prompt = func() {
			ps := "$ "
			if sh.p.who.uid == 0 {
				ps = "# "
			}
			if v, ok := sh.vars["PS1"]; ok {
				ps = v.Str
			}
			io.WriteString(sh.p.Stderr(), ps)
		}
	}
	prompt()
	parser := sh.parser()
	over := false
	for stmts, err := range parser.InteractiveSeq(oneByte{sh.p, &over}) {
		switch { // the loop is never left, as in script
		case over:
			continue
		case err != nil:
			sh.syntaxError(err)
			over = true
			continue
		case parser.Incomplete():
			continue
		}
		for _, st := range stmts {
			sh.stmt(st, false)
			if sh.flow != goOn {
				if interactive && sh.flow != exiting {
					sh.flow = goOn
					break
				}
				over = true
				break
			}
		}
		if !over {
			prompt()
		}
	}
}

// oneByte reads the standard input byte by byte until over is set.
type oneByte struct {
	p    *Proc
	over *bool
}

func (r oneByte) Read(b []byte) (int, error) {
	if *r.over {
		return 0, io.EOF
	}
	return r.p.read(0, b[:1])
}

// configure sets up expansion.
func (sh *shell) configure() {
	sh.cfg = &expand.Config{
		Env:     environ{sh},
		NoUnset: sh.nounset,
		CmdSubst: func(w io.Writer, cs *syntax.CmdSubst) error {
			return sh.substitute(w, cs.Stmts)
		},
		ProcSubst: func(*syntax.ProcSubst) (string, error) {
			return "", errors.New("this shell does not know <(…)")
		},
	}
	if !sh.noglob {
		sh.cfg.ReadDir2 = func(dir string) ([]fs.DirEntry, error) {
			if dir == "" {
				dir = "."
			}
			var entries []fs.DirEntry
			err := sh.p.at(dir, true, func(at place) error {
				if at.node == nil || !at.node.isDir() {
					return enotdir
				}
				for _, name := range at.node.names() {
					entries = append(entries, dirEntry{name, at.node.entries[name].mode})
				}
				return nil
			})
			return entries, err
		}
	}
}

type dirEntry struct {
	name string
	mode fs.FileMode
}

func (e dirEntry) Name() string               { return e.name }
func (e dirEntry) IsDir() bool                { return e.mode.IsDir() }
func (e dirEntry) Type() fs.FileMode          { return e.mode.Type() }
func (e dirEntry) Info() (fs.FileInfo, error) { return e, nil }
func (e dirEntry) Size() int64                { return 0 }
func (e dirEntry) Mode() fs.FileMode          { return e.mode }
func (e dirEntry) ModTime() time.Time         { return time.Time{} }
func (e dirEntry) Sys() any                   { return nil }

// environ shows the shell's variables to package expand.
type environ struct{ sh *shell }

func (e environ) Get(name string) expand.Variable {
	sh := e.sh
	str := func(s string) expand.Variable { return expand.Variable{Set: true, Kind: expand.String, Str: s} }
	switch name {
	case "#":
		return str(strconv.Itoa(len(sh.args)))
	case "@", "*":
		return expand.Variable{Set: true, Kind: expand.Indexed, List: sh.args}
	case "?":
		return str(strconv.Itoa(sh.last))
	case "$":
		return str(strconv.Itoa(sh.pid))
	case "PPID":
		return str(strconv.Itoa(sh.p.ppid))
	case "!":
		if sh.bg == 0 {
			return expand.Variable{}
		}
		return str(strconv.Itoa(sh.bg))
	case "-":
		return str("")
	case "0":
		return str(sh.name)
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n > 0 && n <= len(sh.args) {
			return str(sh.args[n-1])
		}
		return expand.Variable{}
	}
	if user, ok := strings.CutPrefix(name, "HOME "); ok {
		home := ""
		sh.p.sys(func() error {
			if row := sh.p.k.row("passwd", user, 0, false); len(row) >= 6 {
				home = row[5]
			}
			return nil
		})
		return str(home)
	}
	return sh.vars[name]
}

func (e environ) Each(f func(string, expand.Variable) bool) {
	for k, v := range e.sh.vars {
		if !f(k, v) {
			return
		}
	}
}

func (e environ) Set(name string, v expand.Variable) error {
	old := e.sh.vars[name]
	if old.ReadOnly {
		return fmt.Errorf("%s: is read only", name)
	}
	if !v.IsSet() {
		delete(e.sh.vars, name)
		return nil
	}
	v.Exported = v.Exported || old.Exported
	e.sh.vars[name] = v
	return nil
}

// assign sets a variable, which stays exported if it was.
func (sh *shell) assign(name, value string) error {
	return environ{sh}.Set(name, expand.Variable{Set: true, Kind: expand.String, Str: value})
}

// env returns what a child's environment is.
func (sh *shell) env() map[string]string {
	env := make(map[string]string)
	for k, v := range sh.vars {
		if v.Exported && v.IsSet() {
			env[k] = v.String()
		}
	}
	return env
}

func (sh *shell) complain(format string, args ...any) {
	fmt.Fprintf(sh.p.Stderr(), sh.name+": "+format+"\n", args...)
}

// stop ends the shell, as errors of expansion do.
func (sh *shell) stop(err error) {
	sh.complain("%v", err)
	sh.last, sh.flow = 2, exiting
}

// stmts runs commands one after the other.
func (sh *shell) stmts(list []*syntax.Stmt, tail bool) {
	for i, st := range list {
		sh.stmt(st, tail && i == len(list)-1)
		if sh.flow != goOn {
			return
		}
	}
}

// condition runs commands whose failure is an answer.
func (sh *shell) condition(list []*syntax.Stmt) bool {
	sh.tested++
	sh.stmts(list, false)
	sh.tested--
	return sh.last == 0
}

// stmt runs one command. With tail the process ends after it.
func (sh *shell) stmt(st *syntax.Stmt, tail bool) {
	tail = tail && len(sh.traps) == 0 && sh.onExit == "" && !st.Negated
	if st.Background {
		sh.background(st)
	} else {
		if st.Negated {
			sh.tested++
		}
		sh.redirected(st, tail)
		if st.Negated {
			sh.tested--
			if sh.flow == goOn {
				sh.last = map[bool]int{true: 1, false: 0}[sh.last == 0]
			}
		}
	}
	sh.trapped()
	if sh.errexit && sh.last != 0 && sh.tested == 0 && sh.flow == goOn && !st.Negated && !st.Background {
		if b, ok := st.Cmd.(*syntax.BinaryCmd); ok && (b.Op == syntax.AndStmt || b.Op == syntax.OrStmt) {
			return // decided inside
		}
		sh.flow = exiting
	}
}

// trapped runs the traps of the signals that came.
func (sh *shell) trapped() {
	for sh.flow == goOn {
		var sig sandbox.Signal
		sh.p.sys(func() error {
			if len(sh.p.pending) > 0 {
				sig, sh.p.pending = sh.p.pending[0], sh.p.pending[1:]
			}
			return nil
		})
		if sig == "" {
			return
		}
		code := sh.last
		sh.script(sh.traps[sig], false)
		if sh.flow == goOn {
			sh.last = code
		}
	}
}

// subshell returns a copy of sh for a child.
func (sh *shell) subshell(c *Proc) *shell {
	s := *sh
	s.p, s.sub = c, true
	s.vars = maps.Clone(sh.vars)
	s.funcs = maps.Clone(sh.funcs)
	s.args = slices.Clone(sh.args)
	s.jobs, s.traps, s.onExit = make(map[int]*Proc), make(map[sandbox.Signal]string), ""
	s.scopes, s.loops = nil, 0
	s.configure()
	return &s
}

// fork runs list in a child process with the given open files.
func (sh *shell) fork(list []*syntax.Stmt, fds map[int]*file, async bool) (*Proc, error) {
	// The copy is made before the child runs: the shell goes on meanwhile.
	s := sh.subshell(nil)
	return sh.p.spawn(plan{fds: fds, env: sh.env(), prog: func(c *Proc) int {
		s.p = c
		if async {
			c.sys(func() error {
				c.traps[sandbox.INT], c.traps[sandbox.QUIT] = trapIgnore, trapIgnore
				return nil
			})
		}
		s.stmts(list, true)
		return s.last
	}})
}

func (sh *shell) background(st *syntax.Stmt) {
	inner := *st
	inner.Background = false
	fds := maps.Clone(sh.p.fds)
	fds[0] = &file{stream: devFile{devNull}}
	c, err := sh.fork([]*syntax.Stmt{&inner}, fds, true)
	if err != nil {
		sh.stop(fmt.Errorf("cannot fork: %w", err))
		return
	}
	sh.bg, sh.last = c.pid, 0
	sh.jobs[c.pid] = c
}

// substitute runs list and hands its output to w.
func (sh *shell) substitute(w io.Writer, list []*syntax.Stmt) error {
	r, wr := sh.pipe()
	fds := maps.Clone(sh.p.fds)
	fds[1] = wr
	c, err := sh.fork(list, fds, false)
	sh.drop(wr)
	if err != nil {
		sh.drop(r)
		return err
	}
	fd := sh.p.install(r)
	sh.drop(r)
	_, err = io.Copy(w, fdReader{sh.p, fd})
	sh.p.closeFD(fd)
	sh.last = sh.p.reap(c).shell()
	return err
}

// pipe returns the two ends of a new pipe, which the caller drops.
func (sh *shell) pipe() (r, w *file) {
	sh.p.sys(func() error {
		pi := newPipe(sh.p.k)
		r, w = pi.reader(), pi.writer()
		r.refs++
		w.refs++
		return nil
	})
	return r, w
}

func (sh *shell) drop(f *file) { sh.p.sys(func() error { f.release(); return nil }) }

// redirected runs st's command with st's redirections.
func (sh *shell) redirected(st *syntax.Stmt, tail bool) {
	var undo []func()
	defer func() {
		for _, f := range slices.Backward(undo) {
			f()
		}
	}()
	for _, r := range st.Redirs {
		u, err := sh.redirect(r)
		if err != nil {
			sh.complain("%v", err)
			sh.last = 2
			return
		}
		undo = append(undo, u)
	}
	if call, ok := st.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
		if lit := call.Args[0].Lit(); lit == "exec" {
			sh.command(st.Cmd, tail)
			if sh.flow == goOn { // without a command, the redirections stay
				for i := range undo {
					undo[i]()
				}
				undo = nil
				for _, r := range st.Redirs {
					sh.redirect(r)
				}
			}
			return
		}
	}
	sh.command(st.Cmd, tail)
}

// redirect changes the process's open files and returns what undoes it.
func (sh *shell) redirect(r *syntax.Redirect) (undo func(), err error) {
	fd := 1
	switch r.Op {
	case syntax.RdrIn, syntax.DplIn, syntax.RdrInOut, syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		fd = 0
	}
	if r.N != nil {
		if fd, err = strconv.Atoi(r.N.Value); err != nil {
			return nil, fmt.Errorf("%s: bad file descriptor", r.N.Value)
		}
	}
	var f *file
	text := func(s string) *file {
		return &file{stream: &nodeFile{b: sh.p.k, node: &inode{vol: &volume{}, data: []byte(s)}, readable: true}}
	}
	word := ""
	if r.Op == syntax.Hdoc || r.Op == syntax.DashHdoc {
		if r.Hdoc != nil {
			if word, err = expand.Document(sh.cfg, r.Hdoc); err != nil {
				return nil, err
			}
		}
	} else if word, err = expand.Literal(sh.cfg, r.Word); err != nil {
		return nil, err
	}
	how := 0
	both := false
	switch r.Op {
	case syntax.RdrIn:
		how = forRead
	case syntax.RdrOut, syntax.RdrClob:
		how = forWrite | create | truncate
	case syntax.AppOut:
		how = forWrite | create | appending
	case syntax.RdrInOut:
		how = forRead | forWrite | create
	case syntax.RdrAll:
		how, both = forWrite|create|truncate, true
	case syntax.AppAll:
		how, both = forWrite|create|appending, true
	case syntax.Hdoc, syntax.DashHdoc:
		f = text(word)
	case syntax.WordHdoc:
		f = text(word + "\n")
	case syntax.DplIn, syntax.DplOut:
		if word == "-" {
			return sh.replace(fd, nil), nil
		}
		n, err := strconv.Atoi(word)
		if err == nil {
			sh.p.sys(func() error { f = sh.p.fds[n]; return nil })
		}
		if err != nil || f == nil {
			return nil, fmt.Errorf("%s: %v", word, ebadf)
		}
	default:
		return nil, fmt.Errorf("%s: this redirection is not known", r.Op)
	}
	if how != 0 {
		if f, err = sh.p.open(word, how); err != nil {
			return nil, fmt.Errorf("cannot open %s: %v", word, err)
		}
	}
	undo = sh.replace(fd, f)
	if both {
		first, second := undo, sh.replace(2, f)
		undo = func() { second(); first() }
	}
	return undo, nil
}

// replace makes f (or nothing) descriptor fd. The old one is kept below zero,
// where it is closed when the process is killed and no child gets it.
func (sh *shell) replace(fd int, f *file) (undo func()) {
	p := sh.p
	hidden := 0
	p.enter()
	if f != nil {
		f.refs++
	}
	if old := p.fds[fd]; old != nil {
		for hidden = -1; p.fds[hidden] != nil; hidden-- {
		}
		p.fds[hidden] = old
	}
	delete(p.fds, fd)
	if f != nil {
		p.fds[fd] = f
	}
	p.leave()
	return func() {
		p.enter()
		if now := p.fds[fd]; now != nil {
			now.release()
			delete(p.fds, fd)
		}
		if hidden < 0 {
			p.fds[fd] = p.fds[hidden]
			delete(p.fds, hidden)
		}
		p.leave()
	}
}

// command runs a command of any form.
func (sh *shell) command(cmd syntax.Command, tail bool) {
	switch c := cmd.(type) {
	case nil:
		sh.last = 0
	case *syntax.CallExpr:
		sh.call(c, tail)
	case *syntax.Block:
		sh.last = 0
		sh.stmts(c.Stmts, tail)
	case *syntax.Subshell:
		if tail {
			sh.sub = true
			sh.stmts(c.Stmts, true)
			return
		}
		child, err := sh.fork(c.Stmts, nil, false)
		if err != nil {
			sh.stop(err)
			return
		}
		sh.last = sh.p.reap(child).shell()
	case *syntax.BinaryCmd:
		switch c.Op {
		case syntax.AndStmt, syntax.OrStmt:
			sh.tested++
			sh.stmt(c.X, false)
			sh.tested--
			if sh.flow == goOn && (sh.last == 0) == (c.Op == syntax.AndStmt) {
				sh.stmt(c.Y, tail)
			}
		default:
			sh.pipeline(c)
		}
	case *syntax.IfClause:
		sh.ifClause(c, tail)
	case *syntax.WhileClause:
		code := 0
		sh.loop(func() bool {
			if ok := sh.condition(c.Cond); sh.flow != goOn || ok == c.Until {
				return false
			}
			sh.stmts(c.Do, false)
			code = sh.last
			return true
		})
		if sh.flow == goOn {
			sh.last = code
		}
	case *syntax.ForClause:
		sh.forClause(c)
	case *syntax.CaseClause:
		sh.caseClause(c, tail)
	case *syntax.FuncDecl:
		if c.Name == nil {
			sh.stop(errors.New("a function has no name"))
			return
		}
		sh.funcs[c.Name.Value] = c.Body
		sh.last = 0
	case *syntax.DeclClause:
		args := []string{c.Variant.Value}
		for _, a := range c.Args {
			if a.Name == nil {
				f, err := expand.Fields(sh.cfg, a.Value)
				if err != nil {
					sh.stop(err)
					return
				}
				args = append(args, f...)
				continue
			}
			arg := a.Name.Value
			if !a.Naked {
				v := ""
				if a.Value != nil {
					var err error
					if v, err = expand.Literal(sh.cfg, a.Value); err != nil {
						sh.stop(err)
						return
					}
				}
				arg += "=" + v
			}
			args = append(args, arg)
		}
		sh.simple(args, tail)
	case *syntax.ArithmCmd:
		n, err := expand.Arithm(sh.cfg, c.X)
		if err != nil {
			sh.stop(err)
			return
		}
		sh.last = map[bool]int{true: 0, false: 1}[n != 0]
	case *syntax.TimeClause:
		if c.Stmt != nil {
			sh.stmt(c.Stmt, false)
		}
	default:
		sh.stop(fmt.Errorf("this shell does not know %T", cmd))
	}
}

func (sh *shell) ifClause(c *syntax.IfClause, tail bool) {
	if len(c.Cond) == 0 { // else
		sh.stmts(c.Then, tail)
		return
	}
	ok := sh.condition(c.Cond)
	switch {
	case sh.flow != goOn:
	case ok:
		sh.stmts(c.Then, tail)
	case c.Else != nil:
		sh.ifClause(c.Else, tail)
	default:
		sh.last = 0
	}
}

// loop calls body until it returns false, minding break and continue.
func (sh *shell) loop(body func() bool) {
	sh.loops++
	defer func() { sh.loops-- }()
	for body() {
		switch sh.flow {
		case goOn:
			continue
		case breaking, continuing:
			sh.levels--
			if sh.levels > 0 {
				return
			}
			was := sh.flow
			sh.flow = goOn
			if was == continuing {
				continue
			}
		}
		return
	}
}

func (sh *shell) forClause(c *syntax.ForClause) {
	it, ok := c.Loop.(*syntax.WordIter)
	if !ok {
		sh.stop(errors.New("this shell knows for NAME in WORDS alone"))
		return
	}
	items := slices.Clone(sh.args)
	if it.InPos.IsValid() {
		var err error
		if items, err = expand.Fields(sh.cfg, it.Items...); err != nil {
			sh.stop(err)
			return
		}
	}
	sh.last = 0
	sh.loop(func() bool {
		if len(items) == 0 {
			return false
		}
		sh.assign(it.Name.Value, items[0])
		items = items[1:]
		sh.stmts(c.Do, false)
		return true
	})
}

func (sh *shell) caseClause(c *syntax.CaseClause, tail bool) {
	word, err := expand.Literal(sh.cfg, c.Word)
	if err != nil {
		sh.stop(err)
		return
	}
	sh.last = 0
	for _, item := range c.Items {
		for _, w := range item.Patterns {
			pat, err := expand.Pattern(sh.cfg, w)
			if err != nil {
				sh.stop(err)
				return
			}
			expr, err := pattern.Regexp(pat, pattern.EntireString)
			if err != nil {
				continue
			}
			if re, err := regexp.Compile(expr); err == nil && re.MatchString(word) {
				sh.stmts(item.Stmts, tail)
				return
			}
		}
	}
}

// pipeline runs its stages side by side.
func (sh *shell) pipeline(c *syntax.BinaryCmd) {
	var stages []*syntax.Stmt
	errs := map[int]bool{} // stages whose standard error goes along
	var flat func(*syntax.Stmt)
	flat = func(st *syntax.Stmt) {
		if b, ok := st.Cmd.(*syntax.BinaryCmd); ok && (b.Op == syntax.Pipe || b.Op == syntax.PipeAll) && len(st.Redirs) == 0 && !st.Negated {
			flat(b.X)
			errs[len(stages)-1] = b.Op == syntax.PipeAll
			flat(b.Y)
			return
		}
		stages = append(stages, st)
	}
	flat(&syntax.Stmt{Cmd: c})
	var children []*Proc
	var in *file
	for i, st := range stages {
		fds := maps.Clone(sh.p.fds)
		if in != nil {
			fds[0] = in
		}
		var r, w *file
		if i < len(stages)-1 {
			r, w = sh.pipe()
			fds[1] = w
			if errs[i] {
				fds[2] = w
			}
		}
		child, err := sh.fork([]*syntax.Stmt{st}, fds, false)
		if in != nil {
			sh.drop(in)
		}
		if w != nil {
			sh.drop(w)
		}
		in = r
		if err != nil {
			sh.stop(err)
			break
		}
		children = append(children, child)
	}
	if in != nil {
		sh.drop(in)
	}
	for _, child := range children {
		sh.last = sh.p.reap(child).shell()
	}
}

// call runs a simple command.
func (sh *shell) call(c *syntax.CallExpr, tail bool) {
	if len(c.Args) == 0 {
		sh.last = 0
		for _, a := range c.Assigns {
			v, err := sh.value(a)
			if err == nil {
				err = sh.assign(a.Name.Value, v)
			}
			if err != nil {
				sh.stop(err)
				return
			}
		}
		return
	}
	args, err := expand.Fields(sh.cfg, c.Args...)
	if err != nil {
		sh.stop(err)
		return
	}
	if sh.xtrace {
		fmt.Fprintf(sh.p.Stderr(), "+ %s\n", strings.Join(args, " "))
	}
	// Assignments before a command last as long as it does.
	type saved struct {
		name string
		v    expand.Variable
	}
	var old []saved
	for _, a := range c.Assigns {
		v, err := sh.value(a)
		if err != nil {
			sh.stop(err)
			return
		}
		old = append(old, saved{a.Name.Value, sh.vars[a.Name.Value]})
		sh.vars[a.Name.Value] = expand.Variable{Set: true, Exported: true, Kind: expand.String, Str: v}
	}
	if len(args) == 0 {
		return
	}
	sh.simple(args, tail)
	for _, s := range slices.Backward(old) {
		if s.v.IsSet() {
			sh.vars[s.name] = s.v
		} else {
			delete(sh.vars, s.name)
		}
	}
}

func (sh *shell) value(a *syntax.Assign) (string, error) {
	v := ""
	if a.Value != nil {
		var err error
		if v, err = expand.Literal(sh.cfg, a.Value); err != nil {
			return "", err
		}
	}
	if a.Append {
		v = sh.vars[a.Name.Value].String() + v
	}
	return v, nil
}

// simple runs a function, a builtin or a program.
func (sh *shell) simple(args []string, tail bool) {
	if body := sh.funcs[args[0]]; body != nil {
		defer func() { sh.depth-- }()
		if !sh.deeper() {
			return
		}
		outer := sh.args
		sh.args = args[1:]
		sh.scopes = append(sh.scopes, make(map[string]expand.Variable))
		sh.stmt(body, false)
		for name, v := range sh.scopes[len(sh.scopes)-1] {
			sh.vars[name] = v
			if !v.IsSet() {
				delete(sh.vars, name)
			}
		}
		sh.scopes = sh.scopes[:len(sh.scopes)-1]
		sh.args = outer
		if sh.flow == returning {
			sh.flow = goOn
		}
		return
	}
	if f := shellBuiltins[args[0]]; f != nil {
		f(sh, args)
		return
	}
	sh.program(args, tail)
}

func (sh *shell) program(args []string, tail bool) {
	env := sh.env()
	var prog Program
	full := args
	err := sh.p.sys(func() (err error) {
		prog, full, err = sh.p.k.look(sh.p.who, sh.p.cwd, env, args)
		return err
	})
	switch {
	case err == enoexec: // a script without #!
		prog, full = runShell, append([]string{"sh"}, args...)
	case err == enoent:
		sh.complain("%s: not found", args[0])
		sh.last = 127
		return
	case err != nil:
		sh.complain("%s: %v", args[0], err)
		sh.last = 126
		return
	}
	if tail {
		sh.p.Args, sh.p.Env = full, env
		sh.last = prog(sh.p)
		sh.flow = exiting
		return
	}
	c, err := sh.p.spawn(plan{prog: prog, args: full, env: env})
	if err != nil {
		sh.stop(fmt.Errorf("cannot fork: %w", err))
		return
	}
	sh.last = sh.p.reap(c).shell()
}

func (sh *shell) option(c rune, on bool) bool {
	switch c {
	case 'e':
		sh.errexit = on
	case 'u':
		sh.nounset = on
		sh.cfg.NoUnset = on
	case 'x':
		sh.xtrace = on
	case 'f':
		sh.noglob = on
		sh.configure()
	case 'm', 'b', 'h', 'v', 'a', 'C':
	default:
		return false
	}
	return true
}

var shellBuiltins map[string]func(sh *shell, args []string)

func init() {
	number := func(sh *shell, args []string, def int) int {
		if len(args) > 1 {
			if n, err := strconv.Atoi(args[1]); err == nil {
				return n
			}
		}
		return def
	}
	eval := func(sh *shell, args []string) { sh.last = 0; sh.script(strings.Join(args[1:], " "), false) }
	source := func(sh *shell, args []string) {
		if len(args) < 2 {
			return
		}
		text, err := sh.p.slurp(args[1])
		if err != nil {
			sh.complain("cannot open %s: %v", args[1], err)
			sh.last = 2
			return
		}
		sh.last = 0
		sh.script(string(text), false)
		if sh.flow == returning {
			sh.flow = goOn
		}
	}
	shellBuiltins = map[string]func(sh *shell, args []string){
		":":      func(sh *shell, _ []string) { sh.last = 0 },
		"true":   func(sh *shell, _ []string) { sh.last = 0 },
		"false":  func(sh *shell, _ []string) { sh.last = 1 },
		"echo":   func(sh *shell, args []string) { sh.last = echo(sh.p.Stdout(), args[1:]) },
		"printf": func(sh *shell, args []string) { sh.last = sh.p.printf(args[1:]) },
		"test":   func(sh *shell, args []string) { sh.last = sh.p.test(args) },
		"[":      func(sh *shell, args []string) { sh.last = sh.p.test(args) },
		"kill":   func(sh *shell, args []string) { sh.last = sh.p.killer(args[1:]) },
		"eval":   eval,
		".":      source,
		"source": source,
		"exit": func(sh *shell, args []string) {
			sh.last, sh.flow = number(sh, args, sh.last)&0xff, exiting
		},
		"return": func(sh *shell, args []string) {
			sh.last, sh.flow = number(sh, args, sh.last)&0xff, returning
		},
		"break": func(sh *shell, args []string) {
			if sh.last = 0; sh.loops > 0 {
				sh.levels, sh.flow = min(number(sh, args, 1), sh.loops), breaking
			}
		},
		"continue": func(sh *shell, args []string) {
			if sh.last = 0; sh.loops > 0 {
				sh.levels, sh.flow = min(number(sh, args, 1), sh.loops), continuing
			}
		},
		"shift": func(sh *shell, args []string) {
			n := number(sh, args, 1)
			if sh.last = 0; n > len(sh.args) {
				sh.last = 2
				return
			}
			sh.args = sh.args[n:]
		},
		"cd":       (*shell).cd,
		"pwd":      func(sh *shell, _ []string) { sh.last = 0; sh.p.Printf("%s\n", sh.p.Dir()) },
		"command":  (*shell).commandBuiltin,
		"exec":     (*shell).exec,
		"export":   func(sh *shell, args []string) { sh.declare(args, func(v *expand.Variable) { v.Exported = true }) },
		"readonly": func(sh *shell, args []string) { sh.declare(args, func(v *expand.Variable) { v.ReadOnly = true }) },
		"local":    (*shell).local,
		"declare":  func(sh *shell, args []string) { sh.declare(args, func(*expand.Variable) {}) },
		"read":     (*shell).read,
		"set":      (*shell).set,
		"trap":     (*shell).trap,
		"type":     func(sh *shell, args []string) { sh.commandBuiltin(append([]string{"command", "-v"}, args[1:]...)) },
		"umask":    (*shell).umask,
		"unset": func(sh *shell, args []string) {
			sh.last = 0
			for _, a := range args[1:] {
				delete(sh.vars, a)
				delete(sh.funcs, a)
			}
		},
		"wait": (*shell).wait,
		"jobs": func(sh *shell, _ []string) { sh.last = 0 },
	}
}

func (sh *shell) cd(args []string) {
	dir := sh.vars["HOME"].String()
	show := false
	if len(args) > 1 {
		dir = args[1]
	}
	if dir == "-" {
		dir, show = sh.vars["OLDPWD"].String(), true
	}
	old := sh.p.Dir()
	if err := sh.p.chdir(dir); err != nil {
		sh.complain("cd: can't cd to %s: %v", dir, err)
		sh.last = 2
		return
	}
	sh.assign("OLDPWD", old)
	sh.assign("PWD", sh.p.Dir())
	if show {
		sh.p.Printf("%s\n", sh.p.Dir())
	}
	sh.last = 0
}

func (sh *shell) commandBuiltin(args []string) {
	args = args[1:]
	if len(args) > 0 && (args[0] == "-v" || args[0] == "-V") {
		sh.last = 0
		for _, name := range args[1:] {
			if sh.funcs[name] != nil || shellBuiltins[name] != nil {
				sh.p.Printf("%s\n", name)
				continue
			}
			where := ""
			sh.p.sys(func() error {
				search := sh.vars["PATH"].String()
				if strings.Contains(name, "/") {
					search = ""
				}
				for dir := range strings.SplitSeq(search, ":") {
					full := path.Join(dir, name)
					if _, _, err := sh.p.k.load(sh.p.who, sh.p.cwd, full, []string{full}, 4); err == nil || err == enoexec {
						where = full
						break
					}
				}
				return nil
			})
			if where == "" {
				sh.last = 127
				continue
			}
			sh.p.Printf("%s\n", where)
		}
		return
	}
	if len(args) == 0 {
		sh.last = 0
		return
	}
	if f := shellBuiltins[args[0]]; f != nil {
		f(sh, args)
		return
	}
	sh.program(args, false)
}

func (sh *shell) exec(args []string) {
	if len(args) == 1 {
		sh.last = 0
		return
	}
	sh.flow = exiting
	sh.onExit = ""
	sh.last = sh.p.become(args[1:], sh.env())
}

// declare is export, readonly and the like.
func (sh *shell) declare(args []string, mark func(*expand.Variable)) {
	sh.last = 0
	listed := true
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") {
			continue
		}
		listed = false
		name, value, ok := strings.Cut(a, "=")
		v := sh.vars[name]
		if ok {
			if err := sh.assign(name, value); err != nil {
				sh.stop(err)
				return
			}
			v = sh.vars[name]
		}
		v.Kind = expand.String
		mark(&v)
		sh.vars[name] = v
	}
	if !listed {
		return
	}
	var probe expand.Variable
	mark(&probe)
	for _, k := range slices.Sorted(maps.Keys(sh.vars)) {
		if v := sh.vars[k]; v.IsSet() && (!probe.Exported || v.Exported) && (!probe.ReadOnly || v.ReadOnly) {
			q, err := syntax.Quote(v.String(), syntax.LangPOSIX)
			if err != nil {
				q = "''"
			}
			sh.p.Printf("%s %s=%s\n", args[0], k, q)
		}
	}
}

func (sh *shell) local(args []string) {
	if len(sh.scopes) == 0 {
		sh.complain("local: not in a function")
		sh.last = 2
		return
	}
	scope := sh.scopes[len(sh.scopes)-1]
	sh.last = 0
	for _, a := range args[1:] {
		name, value, ok := strings.Cut(a, "=")
		if _, seen := scope[name]; !seen {
			scope[name] = sh.vars[name]
		}
		if ok {
			sh.assign(name, value)
		}
	}
}

func (sh *shell) read(args []string) {
	raw := false
	args = args[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		raw = raw || args[0] == "-r"
		args = args[1:]
	}
	var line bytes.Buffer
	one := make([]byte, 1)
	sh.last = 1
	for {
		n, err := sh.p.read(0, one)
		if n == 1 {
			if one[0] == '\n' {
				if b := line.Bytes(); !raw && len(b) > 0 && b[len(b)-1] == '\\' {
					line.Truncate(len(b) - 1)
					continue
				}
				sh.last = 0
				break
			}
			line.WriteByte(one[0])
		}
		if err != nil {
			break
		}
	}
	if len(args) == 0 {
		args = []string{"REPLY"}
	}
	fields := expand.ReadFields(sh.cfg, line.String(), len(args), raw)
	for i, name := range args {
		v := ""
		if i < len(fields) {
			v = fields[i]
		}
		sh.assign(name, v)
	}
}

func (sh *shell) set(args []string) {
	sh.last = 0
	args = args[1:]
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		a := args[0]
		args = args[1:]
		if a == "--" {
			sh.args = slices.Clone(args)
			return
		}
		if a[1:] == "o" {
			if len(args) > 0 {
				if c, ok := map[string]rune{"errexit": 'e', "nounset": 'u', "xtrace": 'x', "noglob": 'f'}[args[0]]; ok {
					sh.option(c, a[0] == '-')
				}
				args = args[1:]
			}
			continue
		}
		for _, c := range a[1:] {
			if !sh.option(c, a[0] == '-') {
				sh.complain("set: illegal option %c%c", a[0], c)
				sh.last = 2
			}
		}
	}
	if len(args) > 0 {
		sh.args = slices.Clone(args)
	}
}

func (sh *shell) trap(args []string) {
	sh.last = 0
	args = args[1:]
	if len(args) < 2 {
		return
	}
	action := args[0]
	for _, name := range args[1:] {
		if name == "EXIT" || name == "0" {
			if sh.onExit = action; action == "-" {
				sh.onExit = ""
			}
			continue
		}
		sig, err := sandbox.ParseSignal(name)
		if n, e := strconv.Atoi(name); e == nil {
			if sig = sandbox.SignalNumbered(n); sig != "" {
				err = nil
			}
		}
		if err != nil {
			sh.complain("trap: %s: bad trap", name)
			sh.last = 1
			continue
		}
		sh.p.sys(func() error {
			delete(sh.traps, sig)
			switch action {
			case "-":
				delete(sh.p.traps, sig)
			case "":
				sh.p.traps[sig] = trapIgnore
			default:
				sh.p.traps[sig] = trapCatch
				sh.traps[sig] = action
			}
			return nil
		})
	}
}

func (sh *shell) umask(args []string) {
	sh.last = 0
	if len(args) < 2 {
		sh.p.Printf("%04o\n", sh.p.umask)
		return
	}
	n, err := strconv.ParseUint(args[1], 8, 32)
	if err != nil {
		sh.complain("umask: illegal number %s", args[1])
		sh.last = 2
		return
	}
	sh.p.umask = uint32(n) & 0o777
}

// wait waits for background commands, or until a trapped signal comes.
func (sh *shell) wait(args []string) {
	var pids []int
	for _, a := range args[1:] {
		n, err := strconv.Atoi(a)
		if err != nil || sh.jobs[n] == nil {
			sh.last = 127
			return
		}
		pids = append(pids, n)
	}
	all := len(pids) == 0
	if all {
		pids = slices.Sorted(maps.Keys(sh.jobs))
	}
	sh.last = 0
	for _, pid := range pids {
		c := sh.jobs[pid]
		sh.p.enter()
		sh.p.wait(func() bool { return c.dead || len(sh.p.pending) > 0 })
		dead := c.dead
		var sig sandbox.Signal
		if dead {
			delete(sh.p.k.procs, pid)
		} else {
			sig = sh.p.pending[0]
		}
		sh.p.leave()
		if !dead {
			sh.last = 128 + sig.Number()
			return
		}
		delete(sh.jobs, pid)
		if !all {
			sh.last = c.status.shell()
		}
	}
}
