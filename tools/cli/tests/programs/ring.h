/* A ring without a library: the calls of a program with its own copy of liburing, in one page.
 *
 * The three calls are made by the program's own instructions, or through the C library (-DBY_LIBC). With -DAPART each
 * has its own function, as in liburing: a compiler keeps the number of a call that it inlines twice in a register.
 * -DSETUP_FLAGS=n adds setup flags to every ring. */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __aarch64__
#include "arch/aarch64.h"
#else
#include "arch/x86_64.h"
#endif

#define CHECK(condition)                                                                               \
    do {                                                                                               \
        if (!(condition)) {                                                                            \
            printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);           \
            fflush(stdout);                                                                            \
            _exit(99);                                                                                 \
        }                                                                                              \
    } while (0)

/* These functions return a negative errno, as the kernel does. */
static inline __attribute__((always_inline)) long ring_call(long number, long a, long b, long c, long d, long e,
                                                            long f) {
#ifdef BY_LIBC
    long result = syscall(number, a, b, c, d, e, f);
    return result < 0 ? -errno : result;
#else
    return call_by_instruction(number, a, b, c, d, e, f);
#endif
}

#ifdef APART
#define RING_FUNCTION static __attribute__((noinline, unused)) long
#else
#define RING_FUNCTION static inline long
#endif

RING_FUNCTION ring_setup(unsigned entries, struct io_uring_params *params) {
    return ring_call(SYS_io_uring_setup, entries, (long)params, 0, 0, 0, 0);
}

RING_FUNCTION ring_enter(int fd, unsigned submit, unsigned wait, unsigned flags) {
    return ring_call(SYS_io_uring_enter, fd, submit, wait, flags, 0, 0);
}

static inline long ring_register(int fd, unsigned opcode, void *argument, unsigned count) {
    return ring_call(SYS_io_uring_register, fd, opcode, (long)argument, count, 0, 0);
}

#ifndef SETUP_FLAGS
#define SETUP_FLAGS 0
#endif

struct ring {
    int fd;
    struct io_uring_params params;
    char *submissions, *completions;
    struct io_uring_sqe *entries;
};

#define SQ(ring, field) ((unsigned *)((ring)->submissions + (ring)->params.sq_off.field))
#define CQ(ring, field) ((unsigned *)((ring)->completions + (ring)->params.cq_off.field))

/* `split`: maps the CQ separately, as programs did before IORING_FEAT_SINGLE_MMAP. */
static inline int ring_open_with(struct ring *ring, unsigned entries, int split, unsigned setup_flags) {
    memset(ring, 0, sizeof *ring);
    ring->params.flags = setup_flags | SETUP_FLAGS;
    ring->fd = ring_setup(entries, &ring->params);
    if (ring->fd < 0)
        return ring->fd;
    struct io_uring_params *p = &ring->params;
    size_t sq = p->sq_off.array + p->sq_entries * 4, cq = p->cq_off.cqes + p->cq_entries * 16;
    size_t both = sq > cq ? sq : cq;
    int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    ring->submissions = mmap(0, split ? sq : both, access, flags, ring->fd, IORING_OFF_SQ_RING);
    CHECK(ring->submissions != MAP_FAILED);
    ring->completions = split ? mmap(0, cq, access, flags, ring->fd, IORING_OFF_CQ_RING) : ring->submissions;
    CHECK(ring->completions != MAP_FAILED);
    ring->entries = mmap(0, p->sq_entries * 64, access, flags, ring->fd, IORING_OFF_SQES);
    CHECK(ring->entries != MAP_FAILED);
    return 0;
}

static inline int ring_open(struct ring *ring, unsigned entries, int split) {
    return ring_open_with(ring, entries, split, 0);
}

/* Returns a cleared entry, put at the ring's tail. */
static inline struct io_uring_sqe *ring_entry(struct ring *ring, uint8_t opcode, uint64_t user_data) {
    unsigned tail = *SQ(ring, tail), index = tail & *SQ(ring, ring_mask);
    SQ(ring, array)[index] = index;
    struct io_uring_sqe *entry = memset(&ring->entries[index], 0, 64);
    entry->opcode = opcode;
    entry->user_data = user_data;
    __atomic_store_n(SQ(ring, tail), tail + 1, __ATOMIC_RELEASE);
    return entry;
}

/* Returns the oldest completion, if there is one; `ring_seen` gives its place back. */
static inline struct io_uring_cqe *ring_peek(struct ring *ring) {
    unsigned head = *CQ(ring, head);
    if (head == __atomic_load_n(CQ(ring, tail), __ATOMIC_ACQUIRE))
        return 0;
    struct io_uring_cqe *all = (struct io_uring_cqe *)(ring->completions + ring->params.cq_off.cqes);
    return &all[head & *CQ(ring, ring_mask)];
}

static inline void ring_seen(struct ring *ring) {
    __atomic_store_n(CQ(ring, head), *CQ(ring, head) + 1, __ATOMIC_RELEASE);
}

/* Submits a NOP and waits for it; returns its result. */
static inline int ring_nop(struct ring *ring, uint64_t user_data) {
    ring_entry(ring, IORING_OP_NOP, user_data);
    long entered = ring_enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS);
    CHECK(entered == 1);
    struct io_uring_cqe *completion = ring_peek(ring);
    CHECK(completion && completion->user_data == user_data);
    int result = completion->res;
    ring_seen(ring);
    return result;
}
