package proto

// Hello opens a connection, in both directions.
type Hello struct {
	Version     int
	Daemon      string // who is calling: a daemon that comes back has the same name; "" never comes back
	Linger      int64  // nanoseconds that the attached processes live on without their daemon
	Descriptors bool   // request: the daemon can pass descriptors; answer: both can
	PID         int    // answer: the guest's own pid, as it sees it
	Ready       bool   // answer: nothing is left to set up
}

func (m *Hello) Fields(c *Coder) {
	c.Num(&m.Version)
	c.Str(&m.Daemon)
	c.Int(&m.Linger)
	c.Bool(&m.Descriptors)
	c.Num(&m.PID)
	c.Bool(&m.Ready)
}

// Raw is a body that only the ends understand.
type Raw struct{ Body []byte }

func (m *Raw) Fields(c *Coder) { c.Bytes(&m.Body) }

// Cancel ends the request with this id.
type Cancel struct{ ID uint32 }

func (m *Cancel) Fields(c *Coder) { c.U32(&m.ID) }

// A Failure is the answer to a request that failed. It is an error as well,
// for use inside the guest.
type Failure struct {
	Kind, Field, Msg, Hint string // as of a sandbox.Error
	Log                    string // the cause, for the operator
}

func (m *Failure) Fields(c *Coder) {
	c.Str(&m.Kind)
	c.Str(&m.Field)
	c.Str(&m.Msg)
	c.Str(&m.Hint)
	c.Str(&m.Log)
}

func (m *Failure) Error() string {
	s := m.Msg
	if s == "" {
		s = m.Kind
	}
	if m.Field != "" {
		s = m.Field + ": " + s
	}
	if m.Log != "" {
		s += ": " + m.Log
	}
	return s
}

// An Answer is a flag and what was asked for, or the Failure.
type Answer struct {
	Failed bool
	Body   Message // encoding: nil is none
}

func (m *Answer) Fields(c *Coder) {
	c.Bool(&m.Failed)
	if m.Body != nil {
		m.Body.Fields(c)
	}
}

// How a standard stream of a process that starts is made. With descriptors,
// Pipe means that they come with the request.
const (
	Null  = 0 // /dev/null
	Pipe  = 1
	Share = 2 // standard error alone: where standard output goes
)

// Start starts a process.
type Start struct {
	Args       []string
	Env        []string // "name=value"; wins over the sandbox's own
	Dir, User  string
	In         int // Null or Pipe
	Out, Err   int // Null, Pipe or Share
	Terminal   bool
	Rows, Cols int
	Timeout    int64 // nanoseconds; 0 is none
	Detached   bool
	Ring       int    // bytes that are kept of a detached one's output
	Control    bool   // the process gets a descriptor 3, a pipe; not a detached one
	Name       string // of a detached one, for its caller
}

func (m *Start) Fields(c *Coder) {
	c.Strs(&m.Args)
	c.Strs(&m.Env)
	c.Str(&m.Dir)
	c.Str(&m.User)
	c.Num(&m.In)
	c.Num(&m.Out)
	c.Num(&m.Err)
	c.Bool(&m.Terminal)
	c.Num(&m.Rows)
	c.Num(&m.Cols)
	c.Int(&m.Timeout)
	c.Bool(&m.Detached)
	c.Num(&m.Ring)
	c.Bool(&m.Control)
	c.Str(&m.Name)
}

// Started answers Start. With a terminal and descriptors, its master comes
// along.
type Started struct {
	Proc uint64 // names the process in the life of the guest; also its mark
	PID  int
}

func (m *Started) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Num(&m.PID)
}

// Proc names a process.
type Proc struct{ Proc uint64 }

func (m *Proc) Fields(c *Coder) { c.Uint(&m.Proc) }

// Signal sends the signal with this number.
type Signal struct {
	Proc   uint64
	Number int
}

func (m *Signal) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Num(&m.Number)
}

// Resize sets the size of a terminal.
type Resize struct {
	Proc       uint64
	Rows, Cols int
}

func (m *Resize) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Num(&m.Rows)
	c.Num(&m.Cols)
}

// How a process ended: the numbers of [Exit].Reason.
const (
	Exited      = 1
	Signalled   = 2
	TimedOut    = 3
	OutOfMemory = 4 // by the guest's own watch; the kernel's verdict is not the guest's to see
)

