/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Operations that no kernel has, for programs that use liburing. They are prepared like liburing's own operations. The probe
 * says whether a ring has one: io_uring_opcode_supported(probe, ANYRING_OP_GETDENTS), with a probe of
 * anyring_get_probe_ring(). On a ring without it, such an operation fails with -EINVAL. The page docs/private-operations.md of
 * anyring describes these operations.
 */
#ifndef ANYRING_H
#define ANYRING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <liburing.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Private opcodes begin at 192, far from those of the kernel, whose list grows. */
enum { ANYRING_OP_GETDENTS = 192 };

/* One entry of a directory, as getdents64(2) writes it; the entries follow one another. */
struct anyring_dirent {
	uint64_t d_ino;
	int64_t d_off; /* the offset at which to continue after this entry */
	uint16_t d_reclen;
	uint8_t d_type;
	char d_name[];
};

/* As offset: read from the descriptor's own position, and advance it. */
#define ANYRING_POSITION ((uint64_t)-1)

/*
 * A function of liburing.so.2 of anyring. From the first call of this function on, the library looks for these operations in
 * submissions to rings of the kernel, and for two features of newer kernels: times in SQEs, and names of sockets. With
 * another library the symbol is null.
 */
extern void anyring_private_operations(void) __attribute__((weak));

/*
 * As io_uring_get_probe_ring(3), with these operations, if the ring has them: a probe reports them to programs that ask for
 * fewer than 256 rows. The caller frees the probe by free(3).
 */
static inline struct io_uring_probe *anyring_get_probe_ring(struct io_uring *ring)
{
	const unsigned rows = 255;
	struct io_uring_probe *probe =
		(struct io_uring_probe *)calloc(1, sizeof(*probe) + rows * sizeof(struct io_uring_probe_op));

	if (probe && io_uring_register_probe(ring, probe, rows) < 0) {
		free(probe);
		probe = NULL;
	}
	return probe;
}

/*
 * Reads entries of the directory fd, as getdents64(2) does, from an offset: 0 first, then the d_off of the last entry
 * that was read. The position of fd does not change, so many requests may be in flight at once. The result is the number
 * of bytes, 0 at the end of the directory, or a negative errno.
 */
static inline void anyring_prep_getdents(struct io_uring_sqe *sqe, int fd, void *buffer, unsigned bytes,
					 uint64_t offset)
{
	if (anyring_private_operations)
		anyring_private_operations();
	/* As liburing's own io_uring_prep_ functions do, except for user data; flags are set afterwards. */
	memset(sqe, 0, offsetof(struct io_uring_sqe, user_data));
	memset((char *)sqe + offsetof(struct io_uring_sqe, user_data) + 8, 0, 24);
	sqe->opcode = ANYRING_OP_GETDENTS;
	sqe->fd = fd;
	sqe->off = offset;
	sqe->addr = (uint64_t)(uintptr_t)buffer;
	sqe->len = bytes;
}

/*
 * epoll whose events are read from memory: docs/uepoll.md describes it. Results are 0 or a count, or a negative errno.
 * Only liburing.so.2 of anyring has these functions: with another liburing a program that uses them cannot be linked, or does
 * not start.
 */

/* Make a set, whose ring the program maps by the descriptor. Without this flag, create2 makes an instance of the kernel's epoll. */
#ifndef EPOLL_USERPOLL
#define EPOLL_USERPOLL 1
#endif
#define EPOLL_USERPOLL_HEADER_MAGIC 0xeb01eb01u
#define EPOLL_USERPOLL_HEADER_SIZE 128

/* Not in the proposal: files may be level-triggered (without EPOLLET) and EPOLLEXCLUSIVE. */
#define ANYRING_EPOLL_EXTENDED 2
/* The feeder, which finds out which files are ready. Without one of these flags, the default feeder. */
#define ANYRING_EPOLL_BY_EPOLL (1 << 8)
#define ANYRING_EPOLL_BY_URING (2 << 8)
#define ANYRING_EPOLL_BY_AIO (3 << 8)
#define ANYRING_EPOLL_BY_REACTOR (4 << 8)
/* A waiting thread polls for events for this many microseconds, up to 127, before it sleeps. */
#define ANYRING_EPOLL_SPIN_US(us) ((us) << 12)

struct epoll_uitem {
	uint32_t ready_events;
	uint32_t events;
	uint64_t data;
};

struct epoll_uheader {
	uint32_t magic;         /* EPOLL_USERPOLL_HEADER_MAGIC */
	uint32_t header_length; /* bytes of header and items: where the index ring is mapped */
	uint32_t index_length;  /* bytes of the index ring, a power of two */
	uint32_t max_items_nr;
	uint32_t head; /* written by the program */
	uint32_t tail;
	struct epoll_uitem items[] __attribute__((__aligned__(128)));
};

/* An event that threads raise. */
struct anyring_event;

extern int anyring_epoll_create2(int flags, size_t max_items);
/* As epoll_ctl(2). With an instance of the kernel's epoll, this is epoll_ctl(2). */
extern int anyring_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
/* Sleeps until the ring has events, and then returns -ESTALE. Returns 0 if none came in time. */
extern int anyring_epoll_wait(int epfd, int timeout_ms);
/* As epoll_wait(2): takes events from the ring, and sleeps only if there are none. */
extern int anyring_epoll_take(int epfd, struct epoll_event *events, int maxevents, int timeout_ms);
/* Ends the set. A close(2) alone does not end its feeder. */
extern int anyring_epoll_close(int epfd);
/* The feeder of the set: 1 to 4, as in the flags above without the shift. */
extern int anyring_epoll_feeder(int epfd);

/* An event that any thread can raise, with data for the program; null if the set is full, or epfd is no set. */
extern struct anyring_event *anyring_event_add(int epfd, uint64_t data);
/* Adds bits to the event, which the consumer takes next; makes no system call unless the consumer sleeps. */
extern void anyring_event_raise(const struct anyring_event *event, uint32_t bits);
/* Removes an event. No thread may raise it from then on. */
extern void anyring_event_delete(struct anyring_event *event);

/* A loop over the entries that a request with the result count has read. */
#define anyring_for_each_dirent(entry, buffer, count)                                                        \
	for (struct anyring_dirent *entry = (struct anyring_dirent *)(buffer);                               \
	     (char *)(entry) < (char *)(buffer) + (count);                                                   \
	     entry = (struct anyring_dirent *)((char *)(entry) + (entry)->d_reclen))

#ifdef __cplusplus
}
#endif

#endif
