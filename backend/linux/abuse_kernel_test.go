//go:build linux

package linux_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/backend/linux/internal/seccomp"
	"github.com/atoll-run/atoll/sandbox"
)

func arch() seccomp.Arch {
	if runtime.GOARCH == "arm64" {
		return seccomp.ARM64
	}
	return seccomp.AMD64
}

// What exploits begin with is refused by our filter, not by a kernel that
// happens to lack it: the error is the one of the policy for that very number
// and those arguments, and one filter is loaded.
func TestAbuseSystemCalls(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	if s := c.try(t, "status"); s["Seccomp"] != "2" || s["Seccomp_filters"] != "1" {
		t.Fatalf("the filter: Seccomp %s, Seccomp_filters %s", s["Seccomp"], s["Seccomp_filters"])
	}
	re := regexp.MustCompile(`^(.*) nr=(\d+) args=(.*)$`)
	said := c.try(t, "calls")
	if len(said) < 60 {
		t.Fatalf("only %d calls were tried", len(said))
	}
	for line, got := range said {
		m := re.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("not a call: %q", line)
		}
		var args [6]uint64
		for i, s := range strings.Split(m[3], ",") {
			v, err := strconv.ParseUint(s, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			args[i] = v
		}
		want := seccomp.Decide(arch(), uint32(number(t, m[2])), args)
		if want == seccomp.Allow {
			t.Errorf("%s: the policy allows it", m[1])
		} else if got != want.String() {
			t.Errorf("%s: %s, the policy says %v", m[1], got, want)
		}
	}
}

// Of the socket families only those are there that programs use. The page
// cache was written to through AF_ALG, AF_RXRPC and AF_KEY in 2026.
func TestAbuseSockets(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	allowed := map[int]bool{unix.AF_UNIX: true, unix.AF_INET: true, unix.AF_INET6: true, unix.AF_NETLINK: true}
	families := map[int]bool{}
	for line, got := range c.try(t, "sockets") {
		var family, kind, proto, nr int
		if _, err := fmt.Sscanf(line, "socket %d %d %d nr=%d", &family, &kind, &proto, &nr); err != nil {
			t.Fatal(err)
		}
		families[family] = true
		want := seccomp.Decide(arch(), uint32(nr), [6]uint64{uint64(family), uint64(kind | unix.SOCK_CLOEXEC), uint64(proto)})
		switch {
		case !allowed[family] && (want != seccomp.Refuse || got != "EPERM"):
			t.Errorf("%s: %s, the policy says %v", line, got, want)
		case want != seccomp.Allow && got != want.String():
			t.Errorf("%s: %s, the policy says %v", line, got, want)
		case kind == unix.SOCK_RAW && family != unix.AF_NETLINK && got == "ok":
			t.Errorf("%s: a raw socket", line)
		case family == unix.AF_NETLINK && proto != 0 && got == "ok":
			t.Errorf("%s: netlink, but not for routes", line)
		}
	}
	if len(families) != 48 {
		t.Errorf("%d families were tried", len(families))
	}
}

// The flags of clone3 are behind a pointer, so no filter sees them. That a
// namespace cannot be made by it is kept by the limits of the sandbox's user
// namespace, and by the lack of capabilities.
func TestAbuseClone3(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	for _, user := range []string{"", "1000"} {
		for ns, got := range c.tryAs(t, user, "clone3") {
			want := "EPERM"
			if strings.Contains(ns, "user") {
				want = "ENOSPC" // user.max_user_namespaces is 0 in here
			}
			if ns == "time" && got == "EINVAL" {
				continue // clone3 takes no time namespace together with a signal
			}
			if got != want {
				t.Errorf("as %q, a %s namespace: %s, want %s", user, ns, got, want)
			}
		}
	}
}

// The other entries into the kernel do not go round the filter.
func TestAbuseOtherEntries(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("this architecture has no other entry")
	}
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: c.args("int80")})
	if err != nil {
		t.Fatal(err)
	}
	// A program that the filter kills, or a kernel without the entry: both end
	// it by a signal, and neither says anything.
	if r.Reason != sandbox.Signalled || r.Signal != sandbox.SYS || len(r.Stdout) > 0 {
		t.Errorf("int 0x80: %+v, said %q; want killed by SIGSYS", r.Exit, r.Stdout)
	}
	for name, got := range c.try(t, "x32") {
		if got != "ENOSYS" {
			t.Errorf("x32 %s: %s, want ENOSYS", name, got)
		}
	}
}

