package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) releaseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release ID|NAME...",
		Short: "say that nobody needs a sandbox for now",
		Long: `Release says that nobody needs a sandbox for now. It lives on with its files and
processes, but it is the first to go when the daemon needs room, and atoll prune
--released removes it. Who uses it again, or acquires it (atoll create --reuse),
takes that back.`,
		Args:              atLeast("ID"),
		ValidArgsFunction: a.completeIDs(-1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			var failed []error
			for _, ref := range args {
				sb, err := find(cmd.Context(), ref, rt.LookAt, rt.LookAtName)
				if err == nil {
					var r sandbox.Releaser
					if r, err = ability[sandbox.Releaser](sb, "be released"); err == nil {
						err = r.Release(cmd.Context())
					}
				}
				if err != nil && !errors.Is(err, sandbox.NotExist) {
					err = fmt.Errorf("%s: %w", ref, err)
				}
				if err != nil {
					failed = append(failed, err)
				}
			}
			return a.several(failed)
		},
	}
	client(cmd)
	return cmd
}

// several says all errors but the last, which it returns.
func (a *app) several(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	last := len(errs) - 1
	for _, err := range errs[:last] {
		say(a.stderr, err)
	}
	return errs[last]
}
