package native

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	// Prefix is where the API lives. Every path begins with it.
	Prefix = "/atoll/v1"

	// JSON and the others are the content types of bodies.
	JSON   = "application/json"
	NDJSON = "application/x-ndjson"         // one [Event] a line
	Frames = "application/vnd.atoll.frames" // see the package comment
	Bytes  = "application/octet-stream"

	// UpgradeExec and UpgradeTCP are the protocols to which a connection can
	// be upgraded, beside "websocket".
	UpgradeExec = "atoll-exec" // frames both ways
	UpgradeTCP  = "atoll-tcp"  // the bytes of a sandbox's port

	// HeaderRequest names the request in answers and in the server's log. A
	// client may choose the name itself, 16 to 64 letters and digits that it
	// never uses again, and can then call the request off by it.
	HeaderRequest = "Atoll-Request"
	// HeaderFile has the [FileInfo] of a file whose content is the body, as
	// JSON in ASCII.
	HeaderFile = "Atoll-File"
	// TrailerAbort, if it is sent after the body of an upload, says that the
	// body is not whole and is to be thrown away: the client's source failed.
	TrailerAbort = "Atoll-Abort"

	// MaxStdin is how much input an [Exec] may hold, in bytes before base64.
	MaxStdin = 1 << 20
	// MaxBody is the longest JSON body that the server reads.
	MaxBody = 4 << 20
	// MaxInput is how many bytes one input request may bring.
	MaxInput = 1 << 20
	// DefaultOutput and MaxOutput bound each stream of a [Result].
	DefaultOutput = 1 << 20
	MaxOutput     = 16 << 20
)

// A Server is what a server says of itself.
type Server struct {
	Version string `json:"version"` // of the program
	API     string `json:"api"`     // "v1"
}

// An Error is how an error is written: the body of an answer of status 400
// and above, and the payload of an error frame. It holds nothing that a tenant
// may not see.
type Error struct {
	Kind    sandbox.Kind `json:"kind"`
	Field   string       `json:"field,omitempty"`
	Message string       `json:"message"`
	Hint    string       `json:"hint,omitempty"`
	Sandbox sandbox.ID   `json:"sandbox,omitempty"`
	Request string       `json:"request,omitempty"` // names the request in the server's log

	// Gone says what became of the sandbox, where it is kind NotExist that
	// tells of it and that is known.
	Gone *sandbox.Gone `json:"gone,omitempty"`
}

// A Spec is the body of a create request and of an acquire request, a
// [sandbox.Spec].
type Spec struct {
	ID           sandbox.ID         `json:"id,omitempty"`
	Name         string             `json:"name,omitempty"`
	Profile      string             `json:"profile,omitempty"`
	Explicit     []string           `json:"explicit,omitempty"`
	Idle         Seconds            `json:"idle,omitempty"`
	Backend      string             `json:"backend,omitempty"`
	Image        string             `json:"image,omitempty"`
	Env          map[string]Text    `json:"env,omitempty"`
	Workdir      string             `json:"workdir,omitempty"`
	User         string             `json:"user,omitempty"`
	Limits       sandbox.Limits     `json:"limits,omitzero"`
	Mounts       []sandbox.Mount    `json:"mounts,omitempty"`
	Network      sandbox.Network    `json:"network,omitempty"`
	ReadOnlyRoot bool               `json:"read_only_root,omitempty"`
	Require      []sandbox.Property `json:"require,omitempty"`
	Labels       map[string]string  `json:"labels,omitempty"`
	Expires      time.Time          `json:"expires,omitzero"`
}

// Sandboxes is the answer to a list request. It is written as it is found, so
// an error that comes up on the way stands behind what came before it.
type Sandboxes struct {
	Sandboxes []sandbox.Info `json:"sandboxes"`
	Error     *Error         `json:"error,omitempty"`
}

// A Cmd is a [sandbox.Cmd] without its streams.
type Cmd struct {
	Args     []Text          `json:"args"`
	Env      map[string]Text `json:"env,omitempty"`
	Dir      Text            `json:"dir,omitempty"`
	User     string          `json:"user,omitempty"`
	Timeout  Seconds         `json:"timeout,omitempty"`
	Terminal *sandbox.Size   `json:"terminal,omitempty"`
}

