//go:build linux

// Package vm runs test programs as root on another kernel: that of a small
// virtual machine without hardware acceleration (QEMU's TCG), which needs no
// right on the host. It is how code is tried that this machine's kernel has
// no use for, such as the limits of cgroup version 2 where version 1 is
// mounted. Everything in the machine is ten to twenty times slower.
//
// The machine has one processor, no network, and a root file system on ext4
// with busybox, /proc, /sys, /dev, cgroup2 and what the caller brings.
package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Machine says what runs in it.
type Machine struct {
	// Kernel is the folder that scripts/vm-deps prints.
	Kernel string

	// Modules are loaded, with those that they need: "overlay". loop is
	// always there.
	Modules []string

	// Files are copied into its file system: path in the machine to path
	// here. Their permissions are kept.
	Files map[string]string

	// Programs run one after the other, whether they fail or not.
	Programs []Program

	// Memory is how much it has in MiB; 0 is 1024.
	Memory int

	// Output gets what the machine prints, as it comes; nil discards it.
	Output io.Writer
}

// A Program is one static program, mostly a Go test binary (CGO_ENABLED=0 go
// test -c).
type Program struct {
	Name string // unique, without blanks
	Path string // here
	Args []string
	Env  []string // besides PATH, HOME and TMPDIR
	Dir  string   // where it runs; "" is /
}

// A Result is how a Program ended.
type Result struct {
	Name   string
	Code   int    // as a shell has it; -1 if the machine ended before
	Output string // both streams
}

// Available says why no machine can run here, nil if one can.
func Available() error {
	for _, p := range []string{"qemu-system-x86_64", "busybox"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("%s is not installed (apt-get install --no-install-recommends qemu-system-x86 busybox-static)", p)
		}
	}
	return nil
}

// Run boots the machine, runs its programs and returns how they ended, in
// order. The error is about the machine. When ctx ends, the machine does.
func (m Machine) Run(ctx context.Context) ([]Result, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "atoll-vm-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	initrd := filepath.Join(dir, "initrd")
	if err := m.pack(initrd); err != nil {
		return nil, fmt.Errorf("pack the machine's files: %w", err)
	}
	memory := m.Memory
	if memory == 0 {
		memory = 1024
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", "tcg,thread=multi", "-cpu", "max",
		"-M", "microvm,x-option-roms=off,isa-serial=on,rtc=off,acpi=off",
		"-m", strconv.Itoa(memory), "-smp", "1",
		"-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot",
		"-kernel", filepath.Join(m.Kernel, "vmlinuz"), "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 reboot=t")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// The machine dies with the thread that started it, should this program
	// be killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	results, last := m.read(out)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return results, fmt.Errorf("the machine did not end: %w", context.Cause(ctx))
	}
	if err != nil {
		return results, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	if len(results) < len(m.Programs) || slices.ContainsFunc(results, func(r Result) bool { return r.Code < 0 }) {
		return results, fmt.Errorf("the machine ended early: %s", strings.Join(last, "\n"))
	}
	return results, nil
}

// marker begins the lines by which the machine says where it is.
const marker = "atoll-vm:"

// read takes the machine's console apart. It also returns its last lines.
func (m Machine) read(console io.Reader) (results []Result, last []string) {
	lines := bufio.NewReader(console)
	var output strings.Builder
	in := false // a program runs
	end := func(code int) {
		if in {
			r := &results[len(results)-1]
			r.Code, r.Output = code, output.String()
			in = false
		}
	}
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		if line != "" || err == nil {
			if m.Output != nil {
				fmt.Fprintln(m.Output, line)
			}
			if last = append(last, line); len(last) > 20 {
				last = last[1:]
			}
			// A program may have left the line before it unfinished.
			if at := strings.Index(line, marker); at >= 0 {
				output.WriteString(line[:at])
				f := strings.Fields(line[at+len(marker):])
				switch {
				case len(f) == 2 && f[0] == "run":
					end(-1)
					output.Reset()
					results, in = append(results, Result{Name: f[1], Code: -1}), true
				case len(f) == 2 && f[0] == "exit":
					code, err := strconv.Atoi(f[1])
					if err != nil {
						code = -1
					}
					end(code)
				}
			} else if in {
				output.WriteString(line + "\n")
			}
		}
		if err != nil {
			end(-1)
			return results, last
		}
	}
}

