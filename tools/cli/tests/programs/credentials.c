/* Requests are carried out with the credentials of their submitter, or of the named personality, and no thread
 * keeps credentials that the process gives up. The argument names the way in which the credentials change. */
#include "ring.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define NOBODY 65534

static char directory[64], file[128];
static pthread_barrier_t barrier;

/* Submits the requests in the ring, and waits for `count` completions; returns the last result. */
static int run(struct ring *ring, unsigned submit, unsigned count) {
    CHECK(ring_enter(ring->fd, submit, count, IORING_ENTER_GETEVENTS) == (long)submit);
    int result = 0;
    for (unsigned i = 0; i < count; i++) {
        struct io_uring_cqe *completion = ring_peek(ring);
        CHECK(completion);
        result = completion->res;
        ring_seen(ring);
    }
    return result;
}

static struct io_uring_sqe *open_entry(struct ring *ring, unsigned flags, unsigned personality) {
    struct io_uring_sqe *entry = ring_entry(ring, IORING_OP_OPENAT, 2);
    entry->fd = AT_FDCWD;
    entry->addr = (uintptr_t)file;
    entry->open_flags = O_RDONLY;
    entry->flags = flags;
    entry->personality = personality;
    return entry;
}

static int opened(int result) {
    if (result >= 0) {
        close(result);
        return 0;
    }
    return result;
}

static int open_by(struct ring *ring, unsigned flags, unsigned personality) {
    open_entry(ring, flags, personality);
    return opened(run(ring, 1, 1));
}

static int unlink_by(struct ring *ring, unsigned flags) {
    struct io_uring_sqe *entry = ring_entry(ring, IORING_OP_UNLINKAT, 3);
    entry->fd = AT_FDCWD;
    entry->addr = (uintptr_t)file;
    entry->flags = flags;
    return run(ring, 1, 1);
}

static void *bystander(void *unused) {
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

/* Counts threads of this process whose status has `line`, except cloners. The kernel's own workers
 * are not counted: they cannot be changed. */
static int threads_with(const char *line) {
    int found = 0;
    if (!getenv("LD_PRELOAD"))
        return 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], text[4096] = {0};
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        int status = open(path, O_RDONLY);
        if (status < 0)
            continue;
        /* A worker may end meanwhile. */
        CHECK(read(status, text, sizeof text - 1) >= 0 || errno == ESRCH);
        close(status);
        found += strstr(text, line) && !strstr(text, "iou-cloner");
    }
    closedir(tasks);
    return found;
}

/* All threads of the C library change; a personality from before remains. */
static void by_setuid(struct ring *ring, int personality) {
    pthread_t threads[3];
    pthread_barrier_init(&barrier, 0, 4);
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], 0, bystander, 0));
    pthread_barrier_wait(&barrier);
    /* Workers of both kinds, and a request that waits. */
    int pipe_ends[2];
    CHECK(!pipe(pipe_ends));
    struct io_uring_sqe *entry = ring_entry(ring, IORING_OP_POLL_ADD, 1);
    entry->fd = pipe_ends[0];
    entry->poll32_events = 1;
    entry->flags = IOSQE_IO_LINK;
    open_entry(ring, 0, 0);
    CHECK(ring_enter(ring->fd, 2, 0, 0) == 2);
    printf("before: %d\n", open_by(ring, IOSQE_ASYNC, 0));
    int id = personality ? ring_call(SYS_io_uring_register, ring->fd, IORING_REGISTER_PERSONALITY, 0, 0, 0, 0) : 0;
    CHECK(!setgid(NOBODY) && !setuid(NOBODY));
    CHECK(!threads_with("Uid:\t0") && !threads_with("CapPrm:\t000001"));
    printf("after: %d\n", open_by(ring, 0, 0));
    printf("by a worker: %d, %d\n", open_by(ring, IOSQE_ASYNC, 0), unlink_by(ring, IOSQE_ASYNC));
    CHECK(write(pipe_ends[1], "x", 1) == 1);
    printf("of a chain from before: %d\n", opened(run(ring, 0, 2)));
    if (personality) {
        printf("personality %d: %d, %d\n", id, open_by(ring, 0, id), open_by(ring, IOSQE_ASYNC, id));
        ring_entry(ring, IORING_OP_NOP, 1)->flags = IOSQE_IO_LINK;
        open_entry(ring, 0, id);
        printf("behind another: %d\n", opened(run(ring, 2, 2)));
        printf("and then: %d, unknown: %d\n", open_by(ring, IOSQE_ASYNC, 0), open_by(ring, 0, id + 1));
        for (int i = 0; i < 2; i++)
            printf("unregistered: %ld\n", ring_call(SYS_io_uring_register, ring->fd,
                                                     IORING_UNREGISTER_PERSONALITY, 0, id, 0, 0));
        printf("gone: %d\n", open_by(ring, 0, id));
    }
    /* The threads of the personality end some time after it. */
    while (threads_with("Uid:\t0"))
        usleep(1000);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
}

