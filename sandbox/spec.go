package sandbox

import (
	"io"
	"io/fs"
	"time"
)

// An ID names a sandbox: 8 to 40 characters of a-z and 0-9, unique among all
// that a host ever made. What callers choose themselves is a name, and is not
// an ID.
type ID string

// A ProcessID names a process within its sandbox: 1 to 40 characters of a-z
// and 0-9.
type ProcessID string

// A Spec says what sandbox is wanted. The zero Spec is a sandbox of the
// backend's default image with no limits, no mounts and no network.
//
// ID, Name, Profile, Idle, Explicit, Limits.Workspace and Mount.Extra are
// policy: a [Keeper] acts on them, what makes sandboxes and nothing more
// refuses them with [Unsupported].
type Spec struct {
	// ID is the id that the sandbox gets; "" is a new one. Only what one
	// caller always asks for by the same id needs it. An id that another
	// sandbox has is [Conflict].
	ID ID

	// Name is what its owner calls the sandbox, such as a chat session or a
	// thread: up to 512 bytes. No two sandboxes of an owner have one name.
	Name string

	// Profile names the defaults and bounds that the sandbox gets; "" are
	// those of the caller's protocol. One that is not there is [NotExist]
	// with Field "profile".
	Profile string

	// Explicit names fields whose zero value is meant, so that the default of
	// a profile does not replace it: "read_only_root", "limits.memory", ….
	Explicit []string

	// Idle is how long nothing may use the sandbox before it is removed: no
	// process that somebody waits for, no running detached process, no open
	// file, no connection. 0 is the profile's time, a negative one never.
	Idle time.Duration

	// Backend names what makes the sandbox, as Info.Backend does, where a
	// Runtime has several; "" is its default. One that it has not is
	// [NotExist] with Field "backend".
	Backend string

	// Image is what the file system starts as, in the backend's terms; ""
	// is the backend's default. backend/linux knows "host" (the host's own
	// system directories, read-only below a writable layer) and
	// "dir:/absolute/path" (an unpacked root file system, likewise), and the
	// images of whoever keeps some for it.
	Image string

	// Env is the environment of every process, to which the Cmd's is added.
	// It may hold secrets: it is never logged, listed or written to state.
	Env map[string]string

	// Workdir is where processes start, an absolute path; "" is the image's
	// own, else /workspace. It is made if it is not there.
	Workdir string

	// User is whom processes run as: "name", "uid", "name:group" or
	// "uid:gid"; "" is the image's own, else root (of the sandbox: an
	// administrator of nothing but the sandbox's files).
	User string

	Limits  Limits
	Mounts  []Mount
	Network Network

	// ReadOnlyRoot makes the root file system read-only. /tmp, /home and
	// /workspace stay writable.
	ReadOnlyRoot bool

	// Require lists what the sandbox must have. If one cannot be given,
	// Create fails with [Unsupported] and Field "require".
	Require []Property

	// Labels are kept with the sandbox and shown in its Info. Keys are 1 to
	// 128 bytes, values up to 4096, at most 128 of them.
	Labels map[string]string

	// Expires is when the sandbox is removed; zero is never. A time that has
	// passed is [Invalid].
	Expires time.Time
}

// Limits bounds what a sandbox may use. Zero means no limit. How each limit
// is kept, and whether it is, stands in Info.Kept; a limit that a sandbox
// cannot do without is also named in Spec.Require.
type Limits struct {
	Memory int64   `json:"memory,omitempty"` // bytes, swap included; at least 4 MiB
	CPU    float64 `json:"cpu,omitempty"`    // cores, 0.01 and up
	PIDs   int     `json:"pids,omitempty"`   // processes and threads; at least 1
	Disk   int64   `json:"disk,omitempty"`   // bytes written below /, mounts not counted; at least 1 MiB

	// Workspace is how many bytes the files below Workdir may have, mounts
	// counted. It is looked at before and after each command, so a command may
	// pass it for as long as it runs: Disk is the bound that holds.
	Workspace int64 `json:"workspace,omitempty"`
}

