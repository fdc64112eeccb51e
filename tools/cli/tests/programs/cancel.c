/* Threads are cancelled in calls that enter a ring, at any point; other threads keep using the ring. */
#include "ring.h"
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

static struct ring ring;
static pthread_barrier_t begun;

/* Makes the thread cancellable anywhere from now on. Not before the barrier: a thread that is cancelled there would keep the others in it. */
static void begin(void) {
    int before;
    pthread_barrier_wait(&begun);
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) == 0 && before == PTHREAD_CANCEL_DEFERRED);
}

static void *waits(void *argument) {
    begin();
    ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
    return argument;
}

/* Enters the ring without sleeping. */
static void *enters(void *argument) {
    begin();
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

static void goes_on_in_handler(void *unused) {
    (void)unused;
    goes_on("a handler waits");
}

static sem_t other_is_back;

static void awaits_other(void *unused) {
    (void)unused;
    CHECK(sem_wait(&other_is_back) == 0);
}

/* Waits with a cleanup handler. */
static void *waits_with(void *handler) {
    pthread_cleanup_push((void (*)(void *))handler, 0);
    begin();
    ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
    pthread_cleanup_pop(0);
    return 0;
}

static void *comes_back(void *argument) {
    pthread_barrier_wait(&begun);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    CHECK(sem_post(&other_is_back) == 0);
    return argument;
}

/* The thread that waits for events of a file is cancelled while the file becomes ready: another thread must get the event. */
static void hears_of_file(long nanoseconds) {
    int ends[2];
    char byte;
    pthread_t thread;
    CHECK(pipe(ends) == 0);
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, 8);
    entry->fd = ends[0];
    entry->addr = (uintptr_t)&byte;
    entry->len = 1;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    CHECK(pthread_create(&thread, 0, waits, 0) == 0);
    pthread_barrier_wait(&begun);
    pause_for(1000000);
    CHECK(write(ends[1], "x", 1) == 1);
    pause_for(nanoseconds);
    /* The thread may have returned already. */
    pthread_cancel(thread);
    CHECK(pthread_join(thread, 0) == 0);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    struct io_uring_cqe *completion = ring_peek(&ring);
    CHECK(completion && completion->user_data == 8 && completion->res == 1);
    ring_seen(&ring);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0 && pthread_barrier_init(&begun, 0, 3) == 0);
    pthread_t first, second;
    CHECK(pthread_create(&first, 0, waits, 0) == 0 && pthread_create(&second, 0, waits, 0) == 0);
    pthread_barrier_wait(&begun);
    /* Probably one thread drives the ring, and the other sleeps beside it; otherwise the results are the same. */
    pause_for(20000000);
    end(first);
    goes_on("one is cancelled");
    /* The second thread may have seen that completion, or not. */
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
    for (int time = 0; time < 200; time++)
        hears_of_file(time % 50 * 1000);
    goes_on("events are not lost");
    CHECK(pthread_create(&first, 0, waits_with, goes_on_in_handler) == 0);
    pthread_barrier_wait(&begun);
    pause_for(20000000);
    end(first);
    CHECK(sem_init(&other_is_back, 0, 0) == 0);
    CHECK(pthread_create(&first, 0, waits_with, awaits_other) == 0);
    pthread_barrier_wait(&begun);
    pause_for(20000000);
    CHECK(pthread_create(&second, 0, comes_back, 0) == 0);
    pthread_barrier_wait(&begun);
    pause_for(20000000);
    CHECK(pthread_cancel(first) == 0);
    pause_for(20000000);
    struct timespec soon = {.tv_nsec = 1000000};
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_TIMEOUT, 9);
    entry->addr = (uintptr_t)&soon;
    entry->len = 1;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    CHECK(pthread_join(first, 0) == 0 && pthread_join(second, 0) == 0);
    ring_seen(&ring);
    goes_on("a handler waits for another thread");
    return 0;
}
