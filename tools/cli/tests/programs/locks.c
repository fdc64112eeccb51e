/* Many threads wait for a lock of a file, while others close, duplicate and use descriptors: those do not wait for them. */
#include "ring.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>

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

/* How many threads of this process sleep. */
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

int main(void) {
    struct ring ring;
    pthread_t threads[WAITERS];
    int holder = mkstemp(path);
    struct flock lock = whole(F_WRLCK);
    CHECK(holder >= 0 && fcntl(holder, F_OFD_SETLK, &lock) == 0);
    CHECK(ring_open(&ring, 8, 0) == 0 && ring_nop(&ring, 1) == 0);
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
