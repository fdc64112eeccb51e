/* Completes some requests and leaves one in flight, prints "ready", and ends when its input ends. With `fork`, a child first uses its parent's ring
 * and prints "child". With `drop`, the process first changes its user, and no thread must keep the old one. */
#include "ring.h"
#include <dirent.h>
#include <sys/wait.h>

enum { NOPS = 7, NOBODY = 65534 };

static void await_end(const char *word) {
    char byte;
    printf("%s\n", word);
    fflush(stdout);
    while (read(0, &byte, 1) > 0 && byte != '\n')
        ;
}

/* Returns the user ID of a thread. */
static unsigned user_of(const char *thread) {
    char path[300], line[256];
    unsigned user = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file) && sscanf(line, "Uid: %u", &user) != 1)
        ;
    CHECK(file && fclose(file) == 0);
    return user;
}

static void drop(void) {
    /* The input continues when the engine's thread for metrics runs. */
    await_end("begun");
    CHECK(setuid(NOBODY) == 0);
    DIR *threads = opendir("/proc/self/task");
    int others = -1;
    for (struct dirent *entry; (entry = readdir(threads)); others += entry->d_name[0] != '.')
        CHECK(entry->d_name[0] == '.' || user_of(entry->d_name) == NOBODY);
    CHECK(closedir(threads) == 0 && others > 0);
}

int main(int count, char **words) {
    struct ring ring;
    int ends[2];
    char byte;
    CHECK(ring_open(&ring, 8, 0) == 0 && pipe(ends) == 0);
    if (count > 1 && strcmp(words[1], "drop") == 0)
        drop();
    if (count > 1 && strcmp(words[1], "fork") == 0) {
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
