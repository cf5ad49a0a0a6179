/* Forks all the time, before all others in the queue for a CPU. On a line of its input, and as that ends, it says how long the longest fork
 * took since the last time, and the longest time that one of them waited for probes that were being put in or taken out, both in us.
 * One process forks; another looks where it is in the kernel, every few ms while a fork lasts. Forks wait for other locks as well,
 * such as those of who was put off his CPU; one that runs has no stack. Where stacks are not to be read, all of a fork counts as
 * waiting for probes. */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SHORT_US = 5000, LOOK_MS = 4 };

struct shared {
    volatile long began_us; /* of the fork that lasts; 0: none */
    volatile long longest_us;
};

static long now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static void first_in_the_queue(int priority) {
    struct sched_param param = {.sched_priority = priority};
    sched_setscheduler(0, SCHED_FIFO, &param);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void fork_all_the_time(struct shared *shared) {
    first_in_the_queue(1);
    while (1) {
        poll(0, 0, 2);
        long began = now_us();
        shared->began_us = began;
        int child = fork();
        if (!child)
            _exit(0);
        shared->began_us = 0;
        if (now_us() - began > shared->longest_us)
            shared->longest_us = now_us() - began;
        waitpid(child, 0, 0);
    }
}

static int waits_for_probes(int stack) {
    char text[4096];
    ssize_t got = stack < 0 ? -1 : pread(stack, text, sizeof text - 1, 0);
    if (got < 0)
        return 1;
    text[got] = 0;
    return strstr(text, "uprobe_start_dup_mmap") != 0;
}

int main(void) {
    struct pollfd input = {0, POLLIN, 0};
    struct shared *shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    long seen_us = 0, probes_us = 0, most_us = 0, read_bytes = 1;
    char line[64];
    if (shared == MAP_FAILED)
        return 1;
    setvbuf(stdout, 0, _IOLBF, 0);
    int child = fork();
    if (!child)
        fork_all_the_time(shared);
    first_in_the_queue(2);
    snprintf(line, sizeof line, "/proc/%d/stack", child);
    int stack = open(line, O_RDONLY | O_CLOEXEC);
    puts("ready");
    long looked_us = now_us();
    while (read_bytes > 0) {
        int asked = poll(&input, 1, LOOK_MS);
        long now = now_us(), began = shared->began_us;
        if (began && began != seen_us)
            seen_us = began, probes_us = 0;
        if (began && now - began >= SHORT_US && waits_for_probes(stack) && shared->began_us == began) {
            probes_us += now - (looked_us > began ? looked_us : began);
            most_us = probes_us > most_us ? probes_us : most_us;
        }
        looked_us = now;
        if (asked) {
            read_bytes = read(0, line, sizeof line);
            long longest = shared->longest_us, lasts = shared->began_us;
            if (lasts && now - lasts > longest)
                longest = now - lasts;
            shared->longest_us = 0;
            printf("%ld %ld\n", longest, most_us);
            most_us = 0;
        }
    }
    kill(child, SIGKILL);
    return 0;
}
