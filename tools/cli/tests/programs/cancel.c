/* Threads are cancelled in calls that enter a ring, wherever they are; others go on with the ring. */
#include "ring.h"
#include <pthread.h>
#include <time.h>

static struct ring ring;
static pthread_barrier_t begun;

static void *waits(void *argument) {
    int before;
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) == 0 && before == PTHREAD_CANCEL_DEFERRED);
    pthread_barrier_wait(&begun);
    ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
    return argument;
}

/* Never sleeps. */
static void *enters(void *argument) {
    int before;
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) == 0);
    pthread_barrier_wait(&begun);
    for (;;)
        ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS);
    return argument;
}

static void pause_for(long nanoseconds) {
    struct timespec time = {.tv_nsec = nanoseconds};
    nanosleep(&time, 0);
}

static void end(pthread_t thread) {
    void *result;
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

static void goes_on(const char *when) {
    struct timespec soon = {.tv_nsec = 1000000};
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_TIMEOUT, 7);
    entry->addr = (uintptr_t)&soon;
    entry->len = 1;
    CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    struct io_uring_cqe *completion = ring_peek(&ring);
    CHECK(completion && completion->user_data == 7 && completion->res == -ETIME);
    ring_seen(&ring);
    if (when)
        printf("%s: the ring goes on\n", when);
}

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0 && pthread_barrier_init(&begun, 0, 3) == 0);
    pthread_t first, second;
    CHECK(pthread_create(&first, 0, waits, 0) == 0 && pthread_create(&second, 0, waits, 0) == 0);
    pthread_barrier_wait(&begun);
    /* One of them drives the ring, the other sleeps beside it, most likely; where not, the rest is the same. */
    pause_for(20000000);
    end(first);
    goes_on("one is cancelled");
    /* It may have seen that completion, or not. */
    pthread_cancel(second);
    CHECK(pthread_join(second, 0) == 0);
    CHECK(pthread_create(&first, 0, waits, 0) == 0 && pthread_create(&second, 0, waits, 0) == 0);
    pthread_barrier_wait(&begun);
    pause_for(20000000);
    end(first);
    end(second);
    goes_on("both are cancelled");
    CHECK(pthread_barrier_destroy(&begun) == 0 && pthread_barrier_init(&begun, 0, 2) == 0);
    for (int time = 0; time < 50; time++) {
        CHECK(pthread_create(&first, 0, enters, 0) == 0);
        pthread_barrier_wait(&begun);
        pause_for(time * 10000);
        end(first);
        goes_on(0);
    }
    goes_on("fifty that never sleep are cancelled");
    return 0;
}
