/* Many threads wait for a file lock, while the main thread closes, duplicates and uses descriptors, and must not have to wait. Signal handlers run while
 * a process waits for another process's lock, and end the wait or not, depending on SA_RESTART. A
 * lock of the process stays while a ring reads the file from the device. */
#include "ring.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { WAITERS = 64 };
static char path[] = "/tmp/anyring-locks-XXXXXX";
static int waiting, taken;

static struct flock whole(short kind) { return (struct flock){.l_type = kind, .l_whence = SEEK_SET}; }

static void *wait_for_lock(void *unused) {
    int fd = open(path, O_RDWR);
    struct flock lock = whole(F_RDLCK);
    CHECK(fd >= 0);
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    CHECK(fcntl(fd, F_OFD_SETLKW, &lock) == 0);
    __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
    return unused;
}

/* Returns how many threads of this process sleep. */
static int asleep(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char name[300], line[600] = "";
        snprintf(name, sizeof name, "/proc/self/task/%s/stat", task->d_name);
        FILE *status = fopen(name, "r");
        count += status && fgets(line, sizeof line, status) && strstr(line, ") S ");
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return count;
}

static int to_holder[2];

static void nothing(int signal) { (void)signal; }

static void let_go(int signal) {
    (void)signal;
    CHECK(write(to_holder[1], "", 1) == 1);
}

/* Waits for a lock that a child has, while a timer sends signals; returns 0 or the errno. */
static int wait_among_signals(int fd, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {0};
    struct flock lock = whole(F_WRLCK);
    CHECK(sigaction(SIGALRM, &action, 0) == 0 && setitimer(ITIMER_REAL, &often, 0) == 0);
    int result = fcntl(fd, F_SETLKW, &lock), error = errno;
    CHECK(setitimer(ITIMER_REAL, &never, 0) == 0);
    return result == 0 ? 0 : error;
}

static void wait_for_another_process(void) {
    int from_holder[2], fd = open(path, O_RDWR);
    char byte;
    CHECK(fd >= 0 && pipe(to_holder) == 0 && pipe(from_holder) == 0);
    pid_t holder = fork();
    CHECK(holder >= 0);
    if (holder == 0) {
        struct flock lock = whole(F_WRLCK);
        CHECK(fcntl(fd, F_SETLK, &lock) == 0 && write(from_holder[1], "", 1) == 1);
        CHECK(read(to_holder[0], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(read(from_holder[0], &byte, 1) == 1);
    printf("interrupted: %d\n", wait_among_signals(fd, nothing, 0) == EINTR);
    printf("taken in the end: %d\n", wait_among_signals(fd, let_go, SA_RESTART) == 0);
    CHECK(waitpid(holder, 0, 0) == holder && close(fd) == 0);
}

/* Whether another process meets a lock of this one. */
static int is_locked(void) {
    int status;
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        int fd = open(path, O_RDWR);
        struct flock lock = whole(F_WRLCK);
        CHECK(fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0);
        _exit(lock.l_type != F_UNLCK);
    }
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Any close of a duplicate takes the locks that the process has by fcntl. */
static void read_locked(struct ring *ring) {
    enum { LENGTH = 1 << 20, READ = 4096 };
    static char data[LENGTH];
    int fd = open(path, O_RDWR);
    struct flock lock = whole(F_WRLCK);
    CHECK(fd >= 0 && write(fd, data, LENGTH) == LENGTH && fdatasync(fd) == 0);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && fcntl(fd, F_SETLK, &lock) == 0);
    for (int i = 0; i < 8; i++) {
        struct io_uring_sqe *entry = ring_entry(ring, IORING_OP_READ, 2);
        entry->fd = fd;
        entry->addr = (uintptr_t)data;
        entry->len = READ;
        entry->off = (uint64_t)(LENGTH / 8) * (7 - i);
    }
    CHECK(ring_enter(ring->fd, 8, 8, IORING_ENTER_GETEVENTS) == 8);
    for (int i = 0; i < 8; i++) {
        CHECK(ring_peek(ring)->res == READ);
        ring_seen(ring);
    }
    printf("locked: %d\n", is_locked());
    CHECK(close(fd) == 0);
}

int main(void) {
    struct ring ring;
    pthread_t threads[WAITERS];
    int holder = mkstemp(path);
    struct flock lock = whole(F_WRLCK);
    CHECK(holder >= 0 && ring_open(&ring, 8, 0) == 0 && ring_nop(&ring, 1) == 0);
    wait_for_another_process();
    read_locked(&ring);
    CHECK(fcntl(holder, F_OFD_SETLK, &lock) == 0);
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_create(&threads[i], 0, wait_for_lock, 0) == 0);
    while (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) < WAITERS || asleep() < WAITERS)
        usleep(1000);
    for (int i = 0; i < 100; i++) {
        int copy = dup(holder), other = fcntl(holder, F_DUPFD, 20);
        CHECK(copy >= 0 && other >= 20 && dup2(copy, other) == other);
        CHECK(close(copy) == 0 && close(other) == 0 && ring_nop(&ring, 1) == 0);
    }
    printf("locks taken meanwhile: %d\n", taken);
    lock = whole(F_UNLCK);
    CHECK(fcntl(holder, F_OFD_SETLK, &lock) == 0);
    for (int i = 0; i < WAITERS; i++)
        CHECK(pthread_join(threads[i], 0) == 0);
    printf("and then: %d\n", taken);
    unlink(path);
    return 0;
}
