package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

func (a *app) cpCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "cp [flags] SRC ID:DST | ID:SRC DST",
		Short: "copy files into a sandbox or out of it",
		Long: `Cp copies a file, or a directory with all that is in it, into a sandbox or out
of it. As with cp -r, what is copied goes into DST if that is a directory, and
otherwise becomes DST. A SRC that ends in /. stands for what is in it. - stands
for standard input or output.

A path in the sandbox is absolute, or else below its working directory.

Permissions are kept, owners are not. What is neither file nor directory is
left out, and said. So are links on the way in; on the way out those that stay
within what is copied are made anew.`,
		Example: `  atoll cp main.py ID:/workspace/
  atoll cp ID:/workspace/results .
  tar cz src | atoll cp - ID:/tmp/src.tgz`,
		Args: exactly("SRC", "DST"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if strings.ContainsAny(toComplete, "/.:") {
				return nil, cobra.ShellCompDirectiveDefault
			}
			var found []cobra.Completion
			for _, id := range a.ids(cmd, toComplete) {
				name, _, _ := strings.Cut(id, "\t")
				found = append(found, name+":/")
			}
			return found, cobra.ShellCompDirectiveNoSpace
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			if (from.id == "") == (to.id == "") {
				return hint(usage("one of the two places is in a sandbox, the other is not"), "write the one in the sandbox as ID:PATH")
			}
			sb, done, err := a.open(cmd, string(from.id+to.id))
			if err != nil {
				return err
			}
			defer done()
			c := copying{ctx: cmd.Context(), files: sb.Files(), follow: follow, note: func(format string, args ...any) {
				fmt.Fprintf(a.stderr, "atoll: %s\n", printable(fmt.Sprintf(format, args...)))
			}}
			if from.id != "" {
				if err := c.locate(sb, &from); err != nil {
					return err
				}
				return c.out(from.path, to.path, a.stdout)
			}
			if err := c.locate(sb, &to); err != nil {
				return err
			}
			return c.in(from.path, to.path, a.stdin)
		},
	}
	client(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "L", false, "copy into a sandbox what links lead to")
	return cmd
}

// A place is a path, in a sandbox if there is an id.
type place struct {
	id   sandbox.ID
	path string
}

// parsePlace reads ID:PATH or PATH. What has a slash before its first colon
// is a path, so that ./a:b can be said.
func parsePlace(s string) place {
	id, p, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(id, "/.") || id == "" {
		return place{path: s}
	}
	return place{sandbox.ID(id), p}
}

// copying is one call of atoll cp.
type copying struct {
	ctx    context.Context // ends the copying
	files  sandbox.Files
	follow bool
	note   func(format string, args ...any) // says what was left out
}

// locate makes p's path absolute. Its end, a slash or /., is kept: it means
// something.
func (c *copying) locate(sb sandbox.Sandbox, p *place) error {
	if path.IsAbs(p.path) {
		return nil
	}
	info, err := sb.Info(c.ctx)
	if err != nil {
		return err
	}
	p.path = strings.TrimSuffix(info.Workdir, "/") + "/" + p.path
	return nil
}

// contents cuts the /. off that means what is in a directory.
func contents(p string) (string, bool) {
	if p == "." {
		return p, true
	}
	if before, ok := strings.CutSuffix(p, "/."); ok {
		return before + "/", true
	}
	return p, false
}

// in copies from a path here to one in the sandbox.
func (c *copying) in(from, to string, stdin io.Reader) error {
	if from == "-" {
		_, err := c.files.Write(c.ctx, to, struct{ io.Reader }{stdin}, sandbox.WriteOptions{})
		return err
	}
	from, inside := contents(from)
	info, err := os.Stat(from) // a link that is named itself is followed
	if err != nil {
		return sandbox.Errorf(sandbox.NotExist, "", "%v", err)
	}
	if !inside {
		abs, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		if to, err = c.target(to, filepath.Base(abs)); err != nil {
			return err
		}
	} else if !info.IsDir() {
		return sandbox.Errorf(sandbox.Invalid, "", "%s is not a directory", from)
	}
	return c.send(from, path.Clean(to), info)
}

// target returns where in the sandbox something called name goes when to is
// asked for.
func (c *copying) target(to, name string) (string, error) {
	into := strings.HasSuffix(to, "/")
	if !into {
		dir, err := c.isDir(to)
		if err != nil {
			return "", err
		}
		into = dir
	}
	if into {
		return path.Join(to, name), nil
	}
	return to, nil
}

// isDir reports whether p in the sandbox is a directory, or leads to one.
func (c *copying) isDir(p string) (bool, error) {
	_, info, err := c.follows(p)
	if errors.Is(err, sandbox.NotExist) {
		return false, nil
	}
	return err == nil && info.Mode.IsDir(), err
}

// follows returns where p in the sandbox leads to, and what is there.
func (c *copying) follows(p string) (string, sandbox.FileInfo, error) {
	for range 40 { // as the kernel does
		info, err := c.files.Stat(c.ctx, p)
		if err != nil || info.Mode&fs.ModeSymlink == 0 {
			return p, info, err
		}
		if path.IsAbs(info.Target) {
			p = info.Target
		} else {
			p = path.Dir(strings.TrimRight(p, "/")) + "/" + info.Target
		}
	}
	return p, sandbox.FileInfo{}, sandbox.Errorf(sandbox.Invalid, "path", "too many links")
}

