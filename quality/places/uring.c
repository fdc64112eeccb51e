/* What rw.c does, through liburing: `uring FILE`. */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            printf("line %d: not so: %s\n", __LINE__, #condition);                                     \
            exit(99);                                                                                  \
        }                                                                                              \
    } while (0)

enum { BLOCK = 4096, BLOCKS = 64 };

static unsigned char written[BLOCKS][BLOCK], found[BLOCKS][BLOCK];

static void collect(struct io_uring *ring, unsigned count) {
    CHECK(io_uring_submit_and_wait(ring, count) == (int)count);
    for (unsigned i = 0; i < count; i++) {
        struct io_uring_cqe *completion;
        CHECK(io_uring_wait_cqe(ring, &completion) == 0);
        CHECK(completion->res == BLOCK);
        io_uring_cqe_seen(ring, completion);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    for (unsigned i = 0; i < BLOCKS; i++)
        for (unsigned j = 0; j < BLOCK; j++)
            written[i][j] = i * 7 + j * 13;
    struct io_uring ring;
    int made = io_uring_queue_init(BLOCKS, &ring, 0);
    if (made < 0) {
        printf("no ring: %s\n", strerror(-made));
        return 1;
    }
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    for (unsigned i = 0; i < BLOCKS; i++)
        io_uring_prep_write(io_uring_get_sqe(&ring), fd, written[i], BLOCK, (uint64_t)i * BLOCK);
    collect(&ring, BLOCKS);
    for (unsigned i = 0; i < BLOCKS; i++)
        io_uring_prep_read(io_uring_get_sqe(&ring), fd, found[i], BLOCK, (uint64_t)i * BLOCK);
    collect(&ring, BLOCKS);
    CHECK(memcmp(written, found, sizeof written) == 0);

    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    memset(found, 0, sizeof found);
    io_uring_prep_recv(io_uring_get_sqe(&ring), ends[0], found, BLOCK, 0);
    io_uring_prep_send(io_uring_get_sqe(&ring), ends[1], written, BLOCK, 0);
    collect(&ring, 2);
    CHECK(memcmp(written, found, BLOCK) == 0);
    io_uring_queue_exit(&ring);
    printf("%d blocks hold\n", BLOCKS + 1);
    return 0;
}
