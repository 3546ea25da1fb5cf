package sandbox

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"
	"unicode/utf8"
)

// An Owner is who may see a sandbox: a name such as "alice", or several with
// slashes between, such as "alice/bot-1". Who is above sees what is below:
// "alice" sees what "alice/bot-1" has, not the other way round. [Operator]
// sees everything. The zero Owner sees nothing.
type Owner string

// Operator is who runs the daemon.
const Operator Owner = "operator"

// Sees reports whether o may see what belongs to other.
func (o Owner) Sees(other Owner) bool {
	return o == Operator || o != "" && (o == other || strings.HasPrefix(string(other), string(o)+"/"))
}

// CheckOwner returns an [Invalid] error naming field unless o is well formed:
// up to 512 bytes of names from A-Z a-z 0-9 . _ : and -, with slashes between.
func CheckOwner(field string, o Owner) error {
	wrong := func() error {
		return Errorf(Invalid, field, "%q is not an owner", clip(string(o))).WithHint("use letters, digits and . _ : - in names with slashes between, such as alice or alice/bot-1")
	}
	if len(o) > 512 {
		return wrong()
	}
	for name := range strings.SplitSeq(string(o), "/") {
		if name == "" || name == "." || name == ".." {
			return wrong()
		}
		for i := range len(name) {
			if c := name[i] | 0x20; (c < 'a' || c > 'z') && (name[i] < '0' || name[i] > '9') && strings.IndexByte("._:-", name[i]) < 0 {
				return wrong()
			}
		}
	}
	return nil
}

// MaxName is the longest Name of a Spec, in bytes.
const MaxName = 512

// CheckName returns an [Invalid] error naming field unless name can be the
// name of a sandbox: UTF-8 without control characters, not longer than
// [MaxName]. "" is no name, and no error.
func CheckName(field, name string) error {
	switch {
	case len(name) > MaxName:
		return Errorf(Invalid, field, "the name has %d bytes, more than %d", len(name), MaxName).WithHint("use a shorter one")
	case !utf8.ValidString(name):
		return Errorf(Invalid, field, "%q is not UTF-8", clip(name)).WithHint("use text")
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return Errorf(Invalid, field, "%q has control characters", clip(name)).WithHint("remove them")
	}
	return nil
}

func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:61], "") + "..."
	}
	return s
}

// A Keeper is a Runtime that keeps sandboxes by name for one owner, and knows
// of those that are gone why they are: the error [NotExist] of its Open then
// has a [Gone] in its chain.
type Keeper interface {
	Runtime

	// Acquire returns the sandbox that has spec.Name (where that is "", the
	// one that has spec.ID), or makes it; made says which. Calls for one name
	// that come together get the same sandbox.
	//
	// One that is there must be what spec asks for: where it differs in image,
	// backend, network, user, limits, mounts that are not Extra, a read-only
	// root, idle time or profile, that is a [Conflict] whose Field says in
	// what, and whose Msg both values. Env, Workdir, Labels and Expires do not
	// count. Where Extra mounts differ, or the sandbox has died, it is made
	// anew, under the same id if spec.ID says so.
	Acquire(ctx context.Context, spec Spec) (sb Sandbox, made bool, err error)

	// Lookup returns the live sandbox with this name, or [NotExist].
	Lookup(ctx context.Context, name string) (Sandbox, error)
}

// A Peeker is a Runtime that can say from memory, without waiting for
// anything, what it would open. To peek is not to use. What it returns may
// have died.
type Peeker interface {
	Peek(id ID) (Sandbox, bool)
	PeekName(name string) (Sandbox, bool)
}

// An Updater is a Sandbox of which something can be changed while it lives.
type Updater interface {
	// Update makes all of the change, or none and returns an error.
	Update(ctx context.Context, c Change) error
}

// A Change says what is to change. What is nil stays.
type Change struct {
	Expires *time.Time        // as in Spec; the zero time is never
	Labels  map[string]string // instead of those there are
	Env     map[string]string // added to the sandbox's, for processes that are started later

	// For a [Keeper] alone, as in Spec; others refuse them with Unsupported.
	Idle *time.Duration
	Name *string // a further name; one that another sandbox of the owner has is Conflict
}

// Check returns an [Invalid] error that names the first field of c with which
// no Sandbox could do anything.
func (c *Change) Check() error {
	s := Spec{Labels: c.Labels, Env: c.Env}
	if c.Expires != nil {
		s.Expires = *c.Expires
	}
	if c.Name != nil {
		if *c.Name == "" {
			return Errorf(Invalid, "name", "the name is empty").WithHint("give a name, or leave it out")
		}
		s.Name = *c.Name
	}
	return s.Check()
}

// CheckBackend returns an [Unsupported] error if c asks for what only a
// [Keeper] does.
func (c *Change) CheckBackend() error {
	switch {
	case c.Idle != nil:
		return policyOnly("idle")
	case c.Name != nil:
		return policyOnly("name")
	}
	return nil
}

func policyOnly(field string) error {
	return Errorf(Unsupported, field, "a backend alone does not keep this").WithHint("ask a daemon")
}