// Nothing gives a process rights: no capability is held or can be got, and a
// setuid program is a program.
func TestAbusePrivileges(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	for _, user := range []string{"", "user"} {
		s := c.tryAs(t, user, "status")
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if s[set] != "0000000000000000" {
				t.Errorf("as %q: %s is %s", user, set, s[set])
			}
		}
		if s["NoNewPrivs"] != "1" {
			t.Errorf("as %q: NoNewPrivs is %s", user, s["NoNewPrivs"])
		}
		if s["securebits"] != "0xc3 ok" {
			t.Errorf("as %q: securebits are %s", user, s["securebits"])
		}
		// 1 and not 0: a core that is piped to a program of the host's root
		// (core_pattern with |) is written with a limit of 0, and is not with 1.
		for name, want := range map[string]string{"core": "1 1", "rtprio": "0 0", "nice": "0 0"} {
			if got := s["rlimit "+name]; got != want {
				t.Errorf("as %q: the limit of %s is %s, want %s", user, name, got, want)
			}
		}
		for name, got := range c.tryAs(t, user, "gain") {
			want := map[string]string{
				"no_new_privs off": "EINVAL", "uid_map": "EPERM", "setgroups file": "EPERM",
				"priority": "EACCES", "oom_score_adj": "EACCES",
				"setuid": "EPERM", "setgroups": "EPERM",
			}[name]
			switch {
			case strings.HasPrefix(name, "max_"):
				if got != "EACCES" && got != "EROFS" && got != "EPERM" {
					t.Errorf("as %q: %s: %s", user, name, got)
				}
			case (name == "setuid" || name == "setgroups") && got == "EINVAL": // an id that the only one's map lacks
			case name == "uid_map" || name == "setgroups file":
				if got == "ok" {
					t.Errorf("as %q: %s: %s", user, name, got)
				}
			case want == "" && got != "EPERM", want != "" && got != want:
				t.Errorf("as %q: %s: %s, want %s", user, name, got, want)
			}
		}
	}
	if !c.info.Isolation.Holds(sandbox.ManyIDs) {
		return // there is nobody else to become
	}
	// The program is copied, given to root, and marked setuid.
	const suid = "/workspace/suid"
	run := sandbox.Cmd{Args: []string{"/bin/sh", "-c", "cp " + abusePath + " " + suid + " && chown 0:0 " + suid + " && chmod 6755 " + suid + " && ls -l " + suid}}
	r, err := sandbox.Capture(t.Context(), c, 1000, run)
	if err != nil || !r.Success() {
		t.Fatalf("%v %+v %s", err, r.Exit, r.Stderr)
	}
	if !bytes.HasPrefix(r.Stdout, []byte("-rwsr-sr-x")) {
		t.Fatalf("it is not setuid: %s", r.Stdout)
	}
	r, err = sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{suid, c.nonce, "whoami"}, User: "1000:1000"})
	if err != nil || !r.Success() {
		t.Fatalf("%v %+v %s", err, r.Exit, r.Stderr)
	}
	if s := verdicts(t, r.Stdout); s["euid"] != "1000" || s["egid"] != "1000" || s["uid"] != "1000" {
		t.Errorf("a setuid program made somebody of user 1000: %v", s)
	}
}

// ownInit is what the sandbox's root can do to the guest, which has its user
// id: spoil its own sandbox, which it may remove as well, and no more. It does
// not get at the guest's memory, descriptors or program. The numbers of the
// descriptors can be seen, not what they are; what is opened to be written is
// written once and for all (uid_map), or takes nothing from another process.
var ownInit = []string{"limits", "priority", "fd", "task/1/fd", "open to write uid_map", "open to write comm", "open to write clear_refs",
	"open to write coredump_filter", "open to write oom_score_adj", "open to write setgroups"}

