package egress

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A Verdict is a decision and its reason.
type Verdict struct {
	Allowed bool
	By      By

	// Policy and Rule say which rule decided: their index among the policies
	// that were compiled, and in that policy. Rule is -1 where none did. What all
	// policies allow is put down to the last.
	Policy, Rule int

	// Reason is a line fit for a model or a tenant: "blocked by policy: host
	// example.org is not on the allow list". It names no host of the operator's.
	Reason string
}

// By says what decided.
type By string

const (
	ByRule    By = "rule"
	ByDefault By = "default"
	ByFloor   By = "floor"   // the Floor, which no policy opens
	ByRequest By = "request" // what was asked for is no host, port or protocol, or contradicts itself
)

// A Compiled decides by a Floor and policies, all of which must allow. It does
// not change, and is safe for concurrent use. Decisions that allow cost well
// below a microsecond and no memory.
type Compiled struct {
	floor         Floor
	except, block hosts
	fixed         *hosts // specialHosts
	layers        []*layer
}

// fixedHosts is specialHosts, to be looked up in.
var fixedHosts = func() *hosts {
	h := new(hosts)
	for _, s := range specialHosts {
		h.add(s.host, s.why)
	}
	return h
}()

// A layer is a compiled Policy.
type layer struct {
	policy Policy
	allow  bool // the default
	rules  []rule

	// Rules by target, as ascending indices.
	all, anyName []int32
	exact        map[string][]int32
	below        map[string][]int32 // without "*."
	cidrs4       []byLength
	cidrs6       []byLength
}

// byLength are the rules of all prefixes of one length.
type byLength struct {
	bits  int
	rules map[netip.Addr][]int32
}

type rule struct {
	allow    bool
	protocol Protocol
	ports    []portRange
	yes, no  string // how a Reason begins
}

// Compile makes floor and policies fit for deciding. The first policy is an
// operator's, later ones restrict it. It fails if one of them is not valid, or
// has presets by name (see [Presets.Expand]), or if there is none; where there
// are several, a Field begins with "policies[1].".
func Compile(floor Floor, policies ...Policy) (*Compiled, error) {
	if err := floor.Validate(); err != nil {
		return nil, at("floor", err)
	}
	if len(policies) == 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "policies", "there is none")
	}
	c := &Compiled{fixed: fixedHosts, floor: Floor{
		Except:      slices.Clone(floor.Except),
		ExceptHosts: slices.Clone(floor.ExceptHosts),
		Block:       slices.Clone(floor.Block),
		BlockHosts:  slices.Clone(floor.BlockHosts),
		NameServers: floor.NameServers,
	}}
	for _, l := range []struct {
		from []string
		to   *hosts
	}{{floor.ExceptHosts, &c.except}, {floor.BlockHosts, &c.block}} {
		for _, h := range l.from {
			pat, err := pattern(h)
			if err != nil {
				return nil, at("floor", err)
			}
			l.to.add(pat, "closed by the operator")
		}
	}
	for i, p := range policies {
		l, err := newLayer(p)
		if err != nil && len(policies) > 1 {
			err = at(fmt.Sprintf("policies[%d]", i), err)
		}
		if err != nil {
			return nil, err
		}
		c.layers = append(c.layers, l)
	}
	return c, nil
}

// Restrict returns what allows what c and p both allow. It fails as Compile
// does with p alone.
func (c *Compiled) Restrict(p Policy) (*Compiled, error) {
	l, err := newLayer(p)
	if err != nil {
		return nil, err
	}
	r := *c
	r.layers = append(slices.Clip(slices.Clone(c.layers)), l)
	return &r, nil
}

// Policies returns the normal forms of what c was compiled from. They are the
// caller's.
func (c *Compiled) Policies() []Policy {
	var all []Policy
	for _, l := range c.layers {
		p := l.policy
		p.Rules = slices.Clone(p.Rules)
		for i, r := range p.Rules {
			p.Rules[i].Hosts, p.Rules[i].CIDRs, p.Rules[i].Ports = slices.Clone(r.Hosts), slices.Clone(r.CIDRs), slices.Clone(r.Ports)
		}
		all = append(all, p)
	}
	return all
}

