/* What a program does in a sandbox that permits its own calls, and those that docs/system-calls.md lists: nothing, work on a ring,
 * work in a child, or another program. */
#include "ring.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

static struct ring ring;
static int ends[2];

static void wait_for(unsigned count) {
    while (count > 0) {
        for (; ring_peek(&ring); count--)
            ring_seen(&ring);
        if (count > 0)
            CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) >= 0);
    }
}

/* From here on only the calls in a list are permitted, by their numbers; others end the process. */
static void confine(const char *list) {
    static struct sock_filter code[512];
    unsigned short length = 0;
    code[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
    for (const char *at = list; *at; at += *at == ',') {
        char *end;
        unsigned number = strtoul(at, &end, 10);
        CHECK(end > at && length < 500);
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        at = end;
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {length, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void *writes(void *unused) {
    struct timespec soon = {.tv_nsec = 20000000};
    nanosleep(&soon, 0);
    CHECK(write(ends[1], "x", 1) == 1);
    return unused;
}

/* A completion during submission, one at a timeout, and one by another thread while no thread is in a call. */
static void use_ring(void) {
    struct timespec soon = {.tv_nsec = 1000000};
    pthread_t thread;
    CHECK(ring_nop(&ring, 1) == 0);
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_TIMEOUT, 2);
    entry->addr = (uintptr_t)&soon;
    entry->len = 1;
    entry = ring_entry(&ring, IORING_OP_POLL_ADD, 3);
    entry->fd = ends[0];
    entry->poll_events = POLLIN;
    CHECK(ring_enter(ring.fd, 2, 0, 0) == 2);
    CHECK(pthread_create(&thread, 0, writes, 0) == 0);
    wait_for(2);
    CHECK(pthread_join(thread, 0) == 0);
    entry = ring_entry(&ring, IORING_OP_POLL_ADD, 4);
    entry->fd = ends[0];
    entry->poll_events = POLLOUT;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    /* The reactor drives it until it is cancelled. */
    soon.tv_nsec = 30000000;
    nanosleep(&soon, 0);
    entry = ring_entry(&ring, IORING_OP_ASYNC_CANCEL, 5);
    entry->addr = 4;
    CHECK(ring_enter(ring.fd, 1, 2, IORING_ENTER_GETEVENTS) == 1);
    wait_for(2);
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "start", *list = getenv("LISTED");
    if (!strcmp(what, "outside")) {
        /* The start of a program must work with the list, too. */
        char *again[] = {arguments[0], arguments[2], 0};
        unsetenv("LISTED");
        if (getenv("INSIDE"))
            setenv("LD_PRELOAD", getenv("INSIDE"), 1);
        confine(list);
        execv(arguments[0], again);
        return 1;
    }
    if (list)
        confine(list);
    if (!strcmp(what, "start"))
        return 0;
    CHECK(pipe(ends) == 0);
    CHECK(ring_open(&ring, 8, 0) == 0);
    use_ring();
    if (!strcmp(what, "child")) {
        int status;
        pid_t child = fork();
        if (child == 0)
            _exit(ring_nop(&ring, 1));
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    if (!strcmp(what, "program")) {
        char *again[] = {arguments[0], "start", 0};
        unsetenv("LISTED");
        execv(arguments[0], again);
        return 1;
    }
    CHECK(close(ring.fd) == 0);
    return 0;
}
