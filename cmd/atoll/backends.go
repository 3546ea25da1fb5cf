package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/backend/docker"
	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
)

// A backend is a way to make sandboxes that this program has.
type backend struct {
	name string
	what string // for the help

	// open returns the backend's Runtime. dir is its own folder below the
	// state folder, which need not be there yet.
	open func(ctx context.Context, c *Config, dir string, log *slog.Logger) (sandbox.Runtime, error)
}

// backends is the list. The first is the default.
var backends = []backend{
	{"linux", "namespaces of this machine's Linux kernel", openLinux},
	{"docker", "containers of a Docker or Podman engine", openDocker},
	{"memory", "a pretended Unix of Go functions, for trying things out; isolates nothing, and nothing outlives the daemon", openMemory},
}

func openLinux(ctx context.Context, c *Config, dir string, log *slog.Logger) (sandbox.Runtime, error) {
	return linux.New(c.linux(dir, log))
}

// linux returns the linux backend's own configuration.
func (c *Config) linux(dir string, log *slog.Logger) linux.Config {
	return linux.Config{
		State:        dir,
		Cache:        filepath.Join(c.State, "cache"),
		MountRoots:   c.mountRoots(),
		ImageRoots:   c.AllowImage,
		Private:      c.private(),
		Guest:        c.Linux.Guest,
		CgroupParent: c.Linux.CgroupParent,
		Log:          log,
	}
}

// private returns what no sandbox is shown: the state of all backends, the
// tokens, the sockets on which the daemon listens, and the audit record.
func (c *Config) private() []string {
	p := []string{c.State}
	if c.TokenFile != "" {
		p = append(p, c.TokenFile)
	}
	for _, o := range c.Owners {
		p = append(p, o.TokenFile)
	}
	for _, at := range c.Listen {
		if socket, ok := strings.CutPrefix(at, "unix:"); ok {
			p = append(p, socket)
		}
	}
	return append(p, c.Audit.files(c.State)...)
}

func openDocker(ctx context.Context, c *Config, dir string, log *slog.Logger) (sandbox.Runtime, error) {
	return docker.New(ctx, docker.Config{
		Host:       c.Docker.Host,
		Runtime:    c.Docker.Runtime,
		Image:      c.Docker.Image,
		Pull:       docker.Pull(c.Docker.Pull),
		Guest:      c.Docker.Guest,
		Program:    linux.GuestProgram(),
		State:      dir,
		MountRoots: c.mountRoots(),
		Private:    c.private(),
		Log:        log,
		Progress: func(p docker.Progress) {
			if p.Total == 0 { // what has bytes comes many times a second
				log.Debug("pulling", "image", p.Image, "layer", p.Layer, "status", p.Status)
			}
		},
	})
}

func openMemory(context.Context, *Config, string, *slog.Logger) (sandbox.Runtime, error) {
	return memory.New(memory.Config{}), nil
}

// later are backends that the design has and this program has not.
var later = []string{"host", "kube", "box", "opensandbox", "aio", "e2b"}

// backendNamed returns the backend with this name.
func backendNamed(name string) (backend, error) {
	for _, b := range backends {
		if b.name == name {
			return b, nil
		}
	}
	known := strings.Join(backendNames(), ", ")
	for _, l := range later {
		if l == name {
			return backend{}, sandbox.Errorf(sandbox.Unsupported, "backend", "this version of atoll has no backend %s", name).WithHint("it has: %s", known)
		}
	}
	return backend{}, sandbox.Errorf(sandbox.Invalid, "backend", "%q is not a backend", name).WithHint("known ones: %s", known)
}

func backendNames() []string {
	names := make([]string, len(backends))
	for i, b := range backends {
		names[i] = b.name
	}
	return names
}

// openBackend opens the backend with this name in its folder below state.
func openBackend(ctx context.Context, c *Config, name, state string, log *slog.Logger) (sandbox.Runtime, error) {
	b, err := backendNamed(name)
	if err != nil {
		return nil, err
	}
	rt, err := b.open(ctx, c, filepath.Join(state, b.name), log)
	if err != nil && sandbox.KindOf(err) == sandbox.Unsupported {
		err = hint(err, "atoll doctor shows what is missing, and how to mend it")
	}
	return rt, err
}

// removeAll removes every sandbox of rt.
func removeAll(ctx context.Context, rt sandbox.Runtime) error {
	var ids []sandbox.ID
	for info, err := range rt.List(ctx) {
		if err != nil {
			return err
		}
		ids = append(ids, info.ID)
	}
	var errs []error
	for _, id := range ids {
		sb, err := rt.Open(ctx, id)
		if errors.Is(err, sandbox.NotExist) {
			continue
		}
		if err == nil {
			err = sb.Remove(ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
