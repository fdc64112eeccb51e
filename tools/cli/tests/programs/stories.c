/* The three programs of docs/trace.md, by the first argument: slow, lost, chain. */
#include "ring.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <time.h>

static struct ring ring;

static struct io_uring_sqe *on(uint8_t opcode, uint64_t user_data, int fd, const void *memory, unsigned length) {
    struct io_uring_sqe *entry = ring_entry(&ring, opcode, user_data);
    entry->fd = fd;
    entry->addr = (uint64_t)memory;
    entry->len = length;
    return entry;
}

static int take(void) {
    while (!ring_peek(&ring))
        CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    int result = ring_peek(&ring)->res;
    ring_seen(&ring);
    return result;
}

/* Creates a file and removes its name. The name is set by a rename, as another run of the program may use it now. */
static int file_of(const char *path, unsigned length) {
    char own[64];
    CHECK(snprintf(own, sizeof own, "%s-%d", path, getpid()) < (int)sizeof own);
    int fd = open(own, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && ftruncate(fd, length) == 0 && rename(own, path) == 0);
    CHECK(unlink(path) == 0 || errno == ENOENT);
    return fd;
}

/* Copies blocks to a log, one at a time, and syncs each to the disk before the next. */
static void slow(void) {
    static char block[4096];
    int from = file_of("/tmp/blocks", 16 * sizeof block), to = file_of("/var/tmp/log", 0);
    for (int number = 0; number < 16; number++) {
        on(IORING_OP_READ, 1, from, block, sizeof block)->off = number * sizeof block;
        CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1 && take() == sizeof block);
        on(IORING_OP_WRITE, 2, to, block, sizeof block)->off = number * sizeof block;
        CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1 && take() == sizeof block);
        on(IORING_OP_FSYNC, 3, to, 0, 0);
        CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1 && take() == 0);
    }
}

/* Runs a server that answers each message, and receives none after the second: it has two buffers. */
static void lost(void) {
    static char buffers[2][64];
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    struct io_uring_sqe *provide = on(IORING_OP_PROVIDE_BUFFERS, 1, 2, buffers, 64);
    provide->buf_group = 7;
    struct io_uring_sqe *receive = on(IORING_OP_RECV, 2, ends[0], 0, 0);
    receive->flags = IOSQE_BUFFER_SELECT;
    receive->ioprio = IORING_RECV_MULTISHOT;
    receive->buf_group = 7;
    CHECK(ring_enter(ring.fd, 2, 1, IORING_ENTER_GETEVENTS) == 2 && take() == 0);
    for (int message = 0; message < 4; message++) {
        CHECK(write(ends[1], "hello", 5) == 5);
        struct timespec while_ = {.tv_nsec = 2000000};
        nanosleep(&while_, 0);
        CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
        while (ring_peek(&ring)) {
            int is_message = ring_peek(&ring)->user_data == 2;
            if (take() > 0 && is_message) {
                on(IORING_OP_SEND, 3, ends[0], "welcome", 7);
                CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
            }
        }
    }
}

/* Appends a file to another: read, write, sync, close, in a chain. The file is shorter than the chain expects. */
static void chain(void) {
    static char block[4096];
    int from = file_of("/tmp/short", 1000), to = file_of("/tmp/whole", 0);
    on(IORING_OP_READ, 1, from, block, sizeof block)->flags = IOSQE_IO_LINK;
    on(IORING_OP_WRITE, 2, to, block, sizeof block)->flags = IOSQE_IO_LINK;
    on(IORING_OP_FSYNC, 3, to, 0, 0)->flags = IOSQE_IO_LINK;
    on(IORING_OP_CLOSE, 4, to, 0, 0);
    CHECK(ring_enter(ring.fd, 4, 4, IORING_ENTER_GETEVENTS) == 4);
    for (int left = 4; left > 0; left--)
        take();
}

int main(int count, char **words) {
    CHECK(ring_open(&ring, 16, 0) == 0);
    const char *name = count > 1 ? words[1] : "";
    if (!strcmp(name, "slow"))
        slow();
    else if (!strcmp(name, "lost"))
        lost();
    else
        chain();
    return 0;
}
