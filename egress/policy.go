package egress

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// An Action is what a rule does with what it matches.
type Action string

const (
	Allow Action = "allow"
	Deny  Action = "deny"
)

// A Protocol is what a connection speaks below its ports.
type Protocol string

const (
	Any  Protocol = "" // in a rule; "any" means the same
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp" // of IPv4 and IPv6: echo requests; has no ports
)

// Bounds of a Policy. OpenSandbox has 4096 rules as well.
const (
	MaxRules   = 4096
	MaxTargets = 16384 // hosts and CIDRs of all rules together
	MaxPorts   = 64    // entries in the ports of a rule
	MaxSize    = 1 << 20
)

// A Policy says what may be reached: what the first rule that matches says, and
// if none does, Default. The zero Policy allows nothing. No Policy opens what
// the Floor closes.
type Policy struct {
	Default Action `json:"default,omitempty"` // "" is deny
	Rules   []Rule `json:"rules,omitempty"`
}

// A Rule allows or denies destinations. It has targets: All, or a Preset, or at
// least one of Hosts and CIDRs. An empty rule is Invalid rather than one for
// everything, so that a list which somebody filtered down to nothing opens
// nothing.
type Rule struct {
	Action Action `json:"action"`

	// All matches every destination, by name or by address.
	All bool `json:"all,omitempty"`

	// Preset stands for the targets of that name, and for its ports and protocol
	// if the rule has none of its own; see [Presets.Expand].
	Preset string `json:"preset,omitempty"`

	// Hosts are names: "example.org" itself, "*.example.org" all below it but not
	// itself, "*" every name. An address is none.
	Hosts []string `json:"hosts,omitempty"`

	// CIDRs are addresses or prefixes: "192.0.2.7", "192.0.2.0/24", "2001:db8::/32".
	CIDRs []string `json:"cidrs,omitempty"`

	// Ports are "443" or "8000-8999"; none is every port. A rule with ports does
	// not match ICMP.
	Ports []string `json:"ports,omitempty"`

	Protocol Protocol `json:"protocol,omitempty"`
}

// Validate returns nil or the first thing that is wrong, an Invalid with a
// Field such as "rules[3].cidrs".
func (p Policy) Validate() error {
	_, err := p.Normal()
	return err
}

// Normal returns p in the one form that all policies of the same meaning, rule
// by rule, have: hosts as ParseHost has them, prefixes without host bits, lists
// sorted and without repetition, ports joined. It shares nothing with p. It
// fails as Validate does.
func (p Policy) Normal() (Policy, error) {
	n := Policy{Default: cmp.Or(p.Default, Deny)}
	if n.Default != Allow && n.Default != Deny {
		return Policy{}, sandbox.Errorf(sandbox.Invalid, "default", "%s is neither allow nor deny", quote(string(p.Default)))
	}
	if len(p.Rules) > MaxRules {
		return Policy{}, sandbox.Errorf(sandbox.Invalid, "rules", "has %d rules, more than %d", len(p.Rules), MaxRules)
	}
	targets := 0
	for i, r := range p.Rules {
		if targets += len(r.Hosts) + len(r.CIDRs); targets > MaxTargets {
			return Policy{}, sandbox.Errorf(sandbox.Invalid, "rules", "has more than %d hosts and CIDRs", MaxTargets)
		}
		r, err := r.normal()
		if err != nil {
			return Policy{}, at(fmt.Sprintf("rules[%d]", i), err)
		}
		n.Rules = append(n.Rules, r)
	}
	return n, nil
}

