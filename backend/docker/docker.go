// Package docker makes sandboxes of the containers of an engine that speaks
// the Docker Engine API: Docker itself, and Podman's compatible socket. The
// engine may be on another machine; only mounts need it to be on this one.
//
// The same guest as everywhere runs as process 1 of each container, whatever
// the image: it comes in a volume of the engine's that holds nothing else, is
// mounted read-only at /.atoll, and is made once per version of the guest. The
// daemon reaches it by one "exec" per connection, of the guest program itself,
// which passes on between its standard streams and the guest's socket in the
// container. So a daemon that comes back, or another way to the engine, needs
// nothing but a new exec, and the processes inside live on meanwhile as in
// backend/linux (30 s those that were bound to a request, the detached ones for
// as long as they like).
//
// The engine isolates; the guest takes from its processes what it alone needs
// (package place). Unless the engine remaps users or is rootless, root in the
// container is root on the host, kept in by namespaces, an empty set of
// capabilities and the engine's system call filter alone: Info says so.
//
// The state folder has a record per sandbox, without secrets. What belongs to
// it bears its name in the label atoll.owner, so that several daemons on one
// engine leave each other's alone. [Runtime.Close] leaves the containers
// running; the next [New] on the same state goes on with them, and removes
// what a crash left half made.
//
// What it cannot: a network, snapshots, files of a paused sandbox (the engine
// freezes the guest as well), and a disk limit where the engine's storage has
// none.
package docker

import (
	"log/slog"

	"github.com/atoll-run/atoll/sandbox"
)

// A Pull says when an image is fetched from its registry.
type Pull string

const (
	// PullMissing is the default: when the engine has it not.
	PullMissing Pull = "missing"
	// PullNever has none but what the engine has.
	PullNever Pull = "never"
	// PullAlways asks the registry each time a sandbox is made.
	PullAlways Pull = "always"
)

// DefaultImage is what a sandbox gets whose Spec names no image, unless
// [Config.Image] says otherwise.
const DefaultImage = "debian:stable-slim"

// Config says where the engine is and how it is used.
type Config struct {
	// Host is where the engine listens: unix:///PATH or tcp://HOST:PORT. "" is
	// what DOCKER_HOST says, with DOCKER_CERT_PATH and DOCKER_TLS_VERIFY, else
	// the first socket that is there of Docker's, rootless Docker's and
	// Podman's usual ones.
	Host string

	// Runtime is the OCI runtime that the engine uses, such as "runsc"; "" is
	// the engine's default.
	Runtime string

	// State is a folder of the Runtime's own, an absolute path. It is made.
	State string

	// Guest is the guest program's file; "" is Program, else a file
	// atoll-guest beside this program. It must be for the engine's processor.
	Guest string

	// Program is the guest program itself, where Guest is "".
	Program []byte

	// Image is what a Spec without one gets; "" is [DefaultImage].
	Image string

	// Pull says when images are fetched; "" is [PullMissing].
	Pull Pull

	// Progress, if not nil, is told how a pull goes on. It must not block.
	Progress func(Progress)

	// MountRoots are the folders of this machine below which a Spec's mounts
	// may lie; none allows no mount.
	MountRoots []string

	// Private are more of this machine's folders and files that no sandbox is
	// shown, nor anything above them, whatever the roots are.
	Private []string

	// Log gets what an operator should know; nil is none.
	Log *slog.Logger
}

// A Progress is a step of a pull.
type Progress struct {
	Image  string
	Layer  string // "" is the image as a whole
	Status string // in the engine's words
	Done   int64  // bytes of Total; 0 if not known
	Total  int64
}

// limitProperty is the property that says that a limit is kept.
var limitProperty = map[string]sandbox.Property{
	"memory": sandbox.LimitMemory, "cpu": sandbox.LimitCPU, "pids": sandbox.LimitPIDs, "disk": sandbox.LimitDisk,
}
