package inside

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// rlimitLocks is RLIMIT_LOCKS, which Linux keeps but has ignored since 2.4.25
// (getrlimit(2)). Its soft limit is the mark of a tree.
const rlimitLocks = 10

// A marker gives every process a mark of its own. A limit belongs to the whole
// guest, so the mark is set before the fork, and by another thread than the
// one that forks, whose system calls are filtered like those of the processes.
type marker struct {
	next    uint64
	armed   atomic.Uint64 // the mark that is set and not used yet; 0 for none
	foreign bool          // the forking thread may not set it
	ask     chan chan uint64
}

// init draws the first mark: it has 40 random bits, so that guests that see
// each other's processes do not take them for their own, and a guest that
// starts again does not give a name twice.
func (m *marker) init() {
	var b [8]byte
	unix.Getrandom(b[:], 0)
	m.next = (*(*uint64)(unsafe.Pointer(&b))&(1<<40-1) | 1<<39) << 22
}

// arm sets the next mark.
func (m *marker) arm() error {
	m.next++
	err := unix.Prlimit(0, rlimitLocks, &unix.Rlimit{Cur: m.next, Max: unix.RLIM_INFINITY}, nil)
	if err == nil {
		m.armed.Store(m.next)
	}
	return err
}

// take returns the mark that a fork will inherit now. Server.fork is held.
func (m *marker) take() uint64 {
	if n := m.armed.Swap(0); n != 0 {
		return n
	}
	if !m.foreign {
		if m.arm() == nil {
			return m.armed.Swap(0)
		}
		m.foreign = true
		m.ask = make(chan chan uint64)
		go func() {
			for a := range m.ask {
				m.arm()
				a <- m.armed.Swap(0)
			}
		}()
	}
	a := make(chan uint64)
	m.ask <- a
	if n := <-a; n != 0 {
		return n
	}
	return m.next // nobody can set marks here: trees are found by their parents
}

// prepare sets the next mark where the forking thread could not. Server.fork
// is held, the caller is another thread.
func (m *marker) prepare() {
	if m.foreign && m.armed.Load() == 0 {
		m.arm()
	}
}

// marked reports whether the process pid has the mark.
func marked(pid int, mark uint64) bool {
	var l unix.Rlimit
	switch err := unix.Prlimit(pid, rlimitLocks, nil, &l); err {
	case nil:
		return l.Cur == mark
	case unix.ESRCH:
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return false
	}
	_, line, _ := strings.Cut(string(b), "Max file locks")
	f := strings.Fields(line)
	return len(f) > 0 && f[0] == strconv.FormatUint(mark, 10)
}

// killTree kills p and all that came of it. It first stops what it finds, so
// that nothing flees by forking, and looks until it finds no more. A detached
// one that has ended may have left some behind.
func (s *Server) killTree(p *process) {
	s.mu.Lock()
	detached := p.detached
	s.mu.Unlock()
	p.mu.Lock()
	if p.over && !detached {
		p.mu.Unlock()
		return
	}
	if !p.over {
		// Alone in most cases; and stopped it stays what it is while we look.
		unix.Kill(p.pid, unix.SIGSTOP)
	}
	p.mu.Unlock()
	s.killMarked(p)
}

// killMarked kills what has p's mark.
func (s *Server) killMarked(p *process) {
	found := map[int]bool{}
	for _, sig := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		if sig == unix.SIGKILL {
			for pid := range found {
				s.kill(p, pid, sig)
			}
		}
		for again := true; again; {
			again = false
			for _, pid := range pids() {
				if !found[pid] && marked(pid, p.id) {
					found[pid], again = true, true
					s.kill(p, pid, sig)
				}
			}
		}
	}
	// A process that was killed cannot fork; one that was forked while the
	// last round looked elsewhere was found by it or came of one that is dead.
	p.mu.Lock()
	if !p.over { // and should there be no /proc, at least its group
		unix.Kill(-p.pid, unix.SIGKILL)
		unix.Kill(p.pid, unix.SIGKILL)
	}
	p.mu.Unlock()
}

// kill signals a process of p's tree, itself included unless it is over.
func (s *Server) kill(p *process, pid int, sig unix.Signal) {
	if pid == p.pid {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over {
			return
		}
	}
	unix.Kill(pid, sig)
}

// pids returns the pids of all processes but the guest's own.
func pids() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	self := os.Getpid()
	var ps []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid != self {
			ps = append(ps, pid)
		}
	}
	return ps
}

// await waits for a child that has ended and leaves it to be reaped; without
// block it does not wait, and returns pid 0 if none has. It is unsafe because
// package unix does not say where siginfo_t has the pid and the status.
func await(block bool, usage *unix.Rusage) (pid, code, status int, err error) {
	var info struct {
		signo, errno, code int32
		_                  [unsafe.Sizeof(uintptr(0)) - 4]byte
		pid, uid, status   int32
		_                  [128]byte
	}
	options := unix.WEXITED | unix.WNOWAIT
	if !block {
		options |= unix.WNOHANG
	}
	err = unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), options, usage)
	return int(info.pid), int(info.code), int(info.status), err
}

