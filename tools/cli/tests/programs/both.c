/* Two signals that come at once when a call lets them, and a handler that jumps out of both, many times. */
#include "ring.h"
#include <setjmp.h>

enum { TIMES = 300 };
static struct ring ring;
static volatile int handled[2];
static sigjmp_buf back;

static void count(int signal) {
    handled[signal == SIGUSR2]++;
    if (signal == SIGUSR2)
        siglongjmp(back, 1);
}

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    CHECK(signal(SIGUSR1, count) != SIG_ERR && signal(SIGUSR2, count) != SIG_ERR);
    sigset_t both, none;
    sigemptyset(&none);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR1);
    sigaddset(&both, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &both, 0) == 0);
    int jumps[2] = {0};
    for (volatile int i = 0; i < 2 * TIMES; i++) {
        CHECK(raise(SIGUSR1) == 0 && raise(SIGUSR2) == 0);
        if (sigsetjmp(back, 1)) {
            jumps[i % 2]++;
            continue;
        }
        if (i % 2)
            ring_call(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, (long)&none, 8);
        else
            sigprocmask(SIG_UNBLOCK, &both, 0);
        CHECK(!"a handler has jumped");
    }
    printf("jumps out of a change of the mask: %d, out of a wait with a mask: %d\n", jumps[0], jumps[1]);
    printf("a NOP after that: %d\n", ring_nop(&ring, 1));
    return 0;
}
