// The least work that makes a sandbox of the kind that Atoll makes, and runs
// one program in it: a cgroup with limits, every namespace, an overlay with a
// layer of its own, /proc, /dev, pivot_root, no capabilities, a system call
// filter, exec, wait. There is no daemon, no protocol and no program that
// stays. Each step is checked; a step that fails ends the floor with its name.
//
//	cc -O2 -static -o sandbox sandbox.c
//	sandbox [-uid FIRST] [-into DIR] [-group DIR] [-limit FILE=VALUE]... [-usr] LOWER BASE PROGRAM
//
//	-uid FIRST   map 65536 ids from FIRST on; without it, one id: one's own
//	-into DIR    make the cgroup DIR/floor (v2) and start the process in it
//	-group DIR   make the cgroup DIR/floor (v1) and let the process enter it
//	-limit F=V   write V to F of the cgroup named last
//	-usr         show the host's /usr, read-only
//	LOWER        the lower directory of the overlay; has proc and dev, and usr with -usr
//	BASE         an empty directory on which the sandbox's tmpfs is mounted
//
// What is measured begins before the first cgroup is made and ends when the
// program has been waited for. Removing the cgroups is not in it.
//
// Linux 5.11 for an overlay in a user namespace, 5.7 for CLONE_INTO_CGROUP.

#define _GNU_SOURCE
#include "bell.h"
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MAX_GROUPS = 8, MAX_LIMITS = 16, MAX_FILTER = 256 };

struct limit {
	int group;
	const char *file, *value;
};

static struct {
	long uid; // first of 65536; -1 for one id
	int usr;
	const char *lower, *base, *program;

	char path[MAX_GROUPS][4096]; // the groups
	int unified[MAX_GROUPS];     // v2: the process starts in it
	int groups;
	struct limit limit[MAX_LIMITS];
	int limits;

	struct sock_filter filter[MAX_FILTER];
	struct sock_fprog prog;
} want;

// What the filter refuses: some of what a sandbox's filter refuses, in a tree,
// because the kernel runs a filter for every system call number when it is
// loaded and a list would cost ten times as much.
static int refused[] = {
	SYS_acct, SYS_add_key, SYS_adjtimex, SYS_bpf, SYS_clock_adjtime, SYS_clock_settime, SYS_delete_module,
	SYS_fanotify_init, SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick, SYS_init_module,
	SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load,
	SYS_keyctl, SYS_lookup_dcookie, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages,
	SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open, SYS_pivot_root,
	SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace, SYS_quotactl, SYS_reboot, SYS_request_key,
	SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog,
	SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_vhangup,
};
enum { REFUSED = sizeof refused / sizeof *refused };

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

// tree writes the decision among refused[lo..hi) at f and returns its length.
static int tree(struct sock_filter *f, int lo, int hi) {
	if (hi - lo == 1) {
		f[0] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[lo], 0, 1);
		f[1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
		f[2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
		return 3;
	}
	int mid = (lo + hi) / 2, left = tree(f + 1, lo, mid);
	f[0] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, refused[mid], left, 0);
	return 1 + left + tree(f + 1 + left, mid, hi);
}

