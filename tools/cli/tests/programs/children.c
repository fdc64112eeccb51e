/* Children created by every call, with rings, and programs that they execute: what they inherit from their parent, and that its ring works after them. */
#include "ring.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static struct ring ring;

static void finish(const char *what, pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
    CHECK(ring_nop(&ring, 1) == 0);
}

/* The executed program prints its signal mask and its pending signal. */
static int executed(void) {
    sigset_t mask, pending;
    struct ring own;
    CHECK(sigprocmask(SIG_SETMASK, 0, &mask) == 0 && sigpending(&pending) == 0);
    CHECK(ring_open(&own, 8, 0) == 0 && ring_nop(&own, 2) == 0);
    printf("blocked %d %d, pending %d\n", sigismember(&mask, SIGUSR1), sigismember(&mask, SIGUSR2),
           sigismember(&pending, SIGUSR1));
    return 7;
}

int main(int count, char **arguments) {
    if (count > 1)
        return executed();
    char *self = arguments[0], *call[] = {self, "executed", 0}, *none = "/nonexistent";
    pid_t child;
    CHECK(ring_open(&ring, 8, 1) == 0 && ring_nop(&ring, 0) == 0);
    for (int i = 0; i < 3; i++) {
        if ((child = fork()) == 0) {
            struct ring own;
            CHECK(ring_open(&own, 8, 4) == 0 && ring_nop(&own, 5) == 0);
            _exit(i + 1);
        }
        finish("fork", child);
    }
    /* SIGUSR1 is blocked and pending, SIGUSR2 is neither. */
    if ((child = fork()) == 0) {
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGUSR1);
        CHECK(sigprocmask(SIG_BLOCK, &mask, 0) == 0 && raise(SIGUSR1) == 0);
        CHECK(execve(none, call, environ) == -1 && errno == ENOENT);
        execve(self, call, environ);
        _exit(98);
    }
    finish("fork and execve", child);
    int fd = open(self, O_RDONLY);
    if ((child = fork()) == 0) {
        fexecve(fd, call, environ);
        _exit(98);
    }
    finish("fork and fexecve", child);
    /* Children of vfork share this memory: the counter shows their changes. There are more of them than the engine has stacks. */
    volatile int seen = 0;
    for (int i = 0; i < 200; i++) {
        if ((child = vfork()) == 0) {
            seen++;
            if (i % 2)
                execve(none, call, environ);
            _exit(8);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 8);
    }
    printf("vfork: %d\n", seen);
    if ((child = vfork()) == 0) {
        execve(self, call, environ);
        _exit(98);
    }
    finish("vfork and execve", child);
    CHECK(posix_spawn(&child, self, 0, 0, call, environ) == 0);
    finish("posix_spawn", child);
    return 9;
}
