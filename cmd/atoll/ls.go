package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) lsCommand() *cobra.Command {
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the sandboxes",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			all := []sandbox.Info{} // in JSON no sandboxes are [], not null
			for info, err := range rt.List(cmd.Context()) {
				if err != nil {
					return err
				}
				all = append(all, info)
			}
			slices.SortFunc(all, byAge)
			if asJSON {
				return a.printJSON(all)
			}
			if quiet {
				for _, i := range all {
					if err := a.println(string(i.ID)); err != nil {
						return err
					}
				}
				return nil
			}
			return a.printTable(lsRows(all, time.Now()))
		},
	}
	client(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of objects")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the ids alone")
	return cmd
}

// byAge puts the oldest first.
func byAge(x, y sandbox.Info) int {
	return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID))
}

// lsRows returns the table of all. Who sees sandboxes of several owners is told
// whose each is.
func lsRows(all []sandbox.Info, now time.Time) [][]string {
	whose := severalOwners(all)
	row := func(id, name, owner string, rest ...string) []string {
		if !whose {
			return append([]string{id, name}, rest...)
		}
		return append([]string{id, name, owner}, rest...)
	}
	rows := [][]string{row("ID", "NAME", "OWNER", "STATE", "BACKEND", "IMAGE", "AGE", "IDLE", "EXPIRES", "LABELS")}
	for _, i := range all {
		expires := "-"
		if !i.Expires.IsZero() {
			expires = "in " + span(i.Expires.Sub(now).Round(time.Second))
		}
		rows = append(rows, row(string(i.ID), names(i), dash(string(i.Owner)), stateOf(i), i.Backend, i.Image, span(now.Sub(i.Created)), idleOf(i, now), expires, labels(i.Labels)))
	}
	return rows
}

// severalOwners reports whether all are not one owner's.
func severalOwners(all []sandbox.Info) bool {
	return slices.ContainsFunc(all, func(i sandbox.Info) bool { return i.Owner != all[0].Owner })
}

// names returns what a sandbox is called, or a dash.
func names(i sandbox.Info) string { return dash(strings.Join(i.Names, ",")) }

// stateOf returns what a sandbox is doing.
func stateOf(i sandbox.Info) string {
	if i.Released {
		return string(i.State) + ", released"
	}
	return string(i.State)
}

// idleOf returns for how long nothing has used a sandbox, and how long that may
// last if it is bounded.
func idleOf(i sandbox.Info, now time.Time) string {
	switch {
	case i.Busy > 0:
		return "busy"
	case i.Used.IsZero():
		return "-"
	case i.Idle > 0:
		return span(now.Sub(i.Used)) + " of " + span(i.Idle)
	}
	return span(now.Sub(i.Used))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func labels(m map[string]string) string {
	if len(m) == 0 {
		return "-"
	}
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+"="+m[k])
	}
	return strings.Join(s, ",")
}

// span writes a time in its largest unit of which there are two at least: 5s,
// 12m, 119m, 3h, 8d.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
