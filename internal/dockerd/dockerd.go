// Package dockerd starts a container engine of a test's own: Docker's daemon
// with its own data, socket and containerd, without bridges and firewall rules,
// or Podman's service likewise, so that it meets no other engine of the machine and changes nothing of the
// host's network. It is for tests alone.
package dockerd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An Engine is a running engine.
type Engine struct {
	Host string // unix://…
	Dir  string // where all of it is

	http *http.Client
}

// Start starts an engine, which ends with the test, if ATOLL_REQUIRE lists
// docker. Where none can be started the test then fails; else it is skipped,
// since what engines do takes minutes.
func Start(t testing.TB) *Engine {
	t.Helper()
	asked(t, "docker")
	not := func(format string, args ...any) { t.Helper(); t.Fatalf(format, args...) }
	program, err := exec.LookPath("dockerd")
	if err != nil {
		not("no dockerd here: %v (make deps installs it)", err)
	}
	if os.Geteuid() != 0 {
		not("an engine of our own needs root")
	}
	// Short: the paths of sockets in it have at most 108 bytes.
	dir, err := os.MkdirTemp("", "dockerd-")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "docker.sock")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"), "-p", filepath.Join(dir, "pid"),
		"-H", "unix://"+socket, "--storage-driver", "overlay2", "--bridge=none", "--iptables=false", "--ip-masq=false", "--ip-forward=false",
		"--exec-opt", "native.cgroupdriver=cgroupfs", "--insecure-registry", "127.0.0.0/8")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		not("dockerd: %v", err)
	}
	return await(t, cmd, "docker", dir, socket, log)
}

// asked skips a test that nobody asked for: ATOLL_REQUIRE does not list the
// engine's kind.
func asked(t testing.TB, kind string) {
	t.Helper()
	if !slices.Contains(strings.FieldsFunc(os.Getenv("ATOLL_REQUIRE"), func(r rune) bool { return r == ',' || r == ' ' }), kind) {
		t.Skip("a container engine takes minutes: make test REQUIRE=linux,docker,podman tries them too")
	}
}

// await returns the engine that cmd, which was started, becomes.
func await(t testing.TB, cmd *exec.Cmd, kind, dir, socket string, log *os.File) *Engine {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	e := &Engine{Host: "unix://" + socket, Dir: dir, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
	t.Cleanup(func() { e.stop(t, cmd.Process, ended, log) })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if r, err := e.http.Get("http://engine/_ping"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return e
			}
		}
		select {
		case err := <-ended:
			ended <- err
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("the engine (%s) ended: %v: %s", kind, err, lastLines(said))
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the engine (%s) does not answer", kind)
		}
	}
}

// StartPodman starts the service of Podman's that speaks Docker's API, with
// storage of its own, which ends with the test, if ATOLL_REQUIRE lists podman:
// see Start.
func StartPodman(t testing.TB) *Engine {
	t.Helper()
	asked(t, "podman")
	program, err := exec.LookPath("podman")
	if err != nil {
		t.Fatalf("no podman here: %v (make deps installs it)", err)
	}
	if os.Geteuid() != 0 {
		t.Fatalf("an engine of our own needs root")
	}
	dir, err := os.MkdirTemp("", "podman-")
	if err != nil {
		t.Fatal(err)
	}
	// Its defaults raise limits, which not everybody may.
	conf := filepath.Join(dir, "containers.conf")
	if err := os.WriteFile(conf, []byte(`[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
`), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "podman.sock")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--root", filepath.Join(dir, "data"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"system", "service", "--time", "0", "unix://"+socket)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+conf)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("podman: %v", err)
	}
	return await(t, cmd, "podman", dir, socket, log)
}

// stop ends the engine with all its containers, and removes what it had.
func (e *Engine) stop(t testing.TB, p *os.Process, ended chan error, log *os.File) {
	defer log.Close()
	p.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(90 * time.Second):
		t.Error("the engine does not end")
		p.Kill()
		<-ended
	}
	// Podman's monitors stay for five minutes after the last of what they
	// watched, and then look for what is no longer there.
	for _, pid := range e.helpers() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	// What a crash of it, or of ours, left mounted.
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Error(err)
	}
	lines := strings.Split(string(mounts), "\n")
	for _, line := range slices.Backward(lines) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], e.Dir+"/") {
			if err := syscall.Unmount(f[1], syscall.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", f[1], err)
			}
		}
	}
	if err := os.RemoveAll(e.Dir); err != nil {
		t.Error(err)
	}
}

