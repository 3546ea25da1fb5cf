package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) psCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "ps [flags] ID",
		Short:             "list the detached processes of a sandbox",
		Args:              exactly("ID"),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, done, err := a.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			d, err := ability[sandbox.Detacher](sb, "keep a process that nobody waits for")
			if err != nil {
				return err
			}
			ps, err := d.Processes(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				if ps == nil {
					ps = []sandbox.ProcessInfo{}
				}
				return a.printJSON(ps)
			}
			rows := [][]string{{"ID", "PID", "STATUS", "AGE", "OUTPUT", "COMMAND"}}
			for _, p := range ps {
				state := "running"
				if p.Exit != nil {
					state = fmt.Sprintf("%s %d", p.Exit.Reason, p.Exit.Status())
				}
				rows = append(rows, []string{string(p.ID), fmt.Sprint(p.PID), state, span(time.Since(p.Started)), formatSize(p.Cursor), strings.Join(p.Args, " ")})
			}
			return a.printTable(rows)
		},
	}
	client(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of objects")
	return cmd
}

func (a *app) killCommand() *cobra.Command {
	sig := "TERM"
	cmd := &cobra.Command{
		Use:   "kill [flags] ID PROCESS",
		Short: "send a signal to a detached process",
		Long: `Kill sends a signal to a detached process and its process group. KILL goes to
its whole tree, whatever became of it.`,
		Args:              exactly("ID", "PROCESS"),
		ValidArgsFunction: a.completeProcess,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := sandbox.ParseSignal(sig)
			if err != nil {
				return err
			}
			sb, done, err := a.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			d, err := ability[sandbox.Detacher](sb, "keep a process that nobody waits for")
			if err != nil {
				return err
			}
			p, err := d.Attach(cmd.Context(), sandbox.ProcessID(args[1]), sandbox.AttachOptions{Cursor: -1})
			if err != nil {
				return err
			}
			return p.Signal(cmd.Context(), s)
		},
	}
	client(cmd)
	cmd.Flags().StringVarP(&sig, "signal", "s", sig, "the signal's name")
	return cmd
}
