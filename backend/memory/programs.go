package memory

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"mvdan.cc/sh/v3/expand"
)

// builtins are the programs that every sandbox has. Each knows as much of its
// namesake as tests need.
var builtins map[string]Program

func init() {
	builtins = map[string]Program{
		"true":     func(*Proc) int { return 0 },
		"false":    func(*Proc) int { return 1 },
		"echo":     runEcho,
		"cat":      runCat,
		"chmod":    runChmod,
		"cp":       runCp,
		"env":      runEnv,
		"head":     runHead,
		"hostname": func(p *Proc) int { p.Printf("sandbox\n"); return 0 },
		"id":       runID,
		"kill":     func(p *Proc) int { return p.killer(p.Args[1:]) },
		"ln":       runLn,
		"ls":       runLs,
		"mkdir":    runMkdir,
		"mkfifo":   runMkfifo,
		"mv":       runMv,
		"nohup":    runNohup,
		"printf":   runPrintf,
		"pwd":      func(p *Proc) int { p.Printf("%s\n", p.Dir()); return 0 },
		"rm":       runRm,
		"rmdir":    runRmdir,
		"seq":      runSeq,
		"setsid":   runSetsid,
		"sh":       runShell,
		"bash":     runShell,
		"sleep":    runSleep,
		"stty":     runStty,
		"tee":      runTee,
		"test":     func(p *Proc) int { return p.test(p.Args) },
		"[":        func(p *Proc) int { return p.test(p.Args) },
		"touch":    runTouch,
		"tr":       runTr,
		"tty":      runTTY,
		"wc":       runWc,
		"whoami":   func(p *Proc) int { p.Printf("%s\n", p.userName()); return 0 },
		"yes":      runYes,
	}
}

// Printf writes to the standard output.
func (p *Proc) Printf(format string, args ...any) { fmt.Fprintf(p.Stdout(), format, args...) }

// fail complains on the standard error and returns 1.
func (p *Proc) fail(format string, args ...any) int {
	fmt.Fprintf(p.Stderr(), path.Base(p.Args[0])+": "+format+"\n", args...)
	return 1
}

// How a file is opened.
const (
	forRead = 1 << iota
	forWrite
	create
	truncate
	appending
	exclusive // a regular file must not be there yet
)

// open opens a file as open(2) does.
func (p *Proc) open(name string, how int) (*file, error) {
	p.enter()
	f, err := p.openLocked(name, how)
	p.leave()
	return f, err
}

func (p *Proc) openLocked(name string, how int) (*file, error) {
	at, err := p.walk(name, true)
	if err != nil {
		return nil, err
	}
	b := p.k
	read, write := how&forRead != 0, how&forWrite != 0
	if at.node == nil {
		if how&create == 0 {
			return nil, enoent
		}
		n, err := b.create(p.who, at, 0o666&^fs.FileMode(p.umask))
		if err != nil {
			return nil, err
		}
		at.node = n
	} else {
		if how&exclusive != 0 && at.node.mode.IsRegular() {
			return nil, eexist
		}
		if read && !p.who.may(at.node, 4) || write && !p.who.may(at.node, 2) {
			return nil, eacces
		}
	}
	n := at.node
	switch {
	case n.isDir() && write:
		return nil, eisdir
	case n.dev == devTTY:
		if p.tty == nil {
			return nil, enxio
		}
		return &file{stream: ttyFile{p.tty}}, nil
	case n.dev != "":
		return &file{stream: devFile{n.dev}}, nil
	case n.mode&fs.ModeNamedPipe != 0:
		return p.openFIFO(n.pipe, read, write), nil
	case n.mode&fs.ModeSocket != 0:
		return nil, enxio
	case write && b.readOnly(n):
		return nil, erofs
	}
	if how&truncate != 0 && n.mode.IsRegular() {
		if err := b.grow(n, 0); err != nil {
			return nil, err
		}
		n.mtime = b.now()
	}
	return &file{stream: &nodeFile{b: b, node: n, readable: read, writable: write, append: how&appending != 0}}, nil
}

