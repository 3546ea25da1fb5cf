// Package enter turns a fresh set of namespaces into a sandbox, from inside.
// The daemon clones the guest as process 1 of new namespaces and sends it a
// [Request] with file descriptors; [Setup], which runs in the guest, carries
// it out as a list of steps. Reviewers of security read that list first
// (steps, in setup_linux.go).
//
// Nothing here is decided: what to mount and what to forbid is in the Request.
// Nothing here runs in the host's namespaces: Setup refuses to.
//
// All mounts are made inside the sandbox's own mount namespace. What only the
// host's root can make (a directory with shifted ids, a file system on a loop
// device) arrives as a detached mount, which nobody but the sandbox ever
// attaches, so a daemon that dies leaves no mount behind.
//
// Kernel features: detached mounts by open_tree and move_mount (5.2),
// mount_setattr (5.12), overlayfs in a user namespace with userxattr (5.11),
// over idmapped layers (5.19); openat2 (5.6).
package enter

import (
	"slices"

	"github.com/atoll-run/atoll/guest/proto"
)

// A Request is what the daemon wants the guest's namespaces to become. Every
// int that names a file is an index into the descriptors that came with it.
type Request struct {
	Hostname string

	// Sources are the trees that the rest refers to by index.
	Sources []Source

	// Volume is the source that holds what the sandbox writes. Each layer's
	// upper and work directory are in it.
	Volume int

	// Fixtures is the source that has what every sandbox gets: dev and sys,
	// and mask/file and mask/dir, both empty. See [MakeFixtures].
	Fixtures int

	// Layers are overlays, the first at "/", the others below it.
	Layers []Layer

	// Binds are what the sandbox's owner mounted.
	Binds []Bind

	// Dirs are made, if they are not there, in the order given.
	Dirs []Dir

	// ReadOnly makes the layers read-only, but for the trees in Writable.
	ReadOnly bool
	Writable []string

	Tmp int64 // size of /tmp in bytes
	Shm int64 // size of /dev/shm in bytes

	// BootID stands in for the host's boot id.
	BootID string

	// Become is set where the ids were mapped after the program began: it
	// then has yet to become user 0.
	Become bool

	// Shared says that the host's user who owns the namespaces has others, and
	// a life of its own.
	Shared bool

	// Filter is a seccomp program in the kernel's form; empty for none.
	Filter []byte

	// Join and Leave are writes by the thread that starts processes, done in
	// order: Join before it has a cgroup namespace of its own, so that this
	// begins where the sandbox's group does, Leave after.
	Join  []Write
	Leave []Write

	// Spawn is the cgroup directory into which processes are born; -1 if none.
	Spawn int

	// What processes get.
	Env     []string // "NAME=value"
	Workdir string
	User    string
	OneID   bool  // the user namespace has one id
	PIDs    int   // kept by RLIMIT_NPROC; 0 if not
	Memory  int64 // kept by the guest's watch, in bytes; 0 if not
}

// A Source is a tree of files: a detached mount, a path in the mount namespace
// that the guest was born with, which it then clones itself, or a new tmpfs. A
// path must lead to the file that has Dev and Ino.
type Source struct {
	File int // -1: Path
	Path string
	Dev  uint64
	Ino  uint64

	// Tmpfs, if positive, is the size of a new tmpfs that is the source; the
	// rest is then ignored.
	Tmpfs int64
}

// A Layer is an overlay: Lower (highest first) below a writable directory of
// the volume.
type Layer struct {
	Target string
	Lower  []int
	Name   string // Volume/Name, and Volume/Name.work for overlayfs
}

// A Bind shows a source at a path of the sandbox.
type Bind struct {
	Source   int
	Target   string
	ReadOnly bool
	IsFile   bool
}

// A Dir is a directory that must be there.
type Dir struct {
	Path string
	Mode uint32
	UID  int
	GID  int
}

// A Write is something to write to a file of a cgroup.
type Write struct {
	File int
	Data string
}

// Done is what Setup tells the daemon of what it could not know.
type Done struct {
	// Gaps are what could not be done and that the sandbox can do without,
	// each with the reason, for the log.
	Gaps []string
}

func (m *Request) Fields(c *proto.Coder) {
	c.Str(&m.Hostname)
	proto.List(c, &m.Sources)
	c.Num(&m.Volume)
	c.Num(&m.Fixtures)
	proto.List(c, &m.Layers)
	proto.List(c, &m.Binds)
	proto.List(c, &m.Dirs)
	c.Bool(&m.ReadOnly)
	c.Strs(&m.Writable)
	c.Int(&m.Tmp)
	c.Int(&m.Shm)
	c.Str(&m.BootID)
	c.Bool(&m.Become)
	c.Bool(&m.Shared)
	c.Bytes(&m.Filter)
	proto.List(c, &m.Join)
	proto.List(c, &m.Leave)
	c.Num(&m.Spawn)
	c.Strs(&m.Env)
	c.Str(&m.Workdir)
	c.Str(&m.User)
	c.Bool(&m.OneID)
	c.Num(&m.PIDs)
	c.Int(&m.Memory)
}

func (m *Source) Fields(c *proto.Coder) {
	c.Num(&m.File)
	c.Str(&m.Path)
	c.Uint(&m.Dev)
	c.Uint(&m.Ino)
	c.Int(&m.Tmpfs)
}

func (m *Layer) Fields(c *proto.Coder) {
	c.Str(&m.Target)
	n := len(m.Lower)
	c.Num(&n)
	if n < 0 || n > maxLayers {
		c.Fail()
		return
	}
	m.Lower = slices.Grow(m.Lower, n)[:n]
	for i := range m.Lower {
		c.Num(&m.Lower[i])
	}
	c.Str(&m.Name)
}

func (m *Bind) Fields(c *proto.Coder) {
	c.Num(&m.Source)
	c.Str(&m.Target)
	c.Bool(&m.ReadOnly)
	c.Bool(&m.IsFile)
}

func (m *Dir) Fields(c *proto.Coder) {
	c.Str(&m.Path)
	c.U32(&m.Mode)
	c.Num(&m.UID)
	c.Num(&m.GID)
}

func (m *Write) Fields(c *proto.Coder) {
	c.Num(&m.File)
	c.Str(&m.Data)
}

func (m *Done) Fields(c *proto.Coder) { c.Strs(&m.Gaps) }

// maxLayers is more than overlayfs takes (500, Linux's OVL_MAX_STACK).
const maxLayers = 512
