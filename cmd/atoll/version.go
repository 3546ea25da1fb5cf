package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the Makefile; see [programVersion].
var version string

// A build is what atoll version prints.
type build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	System  string `json:"system"`
}

// programVersion returns what was built: what the Makefile says, else the
// module's version, which go install knows.
func programVersion() string {
	if version != "" {
		return version
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel"
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "print the version of this program",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			b := build{programVersion(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			if asJSON {
				return a.printJSON(b)
			}
			return a.println("atoll " + b.Version + " " + b.Go + " " + b.System)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an object")
	return cmd
}
