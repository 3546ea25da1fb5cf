package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	atoll "github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
)

// daemonNamed reports whether a daemon was asked for, by flag or environment.
func (a *app) daemonNamed(cmd *cobra.Command) bool {
	v, _ := a.getenv("ATOLL_HOST")
	return v != "" || cmd.Flags().Changed("daemon")
}

// daemon returns a client of the daemon that cmd's flags, the environment and
// the file name.
func (a *app) daemon(cmd *cobra.Command) (*atoll.Client, error) {
	c, err := a.load(cmd.Flags())
	if err != nil {
		return nil, err
	}
	return a.connect(&c)
}

// connect returns a client of the daemon that c names. It asks the daemon
// nothing yet.
func (a *app) connect(c *Config) (*atoll.Client, error) {
	token, err := c.clientToken()
	if err != nil {
		return nil, err
	}
	return atoll.New(atoll.Config{Host: c.Daemon, Token: token})
}

// clientToken returns the token that a command shows: the one that it was
// given, else that of a daemon of the same user with the same state folder.
func (c *Config) clientToken() (sandbox.Secret, error) {
	if c.Token != "" {
		return c.Token, nil
	}
	if c.TokenFile != "" {
		return readToken(c.TokenFile, false)
	}
	t, err := readToken(tokenFile(c.State), true)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", hint(&sandbox.Error{Kind: sandbox.Denied, Msg: "there is no token to show the daemon"},
			fmt.Sprintf("a daemon that atoll serve started here would have left one in %s", tokenFile(c.State)),
			"for another daemon set ATOLL_HOST and ATOLL_TOKEN, or use --token-file")
	case errors.Is(err, fs.ErrPermission):
		return "", hint(&sandbox.Error{Kind: sandbox.Denied, Err: err}, "ask whoever runs the daemon for a token, and set ATOLL_TOKEN")
	}
	return t, err
}

// open returns the sandbox that ref names, which is then in use, and what to
// call when it is not needed any more.
func (a *app) open(cmd *cobra.Command, ref string) (sandbox.Sandbox, func(), error) {
	rt, err := a.daemon(cmd)
	if err != nil {
		return nil, nil, err
	}
	sb, err := find(cmd.Context(), ref, rt.Open, rt.Lookup)
	if err != nil {
		rt.Close()
		return nil, nil, err
	}
	return sb, func() { rt.Close() }, nil
}

// look is open for what only looks: it is no use of the sandbox.
func (a *app) look(cmd *cobra.Command, ref string) (sandbox.Sandbox, func(), error) {
	rt, err := a.daemon(cmd)
	if err != nil {
		return nil, nil, err
	}
	sb, err := find(cmd.Context(), ref, rt.LookAt, rt.LookAtName)
	if err != nil {
		rt.Close()
		return nil, nil, err
	}
	return sb, func() { rt.Close() }, nil
}

// find returns the sandbox whose id is ref or, if there is none, the one whose
// name it is.
func find(ctx context.Context, ref string, byID func(context.Context, sandbox.ID) (sandbox.Sandbox, error), byName func(context.Context, string) (sandbox.Sandbox, error)) (sandbox.Sandbox, error) {
	var none error = sandbox.NotExist
	if id := sandbox.ID(ref); id.Valid() {
		sb, err := byID(ctx, id)
		if !errors.Is(err, sandbox.NotExist) {
			return sb, err
		}
		none = err
	}
	sb, err := byName(ctx, ref)
	switch sandbox.KindOf(err) {
	case sandbox.NotExist, sandbox.Invalid, sandbox.Unsupported: // so it has no name like this
		return nil, noSuch(ref, none)
	}
	return sb, err
}

// noSuch puts into words that there is no sandbox ref, and why it is gone if
// err tells.
func noSuch(ref string, err error) error {
	if !errors.Is(err, sandbox.NotExist) {
		return err
	}
	msg := "there is no sandbox " + ref
	if g := (*sandbox.Gone)(nil); errors.As(err, &g) {
		msg += ": " + g.Error()
	}
	return hint(&sandbox.Error{Kind: sandbox.NotExist, Msg: msg}, "atoll ls shows those that there are")
}