static void by_capset(struct ring *ring) {
    printf("before: %d\n", open_by(ring, IOSQE_ASYNC, 0));
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {0};
    CHECK(!chown(file, 1, 1));
    CHECK(!syscall(SYS_capset, &header, none));
    CHECK(!threads_with("CapPrm:\t000001"));
    printf("after: %d\n", open_by(ring, IOSQE_ASYNC, 0));
}

static struct ring shared;
static int pipe_ends[2];

/* Changes the calling thread's file system user ID, and tests its rights on a ring of its own and on a shared one. */
static void *with_fsuid(void *unused) {
    struct ring ring;
    CHECK(!ring_open(&ring, 4, 0));
    printf("own ring, before: %d\n", open_by(&ring, IOSQE_ASYNC, 0));
    setfsuid(NOBODY);
    printf("own ring: %d, %d\n", open_by(&ring, 0, 0), open_by(&ring, IOSQE_ASYNC, 0));
    printf("shared ring: %d\n", open_by(&shared, IOSQE_ASYNC, 0));
    struct io_uring_sqe *entry = ring_entry(&shared, IORING_OP_POLL_ADD, 1);
    entry->fd = pipe_ends[0];
    entry->poll32_events = 1;
    entry->flags = IOSQE_IO_LINK;
    open_entry(&shared, 0, 0);
    CHECK(ring_enter(shared.fd, 2, 0, 0) == 2);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    setfsuid(0);
    printf("own ring, after: %d, %d\n", open_by(&ring, 0, 0), open_by(&ring, IOSQE_ASYNC, 0));
    return unused;
}

static void by_fsuid(struct ring *ring) {
    CHECK(!ring_open(&shared, 4, 0) && !pipe(pipe_ends));
    pthread_barrier_init(&barrier, 0, 2);
    printf("before: %d\n", open_by(ring, IOSQE_ASYNC, 0));
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, with_fsuid, 0));
    pthread_barrier_wait(&barrier);
    printf("another thread: %d\n", open_by(ring, IOSQE_ASYNC, 0));
    CHECK(write(pipe_ends[1], "x", 1) == 1);
    printf("done by another: %d\n", opened(run(&shared, 0, 2)));
    printf("shared ring, another: %d\n", open_by(&shared, IOSQE_ASYNC, 0));
    pthread_barrier_wait(&barrier);
    pthread_join(thread, 0);
    printf("after: %d\n", open_by(ring, IOSQE_ASYNC, 0));
}

/* Waits until the SQ thread has done one request. */
static int polled(struct ring *ring) {
    CHECK(ring_enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP) == 1);
    return run(ring, 0, 1);
}

static void by_sq_thread(struct ring *unused) {
    struct ring ring;
    (void)unused;
    CHECK(!ring_open_with(&ring, 4, 0, IORING_SETUP_SQPOLL));
    open_entry(&ring, 0, 0);
    printf("before: %d\n", opened(polled(&ring)));
    CHECK(!setuid(NOBODY));
    open_entry(&ring, 0, 0);
    printf("after: %d\n", opened(polled(&ring)));
    /* A thread that was at work when its process gave up the credentials ends after that work. */
    while (threads_with("Uid:\t0"))
        usleep(1000);
}

int main(int count, char **arguments) {
    struct ring ring;
    CHECK(count == 2);
    if (geteuid() != 0) {
        puts("not root: nothing to give up");
        return 0;
    }
    const char *mode = arguments[1];
    snprintf(directory, sizeof directory, "/tmp/anyring-credentials-%d", getpid());
    CHECK(!mkdir(directory, 0755));
    snprintf(file, sizeof file, "%s/secret", directory);
    int made = open(file, O_CREAT | O_WRONLY, 0600);
    CHECK(made >= 0);
    close(made);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setvbuf(stdout, 0, _IOLBF, 0);
        CHECK(!ring_open(&ring, 8, 0));
        if (!strcmp(mode, "setuid"))
            by_setuid(&ring, 0);
        else if (!strcmp(mode, "personality"))
            by_setuid(&ring, 1);
        else if (!strcmp(mode, "capset"))
            by_capset(&ring);
        else if (!strcmp(mode, "fsuid"))
            by_fsuid(&ring);
        else
            by_sq_thread(&ring);
        exit(0);
    }
    /* The child cannot remove its files itself. */
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    unlink(file);
    CHECK(!rmdir(directory));
    return status == 0 ? 0 : 1;
}
