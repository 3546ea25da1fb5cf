package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/sandbox"
)

// notCreate are the flags of run that have no meaning for create, and what to
// do instead.
var notCreate = []struct{ name, why, hint string }{
	{"interactive", "is for a command, and create runs none", "give it to atoll exec"},
	{"tty", "is for a command, and create runs none", "give it to atoll exec"},
	{"allow-mount", "is for the daemon to say", "give it to atoll serve"},
	{"allow-image", "is for the daemon to say", "give it to atoll serve"},
	{"log", "is for the program that makes the sandbox, which is the daemon", "give it to atoll serve"},
}

func (a *app) createCommand() *cobra.Command {
	var spec specFlags
	var asJSON, reuse bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "make a sandbox and print its id",
		Long: `Create makes a sandbox and prints its id. With --name, commands find it by that
name as well as by its id.

With --reuse it prints the id of the one that has the name (or the --id) if
there is one, and otherwise makes it. What is there must be what is asked for:
if its image, network, limits or the like differ, that is an error which says
in what.

What the flags do not say, the profile does: atoll help configuration.`,
		Example: `  id=$(atoll create --memory 1g)
  atoll exec $id -- sh -c 'echo hi > /workspace/note'
  atoll rm $id

  atoll create --name "chat 17" --reuse --idle 30m
  atoll exec "chat 17" -- ls`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, f := range notCreate {
				if cmd.Flags().Changed(f.name) {
					return hint(usage("--%s %s", f.name, f.why), f.hint)
				}
			}
			if timeout != 0 {
				if spec.ttl != 0 || spec.expires != "" {
					return usage("--timeout is the same as --ttl here, and --ttl or --expires is given too: choose one")
				}
				if timeout < 0 {
					return sandbox.Errorf(sandbox.Invalid, "--timeout", "%v is negative", timeout)
				}
				spec.ttl = timeout
			}
			s, err := spec.spec(a)
			if err != nil {
				return err
			}
			if reuse && s.Name == "" && s.ID == "" {
				return hint(usage("--reuse needs to know which one"), "give --name or --id")
			}
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			var sb sandbox.Sandbox
			if reuse {
				sb, _, err = rt.Acquire(cmd.Context(), s)
			} else {
				sb, err = rt.Create(cmd.Context(), s)
			}
			if err != nil {
				return err
			}
			if !asJSON {
				return a.println(string(sb.ID()))
			}
			info, err := sb.Info(cmd.Context())
			if err != nil {
				return err
			}
			return a.printJSON(info)
		},
	}
	spec.add(cmd.Flags())
	a.completeSpec(cmd)
	client(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "remove the sandbox after this time: the same as --ttl (of a command: see atoll exec --timeout)")
	// The other flags of run are understood, so that they can be answered.
	var streams streamFlags
	other := pflag.NewFlagSet("", pflag.ContinueOnError)
	streams.add(other)
	for _, f := range notCreate {
		if flag := other.Lookup(f.name); flag != nil {
			cmd.Flags().AddFlag(flag)
		} else {
			settings(cmd, f.name)
		}
		cmd.Flags().MarkHidden(f.name)
	}
	cmd.Flags().BoolVar(&reuse, "reuse", false, "if there is one with this --name or --id, print its id and make none")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what is true of the sandbox, as JSON")
	return cmd
}
