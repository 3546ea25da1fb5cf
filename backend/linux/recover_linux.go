package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/cgroup"
	"github.com/atoll-run/atoll/backend/linux/launch"
	"github.com/atoll-run/atoll/sandbox"
)

// recover finds what an earlier Runtime left: it goes on with the sandboxes
// whose guests answer, and frees what is left of all others.
func (rt *Runtime) recover(ctx context.Context) error {
	entries, err := os.ReadDir(rt.path("sandboxes"))
	if err != nil {
		return err
	}
	var guests map[sandbox.ID]int
	if len(entries) > 0 {
		if guests, err = rt.findGuests(); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	limit := make(chan struct{}, 8)
	for _, e := range entries {
		id := sandbox.ID(e.Name())
		if !id.Valid() || !e.IsDir() {
			rt.log.Warn("something else is among the sandboxes", "name", e.Name())
			continue
		}
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			if err := rt.recoverOne(ctx, id, guests[id]); err != nil {
				// Tried again at the next start; one must not keep the others down.
				rt.log.Error("a sandbox could not be recovered", "id", id, "err", err)
			}
		})
	}
	wg.Wait()
	trash, err := os.ReadDir(rt.path("trash"))
	if err != nil {
		return err
	}
	for _, e := range trash {
		if err := rt.delete(rt.path("trash", e.Name())); err != nil {
			rt.log.Error("trash could not be deleted", "name", e.Name(), "err", err)
		}
	}
	return nil
}

// recoverOne goes on with one sandbox, or frees what is left of it. pid is its
// guest's, 0 if there is none.
func (rt *Runtime) recoverOne(ctx context.Context, id sandbox.ID, pid int) (err error) {
	b := &box{rt: rt, id: id, dir: rt.path("sandboxes", string(id)), slot: -1, gone: make(chan struct{})}
	r, err := loadRecord(b.dir)
	if err == nil {
		b.rec, b.slot = *r, r.Slot
	} else if !errors.Is(err, fs.ErrNotExist) {
		rt.log.Error("a record cannot be read", "id", id, "err", err)
	}
	if b.slot >= 0 {
		rt.mu.Lock()
		rt.slots[b.slot] = true
		rt.mu.Unlock()
	}
	if pid != 0 {
		if b.init, err = openProcess(pid, id); err != nil {
			return err
		}
	}
	if rt.host.cgroups.Mode != cgroup.None {
		if b.group, err = rt.host.cgroups.Open(string(id)); err != nil && !errors.Is(err, sandbox.NotExist) {
			return err
		}
	}
	expired := !b.rec.Info.Expires.IsZero() && !b.rec.Info.Expires.After(time.Now())
	if b.init != nil && b.rec.ready && b.rec.Version == recordVersion && !expired {
		if err = rt.reconnect(ctx, b); err == nil {
			rt.hold(ctx, b)
			rt.log.Info("recovered", "id", id)
			return rt.add(b)
		}
		rt.log.Error("a guest does not answer", "id", id, "err", err)
	}
	rt.log.Info("freeing what is left of a sandbox", "id", id, "ready", b.rec.ready)
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if b.group != nil {
		if err := b.group.Kill(); err != nil {
			return err
		}
	}
	if b.init != nil {
		if err := b.init.end(ctx); err != nil {
			return err
		}
	}
	if b.group != nil {
		if err := b.group.Remove(ctx); err != nil {
			return err
		}
	}
	if err := rt.discard(b.dir); err != nil {
		return err
	}
	if b.slot >= 0 {
		rt.freeSlot(b.slot)
	}
	return nil
}

// hold has the image held that a sandbox was made of. If that cannot be, the
// sandbox goes on: its mounts hold the folders, though not what is in them.
func (rt *Runtime) hold(ctx context.Context, b *box) {
	name := b.rec.Info.Image
	if name == "host" || strings.HasPrefix(name, "dir:") {
		return
	}
	if rt.cfg.Images == nil {
		rt.log.Warn("nobody keeps the image of a sandbox any more", "id", b.id, "image", name)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	root, err := rt.cfg.Images(ctx, name)
	if err != nil {
		rt.log.Warn("the image of a sandbox cannot be held", "id", b.id, "image", name, "err", err)
		return
	}
	b.release = root.Release
}

func (rt *Runtime) reconnect(ctx context.Context, b *box) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	conn, err := dial(ctx, filepath.Join(b.dir, "socket"))
	if err != nil {
		return err
	}
	if b.guest, err = rt.client(b.id, conn); err != nil {
		conn.Close()
		return err
	}
	if _, err := b.guest.Processes(ctx); err != nil {
		b.guest.Close()
		return err
	}
	return nil
}

