package egress

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestParseHost(t *testing.T) {
	label := strings.Repeat("a", 63)
	for in, want := range map[string]string{
		"example.org":              "example.org",
		"Example.ORG":              "example.org",
		"example.org.":             "example.org",
		"localhost":                "localhost",
		"_dmarc.example.org":       "_dmarc.example.org",
		"r3---sn-4g5e.example":     "r3---sn-4g5e.example",
		"BÜCHER.example":           "xn--bcher-kva.example",
		"XN--bcher-kva.example":    "xn--bcher-kva.example",
		"faß.example":              "xn--fa-hia.example", // not "fass": that is another name
		"example。org":              "example.org",
		"ｅｘａｍｐｌｅ.org":              "example.org",
		"1.2.3.4.example":          "1.2.3.4.example",
		"127.0.0.1.nip.io":         "127.0.0.1.nip.io",
		"3com":                     "3com",
		"0xfg":                     "0xfg",
		label + "." + "org":        label + ".org",
		"169.254.169.254":          "169.254.169.254",
		"169.254.169.254.":         "169.254.169.254",
		"2852039166":               "169.254.169.254",
		"0xa9fea9fe":               "169.254.169.254",
		"0xA9.0xFE.0xA9.0xFE":      "169.254.169.254",
		"0251.0376.0251.0376":      "169.254.169.254",
		"169.254.43518":            "169.254.169.254",
		"169.16689662":             "169.254.169.254",
		"①⑥⑨.254.169.254":          "169.254.169.254",
		"169。254。169。254":          "169.254.169.254",
		"0":                        "0.0.0.0",
		"127.1":                    "127.0.0.1",
		"4294967295":               "255.255.255.255",
		"::1":                      "::1",
		"[::1]":                    "::1",
		"[FD00:EC2::254]":          "fd00:ec2::254",
		"0:0:0:0:0:0:0:1":          "::1",
		"::ffff:169.254.169.254":   "169.254.169.254",
		"[::ffff:a9fe:a9fe]":       "169.254.169.254",
		"64:ff9b::169.254.169.254": "64:ff9b::a9fe:a9fe",
	} {
		h, err := ParseHost(in)
		if err != nil || h.String() != want {
			t.Errorf("%q: got %q, %v, want %q", in, h, err, want)
			continue
		}
		if (h.Name() == "") != h.Addr().IsValid() {
			t.Errorf("%q is a name and an address, or neither: %#v", in, h)
		}
		again, err := ParseHost(h.String())
		if err != nil || again != h {
			t.Errorf("%q: again %q, %v", in, again, err)
		}
	}
}

func TestParseHostRefuses(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, in := range []string{
		"", ".", "..", ".org", "a..b", "example.org..",
		"a\x00.org", "example.org\x00.evil.example", "a\r\nHost: b", "a b", " a", "a\t", "a\u00a0b", "a\u2028b", "a\x7f",
		"a%00.org", "a%2eorg", "fe80::1%eth0", "[fe80::1%25eth0]", "[::1%lo]",
		"a/b", "a\\b", "a@b", "user:pass@a", "a?b", "a#b", "*.a", "a*", "a:80", "[::1", "::1]", "[1.2.3.4]", "[]", "[example.org]",
		long + ".org", strings.Repeat(long[:60]+".", 5) + "org", strings.Repeat("a", 5000),
		"-a.org", "a-.org", "a.-", "a+b", "a!b", "a;b", "a,b", "a=b", "a&b", "a~b", "a$b", "a(b)",
		"1.2.3.4.5", "256.1.1.1", "1.2.3.256", "08.0.0.1", "4294967296", "0x1ffffffff", "1.65536.1", "example.1", "a.0x7f", "1..2", "0x", "0x.1",
		"a\xff.org", "℀.org", "xn--a.org", "xn--abc-.org", "xn--.org", "xn--bücher.org", "a\u200db.org", "a\u202eb.org", "\u0378.org",
		"１２７.0.0.１.5", "𝟙.256.1.1",
	} {
		h, err := ParseHost(in)
		if err == nil {
			t.Errorf("%q is %q", in, h)
			continue
		}
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "host" {
			t.Errorf("%q: got %#v", in, err)
		}
		for _, r := range e.Msg {
			if r < ' ' || r == 0x7f || r == 0x202e || r == 0x2028 {
				t.Errorf("%q: the message has %q in it", in, r)
			}
		}
		if len(e.Msg) > 400 {
			t.Errorf("%.40q: a message of %d bytes", in, len(e.Msg))
		}
	}
}

func TestParseAuthority(t *testing.T) {
	for in, want := range map[string]struct {
		host string
		port uint16
	}{
		"example.org":      {"example.org", 0},
		"Example.org:443":  {"example.org", 443},
		"[::1]:8080":       {"::1", 8080},
		"[::1]":            {"::1", 0},
		"127.1:65535":      {"127.0.0.1", 65535},
		"bücher.example:1": {"xn--bcher-kva.example", 1},
	} {
		h, port, err := ParseAuthority(in)
		if err != nil || h.String() != want.host || port != want.port {
			t.Errorf("%q: got %q %d, %v", in, h, port, err)
		}
	}
	for _, in := range []string{"", ":80", "a:", "a:0", "a:65536", "a:+1", "a:-1", "a:8 0", "a:0x50", "a:000080", "::1", "::1:80", "[::1", "[::1]80", "[::1]:", "a:1:2", "u@a:80", "u:p@a", "[a]:80", "a:８０"} {
		if h, port, err := ParseAuthority(in); err == nil {
			t.Errorf("%q is %q %d", in, h, port)
		}
	}
}

// FuzzParseHost holds every host to one spelling, in what DNS and HTTP can
// carry.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"example.org", "BÜCHER.example.", "0x7f.1", "[::ffff:1.2.3.4]", "fe80::1%1", "xn--bcher-kva.de", "a\x00b", "xn--a.b", "①.2", "ß.xn--", "_a.-b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHost(s)
		if err != nil {
			if h != (Host{}) {
				t.Fatalf("%q: %v and %#v", s, err, h)
			}
			return
		}
		if again, err := ParseHost(h.String()); err != nil || again != h {
			t.Fatalf("%q is %q, and that is %q, %v", s, h, again, err)
		}
		if a := h.Addr(); a.IsValid() {
			if a.Zone() != "" || a.Is4In6() || h.Name() != "" {
				t.Fatalf("%q is %#v", s, h)
			}
			return
		}
		n := h.Name()
		if n == "" || len(n) > maxName || strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" || strings.Contains("."+n+".", "..") {
			t.Fatalf("%q is %q", s, n)
		}
	})
}
