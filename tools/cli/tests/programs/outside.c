/* Rings that are watched from outside. Each way says "ready" once it has made its ring; it ends when its input does. */
#include "ring.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { ENTRIES = 16 };

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

/* A line of input, or its end. */
static void wait_for_input(void) {
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n')
        ;
}

/* Without taking any of it. */
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

/* Batches of three: two that succeed, and one whose descriptor is none. */
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

/* Three reads of an empty pipe; the other end of the pipe. */
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

/* Reads that are in flight, and complete at the next line of input. */
static void waits(struct ring *ring) {
    int full = submit_reads(ring);
    ready();
    wait_for_input();
    CHECK(write(full, "eight by", 8) == 8 && write(full, "eight by", 8) == 8 && write(full, "eight by", 8) == 8);
    CHECK(ring_enter(ring->fd, 0, 3, IORING_ENTER_GETEVENTS) == 0);
    wait_for_input();
}

/* Reads that are in flight, a queue of entries that nobody submits, and completions that nobody reaps. */
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

/* More completions than there is room for. */
static void overflows(struct ring *ring) {
    for (int round = 0; round < 3; round++) {
        for (int entry = 0; entry < ENTRIES; entry++)
            ring_entry(ring, IORING_OP_NOP, entry);
        CHECK(ring_enter(ring->fd, ENTRIES, 0, 0) == ENTRIES);
    }
    ready();
    wait_for_input();
}

/* Rings whose end, at the next line of input, lets go of the last reference to a socket, which its peer waits for. */
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

/* Another program in its place, which makes a ring of its own. */
static void becomes_another(void) {
    ready();
    wait_for_input();
    CHECK(execl("/proc/self/exe", "outside", "stuck", (char *)0) != 0);
}

/* A ring that a child has, too, and keeps when the parent has closed it. */
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
    } else if (!strcmp(way, "closes")) {
        ready();
        closes(strtol(words[2], 0, 0));
    } else {
        return 2;
    }
    return 0;
}