// openFIFO waits for the other end, as Linux does.
func (p *Proc) openFIFO(pi *pipe, read, write bool) *file {
	f := &file{stream: &pipeEnd{pi, read, write}, refs: 1}
	if read {
		pi.readers++
		pi.readerOpens++
	}
	if write {
		pi.writers++
		pi.writerOpens++
	}
	p.k.cond.Broadcast()
	rs, ws := pi.readerOpens, pi.writerOpens
	fd := -1 // so that it is closed if we are killed here
	for p.fds[fd] != nil {
		fd--
	}
	p.fds[fd] = f
	p.wait(func() bool {
		return (read || pi.readers > 0 || pi.readerOpens > rs) && (write || pi.writers > 0 || pi.writerOpens > ws)
	})
	delete(p.fds, fd)
	f.refs = 0
	return f
}

// slurp reads the file at name whole.
func (p *Proc) slurp(name string) ([]byte, error) {
	f, err := p.open(name, forRead)
	if err != nil {
		return nil, err
	}
	fd := p.install(f)
	defer p.closeFD(fd)
	return io.ReadAll(fdReader{p, fd})
}

// install gives f the lowest descriptor from 10 on.
func (p *Proc) install(f *file) int {
	p.enter()
	fd := 10
	for p.fds[fd] != nil {
		fd++
	}
	f.refs++
	p.fds[fd] = f
	p.leave()
	return fd
}

func (p *Proc) closeFD(fd int) {
	p.enter()
	if f := p.fds[fd]; f != nil {
		f.release()
		delete(p.fds, fd)
	}
	p.leave()
}

// ReadFile returns the content of the file at name, as the process sees it.
func (p *Proc) ReadFile(name string) ([]byte, error) { return p.slurp(name) }

// WriteFile makes the file at name hold data, as the process may.
func (p *Proc) WriteFile(name string, data []byte) error {
	f, err := p.open(name, forWrite|create|truncate)
	if err != nil {
		return err
	}
	fd := p.install(f)
	defer p.closeFD(fd)
	_, err = fdWriter{p, fd}.Write(data)
	return err
}

// sys does f with the mutex held.
func (p *Proc) sys(f func() error) error {
	p.enter()
	err := f()
	p.leave()
	return err
}

// at resolves name with the mutex held.
func (p *Proc) at(name string, follow bool, f func(place) error) error {
	return p.sys(func() error {
		at, err := p.walk(name, follow)
		if err != nil {
			return err
		}
		return f(at)
	})
}

// options splits off what begins with a dash, letter by letter.
func options(args []string) (flags string, rest []string) {
	for i, a := range args {
		if a == "--" {
			return flags, args[i+1:]
		}
		if len(a) < 2 || a[0] != '-' {
			return flags, args[i:]
		}
		flags += a[1:]
	}
	return flags, nil
}

func runEcho(p *Proc) int { return echo(p.Stdout(), p.Args[1:]) }

func echo(w io.Writer, args []string) int {
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	if _, err := io.WriteString(w, strings.Join(args, " ")+end); err != nil {
		return 1
	}
	return 0
}

func runCat(p *Proc) int {
	_, names := options(p.Args[1:])
	if len(names) == 0 {
		names = []string{"-"}
	}
	code := 0
	for _, name := range names {
		if name == "-" {
			if _, err := io.Copy(p.Stdout(), p.Stdin()); err != nil {
				code = p.fail("%v", err)
			}
			continue
		}
		f, err := p.open(name, forRead)
		if err != nil {
			code = p.fail("%s: %v", name, err)
			continue
		}
		fd := p.install(f)
		if _, err := io.Copy(p.Stdout(), fdReader{p, fd}); err != nil {
			code = p.fail("%s: %v", name, err)
		}
		p.closeFD(fd)
	}
	return code
}

