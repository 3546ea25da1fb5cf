package egress

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A Floor is what no policy opens: everything that is not a public address of
// the internet, the names of metadata services and of the host, and other
// name servers than the daemon's. Only an operator changes it. The zero Floor
// is the whole of it.
type Floor struct {
	// Except are prefixes that policies may open after all, such as a registry
	// in the operator's own network. A metadata address is opened only by a
	// prefix of that one address. That a prefix of IPv6 is opened does not open
	// IPv4 addresses that are embedded in it: 64:ff9b::/96 lets sandboxes use
	// NAT64, and still not reach 10.0.0.1 through it.
	Except []netip.Prefix `json:"except,omitempty"`

	// ExceptHosts are hosts, as in a Rule, that may be resolved after all. What
	// they resolve to is still looked at.
	ExceptHosts []string `json:"except_hosts,omitempty"`

	// Block and BlockHosts are closed besides, and no exception opens them: the
	// host's own public addresses, the daemon, other sandboxes.
	Block      []netip.Prefix `json:"block,omitempty"`
	BlockHosts []string       `json:"block_hosts,omitempty"`

	// NameServers lets policies open ports 53 and 853 (DNS, and DNS over TLS or
	// QUIC). Otherwise the daemon is the only name server there is, so that a
	// sandbox cannot resolve what its policy denies.
	NameServers bool `json:"name_servers,omitempty"`
}

// maxFloor is how many prefixes or hosts each list of a Floor may have: they
// are compared one by one.
const maxFloor = 256

// Validate returns nil or what is wrong, with a Field such as "except".
func (f Floor) Validate() error {
	for _, l := range []struct {
		field string
		list  []netip.Prefix
	}{{"except", f.Except}, {"block", f.Block}} {
		if len(l.list) > maxFloor {
			return sandbox.Errorf(sandbox.Invalid, l.field, "has %d entries, more than %d", len(l.list), maxFloor)
		}
		for _, p := range l.list {
			if !p.IsValid() {
				return sandbox.Errorf(sandbox.Invalid, l.field, "an entry is not a prefix")
			}
			if p.Addr().Is4In6() {
				return sandbox.Errorf(sandbox.Invalid, l.field, "%s is IPv4 written as IPv6", p).WithHint("write it as IPv4")
			}
		}
	}
	for _, l := range []struct {
		field string
		list  []string
	}{{"except_hosts", f.ExceptHosts}, {"block_hosts", f.BlockHosts}} {
		if len(l.list) > maxFloor {
			return sandbox.Errorf(sandbox.Invalid, l.field, "has %d entries, more than %d", len(l.list), maxFloor)
		}
		for _, h := range l.list {
			if _, err := pattern(h); err != nil {
				return at(l.field, err)
			}
		}
	}
	return nil
}

// A special is a range that is not the public internet.
type special struct {
	netip.Prefix
	why string
	// alone: only an exception for this very address opens it.
	alone bool
}

