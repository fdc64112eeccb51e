/* Signals and rings: handlers interrupt waits, enter the ring, and jump out; SIGSYS and SIGSEGV
 * remain the program's, as far as it can tell. */
#include "ring.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>

static struct ring ring;
static volatile int handled, value;
static volatile char *volatile nowhere = (char *)8;
static sigjmp_buf back;

static void count(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    handled++;
    value = info->si_value.sival_int;
}

static void enter_again(int signal) {
    (void)signal;
    handled++;
    CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
}

static void submit(int signal) {
    (void)signal;
    ring_entry(&ring, IORING_OP_NOP, 6);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
}

static void jump(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void counts(int signal) {
    (void)signal;
    handled++;
}

static void set(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, 0) == 0);
}

/* Repeats from now on: on a slow machine the first signal comes before the wait that it is to interrupt. */
static void alarm_soon(void) {
    struct itimerval soon = {{.tv_usec = 50000}, {.tv_usec = 2000}};
    CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0);
}

static void no_alarm(void) {
    struct itimerval none = {{0}, {0}};
    CHECK(setitimer(ITIMER_REAL, &none, 0) == 0);
}

/* Signals that instructions raise, sent by a timer during a wait; their handlers jump out, and other threads may wait then. */
static void sent_in_a_wait(void) {
    int numbers[] = {SIGSEGV, SIGBUS, SIGSYS, SIGFPE, SIGILL, SIGTRAP};
    static volatile int i, jumps;
    for (i = 0; i < 6; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = numbers[i]};
        struct itimerspec soon = {{.tv_nsec = 50000000}, {.tv_nsec = 2000000}}, none = {{0}, {0}};
        struct __kernel_timespec short_time = {.tv_nsec = 1000000};
        timer_t timer;
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
        for (jumps = 0; jumps < 2; jumps++) {
            struct sigaction action = {.sa_handler = jumps ? jump : counts, .sa_flags = 0}, before;
            CHECK(sigaction(numbers[i], &action, &before) == 0);
            handled = 0;
            if (!sigsetjmp(back, 1)) {
                CHECK(timer_settime(timer, 0, &soon, 0) == 0);
                CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == -EINTR && !jumps && handled > 0);
            }
            CHECK(timer_settime(timer, 0, &none, 0) == 0);
            struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_TIMEOUT, 7);
            entry->fd = -1;
            entry->addr = (unsigned long)&short_time;
            entry->len = 1;
            CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1 && ring_peek(&ring)->res == -ETIME);
            ring_seen(&ring);
            CHECK(sigaction(numbers[i], &before, 0) == 0);
        }
        CHECK(timer_delete(timer) == 0);
    }
    printf("signals of instructions that were sent in a wait: handled, and jumped out of\n");
}

/* Sends three of them at any point of calls that do not wait: a handler must not jump out of the middle of a call. */
static void sent_at_any_moment(void) {
    int numbers[] = {SIGSEGV, SIGBUS, SIGSYS};
    static volatile int i, round;
    for (i = 0; i < 3; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = numbers[i]};
        struct sigaction action = {.sa_handler = jump}, before;
        timer_t timer;
        CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
        CHECK(sigaction(numbers[i], &action, &before) == 0);
        for (round = 0; round < 300; round++) {
            struct itimerspec soon = {.it_value.tv_nsec = 1000 + round % 100 * 1000};
            if (!sigsetjmp(back, 1)) {
                CHECK(timer_settime(timer, 0, &soon, 0) == 0);
                for (;;)
                    CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
            }
        }
        CHECK(sigaction(numbers[i], &before, 0) == 0 && timer_delete(timer) == 0);
        printf("a NOP after jumps at any moment: %d\n", ring_nop(&ring, 18));
    }
}

