/* SIGSYS, SIGSEGV and SIGBUS are blocked in ways other than sigprocmask, sent while blocked, and waited for. */
#include "ring.h"
#include <pthread.h>
#include <sched.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <ucontext.h>

static struct ring ring;
static volatile int handled;

/* Submits a request and waits for it, despite interruptions; returns its result. */
static int ring_do(struct ring *ring, struct io_uring_sqe request) {
    struct io_uring_sqe *entry = ring_entry(ring, request.opcode, 0);
    *entry = request;
    for (unsigned submit = 1; !ring_peek(ring);) {
        long entered = ring_enter(ring->fd, submit, 1, IORING_ENTER_GETEVENTS);
        CHECK(entered >= 0 || entered == -EINTR);
        submit -= entered == 1;
    }
    int result = ring_peek(ring)->res;
    ring_seen(ring);
    return result;
}

static void count(int signal) {
    (void)signal;
    handled++;
}

static int blocked(void) {
    sigset_t now;
    CHECK(sigprocmask(SIG_SETMASK, 0, &now) == 0);
    return sigismember(&now, SIGSYS);
}

static int pending(int number) {
    sigset_t now;
    CHECK(sigpending(&now) == 0);
    return sigismember(&now, number);
}

static void mask_all(int how) {
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(how, &all, 0) == 0);
}

/* Raises a signal with all blocked: it arrives when it is unblocked, once. */
static void raised(int number) {
    CHECK(signal(number, count) == SIG_DFL);
    handled = 0;
    mask_all(SIG_BLOCK);
    CHECK(!pending(number) && raise(number) == 0 && raise(number) == 0);
    printf("%d raised twice with all blocked: handled %d, pending %d\n", number, handled, pending(number));
    mask_all(SIG_UNBLOCK);
    printf("unblocked: handled %d, pending %d\n", handled, pending(number));
    CHECK(signal(number, SIG_DFL) == count);
}

/* A request with an invalid address fails, whatever is blocked. */
static void points_nowhere(void) {
    struct io_uring_sqe open = {.opcode = IORING_OP_OPENAT, .fd = -100, .addr = 16};
    mask_all(SIG_BLOCK);
    printf("a path that is nowhere, with all blocked: %d\n", ring_do(&ring, open));
    printf("parameters that are nowhere: %ld\n", ring_setup(4, (void *)16));
    mask_all(SIG_UNBLOCK);
}

/* Raises a signal and waits for it, with a NOP in between. */
static void waited_for(int number) {
    sigset_t one, none;
    int taken = 0;
    siginfo_t information = {0};
    struct timespec now = {0};
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, number);
    mask_all(SIG_BLOCK);
    CHECK(raise(number) == 0);
    printf("a NOP while it is pending: %d\n", ring_nop(&ring, 1));
    CHECK(sigtimedwait(&none, 0, &now) == -1 && errno == EAGAIN);
    CHECK(sigwait(&one, &taken) == 0 && !pending(number));
    printf("taken by sigwait: %d\n", taken == number);
    union sigval five = {.sival_int = 5};
    CHECK(sigqueue(getpid(), number, five) == 0);
    CHECK(sigwaitinfo(&one, &information) == number);
    printf("taken by sigwaitinfo: %d, %d\n", information.si_value.sival_int, information.si_code == SI_QUEUE);
    CHECK(sigtimedwait(&one, &information, &now) == -1 && errno == EAGAIN);
    mask_all(SIG_UNBLOCK);
    CHECK(signal(number, SIG_DFL) != SIG_ERR);
}

static void *waits(void *unused) {
    (void)unused;
    sigset_t all;
    int taken = 0;
    sigfillset(&all);
    do
        CHECK(sigwait(&all, &taken) == 0);
    while (taken != SIGSYS);
    return (void *)(long)ring_nop(&ring, 2);
}

