package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
)

// buildDaemon builds the program, once for all tests.
var buildDaemon = sync.OnceValues(func() (string, error) {
	program := filepath.Join(filepath.Dir(guestProgram), "atoll")
	out, err := exec.Command("go", "build", "-o", program, "github.com/atoll-run/atoll/cmd/atoll").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build: %w\n%s", err, out)
	}
	return program, err
})

// stateFolder returns the program and a state folder with a configuration, to
// which more is added. It skips where there can be no sandboxes.
func stateFolder(t *testing.T, more string) (program, dir string) {
	t.Helper()
	program, err := buildDaemon()
	if err != nil {
		t.Fatal(err)
	}
	dir, err = os.MkdirTemp("", "atoll-e2e-abuse-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	config := more + fmt.Sprintf("\n[linux]\nguest = %q\n", guestProgram)
	if err := os.WriteFile(filepath.Join(dir, "atoll.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return program, dir
}

// workingDaemon starts the program on dir and ends it with the test, with all
// that it has.
func workingDaemon(t *testing.T, program, dir string) *daemon {
	t.Helper()
	d := startDaemon(t, program, dir)
	if s, err := d.client.Status(t.Context()); err != nil || !s.Available {
		d.kill()
		if os.Getenv("ATOLL_REQUIRE") == "" {
			t.Skipf("this machine cannot make sandboxes: %+v, %v", s, err)
		}
		t.Fatalf("status %+v, %v", s, err)
	}
	return d
}

// end ends the daemon in peace.
func (d *daemon) end(t *testing.T) {
	t.Helper()
	d.client.Close()
	d.Process.Signal(os.Interrupt)
	if err := d.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// clear removes what there is and ends the daemon.
func (d *daemon) clear(t *testing.T) {
	t.Helper()
	for info, err := range d.client.List(t.Context()) {
		if err != nil {
			t.Error(err)
			break
		}
		sb, err := d.client.Open(t.Context(), info.ID)
		if err == nil {
			err = sb.Remove(t.Context())
		}
		if err != nil && !errors.Is(err, sandbox.NotExist) {
			t.Error(err)
		}
	}
	d.end(t)
}

// works checks that the daemon has the sandbox and can use it.
func (d *daemon) works(t *testing.T, name string, id sandbox.ID) {
	t.Helper()
	sb, err := d.client.Lookup(t.Context(), name)
	if err != nil || sb.ID() != id {
		t.Fatalf("%s: %v", name, err)
	}
	if exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil || !exit.Success() {
		t.Errorf("%s: %v, %v", name, exit, err)
	}
}

func (d *daemon) make(t *testing.T, name string) sandbox.ID {
	t.Helper()
	sb, _, err := d.client.Acquire(t.Context(), sandbox.Spec{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return sb.ID()
}

// refuses checks that the program does not start on dir, after a shell has
// done what first says in a mount namespace of its own, and that what it says
// has all of want.
func refuses(t *testing.T, program, dir, first string, want ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", first+` exec "$@"`, "sh", program, "serve", "--listen", "127.0.0.1:0", "--state", dir, "--config", filepath.Join(dir, "atoll.toml"))
	cmd.Env = append(os.Environ(), "ATOLL_TOKEN="+crashToken)
	if first != "" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want status 1; it said\n%s", err, &said)
	}
	for _, w := range want {
		if !strings.Contains(said.String(), w) {
			t.Errorf("it does not say %q, but\n%s", w, &said)
		}
	}
}

// TestABadStateFolderIsRefusedAndLosesNothing starts daemons on a folder that
// another one has, that cannot be written, and whose database is damaged.
func TestABadStateFolderIsRefusedAndLosesNothing(t *testing.T) {
	program, dir := stateFolder(t, "")
	d := workingDaemon(t, program, dir)
	id := d.make(t, "kept")

	refuses(t, program, dir, "", "another daemon", dir, strconv.Itoa(d.Process.Pid), "--state")
	d.works(t, "kept", id)
	d.end(t)

	if os.Getuid() == 0 {
		readOnly := fmt.Sprintf("mount --make-rprivate / && mount --bind %[1]s %[1]s && mount -o remount,bind,ro %[1]s &&", dir)
		refuses(t, program, dir, readOnly, dir, "read-only")
	}

	db := filepath.Join(dir, "engine.db")
	whole, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	broken := bytes.Clone(whole)
	i := bytes.Index(broken, []byte(`"kept"`))
	if i < 0 {
		t.Fatal("the record is not to be found")
	}
	for ; i >= 0; i = bytes.Index(broken, []byte(`"kept"`)) {
		broken[i+1] ^= 1
	}
	if err := os.WriteFile(db, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, program, dir, "", db, "damaged", "mv ")
	if left, err := os.ReadFile(db); err != nil || !bytes.Equal(left, broken) {
		t.Errorf("the damaged file was not left as it was: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "linux", "sandboxes", "*")); len(left) != 1 {
		t.Errorf("the sandboxes are %v", left)
	}
	// Without the file the sandbox is adopted, with it all is as it was.
	if err := os.Rename(db, db+".damaged"); err != nil {
		t.Fatal(err)
	}
	d = startDaemon(t, program, dir)
	if sb, err := d.client.Open(t.Context(), id); err != nil {
		t.Errorf("without the file: %v", err)
	} else if exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil || !exit.Success() {
		t.Errorf("without the file: %v, %v", exit, err)
	}
	d.end(t)
	if err := os.WriteFile(db, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	d = startDaemon(t, program, dir)
	d.works(t, "kept", id)
	d.clear(t)
}

// TestAFullStateFolderLosesNothing fills the disk of the state folder under a
// daemon that works.
func TestAFullStateFolderLosesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may mount")
	}
	program, dir := stateFolder(t, "")
	disk := filepath.Join(dir, "disk")
	if err := os.Mkdir(disk, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("small", disk, "tmpfs", 0, "size=32m,mode=711"); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	defer syscall.Unmount(disk, syscall.MNT_DETACH)
	config, err := os.ReadFile(filepath.Join(dir, "atoll.toml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(disk, "atoll.toml"), config, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := workingDaemon(t, program, disk)
	kept := make(map[string]sandbox.ID)
	for i := range 3 {
		name := fmt.Sprint("kept ", i)
		kept[name] = d.make(t, name)
	}
	ballast := filepath.Join(disk, "ballast")
	fill := func() {
		t.Helper()
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for n := 1 << 20; n > 0; { // to the last byte
			if _, err := f.Write(make([]byte, n)); err != nil {
				n /= 2
			}
		}
	}
	fill()
	refusals := 0
	for i := range 5 {
		name := fmt.Sprint("late ", i)
		sb, _, err := d.client.Acquire(t.Context(), sandbox.Spec{Name: name})
		if err == nil {
			kept[name] = sb.ID()
			continue
		}
		refusals++
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind == sandbox.Internal || strings.Contains(e.Error(), disk) {
			t.Errorf("on a full disk: %v (%s)", err, sandbox.KindOf(err))
		}
	}
	if refusals == 0 {
		t.Error("the disk was not full: the test tries nothing")
	}
	for name, id := range kept {
		d.works(t, name, id)
	}
	d.kill()

	// With room again, all that was acknowledged is there, and it goes on.
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	d = startDaemon(t, program, disk)
	for name, id := range kept {
		d.works(t, name, id)
	}
	kept["after"] = d.make(t, "after")
	n := 0
	for _, err := range d.client.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != len(kept) {
		t.Errorf("there are %d, %d were acknowledged", n, len(kept))
	}
	d.clear(t)
}

// TestFromInsideNobodyReachesTheDaemon has a program in a sandbox look for the
// daemon that made it: its ports, its socket, its files, its process.
func TestFromInsideNobodyReachesTheDaemon(t *testing.T) {
	const aliceToken = "e2b_abcdef0123456789abcdef0123456789abcdef01"
	keys := t.TempDir()
	key := filepath.Join(keys, "alice")
	if err := os.WriteFile(key, []byte(aliceToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, dir := stateFolder(t, fmt.Sprintf("[audit]\nfile = \"audit.log\"\n[owners.alice]\ntoken_file = %q\n", key))
	d := workingDaemon(t, program, dir)
	defer d.clear(t)
	sb, _, err := d.client.Acquire(t.Context(), sandbox.Spec{Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(d.host, "http://")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(keys, "socket")
	l, err := net.Listen("unix", socket) // as good as the daemon's own
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	abstract, err := net.Listen("unix", "@atoll-e2e-"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	files := []string{filepath.Join(dir, "engine.db"), filepath.Join(dir, "audit.log"), filepath.Join(dir, "lock"), filepath.Join(dir, "atoll.toml"), key}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			t.Errorf("the test tries nothing: %v", err)
		}
	}
	try := func(what string, args ...string) {
		t.Helper()
		r, err := sandbox.Capture(t.Context(), sb, 1<<16, sandbox.Cmd{Args: args})
		if err != nil {
			t.Fatal(err)
		}
		if r.Success() || bytes.Contains(r.Stdout, []byte(crashToken)) || bytes.Contains(r.Stdout, []byte(aliceToken)) {
			t.Errorf("%s: %v, %s%s", what, r.Exit, r.Stdout, r.Stderr)
		}
	}
	hosts := []string{"127.0.0.1", "::1", "0.0.0.0"}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
			hosts = append(hosts, ip.IP.String())
		}
	}
	for _, host := range hosts {
		try("connect to "+host, "perl", "-MIO::Socket::IP", "-e", `IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => $ARGV[1], Timeout => 5) or exit 1`, host, port)
	}
	for _, path := range []string{socket, "\x00" + "atoll-e2e-" + port} {
		try(fmt.Sprintf("connect to %q", path), "perl", "-MSocket", "-e", `my $p = $ARGV[0]; $p =~ s/^@/\0/; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit 2; connect($s, pack_sockaddr_un($p)) or exit 1`, strings.Replace(path, "\x00", "@", 1))
	}
	for _, f := range files {
		try("read "+f, "cat", f)
		try("read "+f+" by another root", "cat", "/proc/1/root"+f)
		try("write "+f, "sh", "-c", "echo x >> "+f)
	}
	try("find the token", "sh", "-c", "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -e '[e]"+crashToken[1:]+"' -e '[e]"+aliceToken[1:]+"'")
	try("find the daemon", "sh", "-c", "cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ' | grep 'serve --[l]isten'")
	try("signal the daemon", "sh", "-c", "kill -0 "+strconv.Itoa(d.Process.Pid))

	// Nor does an owner's token reach what is the operator's.
	alice, err := client.New(client.Config{Host: d.host, Token: aliceToken})
	if err != nil {
		t.Fatal(err)
	}
	defer alice.Close()
	if _, _, err := alice.Acquire(t.Context(), sandbox.Spec{Name: "hers"}); err != nil {
		t.Fatal(err)
	}
	for ev, err := range alice.Events(t.Context(), 0, false) {
		if err != nil || ev.Owner != "alice" {
			t.Errorf("alice is told of %+v, %v", ev, err)
		}
	}
	if _, err := alice.Open(t.Context(), sb.ID()); !errors.Is(err, sandbox.NotExist) {
		t.Errorf("alice opens the operator's: %v", err)
	}
	if _, err := alice.Lookup(t.Context(), "s"); !errors.Is(err, sandbox.NotExist) {
		t.Errorf("alice finds the operator's: %v", err)
	}
	if pruned, err := alice.Prune(t.Context(), sandbox.Prune{}); err != nil || len(pruned) != 1 {
		t.Errorf("alice pruned %d, %v", len(pruned), err)
	}
	d.works(t, "s", sb.ID())
	for token, want := range map[string]bool{crashToken: true, aliceToken: false, "": false, "e2b_0000000000000000000000000000000000000000": false} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", d.host+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if has := bytes.Contains(body, []byte("atoll_creates_total")); err != nil || has != want || want != (resp.StatusCode == http.StatusOK) {
			t.Errorf("metrics with the token %.8q: %s, %v", token, resp.Status, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestManyLivesOverTheKernel makes and removes sandboxes one after the other
// and looks at what the kernel has left of them.
func TestManyLivesOverTheKernel(t *testing.T) {
	lives := 300
	if testing.Short() {
		lives = 40
	}
	program, dir := stateFolder(t, "")
	d := workingDaemon(t, program, dir)
	type sizes struct{ fds, mounts, cgroups, files int }
	look := func() (s sizes) {
		t.Helper()
		proc := filepath.Join("/proc", strconv.Itoa(d.Process.Pid))
		fds, err := os.ReadDir(filepath.Join(proc, "fd"))
		if err != nil {
			t.Fatal(err)
		}
		mounts, err := os.ReadFile(filepath.Join(proc, "mounts"))
		if err != nil {
			t.Fatal(err)
		}
		cgroups, err := os.ReadFile("/proc/cgroups")
		if err != nil {
			t.Fatal(err)
		}
		s.fds, s.mounts = len(fds), bytes.Count(mounts, []byte("\n"))
		for line := range strings.Lines(string(cgroups)) {
			if f := strings.Fields(line); f[0] == "memory" {
				s.cgroups, _ = strconv.Atoi(f[2])
			}
		}
		filepath.WalkDir(filepath.Join(dir, "linux"), func(string, os.DirEntry, error) error { s.files++; return nil })
		return s
	}
	live := func(n int) {
		t.Helper()
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range n / 4 {
					sb, made, err := d.client.Acquire(t.Context(), sandbox.Spec{Name: fmt.Sprint("worker ", w)})
					if err != nil || !made {
						t.Errorf("life %d: made %v, %v", i, made, err)
						return
					}
					if i%5 == 0 {
						if exit, err := sandbox.Run(t.Context(), sb, sandbox.Cmd{Args: []string{"true"}}); err != nil || !exit.Success() {
							t.Errorf("life %d: %v, %v", i, exit, err)
						}
					}
					if err := sb.Remove(t.Context()); err != nil {
						t.Errorf("life %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
	}
	live(20)
	before := look()
	live(lives)
	after := look()
	t.Logf("before %+v, after %d lives %+v", before, lives, after)
	// Connections and what the pool has ready come and go: a dozen descriptors
	// more or less say nothing, one for every few lives would.
	if after.fds > before.fds+40 || after.mounts > before.mounts || after.files > before.files+10 {
		t.Error("something is left")
	}
	d.end(t)
	left, err := filepath.Glob(filepath.Join(dir, "linux", "sandboxes", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
