/* Closes all its descriptors, opens the given file as 2, and as many times more as there were descriptors before; uses a
 * ring. */
#include "ring.h"
#include <fcntl.h>
#include <sys/resource.h>

int main(int count, char **arguments) {
    CHECK(count == 2);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(close_range(0, ~0u, 0) == 0);
    limit.rlim_cur = limit.rlim_max < 2048 ? limit.rlim_max : 2048;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (rlim_t fd = 0; fd < limit.rlim_cur - 64; fd++)
        CHECK(open(arguments[1], O_RDWR | O_CREAT, 0600) == (int)fd);
    struct ring ring;
    CHECK(ring_open(&ring, 8, 0) == 0);
    CHECK(ring_nop(&ring, 1) == 0);
    return 0;
}
