package egress

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// A Preset is a named set of targets that a rule allows or denies together. Its
// fields but the first are those of a Rule.
type Preset struct {
	About    string   `json:"about,omitempty"` // for people, one line
	All      bool     `json:"all,omitempty"`
	Hosts    []string `json:"hosts,omitempty"`
	CIDRs    []string `json:"cidrs,omitempty"`
	Ports    []string `json:"ports,omitempty"`
	Protocol Protocol `json:"protocol,omitempty"`
}

// Presets are presets by name: 1 to 64 of a-z, 0-9 and -. The names "none" and
// "public" mean [None] and [Public] in [Presets.Policy] and are no presets.
type Presets map[string]Preset

// web is how registries are reached: HTTPS, and HTTP for what redirects to it
// and for distributions, which sign their packages.
var web = []string{"80", "443"}

// builtin are the presets that come with the program. They are lists of hosts
// that serve packages, not of hosts to which nothing can be sent: who may
// publish a package or push to a repository can carry data out through them.
// Storage and CDN names that anybody can have a place at are left out for that
// reason ("storage.googleapis.com", "*.cloudfront.net").
var builtin = Presets{
	"python": {
		About: "PyPI and conda",
		// https://packaging.python.org/en/latest/guides/index-mirrors-and-caches/, https://docs.anaconda.com/working-with-conda/reference/troubleshooting/
		Hosts: []string{"pypi.org", "pypi.python.org", "files.pythonhosted.org", "conda.anaconda.org", "repo.anaconda.com"},
		Ports: web, Protocol: TCP,
	},
	"javascript": {
		About: "npm, Yarn, JSR and the downloads of Node.js",
		// https://docs.npmjs.com/cli/using-npm/registry, https://jsr.io/docs/npm-compatibility, https://nodejs.org/dist/
		Hosts: []string{"registry.npmjs.org", "registry.yarnpkg.com", "jsr.io", "npm.jsr.io", "nodejs.org"},
		Ports: web, Protocol: TCP,
	},
	"go": {
		About: "the Go module mirror and checksum database",
		// https://proxy.golang.org: GOPROXY and GOSUMDB as they come. Toolchains come through the proxy as well.
		Hosts: []string{"proxy.golang.org", "sum.golang.org", "go.dev", "dl.google.com"},
		Ports: web, Protocol: TCP,
	},
	"rust": {
		About: "crates.io and rustup",
		// https://doc.rust-lang.org/cargo/reference/registries.html, https://rust-lang.github.io/rustup/environment-variables.html
		Hosts: []string{"crates.io", "index.crates.io", "static.crates.io", "static.rust-lang.org"},
		Ports: web, Protocol: TCP,
	},
	"java": {
		About: "Maven Central and Gradle",
		// https://maven.apache.org/guides/introduction/introduction-to-repositories.html, https://docs.gradle.org/current/userguide/plugins.html
		Hosts: []string{"repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "plugins-artifacts.gradle.org", "services.gradle.org", "downloads.gradle.org"},
		Ports: web, Protocol: TCP,
	},
	"ruby": {
		About: "RubyGems",
		// https://guides.rubygems.org/rubygems-org-compact-index-api/
		Hosts: []string{"rubygems.org", "index.rubygems.org"},
		Ports: web, Protocol: TCP,
	},
	"php": {
		About: "Packagist; the packages themselves come from git hosts",
		// https://getcomposer.org/doc/05-repositories.md
		Hosts: []string{"packagist.org", "repo.packagist.org", "getcomposer.org"},
		Ports: web, Protocol: TCP,
	},
	"dotnet": {
		About: "NuGet",
		// https://learn.microsoft.com/nuget/api/service-index
		Hosts: []string{"api.nuget.org", "www.nuget.org", "globalcdn.nuget.org"},
		Ports: web, Protocol: TCP,
	},
	"linux": {
		About: "packages of Debian, Ubuntu and Alpine",
		// sources.list and repositories of their official images
		Hosts: []string{"deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com", "dl-cdn.alpinelinux.org"},
		Ports: web, Protocol: TCP,
	},
	"git": {
		About: "GitHub, GitLab, Bitbucket and Codeberg, by HTTPS and SSH",
		// https://docs.github.com/en/get-started/using-github/troubleshooting-connectivity-problems, https://api.github.com/meta
		Hosts: []string{
			"github.com", "api.github.com", "codeload.github.com", "raw.githubusercontent.com", "objects.githubusercontent.com",
			"release-assets.githubusercontent.com", "media.githubusercontent.com", "github-cloud.githubusercontent.com",
			"gitlab.com", "bitbucket.org", "codeberg.org",
		},
		Ports: []string{"22", "80", "443"}, Protocol: TCP,
	},
	"resolvers": {
		About: "public resolvers, for a rule that denies DNS over HTTPS where the default allows",
		// https://developers.google.com/speed/public-dns/docs/using, https://developers.cloudflare.com/1.1.1.1/ip-addresses/,
		// https://quad9.net/service/service-addresses-and-features/, https://support.opendns.com, https://adguard-dns.io, https://nextdns.io
		Hosts: []string{
			"dns.google", "dns64.dns.google", "8888.google", "one.one.one.one", "cloudflare-dns.com", "*.cloudflare-dns.com",
			"dns.quad9.net", "dns9.quad9.net", "dns10.quad9.net", "dns11.quad9.net", "doh.opendns.com", "doh.familyshield.opendns.com",
			"dns.adguard-dns.com", "unfiltered.adguard-dns.com", "family.adguard-dns.com", "dns.nextdns.io", "*.dns.nextdns.io", "dns.alidns.com", "doh.pub",
		},
		CIDRs: []string{
			"8.8.8.8", "8.8.4.4", "2001:4860:4860::8888", "2001:4860:4860::8844", "2001:4860:4860::64", "2001:4860:4860::6464",
			"1.1.1.1", "1.0.0.1", "1.1.1.2", "1.0.0.2", "1.1.1.3", "1.0.0.3",
			"2606:4700:4700::1111", "2606:4700:4700::1001", "2606:4700:4700::1112", "2606:4700:4700::1002", "2606:4700:4700::1113", "2606:4700:4700::1003",
			"9.9.9.0/24", "149.112.112.0/24", "2620:fe::/48", "208.67.222.0/24", "208.67.220.0/24", "223.5.5.5", "223.6.6.6",
		},
	},
}

// Builtin returns the presets that come with the program: "python",
// "javascript", "go", "rust", "java", "ruby", "php", "dotnet", "linux",
// "packages" (all of these), "git", and "resolvers", which is for rules that
// deny. The caller may add to the map, and replace what is in it.
func Builtin() Presets {
	all := Presets{}
	packages := Preset{About: "the package registries of all languages, and Linux distributions", Ports: web, Protocol: TCP}
	for name, pre := range builtin {
		pre.Hosts, pre.CIDRs, pre.Ports = slices.Clone(pre.Hosts), slices.Clone(pre.CIDRs), slices.Clone(pre.Ports)
		all[name] = pre
		if name != "git" && name != "resolvers" {
			packages.Hosts = append(packages.Hosts, pre.Hosts...)
		}
	}
	slices.Sort(packages.Hosts)
	packages.Ports = slices.Clone(web)
	all["packages"] = packages
	return all
}

// Validate returns nil or what is wrong, with a Field such as
// "corp.hosts".
func (ps Presets) Validate() error {
	for _, name := range slices.Sorted(maps.Keys(ps)) {
		if !presetName(name) || name == "none" || name == "public" {
			return sandbox.Errorf(sandbox.Invalid, "", "%s cannot be the name of a preset", quote(name))
		}
		if _, err := ps[name].rule(Allow).normal(); err != nil {
			return at(name, err)
		}
	}
	return nil
}

// Expand returns p with the presets' targets in the place of their names. A
// preset that is not there is NotExist with Field "rules[1].preset". What it
// returns is normal, and has as many rules as p.
func (ps Presets) Expand(p Policy) (Policy, error) {
	p, err := p.Normal()
	if err != nil {
		return Policy{}, err
	}
	for i, r := range p.Rules {
		if r.Preset == "" {
			continue
		}
		pre, ok := ps[r.Preset]
		if !ok {
			return Policy{}, ps.missing(fmt.Sprintf("rules[%d].preset", i), r.Preset)
		}
		e := pre.rule(r.Action)
		if r.Ports != nil || r.Protocol != Any {
			e.Ports, e.Protocol = r.Ports, r.Protocol
		}
		p.Rules[i] = e
	}
	return p.Normal()
}

// Policy returns the policy that allows these presets and nothing else, as the
// name of a network does: "python", "git". It still has their names and is to
// be expanded. "none" is [None] and "public" is [Public], each alone. One that
// is not there is NotExist with Field "presets[1]".
func (ps Presets) Policy(names ...string) (Policy, error) {
	p := None()
	for i, name := range names {
		if name == "none" || name == "public" {
			if len(names) > 1 {
				return Policy{}, sandbox.Errorf(sandbox.Invalid, fmt.Sprintf("presets[%d]", i), "%s stands alone", name)
			}
			if name == "public" {
				p = Public()
			}
			continue
		}
		if _, ok := ps[name]; !ok {
			return Policy{}, ps.missing(fmt.Sprintf("presets[%d]", i), name)
		}
		p.Rules = append(p.Rules, Rule{Action: Allow, Preset: name})
	}
	return p.Normal()
}

func (ps Presets) missing(field, name string) error {
	return sandbox.Errorf(sandbox.NotExist, field, "there is no preset %s", quote(name)).
		WithHint("there are %s", strings.Join(slices.Sorted(maps.Keys(ps)), ", "))
}

func (pre Preset) rule(a Action) Rule {
	return Rule{Action: a, All: pre.All, Hosts: pre.Hosts, CIDRs: pre.CIDRs, Ports: pre.Ports, Protocol: pre.Protocol}
}

func presetName(s string) bool {
	for i := range len(s) {
		if !letter(s[i]) || s[i] == '_' {
			return false
		}
	}
	return s != "" && len(s) <= 64 && s[0] != '-'
}
