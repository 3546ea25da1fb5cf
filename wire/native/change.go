package native

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A Change is the body of an update request, a [sandbox.Change]. What is
// absent stays.
type Change struct {
	Expires When              `json:"expires,omitzero"` // null is never
	Labels  map[string]string `json:"labels,omitzero"`  // {} is none
	Env     map[string]Text   `json:"env,omitempty"`
	Idle    *Seconds          `json:"idle,omitempty"` // negative: never
	Name    *string           `json:"name,omitempty"`
}

// When is a time that is absent, or never, or a time. In JSON null is never.
type When struct {
	Set  bool
	Time time.Time // if Set; zero is never
}

// IsZero reports whether w is absent.
func (w When) IsZero() bool { return !w.Set }

// MarshalJSON writes null or a time.
func (w When) MarshalJSON() ([]byte, error) {
	if w.Time.IsZero() {
		return []byte("null"), nil
	}
	return json.Marshal(w.Time)
}

// UnmarshalJSON reads null or a time.
func (w *When) UnmarshalJSON(b []byte) error {
	var t time.Time
	if err := json.Unmarshal(b, &t); err != nil {
		return errors.New("must be a time such as 2026-01-02T15:04:05Z, or null for never")
	}
	*w = When{true, t}
	return nil
}

// ChangeOf returns c as it goes over the wire, or an Invalid error if
// something in it that must be text is not UTF-8.
func ChangeOf(c sandbox.Change) (Change, error) {
	w := Change{Labels: c.Labels, Name: c.Name}
	for k, v := range c.Labels {
		for _, s := range []string{k, v} {
			if err := checkUTF8("labels", s); err != nil {
				return w, err
			}
		}
	}
	if c.Name != nil {
		if err := checkUTF8("name", *c.Name); err != nil {
			return w, err
		}
	}
	if c.Expires != nil {
		if y := c.Expires.Year(); y < 0 || y > 9999 {
			return w, c.Check()
		}
		w.Expires = When{true, *c.Expires}
	}
	if c.Idle != nil {
		w.Idle = new(Seconds(*c.Idle))
	}
	var err error
	w.Env, err = envOf(c.Env)
	return w, err
}

// Change returns what w says.
func (w Change) Change() sandbox.Change {
	c := sandbox.Change{Labels: w.Labels, Env: env(w.Env), Name: w.Name}
	if w.Expires.Set {
		c.Expires = &w.Expires.Time
	}
	if w.Idle != nil {
		c.Idle = new(time.Duration(*w.Idle))
	}
	return c
}
