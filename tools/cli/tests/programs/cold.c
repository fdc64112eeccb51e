/* Reads that miss the page cache, of a file on a file system without non-blocking attempts (overlayfs): they complete however they are
 * submitted and reaped. */
#include "ring.h"
#include <fcntl.h>
#include <sys/stat.h>

enum { PAGE = 4096, STEP = 64, READS = 8 };

static char pages[READS][PAGE];
static char *map;
static int file;
static size_t length;

static int resident(void) {
    unsigned char found[length / PAGE];
    CHECK(mincore(map, length, found) == 0);
    int count = 0;
    for (size_t i = 0; i < length / PAGE; i++)
        count += found[i] & 1;
    return count;
}

static void submit(struct ring *ring, int count, unsigned bytes, unsigned flags) {
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    memset(pages, 0xff, sizeof pages);
    for (int i = 0; i < count; i++) {
        struct io_uring_sqe *entry = ring_entry(ring, IORING_OP_READ, 1 + i);
        entry->fd = file;
        entry->addr = (uint64_t)pages[i];
        entry->len = bytes;
        entry->off = (uint64_t)i * STEP * PAGE;
    }
    CHECK(ring_enter(ring->fd, count, 0, flags) == count);
}

/* Reaps available completions; returns the number of completed reads. */
static int take(struct ring *ring, unsigned bytes) {
    struct io_uring_cqe *completion;
    int count = 0;
    for (; (completion = ring_peek(ring)); ring_seen(ring)) {
        if (!completion->user_data)
            continue;
        int i = completion->user_data - 1;
        CHECK(completion->res == (int)bytes);
        CHECK(!bytes || (pages[i][0] == 'a' + i && pages[i][PAGE - 1] == 'a' + i));
        count++;
    }
    return count;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    /* A read that never completes ends the test here. */
    alarm(60);
    struct ring ring;
    struct stat status;
    CHECK((file = open(argv[1], O_RDONLY)) >= 0 && fstat(file, &status) == 0);
    length = status.st_size;
    CHECK((map = mmap(0, length, PROT_READ, MAP_SHARED, file, 0)) != MAP_FAILED);

    CHECK(ring_open(&ring, 32, 0) == 0);
    submit(&ring, READS, PAGE, 0);
    CHECK(ring_enter(ring.fd, 0, READS, IORING_ENTER_GETEVENTS) == 0 && take(&ring, PAGE) == READS);
    /* No call enters the ring. */
    submit(&ring, READS, PAGE, 0);
    for (int left = READS; left > 0; left -= take(&ring, PAGE)) {
    }
    /* A read of no bytes reads nothing ahead. */
    submit(&ring, 1, 0, IORING_ENTER_GETEVENTS);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0 && take(&ring, 0) == 1);
    printf("read, %d pages cached\n", resident());
    close(ring.fd);

    /* The thread polls repeatedly, and waits for nothing. */
    CHECK(ring_open_with(&ring, 32, 0, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER) == 0);
    submit(&ring, READS, PAGE, 0);
    for (int left = READS; left > 0; left -= take(&ring, PAGE))
        CHECK(ring_enter(ring.fd, 0, 0, IORING_ENTER_GETEVENTS) == 0);
    close(ring.fd);

    /* The SQ thread is always busy with other requests. */
    CHECK(ring_open_with(&ring, 32, 0, IORING_SETUP_SQPOLL) == 0);
    submit(&ring, READS, PAGE, IORING_ENTER_SQ_WAKEUP);
    for (int left = READS; left > 0; left -= take(&ring, PAGE)) {
        ring_entry(&ring, IORING_OP_NOP, 0);
        CHECK(ring_enter(ring.fd, 1, 0, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT) == 1);
    }
    puts("all read");
    return 0;
}