func runChmod(p *Proc) int {
	if len(p.Args) < 3 {
		return p.fail("missing operand")
	}
	code := 0
	for _, name := range p.Args[2:] {
		err := p.at(name, true, func(at place) error {
			if at.node == nil {
				return enoent
			}
			if p.who.uid != 0 && p.who.uid != at.node.uid {
				return eperm
			}
			m := at.node.mode
			switch p.Args[1] {
			case "+x", "a+x":
				m |= 0o111
			case "-x", "a-x":
				m &^= 0o111
			default:
				n, err := strconv.ParseUint(p.Args[1], 8, 16)
				if err != nil {
					return einval
				}
				m = m&^bits | fs.FileMode(n&0o777)
				for bit, mode := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
					if n&bit != 0 {
						m |= mode
					}
				}
			}
			at.node.mode = m
			return nil
		})
		if err != nil {
			code = p.fail("%s: %v", name, err)
		}
	}
	return code
}

func runCp(p *Proc) int {
	_, args := options(p.Args[1:])
	if len(args) != 2 {
		return p.fail("two operands are needed")
	}
	data, err := p.slurp(args[0])
	if err != nil {
		return p.fail("%s: %v", args[0], err)
	}
	if err := p.WriteFile(p.into(args[1], args[0]), data); err != nil {
		return p.fail("%s: %v", args[1], err)
	}
	return 0
}

// into returns where what is called name goes if it is put at to.
func (p *Proc) into(to, name string) string {
	dir := false
	p.at(to, true, func(at place) error { dir = at.node != nil && at.node.isDir(); return nil })
	if dir {
		return strings.TrimRight(to, "/") + "/" + path.Base(name)
	}
	return to
}

func runEnv(p *Proc) int {
	env := maps.Clone(p.Env)
	args := p.Args[1:]
	for len(args) > 0 {
		k, v, ok := strings.Cut(args[0], "=")
		switch {
		case args[0] == "-i":
			clear(env)
		case ok:
			env[k] = v
		default:
			p.Env = env
			return p.become(args, env)
		}
		args = args[1:]
	}
	w := bufio.NewWriter(p.Stdout())
	for _, k := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(w, "%s=%s\n", k, env[k])
	}
	w.Flush()
	return 0
}

// become executes another program in p, as execvp(3) does, and returns its
// exit code.
func (p *Proc) become(args []string, env map[string]string) int {
	var prog Program
	err := p.sys(func() (err error) {
		prog, args, err = p.k.look(p.who, p.cwd, env, args)
		return err
	})
	if err != nil {
		fmt.Fprintf(p.Stderr(), "%s: %s: %v\n", path.Base(p.Args[0]), args, err)
		if err == enoent {
			return 127
		}
		return 126
	}
	p.sys(func() error {
		maps.DeleteFunc(p.traps, func(_ sandbox.Signal, t trap) bool { return t == trapCatch })
		p.pending = nil
		return nil
	})
	p.Args, p.Env = args, env
	return prog(p)
}

func runHead(p *Proc) int {
	args := p.Args[1:]
	bytes, lines := int64(-1), int64(10)
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' {
		opt, val := args[0][:2], args[0][2:]
		if val == "" && len(args) > 1 {
			args = args[1:]
			val = args[0]
		}
		args = args[1:]
		n, err := strconv.ParseInt(val, 10, 64)
		if err != nil {
			return p.fail("invalid number %q", val)
		}
		if opt == "-c" {
			bytes = n
		} else {
			lines = n
		}
	}
	in := p.Stdin()
	if len(args) > 0 {
		f, err := p.open(args[0], forRead)
		if err != nil {
			return p.fail("%s: %v", args[0], err)
		}
		in = fdReader{p, p.install(f)}
	}
	if bytes >= 0 {
		if _, err := io.Copy(p.Stdout(), io.LimitReader(in, bytes)); err != nil {
			return p.fail("%v", err)
		}
		return 0
	}
	r := bufio.NewReader(in)
	for range lines {
		line, err := r.ReadString('\n')
		io.WriteString(p.Stdout(), line)
		if err != nil {
			break
		}
	}
	return 0
}

