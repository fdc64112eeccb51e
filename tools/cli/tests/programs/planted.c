/* Programs with a bug that shows only rarely, one per argument; -DFIXED repairs them all. The exit status names the
 * failure: 1 for lost or wrong data, 2 for an unexpected error. */
#include "ring.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#ifdef FIXED
enum { IS_FIXED = 1 };
#else
enum { IS_FIXED = 0 };
#endif

/* Newer than some headers. */
#ifndef IORING_RECVSEND_BUNDLE
#define IORING_RECVSEND_BUNDLE (1U << 4)
#endif

enum { ROUNDS = 32, BLOCK = 4096 };

static struct ring ring;
/* SQEs that were submitted and are not consumed yet. */
static unsigned pending;

static void fail(int status, const char *what, long number) {
    fprintf(stderr, "planted: %s (%ld)\n", what, number);
    exit(status);
}

static struct io_uring_sqe *on(uint8_t opcode, uint64_t user_data, int fd, const void *memory, unsigned length) {
    struct io_uring_sqe *entry = ring_entry(&ring, opcode, user_data);
    pending++;
    entry->fd = fd;
    entry->addr = (uint64_t)memory;
    entry->len = length;
    return entry;
}

/* Submits all, and waits for a completion if there is none; correct for any result of `enter`. */
static void enter_well(unsigned wait) {
    do {
        unsigned flags = wait || *SQ(&ring, flags) & IORING_SQ_CQ_OVERFLOW ? IORING_ENTER_GETEVENTS : 0;
        long entered = ring_enter(ring.fd, pending, wait, flags);
        if (entered >= 0)
            pending -= entered;
        else if (entered != -EINTR && entered != -EAGAIN && entered != -EBUSY)
            fail(2, "enter", entered);
        /* Completions must be reaped first. */
        else if (ring_peek(&ring))
            return;
    } while (pending || (wait && !ring_peek(&ring)));
}

struct completion {
    uint64_t user_data;
    int res;
    unsigned flags;
};

static struct completion take(void) {
    while (!ring_peek(&ring))
        enter_well(1);
    struct io_uring_cqe *found = ring_peek(&ring);
    struct completion completion = {found->user_data, found->res, found->flags};
    ring_seen(&ring);
    return completion;
}

/* True if the request may be repeated. */
static int again(int result) { return result == -EINTR || result == -EAGAIN; }

static void sockets(int ends[2], int type) { CHECK(socketpair(AF_UNIX, type, 0, ends) == 0); }

static int listener_at(struct sockaddr_in *address) {
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)address, length) == 0 && listen(listener, ROUNDS) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)address, &length) == 0);
    return listener;
}

static void connection(int ends[2]) {
    struct sockaddr_in address;
    int listener = listener_at(&address);
    ends[1] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(ends[1], (struct sockaddr *)&address, sizeof address) == 0);
    ends[0] = accept(listener, 0, 0);
    CHECK(ends[0] >= 0 && close(listener) == 0);
}

static int file_of(unsigned length) {
    char path[] = "/tmp/planted-XXXXXX", *text = malloc(length);
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    for (unsigned at = 0; at < length; at++)
        text[at] = 'a' + at % 23;
    CHECK(write(fd, text, length) == (ssize_t)length);
    free(text);
    return fd;
}

/* Reads the kernel's information about a thread: the number and arguments of the system call in which it sleeps, or a word; an empty text if
 * the thread has ended. */
static void look_at(pid_t thread, char told[256]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 || errno == ENOENT);
    ssize_t length = fd >= 0 ? read(fd, told, 255) : 0;
    CHECK(fd < 0 || close(fd) == 0);
    told[length > 0 ? length : 0] = 0;
}

static int is_asleep(pid_t thread) {
    char told[256];
    look_at(thread, told);
    /* Neither runnable, nor waiting for memory. */
    return told[0] >= '0' && told[0] <= '9';
}

/* True if the thread sleeps for a certain time, as a fault makes it. */
static int is_held_up(pid_t thread) {
    char told[256];
    long number, operation, timeout;
    look_at(thread, told);
    return sscanf(told, "%ld %*x %lx %*x %lx", &number, &operation, &timeout) == 3 && number == SYS_futex &&
           operation == (FUTEX_WAIT | FUTEX_PRIVATE_FLAG) && timeout;
}

/* Bug: a short read is taken for a whole one. */
static void short_read(void) {
    int fd = file_of(BLOCK);
    for (int round = 0; round < ROUNDS; round++) {
        static char text[BLOCK];
        memset(text, 0, sizeof text);
        for (unsigned done = 0; done < BLOCK;) {
            on(IORING_OP_READ, round, fd, text + done, BLOCK - done)->off = done;
            int result = take().res;
            if (again(result))
                continue;
            if (result <= 0)
                fail(2, "read", result);
            done += IS_FIXED ? (unsigned)result : BLOCK;
        }
        for (unsigned at = 0; at < BLOCK; at++)
            if (text[at] != (char)('a' + at % 23))
                fail(1, "data is missing from", at);
    }
}