// helpers returns the processes that were started with a path of the engine's.
func (e *Engine) helpers() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || !bytes.Contains(line, []byte(e.Dir+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

func lastLines(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// Import makes an image called name of a root file system.
func (e *Engine) Import(t testing.TB, name string, root io.Reader) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://engine/images/create?fromSrc=-&repo="+name, root)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-tar")
	r, err := e.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || bytes.Contains(b, []byte(`"error"`)) {
		t.Fatalf("import: %s, %v: %s", r.Status, err, b)
	}
}

// programs are those of the host that an image of [HostRoot] has, if they are
// there: what the suites run.
var programs = strings.Fields(`sh bash cat ls cp mv rm mkdir rmdir ln touch chmod chown echo printf true false sleep env pwd id whoami
	head tail wc sort uniq tr cut tee dd yes seq stat readlink mktemp mkfifo mknod expr test date od base64 sha256sum sync truncate
	stty tty nohup timeout setsid kill ps grep sed awk find xargs hostname perl nice dirname basename du df uname unshare mount prlimit python3 nproc`)

// HostRoot returns a root file system made of the host's own programs and the
// libraries that they need, as a tar archive.
func HostRoot(t testing.TB) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	have := make(map[string]bool)
	var dir func(p string)
	dir = func(p string) {
		if p == "/" || have[p] {
			return
		}
		dir(filepath.Dir(p))
		have[p] = true
		mode := int64(0o755)
		if p == "/tmp" || p == "/var/tmp" {
			mode = 0o1777
		}
		put(t, w, &tar.Header{Typeflag: tar.TypeDir, Name: p[1:] + "/", Mode: mode}, nil)
	}
	file := func(p string, mode int64, content []byte) {
		if !have[p] {
			dir(filepath.Dir(p))
			have[p] = true
			put(t, w, &tar.Header{Typeflag: tar.TypeReg, Name: p[1:], Mode: mode, Size: int64(len(content))}, content)
		}
	}
	copyFile := func(from, to string) {
		if have[to] {
			return
		}
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		file(to, 0o755, content)
	}
	for _, p := range []string{"/tmp", "/proc", "/sys", "/dev", "/root", "/etc", "/usr/bin", "/var/tmp", "/run", "/opt"} {
		dir(p)
	}
	put(t, w, &tar.Header{Typeflag: tar.TypeSymlink, Name: "bin", Linkname: "usr/bin", Mode: 0o777}, nil)
	for _, name := range programs {
		p, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if p, err = filepath.EvalSymlinks(p); err != nil {
			t.Fatal(err)
		}
		copyFile(p, "/usr/bin/"+name)
		out, err := exec.Command("ldd", p).CombinedOutput()
		if err != nil {
			continue // static
		}
		for f := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(f, "/") {
				real, err := filepath.EvalSymlinks(f)
				if err != nil {
					t.Fatal(err)
				}
				copyFile(real, f)
			}
		}
	}
	// Perl's own part of its library.
	if bases, _ := filepath.Glob("/usr/lib/*/perl-base"); len(bases) > 0 {
		err := filepath.WalkDir(bases[0], func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				copyFile(p, p)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	file("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nnobody:x:65534:65534::/nonexistent:/bin/false\nuser:x:1000:1000::/home/user:/bin/sh\n"))
	file("/etc/group", 0o644, []byte("root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\nuser:x:1000:\nextra:x:1001:user\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func put(t testing.TB, w *tar.Writer, h *tar.Header, content []byte) {
	t.Helper()
	h.ModTime = time.Unix(1700000000, 0)
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(h.Name, err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(h.Name, err)
	}
}

// Guest builds the guest program and returns its file.
func Guest(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "atoll-guest")
	cmd := exec.Command("go", "build", "-o", file, "github.com/atoll-run/atoll/cmd/atoll-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the guest: %v: %s", err, out)
	}
	return file
}

// Listener is a command that echoes what connects to a port of the loopback,
// in an image of [HostRoot].
func Listener(port int) []string {
	return []string{"perl", "-MIO::Socket::INET", "-e", `
		my $l = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 8, ReuseAddr => 1) or die $!;
		while (my $c = $l->accept) { while (sysread($c, my $b, 65536)) { syswrite($c, $b) } close $c }`, strconv.Itoa(port)}
}
