package linux

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/sandbox"
)

// A record is what the state knows of a sandbox. It is written before
// anything of the sandbox is made, so that whatever a crash leaves can be
// found and freed, and again when the sandbox is ready. It has no secrets:
// the environment is the guest's alone.
type record struct {
	Version int          `json:"version"`
	Ready   bool         `json:"ready"` // Create has succeeded, or was about to say so
	Slot    int          `json:"slot"`  // range of host ids; -1 if none
	Info    sandbox.Info `json:"info"`
}

const recordVersion = 1

// save writes r, so that a reader sees the old or the new one.
func (r *record) save(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "record.new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, "record"))
}

func loadRecord(dir string) (*record, error) {
	b, err := os.ReadFile(filepath.Join(dir, "record"))
	if err != nil {
		return nil, err
	}
	return parseRecord(b)
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
