/* Rings that another process watches. Each way of this program prints "ready" when its ring exists, and ends when its input ends. */
#include "ring.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

enum { ENTRIES = 16 };

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

/* Reads a line of input, or up to the end of the input. */
static void wait_for_input(void) {
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n')
        ;
}

/* Waits for the end of the input without reading from it. */
static void wait_for_end_of_input(void) {
    struct pollfd input = {.fd = 0, .events = 0};
    CHECK(poll(&input, 1, -1) == 1 && input.revents & POLLHUP);
}

static int input_has_ended(int wait_ms) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, wait_ms) > 0;
}

static void reap_all(struct ring *ring) {
    while (ring_peek(ring))
        ring_seen(ring);
}

static void ring_close(struct ring *ring) {
    struct io_uring_params *p = &ring->params;
    size_t sq = p->sq_off.array + p->sq_entries * 4, cq = p->cq_off.cqes + p->cq_entries * 16;
    CHECK(munmap(ring->entries, p->sq_entries * 64) == 0);
    CHECK(munmap(ring->submissions, sq > cq ? sq : cq) == 0);
    CHECK(close(ring->fd) == 0);
}

/* Submits batches of three requests: two that succeed, and one with an invalid descriptor. */
static void busy(struct ring *ring) {
    char buffer[8];
    while (!input_has_ended(1)) {
        ring_entry(ring, IORING_OP_NOP, 1);
        ring_entry(ring, IORING_OP_NOP, 2);
        struct io_uring_sqe *read_of_none = ring_entry(ring, IORING_OP_READ, 3);
        read_of_none->fd = -1;
        read_of_none->addr = (uintptr_t)buffer;
        read_of_none->len = sizeof buffer;
        CHECK(ring_enter(ring->fd, 3, 3, IORING_ENTER_GETEVENTS) == 3);
        reap_all(ring);
    }
}

/* Submits three reads of an empty pipe; returns the write end of the pipe. */
static int submit_reads(struct ring *ring) {
    int pipes[2];
    static char buffer[8];
    CHECK(pipe(pipes) == 0);
    for (int entry = 0; entry < 3; entry++) {
        struct io_uring_sqe *waiting = ring_entry(ring, IORING_OP_READ, entry);
        waiting->fd = pipes[0];
        waiting->addr = (uintptr_t)buffer;
        waiting->len = sizeof buffer;
    }
    CHECK(ring_enter(ring->fd, 3, 0, 0) == 3);
    return pipes[1];
}

/* Has reads in flight, which complete at the next line of input. */
static void waits(struct ring *ring) {
    int full = submit_reads(ring);
    ready();
    wait_for_input();
    CHECK(write(full, "eight by", 8) == 8 && write(full, "eight by", 8) == 8 && write(full, "eight by", 8) == 8);
    CHECK(ring_enter(ring->fd, 0, 3, IORING_ENTER_GETEVENTS) == 0);
    wait_for_input();
}

/* Has reads in flight, entries in the SQ that are never submitted, and completions that are never reaped. */
static void stuck(struct ring *ring) {
    submit_reads(ring);
    for (int entry = 0; entry < 5; entry++)
        ring_entry(ring, IORING_OP_NOP, 10 + entry);
    CHECK(ring_enter(ring->fd, 5, 5, IORING_ENTER_GETEVENTS) == 5);
    for (int entry = 0; entry < ENTRIES; entry++)
        ring_entry(ring, IORING_OP_NOP, 20 + entry);
    ready();
    wait_for_input();
}

/* Has more completions than the CQ has room for. */
static void overflows(struct ring *ring) {
    for (int round = 0; round < 3; round++) {
        for (int entry = 0; entry < ENTRIES; entry++)
            ring_entry(ring, IORING_OP_NOP, entry);
        CHECK(ring_enter(ring->fd, ENTRIES, 0, 0) == ENTRIES);
    }
    ready();
    wait_for_input();
}

/* Creates rings that have the last reference to a socket. A ring ends at the next line of input, and the socket's peer waits for that. */
static void closes(int rounds) {
    for (int round = 0; round < rounds; round++) {
        struct ring ring;
        int ends[2];
        char byte;
        CHECK(ring_open(&ring, ENTRIES, 0) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        CHECK(ring_register(ring.fd, IORING_REGISTER_FILES, &ends[0], 1) == 0);
        CHECK(close(ends[0]) == 0);
        ring_entry(&ring, IORING_OP_NOP, round);
        CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
        wait_for_input();
        ring_close(&ring);
        CHECK(read(ends[1], &byte, 1) == 0);
        CHECK(close(ends[1]) == 0);
    }
}

/* Executes another program, which creates a ring of its own. */
static void becomes_another(void) {
    ready();
    wait_for_input();
    CHECK(execl("/proc/self/exe", "outside", "stuck", (char *)0) != 0);
}

/* Shares a ring with a child, which keeps the ring after the parent has closed it. */
static void shares(struct ring *ring) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        wait_for_end_of_input();
        _exit(0);
    }
    ready();
    wait_for_input();
    ring_close(ring);
    wait_for_end_of_input();
    CHECK(waitpid(child, 0, 0) == child);
}

/* Submits so many batches of four requests, with a pause behind each. */
static void paced(struct ring *ring, long batches) {
    const struct timespec pause = {.tv_nsec = 100000};
    ready();
    wait_for_input();
    for (long batch = 0; batch < batches; batch++) {
        for (int entry = 0; entry < 4; entry++)
            ring_entry(ring, IORING_OP_NOP, entry);
        CHECK(ring_enter(ring->fd, 4, 4, IORING_ENTER_GETEVENTS) == 4);
        reap_all(ring);
        CHECK(nanosleep(&pause, 0) == 0);
    }
    ready();
    wait_for_input();
}

/* Creates a ring, completes a request with this user data, and waits for the end of the input. */
static void child(uint64_t user_data) {
    struct ring ring;
    CHECK(ring_open(&ring, ENTRIES, 0) == 0);
    ring_entry(&ring, IORING_OP_NOP, user_data);
    CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    ready();
    wait_for_end_of_input();
    _exit(0);
}

/* Starts a child at each line of input. The first has a child of its own. All inherit the parent's ring. */
static void starts(int children) {
    for (int started = 1; started <= children; started++) {
        wait_for_input();
        pid_t process = fork();
        CHECK(process >= 0);
        if (process == 0) {
            if (started == 1 && fork() == 0)
                child(0x100);
            child(started);
        }
    }
    wait_for_end_of_input();
    while (wait(0) > 0)
        ;
}

int main(int count, char **words) {
    struct ring ring;
    const char *way = count > 1 ? words[1] : "";
    CHECK(ring_open(&ring, ENTRIES, 0) == 0);
    if (!strcmp(way, "busy")) {
        ready();
        busy(&ring);
    } else if (!strcmp(way, "waits")) {
        waits(&ring);
    } else if (!strcmp(way, "stuck")) {
        stuck(&ring);
    } else if (!strcmp(way, "overflows")) {
        overflows(&ring);
    } else if (!strcmp(way, "becomes another")) {
        becomes_another();
    } else if (!strcmp(way, "shares")) {
        shares(&ring);
    } else if (!strcmp(way, "paced")) {
        paced(&ring, strtol(words[2], 0, 0));
    } else if (!strcmp(way, "starts")) {
        ready();
        starts(strtol(words[2], 0, 0));
    } else if (!strcmp(way, "closes")) {
        ready();
        closes(strtol(words[2], 0, 0));
    } else {
        return 2;
    }
    return 0;
}