// A Releaser is a Sandbox that its caller can say it needs no more for now.
type Releaser interface {
	// Release says that nobody needs the sandbox until it is acquired or
	// opened again. It lives on, but is the first to go when room is needed.
	// To release what is released is no error.
	Release(ctx context.Context) error
}

// A Why says how a sandbox came to its end.
type Why string

const (
	Removed   Why = "removed"        // by a caller
	Expired   Why = "expired"        // its Expires passed
	Unused    Why = "unused"         // nothing used it for its Idle time
	Evicted   Why = "evicted"        // it had to make room
	Replaced  Why = "replaced"       // it was made anew with other mounts
	Pruned    Why = "pruned"         // the operator cleaned up
	Died      Why = "died"           // it was found dead
	HostBoot  Why = "host-restarted" // it did not survive a restart of the host
	OverQuota Why = "over-quota"     // its workspace grew past the limit
)

// Gone says what became of a sandbox.
type Gone struct {
	Why  Why       `json:"why"`
	By   Owner     `json:"by,omitempty"`   // who did it, if somebody did
	Note string    `json:"note,omitempty"` // more, fit for a tenant's eyes
	At   time.Time `json:"at"`
}

// Error says it in words, fit for a tenant's eyes.
func (g *Gone) Error() string {
	var s string
	switch g.Why {
	case Removed:
		s = "it was removed"
	case Expired:
		s = "its time to live passed"
	case Unused:
		s = "nobody used it for its idle time"
	case Evicted:
		s = "it had to make room for others"
	case Replaced:
		s = "it was made anew"
	case Pruned:
		s = "it was pruned"
	case Died:
		s = "it died"
	case HostBoot:
		s = "the host was restarted"
	case OverQuota:
		s = "its workspace grew past its quota"
	default:
		s = string(g.Why)
	}
	if g.By != "" {
		s += " by " + string(g.By)
	}
	if g.Note != "" {
		s += ": " + g.Note
	}
	return fmt.Sprintf("%s, at %s", s, g.At.UTC().Format(time.RFC3339))
}

// An Overseer is a Runtime that tells what goes on in it, as far as its caller
// may see it.
type Overseer interface {
	// Status returns how things are. It waits for no backend longer than a
	// few seconds: one that does not answer is not available.
	Status(ctx context.Context) (Status, error)

	// Events yields what happened after the event with number after, oldest
	// first, as far as it is remembered (0: all of that). With follow it then
	// waits for more, until ctx ends, which is no error.
	Events(ctx context.Context, after int64, follow bool) iter.Seq2[Event, error]

	// Prune removes the sandboxes that p says, of those that nothing uses, and
	// returns them. Those that came into use meanwhile stay.
	Prune(ctx context.Context, p Prune) ([]Info, error)
}

// Status is how a Runtime is.
type Status struct {
	Available bool            `json:"available"` // sandboxes can be made
	Reason    string          `json:"reason,omitempty"`
	Backends  []BackendStatus `json:"backends"`
	Started   time.Time       `json:"started"`

	Live     int `json:"live"`     // sandboxes that there are
	Busy     int `json:"busy"`     // of those, in use
	Released int `json:"released"` // of those, released
	Warm     int `json:"warm"`     // made and not yet asked for; the Operator's view alone
	MaxLive  int `json:"max_live"` // how many there may be; 0 is any number

	Errors []Fault `json:"errors,omitempty"` // the last 50, newest first
}

// BackendStatus is how a backend is.
type BackendStatus struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"` // why not
}

// A Fault is an error that a caller got.
type Fault struct {
	At      time.Time `json:"at"`
	Owner   Owner     `json:"owner"`
	Sandbox ID        `json:"sandbox,omitempty"`
	Op      string    `json:"op"`
	Kind    Kind      `json:"kind"`
	Message string    `json:"message"` // as the caller got it
}

// An Event is something that happened.
type Event struct {
	Number  int64     `json:"number"` // counts up from 1 as long as the daemon lives
	At      time.Time `json:"at"`
	Kind    EventKind `json:"kind"`
	Owner   Owner     `json:"owner"` // of the sandbox
	By      Owner     `json:"by,omitempty"`
	Sandbox ID        `json:"sandbox,omitempty"`
	Name    string    `json:"name,omitempty"`   // the sandbox's first
	Why     Why       `json:"why,omitempty"`    // of EventGone
	Detail  string    `json:"detail,omitempty"` // a program's name, an error; never an environment
}

// An EventKind says what happened.
type EventKind string

const (
	EventMade     EventKind = "made"
	EventAcquired EventKind = "acquired"
	EventReleased EventKind = "released"
	EventChanged  EventKind = "changed"
	EventGone     EventKind = "gone"
	EventStarted  EventKind = "started" // a process
	EventEnded    EventKind = "ended"   // a process that somebody waited for
	EventOOM      EventKind = "out-of-memory"
	EventRefused  EventKind = "refused" // a request, for want of room, rights or quota
	EventWritten  EventKind = "written" // a file was written, removed, renamed
	EventDialled  EventKind = "dialled" // a port was connected to
)

// Prune says what to remove.
type Prune struct {
	Unused   time.Duration     // not used for this long; 0 takes any
	Released bool              // only what is released
	Labels   map[string]string // only what has all these labels
	DryRun   bool              // say what would go, and remove nothing
}