/* A thread takes the process's signals, as in many servers. */
static void a_thread_waits(void) {
    pthread_t thread;
    void *result = (void *)1;
    mask_all(SIG_BLOCK);
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_create(&thread, 0, waits, 0) == 0);
        CHECK(kill(getpid(), SIGSYS) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == 0 && !pending(SIGSYS));
    }
    printf("two hundred threads have waited for it\n");
    mask_all(SIG_UNBLOCK);
}

enum { ROUNDS = 2000 };
static int waits_ended;

static void *waits_and_calls(void *unused) {
    sigset_t all;
    int taken;
    (void)unused;
    sigfillset(&all);
    for (int round = 1; round <= ROUNDS; round++) {
        CHECK(sigwait(&all, &taken) == 0 && taken == SIGSYS);
        __atomic_store_n(&waits_ended, round, __ATOMIC_RELEASE);
        ring_nop(&ring, 3);
    }
    return 0;
}

/* Sleeps, because on a busy machine a thread that yields runs after all others. */
static void lets_others_run(void) { usleep(20); }

/* A thread that has waited makes a call immediately: nothing that ends its wait comes later. */
static void a_thread_waits_and_calls(void) {
    pthread_t thread;
    mask_all(SIG_BLOCK);
    CHECK(pthread_create(&thread, 0, waits_and_calls, 0) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        CHECK(kill(getpid(), SIGSYS) == 0);
        for (int looks = 0; __atomic_load_n(&waits_ended, __ATOMIC_ACQUIRE) < round; looks++)
            if (looks > 1000)
                lets_others_run();
        for (volatile int pause = 0; pause < round % 400; pause++)
            ;
    }
    CHECK(pthread_join(thread, 0) == 0 && !pending(SIGSYS));
    mask_all(SIG_UNBLOCK);
    printf("a thread has waited and called two thousand times\n");
}

static void *inherits(void *one) {
    int taken;
    CHECK(blocked() && sigwait(one, &taken) == 0 && taken == SIGSYS);
    return one;
}

static int inherits_too(void *one) {
    return inherits(one) == one ? 5 : 0;
}

static void *is_cancelled(void *unused) {
    for (;;)
        sleep(1000);
    return unused;
}

static __attribute__((unused)) void *has_it_unblocked(void *none) {
    CHECK(!blocked());
    return none;
}

/* A thread begins with its creator's mask, and a signal may arrive before it has done anything. */
static void threads_inherit(void) {
    pthread_t thread;
    thrd_t other;
    sigset_t one;
    void *result;
    int number;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    handled = 0;
    CHECK(signal(SIGUSR1, count) != SIG_ERR && pthread_sigmask(SIG_BLOCK, &one, 0) == 0);
    for (int round = 0; round < 500; round++) {
        CHECK(pthread_create(&thread, 0, inherits, &one) == 0);
        if (round % 2)
            CHECK(pthread_kill(thread, SIGUSR1) == 0);
        for (volatile int pause = 0; pause < round % 50 * 100; pause++)
            ;
        CHECK(kill(getpid(), SIGSYS) == 0 && pthread_join(thread, &result) == 0 && result == &one);
    }
    CHECK(handled == 250 && signal(SIGUSR1, SIG_DFL) == count);
    CHECK(thrd_create(&other, inherits_too, &one) == thrd_success && kill(getpid(), SIGSYS) == 0);
    CHECK(thrd_join(other, &number) == thrd_success && number == 5);
    CHECK(pthread_create(&thread, 0, is_cancelled, 0) == 0 && pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
#ifdef __GLIBC__
    pthread_attr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setsigmask_np(&attributes, &none) == 0);
    CHECK(pthread_create(&thread, &attributes, has_it_unblocked, 0) == 0 && pthread_join(thread, 0) == 0);
#endif
    CHECK(blocked() && !pending(SIGSYS) && pthread_sigmask(SIG_UNBLOCK, &one, 0) == 0);
    printf("threads begin with what is blocked\n");
}

/* True if a thread of this process sleeps in a call. */
static int sleeps_in(pid_t thread, long number) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    FILE *file = fopen(path, "r");
    CHECK(file);
    char *line = fgets(text, sizeof text, file);
    fclose(file);
    return line && *line != 'r' && atol(line) == number;
}

