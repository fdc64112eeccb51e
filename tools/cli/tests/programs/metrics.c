/* Requests that are counted, and one in flight; says "ready", and ends when its input ends. With an argument, a child of fork that uses
 * its parent's ring does the same first. */
#include "ring.h"
#include <sys/wait.h>

enum { NOPS = 7 };

static void await_end(const char *word) {
    char byte;
    printf("%s\n", word);
    fflush(stdout);
    while (read(0, &byte, 1) > 0 && byte != '\n')
        ;
}

int main(int count, char **words) {
    (void)words;
    struct ring ring;
    int ends[2];
    char byte;
    CHECK(ring_open(&ring, 8, 0) == 0 && pipe(ends) == 0);
    if (count > 1) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(ring_nop(&ring, 1) == 0);
            await_end("child");
            _exit(0);
        }
        CHECK(waitpid(child, 0, 0) == child);
    }
    for (int number = 0; number < NOPS; number++)
        CHECK(ring_nop(&ring, number) == 0);
    /* Descriptor -1 fails, the pipe is empty. */
    for (int fd = -1; fd <= ends[0]; fd += 1 + ends[0]) {
        struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, fd);
        entry->fd = fd;
        entry->addr = (uint64_t)&byte;
        entry->len = 1;
        entry->off = -1;
        CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    }
    await_end("ready");
    return 0;
}