func (p *Proc) userName() string {
	name := strconv.Itoa(p.who.uid)
	p.sys(func() error {
		if row := p.k.row("passwd", "", p.who.uid, true); row != nil {
			name = row[0]
		}
		return nil
	})
	return name
}

func runID(p *Proc) int {
	flags, _ := options(p.Args[1:])
	switch {
	case strings.Contains(flags, "n"):
		p.Printf("%s\n", p.userName())
	case strings.Contains(flags, "u"):
		p.Printf("%d\n", p.who.uid)
	case strings.Contains(flags, "g"):
		p.Printf("%d\n", p.who.gid)
	default:
		p.Printf("uid=%d(%s) gid=%d\n", p.who.uid, p.userName(), p.who.gid)
	}
	return 0
}

// killer is kill(1).
func (p *Proc) killer(args []string) int {
	sig := sandbox.TERM
	if len(args) > 1 && args[0] == "-s" {
		args = append([]string{"-" + args[1]}, args[2:]...)
	}
	probe := false
	if len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0] != "--" {
		name := args[0][1:]
		n, err := strconv.Atoi(name)
		if err == nil {
			sig, probe = sandbox.SignalNumbered(n), n == 0
		} else if sig, err = sandbox.ParseSignal(name); err != nil {
			return p.fail("%s: invalid signal", name)
		}
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	code := 0
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil {
			code = p.fail("%s: arguments must be process or job IDs", a)
			continue
		}
		p.enter()
		hit, denied := 0, false
		p.k.signalWhere("", func(q *Proc) bool {
			if q.pid != n && q.pgid != -n && (n != 0 || q.pgid != p.pgid) {
				return false
			}
			if p.who.uid != 0 && p.who.uid != q.who.uid {
				denied = true
				return false
			}
			hit++
			if !probe {
				q.deliver(sig)
			}
			return false
		})
		p.gate()
		p.leave()
		if hit == 0 && denied {
			code = p.fail("(%d): %v", n, eperm)
		} else if hit == 0 {
			code = p.fail("(%d): %v", n, esrch)
		}
	}
	return code
}

func runLn(p *Proc) int {
	flags, args := options(p.Args[1:])
	if len(args) != 2 {
		return p.fail("two operands are needed")
	}
	err := p.at(p.into(args[1], args[0]), false, func(at place) error {
		if at.node != nil {
			if !strings.Contains(flags, "f") || at.node.isDir() {
				return eexist
			}
			if err := p.k.remove(p.who, at); err != nil {
				return err
			}
			at.node = nil
		}
		if strings.Contains(flags, "s") {
			n, err := p.k.create(p.who, at, fs.ModeSymlink|0o777)
			if err == nil {
				n.target = args[0]
			}
			return err
		}
		from, err := p.walk(args[0], false)
		switch {
		case err != nil:
			return err
		case from.node == nil:
			return enoent
		case from.node.isDir():
			return eperm
		case at.dir == nil || from.node.vol != at.dir.vol:
			return exdev
		}
		if err := p.k.mayChange(p.who, at.dir); err != nil {
			return err
		}
		p.k.link(at, from.node)
		return nil
	})
	if err != nil {
		return p.fail("%s: %v", args[1], err)
	}
	return 0
}

