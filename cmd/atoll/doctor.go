package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/backend/docker"
	"github.com/atoll-run/atoll/backend/linux"
)

// A diagnosis is what atoll doctor prints.
type diagnosis struct {
	User    string          `json:"user"`
	State   string          `json:"state"`
	Backend string          `json:"backend"` // the default one
	Works   bool            `json:"works"`   // whether it can make sandboxes here
	Probes  []linux.Finding `json:"probes"`
}

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what sandboxes this machine can have, and what mends it",
		Long: `Doctor tries out what the linux backend needs, by doing it, for the user that
calls it. It says of each thing whether it works, what that means, and with
what command it can be mended. It changes nothing.

It ends with status 1 if the default backend cannot make sandboxes here.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Flags())
			if err != nil {
				return err
			}
			d := diagnose(cmd.Context(), &c)
			if asJSON {
				err = a.printJSON(d)
			} else {
				_, err = io.WriteString(a.stdout, d.String())
			}
			if err == nil && !d.Works {
				return status(exitFailed)
			}
			return err
		},
	}
	settings(cmd, "backend", "state")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an object")
	return cmd
}

func diagnose(ctx context.Context, c *Config) diagnosis {
	d := diagnosis{User: fmt.Sprintf("user %d", os.Geteuid()), State: c.State, Backend: c.Backend[0], Works: true}
	if u, err := user.Current(); err == nil && u.Username != "" {
		d.User = u.Username
	}
	d.Probes = append(linux.Probe(ctx, c.linux(filepath.Join(c.State, "linux"), slog.New(slog.DiscardHandler))), probeState(c.State))
	for _, f := range d.Probes {
		if f.Needed && !f.OK && d.Backend == "linux" {
			d.Works = false
		}
	}
	if slices.Contains(c.Backend, "docker") {
		f := probeDocker(ctx, c, d.Backend == "docker")
		d.Probes = append(d.Probes, f)
		d.Works = d.Works && (f.OK || !f.Needed)
	}
	return d
}

// probeDocker finds out whether a container engine answers.
func probeDocker(ctx context.Context, c *Config, needed bool) linux.Finding {
	f := linux.Finding{Name: "container engine", Needed: needed, Means: "what the docker backend makes sandboxes on"}
	what, err := docker.Probe(ctx, docker.Config{Host: c.Docker.Host, Runtime: c.Docker.Runtime, Guest: c.Docker.Guest})
	f.OK, f.Detail = err == nil, what
	if err != nil {
		f.Detail = err.Error()
	}
	return f
}

// probeState finds out whether the state folder, or the first folder above it
// that is there, can be written.
func probeState(dir string) linux.Finding {
	f := linux.Finding{Name: "state folder", Needed: true, Detail: dir, Means: "where everything stands that outlives the program"}
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			f.Detail = at + " is not a folder"
			break
		}
		if err == nil {
			tmp, err := os.MkdirTemp(at, ".atoll-doctor-")
			if err == nil {
				f.OK = os.Remove(tmp) == nil
				return f
			}
			f.Detail = err.Error()
			break
		}
		if at == filepath.Dir(at) {
			f.Detail = err.Error()
			break
		}
		at = filepath.Dir(at)
	}
	f.Mend = "export ATOLL_STATE=$HOME/.local/state/atoll"
	return f
}

// String writes d for people.
func (d diagnosis) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "As %s, with the state in %s.\n\n", d.User, d.State)
	for _, f := range d.Probes {
		mark := "ok     "
		switch {
		case !f.OK && f.Needed:
			mark = "MISSING"
		case !f.OK:
			mark = "without"
		}
		fmt.Fprintf(&b, "%s  %s", mark, f.Name)
		if f.Detail != "" {
			fmt.Fprintf(&b, ": %s", f.Detail)
		}
		b.WriteByte('\n')
		if f.Means != "" {
			fmt.Fprintf(&b, "         %s\n", f.Means)
		}
		if !f.OK && f.Mend != "" {
			fmt.Fprintf(&b, "         mend: %s\n", f.Mend)
		}
	}
	if d.Works {
		fmt.Fprintf(&b, "\nThe backend %s works here.\n", d.Backend)
	} else {
		fmt.Fprintf(&b, "\nThe backend %s does not work here: see what is MISSING above.\n", d.Backend)
	}
	return b.String()
}
