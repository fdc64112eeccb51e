/* Copies a file and echoes over a pair of sockets, all at the same time through one ring, and handles every fault
 * that the manual pages describe: short transfers, EINTR, EAGAIN, ENOBUFS, multishots that end, overflow, partial submissions.
 *
 * With -DSHORT_READ it treats a short read as a full one, and the copy has holes. */
#include "ring.h"
#include <sys/socket.h>

enum { READ, WRITE, SEND, RECEIVE, ECHO, BACK, PROVIDE, CANCEL };
enum { BLOCK = 4096, SLOTS = 4, FILE_BYTES = 50000, ECHO_BYTES = 20000, BUFFER = 512, BUFFERS = 8, GROUP = 3, KEPT = 1024 };

static struct ring ring;
static struct io_uring_cqe kept[KEPT];
static unsigned kept_first, kept_end;

static char content[FILE_BYTES], copied[FILE_BYTES], blocks[SLOTS][BLOCK];
static char sent_text[ECHO_BYTES], echoed[ECHO_BYTES], back[ECHO_BYTES], buffers[BUFFERS][BUFFER];
static int from, to, pair[2];

static struct {
    unsigned offset, wanted, read, written;
} slots[SLOTS];
static unsigned next_block, written_in_all, sent, taken, echoed_back, came_back;
static int receiving, stopping, canceled, providing, echoing;

/* Reaps available completions into a private array, so that anything can be submitted meanwhile. */
static void reap(void) {
    struct io_uring_cqe *cqe;
    while ((cqe = ring_peek(&ring))) {
        CHECK(kept_end - kept_first < KEPT);
        kept[kept_end++ % KEPT] = *cqe;
        ring_seen(&ring);
    }
}

static unsigned pending(void) {
    return *SQ(&ring, tail) - __atomic_load_n(SQ(&ring, head), __ATOMIC_ACQUIRE);
}

static void enter(unsigned wait) {
    int overflows = __atomic_load_n(SQ(&ring, flags), __ATOMIC_RELAXED) & IORING_SQ_CQ_OVERFLOW;
    long result = ring_enter(ring.fd, pending(), wait, wait || overflows ? IORING_ENTER_GETEVENTS : 0);
    CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
    reap();
}

static struct io_uring_sqe *entry(int opcode, int kind, unsigned number) {
    while (pending() == ring.params.sq_entries)
        enter(0);
    return ring_entry(&ring, opcode, (uint64_t)kind << 32 | number);
}

static struct io_uring_sqe *transfer(int opcode, int kind, unsigned number, int fd, void *memory, unsigned length) {
    struct io_uring_sqe *sqe = entry(opcode, kind, number);
    sqe->fd = fd;
    sqe->addr = (uintptr_t)memory;
    sqe->len = length;
    return sqe;
}

static unsigned less(unsigned one, unsigned other) { return one < other ? one : other; }

/* Submits the rest of a slot's read or write, or another block. */
static void go_on(unsigned number) {
    if (slots[number].read < slots[number].wanted) {
        struct io_uring_sqe *sqe = transfer(IORING_OP_READ, READ, number, from, blocks[number] + slots[number].read,
                                            slots[number].wanted - slots[number].read);
        sqe->off = slots[number].offset + slots[number].read;
    } else if (slots[number].written < slots[number].wanted) {
        struct io_uring_sqe *sqe = transfer(IORING_OP_WRITE, WRITE, number, to, blocks[number] + slots[number].written,
                                            slots[number].wanted - slots[number].written);
        sqe->off = slots[number].offset + slots[number].written;
    } else if (next_block < FILE_BYTES) {
        slots[number].offset = next_block;
        slots[number].wanted = less(BLOCK, FILE_BYTES - next_block);
        slots[number].read = slots[number].written = 0;
        next_block += slots[number].wanted;
        go_on(number);
    }
}

static void send_more(void) {
    if (sent < ECHO_BYTES)
        transfer(IORING_OP_SEND, SEND, 0, pair[0], sent_text + sent, less(3000, ECHO_BYTES - sent));
}

static void echo_more(void) {
    if (!echoing && echoed_back < taken) {
        echoing = 1;
        transfer(IORING_OP_SEND, ECHO, 0, pair[1], echoed + echoed_back, taken - echoed_back);
    }
}

static void take_back(void) {
    if (came_back < ECHO_BYTES)
        transfer(IORING_OP_RECV, BACK, 0, pair[0], back + came_back, ECHO_BYTES - came_back);
}

