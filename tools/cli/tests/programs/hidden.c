/* Functions of the C library other than `close` close or replace descriptors while requests wait for their files: the requests continue, and the
 * numbers are free. */
#include "ring.h"
#include <dirent.h>
#include <fcntl.h>
#include <mntent.h>

/* Other names of functions in glibc. */
extern int __close(int), __dup2(int, int), _IO_fclose(FILE *);

static struct ring ring;
static int ends[2];
static char buffer[16];

/* Creates a stream for a new pipe, and submits a read of the pipe, which waits. */
static FILE *stream_waits(void) {
    CHECK(pipe(ends) == 0);
    FILE *stream = fdopen(ends[0], "r");
    CHECK(stream);
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, 7);
    entry->fd = ends[0];
    entry->addr = (uintptr_t)buffer;
    entry->len = sizeof buffer;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    CHECK(!ring_peek(&ring));
    return stream;
}

/* Gives the number to another pipe with data, writes to the first pipe, and prints what the read has got. */
static void read_ends(const char *how) {
    int others[2];
    CHECK(pipe(others) == 0);
    if (others[0] != ends[0]) {
        CHECK(ring_call(SYS_dup3, others[0], ends[0], O_CLOEXEC, 0, 0, 0) == ends[0]);
        close(others[0]);
    }
    CHECK(write(others[1], "wrong", 5) == 5 && write(ends[1], "right", 5) == 5);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    struct io_uring_cqe *completion = ring_peek(&ring);
    CHECK(completion && completion->user_data == 7);
    printf("%s: %d %.5s\n", how, completion->res, buffer);
    ring_seen(&ring);
    close(others[1]), close(ends[0]), close(ends[1]);
}

/* Checks that the descriptor of a stream or a directory is closed. */
static void is_free(int fd, const char *how) {
    CHECK(fcntl(fd, F_GETFD) == -1);
    printf("%s: closed\n", how);
}

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    CHECK(fclose(stream_waits()) == 0);
    read_ends("fclose");

    CHECK(_IO_fclose(stream_waits()) == 0);
    read_ends("fclose by another name");

    stream_waits();
    CHECK(__close(ends[0]) == 0);
    read_ends("close by another name");

    stream_waits();
    int null = open("/dev/null", O_RDONLY);
    CHECK(null >= 0 && __dup2(null, ends[0]) == ends[0] && close(null) == 0);
    read_ends("dup2 by another name");

    FILE *other = freopen("/dev/null", "r", stream_waits());
    CHECK(other && fileno(other) == ends[0]);
    read_ends("freopen");

    CHECK(endmntent(stream_waits()) == 1);
    read_ends("endmntent");

    stream_waits();
    CHECK(ring_call(SYS_close, ends[0], 0, 0, 0, 0, 0) == 0);
    read_ends("close, as the ring's calls are made");

    DIR *directory = opendir("/");
    CHECK(directory);
    int fd = dirfd(directory);
    CHECK(closedir(directory) == 0);
    is_free(fd, "closedir");
    FILE *stream = popen("true", "r");
    CHECK(stream);
    fd = fileno(stream);
    CHECK(pclose(stream) == 0);
    is_free(fd, "pclose");
    char *text;
    size_t length;
    stream = open_memstream(&text, &length);
    CHECK(stream && fputs("text", stream) >= 0);
    errno = 0;
    CHECK(fclose(stream) == 0 && errno == 0);
    CHECK(fclose(tmpfile()) == 0 && closedir(fdopendir(open("/", O_RDONLY))) == 0);
    return 0;
}
