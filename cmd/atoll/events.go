package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) eventsCommand() *cobra.Command {
	var asJSON, follow bool
	var since string
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "show what happened to the sandboxes",
		Long: `Events shows what happened to the sandboxes since the daemon began, as far as it
remembers: which were made, acquired, released, changed and are gone, and why;
which processes were started and how they ended; what was refused. The last
column says what it was in detail.

With --follow it goes on until it is ended. A number that is missing belongs to
what happened to others.`,
		Example: `  atoll events --since 10m
  atoll events --follow --json | jq -r 'select(.kind == "gone") | .sandbox + " " + .why'`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			for e, err := range rt.Events(cmd.Context(), 0, follow) {
				if err != nil {
					return err
				}
				if e.At.Before(from) {
					continue
				}
				line := eventLine(e)
				if asJSON {
					b, err := json.Marshal(e)
					if err != nil {
						return err
					}
					line = string(b)
				}
				if err := a.println(line); err != nil {
					return err
				}
			}
			return cmd.Context().Err()
		},
	}
	client(cmd)
	fs := cmd.Flags()
	fs.BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	fs.StringVar(&since, "since", "", "begin with what happened this long ago, such as 10m, or at this time, such as 2030-01-31T12:00:00Z")
	fs.BoolVar(&asJSON, "json", false, "print one object a line")
	return cmd
}

// parseSince reads how long ago, or when.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, sandbox.Errorf(sandbox.Invalid, "--since", "%q is neither how long ago nor a time", s).WithHint("write 10m, or %s", now.Add(-time.Hour).UTC().Format(time.RFC3339))
	}
	return t, nil
}

// eventLine returns e for people, in columns as far as they can be kept without
// knowing what follows.
func eventLine(e sandbox.Event) string {
	what := []string{e.Name}
	if e.Owner != "" && e.Owner != sandbox.Operator {
		what = append(what, "of "+string(e.Owner))
	}
	if e.Why != "" {
		what = append(what, string(e.Why))
	}
	if e.By != "" && e.By != e.Owner {
		what = append(what, "by "+string(e.By))
	}
	what = slices.DeleteFunc(append(what, e.Detail), func(s string) bool { return s == "" })
	return strings.TrimRight(fmt.Sprintf("%s  %-13s  %-20s  %s", e.At.Local().Format(time.DateTime), printable(string(e.Kind)), cmp.Or(string(e.Sandbox), "-"), printable(strings.Join(what, ", "))), " ")
}
