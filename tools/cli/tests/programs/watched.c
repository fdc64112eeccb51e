/* Uses a ring in the way that the argument names, for an observer outside the process. The output and the exit status must not
 * depend on the observer. */
#include "ring.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define TIMES 500

/* Constants that older headers lack. */
#define NO_MMAP (1u << 14)
#define REGISTERED_FD_ONLY (1u << 15)
#define NO_SQARRAY (1u << 16)
#define RESIZE_RINGS 33
#define CQE_MIXED (1u << 18)
#define NOP_CQE32 (1u << 5)

struct completion {
    uint64_t user_data;
    int res;
    unsigned flags;
};

static struct ring ring;

/* By an instruction, which is not seen. */
static long quietly(long call, long a, long b, long c) { return call_by_instruction(call, a, b, c, 0, 0, 0); }

static void close_quietly(int fd) { CHECK(quietly(SYS_close, fd, 0, 0) == 0); }

static struct io_uring_sqe *on(uint8_t opcode, uint64_t user_data, int fd, const void *memory, unsigned length) {
    struct io_uring_sqe *entry = ring_entry(&ring, opcode, user_data);
    entry->fd = fd;
    entry->addr = (uint64_t)memory;
    entry->len = length;
    return entry;
}

static void submit(unsigned count) { CHECK(ring_enter(ring.fd, count, 0, 0) == count); }

/* Returns the next completion, for which the call waits. */
static struct completion next(void) {
    while (!ring_peek(&ring)) {
        long result = ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
        CHECK(result == 0 || result == -EINTR);
    }
    struct io_uring_cqe *found = ring_peek(&ring);
    struct completion completion = {found->user_data, found->res, found->flags};
    ring_seen(&ring);
    return completion;
}

static void take(unsigned count) {
    for (; count > 0; count--) {
        struct completion completion = next();
        printf("%d: %d\n", (int)completion.user_data, completion.res);
    }
}

static void plain(void) {
    char text[16] = "twelve bytes";
    int ends[2];
    CHECK(pipe(ends) == 0);
    /* All requests have the same user data. */
    for (int i = 0; i < 3; i++) on(IORING_OP_NOP, 1, -1, 0, 0);
    submit(3), take(3);
    on(IORING_OP_WRITE, 2, ends[1], text, 12)->off = -1;
    on(IORING_OP_READ, 3, 999, text, 12);
    submit(2), take(2);
    on(IORING_OP_READ, 4, ends[0], text, 16)->off = -1;
    submit(1), take(1);
    /* Links: a whole chain, one that breaks, and a chain that a failure does not break. */
    for (int way = 0; way < 3; way++) {
        on(way ? IORING_OP_READ : IORING_OP_NOP, 10 + way, -1, 0, 0)->flags = way == 2 ? IOSQE_IO_HARDLINK : IOSQE_IO_LINK;
        on(IORING_OP_NOP, 20 + way, -1, 0, 0)->flags = IOSQE_IO_LINK;
        on(IORING_OP_NOP, 30 + way, -1, 0, 0);
        submit(3), take(3);
    }
    struct __kernel_timespec soon = {.tv_nsec = 1000000};
    on(IORING_OP_READ, 40, ends[0], text, 16)->flags = IOSQE_IO_LINK;
    on(IORING_OP_LINK_TIMEOUT, 41, -1, &soon, 1);
    submit(2);
    int sum = next().res + next().res;
    CHECK(sum == -ECANCELED - ETIME || sum == -EINTR - ETIME);
    /* A chain ends with its batch. */
    on(IORING_OP_NOP, 50, -1, 0, 0)->flags = IOSQE_IO_LINK;
    submit(1), take(1);
    on(IORING_OP_NOP, 51, -1, 0, 0);
    submit(1), take(1);
    /* Of two SQEs in the queue, one is submitted, and the other is changed before its submission. */
    on(IORING_OP_NOP, 60, -1, 0, 0);
    on(IORING_OP_NOP, 61, -1, 0, 0)->user_data = 62;
    submit(1), take(1);
    ring.entries[(*SQ(&ring, tail) - 1) & *SQ(&ring, ring_mask)].user_data = 63;
    submit(1), take(1);
}

