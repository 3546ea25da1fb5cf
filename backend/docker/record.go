package docker

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A record is what the state knows of a sandbox. It is there before the
// container is. It has no secrets: the environment is the guest's alone.
type record struct {
	Version int          `json:"version"`
	Ready   bool         `json:"ready"` // Create has succeeded, or was about to say so
	Info    sandbox.Info `json:"info"`
}

const recordVersion = 1

func (rt *Runtime) recordFile(id sandbox.ID) string { return rt.path("sandboxes", string(id)+".json") }

func (rt *Runtime) saveRecord(r *record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replaceFile(rt.recordFile(r.Info.ID), b)
}

// replaceFile writes a file so that a reader sees the old or the new one.
func replaceFile(name string, b []byte) error {
	if err := os.WriteFile(name+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// forget deletes the record of a sandbox of which nothing else is left.
func (rt *Runtime) forget(id sandbox.ID) {
	if !id.Valid() {
		return
	}
	if err := os.Remove(rt.recordFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		rt.log.Error("a record could not be deleted", "id", id, "err", err)
	}
}

// loadRecords reads what is there. One that cannot be read is of no use: what
// is left of its sandbox is removed.
func (rt *Runtime) loadRecords() (map[sandbox.ID]*record, error) {
	entries, err := os.ReadDir(rt.path("sandboxes"))
	if err != nil {
		return nil, err
	}
	all := make(map[sandbox.ID]*record)
	for _, e := range entries {
		name := filepath.Join(rt.path("sandboxes"), e.Name())
		id := sandbox.ID(strings.TrimSuffix(e.Name(), ".json"))
		if !id.Valid() {
			if err := os.Remove(name); err != nil { // a file that was being written
				rt.log.Warn("something else is among the records", "name", e.Name(), "err", err)
			}
			continue
		}
		r := new(record)
		b, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(b, r)
		}
		if err != nil || r.Info.ID != id {
			rt.log.Error("a record cannot be read", "id", id, "err", err)
			r = &record{}
		}
		all[id] = r
	}
	return all, nil
}