func newLayer(p Policy) (*layer, error) {
	p, err := p.Normal()
	if err != nil {
		return nil, err
	}
	l := &layer{policy: p, allow: p.Default == Allow, exact: map[string][]int32{}, below: map[string][]int32{}}
	for i, r := range p.Rules {
		if r.Preset != "" {
			return nil, sandbox.Errorf(sandbox.Invalid, fmt.Sprintf("rules[%d].preset", i), "nobody said what %s stands for", quote(r.Preset))
		}
		ports, err := parsePorts(r.Ports)
		if err != nil {
			return nil, at(fmt.Sprintf("rules[%d]", i), err)
		}
		l.rules = append(l.rules, rule{
			allow: r.Action == Allow, protocol: r.Protocol, ports: ports,
			yes: fmt.Sprintf("allowed by rules[%d]", i),
			no:  fmt.Sprintf("blocked by policy: rules[%d] denies ", i),
		})
		n := int32(i)
		if r.All {
			l.all = append(l.all, n)
		}
		for _, h := range r.Hosts {
			if h == "*" {
				l.anyName = append(l.anyName, n)
			} else if rest, ok := strings.CutPrefix(h, "*."); ok {
				l.below[rest] = append(l.below[rest], n)
			} else {
				l.exact[h] = append(l.exact[h], n)
			}
		}
		every4, every6 := false, false
		for _, s := range r.CIDRs {
			pre, err := parseCIDR(s)
			if err != nil {
				return nil, at(fmt.Sprintf("rules[%d].cidrs", i), err)
			}
			if pre.Addr().Is4() {
				l.cidrs4 = addPrefix(l.cidrs4, pre, n)
				every4 = every4 || pre.Bits() == 0
			} else {
				l.cidrs6 = addPrefix(l.cidrs6, pre, n)
				every6 = every6 || pre.Bits() == 0
			}
		}
		if every4 && every6 && !r.All { // whatever a name resolves to
			l.all = append(l.all, n)
		}
	}
	return l, nil
}

func addPrefix(to []byLength, pre netip.Prefix, n int32) []byLength {
	i, ok := slices.BinarySearchFunc(to, pre.Bits(), func(b byLength, bits int) int { return cmp.Compare(b.bits, bits) })
	if !ok {
		to = slices.Insert(to, i, byLength{pre.Bits(), map[netip.Addr][]int32{}})
	}
	to[i].rules[pre.Addr()] = append(to[i].rules[pre.Addr()], n)
	return to
}

// A query is what rules are compared with.
type query struct {
	name     string
	addr     netip.Addr
	port     uint16
	protocol Protocol
	// resolve: no address, port or protocol is known yet. A rule that denies
	// some of them only does not deny the name.
	resolve bool
}

func (r *rule) takes(q *query) bool {
	if q.resolve {
		return r.allow || r.protocol == Any && len(r.ports) == 0
	}
	if r.protocol != Any && r.protocol != q.protocol {
		return false
	}
	if len(r.ports) == 0 {
		return true
	}
	if q.protocol == ICMP {
		return false
	}
	for _, p := range r.ports {
		if p.first <= q.port && q.port <= p.last {
			return true
		}
	}
	return false
}

// first returns the first rule of list that takes q, if it comes before best.
func (l *layer) first(list []int32, best int, q *query) int {
	for _, i := range list {
		if int(i) >= best {
			break
		}
		if l.rules[i].takes(q) {
			return int(i)
		}
	}
	return best
}

// match returns the first rule that q matches, or -1.
func (l *layer) match(q *query) int {
	none := len(l.rules)
	best := l.first(l.all, none, q)
	if q.name != "" {
		best = l.named(best, q)
	}
	if !q.resolve {
		lengths := l.cidrs6
		if q.addr.Is4() {
			lengths = l.cidrs4
		}
		for i := range lengths {
			pre, err := q.addr.Prefix(lengths[i].bits)
			if err != nil {
				break
			}
			best = l.first(lengths[i].rules[pre.Addr()], best, q)
		}
	}
	if best == none {
		return -1
	}
	return best
}

// named returns the first rule before best that has q's name among its hosts.
func (l *layer) named(best int, q *query) int {
	best = l.first(l.anyName, best, q)
	best = l.first(l.exact[q.name], best, q)
	if len(l.below) > 0 {
		for rest := parent(q.name); rest != ""; rest = parent(rest) {
			best = l.first(l.below[rest], best, q)
		}
	}
	return best
}

// decide asks all layers.
func (c *Compiled) decide(q *query) Verdict {
	v := Verdict{}
	for i, l := range c.layers {
		m := l.match(q)
		switch {
		case m < 0 && l.allow:
			v = Verdict{Allowed: true, By: ByDefault, Policy: i, Rule: -1, Reason: "allowed by default"}
		case m < 0:
			return Verdict{By: ByDefault, Policy: i, Rule: -1, Reason: l.refusal(q)}
		case l.rules[m].allow:
			v = Verdict{Allowed: true, By: ByRule, Policy: i, Rule: m, Reason: l.rules[m].yes}
		default:
			return Verdict{By: ByRule, Policy: i, Rule: m, Reason: l.rules[m].no + q.String()}
		}
	}
	return v
}

// refusal says why what no rule matches is denied by default.
func (l *layer) refusal(q *query) string {
	if q.name != "" && !q.resolve {
		byName := query{name: q.name, resolve: true}
		if m := l.named(len(l.rules), &byName); m < len(l.rules) && l.rules[m].allow {
			return "blocked by policy: host " + q.name + " is on the allow list, but not for " + q.service()
		}
	}
	if q.name != "" {
		return "blocked by policy: host " + q.name + " is not on the allow list"
	}
	return "blocked by policy: address " + q.addr.String() + " is not on the allow list for " + q.service()
}

// String says what was asked for.
func (q query) String() string {
	switch {
	case q.resolve:
		return "host " + q.name
	case q.name != "":
		return "host " + q.name + " by " + q.service()
	}
	return "address " + q.addr.String() + " by " + q.service()
}

