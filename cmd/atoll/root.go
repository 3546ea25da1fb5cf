package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	groupDaemon  = "daemon"
	groupSandbox = "sandbox"
	groupInside  = "inside"
)

// rootCommand returns the tree of commands.
func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "atoll",
		Short: "sandboxes for AI agents",
		Long: `Atoll runs sandboxes: isolated places with a file system and processes, made by
the Linux kernel alone. The first one needs no daemon:

  atoll run -- sh -c 'echo hi'

Where a command wants the ID of a sandbox, its name does as well, if it has one
(atoll create --name); an id goes first.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return hint(usage("there is no command %q", args[0]), "atoll help lists them")
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return cmd.Help()
		},
	}
	root.PersistentFlags().String("config", "", "the configuration file (environment: ATOLL_CONFIG; default /etc/atoll/atoll.toml for root, else atoll/atoll.toml in $XDG_CONFIG_HOME)")
	root.AddGroup(
		&cobra.Group{ID: groupSandbox, Title: "Sandboxes:"},
		&cobra.Group{ID: groupInside, Title: "Inside a sandbox:"},
		&cobra.Group{ID: groupDaemon, Title: "The daemon and this machine:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupSandbox, a.runCommand(), a.createCommand(), a.lsCommand(), a.topCommand(), a.inspectCommand(), a.pauseCommand(), a.resumeCommand(), a.releaseCommand(), a.rmCommand(), a.pruneCommand())
	add(groupInside, a.execCommand(), a.psCommand(), a.logsCommand(), a.killCommand(), a.cpCommand())
	add(groupDaemon, a.serveCommand(), a.statusCommand(), a.eventsCommand(), a.doctorCommand(), a.versionCommand())
	root.AddCommand(topics()...)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		help := fmt.Sprintf("%s --help lists the flags", cmd.CommandPath())
		var value *pflag.InvalidValueError
		if !errors.As(err, &value) {
			return hint(usage("%v", err), help)
		}
		f := value.GetFlag()
		wrong := sandbox.Errorf(sandbox.Invalid, "--"+f.Name, "%q is not a %s", value.GetValue(), f.Value.Type())
		if f.Name == "token" {
			wrong.Msg = value.Unwrap().Error() // and not the token
		}
		var ours *sandbox.Error
		if errors.As(value.Unwrap(), &ours) {
			wrong.Msg, wrong.Hint = ours.Msg, ours.Hint
		}
		return hint(wrong, help)
	})
	root.InitDefaultCompletionCmd()
	return root
}

// settings adds the flags of the named settings to cmd.
func settings(cmd *cobra.Command, names ...string) {
	c := defaults()
	all := c.flags()
	for _, n := range names {
		f := all.Lookup(n)
		if f == nil {
			panic("no setting " + n)
		}
		cmd.Flags().AddFlag(f)
	}
}

// client adds the flags that a command needs to reach a daemon.
func client(cmd *cobra.Command) {
	settings(cmd, "daemon", "token-file", "state")
}

// command checks that what follows the flags is the beginning of a command,
// and returns it without the -- before it.
func command(args []string) ([]string, error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		return nil, hint(usage("the flag %s stands behind the id", args[0]), "flags come first: atoll exec [flags] ID -- COMMAND")
	}
	if len(args) == 0 {
		return nil, hint(usage("there is no command"), "give one behind --, such as: -- sh -c 'echo hi'")
	}
	return args, nil
}

// exactly returns a check for a number of arguments, which words name.
func exactly(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(words):
			return hint(usage("%s is missing", words[len(args)]), "usage: "+cmd.UseLine())
		case len(args) > len(words):
			return hint(usage("%q is one argument too many", args[len(words)]), "usage: "+cmd.UseLine())
		}
		return nil
	}
}

// atLeast returns a check for one argument or more, which word names.
func atLeast(word string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return hint(usage("%s is missing", word), "usage: "+cmd.UseLine())
		}
		return nil
	}
}
