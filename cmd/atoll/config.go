package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/sandbox"
)

// Config is the whole configuration, as the file has it. Nothing but this
// package sees all of it: each part gets its own.
//
// Every setting has one name: serve_listen is never --listen-address. It is
// the key in the file; with dashes for underscores it is the flag; in capitals
// with ATOLL_ before it is the environment variable. Flags win over the
// environment, the environment over the file. Three differ, and their comments
// say so.
type Config struct {
	// Daemon is where the commands that need a daemon find it:
	// http://ADDRESS or unix:PATH. The environment variable is ATOLL_HOST.
	Daemon string `toml:"daemon"`

	// Listen is where the daemon listens: HOST:PORT or unix:PATH.
	Listen []string `toml:"listen"`

	// State is the folder that holds all that outlives a daemon.
	State string `toml:"state"`

	// Backend lists the backends that the daemon has; the first makes the
	// sandboxes of who does not choose.
	Backend []string `toml:"backend"`

	// Hosts are names that a request's Host header may have besides the
	// loopback's and those of Listen. The flag is --host, the environment
	// variable ATOLL_HOSTS.
	Hosts []string `toml:"hosts"`

	// Token is what requests show. It is no key of the file, which others
	// may be able to read: TokenFile is.
	Token sandbox.Secret `toml:"-"`

	// TokenFile holds the token; "" is the file token in State, which the
	// daemon makes.
	TokenFile string `toml:"token_file"`

	// RemoveOnExit has the daemon remove its sandboxes when it ends.
	RemoveOnExit bool `toml:"remove_on_exit"`

	// Drain is how long the daemon waits for requests to end when it is told
	// to stop.
	Drain time.Duration `toml:"drain"`

	// Log is the least level that is logged: debug, info, warn, error.
	Log slog.Level `toml:"log"`

	// AllowMount lists the folders of the host below which a sandbox's mounts
	// may lie; none allows no mount.
	AllowMount []string `toml:"allow_mount"`

	// AllowImage lists the folders of the host below which a sandbox's image
	// dir:PATH may lie; none allows no such image.
	AllowImage []string `toml:"allow_image"`

	// MaxLive is how many sandboxes there may be; 0 is any number.
	MaxLive int `toml:"max_live"`

	// Profiles are profiles by their names, beside the built-in ones.
	Profiles map[string]ProfileConfig `toml:"profiles"`

	// Images says what stands for the images that clients name, as in
	// profile.Images.
	Images map[string]string `toml:"images"`

	// Protocols are the protocols' bounds, by their names.
	Protocols map[string]ProtocolConfig `toml:"protocols"`

	// Owners are those who have tokens of their own, by their names.
	Owners map[string]OwnerConfig `toml:"owners"`

	// Warm is about the sandboxes that are ready before anyone asks.
	Warm WarmConfig `toml:"warm"`

	// Audit is about the record of who did what.
	Audit AuditConfig `toml:"audit"`

	// Linux is for the linux backend alone.
	Linux LinuxConfig `toml:"linux"`

	// Docker is for the docker backend alone.
	Docker DockerConfig `toml:"docker"`
}

// LinuxConfig is the part of the file that the linux backend reads.
type LinuxConfig struct {
	// Guest is the program that runs inside; "" is the one that the binary
	// holds, or atoll-guest beside it.
	Guest string `toml:"guest"`

	// CgroupParent is the cgroup below which sandboxes get theirs; "" is the
	// daemon's own.
	CgroupParent string `toml:"cgroup_parent"`
}

// DockerConfig is the part of the file that the docker backend reads.
type DockerConfig struct {
	// Host is where the engine listens, unix:///PATH or tcp://HOST:PORT; "" is
	// what DOCKER_HOST says, else the first usual socket that is there.
	Host string `toml:"host"`

	// Runtime is the OCI runtime that the engine uses, such as runsc; "" is
	// the engine's default.
	Runtime string `toml:"runtime"`

	// Image is what a sandbox gets that names none; "" is the backend's own.
	Image string `toml:"image"`

	// Pull says when images are fetched: missing, never, always; "" is missing.
	Pull string `toml:"pull"`

	// Guest is the program that runs inside; "" is the one that the binary
	// holds, or atoll-guest beside it.
	Guest string `toml:"guest"`
}

