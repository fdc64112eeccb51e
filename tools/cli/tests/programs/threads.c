/* Threads that end, in both ways, with requests in flight. */
#include "ring.h"
#include <pthread.h>

static struct ring ring;
static int ends[2];
static char bytes[2];
static const struct __kernel_timespec soon = {.tv_nsec = 20000000};

static void *submit(void *exits) {
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, 0);
    entry->fd = ends[0];
    entry->addr = (uint64_t)&bytes[0];
    entry->len = 1;
    entry = ring_entry(&ring, IORING_OP_TIMEOUT, 1);
    entry->addr = (uint64_t)&soon;
    entry->len = 1;
    CHECK(ring_enter(ring.fd, 2, 0, 0) == 2);
    if (exits)
        pthread_exit(0);
    return 0;
}

static void print_next(void) {
    struct io_uring_cqe *completion;
    while (!(completion = ring_peek(&ring)))
        CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) >= 0);
    printf("%d: %d\n", (int)completion->user_data, completion->res);
    ring_seen(&ring);
}

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0 && pipe(ends) == 0);
    for (int round = 0; round < 4; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, submit, round & 1 ? &ring : 0) == 0 && pthread_join(thread, 0) == 0);
        print_next();
        CHECK(write(ends[1], "x", 1) == 1);
        print_next();
        CHECK(read(ends[0], &bytes[1], 1) == 1);
    }
    return 0;
}