static void waits(void) {
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    CHECK(sigaction(SIGALRM, 0, &old) == 0 && old.sa_sigaction == count);
    CHECK((old.sa_flags & ~0x04000000) == (SA_SIGINFO | SA_RESTART));
    handled = 0;
    alarm_soon();
    long result = ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
    no_alarm();
    printf("a handler interrupts a wait: %ld, handled %d\n", result, handled > 0);

    /* At any point around the wait: the handler submits the request that ends it, early or late. */
    set(SIGALRM, submit, 0);
    for (int i = 0; i < 300; i++) {
        struct itimerval soon = {.it_value.tv_usec = 1 + i % 100};
        CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0);
        while (!ring_peek(&ring)) {
            result = ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
            CHECK(result == 0 || result == -EINTR);
        }
        ring_seen(&ring);
    }
    printf("a handler ends the wait, three hundred times\n");

    /* The signal is unblocked during the wait only. */
    set(SIGALRM, enter_again, 0);
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, &open) == 0);
    handled = 0;
    for (int i = 0; i < 300; i++) {
        struct itimerval soon = {.it_value.tv_usec = 1 + i % 100};
        CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0);
        result = ring_call(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, (long)&open, 8);
        CHECK(result == -EINTR && handled == i + 1);
    }
    CHECK(sigprocmask(SIG_SETMASK, &open, 0) == 0);
    printf("with a mask for the wait: handled %d\n", handled);

    set(SIGALRM, enter_again, 0);
    handled = 0;
    alarm_soon();
    result = ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
    no_alarm();
    printf("a handler enters the same ring: %ld, handled %d\n", result, handled > 0);

    set(SIGALRM, jump, 0);
    if (!sigsetjmp(back, 1)) {
        alarm_soon();
        ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
        CHECK(!"reached");
    }
    no_alarm();
    printf("a handler jumps out of a wait; a NOP after it: %d\n", ring_nop(&ring, 7));
    if (!SETUP_FLAGS) {
        sent_in_a_wait();
        sent_at_any_moment();
    }
}

/* Handlers may run on an alternate stack, and so does a trap: a small one must suffice. */
static void small_stack(void) {
    /* Room for one signal frame and little more, as in threads with 8 KiB and wide vector registers. */
    size_t tiny = getauxval(AT_MINSIGSTKSZ) + 5120;
    /* Processors with tile registers have frames of some 12 KiB. */
    size_t size = tiny < 16384 ? 16384 : tiny, page = sysconf(_SC_PAGESIZE);
    char *stack = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && mprotect(stack, page, PROT_NONE) == 0);
    stack_t small = {.ss_sp = stack + page, .ss_size = size}, none = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&small, 0) == 0);
    printf("a NOP with a small signal stack: %d\n", ring_nop(&ring, 13));
    struct ring another;
    CHECK(ring_open(&another, 64, 0) == 0);
    printf("a ring with a small signal stack: a NOP %d\n", ring_nop(&another, 14));
    close(another.fd);
    CHECK(sigaltstack(&none, 0) == 0);

    small.ss_size = tiny;
    CHECK(sigaltstack(&small, 0) == 0);
    printf("no parameters with a tiny signal stack: %ld\n", ring_call(SYS_io_uring_setup, 4, 0, 0, 0, 0, 0));
    CHECK(ring_open(&another, 64, 0) == 0);
    printf("a ring with a tiny signal stack: a NOP %d\n", ring_nop(&another, 15));
    /* A handler on that stack, which interrupts the wait. */
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaction(SIGALRM, &action, 0) == 0);
    handled = 0;
    alarm_soon();
    long result = ring_enter(another.fd, 0, 1, IORING_ENTER_GETEVENTS);
    no_alarm();
    printf("a handler on the tiny signal stack: %ld, handled %d\n", result, handled > 0);
    close(another.fd);
    stack_t now;
    CHECK(sigaltstack(0, &now) == 0);
    CHECK(now.ss_sp == small.ss_sp && now.ss_size == small.ss_size && !now.ss_flags);
    CHECK(sigaltstack(&none, 0) == 0);
}

#define USED (48 << 10)

/* Uses much of its stack, and then a ring. */
static void use_stack(int signal) {
    char used[USED];
    memset(used, signal, sizeof used);
    __asm__ volatile("" ::"r"(used) : "memory");
    struct ring another;
    CHECK(ring_open(&another, 64, 0) == 0);
    printf("a ring at the end of a signal stack: a NOP %d\n", ring_nop(&another, 16));
    close(another.fd);
}