/* Bug: a short write is taken for a whole one. */
static void short_write(void) {
    int fd = file_of(0);
    static char text[BLOCK], back[BLOCK];
    for (int round = 0; round < ROUNDS; round++) {
        memset(text, 'A' + round % 26, sizeof text);
        for (unsigned done = 0; done < BLOCK;) {
            on(IORING_OP_WRITE, round, fd, text + done, BLOCK - done)->off = done;
            int result = take().res;
            if (again(result))
                continue;
            if (result <= 0)
                fail(2, "write", result);
            done += IS_FIXED ? (unsigned)result : BLOCK;
        }
        if (pread(fd, back, BLOCK, 0) != BLOCK || memcmp(text, back, BLOCK) != 0)
            fail(1, "not all was written in round", round);
    }
}

/* Bug: a wait that returns is taken for a completion. It waits for a poll, and nothing is written until the wait sleeps. */
static pid_t waiting;
static int written, waits;

static void *writing_thread(void *unused) {
    for (int round = 1; round <= ROUNDS / 4; round++) {
        while (__atomic_load_n(&waits, __ATOMIC_ACQUIRE) < round || !is_asleep(waiting))
            usleep(20);
        CHECK(eventfd_write(written, 1) == 0);
    }
    return unused;
}

static void enter_interrupted(void) {
    pthread_t thread;
    eventfd_t count;
    written = eventfd(0, 0);
    waiting = gettid();
    CHECK(written >= 0 && pthread_create(&thread, 0, writing_thread, 0) == 0);
    for (int round = 0; round < ROUNDS / 4; round++) {
        on(IORING_OP_POLL_ADD, round, written, 0, 0)->poll32_events = POLLIN;
        __atomic_store_n(&waits, round + 1, __ATOMIC_RELEASE);
        while (!IS_FIXED && pending) {
            long entered = ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS);
            if (entered == 1)
                pending = 0;
            else if (entered != -EINTR && entered != -EAGAIN && entered != -EBUSY)
                fail(2, "enter", entered);
        }
        if (!IS_FIXED && !ring_peek(&ring))
            fail(1, "there is no completion in round", round);
        take();
        CHECK(eventfd_read(written, &count) == 0);
    }
    CHECK(pthread_join(thread, 0) == 0);
}

/* Bug: EAGAIN of a receive that must not wait is taken for a broken connection. */
static void would_wait(void) {
    int ends[2];
    sockets(ends, SOCK_STREAM);
    for (int round = 0; round < ROUNDS; round++) {
        char byte = 0;
        CHECK(write(ends[1], "x", 1) == 1);
        for (;;) {
            on(IORING_OP_RECV, round, ends[0], &byte, 1)->msg_flags = MSG_DONTWAIT;
            int result = take().res;
            if (result == 1)
                break;
            if (result == -EINTR || (IS_FIXED && result == -EAGAIN))
                continue;
            fail(2, "receive", result);
        }
        if (byte != 'x')
            fail(1, "received", byte);
    }
}

/* Buffers of a group, one after the other. */
static char buffers[8][64];

static void provide(int id, int count) {
    struct io_uring_sqe *entry = on(IORING_OP_PROVIDE_BUFFERS, 1000, count, buffers[id], sizeof buffers[0]);
    entry->off = id;
    entry->buf_group = 7;
    struct completion completion = take();
    CHECK(completion.user_data == 1000 && completion.res >= 0);
}

/* Receives messages of one byte by a multishot receive. `ends_well`: whether it is armed again after it has ended. */
static void receive_shots(int (*ends_well)(int result)) {
    int ends[2];
    sockets(ends, SOCK_SEQPACKET);
    provide(0, 8);
    int is_armed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(write(ends[1], "abcdefgh" + round % 8, 1) == 1);
        for (int got = 0; !got;) {
            if (!is_armed) {
                struct io_uring_sqe *entry = on(IORING_OP_RECV, 1, ends[0], 0, 0);
                entry->flags = IOSQE_BUFFER_SELECT;
                entry->ioprio = IORING_RECV_MULTISHOT;
                entry->buf_group = 7;
                is_armed = 1;
            }
            struct completion completion = take();
            if (!(completion.flags & IORING_CQE_F_MORE)) {
                if (!again(completion.res) && !ends_well(completion.res))
                    fail(2, "the receive has ended", completion.res);
                is_armed = 0;
            }
            if (completion.res <= 0)
                continue;
            int id = completion.flags >> IORING_CQE_BUFFER_SHIFT;
            if (buffers[id][0] != "abcdefgh"[round % 8])
                fail(1, "wrong message in round", round);
            got = 1;
            /* A multishot receive has its own completions; that of the buffer comes among them. */
            struct io_uring_sqe *entry = on(IORING_OP_PROVIDE_BUFFERS, 1000, 1, buffers[id], sizeof buffers[0]);
            entry->off = id;
            entry->buf_group = 7;
            entry->flags = IOSQE_CQE_SKIP_SUCCESS;
            enter_well(0);
        }
    }
}

