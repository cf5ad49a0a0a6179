/* Forks as fast as it may, 64 at a time. Ends with its parent. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int running = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        while (running < 64) {
            int child = fork();
            if (!child)
                _exit(0);
            if (child < 0)
                break;
            running++;
        }
        if (waitpid(-1, 0, 0) > 0)
            running--;
    }
}
