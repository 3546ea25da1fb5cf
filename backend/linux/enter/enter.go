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

// A Request is what the daemon wants the guest's namespaces to become. Every
// int that names a file is an index into the descriptors that came with it.
type Request struct {
	Hostname string `json:"hostname"`

	// Sources are the trees that the rest refers to by index.
	Sources []Source `json:"sources"`

	// Volume is the source that holds what the sandbox writes. Each layer's
	// upper and work directory are in it.
	Volume int `json:"volume"`

	// Layers are overlays, the first at "/", the others below it.
	Layers []Layer `json:"layers"`

	// Binds are what the sandbox's owner mounted.
	Binds []Bind `json:"binds,omitempty"`

	// Dirs are made, if they are not there, in the order given.
	Dirs []Dir `json:"dirs,omitempty"`

	// ReadOnly makes the layers read-only, but for the trees in Writable.
	ReadOnly bool     `json:"read_only,omitempty"`
	Writable []string `json:"writable,omitempty"`

	Tmp int64 `json:"tmp"` // size of /tmp in bytes
	Shm int64 `json:"shm"` // size of /dev/shm in bytes

	// BootID stands in for the host's boot id.
	BootID string `json:"boot_id"`

	// Become is set where the ids were mapped after the program began: it
	// then has yet to become user 0.
	Become bool `json:"become,omitempty"`

	// Filter is a seccomp program in the kernel's form; empty for none.
	Filter []byte `json:"filter,omitempty"`

	// Join and Leave are writes by the thread that starts processes, done in
	// order: Join before it has a cgroup namespace of its own, so that this
	// begins where the sandbox's group does, Leave after.
	Join  []Write `json:"join,omitempty"`
	Leave []Write `json:"leave,omitempty"`

	// Spawn is the cgroup directory into which processes are born; -1 if none.
	Spawn int `json:"spawn"`

	// What processes get.
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir"`
	User    string            `json:"user"`
	OneID   bool              `json:"one_id,omitempty"` // the user namespace has one id
	PIDs    int               `json:"pids,omitempty"`   // kept by RLIMIT_NPROC; 0 if not
	Memory  int64             `json:"memory,omitempty"` // kept by the guest's watch, in bytes; 0 if not
}

// A Source is a tree of files: a detached mount, a path in the mount namespace
// that the guest was born with, which it then clones itself, or a new tmpfs. A
// path must lead to the file that has Dev and Ino.
type Source struct {
	File int    `json:"file"` // -1: Path
	Path string `json:"path,omitempty"`
	Dev  uint64 `json:"dev,omitempty"`
	Ino  uint64 `json:"ino,omitempty"`

	// Tmpfs, if positive, is the size of a new tmpfs that is the source; the
	// rest is then ignored.
	Tmpfs int64 `json:"tmpfs,omitempty"`
}

// A Layer is an overlay: Lower (highest first) below a writable directory of
// the volume.
type Layer struct {
	Target string `json:"target"`
	Lower  []int  `json:"lower"`
	Name   string `json:"name"` // Volume/Name/upper and Volume/Name/work
}

// A Bind shows a source at a path of the sandbox.
type Bind struct {
	Source   int    `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	IsFile   bool   `json:"is_file,omitempty"`
}

// A Dir is a directory that must be there.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// A Write is something to write to a file of a cgroup.
type Write struct {
	File int    `json:"file"`
	Data string `json:"data"`
}

// Done is what Setup tells the daemon of what it could not know.
type Done struct {
	// Gaps are the steps that could not be carried out and that the sandbox
	// can do without, by step name, with the reason.
	Gaps map[string]string `json:"gaps,omitempty"`
}