// A Mount shows a directory or file of the host in the sandbox.
type Mount struct {
	Source   string `json:"source"`              // absolute path on the host
	Target   string `json:"target"`              // absolute path in the sandbox; not / and not below /proc, /sys, /dev
	ReadOnly bool   `json:"read_only,omitempty"` // default: the sandbox may write

	// Extra marks a mount that comes and goes with what a caller asks for.
	// Where such mounts differ, [Keeper.Acquire] makes a sandbox anew; where
	// others differ it is a Conflict.
	Extra bool `json:"extra,omitempty"`

	// Within, if not "", is the folder of the host in which Source must lie
	// when all links are followed, or it is Denied. A [Keeper] sets it; it
	// does not go over the wire.
	Within string `json:"-"`
}

// Network says what of the network a sandbox has.
type Network string

const (
	// NetworkOff is the default: loopback alone, and no resolver.
	NetworkOff Network = "off"
	// NetworkOn is the outside world under the operator's policy.
	NetworkOn Network = "on"
)

// A Property is something that isolates a sandbox or bounds it. Which hold for
// a sandbox stands in its Info.
type Property string

const (
	UserNamespace    Property = "user-namespace"    // root inside is nobody outside
	OwnIDs           Property = "own-ids"           // its user ids are shared with no other sandbox and no user of the host
	ManyIDs          Property = "many-ids"          // users inside differ from each other, as in any Linux system
	PIDNamespace     Property = "pid-namespace"     // sees and signals its own processes alone
	MountNamespace   Property = "mount-namespace"   // has a mount table and a root of its own
	NetworkNamespace Property = "network-namespace" // has a network stack of its own
	IPCNamespace     Property = "ipc-namespace"     // System V IPC and POSIX message queues of its own
	UTSNamespace     Property = "uts-namespace"     // a host name of its own
	CgroupNamespace  Property = "cgroup-namespace"  // does not see where it stands in the host's cgroups
	NoNewPrivileges  Property = "no-new-privileges" // no program gains rights by being executed
	NoCapabilities   Property = "no-capabilities"   // processes hold no capability, root's included
	Seccomp          Property = "seccomp"           // a system call filter is loaded
	Landlock         Property = "landlock"          // Landlock rules are loaded
	MaskedProc       Property = "masked-proc"       // host-wide parts of /proc and /sys are hidden or read-only
	LimitMemory      Property = "limit-memory"      // Limits.Memory is kept
	LimitCPU         Property = "limit-cpu"         // Limits.CPU is kept
	LimitPIDs        Property = "limit-pids"        // Limits.PIDs is kept
	LimitDisk        Property = "limit-disk"        // Limits.Disk is kept
	KillTree         Property = "kill-tree"         // ending a command ends every descendant, even one that hides
)

// A Cmd says what process is wanted.
type Cmd struct {
	// Args is the program and its arguments. A program without a slash is
	// looked for in PATH, as the process's environment has it, inside.
	Args []string

	// Env is added to the sandbox's, and wins.
	Env map[string]string

	// Dir is an absolute path; "" is the sandbox's Workdir.
	Dir string

	// User is as in Spec; "" is the sandbox's User.
	User string

	// Stdin is read until it ends, which closes the process's input; nil is
	// an empty input. A Read that blocks when the process has ended is not
	// waited for; who gave the Reader ends it.
	Stdin io.Reader

	// Stdout and Stderr get the output; nil discards it. Within a stream,
	// order is kept. Each is written by one goroutine at a time; if both are
	// the same comparable Writer, they share one.
	Stdout, Stderr io.Writer

	// Control, if not nil, gets what the process writes to its descriptor 3,
	// which is a pipe of its own. Wait returns after what the process itself
	// wrote there. With nil there is no descriptor 3.
	Control io.Writer

	// Terminal, if not nil, gives the process a terminal of this size as its
	// input and output, and as its controlling terminal. All output goes to
	// Stdout. TERM is set to xterm-256color if nothing else sets it. The end
	// of Stdin is then not passed on; a person types ^D.
	Terminal *Size

	// Timeout, if positive, is how long the process may run. Then its tree
	// is killed and the Exit's Reason is TimedOut.
	Timeout time.Duration
}

