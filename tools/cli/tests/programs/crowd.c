/* More threads wait concurrently than the engine has stacks, and the process forks meanwhile. */
#include "ring.h"
#include <pthread.h>
#include <sys/wait.h>

enum { THREADS = 200 };
static struct ring ring;
static int waiting, ended;

static void *wait_for_one(void *unused) {
    (void)unused;
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    CHECK(ring_enter(ring.fd, 0, 1, IORING_ENTER_GETEVENTS) == 0);
    __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 128 << 10) == 0);
    CHECK(ring_open(&ring, 8, 0) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], &small, wait_for_one, 0) == 0);
    while (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) < THREADS)
        usleep(1000);
    pid_t child = fork();
    if (child == 0) {
        struct ring own;
        CHECK(ring_open(&own, 8, 0) == 0);
        for (int i = 0; i < 1000; i++)
            CHECK(ring_nop(&own, i) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("a child's calls\n");
    CHECK(__atomic_load_n(&ended, __ATOMIC_SEQ_CST) == 0);
    ring_nop(&ring, 1);
    ring_entry(&ring, IORING_OP_NOP, 2);
    CHECK(ring_enter(ring.fd, 1, 0, 0) == 1);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], 0) == 0);
    printf("all have come back\n");
    return 0;
}
