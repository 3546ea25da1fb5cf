// Package guest is the small program that runs inside a sandbox, as its
// process 1 where the sandbox has processes of its own, and the protocol that
// a backend speaks with it. The program itself is package guest/inside; the
// messages and their encoding are package guest/proto; this package has
// [Client], which turns a connection into the processes and files of a
// sandbox.Sandbox.
//
// The guest starts and reaps processes, keeps what detached ones print, and
// does the file work, so that no path of a sandbox is ever resolved outside
// of it. It needs nothing from the image: no libc, no shell. It decides
// nothing: policy is the daemon's. It is trusted by the daemon no further than
// the sandbox is: what it answers is checked.
//
// # The connection
//
// The protocol runs over any byte stream. Over a Unix socket it can pass file
// descriptors, and then output and file contents never go through the guest:
// the process writes into a pipe of the daemon's, the daemon reads the file
// that the guest opened. Over anything else they are carried in messages.
//
// Either side sends frames:
//
//	4 bytes  length of what follows, big endian; a frame has at most 4 MiB
//	1 byte   the operation; 0 is an answer, 1 the event "exit"
//	1 byte   how many descriptors belong to it, at most 64
//	2 bytes  0
//	4 bytes  the number of the request, big endian; 0 of an event
//	body     a message of package proto
//
// Bodies are the fields of the message one after the other, without names:
// numbers as varints, strings with their length before them. A message grows
// at its end alone, so that a daemon understands guests older and newer than
// itself: those of sandboxes that outlived an upgrade. Content in one message
// (of a file, of output) is at most 256 KiB.
//
// The daemon sends requests and gets one answer to each, in any order: a 0 and
// the answer's message, or a 1 and a [proto.Failure]. It may send the next
// before it has the answer to the last, "setup" and "start" with the "hello"
// that has to precede them. The guest sends events unasked. "cancel" ends the
// request that it names, which then answers at once, with a Failure or with
// what was done until then; it has no answer of its own. Descriptors that
// belong to a frame travel with its first byte or before, in order. Whoever
// receives a descriptor closes it.
//
// Several connections may be open at a time; they see the same processes. A
// frame that breaks the rules ends its connection and no other.
//
// # Operations
//
// The types named are those of the bodies of request and answer.
//
//	hello      Hello → Hello            must be the first; the answer says whether descriptors are passed and the place is set up
//	setup      Raw + descriptors → Raw  what the program that hosts the guest makes of it, once, before all else
//	cancel     Cancel                   no answer
//	start      Start → Started          a process; see below
//	signal     Signal → –               to the process and its group, KILL to the tree; nothing to one that has ended
//	resize     Resize → –
//	read       Read → Data              output of an attached process, carried
//	write      Write → Wrote            its standard input, carried, or a detached one's; answers when the pipe has taken it
//	release    Proc → –                 the daemon has read what it wants: drain and discard what comes
//	processes  – → Processes            the detached ones
//	wait       Proc → Exit              the end of a detached process
//	output     Output → Outputs
//	forget     Proc → –                 an ended detached process
//	env        Env → Env                what later processes get; the answer undoes it
//	open       Path → Opened            + 1 descriptor, or a handle
//	create     Create → Opened          + 1 descriptor and a handle: a new file that has no name yet
//	commit     Handle → Entry           gives it its name, atomically
//	fread      Fread → Data
//	fwrite     Fwrite → –
//	close      Handle → –               also abandons what was not committed
//	stat       Path → Entry
//	list       ListDir → Entries        in pieces, sorted by name
//	mkdir rename remove chmod chown     Mkdir Rename Remove Chmod Chown → –
//	dial       Dial → Opened            + 1 descriptor: TCP on the sandbox's loopback
//	usage      – → Usage
//
// A short file goes with "create" and is committed by it (Create.Commit).
//
// # Processes
//
// A process's number is the daemon's name for it; it is not a pid, and no
// guest of the same sandbox gives it twice.
//
// "start" with descriptors passes, in this order and only those that Start
// asks for as a Pipe: the reading end of standard input; the writing and then
// the reading end of standard output; the same of standard error; the same of
// descriptor 3, if there is to be one (Start.Control). The guest gives the
// process the ends that it needs and keeps the reading ends of the output until
// the process has ended and no descendant holds the other end, so that nobody
// dies of SIGPIPE because a daemon went away. With a terminal only those of
// descriptor 3 are passed; the answer brings the terminal's master. Without
// descriptors the guest makes the pipes, and "read" and "write" carry what is
// in them: the daemon asks, so a slow reader slows the process. A process gets
// the descriptors 0, 1 and 2, also 3 if it was asked for, and no others.
//
// When an attached process has ended the guest sends the event "exit", an
// [proto.Exit]. Unless that says Held, the daemon reads the pipes to their
// end. If a descendant holds one open, the daemon reads what is in it at that
// time, which is at least what the process itself wrote, and then sends
// "release": from then on the guest reads to nowhere until nobody can write.
// Where output is carried, "read" says Data.End when that much has been read,
// and "release" always has to follow.
//
// Start.Timeout is kept by the guest, so that it does not depend on a daemon.
//
// If the connection ends before an attached process does, the process lives on
// for Hello.Linger, not read, and is then killed with its tree. If before that
// a connection says hello with the same, not empty, Hello.Daemon (or there is
// such a one already), the process becomes a detached one: what it has printed
// since the loss, and prints from now on, goes to a ring, and what it writes to
// descriptor 3 to nowhere; it is among "processes" and lives as long as it
// likes. No output can be read twice or by two: what the daemon had read by
// then is not in the ring.
//
// The output of a detached process goes to a ring of up to 16 MiB. Cursors
// count the bytes of both streams together; their order is kept within each
// stream, and between the two as far as two pipes allow. An ended one is
// remembered until it is forgotten or 256 others have ended after it. What
// its descendants print after its end is discarded.
//
// # Trees
//
// Ending a command means ending all that came of it and nothing else. The
// guest marks each process that it starts with the soft limit of
// RLIMIT_LOCKS, a limit that Linux has ignored since 2.4 (getrlimit(2)) but
// that every descendant inherits through fork, exec, setsid and the death of
// its parent. It sets its own limit before the fork and so needs no hook
// between fork and exec. To end a tree it looks through /proc for the mark,
// stops what it finds, looks again until it finds no more, and kills all.
// Where the system call filter of backend/linux is loaded, nothing inside can
// change the mark; elsewhere a program that means to can leave its tree. The
// mark is the process's number, 40 bits of which are drawn when the guest
// starts, so that guests which see each other's processes do not mix them up.
//
// # Files
//
// Paths are resolved from the guest's root by openat2(2) with
// RESOLVE_NO_MAGICLINKS; anything but a regular file is recognized before it
// is opened. A new file has no name (O_TMPFILE) until it is committed, or one
// that begins with ".atoll-" where the file system cannot do that; replacing a
// file gives it such a name for the moment between linkat(2) and rename(2).
// When the connection ends, what was not committed goes. Permissions and owner
// of a replaced file are kept, its further hard links and extended attributes
// are not.
//
// # Bounds
//
// A guest serves 16 connections at a time; each may have 256 requests under
// way and 1024 files open; 4096 processes that were started may run. What is
// more is exhausted. A daemon that leaves 4 MiB of answers unread loses its
// connection; answers with content wait for it instead.
package guest
