package inside

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/guest/proto"
)

const passwd = `# a comment
root:x:0:0:root:/root:/bin/sh
short:x:5
user:x:1000:100:A User,,,:/home/user:/bin/bash
1234:x:77:78::/odd:/bin/sh
bad:x:not:1::/:
minus:x:-1:1::/:
homeless:x:1001:1001:::
`

const group = `root:x:0:
users:x:100:user
wheel:x:10:root,user
docker:x:998:other,user,user
odd:x:x:user
`

func TestUsersAreThoseOfTheFiles(t *testing.T) {
	for spec, want := range map[string]identity{
		"":            {0, 0, []uint32{0, 10}, "root", "/root"},
		"root":        {0, 0, []uint32{0, 10}, "root", "/root"},
		"0":           {0, 0, []uint32{0, 10}, "root", "/root"},
		"user":        {1000, 100, []uint32{100, 10, 998}, "user", "/home/user"},
		"1000":        {1000, 100, []uint32{100, 10, 998}, "user", "/home/user"},
		"user:wheel":  {1000, 10, []uint32{10}, "user", "/home/user"},
		"user:7":      {1000, 7, []uint32{7}, "user", "/home/user"},
		"4711":        {4711, 0, []uint32{0}, "", "/"},
		"4711:docker": {4711, 998, []uint32{998}, "", "/"},
		"1234":        {77, 78, []uint32{78}, "1234", "/odd"}, // a name first
		"homeless":    {1001, 1001, []uint32{1001}, "homeless", "/"},
	} {
		got, err := lookUp(spec, []byte(passwd), []byte(group))
		if err != nil || got.uid != want.uid || got.gid != want.gid || !slices.Equal(got.groups, want.groups) || got.name != want.name || got.home != want.home {
			t.Errorf("%q is %+v, %v, want %+v", spec, got, err, want)
		}
	}
	for _, spec := range []string{"nobody", "short", "bad", "minus", "-1", "user:nothing", "4294967295", "99999999999", "user:odd", "+5", "#"} {
		_, err := lookUp(spec, []byte(passwd), []byte(group))
		if f := (*proto.Failure)(nil); !errors.As(err, &f) || f.Kind != kindNotExist || f.Field != "user" {
			t.Errorf("%q: %v", spec, err)
		}
	}
	if who, err := lookUp("root", nil, nil); err != nil || who.uid != 0 || who.home != "/root" {
		t.Errorf("without files root is %+v, %v", who, err)
	}
}

// FuzzUsers looks up anything in anything.
func FuzzUsers(f *testing.F) {
	f.Add("user:wheel", []byte(passwd), []byte(group))
	f.Add("", []byte(":::::::"), []byte("\x00"))
	f.Fuzz(func(t *testing.T, spec string, passwd, group []byte) {
		who, err := lookUp(spec, passwd, group)
		if err != nil {
			return
		}
		if who.uid < 0 || who.uid >= 1<<32-1 || who.gid < 0 || who.gid >= 1<<32-1 || len(who.groups) == 0 || int(who.groups[0]) != who.gid || who.home == "" || who.home[0] != '/' {
			t.Errorf("%q is %+v", spec, who)
		}
		if name, _, _ := strings.Cut(spec, ":"); who.name != "" && who.name != "root" && !bytes.Contains(passwd, []byte(name)) && name != "" {
			if _, ok := number(name); !ok {
				t.Errorf("%q is %+v, whom no line has", spec, who)
			}
		}
	})
}
