/* SIGSYS blocked in ways that do not go by sigprocmask, sent while it is blocked, and waited for
 * (but for -DNO_WAITS: in static programs nobody sees who waits). */
#include "ring.h"
#include <pthread.h>
#include <sys/wait.h>
#include <ucontext.h>

static struct ring ring;
static volatile int handled;

static void count(int signal) {
    (void)signal;
    handled++;
}

static int blocked(void) {
    sigset_t now;
    CHECK(sigprocmask(SIG_SETMASK, 0, &now) == 0);
    return sigismember(&now, SIGSYS);
}

static int pending(void) {
    sigset_t now;
    CHECK(sigpending(&now) == 0);
    return sigismember(&now, SIGSYS);
}

static void mask_all(int how) {
    sigset_t all;
    sigfillset(&all);
    CHECK(sigprocmask(how, &all, 0) == 0);
}

/* Raised with all blocked: it comes when it is unblocked, once. */
static void raised(void) {
    CHECK(signal(SIGSYS, count) == SIG_DFL);
    mask_all(SIG_BLOCK);
    CHECK(!pending() && raise(SIGSYS) == 0 && raise(SIGSYS) == 0);
    printf("raised twice with all blocked: handled %d, pending %d\n", handled, pending());
    mask_all(SIG_UNBLOCK);
    printf("unblocked: handled %d, pending %d\n", handled, pending());
    CHECK(signal(SIGSYS, SIG_DFL) == count);
}

/* Raised and waited for; with a NOP in between. */
static void waited_for(void) {
    sigset_t one, none;
    int taken = 0;
    siginfo_t information = {0};
    struct timespec now = {0};
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    mask_all(SIG_BLOCK);
    CHECK(raise(SIGSYS) == 0);
    printf("a NOP while it is pending: %d\n", ring_nop(&ring, 1));
#ifndef NO_WAITS
    CHECK(sigtimedwait(&none, 0, &now) == -1 && errno == EAGAIN);
    CHECK(sigwait(&one, &taken) == 0 && !pending());
    printf("taken by sigwait: %d\n", taken == SIGSYS);
    union sigval five = {.sival_int = 5};
    CHECK(sigqueue(getpid(), SIGSYS, five) == 0);
    CHECK(sigwaitinfo(&one, &information) == SIGSYS);
    printf("taken by sigwaitinfo: %d, %d\n", information.si_value.sival_int, information.si_code == SI_QUEUE);
    CHECK(sigtimedwait(&one, &information, &now) == -1 && errno == EAGAIN);
#else
    (void)taken, (void)information, (void)now;
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    CHECK(sigaction(SIGSYS, &ignore, 0) == 0);
#endif
    mask_all(SIG_UNBLOCK);
    CHECK(signal(SIGSYS, SIG_DFL) != SIG_ERR);
}

#ifndef NO_WAITS
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

/* A thread takes the process's signals, as in many a server. */
static void a_thread_waits(void) {
    pthread_t thread;
    void *result = (void *)1;
    mask_all(SIG_BLOCK);
    for (int i = 0; i < 200; i++) {
        CHECK(pthread_create(&thread, 0, waits, 0) == 0);
        CHECK(kill(getpid(), SIGSYS) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == 0 && !pending());
    }
    printf("two hundred threads have waited for it\n");
    mask_all(SIG_UNBLOCK);
}
#endif

/* A child that neither inherits what is pending nor loses what is blocked. */
static void forks(void) {
    mask_all(SIG_BLOCK);
    CHECK(raise(SIGSYS) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(10 + blocked() + 2 * pending());
    int status, taken;
    CHECK(waitpid(child, &status, 0) == child);
    printf("in a child: %d, here: %d\n", WEXITSTATUS(status), pending());
    /* A child in this memory blocks it, too. */
    child = vfork();
    if (child == 0) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("blocked behind a vfork: %d\n", blocked());
#ifndef NO_WAITS
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGSYS);
    CHECK(sigwait(&one, &taken) == 0);
#else
    (void)taken;
    CHECK(signal(SIGSYS, SIG_IGN) != SIG_ERR);
#endif
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
    raised();
    waited_for();
#ifndef NO_WAITS
    a_thread_waits();
#endif
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