static void receive(void) {
    struct io_uring_sqe *sqe = transfer(IORING_OP_RECV, RECEIVE, 0, pair[1], 0, 0);
    sqe->flags = IOSQE_BUFFER_SELECT;
    sqe->ioprio = IORING_RECV_MULTISHOT;
    sqe->buf_group = GROUP;
    receiving = 1;
}

static void provide(unsigned first, unsigned count) {
    struct io_uring_sqe *sqe = transfer(IORING_OP_PROVIDE_BUFFERS, PROVIDE, 0, count, buffers[first], BUFFER);
    sqe->off = first;
    sqe->buf_group = GROUP;
    providing++;
}

static void received(const struct io_uring_cqe *cqe) {
    CHECK(cqe->res > 0 || cqe->res == -ENOBUFS || cqe->res == -EINTR || (stopping && cqe->res == -ECANCELED));
    if (cqe->res > 0) {
        unsigned buffer = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
        CHECK(cqe->flags & IORING_CQE_F_BUFFER && buffer < BUFFERS && taken + cqe->res <= ECHO_BYTES);
        memcpy(echoed + taken, buffers[buffer], cqe->res);
        taken += cqe->res;
        provide(buffer, 1);
        echo_more();
    }
    if (!(cqe->flags & IORING_CQE_F_MORE)) {
        receiving = 0;
        if (!stopping)
            receive();
    }
}

/* True if nothing was done, and the request is to be repeated. */
static int again(int result) { return result == -EINTR || result == -EAGAIN; }

static void handle(const struct io_uring_cqe *cqe) {
    unsigned kind = cqe->user_data >> 32, number = (uint32_t)cqe->user_data;
    unsigned moved = cqe->res > 0 ? cqe->res : 0;
    switch (kind) {
    case READ:
        CHECK(moved || again(cqe->res));
#ifdef SHORT_READ
        if (moved)
            moved = slots[number].wanted - slots[number].read;
#endif
        slots[number].read += moved;
        go_on(number);
        break;
    case WRITE:
        CHECK(moved || again(cqe->res));
        slots[number].written += moved;
        written_in_all += moved;
        go_on(number);
        break;
    case SEND:
        CHECK(moved || again(cqe->res));
        sent += moved;
        send_more();
        break;
    case RECEIVE:
        received(cqe);
        break;
    case ECHO:
        CHECK(moved || again(cqe->res));
        echoing = 0;
        echoed_back += moved;
        echo_more();
        break;
    case BACK:
        CHECK(moved || again(cqe->res));
        came_back += moved;
        take_back();
        break;
    case PROVIDE:
        CHECK(cqe->res >= 0);
        providing--;
        break;
    case CANCEL:
        CHECK(cqe->res == 0 || cqe->res == -ENOENT || cqe->res == -EALREADY);
        canceled = 1;
        break;
    default:
        CHECK(!"a completion of nobody's");
    }
}

static void run_until(int (*done)(void)) {
    while (!done()) {
        if (kept_first == kept_end)
            enter(1);
        while (kept_first != kept_end) {
            struct io_uring_cqe cqe = kept[kept_first++ % KEPT];
            handle(&cqe);
        }
    }
}

static int all_moved(void) { return written_in_all == FILE_BYTES && came_back == ECHO_BYTES && !providing; }

static int all_ended(void) { return !receiving && canceled; }

int main(void) {
    for (unsigned i = 0; i < FILE_BYTES; i++)
        content[i] = i * 7 % 251;
    for (unsigned i = 0; i < ECHO_BYTES; i++)
        sent_text[i] = i * 11 % 241;
    from = memfd_create("from", 0);
    to = memfd_create("to", 0);
    CHECK(from >= 0 && to >= 0 && pwrite(from, content, FILE_BYTES, 0) == FILE_BYTES);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(ring_open(&ring, 8, 0) == 0);
    provide(0, BUFFERS);
    receive();
    send_more();
    take_back();
    for (unsigned number = 0; number < SLOTS; number++)
        go_on(number);
    run_until(all_moved);
    stopping = 1;
    if (receiving) {
        struct io_uring_sqe *sqe = entry(IORING_OP_ASYNC_CANCEL, CANCEL, 0);
        sqe->addr = (uint64_t)RECEIVE << 32;
    } else {
        canceled = 1;
    }
    run_until(all_ended);
    CHECK(pread(to, copied, FILE_BYTES, 0) == FILE_BYTES);
    CHECK(memcmp(copied, content, FILE_BYTES) == 0);
    CHECK(memcmp(back, sent_text, ECHO_BYTES) == 0);
    puts("all is there");
    return 0;
}