// Process 1 of the sandbox, the guest, can be neither looked into nor changed,
// and the program that it is stays what it was (CVE-2019-5736).
func TestAbuseGuest(t *testing.T) {
	rt := newRuntime(t)
	c := newCell(t, rt, sandbox.Spec{})
	pid := guestPID(t, c.ID())
	before := sum(t, guestProgram)

	for _, user := range []string{"", "user"} {
		for what, got := range c.tryAs(t, user, "attack", "1") {
			switch {
			case strings.HasSuffix(what, "pidfd") && got == "ok": // a handle, with no rights
			case (user == "" || !c.info.Isolation.Holds(sandbox.ManyIDs)) && got == "ok" && slices.Contains(ownInit, strings.TrimPrefix(what, "1 ")):
			case got == "EPERM", got == "EACCES", got == "ESRCH":
			default:
				t.Errorf("as %q, process %s: %s", user, what, got)
			}
		}
	}
	// Signals to process 1 do nothing, those that kill included.
	r, err := sandbox.Capture(t.Context(), c, 1000, sandbox.Cmd{Args: []string{"/bin/sh", "-c",
		"i=0; while [ $i -lt 30 ]; do i=$((i+1)); for s in HUP INT QUIT ILL ABRT BUS FPE USR1 SEGV USR2 ALRM TERM TRAP SYS XCPU XFSZ VTALRM PROF STOP TSTP TTIN KILL 34 40 64; do kill -$s 1; done; done; kill -KILL -1 2>/dev/null; echo done"}})
	_ = r // the shell may have died of its last signal
	if err != nil {
		t.Fatal(err)
	}
	works(t, c)
	if now := guestPID(t, c.ID()); now != pid {
		t.Errorf("the guest is another process now: %d, was %d", now, pid)
	}
	if after := sum(t, guestProgram); after != before {
		t.Error("the guest's file has changed")
	}
	// The sealed copy that runs is the program itself.
	if running := sum(t, fmt.Sprintf("/proc/%d/exe", pid)); running != before {
		t.Error("what runs is not the guest's program")
	}
}

func sum(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		if os.IsPermission(err) && strings.HasPrefix(file, "/proc/") {
			return sum(t, guestProgram) // not even the user who runs it may look
		}
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// The daemon, the launcher and the host's processes are not there at all; a
// sibling's processes are not either.
func TestAbuseOtherProcesses(t *testing.T) {
	rt := newRuntime(t)
	a, b := newCell(t, rt, sandbox.Spec{}), newCell(t, rt, sandbox.Spec{})
	p := b.start(t, "stubborn", "sibling")
	p.next(t)
	// Pids of the host that the sandbox's own table does not have.
	var pids []string
	for _, pid := range []int{os.Getpid(), os.Getppid(), guestPID(t, b.ID())} {
		if pid > 200 { // lower ones may be a process of the sandbox's
			pids = append(pids, strconv.Itoa(pid))
		}
	}
	if len(pids) == 0 {
		t.Skip("all pids of the host are so low that a sandbox may have them too")
	}
	for what, got := range a.try(t, append([]string{"attack"}, pids...)...) {
		if got != "ESRCH" && got != "ENOENT" {
			t.Errorf("process %s: %s, want that it is not there", what, got)
		}
	}
	r, err := sandbox.Capture(t.Context(), a, 1<<16, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "cat /proc/[0-9]*/cmdline"}})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(r.Stdout, []byte("sibling")) || bytes.Contains(r.Stdout, []byte(b.ID())) {
		t.Errorf("a sibling's processes can be seen: %q", r.Stdout)
	}
}