func runLs(p *Proc) int {
	flags, args := options(p.Args[1:])
	if len(args) == 0 {
		args = []string{"."}
	}
	code := 0
	for _, name := range args {
		var infos []sandbox.FileInfo
		err := p.at(name, true, func(at place) error {
			switch {
			case at.node == nil:
				return enoent
			case !at.node.isDir() || strings.Contains(flags, "d"):
				infos = append(infos, at.node.info(name))
				return nil
			case !p.who.may(at.node, 4):
				return eacces
			}
			for _, e := range at.node.names() {
				if e[0] != '.' || strings.ContainsAny(flags, "aA") {
					infos = append(infos, at.node.entries[e].info(e))
				}
			}
			return nil
		})
		if err != nil {
			code = p.fail("cannot access '%s': %v", name, err) + 1
			continue
		}
		for _, i := range infos {
			if strings.Contains(flags, "l") {
				p.Printf("%s %d %d %d %s", i.Mode, i.UID, i.GID, i.Size, i.Name)
				if i.Target != "" {
					p.Printf(" -> %s", i.Target)
				}
				p.Printf("\n")
				continue
			}
			p.Printf("%s\n", i.Name)
		}
	}
	return code
}

func runMkdir(p *Proc) int {
	flags, args := options(p.Args[1:])
	code := 0
	for _, name := range args {
		err := p.sys(func() error {
			if strings.Contains(flags, "p") {
				full := name
				if !path.IsAbs(full) {
					full = p.k.pathOf(p.cwd) + "/" + name
				}
				return p.k.mkdirs(p.who, full, 0o777&^fs.FileMode(p.umask), p.who)
			}
			at, err := p.walk(strings.TrimRight(name, "/"), false)
			switch {
			case err != nil:
				return err
			case at.node != nil:
				return eexist
			}
			_, err = p.k.create(p.who, at, fs.ModeDir|0o777&^fs.FileMode(p.umask))
			return err
		})
		if err != nil {
			code = p.fail("cannot create directory '%s': %v", name, err)
		}
	}
	return code
}

func runMkfifo(p *Proc) int {
	code := 0
	for _, name := range p.Args[1:] {
		err := p.at(name, false, func(at place) error {
			switch {
			case at.node != nil:
				return eexist
			case at.dir.vol.shared:
				return eperm // its two ends would not wake each other
			}
			n, err := p.k.create(p.who, at, fs.ModeNamedPipe|0o666&^fs.FileMode(p.umask))
			if err == nil {
				n.pipe = newPipe(p.k)
			}
			return err
		})
		if err != nil {
			code = p.fail("cannot create fifo '%s': %v", name, err)
		}
	}
	return code
}

func runMv(p *Proc) int {
	_, args := options(p.Args[1:])
	if len(args) != 2 {
		return p.fail("two operands are needed")
	}
	to := p.into(args[1], args[0])
	err := p.sys(func() error {
		from, err := p.walk(args[0], false)
		if err != nil {
			return err
		}
		dst, err := p.walk(to, false)
		if err != nil {
			return err
		}
		err = p.k.rename(p.who, from, dst)
		if err == exdev && from.node.mode.IsRegular() {
			err = p.k.move(from, dst)
		}
		return err
	})
	if err != nil {
		return p.fail("cannot move '%s' to '%s': %v", args[0], args[1], err)
	}
	return 0
}

func runNohup(p *Proc) int {
	p.sys(func() error { p.traps[sandbox.HUP] = trapIgnore; return nil })
	return p.become(p.Args[1:], p.Env)
}

func runPrintf(p *Proc) int { return p.printf(p.Args[1:]) }

func (p *Proc) printf(args []string) int {
	if len(args) == 0 {
		return p.fail("usage: printf format [arguments]") + 1
	}
	format, rest := args[0], args[1:]
	for {
		// One of its own: nil is a Config that all share, and it is written to.
		s, n, err := expand.Format(new(expand.Config), format, rest)
		if err != nil {
			return p.fail("%v", err)
		}
		if _, err := io.WriteString(p.Stdout(), s); err != nil {
			return 1
		}
		if rest = rest[n:]; n == 0 || len(rest) == 0 {
			return 0
		}
	}
}

