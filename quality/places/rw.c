/* Writes through a ring, reads it back and compares: `rw FILE`. Then a message between two sockets. */
#include "../../tools/cli/tests/programs/ring.h"
#include <fcntl.h>
#include <sys/socket.h>

enum { BLOCK = 4096, BLOCKS = 64 };

static unsigned char written[BLOCKS][BLOCK], found[BLOCKS][BLOCK];

static void each(struct ring *ring, uint8_t opcode, int fd, unsigned char (*memory)[BLOCK]) {
    for (unsigned done = 0; done < BLOCKS; done += 8) {
        for (unsigned i = done; i < done + 8; i++) {
            struct io_uring_sqe *entry = ring_entry(ring, opcode, i);
            entry->fd = fd;
            entry->addr = (uintptr_t)memory[i];
            entry->len = BLOCK;
            entry->off = (uint64_t)i * BLOCK;
        }
        CHECK(ring_enter(ring->fd, 8, 8, IORING_ENTER_GETEVENTS) == 8);
        for (unsigned i = 0; i < 8; i++) {
            struct io_uring_cqe *completion = ring_peek(ring);
            CHECK(completion && completion->res == BLOCK);
            ring_seen(ring);
        }
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    for (unsigned i = 0; i < BLOCKS; i++)
        for (unsigned j = 0; j < BLOCK; j++)
            written[i][j] = i * 7 + j * 13;
    struct ring ring;
    int opened = ring_open(&ring, 8, 0);
    if (opened < 0) {
        printf("no ring: %s\n", strerror(-opened));
        return 1;
    }
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    each(&ring, IORING_OP_WRITE, fd, written);
    each(&ring, IORING_OP_READ, fd, found);
    CHECK(memcmp(written, found, sizeof written) == 0);

    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    memset(found, 0, sizeof found);
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_RECV, 1);
    entry->fd = ends[0], entry->addr = (uintptr_t)found, entry->len = BLOCK;
    entry = ring_entry(&ring, IORING_OP_SEND, 2);
    entry->fd = ends[1], entry->addr = (uintptr_t)written, entry->len = BLOCK;
    CHECK(ring_enter(ring.fd, 2, 2, IORING_ENTER_GETEVENTS) == 2);
    for (unsigned i = 0; i < 2; i++) {
        CHECK(ring_peek(&ring) && ring_peek(&ring)->res == BLOCK);
        ring_seen(&ring);
    }
    CHECK(memcmp(written, found, BLOCK) == 0);
    printf("%d blocks hold\n", BLOCKS + 1);
    return 0;
}
