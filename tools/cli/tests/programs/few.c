/* Prints how many descriptors it may have beside the initial ones, and creates a ring where the kernel would. */
#include "ring.h"
#include <fcntl.h>

int main(void) {
    int fds[16], count = 0;
    while (count < 16 && (fds[count] = open("/dev/null", O_RDONLY)) >= 0)
        count++;
    printf("%d, the first is %d\n", count, count ? fds[0] : -1);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    if (count) {
        struct ring ring;
        CHECK(ring_open(&ring, 8, 0) == 0);
        printf("ring %d: a NOP %d\n", ring.fd, ring_nop(&ring, 1));
        close(ring.fd);
        CHECK(open("/dev/null", O_RDONLY) == fds[0]);
    }
    return 0;
}
