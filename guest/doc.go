// Package guest is the small program that runs inside a sandbox, as its
// process 1 where the sandbox has processes of its own, and the protocol that
// a backend speaks with it. The program itself is package guest/inside; this
// package has the protocol's messages, the framing, and [Client], which turns
// a connection into the processes and files of a sandbox.Sandbox.
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
// that the guest opened. Over anything else they are carried in payloads.
//
// Either side sends frames:
//
//	4 bytes  length of the header, big endian, at most 1 MiB
//	4 bytes  length of the payload, big endian, at most 1 MiB
//	header   JSON, a [Request], an [Answer] or an [Event]
//	payload  bytes that belong to it
//
// The daemon sends requests and gets one answer to each, in any order; their
// id tells which. The guest sends events unasked: the end of an attached
// process (started over this connection and not detached). A request of the
// operation "cancel" ends the one with the id that it names, which then
// answers with an error; it has no answer of its own. File descriptors that
// belong to a frame travel with its first byte or before, in order, and the
// header says how many they are. Whoever receives a descriptor closes it.
//
// Several connections may be open at a time; they see the same processes. The
// first frame is always the request "hello".
//
// # Operations
//
// [Request].Op is one of these; the types named are those of the bodies of
// request and answer.
//
//	hello      Hello → Hello            versions; must be the first
//	setup      raw → raw                what the program that hosts the guest makes of it, once, before all else
//	start      Start → Started          a process; see below
//	signal     Signal → –               to the group, KILL to the tree
//	resize     Resize → –
//	read       Read → – (payload)       output of an attached process, carried
//	write      Write (payload) → Wrote  its standard input, carried, or a detached one's
//	release    Proc → –                 the daemon has read what it wants: drain and discard what comes
//	processes  – → Processes            the detached ones
//	wait       Proc → Ended             the end of a detached process
//	output     Output → Outputs (payload)
//	forget     Proc → –
//	open       Open → Opened (1 descriptor or a handle)
//	create     Create → Opened          a new file that has no name yet
//	commit     Handle → Entry           gives it its name, atomically
//	fread      Fread → – (payload)
//	fwrite     Fwrite (payload) → –
//	close      Handle → –               also abandons what was not committed
//	stat       Path → Entry
//	list       List → Entries           in pieces, sorted by name
//	mkdir rename remove chmod chown     Mkdir Rename Remove Chmod Chown → –
//	dial       Dial → Opened            TCP on the sandbox's loopback
//	usage      – → Usage
//
// # Processes
//
// "start" with descriptors passes, in this order and only those that are
// wanted: the reading end of standard input; the writing and then the reading
// end of standard output; the same of standard error. The guest gives the
// process the ends that it needs and keeps the reading ends of the output
// until the process has ended and no descendant holds the other end, so that
// nobody dies of SIGPIPE because a daemon went away. After "release" it drains
// them to nowhere. With a terminal no descriptor is passed; the answer brings
// the terminal's master. Without descriptors the guest makes the pipes, and
// "read" and "write" carry what is in them: the daemon asks, so a slow reader
// slows the process.
//
// When an attached process has ended the guest sends the event "exit". If the
// connection ends first, the process is killed, with its tree, unless another
// connection says hello with the same Hello.Daemon within Hello.Linger.
//
// A detached process's output goes to a ring. Cursors count the bytes of both
// streams together.
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
// change the mark.
package guest
