/* Children that are created, and programs that are executed, while the engine temporarily lifts a limit: they have the limits that
 * the program has set. */
#include "ring.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { LIMIT = 64, BYTES = 1 << 17, ROUNDS = 60 };

static struct ring ring;
static char *self;
static int stops;

static int is_low(void) {
    struct rlimit limit, size;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && getrlimit(RLIMIT_FSIZE, &size) == 0);
    return limit.rlim_cur == LIMIT && size.rlim_cur == BYTES;
}

static int child(void *unused) {
    (void)unused;
    _exit(is_low() ? 7 : 8);
}

/* A file in a slot is a descriptor of the engine. */
static void *fills_a_slot(void *unused) {
    (void)unused;
    int file = 0;
    struct io_uring_files_update update = {.offset = 0, .fds = (uintptr_t)&file};
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED))
        CHECK(ring_register(ring.fd, IORING_REGISTER_FILES_UPDATE, &update, 1) == 1);
    return 0;
}

/* The file of a ring is longer than the program's files may be. */
static void *makes_rings(void *unused) {
    (void)unused;
    while (!__atomic_load_n(&stops, __ATOMIC_RELAXED)) {
        struct io_uring_params params = {0};
        int fd = ring_setup(8, &params);
        CHECK(fd >= 0 && close(fd) == 0);
    }
    return 0;
}

static pid_t makes(const char *way) {
    if (!strcmp(way, "fork") || !strcmp(way, "first")) {
        pid_t made = fork();
        return made ? made : child(0);
    }
    if (!strcmp(way, "_Fork")) {
        pid_t made = _Fork();
        return made ? made : child(0);
    }
    if (!strcmp(way, "number")) {
        pid_t made = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        return made ? made : child(0);
    }
    if (!strcmp(way, "clone")) {
        static char stack[1 << 16] __attribute__((aligned(16)));
        return clone(child, stack + sizeof stack, SIGCHLD, 0);
    }
    pid_t made;
    char *arguments[] = {self, "is low", 0};
    extern char **environ;
    CHECK(posix_spawn(&made, self, 0, 0, arguments, environ) == 0);
    return made;
}

static int status_of(const char *way) {
    char command[4200];
    snprintf(command, sizeof command, "test \"$(ulimit -Sn)\" = %d && exit 7", LIMIT);
    if (!strcmp(way, "system"))
        return system(command);
    if (!strcmp(way, "popen"))
        return pclose(popen(command, "r"));
    int status;
    pid_t made = makes(way);
    CHECK(made > 0 && waitpid(made, &status, 0) == made);
    return status;
}

int main(int count, char **arguments) {
    self = arguments[0];
    const char *way = arguments[1];
    if (!strcmp(way, "is low"))
        return child(0);
    int round = count > 2 ? atoi(arguments[2]) : 0;
    struct rlimit limit = {LIMIT, 4096}, size = {BYTES, RLIM_INFINITY};
    CHECK(round ? is_low() : !setrlimit(RLIMIT_NOFILE, &limit) && !setrlimit(RLIMIT_FSIZE, &size));
    void *(*lifts)(void *) = makes_rings;
    if (strcmp(way, "first")) {
        int none = -1;
        lifts = fills_a_slot;
        CHECK(ring_open(&ring, 8, 0) == 0);
        CHECK(ring_register(ring.fd, IORING_REGISTER_FILES, &none, 1) == 0);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, lifts, 0) == 0);
    if (!strncmp(way, "exec", 4)) {
        char next[16], *again[] = {self, (char *)way, next, 0};
        extern char **environ;
        snprintf(next, sizeof next, "%d", round + 1);
        usleep(1000);
        if (round < ROUNDS && !strcmp(way, "exec number"))
            syscall(SYS_execve, self, again, environ);
        else if (round < ROUNDS)
            execv(self, again);
    } else {
        for (; round < ROUNDS; round++) {
            int status = status_of(way);
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        }
    }
    __atomic_store_n(&stops, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(thread, 0) == 0);
    printf("%s: as the program has set it\n", way);
    return 0;
}