// limits is what lowerNproc changed.
type limits struct {
	old  unix.Rlimit
	want uint64
}

// lowerNproc makes what is forked now inherit the limit of processes. The
// soft limit is enough: the guest could not raise a hard one again. Should
// the runtime want a thread meanwhile, it tries again for a while.
func (s *Server) lowerNproc() limits {
	var l limits
	if n := s.place.PIDs; n > 0 {
		if unix.Prlimit(0, unix.RLIMIT_NPROC, nil, &l.old) == nil && uint64(n) < l.old.Cur {
			l.want = uint64(n)
			unix.Prlimit(0, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: l.want, Max: l.old.Max}, nil)
		}
	}
	return l
}

// restore undoes it and makes the limit a hard one for the new process. What
// that has forked before keeps the soft limit alone: a program that hurries to
// raise it can. Where that matters there have to be cgroups.
func (l limits) restore(pid int, err error) {
	if l.want == 0 {
		return
	}
	unix.Prlimit(0, unix.RLIMIT_NPROC, &l.old, nil)
	if err == nil {
		unix.Prlimit(pid, unix.RLIMIT_NPROC, &unix.Rlimit{Cur: l.want, Max: l.want}, nil)
	}
}

// A look is what /proc says of a process.
type look struct {
	cpu     time.Duration
	anon    int64
	threads int
	foreign bool // its parent is in another PID namespace: who started it is not here
}

// lookAt reads /proc/PID/stat and statm.
func lookAt(pid int) (l look, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return l, false
	}
	_, rest, _ := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), " ")
	f := strings.Fields(rest) // the third field of proc(5) is f[0]
	if len(f) < 20 {
		return l, false
	}
	ticks := func(i int) int64 { n, _ := strconv.ParseInt(f[i], 10, 64); return n }
	l.cpu = time.Duration(ticks(11)+ticks(12)) * (time.Second / 100)
	l.threads = int(ticks(17))
	l.foreign = ticks(1) == 0
	if f[0] == "Z" {
		return l, true
	}
	if b, err = os.ReadFile(dir + "/statm"); err == nil {
		if f := strings.Fields(string(b)); len(f) > 2 {
			rss, _ := strconv.ParseInt(f[1], 10, 64)
			shared, _ := strconv.ParseInt(f[2], 10, 64)
			l.anon = (rss - shared) * int64(os.Getpagesize())
		}
	}
	return l, true
}

// mine reports whether pid came of a process that was started here. A guest
// that is process 1 has all of them.
func (s *Server) mine(pid int) *process {
	var l unix.Rlimit
	if unix.Prlimit(pid, rlimitLocks, nil, &l) != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[l.Cur]
}

// usage answers "usage".
func (s *Server) usage() *proto.Usage {
	s.mu.Lock()
	u := &proto.Usage{CPU: int64(s.reaped)}
	s.mu.Unlock()
	all := os.Getpid() == 1
	for _, pid := range pids() {
		if !all && s.mine(pid) == nil {
			continue
		}
		if l, ok := lookAt(pid); ok && !l.foreign {
			u.CPU += int64(l.cpu)
			u.Memory += l.anon
			u.PIDs += l.threads
		}
	}
	return u
}

// watchMemory keeps the memory of all processes together below limit, by
// killing the largest.
func (s *Server) watchMemory(limit int64) {
	all := os.Getpid() == 1
	for range time.Tick(100 * time.Millisecond) {
		var sum, most int64
		largest := 0
		for _, pid := range pids() {
			if !all && s.mine(pid) == nil {
				continue
			}
			l, _ := lookAt(pid)
			sum += l.anon
			if l.anon > most {
				most, largest = l.anon, pid
			}
		}
		if sum <= limit || largest == 0 {
			continue
		}
		if p := s.mine(largest); p != nil {
			p.mu.Lock()
			p.noMemory = true
			p.mu.Unlock()
			s.kill(p, largest, unix.SIGKILL)
		} else {
			unix.Kill(largest, unix.SIGKILL)
		}
	}
}

// oomKills returns how many processes of the place the kernel has killed for
// want of memory, or -1 if that is not known.
func (s *Server) oomKills() int64 {
	if s.place.OOM == nil {
		return -1
	}
	var b [512]byte
	n, err := s.place.OOM.ReadAt(b[:], 0)
	if n == 0 && err != nil {
		return -1
	}
	for line := range strings.Lines(string(b[:n])) {
		if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
			if k, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
				return k
			}
		}
	}
	return -1
}