// No process inherits a descriptor that it was not meant to have, whichever
// way it was started (CVE-2024-21626).
func TestAbuseDescriptors(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	check := func(how string, said map[string]string) {
		t.Helper()
		for fd, to := range said {
			if fd != "0" && fd != "1" && fd != "2" {
				t.Errorf("%s: descriptor %s is open: %s", how, fd, to)
			}
			if strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/") {
				t.Errorf("%s: descriptor %s is a file: %s", how, fd, to)
			}
		}
		if len(said) < 3 {
			t.Errorf("%s: %d descriptors", how, len(said))
		}
	}
	check("a command", c.try(t, "fds"))

	var out bytes.Buffer
	exit, err := sandbox.Run(t.Context(), c, sandbox.Cmd{Args: c.args("fds"), Terminal: &sandbox.Size{}, Stdout: &out})
	if err != nil || !exit.Success() {
		t.Fatalf("%v %+v %s", err, exit, out.Bytes())
	}
	check("a terminal", verdicts(t, out.Bytes()))

	d, ok := c.Sandbox.(sandbox.Detacher)
	if !ok {
		t.Fatal("no detached processes")
	}
	id, err := d.StartDetached(t.Context(), sandbox.Cmd{Args: c.args("fds")}, sandbox.DetachOptions{Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	p, err := d.Attach(t.Context(), id, sandbox.AttachOptions{Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || !exit.Success() {
		t.Fatalf("%v %+v %s", err, exit, out.Bytes())
	}
	check("a detached process", verdicts(t, out.Bytes()))
}

// A working directory that is one of the kernel's own links leads nowhere.
func TestAbuseWorkingDirectory(t *testing.T) {
	rt := newRuntime(t)
	c := newCell(t, rt, sandbox.Spec{})
	for fd := range 40 {
		for _, dir := range []string{fmt.Sprintf("/proc/self/fd/%d", fd), fmt.Sprintf("/proc/self/fd/%d/../../../../../../../..", fd), fmt.Sprintf("/proc/1/fd/%d", fd)} {
			r, err := sandbox.Capture(t.Context(), c, 4096, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "pwd -P; ls -a"}, Dir: dir})
			if err == nil && r.Success() && leaksHost(r.Stdout) {
				t.Errorf("%s: the host's files: %s", dir, r.Stdout)
			}
			if err == nil && strings.HasPrefix(dir, "/proc/1/") {
				t.Errorf("%s: could be entered: %s", dir, r.Stdout)
			}
		}
	}
	for _, dir := range []string{"/proc/self/cwd", "/proc/1/cwd", "/proc/1/root", "/proc/self/root/..", "/../../..", "/workspace/../../../.."} {
		r, err := sandbox.Capture(t.Context(), c, 4096, sandbox.Cmd{Args: c.args("whoami"), Dir: dir})
		if err != nil {
			continue // refused
		}
		if s := verdicts(t, r.Stdout); s["hostname"] != string(c.ID()) || strings.Contains(s["cwd"], "unreachable") || strings.Contains(s["cwd"], "error") {
			t.Errorf("%s: %v", dir, s)
		}
	}
	for fd := range 12 {
		sb, err := rt.Create(t.Context(), sandbox.Spec{Workdir: fmt.Sprintf("/proc/self/fd/%d", fd)})
		if err != nil {
			continue // refused, as it should be
		}
		r, err := sandbox.Capture(t.Context(), sb, 4096, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "pwd -P; ls -a"}})
		if err == nil && leaksHost(r.Stdout) {
			t.Errorf("descriptor %d as the working directory: the host's files: %s", fd, r.Stdout)
		}
	}
}

// leaksHost reports whether a listing is of a directory that only the host has.
func leaksHost(out []byte) bool {
	for _, name := range []string{"shadow", "sandboxes", "boot", "lost+found", "work"} {
		for line := range strings.Lines(string(out)) {
			if strings.TrimSpace(line) == name {
				return true
			}
		}
	}
	return false
}

// Devices cannot be made, and those that are there can do no harm.
func TestAbuseDevices(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
		s := c.try(t, "nodes", dir)
		for _, n := range []string{"mem", "sda", "null", "whiteout"} {
			if got := s["mknod "+n]; got != "EPERM" {
				t.Errorf("mknod %s in %s: %s", n, dir, got)
			}
		}
		if got := s["mknod fifo"]; got != "ok" {
			t.Errorf("mkfifo in %s: %s", dir, got)
		}
		if got, want := s["/dev"], "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"; got != want {
			t.Errorf("/dev has %s, want %s", got, want)
		}
		for _, what := range []string{"create in /dev", "chmod of a device", "chown of a device", "rename a device", "times of a device"} {
			if s[what] == "ok" {
				t.Errorf("%s: %s", what, s[what])
			}
		}
	}
	for p, got := range c.try(t, "open", "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop0", "/dev/loop-control",
		"/dev/sda", "/dev/vda", "/dev/mapper/control", "/dev/vhost-net", "/dev/vsock", "/dev/userfaultfd", "/dev/snapshot", "/dev/console", "/dev/tty0", "/dev/uinput") {
		if got != "ENOENT" {
			t.Errorf("%s: %s", p, got)
		}
	}
	st, err := os.Stat("/dev/null")
	if err != nil || st.Mode()&0o777 != 0o666 {
		t.Errorf("the host's /dev/null: %v %v", st, err)
	}
}

