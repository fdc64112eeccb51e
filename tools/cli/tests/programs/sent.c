/* Signals that instructions raise (SIGSEGV, ...) are sent to the process while the engine has threads.
 * sent dies SIGNAL: the default action ends the process.
 * sent late: a signal that arrives at any point of a call is handled soon, though no other call follows. */
#include "ring.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static struct ring ring;
static int number;
static volatile int handled;

static void count(int signal) {
    (void)signal;
    handled++;
}

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

static int is_handled_soon(int count) {
    for (long end = now_ns() + 200000000000; handled < count && now_ns() < end;)
        ;
    if (handled != count) printf("handled %d of %d\n", handled, count);
    return handled == count;
}

/* Reads, each of which a thread waits for. */
static void begin_work(void) {
    static char bytes[8];
    for (int i = 0; i < 3; i++) {
        int ends[2];
        CHECK(pipe(ends) == 0);
        struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, 1);
        entry->fd = ends[0];
        entry->addr = (unsigned long)bytes;
        entry->len = sizeof bytes;
        entry->off = -1;
        entry->flags = IOSQE_ASYNC;
        CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    }
}

static void *goes_on(void *none) {
    (void)none;
    begin_work();
    usleep(50000);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) {
            kill(getppid(), number);
            _exit(0);
        }
        CHECK(waitpid(child, 0, 0) == child);
    }
    printf("survived\n");
    exit(0);
}

static void late(void) {
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number};
    timer_t timer;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    for (int i = 1; i <= 400; i++) {
        struct itimerspec soon = {.it_value.tv_nsec = 1000 + i % 100 * 500};
        CHECK(timer_settime(timer, 0, &soon, 0) == 0);
        struct sigaction action;
        for (long end = now_ns() + 50000; now_ns() < end && handled < i;)
            if (i % 2)
                ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS);
            else
                CHECK(sigaction(number, 0, &action) == 0);
        CHECK(is_handled_soon(i));
    }
    printf("in time: %d\n", handled);
}

int main(int count_arguments, char **arguments) {
    CHECK(count_arguments > 2);
    number = atoi(arguments[2]);
    CHECK(ring_open(&ring, 8, 0) == 0);
    if (!strcmp(arguments[1], "late")) {
        CHECK(signal(number, count) != SIG_ERR);
        late();
        return 0;
    }
    begin_work();
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, goes_on, 0) == 0);
    /* Then the kernel may give the signal to any other thread. */
    pthread_exit(0);
}
