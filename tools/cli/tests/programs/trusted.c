/* Prints whether the engine periodically checks the registrations by which requests wait: it does not if all closes are reported to it. The arguments
 * are the path of a library to load, which closes descriptors by instructions or is harmless, and the time to load it. -DLIBRARY builds the library that
 * closes descriptors, -DWAITING a program that loads none. With a single argument, the program only waits, and must not open files. */
#include "ring.h"
#include <fcntl.h>

#ifdef LIBRARY
int close_unseen(int fd) { return (int)call_by_instruction(SYS_close, fd, 0, 0, 0, 0, 0); }
#else
#include <dirent.h>
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <time.h>

static struct ring ring;
static int ends[2];
static char buffer[16];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Returns how often the engine's reactor thread has slept, or 0 if there is no such thread. */
static long sleeps(void) {
    long count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        int is_meant = 0;
        while (status && fgets(line, sizeof line, status)) {
            is_meant |= !strncmp(line, "Name:\tanyring-reactor", 21);
            if (is_meant)
                sscanf(line, "voluntary_ctxt_switches: %ld", &count);
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return count;
}

static void *write_later(void *pause_us) {
    for (int i = 0; i < 100; i++) {
        usleep((long)pause_us);
        CHECK(write(ends[1], "x", 1) == 1);
    }
    return 0;
}

static void read_begins(void) {
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, 7);
    entry->fd = ends[0];
    entry->addr = (uintptr_t)buffer;
    entry->len = 1;
}

static int completes(void) {
    struct io_uring_cqe *completion = ring_peek(&ring);
    CHECK(completion && completion->user_data == 7);
    int result = completion->res;
    ring_seen(&ring);
    return result;
}

/* Makes a hundred reads, each of which waits for longer than the interval of the checks. */
static void read_and_wait(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, write_later, (void *)5000l) == 0);
    for (int i = 0; i < 100; i++) {
        read_begins();
        CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1 && completes() == 1);
    }
    CHECK(pthread_join(thread, 0) == 0);
}

/* Returns how often the reactor thread sleeps during a hundred reads. */
static long read_hundred(void) {
    long before = sleeps();
    read_and_wait();
    return sleeps() - before;
}

/* Makes the kernel kill the process if it opens a file. */
static void forbid_opening(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Waits up to 20 seconds for the checks to end; returns whether they go on. */
static const char *checks(void) {
    for (double end = now() + 20; now() < end;)
        if (read_hundred() < 3)
            return "no checks";
    return "checks";
}

int main(int count, char **arguments) {
    CHECK(ring_open(&ring, 8, 0) == 0 && pipe(ends) == 0);
    if (count == 2) {
        forbid_opening();
        read_and_wait();
        printf("%s: alive\n", arguments[1]);
        return 0;
    }
    if (count < 3 || strcmp(arguments[2], "first"))
        printf("%s\n", checks());
    if (count < 2)
        return 0;
#ifndef WAITING
    /* In a separate link-map namespace there is a second C library, whose functions are not replaced. */
    int is_apart = count > 3;
    void *library = is_apart ? dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW) : dlopen(arguments[1], RTLD_NOW);
    CHECK(library);
    int (*close_unseen)(int) = (int (*)(int))dlsym(library, is_apart ? "close" : "close_unseen");
    if (!close_unseen) {
        printf("after %s was loaded: %s\n", "a harmless library", checks());
        return 0;
    }
    if (strcmp(arguments[2], "first"))
        printf("after a library was loaded that closes: %s\n", read_hundred() < 3 ? "no checks" : "checks");
    else
        printf("with a library that closes: %s\n", read_hundred() + read_hundred() < 3 ? "no checks" : "checks");

    /* Another file gets the number of the file for which a request waits. */
    read_begins();
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1 && !ring_peek(&ring));
    int kept = dup(ends[0]), others[2];
    CHECK(pipe(others) == 0 && write(others[1], "y", 1) == 1);
    CHECK(close_unseen(ends[0]) == 0 && fcntl(others[0], F_DUPFD, ends[0]) == ends[0]);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    printf("the request has ended\n");
    completes();
    close(kept);
#endif
    return 0;
}
#endif
