package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) rmCommand() *cobra.Command {
	var force, all bool
	cmd := &cobra.Command{
		Use:               "rm [flags] ID|NAME...",
		Short:             "remove sandboxes, with their files and processes",
		ValidArgsFunction: a.completeIDs(-1),
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case all && len(args) > 0:
				return usage("--all and a sandbox are both given: choose one")
			case all:
				return nil
			}
			return atLeast("ID")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			if all {
				return removeAll(cmd.Context(), rt)
			}
			var failed error
			for _, ref := range args {
				sb, err := find(cmd.Context(), ref, rt.LookAt, rt.LookAtName)
				if err == nil {
					err = sb.Remove(cmd.Context())
				}
				if err == nil || force && errors.Is(err, sandbox.NotExist) {
					continue
				}
				// The others shall go all the same.
				if failed != nil {
					say(a.stderr, failed)
				}
				if failed = err; !errors.Is(err, sandbox.NotExist) {
					failed = fmt.Errorf("%s: %w", ref, err)
				}
			}
			return failed
		},
	}
	client(cmd)
	cmd.Flags().BoolVarP(&force, "force", "f", false, "a sandbox that is not there is no error")
	cmd.Flags().BoolVar(&all, "all", false, "remove all sandboxes")
	return cmd
}
