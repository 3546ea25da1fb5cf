package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// An inspection is what atoll inspect prints: the Info, and what the sandbox
// uses where that is known.
type inspection struct {
	sandbox.Info
	Usage *sandbox.Usage `json:"usage,omitempty"`
}

func (a *app) inspectCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "inspect [flags] ID|NAME",
		Short:             "show what is true of a sandbox",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, done, err := a.look(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			info, err := sb.Info(cmd.Context())
			if err != nil {
				return err
			}
			i := inspection{Info: info}
			if m, ok := sb.(sandbox.Meter); ok {
				u, err := m.Usage(cmd.Context())
				if err != nil && !errors.Is(err, sandbox.Unsupported) {
					return err
				}
				if err == nil {
					i.Usage = &u
				}
			}
			if asJSON {
				return a.printJSON(i)
			}
			return a.printTable(i.rows())
		},
	}
	client(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an object")
	return cmd
}

// rows returns the inspection for people.
func (i inspection) rows() [][]string {
	rows := [][]string{
		{"id", string(i.ID)},
		{"state", stateOf(i.Info)},
		{"backend", i.Backend},
		{"image", i.Image},
		{"user", i.User},
		{"workdir", i.Workdir},
		{"network", string(i.Network)},
		{"created", i.Created.Local().Format(time.DateTime)},
	}
	for _, name := range i.Names {
		rows = append(rows, []string{"name", name})
	}
	if i.Owner != "" {
		rows = append(rows, []string{"owner", string(i.Owner)})
	}
	if i.Profile != "" {
		rows = append(rows, []string{"profile", i.Profile})
	}
	if !i.Used.IsZero() {
		used := i.Used.Local().Format(time.DateTime)
		switch {
		case i.Busy == 1:
			used = "now, by one"
		case i.Busy > 1:
			used = fmt.Sprintf("now, by %d", i.Busy)
		}
		rows = append(rows, []string{"used", used})
	}
	switch {
	case i.Idle > 0:
		rows = append(rows, []string{"idle", "removed when nothing has used it for " + i.Idle.String()})
	case i.Idle < 0:
		rows = append(rows, []string{"idle", "may be for any time"})
	}
	if !i.Expires.IsZero() {
		rows = append(rows, []string{"expires", i.Expires.Local().Format(time.DateTime)})
	}
	if i.ReadOnlyRoot {
		rows = append(rows, []string{"root", "read-only"})
	}
	for _, k := range slices.Sorted(maps.Keys(i.Labels)) {
		rows = append(rows, []string{"label", k + "=" + i.Labels[k]})
	}
	for _, m := range i.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		rows = append(rows, []string{"mount", fmt.Sprintf("%s at %s, %s", m.Source, m.Target, mode)})
	}
	limit := func(name, what string, wanted bool) {
		if !wanted {
			return
		}
		how := i.Kept[name]
		if how == "" {
			how = "NOT KEPT"
		} else {
			how = "kept by " + how
		}
		rows = append(rows, []string{"limit", fmt.Sprintf("%s %s, %s", name, what, how)})
	}
	limit("memory", formatSize(i.Limits.Memory), i.Limits.Memory > 0)
	limit("cpu", fmt.Sprint(i.Limits.CPU), i.Limits.CPU > 0)
	limit("pids", fmt.Sprint(i.Limits.PIDs), i.Limits.PIDs > 0)
	limit("disk", formatSize(i.Limits.Disk), i.Limits.Disk > 0)
	limit("workspace", formatSize(i.Limits.Workspace), i.Limits.Workspace > 0)
	if u := i.Usage; u != nil {
		rows = append(rows, []string{"uses", fmt.Sprintf("memory %s, processes %d, processor time %v, disk %s",
			formatSize(u.Memory), u.PIDs, u.CPU.Round(time.Millisecond), formatSize(u.Disk))})
	}
	has := make([]string, len(i.Isolation.Has))
	for n, p := range i.Isolation.Has {
		has[n] = string(p)
	}
	rows = append(rows, []string{"has", strings.Join(has, " ")})
	for _, g := range i.Isolation.Missing {
		rows = append(rows, []string{"lacks", string(g.Property) + ": " + g.Why})
	}
	return rows
}
