/* Calls on a stack that has no room left, as a goroutine's stack may have none, and signals that arrive during such calls. */
#include "ring.h"
#include <sys/time.h>

static struct ring ring;
static volatile int handled;

static void count(int signal) {
    (void)signal;
    handled++;
}

/* The bytes below the stack pointer that a call may use, and how many of them, directly below, it leaves as they are: Go keeps a frame pointer there. */
#if defined(__x86_64__)
enum { ROOM = 0, LEFT = 0 };
#else
enum { ROOM = 48, LEFT = 16 };
#endif

/* io_uring_enter with the stack pointer at `stack`. */
static __attribute__((noinline)) long enter_on(char *stack, unsigned submit, unsigned wait) {
#if defined(__x86_64__)
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
#else
    register char *other __asm__("x19") = stack;
    register long x8 __asm__("x8") = 426;
    register long x0 __asm__("x0") = ring.fd;
    register long x1 __asm__("x1") = submit;
    register long x2 __asm__("x2") = wait;
    register long x3 __asm__("x3") = IORING_ENTER_GETEVENTS;
    register long x4 __asm__("x4") = 0;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("mov x20, sp\n\tmov sp, x19\n\tsvc #0\n\tmov x19, sp\n\tmov sp, x20"
                     : "+r"(x0), "+r"(other)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "x20", "memory");
    CHECK(other == stack);
    return x0;
#endif
}

int main(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages, page, PROT_NONE) == 0);
    char *stack = pages + page + ROOM;
    memset(pages + page, 0x5a, page);
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
    for (char *byte = stack - LEFT; byte < pages + 2 * page; byte++)
        CHECK(*byte == 0x5a);
    return 0;
}
