package seccomp

// A rule gives system calls their verdict, and says why.
type rule struct {
	names string // separated by blanks
	does  verdict
	why   string
}

// Values of arguments, from the kernel's headers under include/uapi.
const (
	// linux/sched.h. CLONE_NEWTIME is a flag of unshare and clone3 alone: in
	// clone its bit belongs to the signal.
	cloneNew    = 0x7e020000 // NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET
	cloneNewAll = cloneNew | 0x80

	afUnix, afINET, afINET6, afNetlink = 1, 2, 10, 16 // linux/socket.h

	sockStream, sockDgram, sockRaw, sockSeqpacket = 1, 2, 3, 5 // linux/net.h
	sockType                                      = 0xf        // without SOCK_CLOEXEC and SOCK_NONBLOCK

	ipprotoICMP, ipprotoTCP, ipprotoUDP, ipprotoICMPv6 = 1, 6, 17, 58 // linux/in.h, in6.h

	netlinkRoute = 0 // linux/netlink.h

	tiocSTI, tiocLINUX, tiocCONS, tiocSETD = 0x5412, 0x541c, 0x541d, 0x5423 // asm-generic/ioctls.h

	rlimitLocks = 10 // asm-generic/resource.h

	sIFMT, sIFCHR, sIFBLK = 0xf000, 0x2000, 0x6000 // linux/stat.h

	// linux/personality.h: the default, 32-bit names of the machine, old
	// version numbers, no address randomisation (gdb, setarch -R), and the
	// question what it is.
	perLinux32, uname26, addrNoRandomize, perQuery = 0x8, 0x20000, 0x40000, 0xffffffff

	protoNotSupported = 93 // EPROTONOSUPPORT, asm-generic/errno.h
)

var (
	allow   = verdict{action: Allow}
	refuse  = verdict{action: Refuse}
	missing = verdict{action: Missing}

	// noProtocol is what a kernel without that protocol says. Programs rely
	// on it: useradd goes on without NETLINK_AUDIT, and Go without MPTCP, but
	// neither does with EPERM.
	noProtocol = verdict{action: Errno(protoNotSupported)}
)

