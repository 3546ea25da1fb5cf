package native_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

func TestForms(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{wire.Text("héllo"), `"héllo"`},
		{wire.Text(""), `""`},
		{wire.Text("a\xffb"), `{"base64":"Yf9i"}`},
		{wire.Text("\xed\xa0\x80"), `{"base64":"7aCA"}`}, // half a character
		{wire.Text("�"), `"�"`},
		{wire.Seconds(30 * time.Second), `30`},
		{wire.Seconds(500 * time.Millisecond), `0.5`},
		{wire.Seconds(time.Nanosecond), `0.000000001`},
		{wire.Seconds(-time.Second), `-1`},
		{wire.Mode(0o644), `"0644"`},
		{wire.Mode(0), `"0000"`},
		{wire.Mode(0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky), `"7755"`},
	} {
		b, err := json.Marshal(c.v)
		if err != nil || string(b) != c.want {
			t.Errorf("%#v: got %s, %v; want %s", c.v, b, err, c.want)
		}
		back := reflect.New(reflect.TypeOf(c.v))
		if err := json.Unmarshal(b, back.Interface()); err != nil || back.Elem().Interface() != c.v {
			t.Errorf("%s came back as %#v, %v", b, back.Elem(), err)
		}
	}
}

func TestDurationsSurvive(t *testing.T) {
	for _, d := range []time.Duration{1, 999, time.Microsecond, 123456789, 90 * time.Minute, 100*24*time.Hour + time.Microsecond, 1<<53 - 1} {
		b, _ := json.Marshal(wire.Seconds(d))
		var back wire.Seconds
		if err := json.Unmarshal(b, &back); err != nil || time.Duration(back) != d {
			t.Errorf("%d went as %s and came back as %d, %v", d, b, back, err)
		}
	}
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e10, -1e10, 9223372036.9} {
		if d, err := wire.ParseSeconds(f); err == nil {
			t.Errorf("%v seconds are %v", f, d)
		}
	}
}

func TestFileInfoSurvives(t *testing.T) {
	for _, mode := range []fs.FileMode{0o644, 0, fs.ModeDir | 0o755 | fs.ModeSticky, fs.ModeSymlink | 0o777, fs.ModeNamedPipe, fs.ModeSocket | 0o600,
		fs.ModeDevice | 0o660, fs.ModeDevice | fs.ModeCharDevice, fs.ModeIrregular, 0o755 | fs.ModeSetuid | fs.ModeSetgid} {
		fi := sandbox.FileInfo{Name: "a\xff", Size: 1 << 60, Mode: mode, Time: time.Unix(1, 2).UTC(), UID: 1, GID: 1<<32 - 1, Target: "\xfe"}
		b, err := json.Marshal(wire.FileInfoOf(fi))
		if err != nil {
			t.Fatal(err)
		}
		var w wire.FileInfo
		if err := json.Unmarshal(b, &w); err != nil || w.Info() != fi {
			t.Errorf("%s came back as %+v, %v", b, w.Info(), err)
		}
	}
}

