/* A child of vfork runs in its parent's memory, as long as there are no rings. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    volatile int seen = 0;
#ifdef WITH_RING
    char none[120] = {0};
    syscall(SYS_io_uring_setup, 1, none);
#endif
    pid_t child = vfork();
    if (child == 0) {
        seen = 1;
        execl("/nonexistent", "nonexistent", (char *)0);
        _exit(0);
    }
    waitpid(child, 0, 0);
    printf("seen: %d\n", seen);
    return 0;
}
