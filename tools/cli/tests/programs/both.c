/* Two pending signals are delivered together as soon as a call unblocks them, and the handler of the second jumps out of both, many times: on the
 * program's stack, and on an alternate one. */
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

static void jump_out(const char *where, int flags) {
    struct sigaction action = {.sa_handler = count, .sa_flags = flags};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && sigaction(SIGUSR2, &action, 0) == 0);
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
    printf("%s, jumps out of a change of the mask: %d, out of a wait with a mask: %d\n", where, jumps[0], jumps[1]);
    printf("a NOP after that: %d\n", ring_nop(&ring, 1));
}

/* After a wait that a signal has ended, the vector registers have the program's values. */
static void keep_vectors(void) {
    double before[4] = {1.5, 2.5, 3.5, 4.5}, after[4];
    sigset_t none;
    sigemptyset(&none);
    CHECK(raise(SIGUSR1) == 0);
#ifdef __x86_64__
    register long r10 __asm__("r10") = IORING_ENTER_GETEVENTS;
    register long r8 __asm__("r8") = (long)&none;
    register long r9 __asm__("r9") = 8;
    long result;
    __asm__ volatile("movsd (%[before]), %%xmm0\n\tmovsd 8(%[before]), %%xmm1\n\tmovsd 16(%[before]), %%xmm2\n\t"
                     "movsd 24(%[before]), %%xmm3\n\tmov $426, %%eax\n\tsyscall\n\t"
                     "movsd %%xmm0, (%[after])\n\tmovsd %%xmm1, 8(%[after])\n\tmovsd %%xmm2, 16(%[after])\n\t"
                     "movsd %%xmm3, 24(%[after])"
                     : "=&a"(result)
                     : "D"((long)ring.fd), "S"(0l), "d"(1l), "r"(r10), "r"(r8), "r"(r9), [before] "b"(before), [after] "r"(after)
                     : "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3");
    CHECK(result == -EINTR && !memcmp(before, after, sizeof before));
#else
    (void)before, (void)after;
#endif
}

int main(void) {
    stack_t alternate = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    CHECK(ring_open(&ring, 8, 0) == 0 && sigaltstack(&alternate, 0) == 0);
    jump_out("on the stack", 0);
    jump_out("on an alternate one", SA_ONSTACK);
    keep_vectors();
    return 0;
}
