/* A process that keeps all who read of it below /proc waiting, by a file of a server that does not answer: FILE lock|exec.

   lock: a thread reads a mapped page of the file through /proc/self/mem, which holds the lock of the address space to read, and another
   maps something, for which it must be held to write: all who come later wait behind it. exec: the file is open as another program is
   begun, and is closed on the way, while the lock of credentials is held. Says `ready`, and after a line of input `holds`.

   No Python: what is observed must not map the files of this one, as the kernel, to put a probe into a file, waits for the lock of each
   process that maps it, and keeps every fork of the host waiting meanwhile. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int memory;
static char *page;
static volatile int turn;

static void *reads(void *unused) {
    char byte;
    while (turn < 1)
        usleep(1000);
    pread(memory, &byte, 1, (off_t)(page + 8192));
    return unused;
}

static void *maps(void *unused) {
    while (turn < 2)
        usleep(1000);
    mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return unused;
}

int main(int count, char **arguments) {
    char line[8];
    pthread_t thread;
    int file = open(arguments[1], O_RDONLY | O_CLOEXEC);
    if (count < 3 || file < 0)
        return 1;
    page = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, file, 0);
    memory = open("/proc/self/mem", O_RDONLY);
    pthread_create(&thread, NULL, reads, NULL); /* both are there, with their stacks, before nothing can be mapped any more */
    pthread_create(&thread, NULL, maps, NULL);
    write(1, "ready\n", 6);
    read(0, line, sizeof line);
    if (!strcmp(arguments[2], "exec")) {
        write(1, "holds\n", 6);
        execl("/bin/sleep", "sleep", "1000", (char *)NULL);
    }
    turn = 1;
    usleep(300000);
    turn = 2;
    usleep(200000);
    write(1, "holds\n", 6);
    for (;;)
        pause();
}