// What of /proc and /sys concerns the host is hidden or cannot be written.
func TestAbuseProc(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	hidden := []string{"/proc/cmdline", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kallsyms", "/proc/timer_list", "/proc/sched_debug",
		"/proc/sysrq-trigger", "/proc/interrupts", "/proc/softirqs", "/proc/modules", "/proc/iomem", "/proc/ioports", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/vmallocinfo", "/proc/slabinfo", "/proc/config.gz", "/proc/swaps", "/proc/partitions", "/proc/diskstats", "/proc/bootconfig"}
	for p, got := range c.try(t, append([]string{"open"}, hidden...)...) {
		if got != "empty" && got != "ENOENT" && got != "EACCES" { // the last: the host's root alone may, who is nobody in here
			t.Errorf("%s: %s", p, got)
		}
	}
	absent := []string{"/sys/firmware", "/sys/kernel/debug", "/sys/kernel/security", "/sys/class/dmi/id/product_serial", "/sys/class/net", "/sys/block", "/sys/module",
		"/sys/devices/virtual/dmi/id/product_uuid", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/fs/bpf", "/sys/kernel/tracing", "/sys/bus", "/sys/fs/selinux"}
	for p, got := range c.try(t, append([]string{"open"}, absent...)...) {
		if got != "ENOENT" {
			t.Errorf("%s: %s", p, got)
		}
	}
	empty := []string{"/proc/acpi", "/proc/scsi", "/proc/bus", "/proc/irq", "/proc/driver", "/proc/asound", "/sys/fs/cgroup"}
	for p, got := range c.try(t, append([]string{"open"}, empty...)...) {
		if got != "directory of 0" && got != "ENOENT" {
			t.Errorf("%s: %s", p, got)
		}
	}
	sysctls := []string{"/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/randomize_va_space",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/fs/file-max", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/ns_last_pid",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/ip_unprivileged_port_start", "/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/shmmax", "/proc/sys/fs/mqueue/msg_max",
		"/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/yama/ptrace_scope", "/proc/sys/kernel/core_uses_pid"}
	for _, user := range []string{"", "user"} {
		for p, got := range c.tryAs(t, user, append([]string{"write"}, sysctls...)...) {
			if got != "EACCES" && got != "EROFS" && got != "ENOENT" && got != "EPERM" {
				t.Errorf("as %q, writing %s: %s", user, p, got)
			}
		}
	}
}

// A sandbox does not know which host it is on.
func TestAbuseHostIdentity(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s := c.try(t, "whoami")
	if s["hostname"] == host || s["hostname"] != string(c.ID()) {
		t.Errorf("the host's name: %s", s["hostname"])
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	const bootID = "/proc/sys/kernel/random/boot_id"
	got := c.try(t, "open", bootID, "/etc/machine-id", "/var/lib/dbus/machine-id", "/etc/hostname", "/etc/shadow", "/etc/ssh", "/etc/passwd", "/root/.ssh", "/var/log/wtmp", "/run/utmp")
	if strings.Contains(got[bootID], strings.TrimSpace(string(boot))) || !strings.HasPrefix(got[bootID], `ok "`) || len(got[bootID]) != len(`ok "12345678-1234-1234-1234-123456789012\n"`) {
		t.Errorf("the boot id: %s", got[bootID])
	}
	for _, p := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id", "/etc/hostname", "/etc/shadow", "/etc/ssh", "/root/.ssh", "/var/log/wtmp", "/run/utmp"} {
		if got[p] != "ENOENT" {
			t.Errorf("%s: %s", p, got[p])
		}
	}
	if want := "root:x:0:0:root:/root:/bin/sh\nuser"; !strings.HasPrefix(got["/etc/passwd"], "ok "+strings.TrimSuffix(strconv.Quote(want), `"`)) {
		t.Errorf("/etc/passwd: %s", got["/etc/passwd"])
	}
	// The mount table tells nothing of where things lie on the host.
	state := ""
	for point, m := range c.try(t, "mountinfo") {
		if strings.Contains(m, "sandboxes") || strings.Contains(m, string(c.ID())) || strings.Contains(m, "/tmp/Test") {
			t.Errorf("mount %s tells where it is: %s", point, m)
		}
		state += point + "\n"
	}
	if state == "" {
		t.Error("no mounts")
	}
}

// Every mount that the sandbox may write is nosuid and nodev, and /proc and
// /sys are what they should be.
func TestAbuseMounts(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	mounts := c.try(t, "mountinfo")
	for point, m := range mounts {
		opts := strings.Split(strings.Fields(m)[0], ",")
		device := strings.HasPrefix(point, "/dev/") && point != "/dev/shm" && point != "/dev/pts"
		if !slices.Contains(opts, "nosuid") && !device {
			t.Errorf("%s is not nosuid: %s", point, m)
		}
		if !slices.Contains(opts, "nodev") && !strings.HasPrefix(point, "/dev") {
			t.Errorf("%s is not nodev: %s", point, m)
		}
		for _, ro := range []string{"/dev", "/sys", "/proc/sys"} {
			if point == ro && !slices.Contains(opts, "ro") {
				t.Errorf("%s is writable: %s", point, m)
			}
		}
	}
	r, err := sandbox.Capture(t.Context(), c, 1<<16, sandbox.Cmd{Args: []string{"grep", "-E", "(shared|master):", "/proc/self/mountinfo"}})
	if err != nil || len(r.Stdout) > 0 {
		t.Errorf("mounts that follow those of the host: %v %s", err, r.Stdout)
	}
	for point, kind := range map[string]string{"/proc": "proc", "/dev/pts": "devpts", "/tmp": "tmpfs", "/": "overlay"} {
		if f := strings.Fields(mounts[point]); len(f) < 2 || f[1] != kind {
			t.Errorf("%s is %q, want %s", point, mounts[point], kind)
		}
	}
}

// Control groups can be neither seen nor changed.
func TestAbuseCgroups(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{Limits: sandbox.Limits{Memory: 64 << 20, PIDs: 64}})
	r, err := sandbox.Capture(t.Context(), c, 1<<16, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "cat /proc/self/cgroup; ls -A /sys/fs/cgroup; grep -c cgroup /proc/self/mountinfo"}})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(r.Stdout, []byte(c.ID())) || bytes.Contains(r.Stdout, []byte("atoll")) {
		t.Errorf("where it stands among the host's groups: %s", r.Stdout)
	}
	if !bytes.HasSuffix(r.Stdout, []byte("\n0\n")) {
		t.Errorf("a control group file system is mounted: %s", r.Stdout)
	}
	for p, got := range c.try(t, "write", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max",
		"/sys/fs/cgroup/notify_on_release", "/sys/fs/cgroup/pids/pids.max") {
		if got != "ENOENT" {
			t.Errorf("%s: %s", p, got)
		}
	}
}