/* A file to which only the ring has a reference. */
static void registered(void) {
    char text[8] = "seven..";
    int ends[2], none[2] = {-1, -1};
    CHECK(pipe(ends) == 0);
    none[1] = ends[1];
    CHECK(ring_register(ring.fd, IORING_REGISTER_FILES, none, 2) == 0);
    close(ends[1]);
    on(IORING_OP_WRITE, 1, 1, text, 7)->flags = IOSQE_FIXED_FILE;
    submit(1), take(1);
    on(IORING_OP_WRITE, 2, 0, text, 7)->flags = IOSQE_FIXED_FILE;
    submit(1), take(1);
}

static void multishots(void) {
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), pair[2];
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int length = offsetof(struct sockaddr_un, sun_path) + 1 + sprintf(name.sun_path + 1, "watched-%d", getpid());
    CHECK(bind(listener, (void *)&name, length) == 0 && listen(listener, 8) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    on(IORING_OP_ACCEPT, 1, listener, 0, 0)->ioprio = IORING_ACCEPT_MULTISHOT;
    on(IORING_OP_POLL_ADD, 2, pair[0], 0, IORING_POLL_ADD_MULTI)->poll32_events = POLLIN;
    submit(2);
    for (int i = 0; i < 3; i++) {
        int client = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(connect(client, (void *)&name, length) == 0);
        struct completion accepted = next();
        CHECK(accepted.user_data == 1 && accepted.res >= 0 && accepted.flags & IORING_CQE_F_MORE);
        close(accepted.res), close(client);
    }
    CHECK(write(pair[1], "a", 1) == 1);
    take(1);
    on(IORING_OP_ASYNC_CANCEL, 3, -1, (void *)1, 0);
    submit(1);
    int sum = next().res + next().res;
    on(IORING_OP_ASYNC_CANCEL, 4, -1, (void *)2, 0);
    submit(1);
    sum += next().res + next().res;
    CHECK(sum == -2 * ECANCELED);
}

static void zero_copy(void) {
    static char text[1 << 16];
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof address;
    CHECK(bind(listener, (void *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &length) == 0);
    CHECK(connect(client, (void *)&address, length) == 0);
    int server = accept(listener, 0, 0);
    /* Two requests with the same user data: each has two completions. */
    for (int i = 0; i < 2; i++) on(IORING_OP_SEND_ZC, 5, client, text, sizeof text / 8);
    submit(2);
    for (int got = 0; got < (int)sizeof text / 4; got += read(server, text, sizeof text)) {}
    int sent = 0, notifications = 0;
    for (int i = 0; i < 4; i++) {
        struct completion completion = next();
        if (completion.flags & IORING_CQE_F_NOTIF)
            notifications++;
        else
            sent += completion.res;
    }
    printf("sent %d, notifications %d\n", sent, notifications);
    /* A send that fails has a second completion all the same. */
    on(IORING_OP_SEND_ZC, 6, 999, text, 8);
    submit(1), take(2);
}

static void skips(void) {
    for (int i = 0; i < 10; i++) {
        on(IORING_OP_NOP, 7, -1, 0, 0)->flags = IOSQE_CQE_SKIP_SUCCESS;
        on(IORING_OP_NOP, 7, -1, 0, 0);
        submit(2), take(1);
    }
    on(IORING_OP_READ, 8, 999, 0, 0)->flags = IOSQE_CQE_SKIP_SUCCESS;
    submit(1), take(1);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* One ring that both processes use, and one of the child's own. */
static void *work(void *argument) {
    struct ring own;
    CHECK(ring_open(&own, 8, 0) == 0);
    for (int i = 0; i < TIMES; i++) {
        pthread_mutex_lock(&lock);
        CHECK(ring_nop(&ring, (long)argument + i) == 0);
        pthread_mutex_unlock(&lock);
        CHECK(ring_nop(&own, (long)argument + i) == 0);
    }
    close_quietly(own.fd);
    return 0;
}

static void threads(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, work, (void *)10000) == 0);
    work((void *)20000);
    CHECK(pthread_join(thread, 0) == 0);
}

