/* Programs whose files a power cut may damage: `power CASE write` in an empty directory, and then `power CASE check`, whose input is the output
 * of the first: the numbers of finished steps. -DFIXED repairs all programs. Exit status 1: the result of a finished step is lost, or a
 * file has wrong contents. All writes are made through a ring, which also does some NOPs: the size of the file .idle modulo 5. */
#include "ring.h"
#include <fcntl.h>
#include <sys/stat.h>

#ifdef FIXED
enum { IS_FIXED = 1 };
#else
enum { IS_FIXED = 0 };
#endif

enum { STEPS = 8, RECORD = 100, BLOCK = 4096 };

static struct ring ring;

static struct io_uring_sqe *entry(uint8_t opcode, int fd, const void *memory, unsigned length, uint64_t offset) {
    struct io_uring_sqe *sqe = ring_entry(&ring, opcode, 0);
    sqe->fd = fd;
    sqe->addr = (uint64_t)memory;
    sqe->len = length;
    sqe->off = offset;
    return sqe;
}

/* Submits `count` entries, and returns the last result. */
static int submit(unsigned count) {
    int result = 0;
    for (unsigned submitted = 0, done = 0; done < count;) {
        long entered = ring_enter(ring.fd, count - submitted, 1, IORING_ENTER_GETEVENTS);
        CHECK(entered >= 0);
        submitted += entered;
        for (struct io_uring_cqe *cqe; (cqe = ring_peek(&ring)); done++) {
            CHECK(cqe->res >= 0);
            result = cqe->res;
            ring_seen(&ring);
        }
    }
    return result;
}

static int open_at(const char *name, int flags) {
    entry(IORING_OP_OPENAT, AT_FDCWD, name, 0644, 0)->open_flags = flags;
    return submit(1);
}

static void write_at(int fd, const void *bytes, unsigned length, uint64_t offset) {
    entry(IORING_OP_WRITE, fd, bytes, length, offset);
    CHECK(submit(1) == (int)length);
}

static void sync_file(int fd) {
    entry(IORING_OP_FSYNC, fd, 0, 0, 0);
    submit(1);
}

static void rename_to(const char *old, const char *new) {
    entry(IORING_OP_RENAMEAT, AT_FDCWD, old, AT_FDCWD, (uint64_t)new);
    submit(1);
}

/* Prints the number of steps that are finished. */
static void say(unsigned step) {
    char text[16];
    int length = sprintf(text, "%u\n", step);
    CHECK(write(1, text, length) == length);
    struct stat idle;
    for (long number = stat(".idle", &idle) ? 0 : idle.st_size % 5; number > 0; number--) {
        entry(IORING_OP_NOP, -1, 0, 0, 0);
        submit(1);
    }
}

static void fill(char *bytes, unsigned length, unsigned step) { memset(bytes, 'a' + step % 26, length); }

static int is_filled(const char *bytes, unsigned length, unsigned step) {
    for (unsigned at = 0; at < length; at++)
        if (bytes[at] != (char)('a' + step % 26))
            return 0;
    return 1;
}

static void fail(const char *what, long number) {
    fprintf(stderr, "power: %s (%ld)\n", what, number);
    exit(1);
}

/* Reads a file; returns its length, or -1 if there is no such file. */
static long contents(const char *name, char *bytes, unsigned length) {
    int fd = open(name, O_RDONLY);
    if (fd < 0)
        return -1;
    memset(bytes, 0, length);
    long got = read(fd, bytes, length);
    CHECK(got >= 0 && close(fd) == 0);
    return got;
}

static unsigned said(void) {
    unsigned step = 0, last = 0;
    while (scanf("%u", &step) == 1)
        last = step;
    return last;
}

static char bytes[16 * BLOCK];

/* A log. A record should be on the device before its step is reported as finished. */
static void write_file_sync(int directory) {
    int log = open_at("log", O_CREAT | O_WRONLY);
    sync_file(directory);
    for (unsigned step = 0; step < STEPS; step++) {
        fill(bytes, RECORD, step);
        write_at(log, bytes, RECORD, step * RECORD);
        if (IS_FIXED)
            sync_file(log);
        say(step + 1);
    }
}

static void check_log(unsigned steps) {
    long length = contents("log", bytes, sizeof bytes);
    if (steps > 0 && length < steps * RECORD)
        fail("the log is too short", length);
    for (unsigned step = 0; step < steps; step++)
        if (!is_filled(bytes + step * RECORD, RECORD, step))
            fail("a record is lost", step);
}

/* A log whose syncs are submitted together with the writes: a sync waits for its write only if the two are linked. */
static void write_link(int directory) {
    int log = open_at("log", O_CREAT | O_WRONLY);
    sync_file(directory);
    for (unsigned step = 0; step < STEPS; step++) {
        fill(bytes, RECORD, step);
        struct io_uring_sqe *sqe = entry(IORING_OP_WRITE, log, bytes, RECORD, step * RECORD);
        if (IS_FIXED)
            sqe->flags |= IOSQE_IO_LINK;
        entry(IORING_OP_FSYNC, log, 0, 0, 0);
        submit(2);
        say(step + 1);
    }
}