// Exit is the end of a process: an event for an attached one, part of answers
// for a detached one.
type Exit struct {
	Proc   uint64
	Reason int
	Code   int
	Signal int
	CPU    int64 // nanoseconds, user and system, children that were waited for included
	Memory int64 // bytes, the largest resident set

	// Held says that another process held the output open when this one
	// ended: its stream has no end, and wants a release once read as far as
	// the process itself wrote.
	Held bool
}

func (m *Exit) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Num(&m.Reason)
	c.Num(&m.Code)
	c.Num(&m.Signal)
	c.Int(&m.CPU)
	c.Int(&m.Memory)
	c.Bool(&m.Held)
}

// Read asks for output of an attached process: at most Max bytes of stream 1,
// 2 or 3, waiting for some to come.
type Read struct {
	Proc   uint64
	Stream int
	Max    int
}

func (m *Read) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Num(&m.Stream)
	c.Num(&m.Max)
}

// Data is a piece of content. End says that nothing follows.
type Data struct {
	End  bool
	Data []byte
}

func (m *Data) Fields(c *Coder) {
	c.Bool(&m.End)
	c.Bytes(&m.Data)
}

// Write writes to a process's standard input and closes it if EOF is set.
type Write struct {
	Proc uint64
	EOF  bool
	Data []byte
}

func (m *Write) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Bool(&m.EOF)
	c.Bytes(&m.Data)
}

// Wrote answers Write, and Fwrite to a connection: how many bytes were taken. A Failure in it says why
// not all were.
type Wrote struct {
	N    int
	Fail Failure // Kind "" is none
}

func (m *Wrote) Fields(c *Coder) {
	c.Num(&m.N)
	c.Sub(&m.Fail)
}

// Process describes a detached process.
type Process struct {
	Proc    uint64
	PID     int
	Args    []string
	Started int64 // nanoseconds since 1970
	Ended   int64 // 0 while it runs
	Cursor  int64
	Dropped int64
	Exit    Exit
	Name    string
}

func (m *Process) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Num(&m.PID)
	c.Strs(&m.Args)
	c.Int(&m.Started)
	c.Int(&m.Ended)
	c.Int(&m.Cursor)
	c.Int(&m.Dropped)
	c.Sub(&m.Exit)
	c.Str(&m.Name)
}

// Processes lists the detached ones, oldest first.
type Processes struct{ List []Process }

func (m *Processes) Fields(c *Coder) { List[Process](c, &m.List) }

// Output asks for what a detached process printed at or after Cursor, at most
// Max bytes, waiting up to Wait nanoseconds. A negative Cursor is the end of
// what there is; Wait may then be 0 to learn where that is.
type Output struct {
	Proc   uint64
	Cursor int64
	Max    int
	Wait   int64
}

func (m *Output) Fields(c *Coder) {
	c.Uint(&m.Proc)
	c.Int(&m.Cursor)
	c.Num(&m.Max)
	c.Int(&m.Wait)
}

// Chunk is output of one stream.
type Chunk struct {
	Stderr bool
	Data   []byte
}

func (m *Chunk) Fields(c *Coder) {
	c.Bool(&m.Stderr)
	c.Bytes(&m.Data)
}

// Outputs answers Output. Ended says that the process has ended, with Exit,
// and nothing follows Next.
type Outputs struct {
	Chunks  []Chunk
	Next    int64
	Dropped int64
	Ended   bool
	Exit    Exit
}

func (m *Outputs) Fields(c *Coder) {
	List[Chunk](c, &m.Chunks)
	c.Int(&m.Next)
	c.Int(&m.Dropped)
	c.Bool(&m.Ended)
	c.Sub(&m.Exit)
}

// Env changes the environment of processes that are started later: adds Env,
// then takes the variables Without out of it. Its answer is what undoes that.
type Env struct {
	Env     []string // "name=value"
	Without []string // names
}

func (m *Env) Fields(c *Coder) {
	c.Strs(&m.Env)
	c.Strs(&m.Without)
}

// Path names a file. Paths are bytes, not text.
type Path struct{ Path string }

func (m *Path) Fields(c *Coder) { c.Str(&m.Path) }

// Entry describes a file. Mode is as of stat(2), type included.
type Entry struct {
	Name     string
	Size     int64
	Mode     uint32
	Time     int64 // nanoseconds since 1970
	UID, GID int
	Target   string
}