static void forks(void) {
    CHECK(ring_nop(&ring, 1) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        /* The ring is the parent's, too. */
        for (int i = 0; i < 5; i++) CHECK(ring_nop(&ring, 10 + i) == 0);
        CHECK(ring_open(&ring, 8, 0) == 0);
        CHECK(ring_nop(&ring, 20) == 0);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 5; i++) CHECK(ring_nop(&ring, 30 + i) == 0);
}

/* Completions are found without a call, and the ring is closed before any call. */
static void reaps(void) {
    char text[16];
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (int i = 0; i < 3; i++) {
        on(IORING_OP_READ, 10 + i, ends[0], text, 16)->off = -1;
        submit(1);
        CHECK(write(ends[1], "some", 4) == 4);
        while (!ring_peek(&ring)) sched_yield();
        printf("%d\n", ring_peek(&ring)->res);
        ring_seen(&ring);
    }
    close_quietly(ring.fd);
}

/* The kernel's SQ thread submits, and no thread makes a call. */
static void polled(int count) {
    CHECK(ring_open_with(&ring, 8, 0, IORING_SETUP_SQPOLL) == 0);
    unsigned reaped = 0;
    for (int queued = 0; reaped < (unsigned)count;) {
        unsigned head = __atomic_load_n(SQ(&ring, head), __ATOMIC_ACQUIRE);
        if (queued < count && *SQ(&ring, tail) - head < ring.params.sq_entries)
            ring_entry(&ring, IORING_OP_NOP, ++queued);
        else if (!ring_peek(&ring))
            /* On a busy machine, the kernel's thread may need this processor. */
            usleep(20);
        for (; ring_peek(&ring); reaped++) ring_seen(&ring);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        if (__atomic_load_n(SQ(&ring, flags), __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
            CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_SQ_WAKEUP) >= 0);
    }
    CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
}

static void nop_by_number(unsigned flags) {
    ring_entry(&ring, IORING_OP_NOP, 1);
    CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS | flags) == 1);
    CHECK(ring_peek(&ring) && ring_peek(&ring)->res == 0);
    ring_seen(&ring);
}

/* A ring by its registered index, with its descriptor closed; and by a duplicate. */
static void numbers(void) {
    struct io_uring_rsrc_update update = {.offset = -1u, .data = ring.fd};
    CHECK(ring_register(ring.fd, IORING_REGISTER_RING_FDS, &update, 1) == 1);
    close_quietly(ring.fd);
    ring.fd = update.offset;
    usleep(20000);
    for (int i = 0; i < 3; i++) nop_by_number(IORING_ENTER_REGISTERED_RING);
    CHECK(ring_open(&ring, 8, 0) == 0);
    int other = dup(ring.fd);
    close_quietly(ring.fd);
    ring.fd = other;
    usleep(20000);
    for (int i = 0; i < 3; i++) nop_by_number(0);
}

/* Memory of a ring with and without an index array. */
struct bare {
    int fd;
    struct io_uring_params params;
    char *rings, *entries;
};

static void bare_nop(struct bare *ring, uint64_t user_data, unsigned flags) {
    struct io_uring_params *p = &ring->params;
    unsigned *tail = (unsigned *)(ring->rings + p->sq_off.tail), index = *tail & (p->sq_entries - 1);
    unsigned bytes = p->flags & IORING_SETUP_SQE128 ? 128 : 64;
    if (!(p->flags & NO_SQARRAY))
        ((unsigned *)(ring->rings + p->sq_off.array))[index] = index;
    struct io_uring_sqe *entry = memset(ring->entries + index * bytes, 0, bytes);
    entry->opcode = IORING_OP_NOP;
    entry->user_data = user_data;
    /* Of CQEs of both sizes, two in three are long: some need a filler at the end of the queue. */
    if (p->flags & CQE_MIXED && user_data % 3)
        entry->rw_flags = NOP_CQE32;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(ring_enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS | flags) == 1);
    unsigned *head = (unsigned *)(ring->rings + p->cq_off.head);
    CHECK(*head != *(unsigned *)(ring->rings + p->cq_off.tail));
    *head = *(unsigned *)(ring->rings + p->cq_off.tail);
}

