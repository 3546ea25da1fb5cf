package main

import (
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) execCommand() *cobra.Command {
	var (
		streams streamFlags
		env     envFlags
		workdir string
		user    string
		detach  bool
		input   bool
		keep    size
		name    string
	)
	cmd := &cobra.Command{
		Use:   "exec [flags] ID|NAME -- COMMAND [ARG...]",
		Short: "run a command in a sandbox",
		Long: `Exec runs a command in a sandbox and ends with its exit status (atoll help
exit-codes). If atoll is ended, so is the command, with all that it started.

With --detach it starts the command, prints the id of its process, and is done;
the sandbox keeps the end of its output for atoll logs.`,
		Example: `  atoll exec ID -- ls -l /workspace
  atoll exec -it ID -- bash
  echo 'print(6 * 7)' | atoll exec -i ID -- python3 -
  atoll exec -d ID -- python3 -m http.server`,
		Annotations:       map[string]string{passesStatus: "yes"},
		Args:              atLeast("ID"),
		ValidArgsFunction: a.completeIDs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			argv, err := command(args[1:])
			if err != nil {
				return err
			}
			want := sandbox.Cmd{Args: argv, Dir: workdir, User: user}
			if want.Env, err = env.env(a); err != nil {
				return err
			}
			want.Timeout = streams.timeout
			if err := want.Check(); err != nil {
				return err
			}
			switch {
			case detach && (streams.interactive || streams.tty):
				return usage("a detached command has neither input nor terminal of ours: -d does not go with -i and -t")
			case !detach && keep != 0:
				return usage("--keep goes with --detach alone")
			case !detach && name != "":
				return usage("--name goes with --detach alone")
			}
			sb, done, err := a.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer done()
			if !detach {
				return a.attach(cmd.Context(), sb, want, streams, "make one that may use more, with atoll create --memory")
			}
			d, err := ability[sandbox.Detacher](sb, "keep a process that nobody waits for")
			if err != nil {
				return err
			}
			id, err := d.StartDetached(cmd.Context(), want, sandbox.DetachOptions{Stdin: input, Ring: int(keep), Name: name})
			if err != nil {
				return err
			}
			return a.println(string(id))
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false)
	streams.add(fs)
	env.add(fs)
	fs.StringVar(&workdir, "workdir", "", "where the command starts (default: the sandbox's)")
	fs.StringVar(&user, "user", "", "whom the command runs as (default: the sandbox's)")
	fs.BoolVarP(&detach, "detach", "d", false, "do not wait: print the process's id")
	fs.StringVar(&name, "name", "", "with --detach: what to call the process, for atoll ps")
	fs.Var(&keep, "keep", "with --detach: how much output is kept (default 1m, at most 16m)")
	client(cmd)
	return cmd
}
