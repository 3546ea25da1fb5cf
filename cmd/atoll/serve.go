package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/api/native"
	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "run the daemon",
		Long: `Serve runs the daemon, which makes sandboxes for all who have its token. When it
is ready it prints one line, with its address.

The token is made at the first start and stands in the file token of the state
folder, which only its owner can read. Commands of the same user find it there.
Who brings it sees everything. Owners with tokens of their own, who see what is
their own, stand in the configuration file: see docs/configuration.md.

SIGTERM and SIGINT end the daemon: it takes no more requests, waits for those
that run as long as --drain says, and leaves the sandboxes running for the next
daemon on the same state folder. With --remove-on-exit it removes them.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Flags())
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), &c)
		},
	}
	settings(cmd, "listen", "state", "backend", "host", "token", "token-file", "allow-mount", "allow-image", "max-live", "remove-on-exit", "drain", "log")
	return cmd
}

// serve is the daemon: it takes the state folder, opens the backends, listens,
// and undoes that in the other order when ctx ends.
func (a *app) serve(ctx context.Context, c *Config) (err error) {
	log := a.logger(c.Log)
	if err := makeState(c.State); err != nil {
		return err
	}
	held, err := lockDaemon(c.State)
	if err != nil {
		return err
	}
	defer held.release()

	token, err := a.daemonToken(c)
	if err != nil {
		return err
	}
	all, err := openStack(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() {
		if c.RemoveOnExit {
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
			defer cancel()
			err = errors.Join(err, removeAll(bye, all.rt))
		}
		err = errors.Join(err, all.Close())
	}()

	owners, err := c.ownerTokens()
	if err != nil {
		return err
	}
	guard, err := gate.New(gate.Config{Token: token, Owners: owners, Hosts: c.Hosts, Log: log})
	if err != nil {
		return err
	}
	api := native.New(all.views("native"), native.Config{Version: programVersion(), Log: log})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", gate.Health)
	mux.Handle("GET /metrics", guard.Guard(operatorOnly(all.metrics, api.Refuse), api.Refuse, gate.Bearer))
	mux.Handle("/", guard.Guard(api, api.Refuse, gate.Bearer))
	var busy sync.WaitGroup
	server := gate.Server(counted(mux, &busy), log)
	defer func() { err = errors.Join(err, api.Close(), server.Close()) }()

	listeners, err := listenAll(c.Listen)
	if err != nil {
		return err
	}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- server.Serve(l) }()
	}
	if err := a.announce(listeners); err != nil {
		return err
	}

	select {
	case <-ctx.Done():
	case err := <-failed:
		return err
	}
	log.Info("ending", "why", context.Cause(ctx), "drain", c.Drain)
	api.Drain()
	drain(server, &busy, c.Drain, log)
	return nil
}

// counted counts in busy the requests that h works on, upgraded connections
// included.
func counted(h http.Handler, busy *sync.WaitGroup) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		busy.Add(1)
		defer busy.Done()
		h.ServeHTTP(w, r)
	})
}

// drain takes no more requests and waits until those that run have ended, at
// most for patience.
func drain(server *http.Server, busy *sync.WaitGroup, patience time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := server.Shutdown(ctx)
	if err == nil {
		// It does not know of upgraded connections.
		idle := make(chan struct{})
		go func() { busy.Wait(); close(idle) }()
		select {
		case <-idle:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		log.Warn("some requests did not end in time", "drain", patience)
	}
}

// daemonToken returns the token that requests must show, and says where it
// is if it was made just now.
func (a *app) daemonToken(c *Config) (sandbox.Secret, error) {
	if c.Token != "" {
		return c.Token, nil
	}
	if c.TokenFile != "" {
		t, err := readToken(c.TokenFile, false)
		if errors.Is(err, fs.ErrNotExist) {
			err = sandbox.Errorf(sandbox.Invalid, "token_file", "there is no file %s", c.TokenFile)
		}
		return t, err
	}
	t, made, err := makeToken(c.State)
	if err == nil && made {
		fmt.Fprintf(a.stderr, "atoll: made a token, in %s\n", tokenFile(c.State))
	}
	return t, err
}

// ownerTokens reads the tokens of the owners.
func (c *Config) ownerTokens() (map[sandbox.Owner]sandbox.Secret, error) {
	tokens := make(map[sandbox.Owner]sandbox.Secret)
	for name, o := range c.Owners {
		if own, err := filepath.Abs(c.TokenFile); err == nil && c.TokenFile != "" && own == o.TokenFile {
			return nil, sandbox.Errorf(sandbox.Invalid, "owners."+name+".token_file", "%s is that of the daemon too", o.TokenFile).WithHint("give each a token of its own")
		}
		t, err := readToken(o.TokenFile, false)
		if errors.Is(err, fs.ErrNotExist) {
			err = sandbox.Errorf(sandbox.Invalid, "owners."+name+".token_file", "there is no file %s", o.TokenFile).WithHint("put a token of %d characters or more into it, and let nobody else read it", gate.MinToken)
		}
		if err != nil {
			return nil, err
		}
		tokens[sandbox.Owner(name)] = t
	}
	return tokens, nil
}

// announce prints the line by which others know that the daemon is ready.
func (a *app) announce(listeners []net.Listener) error {
	first := listeners[0]
	for _, l := range listeners {
		if l.Addr().Network() != "unix" {
			first = l
			break
		}
	}
	for _, l := range listeners {
		if l != first {
			fmt.Fprintf(a.stderr, "atoll: listens on %s as well\n", address(l))
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
			fmt.Fprintf(a.stderr, "atoll: %s can be reached from other machines, and is not encrypted\n       put a proxy with TLS before it\n", address(l))
		}
	}
	return a.println("atoll: ready on " + address(first))
}

// address returns where l listens, as ATOLL_HOST has it.
func address(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return "http://" + l.Addr().String()
}

// listenAll listens on all addresses, or on none.
func listenAll(addresses []string) (all []net.Listener, err error) {
	if len(addresses) == 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "listen", "there is no address")
	}
	defer func() {
		if err != nil {
			for _, l := range all {
				l.Close()
			}
		}
	}()
	for _, at := range addresses {
		l, err := listen(at)
		if err != nil {
			return all, err
		}
		all = append(all, l)
	}
	return all, nil
}

// listen listens on HOST:PORT or unix:PATH.
func listen(at string) (net.Listener, error) {
	path, ok := strings.CutPrefix(at, "unix:")
	if !ok {
		at = strings.TrimPrefix(at, "http://")
		if _, _, err := net.SplitHostPort(at); err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "listen", "%q is not an address", at).WithHint("use HOST:PORT, such as %s, or unix:PATH", defaultListen)
		}
		l, err := net.Listen("tcp", at)
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // without saying again where
		}
		if err != nil {
			return nil, hint(fmt.Errorf("cannot listen on %s: %w", at, err), "choose another address with --listen")
		}
		return l, nil
	}
	if !filepath.IsAbs(path) {
		return nil, sandbox.Errorf(sandbox.Invalid, "listen", "%q is not an absolute path", path).WithHint("write unix:/path")
	}
	return listenUnix(path)
}

// listenUnix listens on a socket that only its owner can use. A socket at
// which nobody listens any more is replaced; nothing else is.
func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, sandbox.Errorf(sandbox.Invalid, "listen", "%s is there already, and is no socket", path)
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, sandbox.Errorf(sandbox.Conflict, "listen", "somebody listens at %s already", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// Made under a name in a folder that nobody else can enter, so that
	// nobody connects before its mode is set.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".atoll-")
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path))
	if err != nil {
		l.Close()
		return nil, err
	}
	return &unixListener{l, path}, nil
}

// A unixListener is a socket that was renamed: it knows its name, and removes
// it.
type unixListener struct {
	*net.UnixListener
	path string
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if err == nil {
		os.Remove(l.path)
	}
	return err
}