// findGuests looks through the host's processes for guests, by what their
// command line says and by whose they are: anybody may call a process by any
// name, and make it the first of a namespace.
func (rt *Runtime) findGuests() (map[sandbox.ID]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	found := make(map[sandbox.ID]int)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if id, uid, ok := guestOf(pid); ok && rt.mayOwn(uid) {
			found[id] = pid
		}
	}
	return found, nil
}

// mayOwn reports whether a sandbox's guest may run as this user of the host.
func (rt *Runtime) mayOwn(uid int) bool {
	if rt.host.ids.kind == ownRange {
		return uid >= rt.firstID(0) && uid < rt.firstID(maxSlots)
	}
	return uid == rt.host.ids.uid
}

// guestOf returns which sandbox's guest pid is, and whose process.
func guestOf(pid int) (id sandbox.ID, uid int, ok bool) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "", 0, false
	}
	if id, ok = guestID(line); !ok {
		return "", 0, false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", 0, false
	}
	uid, first := firstOfNamespace(status)
	return id, uid, first
}

// guestID returns the sandbox that a command line names (proc_pid_cmdline(5)),
// if it is one that Create gives. Commands of a sandbox could show the same.
func guestID(cmdline []byte) (sandbox.ID, bool) {
	argv := bytes.Split(bytes.TrimSuffix(cmdline, []byte{0}), []byte{0})
	if len(argv) != 2 || string(argv[0]) != guestArgv("")[0] {
		return "", false
	}
	id := sandbox.ID(argv[1])
	return id, id.Valid()
}

// firstOfNamespace reads a process's status (proc_pid_status(5)): its
// effective user, and whether it is process 1 of a namespace below ours, which
// a command of a sandbox never is.
func firstOfNamespace(status []byte) (uid int, first bool) {
	uid = -1
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("Uid:")); ok {
			if ids := bytes.Fields(rest); len(ids) > 1 {
				if n, err := strconv.Atoi(string(ids[1])); err == nil {
					uid = n
				}
			}
		}
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			ns := bytes.Fields(rest)
			first = len(ns) > 1 && string(ns[len(ns)-1]) == "1"
		}
	}
	return uid, first && uid >= 0
}

// openProcess holds on to the guest with this pid. It looks again once it
// holds it, in case the pid was given to another meanwhile.
func openProcess(pid int, id sandbox.ID) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd: %w", err)
	}
	if now, _, ok := guestOf(pid); !ok || now != id {
		unix.Close(fd)
		return nil, nil
	}
	return &process{pid: pid, fd: fd}, nil
}

// delete removes a tree that no process uses. Where the sandbox's users are
// ids that are not ours, only their namespace may.
func (rt *Runtime) delete(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	// overlayfs makes its work directory with no permissions at all.
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	if err = os.RemoveAll(dir); err == nil || rt.host.ids.kind != helped {
		return err
	}
	return rt.deleteInside(dir)
}

// deleteInside deletes dir as root of a user namespace in which all ids are
// mapped that a sandbox could have had.
func (rt *Runtime) deleteInside(dir string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	status, done, err := os.Pipe() // its exit: the program says "ok" when all is gone
	if err != nil {
		return err
	}
	defer status.Close()
	defer done.Close()
	pid, pidfd, err := rt.launcher.Start(launch.Request{Args: []string{"atoll-guest", "--delete", dir}, Flags: unix.CLONE_NEWUSER, Ambient: true}, nil, r, done, null)
	if err != nil {
		return noNamespaces(err)
	}
	done.Close()
	p := &process{pid: pid, fd: pidfd}
	m := &making{rt: rt, ctx: context.Background(), box: &box{init: p}}
	if err := m.mapIDs(); err != nil {
		return errors.Join(err, p.end(context.Background()))
	}
	w.Close() // go
	said, err := io.ReadAll(io.LimitReader(status, 1000))
	if e := p.end(context.Background()); err == nil {
		err = e
	}
	if err == nil && string(said) != "ok" {
		err = fmt.Errorf("delete %s: %s", filepath.Base(dir), said)
	}
	return err
}