static void *map(int fd, size_t bytes, uint64_t offset) {
    int flags = MAP_SHARED | MAP_POPULATE | (fd < 0 ? MAP_ANONYMOUS : 0);
    void *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, fd, offset);
    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Entries of other sizes, and memory of the program's own. */
static void sizes(void) {
    static const unsigned ways[] = {IORING_SETUP_SQE128 | IORING_SETUP_CQE32, NO_SQARRAY | REGISTERED_FD_ONLY, CQE_MIXED};
    size_t page = sysconf(_SC_PAGESIZE);
    for (unsigned way = 0; way < 3; way++) {
        struct bare bare = {.params.flags = ways[way] | NO_MMAP, .rings = map(-1, 2 * page, 0)};
        bare.entries = bare.rings + page;
        /* `user_addr`, at the end of both structures. */
        memcpy((char *)(&bare.params.cq_off + 1) - 8, &bare.rings, 8);
        memcpy((char *)(&bare.params.sq_off + 1) - 8, &bare.entries, 8);
        bare.fd = ring_setup(8, &bare.params);
        CHECK(bare.fd >= 0);
        for (unsigned i = 0; i < 20; i++) bare_nop(&bare, 100 * way + i, way == 1 ? IORING_ENTER_REGISTERED_RING : 0);
    }
}

static void resizes(void) {
    unsigned flags = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER | NO_SQARRAY;
    struct bare bare = {.params.flags = flags};
    bare.fd = ring_setup(8, &bare.params);
    CHECK(bare.fd >= 0);
    for (unsigned way = 0; way < 2; way++) {
        struct io_uring_params *p = &bare.params;
        bare.rings = map(bare.fd, p->cq_off.cqes + p->cq_entries * 16, IORING_OFF_SQ_RING);
        bare.entries = map(bare.fd, p->sq_entries * 64, IORING_OFF_SQES);
        for (unsigned i = 0; i < 100; i++) bare_nop(&bare, 1000 * way + i, 0);
        *p = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .sq_entries = 64, .cq_entries = 256};
        CHECK(ring_register(bare.fd, RESIZE_RINGS, p, 1) == 0);
        p->flags |= flags;
    }
}

/* A ring that is closed by an instruction releases its files, though no call follows. */
static void ends(void) {
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    CHECK(ring_register(ring.fd, IORING_REGISTER_FILES, &pipes[1], 1) == 0);
    on(IORING_OP_POLL_ADD, 1, pipes[0], 0, 0)->poll32_events = POLLIN;
    submit(1);
    close(pipes[1]);
    struct io_uring_params *p = &ring.params;
    munmap(ring.entries, p->sq_entries * 64);
    size_t sq = p->sq_off.array + p->sq_entries * 4, cq = p->cq_off.cqes + p->cq_entries * 16;
    munmap(ring.submissions, sq > cq ? sq : cq);
    close_quietly(ring.fd);
    char byte;
    CHECK(read(pipes[0], &byte, 1) == 0);
    printf("the other end is closed\n");
}

static void *by_number(void *unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) {
        on(IORING_OP_NOP, syscall(SYS_gettid), -1, 0, 0);
        submit(1), next();
    }
    return 0;
}

/* Consecutive threads, each of which reuses the memory of the one before. */
static void successors(void) {
    for (int i = 0; i < 5; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, by_number, 0) == 0 && pthread_join(thread, 0) == 0);
    }
}

