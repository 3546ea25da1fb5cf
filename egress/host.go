package egress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/atoll-run/atoll/sandbox"
)

// The longest name is 253 characters without its last dot, its labels 63
// (RFC 1035, 2.3.4). What is looked at before it is put into ASCII is bounded
// besides.
const (
	maxName  = 253
	maxLabel = 63
	maxInput = 1024
)

// A Host is a name or an address in the one spelling that everything here
// compares: lower case, punycode, no dot at the end; IPv4 never as IPv6. The
// zero Host is neither.
type Host struct {
	name string
	addr netip.Addr
}

// Name returns the name, or "" for an address.
func (h Host) Name() string { return h.name }

// Addr returns the address; it is not valid for a name.
func (h Host) Addr() netip.Addr { return h.addr }

// String returns the name, or the address without brackets.
func (h Host) String() string {
	if h.addr.IsValid() {
		return h.addr.String()
	}
	return h.name
}

// lookup turns what people type into what goes into a DNS query, by UTS #46
// without transition. Which ASCII is allowed and how long it may be is looked
// at below, because "℀" becomes "a/c" only here. Hyphens in the third and fourth
// place are in use ("r3---sn-4g5e.googlevideo.com").
var lookup = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false), idna.CheckHyphens(false), idna.BidiRule())

// ParseHost returns the host that s names, as it stands in a Host header, in
// SNI, in a CONNECT or SOCKS5 request or in a rule, without a port.
//
// Names are letters, digits, hyphens and underscores (which are no host names,
// yet in use), after case, IDN and one last dot have been taken care of. What
// inet_aton(3) reads as an IPv4 address is that address, in decimal, octal, hex
// and with fewer than four parts: 0x7f.1, 017700000001 and 2130706433 are
// 127.0.0.1. Another name whose last label is a number is refused, as browsers
// do, since no two programs agree on it. IPv6 may have brackets, and no zone.
// All else is Invalid with Field "host".
func ParseHost(s string) (Host, error) {
	if canonical(s) {
		return Host{name: s}, nil
	}
	bad := func(format string, args ...any) (Host, error) {
		return Host{}, sandbox.Errorf(sandbox.Invalid, "host", "%s %s", quote(s), fmt.Sprintf(format, args...))
	}
	switch {
	case s == "":
		return Host{}, sandbox.Errorf(sandbox.Invalid, "host", "is empty")
	case len(s) > maxInput:
		return bad("is longer than a name can be")
	case !utf8.ValidString(s):
		return bad("is not UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) || unicode.IsSpace(r) || strings.ContainsRune("%/\\@?#*\"'<>^`{|}", r) {
			return bad("has a character %q, which no host has", r)
		}
	}

	inner, open := strings.CutPrefix(s, "[")
	inner, shut := strings.CutSuffix(inner, "]")
	if open != shut {
		return bad("has a bracket too few")
	}
	if open || strings.Contains(s, ":") {
		a, err := netip.ParseAddr(inner)
		if err != nil || !a.Is6() || a.Zone() != "" {
			return bad("is not an IPv6 address")
		}
		return Host{addr: a.Unmap()}, nil
	}

	name := strings.ToLower(s)
	ace := !ascii(s) || hasACE(name)
	if ace {
		var err error
		if name, err = lookup.ToASCII(s); err != nil {
			return bad("is not an internationalised name")
		}
	}
	name = strings.TrimSuffix(name, ".")
	labels := strings.Split(name, ".")
	if numeric(labels[len(labels)-1]) {
		a, ok := aton(labels)
		if !ok {
			return bad("ends in a number and is not an IPv4 address")
		}
		return Host{addr: a}, nil
	}
	if len(name) > maxName {
		return bad("is longer than a name can be")
	}
	for _, l := range labels {
		switch {
		case l == "":
			return bad("has an empty label")
		case len(l) > maxLabel:
			return bad("has a label of more than %d characters", maxLabel)
		case l[0] == '-' || l[len(l)-1] == '-':
			return bad("has a label that begins or ends with a hyphen")
		}
		for i := range len(l) {
			if !letter(l[i]) {
				return bad("has a character %q, which no host has", l[i])
			}
		}
		// Punycode that is not what the name comes to when it is put into
		// punycode again would be a second spelling.
		if hasACE(l) {
			u, err := lookup.ToUnicode(l)
			if err != nil || ascii(u) {
				return bad("is not an internationalised name")
			}
		}
	}
	if ace {
		if again, err := lookup.ToASCII(name); err != nil || again != name {
			return bad("is not an internationalised name")
		}
	}
	return Host{name: name}, nil
}

