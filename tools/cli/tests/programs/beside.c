/* Rings of two kinds in one process: a plain one, and one with IORING_SETUP_SQE_MIXED, for which the kernel may be too old. The
 * results of both are printed. */
#define SQE_MIXED (1u << 19)
#define NOP128 63
#include "ring.h"
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

/* Submits a NOP of 128 bytes between two of 64; prints the three results. */
static void both_sizes(struct ring *ring) {
    unsigned tail = *SQ(ring, tail);
    unsigned mask = *SQ(ring, ring_mask);
    CHECK((tail & mask) + 4 <= mask + 1);
    ring_entry(ring, IORING_OP_NOP, 1);
    ring_entry(ring, NOP128, 2);
    ring_entry(ring, IORING_OP_NOP, 99);
    memset(&ring->entries[(tail + 2) & mask], 0, 64);
    ring_entry(ring, IORING_OP_NOP, 3);
    long entered = ring_enter(ring->fd, 4, 3, IORING_ENTER_GETEVENTS);
    printf("taken: %ld\n", entered);
    for (struct io_uring_cqe *cqe; (cqe = ring_peek(ring)); ring_seen(ring))
        printf("%d: %d\n", (int)cqe->user_data, cqe->res);
}

static void *in_a_thread(void *ring) {
    printf("in a thread: %d\n", ring_nop(ring, 5));
    return 0;
}

static int is_readable(struct ring *ring) {
    struct pollfd entry = {.fd = ring->fd, .events = POLLIN};
    CHECK(poll(&entry, 1, 0) >= 0);
    return entry.revents & POLLIN;
}

int main(void) {
    struct ring plain, mixed;
    CHECK(ring_open(&plain, 8, 0) == 0);
    printf("plain: %d\n", ring_nop(&plain, 1));
    int error = ring_open_with(&mixed, 8, 0, SQE_MIXED);
    printf("mixed: %d\n", error);
    if (error)
        return 1;
    both_sizes(&mixed);
    printf("plain: %d\n", ring_nop(&plain, 2));
    ring_entry(&mixed, IORING_OP_NOP, 4);
    CHECK(!is_readable(&mixed));
    CHECK(ring_enter(mixed.fd, 1, 0, 0) == 1);
    printf("readable: %d, %d\n", !!is_readable(&mixed), !!is_readable(&plain));
    ring_seen(&mixed);
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, in_a_thread, &mixed) && !pthread_join(thread, 0));
    fflush(stdout);
    if (!fork()) {
        struct ring own;
        CHECK(ring_open_with(&own, 8, 0, SQE_MIXED) == 0 && ring_open(&plain, 8, 0) == 0);
        _exit(ring_nop(&own, 6) + ring_nop(&plain, 7));
    }
    int status = -1;
    wait(&status);
    printf("child: %d\n", status);
    /* The numbers are reused by rings of the other kind. */
    int first = mixed.fd, second = plain.fd;
    close(first), close(second);
    CHECK(ring_open(&plain, 8, 0) == 0 && ring_open_with(&mixed, 8, 0, SQE_MIXED) == 0);
    printf("again: %d, %d\n", ring_nop(&plain, 8), ring_nop(&mixed, 9));
    struct io_uring_params wrong = {.flags = 1u << 31};
    printf("unknown: %ld\n", ring_setup(8, &wrong));
    return 0;
}
