/* Several processes, each with a ring that the first process created before it forked. A process that needs a page that
 * another has requested takes the lock of that one's ring and waits for the completion there; results lie in shared
 * memory. Then processes that end with requests in flight. */
#include "ring.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

enum { BACKENDS = 4, SLOTS = 8, ROUNDS = 300, PAGE = 4096, PAGES = 256 };

struct io {
    uint64_t offset; /* of the page that is being read */
    int result;
    int done;
};

struct backend {
    struct ring ring;
    pthread_mutex_t lock; /* of the completion side, and of what follows */
    struct io ios[SLOTS];
    int pipe[2], ready[2], over[2];
    uint64_t pages[SLOTS][PAGE / 8];
};

static struct backend *backends;
static int file = -1;

static void lock(struct backend *backend) { CHECK(pthread_mutex_lock(&backend->lock) == 0); }
static void unlock(struct backend *backend) { CHECK(pthread_mutex_unlock(&backend->lock) == 0); }

/* Reaps available completions. The caller holds the lock. */
static int drain(struct backend *backend) {
    int count = 0;
    struct io_uring_cqe *completion;
    while ((completion = ring_peek(&backend->ring))) {
        struct io *io = &backend->ios[completion->user_data];
        CHECK(!io->done);
        io->result = completion->res;
        io->done = 1;
        ring_seen(&backend->ring);
        count++;
    }
    return count;
}

/* Waits for a request of any backend. */
static void finish(struct backend *backend, int slot) {
    lock(backend);
    while (!backend->ios[slot].done)
        if (!drain(backend)) {
            long entered = ring_enter(backend->ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
            CHECK(entered >= 0 || entered == -EINTR);
        }
    unlock(backend);
}

static void start_read(struct backend *backend, int slot, int fd, uint64_t offset, unsigned length) {
    backend->ios[slot] = (struct io){.offset = offset};
    struct io_uring_sqe *entry = ring_entry(&backend->ring, IORING_OP_READ, slot);
    entry->fd = fd;
    entry->off = offset;
    entry->addr = (uint64_t)backend->pages[slot];
    entry->len = length;
}

static void check(struct backend *backend, int slot) {
    struct io *io = &backend->ios[slot];
    CHECK(io->result == PAGE);
    for (unsigned word = 0; word < PAGE / 8; word++)
        CHECK(backend->pages[slot][word] == io->offset + word * 8);
}

static void work(int self) {
    struct backend *own = &backends[self];
    unsigned random = self * 7919 + 1;
    char path[] = "/proc/self/fd/0000000000";
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    /* A descriptor of its own, with a different number in each process. */
    for (int extra = 0; extra < self; extra++)
        CHECK(dup(0) >= 0);
    int own_file = open(path, O_RDONLY);
    CHECK(own_file >= 0);
    for (int round = 0; round < ROUNDS; round++) {
        lock(own);
        for (int slot = 0; slot < SLOTS; slot++) {
            random = random * 1103515245 + 12345;
            start_read(own, slot, own_file, (uint64_t)(random >> 16) % PAGES * PAGE, PAGE);
        }
        CHECK(ring_enter(own->ring.fd, SLOTS, 0, 0) == SLOTS);
        unlock(own);
        random = random * 1103515245 + 12345;
        /* Not the first slot: for a backend that is done with its rounds, it is the last one to complete. */
        int slot = 1 + (random >> 8) % (SLOTS - 1);
        finish(&backends[(self + 1 + (random >> 16) % (BACKENDS - 1)) % BACKENDS], slot);
        for (int slot = 0; slot < SLOTS; slot++) {
            finish(own, slot);
            check(own, slot);
        }
    }
    /* A request that completes only while its owner is in a call, and whose completion the owner never reaps. */
    char byte = 0;
    struct backend *other = &backends[(self + 1) % BACKENDS];
    lock(own);
    start_read(own, 0, own->pipe[0], -1, 1);
    CHECK(ring_enter(own->ring.fd, 1, 0, 0) == 1);
    unlock(own);
    CHECK(write(other->ready[1], &byte, 1) == 1 && read(own->ready[0], &byte, 1) == 1);
    struct backend *previous = &backends[(self + BACKENDS - 1) % BACKENDS];
    CHECK(write(previous->pipe[1], &byte, 1) == 1);
    finish(previous, 0);
    CHECK(previous->ios[0].result == 1);
    /* No process ends before all are done. */
    CHECK(write(previous->over[1], &byte, 1) == 1 && read(own->over[0], &byte, 1) == 1);
}

static int end_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* A child submits and ends; its requests complete here. */
static void leave(const char *how, void (*end)(void)) {
    struct ring ring, idle;
    int results[3];
    CHECK(ring_open(&ring, 8, 0) == 0 && ring_open(&idle, 8, 0) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct __kernel_timespec long_time = {.tv_sec = 1000}, short_time = {.tv_nsec = 30000000};
        struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_POLL_ADD, 0);
        entry->fd = idle.fd;
        entry->poll32_events = 1;
        entry->flags = IOSQE_IO_LINK;
        entry = ring_entry(&ring, IORING_OP_TIMEOUT, 1);
        entry->addr = (uint64_t)&long_time;
        entry->len = 1;
        entry = ring_entry(&ring, IORING_OP_TIMEOUT, 2);
        entry->addr = (uint64_t)(end == 0 ? &long_time : &short_time);
        entry->len = 1;
        CHECK(ring_enter(ring.fd, 3, 0, 0) == 3);
        if (end)
            end();
        execl("/bin/true", "true", (char *)0);
        _exit(98);
    }
    CHECK(end_of(child) == 0);
    for (int count = 0; count < 3; count++) {
        struct io_uring_cqe *completion;
        while (!(completion = ring_peek(&ring)))
            CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) >= 0);
        CHECK(completion->user_data < 3);
        results[completion->user_data] = completion->res;
        ring_seen(&ring);
    }
    printf("%s: %d %d %d\n", how, results[0], results[1], results[2]);
}

