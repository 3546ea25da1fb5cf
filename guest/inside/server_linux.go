package inside

import (
	"errors"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/guest/proto"
)

// Bounds, so that no connection and no process can use up the guest.
const (
	maxConns     = 16       // connections at a time
	maxCalls     = 256      // requests of a connection that are being worked on
	maxHandles   = 1024     // open files of a connection
	maxProcesses = 4096     // processes that were started and have not ended
	maxEnded     = 256      // ended detached processes that are remembered; the oldest are dropped
	maxRing      = 16 << 20 // bytes of output kept of one detached process
	defaultRing  = 1 << 20
	maxName      = 256     // bytes of a detached process's name
	maxEnv       = 1 << 20 // bytes that "env" may make the environment long; Linux takes twice that with the arguments
)

// Config says how a Server behaves. The zero Config serves as it is.
type Config struct {
	// Setup, if not nil, makes the place where the server works of what the
	// daemon sent with "setup". It is called once, on the thread that starts
	// all processes, so that they inherit what it does to that thread. Nothing
	// else is served before. It closes files. A [*proto.Failure] it returns
	// reaches the daemon as it is.
	Setup func(body []byte, files []*os.File) (Place, []byte, error)

	// Place is where the server works if Setup is nil.
	Place Place

	// Patient has the server wait for its first connections although nothing
	// is set up yet, where who set up the place was not there when it began.
	Patient bool

	// Admit, if not nil, decides about a connection that comes in on the
	// listening socket, by its descriptor.
	Admit func(fd int) bool
}

// A Place says what the processes of a Server get.
type Place struct {
	Env     map[string]string // of every process
	Workdir string            // where they start; "" is /
	User    string            // whom they run as; "" is whom the server runs as

	// OneID says that there is one user id only: every known name stands for
	// it. It holds in any case for a server that does not run as root, and
	// without a Setup is found out.
	OneID bool

	// Cgroup is the directory of a cgroup (v2) that processes are born in;
	// nil is the server's own.
	Cgroup *os.File

	// OOM is an open file of the cgroup that all processes are in, with a line
	// "oom_kill N" (memory.events of v2, memory.oom_control of v1): how many
	// the kernel has killed there for want of memory. nil is not known.
	OOM *os.File

	// MemoryWatch is how many bytes of memory the processes may use together,
	// where no cgroup keeps the limit: the server looks ten times a second and
	// kills the largest. 0 is no watch.
	MemoryWatch int64

	// PIDs is how many processes and threads there may be, where no cgroup
	// keeps the limit, by RLIMIT_NPROC. That counts what belongs to a user of
	// the user namespace, the server's own threads included where the user is
	// the same. 0 is no limit.
	PIDs int
}

// A Server is the guest. Its methods [Server.Loop] and [Server.Reap] do the
// work, each on a thread of its own; connections are added before or after.
type Server struct {
	cfg   Config
	ep    int   // epoll, of the loop
	tried bool  // of the loop: Setup was called
	null  int   // /dev/null, opened by the loop once the place is set up
	place place // written by the loop, before ready
	ready atomic.Bool
	users users // of the sandbox's own passwd and group

	mark   marker
	score  int // descriptor of /proc/self/oom_score_adj, or -1
	parked atomic.Bool
	born   chan struct{} // wakes the reaper when there are children again

	fork sync.Mutex // held from before a fork until the process is in procs

	rights [unixRights]byte // of the loop, for descriptors that come

	tidying atomic.Bool  // tidy will come
	busy    atomic.Int64 // when a process ended last

	wake int // eventfd that makes the loop look at doomed

	mu       sync.Mutex
	doomed   []*conn
	procs    map[uint64]*process // running, and remembered
	pids     map[int]*process    // running
	ended    []*process          // detached, remembered, the oldest first
	conns    map[int]*conn       // by descriptor of the input
	listener int
	reaped   time.Duration // processor time of orphans and ended processes
}

// place is a Place made ready for use.
type place struct {
	Place
	env []string
}

// New returns a Server without connections.
func New(cfg Config) (*Server, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, ep: ep, wake: wake, score: -1, listener: -1,
		born:  make(chan struct{}, 1),
		procs: make(map[uint64]*process),
		pids:  make(map[int]*process),
		conns: make(map[int]*conn),
	}
	s.mark.init()
	// Before the set-up: it may take /proc away, or the right to write there.
	if fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		s.score = fd
	}
	return s, nil
}

