// How the benchmark asks a floor for one sample: it writes one byte to the
// floor's standard input and gets eight back, the nanoseconds that the work
// took, in the machine's byte order. The end of the input ends the floor. So
// samples of a floor can stand between samples of everything else, and starting
// the floor itself is not measured.

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void die(const char *what) {
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

// asked waits for the next request; it returns 0 at the end of the input.
static inline int asked(void) {
	char c;
	ssize_t n;
	while ((n = read(0, &c, 1)) < 0 && errno == EINTR) {
	}
	if (n < 0)
		die("read the request");
	return n == 1;
}

static inline void answer(uint64_t ns) {
	if (write(1, &ns, sizeof ns) != sizeof ns)
		die("write the answer");
}
