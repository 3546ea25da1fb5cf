package linux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/sandbox"
)

// A record is what the state knows of a sandbox. It is written before
// anything of the sandbox is made, under the name "making", so that whatever a
// crash leaves can be found and freed; when the sandbox is ready it gets the
// name "record". It has no secrets: the environment is the guest's alone.
type record struct {
	Version int          `json:"version"`
	Slot    int          `json:"slot"` // range of host ids; -1 if none
	Info    sandbox.Info `json:"info"`

	ready bool // Create has succeeded, or was about to say so: the file's name says it
}

const recordVersion = 2

// promise writes r for a sandbox that is to be made. A crash may leave half of
// it, of a sandbox of which nothing else is there yet.
func (r *record) promise(dir string) error { return r.write(dir, "making") }

// settle says that the sandbox is ready.
func (r *record) settle(dir string) error {
	r.ready = true
	return os.Rename(filepath.Join(dir, "making"), filepath.Join(dir, "record"))
}

// save writes r anew, so that a reader sees the old or the new one.
func (r *record) save(dir string) error {
	if err := r.write(dir, "record.new"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "record.new"), filepath.Join(dir, "record"))
}

func (r *record) write(dir, name string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), b, 0o600)
}

func loadRecord(dir string) (*record, error) {
	b, err := os.ReadFile(filepath.Join(dir, "record"))
	ready := err == nil
	if errors.Is(err, fs.ErrNotExist) {
		b, err = os.ReadFile(filepath.Join(dir, "making"))
	}
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(b)
	if r != nil {
		r.ready = ready
	}
	return r, err
}

// parseRecord reads a record, and checks what is reckoned with.
func parseRecord(b []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.Slot < -1 || r.Slot >= maxSlots {
		return nil, fmt.Errorf("range %d of ids: there are %d", r.Slot, maxSlots)
	}
	return r, nil
}