static int after_no_buffers(int result) { return result > 0 || (IS_FIXED && result == -ENOBUFS); }
static int after_any_end(int result) { return (IS_FIXED && result > 0) || result == -ENOBUFS; }

/* Bug: a group that is temporarily empty is taken for the connection's end. */
static void no_buffers(void) { receive_shots(after_no_buffers); }

/* Bug: a multishot receive that ends with a message is not armed again. */
static void receive_ends(void) { receive_shots(after_any_end); }

/* Bug: a multishot poll that ends is not armed again. */
static void poll_ends(void) {
    int ends[2];
    sockets(ends, SOCK_STREAM);
    int is_armed = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char byte;
        if (!is_armed) {
            struct io_uring_sqe *entry = on(IORING_OP_POLL_ADD, 1, ends[0], 0, IORING_POLL_ADD_MULTI);
            entry->poll32_events = POLLIN;
            is_armed = 1;
            enter_well(0);
        }
        CHECK(write(ends[1], "x", 1) == 1);
        struct completion completion = take();
        if (completion.res < 0 && !again(completion.res))
            fail(2, "poll", completion.res);
        /* It may report a byte that was read already. */
        while (recv(ends[0], &byte, 1, MSG_DONTWAIT) == 1) {
        }
        /* Nothing reports the next byte: a program would wait for ever, and this one fails. */
        if (!IS_FIXED && !(completion.flags & IORING_CQE_F_MORE))
            fail(1, "the poll has ended in round", round);
        is_armed = !!(completion.flags & IORING_CQE_F_MORE);
    }
}

/* Bug: a completion is read after its place has been given back. */
static void completion_late(void) {
    for (int round = 0; round < ROUNDS; round++) {
        on(IORING_OP_NOP, 2 * round, -1, 0, 0);
        while (!ring_peek(&ring))
            enter_well(1);
        struct io_uring_cqe *completion = ring_peek(&ring);
        uint64_t copy = completion->user_data;
        ring_seen(&ring);
        on(IORING_OP_NOP, 2 * round + 1, -1, 0, 0);
        enter_well(0);
        uint64_t seen = IS_FIXED ? copy : *(volatile __u64 *)&completion->user_data;
        if (seen != (uint64_t)(2 * round))
            fail(1, "a completion changed in round", round);
        take();
    }
}

/* Bug: a request is read after it has been consumed. */
static void request_late(void) {
    for (int round = 0; round < ROUNDS; round++) {
        struct io_uring_sqe *entry = on(IORING_OP_NOP, round, -1, 0, 0);
        uint64_t noted = entry->user_data;
        enter_well(0);
        uint64_t wanted = IS_FIXED ? noted : *(volatile __u64 *)&entry->user_data;
        if (take().user_data != wanted)
            fail(1, "a completion of no request in round", round);
    }
}

/* Bug: completions are taken for those of the requests in the order of submission. Each pipe has more bytes than the
 * one before. A pipe with data is read at submission, however slow the machine is; a file may be read later. */
static void order(void) {
    enum { PIPES = 8, STEP = 8 };
    static char text[PIPES][PIPES * STEP];
    int ends[PIPES][2];
    for (int number = 0; number < PIPES; number++)
        CHECK(pipe(ends[number]) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        char is_done[PIPES] = {0};
        for (int number = 0; number < PIPES; number++) {
            int length = STEP * (number + 1);
            CHECK(write(ends[number][1], text[number], length) == length);
            on(IORING_OP_READ, number, ends[number][0], text[number], length);
        }
        for (int done = 0; done < PIPES;) {
            struct completion completion = take();
            int read_from = completion.user_data, got = completion.res, length = STEP * (read_from + 1);
            if (again(got)) {
                on(IORING_OP_READ, read_from, ends[read_from][0], text[read_from], length);
                continue;
            }
            if (got < 0)
                fail(2, "read", got);
            /* Reads the rest by a call. */
            if (got < length)
                got += read(ends[read_from][0], text[read_from] + got, length - got);
            int number = IS_FIXED ? read_from : done;
            if (is_done[number] || got != STEP * (number + 1))
                fail(1, "the length of another pipe came for pipe", number);
            is_done[number] = 1;
            done++;
        }
    }
}