// An Exec asks for a process that lives as long as the request.
type Exec struct {
	Cmd

	// Stdin is the whole input, at most MaxStdin bytes, in base64. In a start
	// frame it must be absent.
	Stdin []byte `json:"stdin,omitempty"`

	// Merge sends what the process writes to stderr as stdout, in the order
	// in which it was written.
	Merge bool `json:"merge,omitempty"`

	// Discard lists the streams that nobody wants: "stdout", "stderr".
	Discard []string `json:"discard,omitempty"`

	// Control gives the process a descriptor 3, and sends what it writes there.
	Control bool `json:"control,omitempty"`

	// MaxOutput is how many bytes of each stream a Result keeps; 0 is
	// DefaultOutput. Streams are not bounded.
	MaxOutput int `json:"max_output,omitempty"`
}

// A Detach asks for a process that outlives the request.
type Detach struct {
	Cmd
	Name  Text `json:"name,omitempty"`
	Input bool `json:"input,omitempty"` // sandbox.DetachOptions.Stdin
	Ring  int  `json:"ring,omitempty"`  // bytes of output that are kept
}

// Started names a process.
type Started struct {
	ID  sandbox.ProcessID `json:"id"`
	PID int               `json:"pid,omitempty"`
}

// A Result is the whole answer to an [Exec] for those who want no stream.
type Result struct {
	Started
	Exit      sandbox.Exit `json:"exit"`
	Stdout    Text         `json:"stdout"`
	Stderr    Text         `json:"stderr"`
	Control   Text         `json:"control,omitempty"` // what came through descriptor 3
	Truncated bool         `json:"truncated"`         // there was more output
}

// An Event is one line of a stream in NDJSON. One member is set.
type Event struct {
	Started *Started      `json:"started,omitempty"`
	Stdout  Text          `json:"stdout,omitempty"`
	Stderr  Text          `json:"stderr,omitempty"`
	Control Text          `json:"control,omitempty"`
	Exit    *sandbox.Exit `json:"exit,omitempty"`
	Error   *Error        `json:"error,omitempty"`
}

// A Signal asks for a signal.
type Signal struct {
	Signal sandbox.Signal `json:"signal"`
}

// A Process is a [sandbox.ProcessInfo].
type Process struct {
	ID      sandbox.ProcessID `json:"id"`
	Name    Text              `json:"name,omitempty"`
	PID     int               `json:"pid,omitempty"`
	Args    []Text            `json:"args"`
	Started time.Time         `json:"started"`
	Ended   time.Time         `json:"ended,omitzero"`
	Exit    *sandbox.Exit     `json:"exit,omitempty"`
	Cursor  int64             `json:"cursor"`
	Dropped int64             `json:"dropped"`
}

// Processes is the answer to a request for the detached processes.
type Processes struct {
	Processes []Process `json:"processes"`
}

// Wrote says how many bytes of an input the process has taken.
type Wrote struct {
	Written int `json:"written"`
}

// FileInfo is a [sandbox.FileInfo].
type FileInfo struct {
	Name   Text      `json:"name"`
	Type   FileType  `json:"type"`
	Size   int64     `json:"size"`
	Mode   Mode      `json:"mode"`
	Time   time.Time `json:"time"`
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	Target Text      `json:"target,omitempty"`
}

// Entries is the answer to a request for a directory's entries, sorted by
// name, written as it is found like [Sandboxes].
type Entries struct {
	Entries []FileInfo `json:"entries"`
	Error   *Error     `json:"error,omitempty"`
}

// Mkdir asks for a directory.
type Mkdir struct {
	Path    Text   `json:"path"`
	Mode    Mode   `json:"mode,omitempty"`
	User    string `json:"user,omitempty"`
	Parents bool   `json:"parents,omitempty"`
}

// Rename asks for a new name.
type Rename struct {
	From Text `json:"from"`
	To   Text `json:"to"`
}

// Chmod asks for permissions.
type Chmod struct {
	Path Text  `json:"path"`
	Mode *Mode `json:"mode"` // must be there
}

// Chown asks for an owner.
type Chown struct {
	Path Text   `json:"path"`
	User string `json:"user"`
}
