package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/sandbox"
)

// testApp returns an app with the given environment and nothing else.
func testApp(env map[string]string) *app {
	return &app{getenv: func(k string) (string, bool) { v, ok := env[k]; return v, ok }}
}

// given returns flags as serve has them, after reading args.
func given(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	c := defaults()
	fs := c.flags()
	fs.String("config", "", "")
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPrecedence gives every setting in all three places, and takes away one
// after the other.
func TestPrecedence(t *testing.T) {
	settings := []struct {
		flag, env, file string // as written there
		get             func(*Config) any
		want            [4]any // flag, environment, file, default
	}{
		{"--listen=1.1.1.1:1", "2.2.2.2:2,unix:/s", `listen = ["3.3.3.3:3"]`, func(c *Config) any { return c.Listen },
			[4]any{[]string{"1.1.1.1:1"}, []string{"2.2.2.2:2", "unix:/s"}, []string{"3.3.3.3:3"}, []string{defaultListen}}},
		{"--state=/flag", "/env", `state = "/file"`, func(c *Config) any { return c.State },
			[4]any{"/flag", "/env", "/file", "/home/me/state/atoll"}},
		{"--backend=memory", "linux,memory", `backend = ["memory", "linux"]`, func(c *Config) any { return c.Backend },
			[4]any{[]string{"memory"}, []string{"linux", "memory"}, []string{"memory", "linux"}, []string{"linux"}}},
		{"--host=a", "b,c", `hosts = ["d"]`, func(c *Config) any { return c.Hosts },
			[4]any{[]string{"a"}, []string{"b", "c"}, []string{"d"}, []string(nil)}},
		{"--token-file=/flag", "/env", `token_file = "/file"`, func(c *Config) any { return c.TokenFile },
			[4]any{"/flag", "/env", "/file", ""}},
		{"--remove-on-exit=false", "true", `remove_on_exit = true`, func(c *Config) any { return c.RemoveOnExit },
			[4]any{false, true, true, false}},
		{"--drain=1s", "2s", `drain = "3s"`, func(c *Config) any { return c.Drain },
			[4]any{time.Second, 2 * time.Second, 3 * time.Second, 10 * time.Second}},
		{"--log=debug", "warn", `log = "error"`, func(c *Config) any { return c.Log },
			[4]any{slog.LevelDebug, slog.LevelWarn, slog.LevelError, slog.LevelInfo}},
		{"--allow-mount=/flag", "/env", `allow_mount = ["/file/"]`, func(c *Config) any { return c.AllowMount },
			[4]any{[]string{"/flag"}, []string{"/env"}, []string{"/file"}, []string(nil)}},
		{"--allow-image=/flag,/more", "/env", `allow_image = ["/file/"]`, func(c *Config) any { return c.AllowImage },
			[4]any{[]string{"/flag", "/more"}, []string{"/env"}, []string{"/file"}, []string(nil)}},
		{"--max-live=1", "2", `max_live = 3`, func(c *Config) any { return c.MaxLive },
			[4]any{1, 2, 3, 0}},
		{"--daemon=http://flag", "http://env", `daemon = "http://file"`, func(c *Config) any { return c.Daemon },
			[4]any{"http://flag", "http://env", "http://file", "http://" + defaultListen}},
	}
	var tested []string
	for _, s := range settings {
		name := strings.TrimPrefix(strings.SplitN(s.flag, "=", 2)[0], "--")
		tested = append(tested, name)
		t.Run(name, func(t *testing.T) {
			for level := range 4 {
				env := map[string]string{"XDG_STATE_HOME": "/home/me/state", "XDG_CONFIG_HOME": "/nowhere", "HOME": "/home/me"}
				var args []string
				text := ""
				if level <= 0 {
					args = append(args, s.flag)
				}
				if level <= 1 {
					env[envOf(name)] = s.env
				}
				if level <= 2 {
					text = s.file
				}
				env["ATOLL_CONFIG"] = write(t, "atoll.toml", text)
				c, err := testApp(env).load(given(t, args...))
				if err != nil {
					t.Fatal(err)
				}
				want := s.want[level]
				if level == 3 && name == "state" && os.Geteuid() == 0 {
					want = "/var/lib/atoll"
				}
				if got := fmt.Sprint(s.get(&c)); got != fmt.Sprint(want) {
					t.Errorf("from %s: got %s, want %v", []string{"the flag", "the environment", "the file", "the defaults"}[level], got, want)
				}
			}
		})
	}
	c := defaults()
	c.flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "token" && !slices.Contains(tested, f.Name) {
			t.Errorf("the setting %s is not tested", f.Name)
		}
	})
}

func TestOneTokenWins(t *testing.T) {
	file := write(t, "atoll.toml", `token_file = "/file"`)
	for _, tc := range []struct {
		args  []string
		env   map[string]string
		token string
		file  string
		wrong bool
	}{
		{nil, nil, "", "/file", false},
		{nil, map[string]string{"ATOLL_TOKEN": "env"}, "env", "", false},
		{nil, map[string]string{"ATOLL_TOKEN_FILE": "/env"}, "", "/env", false},
		{[]string{"--token=flag"}, map[string]string{"ATOLL_TOKEN_FILE": "/env"}, "flag", "", false},
		{[]string{"--token-file=/flag"}, map[string]string{"ATOLL_TOKEN": "env"}, "", "/flag", false},
		{[]string{"--token=a", "--token-file=/b"}, nil, "", "", true},
		{nil, map[string]string{"ATOLL_TOKEN": "a", "ATOLL_TOKEN_FILE": "/b"}, "", "", true},
	} {
		env := map[string]string{"ATOLL_CONFIG": file, "HOME": "/home/me"}
		for k, v := range tc.env {
			env[k] = v
		}
		c, err := testApp(env).load(given(t, tc.args...))
		if tc.wrong {
			if sandbox.KindOf(err) != sandbox.Invalid {
				t.Errorf("%v %v: got %v, want an error", tc.args, tc.env, err)
			}
			continue
		}
		if err != nil || c.Token.Reveal() != tc.token || c.TokenFile != tc.file {
			t.Errorf("%v %v: got %q, %q, %v; want %q, %q", tc.args, tc.env, c.Token.Reveal(), c.TokenFile, err, tc.token, tc.file)
		}
	}
}

