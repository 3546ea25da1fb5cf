package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// topics returns the pages of atoll help that belong to no command.
func topics() []*cobra.Command {
	topic := func(name, short, long string) *cobra.Command {
		return &cobra.Command{Use: name, Short: short, Long: strings.TrimSpace(long)}
	}
	return []*cobra.Command{
		topic("exit-codes", "what the exit status means", `
atoll run and atoll exec end with the status of the command:

  0-255  the command's own
  124    its --timeout passed
  126    it may not be executed
  127    there is no such command
  128+N  signal N ended it; 137 also when it wanted more memory than it may have
  125    atoll failed, not the command
  141    nobody reads the output any more

The other commands:

  0      it is done
  1      it failed; atoll doctor: something that is needed does not work;
         atoll status: no sandbox can be made
  2      it was called in a wrong way, or the configuration is wrong
  128+N  signal N ended atoll

A command that exits with 124 to 127 by itself looks the same. Only when atoll
itself failed, or when the command was killed for its --timeout or for want of
memory, is there a line on standard error that begins with "atoll: ".`),
		topic("configuration", "flags, environment and file", configurationHelp()),
		topic("properties", "what --require can ask for", `
Properties are what isolates a sandbox, or bounds it. atoll inspect shows which
a sandbox has, and for each that it lacks, why. A sandbox that --require asks
more of than can be given here is not made.

`+propertiesHelp()),
	}
}

func configurationHelp() string {
	var b strings.Builder
	b.WriteString(`
Every setting can be given as a flag, in the environment, or in a file. Flags
win over the environment, the environment wins over the file. The file is
--config, else $ATOLL_CONFIG, else /etc/atoll/atoll.toml for root and
$XDG_CONFIG_HOME/atoll/atoll.toml (~/.config/atoll/atoll.toml) for others. It
is TOML. A key that nobody knows is an error, and so is a value that does not
fit. Lists are separated by commas in the environment.

`)
	rows := [][3]string{{"flag", "environment", "in the file"}}
	for _, r := range settingNames() {
		rows = append(rows, [3]string{"--" + r.flag, r.env, r.key})
	}
	for _, r := range rows {
		fmt.Fprintf(&b, "  %-18s %-22s %s\n", r[0], r[1], r[2])
	}
	b.WriteString(`
Tables stand in the file alone. docs/configuration.md says what is in them.

`)
	for _, t := range tables {
		fmt.Fprintf(&b, "  %-18s %s\n", t.title, t.about)
		line := ""
		for i, key := range keys(reflect.TypeFor[Config](), t.path) {
			if i > 0 {
				line += ","
			}
			if len(line)+len(key) > 56 {
				fmt.Fprintf(&b, "  %-18s   %s\n", "", line)
				line = ""
			}
			if line != "" {
				line += " "
			}
			line += key
		}
		if line != "" {
			fmt.Fprintf(&b, "  %-18s   %s\n", "", line)
		}
	}
	b.WriteString(`
A file with all that a small server needs:

  listen = ["127.0.0.1:8080", "unix:/run/atoll/atoll.sock"]
  state = "/var/lib/atoll"
  backend = ["linux"]
  hosts = ["sandboxes.example.org"]
  token_file = "/etc/atoll/token"
  allow_mount = ["/srv/shared"]
  allow_image = ["/srv/images"]
  max_live = 200
  drain = "30s"
  log = "info"

  [linux]
  cgroup_parent = "/atoll"

  [profiles.small]
  idle = "30m"
  limits = { memory = "512m", cpu = 1, pids = 200 }
  max_limits = { memory = "2g", cpu = 2, pids = 1000 }

  [protocols.native]
  profile = "small"

  [owners.alice]
  token_file = "/etc/atoll/alice"
  max_live = 20`)
	return b.String()
}

// A table is one of the file: how a page shows it, where it is, and what it is
// about.
type table struct {
	title string
	path  []string
	about string
}

var tables = []table{
	{"[profiles.NAME]", []string{"profiles", "NAME"}, "what a sandbox gets, and at most"},
	{"  .limits", []string{"profiles", "NAME", "limits"}, "and .max_limits"},
	{"[images]", []string{"images"}, "the image that stands for a name, such as \"python:*\" = \"host\""},
	{"[protocols.NAME]", []string{"protocols", "NAME"}, "what the clients of a protocol get"},
	{"[owners.NAME]", []string{"owners", "NAME"}, "who has a token of his own"},
	{"[warm]", []string{"warm"}, "the sandboxes that are ready before anyone asks"},
	{"[audit]", []string{"audit"}, "the record of who did what where"},
	{"[linux]", []string{"linux"}, "the linux backend"},
	{"[docker]", []string{"docker"}, "the docker backend"},
}

// A settingName is what a setting is called in the three places. key is ""
// for what cannot stand in the file.
type settingName struct{ flag, env, key string }

func settingNames() []settingName {
	var names []settingName
	for _, flag := range []string{"listen", "state", "backend", "host", "token", "token-file", "allow-mount", "allow-image", "max-live", "remove-on-exit", "drain", "log", "daemon"} {
		n := settingName{flag, envOf(flag), strings.ReplaceAll(flag, "-", "_")}
		switch flag {
		case "token":
			n.key = ""
		case "host":
			n.key = "hosts"
		}
		names = append(names, n)
	}
	return names
}

// meanings says each property in a few words.
var meanings = map[sandbox.Property]string{
	sandbox.UserNamespace:    "root inside is nobody outside",
	sandbox.OwnIDs:           "its user ids are shared with nobody",
	sandbox.ManyIDs:          "users inside differ from each other",
	sandbox.PIDNamespace:     "it sees and signals its own processes alone",
	sandbox.MountNamespace:   "it has mounts and a root of its own",
	sandbox.NetworkNamespace: "it has a network stack of its own",
	sandbox.IPCNamespace:     "it has IPC and message queues of its own",
	sandbox.UTSNamespace:     "it has a host name of its own",
	sandbox.CgroupNamespace:  "it does not see where it stands in the host's cgroups",
	sandbox.NoNewPrivileges:  "no program gains rights by being executed",
	sandbox.NoCapabilities:   "its processes hold no capability",
	sandbox.Seccomp:          "a system call filter is loaded",
	sandbox.Landlock:         "Landlock rules are loaded",
	sandbox.MaskedProc:       "host-wide parts of /proc and /sys are hidden or read-only",
	sandbox.LimitMemory:      "--memory is kept",
	sandbox.LimitCPU:         "--cpus is kept",
	sandbox.LimitPIDs:        "--pids is kept",
	sandbox.LimitDisk:        "--disk is kept",
	sandbox.KillTree:         "ending a command ends every descendant",
}

func propertiesHelp() string {
	var b strings.Builder
	for _, p := range sandbox.Properties() {
		fmt.Fprintf(&b, "  %-18s %s\n", p, meanings[p])
	}
	return strings.TrimRight(b.String(), "\n")
}