func (q query) service() string {
	if q.protocol == ICMP {
		return "icmp"
	}
	return fmt.Sprintf("%s port %d", q.protocol, q.port)
}

func contradiction(format string, args ...any) Verdict {
	return Verdict{By: ByRequest, Rule: -1, Reason: "blocked by policy: " + fmt.Sprintf(format, args...)}
}

func below(what string) Verdict {
	return Verdict{By: ByFloor, Rule: -1, Reason: "blocked by policy: " + what + ", which no rule can allow"}
}

// floorName reports whether a canonical name is below the floor, and why.
func (c *Compiled) floorName(name string) (string, bool) {
	if _, blocked := c.block.find(name); blocked {
		return "closed by the operator", true
	}
	why, ok := c.fixed.find(name)
	if !ok {
		return "", false
	}
	if _, excepted := c.except.find(name); excepted {
		return "", false
	}
	return why, true
}

// host returns the canonical form of what a client called a host.
func host(s string) (Host, error) {
	if canonical(s) {
		return Host{name: s}, nil
	}
	return ParseHost(s)
}

// Name decides whether name may be resolved. What is no name, and an address in
// any spelling, is denied.
func (c *Compiled) Name(name string) Verdict {
	h, err := host(name)
	switch {
	case err != nil:
		return contradiction("%s", message(err))
	case h.name == "":
		return contradiction("%s is an address, which is not resolved", h.addr)
	}
	if why, blocked := c.floorName(h.name); blocked {
		return below("host " + h.name + " is " + why)
	}
	return c.decide(&query{name: h.name, resolve: true})
}

// Dial decides whether a connection to addr may be made. Name is what the
// client called it, as the caller resolved it to addr, or "" if it was dialled
// by address; a name that is an address in whatever spelling must be addr. Port
// is ignored for ICMP.
func (c *Compiled) Dial(name string, addr netip.Addr, port uint16, proto Protocol) Verdict {
	switch {
	case proto != TCP && proto != UDP && proto != ICMP:
		return contradiction("%s is none of tcp, udp, icmp", quote(string(proto)))
	case port == 0 && proto != ICMP:
		return contradiction("0 is not a port")
	case !addr.IsValid():
		return contradiction("there is no address")
	}
	if name != "" {
		h, err := host(name)
		if err != nil {
			return contradiction("%s", message(err))
		}
		if name = h.name; name == "" && Canonical(h.addr) != Canonical(addr) {
			return contradiction("%s is not %s", h.addr, addr)
		}
	}
	if name != "" {
		if why, blocked := c.floorName(name); blocked {
			return below("host " + name + " is " + why)
		}
	}
	if why, blocked := c.floor.blocks(addr); blocked {
		if name != "" {
			return below("host " + name + " resolves to " + addr.String() + ", " + why)
		}
		return below("address " + addr.String() + " is " + why)
	}
	if (port == 53 || port == 853) && proto != ICMP && !c.floor.NameServers {
		return below(fmt.Sprintf("%s port %d is for name servers other than the sandbox's own", proto, port))
	}
	return c.decide(&query{name: name, addr: Canonical(addr), port: port, protocol: proto})
}

// Agrees decides whether a connection may go on whose client says in TLS's SNI,
// or in HTTP's Host or :authority, that it talks to said. Dialled is what the
// connection was allowed for: a name, or an address if there was no name.
//
// After a name, said must be that name: one that shares its address is another
// (domain fronting, coalesced HTTP/2), and the caller that has resolved several
// names to the address asks for each. After an address, said must be that
// address, or a name that no rule denies by name and that is not below the
// floor. That said is "" is no contradiction: what was dialled has been decided.
func (c *Compiled) Agrees(dialled, said string) Verdict {
	if said == "" {
		return Verdict{Allowed: true, By: ByRequest, Rule: -1, Reason: "allowed: the client names no host"}
	}
	s, err := host(said)
	if err != nil {
		return contradiction("%s", message(err))
	}
	d, err := host(dialled)
	if err != nil {
		return contradiction("%s", message(err))
	}
	switch {
	case d.name != "" && d.name == s.name, d.name == "" && s.name == "" && Canonical(d.addr) == Canonical(s.addr):
		return Verdict{Allowed: true, By: ByRequest, Rule: -1, Reason: "allowed: the client names the host that it dialled"}
	case d.name != "" || s.name == "":
		return contradiction("the connection is to %s, and the request says %s", d, s)
	}
	if why, blocked := c.floorName(s.name); blocked {
		return below("host " + s.name + " is " + why)
	}
	for i, l := range c.layers {
		q := query{name: s.name, resolve: true}
		if m := l.named(len(l.rules), &q); m < len(l.rules) && !l.rules[m].allow {
			return Verdict{By: ByRule, Policy: i, Rule: m, Reason: l.rules[m].no + q.String()}
		}
	}
	return Verdict{Allowed: true, By: ByRequest, Rule: -1, Reason: "allowed: no rule denies the name"}
}

// message returns what a tenant may see of an error of ParseHost.
func message(err error) string {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return strings.TrimSpace("host " + e.Msg)
	}
	return "no host"
}