// rules is the policy.
var rules = []rule{
	// Files and memory of one's own.
	{"read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2", allow, ""},
	{"open openat openat2 creat close close_range dup dup2 dup3 fcntl flock", allow, ""},
	{"stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2", allow, ""},
	{"lseek truncate ftruncate fallocate fadvise64 readahead sendfile copy_file_range", allow, ""},
	{"getdents getdents64 getcwd chdir fchdir umask", allow, ""},
	{"rename renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat readlink readlinkat", allow, ""},
	{"chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes utimensat futimesat", allow, ""},
	{"setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat", allow, ""},
	{"listxattr llistxattr flistxattr listxattrat removexattr lremovexattr fremovexattr removexattrat", allow, ""},
	{"file_getattr file_setattr", allow, "the flags that FS_IOC_FSGETXATTR reaches as well"},
	{"fsync fdatasync sync syncfs sync_file_range msync", allow, ""},
	{"mmap munmap mremap mprotect madvise brk mincore mseal remap_file_pages", allow, ""},
	{"mlock mlock2 munlock mlockall munlockall", allow, "bounded by RLIMIT_MEMLOCK"},
	{"pkey_mprotect pkey_alloc pkey_free map_shadow_stack", allow, ""},
	{"memfd_create", allow, "its pages count against the memory limit"},
	{"cachestat", allow, "answers for files that the caller may write"},
	{"inotify_init inotify_init1 inotify_add_watch inotify_rm_watch", allow, "bounded per user by the kernel"},

	// Waiting, and passing things about.
	{"poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2", allow, ""},
	{"eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime pipe pipe2", allow, ""},
	{"splice tee vmsplice", allow, "cat, dd and io.Copy use them; the page-cache exploits of AF_ALG need the socket, which is refused"},
	{"io_setup", missing, "takes from fs.aio-max-nr, which is one for the whole host; databases do without"},
	{"io_destroy io_submit io_cancel io_getevents io_pgetevents", allow, "without io_setup there is nothing to act on"},
	{"shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl", allow, "in an IPC namespace of its own"},
	{"mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr", allow, "likewise"},
	{"futex futex_wait futex_wake futex_requeue futex_waitv set_robust_list get_robust_list membarrier rseq rseq_slice_yield", allow, ""},

	// Processes, threads and signals.
	{"fork vfork execve execveat exit exit_group wait4 waitid set_tid_address restart_syscall", allow, ""},
	{"clone3", allow, "its flags cannot be seen; see the package comment"},
	{"getpid getppid gettid getpgid getpgrp setpgid getsid setsid", allow, ""},
	{"kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal", allow, "reaches the sandbox's own processes"},
	{"rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm", allow, ""},
	{"getuid geteuid getgid getegid getgroups getresuid getresgid", allow, ""},
	{"setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups", allow, "without capabilities they change nothing that matters, and programs give up when they fail"},
	{"capget capset", allow, "capset can only give up"},
	{"prctl arch_prctl seccomp", allow, "a program may bind itself further"},
	{"landlock_create_ruleset landlock_add_rule landlock_restrict_self", allow, "likewise"},
	{"lsm_get_self_attr lsm_list_modules", allow, ""},
	{"getrlimit getrusage times sysinfo uname getcpu getrandom", allow, ""},
	{"sched_yield sched_getparam sched_setparam sched_getscheduler sched_setscheduler sched_getattr sched_setattr", allow, "real-time classes need a capability or RLIMIT_RTPRIO"},
	{"sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_setaffinity sched_getaffinity", allow, ""},
	{"getpriority setpriority ioprio_get ioprio_set", allow, "only ever lower, without a capability"},
	{"mbind set_mempolicy get_mempolicy set_mempolicy_home_node", allow, "the process's own pages; numerical libraries call them"},
	{"process_madvise process_mrelease", allow, "for processes that the caller may trace or kill"},
	{"ptrace process_vm_readv process_vm_writev", allow, "debuggers, within the PID namespace; the guest is not dumpable, and the kernel filters what a tracer makes of a call (4.8). The last two can do nothing that ptrace cannot"},
	{"uretprobe uprobe", allow, "the kernel itself makes processes call them that the host traces, and kills who calls them otherwise"},

	// Time.
	{"nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time", allow, ""},
	{"getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete", allow, ""},

	// The network that there is.
	{"connect accept accept4 bind listen shutdown getsockname getpeername", allow, ""},
	{"sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg setsockopt getsockopt", allow, ""},

	// Namespaces and mounts: what makes a sandbox, and what escapes from them
	// begin with.
	{"setns", refuse, "enters other namespaces"},
	{"mount umount2 pivot_root chroot", refuse, "changes what a path means"},
	{"open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr", refuse, "likewise, with descriptors"},
	{"statmount listmount", allow, "no more than /proc/self/mountinfo"},
	{"listns", refuse, "namespaces are none of its business"},
	{"name_to_handle_at open_by_handle_at", refuse, "opens files by number, past every path (the shocker exploit)"},

	// Parts of the kernel that exploits come through, and that agents' programs
	// do without.
	{"add_key request_key keyctl", refuse, "keyrings are not namespaced, and have had many holes"},
	{"bpf", refuse, "the verifier has had many holes"},
	{"perf_event_open", refuse, "likewise; also sees what others do"},
	{"userfaultfd", refuse, "makes races of the kernel winnable"},
	{"io_uring_setup io_uring_enter io_uring_register", refuse, "does what it is told past this filter, and has had many holes"},
	{"fanotify_init fanotify_mark", refuse, "watches whole file systems"},
	{"pidfd_getfd", refuse, "takes descriptors out of other processes; no ordinary program needs it"},
	{"kcmp", refuse, "tells the order of kernel addresses"},
	{"migrate_pages move_pages", refuse, "act on other processes, and tell where pages lie"},
	{"lookup_dcookie", refuse, "for the profiler of the whole machine"},
	{"syslog", refuse, "the host's kernel log"},
	{"lsm_set_self_attr", refuse, "the host's security labels"},
	{"modify_ldt", missing, "16-bit code; a kernel may lack it"},
	{"memfd_secret", missing, "a kernel may lack it"},

	// The machine.
	{"kexec_load kexec_file_load reboot", refuse, "the host's kernel"},
	{"init_module finit_module delete_module create_module", refuse, "likewise"},
	{"swapon swapoff acct quotactl quotactl_fd", refuse, "the host's disks"},
	{"iopl ioperm", refuse, "the host's hardware"},
	{"settimeofday clock_settime clock_adjtime adjtimex", refuse, "the host's clock"},
	{"sethostname setdomainname vhangup", refuse, "belong to whoever made the sandbox"},

	// What no kernel of today does.
	{"uselib ustat sysfs _sysctl get_kernel_syms query_module nfsservctl getpmsg putpmsg afs_syscall tuxcall security vserver", missing, "long gone"},
	{"epoll_ctl_old epoll_wait_old set_thread_area get_thread_area", missing, "never were on this architecture"},

	// Calls that depend on their arguments.
	{"clone", verdict{check: &check{arg: 0, mask: cloneNew, then: refuse, otherwise: allow}}, "no new namespaces"},
	{"unshare", verdict{check: &check{arg: 0, mask: cloneNewAll, then: refuse, otherwise: allow}}, "likewise"},
	{"socket", socket, "the families that programs use; those that exploits of the page cache came through (AF_ALG, AF_RXRPC, AF_KEY, AF_PACKET, AF_VSOCK) are not among them"},
	{"socketpair", verdict{check: &check{arg: 0, in: []uint32{afUnix}, then: allow, otherwise: refuse}}, "no other family has pairs, but for some that are refused above"},
	{"ioctl", verdict{check: &check{arg: 1, in: []uint32{tiocSTI, tiocLINUX, tiocCONS, tiocSETD}, then: refuse, otherwise: allow}}, "typing into a terminal, taking the console, loading line disciplines. TIOCSCTTY is allowed: a terminal cannot be opened without it, and the kernel does not let one be stolen without a capability"},
	{"personality", verdict{check: &check{arg: 0, in: []uint32{0, perLinux32, uname26, uname26 | perLinux32, addrNoRandomize, addrNoRandomize | perLinux32, perQuery}, then: allow, otherwise: refuse}}, "nothing that makes memory executable or page zero mappable"},
	{"setrlimit", verdict{check: &check{arg: 0, in: []uint32{rlimitLocks}, then: refuse, otherwise: allow}}, "the mark by which the guest knows a process's tree; see package guest"},
	{"prlimit64", prlimit, "likewise; asking is allowed"},
	{"mknod", verdict{check: device(1)}, "pipes, sockets and files, no devices"},
	{"mknodat", verdict{check: device(2)}, "likewise"},
}

