// Package place makes a container the place where a sandbox's processes live,
// from inside: the guest, which is the container's process 1, gets a [Request]
// from the daemon, and [Setup] carries it out before the first process of the
// sandbox is started. The engine has made the namespaces and mounts by then;
// what is left is to look at what it made, and to take from everything that the
// guest starts what the guest alone needs.
//
// It has what the engine must not know as well: the environment, which may
// hold secrets and would stand in the container's configuration for everybody
// who may ask the engine.
package place

import "github.com/atoll-run/atoll/guest/proto"

// Socket is where the guest listens: the name of an abstract Unix socket,
// which belongs to the container's own network namespace and needs no file.
const Socket = "@atoll-guest"

// A Request is what the daemon wants.
type Request struct {
	Env     []string // "NAME=value", of every process
	Workdir string
	User    string

	// Mounts are what was mounted, and must be what the daemon had looked at.
	Mounts []File
}

// A File is a file or folder by what it is, wherever it is seen from.
type File struct {
	Path string // in the sandbox
	Dev  uint64
	Ino  uint64
}

// Done is what Setup found, which the engine's word alone would not tell.
type Done struct {
	UserNS  bool // root here is nobody outside
	Seccomp bool // the engine loaded a system call filter
	Masked  bool // /proc/sys is read-only and /proc/kcore hidden
	Tree    bool // no process can shed the mark of its tree

	// Gaps are what could not be done and that a sandbox can do without, each
	// with the reason, for the log.
	Gaps []string
}

func (m *Request) Fields(c *proto.Coder) {
	c.Strs(&m.Env)
	c.Str(&m.Workdir)
	c.Str(&m.User)
	proto.List(c, &m.Mounts)
}

func (m *File) Fields(c *proto.Coder) {
	c.Str(&m.Path)
	c.Uint(&m.Dev)
	c.Uint(&m.Ino)
}

func (m *Done) Fields(c *proto.Coder) {
	c.Bool(&m.UserNS)
	c.Bool(&m.Seccomp)
	c.Bool(&m.Masked)
	c.Bool(&m.Tree)
	c.Strs(&m.Gaps)
}
