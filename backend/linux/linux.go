// Package linux makes sandboxes with the Linux kernel alone: no Docker, no
// daemon but ours, no setuid helper, and no root where user namespaces are
// allowed.
//
// A sandbox is a set of namespaces (user, mount, pid, net, ipc, uts, cgroup)
// whose process 1 is the guest (package guest/inside). The daemon clones the
// guest from a sealed memfd, hands it the mounts that only the host's root can
// make, and the guest puts the rest together itself, inside (package enter has
// the steps). From then on the two speak the guest protocol over a Unix
// socket: to run a command starts no helper and loads no filter, since the
// guest's starting thread wears already what commands wear.
//
// What the host cannot give is never silently left out. New finds out by
// doing; Info.Isolation and Info.Kept say per sandbox what holds; a Spec that
// requires more is refused. [Probe] says the same of the host, with remedies.
//
// # Images
//
// "host" (the default) is the host's own system directories (/usr, /bin,
// /sbin, /lib*), read-only below a layer of the sandbox's, with an /etc that
// holds only what programs need. "dir:/path" is an unpacked root file system
// below one of Config.ImageRoots, likewise. The host's users, homes,
// configuration and secrets are not there.
//
// Every other name is for Config.Images, which somebody else keeps: it answers
// with a [Root], folders that are laid over each other. What the image says of
// environment, working directory and user holds where the Spec says nothing.
// Its entrypoint and command are ignored: a sandbox runs what it is told to.
// An image may lack everything: the folders that a sandbox needs are made in
// its own layer. One whose /proc, /dev, /sys, /tmp, /home or /workspace is
// something else than a folder or a link to where one can be is [sandbox.Invalid].
//
// # State
//
// Everything stands below Config.State, which one Runtime locks:
//
//	lock                   held while a Runtime lives
//	sandboxes/ID/making    what is known of it (JSON), written before anything is made
//	sandboxes/ID/record    the same, once it is ready
//	sandboxes/ID/socket    the guest listens here
//	sandboxes/ID/volume/   what the sandbox wrote, unless it has a disk of its own
//	sandboxes/ID/disk      a file system image, where a disk limit is kept by one
//	trash/                 what is being deleted
//
// Close leaves sandboxes running. The next New on the same state finds them,
// goes on with those that are alive, and frees what is left of the others and
// of those that were half made.
//
// Needs Linux 5.19 (overlayfs over idmapped layers) as root, 5.12 without.
package linux

import (
	"context"
	"log/slog"
)

// Config says how a Runtime works. State must be set; the rest has defaults.
type Config struct {
	// State is a folder of the Runtime's own. It is made, mode 0711, if it is
	// not there.
	State string

	// Cache is a folder for what can be made again. It may be shared by many
	// Runtimes. "" is State/cache.
	Cache string

	// MountRoots are the host's folders below which a Spec may mount. None
	// means that no mount is allowed; "/" allows all but the host's vital
	// parts, the state folder and engine sockets, which are never shown.
	MountRoots []string

	// ImageRoots are the host's folders below which an image "dir:…" may lie,
	// by the same rules. A sandbox sees the whole image as if its own root
	// owned it: what only the host's root may read there, it reads.
	ImageRoots []string

	// Images finds the image of every name that is neither "host" nor
	// "dir:…", and holds on to it; it may fetch it first, for as long as ctx
	// lasts. One that is not there is [sandbox.NotExist] with Field "image".
	// It is called by many at once. New calls it for each sandbox that it
	// finds running, with the Name of the Root that it was made of, so that
	// nothing takes the folders away below it: until New has returned, nothing
	// may be thrown away. nil is no other images.
	Images func(ctx context.Context, name string) (Root, error)

	// DefaultImage is what a Spec gets that names none; "" is "host".
	DefaultImage string

	// Private are more of the host's folders and files that no sandbox is
	// shown, nor anything above them, whatever the roots are.
	Private []string

	// Guest is the guest program's file; "" is the one built into this
	// program, else a file atoll-guest beside it.
	Guest string

	// CgroupParent is the cgroup below which sandboxes get theirs; "" is
	// /atoll, or what was delegated to this process.
	CgroupParent string

	// FirstID is the first of 65,536 × 4,096 host ids that sandboxes made as
	// root are given ranges of; 0 is 1879048192, which systemd's table of
	// ids leaves free (systemd, UIDS-GIDS).
	FirstID int

	// Log gets what an operator should know; nil is none.
	Log *slog.Logger
}

// MaxLayers is how many layers a [Root] may have, those that it has twice
// counted once.
const MaxLayers = 128

// A Root is an image that somebody else keeps, ready to be used.
type Root struct {
	// Name is what Info.Image says, and finds the same image again: with its
	// digest. "" is the name that was asked for.
	Name string

	// Layers are folders of the host, absolute paths, the lowest first. Each
	// is an unpacked layer: overlayfs's whiteouts (character devices 0:0) hide
	// what is below, and so does a folder with the attribute
	// user.overlay.opaque=y. Files belong to the image's own ids if this
	// process is root, else to its user. What is in the folders must not change
	// as long as they are held.
	Layers []string

	// Env is below the Spec's.
	Env map[string]string

	// Workdir and User hold where the Spec names none; "" is none.
	Workdir, User string

	// Release, if not nil, is called once, when the sandbox is gone or could
	// not be made. Close does not call it: the sandbox lives on.
	Release func()
}

// A Finding is what one probe of the host found.
type Finding struct {
	Name   string `json:"name"`   // "user namespaces"
	OK     bool   `json:"ok"`     // whether it works here
	Needed bool   `json:"needed"` // whether there are no sandboxes without it
	Detail string `json:"detail"` // what was seen
	Means  string `json:"means"`  // what that means for sandboxes
	Mend   string `json:"mend"`   // the command that mends it, "" if nothing does or needs to
}
