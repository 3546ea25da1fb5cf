package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// None allows nothing.
func None() Policy { return Policy{Default: Deny} }

// Public allows all that the Floor leaves: the public internet.
func Public() Policy { return Policy{Default: Allow} }

// AllowOnly allows these targets and nothing else. A target is a host as in
// Rule.Hosts, or a CIDR. One that is neither is Invalid with Field "allow[1]".
func AllowOnly(targets ...string) (Policy, error) {
	p := None()
	for i, t := range targets {
		r, err := targeted(Allow, t)
		if err != nil {
			return Policy{}, at(fmt.Sprintf("allow[%d]", i), err)
		}
		p.Rules = append(p.Rules, r)
	}
	return p.Normal()
}

// A Target is what a rule of [Ordered] does with one host or CIDR.
type Target struct {
	Action Action // "" is deny
	Target string
}

// Ordered returns the policy of OpenSandbox's form: a default, where "" is
// deny, and targets of which the first that matches wins. Rule i is target i.
// Errors are Invalid with Field "default" or "targets[2]".
func Ordered(def Action, targets ...Target) (Policy, error) {
	p := Policy{Default: def}
	for i, t := range targets {
		action := t.Action
		if action == "" {
			action = Deny
		}
		r, err := targeted(action, t.Target)
		if err == nil {
			_, err = r.normal()
		}
		if err != nil {
			return Policy{}, at(fmt.Sprintf("targets[%d]", i), bare(err))
		}
		p.Rules = append(p.Rules, r)
	}
	return p.Normal()
}

// AllowDeny returns the policy of E2B's form: what allow lists is allowed, of
// the rest what deny lists is denied, and all else is allowed, or with internet
// false denied. Allow has hosts and CIDRs, deny CIDRs alone. An entry of deny
// that covers all of IPv4 or all of IPv6 denies everything, names and the other
// IP as well: E2B means "no internet" by 0.0.0.0/0. Hosts in allow without that
// are refused, as E2B does, since they would change nothing. Errors are Invalid
// with Field "allow[2]", "allow" or "deny[0]".
func AllowDeny(allow, deny []string, internet bool) (Policy, error) {
	p := Public()
	named := false
	for i, t := range allow {
		r, err := targeted(Allow, t)
		if err != nil {
			return Policy{}, at(fmt.Sprintf("allow[%d]", i), err)
		}
		named = named || len(r.Hosts) > 0
		p.Rules = append(p.Rules, r)
	}
	nothing := !internet
	for i, t := range deny {
		pre, err := parseCIDR(t)
		if err != nil {
			return Policy{}, at(fmt.Sprintf("deny[%d]", i), err)
		}
		if pre.Bits() == 0 {
			nothing = true
		}
		p.Rules = append(p.Rules, Rule{Action: Deny, CIDRs: []string{t}})
	}
	if named && !nothing {
		return Policy{}, sandbox.Errorf(sandbox.Invalid, "allow", "has hosts, and nothing denies the others").WithHint("put 0.0.0.0/0 into the deny list")
	}
	if nothing {
		p.Default = Deny
	}
	return p.Normal()
}

// targeted returns the rule for a host or CIDR that the caller need not tell
// apart.
func targeted(action Action, s string) (Rule, error) {
	_, notPrefix := netip.ParsePrefix(s)
	_, notAddr := netip.ParseAddr(s)
	if notPrefix == nil || notAddr == nil || strings.Contains(s, "/") {
		if _, err := parseCIDR(s); err != nil {
			return Rule{}, err
		}
		return Rule{Action: action, CIDRs: []string{s}}, nil
	}
	if _, err := pattern(s); err != nil {
		return Rule{}, err
	}
	return Rule{Action: action, Hosts: []string{s}}, nil
}

// bare returns err without its Field.
func bare(err error) error {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return err
	}
	c := *e
	c.Field = ""
	return &c
}
