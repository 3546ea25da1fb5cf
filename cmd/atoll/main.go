// Atoll is the program: the daemon (atoll serve), and the commands that use a
// daemon or, for atoll run, do without one. It is the only place that knows
// every part of the tree; it reads flags, environment and file, wires the
// parts together, and holds no mechanism of its own.
//
// What it prints follows one rule. Standard output carries the answer and
// nothing else. What is for people goes to standard error, begins with
// "atoll: ", is lower case, has no full stop, and puts hints on lines of their
// own.
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(Main())
}

// Main runs the program with the process's own arguments, streams and
// environment and returns its exit status.
func Main() int {
	sigs := catchSignals()
	defer sigs.stop()
	a := &app{
		stdin:  os.Stdin,
		stdout: os.Stdout,
		stderr: os.Stderr,
		getenv: os.LookupEnv,
		sigs:   sigs,
	}
	return a.run(sigs.ctx, os.Args[1:])
}

// An app is one invocation of the program.
type app struct {
	stdin          *os.File
	stdout, stderr *os.File
	getenv         func(string) (string, bool)
	sigs           *signals
}

// run runs the command that args name and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return a.report(ctx, cmd, err)
}
