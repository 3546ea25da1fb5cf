package seccomp

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

var arches = []Arch{AMD64, ARM64}

// run does what the kernel does with a filter (net/core/filter.c) and returns
// the action and how many instructions it took. It checks what the kernel
// checks when a filter is loaded.
func run(t testing.TB, f Filter, arch, nr uint32, args [6]uint64) (Action, int) {
	t.Helper()
	data := binary.LittleEndian.AppendUint32(nil, nr)
	data = binary.LittleEndian.AppendUint32(data, arch)
	data = binary.LittleEndian.AppendUint64(data, 0x1122334455667788) // instruction pointer
	for _, a := range args {
		data = binary.LittleEndian.AppendUint64(data, a)
	}
	var acc uint32
	for pc, steps := 0, 1; ; pc, steps = pc+1, steps+1 {
		if pc >= len(f) {
			t.Fatalf("ran out of the filter at %d", pc)
		}
		i := f[pc]
		cond := func(b bool) {
			if b {
				pc += int(i.jt)
			} else {
				pc += int(i.jf)
			}
		}
		switch i.op {
		case ldAbs:
			if i.k%4 != 0 || int(i.k) > len(data)-4 {
				t.Fatalf("loads from %d", i.k)
			}
			acc = binary.LittleEndian.Uint32(data[i.k:])
		case andK:
			acc &= i.k
		case ja:
			pc += int(i.k)
		case jeqK:
			cond(acc == i.k)
		case jgeK:
			cond(acc >= i.k)
		case jsetK:
			cond(acc&i.k != 0)
		case retK:
			return Action(i.k), steps
		default:
			t.Fatalf("operation %#x", i.op)
		}
	}
}

func TestEverySystemCallHasOneRule(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rules {
		for name := range strings.FieldsSeq(r.names) {
			if seen[name] {
				t.Errorf("%s has two rules", name)
			}
			if _, ok := numbers[name]; !ok {
				t.Errorf("%s is no system call", name)
			}
			seen[name] = true
		}
		if r.does != allow && r.why == "" {
			t.Errorf("%s: no reason", r.names)
		}
	}
	for name := range numbers {
		if !seen[name] {
			t.Errorf("%s has no rule", name)
		}
	}
	for _, arch := range arches {
		by := map[int]string{}
		for _, d := range Table(arch) {
			if other, ok := by[d.Number]; ok {
				t.Errorf("%s: %s and %s are both %d", arch.name, d.Name, other, d.Number)
			}
			by[d.Number] = d.Name
		}
	}
}

// interesting are values that checks look for, and their neighbours.
var interesting = []uint64{0, 1, 2, 3, 5, 6, 7, 10, 16, 17, 38, 58, 132, 262, 0x80, 0x8000, 0x20000, 0x10000000, 0x02000000, 0x40000000,
	0x5412, 0x5413, 0x541c, 0x541d, 0x5423, 0x2000, 0x6000, 0x1000, 0xc000, 0x21b6, 0x61b6, 0x81b6, 0x800 | 1, 0x80000 | 3,
	1 << 32, 1<<32 | 1, 1<<32 | 0x5412, 1<<32 | 10, 1 << 63, 0xffffffff, 1<<64 - 1}

func TestFilterIsTheTable(t *testing.T) {
	for _, arch := range arches {
		f := Compile(arch)
		if len(f) > 4096 {
			t.Fatalf("%s: %d instructions are more than the kernel takes", arch.name, len(f))
		}
		known := verdicts(arch)
		want := func(nr uint32, args [6]uint64) Action {
			if v, ok := known[nr]; ok {
				return v.decide(args)
			}
			return Missing
		}
		for nr := range uint32(1024) {
			for _, x := range interesting {
				for arg := range 4 {
					// Each in turn, with the others at 1 so that a socket's family and type are plain.
					args := [6]uint64{1, 1, 0, 1, 1, 1}
					args[arg] = x
					got, _ := run(t, f, arch.audit, nr, args)
					if want := want(nr, args); got != want {
						t.Fatalf("%s: call %d%v: filter says %v, table %v", arch.name, nr, args, got, want)
					}
				}
			}
		}
		for _, family := range interesting {
			for _, typ := range interesting {
				for _, proto := range interesting {
					nr := uint32(numbers["socket"][arch.column])
					args := [6]uint64{family, typ, proto}
					got, _ := run(t, f, arch.audit, nr, args)
					if want := want(nr, args); got != want {
						t.Fatalf("%s: socket%v: filter says %v, table %v", arch.name, args, got, want)
					}
				}
			}
		}
	}
}