#ifdef BY_LIBC
/* The library's function makes the call on the caller's stack. Without optimization it needs some 6 KiB. */
#define LEFT 8192
#else
#define LEFT 4096
#endif

/* A large signal stack, of which a handler leaves little more than a frame. */
static void used_stack(void) {
    size_t size = 2 * getauxval(AT_MINSIGSTKSZ) + USED + LEFT, page = sysconf(_SC_PAGESIZE);
    char *stack = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && mprotect(stack, page, PROT_NONE) == 0);
    stack_t large = {.ss_sp = stack + page, .ss_size = size}, none = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&large, 0) == 0);
    struct sigaction action = {.sa_handler = use_stack, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGALRM, &action, 0) == 0 && raise(SIGALRM) == 0);
    CHECK(sigaltstack(&none, 0) == 0);
}

static sigjmp_buf out;
static volatile int jumps, is_apart;
static char *base;

static void jump_out(int signal) {
    (void)signal;
    jumps++;
    siglongjmp(out, 1);
}

/* Waits, with everything blocked, and with a mask that unblocks one signal. */
static void wait_for_the_jump(int signal) {
    (void)signal;
    sigset_t but_one;
    sigfillset(&but_one);
    sigdelset(&but_one, SIGUSR2);
    CHECK(raise(SIGUSR2) == 0);
    ring_call(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, (long)&but_one, 8);
    CHECK(!"reached");
}

/* Records whether this runs on a stack other than that of `base`. */
static void look_where(int signal) {
    (void)signal;
    char here;
    is_apart = labs(&here - base) > 1 << 20;
}

/* Jumps out of a handler that ran in a wait on a small signal stack: the thread still has a signal stack, and rings. */
static void jumps_off_a_small_stack(void) {
    char here;
    base = &here;
    size_t size = 16384;
    char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t small = {.ss_sp = stack, .ss_size = size}, none = {.ss_flags = SS_DISABLE}, now;
    CHECK(stack != MAP_FAILED && sigaltstack(&small, 0) == 0);
    struct sigaction waits = {.sa_handler = wait_for_the_jump, .sa_flags = SA_ONSTACK};
    struct sigaction jumps_out = {.sa_handler = jump_out, .sa_flags = SA_ONSTACK};
    struct sigaction looks = {.sa_handler = look_where, .sa_flags = SA_ONSTACK};
    sigfillset(&waits.sa_mask);
    CHECK(sigaction(SIGUSR2, &jumps_out, 0) == 0 && sigaction(SIGALRM, &looks, 0) == 0);
    for (int i = 0; i < 600; i++) {
        /* A signal stack that is set again after the jump works, too. */
        if (i == 300)
            CHECK(sigaltstack(&small, 0) == 0);
        CHECK(sigaction(SIGUSR1, &waits, 0) == 0);
        if (!sigsetjmp(out, 1)) {
            raise(SIGUSR1);
            CHECK(!"reached");
        }
        is_apart = 0;
        CHECK(raise(SIGALRM) == 0 && is_apart);
        if (i % 2)
            CHECK(ring_nop(&ring, 17) == 0);
    }
    CHECK(sigaltstack(0, &now) == 0);
    printf("jumped out %d times: the stack %d, %d\n", jumps, now.ss_sp == stack && now.ss_size == size, now.ss_flags);
    CHECK(sigaltstack(&none, 0) == 0);
    CHECK(signal(SIGUSR1, SIG_DFL) != SIG_ERR && signal(SIGUSR2, SIG_DFL) != SIG_ERR);
}

/* True if the calling thread has SIGSYS blocked. */
static int blocked(void) {
    sigset_t now;
    CHECK(sigprocmask(SIG_SETMASK, 0, &now) == 0);
    return sigismember(&now, SIGSYS);
}

static void block_all(int signal) {
    (void)signal;
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, 0) == 0 && blocked());
}

#ifdef __GLIBC__
static void *nop(void *unused) {
    (void)unused;
    return (void *)(long)ring_nop(&ring, 13);
}
#endif

