package docker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/sandbox"
)

// engineHost returns where the engine is and how it is talked to.
func engineHost(host string) (string, []client.Opt, error) {
	var opts []client.Opt
	if host == "" {
		if host = os.Getenv(client.EnvOverrideHost); host != "" {
			opts = append(opts, client.WithTLSClientConfigFromEnv())
		}
	}
	if host == "" {
		for _, p := range usualSockets() {
			if _, err := os.Stat(p); err == nil {
				host = "unix://" + p
				break
			}
		}
	}
	if host == "" {
		return "", nil, sandbox.Errorf(sandbox.Unavailable, "docker.host", "no container engine listens at a usual place").WithHint("start Docker or Podman's socket, or set DOCKER_HOST or host in [docker]")
	}
	u, err := url.Parse(host)
	if err != nil || u.Scheme != "unix" && u.Scheme != "tcp" && u.Scheme != "http" && u.Scheme != "https" {
		return "", nil, sandbox.Errorf(sandbox.Invalid, "docker.host", "%q is not an engine's address", host).WithHint("give unix:///PATH or tcp://HOST:PORT; an engine behind ssh can be forwarded to a socket")
	}
	return host, append(opts, client.WithHost(host)), nil
}

// usualSockets are where engines listen unless they are told otherwise.
func usualSockets() []string {
	list := []string{"/var/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		list = append(list, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman", "podman.sock"))
	}
	return append(list, "/run/podman/podman.sock")
}

// knock tells why a socket cannot be reached better than the client does.
func knock(ctx context.Context, host string) error {
	u, err := url.Parse(host)
	if err != nil || u.Scheme != "unix" {
		return nil
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", u.Path)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrNotExist):
		return &sandbox.Error{Kind: sandbox.Unavailable, Field: "docker.host", Msg: "the engine's socket " + u.Path + " is not there", Hint: "start the engine, or set DOCKER_HOST or host in [docker]", Err: err}
	case errors.Is(err, fs.ErrPermission):
		return &sandbox.Error{Kind: sandbox.Denied, Field: "docker.host", Msg: "this user may not use the engine's socket " + u.Path, Hint: "use a rootless engine, or a user of the socket's group, who is as good as root", Err: err}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &sandbox.Error{Kind: sandbox.Unavailable, Field: "docker.host", Msg: "nobody listens on the engine's socket " + u.Path, Hint: "start the engine", Err: err}
	}
	return &sandbox.Error{Kind: sandbox.Unavailable, Field: "docker.host", Msg: "the engine cannot be reached", Hint: "start the engine", Err: err}
}