static void compile(void) {
#if defined(__x86_64__)
	const unsigned arch = AUDIT_ARCH_X86_64;
#else
	const unsigned arch = AUDIT_ARCH_AARCH64;
#endif
	struct sock_filter *f = want.filter;
	f[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	f[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arch, 1, 0);
	f[2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	f[3] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	qsort(refused, REFUSED, sizeof *refused, by_number);
	want.prog.len = 4 + tree(f + 4, 0, REFUSED);
	want.prog.filter = f;
}

// put writes text to a file that exists.
static int put(const char *path, const char *text) {
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = write(fd, text, strlen(text));
	int e = errno;
	close(fd);
	errno = e;
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

// Inside, a failed step is reported through this pipe, which exec closes.
static int report = -1;

static void step(int ok, const char *what) {
	if (ok >= 0)
		return;
	dprintf(report, "%s: %s", what, strerror(errno));
	_exit(1);
}

static void devices(void) {
	static const char *const name[] = {"null", "zero", "full", "random", "urandom", "tty"};
	static const char *const link[][2] = {
		{"pts/ptmx", "dev/ptmx"}, {"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"},
		{"/proc/self/fd/1", "dev/stdout"}, {"/proc/self/fd/2", "dev/stderr"},
	};
	char from[64], to[64];
	step(mount("tmpfs", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k"), "mount /dev");
	for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
		snprintf(from, sizeof from, "/dev/%s", name[i]);
		snprintf(to, sizeof to, "dev/%s", name[i]);
		int fd = open(to, O_CREAT | O_CLOEXEC, 0666);
		step(fd, "make a device's place");
		close(fd);
		step(mount(from, to, NULL, MS_BIND, NULL), "bind a device");
	}
	step(mkdir("dev/pts", 0755), "mkdir /dev/pts");
	step(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"), "mount /dev/pts");
	step(mkdir("dev/shm", 01777), "mkdir /dev/shm");
	step(mount("tmpfs", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m"), "mount /dev/shm");
	for (size_t i = 0; i < sizeof link / sizeof *link; i++)
		step(symlink(link[i][0], link[i][1]), "link in /dev");
}

static void loopback(void) {
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	step(s, "socket");
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	step(ioctl(s, SIOCSIFFLAGS, &r), "loopback up");
	close(s);
}

static void drop(void) {
	for (int c = 0; prctl(PR_CAPBSET_READ, c) >= 0; c++)
		step(prctl(PR_CAPBSET_DROP, c), "drop from the bounding set");
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {0};
	step(syscall(SYS_capset, &h, none), "capset");
	step(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	step(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &want.prog), "seccomp");
}

// inside is the life of the new process up to its exec.
static void inside(int go, const int *tasks) {
	char c;
	step(read(go, &c, 1) == 1 ? 0 : -1, "wait for the id maps");
	for (int i = 0; i < want.groups; i++)
		if (tasks[i] >= 0)
			step(write(tasks[i], "0", 1), "enter a cgroup");
	step(setresgid(0, 0, 0), "setresgid");
	step(setresuid(0, 0, 0), "setresuid");

	char options[3 * 4096];
	step(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
	step(mount("tmpfs", want.base, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1g"), "mount the writable layer");
	step(chdir(want.base), "chdir to the base");
	step(mkdir("upper", 0755), "mkdir upper");
	step(mkdir("work", 0755), "mkdir work");
	step(mkdir("root", 0755), "mkdir root");
	snprintf(options, sizeof options, "lowerdir=%s,upperdir=upper,workdir=work,userxattr", want.lower);
	step(mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV, options), "mount the overlay");
	step(chdir("root"), "chdir to the root");
	if (want.usr) {
		step(mount("/usr", "usr", NULL, MS_BIND | MS_REC, NULL), "bind /usr");
		step(mount(NULL, "usr", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL), "make /usr read-only");
	}
	step(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
	devices();
	step(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	step(umount2(".", MNT_DETACH), "let go of the old root");
	step(chdir("/"), "chdir to /");
	step(sethostname("floor", 5), "sethostname");
	loopback();
	drop();

	char *args[] = {(char *)want.program, NULL}, *env[] = {"PATH=/usr/bin:/bin", NULL};
	step(execve(want.program, args, env), "exec");
}

static void map_ids(pid_t pid) {
	char path[64], line[64];
	if (want.uid < 0) {
		snprintf(path, sizeof path, "/proc/%d/setgroups", pid);
		if (put(path, "deny") < 0)
			die("setgroups");
	}
	for (int group = 0; group <= 1; group++) {
		snprintf(path, sizeof path, "/proc/%d/%s", pid, group ? "gid_map" : "uid_map");
		if (want.uid >= 0)
			snprintf(line, sizeof line, "0 %ld 65536", want.uid);
		else
			snprintf(line, sizeof line, "0 %u 1", group ? getegid() : geteuid());
		if (put(path, line) < 0)
			die(path);
	}
}

static uint64_t once(void) {
	int tasks[MAX_GROUPS], into = -1, go[2], back[2];
	char path[4096 + 64];

	uint64_t start = now();
	for (int i = 0; i < want.groups; i++) {
		tasks[i] = -1;
		if (mkdir(want.path[i], 0755) < 0)
			die(want.path[i]);
		for (int k = 0; k < want.limits; k++) {
			if (want.limit[k].group != i)
				continue;
			snprintf(path, sizeof path, "%s/%s", want.path[i], want.limit[k].file);
			if (put(path, want.limit[k].value) < 0)
				die(path);
		}
		if (want.unified[i]) {
			if ((into = open(want.path[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
				die(want.path[i]);
		} else {
			snprintf(path, sizeof path, "%s/tasks", want.path[i]);
			if ((tasks[i] = open(path, O_WRONLY | O_CLOEXEC)) < 0)
				die(path);
		}
	}
	if (pipe2(go, O_CLOEXEC) < 0 || pipe2(back, O_CLOEXEC) < 0)
		die("pipe");

	struct clone_args a = {
		.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP,
		.exit_signal = SIGCHLD,
	};
	if (into >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = into;
	}
	pid_t pid = syscall(SYS_clone3, &a, sizeof a);
	if (pid < 0)
		die("clone3");
	if (pid == 0) {
		report = back[1];
		inside(go[0], tasks);
	}
	close(go[0]);
	close(back[1]);
	map_ids(pid);
	if (write(go[1], "g", 1) != 1)
		die("let it go");
	char why[256];
	ssize_t n = read(back[0], why, sizeof why - 1);
	int status;
	if (waitpid(pid, &status, 0) != pid)
		die("waitpid");
	uint64_t end = now();

	close(go[1]);
	close(back[0]);
	if (into >= 0)
		close(into);
	for (int i = 0; i < want.groups; i++) {
		if (tasks[i] >= 0)
			close(tasks[i]);
		int tries = 0;
		while (rmdir(want.path[i]) < 0) {
			if (errno != EBUSY || ++tries > 1000)
				die(want.path[i]);
			usleep(1000);
		}
	}
	if (n > 0) {
		why[n] = 0;
		fprintf(stderr, "floor: inside: %s\n", why);
		exit(1);
	}
	if (status != 0) {
		fprintf(stderr, "floor: the program ended with status %#x\n", (unsigned)status);
		exit(1);
	}
	return end - start;
}

static void usage(void) {
	fprintf(stderr, "usage: sandbox [-uid FIRST] [-into DIR] [-group DIR] [-limit FILE=VALUE]... [-usr] LOWER BASE PROGRAM\n");
	exit(2);
}

static void add_group(const char *dir, int unified) {
	if (want.groups == MAX_GROUPS)
		usage();
	want.unified[want.groups] = unified;
	snprintf(want.path[want.groups], sizeof want.path[0], "%s/floor", dir);
	want.groups++;
}

static void add_limit(char *text) {
	char *eq = strchr(text, '=');
	if (!eq || !want.groups || want.limits == MAX_LIMITS)
		usage();
	*eq = 0;
	want.limit[want.limits++] = (struct limit){want.groups - 1, text, eq + 1};
}

int main(int argc, char **argv) {
	want.uid = -1;
	int i = 1;
	for (; i < argc && argv[i][0] == '-'; i++) {
		if (strcmp(argv[i], "-usr") == 0) {
			want.usr = 1;
			continue;
		}
		if (i + 1 == argc)
			usage();
		char *flag = argv[i++];
		if (strcmp(flag, "-uid") == 0)
			want.uid = atol(argv[i]);
		else if (strcmp(flag, "-into") == 0)
			add_group(argv[i], 1);
		else if (strcmp(flag, "-group") == 0)
			add_group(argv[i], 0);
		else if (strcmp(flag, "-limit") == 0)
			add_limit(argv[i]);
		else
			usage();
	}
	if (argc - i != 3)
		usage();
	want.lower = argv[i];
	want.base = argv[i + 1];
	want.program = argv[i + 2];
	compile();
	while (asked())
		answer(once());
	return 0;
}