/* By older functions of the C library, and by the call's number. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void older_masks(void) {
    CHECK(sighold(SIGSYS) == 0 && blocked());
    printf("a NOP with SIGSYS held: %d\n", ring_nop(&ring, 10));
    CHECK(sigrelse(SIGSYS) == 0 && !blocked());
    CHECK(sigset(SIGUSR2, SIG_HOLD) == SIG_DFL && sigset(SIGUSR2, SIG_IGN) == SIG_HOLD);
    CHECK(sigset(SIGUSR2, SIG_DFL) == SIG_IGN && sigignore(SIGUSR2) == 0 && signal(SIGUSR2, SIG_DFL) == SIG_IGN);
    CHECK(sigset(SIGKILL, SIG_DFL) == SIG_ERR && sighold(0) == -1);
    uint64_t set = ~0ul, old;
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &set, &old, 8) == 0 && blocked());
    printf("a NOP with all blocked by number: %d\n", ring_nop(&ring, 11));
    CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, &set, 8) == 0 && !blocked());
    CHECK(set >> (SIGSYS - 1) & 1);
    CHECK(syscall(SYS_rt_sigprocmask, 3, &old, 0, 8) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_rt_sigprocmask, SIG_BLOCK, 8, 0, 8) == -1 && errno == EFAULT);
#ifdef __GLIBC__
    CHECK(sigblock(-1) == 0 && blocked());
    printf("a NOP after sigblock: %d\n", ring_nop(&ring, 12));
    CHECK(sigsetmask(0) != 0 && !blocked());
    pthread_attr_t attributes;
    sigset_t all;
    sigfillset(&all);
    pthread_t thread;
    void *result;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setsigmask_np(&attributes, &all) == 0);
    CHECK(pthread_create(&thread, &attributes, nop, 0) == 0 && pthread_join(thread, &result) == 0);
    printf("a NOP by a thread made with all blocked: %ld\n", (long)result);
#endif
}
#pragma GCC diagnostic pop

static void masks(void) {
    sigset_t all, old, sys;
    sigfillset(&all);
    sigemptyset(&sys);
    sigaddset(&sys, SIGSYS);
    CHECK(!blocked() && sigprocmask(SIG_SETMASK, &all, &old) == 0 && !sigismember(&old, SIGSYS));
    printf("SIGSYS with all signals blocked: %d\n", blocked());
    printf("a NOP with all signals blocked: %d\n", ring_nop(&ring, 8));
    CHECK(sigprocmask(SIG_UNBLOCK, &sys, &all) == 0 && sigismember(&all, SIGSYS) && !blocked());
    CHECK(sigprocmask(SIG_SETMASK, &old, 0) == 0 && !blocked());
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, 0) == 0 && blocked());
    printf("and by pthread_sigmask: %d\n", ring_nop(&ring, 9));
    sigset_t now;
    CHECK(sigprocmask(SIG_SETMASK, &old, &now) == 0 && !blocked());
    CHECK(sigismember(&now, SIGUSR1) && sigismember(&now, SIGALRM) && sigismember(&now, SIGSYS));
    older_masks();
    set(SIGUSR1, block_all, 0);
    CHECK(raise(SIGUSR1) == 0);
    printf("SIGSYS after a handler that blocked all: %d\n", blocked());
}

/* Handlers that run with everything blocked, by the mask of a wait, enter the ring. */
static void waits_with_masks(void) {
    sigset_t all_but_one, one, old;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigfillset(&all_but_one);
    sigdelset(&all_but_one, SIGUSR1);
    set(SIGUSR1, enter_again, 0);
    CHECK(sigprocmask(SIG_BLOCK, &one, &old) == 0);
    handled = 0;
    int epoll = epoll_create1(0);
    struct epoll_event event;
    for (int way = 0; way < 4; way++) {
        CHECK(raise(SIGUSR1) == 0 && handled == way);
        int result = way == 0   ? sigsuspend(&all_but_one)
                     : way == 1 ? ppoll(0, 0, 0, &all_but_one)
                     : way == 2 ? pselect(0, 0, 0, 0, 0, &all_but_one)
                                : epoll_pwait(epoll, &event, 1, -1, &all_but_one);
        CHECK(result == -1 && errno == EINTR);
    }
    close(epoll);
    printf("handlers under the masks of waits: %d\n", handled);
    CHECK(sigprocmask(SIG_SETMASK, &old, 0) == 0);
}