// Add serves a connection: it reads from in and writes to out, which may be
// the same, and closes both in the end. Where in is a Unix socket,
// descriptors can be passed.
func (s *Server) Add(in, out int) error {
	return s.add(in, out)
}

// Listen serves the connections that come in on a listening Unix socket.
func (s *Server) Listen(fd int) error {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	s.mu.Lock()
	s.listener = fd
	s.mu.Unlock()
	return unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// Loop serves until the last connection has gone and there is no listener. Then
// nobody can reach what still runs, and it is killed. Loop
// locks its thread, which must not be the process's first one: on cgroup v1 a
// process is where its first thread is, and the guest must not be in its
// sandbox's memory limit.
//
// All processes are started here, between reading a request and answering it,
// so that starting one wakes no other thread.
func (s *Server) Loop() error {
	runtime.LockOSThread()
	if s.cfg.Setup == nil {
		p := s.cfg.Place
		p.OneID = p.OneID || oneID()
		if err := s.settle(p); err != nil {
			return err
		}
	}
	var events [8]unix.EpollEvent
	for {
		s.mu.Lock()
		// A place that was never set up is nobody's: whoever wanted it died.
		idle := len(s.conns) == 0 && (s.listener < 0 || !s.ready.Load() && !s.cfg.Patient)
		s.mu.Unlock()
		if idle {
			s.killAll()
			return nil
		}
		n, err := unix.EpollWait(s.ep, events[:], -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range events[:n] {
			fd := int(e.Fd)
			s.mu.Lock()
			c, listener := s.conns[fd], s.listener
			s.mu.Unlock()
			switch {
			case fd == listener:
				s.accept(fd)
			case fd == s.wake:
				var b [8]byte
				unix.Read(fd, b[:])
				s.mu.Lock()
				doomed := s.doomed
				s.doomed = nil
				s.mu.Unlock()
				for _, c := range doomed {
					s.drop(c)
				}
			case c == nil:
			case e.Events&^unix.EPOLLIN != 0 && !c.flush(), e.Events&^unix.EPOLLOUT != 0 && !c.receive():
				s.drop(c)
			}
		}
	}
}

func (s *Server) accept(listener int) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		if err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOMEM {
			time.Sleep(10 * time.Millisecond) // it stays readable: do not spin
		}
		return
	}
	if s.cfg.Admit != nil && !s.cfg.Admit(fd) || s.add(fd, fd) != nil {
		unix.Close(fd)
	}
}

func (s *Server) add(in, out int) error {
	c := &conn{s: s, in: in, out: out}
	for _, fd := range []int{in, out} {
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			return err
		}
	}
	if d, err := unix.GetsockoptInt(in, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && d == unix.AF_UNIX && in == out {
		c.socket = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns {
		return errors.New("too many connections")
	}
	if err := unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, in, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(in)}); err != nil {
		return err
	}
	s.conns[in] = c
	return nil
}

// doom makes the loop drop c.
func (s *Server) doom(c *conn) {
	go func() { // the caller may hold any lock
		s.mu.Lock()
		s.doomed = append(s.doomed, c)
		s.mu.Unlock()
		unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}()
}

// drop ends a connection. It runs on the loop alone, so that no descriptor is
// closed, and its number given to another, while the loop looks at it.
func (s *Server) drop(c *conn) {
	s.mu.Lock()
	known := s.conns[c.in] == c
	if known {
		delete(s.conns, c.in)
	}
	s.mu.Unlock()
	if !known {
		return
	}
	unix.EpollCtl(s.ep, unix.EPOLL_CTL_DEL, c.in, nil)
	c.close()
	s.orphan(c)
}

// settle makes p the place where processes start.
func (s *Server) settle(p Place) error {
	s.users.oneID = p.OneID || unix.Geteuid() != 0
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.null = null
	if p.Workdir == "" {
		p.Workdir = "/"
	}
	s.place = place{Place: p}
	for k, v := range p.Env {
		s.place.env = append(s.place.env, k+"="+v)
	}
	if p.MemoryWatch > 0 {
		go s.watchMemory(p.MemoryWatch)
	}
	s.ready.Store(true)
	s.tidyLater()
	return nil
}