// A Size is the size of a terminal in characters. Zero in either is the
// default, 24 by 80.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// An Exit says how a process ended.
type Exit struct {
	Code   int    `json:"code"` // as the process gave it; -1 unless Reason is Exited
	Reason Reason `json:"reason"`
	Signal Signal `json:"signal,omitempty"` // what killed it, where that is known
	Usage  Usage  `json:"usage,omitzero"`   // of the process and its waited-for children, where known
}

// A Reason is how a process came to its end.
type Reason string

const (
	Exited      Reason = "exited"        // by itself
	Signalled   Reason = "signalled"     // by a signal
	OutOfMemory Reason = "out-of-memory" // the kernel or the guest killed it, or one of its children that it died of, for want of memory
	TimedOut    Reason = "timed-out"     // Cmd.Timeout passed
)

// Success reports whether the process exited by itself with code 0.
func (e Exit) Success() bool { return e.Reason == Exited && e.Code == 0 }

// Status returns the exit code as a shell would show it: the code, or 128
// plus the number of the signal; 124 when the time ran out, as timeout(1)
// does; 137 when the memory did.
func (e Exit) Status() int {
	switch e.Reason {
	case Exited:
		return e.Code
	case TimedOut:
		return 124
	case OutOfMemory:
		return 128 + 9
	}
	if n := e.Signal.Number(); n > 0 {
		return 128 + n
	}
	return 255
}

// A State is what a sandbox is doing.
type State string

const (
	Running State = "running"
	Paused  State = "paused"
)

// Info is what is true of a sandbox.
type Info struct {
	ID      ID                `json:"id"`
	State   State             `json:"state"`
	Backend string            `json:"backend"`      // "linux", "memory", …
	Image   string            `json:"image"`        // what it really got
	Wanted  string            `json:"wanted_image"` // what the Spec named, "" if nothing
	User    string            `json:"user"`         // whom processes run as, never ""
	Workdir string            `json:"workdir"`      // where they start, never ""
	Network Network           `json:"network"`      // never ""
	Labels  map[string]string `json:"labels,omitempty"`
	Created time.Time         `json:"created"`
	Expires time.Time         `json:"expires,omitzero"`
	Limits  Limits            `json:"limits,omitzero"` // as asked for
	Mounts  []Mount           `json:"mounts,omitempty"`

	ReadOnlyRoot bool `json:"read_only_root,omitempty"`

	// What a [Keeper] adds.
	Owner    Owner         `json:"owner,omitempty"`
	Names    []string      `json:"names,omitempty"`
	Profile  string        `json:"profile,omitempty"`
	Idle     time.Duration `json:"idle_ns,omitempty"`  // negative: never removed for it
	Used     time.Time     `json:"used,omitzero"`      // when it was last in use; now, while it is
	Busy     int           `json:"busy,omitempty"`     // how many things use it now
	Released bool          `json:"released,omitempty"` // nobody needs it until it is acquired again

	// Kept says for each limit that was asked for ("memory", "cpu", "pids",
	// "disk", "workspace") by what it is kept, such as "cgroup v2"; a limit that is not
	// kept has the value "".
	Kept map[string]string `json:"kept,omitempty"`

	Isolation Isolation `json:"isolation"`
}

// Isolation is the truth about what keeps a sandbox apart.
type Isolation struct {
	// Has lists the properties that hold, sorted.
	Has []Property `json:"has"`

	// Missing lists those that this backend could have given on another host
	// or with other rights, and why not here. What was never asked for, such
	// as a limit, is not missing.
	Missing []Gap `json:"missing,omitempty"`
}