static void actions(void) {
    struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO}, old;
    CHECK(sigaction(SIGSYS, 0, &old) == 0);
    printf("SIGSYS before: %s\n", old.sa_handler == SIG_DFL ? "default" : "something");
    CHECK(sigaction(SIGSYS, &action, 0) == 0);
    CHECK(sigaction(SIGSYS, 0, &old) == 0 && old.sa_sigaction == count);
    printf("a NOP with a SIGSYS handler: %d\n", ring_nop(&ring, 10));
    handled = 0;
    union sigval five = {.sival_int = 5};
    CHECK(sigqueue(getpid(), SIGSYS, five) == 0);
    printf("a SIGSYS that was sent: handled %d, value %d\n", handled, value);
    CHECK(signal(SIGSYS, SIG_IGN) != SIG_ERR);
    printf("a NOP with SIGSYS ignored: %d\n", ring_nop(&ring, 11));
    CHECK(raise(SIGSYS) == 0);
    /* Not through the C library. */
    struct { void *handler; long flags; void *restorer; long mask; } raw = {SIG_DFL, 0, 0, 0};
    CHECK(syscall(SYS_rt_sigaction, SIGSYS, &raw, 0, 8) == 0);
    printf("a NOP after a raw rt_sigaction: %d\n", ring_nop(&ring, 12));

    handled = 0;
    action.sa_flags |= SA_RESETHAND;
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    CHECK(raise(SIGUSR1) == 0 && sigaction(SIGUSR1, 0, &old) == 0);
    printf("SA_RESETHAND: handled %d, then %s\n", handled, old.sa_handler == SIG_DFL ? "default" : "something");
}

static void faults(void) {
    set(SIGSEGV, jump, SA_NODEFER);
    volatile int caught = 0;
    if (!sigsetjmp(back, 1))
        *nowhere = 1;
    else
        caught = 1;
    printf("a fault of the program's own: %s\n", caught ? "caught" : "not caught");
    printf("a fault of a call's: %ld\n", ring_setup(4, (void *)nowhere));
}

static void answer_trap(int signal, siginfo_t *info, void *context) {
    (void)context;
    handled = signal;
    value = info->si_errno;
}

/* Calls `sigaction` by the call's number, not through an interposer of the C library. */
static int action_by_number(int signal, void (*handler)(int, siginfo_t *, void *)) {
    struct restore { unsigned long flag; void (*restorer)(void); } restore = {RESTORE};
    struct { void *handler; unsigned long flags; void (*restorer)(void); uint64_t mask; } action = {
        handler, SA_SIGINFO | restore.flag, restore.restorer, 0};
    return syscall(SYS_rt_sigaction, signal, &action, 0, 8);
}

/* The program's own filter traps a call that anyring handles, too: the program's handler must run. */
static void own_filter(int by_number, int fork_by_number) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 7),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, code};
    struct sigaction action = {.sa_sigaction = answer_trap, .sa_flags = SA_SIGINFO};
    fflush(stdout);
    pid_t child = fork_by_number ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (!child) {
        CHECK((by_number ? action_by_number(SIGSYS, answer_trap) : sigaction(SIGSYS, &action, 0)) == 0);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        _exit(handled == SIGSYS && value == 7 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    printf("a trap of the program's own filter%s%s: %d\n", by_number ? ", handled by number" : "",
           fork_by_number ? ", in a fork by number" : "", status);
}

int main(int count_arguments, char **arguments) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    small_stack();
    used_stack();
    /* With the kernel's rings the kernel calls handlers: a handler that jumps out of a wait must not keep the driver's role. */
    if (!SETUP_FLAGS)
        jumps_off_a_small_stack();
    masks();
    waits_with_masks();
    for (int i = 0; i < 4; i++)
        own_filter(i & 1, i & 2);
    actions();
    faults();
    waits();
    fflush(stdout);
    if (count_arguments > 1 && !strcmp(arguments[1], "fault")) {
        signal(SIGSEGV, SIG_DFL);
        *nowhere = 1;
    }
    return 0;
}
