/* Rings after fork, and in programs that this one starts, with and without an environment. */
#include "ring.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static void finish(const char *what, pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

int main(int count, char **arguments) {
    struct ring ring;
    CHECK(ring_open(&ring, 8, 0) == 0);
    if (count > 1) {
        CHECK(ring_nop(&ring, 1) == 0);
        return atoi(arguments[1]);
    }
    CHECK(ring_nop(&ring, 2) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct ring own;
        CHECK(ring_open(&own, 8, 1) == 0 && ring_nop(&own, 3) == 0);
        _exit(31);
    }
    finish("a ring of a forked child's own", child);
    CHECK(ring_nop(&ring, 4) == 0);

    char *self = "/proc/self/exe", *nothing[] = {0}, *call[] = {arguments[0], "32", 0};
    if ((child = fork()) == 0) {
        execve(self, call, nothing);
        _exit(98);
    }
    finish("execve without an environment", child);
    if ((child = fork()) == 0) {
        execle(self, arguments[0], "36", (char *)0, nothing);
        _exit(98);
    }
    finish("execle without an environment", child);
    if ((child = vfork()) == 0) {
        execv(self, call);
        _exit(98);
    }
    finish("vfork and execv", child);
    if ((child = vfork()) == 0) {
        close(ring.fd);
        execv(self, call);
        _exit(98);
    }
    finish("vfork, a ring closed in the child", child);
    CHECK(ring_nop(&ring, 5) == 0);
    CHECK(posix_spawn(&child, self, 0, 0, call, nothing) == 0);
    finish("posix_spawn without an environment", child);
    char *preload[] = {"LD_PRELOAD=", 0};
    CHECK(posix_spawn(&child, self, 0, 0, call, preload) == 0);
    finish("posix_spawn with an LD_PRELOAD of its own", child);
    posix_spawnattr_t attributes;
    sigset_t all;
    sigfillset(&all);
    CHECK(posix_spawnattr_init(&attributes) == 0 && posix_spawnattr_setsigdefault(&attributes, &all) == 0);
    CHECK(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF) == 0);
    CHECK(posix_spawn(&child, self, 0, &attributes, call, environ) == 0);
    finish("posix_spawn with every signal reset", child);
    char command[4096];
    snprintf(command, sizeof command, "'%s' 33", arguments[0]);
    int status = system(command);
    printf("system: exit %d\n", WEXITSTATUS(status));
    fflush(stdout);
    CHECK(clearenv() == 0);
    status = system(command);
    printf("system without an environment: exit %d\n", WEXITSTATUS(status));
    fflush(stdout);
    FILE *pipe = popen(command, "r");
    for (int byte; (byte = fgetc(pipe)) != EOF;) putchar(byte);
    printf("popen without an environment: exit %d\n", WEXITSTATUS(pclose(pipe)));
    return 34;
}
