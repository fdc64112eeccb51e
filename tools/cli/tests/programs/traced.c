/* Requests of every kind that a trace distinguishes, by the argument:
 *   shapes   a request of each shape: paths, data, chains, a multishot, one that never completes; and in a child of fork
 *   many N   N no-ops, 32 at a time
 *   killed N like `many`, and then the program kills itself by SIGKILL
 *   left N   N no-ops and a closed ring, whose last two completions have not been reaped
 *   open N   like `left`, but the process ends with the ring open, and so does its child
 *   woken    a futex wait that is woken, and that a cancellation then looks for
 *   registers  registrations: vectors, descriptors, structures; the ring by its number
 *   worker   a request for which a thread must wait, by a FIFO that the program creates in the working directory */
#include "ring.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct ring ring;

static void take_more(unsigned submitted, unsigned count) {
    CHECK(ring_enter(ring.fd, submitted, count, IORING_ENTER_GETEVENTS) == submitted);
    for (unsigned left = count; left > 0; left--) {
        CHECK(ring_peek(&ring));
        ring_seen(&ring);
    }
}

static void take(unsigned count) { take_more(count, count); }

static struct io_uring_sqe *on(uint8_t opcode, uint64_t user_data, int fd, const void *memory, unsigned length) {
    struct io_uring_sqe *entry = ring_entry(&ring, opcode, user_data);
    entry->fd = fd;
    entry->addr = (uint64_t)memory;
    entry->len = length;
    return entry;
}

static void shapes(void) {
    char path[] = "/etc/hostname", text[64] = "written";
    int ends[2], sockets[2];
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    on(IORING_OP_OPENAT, 1, AT_FDCWD, path, 0);
    take(1);
    /* The trace shows the old value of memory that the program changes afterwards. */
    memset(path, 'x', sizeof path - 1);
    on(IORING_OP_WRITE, 2, ends[1], text, 7)->off = -1;
    take(1);
    memset(text, 'y', 7);
    on(IORING_OP_READ, 3, ends[0], text, 64)->off = -1;
    take(1);
    /* The second request breaks its chain. */
    on(IORING_OP_NOP, 4, -1, 0, 0)->flags = IOSQE_IO_LINK;
    on(IORING_OP_READ, 5, -1, text, 64)->flags = IOSQE_IO_LINK;
    on(IORING_OP_NOP, 6, -1, 0, 0);
    take(3);
    /* A multishot poll, with one event and its end. */
    struct io_uring_sqe *poll = on(IORING_OP_POLL_ADD, 7, sockets[0], 0, IORING_POLL_ADD_MULTI);
    poll->poll32_events = 1;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    CHECK(write(sockets[1], "a", 1) == 1);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0 && ring_peek(&ring));
    ring_seen(&ring);
    on(IORING_OP_ASYNC_CANCEL, 8, -1, (void *)7, 0);
    take_more(1, 2);
    /* It waits for an event that never comes. */
    on(IORING_OP_RECV, 9, sockets[1], text, 64);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CHECK(ring_open(&ring, 8, 0) == 0);
        on(IORING_OP_NOP, 10, -1, 0, 0);
        take(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Operations and flags that older headers lack: <linux/io_uring.h>, <linux/futex.h>. */
enum { FUTEX_WAITS = 51, FUTEX_WAKES = 52, SIZE_U32 = 2, PRIVATE = 128 };

/* The cancellation comes after the wake-up, and so does not find the wait. */
static void woken(void) {
    static uint32_t word;
    struct io_uring_sqe *wait = on(FUTEX_WAITS, 1, SIZE_U32 | PRIVATE, &word, 0);
    wait->addr3 = 0xffffffff;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    struct io_uring_sqe *wake = on(FUTEX_WAKES, 2, SIZE_U32 | PRIVATE, &word, 0);
    wake->off = 1;
    wake->addr3 = 0xffffffff;
    on(IORING_OP_ASYNC_CANCEL, 3, -1, (void *)1, 0);
    take_more(2, 3);
}

static void registers(void) {
    static char memory[2][4096];
    struct iovec vectors[2] = {{memory[0], 4096}, {memory[1], 10}};
    struct io_uring_rsrc_update number = {.offset = -1U, .data = ring.fd};
    int files[3] = {0, -1, 1};
    const unsigned by_number = 1U << 31; /* IORING_REGISTER_USE_REGISTERED_RING */
    CHECK(ring_register(ring.fd, IORING_REGISTER_BUFFERS, vectors, 2) == 0);
    CHECK(ring_register(ring.fd, IORING_REGISTER_FILES, files, 3) == 0);
    CHECK(ring_register(ring.fd, IORING_REGISTER_RING_FDS, &number, 1) == 1);
    CHECK(ring_register(number.offset, IORING_UNREGISTER_FILES | by_number, 0, 0) == 0);
    CHECK(ring_register(ring.fd, IORING_REGISTER_FILES, (void *)8, 3) == -EFAULT);
}

static void worker(void) {
    char path[64];
    snprintf(path, sizeof path, "traced-fifo-%d", getpid());
    CHECK(mkfifo(path, 0600) == 0);
    on(IORING_OP_OPENAT, 1, AT_FDCWD, path, 0)->flags = IOSQE_ASYNC;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    CHECK(open(path, O_WRONLY) >= 0 && unlink(path) == 0);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0 && ring_peek(&ring)->res >= 0);
    ring_seen(&ring);
}

int main(int count, char **arguments) {
    CHECK(count > 1 && ring_open(&ring, 32, 0) == 0);
    if (!strcmp(arguments[1], "shapes")) {
        shapes();
        return 7;
    }
    if (!strcmp(arguments[1], "registers")) {
        registers();
        return 0;
    }
    if (!strcmp(arguments[1], "woken")) {
        woken();
        return 0;
    }
    if (!strcmp(arguments[1], "worker")) {
        worker();
        return 0;
    }
    CHECK(count > 2);
    if (!strcmp(arguments[1], "left") || !strcmp(arguments[1], "open")) {
        unsigned entries = atol(arguments[2]);
        for (unsigned entry = 0; entry < entries; entry++) ring_entry(&ring, IORING_OP_NOP, entry + 1);
        CHECK(ring_enter(ring.fd, entries, entries, IORING_ENTER_GETEVENTS) == entries);
        for (unsigned taken = 2; taken < entries; taken++) ring_seen(&ring);
        if (!strcmp(arguments[1], "left"))
            return close(ring.fd);
        pid_t child = fork();
        int status;
        CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
        return 0;
    }
    for (long left = atol(arguments[2]); left > 0; left -= 32) {
        unsigned batch = left < 32 ? left : 32;
        for (unsigned entry = 0; entry < batch; entry++) ring_entry(&ring, IORING_OP_NOP, left - entry);
        take(batch);
    }
    if (!strcmp(arguments[1], "killed"))
        kill(getpid(), SIGKILL);
    return 0;
}
