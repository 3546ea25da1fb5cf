//go:build linux

package vm

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// machine returns a Machine with a kernel, or skips. What the machine prints
// is the test's output, or goes to the file that ATOLL_VM_CONSOLE names.
func machine(t *testing.T) Machine {
	t.Helper()
	skip := func(why string) {
		t.Helper()
		if slices.Contains(strings.Split(os.Getenv("ATOLL_REQUIRE"), ","), "vm") {
			t.Fatal(why)
		}
		t.Skip("no virtual machine can run here: " + why)
	}
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	if runtime.GOARCH != "amd64" {
		skip("there is a kernel for amd64 only")
	}
	if err := Available(); err != nil {
		skip(err.Error())
	}
	cmd := exec.Command("scripts/vm-deps")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		skip(err.Error() + ": " + stderr.String())
	}
	m := Machine{Kernel: strings.TrimSpace(string(out)), Output: t.Output()}
	if path := os.Getenv("ATOLL_VM_CONSOLE"); path != "" { // to watch it
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		m.Output = f
	}
	return m
}

// root returns the folder of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("no go.mod above")
	return ""
}

// build makes a static test binary of a package of this module.
func build(t *testing.T, pkg string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "test")
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", to, "./"+pkg)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the tests of %s: %v\n%s", pkg, err, out)
	}
	return to
}

// program makes a static program of this module.
func program(t *testing.T, pkg string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./"+pkg)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return to
}

var verdict = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// report makes each test of a program in the machine a subtest of t.
func report(t *testing.T, r Result) {
	t.Helper()
	t.Run(r.Name, func(t *testing.T) {
		seen := 0
		for _, m := range verdict.FindAllStringSubmatch(r.Output, -1) {
			seen++
			if m[1] == "SKIP" {
				t.Logf("%s was skipped in the machine", m[2])
			}
		}
		if r.Code != 0 {
			t.Errorf("exit code %d\n%s", r.Code, r.Output)
		} else if seen == 0 {
			t.Errorf("no test ran\n%s", r.Output)
		}
		t.Logf("%d tests and subtests", seen)
	})
}

// TestV2 tries on a kernel with pure cgroup version 2 what this one may have
// no use for.
func TestV2(t *testing.T) {
	m := machine(t)
	m.Programs = []Program{{
		Name: "cgroup",
		Path: build(t, "backend/linux/internal/cgroup"),
		Args: []string{"-test.v", "-test.timeout=8m"},
		Env:  []string{"ATOLL_REQUIRE=cgroup"},
	}, {
		Name: "seccomp",
		Path: build(t, "backend/linux/internal/seccomp"),
		Args: []string{"-test.v", "-test.short", "-test.timeout=8m", "-test.run=Kernel|Foreign|Nests|Load"},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	results, err := m.Run(ctx)
	for _, r := range results {
		report(t, r)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestLinuxV2 has the whole backend hold the suite there, and those of its
// abuse tests that are about what the kernel keeps. With ATOLL_SOAK it runs
// all of them; ATOLL_VM_RUN is another choice.
func TestLinuxV2(t *testing.T) {
	m := machine(t)
	m.Memory = 2048
	m.Modules = []string{"overlay"}
	m.Files = userland(t, "sh", "sleep", "nohup", "setsid", "perl", "ls", "cat", "stat", "env", "id", "dd", "head", "tail", "seq", "timeout",
		"mkfifo", "mkdir", "rm", "tr", "sort", "mkfs.ext4", "newuidmap", "newgidmap")
	m.Files["/opt/atoll-guest"] = program(t, "cmd/atoll-guest")
	m.Files["/opt/abuse"] = program(t, "backend/linux/internal/abuse")
	run := "^(TestRuntime|TestProbe|TestAbuse(ForkBomb|MemoryBombs|Disk|Processor|Hiding|Cgroups|SystemCalls|Sockets|Clone3|Mounts|Proc))$"
	if os.Getenv("ATOLL_SOAK") != "" {
		run = "."
	}
	if r := os.Getenv("ATOLL_VM_RUN"); r != "" {
		run = r
	}
	m.Programs = []Program{{
		Name: "linux",
		Path: build(t, "backend/linux"),
		Args: []string{"-test.v", "-test.timeout=25m", "-test.run=" + run},
		Env:  []string{"ATOLL_TEST_GUEST=/opt/atoll-guest", "ATOLL_TEST_ABUSE=/opt/abuse", "ATOLL_REQUIRE=linux"},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	results, err := m.Run(ctx)
	for _, r := range results {
		report(t, r)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// userland returns the host's own programs of these names with all that they
// need, since busybox's differ in small things. What is not there is left out.
func userland(t *testing.T, names ...string) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			path = "/usr/sbin/" + name
		}
		if _, err := os.Stat(path); err != nil {
			t.Logf("%s is not here, nor in the machine", name)
			continue
		}
		files["/bin/"+name] = path
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // a static one
		}
		for _, f := range strings.Fields(string(out)) {
			if strings.HasPrefix(f, "/") {
				files[f] = f
			}
		}
	}
	// perl's own modules.
	dirs, _ := filepath.Glob("/usr/lib/*/perl-base")
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				files[path] = path
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestProgramsThatFailAreToldApart(t *testing.T) {
	m := machine(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	extra := filepath.Join(t.TempDir(), "extra")
	if err := os.WriteFile(extra, []byte("brought along\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.Files = map[string]string{"/some/where/extra": extra}
	m.Modules = []string{"overlay"}
	m.Programs = []Program{
		{Name: "busybox", Path: busybox, Args: []string{"sh", "-c", `cat "$WHERE"; printf unfinished; exit 7`}, Env: []string{"WHERE=/some/where/extra"}},
		{Name: "sh", Path: busybox, Args: []string{"-c", "echo 'it'\"'\"'s' $(pwd); grep -c overlay /proc/filesystems"}, Dir: "/a/b"},
	}
	results, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []Result{{"busybox", 7, "brought along\nunfinished"}, {"sh", 0, "it's /a/b\n1\n"}}
	if !slices.Equal(results, want) {
		t.Errorf("got %+v, want %+v", results, want)
	}
}

func TestRead(t *testing.T) {
	const console = "boot\r\natoll-vm: run a\r\nline\r\nhalfatoll-vm: exit 3\r\nnoise\r\natoll-vm: run b\r\nx"
	got, last := Machine{}.read(strings.NewReader(console))
	want := []Result{{"a", 3, "line\nhalf"}, {"b", -1, "x\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if len(last) != 7 {
		t.Errorf("last lines: %q", last)
	}
}
