package egress

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestFloorBlocks(t *testing.T) {
	for in, want := range map[string]string{ // D52, D53
		"127.0.0.1": "this host", "127.255.0.9": "this host", "0.0.0.0": "this host", "0.1.2.3": "this host",
		"10.1.2.3": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.1.1": "private",
		"100.64.0.1": "carrier", "100.127.255.255": "carrier", "169.254.1.1": "link-local",
		"169.254.169.254": "metadata", "169.254.170.2": "metadata", "100.100.100.200": "metadata", "168.63.129.16": "metadata", "192.0.0.192": "metadata",
		"192.0.0.1": "reserved", "192.0.2.1": "documentation", "198.51.100.1": "documentation", "203.0.113.1": "documentation",
		"198.18.0.1": "benchmarking", "198.19.255.255": "benchmarking", "192.88.99.1": "reserved",
		"224.0.0.1": "multicast", "239.255.255.255": "multicast", "240.0.0.1": "reserved", "255.255.255.255": "broadcast",
		"::": "this host", "::1": "this host", "::2": "IPv4", "::127.0.0.1": "IPv4", "::ffff:0:127.0.0.1": "IPv4",
		"::ffff:127.0.0.1": "this host", "::ffff:169.254.169.254": "metadata", "::ffff:10.0.0.1": "private",
		"fd00:ec2::254": "metadata", "fd20:ce::254": "metadata", "fe80::a9fe:a9fe": "metadata",
		"fc00::1": "private", "fdff::1": "private", "fe80::1": "link-local", "fe80::1%eth0": "link-local", "2606:4700::1%eth0": "link-local", "fec0::1": "private",
		"ff02::1": "multicast", "100::1": "discarding", "2001:db8::1": "documentation", "3fff::1": "documentation",
		"64:ff9b::8.8.8.8": "NAT64", "64:ff9b::10.0.0.1": "NAT64", "64:ff9b:1::10.0.0.1": "NAT64",
		"2002:7f00:1::1": "6to4", "2002:808:808::1": "6to4", "2001:0:4136:e378::1": "Teredo", "2001:2::1": "reserved",
		"5f00::1": "reserved", "4000::1": "reserved", "c000::1": "reserved",
		"2606:4700::5efe:10.0.0.1": "IPv6 for 10.0.0.1, a private", "2606:4700::200:5efe:169.254.169.254": "metadata",
	} {
		why, blocked := Floor{}.Blocks(addr(in))
		if !blocked || !strings.Contains(why, want) {
			t.Errorf("%s: got %q, %v, want %q", in, why, blocked, want)
		}
	}
	for _, in := range []string{"8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0", "168.63.129.17", "172.15.255.255", "172.32.0.0", "192.0.1.0", "192.167.0.1", "192.169.0.1", "223.255.255.255", "::ffff:8.8.8.8", "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00::1", "2003::1", "3ffe::1", "2606:4700::5efe:8.8.8.8"} {
		if why, blocked := (Floor{}).Blocks(addr(in)); blocked {
			t.Errorf("%s is blocked: %s", in, why)
		}
	}
	if _, blocked := (Floor{}).Blocks(netip.Addr{}); !blocked {
		t.Error("no address passes")
	}
}

func TestFloorExceptions(t *testing.T) {
	f := Floor{
		Except: []netip.Prefix{p("10.1.0.0/16"), p("64:ff9b::/96"), p("2002::/16"), p("2001::/32"), p("::/0"), p("169.254.0.0/16"), p("168.63.129.16/32")},
		Block:  []netip.Prefix{p("10.1.9.0/24"), p("8.8.4.4/32")},
	}
	if err := f.Validate(); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]bool{
		"10.1.2.3":                     false,
		"::ffff:10.1.2.3":              false,
		"10.2.0.1":                     true,
		"10.1.9.1":                     true, // Block wins
		"8.8.4.4":                      true,
		"169.254.1.1":                  false,
		"169.254.169.254":              true, // a range does not open metadata
		"168.63.129.16":                false,
		"fd00:ec2::254":                true,
		"fd00::1":                      false,
		"::1":                          false,
		"64:ff9b::8.8.8.8":             false, // opened, and what is embedded is still looked at
		"64:ff9b::10.1.2.3":            false,
		"64:ff9b::10.2.0.1":            true,
		"64:ff9b::8.8.4.4":             true,
		"64:ff9b::169.254.169.254":     true,
		"::127.0.0.1":                  true,
		"::ffff:0:192.168.0.1":         true,
		"2002:808:808::1":              false,
		"2002:7f00:1::1":               true,
		"2002:a9fe:a9fe::1":            true,
		"2001:0:808:808:0:0:f7f7:f7f7": false, // Teredo: 8.8.8.8 by 8.8.8.8
		"2001:0:a00:1:0:0:f7f7:f7f7":   true,  // its server is 10.0.0.1
		"2001:0:808:808:0:0:5601:5601": true,  // its client is 169.254.169.254
		"fd00::5efe:127.0.0.1":         true,
	} {
		if why, blocked := f.Blocks(addr(in)); blocked != want {
			t.Errorf("%s: got %v (%s), want %v", in, blocked, why, want)
		}
	}
	for field, bad := range map[string]Floor{
		"except":       {Except: []netip.Prefix{{}}},
		"block":        {Block: []netip.Prefix{p("::ffff:10.0.0.0/104")}},
		"except_hosts": {ExceptHosts: []string{"10.0.0.1"}},
		"block_hosts":  {BlockHosts: []string{"a b"}},
	} {
		wantError(t, bad.Validate(), sandbox.Invalid, field)
		_, err := Compile(bad, Public())
		wantError(t, err, sandbox.Invalid, "floor."+field)
	}
}

// TestFloorTables holds the tables of specials to a search through all.
func TestFloorTables(t *testing.T) {
	for _, s := range specials {
		if s.Masked() != s.Prefix {
			t.Errorf("%s has host bits", s.Prefix)
		}
		last := s.Addr().AsSlice()
		for i := range last {
			for b := range 8 {
				if i*8+b >= s.Bits() {
					last[i] |= 0x80 >> b
				}
			}
		}
		end, _ := netip.AddrFromSlice(last)
		for _, a := range []netip.Addr{s.Addr(), end} {
			if why, blocked := (Floor{}).Blocks(a); !blocked {
				t.Errorf("%s of %s is open: %q", a, s.Prefix, why)
			}
		}
	}
	for _, h := range specialHosts {
		if n, err := pattern(h.host); err != nil || n != h.host {
			t.Errorf("%q is %q, %v", h.host, n, err)
		}
	}
}