// Each field of the contract's types has its place on the wire: one that is
// added there and forgotten here makes this fail.
func TestNothingIsForgotten(t *testing.T) {
	one := 1
	size := &sandbox.Size{Rows: 1, Cols: 2}
	spec := sandbox.Spec{ID: "aaaaaaaa", Name: "n", Profile: "p", Explicit: []string{"expires"}, Idle: -1500 * time.Millisecond, Backend: "z", Image: "a", Env: map[string]string{"A": "\xff"}, Workdir: "/b", User: "c", Limits: sandbox.Limits{Memory: 1, CPU: 2, PIDs: 3, Disk: 4, Workspace: 5},
		Mounts: []sandbox.Mount{{Source: "/d", Target: "/e", ReadOnly: true, Extra: true}}, Network: "on", ReadOnlyRoot: true, Require: []sandbox.Property{sandbox.Seccomp},
		Labels: map[string]string{"f": "g"}, Expires: time.Unix(1, 2).UTC()}
	cmd := sandbox.Cmd{Args: []string{"a", "\xff"}, Env: map[string]string{"A": "b"}, Dir: "/\xff", User: "c", Timeout: time.Second, Terminal: size}
	process := sandbox.ProcessInfo{ID: "a", Name: "n\xff", PID: one, Args: []string{"\xff"}, Started: time.Unix(1, 2).UTC(), Ended: time.Unix(3, 4).UTC(),
		Exit: &sandbox.Exit{Code: 1, Reason: sandbox.Exited, Signal: "TERM", Usage: sandbox.Usage{CPU: 1, Memory: 2, PeakMemory: 3, PIDs: 4, Disk: 5}}, Cursor: 5, Dropped: 6}

	set(t, "Spec", spec)
	set(t, "Limits", spec.Limits)
	set(t, "Mount", spec.Mounts[0], "Within") // which a Keeper sets
	set(t, "Cmd", cmd, "Stdin", "Stdout", "Stderr", "Control")
	set(t, "ProcessInfo", process)

	ws, err := wire.SpecOf(spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := again(t, ws).Spec(); !reflect.DeepEqual(got, spec) {
		t.Errorf("got %+v, want %+v", got, spec)
	}
	wc, err := wire.CmdOf(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if got := again(t, wc).Cmd(); !reflect.DeepEqual(got, cmd) {
		t.Errorf("got %+v, want %+v", got, cmd)
	}
	if got := again(t, wire.ProcessOf(process)).Info(); !reflect.DeepEqual(got, process) {
		t.Errorf("got %+v, want %+v", got, process)
	}
}

// set fails unless every field of v but those named has been set.
func set(t *testing.T, name string, v any, but ...string) {
	t.Helper()
	rv := reflect.ValueOf(v)
	for f := range rv.Type().Fields() {
		if rv.FieldByIndex(f.Index).IsZero() && !strings.Contains(strings.Join(but, " "), f.Name) {
			t.Errorf("%s.%s is not tried here", name, f.Name)
		}
	}
}

func again[T any](t *testing.T, v T) (back T) {
	t.Helper()
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// What must be text and is not is refused rather than changed on the way.
func TestRefusesWhatJSONWouldChange(t *testing.T) {
	for field, spec := range map[string]sandbox.Spec{
		"backend":       {Backend: "\xff"},
		"image":         {Image: "\xff"},
		"workdir":       {Workdir: "/\xff"},
		"user":          {User: "\xff"},
		"network":       {Network: "\xff"},
		"env":           {Env: map[string]string{"\xff": ""}},
		"labels":        {Labels: map[string]string{"a": "\xff"}},
		"mounts.source": {Mounts: []sandbox.Mount{{Source: "/\xff"}}},
		"require":       {Require: []sandbox.Property{"\xff"}},
		"limits.cpu":    {Limits: sandbox.Limits{CPU: math.NaN()}},
		"expires":       {Expires: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		_, err := wire.SpecOf(spec)
		e, ok := err.(*sandbox.Error)
		if !ok || e.Kind != sandbox.Invalid || e.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	for field, cmd := range map[string]sandbox.Cmd{"user": {User: "\xff"}, "env": {Env: map[string]string{"\xff": ""}}} {
		_, err := wire.CmdOf(cmd)
		e, ok := err.(*sandbox.Error)
		if !ok || e.Kind != sandbox.Invalid || e.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func TestFrames(t *testing.T) {
	big := bytes.Repeat([]byte("x"), wire.MaxChunk)
	stream := bytes.Join([][]byte{
		wire.FrameJSON(wire.FrameStarted, wire.Started{ID: "a", PID: 7}),
		wire.Frame(wire.FrameStdout, big),
		wire.Frame(wire.FrameStderr, nil),
		wire.Frame(wire.FrameStdout, []byte("skipped")),
		wire.WindowFrame(1 << 31),
		wire.Frame(wire.FrameStdinEnd, nil),
	}, nil)
	for name, r := range map[string]io.Reader{"whole": bytes.NewReader(stream), "in bits": iotest.HalfReader(bytes.NewReader(stream))} {
		fr := wire.NewFrameReader(r)
		next := func(want wire.FrameType, length int) {
			t.Helper()
			if ft, n, err := fr.Next(); ft != want || n != length || err != nil {
				t.Fatalf("%s: got type %d of %d bytes, %v; want %d of %d", name, ft, n, err, want, length)
			}
		}
		next(wire.FrameStarted, 18)
		var s wire.Started
		if err := fr.JSON(&s); err != nil || s.ID != "a" || s.PID != 7 {
			t.Fatalf("%s: got %+v, %v", name, s, err)
		}
		next(wire.FrameStdout, wire.MaxChunk)
		if b, err := fr.Payload(); err != nil || !bytes.Equal(b, big) {
			t.Fatalf("%s: got %d bytes, %v", name, len(b), err)
		}
		next(wire.FrameStderr, 0)
		next(wire.FrameStdout, 7)
		if n, err := fr.Read(make([]byte, 3)); n == 0 || err != nil {
			t.Fatalf("%s: got %d, %v", name, n, err)
		}
		next(wire.FrameWindow, 4)
		if n, err := fr.More(); n != 1<<31 || err != nil {
			t.Fatalf("%s: got %d, %v", name, n, err)
		}
		next(wire.FrameStdinEnd, 0)
		if _, _, err := fr.Next(); err != io.EOF {
			t.Fatalf("%s: got %v at the end", name, err)
		}
	}
	// Cut off anywhere but between frames, a stream is not whole.
	small := append(wire.Frame(wire.FrameStdout, []byte("abc")), wire.Frame(wire.FrameStdinEnd, nil)...)
	for n := range len(small) {
		fr := wire.NewFrameReader(bytes.NewReader(small[:n]))
		var err error
		for err == nil {
			_, _, err = fr.Next()
		}
		want := io.ErrUnexpectedEOF
		if n == 0 || n == 8 {
			want = io.EOF
		}
		if err != want {
			t.Errorf("cut off after %d bytes: got %v, want %v", n, err, want)
		}
	}
	for _, bad := range [][]byte{{0, 0, 0, 0, 0}, {8, 0, 0, 0, 0}, {2, 0, 0x10, 0, 1}, {6, 0, 0, 0, 5}, {18, 0, 0, 0, 1}, {2, 0xff, 0xff, 0xff, 0xff}} {
		if _, _, err := wire.NewFrameReader(bytes.NewReader(bad)).Next(); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("%v: got %v", bad, err)
		}
	}
}

// Whatever comes, a FrameReader neither panics nor takes more memory than has
// come, and what it reads, written again, is what came.
func FuzzFrames(f *testing.F) {
	f.Add(append(wire.FrameJSON(wire.FrameStarted, wire.Started{ID: "a"}), wire.Frame(wire.FrameStdout, []byte("hello"))...), true)
	f.Add(wire.WindowFrame(5), false)
	f.Add([]byte{1, 0, 0x40, 0, 0, 'x'}, true)
	f.Fuzz(func(t *testing.T, b []byte, skip bool) {
		fr := wire.NewFrameReader(bytes.NewReader(b))
		var again []byte
		for {
			ft, n, err := fr.Next()
			if err != nil {
				break
			}
			if skip && n%2 == 1 {
				continue
			}
			p, err := fr.Payload()
			if err != nil {
				if cap(p) > 2*len(b)+64<<10 {
					t.Errorf("%d bytes for %d", cap(p), len(b))
				}
				break
			}
			again = append(again, wire.Frame(ft, p)...)
		}
		if !skip && !bytes.HasPrefix(b, again) {
			t.Errorf("%x came back as %x", b, again)
		}
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte(`"a"`))
	f.Add([]byte(`{"base64":"/w=="}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v wire.Text
		if json.Unmarshal(b, &v) != nil {
			return
		}
		if got := again(t, v); got != v {
			t.Errorf("%q came back as %q", v, got)
		}
	})
}
