//go:build linux

package linux

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestGuestID(t *testing.T) {
	const id = "abcdefgh12345678"
	for line, want := range map[string]bool{
		"atoll-guest\x00" + id + "\x00":         true,
		"atoll-guest\x00" + id:                  true,
		"":                                      false,
		"\x00":                                  false,
		"atoll-guest":                           false,
		"atoll-guest\x00":                       false,
		"atoll-guest\x00--launch\x00":           false,
		"atoll-guest\x00../../etc\x00":          false,
		"atoll-guest\x00" + id + "\x00x\x00":    false,
		"/atoll-guest\x00" + id + "\x00":        false,
		"atoll-guest " + id:                     false,
		"atoll-guest\x00" + id + "\n\x00":       false,
		"\x00atoll-guest\x00" + id + "\x00":     false,
		"atoll-guest\x00" + id + "\x00\x00\x00": false,
	} {
		if got, ok := guestID([]byte(line)); ok != want || ok && got != id {
			t.Errorf("%q: %q %v", line, got, ok)
		}
	}
}

func TestFirstOfNamespace(t *testing.T) {
	for status, want := range map[string]struct {
		uid   int
		first bool
	}{
		"Uid:\t0\t70000\t0\t0\nNSpid:\t4711\t1\n":  {70000, true},
		"NSpid:\t4711\t1\nUid:\t1\t2\t3\t4\n":      {2, true},
		"Uid:\t0\t0\t0\t0\nNSpid:\t4711\t12\n":     {0, false},
		"Uid:\t0\t0\t0\t0\nNSpid:\t1\n":            {0, false},
		"NSpid:\t4711\t1\n":                        {-1, false},
		"Uid:\tx\ty\tz\nNSpid:\t4711\t1\n":         {-1, false},
		"Name:\tNSpid: 4711 1\nUid:\t0\t7\t0\t0\n": {7, false},
		"Uid:\t0\t7\t0\t0\nNSpid:\t9\t8\t7\t1":     {7, true},
		"":                                         {-1, false},
	} {
		if uid, first := firstOfNamespace([]byte(status)); uid != want.uid || first != want.first {
			t.Errorf("%q: %d %v", status, uid, first)
		}
	}
	self, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if uid, _ := firstOfNamespace(self); uid != os.Geteuid() && uid != -1 {
		t.Errorf("this process: %d", uid)
	}
}

func TestParseSubIDs(t *testing.T) {
	me := &user.User{Username: "me", Uid: "1001"}
	for file, want := range map[string]span{
		"me:100000:65536\n":                 {100000, 65536},
		"you:1:65536\nme:100000:65536\n":    {100000, 65536},
		"1001:200000:65535":                 {200000, 65535},
		"me:100000:1000\nme:300000:70000\n": {300000, 70000},
		"me:100000":                         {},
		"me:0:65536":                        {},
		"me:-5:65536":                       {},
		"me:4294900000:65536\n":             {4294900000, 65536},
		"me:4294967000:65536\n":             {},
		"me:100000:99999999999999999999\n":  {},
		"me:9223372036854775807:65536\n":    {},
		"mee:100000:65536\n":                {},
		"":                                  {},
	} {
		if got, ok := parseSubIDs(strings.NewReader(file), me); got != want || ok != (want != span{}) {
			t.Errorf("%q: %v %v, want %v", file, got, ok, want)
		}
	}
}

func FuzzGuest(f *testing.F) {
	f.Add([]byte("atoll-guest\x00abcdefgh12345678\x00"), []byte("Uid:\t0\t7\t0\t0\nNSpid:\t9\t1\n"))
	f.Fuzz(func(t *testing.T, line, status []byte) {
		if id, ok := guestID(line); ok && (!id.Valid() || !bytes.Contains(line, []byte(id))) {
			t.Errorf("%q: %q", line, id)
		}
		if uid, first := firstOfNamespace(status); uid < -1 || first && uid < 0 {
			t.Errorf("%q: %d %v", status, uid, first)
		}
	})
}

func FuzzParseSubIDs(f *testing.F) {
	f.Add("me:100000:65536\n1001:5:7\n")
	f.Fuzz(func(t *testing.T, file string) {
		s, ok := parseSubIDs(strings.NewReader(file), &user.User{Username: "me", Uid: "1001"})
		if ok && (s.first <= 0 || s.count < rangeSize-1 || s.first+s.count-1 > maxID) {
			t.Errorf("%q: %v", file, s)
		}
	})
}

func FuzzRecord(f *testing.F) {
	whole, err := json.Marshal(&record{Version: recordVersion, Slot: 7, Info: sandbox.Info{ID: "abcdefgh12345678", Labels: map[string]string{"a": "b"}, Kept: map[string]string{"memory": "cgroup v2"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte(`{"slot":4096}`))
	f.Add([]byte(`{"slot":-2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		if r.Slot < -1 || r.Slot >= maxSlots {
			t.Errorf("range %d", r.Slot)
		}
		// What was read can be written, and read again as the same.
		dir := t.TempDir()
		r.ready = true // the name under which it is saved says so
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
		again, err := loadRecord(dir)
		if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", r) {
			t.Errorf("%+v\n%+v\n%v", r, again, err)
		}
	})
}
