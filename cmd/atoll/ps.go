package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// A psEntry is a detached process, and where it runs.
type psEntry struct {
	Sandbox sandbox.ID `json:"sandbox"`
	sandbox.ProcessInfo
}

func (a *app) psCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps [flags] [ID|NAME]",
		Short: "list the detached processes of a sandbox, or of all",
		Long: `Ps lists the detached processes of a sandbox, those that run and those ended
ones that it still remembers. Without ID it lists those of all sandboxes.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly("ID")(cmd, args)
		},
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var found []psEntry
			var err error
			if len(args) == 0 {
				found, err = a.allProcesses(cmd)
			} else {
				found, err = a.processesOf(cmd, args[0])
			}
			if err != nil {
				return err
			}
			if asJSON {
				if found == nil {
					found = []psEntry{}
				}
				return a.printJSON(found)
			}
			rows := [][]string{{"ID", "NAME", "PID", "STATUS", "AGE", "OUTPUT", "COMMAND"}}
			if len(args) == 0 {
				rows[0] = append([]string{"SANDBOX"}, rows[0]...)
			}
			for _, p := range found {
				state := "running"
				if p.Exit != nil {
					state = fmt.Sprintf("%s %d", p.Exit.Reason, p.Exit.Status())
				}
				row := []string{string(p.ID), dash(p.Name), fmt.Sprint(p.PID), state, span(time.Since(p.Started)), formatSize(p.Cursor), strings.Join(p.Args, " ")}
				if len(args) == 0 {
					row = append([]string{string(p.Sandbox)}, row...)
				}
				rows = append(rows, row)
			}
			return a.printTable(rows)
		},
	}
	client(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of objects")
	return cmd
}

// processesOf returns the processes of one sandbox.
func (a *app) processesOf(cmd *cobra.Command, ref string) ([]psEntry, error) {
	sb, done, err := a.look(cmd, ref)
	if err != nil {
		return nil, err
	}
	defer done()
	return processes(cmd.Context(), sb)
}

func processes(ctx context.Context, sb sandbox.Sandbox) ([]psEntry, error) {
	d, err := ability[sandbox.Detacher](sb, "keep a process that nobody waits for")
	if err != nil {
		return nil, err
	}
	ps, err := d.Processes(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]psEntry, len(ps))
	for i, p := range ps {
		found[i] = psEntry{sb.ID(), p}
	}
	return found, nil
}

// allProcesses returns the processes of all sandboxes, by sandbox. One that
// goes meanwhile, or cannot have any, has none.
func (a *app) allProcesses(cmd *cobra.Command) ([]psEntry, error) {
	rt, err := a.daemon(cmd)
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	var all []sandbox.Info
	for info, err := range rt.List(cmd.Context()) {
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	slices.SortFunc(all, byAge)
	found := make([][]psEntry, len(all))
	errs := make([]error, len(all))
	var asking sync.WaitGroup
	slots := make(chan struct{}, meterSlots)
	for i := range all {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			found[i], errs[i] = processes(cmd.Context(), rt.Sandbox(all[i].ID))
			if errors.Is(errs[i], sandbox.NotExist) || errors.Is(errs[i], sandbox.Unsupported) {
				errs[i] = nil
			}
		})
	}
	asking.Wait()
	return slices.Concat(found...), cmp.Or(errs...)
}

func (a *app) killCommand() *cobra.Command {
	sig := "TERM"
	cmd := &cobra.Command{
		Use:   "kill [flags] ID|NAME PROCESS",
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
