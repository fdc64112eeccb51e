/* Rings that ask for IORING_SETUP_SQE_MIXED (Linux 6.19) among plain ones. */
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SQE_MIXED (1u << 19)
#define CHECK(condition)                                                                                                 \
    do {                                                                                                                 \
        if (!(condition)) {                                                                                              \
            printf("line %d: not so: %s\n", __LINE__, #condition);                                                       \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

static int nop(struct io_uring *ring, int data) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    CHECK(sqe);
    io_uring_prep_nop(sqe);
    io_uring_sqe_set_data64(sqe, data);
    CHECK(io_uring_submit_and_wait(ring, 1) == 1);
    struct io_uring_cqe *cqe;
    CHECK(io_uring_wait_cqe(ring, &cqe) == 0 && (int)cqe->user_data == data);
    int result = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return result;
}

static int is_readable(struct io_uring *ring) {
    struct pollfd entry = {.fd = ring->ring_fd, .events = POLLIN};
    CHECK(poll(&entry, 1, 0) >= 0);
    return entry.revents & POLLIN;
}

int main(void) {
    struct io_uring plain, mixed, other;
    CHECK(io_uring_queue_init(8, &plain, 0) == 0);
    /* The ring's descriptor is registered before there is a ring of the other engine. */
    CHECK(io_uring_register_ring_fd(&plain) == 1);
    CHECK(nop(&plain, 1) == 0);
    if (io_uring_queue_init(8, &mixed, SQE_MIXED)) {
        printf("refused\n");
        return 0;
    }
    CHECK(io_uring_queue_init(8, &other, SQE_MIXED | IORING_SETUP_SINGLE_ISSUER) == 0);
    for (int data = 2; data < 12; data += 3)
        CHECK(nop(&mixed, data) == 0 && nop(&plain, data + 1) == 0 && nop(&other, data + 2) == 0);
    struct io_uring_cqe *cqe;
    /* A ring may be readable until the program has found its CQ empty. */
    CHECK(io_uring_peek_cqe(&mixed, &cqe) < 0 && !is_readable(&mixed));
    CHECK(io_uring_peek_cqe(&plain, &cqe) < 0 && !is_readable(&plain));
    io_uring_prep_nop(io_uring_get_sqe(&mixed));
    CHECK(io_uring_submit(&mixed) == 1 && is_readable(&mixed));
    CHECK(io_uring_wait_cqe(&mixed, &cqe) == 0);
    io_uring_cqe_seen(&mixed, cqe);

    /* Registrations go to the ring's own engine. */
    int files[2];
    CHECK(pipe(files) == 0);
    CHECK(io_uring_register_files(&mixed, files, 2) == 0 && io_uring_register_files(&plain, files, 1) == 0);
    CHECK(io_uring_unregister_files(&mixed) == 0 && io_uring_unregister_files(&mixed) < 0);
    CHECK(io_uring_unregister_files(&plain) == 0);

    /* A ring with the descriptor number of an earlier ring. */
    int fd = mixed.ring_fd;
    io_uring_queue_exit(&mixed);
    CHECK(io_uring_queue_init(8, &mixed, 0) == 0 && mixed.ring_fd == fd && nop(&mixed, 20) == 0);
    close(mixed.ring_fd);
    CHECK(io_uring_queue_init(8, &mixed, SQE_MIXED) == 0 && nop(&mixed, 21) == 0);
    CHECK(nop(&plain, 22) == 0);
    io_uring_queue_exit(&mixed);
    io_uring_queue_exit(&plain);
    io_uring_queue_exit(&other);
    printf("done\n");
    return 0;
}