// A Gap is a property that a sandbox lacks.
type Gap struct {
	Property Property `json:"property"`
	Why      string   `json:"why"` // a sentence fit for a tenant's eyes
}

// Holds reports whether p is among the properties that hold.
func (i Isolation) Holds(p Property) bool {
	for _, q := range i.Has {
		if p == q {
			return true
		}
	}
	return false
}

// Usage is what a sandbox or a process has used. A figure that is not known
// is zero.
type Usage struct {
	CPU        time.Duration `json:"cpu_ns,omitempty"`      // processor time, user and system
	Memory     int64         `json:"memory,omitempty"`      // bytes in use now; of an Exit, the largest it was
	PeakMemory int64         `json:"peak_memory,omitempty"` // bytes, the most there was
	PIDs       int           `json:"pids,omitempty"`        // processes and threads now, the guest's not counted
	Disk       int64         `json:"disk,omitempty"`        // bytes written below /
}

// A Range is a part of a file.
type Range struct {
	Offset int64 // from the start; if negative, from the end: -5 is the last five bytes
	Length int64 // at most this many bytes; 0 is up to the end, a negative one is Invalid
}

// FileInfo describes a file.
type FileInfo struct {
	Name   string      // the last element of the path, as bytes
	Size   int64       // bytes; 0 for what is not a regular file or a link
	Mode   fs.FileMode // type and permissions
	Time   time.Time   // of the last change of content
	UID    int         // as inside
	GID    int
	Target string // of a symbolic link
}

// WriteOptions says how [Files.Write] writes. The zero value makes a file of
// mode 0644 or replaces one.
type WriteOptions struct {
	Mode      fs.FileMode // permission bits; 0 is 0644 for a new file, unchanged for an old one
	User      string      // the owner, as in Chown; "" is the sandbox's user for a new file, unchanged for an old one
	Parents   bool        // make the directories above, as Mkdir does
	Exclusive bool        // a file that is there already is Conflict
	Append    bool        // add to what is there
}

// MkdirOptions says how [Files.Mkdir] makes directories.
type MkdirOptions struct {
	Mode    fs.FileMode // permission bits; 0 is 0755
	User    string      // the owner of what is made; "" is the sandbox's user
	Parents bool
}

// DetachOptions says how a detached process runs.
type DetachOptions struct {
	Stdin bool // the process gets an input that [Detacher.Input] writes to
	Ring  int  // how many bytes of output are kept; 0 is 1 MiB, at most 16 MiB

	// Name is what the caller calls the process: up to 256 bytes, any bytes,
	// which come back in its ProcessInfo. It need not differ from others. A
	// longer one is [Invalid].
	Name string
}

// AttachOptions says what an attachment wants. The zero value wants the end
// alone.
type AttachOptions struct {
	Cursor         int64 // where to begin; a negative one begins with what comes next
	Stdout, Stderr io.Writer
}

// ProcessInfo describes a detached process.
type ProcessInfo struct {
	ID      ProcessID `json:"id"`
	Name    string    `json:"name,omitempty"`
	PID     int       `json:"pid,omitempty"`
	Args    []string  `json:"args"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"` // zero while it runs
	Exit    *Exit     `json:"exit,omitempty"` // nil while it runs
	Cursor  int64     `json:"cursor"`         // bytes of output so far, both streams
	Dropped int64     `json:"dropped"`        // bytes of output that are no longer there
}

// Output is a piece of a detached process's output.
type Output struct {
	Chunks  []Chunk `json:"chunks,omitempty"`  // in the order in which they came
	Next    int64   `json:"next"`              // the cursor of what follows
	Dropped int64   `json:"dropped,omitempty"` // bytes between the cursor asked for and the first chunk that are no longer there
	Exit    *Exit   `json:"exit,omitempty"`    // set when the process has ended and nothing follows Next
}

// A Chunk is output of one stream.
type Chunk struct {
	Stderr bool   `json:"stderr,omitempty"`
	Data   []byte `json:"data"`
}