func runRm(p *Proc) int {
	flags, args := options(p.Args[1:])
	code := 0
	for _, name := range args {
		err := p.at(strings.TrimRight(name, "/")+tail(name), false, func(at place) error {
			switch {
			case at.node == nil && strings.Contains(flags, "f"):
				return nil
			case at.node != nil && at.node.isDir() && !strings.ContainsAny(flags, "rR"):
				return eisdir
			case at.node != nil && at.node.isDir():
				return p.k.removeAll(p.who, at)
			}
			return p.k.remove(p.who, at)
		})
		if err != nil {
			code = p.fail("cannot remove '%s': %v", name, err)
		}
	}
	return code
}

func runRmdir(p *Proc) int {
	code := 0
	for _, name := range p.Args[1:] {
		err := p.at(strings.TrimRight(name, "/"), false, func(at place) error {
			if at.node != nil && !at.node.isDir() {
				return enotdir
			}
			return p.k.remove(p.who, at)
		})
		if err != nil {
			code = p.fail("failed to remove '%s': %v", name, err)
		}
	}
	return code
}

func runSeq(p *Proc) int {
	first, last := 1, 0
	var err error
	switch args := p.Args[1:]; len(args) {
	case 2:
		if first, err = strconv.Atoi(args[0]); err != nil {
			return p.fail("invalid number %q", args[0])
		}
		fallthrough
	case 1:
		if last, err = strconv.Atoi(args[len(args)-1]); err != nil {
			return p.fail("invalid number %q", args[len(args)-1])
		}
	default:
		return p.fail("one or two numbers are needed")
	}
	w := bufio.NewWriter(p.Stdout())
	for i := first; i <= last; i++ {
		w.WriteString(strconv.Itoa(i))
		w.WriteByte('\n')
	}
	if w.Flush() != nil {
		return 1
	}
	return 0
}

// runSetsid is setsid(1), which forks if it leads a group.
func runSetsid(p *Proc) int {
	flags, args := options(p.Args[1:])
	if len(args) == 0 {
		return p.fail("no command specified")
	}
	if p.pgid != p.pid {
		p.sys(func() error { p.pgid, p.sid, p.tty = p.pid, p.pid, nil; return nil })
		return p.become(args, p.Env)
	}
	c, err := p.spawn(plan{prog: func(c *Proc) int { return c.become(args, c.Env) }, session: true})
	if err != nil {
		return p.fail("fork: %v", err)
	}
	if strings.Contains(flags, "w") {
		return p.reap(c).shell()
	}
	return 0
}

func (p *Proc) spawn(pl plan) (*Proc, error) {
	p.enter()
	c, err := p.fork(pl)
	p.leave()
	return c, err
}

func runSleep(p *Proc) int {
	total := time.Duration(0)
	for _, a := range p.Args[1:] {
		unit := time.Second
		if a == "infinity" {
			total = math.MaxInt64
			break
		}
		if n := len(a) - 1; n > 0 {
			if u, ok := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[a[n]]; ok {
				unit, a = u, a[:n]
			}
		}
		f, err := strconv.ParseFloat(a, 64)
		if err != nil || f < 0 || math.IsNaN(f) {
			return p.fail("invalid time interval '%s'", a)
		}
		total += time.Duration(min(f*float64(unit), math.MaxInt64/2))
	}
	p.Sleep(total)
	return 0
}

// runStty knows "size", "raw", "sane", "-echo" and "echo".
func runStty(p *Proc) int {
	p.enter()
	var t *tty
	if f := p.fds[0]; f != nil {
		if tf, ok := f.stream.(ttyFile); ok {
			t = tf.tty
		}
	}
	if t == nil {
		p.leave()
		return p.fail("'standard input': %v", enotty)
	}
	size := t.size
	show, bad := false, ""
	for _, a := range p.Args[1:] {
		switch a {
		case "size":
			show = true
		case "raw":
			t.icanon, t.isig, t.onlcr = false, false, false
		case "sane":
			t.icanon, t.isig, t.onlcr, t.echo = true, true, true, true
		case "echo":
			t.echo = true
		case "-echo":
			t.echo = false
		case "-onlcr", "-opost":
			t.onlcr = false
		default:
			bad = a
		}
	}
	p.leave()
	switch {
	case bad != "":
		return p.fail("invalid argument '%s'", bad)
	case show:
		p.Printf("%d %d\n", size.Rows, size.Cols)
	}
	return 0
}

