/* Memory of requests in flight, for an observer outside the process:
 *   harm    the program changes and unmaps it too early
 *   care    the program changes it, but not too early
 *   filled  requests fill it, by vectors, messages and provided buffers */
#include "ring.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define REGISTER_PBUF_RING 22
#define DEFERS (1u << 12 | 1u << 13)
#define PAGE page_bytes

static struct ring ring;
static int page_bytes;

static struct io_uring_sqe *on(uint8_t opcode, uint64_t user_data, int fd, const void *memory, unsigned length) {
    struct io_uring_sqe *entry = ring_entry(&ring, opcode, user_data);
    entry->fd = fd;
    entry->addr = (uint64_t)memory;
    entry->len = length;
    return entry;
}

static void submit(unsigned count) { CHECK(ring_enter(ring.fd, count, 0, 0) == count); }

/* Returns the next completion's result. */
static int next(void) {
    while (!ring_peek(&ring)) CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    int result = ring_peek(&ring)->res;
    ring_seen(&ring);
    return result;
}

static void drain(int fd) {
    static char rest[1 << 20];
    while (read(fd, rest, sizeof rest) > 0) continue;
}

/* Returns a pipe that is full: a write to it waits. */
static void full_pipe(int ends[2]) {
    static char rest[1 << 20];
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
    CHECK(write(ends[1], rest, sizeof rest) > 0);
    int flags = fcntl(ends[1], F_GETFL);
    CHECK(fcntl(ends[1], F_SETFL, flags & ~O_NONBLOCK) == 0);
}