/* Another ring has the descriptor now, and both have an SQE in the queue. */
static void replaced(int waits) {
    static struct __kernel_timespec time = {.tv_nsec = 30000000};
    struct ring other;
    int times = 0;
    CHECK(ring_open(&other, 8, 0) == 0);
    on(IORING_OP_NOP, 1, -1, 0, 0);
    struct io_uring_sqe *entry = ring_entry(&other, waits ? IORING_OP_TIMEOUT : IORING_OP_WRITE, 2);
    if (waits) entry->addr = (uint64_t)&time, entry->len = 1;
    else entry->fd = open("/dev/null", O_WRONLY), entry->addr = (uint64_t)"text", entry->len = 4;
    /* As long as it has a descriptor. */
    CHECK(dup(ring.fd) >= 0);
    CHECK(quietly(SYS_dup3, other.fd, ring.fd, 0) == ring.fd);
    if (waits) CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    else submit(1);
    for (struct io_uring_cqe *found; (found = ring_peek(&other)); ring_seen(&other), times++)
        printf("%d: %d\n", (int)found->user_data, found->res);
    CHECK(times == 1);
}

static int by_number_and_ends(void *nothing) {
    (void)nothing;
    by_number(0);
    /* Not by the C library, to which this thread does not belong. */
    quietly(SYS_exit, 0, 0, 0);
    return 0;
}

/* Threads with the thread-local storage of another thread, and the stack of an earlier one. */
static void sharers(void) {
    static char stack[1 << 18] __attribute__((aligned(4096)));
    static volatile pid_t runs;
    by_number(0);
    for (int i = 0; i < 2; i++) {
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
        runs = 1;
        CHECK(clone(by_number_and_ends, stack + sizeof stack, flags | CLONE_CHILD_CLEARTID, 0, 0, 0, &runs) >= 0);
        while (runs) sched_yield();
        by_number(0);
    }
}

static void *waits_to_read(void *end) {
    static char text[8];
    on(IORING_OP_READ, 1, *(int *)end, text, sizeof text)->off = -1;
    CHECK(ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) == 1);
    return 0;
}

/* A thread waits in the call while another one closes the descriptor, which another ring may get. */
static void let_go(int reopens) {
    pthread_t thread;
    struct ring other;
    int ends[2], fd = ring.fd;
    CHECK(pipe(ends) == 0);
    CHECK(pthread_create(&thread, 0, waits_to_read, &ends[0]) == 0);
    while (__atomic_load_n(SQ(&ring, head), __ATOMIC_ACQUIRE) == 0) sched_yield();
    close_quietly(fd);
    if (reopens) CHECK(ring_open(&other, 8, 0) == 0 && other.fd == fd);
    CHECK(write(ends[1], "abc", 3) == 3);
    CHECK(pthread_join(thread, 0) == 0);
}

static void *takes_all(void *nothing) {
    for (int i = 0; i < 5 * TIMES; i++) next();
    return nothing;
}

/* One thread submits, another one waits. */
static void two(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, takes_all, 0) == 0);
    for (int i = 1; i <= 5 * TIMES; i++) {
        on(IORING_OP_NOP, i, -1, 0, 0);
        submit(1);
    }
    CHECK(pthread_join(thread, 0) == 0);
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    CHECK(ring_open(&ring, 8, 0) == 0);
    if (!strcmp(way, "plain")) plain();
    else if (!strcmp(way, "registered")) registered();
    else if (!strcmp(way, "multishots")) multishots();
    else if (!strcmp(way, "zero-copy")) zero_copy();
    else if (!strcmp(way, "skips")) skips();
    else if (!strcmp(way, "threads")) threads();
    else if (!strcmp(way, "forks")) forks();
    else if (!strcmp(way, "reaps")) reaps();
    else if (!strcmp(way, "polled")) polled(atoi(arguments[2]));
    else if (!strcmp(way, "numbers")) numbers();
    else if (!strcmp(way, "sizes")) sizes();
    else if (!strcmp(way, "resizes")) resizes();
    else if (!strcmp(way, "ends")) ends();
    else if (!strcmp(way, "replaced")) replaced(0);
    else if (!strcmp(way, "replaced-waits")) replaced(1);
    else if (!strcmp(way, "sharers")) sharers();
    else if (!strcmp(way, "closed")) let_go(0);
    else if (!strcmp(way, "reopened")) let_go(1);
    else if (!strcmp(way, "two")) two();
    else if (!strcmp(way, "successors")) successors();
    else return 98;
    return 0;
}
