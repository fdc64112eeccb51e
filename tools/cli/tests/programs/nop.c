/* NOPs through a ring, with both ways to map it; invalid calls; errno is preserved. */
#include "ring.h"

static void nops(int split) {
    struct ring ring;
    CHECK(ring_open(&ring, 8, split) == 0);
    for (unsigned batch = 1; batch <= 8; batch++) {
        for (unsigned i = 0; i < batch; i++)
            ring_entry(&ring, IORING_OP_NOP, batch * 100 + i);
        long entered = ring_enter(ring.fd, batch, batch, IORING_ENTER_GETEVENTS);
        CHECK(entered == (long)batch);
        for (unsigned i = 0; i < batch; i++) {
            struct io_uring_cqe *completion = ring_peek(&ring);
            CHECK(completion && completion->user_data == batch * 100 + i && completion->res == 0);
            ring_seen(&ring);
        }
        CHECK(!ring_peek(&ring));
    }
    close(ring.fd);
    printf("nops, %s: all there\n", split ? "three mappings" : "two mappings");
}

int main(void) {
    nops(0);
    nops(1);
    errno = 77;
    struct io_uring_params params = {0};
    printf("no entries: %ld\n", ring_setup(0, &params));
    printf("no parameters: %ld\n", ring_setup(4, (void *)8));
    params.flags = 1u << 31;
    printf("an unknown flag: %ld\n", ring_setup(4, &params));
    printf("no descriptor: %ld\n", ring_enter(-1, 0, 0, 0));
    printf("no ring: %ld\n", ring_enter(0, 0, 0, 0));
#ifndef BY_LIBC
    CHECK(errno == 77);
#endif
    return 0;
}
