/* Requests that a tool is to follow.
 *
 *   followed file PATH     opens PATH and reads it through the ring, and prints its contents
 *   followed removes PATH  removes PATH through the ring
 *   followed freed         reads into a buffer that was freed before the submission
 *   followed stale         reads into a buffer, frees the buffer, and then reads from it
 *   followed unset         writes bytes to /dev/null that the program has not set
 *   followed branches      reads bytes, and branches on one of them
 *   followed races         reads into a buffer that another thread writes to
 *   followed early         writes to the buffer of a read, which may be done, before it looks for the completion
 *   followed looks         branches on a byte that a read in flight has not written yet
 *   followed alone         has a read completed while it makes no call of the ring, and then makes one
 *   followed leaves        frees the buffer of a read in flight
 *   followed handed        reads into a buffer, and has another thread write to it; then a thread that has seen the completion of a read
 *                          by itself writes to the buffer. This is correct
 *   followed waits PATH    creates PATH as soon as a read is in flight, completes the read when PATH is removed, and prints the bytes read */
#include "ring.h"
#include <fcntl.h>
#include <pthread.h>

static struct ring ring;

static __attribute__((noinline)) int complete(void) {
    CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    struct io_uring_cqe *completion = ring_peek(&ring);
    CHECK(completion);
    int result = completion->res;
    ring_seen(&ring);
    return result;
}

static void prepare(unsigned opcode, int fd, const void *address, unsigned length) {
    struct io_uring_sqe *entry = ring_entry(&ring, opcode, 1);
    entry->fd = fd;
    entry->addr = (uintptr_t)address;
    entry->len = length;
    entry->off = opcode == IORING_OP_READ || opcode == IORING_OP_WRITE ? -1 : 0;
}

static __attribute__((noinline)) int open_file(const char *path) {
    prepare(IORING_OP_OPENAT, AT_FDCWD, path, 0);
    return complete();
}

static int read_into(int fd, void *buffer, unsigned length) {
    prepare(IORING_OP_READ, fd, buffer, length);
    return complete();
}

static void file(const char *path) {
    char data[64];
    int fd = open_file(path);
    if (fd < 0) {
        printf("no file: %s\n", strerror(-fd));
        return;
    }
    int length = read_into(fd, data, sizeof data);
    CHECK(length >= 0);
    printf("%.*s", length, data);
}

static void freed(int zeros) {
    char *volatile buffer = malloc(64);
    free(buffer);
    printf("%d bytes\n", read_into(zeros, buffer, 64));
}

static void stale(int zeros) {
    char *volatile buffer = malloc(64);
    CHECK(read_into(zeros, buffer, 64) == 64);
    free(buffer);
    printf("%d\n", buffer[7]);
}

static void removes(const char *path) {
    prepare(IORING_OP_UNLINKAT, AT_FDCWD, path, 0);
    int result = complete();
    printf("%s\n", result ? strerror(-result) : "removed");
}

static void unset(void) {
    char *volatile buffer = malloc(64);
    prepare(IORING_OP_WRITE, open("/dev/null", O_WRONLY), buffer, 64);
    printf("%d bytes\n", complete());
    free(buffer);
}

static void branches(int zeros) {
    char *volatile buffer = malloc(64);
    CHECK(read_into(zeros, buffer, 64) == 64);
    printf("%s\n", buffer[7] ? "something" : "nothing");
    free(buffer);
}

static char shared[64];

/* By stores that a sanitizer sees, which a call of memset need not become. */
static void *touches(void *unused) {
    for (unsigned at = 0; at < sizeof shared; at++)
        ((volatile char *)shared)[at] = 1;
    return unused;
}

static void races(int zeros) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, touches, 0) == 0);
    CHECK(read_into(zeros, shared, sizeof shared) == 64);
    pthread_join(thread, 0);
    printf("done\n");
}

static int ends[2];

/* Submits a read whose bytes come only with `complete_late`. */
static void read_late(void *buffer) {
    CHECK(pipe(ends) == 0);
    prepare(IORING_OP_READ, ends[0], buffer, 4);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
}

static void complete_late(void) {
    CHECK(write(ends[1], "over", 4) == 4);
    while (!ring_peek(&ring))
        CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    CHECK(ring_peek(&ring)->res == 4);
    ring_seen(&ring);
}

static void early(int zeros) {
    prepare(IORING_OP_READ, zeros, shared, sizeof shared);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    touches(0);
    while (!ring_peek(&ring))
        CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    printf("done\n");
}

static void looks(void) {
    char *volatile buffer = calloc(4, 1);
    read_late(buffer);
    printf("%s\n", buffer[0] ? "something" : "nothing");
    complete_late();
    printf("%s\n", buffer[0] == 'o' ? "over" : "nothing");
    free(buffer);
}

static void alone(void) {
    char data[4];
    read_late(data);
    CHECK(write(ends[1], "over", 4) == 4);
    while (!ring_peek(&ring))
        usleep(100);
    ring_seen(&ring);
    prepare(IORING_OP_NOP, -1, 0, 0);
    CHECK(complete() == 0);
    printf("done\n");
}

static void leaves(void) {
    char *volatile buffer = malloc(4);
    read_late(buffer);
    free(buffer);
    complete_late();
    printf("done\n");
}

static void *polls(void *unused) {
    while (!ring_peek(&ring))
        usleep(100);
    return touches(unused);
}

static void handed(int zeros) {
    pthread_t thread;
    CHECK(read_into(zeros, shared, sizeof shared) == 64);
    CHECK(pthread_create(&thread, 0, touches, 0) == 0);
    pthread_join(thread, 0);
    CHECK(pthread_create(&thread, 0, polls, 0) == 0);
    prepare(IORING_OP_READ, zeros, shared, sizeof shared);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    pthread_join(thread, 0);
    printf("done\n");
}

static void waits(const char *path) {
    char data[4] = {0};
    read_late(data);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    while (access(path, F_OK) == 0)
        usleep(10000);
    CHECK(write(ends[1], "over", 4) == 4);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    printf("%.4s\n", data);
}

int main(int count, char **arguments) {
    const char *what = arguments[count > 1], *path = count > 2 ? arguments[2] : "";
    CHECK(ring_open(&ring, 8, 0) == 0);
    int zeros = open("/dev/zero", O_RDONLY);
    if (strcmp(what, "file") == 0)
        file(path);
    else if (strcmp(what, "removes") == 0)
        removes(path);
    else if (strcmp(what, "stale") == 0)
        stale(zeros);
    else if (strcmp(what, "freed") == 0)
        freed(zeros);
    else if (strcmp(what, "unset") == 0)
        unset();
    else if (strcmp(what, "branches") == 0)
        branches(zeros);
    else if (strcmp(what, "races") == 0)
        races(zeros);
    else if (strcmp(what, "early") == 0)
        early(zeros);
    else if (strcmp(what, "looks") == 0)
        looks();
    else if (strcmp(what, "alone") == 0)
        alone();
    else if (strcmp(what, "leaves") == 0)
        leaves();
    else if (strcmp(what, "handed") == 0)
        handed(zeros);
    else if (strcmp(what, "waits") == 0)
        waits(path);
    return 0;
}
