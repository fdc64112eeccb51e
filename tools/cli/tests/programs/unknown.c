/* A program closes and replaces every descriptor that it does not know, in one of many ways, and keeps using its ring. */
#include "ring.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static int last;

static void by_loop(void) {
    for (int fd = last + 1; fd < 1024; fd++)
        close(fd);
}

/* Closes by instructions of this program, which are not patched, since the code does not have their numbers; then a file has the descriptors. */
static void by_instruction(void) {
    volatile long closes = SYS_close, replaces = SYS_dup3;
    for (int fd = last + 1; fd < 1024; fd++)
        call_by_instruction(closes, fd, 0, 0, 0, 0, 0);
    int file = memfd_create("file", 0);
    for (int fd = 512; fd < 540; fd++)
        CHECK(call_by_instruction(replaces, file, fd, 0, 0, 0, 0) == fd);
    close(file);
}

static void by_range(void) {
    CHECK(syscall(SYS_close_range, last + 1, ~0u, 0) == 0);
}

static void by_part(void) {
    CHECK(syscall(SYS_close_range, 400, 513, 0) == 0);
    CHECK(syscall(SYS_close_range, 514, 514, 0) == 0);
}

static void unshared(void) {
    CHECK(syscall(SYS_close_range, last + 1, ~0u, 2) == 0);
}

static void by_number(void) {
    for (int fd = last + 1; fd < 1024; fd++)
        syscall(SYS_close, fd);
}

static void listed(void) {
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        int fd = atoi(entry->d_name);
        if (fd > last && fd != dirfd(directory))
            close(fd);
    }
    closedir(directory);
}

static void replaced(void) {
    for (int fd = 512; fd < 520; fd++) {
        if (dup2(0, fd) == fd)
            close(fd);
        if (dup3(0, fd, O_CLOEXEC) == fd)
            close(fd);
    }
}

#ifdef __GLIBC__
static void from(void) {
    closefrom(last + 1);
}
#endif

static int closes_in_child(void *argument) {
    (void)argument;
    for (int fd = 0; fd < 1024; fd++)
        close(fd);
    return 0;
}

/* In a child that shares this memory, with its own descriptors. */
static void in_a_child(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    int child = clone(closes_in_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, 0), status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* True if an epoll instance reports the ring after its one completion has been reaped. */
static int is_reported(struct ring *ring, int epoll) {
    ring_entry(ring, IORING_OP_NOP, 2);
    CHECK(ring_enter(ring->fd, 1, 0, 0) == 1);
    ring_seen(ring);
    struct epoll_event event;
    return epoll_wait(epoll, &event, 1, 0);
}

int main(int count, char **ways) {
    static const struct {
        const char *name;
        void (*function)(void);
    } all[] = {{"loop", by_loop},     {"range", by_range}, {"part", by_part},         {"unshared", unshared},
               {"number", by_number}, {"listed", listed},  {"replaced", replaced},
#ifdef __GLIBC__
               {"from", from},
#endif
               {"child", in_a_child}, {"instruction", by_instruction}, {"epoll", in_a_child}};
    CHECK(count == 2);
    struct ring ring;
    int ends[2], more[2], epoll = -1;
    CHECK(ring_open(&ring, 8, 0) == 0);
    if (!strcmp(ways[1], "epoll")) {
        struct epoll_event event = {.events = EPOLLIN};
        epoll = epoll_create1(0);
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.fd, &event) == 0);
    }
    CHECK(pipe(ends) == 0 && pipe(more) == 0);
    last = more[1];
    for (int round = 0; round < 2; round++) {
        /* Waits sleep in the engine's descriptors. */
        struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_POLL_ADD, 1);
        entry->fd = ends[0];
        entry->poll32_events = POLLIN;
        CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
        /* Makes a thread of the engine drive the ring. */
        struct timespec time = {.tv_nsec = 20000000};
        nanosleep(&time, 0);
        for (unsigned way = 0; way < sizeof all / sizeof *all; way++)
            if (!strcmp(all[way].name, ways[1]))
                all[way].function();
        CHECK(write(ends[1], "x", 1) == 1);
        CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
        struct io_uring_cqe *completion = ring_peek(&ring);
        CHECK(completion && completion->user_data == 1);
        printf("%s: %d\n", ways[1], completion->res);
        ring_seen(&ring);
        char byte;
        CHECK(read(ends[0], &byte, 1) == 1);
        if (epoll >= 0)
            printf("reported: %d\n", is_reported(&ring, epoll));
    }
    struct stat status;
    if (!strcmp(ways[1], "instruction"))
        CHECK(call_by_instruction(SYS_fstat, 512, (long)&status, 0, 0, 0, 0) == 0 && status.st_size == 0);
    return 0;
}
