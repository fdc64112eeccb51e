/* A ring's descriptor in poll, ppoll, select, pselect and epoll: it is readable exactly while
 * completions wait, for any caller and any number of calls. */
#include "ring.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

static struct ring ring;
static int epoll;

static int by_poll(void) {
    struct pollfd list[2] = {{.fd = -1}, {.fd = ring.fd, .events = POLLIN}};
    int count = poll(list, 2, 0);
    CHECK(count == (list[1].revents == POLLIN) && list[1].fd == ring.fd);
    return count;
}

static int by_ppoll(void) {
    struct pollfd entry = {.fd = ring.fd, .events = POLLIN};
    struct timespec none = {0};
    int count = ppoll(&entry, 1, &none, 0);
    CHECK(count == (entry.revents == POLLIN));
    return count;
}

static int by_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ring.fd, &set);
    struct timeval none = {0};
    int count = select(ring.fd + 1, &set, 0, 0, &none);
    CHECK(count == !!FD_ISSET(ring.fd, &set));
    return count;
}

static int by_pselect(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ring.fd, &set);
    struct timespec none = {0};
    int count = pselect(ring.fd + 1, &set, 0, 0, &none, 0);
    CHECK(count == !!FD_ISSET(ring.fd, &set));
    return count;
}

static int by_epoll(void) {
    struct epoll_event event;
    int count = epoll_wait(epoll, &event, 1, 0);
    CHECK(count <= 0 || event.data.u64 == 0x1234);
    return count;
}

static int by_epoll_mask(void) {
    struct epoll_event event;
    return epoll_pwait(epoll, &event, 1, 0, 0);
}

static void ask(const char *when) {
    printf("%s: poll %d, ppoll %d, select %d, pselect %d, epoll %d %d\n", when, by_poll(), by_ppoll(), by_select(),
           by_pselect(), by_epoll(), by_epoll_mask());
}

static void *submit(void *argument) {
    ring_entry(&ring, IORING_OP_NOP, 3);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    return argument;
}

static long now_ms(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void read_past_cache(int file, unsigned number, unsigned char flags) {
    static char pages[4][4096] __attribute__((aligned(4096)));
    struct io_uring_sqe *entry = ring_entry(&ring, IORING_OP_READ, number);
    entry->fd = file;
    entry->addr = (unsigned long)pages[number];
    entry->len = 4096;
    entry->flags = flags;
}

/* A poll waits for transfers that bypass the page cache. If no transfer leaves a completion, the poll lasts exactly as long as its timeout says. */
static void transfers(void) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    int file = open("/proc/self/exe", O_RDONLY | O_DIRECT);
    if (file < 0)
        file = open("/proc/self/exe", O_RDONLY);
    CHECK(file >= 0);
    struct pollfd list = {.fd = ring.fd, .events = POLLIN};
    for (int round = 0; round < 8; round++) {
        for (unsigned number = 0; number < 4; number++)
            read_past_cache(file, number, 0);
        CHECK(ring_enter(ring.fd, 4, 0, 0) == 4);
        for (int left = 4; left > 0; left--) {
            CHECK(poll(&list, 1, -1) == 1 && list.revents == POLLIN);
            CHECK(ring_peek(&ring) && ring_peek(&ring)->res == 4096);
            ring_seen(&ring);
        }
        CHECK(by_poll() == 0);
    }
    for (int round = 0; round < 4; round++) {
        for (unsigned number = 0; number < 4; number++)
            read_past_cache(file, number, IOSQE_CQE_SKIP_SUCCESS);
        CHECK(ring_enter(ring.fd, 4, 0, 0) == 4);
        struct timespec time = {.tv_nsec = 40000000};
        long began = now_ms();
        CHECK((round % 2 ? poll(&list, 1, 40) : ppoll(&list, 1, &time, 0)) == 0 && list.revents == 0);
        CHECK(now_ms() - began >= 39);
    }
    CHECK(close(file) == 0 && close(ring.fd) == 0);
}

int main(void) {
    transfers();
    CHECK(ring_open(&ring, 8, 0) == 0);
    CHECK((epoll = epoll_create1(0)) >= 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.fd, &event) == 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ring.fd, &event) == -1 && errno == EEXIST);
    ask("empty");
    ring_entry(&ring, IORING_OP_NOP, 1);
    ring_entry(&ring, IORING_OP_NOP, 2);
    CHECK(ring_enter(ring.fd, 2, 0, 0) == 2);
    ask("two");
    ask("two, again");
    ring_seen(&ring);
    ask("one");
    ring_seen(&ring);
    ask("none left");

    /* A wait that sleeps is woken. */
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, submit, 0) == 0);
    struct pollfd list = {.fd = ring.fd, .events = POLLIN};
    printf("poll until another thread submits: %d", poll(&list, 1, -1));
    CHECK(pthread_join(thread, 0) == 0);
    printf(", result %d\n", ring_peek(&ring)->res);
    ring_seen(&ring);

    int copy = fcntl(ring.fd, F_DUPFD_CLOEXEC, 100);
    CHECK(copy >= 100);
    ring_entry(&ring, IORING_OP_NOP, 4);
    printf("through a duplicate: %ld\n", ring_enter(copy, 1, 1, IORING_ENTER_GETEVENTS));
    CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, ring.fd, 0) == 0);
    printf("taken out of epoll: %d\n", by_epoll());
    CHECK(close(ring.fd) == 0);
    ring_seen(&ring);
    ring_entry(&ring, IORING_OP_NOP, 5);
    printf("after the first is closed: %ld\n", ring_enter(copy, 1, 1, IORING_ENTER_GETEVENTS));
    CHECK(close(copy) == 0);
    printf("after both are: %ld\n", ring_enter(copy, 0, 0, 0));
    return 0;
}
