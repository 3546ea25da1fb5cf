package proto

import (
	"bytes"
	"reflect"
	"testing"
)

// all has every message, with something in every field.
func all() []Message {
	e := Entry{Name: "n\xff", Size: 1 << 40, Mode: 0o100644, Time: -5, UID: 1, GID: 2, Target: "t"}
	x := Exit{Proc: 1 << 63, Reason: 2, Code: -1, Signal: 9, CPU: 5, Memory: 6, Held: true}
	return []Message{
		&Hello{1, "d", 30e9, true, 1, true},
		&Raw{[]byte("raw")},
		&Cancel{7},
		&Failure{"kind", "field", "msg", "hint", "log"},
		&Start{[]string{"a", "", "b"}, []string{"K=V"}, "/d", "u", 1, 1, 2, true, 24, 80, 1e9, true, 1 << 20, true, "n\xff"},
		&Started{1, 2},
		&Proc{3},
		&Signal{1, 15},
		&Resize{1, 2, 3},
		&x,
		&Read{1, 2, 3},
		&Data{true, []byte("data")},
		&Write{1, true, []byte("data")},
		&Wrote{4, Failure{Kind: "conflict"}},
		&Processes{[]Process{{Proc: 1, PID: 2, Args: []string{"a"}, Started: 3, Ended: 4, Cursor: 5, Dropped: 6, Exit: x, Name: "n"}, {Proc: 9}}},
		&Output{1, -1, 2, 3},
		&Outputs{[]Chunk{{true, []byte("x")}, {false, []byte("y")}}, 1, 2, true, x},
		&Env{[]string{"A=\xff", "B="}, []string{"C"}},
		&Path{"/p\x00"},
		&e,
		&Opened{5, e},
		&Create{"/p", -1, "u", true, true, true, []byte("d"), true},
		&Handle{6},
		&Fread{1, 2, 3},
		&Fwrite{1, []byte("d"), true},
		&ListDir{"/p", "a", 3},
		&Entries{[]Entry{e, e}, true},
		&Mkdir{"/p", 0o755, "u", true},
		&Rename{"/a", "/b"},
		&Remove{"/a", true},
		&Chmod{"/a", 0o4755},
		&Chown{"/a", "u:g"},
		&Dial{80},
		&Usage{1, 2, 3},
	}
}

// zero returns an empty message of m's type.
func zero(m Message) Message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
}

func TestMessagesArriveAsTheyWere(t *testing.T) {
	for _, m := range all() {
		for i := range reflect.TypeOf(m).Elem().NumField() {
			if reflect.ValueOf(m).Elem().Field(i).IsZero() {
				t.Errorf("%T: the test has nothing in %s", m, reflect.TypeOf(m).Elem().Field(i).Name)
			}
		}
		b := Append(nil, m)
		got := zero(m)
		if err := Decode(b, got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T: got %+v, %v, want %+v", m, got, err, m)
		}
		if err := Decode(append(b, "of a later version"...), got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T with more at its end: %+v, %v", m, got, err)
		}
		if got = zero(m); Decode(nil, got) != nil || !reflect.DeepEqual(got, zero(m)) {
			t.Errorf("%T of an earlier version: %+v", m, got)
		}
	}
}

func TestFramesAreCutWhereTheyEnd(t *testing.T) {
	var b []byte
	for i, m := range all() {
		b = AppendFrame(b, Op(i), i%4, uint32(i), m)
	}
	whole := bytes.Clone(b)
	for i, m := range all() {
		for cut := range 13 {
			if f, n, need, err := Next(b[:cut]); cut < 12 && (n != 0 || err != nil || need <= cut) {
				t.Fatalf("%d bytes are %+v, %d, %d, %v", cut, f, n, need, err)
			}
		}
		f, n, _, err := Next(b)
		if err != nil || f.Op != Op(i) || f.FDs != i%4 || f.ID != uint32(i) || !bytes.Equal(f.Body, Append(nil, m)) {
			t.Fatalf("frame %d is %+v, %v", i, f, err)
		}
		b = b[n:]
	}
	if len(b) != 0 || !bytes.Equal(whole[:4], []byte{0, 0, 0, byte(whole[3])}) {
		t.Errorf("%d bytes are left", len(b))
	}
	for _, bad := range [][]byte{
		{0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0},
		{0xff, 0xff, 0xff, 0xff},
		{0, 0x40, 0, 0},
		{0, 0, 0, 8, 0, MaxFDs + 1, 0, 0, 0, 0, 0, 0},
	} {
		if _, _, _, err := Next(bad); err != ErrFrame {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// FuzzDecode decodes anything as every message. It must not take more memory
// than it was given, and what it accepts has to survive another round.
func FuzzDecode(f *testing.F) {
	for i, m := range all() {
		f.Add(uint8(i), Append(nil, m))
	}
	f.Add(uint8(4), []byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(uint8(14), []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		ms := all()
		m := zero(ms[int(kind)%len(ms)])
		if Decode(b, m) != nil {
			return
		}
		again := zero(m)
		if err := Decode(Append(nil, m), again); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%T: %+v became %+v, %v", m, m, again, err)
		}
	})
}

// FuzzNext cuts frames out of anything.
func FuzzNext(f *testing.F) {
	for i, m := range all() {
		f.Add(AppendFrame(nil, Op(i), 0, 1, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			fr, n, need, err := Next(b)
			if err != nil {
				return
			}
			if n == 0 {
				if need <= len(b) || need > MaxFrame {
					t.Fatalf("%d bytes wait for %d", len(b), need)
				}
				return
			}
			if n < HeadLen || n > len(b) || len(fr.Body) != n-HeadLen || fr.FDs > MaxFDs {
				t.Fatalf("%+v, %d", fr, n)
			}
			b = b[n:]
		}
	})
}