func runTTY(p *Proc) int {
	is := false
	p.sys(func() error {
		if f := p.fds[0]; f != nil {
			_, is = f.stream.(ttyFile)
		}
		return nil
	})
	if !is {
		p.Printf("not a tty\n")
		return 1
	}
	p.Printf("/dev/tty\n")
	return 0
}

func runTee(p *Proc) int {
	flags, names := options(p.Args[1:])
	w := []io.Writer{p.Stdout()}
	how := forWrite | create | truncate
	if strings.Contains(flags, "a") {
		how = forWrite | create | appending
	}
	for _, name := range names {
		f, err := p.open(name, how)
		if err != nil {
			return p.fail("%s: %v", name, err)
		}
		w = append(w, fdWriter{p, p.install(f)})
	}
	if _, err := io.Copy(io.MultiWriter(w...), p.Stdin()); err != nil {
		return p.fail("%v", err)
	}
	return 0
}

func runTouch(p *Proc) int {
	_, names := options(p.Args[1:])
	code := 0
	for _, name := range names {
		_, err := p.open(name, forWrite|create)
		if err != nil {
			code = p.fail("cannot touch '%s': %v", name, err)
		}
		p.at(name, true, func(at place) error {
			if at.node != nil && err == nil {
				at.node.mtime = p.k.now()
			}
			return nil
		})
	}
	return code
}

// runTr knows tr SET SET, without ranges other than a-z, A-Z and 0-9.
func runTr(p *Proc) int {
	if len(p.Args) != 3 {
		return p.fail("two sets are needed")
	}
	set := func(s string) (out string) {
		for i := 0; i < len(s); i++ {
			if i+2 < len(s) && s[i+1] == '-' && s[i] < s[i+2] {
				for c := int(s[i]); c <= int(s[i+2]); c++ {
					out += string(rune(c))
				}
				i += 2
				continue
			}
			out += string(rune(s[i]))
		}
		return out
	}
	from, to := set(p.Args[1]), set(p.Args[2])
	buf := make([]byte, 4096)
	for {
		n, err := p.Stdin().Read(buf)
		for i, c := range buf[:n] {
			if j := strings.IndexByte(from, c); j >= 0 && to != "" {
				buf[i] = to[min(j, len(to)-1)]
			}
		}
		p.Stdout().Write(buf[:n])
		if err != nil {
			return 0
		}
	}
}

func runWc(p *Proc) int {
	flags, names := options(p.Args[1:])
	in := p.Stdin()
	if len(names) > 0 {
		f, err := p.open(names[0], forRead)
		if err != nil {
			return p.fail("%s: %v", names[0], err)
		}
		in = fdReader{p, p.install(f)}
	}
	var bytes, lines, words int64
	inWord := false
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		bytes += int64(n)
		for _, c := range buf[:n] {
			space := c == ' ' || c >= 9 && c <= 13
			if c == '\n' {
				lines++
			}
			if !space && !inWord {
				words++
			}
			inWord = !space
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return p.fail("%v", err)
			}
			break
		}
	}
	switch flags {
	case "c":
		p.Printf("%d\n", bytes)
	case "l":
		p.Printf("%d\n", lines)
	case "w":
		p.Printf("%d\n", words)
	default:
		p.Printf("%d %d %d\n", lines, words, bytes)
	}
	return 0
}

func runYes(p *Proc) int {
	word := "y"
	if len(p.Args) > 1 {
		word = strings.Join(p.Args[1:], " ")
	}
	b := []byte(strings.Repeat(word+"\n", 1+4096/(len(word)+1)))
	for {
		if _, err := p.Stdout().Write(b); err != nil {
			return 1
		}
	}
}

