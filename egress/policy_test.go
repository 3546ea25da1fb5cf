package egress

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/atoll-run/atoll/sandbox"
)

func wantError(t *testing.T, err error, kind sandbox.Kind, field string) {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Field != field {
		t.Errorf("got %v, want %s with field %q", err, kind, field)
	}
}

func TestNormal(t *testing.T) {
	in := Policy{Rules: []Rule{
		{Action: Allow, Hosts: []string{"*.B.example.", "a.example", "A.example"}, CIDRs: []string{"8.8.8.8/32", "8.8.8.8", "9.9.9.9/24", "2001:DB8::1/32"}, Ports: []string{"8000-8080", "443", "8081", "8050"}, Protocol: "any"},
		{Action: Deny, All: true, Protocol: ICMP},
		{Action: Deny, Preset: "resolvers"},
	}}
	want := Policy{Default: Deny, Rules: []Rule{
		{Action: Allow, Hosts: []string{"*.b.example", "a.example"}, CIDRs: []string{"8.8.8.8", "9.9.9.0/24", "2001:db8::/32"}, Ports: []string{"443", "8000-8081"}},
		{Action: Deny, All: true, Protocol: ICMP},
		{Action: Deny, Preset: "resolvers"},
	}}
	got, err := in.Normal()
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Fatal(err, d)
	}
	if in.Revision() != want.Revision() || len(want.Revision()) != 16 || in.Revision() == (Policy{}).Revision() {
		t.Error("revisions:", in.Revision(), want.Revision(), Policy{}.Revision())
	}
	if err := Differ(in, want); err != nil {
		t.Error(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse(text)
	if d := cmp.Diff(got, back); err != nil || d != "" {
		t.Error(err, d)
	}
}

func TestValidate(t *testing.T) {
	many := func(n int, s string) []string { return slices.Repeat([]string{s}, n) }
	for _, c := range []struct {
		rule  Rule
		field string // below rules[1]
	}{
		{Rule{}, ".action"},
		{Rule{Action: "ALLOW", All: true}, ".action"},
		{Rule{Action: Allow}, ""},
		{Rule{Action: Allow, Ports: []string{"80"}}, ""},
		{Rule{Action: Allow, Hosts: []string{}}, ".hosts"},
		{Rule{Action: Allow, All: true, CIDRs: []string{}}, ".cidrs"},
		{Rule{Action: Allow, All: true, Ports: []string{}}, ".ports"},
		{Rule{Action: Allow, All: true, Hosts: []string{"a"}}, ""},
		{Rule{Action: Allow, Preset: "a", CIDRs: []string{"8.8.8.8"}}, ""},
		{Rule{Action: Allow, Preset: "A b"}, ".preset"},
		{Rule{Action: Allow, All: true, Protocol: "sctp"}, ".protocol"},
		{Rule{Action: Allow, All: true, Protocol: ICMP, Ports: []string{"1"}}, ".ports"},
		{Rule{Action: Allow, All: true, Ports: []string{"0"}}, ".ports"},
		{Rule{Action: Allow, All: true, Ports: []string{"65536"}}, ".ports"},
		{Rule{Action: Allow, All: true, Ports: []string{"9-1"}}, ".ports"},
		{Rule{Action: Allow, All: true, Ports: []string{"1-"}}, ".ports"},
		{Rule{Action: Allow, All: true, Ports: []string{"1-2-3"}}, ".ports"},
		{Rule{Action: Allow, All: true, Ports: many(MaxPorts+1, "1")}, ".ports"},
		{Rule{Action: Allow, Hosts: []string{"a.example", "10.0.0.1"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{"0x7f.1"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{"*.0x7f.1"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{"a.*"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{"*a.example"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{"*.*.example"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{".example"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{"https://a.example"}}, ".hosts"},
		{Rule{Action: Allow, Hosts: []string{""}}, ".hosts"},
		{Rule{Action: Allow, CIDRs: []string{"10.0.0.0/33"}}, ".cidrs"},
		{Rule{Action: Allow, CIDRs: []string{"10.0.0"}}, ".cidrs"},
		{Rule{Action: Allow, CIDRs: []string{"0x7f.1"}}, ".cidrs"},
		{Rule{Action: Allow, CIDRs: []string{"fe80::1%eth0"}}, ".cidrs"},
		{Rule{Action: Allow, CIDRs: []string{"::ffff:8.8.8.8"}}, ".cidrs"},
		{Rule{Action: Allow, CIDRs: []string{"::ffff:8.8.8.0/120"}}, ".cidrs"},
		{Rule{Action: Allow, CIDRs: []string{"64:ff9b::8.8.8.8/128"}}, ".cidrs"},
	} {
		wantError(t, Policy{Rules: []Rule{{Action: Deny, All: true}, c.rule}}.Validate(), sandbox.Invalid, "rules[1]"+c.field)
	}
	wantError(t, Policy{Default: "maybe"}.Validate(), sandbox.Invalid, "default")
	wantError(t, Policy{Rules: make([]Rule, MaxRules+1)}.Validate(), sandbox.Invalid, "rules")
	wantError(t, Policy{Rules: []Rule{{Action: Allow, Hosts: many(MaxTargets+1, "a")}}}.Validate(), sandbox.Invalid, "rules")
}

func TestParseIsStrict(t *testing.T) {
	for text, field := range map[string]string{
		``:                                     "",
		`null`:                                 "",
		`[]`:                                   "",
		`{} {}`:                                "",
		`{"rules":[{}`:                         "rules[0]",
		`{"Default":"allow"}`:                  "",
		`{"default":"deny","default":"allow"}`: "default",
		`{"rules":null}`:                       "rules",
		`{"rules":[null]}`:                     "rules[0]",
		`{"rules":[{"action":"allow","all":true,"host":["a"]}]}`:                     "rules[0]",
		`{"rules":[{"action":"allow","all":true,"action":"deny"}]}`:                  "rules[0].action",
		`{"rules":[{"action":"allow","hosts":[]}]}`:                                  "rules[0].hosts",
		`{"rules":[{"action":"allow","hosts":["a b"]}]}`:                             "rules[0].hosts",
		`{"rules":[{"action":"allow","all":true},{"action":"allow","cidrs":["x"]}]}`: "rules[1].cidrs",
	} {
		_, err := Parse([]byte(text))
		if text == `{"rules":[{}` {
			if err == nil {
				t.Errorf("%s passes", text)
			}
			continue
		}
		wantError(t, err, sandbox.Invalid, field)
	}
	for _, text := range []string{`{"rules":[{"action":"allow","hosts":"a"}]}`, `{"rules":[{"action":1}]}`, `{"default":7}`, strings.Repeat(" ", MaxSize) + "{}"} {
		if _, err := Parse([]byte(text)); sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	if got, err := Parse([]byte(` {"default":"allow","rules":[{"action":"deny","hosts":["B.example"],"ports":["1-3"],"protocol":"udp"}]} `)); err != nil || got.Rules[0].String() != "deny b.example udp 1-3" {
		t.Error(got, err)
	}
}

func TestMergeAndWithout(t *testing.T) {
	p, err := Ordered(Deny, Target{Allow, "a.example"}, Target{Allow, "*.b.example"}, Target{Deny, "8.8.8.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Merge(Rule{Action: Deny, Hosts: []string{"A.example"}}, Rule{Action: Allow, Hosts: []string{"c.example"}})
	if err != nil || fmt.Sprint(got.Rules) != "[deny a.example allow c.example allow *.b.example deny 8.8.8.0/24]" {
		t.Error(got.Rules, err)
	}
	_, err = p.Merge(Rule{Action: Deny, Hosts: []string{"a b"}})
	wantError(t, err, sandbox.Invalid, "rules[0].hosts")

	got.Rules[1].Hosts = append(got.Rules[1].Hosts, "d.example")
	got, n, err := got.Without("C.example.", "8.8.8.9/24", "*.b.example", "nobody.example")
	if err != nil || n != 3 || fmt.Sprint(got.Rules) != "[deny a.example allow d.example]" {
		t.Error(got.Rules, n, err)
	}
	if got, n, err = got.Without("a.example", "d.example"); n != 2 || got.Rules != nil || err != nil {
		t.Error(got.Rules, n, err)
	}
	_, _, err = p.Without("a.example", "a b")
	wantError(t, err, sandbox.Invalid, "targets[1]")
}

func TestUniform(t *testing.T) {
	some, err := AllowOnly("a.example")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p    Policy
		want Action
		is   bool
	}{
		{Policy{}, Deny, true}, {None(), Deny, true}, {Public(), Allow, true}, {some, "", false},
		{Policy{Default: Allow, Rules: []Rule{{Action: Deny, All: true}}}, Deny, true},
		{Policy{Default: Allow, Rules: []Rule{{Action: Deny, All: true, Protocol: UDP}}}, "", false},
		{Policy{Default: Deny, Rules: []Rule{{Action: Deny, Hosts: []string{"a"}}}}, Deny, true},
	} {
		if got, is := c.p.Uniform(); got != c.want || is != c.is {
			t.Errorf("%v: got %s, %v", c.p, got, is)
		}
	}
}

func TestDiffer(t *testing.T) {
	a, _ := AllowOnly("a.example", "b.example")
	b, _ := AllowOnly("a.example", "8.8.8.8")
	err := Differ(a, b)
	wantError(t, err, sandbox.Conflict, "rules[1]")
	if want := "rules[1]: the sandbox has allow b.example, the request allow 8.8.8.8"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	wantError(t, Differ(a, Public()), sandbox.Conflict, "default")
	wantError(t, Differ(a, None()), sandbox.Conflict, "rules[0]")
}

func TestConversions(t *testing.T) {
	for _, c := range []struct {
		allow, deny []string
		internet    bool
		field, want string
	}{
		{nil, nil, true, "", "allow []"},
		{nil, nil, false, "", "deny []"},
		{[]string{"1.1.1.1", "8.8.8.0/24"}, []string{"8.8.0.0/16"}, true, "", "allow [allow 1.1.1.1 allow 8.8.8.0/24 deny 8.8.0.0/16]"},
		{[]string{"*.a.example"}, []string{"0.0.0.0/0"}, true, "", "deny [allow *.a.example deny 0.0.0.0/0]"},
		{[]string{"*"}, nil, false, "", "deny [allow *]"},
		{[]string{"a.example"}, []string{"8.8.8.8"}, true, "allow", ""},
		{[]string{"1.1.1.1", "a b"}, nil, true, "allow[1]", ""},
		{nil, []string{"a.example"}, true, "deny[0]", ""},
	} {
		got, err := AllowDeny(c.allow, c.deny, c.internet)
		if c.field != "" {
			wantError(t, err, sandbox.Invalid, c.field)
		} else if s := fmt.Sprint(got.Default, " ", got.Rules); err != nil || s != c.want {
			t.Errorf("%v: got %s, %v, want %s", c, s, err, c.want)
		}
	}
	got, err := Ordered("", Target{"", "a.example"}, Target{Allow, "2001:4860::/32"})
	if err != nil || fmt.Sprint(got.Default, " ", got.Rules) != "deny [deny a.example allow 2001:4860::/32]" {
		t.Error(got, err)
	}
	_, err = Ordered("", Target{Allow, "a"}, Target{Allow, "10.0.0.0/99"})
	wantError(t, err, sandbox.Invalid, "targets[1]")
	_, err = Ordered("no")
	wantError(t, err, sandbox.Invalid, "default")
	_, err = AllowOnly("a", "::ffff:1.1.1.1")
	wantError(t, err, sandbox.Invalid, "allow[1]")
}

func TestPresets(t *testing.T) {
	ps := Builtin()
	if err := ps.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, pre := range ps {
		if pre.About == "" {
			t.Errorf("%s has no About", name)
		}
		if name == "resolvers" {
			continue
		}
		for _, h := range pre.Hosts {
			if strings.Contains(h, "*") {
				t.Errorf("%s opens %s, below which others may have a place", name, h)
			}
		}
	}
	ps["corp"] = Preset{Hosts: []string{"registry.corp.example"}}
	p, err := ps.Policy("python", "corp")
	if err != nil {
		t.Fatal(err)
	}
	p.Rules = append(p.Rules, Rule{Action: Allow, Preset: "git", Ports: []string{"22"}, Protocol: TCP})
	_, err = Compile(Floor{}, p)
	wantError(t, err, sandbox.Invalid, "rules[0].preset")
	if p, err = ps.Expand(p); err != nil {
		t.Fatal(err)
	}
	c := compile(t, Floor{}, p)
	for _, d := range []struct {
		name string
		port uint16
		want bool
	}{{"pypi.org", 443, true}, {"pypi.org", 22, false}, {"evil.pypi.org", 443, false}, {"registry.corp.example", 9999, true}, {"github.com", 22, true}, {"github.com", 443, false}} {
		if v := c.Dial(d.name, addr("8.8.8.8"), d.port, TCP); v.Allowed != d.want {
			t.Errorf("%v: %v", d, v)
		}
	}
	_, err = ps.Policy("python", "cobol")
	wantError(t, err, sandbox.NotExist, "presets[1]")
	_, err = ps.Policy("python", "public")
	wantError(t, err, sandbox.Invalid, "presets[1]")
	if p, err := ps.Policy("public"); err != nil || p.Default != Allow {
		t.Error(p, err)
	}
	if p, err := ps.Policy("none"); err != nil || p.Default != Deny {
		t.Error(p, err)
	}
	_, err = ps.Expand(Policy{Rules: []Rule{{Action: Allow, Preset: "cobol"}}})
	wantError(t, err, sandbox.NotExist, "rules[0].preset")
	wantError(t, Presets{"x": {Hosts: []string{"a b"}}}.Validate(), sandbox.Invalid, "x.hosts")
	wantError(t, Presets{"public": {All: true}}.Validate(), sandbox.Invalid, "")
}

// FuzzParse holds what Parse takes to one form that comes back as it was.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"default":"allow","rules":[{"action":"deny","hosts":["B.example","*"],"ports":["1-3"],"protocol":"any"}]}`))
	f.Add([]byte(`{"rules":[{"action":"allow","cidrs":["10.0.0.1/8","::/0"]},{"action":"deny","all":true},{"action":"allow","preset":"git"}]}`))
	f.Add([]byte(`{"rules":[{"action":"allow","hosts":["*.bücher.example"],"hosts":null}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err != nil {
			if sandbox.KindOf(err) != sandbox.Invalid {
				t.Fatal(err)
			}
			return
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if d := cmp.Diff(p, again); err != nil || d != "" || p.Revision() != again.Revision() {
			t.Fatal(err, d)
		}
		if p, err = Builtin().Expand(p); err == nil {
			if _, err := Compile(Floor{}, p); err != nil {
				t.Fatal(err)
			}
		}
	})
}
