/* A library whose constructor waits for a thread that calls replaced functions. The functions must have been looked up at the program's start, because
 * the thread that loads a library holds the dynamic linker's lock. Signal handlers and children of _Fork may call them, too. */
#include "ring.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#ifdef LIBRARY
static int ends(void *unused) {
    (void)unused;
    _exit(0);
}

static void *calls(void *unused) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    struct mmsghdr message = {0};
    struct epoll_event event;
    struct sigaction action;
    char *none[] = {"/nowhere", 0};
    pid_t child = _Fork();
    if (child == 0)
        _exit(execve(none[0], none, none) == -1 ? 7 : 8);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    CHECK((child = clone(ends, stack + sizeof stack, SIGCHLD, 0)) > 0 && waitpid(child, 0, 0) == child);
    CHECK(posix_spawn(&child, none[0], 0, 0, none, none) == ENOENT);
    CHECK(recvmsg(-1, &message.msg_hdr, 0) == -1 && recvmmsg(-1, &message, 1, 0, 0) == -1);
    CHECK(sendmsg(-1, &message.msg_hdr, 0) == -1 && sendmmsg(-1, &message, 1, 0) == -1);
    CHECK(setsockopt(-1, SOL_SOCKET, SO_LINGER, 0, 0) == -1 && unshare(0) == 0);
    CHECK(close(-1) == -1 && dup(-1) == -1 && dup2(-1, 1) == -1 && dup3(-1, 1, 0) == -1 && fcntl(-1, F_GETFD) == -1);
    CHECK(poll(0, 0, 0) == 0 && select(0, 0, 0, 0, &(struct timeval){0}) == 0);
    CHECK(pselect(0, 0, 0, 0, &(struct timespec){0}, 0) == 0 && ppoll(0, 0, &(struct timespec){0}, 0) == 0);
    CHECK(epoll_wait(-1, &event, 1, 0) == -1 && epoll_pwait(-1, &event, 1, 0, 0) == -1 && epoll_ctl(-1, EPOLL_CTL_DEL, 0, 0) == -1);
    CHECK(sigaction(SIGUSR1, 0, &action) == 0 && sigprocmask(SIG_BLOCK, 0, 0) == 0 && sigpending(&action.sa_mask) == 0);
    return unused;
}

__attribute__((constructor)) static void waits(void) {
    pthread_t thread;
    struct timespec until;
    CHECK(pthread_create(&thread, 0, calls, 0) == 0 && clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 20;
    CHECK(pthread_timedjoin_np(thread, 0, &until) == 0);
}
#else
int main(int count, char **arguments) {
    CHECK(count == 2 && !dlerror() && dlopen(arguments[1], RTLD_NOW));
    puts("loaded");
    return 0;
}
#endif
