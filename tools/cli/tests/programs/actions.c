/* Signal actions as the C library and the kernel keep them: on which stack a handler runs, whether it interrupts calls, and the old
 * action that is returned. */
#include "ring.h"
#include <sys/time.h>
#include <sys/wait.h>

static char *page, *alternate;
static volatile int where, times;
/* How often the parent's handler has run, for a child. */
static volatile int *alarms;

#define DEEP (48 << 10)
#define SMALL (16 << 10)

static int is_on_alternate(uintptr_t here) {
    return here >= (uintptr_t)alternate && here < (uintptr_t)alternate + SMALL;
}

static __attribute__((noinline)) void go_deep(void) {
    volatile char deep[DEEP];
    for (unsigned at = 0; at < sizeof deep; at += 512)
        deep[at] = 1;
}

/* Uses more stack than the alternate one has, if the handler runs on the other stack. */
static void repair(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info, (void)context;
    volatile char here;
    where = is_on_alternate((uintptr_t)&here);
    if (!where)
        go_deep();
    CHECK(mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
}

static void fault(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = repair, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(signal, &action, 0) == 0);
    CHECK(mprotect(page, 4096, PROT_NONE) == 0);
    where = -1;
    *(volatile char *)page = 1;
    printf("signal %d, flags %x: %s stack\n", signal, flags, where ? "alternate" : "own");
}

static void on_stacks(void) {
    int access = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    page = mmap(0, 4096, access, flags, -1, 0);
    char *guarded = mmap(0, 2 * SMALL, access, flags, -1, 0);
    CHECK(page != MAP_FAILED && guarded != MAP_FAILED && mprotect(guarded, SMALL, PROT_NONE) == 0);
    alternate = guarded + SMALL;
    stack_t stack = {.ss_sp = alternate, .ss_size = SMALL};
    CHECK(sigaltstack(&stack, 0) == 0);
    fault(SIGSEGV, 0);
    fault(SIGSEGV, SA_ONSTACK);
    fault(SIGSEGV, 0);
    /* A ring's calls still handle unmapped memory. */
    struct ring ring;
    CHECK(ring_open(&ring, 8, 0) == 0);
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_OPENAT, 1);
    entry->addr = 8;
    CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    printf("path at 8: %d\n", ring_peek(&ring)->res);
}

static void counts(int number) {
    ++*alarms;
    /* As in programs for System V. */
    CHECK(signal(number, counts) != SIG_ERR);
}

static int is_asleep(pid_t process) {
    char path[32], told[256];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *stat = fopen(path, "r");
    CHECK(stat && fgets(told, sizeof told, stat));
    fclose(stat);
    return strstr(told, ") S ") != 0;
}

/* Waits until the parent sleeps in its read, and again after one of its handlers has run meanwhile. */
static void sleeps_again(pid_t parent) {
    int before = -1;
    for (;; usleep(1000)) {
        int now = *alarms;
        if (!is_asleep(parent) || *alarms != now)
            continue;
        if (before < 0)
            before = now;
        else if (now > before + 1)
            return;
    }
}

static const char *a_read(void) {
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    *alarms = 0;
    struct itimerval soon = {{.tv_usec = 5000}, {.tv_usec = 20000}}, never = {0};
    CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0);
    /* If the handler does not interrupt the read, it continues until a child writes. */
    pid_t child = fork();
    if (child == 0) {
        sleeps_again(getppid());
        _exit(write(ends[1], "x", 1) != 1);
    }
    ssize_t count = read(ends[0], &byte, 1);
    int error = errno;
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    CHECK(count == 1 || kill(child, SIGKILL) == 0);
    while (waitpid(child, 0, 0) != child)
        ;
    CHECK(*alarms > 0);
    return count == 1 ? "goes on" : error == EINTR ? "is interrupted" : "fails";
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static void interrupting(void) {
    alarms = mmap(0, sizeof *alarms, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(alarms != MAP_FAILED);
    CHECK(signal(SIGALRM, counts) != SIG_ERR);
    printf("at first: a read %s\n", a_read());
    CHECK(siginterrupt(SIGALRM, 1) == 0);
    printf("siginterrupt, and signal again: a read %s\n", a_read());
    CHECK(siginterrupt(SIGALRM, 0) == 0);
    printf("no more: a read %s\n", a_read());
    printf("no signal: %d\n", siginterrupt(0, 1));
}

static void once(int signal) {
    (void)signal;
    times++;
}

struct kernel_action {
    void (*handler)(int);
    unsigned long flags;
#ifdef __x86_64__
    void (*restorer)(void);
#endif
    unsigned long mask;
};

static void restored(int signal) {
    struct kernel_action action;
    times = 0;
    CHECK(syscall(SYS_rt_sigaction, signal, 0, &action, 8) == 0 && action.handler == once);
    CHECK(syscall(SYS_rt_sigaction, signal, &(struct kernel_action){0}, 0, 8) == 0);
    /* As in Go programs. */
    action.flags |= SA_ONSTACK;
    CHECK(syscall(SYS_rt_sigaction, signal, &action, 0, 8) == 0);
    CHECK(raise(signal) == 0);
    printf("signal %d: handled %d times\n", signal, times);
}

static void by_number(void) {
    static const int all[] = {SIGUSR1, SIGSEGV, SIGBUS};
    for (unsigned index = 0; index < sizeof all / sizeof *all; index++) {
        CHECK(signal(all[index], once) != SIG_ERR);
        restored(all[index]);
#ifdef __GLIBC__
        struct sigaction action;
        CHECK(sigaction(all[index], 0, &action) == 0);
        struct kernel_action raw = {.handler = once, .flags = (unsigned)action.sa_flags};
#ifdef __x86_64__
        raw.restorer = action.sa_restorer;
#endif
        CHECK(syscall(SYS_rt_sigaction, all[index], &raw, 0, 8) == 0 && raise(all[index]) == 0);
#endif
    }
#ifdef __GLIBC__
    printf("and by what the C library gives back: %d\n", times);
#endif
}

int main(int count, char **words) {
    CHECK(count == 2);
    if (!strcmp(words[1], "stacks"))
        on_stacks();
    else if (!strcmp(words[1], "interrupting"))
        interrupting();
    else
        by_number();
    return 0;
}