func (m *Entry) Fields(c *Coder) {
	c.Str(&m.Name)
	c.Int(&m.Size)
	c.U32(&m.Mode)
	c.Int(&m.Time)
	c.Num(&m.UID)
	c.Num(&m.GID)
	c.Str(&m.Target)
}

// Opened answers Open, Create and Dial: a descriptor came along, or Handle
// stands for it. What was created has a Handle in either case, to commit it.
type Opened struct {
	Handle uint32
	Entry  Entry
}

func (m *Opened) Fields(c *Coder) {
	c.U32(&m.Handle)
	c.Sub(&m.Entry)
}

// Create begins to write the file at Path.
type Create struct {
	Path      string
	Mode      int // permission bits as of chmod(2); -1 is the old file's, or 0644
	User      string
	Parents   bool
	Exclusive bool
	Append    bool
	Data      []byte // content to begin with
	Commit    bool   // that is all: give it its name at once, and answer with the Entry, without a Handle
}

func (m *Create) Fields(c *Coder) {
	c.Str(&m.Path)
	c.Num(&m.Mode)
	c.Str(&m.User)
	c.Bool(&m.Parents)
	c.Bool(&m.Exclusive)
	c.Bool(&m.Append)
	c.Bytes(&m.Data)
	c.Bool(&m.Commit)
}

// Handle names an open file of this connection.
type Handle struct{ Handle uint32 }

func (m *Handle) Fields(c *Coder) { c.U32(&m.Handle) }

// Fread reads at most Max bytes at Offset; of a connection, those that come
// next.
type Fread struct {
	Handle uint32
	Offset int64
	Max    int
}

func (m *Fread) Fields(c *Coder) {
	c.U32(&m.Handle)
	c.Int(&m.Offset)
	c.Num(&m.Max)
}

// Fwrite writes Data after what was written before. EOF then ends the writing
// half of a connection.
type Fwrite struct {
	Handle uint32
	Data   []byte
	EOF    bool
}

func (m *Fwrite) Fields(c *Coder) {
	c.U32(&m.Handle)
	c.Bytes(&m.Data)
	c.Bool(&m.EOF)
}

// ListDir asks for entries of a directory whose names come after After.
type ListDir struct {
	Path  string
	After string
	Max   int // how many at most
}

func (m *ListDir) Fields(c *Coder) {
	c.Str(&m.Path)
	c.Str(&m.After)
	c.Num(&m.Max)
}

// Entries answers ListDir, sorted by name. More says that others follow.
type Entries struct {
	List []Entry
	More bool
}

func (m *Entries) Fields(c *Coder) {
	List[Entry](c, &m.List)
	c.Bool(&m.More)
}

// Mkdir makes a directory.
type Mkdir struct {
	Path    string
	Mode    int // permission bits; -1 is 0755
	User    string
	Parents bool
}

func (m *Mkdir) Fields(c *Coder) {
	c.Str(&m.Path)
	c.Num(&m.Mode)
	c.Str(&m.User)
	c.Bool(&m.Parents)
}

// Rename moves a file.
type Rename struct{ From, To string }

func (m *Rename) Fields(c *Coder) {
	c.Str(&m.From)
	c.Str(&m.To)
}

// Remove removes a file, with All a tree.
type Remove struct {
	Path string
	All  bool
}

func (m *Remove) Fields(c *Coder) {
	c.Str(&m.Path)
	c.Bool(&m.All)
}

// Chmod sets permission bits, as of chmod(2).
type Chmod struct {
	Path string
	Mode uint32
}

func (m *Chmod) Fields(c *Coder) {
	c.Str(&m.Path)
	c.U32(&m.Mode)
}

// Chown sets the owner.
type Chown struct{ Path, User string }

func (m *Chown) Fields(c *Coder) {
	c.Str(&m.Path)
	c.Str(&m.User)
}

// Dial connects to a TCP port on the sandbox's loopback.
type Dial struct{ Port int }

func (m *Dial) Fields(c *Coder) { c.Num(&m.Port) }

// Usage answers usage: what all processes but the guest use.
type Usage struct {
	CPU    int64 // nanoseconds
	Memory int64 // bytes that are in no file
	PIDs   int
}

func (m *Usage) Fields(c *Coder) {
	c.Int(&m.CPU)
	c.Int(&m.Memory)
	c.Num(&m.PIDs)
}
