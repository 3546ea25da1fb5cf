package main

import (
	"bufio"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) pruneCommand() *cobra.Command {
	var (
		want   sandbox.Prune
		labels []string
		yes    bool
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "prune [flags]",
		Short: "remove sandboxes that nothing uses",
		Long: `Prune removes sandboxes that nothing uses: none of their processes is waited
for or runs detached, none of their files is open, nobody is connected to them.
The flags say which; all that are given must hold. Without any, all that nothing
uses go.

It shows which they are and asks before it removes them; --yes does not ask. It
prints the ids of those that it removed.`,
		Example: `  atoll prune --unused 24h
  atoll prune --released --yes
  atoll prune --label team=blue --dry-run`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if want.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			if want.Unused < 0 {
				return sandbox.Errorf(sandbox.Invalid, "--unused", "%v is negative", want.Unused)
			}
			if !want.DryRun && !yes && !isTerminal(a.stdin) {
				return hint(usage("there is nobody to ask whether they may go"), "say --yes, or --dry-run to see which they are")
			}
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			if !want.DryRun && !yes {
				try := want
				try.DryRun = true
				would, err := rt.Prune(cmd.Context(), try)
				if err != nil {
					return err
				}
				if ok, err := a.confirm(would); !ok || err != nil {
					return err
				}
			}
			gone, err := rt.Prune(cmd.Context(), want)
			if err != nil {
				return err
			}
			if asJSON {
				if gone == nil {
					gone = []sandbox.Info{}
				}
				return a.printJSON(gone)
			}
			if want.DryRun {
				return a.printTable(lsRows(gone, time.Now()))
			}
			for _, i := range gone {
				if err := a.println(string(i.ID)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	client(cmd)
	fs := cmd.Flags()
	fs.DurationVar(&want.Unused, "unused", 0, "those that nothing has used for this time, such as 24h")
	fs.BoolVar(&want.Released, "released", false, "those that are released")
	fs.StringArrayVar(&labels, "label", nil, "those with this label, KEY=VALUE; may be repeated")
	fs.BoolVarP(&want.DryRun, "dry-run", "n", false, "show which they are, and remove nothing")
	fs.BoolVarP(&yes, "yes", "y", false, "do not ask")
	fs.BoolVar(&asJSON, "json", false, "print an array of objects")
	return cmd
}

// confirm shows the person which sandboxes would go, and asks.
func (a *app) confirm(would []sandbox.Info) (bool, error) {
	if len(would) == 0 {
		return false, nil
	}
	now := time.Now()
	for _, i := range would {
		fmt.Fprintf(a.stderr, "%s  %s  idle %s\n", i.ID, printable(names(i)), idleOf(i, now))
	}
	what := "this sandbox"
	if n := len(would); n > 1 {
		what = fmt.Sprintf("these %d sandboxes", n)
	}
	fmt.Fprintf(a.stderr, "remove %s, with all files? [y/N] ", what)
	line, err := bufio.NewReader(a.stdin).ReadString('\n')
	switch answer := strings.ToLower(strings.TrimSpace(line)); {
	case answer == "y" || answer == "yes":
		return true, nil
	case err != nil && line == "":
		fmt.Fprintln(a.stderr)
	}
	return false, nil
}

// parseLabels reads KEY=VALUE.
func parseLabels(texts []string) (map[string]string, error) {
	var labels map[string]string
	for _, text := range texts {
		k, v, ok := strings.Cut(text, "=")
		if !ok {
			return nil, sandbox.Errorf(sandbox.Invalid, "labels", "%q is not KEY=VALUE", text)
		}
		if labels == nil {
			labels = make(map[string]string)
		}
		labels[k] = v
	}
	return labels, nil
}
