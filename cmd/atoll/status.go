package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) statusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show how the daemon is",
		Long: `Status shows whether the daemon can make sandboxes, its backends and why one is
not there, how many sandboxes there are, and the last errors that callers got.
It ends with status 1 if no sandbox can be made.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			s, err := rt.Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = a.printJSON(s)
			} else {
				err = a.printTable(statusRows(s, time.Now()))
			}
			if err == nil && !s.Available {
				err = status(exitFailed)
			}
			return err
		},
	}
	client(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an object")
	return cmd
}

// shownFaults is how many of the last errors are shown to people.
const shownFaults = 10

// statusRows returns s for people.
func statusRows(s sandbox.Status, now time.Time) [][]string {
	availability := func(ok bool, why string) string {
		switch {
		case ok:
			return "available"
		case why == "":
			return "NOT AVAILABLE"
		}
		return "NOT AVAILABLE: " + why
	}
	rows := [][]string{{"sandboxes", availability(s.Available, s.Reason)}}
	for _, b := range s.Backends {
		rows = append(rows, []string{"backend " + b.Name, availability(b.Available, b.Reason)})
	}
	if !s.Started.IsZero() {
		rows = append(rows, []string{"runs for", span(now.Sub(s.Started))})
	}
	live := fmt.Sprintf("%d", s.Live)
	if s.MaxLive > 0 {
		live += fmt.Sprintf(" of %d", s.MaxLive)
	}
	rows = append(rows, []string{"live", fmt.Sprintf("%s, %d busy, %d released", live, s.Busy, s.Released)})
	if s.Warm > 0 {
		rows = append(rows, []string{"ready", fmt.Sprint(s.Warm)})
	}
	for i, f := range s.Errors {
		if i == shownFaults {
			rows = append(rows, []string{"", fmt.Sprintf("and %d more: see --json", len(s.Errors)-i)})
			break
		}
		what := fmt.Sprintf("%s ago, %s", span(now.Sub(f.At)), f.Op)
		if f.Sandbox != "" {
			what += " " + string(f.Sandbox)
		}
		if f.Owner != "" {
			what += " as " + string(f.Owner)
		}
		rows = append(rows, []string{"error", what + ": " + f.Message})
	}
	return rows
}