// send copies from here to to in the sandbox.
func (c *copying) send(from, to string, info fs.FileInfo) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		if err := c.files.Mkdir(c.ctx, to, sandbox.MkdirOptions{Mode: mode.Perm(), Parents: true}); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			p := filepath.Join(from, e.Name())
			sub, err := e.Info()
			if err == nil && c.follow && sub.Mode()&fs.ModeSymlink != 0 {
				sub, err = os.Stat(p)
			}
			if errors.Is(err, fs.ErrNotExist) {
				c.note("left out %s: it is gone, or leads to nothing", p)
				continue
			}
			if err != nil {
				return err
			}
			if err := c.send(p, path.Join(to, e.Name()), sub); err != nil {
				return err
			}
		}
		return nil
	case mode.IsRegular():
		f, err := os.Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = c.files.Write(c.ctx, to, f, sandbox.WriteOptions{Mode: mode.Perm()})
		return err
	default:
		c.note("left out %s: %s", from, kindOf(mode))
		return nil
	}
}

// kindOf says what a file is that is neither regular nor a directory.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "it is a link"
	case mode&fs.ModeNamedPipe != 0:
		return "it is a FIFO"
	case mode&fs.ModeSocket != 0:
		return "it is a socket"
	}
	return "it is neither file nor directory"
}

// out copies from a path in the sandbox to one here.
func (c *copying) out(from, to string, stdout io.Writer) error {
	if to == "-" {
		return c.print(from, stdout)
	}
	from, inside := contents(from)
	name := path.Base(path.Clean(from))
	from, info, err := c.follows(from) // a link that is named itself is followed
	if err != nil {
		return err
	}
	switch st, err := os.Stat(to); {
	case inside && !info.Mode.IsDir():
		return sandbox.Errorf(sandbox.Invalid, "", "%s is not a directory", from)
	case inside:
	case err == nil && st.IsDir():
		if name == "/" {
			break // the root has no name: its contents go there
		}
		to = filepath.Join(to, name)
	case err == nil && !info.Mode.IsDir():
		if to, err = filepath.EvalSymlinks(to); err != nil {
			return err
		}
		if !st.Mode().IsRegular() { // a device, say: it is not replaced
			return c.pour(from, to)
		}
	case strings.HasSuffix(to, "/"):
		return sandbox.Errorf(sandbox.NotExist, "", "there is no directory %s", to)
	}
	if !info.Mode.IsDir() {
		root, err := os.OpenRoot(filepath.Dir(to))
		if err != nil {
			return err
		}
		defer root.Close()
		return c.receive(root, from, filepath.Base(to), info)
	}
	if err := os.Mkdir(to, info.Mode.Perm()|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// What the sandbox says about its names and links can lead nowhere but
	// into this directory.
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer root.Close()
	return c.receive(root, path.Clean(from), ".", info)
}

// print writes the file from in the sandbox to w.
func (c *copying) print(from string, w io.Writer) error {
	f, err := c.files.Open(c.ctx, from, sandbox.Range{})
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// pour writes the file from in the sandbox to something here that is there
// already and no regular file.
func (c *copying) pour(from, to string) error {
	f, err := os.OpenFile(to, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(c.print(from, f), f.Close())
}

// receive copies from in the sandbox to to, which is below root.
func (c *copying) receive(root *os.Root, from, to string, info sandbox.FileInfo) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	switch mode := info.Mode; {
	case mode.IsDir():
		if to != "." {
			if err := root.Mkdir(to, mode.Perm()|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		for sub, err := range c.files.List(c.ctx, from) {
			if err != nil {
				return err
			}
			if !plainName(sub.Name) {
				c.note("left out a file in %s: its name is %q", from, sub.Name)
				continue
			}
			if err := c.receive(root, path.Join(from, sub.Name), filepath.Join(to, sub.Name), sub); err != nil {
				return err
			}
		}
		if mode.Perm()&0o700 != 0o700 { // it has been filled
			return root.Chmod(to, mode.Perm())
		}
		return nil
	case mode.IsRegular():
		return c.fetch(root, from, to, mode.Perm())
	case mode&fs.ModeSymlink != 0 && staysWithin(to, info.Target):
		if err := root.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(info.Target, to)
	default:
		why := kindOf(mode)
		if mode&fs.ModeSymlink != 0 {
			why = "it is a link to " + info.Target
		}
		c.note("left out %s: %s", from, why)
		return nil
	}
}

// fetch copies the file from in the sandbox to to, which is below root. What
// stands there is replaced when all has come, and not before.
func (c *copying) fetch(root *os.Root, from, to string, mode fs.FileMode) (err error) {
	src, err := c.files.Open(c.ctx, from, sandbox.Range{})
	if err != nil {
		return err
	}
	defer src.Close()
	tmp := filepath.Join(filepath.Dir(to), ".atoll-"+string(sandbox.NewID()))
	dst, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			root.Remove(tmp)
		}
	}()
	_, err = io.Copy(dst, src)
	err = errors.Join(err, dst.Chmod(mode), dst.Close())
	if err != nil {
		return err
	}
	return root.Rename(tmp, to)
}

// plainName reports whether a sandbox's name for a file is one.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00") && filepath.IsLocal(name)
}

// staysWithin reports whether a link at the path at, made of real directories,
// leads to a place below the root that at begins in. Dots may only stand at
// the start: a .. behind a name could lead out by way of another link.
func staysWithin(at, target string) bool {
	if target == "" || path.IsAbs(target) || strings.Contains(target, "\\") {
		return false
	}
	depth := strings.Count(filepath.ToSlash(filepath.Clean(at)), "/")
	names := false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part == ".." && names:
			return false
		case part == "..":
			if depth--; depth < 0 {
				return false
			}
		default:
			names = true
		}
	}
	return true
}