// quietTime is how long nothing has to happen before tidy gives memory back.
const quietTime = 2 * time.Second

// tidyLater makes the guest small again once nothing happens any more: most
// sandboxes do nothing most of the time.
func (s *Server) tidyLater() {
	s.busy.Store(time.Now().UnixNano())
	if !s.tidying.Swap(true) {
		time.AfterFunc(quietTime, s.tidy)
	}
}

func (s *Server) tidy() {
	if rest := quietTime - time.Since(time.Unix(0, s.busy.Load())); rest > 0 {
		time.AfterFunc(rest, s.tidy)
		return
	}
	s.tidying.Store(false)
	debug.FreeOSMemory()
}

// oneID reports whether the user namespace maps a single user.
func oneID() bool {
	b, err := readRegular("/proc/self/uid_map", 4096)
	f := strings.Fields(string(b))
	return err == nil && len(f) == 3 && f[2] == "1"
}

// setup answers "setup".
func (s *Server) setup(body []byte, files []*os.File) ([]byte, error) {
	if s.cfg.Setup == nil || s.tried {
		for _, f := range files {
			f.Close()
		}
		return nil, fail(kindConflict, "", "nothing is left to set up")
	}
	s.tried = true
	p, answer, err := s.cfg.Setup(body, files)
	if err != nil {
		return nil, err
	}
	return answer, s.settle(p)
}

// orphan decides about the processes of a connection that has ended.
func (s *Server) orphan(c *conn) {
	if !c.greeted {
		return
	}
	name, linger := c.hello.Daemon, time.Duration(c.hello.Linger)
	s.mu.Lock()
	var ps []*process
	for _, p := range s.procs {
		switch {
		case p.conn != c:
		case s.pids[p.pid] == p:
			p.conn, p.daemon = nil, name
			ps = append(ps, p)
		default: // it has ended, and nobody will read its output
			delete(s.procs, p.id)
			go p.release()
		}
	}
	back := false
	for _, o := range s.conns {
		back = back || name != "" && o.greeted && o.hello.Daemon == name
	}
	s.mu.Unlock()
	switch {
	case len(ps) == 0:
	case back:
		s.adopt(name)
	case name == "" || linger <= 0:
		go s.killOrphans(ps)
	default:
		time.AfterFunc(linger, func() { s.killOrphans(ps) })
	}
}

// killAll ends all processes that were started.
func (s *Server) killAll() {
	s.mu.Lock()
	ps := slices.Collect(maps.Values(s.pids))
	s.mu.Unlock()
	for _, p := range ps {
		s.killTree(p)
	}
}

// killOrphans ends those of ps that nobody has adopted.
func (s *Server) killOrphans(ps []*process) {
	for _, p := range ps {
		s.mu.Lock()
		adopted := p.detached
		s.mu.Unlock()
		if !adopted {
			s.killTree(p)
		}
	}
}

// adopt makes the processes that the daemon called name left behind detached
// ones: what they print from now on is kept for it.
func (s *Server) adopt(name string) {
	if name == "" {
		return
	}
	s.mu.Lock()
	var ps []*process
	for _, p := range s.pids {
		if p.conn == nil && !p.detached && p.daemon == name {
			p.detached = true
			ps = append(ps, p)
		}
	}
	s.mu.Unlock()
	for _, p := range ps {
		p.keep(defaultRing)
	}
}

// fail returns an error for the daemon. kind is a sandbox.Kind.
func fail(kind, field, msg string) *proto.Failure {
	return &proto.Failure{Kind: kind, Field: field, Msg: msg}
}

// The kinds of sandbox.Error, which the guest does not import.
const (
	kindInvalid     = "invalid"
	kindDenied      = "denied"
	kindNotExist    = "not-exist"
	kindConflict    = "conflict"
	kindExhausted   = "exhausted"
	kindUnsupported = "unsupported"
	kindUnavailable = "unavailable"
	kindInternal    = "internal"
)

// failure returns err as the daemon gets it.
func failure(err error) *proto.Failure {
	var f *proto.Failure
	if errors.As(err, &f) {
		return f
	}
	return &proto.Failure{Kind: kindInternal, Msg: "the guest failed", Log: err.Error()}
}
