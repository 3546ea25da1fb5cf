// Package egress says what of the network a sandbox may reach: one model,
// onto which the settings of every protocol map.
//
// A [Policy] is a default and an ordered list of rules, of which the first that
// matches decides. Below all policies lies the [Floor]: the host, private
// networks, metadata services and all else that is not the public internet,
// which only an operator opens. [Compile] makes of both a [Compiled], which
// answers three questions: may this name be resolved ([Compiled.Name]), may
// this connection be made ([Compiled.Dial]), and does what a client says in
// SNI or Host agree with what it dialled ([Compiled.Agrees]).
//
// The package is pure. It resolves no name and opens no connection, so it
// cannot keep a sandbox to anything: that will be the work of the network stack
// and the proxy of backend/linux, which ask it for every query, connection and
// request, and dial the very address that they asked about. The engine will
// hold the profiles' policies and those of requests, the adapters will
// translate their protocols' settings. Nothing uses it yet.
//
// # How a rule matches
//
// A rule matches a destination if its protocol and its ports do, and one of
// its targets: a host, a CIDR, or all. Hosts match the name that was dialled,
// not what an address is called elsewhere; a destination that was dialled by
// address has no name. "example.org" is that name alone, "*.example.org" every
// name below it at any depth but not itself, "*" every name.
//
// CIDRs match the address. IPv4 that is written as IPv6 (mapped, compatible,
// NAT64's 64:ff9b::/96) matches as the IPv4 that it is.
//
// A name may be resolved if some connection to it could be allowed by its name
// alone: a rule that opens a CIDR opens no names. So nothing leaks through
// queries for names that no rule allows.
//
// # What the protocols' settings become
//
//	native       Policy as it is (JSON), presets by name, in rules or by Presets.Policy
//	OpenSandbox  defaultAction, egress[{action,target}]: Ordered, a rule for each target, first
//	             match wins, a missing default is deny; no policy at all: the profile's.
//	             "*.x" does not match x, there as here. PATCH: Policy.Merge. DELETE: Policy.Without.
//	             mode allow_all, deny_all, enforcing: Policy.Uniform
//	E2B          allowOut, denyOut, allow_internet_access: AllowDeny; an allow that matches wins over
//	             every deny, and what nothing matches is allowed. allow_internet_access true or
//	             missing and no lists: the profile's. PUT …/network: a new last policy
//	DeerFlow     open: the profile's; isolated: None; allowlist: AllowOnly
//	LangBot      off: no network at all (sandbox.NetworkOff), so no policy; on: the profile's
//	AIO          says nothing about what is allowed: the profile's. Its proxy mappings, excludes and
//	             upstream say which way a connection goes; each way is a Dial of its own here
//
// "The profile's" is what the operator gives to the protocol. A request's policy
// is compiled after it: Compile(floor, profile, request) allows what all allow,
// so a request can only restrict.
package egress