// ParseAuthority returns the host and port of "host", "host:port" or
// "[IPv6]:port", as a Host header and a CONNECT request have them; the port is
// 0 if there is none. User information is refused, as is all that ParseHost
// refuses.
func ParseAuthority(s string) (Host, uint16, error) {
	bad := func(msg string) (Host, uint16, error) {
		return Host{}, 0, sandbox.Errorf(sandbox.Invalid, "host", "%s %s", quote(s), msg)
	}
	host, port, has := s, "", false
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host, port, has = s[:i], s[i+1:], true
	}
	if strings.Contains(host, ":") && (host[0] != '[' || host[len(host)-1] != ']') {
		return bad("has more than one colon")
	}
	h, err := ParseHost(host)
	if err != nil || !has {
		return h, 0, err
	}
	n, ok := parsePort(port)
	if !ok {
		return bad("has no port of 1 to 65535 after its colon")
	}
	return h, n, nil
}

// canonical reports whether s is a name that ParseHost would return as it is,
// without having to look for more than ASCII. It says no to punycode.
func canonical(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	start := 0
	for i := 0; ; i++ {
		if i < len(s) && s[i] != '.' {
			if !letter(s[i]) {
				return false
			}
			continue
		}
		l := s[start:i]
		if l == "" || len(l) > maxLabel || l[0] == '-' || l[len(l)-1] == '-' || strings.HasPrefix(l, "xn--") {
			return false
		}
		if i == len(s) {
			return !numeric(l)
		}
		start = i + 1
	}
}

func letter(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// numeric reports whether a name with this last label is an IPv4 address or
// nothing (the "ends in a number" of the WHATWG's URL standard).
func numeric(l string) bool {
	digits := "0123456789"
	if strings.HasPrefix(l, "0x") {
		l, digits = l[2:], "0123456789abcdef"
		if l == "" {
			return true
		}
	}
	for i := range len(l) {
		if strings.IndexByte(digits, l[i]) < 0 {
			return false
		}
	}
	return l != ""
}

// aton reads labels as inet_aton does: up to four numbers in C's notation, of
// which the last fills what the others leave.
func aton(labels []string) (netip.Addr, bool) {
	if len(labels) > 4 {
		return netip.Addr{}, false
	}
	var v uint64
	for i, l := range labels {
		base := 10
		switch {
		case strings.HasPrefix(l, "0x"):
			l, base = l[2:], 16
		case len(l) > 1 && l[0] == '0':
			l, base = l[1:], 8
		}
		if l == "" || l[0] == '+' || l[0] == '-' || strings.Contains(l, "_") {
			return netip.Addr{}, false
		}
		n, err := strconv.ParseUint(l, base, 32)
		left := 8 * (4 - i) // bits that nobody has filled
		switch {
		case err != nil:
			return netip.Addr{}, false
		case i < len(labels)-1 && n > 255, i == len(labels)-1 && n >= 1<<left:
			return netip.Addr{}, false
		case i < len(labels)-1:
			v |= n << (left - 8)
		default:
			v |= n
		}
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

func parsePort(s string) (uint16, bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && len(s) <= 5
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func hasACE(name string) bool {
	return strings.HasPrefix(name, "xn--") || strings.Contains(name, ".xn--")
}

// quote makes of what somebody sent what may stand in a message: one line,
// printable, and short.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.QuoteToASCII(s)
}
