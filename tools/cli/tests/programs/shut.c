/* Requests wait for files whose descriptors the program closes or replaces: the requests continue, and the numbers are free. Then threads are cancelled
 * while they wait: a C library that cancels threads may have only one instruction for its closes and waits. */
#include "ring.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

static struct ring ring;
static int ends[2];
static char buffer[16];

/* Submits a read of a new, empty pipe. */
static void read_waits(void) {
    CHECK(pipe(ends) == 0);
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, 7);
    entry->fd = ends[0];
    entry->addr = (uintptr_t)buffer;
    entry->len = sizeof buffer;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    CHECK(!ring_peek(&ring));
}

/* Gives the number to another pipe with data, writes to the first pipe, and prints what the read has got. */
static void read_ends(const char *how) {
    int others[2];
    CHECK(pipe(others) == 0 && dup2(others[0], ends[0]) == ends[0]);
    CHECK(write(others[1], "wrong", 5) == 5);
    CHECK(write(ends[1], "right", 5) == 5);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    struct io_uring_cqe *completion = ring_peek(&ring);
    CHECK(completion && completion->user_data == 7);
    printf("%s: %d %.5s\n", how, completion->res, buffer);
    ring_seen(&ring);
    close(others[0]), close(others[1]), close(ends[0]), close(ends[1]);
}

static void *close_it(void *unused) {
    close(ends[0]);
    return unused;
}

static int waits;

static void *wait_for(void *argument) {
    struct pollfd entry = {.fd = *(int *)argument, .events = POLLIN};
    __atomic_store_n(&waits, 1, __ATOMIC_SEQ_CST);
    poll(&entry, 1, -1);
    return argument;
}

/* Cancels a thread that waits for a descriptor, or, without patience, is about to; returns true if the thread was cancelled. */
static int is_cancelled(int fd, int patience_us) {
    pthread_t thread;
    void *result;
    waits = 0;
    CHECK(pthread_create(&thread, 0, wait_for, &fd) == 0);
    while (patience_us && !__atomic_load_n(&waits, __ATOMIC_SEQ_CST))
        ;
    usleep(patience_us);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    return result == PTHREAD_CANCELED;
}

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    read_waits();
    CHECK(close(ends[0]) == 0);
    read_ends("close");

    read_waits();
    read_ends("dup2");

    read_waits();
    CHECK(syscall(SYS_close_range, ends[0], ends[0], 0) == 0);
    read_ends("close_range, by number");

    read_waits();
    FILE *file = fdopen(ends[0], "r");
    CHECK(file && fclose(file) == 0);
    read_ends("fclose");

    pthread_t thread;
    read_waits();
    CHECK(pthread_create(&thread, 0, close_it, 0) == 0 && pthread_join(thread, 0) == 0);
    read_ends("close by another thread");

    CHECK(pipe(ends) == 0);
    int cancelled[2] = {0};
    for (int i = 0; i < 200; i++) {
        cancelled[0] += is_cancelled(ring.fd, i % 20 * 50);
        cancelled[1] += is_cancelled(ends[0], i % 20 * 50);
    }
    printf("cancelled: %d, %d\n", cancelled[0], cancelled[1]);
    return 0;
}