// specials is the floor. Sources: IANA's IPv4 and IPv6 Special-Purpose Address
// Registries (RFC 6890), the IPv6 address space (RFC 4291: only 2000::/3 is
// global unicast), and the clouds' pages about their metadata services. The
// longest prefix tells the reason. Mapped IPv6 (::ffff:0:0/96) is not here: it
// is looked at as IPv4.
var specials = []special{
	{p("0.0.0.0/8"), "an address of this host", false},           // RFC 791; Linux connects 0.0.0.0 to itself
	{p("10.0.0.0/8"), "a private address", false},                // RFC 1918
	{p("100.64.0.0/10"), "an address of a carrier's NAT", false}, // RFC 6598
	{p("127.0.0.0/8"), "an address of this host", false},         // RFC 1122
	{p("169.254.0.0/16"), "a link-local address", false},         // RFC 3927
	{p("172.16.0.0/12"), "a private address", false},             // RFC 1918
	{p("192.0.0.0/24"), "a reserved address", false},             // RFC 6890, 7335
	{p("192.0.2.0/24"), "a documentation address", false},        // RFC 5737
	{p("192.88.99.0/24"), "a reserved address", false},           // 6to4 relays, RFC 7526
	{p("192.168.0.0/16"), "a private address", false},            // RFC 1918
	{p("198.18.0.0/15"), "a benchmarking address", false},        // RFC 2544
	{p("198.51.100.0/24"), "a documentation address", false},     // RFC 5737
	{p("203.0.113.0/24"), "a documentation address", false},      // RFC 5737
	{p("224.0.0.0/4"), "a multicast address", false},             // RFC 5771
	{p("240.0.0.0/4"), "a reserved address", false},              // RFC 1112
	{p("255.255.255.255/32"), "the broadcast address", false},    // RFC 919

	{p("169.254.169.254/32"), metadata, true}, // AWS, Azure, Google Cloud, OpenStack, Oracle, DigitalOcean, …
	{p("169.254.170.2/32"), metadata, true},   // credentials of AWS ECS tasks
	{p("169.254.170.23/32"), metadata, true},  // credentials of AWS EKS pods
	{p("169.254.42.42/32"), metadata, true},   // Scaleway
	{p("169.254.0.23/32"), metadata, true},    // Tencent
	{p("100.100.100.200/32"), metadata, true}, // Alibaba
	{p("168.63.129.16/32"), metadata, true},   // Azure's wire server; a public address
	{p("192.0.0.192/32"), metadata, true},     // Oracle's older one

	{p("::/3"), "a reserved address", false},
	{p("4000::/2"), "a reserved address", false},
	{p("8000::/1"), "a reserved address", false},
	{p("::/96"), "IPv4 written as IPv6", false},              // compatible, RFC 4291, 2.5.5.1
	{p("::/128"), "an address of this host", false},          // Linux connects :: to itself
	{p("::1/128"), "an address of this host", false},         //
	{p("::ffff:0:0:0/96"), "IPv4 written as IPv6", false},    // translated, RFC 2765
	{p("64:ff9b::/96"), "an address of a NAT64", false},      // RFC 6052
	{p("64:ff9b:1::/48"), "an address of a NAT64", false},    // RFC 8215
	{p("100::/64"), "a discarding address", false},           // RFC 6666
	{p("2001::/23"), "a reserved address", false},            // IETF protocol assignments, RFC 2928
	{p("2001::/32"), "an address of a Teredo tunnel", false}, // RFC 4380
	{p("2001:db8::/32"), "a documentation address", false},   // RFC 3849
	{p("2002::/16"), "an address of a 6to4 tunnel", false},   // RFC 3056
	{p("3fff::/20"), "a documentation address", false},       // RFC 9637
	{p("fc00::/7"), "a private address", false},              // RFC 4193
	{p("fe80::/10"), "a link-local address", false},          // RFC 4291
	{p("fec0::/10"), "a private address", false},             // site-local, RFC 3879
	{p("ff00::/8"), "a multicast address", false},            // RFC 4291

	{p("fd00:ec2::254/128"), metadata, true},   // AWS
	{p("fd00:ec2::23/128"), metadata, true},    // credentials of AWS EKS pods
	{p("fd20:ce::254/128"), metadata, true},    // Google Cloud
	{p("fd00:42::42/128"), metadata, true},     // Scaleway
	{p("fe80::a9fe:a9fe/128"), metadata, true}, // OpenStack
}

const metadata = "an address of a metadata service"

// specialHosts are names that are the host's or a cloud's own wherever they
// resolve, and why.
var specialHosts = []struct{ host, why string }{
	{"localhost", "a name of this host"}, // RFC 6761
	{"*.localhost", "a name of this host"},
	{"localhost.localdomain", "a name of this host"},
	{"ip6-localhost", "a name of this host"}, // Debian's /etc/hosts
	{"ip6-loopback", "a name of this host"},
	{"*.docker.internal", "a name of this host"},     // Docker Desktop: host., gateway., kubernetes.
	{"*.containers.internal", "a name of this host"}, // Podman
	{"host.lima.internal", "a name of this host"},
	{"*.local", "a name of the local network"}, // RFC 6762
	{"*.home.arpa", "a name of the local network"},
	{"*.cluster.local", "a name of a cluster"}, // Kubernetes
	{"kubernetes", "a name of a cluster"},
	{"kubernetes.default", "a name of a cluster"},
	{"kubernetes.default.svc", "a name of a cluster"},
	{"metadata", metadataName}, // Google Cloud
	{"metadata.google.internal", metadataName},
	{"metadata.goog", metadataName},
	{"instance-data", metadataName}, // AWS
	{"instance-data.ec2.internal", metadataName},
	{"*.metadata.google.internal", metadataName},
	{"metadata.tencentyun.com", metadataName},
	{"metadata.platformequinix.com", metadataName},
	{"metadata.packet.net", metadataName},
}

const metadataName = "a name of a metadata service"