// secretFlag makes a secret a flag that does not show its value.
type secretFlag struct{ s *sandbox.Secret }

func (f secretFlag) String() string {
	if f.s == nil || *f.s == "" {
		return ""
	}
	return "***"
}
func (f secretFlag) Set(v string) error {
	if v == "" || strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("a token is one or more printable characters without spaces")
	}
	*f.s = sandbox.Secret(v)
	return nil
}
func (f secretFlag) Type() string { return "token" }

// levelFlag makes a level a flag.
type levelFlag struct{ l *slog.Level }

func (f levelFlag) String() string {
	if f.l == nil {
		return ""
	}
	return strings.ToLower(f.l.String())
}
func (f levelFlag) Set(v string) error {
	if f.l.UnmarshalText([]byte(v)) != nil {
		return fmt.Errorf("%q is not a level; use debug, info, warn or error", v)
	}
	return nil
}
func (f levelFlag) Type() string { return "level" }

// defaultListen is where a daemon is unless it is told otherwise.
const defaultListen = "127.0.0.1:8080"

// defaults returns the configuration of who says nothing. State is left
// empty: [app.load] fills it in when nobody else does.
func defaults() Config {
	c := Config{
		Daemon:  "http://" + defaultListen,
		Listen:  []string{defaultListen},
		Backend: []string{"linux"},
		Drain:   10 * time.Second,
	}
	c.defaultTables()
	return c
}

// flags returns a flag for every setting, which sets it in c.
func (c *Config) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringVar(&c.Daemon, "daemon", c.Daemon, "the daemon's address: http://ADDRESS or unix:PATH (environment: ATOLL_HOST)")
	fs.StringSliceVar(&c.Listen, "listen", c.Listen, "where to listen: HOST:PORT or unix:PATH; may be repeated")
	fs.StringVar(&c.State, "state", c.State, "the folder for all that outlives the program (default /var/lib/atoll for root, else atoll in $XDG_STATE_HOME)")
	fs.StringSliceVar(&c.Backend, "backend", c.Backend, "what makes the sandboxes: "+strings.Join(backendNames(), ", ")+"; may be repeated, the first is the default")
	fs.StringSliceVar(&c.Hosts, "host", c.Hosts, "a further name that a request's Host header may have; may be repeated (environment: ATOLL_HOSTS)")
	fs.Var(secretFlag{&c.Token}, "token", "the token (others on this machine can see it in the list of processes: prefer --token-file or ATOLL_TOKEN)")
	fs.StringVar(&c.TokenFile, "token-file", c.TokenFile, "the file that holds the token (default: token in the state folder)")
	fs.BoolVar(&c.RemoveOnExit, "remove-on-exit", c.RemoveOnExit, "remove all sandboxes when the daemon ends")
	fs.DurationVar(&c.Drain, "drain", c.Drain, "how long to wait for requests to end when told to stop")
	fs.Var(levelFlag{&c.Log}, "log", "the least level to log: debug, info, warn or error")
	fs.IntVar(&c.MaxLive, "max-live", c.MaxLive, "how many sandboxes there may be (default: any number)")
	fs.StringSliceVar(&c.AllowMount, "allow-mount", c.AllowMount, "a folder below which a sandbox's mounts may lie; may be repeated")
	fs.StringSliceVar(&c.AllowImage, "allow-image", c.AllowImage, "a folder below which an image dir:PATH may lie; may be repeated")
	return fs
}