func (r Rule) normal() (Rule, error) {
	n := Rule{Action: r.Action, All: r.All, Preset: r.Preset, Protocol: r.Protocol}
	if r.Action != Allow && r.Action != Deny {
		return Rule{}, sandbox.Errorf(sandbox.Invalid, "action", "%s is neither allow nor deny", quote(string(r.Action)))
	}
	switch n.Protocol {
	case "any":
		n.Protocol = Any
	case Any, TCP, UDP, ICMP:
	default:
		return Rule{}, sandbox.Errorf(sandbox.Invalid, "protocol", "%s is none of tcp, udp, icmp, any", quote(string(r.Protocol)))
	}
	for _, l := range []struct {
		field string
		list  []string
	}{{"hosts", r.Hosts}, {"cidrs", r.CIDRs}, {"ports", r.Ports}} {
		if l.list != nil && len(l.list) == 0 {
			return Rule{}, sandbox.Errorf(sandbox.Invalid, l.field, "is an empty list").WithHint("leave it out")
		}
	}
	kinds := 0
	for _, has := range []bool{r.All, r.Preset != "", len(r.Hosts)+len(r.CIDRs) > 0} {
		if has {
			kinds++
		}
	}
	switch {
	case kinds == 0:
		return Rule{}, sandbox.Errorf(sandbox.Invalid, "", "has no target").WithHint("give it hosts, cidrs or a preset, or all: true")
	case kinds > 1:
		return Rule{}, sandbox.Errorf(sandbox.Invalid, "", "has more than one of all, preset, and hosts or cidrs")
	case r.Preset != "" && !presetName(r.Preset):
		return Rule{}, sandbox.Errorf(sandbox.Invalid, "preset", "%s is not the name of a preset", quote(r.Preset))
	}
	for _, h := range r.Hosts {
		pat, err := pattern(h)
		if err != nil {
			return Rule{}, at("hosts", err)
		}
		n.Hosts = append(n.Hosts, pat)
	}
	slices.Sort(n.Hosts)
	n.Hosts = slices.Compact(n.Hosts)

	var prefixes []netip.Prefix
	for _, c := range r.CIDRs {
		pre, err := parseCIDR(c)
		if err != nil {
			return Rule{}, at("cidrs", err)
		}
		prefixes = append(prefixes, pre)
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for _, pre := range slices.Compact(prefixes) {
		n.CIDRs = append(n.CIDRs, renderCIDR(pre))
	}

	ranges, err := parsePorts(r.Ports)
	if err != nil {
		return Rule{}, err
	}
	if len(ranges) > 0 && n.Protocol == ICMP {
		return Rule{}, sandbox.Errorf(sandbox.Invalid, "ports", "icmp has no ports")
	}
	for _, pr := range ranges {
		n.Ports = append(n.Ports, pr.String())
	}
	return n, nil
}

// pattern returns a host of a rule in its normal form.
func pattern(s string) (string, error) {
	if s == "*" {
		return s, nil
	}
	rest, below := strings.CutPrefix(s, "*.")
	if strings.Contains(rest, "*") {
		return "", sandbox.Errorf(sandbox.Invalid, "", "%s has a wildcard in a place where none is understood", quote(s)).WithHint(`write "*.example.org" for all names below example.org`)
	}
	h, err := ParseHost(rest)
	if err != nil {
		var e *sandbox.Error
		if errors.As(err, &e) {
			return "", sandbox.Errorf(sandbox.Invalid, "", "%s", e.Msg)
		}
		return "", err
	}
	if h.addr.IsValid() {
		return "", sandbox.Errorf(sandbox.Invalid, "", "%s is an address", quote(s)).WithHint("put it into cidrs")
	}
	if below {
		return "*." + h.name, nil
	}
	return h.name, nil
}

func parseCIDR(s string) (netip.Prefix, error) {
	pre, err := netip.ParsePrefix(s)
	if err != nil {
		a, aerr := netip.ParseAddr(s)
		if aerr != nil || a.Zone() != "" {
			return netip.Prefix{}, sandbox.Errorf(sandbox.Invalid, "", "%s is neither an address nor a prefix such as 192.0.2.0/24", quote(s))
		}
		pre = netip.PrefixFrom(a, a.BitLen())
	}
	if pre.Addr().Is4In6() || pre.Bits() >= 96 && Canonical(pre.Addr()) != pre.Addr() {
		return netip.Prefix{}, sandbox.Errorf(sandbox.Invalid, "", "%s is IPv4 written as IPv6", quote(s)).WithHint("write it as IPv4")
	}
	return pre.Masked(), nil
}

func renderCIDR(pre netip.Prefix) string {
	if pre.IsSingleIP() {
		return pre.Addr().String()
	}
	return pre.String()
}

// A portRange is first to last, both included.
type portRange struct{ first, last uint16 }

func (r portRange) String() string {
	if r.first == r.last {
		return fmt.Sprint(r.first)
	}
	return fmt.Sprintf("%d-%d", r.first, r.last)
}

// parsePorts returns the ranges sorted and joined.
func parsePorts(list []string) ([]portRange, error) {
	if len(list) > MaxPorts {
		return nil, sandbox.Errorf(sandbox.Invalid, "ports", "has %d entries, more than %d", len(list), MaxPorts)
	}
	var all []portRange
	for _, s := range list {
		first, last, isRange := strings.Cut(s, "-")
		if !isRange {
			last = first
		}
		a, ok1 := parsePort(first)
		b, ok2 := parsePort(last)
		if !ok1 || !ok2 || a > b {
			return nil, sandbox.Errorf(sandbox.Invalid, "ports", "%s is neither a port nor a range such as 8000-8999", quote(s))
		}
		all = append(all, portRange{a, b})
	}
	slices.SortFunc(all, func(a, b portRange) int { return cmp.Compare(a.first, b.first) })
	var out []portRange
	for _, r := range all {
		if n := len(out); n > 0 && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

// at puts field before the Field of err, an *Error of this package.
func at(field string, err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	if c.Field == "" {
		c.Field = field
	} else {
		c.Field = field + "." + c.Field
	}
	return &c
}

// Parse reads a Policy from its JSON form, strictly: unknown, repeated and
// differently spelled fields are Invalid, and so is what Validate refuses. What
// it returns is normal.
func Parse(data []byte) (Policy, error) {
	if len(data) > MaxSize {
		return Policy{}, sandbox.Errorf(sandbox.Invalid, "", "a policy has at most %d bytes", MaxSize)
	}
	if err := checkKeys(data, reflect.TypeFor[Policy]()); err != nil {
		return Policy{}, err
	}
	var p Policy
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Policy{}, notPolicy(err)
	}
	return p.Normal()
}

func notPolicy(err error) error {
	e := sandbox.Errorf(sandbox.Invalid, "", "is not a policy in JSON")
	var t *json.UnmarshalTypeError
	if errors.As(err, &t) {
		e.Field, e.Msg = t.Field, "is a "+t.Value
	}
	e.Err = err
	return e
}

// checkKeys refuses objects with a field twice, which would hide one from who
// reads it another way, with one in other letters than ours, which
// encoding/json takes as well, and what comes after the policy.
func checkKeys(data []byte, t reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(data))
	tok, err := d.Token()
	if err != nil || tok != json.Delim('{') {
		return notPolicy(err)
	}
	if err := checkObject(d, "", t); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return sandbox.Errorf(sandbox.Invalid, "", "has something after the policy")
	}
	return nil
}