static volatile int interruptions, may_go_on, ends, taken_count;
static volatile pid_t waiting;

static void interrupts(int signal) {
    (void)signal;
    for (int own = ++interruptions; may_go_on < own;)
        lets_others_run();
}

static void *waits_through_handlers(void *one) {
    while (!ends)
        if (sigwaitinfo(one, 0) > 0)
            taken_count++;
    return 0;
}

static void *waits_once(void *one) {
    waiting = gettid();
#ifdef __GLIBC__
    CHECK(sigwaitinfo(one, 0) == -1 && errno == EINTR);
#else
    /* musl's function continues after a handler. */
    CHECK(syscall(SYS_rt_sigtimedwait, one, 0, 0, 8) == -1 && errno == EINTR);
#endif
    return one;
}

static void *waits_twice(void *one) {
    waiting = gettid();
    for (; taken_count < 2; taken_count++)
        CHECK(sigwaitinfo(one, 0) == SIGSYS);
    return one;
}

/* Waits until a count is reached; it is, unless a wait was lost. */
static void until(volatile int *count, int wanted) {
    time_t begin = time(0);
    while (*count < wanted) {
        CHECK(time(0) < begin + 200);
        lets_others_run();
    }
}

static void until_it_waits(void) {
    time_t begin = time(0);
    while (!waiting || !sleeps_in(waiting, SYS_rt_sigtimedwait)) {
        CHECK(time(0) < begin + 200);
        lets_others_run();
    }
}

/* A handler begins at any point of a wait, and the signal that is waited for arrives in it. */
static void handlers_interrupt_a_wait(void) {
    pthread_t thread, other;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    CHECK(pthread_sigmask(SIG_BLOCK, &one, 0) == 0);
    CHECK(signal(SIGUSR2, interrupts) != SIG_ERR);
    CHECK(pthread_create(&thread, 0, waits_through_handlers, &one) == 0);
    for (int round = 1; round <= 600; round++) {
        CHECK(kill(getpid(), SIGSYS) == 0);
        until(&taken_count, 2 * round - 1);
        for (volatile int pause = 0; pause < round % 300 * 10; pause++)
            ;
        CHECK(pthread_kill(thread, SIGUSR2) == 0);
        until(&interruptions, round);
        CHECK(kill(getpid(), SIGSYS) == 0);
        may_go_on = round;
        until(&taken_count, 2 * round);
    }
    ends = 1;
    CHECK(kill(getpid(), SIGSYS) == 0 && pthread_join(thread, 0) == 0);
    printf("what comes in a handler ends the wait\n");
    /* The wait of another thread, which began meanwhile, continues when the interrupted one ends. */
    taken_count = 0;
    CHECK(pthread_create(&thread, 0, waits_once, &one) == 0);
    until_it_waits();
    CHECK(pthread_kill(thread, SIGUSR2) == 0);
    until(&interruptions, 601);
    CHECK(kill(getpid(), SIGSYS) == 0);
    waiting = 0;
    CHECK(pthread_create(&other, 0, waits_twice, &one) == 0);
    until(&taken_count, 1);
    until_it_waits();
    may_go_on = 601;
    CHECK(pthread_join(thread, 0) == 0);
    CHECK(kill(getpid(), SIGSYS) == 0);
    until(&taken_count, 2);
    CHECK(pthread_join(other, 0) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &one, 0) == 0);
    printf("a wait of another thread is left alone\n");
}

static struct waiter {
    int awaited;
    struct timespec *time;
    volatile pid_t thread;
    volatile int taken;
} waiters[3];

static void *waits_for_one(void *argument) {
    struct waiter *waiter = argument;
    sigset_t one;
    siginfo_t information;
    sigemptyset(&one);
    sigaddset(&one, waiter->awaited);
    waiter->thread = gettid();
    /* The kernel, too, ends the waits of others when a thread that waited ends. */
    int taken;
    do
        taken = sigtimedwait(&one, &information, waiter->time);
    while (taken < 0 && errno == EINTR);
    waiter->taken = taken;
    return 0;
}