/* Bug: the memory of a zero-copy send is reused before its notification. */
static void zero_copy(void) {
    int ends[2];
    connection(ends);
    static char text[2][16];
    char is_busy[2] = {0};
    for (int round = 0; round < 2 * ROUNDS; round++) {
        int place = round % 2;
        while (IS_FIXED && is_busy[place]) {
            struct completion completion = take();
            if (!(completion.flags & IORING_CQE_F_MORE))
                is_busy[completion.user_data] = 0;
        }
        if (is_busy[place])
            fail(1, "memory is filled that is still being sent: part", place);
        memset(text[place], 'a' + round % 26, 16);
        for (int sent = 0; sent < 16;) {
            on(IORING_OP_SEND_ZC, place, ends[1], text[place] + sent, 16 - sent);
            is_busy[place] = 1;
            struct completion completion;
            do {
                completion = take();
                if (!(completion.flags & IORING_CQE_F_MORE))
                    is_busy[completion.user_data] = 0;
            } while (completion.flags & IORING_CQE_F_NOTIF);
            if (completion.res <= 0 && !again(completion.res))
                fail(2, "send", completion.res);
            sent += completion.res > 0 ? completion.res : 0;
            /* The place may still be in use by an earlier send: the rest waits for its notification. */
            while (sent < 16 && is_busy[place])
                is_busy[take().user_data] = 0;
        }
        char back[16];
        CHECK(recv(ends[0], back, 16, MSG_WAITALL) == 16);
        /* A request that completes later is expected to complete after the notification. */
        if (!IS_FIXED && is_busy[place]) {
            on(IORING_OP_NOP, 2, -1, 0, 0);
            for (unsigned done; (done = take().user_data) != 2;)
                is_busy[done] = 0;
        }
    }
}

/* Bug: completions in the overflow list are not fetched. */
static void overflow(void) {
    for (int round = 0; round < ROUNDS; round++) {
        for (int one = 0; one < 4; one++)
            on(IORING_OP_NOP, one, -1, 0, 0);
        for (int got = 0, looks = 0; got < 4; looks++) {
            if (pending || (IS_FIXED && looks > 0))
                enter_well(IS_FIXED && !pending && !ring_peek(&ring));
            while (ring_peek(&ring)) {
                ring_seen(&ring);
                got++;
            }
            /* A program that only polls its ring waits for ever for the overflow list; this one fails. */
            if (!IS_FIXED && !ring_peek(&ring) && *(volatile unsigned *)SQ(&ring, flags) & IORING_SQ_CQ_OVERFLOW)
                fail(1, "completions are missing:", 4 - got);
        }
    }
}

/* Bug: a request that was cancelled is taken to be over. */
static void believes_cancel(void) {
    int ends[2];
    sockets(ends, SOCK_STREAM);
    for (int round = 0; round < ROUNDS; round++) {
        char byte;
        int is_read = 0;
        on(IORING_OP_RECV, 1, ends[0], &byte, 1);
        enter_well(0);
        on(IORING_OP_ASYNC_CANCEL, 2, -1, (void *)1, 0);
        for (int left = 2; left > 0; left--) {
            struct completion completion = take();
            if (completion.user_data == 1)
                is_read = completion.res == 1;
            else if (completion.res != 0 && completion.res != -ENOENT && (!IS_FIXED || completion.res != -EALREADY))
                fail(2, "cancel", completion.res);
        }
        CHECK(!is_read);
    }
}

/* Bug: in a chain of read and write, the write is taken to be done whatever the result of the read. */
static void broken_chain(void) {
    int from = file_of(BLOCK), to = file_of(0);
    for (int round = 0; round < ROUNDS; round++) {
        char text[16];
        int place = round * sizeof text % BLOCK, read = 0, written = 0;
        do {
            struct io_uring_sqe *entry = on(IORING_OP_READ, 1, from, text, sizeof text);
            entry->off = place;
            entry->flags = IOSQE_IO_LINK;
            on(IORING_OP_WRITE, 2, to, text, sizeof text)->off = place;
            for (int left = 2; left > 0; left--) {
                struct completion completion = take();
                *(completion.user_data == 1 ? &read : &written) = completion.res;
            }
            if (written < 0 && !again(written) && written != -ECANCELED)
                fail(2, "write", written);
        } while (IS_FIXED && written < (int)sizeof text);
    }
    char wanted[BLOCK], copied[BLOCK];
    unsigned length = ROUNDS * 16;
    CHECK(pread(from, wanted, length, 0) == (ssize_t)length);
    if (pread(to, copied, length, 0) != (ssize_t)length || memcmp(wanted, copied, length) != 0)
        fail(1, "the copy is not whole", 0);
}

