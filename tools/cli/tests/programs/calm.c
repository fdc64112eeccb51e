/* No signal comes, so no wait is interrupted, even while the kernel removes a ring that was created as a trial. */
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>

int main(void) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event;
    for (int count = 0; count < 15; count++) {
        if (epoll_wait(epoll, &event, 1, 20) != 0) {
            printf("a wait ends with errno %d\n", errno);
            return 1;
        }
    }
    return 0;
}
