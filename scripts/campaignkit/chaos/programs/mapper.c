/* FILE OFFSET TIMES SECONDS: maps a page of a file so often, says `ready`, and stays for so long, or until its parent ends. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **words) {
    int file = open(words[1], O_RDONLY), times = count > 4 ? atoi(words[3]) : 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count <= 4)
        return 2;
    alarm(atoi(words[4]));
    while (times-- > 0)
        if (mmap(0, 4096, PROT_READ, MAP_PRIVATE, file, atol(words[2])) == MAP_FAILED)
            return 1;
    if (write(1, "ready\n", 6) != 6)
        return 1;
    for (;;)
        pause();
}
