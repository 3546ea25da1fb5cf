package sandboxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// outside makes a file on the host that no path of a sandbox may lead to.
func (t *T) outside() (dir, file string) {
	t.t.Helper()
	dir = t.t.TempDir()
	file = filepath.Join(dir, "host-secret")
	t.ok("WriteFile", os.WriteFile(file, []byte("secret of the host"), 0o644))
	return dir, file
}

// untouched fails if the host's file is not as it was.
func (t *T) untouched(dir, file string) {
	t.t.Helper()
	i, err := os.Stat(file)
	t.ok("Stat of the host's file", err)
	b, err := os.ReadFile(file)
	if err != nil || string(b) != "secret of the host" || i.Mode().Perm() != 0o644 {
		t.errorf("the host's file has %q, %v, mode %v", b, err, i.Mode())
	}
	entries, err := os.ReadDir(dir)
	if t.ok("ReadDir", err); len(entries) != 1 {
		t.errorf("the host's directory has %v", entries)
	}
}

var linkClaims = []claim{
	{name: "LinksStayInside", says: "Every path is resolved within the sandbox's root, symbolic links included, so that none leads outside.", shell: true, check: func(t *T) {
		hostDir, hostFile := t.outside()
		up := strings.Repeat("../", 40)
		links := map[string]string{
			"absolute":  hostFile,
			"dots":      up + hostFile,
			"mixed":     "/" + up + hostFile,
			"dir":       hostDir,
			"dirdots":   up + hostDir,
			"root":      up,
			"chain":     "absolute",
			"throughs":  "dirdots/host-secret",
			"workspace": "/workspace/../" + up + hostFile,
		}
		for name, target := range links {
			t.capture(t.sb, sandbox.Cmd{Args: []string{"ln", "-s", target, name}, Dir: t.dir()})
		}
		paths := []string{hostFile, "/.." + hostFile, "/../../.." + hostFile, "/workspace/" + up + hostFile}
		for name := range links {
			switch name {
			case "dir", "dirdots":
				paths = append(paths, t.dir()+"/"+name+"/host-secret")
			case "root":
				paths = append(paths, t.dir()+"/root"+hostFile)
			default:
				paths = append(paths, t.dir()+"/"+name)
			}
		}
		slices.Sort(paths)
		f := t.sb.Files()
		for _, p := range paths {
			if got, err := t.content(p, sandbox.Range{}); err == nil {
				t.errorf("Open of %s gave %q", p, got)
			} else {
				t.kind("Open of "+p, err, "path", sandbox.NotExist)
			}
		}
		for _, p := range paths { // these may succeed, inside
			f.Chmod(t.ctx, p, 0o600)
			t.put(p, "overwritten", sandbox.WriteOptions{Parents: true})
			t.put(p, "appended", sandbox.WriteOptions{Append: true})
			f.Mkdir(t.ctx, p+"-d", sandbox.MkdirOptions{Parents: true})
			f.Remove(t.ctx, p, true)
			for i, err := range f.List(t.ctx, t.dir()+"/dir") {
				if err == nil && i.Name == "host-secret" && i.Size == int64(len("secret of the host")) {
					t.errorf("List shows the host's file")
				}
			}
		}
		t.untouched(hostDir, hostFile)
		f.Remove(t.ctx, hostDir, true)
	}},
	{name: "LinksAreFollowedInside", says: "A symbolic link at path is followed, within the sandbox's root.", shell: true, check: func(t *T) {
		dir := t.dir()
		t.sh("mkdir real; echo content > real/file; ln -s real/file rel; ln -s " + dir + "/real/file abs; ln -s real dirlink; ln -s rel chain; ln -s real/new fresh")
		for _, p := range []string{"/rel", "/abs", "/dirlink/file", "/chain", "/dirlink/../real/file", "/../../../../.." + dir + "/rel"} {
			if got, err := t.content(dir+p, sandbox.Range{}); err != nil || got != "content\n" {
				t.errorf("Open of %s: %q, %v", p, got, err)
			}
		}
		for i, p := range []string{"/rel", "/abs", "/dirlink/file", "/chain"} {
			want := fmt.Sprintf("written %d", i)
			t.write(dir+p, want)
			if got := t.read(dir + "/real/file"); got != want {
				t.errorf("Write to %s left the target with %q", p, got)
			}
		}
		for _, p := range []string{"/rel", "/abs", "/chain", "/dirlink"} {
			if i := t.stat(dir + p); i.Target == "" {
				t.errorf("Write replaced the link %s by %v", p, i.Mode)
			}
		}
		t.write(dir+"/fresh", "made")
		if got := t.read(dir + "/real/new"); got != "made" {
			t.errorf("Write through a dangling link made %q", got)
		}
		if got := t.names(dir + "/dirlink"); !slices.Equal(got, []string{"file", "new"}) {
			t.errorf("List of %s/dirlink yields %q", dir, got)
		}
	}},
	{name: "LinkLoopsEnd", says: "Every path is resolved: one that never ends is an error.", shell: true, check: func(t *T) {
		t.sh("ln -s b a; ln -s a b; ln -s self/x self")
		for _, p := range []string{"/a", "/b/x", "/self"} {
			_, err := t.content(t.dir()+p, sandbox.Range{})
			t.kind("Open of a loop", err, "path", sandbox.Invalid)
			_, err = t.put(t.dir()+p, "x", sandbox.WriteOptions{})
			t.kind("Write to a loop", err, "path", sandbox.Invalid)
		}
		if i := t.stat(t.dir() + "/a"); i.Target != "b" {
			t.errorf("Stat of a loop says %+v", i)
		}
		t.ok("Remove of a loop", t.sb.Files().Remove(t.ctx, t.dir()+"/a", false))
	}},
	{name: "LinkedDirectoriesMayBeSwapped", says: "Every path is resolved within the sandbox's root, whatever a process does meanwhile.", shell: true, check: func(t *T) {
		hostDir, hostFile := t.outside()
		// A process swaps a directory for a link that leads to the host's.
		t.sh("mkdir dir; echo inside > dir/host-secret; ln -s " + hostDir + " evil")
		p := t.start(sandbox.Cmd{Args: []string{"sh", "-c", "while [ ! -e stop ]; do mv dir d; mv evil dir; mv dir evil; mv d dir; done"}, Dir: t.dir()})
		f := t.sb.Files()
		for range times(100) {
			if b, err := sandbox.ReadFile(t.ctx, t.sb, t.dir()+"/dir/host-secret", 100); err == nil && string(b) == "secret of the host" {
				t.errorf("Open gave the host's file")
				break
			}
			f.Chmod(t.ctx, t.dir()+"/dir/host-secret", 0o600)
			t.put(t.dir()+"/dir/more", "x", sandbox.WriteOptions{})
		}
		f.Remove(t.ctx, t.dir()+"/dir", true)
		t.write(t.dir()+"/stop", "")
		t.wait(p)
		t.untouched(hostDir, hostFile)
	}},
	{name: "FIFOsDoNotHang", says: "Files never blocks on a FIFO; to read or write anything but a regular file is Invalid.", shell: true, check: func(t *T) {
		t.sh("mkfifo fifo; ln -s fifo link; mkdir d; mkfifo d/inner")
		for _, p := range []string{"/fifo", "/link"} {
			for name, call := range t.calls(t.sb) {
				switch name {
				case "Open", "Write", "Append":
					t.kind(name+" of a FIFO", call(t.dir()+p), "path", sandbox.Invalid)
				case "Chmod", "Chown", "Stat":
					t.ok(name+" of a FIFO", call(t.dir()+p))
				}
			}
		}
		if got := t.names(t.dir() + "/d"); !slices.Equal(got, []string{"inner"}) {
			t.errorf("List yields %q", got)
		}
		t.ok("Rename of a FIFO", t.sb.Files().Rename(t.ctx, t.dir()+"/fifo", t.dir()+"/moved"))
		t.ok("Remove", t.sb.Files().Remove(t.ctx, t.dir()+"/d", true))
	}},
	{name: "DevicesAreRefused", says: "Device nodes cannot be read, written or changed through Files: Denied or Invalid.", shell: true, check: func(t *T) {
		t.sh("ln -s /dev/null null; ln -s /dev/zero zero")
		for _, p := range []string{"/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty", t.dir() + "/null", t.dir() + "/zero"} {
			for name, call := range t.calls(t.sb) {
				switch name {
				case "Open", "Write", "Append":
					t.kind(name+" of "+p, call(p), "path", sandbox.Invalid, sandbox.Denied)
				case "Chmod", "Chown":
					t.kind(name+" of "+p, call(p), "", sandbox.Invalid, sandbox.Denied)
				}
			}
		}
		if r := t.run("sh", "-c", "echo x > /dev/null && head -c 3 /dev/zero | wc -c"); strings.TrimSpace(string(r.Stdout)) != "3" {
			t.errorf("afterwards the devices do not work: %q, %q", r.Stdout, r.Stderr)
		}
	}},
	{name: "KernelInterfacesAreRefused", says: "procfs and sysfs cannot be read, written or changed through Files; magic links are not followed.", shell: true, check: func(t *T) {
		t.sh("ln -s /proc/self/root root; ln -s /proc/self/environ environ; ln -s /proc proc")
		for _, p := range []string{
			"/proc/self/environ", "/proc/1/environ", "/proc/self/root/etc/passwd", "/proc/self/cwd", "/proc/self/fd/0", "/proc/1/root/etc/passwd", "/proc/version",
			"/proc/sys/kernel/hostname", "/proc/self/mem", "/sys/kernel/notes", "/proc/thread-self/root/etc/passwd",
			t.dir() + "/root/etc/passwd", t.dir() + "/environ", t.dir() + "/proc/self/environ",
		} {
			for name, call := range t.calls(t.sb) {
				switch name {
				case "Open", "Write", "Append", "Chmod", "Chown", "Mkdir":
					if name == "Mkdir" && p == t.dir()+"/environ" {
						continue // a link is there
					}
					t.kind(name+" of "+p, call(p), "", sandbox.Denied, sandbox.Invalid, sandbox.NotExist, sandbox.Conflict)
				}
			}
		}
	}},
}
