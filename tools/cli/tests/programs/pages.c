/* A ring in the program's own pages, which it unmaps while the ring lives. */
#include "ring.h"

/* Newer than the headers of Debian 12. */
#define SETUP_NO_MMAP (1u << 14)

static char *page(void) {
    char *start = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    return start;
}

int main(void) {
    struct ring ring = {.submissions = page()};
    char *entries = page();
    ring.completions = ring.submissions;
    ring.entries = (struct io_uring_sqe *)entries;
    ring.params.flags = SETUP_NO_MMAP;
    /* The last eight bytes of the two structures. */
    memcpy((char *)&ring.params.sq_off + 32, &entries, 8);
    memcpy((char *)&ring.params.cq_off + 32, &ring.completions, 8);
    ring.fd = ring_setup(4, &ring.params);
    CHECK(ring.fd >= 0);
    for (unsigned i = 0; i < 20; i++)
        CHECK(ring_nop(&ring, i) == 0);
    printf("nops in the program's pages: all there\n");

    ring_entry(&ring, IORING_OP_NOP, 20);
    CHECK(mprotect(entries, 4096, PROT_NONE) == 0);
    printf("without entries: %ld\n", ring_enter(ring.fd, 1, 0, 0));
    CHECK(mprotect(ring.submissions, 4096, PROT_NONE) == 0);
    printf("without rings: %ld\n", ring_enter(ring.fd, 1, 0, 0));
    printf("a wait without rings: %ld\n", ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS));
    return 0;
}
