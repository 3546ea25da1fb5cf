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
	var asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "make a sandbox and print its id",
		Example: `  id=$(atoll create --memory 1g)
  atoll exec $id -- sh -c 'echo hi > /workspace/note'
  atoll rm $id`,
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
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			sb, err := rt.Create(cmd.Context(), s)
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
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what is true of the sandbox, as JSON")
	return cmd
}
