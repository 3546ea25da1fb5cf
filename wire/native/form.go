package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// Text is bytes that mostly are text: in JSON a string where it is UTF-8, else
// an object such as {"base64": "/w=="}.
type Text string

type base64Text struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON writes t as a string or an object.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(base64Text{[]byte(t)})
}

// UnmarshalJSON reads a string or an object.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	var m map[string][]byte
	if err := json.Unmarshal(b, &m); err != nil || m == nil || len(m) != 1 || m["base64"] == nil {
		return errors.New(`must be a string, or an object with the one member "base64"`)
	}
	*t = Text(m["base64"])
	return nil
}

// Texts returns s as Texts.
func Texts(s []string) []Text {
	t := make([]Text, len(s))
	for i := range s {
		t[i] = Text(s[i])
	}
	return t
}

// Strings returns t as strings.
func Strings(t []Text) []string {
	s := make([]string, len(t))
	for i := range t {
		s[i] = string(t[i])
	}
	return s
}

// Seconds is a duration: in JSON a number of seconds such as 30 or 0.5.
type Seconds time.Duration

// MarshalJSON writes s as a number of seconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON reads a number of seconds, of which a Duration must be able to
// hold the nanoseconds.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return errors.New("must be a number of seconds")
	}
	d, err := ParseSeconds(f)
	*s = Seconds(d)
	return err
}

// ParseSeconds returns f seconds as a Duration, or an error if there is none.
func ParseSeconds(f float64) (time.Duration, error) {
	n := math.Round(f * 1e9)
	if math.IsNaN(n) || n >= math.MaxInt64 || n <= math.MinInt64 {
		return 0, errors.New("must be a number of seconds below 9223372036")
	}
	return time.Duration(n), nil
}

// Mode is permission bits: in JSON a string of octal digits such as "0644" or
// "4755", as chmod(1) takes them.
type Mode fs.FileMode