// What processes share by name, and abstract sockets, is shared with no other
// sandbox and not with the host.
func TestAbuseIPC(t *testing.T) {
	rt := newRuntime(t)
	a, b := newCell(t, rt, sandbox.Spec{}), newCell(t, rt, sandbox.Spec{})
	p := a.start(t, "ipc-make")
	for {
		name, got := p.next(t)
		if got != "ok" {
			t.Fatalf("%s: %s", name, got)
		}
		if name == "ready" {
			break
		}
	}
	own := a.try(t, "ipc-look")
	for what, got := range own {
		if got != "ok" {
			t.Errorf("in the same sandbox: %s: %s", what, got)
		}
	}
	for what, got := range b.try(t, "ipc-look") {
		if got != "ENOENT" && got != "ECONNREFUSED" {
			t.Errorf("in another sandbox: %s: %s", what, got)
		}
	}
	// The host's.
	name := "@atoll-abuse-host-" + a.nonce
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c, err := net.Dial("unix", name); err != nil {
		t.Fatal(err)
	} else {
		c.Close()
	}
	if c, err := net.Dial("unix", "@atoll-abuse"); err == nil {
		c.Close()
		t.Error("the host reaches a sandbox's abstract socket")
	}
	for s, got := range a.try(t, "connect", name, "@/tmp/.X11-unix/X0", "@/containerd-shim/x.sock") {
		if got != "ECONNREFUSED" {
			t.Errorf("%s: %s", s, got)
		}
	}
}

