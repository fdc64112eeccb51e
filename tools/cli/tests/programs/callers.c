/* Requests that two functions submit, whose names a trace must find. */
#include "ring.h"

static struct ring ring;

static __attribute__((noinline)) void innermost(int times) {
    for (int i = 0; i < times; i++) CHECK(ring_nop(&ring, 7) == 0);
}

static __attribute__((noinline)) void by_one(void) { innermost(1), printf("one\n"); }

static __attribute__((noinline)) void by_another(void) { innermost(1), printf("another\n"); }

int main(void) {
    CHECK(ring_open(&ring, 8, 0) == 0);
    by_one();
    by_another();
    return 0;
}