/* A new file for each step, whose name must be on the device, too. */
static void write_create(int directory) {
    for (unsigned step = 0; step < STEPS; step++) {
        char name[16];
        sprintf(name, "%u", step);
        int fd = open_at(name, O_CREAT | O_WRONLY);
        fill(bytes, RECORD, step);
        write_at(fd, bytes, RECORD, 0);
        sync_file(fd);
        if (IS_FIXED)
            sync_file(directory);
        say(step + 1);
    }
}

static void check_create(unsigned steps) {
    for (unsigned step = 0; step < steps; step++) {
        char name[16];
        sprintf(name, "%u", step);
        if (contents(name, bytes, RECORD) != RECORD || !is_filled(bytes, RECORD, step))
            fail("a file is lost", step);
    }
}

/* A file that each step replaces. With `syncs_file`, the new data are on the device before the rename. The first step replaces nothing, so that its data need a
 * sync on every file system. */
static void replace(int directory, int syncs_file, int syncs_directory) {
    for (unsigned step = 0; step < STEPS; step++) {
        int fd = open_at("new", O_CREAT | O_TRUNC | O_WRONLY);
        fill(bytes, BLOCK, step);
        write_at(fd, bytes, BLOCK, 0);
        if (syncs_file || step == 0)
            sync_file(fd);
        rename_to("new", "current");
        if (syncs_directory)
            sync_file(directory);
        say(step + 1);
    }
}

static void write_rename(int directory) { replace(directory, 1, IS_FIXED); }

static void write_replace(int directory) { replace(directory, IS_FIXED, 1); }

static void check_current(unsigned steps) {
    long length = contents("current", bytes, BLOCK);
    if (steps == 0 && length < 0)
        return;
    unsigned step = length > 0 ? bytes[0] - 'a' : STEPS;
    if (length != BLOCK || step >= STEPS || !is_filled(bytes, BLOCK, step))
        fail("the file is broken", length);
    if (step + 1 < steps)
        fail("an old file is back", step);
}

/* Blocks in one file and their number in another: the number must not be on the device before the blocks. */
static void write_order(int directory) {
    int data = open_at("data", O_CREAT | O_WRONLY), number = open_at("number", O_CREAT | O_WRONLY);
    sync_file(directory);
    for (unsigned step = 0; step < STEPS; step++) {
        fill(bytes, BLOCK, step);
        write_at(data, bytes, BLOCK, step * BLOCK);
        if (IS_FIXED)
            sync_file(data);
        char text = '1' + step;
        write_at(number, &text, 1, 0);
        sync_file(number);
        sync_file(data);
        say(step + 1);
    }
}

static void check_order(unsigned steps) {
    char text = 0;
    unsigned there = contents("number", &text, 1) == 1 && text ? text - '0' : 0;
    if (there < steps)
        fail("the number is old", there);
    contents("data", bytes, sizeof bytes);
    for (unsigned step = 0; step < there; step++)
        if (!is_filled(bytes + step * BLOCK, BLOCK, step))
            fail("a block is missing that is counted", step);
}

static unsigned sum(const char *header) {
    unsigned sum = 17;
    for (unsigned at = 0; at < BLOCK - 1; at++)
        sum = sum * 31 + (unsigned char)header[at];
    return sum % 251;
}

/* A header of several sectors. The repaired program writes it with a checksum, to two places alternately. */
static void write_torn(int directory) {
    int header = open_at("header", O_CREAT | O_WRONLY);
    sync_file(directory);
    for (unsigned step = 0; step < STEPS; step++) {
        fill(bytes, BLOCK, step);
        bytes[BLOCK - 1] = IS_FIXED ? (char)sum(bytes) : bytes[0];
        write_at(header, bytes, BLOCK, IS_FIXED ? step % 2 * BLOCK : 0);
        sync_file(header);
        say(step + 1);
    }
}

static void check_torn(unsigned steps) {
    long length = contents("header", bytes, 2 * BLOCK);
    unsigned there = 0;
    for (int place = 0; place < 2 && IS_FIXED; place++) {
        char *header = bytes + place * BLOCK;
        unsigned step = header[0] - 'a';
        if (length >= (place + 1) * BLOCK && (char)sum(header) == header[BLOCK - 1] && step < STEPS && step + 1 > there)
            there = step + 1;
    }
    if (!IS_FIXED && length > 0) {
        there = bytes[0] - 'a' + 1;
        if (length < BLOCK || !is_filled(bytes, BLOCK, there - 1))
            fail("the header is torn", length);
    }
    if (there < steps)
        fail("the header is old", there);
}

static const struct {
    const char *name;
    void (*write)(int directory);
    void (*check)(unsigned steps);
} cases[] = {
    {"file-sync", write_file_sync, check_log}, {"link", write_link, check_log},
    {"create", write_create, check_create},    {"rename", write_rename, check_current},
    {"replace", write_replace, check_current}, {"order", write_order, check_order},
    {"torn", write_torn, check_torn},
};

int main(int count, char **words) {
    for (unsigned number = 0; count == 3 && number < sizeof cases / sizeof *cases; number++) {
        if (strcmp(cases[number].name, words[1]))
            continue;
        if (!strcmp(words[2], "check")) {
            cases[number].check(said());
        } else {
            CHECK(ring_open(&ring, 8, 0) == 0);
            cases[number].write(open_at(".", O_RDONLY | O_DIRECTORY));
        }
        return 0;
    }
    fprintf(stderr, "power: power CASE write|check\n");
    return 2;
}
