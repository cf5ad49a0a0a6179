/* Preloaded into the command: CLOCK_REALTIME jumps by CHAOS_JUMP_S once CLOCK_MONOTONIC has reached CHAOS_JUMP_AT. The host's own clock is
   everybody's and stays as it is. How often the other time was told is counted in the file CHAOS_JUMPED, which is mapped: forks count on,
   also those that may open nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*ask)(clockid_t, struct timespec *);
static double at, by;
static unsigned long nowhere, *jumped = &nowhere;

__attribute__((constructor)) static void begin(void)
{
	const char *when = getenv("CHAOS_JUMP_AT"), *far = getenv("CHAOS_JUMP_S"), *count = getenv("CHAOS_JUMPED");
	ask = dlsym(RTLD_NEXT, "clock_gettime");
	at = when ? atof(when) : 1e18;
	by = far ? atof(far) : 0;
	int file = count ? open(count, O_RDWR | O_CLOEXEC) : -1;
	void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(*jumped), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (mapped != MAP_FAILED)
		jumped = mapped;
	if (file >= 0)
		close(file);
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
	if (!ask)
		begin();
	int failed = ask(clock, found);
	struct timespec now;
	if (!failed && clock == CLOCK_REALTIME && !ask(CLOCK_MONOTONIC, &now) && now.tv_sec + now.tv_nsec * 1e-9 >= at) {
		found->tv_sec += (time_t)by;
		__atomic_fetch_add(jumped, 1, __ATOMIC_RELAXED);
	}
	return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
	struct timespec now;
	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	found->tv_sec = now.tv_sec;
	found->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *into)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return into ? (*into = now.tv_sec) : now.tv_sec;
}