/* Bug: in a chain of open and write, the rest of the chain is submitted without a check of how many requests were submitted. */
static void torn_chain(void) {
    char path[] = "/tmp/planted-XXXXXX";
    int to = file_of(0), lock = mkstemp(path);
    CHECK(lock >= 0);
    for (int round = 0; round < ROUNDS; round++) {
        /* The lock exists: the open must fail. */
        struct io_uring_sqe *entry = on(IORING_OP_OPENAT, 1, AT_FDCWD, path, 0600);
        entry->open_flags = O_CREAT | O_EXCL | O_RDWR;
        entry->flags = IOSQE_IO_LINK;
        entry = on(IORING_OP_WRITE, 2, to, "x", 1);
        while (pending) {
            long entered = ring_enter(ring.fd, pending, 0, 0);
            if (entered > 0)
                pending -= entered;
            /* The write has not been taken yet, and would be done whether the lock exists or not. */
            if (IS_FIXED && pending == 1)
                entry->opcode = IORING_OP_NOP;
        }
        for (int left = 2; left > 0; left--)
            take();
    }
    CHECK(unlink(path) == 0);
    char byte;
    if (pread(to, &byte, 1, 0) == 1)
        fail(1, "written without the lock", byte);
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Bug: a wait on a polled ring that returns is taken for a completion. Ends with 77 if no polled ring can read here. */
static void polled_wait(void) {
    char path[] = "/var/tmp/planted-XXXXXX";
    static char text[BLOCK] __attribute__((aligned(BLOCK))), behind[BLOCK] __attribute__((aligned(BLOCK)));
    int plain = mkstemp(path), fd = open(path, O_RDONLY | O_DIRECT);
    CHECK(plain >= 0 && write(plain, text, BLOCK) == BLOCK && unlink(path) == 0);
    CHECK(close(ring.fd) == 0 && ring_open_with(&ring, 8, 0, IORING_SETUP_IOPOLL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        on(IORING_OP_READ, round, fd, text, BLOCK);
        enter_well(0);
        /* A read that is in flight a good while after the device has done a later one is late by a fault: a slow device has
         * delayed both, and no thread is held up that long. */
        if (pread(fd, behind, BLOCK, 0) != BLOCK && fd >= 0)
            fail(2, "plain read", 0);
        for (long until = now_ms() + 200; !ring_peek(&ring) && now_ms() < until; usleep(100))
            ;
        long entered;
        do
            entered = ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS);
        while (entered == -EINTR);
        if (entered < 0)
            fail(2, "enter", entered);
        if (!IS_FIXED && !ring_peek(&ring))
            fail(1, "there is no completion in round", round);
        int result = take().res;
        if (round == 0 && (result == -EOPNOTSUPP || result == -EBADF))
            fail(77, "polled rings do not read here", result);
        if (result != BLOCK && !again(result))
            fail(2, "read", result);
    }
}

/* A thread that enters the ring once per round, when another thread tells it to, and its progress. */
enum { ROUNDS_WITH_ANOTHER = ROUNDS / 2 };
static struct {
    void (*enter)(int round);
    pid_t number;
    int told, enters, done;
} submitter;

static void *submitting_thread(void *unused) {
    __atomic_store_n(&submitter.number, gettid(), __ATOMIC_RELEASE);
    for (int round = 0; round < ROUNDS_WITH_ANOTHER; round++) {
        while (__atomic_load_n(&submitter.told, __ATOMIC_ACQUIRE) == round)
            usleep(20);
        submitter.enter(round);
        __atomic_store_n(&submitter.done, round + 1, __ATOMIC_RELEASE);
    }
    return unused;
}

/* Waits until the submitter has finished a round, or is delayed in it: then only a fault lets another thread run in
 * between. Returns true if it is delayed. */
static int comes_between(int round) {
    while (__atomic_load_n(&submitter.done, __ATOMIC_ACQUIRE) <= round) {
        if (__atomic_load_n(&submitter.enters, __ATOMIC_ACQUIRE) > round && is_held_up(submitter.number))
            return __atomic_load_n(&submitter.done, __ATOMIC_ACQUIRE) <= round;
        usleep(20);
    }
    return 0;
}

static void submitter_enters(int round) { __atomic_store_n(&submitter.enters, round + 1, __ATOMIC_RELEASE); }

/* This thread calls `meanwhile` while the submitter is in its round. */
static void with_submitter(void (*enter)(int round), void (*meanwhile)(int round)) {
    pthread_t thread;
    submitter.enter = enter;
    CHECK(pthread_create(&thread, 0, submitting_thread, 0) == 0);
    for (int round = 0; round < ROUNDS_WITH_ANOTHER; round++) {
        __atomic_store_n(&submitter.told, round + 1, __ATOMIC_RELEASE);
        meanwhile(round);
        while (__atomic_load_n(&submitter.done, __ATOMIC_ACQUIRE) <= round)
            usleep(20);
    }
    CHECK(pthread_join(thread, 0) == 0);
}

/* Bug: a file is changed as soon as its read is submitted, as if it were read by then. */
static int changing, is_read[ROUNDS];

static void read_and_tell(int round) {
    char byte = 0;
    int result;
    if (!IS_FIXED)
        submitter_enters(round);
    do {
        on(IORING_OP_READ, round, changing, &byte, 1);
        result = take().res;
    } while (again(result));
    __atomic_store_n(&is_read[round], 1, __ATOMIC_RELEASE);
    if (result != 1)
        fail(2, "read", result);
    if (byte != 'A' + round)
        fail(1, "the file was changed before it was read in round", round);
}

static void change_file(int round) {
    int is_early = comes_between(round);
    char text = 'B' + round;
    CHECK(pwrite(changing, &text, 1, 0) == 1);
    /* A read that is delayed does not read the old contents any more. */
    if (is_early && !ring_peek(&ring) && !__atomic_load_n(&is_read[round], __ATOMIC_ACQUIRE))
        fail(1, "the file was changed before it was read in round", round);
}

static void read_too_late(void) {
    changing = file_of(0);
    CHECK(write(changing, "A", 1) == 1);
    with_submitter(read_and_tell, change_file);
}

/* Bug: a request is recorded after its submission: too late for a thread that reaps completions. */
static int noted[ROUNDS];

static void submit_and_note(int round) {
    if (IS_FIXED)
        __atomic_store_n(&noted[round], 1, __ATOMIC_RELEASE);
    submitter_enters(round);
    on(IORING_OP_NOP, round, -1, 0, 0);
    enter_well(0);
    __atomic_store_n(&noted[round], 1, __ATOMIC_RELEASE);
}

static void take_noted(int round) {
    do
        comes_between(round);
    while (!ring_peek(&ring));
    int number = ring_peek(&ring)->user_data;
    ring_seen(&ring);
    if (!__atomic_load_n(&noted[number], __ATOMIC_ACQUIRE))
        fail(1, "a completion of nobody's in round", round);
}

static void noted_late(void) { with_submitter(submit_and_note, take_noted); }

/* Bug: a completion is taken to be reported by its eventfd. */
static int told_by;

static void submit_one(int round) {
    submitter_enters(round);
    on(IORING_OP_NOP, round, -1, 0, 0);
    enter_well(0);
}

static void hear_of_one(int round) {
    uint64_t count;
    do
        comes_between(round);
    while (!ring_peek(&ring));
    struct pollfd polled = {told_by, POLLIN, 0};
    if (IS_FIXED)
        CHECK(poll(&polled, 1, -1) == 1);
    if (read(told_by, &count, sizeof count) != sizeof count)
        fail(1, "the eventfd does not tell of a completion in round", round);
    ring_seen(&ring);
}

static void eventfd_late(void) {
    told_by = eventfd(0, EFD_NONBLOCK);
    CHECK(told_by >= 0 && syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_EVENTFD, &told_by, 1) == 0);
    with_submitter(submit_one, hear_of_one);
}

