/* A ring would be passed in a message. No socket passes it, but earlier messages are sent. */
#include "ring.h"
#include <sys/socket.h>

union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
};

static void prepare(struct msghdr *message, union control *control, int first, int second) {
    static char byte = 'x';
    static struct iovec vector = {&byte, 1};
    int descriptors[2] = {first, second};
    *message = (struct msghdr){.msg_iov = &vector, .msg_iovlen = 1};
    message->msg_control = control;
    message->msg_controllen = sizeof *control;
    control->header = (struct cmsghdr){CMSG_LEN(sizeof descriptors), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control->header), descriptors, sizeof descriptors);
}

int main(void) {
    struct io_uring_params params = {0};
    int ring = ring_setup(4, &params), sockets[2];
    CHECK(ring >= 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    struct mmsghdr messages[2] = {0};
    union control controls[2];
    prepare(&messages[0].msg_hdr, &controls[0], 1, 2);
    prepare(&messages[1].msg_hdr, &controls[1], 1, ring);
    printf("others: %zd\n", sendmsg(sockets[0], &messages[0].msg_hdr, 0));
    ssize_t sent = sendmsg(sockets[0], &messages[1].msg_hdr, 0);
    printf("a ring: %zd %d\n", sent, errno == EINVAL);
    printf("one of two: %d\n", sendmmsg(sockets[0], messages, 2, 0));
    sent = sendmmsg(sockets[0], messages + 1, 1, 0);
    printf("none of one: %zd %d\n", sent, errno == EINVAL);
    printf("no message: %zd\n", sendmsg(sockets[0], (struct msghdr *)8, 0));
    return 0;
}