// The sockets of engines and of people's agents are not there.
func TestAbuseHostSockets(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	for s, got := range c.try(t, "connect", "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket",
		"/run/systemd/private", "/tmp/.X11-unix/X0", "/run/user/0/bus", "/run/user/1000/gnupg/S.gpg-agent") {
		if got != "ENOENT" {
			t.Errorf("%s: %s", s, got)
		}
	}
	// Nor is the guest's own, by which the daemon comes back.
	r, err := sandbox.Capture(t.Context(), c, 1<<16, sandbox.Cmd{Args: []string{"/bin/sh", "-c", "find / -xdev -type s; find /tmp /run /dev /var -type s; cat /proc/net/unix"}})
	if err != nil {
		t.Fatal(err)
	}
	if out := string(r.Stdout); strings.Count(out, "\n") > 1 || strings.Contains(out, string(c.ID())) {
		t.Errorf("sockets: %s", out)
	}
}

// A terminal takes what is typed into it from its master alone.
func TestAbuseTerminal(t *testing.T) {
	c := newCell(t, newRuntime(t), sandbox.Spec{})
	for _, user := range []string{"", "user"} {
		var out bytes.Buffer
		exit, err := sandbox.Run(t.Context(), c, sandbox.Cmd{Args: c.args("terminal"), Terminal: &sandbox.Size{}, Stdout: &out, User: user})
		if err != nil || !exit.Success() {
			t.Fatalf("%v %+v %s", err, exit, out.Bytes())
		}
		for what, got := range verdicts(t, out.Bytes()) {
			want := "EPERM"
			if what == "TIOCGWINSZ" {
				want = "ok"
			}
			if got != want {
				t.Errorf("as %q, %s: %s, want %s", user, what, got, want)
			}
		}
	}
}

// A program that starts a set-up step outside of a sandbox, and the probe
// itself, refuse to.
func TestAbuseRefusesTheHost(t *testing.T) {
	cmd := exec.Command(abuseProgram(t), "aaaaaaaaaaaaaaaaaaaaaaaaaa", "calls")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "nothing was tried") {
		t.Fatalf("it ran on the host: %v %s", err, out)
	}
}

// An image whose vital paths are links makes either no sandbox, or one whose
// /proc, /dev and masks are what they should be (the three holes of runc in
// 2025, and CVE-2019-16884).
func TestAbuseImages(t *testing.T) {
	rt := newRuntime(t)
	for _, tc := range []struct {
		name  string
		links map[string]string
		dirs  []string
	}{
		{name: "plain"},
		{name: "proc to host", links: map[string]string{"proc": "/host"}},
		{name: "proc up", links: map[string]string{"proc": "../../../../proc"}},
		{name: "sys to proc", links: map[string]string{"sys": "/proc"}},
		{name: "dev to proc", links: map[string]string{"dev": "/proc"}},
		{name: "dev to sys", links: map[string]string{"dev": "/sys"}},
		{name: "tmp to proc", links: map[string]string{"tmp": "/proc"}},
		{name: "tmp to proc sys", links: map[string]string{"tmp": "/proc/sys"}},
		{name: "tmp to sysctls", links: map[string]string{"tmp": "/proc/sys/user"}},
		{name: "tmp to dev", links: map[string]string{"tmp": "/dev"}},
		{name: "tmp to the guest", links: map[string]string{"tmp": "/proc/1/fd"}},
		{name: "tmp up", links: map[string]string{"tmp": "../../../../../../tmp"}},
		{name: "workspace to proc", links: map[string]string{"workspace": "/proc/sys"}},
		{name: "workspace up", links: map[string]string{"workspace": "/../../../../workspace"}},
		{name: "home to dev", links: map[string]string{"home": "/dev"}},
		{name: "home to etc", links: map[string]string{"home": "/etc"}},
		{name: "null", links: map[string]string{"dev/null": "/proc/kcore", "dev/pts": "/proc", "dev/shm": "/etc"}},
		{name: "loops", links: map[string]string{"proc": "sys", "sys": "proc"}},
		{name: "mtab", links: map[string]string{"etc/mtab": "/proc/1/root/etc/shadow", "etc/passwd": "/proc/1/root/etc/passwd", "etc/group": "../../../../etc/group"}},
		{name: "passwd never ends", links: map[string]string{"etc/passwd": "/dev/zero", "etc/group": "/dev/zero"}},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			dir := smallImage(t)
			for name, to := range tc.links {
				p := filepath.Join(dir, name)
				os.MkdirAll(filepath.Dir(p), 0o755)
				os.RemoveAll(p)
				if err := os.Symlink(to, p); err != nil {
					t.Fatal(err)
				}
			}
			sb, err := rt.Create(t.Context(), sandbox.Spec{Image: "dir:" + dir})
			if tc.name == "plain" && err != nil {
				t.Fatal(err)
			}
			if err != nil {
				refusedImage(t, err)
				return
			}
			_, isLink := tc.links["proc"]
			judgeImage(t, sb, isLink, tc.name == "plain")
		})
	}
}