// checkObject reads to the end of the object that has begun.
func checkObject(d *json.Decoder, at string, t reflect.Type) error {
	seen := map[string]bool{}
	for {
		tok, err := d.Token()
		if err != nil {
			return notPolicy(err)
		}
		if tok == json.Delim('}') {
			return nil
		}
		key, _ := tok.(string)
		field := strings.TrimPrefix(at+"."+key, ".")
		var of reflect.Type
		for i := range t.NumField() {
			if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name == key {
				of = t.Field(i).Type
			}
		}
		if of == nil {
			return sandbox.Errorf(sandbox.Invalid, at, "has no field %s", quote(key))
		}
		if seen[key] {
			return sandbox.Errorf(sandbox.Invalid, field, "is there twice")
		}
		seen[key] = true
		if of != reflect.TypeFor[[]Rule]() {
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return notPolicy(err)
			}
			continue
		}
		tok, err = d.Token()
		if err != nil || tok != json.Delim('[') {
			e := sandbox.Errorf(sandbox.Invalid, field, "is not a list")
			e.Err = err
			return e
		}
		for i := 0; d.More(); i++ {
			one := fmt.Sprintf("%s[%d]", field, i)
			if tok, err = d.Token(); err != nil || tok != json.Delim('{') {
				return sandbox.Errorf(sandbox.Invalid, one, "is not a rule")
			}
			if err := checkObject(d, one, reflect.TypeFor[Rule]()); err != nil {
				return err
			}
		}
		if _, err := d.Token(); err != nil {
			return notPolicy(err)
		}
	}
}