// envOf returns the environment variable of the setting whose flag is name.
func envOf(name string) string {
	switch name {
	case "daemon":
		return "ATOLL_HOST"
	case "host":
		return "ATOLL_HOSTS"
	}
	return "ATOLL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// notSetting marks flags of a command that are not the setting of the same
// name.
const notSetting = "not-setting"

// load returns the configuration: the defaults, what the file says, what the
// environment says, and what was given as flags, each winning over those
// before it.
func (a *app) load(given *pflag.FlagSet) (Config, error) {
	c := defaults()
	file, named := a.configFile(given)
	if err := c.readFile(file, named); err != nil {
		return c, err
	}
	fs := c.flags()

	fromEnv := make(map[string]bool)
	var wrong error
	fs.VisitAll(func(f *pflag.Flag) {
		name := envOf(f.Name)
		v, ok := a.getenv(name)
		if !ok || v == "" || wrong != nil {
			return
		}
		if err := f.Value.Set(v); err != nil {
			wrong = sandbox.Errorf(sandbox.Invalid, name, "%v", err)
		}
		fromEnv[f.Name] = true
	})
	if wrong != nil {
		return c, wrong
	}
	if err := c.oneToken(fromEnv, "ATOLL_TOKEN", "ATOLL_TOKEN_FILE"); err != nil {
		return c, err
	}

	fromFlags := make(map[string]bool)
	given.Visit(func(g *pflag.Flag) {
		f := fs.Lookup(g.Name)
		if f == nil || wrong != nil || g.Annotations[notSetting] != nil {
			return // a flag of one command, not a setting
		}
		fromFlags[f.Name] = true
		switch v := g.Value.(type) {
		case pflag.SliceValue:
			wrong = f.Value.(pflag.SliceValue).Replace(v.GetSlice())
		case secretFlag:
			*f.Value.(secretFlag).s = *v.s
		default:
			wrong = f.Value.Set(v.String())
		}
	})
	if wrong != nil {
		return c, wrong
	}
	if err := c.oneToken(fromFlags, "--token", "--token-file"); err != nil {
		return c, err
	}

	if c.State == "" {
		dir, err := a.defaultState()
		if err != nil {
			return c, err
		}
		c.State = dir
	}
	return c, c.check()
}

// oneToken sees to it that of the two ways to give a token the one counts
// that was given last.
func (c *Config) oneToken(given map[string]bool, token, file string) error {
	switch {
	case given["token"] && given["token-file"]:
		return usage("%s and %s are both given: choose one", token, file)
	case given["token"]:
		c.TokenFile = ""
	case given["token-file"]:
		c.Token = ""
	}
	return nil
}

// check finds what no part could make sense of, and makes paths absolute.
func (c *Config) check() error {
	abs, err := filepath.Abs(c.State)
	if err != nil {
		return err
	}
	c.State = abs
	if c.Drain < 0 {
		return sandbox.Errorf(sandbox.Invalid, "drain", "%v is negative", c.Drain)
	}
	if len(c.Backend) == 0 {
		return sandbox.Errorf(sandbox.Invalid, "backend", "there is none").WithHint("known ones: %s", strings.Join(backendNames(), ", "))
	}
	for i, name := range c.Backend {
		if _, err := backendNamed(name); err != nil {
			return err
		}
		if slices.Contains(c.Backend[:i], name) {
			return sandbox.Errorf(sandbox.Invalid, "backend", "%s is given twice", name)
		}
	}
	if err := cleanDirs("allow_mount", c.AllowMount); err != nil {
		return err
	}
	if err := cleanDirs("allow_image", c.AllowImage); err != nil {
		return err
	}
	return c.checkTables()
}

// configFile returns the file to read, and whether somebody named it: then it
// must be there.
func (a *app) configFile(given *pflag.FlagSet) (file string, named bool) {
	if f := given.Lookup("config"); f != nil && f.Changed {
		return f.Value.String(), true
	}
	if v, _ := a.getenv("ATOLL_CONFIG"); v != "" {
		return v, true
	}
	if os.Geteuid() == 0 {
		return "/etc/atoll/atoll.toml", false
	}
	if dir, err := a.home("XDG_CONFIG_HOME", ".config"); err == nil {
		return filepath.Join(dir, "atoll", "atoll.toml"), false
	}
	return "", false
}

// defaultState returns the state folder of who names none.
func (a *app) defaultState() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/atoll", nil
	}
	dir, err := a.home("XDG_STATE_HOME", ".local/state")
	if err != nil {
		return "", hint(errors.New("there is no place for the state: HOME is not set"), "set HOME, or give a folder with --state or ATOLL_STATE")
	}
	return filepath.Join(dir, "atoll"), nil
}