/* Starts threads that wait for these signals, and sends them one after the other: a thread that waits for a signal takes
 * it, however many wait. */
static void threads_wait_for(const int *awaited, struct timespec *time) {
    pthread_t threads[3];
    mask_all(SIG_BLOCK);
    for (int i = 0; i < 3; i++) {
        waiters[i] = (struct waiter){awaited[i], time, 0, 0};
        CHECK(pthread_create(&threads[i], 0, waits_for_one, &waiters[i]) == 0);
        while (!waiters[i].thread || !sleeps_in(waiters[i].thread, SYS_rt_sigtimedwait))
            lets_others_run();
    }
    for (int i = 2; i >= 0; i--) {
        int taken = 0, wanted = 0;
        CHECK(kill(getpid(), awaited[i]) == 0);
        for (int j = i; j < 3; j++)
            wanted += awaited[j];
        while (taken != wanted) {
            lets_others_run();
            taken = 0;
            for (int j = 0; j < 3; j++)
                taken += waiters[j].taken;
        }
    }
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], 0) == 0 && waiters[i].taken == awaited[i] && !pending(awaited[i]));
    printf("each of three threads has taken its own\n");
    mask_all(SIG_UNBLOCK);
}

/* Waits for an ordinary signal, with an interruption by a handler, and with a timeout. */
static void waits_as_ever(void) {
    sigset_t both, one;
    int taken = 0;
    struct timespec none = {0}, short_time = {.tv_nsec = 1000000};
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    sigemptyset(&both);
    sigaddset(&both, SIGUSR2);
    sigaddset(&both, SIGSYS);
    CHECK(sigprocmask(SIG_BLOCK, &both, 0) == 0);
    CHECK(sigtimedwait(&both, 0, &none) == -1 && errno == EAGAIN);
    CHECK(sigtimedwait(&both, 0, &short_time) == -1 && errno == EAGAIN);
    none.tv_nsec = -1;
    CHECK(sigtimedwait(&both, 0, &none) == -1 && errno == EINVAL);
    CHECK(raise(SIGUSR2) == 0 && sigwait(&both, &taken) == 0 && taken == SIGUSR2);
#ifdef __GLIBC__
    /* musl's function continues to wait. */
    CHECK(signal(SIGALRM, count) == SIG_DFL);
    /* Repeatedly: on a slow machine the first signal comes before the wait. */
    struct itimerval soon = {{.tv_usec = 20000}, {.tv_usec = 20000}}, none_at_all = {{0}, {0}};
    handled = 0;
    CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0);
    CHECK(sigwaitinfo(&both, 0) == -1 && errno == EINTR && handled > 0);
    CHECK(setitimer(ITIMER_REAL, &none_at_all, 0) == 0);
#endif
    sigset_t now;
    CHECK(sigprocmask(SIG_SETMASK, 0, &now) == 0);
    printf("waited: %d %d %d %d, a NOP %d\n", sigismember(&now, SIGUSR2), sigismember(&now, SIGSYS),
           sigismember(&now, SIGALRM), sigismember(&now, SIGSEGV), ring_nop(&ring, 7));
    CHECK(sigprocmask(SIG_UNBLOCK, &both, 0) == 0);
}

/* A thread that never changed its mask gets the signal while it sleeps in a ring. */
static void *sleeps_in_a_ring(void *unused) {
    (void)unused;
    struct ring own;
    CHECK(ring_open(&own, 4, 0) == 0);
    struct __kernel_timespec short_time = {.tv_nsec = 20000000};
    struct io_uring_sqe timeout = {
        .opcode = IORING_OP_TIMEOUT, .fd = -1, .addr = (unsigned long)&short_time, .len = 1};
    for (int i = 0; i < 500 && !handled; i++)
        ring_do(&own, timeout);
    printf("while a thread slept in a ring: handled %d\n", handled);
    return 0;
}