static void by_exit(void) { exit(0); }
static void by_underscore_exit(void) { _exit(0); }

int main(void) {
    char name[] = "/tmp/anyring-backends-XXXXXX";
    CHECK((file = mkstemp(name)) >= 0 && unlink(name) == 0);
    for (uint64_t word = 0; word < PAGES * PAGE / 8; word += PAGE / 8) {
        uint64_t page[PAGE / 8];
        for (unsigned i = 0; i < PAGE / 8; i++)
            page[i] = (word + i) * 8;
        CHECK(write(file, page, PAGE) == PAGE);
    }
    backends = mmap(0, BACKENDS * sizeof *backends, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(backends != MAP_FAILED);
    pthread_mutexattr_t shared;
    CHECK(pthread_mutexattr_init(&shared) == 0 && pthread_mutexattr_setpshared(&shared, 1) == 0);
    for (int i = 0; i < BACKENDS; i++) {
        CHECK(ring_open(&backends[i].ring, SLOTS, 0) == 0);
        CHECK(pthread_mutex_init(&backends[i].lock, &shared) == 0);
        CHECK(pipe(backends[i].pipe) == 0 && pipe(backends[i].ready) == 0 && pipe(backends[i].over) == 0);
        /* No read is in flight yet. */
        for (int slot = 0; slot < SLOTS; slot++)
            backends[i].ios[slot].done = 1;
    }
    fflush(stdout);
    pid_t children[BACKENDS];
    for (int i = 0; i < BACKENDS; i++)
        if ((children[i] = fork()) == 0) {
            work(i);
            _exit(0);
        }
    for (int i = 0; i < BACKENDS; i++)
        CHECK(end_of(children[i]) == 0);
    printf("%d backends, %d reads each: all right\n", BACKENDS, ROUNDS * SLOTS);
    leave("exit", by_exit);
    leave("_exit", by_underscore_exit);
    leave("exec", 0);
    return 0;
}
