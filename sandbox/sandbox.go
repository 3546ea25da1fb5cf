package sandbox

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"net"
	"time"
)

// A Runtime makes sandboxes.
//
// A Runtime is safe for concurrent use. After Close, calls fail with [Closed].
type Runtime interface {
	// Create returns a new sandbox that is ready to run commands. ctx bounds
	// the making, not the sandbox's life. If Create fails, or ctx ends first,
	// it leaves nothing behind. A Spec that cannot be kept is refused:
	// [Invalid] if nobody could keep it, [Unsupported] if this Runtime cannot.
	// An image that is not there is [NotExist] with Field "image".
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Open returns the live sandbox with the given id, or [NotExist]. An id
	// that is not well formed is [NotExist] as well: nothing has it.
	Open(ctx context.Context, id ID) (Sandbox, error)

	// List yields the live sandboxes in no particular order. It stops at the
	// first error, which it yields. A sandbox made or removed meanwhile may or
	// may not be among them.
	List(ctx context.Context) iter.Seq2[Info, error]

	// Close releases what the Runtime itself holds and waits for its
	// goroutines. Whether the sandboxes outlive it is the Runtime's business
	// and said there. A second Close does nothing and returns nil.
	Close() error
}

// A Sandbox is one isolated place: a file system, and the processes in it.
//
// A Sandbox is safe for concurrent use. It needs no closing: dropping the
// value changes nothing. Once the sandbox is gone, whoever removed it, calls
// fail with [NotExist].
type Sandbox interface {
	// ID returns the id, which never changes and is never used again.
	ID() ID

	// Info returns what is true of the sandbox now.
	Info(ctx context.Context) (Info, error)

	// Start starts a process. The process lives until it exits, its Timeout
	// passes, or ctx ends; in the latter two cases its whole tree is killed:
	// every descendant, whether it changed its session, lost its parent or
	// ignores signals. A descendant that is still alive when the process
	// itself has exited stays, and belongs to the sandbox.
	//
	// A program that is not there is [NotExist] with Field "args", a working
	// directory that is not there is [NotExist] with Field "dir", a user that
	// is not there is [NotExist] with Field "user", a program that the user
	// may not execute is [Denied] with Field "args".
	Start(ctx context.Context, cmd Cmd) (Process, error)

	// Files returns the sandbox's file system.
	Files() Files

	// Remove kills every process of the sandbox, frees all that it holds, and
	// returns when that is done. To remove what is already gone is no error.
	Remove(ctx context.Context) error
}

// A Process is one running command. It is safe for concurrent use.
type Process interface {
	// ID names the process within its sandbox, for [Detacher] and for logs.
	// It is not a pid and is not used again in the sandbox's life.
	ID() ProcessID

	// PID returns the process's pid as the sandbox sees it, or 0 where the
	// backend has none.
	PID() int

	// Wait returns when the process has exited and everything that it wrote
	// itself has been handed to Cmd.Stdout, Stderr and Control, which nobody
	// writes to after that. It waits neither for a descendant that still holds the
	// output open, nor for a blocked Cmd.Stdin. It may be called by many, and
	// again; all get the same.
	//
	// The error is nil whenever the Exit is the command's own doing, a kill by
	// Timeout, Signal or lack of memory included. It is the context's error
	// when the context given to Start ended first; the first error of a Writer
	// (whose stream is then discarded, while the process goes on) or of Stdin;
	// [NotExist] when the sandbox was removed; otherwise ours.
	Wait() (Exit, error)

	// Signal sends sig to the process and its process group; KILL goes to the
	// whole tree. A process that has exited gets nothing, which is no error.
	// A signal that is not one of the known names is [Invalid].
	Signal(ctx context.Context, sig Signal) error

	// Resize sets the size of the process's terminal. Without one it is
	// [Unsupported].
	Resize(ctx context.Context, size Size) error
}

