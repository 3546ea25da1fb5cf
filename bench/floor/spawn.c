// The least that running a program costs: start it, wait for it, look at its
// exit code.
//
//	cc -O2 -static -o spawn spawn.c
//	spawn posix|vfork PROGRAM

#include "bell.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
	if (argc != 3) {
		fprintf(stderr, "usage: spawn posix|vfork PROGRAM\n");
		return 2;
	}
	int use_vfork = strcmp(argv[1], "vfork") == 0;
	char *program = argv[2], *args[] = {program, NULL};
	while (asked()) {
		uint64_t start = now();
		pid_t pid;
		if (use_vfork) {
			pid = vfork();
			if (pid == 0) {
				execve(program, args, environ);
				_exit(127);
			}
			if (pid < 0)
				die("vfork");
		} else if ((errno = posix_spawn(&pid, program, NULL, NULL, args, environ)) != 0) {
			die("posix_spawn");
		}
		int status;
		if (waitpid(pid, &status, 0) != pid)
			die("waitpid");
		uint64_t end = now();
		if (status != 0) {
			fprintf(stderr, "floor: %s ended with status %#x\n", program, (unsigned)status);
			return 1;
		}
		answer(end - start);
	}
	return 0;
}