// refusedImage fails the test unless err says that the image is to blame.
func refusedImage(t *testing.T, err error) {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != "image" || e.Hint == "" {
		t.Errorf("refused as if the image were not to blame: %v", err)
	}
	t.Logf("refused: %v", err)
}

// judgeImage tries what a sandbox of a hostile image lets be done, by the
// probe /abuse. procIsLink says that /proc is a link of the image's; in one
// that mustRun, it has to run.
func judgeImage(t *testing.T, sb sandbox.Sandbox, procIsLink, mustRun bool) {
	t.Helper()
	lame := t.Logf
	if mustRun {
		lame = t.Errorf
	}
	run := func(args ...string) (map[string]string, bool) {
		r, err := sandbox.Capture(t.Context(), sb, 1<<20, sandbox.Cmd{Args: append([]string{"/abuse", "0123456789abcdef0123"}, args...), Dir: "/"})
		if err != nil || !r.Success() {
			lame("nothing runs: %v %+v %s", err, r.Exit, r.Stderr)
			return nil, false
		}
		return verdicts(t, r.Stdout), true
	}
	// The probe reads its nonce in /workspace.
	if err := sandbox.WriteFile(t.Context(), sb, "/workspace/.nonce", []byte("0123456789abcdef0123")); err != nil {
		lame("no file can be written: %v", err)
		return
	}
	mounts, ok := run("mountinfo")
	if !ok {
		return
	}
	if f := strings.Fields(mounts["/proc"]); len(f) < 2 || f[1] != "proc" {
		if !procIsLink {
			t.Errorf("/proc is %q", mounts["/proc"])
		}
	}
	for p, got := range must(t, run, "open", "/proc/kcore", "/proc/kallsyms", "/proc/keys", "/proc/cmdline", "/proc/sysrq-trigger") {
		if got != "empty" && got != "ENOENT" && got != "EACCES" {
			t.Errorf("%s: %s", p, got)
		}
	}
	for p, got := range must(t, run, "write", "/proc/sys/kernel/core_pattern", "/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger") {
		if got == "ok" {
			t.Errorf("writing %s: %s", p, got)
		}
	}
	for ns, got := range must(t, run, "clone3") {
		if got == "ok" {
			t.Errorf("clone3 of a %s namespace: %s", ns, got)
		}
	}
	for p, got := range must(t, run, "open", "/etc/shadow", "/etc/hostname", "/etc/machine-id") {
		if strings.HasPrefix(got, "ok") {
			t.Errorf("%s: %s", p, got)
		}
	}
}

func must(t *testing.T, run func(...string) (map[string]string, bool), args ...string) map[string]string {
	t.Helper()
	said, ok := run(args...)
	if !ok {
		t.Fatalf("%q did not run", args)
	}
	return said
}

// smallImage makes a root file system that has nothing but the probe, below a
// folder that the test may read from.
func smallImage(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-image-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"proc", "sys", "dev", "tmp", "etc", "workspace", "home"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(abuseProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "abuse"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