// TestWrongConfigIsRefused looks for words that help in every refusal.
func TestWrongConfigIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		file string
		env  map[string]string
		args []string
		want []string // parts of the message
	}{
		{name: "unknown key", file: `lisen = ["x"]`, want: []string{"atoll.toml", `"lisen"`, "known ones: allow_image, allow_mount, audit, backend", "token_file"}},
		{name: "unknown key in a table", file: "[linux]\nguests = 1", want: []string{`"linux.guests"`, "cgroup_parent, guest"}},
		{name: "unknown table", file: "[kube]\nx = 1", want: []string{`"kube"`, "known ones"}},
		{name: "token in the file", file: `token = "e2b_secret"`, want: []string{"token_file"}},
		{name: "wrong type", file: `listen = 5`, want: []string{"atoll.toml", "listen"}},
		{name: "wrong duration", file: `drain = "soon"`, want: []string{"drain"}},
		{name: "duration without a unit", file: `drain = 30`, want: []string{"drain", "unit"}},
		{name: "wrong level", file: `log = "loud"`, want: []string{"loud"}},
		{name: "no TOML", file: "listen = [\n", want: []string{"atoll.toml:"}},
		{name: "twice", file: "state = '/a'\nstate = '/b'", want: []string{"state"}},
		{name: "wrong variable", env: map[string]string{"ATOLL_DRAIN": "soon"}, want: []string{"ATOLL_DRAIN", "soon"}},
		{name: "wrong level in a variable", env: map[string]string{"ATOLL_LOG": "loud"}, want: []string{"ATOLL_LOG", "debug, info"}},
		{name: "negative drain", env: map[string]string{"ATOLL_DRAIN": "-1s"}, want: []string{"drain"}},
		{name: "unknown backend", env: map[string]string{"ATOLL_BACKEND": "lynux"}, want: []string{"lynux", "linux, docker, memory"}},
		{name: "backend to come", args: []string{"--backend=kube"}, want: []string{"kube", "linux, docker, memory"}},
		{name: "backend twice", args: []string{"--backend=memory,memory"}, want: []string{"memory", "twice"}},
		{name: "relative image root", args: []string{"--allow-image=/ok", "--allow-image=images"}, want: []string{"allow_image", "images"}},
		{name: "relative mount root", args: []string{"--allow-mount=data"}, want: []string{"allow_mount", "data"}},
		{name: "no such file", args: []string{"--config=/nowhere/atoll.toml"}, want: []string{"/nowhere/atoll.toml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			env := map[string]string{"HOME": "/home/me", "ATOLL_CONFIG": write(t, "atoll.toml", tc.file)}
			for k, v := range tc.env {
				env[k] = v
			}
			_, err := testApp(env).load(given(t, tc.args...))
			if k := sandbox.KindOf(err); k != sandbox.Invalid && k != sandbox.Unsupported {
				t.Fatalf("got %v of kind %q, want a refusal", err, k)
			}
			msg, hints := phrase(err)
			text := msg + "\n" + strings.Join(hints, "\n")
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in\n%s", w, text)
				}
			}
			if strings.Contains(text, "e2b_secret") {
				t.Errorf("the token is in\n%s", text)
			}
		})
	}
}

// TestHelpHasEverySetting compares the page of atoll help configuration with
// the flags and the keys of the file.
func TestHelpHasEverySetting(t *testing.T) {
	page := configurationHelp()
	c := defaults()
	c.flags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(page, "--"+f.Name+" ") || !strings.Contains(page, envOf(f.Name)+" ") {
			t.Errorf("%s is not there", f.Name)
		}
	})
	names := settingNames()
	for _, key := range keys(reflect.TypeFor[Config](), nil) {
		isTable := slices.ContainsFunc(tables, func(t table) bool { return t.path[0] == key && strings.Contains(page, t.title) })
		if !isTable && !slices.ContainsFunc(names, func(n settingName) bool { return n.key == key }) {
			t.Errorf("the key %s is not there", key)
		}
	}
	_, example, ok := strings.Cut(page, "needs:\n")
	if err := c.parse("example", example); !ok || err != nil {
		t.Errorf("its example: %v", err)
	}
}

func TestEveryPropertyHasAMeaning(t *testing.T) {
	for _, p := range sandbox.Properties() {
		if meanings[p] == "" {
			t.Errorf("%s has none", p)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(`listen = ["127.0.0.1:1"]`)
	f.Add("[linux]\nguest = \"x\"")
	f.Add("a.b.c = 1")
	f.Add("[[linux]]")
	f.Add("[profiles.a]\nbase = 'default'\nlimits.memory = '1g'\n[warm]\npin = { a = 1 }")
	f.Add("[images]\n'*' = 'host'\n[owners.a]\ntoken_file = '/a'\n[protocols.native]\nprofile = 'e2b'")
	f.Fuzz(func(t *testing.T, text string) {
		c := defaults()
		err := c.parse("f", text)
		if err == nil {
			err = c.checkTables()
		}
		if err != nil && sandbox.KindOf(err) != sandbox.Invalid {
			t.Errorf("%q: got kind %q: %v", text, sandbox.KindOf(err), err)
		}
	})
}