func FuzzFilterIsTheTable(f *testing.F) {
	filters := map[bool]Filter{false: Compile(AMD64), true: Compile(ARM64)}
	for _, x := range interesting {
		f.Add(false, uint32(41), x, uint64(1), uint64(0), uint64(0))
		f.Add(true, uint32(x), x, x, x, x)
	}
	f.Fuzz(func(t *testing.T, arm bool, nr uint32, a, b, c, d uint64) {
		arch := AMD64
		if arm {
			arch = ARM64
		}
		args := [6]uint64{a, b, c, d}
		got, _ := run(t, filters[arm], arch.audit, nr, args)
		if want := Decide(arch, nr, args); got != want {
			t.Errorf("%s: call %d%v: filter says %v, table %v", arch.name, nr, args, got, want)
		}
	})
}

// What the policy must say, whatever its table looks like.
func TestPolicy(t *testing.T) {
	const noproto = "EPROTONOSUPPORT"
	type call struct {
		name string
		args [6]uint64
		want string
	}
	var calls []call
	add := func(want, names string, args ...uint64) {
		for name := range strings.FieldsSeq(names) {
			c := call{name: name, want: want}
			copy(c.args[:], args)
			calls = append(calls, c)
		}
	}
	add("EPERM", `mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr setns
		add_key request_key keyctl bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register
		kexec_load kexec_file_load init_module finit_module delete_module create_module swapon swapoff reboot iopl ioperm
		quotactl quotactl_fd acct lookup_dcookie open_by_handle_at name_to_handle_at pidfd_getfd kcmp fanotify_init
		settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname syslog vhangup`)
	add("ENOSYS", "modify_ldt uselib _sysctl nfsservctl")
	add("allow", `read write openat openat2 execve clone3 ptrace process_vm_readv seccomp prctl futex mmap epoll_wait epoll_pwait
		copy_file_range statx getrandom memfd_create inotify_add_watch pidfd_open kill wait4 unlinkat renameat2 landlock_restrict_self`)
	for _, flag := range []uint64{0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000} {
		add("EPERM", "clone unshare", flag|17)
		add("EPERM", "unshare", 1<<32|flag)
	}
	add("EPERM", "unshare", 0x80)    // CLONE_NEWTIME
	add("allow", "clone", 0x80|17)   // not that, in clone
	add("allow", "clone", 0x3d0f00)  // a thread
	add("allow", "clone", 0x1200011) // a fork
	add("allow", "unshare", 0x400)   // CLONE_FILES
	for family := uint64(0); family <= 50; family++ {
		for _, typ := range []uint64{1, 2, 3, 4, 5, 6, 10} {
			for _, flags := range []uint64{0, 0x800, 0x80000} {
				want := "EPERM"
				switch {
				case family == 1 && (typ == 1 || typ == 2 || typ == 5),
					(family == 2 || family == 10) && (typ == 1 || typ == 2),
					family == 16 && (typ == 2 || typ == 3):
					want = "allow"
				}
				add(want, "socket", family, typ|flags, 0)
			}
		}
	}
	add(noproto, "socket", 2, 1, 132)  // SCTP
	add(noproto, "socket", 10, 1, 262) // MPTCP
	add("allow", "socket", 2, 2, 1)    // ping
	for proto := uint64(1); proto < 32; proto++ {
		add(noproto, "socket", 16, 3, proto)
	}
	add("EPERM", "socket", 1<<32|38, 5, 0)
	add("EPERM", "socket", 38, 5, 0) // AF_ALG
	add("allow", "socketpair", 1, 1)
	add("EPERM", "socketpair", 30, 1) // TIPC
	for _, request := range []uint64{0x5412, 0x541c, 0x5423, 0x541d} {
		add("EPERM", "ioctl", 0, request)
		add("EPERM", "ioctl", 0, 0xdeadbeef<<32|request) // CVE-2019-10063
	}
	add("allow", "ioctl", 0, 0x5401) // TCGETS
	add("allow", "ioctl", 0, 0x540e) // TIOCSCTTY
	add("EPERM", "setrlimit", 10)
	add("EPERM", "setrlimit", 1<<32|10)
	add("allow", "setrlimit", 7)
	add("EPERM", "prlimit64", 0, 10, 0x7fff0000)
	add("EPERM", "prlimit64", 0, 10, 1<<32)
	add("EPERM", "prlimit64", 0, 7<<32|10, 1<<47)
	add("allow", "prlimit64", 0, 10, 0)
	add("allow", "prlimit64", 0, 7, 1)
	add("allow", "personality", 0)
	add("allow", "personality", 0xffffffff)
	add("allow", "personality", 0x40000)
	add("EPERM", "personality", 0x0400000) // READ_IMPLIES_EXEC
	add("EPERM", "personality", 0x0100000) // MMAP_PAGE_ZERO
	for name, arg := range map[string]int{"mknod": 1, "mknodat": 2} {
		for mode, want := range map[uint64]string{0x21b6: "EPERM", 0x61b6: "EPERM", 0x11b6: "allow", 0xc1b6: "allow", 0x81b6: "allow", 0x1b6: "allow"} {
			c := call{name: name, want: want}
			c.args[arg] = mode
			calls = append(calls, c)
		}
	}
	for _, arch := range arches {
		f := Compile(arch)
		for _, c := range calls {
			nr := numbers[c.name][arch.column]
			if nr < 0 {
				continue
			}
			if got, _ := run(t, f, arch.audit, uint32(nr), c.args); got.String() != c.want {
				t.Errorf("%s: %s%#x: %v, want %s", arch.name, c.name, c.args, got, c.want)
			}
		}
		for _, nr := range []uint32{0x40000000, 0x40000000 + 1, 0x40000000 + 513, 1<<32 - 1, 472, 1000} {
			if got, _ := run(t, f, arch.audit, nr, [6]uint64{}); got != Missing {
				t.Errorf("%s: call %#x: %v", arch.name, nr, got)
			}
		}
		for _, other := range []uint32{0x40000003, 0x40000028, 0xc000003e, 0xc00000b7, 0} { // i386, arm, …
			if other == arch.audit {
				continue
			}
			if got, _ := run(t, f, other, 1, [6]uint64{}); got != Kill {
				t.Errorf("%s: a call of architecture %#x: %v", arch.name, other, got)
			}
		}
	}
}

// The price of a call that the kernel cannot remember, and of a kernel before
// 5.11: a list would take hundreds of steps.
func TestFilterIsShort(t *testing.T) {
	for _, arch := range arches {
		f := Compile(arch)
		most, sum, n := 0, 0, 0
		for _, d := range Table(arch) {
			_, steps := run(t, f, arch.audit, uint32(d.Number), [6]uint64{1, 1})
			most, sum, n = max(most, steps), sum+steps, n+1
		}
		t.Logf("%s: %d instructions; a call takes %.1f of them, at most %d", arch.name, len(f), float64(sum)/float64(n), most)
		if len(f) > 400 || most > 40 {
			t.Errorf("%s: %d instructions, up to %d for a call", arch.name, len(f), most)
		}
	}
}

func ExampleTable() {
	for _, d := range Table(AMD64) {
		switch d.Name {
		case "keyctl", "clone":
			fmt.Printf("%s: %s (%s)\n", d.Name, d.Action, d.Why)
		}
	}
	// Output:
	// clone: depends (no new namespaces)
	// keyctl: EPERM (keyrings are not namespaced, and have had many holes)
}