// boot is the machine's first program. It moves into a file system on ext4,
// since that of the kernel's beginning can neither be pivoted away from nor
// keep what overlayfs wants kept.
const boot = `#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
for m in $(cat /modules/order); do insmod /modules/$m || echo "cannot load $m"; done
mkdir /new
truncate -s %dM /disk
mke2fs -q -F -m 0 /disk >/dev/null
mount -t ext4 -o loop,noatime /disk /new || exec reboot -f
cp -a /bin /etc /root /tests /run.sh /new/ 2>/dev/null
[ -d /files ] && cp -a --remove-destination /files/. /new/
mkdir -p /new/dev /new/proc /new/sys /new/tmp /new/usr /new/var/tmp /new/run /new/mnt /new/home
chmod 1777 /new/tmp /new/var/tmp
rm -rf /tests /files
umount /proc
mount --move /dev /new/dev
exec switch_root /new /run.sh
`

// runner is what the machine does then.
const runner = `#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=0666 pts /dev/pts
mount -t tmpfs shm /dev/shm
ln -sf /proc/self/fd /dev/fd
mount -t cgroup2 cgroup /sys/fs/cgroup
hostname vm
ifconfig lo up
dmesg -n 1
`

// pack writes the initial file system.
func (m Machine) pack(to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	a := &archive{w: w, have: map[string]bool{}}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	var run strings.Builder
	run.WriteString(runner)
	files := map[string]string{"bin/busybox": busybox}
	for _, p := range m.Programs {
		if p.Name == "" || strings.ContainsAny(p.Name, "/ \t\n") {
			return fmt.Errorf("a program cannot be called %q", p.Name)
		}
		files["tests/"+p.Name] = p.Path
		dir := p.Dir
		if dir == "" {
			dir = "/"
		}
		fmt.Fprintf(&run, "echo '%s run %s'\n(mkdir -p %s && cd %[3]s && exec env", marker, p.Name, quote(dir))
		for _, e := range p.Env {
			run.WriteString(" " + quote(e))
		}
		run.WriteString(" /tests/" + p.Name)
		for _, arg := range p.Args {
			run.WriteString(" " + quote(arg))
		}
		fmt.Fprintf(&run, " </dev/null 2>&1)\necho \"%s exit $?\"\n", marker)
	}
	run.WriteString("reboot -f\n")
	for inside, here := range m.Files {
		files["files/"+strings.TrimPrefix(path.Clean("/"+inside), "/")] = here
	}
	order, err := modules(m.Kernel, append([]string{"loop"}, m.Modules...))
	if err != nil {
		return err
	}
	var names []string
	for i, module := range order {
		name := fmt.Sprintf("%02d-%s", i, path.Base(module))
		names = append(names, name)
		files["modules/"+name] = filepath.Join(m.Kernel, "modules", module)
	}
	for _, dir := range []string{"dev", "proc", "root", "etc", "bin"} {
		a.dir(dir)
	}
	memory := m.Memory
	if memory == 0 {
		memory = 1024
	}
	a.bytes("init", 0o755, fmt.Appendf(nil, boot, max(memory/2, 256)))
	a.bytes("run.sh", 0o755, []byte(run.String()))
	a.bytes("modules/order", 0o644, []byte(strings.Join(names, "\n")+"\n"))
	a.bytes("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n"))
	a.bytes("etc/group", 0o644, []byte("root:x:0:\nuser:x:1000:\n"))
	for inside, here := range files {
		a.file(inside, here)
	}
	a.end()
	return errors.Join(a.err, w.Flush())
}

// quote makes s one word for a shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// modules returns the files of the modules with these names and of all that
// they need, in the order to load them. What is built into the kernel is left
// out.
func modules(kernel string, names []string) ([]string, error) {
	dep, err := os.ReadFile(filepath.Join(kernel, "modules", "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(kernel, "modules", "modules.builtin"))
	if err != nil {
		return nil, err
	}
	needs := map[string][]string{} // file to files
	files := map[string]string{}   // name to file
	for line := range strings.Lines(string(dep)) {
		file, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			needs[file] = strings.Fields(rest)
			files[moduleName(file)] = file
		}
	}
	isBuiltin := map[string]bool{}
	for line := range strings.Lines(string(builtin)) {
		isBuiltin[moduleName(strings.TrimSpace(line))] = true
	}
	var order []string
	var add func(file string)
	add = func(file string) {
		if slices.Contains(order, file) {
			return
		}
		for _, n := range needs[file] {
			add(n)
		}
		order = append(order, file)
	}
	for _, name := range names {
		name = strings.ReplaceAll(name, "-", "_")
		switch file, ok := files[name]; {
		case ok:
			add(file)
		case !isBuiltin[name]:
			return nil, fmt.Errorf("this kernel has no module %s", name)
		}
	}
	return order, nil
}

func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