static void sleeps(void) {
    pthread_t thread;
    struct timespec pause = {.tv_nsec = 5000000};
    CHECK(signal(SIGSYS, count) == SIG_DFL);
    handled = 0;
    CHECK(pthread_create(&thread, 0, sleeps_in_a_ring, 0) == 0);
    CHECK(nanosleep(&pause, 0) == 0);
    CHECK(pthread_kill(thread, SIGSYS) == 0);
    CHECK(pthread_join(thread, 0) == 0);
    CHECK(signal(SIGSYS, SIG_DFL) == count);
}

/* Raises a signal in a handler that blocks all, in a thread that never changed its mask: it arrives after the handler. */
static void raises(int signal) {
    (void)signal;
    CHECK(raise(SIGSYS) == 0);
    printf("in a handler with all blocked: handled %d\n", handled);
}

static void *has_a_handler(void *unused) {
    (void)unused;
    CHECK(raise(SIGUSR1) == 0);
    printf("behind the handler: handled %d\n", handled);
    return 0;
}

static void in_a_handler(void) {
    pthread_t thread;
    struct sigaction action = {.sa_handler = raises};
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    CHECK(signal(SIGSYS, count) == SIG_DFL);
    handled = 0;
    CHECK(pthread_create(&thread, 0, has_a_handler, 0) == 0);
    CHECK(pthread_join(thread, 0) == 0);
    CHECK(signal(SIGSYS, SIG_DFL) == count);
}

/* A child does not inherit pending signals, and keeps the mask. */
static void forks(void) {
    mask_all(SIG_BLOCK);
    CHECK(raise(SIGSYS) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(10 + blocked() + 2 * pending(SIGSYS));
    int status, taken;
    CHECK(waitpid(child, &status, 0) == child);
    printf("in a child: %d, here: %d\n", WEXITSTATUS(status), pending(SIGSYS));
    /* A child that shares this memory blocks the signal, too. */
    child = vfork();
    if (child == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("blocked behind a vfork: %d\n", blocked());
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    CHECK(sigwait(&one, &taken) == 0);
    mask_all(SIG_UNBLOCK);
    CHECK(signal(SIGSYS, SIG_DFL) != SIG_ERR && !blocked());
}

#ifdef __GLIBC__
static ucontext_t here, there;

static void other(void) {
    printf("in a context with all blocked: %d, a NOP %d\n", blocked(), ring_nop(&ring, 3));
    CHECK(swapcontext(&there, &here) == 0);
    printf("there again: %d, a NOP %d\n", blocked(), ring_nop(&ring, 4));
    CHECK(setcontext(&here) == 0);
}

static void contexts(void) {
    static char stack[256 << 10];
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    sigfillset(&there.uc_sigmask);
    makecontext(&there, other, 0);
    for (int i = 0; i < 2; i++) {
        CHECK(swapcontext(&here, &there) == 0);
        printf("back: %d, a NOP %d\n", blocked(), ring_nop(&ring, 5));
    }
}
#endif

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    raised(SIGSYS);
    raised(SIGSEGV);
    raised(SIGBUS);
    points_nowhere();
    waited_for(SIGSYS);
    waited_for(SIGSEGV);
    sleeps();
    in_a_handler();
    a_thread_waits();
    a_thread_waits_and_calls();
    threads_inherit();
    handlers_interrupt_a_wait();
    struct timespec long_time = {.tv_sec = 1000};
    threads_wait_for((int[]){SIGSYS, SIGSYS, SIGSYS}, 0);
    threads_wait_for((int[]){SIGSYS, SIGSYS, SIGSYS}, &long_time);
    threads_wait_for((int[]){SIGSYS, SIGSEGV, SIGBUS}, 0);
    waits_as_ever();
    forks();
#ifdef __GLIBC__
    contexts();
#endif
    fflush(stdout);
    mask_all(SIG_BLOCK);
    raise(SIGSYS);
    mask_all(SIG_UNBLOCK);
    return 0;
}
