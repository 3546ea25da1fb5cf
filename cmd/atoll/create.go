package main

import (
	"github.com/spf13/cobra"
)

func (a *app) createCommand() *cobra.Command {
	var spec specFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "make a sandbox and print its id",
		Example: `  id=$(atoll create --memory 1g)
  atoll exec $id -- sh -c 'echo hi > /workspace/note'
  atoll rm $id`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
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
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what is true of the sandbox, as JSON")
	return cmd
}