// home returns the folder that the variable xdg names, else the one below
// HOME, as the XDG base directory specification has it: a relative path there
// counts as none.
func (a *app) home(xdg, below string) (string, error) {
	if dir, _ := a.getenv(xdg); filepath.IsAbs(dir) {
		return dir, nil
	}
	if dir, _ := a.getenv("HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, below), nil
	}
	return "", fmt.Errorf("neither %s nor HOME is set", xdg)
}

// readFile reads a file of settings into c. A file that nobody named need not
// be there.
func (c *Config) readFile(file string, named bool) error {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		if !named && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
			return nil
		}
		return &sandbox.Error{Kind: sandbox.Invalid, Msg: "the configuration file cannot be read", Err: err}
	}
	return c.parse(file, string(b))
}

// parse reads text, whose name is file, into c.
func (c *Config) parse(file, text string) error {
	meta, err := toml.Decode(text, c)
	var syntax toml.ParseError
	switch {
	case errors.As(err, &syntax):
		msg := syntax.Message
		if msg == "" {
			msg = err.Error()
		}
		if syntax.LastKey != "" {
			msg = syntax.LastKey + ": " + msg
		}
		return sandbox.Errorf(sandbox.Invalid, fmt.Sprintf("%s:%d", file, syntax.Position.Line), "%s", msg)
	case err != nil:
		return sandbox.Errorf(sandbox.Invalid, file, "%s", strings.TrimPrefix(err.Error(), "toml: "))
	}
	var raw map[string]any
	if _, err := toml.Decode(text, &raw); err != nil {
		return sandbox.Errorf(sandbox.Invalid, file, "%v", err)
	}
	if _, bare := raw["drain"].(int64); bare { // the decoder takes it for nanoseconds
		return sandbox.Errorf(sandbox.Invalid, file, "drain has no unit").WithHint("write it as 10s or 1m")
	}
	if key := notTable(raw, reflect.TypeFor[Config]()); key != "" {
		return sandbox.Errorf(sandbox.Invalid, file, "%s is a table", key).WithHint("write [%s]", strings.ToLower(key))
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		key := unknown[0]
		if (len(key) == 1 || key[0] == "owners") && key[len(key)-1] == "token" {
			return sandbox.Errorf(sandbox.Invalid, file, "the token cannot stand in the file").WithHint("put it into a file of its own, and name that with token_file")
		}
		// What is unknown may be a table above the key.
		last := len(key) - 1
		known := keys(reflect.TypeFor[Config](), key[:last])
		for ; known == nil; known = keys(reflect.TypeFor[Config](), key[:last]) {
			last--
		}
		key = key[:last+1]
		return sandbox.Errorf(sandbox.Invalid, file, "there is no setting %q", key.String()).WithHint("known ones: %s", strings.Join(known, ", "))
	}
	return nil
}

// notTable returns the first key of raw that is no table where t has one in
// which every key is a name that somebody chose: the decoder passes over it.
func notTable(raw map[string]any, t reflect.Type) string {
	for f := range t.Fields() {
		for key, value := range raw {
			if !strings.EqualFold(key, f.Tag.Get("toml")) {
				continue
			}
			inner, ok := value.(map[string]any)
			switch f.Type.Kind() {
			case reflect.Map:
				if !ok {
					return key
				}
			case reflect.Struct:
				if wrong := notTable(inner, f.Type); wrong != "" {
					return key + "." + wrong
				}
			}
		}
	}
	return ""
}

// keys returns the keys that a table of the file may have, sorted. The table
// is named by path, which begins at t. One that is not there has none, and nor
// has one in which every key is a name that somebody chose.
func keys(t reflect.Type, path []string) []string {
	if t.Kind() == reflect.Map && len(path) > 0 {
		return keys(t.Elem(), path[1:])
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	var known []string
	for f := range t.Fields() {
		name := f.Tag.Get("toml")
		switch {
		case name == "-":
		case len(path) == 0:
			known = append(known, name)
		case name == path[0]:
			return keys(f.Type, path[1:])
		}
	}
	slices.Sort(known)
	return known
}