// special are the bits above 0777, as chmod(2) and as fs.FileMode has them.
var special = []struct {
	unix uint32
	mode fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

// String returns the octal digits, four of them.
func (m Mode) String() string {
	n := uint32(fs.FileMode(m).Perm())
	for _, s := range special {
		if fs.FileMode(m)&s.mode != 0 {
			n |= s.unix
		}
	}
	return fmt.Sprintf("%04o", n)
}

// ParseMode reads octal digits.
func ParseMode(s string) (Mode, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 {
		return 0, errors.New(`must be octal digits such as "0644"`)
	}
	m := fs.FileMode(n & 0o777)
	for _, b := range special {
		if uint32(n)&b.unix != 0 {
			m |= b.mode
		}
	}
	return Mode(m), nil
}

// MarshalText writes the octal digits.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads octal digits.
func (m *Mode) UnmarshalText(b []byte) (err error) {
	*m, err = ParseMode(string(b))
	return err
}

// A FileType says what a file is.
type FileType string

const (
	TypeFile    FileType = "file"
	TypeDir     FileType = "dir"
	TypeSymlink FileType = "symlink"
	TypeFIFO    FileType = "fifo"
	TypeSocket  FileType = "socket"
	TypeChar    FileType = "char"
	TypeBlock   FileType = "block"
	TypeOther   FileType = "other"
)

var fileTypes = []struct {
	name FileType
	mode fs.FileMode
}{
	{TypeFile, 0},
	{TypeDir, fs.ModeDir},
	{TypeSymlink, fs.ModeSymlink},
	{TypeFIFO, fs.ModeNamedPipe},
	{TypeSocket, fs.ModeSocket},
	{TypeChar, fs.ModeDevice | fs.ModeCharDevice},
	{TypeBlock, fs.ModeDevice},
	{TypeOther, fs.ModeIrregular},
}

// FileInfoOf returns fi as it goes over the wire.
func FileInfoOf(fi sandbox.FileInfo) FileInfo {
	w := FileInfo{Name: Text(fi.Name), Type: TypeOther, Size: fi.Size, Mode: Mode(fi.Mode &^ fs.ModeType),
		Time: fi.Time, UID: fi.UID, GID: fi.GID, Target: Text(fi.Target)}
	for _, t := range fileTypes {
		if fi.Mode.Type() == t.mode {
			w.Type = t.name
		}
	}
	return w
}

// Info returns what w says.
func (w FileInfo) Info() sandbox.FileInfo {
	fi := sandbox.FileInfo{Name: string(w.Name), Size: w.Size, Mode: fs.FileMode(w.Mode) | fs.ModeIrregular,
		Time: w.Time, UID: w.UID, GID: w.GID, Target: string(w.Target)}
	for _, t := range fileTypes {
		if w.Type == t.name {
			fi.Mode = fs.FileMode(w.Mode) | t.mode
		}
	}
	return fi
}

// ProcessOf returns p as it goes over the wire.
func ProcessOf(p sandbox.ProcessInfo) Process {
	return Process{p.ID, Text(p.Name), p.PID, Texts(p.Args), p.Started, p.Ended, p.Exit, p.Cursor, p.Dropped}
}

// Info returns what w says.
func (w Process) Info() sandbox.ProcessInfo {
	return sandbox.ProcessInfo{ID: w.ID, Name: string(w.Name), PID: w.PID, Args: Strings(w.Args), Started: w.Started, Ended: w.Ended,
		Exit: w.Exit, Cursor: w.Cursor, Dropped: w.Dropped}
}

// SpecOf returns s as it goes over the wire, or an Invalid error if something
// in it that must be text is not UTF-8.
func SpecOf(s sandbox.Spec) (Spec, error) {
	w := Spec{s.ID, s.Name, s.Profile, s.Explicit, Seconds(s.Idle), s.Backend, s.Image, nil, s.Workdir, s.User, s.Limits, s.Mounts, s.Network, s.ReadOnlyRoot, s.Require, s.Labels, s.Expires}
	texts := []struct{ field, text string }{{"id", string(s.ID)}, {"name", s.Name}, {"profile", s.Profile}, {"backend", s.Backend}, {"image", s.Image}, {"workdir", s.Workdir}, {"user", s.User}, {"network", string(s.Network)}}
	for _, m := range s.Mounts {
		texts = append(texts, struct{ field, text string }{"mounts.source", m.Source}, struct{ field, text string }{"mounts.target", m.Target})
	}
	for k, v := range s.Labels {
		texts = append(texts, struct{ field, text string }{"labels", k}, struct{ field, text string }{"labels", v})
	}
	for _, p := range s.Require {
		texts = append(texts, struct{ field, text string }{"require", string(p)})
	}
	for _, f := range s.Explicit {
		texts = append(texts, struct{ field, text string }{"explicit", f})
	}
	for _, t := range texts {
		if err := checkUTF8(t.field, t.text); err != nil {
			return w, err
		}
	}
	if math.IsNaN(s.Limits.CPU) || math.IsInf(s.Limits.CPU, 0) { // JSON has neither
		return w, (&sandbox.Spec{Limits: s.Limits}).Check()
	}
	if y := s.Expires.Year(); y < 0 || y > 9999 {
		return w, sandbox.Errorf(sandbox.Invalid, "expires", "the year %d cannot be written", y).WithHint("use one below 10000, or no time at all")
	}
	var err error
	w.Env, err = envOf(s.Env)
	return w, err
}

// Spec returns what w says.
func (w Spec) Spec() sandbox.Spec {
	return sandbox.Spec{ID: w.ID, Name: w.Name, Profile: w.Profile, Explicit: w.Explicit, Idle: time.Duration(w.Idle), Backend: w.Backend, Image: w.Image, Env: env(w.Env), Workdir: w.Workdir, User: w.User, Limits: w.Limits, Mounts: w.Mounts,
		Network: w.Network, ReadOnlyRoot: w.ReadOnlyRoot, Require: w.Require, Labels: w.Labels, Expires: w.Expires}
}

// CmdOf returns c as it goes over the wire, without its streams, or an Invalid
// error if something in it that must be text is not UTF-8.
func CmdOf(c sandbox.Cmd) (Cmd, error) {
	w := Cmd{Args: Texts(c.Args), Dir: Text(c.Dir), User: c.User, Timeout: Seconds(c.Timeout), Terminal: c.Terminal}
	if err := checkUTF8("user", c.User); err != nil {
		return w, err
	}
	var err error
	w.Env, err = envOf(c.Env)
	return w, err
}

// Cmd returns what w says.
func (w Cmd) Cmd() sandbox.Cmd {
	return sandbox.Cmd{Args: Strings(w.Args), Env: env(w.Env), Dir: string(w.Dir), User: w.User,
		Timeout: time.Duration(w.Timeout), Terminal: w.Terminal}
}

func envOf(m map[string]string) (map[string]Text, error) {
	if m == nil {
		return nil, nil
	}
	e := make(map[string]Text, len(m))
	for k, v := range m {
		if err := checkUTF8("env", k); err != nil {
			return nil, err
		}
		e[k] = Text(v)
	}
	return e, nil
}

func env(m map[string]Text) map[string]string {
	if m == nil {
		return nil
	}
	e := make(map[string]string, len(m))
	for k, v := range m {
		e[k] = string(v)
	}
	return e
}

func checkUTF8(field, s string) error {
	if utf8.ValidString(s) {
		return nil
	}
	return sandbox.Errorf(sandbox.Invalid, field, "%q is not UTF-8", s).WithHint("this cannot be any bytes, only text")
}