/* Bug: each buffer of a bundle is taken to be full. */
static void bundle(void) {
    enum { COUNT = 8, LENGTH = 16 };
    static char memory[COUNT][LENGTH], wanted[ROUNDS * LENGTH], got[ROUNDS * LENGTH];
    /* Pages are at most this long. */
    static struct io_uring_buf group[COUNT] __attribute__((aligned(65536)));
    struct io_uring_buf_reg registration = {.ring_addr = (uint64_t)group, .ring_entries = COUNT, .bgid = 7};
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_PBUF_RING, &registration, 1) == 0);
    struct io_uring_buf_ring *buffers = (struct io_uring_buf_ring *)group;
    for (int id = 0; id < COUNT; id++) {
        group[id].addr = (uint64_t)memory[id];
        group[id].len = LENGTH;
        group[id].bid = id;
    }
    __atomic_store_n(&buffers->tail, COUNT, __ATOMIC_RELEASE);
    int ends[2];
    sockets(ends, SOCK_STREAM);
    for (unsigned at = 0; at < sizeof wanted; at++)
        wanted[at] = 'a' + at % 23;
    CHECK(write(ends[1], wanted, sizeof wanted) == sizeof wanted);
    for (unsigned done = 0; done < sizeof wanted;) {
        struct io_uring_sqe *entry = on(IORING_OP_RECV, 1, ends[0], 0, 0);
        entry->flags = IOSQE_BUFFER_SELECT;
        entry->ioprio = IORING_RECVSEND_BUNDLE;
        entry->buf_group = 7;
        struct completion completion = take();
        if (again(completion.res) || completion.res == -ENOBUFS)
            continue;
        if (completion.res <= 0)
            fail(2, "receive", completion.res);
        for (int id = completion.flags >> IORING_CQE_BUFFER_SHIFT, left = completion.res; left > 0; left -= LENGTH) {
            unsigned part = IS_FIXED && left < LENGTH ? left : LENGTH;
            part = done + part < sizeof wanted ? part : sizeof wanted - done;
            memcpy(got + done, memory[id % COUNT], part);
            done += part;
            unsigned tail = buffers->tail;
            /* The tail lies in the first of them. */
            group[tail % COUNT].addr = (uint64_t)memory[id % COUNT];
            group[tail % COUNT].len = LENGTH;
            group[tail % COUNT].bid = id++ % COUNT;
            __atomic_store_n(&buffers->tail, tail + 1, __ATOMIC_RELEASE);
        }
    }
    if (memcmp(got, wanted, sizeof wanted) != 0)
        fail(1, "what was received is not what was sent", 0);
}