// Files is a sandbox's file system, seen from inside: every path is absolute
// and resolved within the sandbox's root, symbolic links included, so that
// none leads outside. Relative and empty paths, and those with a NUL byte or
// of more than 4095 bytes, are [Invalid] with Field "path". A path is bytes;
// it need not be UTF-8.
//
// Files works with the rights of the sandbox's administrator, whatever the
// sandbox's user may do. What it makes belongs to the sandbox's user, unless
// the call says otherwise. It never blocks on a FIFO, a socket or a device:
// to read or write anything but a regular file is [Invalid]. Kernel interfaces
// (procfs, sysfs, device nodes) cannot be read, written or changed through
// Files: [Denied] or [Invalid].
//
// What is not there is [NotExist]; what is there already, where it must not
// be, is [Conflict]; a full disk or quota is [Exhausted]; a read-only file
// system is [Denied]. A name of more than 255 bytes and a path that leads
// through more than 40 links, or in circles, is [Invalid].
type Files interface {
	// Open opens the regular file at path for reading. r selects a part of it;
	// the zero Range is the whole. A range that begins past the end reads
	// nothing. The caller closes the File. When ctx ends, reads fail.
	Open(ctx context.Context, path string, r Range) (File, error)

	// Write stores what it reads from src as the file at path and returns what
	// is then there. It is atomic: others see the old file or the whole new
	// one, and if src fails or ctx ends nothing has changed. An existing file
	// keeps its owner and permissions unless opt says otherwise. A symbolic
	// link at path is followed. With Append it is not atomic: what was read
	// before an error stays.
	Write(ctx context.Context, path string, src io.Reader, opt WriteOptions) (FileInfo, error)

	// Stat describes what is at path without following a final symbolic link.
	Stat(ctx context.Context, path string) (FileInfo, error)

	// List yields what is in the directory at path, sorted by name, without
	// following links. It stops at the first error, which it yields.
	List(ctx context.Context, path string) iter.Seq2[FileInfo, error]

	// Mkdir makes a directory. With Parents it makes those above it too, and
	// a directory that is there already is no error.
	Mkdir(ctx context.Context, path string, opt MkdirOptions) error

	// Rename moves what is at from to to, replacing a file or an empty
	// directory there, as rename(2) does. Between file systems (say, from /tmp
	// to /workspace) a regular file is copied; a directory is [Unsupported].
	Rename(ctx context.Context, from, to string) error

	// Remove removes a file, a link or an empty directory. With all it removes
	// what is below as well, never following links, and what is not there is
	// no error. A directory that is not empty is [Conflict].
	Remove(ctx context.Context, path string, all bool) error

	// Chmod sets the permission bits (fs.ModePerm, ModeSetuid, ModeSetgid,
	// ModeSticky) of what path leads to, following links.
	Chmod(ctx context.Context, path string, mode fs.FileMode) error

	// Chown gives what is at path to user ("name", "uid", "name:group",
	// "uid:gid"), following links. An unknown user is [NotExist] with Field
	// "user". Where a sandbox has one id only, every known name stands for it.
	Chown(ctx context.Context, path, user string) error
}

// A File is an open file. Its Info was taken when it was opened. Close always
// needs calling, and a second Close does nothing.
type File interface {
	io.ReadCloser
	Info() FileInfo
}

// A Pauser is a Sandbox that can stand still.
type Pauser interface {
	// Pause stops every process of the sandbox where it is. It returns when
	// they stand. A process started meanwhile is refused with [Unavailable]
	// and the hint to resume; files may still be reached. To pause what is
	// paused is no error. A Timeout goes on counting.
	Pause(ctx context.Context) error

	// Resume lets them go on. To resume what runs is no error.
	Resume(ctx context.Context) error
}

// A Dialer is a Sandbox whose ports can be reached from outside.
type Dialer interface {
	// Dial connects to a TCP port on the sandbox's own loopback. Nobody
	// listening is [Unavailable]; a port outside 1 to 65535 is [Invalid]. ctx
	// bounds the connecting; the caller closes the connection.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// A Meter is a Sandbox that knows what it uses.
type Meter interface {
	Usage(ctx context.Context) (Usage, error)
}

// A Detacher is a Sandbox whose processes can outlive the caller, and the
// daemon too. The output of a detached process is kept in a ring of bounded
// size, which its readers read by cursor.
type Detacher interface {
	// StartDetached starts a process that lives until it exits, its Timeout
	// passes, it is signalled, or the sandbox is removed. ctx bounds the
	// starting alone. cmd.Stdin, Stdout, Stderr and Control must be nil
	// ([Invalid]): input comes by Input, output goes by Output. With opt.Stdin
	// unset the process's standard input is empty.
	StartDetached(ctx context.Context, cmd Cmd, opt DetachOptions) (ProcessID, error)

	// Processes returns the detached processes that run, and those ended ones
	// that are still remembered, oldest first.
	Processes(ctx context.Context) ([]ProcessInfo, error)

	// Attach returns the detached process with this id, or [NotExist]. The
	// returned Process's Wait returns when the process ends; ctx bounds this
	// attachment, not the process: when it ends first, Wait returns its error
	// and the process lives on. Where Stdout or Stderr are given they get the
	// output from the cursor on, and Wait returns after the last of it. KILL
	// also reaches what an ended process left running, until it is forgotten.
	Attach(ctx context.Context, id ProcessID, opt AttachOptions) (Process, error)

	// Output returns output that lies at or after cursor (0 is the very
	// first byte), at most max bytes of it, waiting up to wait for some to
	// come. It returns at once when the process has ended.
	Output(ctx context.Context, id ProcessID, cursor int64, max int, wait time.Duration) (Output, error)

	// Input writes to the process's standard input and, with eof, closes it
	// afterwards. It returns when the process has taken the bytes or its pipe
	// has. If ctx ends first, part of it may have been written; the count
	// says how much. A closed input is [Conflict].
	Input(ctx context.Context, id ProcessID, p []byte, eof bool) (int, error)

	// Forget drops what is remembered of an ended process. A running one is
	// [Conflict].
	Forget(ctx context.Context, id ProcessID) error
}