func p(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// specials4 and specials6 are specials by an address's first byte, the longest
// prefix first.
var specials4, specials6 = indexed(specials)

func indexed(all []special) (v4, v6 *[256][]special) {
	v4, v6 = new([256][]special), new([256][]special)
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b special) int { return cmp.Compare(b.Bits(), a.Bits()) })
	for _, s := range all {
		table := v6
		if s.Addr().Is4() {
			table = v4
		}
		first := int(s.Addr().AsSlice()[0])
		for i := first; i < first+1<<max(0, 8-s.Bits()); i++ {
			table[i] = append(table[i], s)
		}
	}
	return v4, v6
}

// Blocks reports whether a is below the floor, and what it is: "a private
// address". An IPv6 address that embeds an IPv4 one, by whatever way, is below
// it if either is.
func (f Floor) Blocks(a netip.Addr) (why string, blocked bool) { return f.blocks(a) }

func (f *Floor) blocks(a netip.Addr) (string, bool) {
	switch {
	case !a.IsValid():
		return "no address", true
	case a.Zone() != "":
		return "a link-local address", true
	}
	a = a.Unmap()
	if why, blocked := f.blocksOne(a); blocked || a.Is4() {
		return why, blocked
	}
	four, n := embedded(a)
	for _, e := range four[:n] {
		if why, blocked := f.blocksOne(e); blocked {
			return "IPv6 for " + e.String() + ", " + why, true
		}
	}
	return "", false
}

func (f *Floor) blocksOne(a netip.Addr) (string, bool) {
	for _, b := range f.Block {
		if b.Contains(a) {
			return "closed by the operator", true
		}
	}
	var here []special
	if a.Is4() {
		here = specials4[a.As4()[0]]
	} else {
		here = specials6[a.As16()[0]]
	}
	for _, s := range here {
		if s.Contains(a) {
			return s.why, !f.excepts(a, s.alone)
		}
	}
	return "", false
}

func (f *Floor) excepts(a netip.Addr, alone bool) bool {
	for _, e := range f.Except {
		if e.Contains(a) && (!alone || e.IsSingleIP()) {
			return true
		}
	}
	return false
}

// embedded returns the IPv4 addresses to which a packet for a, an IPv6 address,
// may lead, and how many there are.
func embedded(a netip.Addr) (four [3]netip.Addr, n int) {
	b := a.As16()
	add := func(v [4]byte) {
		four[n] = netip.AddrFrom4(v)
		n++
	}
	last := [4]byte(b[12:])
	switch {
	case a == netip.IPv6Unspecified() || a == netip.IPv6Loopback():
	case compatible.Contains(a), translated.Contains(a), nat64.Contains(a), nat64Local.Contains(a):
		add(last)
	case b[0] == 0x20 && b[1] == 0x02: // 6to4
		add([4]byte(b[2:]))
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0: // Teredo: its server, and the client's in reverse
		add([4]byte(b[4:]))
		add([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	}
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe { // ISATAP, RFC 5214
		add(last)
	}
	return four, n
}

var (
	compatible = p("::/96")
	translated = p("::ffff:0:0:0/96")
	nat64      = p("64:ff9b::/96")
	nat64Local = p("64:ff9b:1::/48") // where networks that use /96 have it
)

// Canonical returns the address that rules see: IPv4 for what is IPv4 written
// as IPv6 (mapped, compatible, NAT64's well-known prefix), all else as it is.
func Canonical(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.Is6() && a.Zone() == "" && (nat64.Contains(a) || compatible.Contains(a) && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback()) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// hosts are host patterns and what is said of each.
type hosts struct {
	exact, below map[string]string
	any          bool
}

func (h *hosts) add(pat, why string) {
	if h.exact == nil {
		h.exact, h.below = map[string]string{}, map[string]string{}
	}
	if pat == "*" {
		h.any = true
	} else if rest, ok := strings.CutPrefix(pat, "*."); ok {
		h.below[rest] = why
	} else {
		h.exact[pat] = why
	}
}

func (h *hosts) find(name string) (string, bool) {
	if why, ok := h.exact[name]; ok {
		return why, true
	}
	if len(h.below) > 0 {
		for rest := parent(name); rest != ""; rest = parent(rest) {
			if why, ok := h.below[rest]; ok {
				return why, true
			}
		}
	}
	return "", h.any
}

// parent returns what follows the first dot of name, or "".
func parent(name string) string {
	if i := strings.IndexByte(name, '.'); i >= 0 {
		return name[i+1:]
	}
	return ""
}
