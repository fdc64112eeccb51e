/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Operations that no kernel has, for programs of liburing: prepared like liburing's own. Whether whoever answers
 * the program's io_uring has one is told by the probe: io_uring_opcode_supported(probe, ANYRING_OP_GETDENTS), with a probe
 * of anyring_get_probe_ring(). The kernel itself answers such an operation with -EINVAL. The page docs/private-operations.md of anyring describes them.
 */
#ifndef ANYRING_H
#define ANYRING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <liburing.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Private numbers begin at 192, far from the kernel's growing list. */
enum { ANYRING_OP_GETDENTS = 192 };

/* One entry of a directory, as getdents64(2) writes them, one behind the other. */
struct anyring_dirent {
	uint64_t d_ino;
	int64_t d_off; /* where to go on behind this entry */
	uint16_t d_reclen;
	uint8_t d_type;
	char d_name[];
};

/* The offset that stands for the descriptor's own position, which is used and advanced. */
#define ANYRING_POSITION ((uint64_t)-1)

/*
 * liburing.so.2 of anyring has it: from its first call on, it looks for these operations in what is submitted to
 * rings of the kernel. Without that library it is null.
 */
extern void anyring_private_operations(void) __attribute__((weak));

/*
 * As io_uring_get_probe_ring(3), with these operations where there are any: they are shown to who asks for fewer than
 * 256 rows. The caller gives it back by free(3).
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
 * that was read. The position of fd stays as it is, so many requests may be under way at once. The result is the number
 * of bytes, 0 at the end of the directory, or a negative errno.
 */
static inline void anyring_prep_getdents(struct io_uring_sqe *sqe, int fd, void *buffer, unsigned bytes,
					 uint64_t offset)
{
	if (anyring_private_operations)
		anyring_private_operations();
	/* As liburing's own preparations do, except for user data; flags are set afterwards. */
	memset(sqe, 0, offsetof(struct io_uring_sqe, user_data));
	memset((char *)sqe + offsetof(struct io_uring_sqe, user_data) + 8, 0, 24);
	sqe->opcode = ANYRING_OP_GETDENTS;
	sqe->fd = fd;
	sqe->off = offset;
	sqe->addr = (uint64_t)(uintptr_t)buffer;
	sqe->len = bytes;
}

/* Goes through the entries that a request with the result count has read. */
#define anyring_for_each_dirent(entry, buffer, count)                                                        \
	for (struct anyring_dirent *entry = (struct anyring_dirent *)(buffer);                               \
	     (char *)(entry) < (char *)(buffer) + (count);                                                   \
	     entry = (struct anyring_dirent *)((char *)(entry) + (entry)->d_reclen))

#ifdef __cplusplus
}
#endif

#endif
