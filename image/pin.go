package image

import (
	"os"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Use returns the image of that name and keeps it from being deleted for
// holder, until release is called, or [Store.Release]. Holder is whoever can
// say later that it is gone: a sandbox's id. It has 1 to 128 letters, digits,
// dots, dashes and underscores. To use an image again for the same holder
// changes nothing.
//
// Who uses what outlives the process, so that nothing is taken from sandboxes
// that live on without a daemon: after Open, release those holders of
// [Store.Holders] that are gone.
func (s *Store) Use(name, holder string) (_ Image, release func(), _ error) {
	if err := checkHolder(holder); err != nil {
		return Image{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Image{}, nil, errClosed()
	}
	digest, key, err := s.findLocked(name)
	if err != nil {
		return Image{}, nil, err
	}
	if _, held := s.pins[digest][holder]; !held {
		// Not synced: after the machine stopped, no sandbox is left.
		f, err := os.OpenFile(s.pinPath(holder, digest), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return Image{}, nil, classify(err)
		}
		f.Close()
		if s.pins[digest] == nil {
			s.pins[digest] = make(map[string]struct{})
		}
		s.pins[digest][holder] = struct{}{}
	}
	r := s.index.Images[digest]
	r.Used = time.Now().UTC()
	s.index.Images[digest] = r
	return s.imageLocked(digest, key), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unpinLocked(digest, holder)
	}, nil
}

// Release lets go whatever holder uses. A holder that uses nothing is no error.
func (s *Store) Release(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for digest := range s.pins {
		s.unpinLocked(digest, holder)
	}
}

// Holders returns who uses images, each with the digests of them.
func (s *Store) Holders() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string][]string)
	for digest, holders := range s.pins {
		for h := range holders {
			all[h] = append(all[h], digest)
		}
	}
	return all
}

func (s *Store) unpinLocked(digest, holder string) {
	if _, ok := s.pins[digest][holder]; !ok {
		return
	}
	delete(s.pins[digest], holder)
	if len(s.pins[digest]) == 0 {
		delete(s.pins, digest)
	}
	if s.closed {
		return // the folder may be another's by now; that one finds the holder gone
	}
	if err := os.Remove(s.pinPath(holder, digest)); err != nil {
		s.log.Warn("an image cannot be let go", "image", digest, "holder", holder, "err", err)
	}
}

func (s *Store) pinPath(holder, digest string) string {
	return s.path("pins", holder+"@"+hexOf(digest))
}

func (s *Store) loadPins() error {
	files, err := os.ReadDir(s.path("pins"))
	if err != nil {
		return err
	}
	for _, f := range files {
		holder, hex, _ := strings.Cut(f.Name(), "@")
		digest := "sha256:" + hex
		if _, ok := s.index.Images[digest]; !ok || checkHolder(holder) != nil {
			if err := os.Remove(s.path("pins", f.Name())); err != nil {
				return err
			}
			continue
		}
		if s.pins[digest] == nil {
			s.pins[digest] = make(map[string]struct{})
		}
		s.pins[digest][holder] = struct{}{}
	}
	return nil
}

func checkHolder(s string) error {
	ok := len(s) >= 1 && len(s) <= 128
	for _, c := range []byte(s) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
	}
	if !ok {
		return sandbox.Errorf(sandbox.Invalid, "holder", "%q cannot hold an image", s)
	}
	return nil
}
