package egress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func compile(t testing.TB, f Floor, policies ...Policy) *Compiled {
	t.Helper()
	c, err := Compile(f, policies...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNone(t *testing.T) { // D51
	c := compile(t, Floor{}, None())
	for _, proto := range []Protocol{TCP, UDP, ICMP} {
		for _, a := range []string{"8.8.8.8", "2606:4700::1", "127.0.0.1", "192.168.0.1", "169.254.169.254"} {
			if v := c.Dial("", addr(a), 443, proto); v.Allowed {
				t.Errorf("%s %s: %v", a, proto, v)
			}
		}
	}
	if v := c.Name("example.org"); v.Allowed {
		t.Error(v)
	}
}

// TestFloorHolds dials what no policy opens, in every spelling, with all allowed.
func TestFloorHolds(t *testing.T) { // D52, D53, D54
	all := Policy{Default: Allow, Rules: []Rule{{Action: Allow, All: true}, {Action: Allow, Hosts: []string{"*", "metadata.google.internal"}, CIDRs: []string{"0.0.0.0/0", "::/0", "169.254.169.254"}}}}
	c := compile(t, Floor{}, all)
	for _, s := range []string{
		"169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]", "::ffff:a9fe:a9fe", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::",
		"fd00:ec2::254", "100.100.100.200", "168.63.129.16", "127.1", "0", "0.0.0.0", "[::]", "[::1]", "10.0.0.1", "224.0.0.251", "ff02::fb", "①⑥⑨.254.169.254",
	} {
		h, err := ParseHost(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{s, "", "rebinds.example"} { // by address, and a name that resolves to it
			v := c.Dial(name, h.Addr(), 80, TCP)
			if v.Allowed || v.By != ByFloor || !strings.HasPrefix(v.Reason, "blocked by policy: ") {
				t.Errorf("%q at %s: %+v", name, h, v)
			}
		}
		if v := c.Name(s); v.Allowed || v.By != ByRequest {
			t.Errorf("the name %q: %+v", s, v)
		}
	}
	for _, n := range []string{"localhost", "LOCALHOST.", "a.localhost", "metadata.google.internal", "Metadata.Google.Internal.", "metadata", "instance-data", "host.docker.internal", "host.containers.internal", "printer.local", "kubernetes.default.svc", "a.svc.cluster.local"} {
		if v := c.Name(n); v.Allowed || v.By != ByFloor {
			t.Errorf("%s: %+v", n, v)
		}
		if v := c.Dial(n, addr("8.8.8.8"), 80, TCP); v.Allowed || v.By != ByFloor {
			t.Errorf("%s: %+v", n, v)
		}
	}
	for _, port := range []uint16{53, 853} { // D57
		for _, proto := range []Protocol{TCP, UDP} {
			if v := c.Dial("", addr("8.8.8.8"), port, proto); v.Allowed || v.By != ByFloor {
				t.Errorf("%d: %+v", port, v)
			}
		}
	}

	open := compile(t, Floor{Except: []netip.Prefix{p("10.0.0.0/8")}, ExceptHosts: []string{"printer.local"}, BlockHosts: []string{"*.atoll.example"}, NameServers: true}, all)
	for _, v := range []Verdict{open.Dial("", addr("10.0.0.1"), 80, TCP), open.Name("printer.local"), open.Dial("", addr("8.8.8.8"), 53, UDP), open.Dial("printer.local", addr("10.0.0.1"), 80, TCP)} {
		if !v.Allowed {
			t.Errorf("%+v", v)
		}
	}
	for _, v := range []Verdict{open.Dial("printer.local", addr("192.168.0.1"), 80, TCP), open.Name("other.local"), open.Name("api.atoll.example")} {
		if v.Allowed || v.By != ByFloor {
			t.Errorf("%+v", v)
		}
	}
}

func TestDecisions(t *testing.T) {
	c := compile(t, Floor{}, Policy{Rules: []Rule{
		{Action: Deny, Hosts: []string{"bad.cdn.example"}},
		{Action: Allow, Hosts: []string{"*.cdn.example", "example.org", "bücher.example"}, Ports: []string{"443", "8000-8999"}, Protocol: TCP},
		{Action: Allow, CIDRs: []string{"9.9.9.0/24", "2620:fe::/48"}},
		{Action: Allow, All: true, Protocol: ICMP},
		{Action: Deny, All: true, Ports: []string{"25"}},
		{Action: Allow, Hosts: []string{"mail.example"}},
	}})
	for _, d := range []struct {
		name, addr string
		port       uint16
		proto      Protocol
		rule       int // or -1
		want       string
	}{
		{"example.org", "8.8.8.8", 443, TCP, 1, "allowed by rules[1]"},
		{"EXAMPLE.org.", "8.8.8.8", 8500, TCP, 1, "allowed by rules[1]"},
		{"xn--bcher-kva.example", "8.8.8.8", 443, TCP, 1, "allowed by rules[1]"},
		{"Bücher.example", "::ffff:8.8.8.8", 443, TCP, 1, "allowed by rules[1]"},
		{"a.b.cdn.example", "8.8.8.8", 443, TCP, 1, "allowed by rules[1]"},
		{"cdn.example", "8.8.8.8", 443, TCP, -1, "blocked by policy: host cdn.example is not on the allow list"},
		{"evilcdn.example", "8.8.8.8", 443, TCP, -1, "blocked by policy: host evilcdn.example is not on the allow list"},
		{"bad.cdn.example", "8.8.8.8", 443, TCP, 0, "blocked by policy: rules[0] denies host bad.cdn.example by tcp port 443"},
		{"x.bad.cdn.example", "8.8.8.8", 443, TCP, 1, "allowed by rules[1]"},
		{"www.example.org", "8.8.8.8", 443, TCP, -1, "blocked by policy: host www.example.org is not on the allow list"},
		{"example.org.evil.example", "8.8.8.8", 443, TCP, -1, "blocked by policy: host example.org.evil.example is not on the allow list"},
		{"example.org", "8.8.8.8", 80, TCP, -1, "blocked by policy: host example.org is on the allow list, but not for tcp port 80"},
		{"example.org", "8.8.8.8", 443, UDP, -1, "blocked by policy: host example.org is on the allow list, but not for udp port 443"},
		{"other.example", "9.9.9.9", 443, UDP, 2, "allowed by rules[2]"},
		{"", "9.9.9.9", 443, UDP, 2, "allowed by rules[2]"},
		{"", "::ffff:9.9.9.9", 443, UDP, 2, "allowed by rules[2]"},
		{"9.9.2313", "9.9.9.9", 443, UDP, 2, "allowed by rules[2]"},
		{"", "2620:fe::9", 1, TCP, 2, "allowed by rules[2]"},
		{"", "8.8.8.8", 443, TCP, -1, "blocked by policy: address 8.8.8.8 is not on the allow list for tcp port 443"},
		{"", "8.8.8.8", 0, ICMP, 3, "allowed by rules[3]"},
		{"bad.cdn.example", "8.8.8.8", 0, ICMP, 0, "blocked by policy: rules[0] denies host bad.cdn.example by icmp"},
		{"mail.example", "8.8.8.8", 25, TCP, 4, "blocked by policy: rules[4] denies host mail.example by tcp port 25"},
		{"mail.example", "8.8.8.8", 26, TCP, 5, "allowed by rules[5]"},
		{"a\x00.example", "8.8.8.8", 26, TCP, -1, `blocked by policy: host "a\x00.example" has a character '\x00', which no host has`},
		{"9.9.9.9", "9.9.9.8", 26, TCP, -1, "blocked by policy: 9.9.9.9 is not 9.9.9.8"},
		{"mail.example", "8.8.8.8", 0, TCP, -1, "blocked by policy: 0 is not a port"},
		{"mail.example", "8.8.8.8", 1, "sctp", -1, `blocked by policy: "sctp" is none of tcp, udp, icmp`},
		{"mail.example", "10.0.0.1", 1, TCP, -1, "blocked by policy: host mail.example resolves to 10.0.0.1, a private address, which no rule can allow"},
	} {
		v := c.Dial(d.name, addr(d.addr), d.port, d.proto)
		if v.Reason != d.want || v.Rule != d.rule || v.Allowed != strings.HasPrefix(d.want, "allowed") {
			t.Errorf("%v:\n got %+v", d, v)
		}
	}
	for name, want := range map[string]bool{
		"example.org": true, "Example.ORG.": true, "a.cdn.example": true, "cdn.example": true, "bad.cdn.example": false, "mail.example": true,
		// rules[3] opens ICMP to all, by name as well.
		"other.example": true,
		"a b":           false, "8.8.8.8": false, "": false, strings.Repeat("a", 64) + ".cdn.example": false,
	} {
		if v := c.Name(name); v.Allowed != want {
			t.Errorf("%q: %+v", name, v)
		}
	}
}

func TestNamesAreNotOpenedByCIDRs(t *testing.T) { // D57
	c := compile(t, Floor{}, Policy{Rules: []Rule{{Action: Allow, CIDRs: []string{"9.9.9.0/24"}}, {Action: Allow, Hosts: []string{"a.example"}}}})
	for name, want := range map[string]bool{"a.example": true, "secret-as-a-label.b.example": false} {
		if v := c.Name(name); v.Allowed != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
	every := compile(t, Floor{}, Policy{Default: Allow, Rules: []Rule{{Action: Deny, CIDRs: []string{"0.0.0.0/0", "::/0"}}}})
	if v := every.Name("a.example"); v.Allowed {
		t.Errorf("a name resolves, and no address may be dialled: %+v", v)
	}
	internet, err := AllowDeny([]string{"a.example"}, []string{"0.0.0.0/0"}, true)
	if err != nil {
		t.Fatal(err)
	}
	e2b := compile(t, Floor{}, internet)
	if !e2b.Name("a.example").Allowed || e2b.Name("b.example").Allowed || e2b.Dial("", addr("2606:4700::1"), 443, TCP).Allowed {
		t.Error("0.0.0.0/0 is not the whole internet")
	}
}

func TestRestrict(t *testing.T) {
	profile, err := AllowOnly("*.a.example", "9.9.9.0/24")
	if err != nil {
		t.Fatal(err)
	}
	request, err := Ordered(Allow, Target{Deny, "x.a.example"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := compile(t, Floor{}, profile).Restrict(request)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Verdict{
		"b.a.example": {true, ByDefault, 1, -1, "allowed by default"},
		"x.a.example": {false, ByRule, 1, 0, "blocked by policy: rules[0] denies host x.a.example by tcp port 443"},
		"b.example":   {false, ByDefault, 0, -1, "blocked by policy: host b.example is not on the allow list"}, // the request cannot widen
	} {
		if v := c.Dial(name, addr("8.8.8.8"), 443, TCP); v != want {
			t.Errorf("%s: %+v", name, v)
		}
		if v := c.Name(name); v.Allowed != want.Allowed {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if ps := c.Policies(); len(ps) != 2 || ps[0].Revision() != profile.Revision() || ps[1].Revision() != request.Revision() {
		t.Error(ps)
	}
	_, err = c.Restrict(Policy{Rules: []Rule{{Action: "x"}}})
	wantError(t, err, "invalid", "rules[0].action")
	_, err = Compile(Floor{}, profile, Policy{Rules: []Rule{{Action: "x"}}})
	wantError(t, err, "invalid", "policies[1].rules[0].action")
	_, err = Compile(Floor{})
	wantError(t, err, "invalid", "policies")
}

func TestAgrees(t *testing.T) { // D55, D56
	c := compile(t, Floor{}, Policy{Default: Allow, Rules: []Rule{{Action: Allow, Hosts: []string{"good.example"}}, {Action: Deny, Hosts: []string{"*.bad.example"}}, {Action: Deny, All: true, Protocol: UDP}}})
	for _, d := range []struct {
		dialled, said string
		want          bool
	}{
		{"good.example", "good.example", true},
		{"good.example", "GOOD.example.", true},
		{"Bücher.example", "xn--bcher-kva.example", true},
		{"good.example", "", true},
		{"good.example", "other.example", false}, // fronting, though either is allowed
		{"good.example", "good.example.evil.example", false},
		{"good.example", "good.example\x00.evil.example", false},
		{"good.example", "good.example\r\nHost: x", false},
		{"good.example", "good%2eexample", false},
		{"good.example", "8.8.8.8", false},
		{"8.8.8.8", "8.8.8.8", true},
		{"8.8.8.8", "0x08080808", true},
		{"8.8.8.8", "8.8.4.4", false},
		{"8.8.8.8", "good.example", true},
		{"8.8.8.8", "any.example", true},
		{"8.8.8.8", "x.bad.example", false},
		{"8.8.8.8", "metadata.google.internal", false},
		{"8.8.8.8", "localhost", false},
		{"[2606:4700::1]", "2606:4700::1", true},
		{"", "good.example", false},
	} {
		if v := c.Agrees(d.dialled, d.said); v.Allowed != d.want || v.Reason == "" {
			t.Errorf("%q, %q: %+v", d.dialled, d.said, v)
		}
	}
}

// A naive decides by reading the policy as its documentation has it.
func naive(p Policy, name string, a netip.Addr, port uint16, proto Protocol) (bool, int) {
	for i, r := range p.Rules {
		ok := r.All
		for _, h := range r.Hosts {
			if name != "" && (h == "*" || h == name || strings.HasPrefix(h, "*.") && strings.HasSuffix(name, h[1:])) {
				ok = true
			}
		}
		for _, s := range r.CIDRs {
			if !strings.Contains(s, "/") {
				s += map[bool]string{true: "/128", false: "/32"}[strings.Contains(s, ":")]
			}
			ok = ok || netip.MustParsePrefix(s).Contains(a)
		}
		if r.Protocol != Any && r.Protocol != proto {
			ok = false
		}
		if len(r.Ports) > 0 {
			in := false
			for _, s := range r.Ports {
				var first, last uint16
				if n, _ := fmt.Sscanf(s, "%d-%d", &first, &last); n == 1 {
					last = first
				}
				in = in || first <= port && port <= last
			}
			ok = ok && in && proto != ICMP
		}
		if ok {
			return r.Action == Allow, i
		}
	}
	return p.Default == Allow, -1
}

var (
	someHosts = []string{"a.example", "b.a.example", "c.b.a.example", "example", "org", "x-a.example", "deep.x.y.z.org"}
	someAddrs = []string{"8.8.8.8", "8.8.4.4", "9.9.9.9", "1.1.1.1", "2606:4700::1", "2606:4700::2", "2a00::1", "223.255.255.255"}
)

func pick[T any](r *rand.Rand, s []T) T { return s[r.IntN(len(s))] }

func randomPolicy(r *rand.Rand) Policy {
	p := Policy{Default: pick(r, []Action{Allow, Deny})}
	for range r.IntN(12) {
		u := Rule{Action: pick(r, []Action{Allow, Deny}), Protocol: pick(r, []Protocol{Any, Any, TCP, UDP, ICMP})}
		for range r.IntN(3) {
			u.Hosts = append(u.Hosts, pick(r, []string{"", "", "*."})+pick(r, someHosts))
		}
		if r.IntN(15) == 0 {
			u.Hosts = append(u.Hosts, "*")
		}
		for range r.IntN(3) {
			a := addr(pick(r, someAddrs))
			pre, _ := a.Prefix(r.IntN(a.BitLen() + 1))
			u.CIDRs = append(u.CIDRs, pre.String())
		}
		u.All = u.Hosts == nil && u.CIDRs == nil
		if u.Protocol != ICMP && r.IntN(3) == 0 {
			first := 1 + r.IntN(6)
			u.Ports = []string{fmt.Sprint(first), fmt.Sprintf("%d-%d", first+2, first+2+r.IntN(4))}
		}
		p.Rules = append(p.Rules, u)
	}
	return p
}

func TestDialIsAsDocumented(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 5))
		p, q := randomPolicy(r), randomPolicy(r)
		p, err := p.Normal()
		if err != nil {
			t.Fatal(err)
		}
		one, two := compile(t, Floor{}, p), compile(t, Floor{}, p, q)
		for range 60 {
			name, a, port, proto := pick(r, append(slices.Clone(someHosts), "")), addr(pick(r, someAddrs)), uint16(1+r.IntN(12)), pick(r, []Protocol{TCP, UDP, ICMP})
			want, rule := naive(p, name, a, port, proto)
			v := one.Dial(name, a, port, proto)
			if v.Allowed != want || v.Rule != rule {
				t.Fatalf("seed %d: %q %s %d %s: got %+v, want %v by %d of\n%v %v", seed, name, a, port, proto, v, want, rule, p.Default, p.Rules)
			}
			if a.Is4() && one.Dial(name, netip.AddrFrom16(a.As16()), port, proto) != v {
				t.Fatalf("seed %d: %s is decided otherwise as mapped", seed, a)
			}
			more, _ := naive(q, name, a, port, proto)
			if got := two.Dial(name, a, port, proto).Allowed; got != (want && more) {
				t.Fatalf("seed %d: both: got %v, want %v and %v", seed, got, want, more)
			}
			// A name that could be dialled by a rule for names can be resolved.
			if v.Allowed && name != "" && (rule < 0 || p.Rules[rule].All || p.Rules[rule].CIDRs == nil) && !one.Name(name).Allowed {
				t.Fatalf("seed %d: %s may be dialled (%+v) and not resolved: %+v\n%v", seed, name, v, one.Name(name), p.Rules)
			}
			// Its own name agrees with it, another never does.
			if name != "" && (!one.Agrees(name, strings.ToUpper(name)).Allowed || one.Agrees(name, "x."+name).Allowed) {
				t.Fatalf("seed %d: %s does not agree with itself alone", seed, name)
			}
		}
	}
}

// FuzzDial holds the floor, whatever is dialled, and addresses to one decision
// in all their spellings.
func FuzzDial(f *testing.F) {
	f.Add("example.org", []byte{8, 8, 8, 8}, uint16(443), "tcp")
	f.Add("0x7f.1", []byte{127, 0, 0, 1}, uint16(80), "udp")
	f.Add("", []byte{0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 169, 254, 169, 254}, uint16(80), "icmp")
	f.Add("localhost", []byte{0x20, 2, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, uint16(53), "tcp")
	open := compile(f, Floor{}, Public())
	nat := compile(f, Floor{Except: []netip.Prefix{nat64}}, Public())
	some, err := AllowOnly("*.example.org", "8.8.0.0/16", "2606:4700::/32")
	if err != nil {
		f.Fatal(err)
	}
	few := compile(f, Floor{}, some)
	f.Fuzz(func(t *testing.T, name string, ip []byte, port uint16, protocol string) {
		a, _ := netip.AddrFromSlice(ip)
		proto := Protocol(protocol)
		v := open.Dial(name, a, port, proto)
		if v.Reason == "" || strings.ContainsAny(v.Reason, "\x00\r\n") || len(v.Reason) > 1000 {
			t.Fatalf("the reason is %q", v.Reason)
		}
		_, blocked := Floor{}.Blocks(a)
		if v.Allowed && (blocked || (port == 53 || port == 853) && proto != ICMP || !a.Unmap().IsGlobalUnicast() || a.Unmap().IsPrivate()) {
			t.Fatalf("%q %s %d %s: %+v", name, a, port, proto, v)
		}
		if few.Dial(name, a, port, proto).Allowed && !v.Allowed {
			t.Fatalf("fewer rules allow more: %q %s %d %s", name, a, port, proto)
		}
		if v.Allowed && name != "" && !open.Name(name).Allowed {
			if h, err := ParseHost(name); err != nil || h.Name() != "" {
				t.Fatalf("%q may be dialled and not resolved", name)
			}
		}
		if u := a.Unmap(); u.Is4() {
			four := u.As4()
			mapped := netip.AddrFrom16(u.As16())
			six := nat64.Addr().As16()
			copy(six[12:], four[:])
			if w := open.Dial(name, mapped, port, proto); w.Allowed != v.Allowed {
				t.Fatalf("%s: %+v, as mapped %+v", u, v, w)
			}
			if w := nat.Dial("", netip.AddrFrom16(six), port, proto); w.Allowed != nat.Dial("", u, port, proto).Allowed {
				t.Fatalf("%s: by NAT64 %+v", u, w)
			}
			for _, e := range []netip.Addr{netip.AddrFrom16(six), netip.AddrFrom16([16]byte{0x20, 2, four[0], four[1], four[2], four[3]})} {
				// Where IPv6 is open, what IPv4 it leads to decides.
				if _, got := (Floor{Except: []netip.Prefix{p("::/0")}}).Blocks(e); got != blocked {
					t.Fatalf("%s is not decided as %s", e, u)
				}
			}
		}
	})
}

// large is a policy of 4000 rules, of which few match what is dialled.
func large() Policy {
	p := None()
	for i := range 1000 {
		p.Rules = append(p.Rules,
			Rule{Action: Allow, Hosts: []string{fmt.Sprintf("h%d.example", i)}},
			Rule{Action: Allow, Hosts: []string{fmt.Sprintf("*.w%d.example", i)}},
			Rule{Action: Deny, CIDRs: []string{fmt.Sprintf("9.%d.%d.0/24", i/250, i%250)}},
			Rule{Action: Allow, CIDRs: []string{fmt.Sprintf("2606:%x::/32", i)}, Ports: []string{"443"}})
	}
	return p
}

func TestAllowingCostsNoMemory(t *testing.T) {
	c := compile(t, Floor{}, large(), Public())
	a, b := addr("8.8.8.8"), addr("2606:3e7::1")
	n := testing.AllocsPerRun(100, func() {
		if !c.Dial("h999.example", a, 443, TCP).Allowed || !c.Dial("a.b.w999.example", b, 1, UDP).Allowed || !c.Dial("", b, 443, TCP).Allowed ||
			!c.Name("h1.example").Allowed || !c.Agrees("h1.example", "h1.example").Allowed {
			t.Error("denied")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDial(b *testing.B) {
	c := compile(b, Floor{}, Public(), large())
	for _, d := range []struct{ what, name, addr string }{{"exact", "h999.example", "8.8.8.8"}, {"wildcard", "a.b.c.w999.example", "2a00::1"}, {"address", "", "2606:3e7::1"}} {
		a := addr(d.addr)
		b.Run(d.what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !c.Dial(d.name, a, 443, TCP).Allowed {
					b.Fatal("denied")
				}
			}
		})
	}
}

func BenchmarkName(b *testing.B) {
	c := compile(b, Floor{}, Public(), large())
	b.ReportAllocs()
	for b.Loop() {
		if !c.Name("a.b.c.w999.example").Allowed {
			b.Fatal("denied")
		}
	}
}
