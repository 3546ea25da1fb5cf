package main

import (
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) pauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "pause ID|NAME",
		Short:             "stop every process of a sandbox where it is",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, done, err := a.pauser(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			return p.Pause(cmd.Context())
		},
	}
	client(cmd)
	return cmd
}

func (a *app) resumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "resume ID|NAME",
		Short:             "let the processes of a paused sandbox go on",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, done, err := a.pauser(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			return p.Resume(cmd.Context())
		},
	}
	client(cmd)
	return cmd
}

func (a *app) pauser(cmd *cobra.Command, id string) (sandbox.Pauser, func(), error) {
	sb, done, err := a.open(cmd, id)
	if err != nil {
		return nil, nil, err
	}
	p, err := ability[sandbox.Pauser](sb, "be paused")
	if err != nil {
		done()
		return nil, nil, err
	}
	return p, done, nil
}