// ability returns what sb can do beyond the plain contract, or an Unsupported
// error which says what it cannot.
func ability[T any](sb sandbox.Sandbox, what string) (T, error) {
	t, ok := sb.(T)
	if !ok {
		return t, sandbox.Errorf(sandbox.Unsupported, "", "this sandbox cannot %s", what)
	}
	return t, nil
}

// unreachable returns hints for an error that says that no daemon answers,
// besides the client's own.
func unreachable(err error) []string {
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) && sandbox.KindOf(err) == sandbox.Unavailable {
		return []string{"or say with ATOLL_HOST where one is"}
	}
	return nil
}

// completeIDs completes the first n arguments with the ids and the names of
// sandboxes. With n < 0 all are.
func (a *app) completeIDs(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.ids(cmd, toComplete), cobra.ShellCompDirectiveNoFileComp
	}
}

// ids returns the ids and names that begin with prefix. Completion has no place
// for errors: where there is no daemon there are none.
func (a *app) ids(cmd *cobra.Command, prefix string) []cobra.Completion {
	rt, err := a.daemon(cmd)
	if err != nil {
		return nil
	}
	defer rt.Close()
	var found []cobra.Completion
	for info, err := range rt.List(cmd.Context()) {
		if err != nil {
			break
		}
		if strings.HasPrefix(string(info.ID), prefix) {
			found = append(found, cobra.CompletionWithDesc(string(info.ID), printable(strings.Join(append([]string{info.Image, labels(info.Labels)}, info.Names...), " "))))
		}
		for _, name := range info.Names {
			// An empty word is completed with ids alone: they always work.
			if prefix != "" && strings.HasPrefix(name, prefix) && name == printable(name) {
				found = append(found, cobra.CompletionWithDesc(name, string(info.ID)))
			}
		}
	}
	return found
}

// completeSpec has cmd complete the values of the flags that say what sandbox is
// wanted, as far as there are lists of them. The profiles are those that this
// configuration knows.
func (a *app) completeSpec(cmd *cobra.Command) {
	words := func(list func() []string) cobra.CompletionFunc {
		return func(_ *cobra.Command, _ []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
			var found []cobra.Completion
			for _, w := range list() {
				if strings.HasPrefix(w, toComplete) {
					found = append(found, w)
				}
			}
			return found, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for flag, list := range map[string]func() []string{
		"backend": backendNames,
		"network": func() []string { return []string{string(sandbox.NetworkOff), string(sandbox.NetworkOn)} },
		"require": func() []string {
			var all []string
			for _, p := range sandbox.Properties() {
				all = append(all, string(p))
			}
			return all
		},
		"profile": func() []string {
			c, err := a.load(cmd.Flags())
			if err != nil {
				return nil
			}
			set, err := c.profileSet()
			if err != nil {
				return nil
			}
			return set.Names()
		},
	} {
		if err := cmd.RegisterFlagCompletionFunc(flag, words(list)); err != nil {
			panic(err) // there is no such flag
		}
	}
}

// completeProcess completes the id of a sandbox and then that of one of its
// detached processes.
func (a *app) completeProcess(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return a.ids(cmd, toComplete), cobra.ShellCompDirectiveNoFileComp
	case 1:
		sb, done, err := a.look(cmd, args[0])
		if err != nil {
			break
		}
		defer done()
		d, ok := sb.(sandbox.Detacher)
		if !ok {
			break
		}
		ps, _ := d.Processes(cmd.Context())
		var found []cobra.Completion
		for _, p := range ps {
			if strings.HasPrefix(string(p.ID), toComplete) {
				found = append(found, cobra.CompletionWithDesc(string(p.ID), printable(strings.Join(p.Args, " "))))
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