/* Bug: the result of an open is not checked. */
static void open_fails(void) {
    char path[] = "/tmp/planted-XXXXXX", text[ROUNDS];
    int all = mkstemp(path);
    CHECK(all >= 0);
    for (int round = 0; round < ROUNDS; round++) {
        int fd, written;
        do {
            on(IORING_OP_OPENAT, 1, AT_FDCWD, path, 0)->open_flags = O_WRONLY;
            fd = take().res;
        } while (IS_FIXED && fd < 0);
        do {
            on(IORING_OP_WRITE, 2, fd, "abcdefgh" + round % 8, 1)->off = round;
            written = take().res;
        } while (again(written));
        if (fd >= 0)
            close(fd);
    }
    CHECK(unlink(path) == 0);
    ssize_t length = pread(all, text, ROUNDS, 0);
    for (int round = 0; round < ROUNDS; round++)
        if (round >= length || text[round] != "abcdefgh"[round % 8])
            fail(1, "nothing is written of round", round);
}

/* Bug: a read that fails is taken for the end of the file. */
static void read_fails(void) {
    enum { PART = BLOCK / ROUNDS };
    int fd = file_of(BLOCK), done = 0;
    static char text[BLOCK];
    for (int result = 1; result > 0 || again(result) || (IS_FIXED && result < 0);) {
        on(IORING_OP_READ, 1, fd, text + done, done + PART <= BLOCK ? PART : BLOCK - done)->off = done;
        result = take().res;
        done += result > 0 ? result : 0;
    }
    if (done != BLOCK)
        fail(1, "what is read ends at", done);
}

/* Bug: the result of a write is not checked. */
static void write_fails(void) {
    int fd = file_of(0), result;
    char text[ROUNDS];
    for (int round = 0; round < ROUNDS; round++)
        do {
            on(IORING_OP_WRITE, round, fd, "x", 1)->off = round;
            result = take().res;
        } while (again(result) || (IS_FIXED && result < 0));
    CHECK(pwrite(fd, "x", 1, ROUNDS - 1) == 1 && pread(fd, text, ROUNDS, 0) == ROUNDS);
    for (int round = 0; round < ROUNDS; round++)
        if (text[round] != 'x')
            fail(1, "nothing is written of round", round);
}

/* Bug: the result of a connect is not checked. */
static void connect_fails(void) {
    struct sockaddr_in address;
    int listener = listener_at(&address), accepted = 0, result;
    for (int round = 0; round < ROUNDS; round++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        do {
            on(IORING_OP_CONNECT, round, client, &address, 0)->off = sizeof address;
            result = take().res;
        } while (IS_FIXED && result < 0);
    }
    CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    while (accept(listener, 0, 0) >= 0)
        accepted++;
    if (accepted != ROUNDS)
        fail(1, "connections are missing:", ROUNDS - accepted);
}

/* Bug: a connection that has ended before it is accepted ends the listener. */
static void accept_fails(void) {
    struct sockaddr_in address;
    int listener = listener_at(&address), accepted = 0, result = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    }
    while (accepted < ROUNDS && (result >= 0 || again(result) || (IS_FIXED && result == -ECONNABORTED))) {
        on(IORING_OP_ACCEPT, 1, listener, 0, 0);
        result = take().res;
        accepted += result >= 0;
    }
    if (accepted != ROUNDS)
        fail(1, "connections wait for ever:", ROUNDS - accepted);
}

