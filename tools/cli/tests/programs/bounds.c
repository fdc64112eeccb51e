/* poll and select on a ring, with only as much memory as the kernel reads, or none. */
#include "ring.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>

int main(void) {
    struct ring ring;
    CHECK(ring_open(&ring, 8, 0) == 0);
    ring_entry(&ring, IORING_OP_NOP, 1);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && mprotect(page + 4096, 4096, PROT_NONE) == 0);
    struct timeval none = {0};

    /* The part of a set that its numbers need, at the end of a mapping. */
    unsigned long *set = (unsigned long *)(page + 4096) - 1;
    *set = 1ul << ring.fd;
    int count = select(ring.fd + 1, (fd_set *)set, 0, 0, &none);
    printf("select: %d, the ring: %d\n", count, *set == 1ul << ring.fd);
    count = select(ring.fd + 1, 0, 0, (fd_set *)set, &none);
    printf("exceptions: %d, none: %d\n", count, *set == 0);

    /* The same part of a set, followed by other data, which must not change. */
    set -= 1;
    set[1] = 0x5555555555555555;
    *set = 1ul << ring.fd;
    count = pselect(ring.fd + 1, (fd_set *)set, 0, 0, &(struct timespec){0}, 0);
    printf("pselect: %d, untouched: %d\n", count, set[1] == 0x5555555555555555);

    /* A large set, as in programs that ignore FD_SETSIZE. */
    int high = fcntl(ring.fd, F_DUPFD, 300);
    CHECK(high >= 300);
    unsigned long *large = calloc(64, sizeof *large);
    large[high / 64] |= 1ul << high % 64;
    count = select(64 * 64, (fd_set *)large, 0, 0, &none);
    printf("large: %d, the ring: %d\n", count, large[high / 64] == 1ul << high % 64);

    struct pollfd *last = (struct pollfd *)(page + 4096) - 1;
    *last = (struct pollfd){.fd = ring.fd, .events = POLLIN};
    count = poll(last, 1, 0);
    printf("poll: %d, %d\n", count, last->revents == POLLIN);
    count = poll(last, 2, 0);
    printf("poll of too much: %d, %s\n", count, strerror(errno));
    struct pollfd *volatile nowhere = (struct pollfd *)8;
    count = poll(nowhere, 1, 0);
    printf("poll of nothing: %d, %s\n", count, strerror(errno));
    count = select(ring.fd + 1, (fd_set *)nowhere, 0, 0, &none);
    printf("select of nothing: %d, %s\n", count, strerror(errno));
    return 0;
}
