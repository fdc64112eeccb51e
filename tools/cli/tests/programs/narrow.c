/* Calls on a stack that has no room left, as a goroutine's stack may have none, and signals that arrive during such calls. */
#include "ring.h"
#include <sys/time.h>

static struct ring ring;
static volatile int handled;

static void count(int signal) {
    (void)signal;
    handled++;
}

/* io_uring_enter with the stack pointer at `stack`. */
static __attribute__((noinline)) long enter_on(char *stack, unsigned submit, unsigned wait) {
    register long r10 __asm__("r10") = IORING_ENTER_GETEVENTS;
    register long r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = 0;
    register char *other __asm__("rbx") = stack;
    long result;
    __asm__ volatile("xchg %%rsp, %%rbx\n\tmov $426, %%eax\n\tsyscall\n\txchg %%rsp, %%rbx"
                     : "=a"(result), "+r"(other)
                     : "D"((long)ring.fd), "S"((long)submit), "d"((long)wait), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    CHECK(other == stack);
    return result;
}

int main(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages, page, PROT_NONE) == 0);
    char *stack = pages + page;
    memset(stack, 0x5a, page);
    CHECK(ring_open(&ring, 8, 0) == 0);
    for (int i = 0; i < 100; i++) {
        ring_entry(&ring, IORING_OP_NOP, i);
        CHECK(enter_on(stack, 1, 1) == 1);
        CHECK(ring_peek(&ring) && ring_peek(&ring)->user_data == (uint64_t)i);
        ring_seen(&ring);
    }
    printf("a hundred calls\n");

    stack_t alternate = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_ONSTACK | SA_RESTART};
    CHECK(sigaltstack(&alternate, 0) == 0 && sigaction(SIGALRM, &action, 0) == 0);
    struct itimerval soon = {{.tv_usec = 2000}, {.tv_usec = 20000}};
    CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0);
    for (int i = 0; i < 20; i++) {
        int before = handled;
        CHECK(enter_on(stack, 0, 1) == -EINTR);
        CHECK(handled > before);
    }
    printf("twenty waits, each ended by a signal\n");
    for (size_t i = 0; i < page; i++)
        CHECK(stack[i] == 0x5a);
    return 0;
}