static char *pages(unsigned length) {
    char *memory = mmap(0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Returns a connection that is full. */
static void full_connection(int ends[2]) {
    static char rest[1 << 20];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    while (send(ends[1], rest, sizeof rest, MSG_DONTWAIT) > 0) continue;
}

static void harm(void) {
    int ends[2];
    char *data = pages(16 * PAGE);
    full_pipe(ends);
    on(IORING_OP_WRITE, 1, ends[1], data, 16 * PAGE)->off = -1;
    submit(1);
    memset(data, 1, 16 * PAGE);
    drain(ends[0]);
    CHECK(next() > 0);
    drain(ends[0]);
    /* The second of two vectors. */
    full_pipe(ends);
    struct iovec vectors[2] = {{data, 10}, {data + PAGE, 20}};
    on(IORING_OP_WRITEV, 2, ends[1], vectors, 2)->off = -1;
    submit(1);
    /* The program may reuse vectors immediately. */
    memset(vectors, 0, sizeof vectors);
    data[PAGE + 19] = 2;
    drain(ends[0]);
    CHECK(next() == 30);
    full_pipe(ends);
    on(IORING_OP_WRITE, 3, ends[1], data + 2 * PAGE, PAGE)->off = -1;
    submit(1);
    CHECK(munmap(data + 2 * PAGE, PAGE) == 0);
    drain(ends[0]);
    CHECK(next() == -EFAULT);
    /* The data of a message. */
    full_connection(ends);
    struct iovec vector = {data, 100};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    on(IORING_OP_SENDMSG, 4, ends[1], &message, 1);
    submit(1);
    data[99] = 3;
    drain(ends[0]);
    CHECK(next() == 100);
    /* A receive that fills nothing. */
    CHECK(pipe(ends) == 0);
    on(IORING_OP_READ, 5, ends[0], data + 4 * PAGE, PAGE)->off = -1;
    submit(1);
    CHECK(munmap(data + 4 * PAGE, PAGE) == 0 && write(ends[1], "x", 1) == 1);
    CHECK(next() == -EFAULT);
    /* A request that begins after another; its data counts from then on. */
    full_pipe(ends);
    on(IORING_OP_NOP, 6, -1, 0, 0)->flags = IOSQE_IO_LINK;
    on(IORING_OP_WRITE, 7, ends[1], data, 10)->off = -1;
    submit(2);
    CHECK(next() == 0);
    CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
    data[0] = 4;
    drain(ends[0]);
    CHECK(next() == 10);
}

static void care(void) {
    int ends[2], files[2];
    char *data = pages(PAGE);
    full_pipe(ends);
    on(IORING_OP_WRITE, 1, ends[1], data, PAGE)->off = -1;
    submit(1);
    drain(ends[0]);
    CHECK(next() == PAGE);
    memset(data, 1, PAGE);
    drain(ends[0]);
    /* A copy: the first request fills what the second one writes. */
    CHECK(pipe(files) == 0 && write(files[1], "copied", 6) == 6);
    on(IORING_OP_READ, 2, files[0], data, 6)->flags = IOSQE_IO_LINK;
    on(IORING_OP_WRITE, 3, files[1], data, 6)->off = -1;
    submit(2);
    CHECK(next() == 6 && next() == 6);
    /* A copy by a drain, and a request that is submitted after it. */
    on(IORING_OP_READ, 4, files[0], data, 6)->off = -1;
    on(IORING_OP_WRITE, 5, files[1], data, 3)->flags = IOSQE_IO_DRAIN;
    on(IORING_OP_WRITE, 6, files[1], data + 3, 3)->off = -1;
    submit(3);
    CHECK(next() == 6 && next() == 3 && next() == 3);
    /* The program may write memory of a read before it. */
    on(IORING_OP_READ, 7, ends[0], data, PAGE)->off = -1;
    submit(1);
    memset(data, 2, PAGE);
    CHECK(write(ends[1], "late", 4) == 4 && next() == 4);
}

static void filled(void) {
    struct io_uring_buf *entries = (void *)pages(PAGE);
    static char memory[8][32];
    char first[4], second[32], name[64], received[32];
    int ends[2], sockets[2];
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    struct iovec vectors[2] = {{first, 4}, {second, 32}};
    on(IORING_OP_READV, 1, ends[0], vectors, 2)->off = -1;
    submit(1);
    memset(vectors, 0, sizeof vectors);
    CHECK(write(ends[1], "vectored", 8) == 8 && next() == 8);

    struct iovec vector = {received, 32};
    struct msghdr message = {.msg_name = name, .msg_namelen = sizeof name, .msg_iov = &vector, .msg_iovlen = 1};
    on(IORING_OP_RECVMSG, 2, sockets[0], &message, 1);
    submit(1);
    CHECK(send(sockets[1], "a message", 9, 0) == 9 && next() == 9);

    /* Buffers of a list, and of a ring. */
    struct io_uring_sqe *provides = on(IORING_OP_PROVIDE_BUFFERS, 3, 2, memory, 32);
    provides->buf_group = 5;
    submit(1);
    CHECK(next() == 0);
    for (int i = 0; i < 6; i++) entries[i] = (struct io_uring_buf){(uint64_t)memory[2 + i], 32, i, 0};
    struct io_uring_buf_reg reg = {.ring_addr = (uint64_t)entries, .ring_entries = 8, .bgid = 6};
    CHECK(ring_call(SYS_io_uring_register, ring.fd, REGISTER_PBUF_RING, (long)&reg, 1, 0, 0) == 0);
    __atomic_store_n(&((struct io_uring_buf_ring *)entries)->tail, 6, __ATOMIC_RELEASE);
    for (int group = 5; group <= 6; group++) {
        struct io_uring_sqe *receive = on(IORING_OP_RECV, 4, sockets[0], 0, 0);
        receive->flags = IOSQE_BUFFER_SELECT, receive->buf_group = group;
        submit(1);
        CHECK(send(sockets[1], group == 5 ? "of a list" : "of a ring", 9, 0) == 9 && next() == 9);
    }
    struct io_uring_sqe *shots = on(IORING_OP_RECV, 5, sockets[0], 0, 0);
    shots->flags = IOSQE_BUFFER_SELECT, shots->buf_group = 6, shots->ioprio = 2;
    submit(1);
    CHECK(send(sockets[1], "shot one", 8, 0) == 8 && next() == 8);
    CHECK(send(sockets[1], "shot two", 8, 0) == 8 && next() == 8);
    CHECK(send(sockets[1], "", 0, 0) == 0 && next() == 0);
    /* Before the data, a multishot message's buffers have a header and room for an address. */
    struct msghdr shape = {.msg_namelen = 4};
    struct io_uring_sqe *messages = on(IORING_OP_RECVMSG, 6, sockets[0], &shape, 1);
    messages->flags = IOSQE_BUFFER_SELECT, messages->buf_group = 6, messages->ioprio = 2;
    submit(1);
    CHECK(send(sockets[1], "behind it", 9, 0) == 9 && next() == 16 + 4 + 9);
}

int main(int count, char **arguments) {
    page_bytes = sysconf(_SC_PAGESIZE);
    CHECK(count > 1 && ring_open_with(&ring, 32, 0, DEFERS) == 0);
    if (!strcmp(arguments[1], "harm"))
        harm();
    else if (!strcmp(arguments[1], "care"))
        care();
    else
        filled();
    return 0;
}
