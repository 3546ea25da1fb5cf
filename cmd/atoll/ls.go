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
			slices.SortFunc(all, func(x, y sandbox.Info) int {
				return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.ID, y.ID))
			})
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
			rows := [][]string{{"ID", "STATE", "BACKEND", "IMAGE", "AGE", "EXPIRES", "LABELS"}}
			for _, i := range all {
				expires := "-"
				if !i.Expires.IsZero() {
					expires = "in " + span(time.Until(i.Expires).Round(time.Second))
				}
				rows = append(rows, []string{string(i.ID), string(i.State), i.Backend, i.Image, span(time.Since(i.Created)), expires, labels(i.Labels)})
			}
			return a.printTable(rows)
		},
	}
	client(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of objects")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the ids alone")
	return cmd
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
