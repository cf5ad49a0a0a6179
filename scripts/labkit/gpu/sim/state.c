/* The shared state file: making and opening it, locks and sleeping, who is alive. */
#define _GNU_SOURCE
#include "gpusim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t gs_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void gs_sleep_until(int64_t time_ns)
{
    struct timespec until = {time_ns / 1000000000ll, time_ns % 1000000000ll};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/* A killed owner leaves the lock to the next; after a second behind a stopped one, one goes on without it. */
void gs_lock(pthread_mutex_t *mutex)
{
    int result = pthread_mutex_trylock(mutex);
    if (result == EBUSY) {
        struct timespec deadline;
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += 1;
        result = pthread_mutex_timedlock(mutex, &deadline);
    }
    if (result == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
}

void gs_unlock(pthread_mutex_t *mutex)
{
    pthread_mutex_unlock(mutex); /* refused, without harm, to who went on without it */
}

/* Futexes instead of condition variables: a process-shared condition variable can hang once a waiter was killed. */
void gs_wait(uint32_t *word, uint32_t value, int64_t timeout_ns)
{
    struct timespec timeout = {timeout_ns / 1000000000ll, timeout_ns % 1000000000ll};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

void gs_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void init_lock(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static struct gs_state *map(int handle)
{
    void *at = mmap(NULL, sizeof(struct gs_state), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    return at == MAP_FAILED ? NULL : at;
}

int gs_create(const char *path, int gpus, int per_host)
{
    if (gpus < 1 || gpus > GS_GPUS || per_host < 1)
        return -EINVAL;
    int handle = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (handle < 0)
        return -errno;
    fchmod(handle, 0666);
    struct gs_state *state = ftruncate(handle, sizeof(struct gs_state)) ? NULL : map(handle);
    close(handle);
    if (!state)
        return -errno;
    state->version = GS_VERSION;
    state->size_bytes = sizeof(struct gs_state);
    state->gpus = gpus;
    state->per_host = per_host;
    state->started_ns = gs_now();
    init_lock(&state->comm_lock);
    for (int index = 0; index < GS_COMMS; index++)
        init_lock(&state->comm[index].lock);
    for (int index = 0; index < GS_GPUS; index++) {
        struct gs_gpu *gpu = &state->gpu[index];
        init_lock(&gpu->lock);
#define GS_DEFAULT(name, value) gpu->set.name = value;
        GS_GPU_SETTINGS(GS_DEFAULT)
#undef GS_DEFAULT
#define GS_DEFAULT(name, value) gpu->nic_set.name = value;
        GS_NIC_SETTINGS(GS_DEFAULT)
#undef GS_DEFAULT
        gpu->advanced_ns = gpu->kernel_until_ns = state->started_ns;
        gpu->next_sample_ns = state->started_ns + GS_SAMPLE_NS;
        gpu->smooth_power_w = GS_POWER_IDLE_W;
    }
    __atomic_store_n(&state->magic, GS_MAGIC, __ATOMIC_RELEASE);
    munmap(state, sizeof(struct gs_state));
    return 0;
}

struct gs_state *gs_open(const char *path)
{
    int handle = open(path, O_RDWR | O_CLOEXEC);
    if (handle < 0)
        return NULL;
    struct stat status;
    struct gs_state *state = NULL;
    if (!fstat(handle, &status) && status.st_size >= (off_t)sizeof(struct gs_state))
        state = map(handle);
    close(handle);
    if (state && (state->magic != GS_MAGIC || state->version != GS_VERSION || state->size_bytes != sizeof(struct gs_state))) {
        munmap(state, sizeof(struct gs_state));
        state = NULL;
    }
    return state;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct gs_state *of_environment;
static int lives = -1;

static void open_of_environment(void)
{
    const char *path = getenv("GPUSIM_STATE");
    if (!path || !(of_environment = gs_open(path)))
        return;
    char name[4096];
    if (snprintf(name, sizeof name, "%s.lives", path) >= (int)sizeof name)
        return;
    lives = open(name, O_RDWR | O_CLOEXEC); /* as a rule the daemon has made it, and who only looks may create nothing */
    if (lives < 0)
        lives = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

struct gs_state *gs_state(void)
{
    pthread_once(&once, open_of_environment);
    return of_environment;
}

int gs_lives(void)
{
    gs_state();
    return lives;
}

/* A process holds byte gpu * GS_PROCESSES + row of the lock file, by a record lock: the kernel drops it however the process ends, does
 * not hand it to forked children, and names the holder in the asker's own pid namespace. */
int gs_process_pid(const struct gs_state *state, int gpu, int row, int descriptor)
{
    const struct gs_process *process = &state->gpu[gpu].processes[row];
    if (!process->claimed)
        return 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = gpu * GS_PROCESSES + row, .l_len = 1};
    if (descriptor < 0 || fcntl(descriptor, F_GETLK, &lock))
        return 0;
    if (lock.l_type == F_UNLCK) /* one's own lock does not show */
        return process->pid == getpid() ? process->pid : 0;
    return lock.l_pid > 0 ? lock.l_pid : process->pid;
}

void gs_close(struct gs_state *state)
{
    munmap(state, sizeof *state);
}

int gs_ready(struct gs_state *state)
{
    return (int)state->ready;
}
