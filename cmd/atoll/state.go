package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// The state folder:
//
//	lock          held by the daemon that lives here; has its pid
//	token         what requests show, mode 0600
//	linux/ …      one folder for each backend, which is its own business
//	run/ID/       the state of one atoll run that embeds the stack
//	run/ID.lock   held by that program as long as it lives

// makeState makes the state folder. Others may pass through it, since the
// users of sandboxes do, but not look into it.
func makeState(dir string) error {
	err := os.MkdirAll(dir, 0o711)
	if err != nil {
		return hint(fmt.Errorf("the state folder cannot be made: %w", err), "give another with --state or ATOLL_STATE")
	}
	return nil
}

// A lock is a file that one program at a time holds. The kernel drops it with
// its holder, however that ends.
type lock struct{ f *os.File }

// errHeld says that somebody else holds a lock.
var errHeld = errors.New("the lock is held")

// takeLock takes the lock at path, or returns errHeld and what its holder
// wrote into it.
func takeLock(path string) (*lock, string, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, "", err
		}
		if err := flock(f); err != nil {
			holder := make([]byte, 32)
			n, _ := f.ReadAt(holder, 0)
			f.Close()
			return nil, strings.TrimSpace(string(holder[:n])), err
		}
		// Who held it before may have removed the file between the open and
		// the lock; then it protects nothing.
		held, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, "", err
		}
		if there, err := os.Stat(path); err == nil && os.SameFile(held, there) {
			if err := f.Truncate(0); err == nil {
				fmt.Fprintf(f, "%d\n", os.Getpid())
			}
			return &lock{f}, "", nil
		}
		f.Close()
	}
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errHeld
		default:
			return err
		}
	}
}

// release drops the lock and leaves its file.
func (l *lock) release() { l.f.Close() }

// remove drops the lock and its file.
func (l *lock) remove() {
	os.Remove(l.f.Name())
	l.f.Close()
}

// lockPatience is how long a lock may stay after who held it was killed.
const lockPatience = 500 * time.Millisecond

// lockDaemon takes the state folder for a daemon.
func lockDaemon(dir string) (*lock, error) {
	// A child that a killed daemon had begun to fork has its descriptors until
	// it executes: that is not another daemon.
	l, holder, err := takeLock(filepath.Join(dir, "lock"))
	for end := time.Now().Add(lockPatience); errors.Is(err, errHeld) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		l, holder, err = takeLock(filepath.Join(dir, "lock"))
	}
	if errors.Is(err, errHeld) {
		who := ""
		if holder != "" {
			who = " (process " + holder + ")"
		}
		return nil, &sandbox.Error{
			Kind: sandbox.Conflict,
			Msg:  fmt.Sprintf("another daemon%s uses the state folder %s", who, dir),
			Hint: "stop it first, or give this one a folder of its own with --state",
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the state folder cannot be locked: %w", err)
	}
	return l, nil
}

// A scratch is the state folder of one atoll run that embeds the stack.
type scratch struct {
	dir  string
	lock *lock
}

// makeScratch makes one below the state folder.
func makeScratch(state string) (*scratch, error) {
	run := filepath.Join(state, "run")
	if err := makeState(run); err != nil {
		return nil, err
	}
	var raw [5]byte
	rand.Read(raw[:])
	dir := filepath.Join(run, hex.EncodeToString(raw[:]))
	l, _, err := takeLock(dir + ".lock")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		l.remove()
		return nil, err
	}
	return &scratch{dir, l}, nil
}

// remove removes the folder. What is left in it after an error is for the
// next atoll run.
func (s *scratch) remove() error {
	if err := os.RemoveAll(s.dir); err != nil {
		s.lock.release()
		return err
	}
	s.lock.remove()
	return nil
}

// sweep removes what was left by runs that were killed. It calls clean for
// each folder before removing it.
func sweep(ctx context.Context, state string, clean func(ctx context.Context, dir string) error) error {
	run := filepath.Join(state, "run")
	entries, err := os.ReadDir(run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".lock")
		if !ok || ctx.Err() != nil {
			continue
		}
		l, _, err := takeLock(filepath.Join(run, e.Name()))
		if err != nil {
			continue // it lives
		}
		s := &scratch{filepath.Join(run, id), l}
		if _, err := os.Stat(s.dir); err == nil {
			if err := clean(ctx, s.dir); err != nil {
				l.release()
				errs = append(errs, fmt.Errorf("clean up after an earlier run in %s: %w", s.dir, err))
				continue
			}
		}
		errs = append(errs, s.remove())
	}
	return errors.Join(append(errs, err)...)
}

// newToken returns a token in the only form that E2B's SDKs take.
func newToken() sandbox.Secret {
	var raw [20]byte
	rand.Read(raw[:])
	return sandbox.Secret("e2b_" + hex.EncodeToString(raw[:]))
}

// tokenFile is where the daemon of a state folder keeps its token.
func tokenFile(state string) string { return filepath.Join(state, "token") }

// readToken reads a file that has a token and nothing else. A file that others
// can change is refused, and with private also one that they can read.
func readToken(file string, private bool) (sandbox.Secret, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() && info.Mode()&fs.ModeNamedPipe == 0 || info.Size() > 4096 {
		return "", fmt.Errorf("%s is not a file that holds a token", file)
	}
	forbidden := fs.FileMode(0o022)
	if private {
		forbidden = 0o077
	}
	if info.Mode().IsRegular() && info.Mode().Perm()&forbidden != 0 {
		return "", hint(fmt.Errorf("the token in %s is not safe from others: its mode is %04o", file, info.Mode().Perm()), "chmod 600 "+file)
	}
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", err
	}
	var t sandbox.Secret
	if err := (secretFlag{&t}).Set(strings.TrimSpace(string(b))); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return t, nil
}

// makeToken reads the token of a state folder and makes one if there is none.
// made says whether it did. The caller holds the folder's lock.
func makeToken(state string) (t sandbox.Secret, made bool, err error) {
	file := tokenFile(state)
	t, err = readToken(file, true)
	if !errors.Is(err, fs.ErrNotExist) {
		return t, false, err
	}
	t = newToken()
	// Under another name first: a daemon that is killed here leaves no half a
	// token.
	tmp := file + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", false, err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", false, err
	}
	_, err = fmt.Fprintln(f, t.Reveal())
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, file)
	}
	return t, true, err
}