// test is test(1); args[0] is its name.
func (p *Proc) test(args []string) int {
	if args[0] == "[" {
		if args[len(args)-1] != "]" {
			return p.fail("missing ]") + 1
		}
		args = args[:len(args)-1]
	}
	t := &tester{p: p, args: args[1:]}
	if len(t.args) == 0 {
		return 1
	}
	ok := t.or()
	if t.bad || len(t.args) > 0 {
		return p.fail("unexpected operator") + 1
	}
	if ok {
		return 0
	}
	return 1
}

type tester struct {
	p    *Proc
	args []string
	bad  bool
}

func (t *tester) next() string {
	if len(t.args) == 0 {
		t.bad = true
		return ""
	}
	a := t.args[0]
	t.args = t.args[1:]
	return a
}

func (t *tester) or() bool {
	ok := t.and()
	for len(t.args) > 0 && t.args[0] == "-o" {
		t.next()
		r := t.and()
		ok = ok || r
	}
	return ok
}

func (t *tester) and() bool {
	ok := t.primary()
	for len(t.args) > 0 && t.args[0] == "-a" {
		t.next()
		r := t.primary()
		ok = ok && r
	}
	return ok
}

func (t *tester) primary() bool {
	if len(t.args) >= 3 {
		if f := binary[t.args[1]]; f != nil {
			a, _, b := t.next(), t.next(), t.next()
			return f(a, b, t)
		}
	}
	a := t.next()
	switch {
	case a == "!" && len(t.args) > 0:
		return !t.primary()
	case a == "(" && len(t.args) > 0:
		ok := t.or()
		if t.next() != ")" {
			t.bad = true
		}
		return ok
	case len(a) == 2 && a[0] == '-' && len(t.args) > 0:
		return t.unary(a[1], t.next())
	}
	return a != ""
}

func (t *tester) unary(op byte, arg string) (ok bool) {
	switch op {
	case 'n':
		return arg != ""
	case 'z':
		return arg == ""
	case 't':
		fd, _ := strconv.Atoi(arg)
		t.p.sys(func() error {
			if f := t.p.fds[fd]; f != nil {
				_, ok = f.stream.(ttyFile)
			}
			return nil
		})
		return ok
	}
	t.p.at(arg, op != 'L' && op != 'h', func(at place) error {
		n := at.node
		if n == nil {
			return nil
		}
		switch op {
		case 'e':
			ok = true
		case 'f':
			ok = n.mode.IsRegular()
		case 'd':
			ok = n.isDir()
		case 'L', 'h':
			ok = n.isLink()
		case 'p':
			ok = n.mode&fs.ModeNamedPipe != 0
		case 's':
			ok = len(n.data) > 0 || n.isDir()
		case 'r':
			ok = t.p.who.may(n, 4)
		case 'w':
			ok = t.p.who.may(n, 2) && !t.p.k.readOnly(n)
		case 'x':
			ok = t.p.who.may(n, 1)
		default:
			t.bad = true
		}
		return nil
	})
	return ok
}

var binary = map[string]func(a, b string, t *tester) bool{
	"=":   func(a, b string, _ *tester) bool { return a == b },
	"==":  func(a, b string, _ *tester) bool { return a == b },
	"!=":  func(a, b string, _ *tester) bool { return a != b },
	"-eq": number(func(a, b int) bool { return a == b }),
	"-ne": number(func(a, b int) bool { return a != b }),
	"-lt": number(func(a, b int) bool { return a < b }),
	"-le": number(func(a, b int) bool { return a <= b }),
	"-gt": number(func(a, b int) bool { return a > b }),
	"-ge": number(func(a, b int) bool { return a >= b }),
}

func number(f func(a, b int) bool) func(a, b string, t *tester) bool {
	return func(a, b string, t *tester) bool {
		m, err1 := strconv.Atoi(a)
		n, err2 := strconv.Atoi(b)
		if err1 != nil || err2 != nil {
			t.bad = true
			return false
		}
		return f(m, n)
	}
}