// Revision names what p says: 16 hexadecimal digits that two policies share if,
// and as good as only if, their normal forms are equal. A change that names the
// revision it was made for is refused when there is another by then. A Policy
// that is not valid has the revision "".
func (p Policy) Revision() string {
	n, err := p.Normal()
	if err != nil {
		return ""
	}
	text, err := json.Marshal(n)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Uniform reports whether p says the same of every destination, and what.
func (p Policy) Uniform() (Action, bool) {
	def := cmp.Or(p.Default, Deny)
	for _, r := range p.Rules {
		if r.All && len(r.Ports) == 0 && (r.Protocol == Any || r.Protocol == "any") {
			def = r.Action
			break
		}
	}
	for _, r := range p.Rules {
		if r.Action != def {
			return "", false
		}
	}
	return def, true
}

// Merge returns p with rules before its own, so that the new win. A rule of p
// that differs from a new one in nothing but its action is dropped. It fails if
// the whole is not valid; a Field counts from the first new rule.
func (p Policy) Merge(rules ...Rule) (Policy, error) {
	added, err := Policy{Default: p.Default, Rules: rules}.Normal()
	if err != nil {
		return Policy{}, err
	}
	old, err := p.Normal()
	if err != nil {
		return Policy{}, err
	}
	fresh := map[string]bool{}
	for _, r := range added.Rules {
		fresh[r.target()] = true
	}
	for _, r := range old.Rules {
		if !fresh[r.target()] {
			added.Rules = append(added.Rules, r)
		}
	}
	return added.Normal()
}

// Without returns p with these hosts and CIDRs taken out of its rules, and how
// many there were. A rule that has no target left goes. A target that is no
// host and no CIDR is Invalid with Field "targets[1]".
func (p Policy) Without(targets ...string) (Policy, int, error) {
	n, err := p.Normal()
	if err != nil {
		return Policy{}, 0, err
	}
	gone := map[string]bool{}
	for i, t := range targets {
		r, err := targeted(Allow, t)
		if err == nil {
			r, err = r.normal()
		}
		if err != nil {
			return Policy{}, 0, at(fmt.Sprintf("targets[%d]", i), bare(err))
		}
		for _, s := range slices.Concat(r.Hosts, r.CIDRs) {
			gone[s] = true
		}
	}
	found := 0
	out := func(s string) bool {
		if gone[s] {
			found++
		}
		return gone[s]
	}
	rest := n.Rules[:0]
	for _, r := range n.Rules {
		had := len(r.Hosts) + len(r.CIDRs)
		r.Hosts, r.CIDRs = unempty(slices.DeleteFunc(r.Hosts, out)), unempty(slices.DeleteFunc(r.CIDRs, out))
		if had == 0 || len(r.Hosts)+len(r.CIDRs) > 0 {
			rest = append(rest, r)
		}
	}
	n.Rules = unempty(rest)
	n, err = n.Normal()
	return n, found, err
}

// unempty returns nil for an empty list, which a rule must not have.
func unempty[S ~[]E, E any](s S) S {
	if len(s) == 0 {
		return nil
	}
	return s
}

// String returns the rule in one line: "deny *.example.org, 192.0.2.0/24 tcp 443".
func (r Rule) String() string { return string(r.Action) + " " + r.target() }

// target is all of a rule but its action.
func (r Rule) target() string {
	var parts []string
	switch {
	case r.All:
		parts = append(parts, "all")
	case r.Preset != "":
		parts = append(parts, "preset "+r.Preset)
	default:
		parts = append(parts, strings.Join(slices.Concat(r.Hosts, r.CIDRs), ", "))
	}
	if r.Protocol != Any {
		parts = append(parts, string(r.Protocol))
	}
	if len(r.Ports) > 0 {
		parts = append(parts, strings.Join(r.Ports, ","))
	}
	return strings.Join(parts, " ")
}

// Differ returns nil if have and want say the same, rule by rule, else a
// Conflict that names the first difference, for a sandbox that is there and has
// have.
func Differ(have, want Policy) error {
	h, err := have.Normal()
	if err != nil {
		return err
	}
	w, err := want.Normal()
	if err != nil {
		return err
	}
	if h.Default != w.Default {
		return sandbox.Errorf(sandbox.Conflict, "default", "the sandbox has %s, the request %s", h.Default, w.Default)
	}
	for i := range max(len(h.Rules), len(w.Rules)) {
		a, b := "no such rule", "no such rule"
		if i < len(h.Rules) {
			a = clip(h.Rules[i].String())
		}
		if i < len(w.Rules) {
			b = clip(w.Rules[i].String())
		}
		same := i < len(h.Rules) && i < len(w.Rules) && h.Rules[i].String() == w.Rules[i].String()
		if !same {
			return sandbox.Errorf(sandbox.Conflict, fmt.Sprintf("rules[%d]", i), "the sandbox has %s, the request %s", a, b)
		}
	}
	return nil
}

// clip shortens what is ours and ASCII.
func clip(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}