static char *page(void) {
    char *page = mmap(0, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    return page;
}

/* Returns the end of a pipe that holds letters: a read gets them at its submission, however slow the machine is. */
static int letters(void) {
    char text[BLOCK];
    int ends[2];
    memset(text, 'a', sizeof text);
    CHECK(pipe(ends) == 0 && write(ends[1], text, sizeof text) == sizeof text && close(ends[1]) == 0);
    return ends[0];
}

/* Cancels a read, and waits for the answer to that; returns the completion of the read, if it has come meanwhile. */
static struct completion read_and_cancel(int fd, char *memory) {
    struct completion completion = {0, 0, 0};
    on(IORING_OP_READ, 1, fd, memory, BLOCK)->off = -1;
    enter_well(0);
    on(IORING_OP_ASYNC_CANCEL, 2, -1, (void *)1, 0);
    for (struct completion next = take();; next = take()) {
        if (next.user_data == 2)
            return completion;
        completion = next;
    }
}

static void await_read(struct completion completion) {
    if (completion.user_data == 0)
        completion = take();
    if (completion.user_data != 1)
        fail(2, "no completion of the read", completion.user_data);
}

/* Bug: memory is freed as soon as its request has been cancelled. */
static void freed(void) {
    for (int round = 0; round < ROUNDS; round++) {
        int fd = letters();
        char *memory = page();
        struct completion completion = read_and_cancel(fd, memory);
        if (IS_FIXED)
            await_read(completion);
        CHECK(munmap(memory, BLOCK) == 0);
        if (!IS_FIXED)
            await_read(completion);
        CHECK(close(fd) == 0);
    }
}

/* Bug: memory of the heap is freed as soon as its request has been cancelled. */
static void dropped(void) {
    for (int round = 0; round < ROUNDS; round++) {
        int fd = letters();
        char *memory = malloc(BLOCK);
        struct completion completion = read_and_cancel(fd, memory);
        if (IS_FIXED)
            await_read(completion);
        free(memory);
        if (!IS_FIXED)
            await_read(completion);
        CHECK(close(fd) == 0);
    }
}

/* Bug: memory is used for something else as soon as its request has been cancelled. */
static void reused(void) {
    char *memory = page();
    for (int round = 0; round < ROUNDS; round++) {
        int fd = letters();
        struct completion completion = read_and_cancel(fd, memory);
        if (IS_FIXED)
            await_read(completion);
        memset(memory, round, BLOCK);
        if (!IS_FIXED)
            await_read(completion);
        for (int at = 0; at < BLOCK; at++)
            if (memory[at] != (char)round)
                fail(1, "memory changed in round", round);
        CHECK(close(fd) == 0);
    }
}

/* Bug: data are looked at before the completion of the read. */
static void looked_at(void) {
    int fd = file_of(BLOCK);
    static volatile char text[BLOCK];
    for (int round = 0; round < ROUNDS; round++) {
        text[0] = 0;
        on(IORING_OP_READ, round, fd, (void *)text, BLOCK);
        enter_well(0);
        char early = text[0];
        int length = take().res;
        while (again(length)) {
            on(IORING_OP_READ, round, fd, (void *)text, BLOCK);
            length = take().res;
            early = 0;
        }
        /* A read may take its time; what it brings is a letter. */
        if (IS_FIXED ? text[0] != 'a' : early != 0 && early != 'a')
            fail(1, "another letter in round", round);
    }
}

/* Bug: data are changed before the completion of their write. */
static void overwritten(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        static volatile char text[64];
        char written[64];
        memset((void *)text, 'a' + round % 23, sizeof text);
        int length;
        do {
            on(IORING_OP_WRITE, round, ends[1], (void *)text, sizeof text)->off = -1;
            enter_well(0);
            if (!IS_FIXED)
                text[0] = 'z';
            length = take().res;
            text[0] = 'a' + round % 23;
        } while (again(length));
        CHECK(read(ends[0], written, sizeof written) == length);
        if (memcmp(written, (void *)text, length) != 0)
            fail(1, "other data are written in round", round);
    }
}

/* Bug: `enter` is believed never to fail, since all requests are reads of a file. At most two are in flight. */
static void refused(void) {
    enum { READS = 8 * ROUNDS };
    static char text[2][BLOCK];
    int fd = file_of(BLOCK), is_busy[2] = {0};
    for (int round = 0; round < READS || is_busy[0] || is_busy[1]; round++) {
        for (int place = 0; place < 2 && round < READS; place++) {
            /* Every third round submits nothing while a read is in flight. */
            if (is_busy[place] || (round % 3 == 2 && is_busy[!place]))
                continue;
            on(IORING_OP_READ, place, fd, text[place], BLOCK);
            is_busy[place] = 1;
        }
        if (IS_FIXED) {
            enter_well(1);
        } else {
            long entered = ring_enter(ring.fd, pending, 1, IORING_ENTER_GETEVENTS);
            if (entered < 0)
                fail(2, "enter", entered);
            pending -= entered;
        }
        while (ring_peek(&ring))
            is_busy[take().user_data] = 0;
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"short-read", short_read},     {"short-write", short_write},         {"enter-interrupted", enter_interrupted},
    {"would-wait", would_wait},     {"no-buffers", no_buffers},           {"receive-ends", receive_ends},
    {"poll-ends", poll_ends},       {"completion-late", completion_late}, {"request-late", request_late},
    {"order", order},               {"zero-copy", zero_copy},             {"overflow", overflow},
    {"believes-cancel", believes_cancel}, {"broken-chain", broken_chain}, {"torn-chain", torn_chain},
    {"polled-wait", polled_wait},   {"read-too-late", read_too_late},     {"noted-late", noted_late},
    {"eventfd-late", eventfd_late}, {"bundle", bundle},
    {"open-fails", open_fails},     {"read-fails", read_fails},           {"write-fails", write_fails},
    {"connect-fails", connect_fails}, {"accept-fails", accept_fails},     {"freed", freed},
    {"dropped", dropped},           {"reused", reused},                   {"looked-at", looked_at},
    {"overwritten", overwritten},   {"refused", refused},
};

int main(int count, char **words) {
    CHECK(ring_open(&ring, 32, 0) == 0);
    for (unsigned place = 0; count > 1 && place < sizeof CASES / sizeof *CASES; place++)
        if (strcmp(words[1], CASES[place].name) == 0) {
            CASES[place].run();
            return 0;
        }
    fail(3, "no such case", count);
}
