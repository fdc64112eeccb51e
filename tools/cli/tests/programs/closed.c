/* A connection that is closed with a zero-copy send in flight, of which the peer has read little: SO_LINGER requests a reset, which
 * comes immediately if no other process has the socket, and not otherwise. */
#include "ring.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern char **environ;
enum { LARGE = 256 << 10 };
static struct ring ring;
static char memory[LARGE], *own_path;
/* The socket, its peer, and a pipe whose end tells holders to end. */
static int near, far, lives[2], messages[2];

static void connect_both(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000002)};
    socklen_t length = sizeof address;
    int small = 16 << 10, large = 4 << 20, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    CHECK(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    near = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(near, SOL_SOCKET, SO_SNDBUF, &large, sizeof large) == 0);
    CHECK(connect(near, (void *)&address, sizeof address) == 0);
    far = accept4(listener, 0, 0, SOCK_CLOEXEC);
    CHECK(far >= 0 && close(listener) == 0);
    struct linger linger = {1, 0};
    CHECK(setsockopt(near, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
}

static void send_all(void) {
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_SEND_ZC, 1);
    entry->fd = near;
    entry->addr = (uintptr_t)memory;
    entry->len = LARGE;
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    struct io_uring_cqe *completion;
    /* Notifications of earlier sends may be in the CQ. */
    while ((completion = ring_peek(&ring)) && completion->flags & IORING_CQE_F_NOTIF)
        ring_seen(&ring);
    CHECK(completion && completion->res == LARGE);
    ring_seen(&ring);
}

/* Keeps its descriptors until the pipe ends. */
static int hold(void *unused) {
    char byte;
    (void)unused;
    close(lives[1]);
    _exit(read(lives[0], &byte, 1) == 0 ? 0 : 1);
}

static union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
} control;
static char byte = 'x';
static struct iovec vector = {&byte, 1};
static struct msghdr message;

static struct msghdr *with_socket(void) {
    message = (struct msghdr){.msg_iov = &vector, .msg_iovlen = 1};
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    control.header = (struct cmsghdr){CMSG_LEN(sizeof near), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &near, sizeof near);
    return &message;
}

static void spawn_by(int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                                  const posix_spawnattr_t *, char *const *, char *const *)) {
    pid_t child;
    char number[16];
    snprintf(number, sizeof number, "%d", lives[0]);
    char *arguments[] = {own_path, "hold", number, 0};
    CHECK(spawn(&child, own_path, 0, 0, arguments, environ) == 0);
}

static void *own_descriptors(void *unused) {
    CHECK(unshare(CLONE_FILES) == 0);
    close(near);
    return unused;
}

static char stack[64 << 10] __attribute__((aligned(64)));

/* Gives the socket to another process, and closes it. */
static void hand_over(const char *way) {
    pid_t child = 1;
    char command[64];
    if (!strcmp(way, "fork"))
        child = fork();
    else if (!strcmp(way, "clone"))
        CHECK(clone(hold, stack + sizeof stack, SIGCHLD, 0) > 0);
    else if (!strcmp(way, "number"))
        child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
#ifndef BY_LIBC
    else if (!strcmp(way, "instruction"))
        child = ring_call(SYS_clone, SIGCHLD, 0, 0, 0, 0, 0);
#endif
    else if (!strcmp(way, "spawn"))
        spawn_by(posix_spawn);
    else if (!strcmp(way, "spawnp"))
        spawn_by(posix_spawnp);
    else if (!strcmp(way, "system")) {
        snprintf(command, sizeof command, "cat <&%d &", lives[0]);
        CHECK(system(command) == 0);
    } else if (!strcmp(way, "popen")) {
        snprintf(command, sizeof command, "exec cat <&%d", lives[0]);
        CHECK(popen(command, "r"));
    } else if (!strcmp(way, "message"))
        CHECK(sendmsg(messages[0], with_socket(), 0) == 1);
    else if (!strcmp(way, "messages")) {
        struct mmsghdr one = {.msg_hdr = *with_socket()};
        CHECK(syscall(SYS_sendmmsg, messages[0], &one, 1, 0) == 1);
    } else if (!strcmp(way, "received")) {
        child = fork();
        if (child == 0)
            CHECK(sendmsg(messages[0], with_socket(), 0) == 1);
        else {
            close(near);
            with_socket();
            CHECK(recvmsg(messages[1], &message, 0) == 1);
            memcpy(&near, CMSG_DATA(&control.header), sizeof near);
        }
    } else if (!strcmp(way, "duplicate"))
        CHECK(dup2(near, 1500) == 1500);
    else if (!strcmp(way, "nothing"))
        CHECK(dup2(-1, near) == -1);
    else
        CHECK(!strcmp(way, "alone"));
    if (child == 0)
        hold(0);
}

static void run(const char *way, int sends_first) {
    CHECK(pipe2(lives, 0) == 0 && fcntl(lives[1], F_SETFD, FD_CLOEXEC) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, messages) == 0);
    connect_both();
    if (sends_first)
        send_all();
    pthread_t thread;
    if (!strcmp(way, "thread")) {
        if (!sends_first)
            send_all();
        CHECK(pthread_create(&thread, 0, own_descriptors, 0) == 0 && pthread_join(thread, 0) == 0);
    } else {
        hand_over(way);
        if (!sends_first)
            send_all();
        if (strcmp(way, "nothing"))
            CHECK(close(near) == 0);
    }
    size_t received = 0;
    if (strcmp(way, "alone")) {
        char block[8192];
        for (ssize_t count; received < LARGE && (count = recv(far, block, sizeof block, 0)) > 0;)
            received += count;
        printf("%s %d: %s\n", way, sends_first, received == LARGE ? "goes on" : "is reset");
    } else {
        struct pollfd poll_far = {far, 0, 0};
        int ends = poll(&poll_far, 1, 20000) == 1 && poll_far.revents & POLLERR;
        printf("%s %d: %s\n", way, sends_first, ends ? "is reset" : "goes on");
    }
    close(lives[0]);
    close(lives[1]);
    close(messages[0]);
    close(messages[1]);
    close(1500);
    close(near);
    close(far);
}

int main(int count, char **arguments) {
    if (count > 2 && !strcmp(arguments[1], "hold")) {
        lives[0] = atoi(arguments[2]), lives[1] = -1;
        hold(0);
    }
    own_path = arguments[0];
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 2048;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(ring_open(&ring, 64, 0) == 0);
#ifdef BY_LIBC
    const char *ways[] = {"alone", "fork",     "clone",    "number",   "spawn",     "spawnp", "system",
                          "popen", "message",  "messages", "received", "duplicate", "thread", "nothing"};
#else
    const char *ways[] = {"instruction"};
#endif
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int sends_first = 0; sends_first < 2; sends_first++)
            run(ways[i], sends_first);
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    return 0;
}
