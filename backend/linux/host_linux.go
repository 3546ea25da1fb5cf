package linux

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/cgroup"
	"github.com/atoll-run/atoll/sandbox"
)

// host is what this machine lets this user do. It does not change.
type host struct {
	cgroups *cgroup.Host
	ids     ids
	shift   bool // directories of the host can be shown with ids shifted
	noShift string
}

// ids says which host ids a sandbox's are.
type ids struct {
	kind idKind
	why  string // why not a better kind

	// For helped: the host ids that this user was given.
	uid, gid       int
	subUID, subGID span
}

// rootInside reports whether the sandbox's root may be the host's.
func (i *ids) rootInside() bool { return i.kind != ownRange && i.uid == 0 }

type idKind int

const (
	ownRange idKind = iota // each sandbox has a range, mapped by us (root)
	helped                 // all share the user's range, mapped by newuidmap and newgidmap
	oneID                  // there is this user's id alone
)

// A span is a range of host ids.
type span struct{ first, count int }

// look finds out.
func (rt *Runtime) look() error {
	h := &rt.host
	var err error
	if h.cgroups, err = cgroup.Detect(cgroup.Options{Parent: rt.cfg.CgroupParent}); err != nil {
		return err
	}
	h.ids = lookIDs()
	if h.ids.kind == ownRange {
		h.shift, h.noShift = canShift(rt)
	}
	return nil
}

func lookIDs() ids {
	i := ids{uid: os.Geteuid(), gid: os.Getegid()}
	if mayMapAny() {
		return i
	}
	i.kind = oneID
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			i.why = program + " is not installed, so a user who is not root has one id to give"
			return i
		}
	}
	me := &user.User{Uid: strconv.Itoa(i.uid)}
	if u, err := user.LookupId(me.Uid); err == nil {
		me = u
	}
	var ok bool
	if i.subUID, ok = subIDs("/etc/subuid", me); ok {
		i.subGID, ok = subIDs("/etc/subgid", me)
	}
	if !ok {
		i.why = "this user has no range of ids in /etc/subuid and /etc/subgid"
		return i
	}
	i.kind = helped
	return i
}

// mayMapAny reports whether this process may map ids that are not its own
// into a user namespace: CAP_SETUID and CAP_SETGID in the initial one, or one
// that has enough ids.
func mayMapAny() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&hdr, &data[0]) != nil {
		return false
	}
	const need = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_CHOWN
	if data[0].Effective&need != need {
		return false
	}
	m, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(m))
	return err == nil && len(f) == 3 && f[0] == "0" && f[2] == "4294967295"
}

// maxID is the largest id of the host that means somebody.
const maxID = 1<<32 - 2

// subIDs finds the first range of at least 65,536 ids given to u (subuid(5)).
func subIDs(file string, u *user.User) (span, bool) {
	f, err := os.Open(file)
	if err != nil {
		return span{}, false
	}
	defer f.Close()
	return parseSubIDs(f, u)
}

func parseSubIDs(r io.Reader, u *user.User) (span, bool) {
	for sc := bufio.NewScanner(r); sc.Scan(); {
		p := strings.Split(strings.TrimSpace(sc.Text()), ":")
		if len(p) != 3 || p[0] != u.Username && p[0] != u.Uid {
			continue
		}
		first, err1 := strconv.Atoi(p[1])
		count, err2 := strconv.Atoi(p[2])
		if err1 == nil && err2 == nil && first > 0 && count >= rangeSize-1 && count <= maxID && first <= maxID-count {
			return span{first, count}, true
		}
	}
	return span{}, false
}

// isolation is what a sandbox of this host has whatever its Spec, and what
// it lacks.
func (h *host) isolation() (has []sandbox.Property, missing []sandbox.Gap) {
	has = []sandbox.Property{sandbox.UserNamespace, sandbox.PIDNamespace, sandbox.MountNamespace, sandbox.NetworkNamespace,
		sandbox.IPCNamespace, sandbox.UTSNamespace, sandbox.CgroupNamespace, sandbox.NoNewPrivileges, sandbox.NoCapabilities,
		sandbox.Seccomp, sandbox.MaskedProc, sandbox.KillTree}
	switch h.ids.kind {
	case ownRange:
		has = append(has, sandbox.OwnIDs, sandbox.ManyIDs)
	case helped:
		has = append(has, sandbox.ManyIDs)
		missing = append(missing, sandbox.Gap{Property: sandbox.OwnIDs, Why: "without root, all sandboxes share one range of user ids"})
	case oneID:
		missing = append(missing,
			sandbox.Gap{Property: sandbox.OwnIDs, Why: "without root, all sandboxes share the id of the user who runs them"},
			sandbox.Gap{Property: sandbox.ManyIDs, Why: "there is one user id, and every user inside stands for it: " + h.ids.why})
	}
	return has, missing
}