// socket(family, type, protocol)
var socket = verdict{check: &check{
	arg: 0, in: []uint32{afUnix},
	then: verdict{check: &check{
		arg: 1, mask: sockType, in: []uint32{sockStream, sockDgram, sockSeqpacket},
		then: allow, otherwise: refuse,
	}},
	otherwise: verdict{check: &check{
		arg: 0, in: []uint32{afINET, afINET6},
		then: verdict{check: &check{
			arg: 1, mask: sockType, in: []uint32{sockStream, sockDgram},
			// ICMP is ping's, in datagrams that the kernel checks. SCTP, MPTCP,
			// DCCP, SMC and the rest would load modules.
			then: verdict{check: &check{
				arg: 2, in: []uint32{0, ipprotoTCP, ipprotoUDP, ipprotoICMP, ipprotoICMPv6},
				then: allow, otherwise: noProtocol,
			}},
			otherwise: refuse,
		}},
		otherwise: verdict{check: &check{
			arg: 0, in: []uint32{afNetlink},
			then: verdict{check: &check{
				arg: 1, mask: sockType, in: []uint32{sockRaw, sockDgram},
				then: verdict{check: &check{
					arg: 2, in: []uint32{netlinkRoute},
					then: allow, otherwise: noProtocol,
				}},
				otherwise: refuse,
			}},
			otherwise: refuse,
		}},
	}},
}}

// prlimit64(pid, resource, new, old)
var prlimit = verdict{check: &check{
	arg: 1, in: []uint32{rlimitLocks},
	then: verdict{check: &check{
		arg: 2, in: []uint32{0},
		then: verdict{check: &check{
			arg: 2, high: true, in: []uint32{0},
			then: allow, otherwise: refuse,
		}},
		otherwise: refuse,
	}},
	otherwise: allow,
}}

// device refuses device nodes; mode is which argument is the mode.
func device(mode int) *check {
	return &check{arg: mode, mask: sIFMT, in: []uint32{sIFCHR, sIFBLK}, then: refuse, otherwise: allow}
}
