// Package launch starts processes in new namespaces from a small process of
// its own. A clone with CLONE_NEWUSER copies the address space of who calls
// it, because the id maps are written while the child waits, and so it costs a
// daemon of 50 MB three milliseconds and a process of 2 MB one. The launcher
// is that small process: the guest program, run as "--launch".
//
// # The protocol
//
// The two speak over a Unix socket of the kind SOCK_SEQPACKET. The daemon
// sends one [Request], in the encoding of package guest/proto, with the descriptors that the new process gets
// as 0, 1, 2 and so on, and then, if Request.Cgroup is set, that of a cgroup
// directory. The launcher answers with one [Answer], and where it has no
// error a pidfd. One request is under way at a time. The launcher reaps what
// it started, and exits when the socket is closed; what it started lives on.
package launch

import "github.com/atoll-run/atoll/guest/proto"

// A Request asks for a process of the program that the launcher itself is.
type Request struct {
	Args  []string
	Flags uint64 // CLONE_NEW…

	// UIDs and GIDs are the maps of its user namespace, written before it
	// begins; none leaves that to others.
	UIDs []Map
	GIDs []Map

	// Owner, if not 0, is the host's user who owns the namespace and is
	// charged for what is counted in it, which needs root. The kernel counts
	// some things per user and adds what is taken in a namespace to the
	// account of whoever made it (inotify instances, pending signals, timers,
	// message queues): were that root, a sandbox could leave the host's root,
	// and every other sandbox, without.
	Owner int

	// Root makes it user and group 0 of its namespace, with no other groups.
	Root bool

	// Ambient lets it keep its namespace's capabilities although its user is
	// not mapped.
	Ambient bool

	// Cgroup says that the last descriptor is the cgroup to be born into.
	Cgroup bool
}

// A Map is a line of an id map (user_namespaces(7)).
type Map struct {
	Inside int
	Host   int
	Size   int
}

// An Answer says what became of a Request.
type Answer struct {
	PID   int
	Errno int    // of the clone or the execve
	Err   string // what else went wrong
}

// maxMessage bounds both, in bytes.
const maxMessage = 16 << 10

func (m *Request) Fields(c *proto.Coder) {
	c.Strs(&m.Args)
	c.Uint(&m.Flags)
	proto.List(c, &m.UIDs)
	proto.List(c, &m.GIDs)
	c.Num(&m.Owner)
	c.Bool(&m.Root)
	c.Bool(&m.Ambient)
	c.Bool(&m.Cgroup)
}

func (m *Map) Fields(c *proto.Coder) {
	c.Num(&m.Inside)
	c.Num(&m.Host)
	c.Num(&m.Size)
}

func (m *Answer) Fields(c *proto.Coder) {
	c.Num(&m.PID)
	c.Num(&m.Errno)
	c.Str(&m.Err)
}
