// Compares the inline functions of liburing.h for rings, completions, provided buffers and received messages
// with the symbols of liburing-ffi, on a real ring: their results must be equal.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static int failures;

static void *find(const char *name)
{
	void *function = dlsym(library, name);
	if (!function) {
		printf("%s is not there\n", name);
		exit(1);
	}
	printf("symbol %s\n", name);
	return function;
}

static void same(const char *what, unsigned long one, unsigned long two)
{
	if (one != two) {
		printf("%s: %#lx inline and %#lx by the symbol\n", what, one, two);
		failures++;
	}
}

#define SYMBOL(name) ((__typeof__(&name))find(#name))
#define SAME(name, ...) same(#name, (unsigned long)name(__VA_ARGS__), (unsigned long)SYMBOL(name)(__VA_ARGS__))

static void completions(struct io_uring *ring)
{
	struct io_uring_cqe *one = NULL, *two = NULL;
	unsigned first, second;
	SAME(io_uring_sq_ready, ring);
	SAME(io_uring_sq_space_left, ring);
	SAME(io_uring_sqring_wait, ring);
	SAME(io_uring_cq_ready, ring);
	SAME(io_uring_cq_has_overflow, ring);
	SAME(io_uring_peek_cqe, ring, &one);
	for (int i = 0; i < 6; i++) {
		struct io_uring_sqe *sqe = i % 2 ? io_uring_get_sqe(ring) : SYMBOL(io_uring_get_sqe)(ring);
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data64(sqe, 100 + i);
	}
	SAME(io_uring_sq_ready, ring);
	SAME(io_uring_sq_space_left, ring);
	same("submitted", io_uring_submit(ring), 6);
	SAME(io_uring_cq_ready, ring);
	same("peek", __io_uring_peek_cqe(ring, &one, &first), SYMBOL(__io_uring_peek_cqe)(ring, &two, &second));
	same("peeked", (unsigned long)one, (unsigned long)two);
	same("available", first, second);
	same("peek", io_uring_peek_cqe(ring, &one), SYMBOL(io_uring_peek_cqe)(ring, &two));
	same("peeked", (unsigned long)one, (unsigned long)two);
	same("wait", io_uring_wait_cqe(ring, &one), SYMBOL(io_uring_wait_cqe)(ring, &two));
	same("waited", (unsigned long)one, (unsigned long)two);
	same("wait for 3", io_uring_wait_cqe_nr(ring, &one, 3), SYMBOL(io_uring_wait_cqe_nr)(ring, &two, 3));
	same("waited", (unsigned long)one, (unsigned long)two);
	SAME(io_uring_cqe_get_data, one);
	SAME(io_uring_cqe_get_data64, one);
	SAME(io_uring_cqe_nr, one);
#if !IO_URING_CHECK_VERSION(2, 15)
	struct io_uring_cqe_iter iter = io_uring_cqe_iter_init(ring), other = SYMBOL(io_uring_cqe_iter_init)(ring);
	same("iterator", memcmp(&iter, &other, sizeof(iter)), 0);
	bool more;
	do {
		more = io_uring_cqe_iter_next(&iter, &one);
		same("next", more, SYMBOL(io_uring_cqe_iter_next)(&other, &two));
		same("at", (unsigned long)one, (unsigned long)two);
	} while (more);
#endif
	same("wait", io_uring_wait_cqe(ring, &one), 0);
	SYMBOL(io_uring_cqe_seen)(ring, one);
	same("left", io_uring_cq_ready(ring), 5);
	SYMBOL(io_uring_cqe_seen)(ring, NULL);
	SYMBOL(io_uring_cq_advance)(ring, 4);
	same("left", io_uring_cq_ready(ring), 1);
	io_uring_cq_advance(ring, 1);
	SAME(io_uring_cq_eventfd_enabled, ring);
	same("disable", SYMBOL(io_uring_cq_eventfd_toggle)(ring, false), 0);
	same("disabled", io_uring_cq_eventfd_enabled(ring), 0);
	SAME(io_uring_cq_eventfd_enabled, ring);
	same("enable", SYMBOL(io_uring_cq_eventfd_toggle)(ring, true), 0);
	same("enabled", io_uring_cq_eventfd_enabled(ring), 1);
	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	for (int op = -1; op < 260; op++)
		same("supported", io_uring_opcode_supported(probe, op), SYMBOL(io_uring_opcode_supported)(probe, op));
	io_uring_free_probe(probe);
	struct io_uring_sqe *sqe = SYMBOL(io_uring_get_sqe128)(ring);
	same("a large entry", (unsigned long)sqe, 0);
}

static void buffers(struct io_uring *ring)
{
	int error = 1;
	struct io_uring_buf_ring *list = io_uring_setup_buf_ring(ring, 8, 3, 0, &error), copy[8];
	same("buffer ring", error, 0);
	if (!list)
		return;
	char memory[64];
	SAME(io_uring_buf_ring_mask, 8);
	SAME(io_uring_buf_ring_mask, 32768);
	SYMBOL(io_uring_buf_ring_init)(list);
	memset(copy, 0, sizeof(copy));
	for (int i = 0; i < 5; i++) {
		io_uring_buf_ring_add(copy, memory + i, 1 + i, 40 + i, 7, i);
		SYMBOL(io_uring_buf_ring_add)(list, memory + i, 1 + i, 40 + i, 7, i);
	}
	same("buffers", memcmp(list, copy, 8 * sizeof(struct io_uring_buf)), 0);
	io_uring_buf_ring_advance(copy, 4);
	SYMBOL(io_uring_buf_ring_advance)(list, 4);
	same("buffers", memcmp(list, copy, 8 * sizeof(struct io_uring_buf)), 0);
	SYMBOL(io_uring_buf_ring_cq_advance)(ring, list, 0);
	SYMBOL(__io_uring_buf_ring_cq_advance)(ring, list, 0, 1);
	// The inline function is not compared, because it calls a function that liburing-ffi does not have.
	same("available", SYMBOL(io_uring_buf_ring_available)(ring, list, 3), 5);
	same("available of none", SYMBOL(io_uring_buf_ring_available)(ring, list, 4) < 0, 1);
	same("free", io_uring_free_buf_ring(ring, list, 8, 3), 0);
}

#define FIXED (!IO_URING_CHECK_VERSION(2, 15))

static void messages(void)
{
	struct {
		struct io_uring_recvmsg_out out;
		char name[16];
		union {
			char bytes[64];
			struct cmsghdr first;
		} control;
		char payload[32];
	} buffer;
	memset(&buffer, 0, sizeof(buffer));
	struct msghdr message = { .msg_namelen = sizeof(buffer.name), .msg_controllen = sizeof(buffer.control) };
	struct cmsghdr *second = (void *)(buffer.control.bytes + CMSG_SPACE(4));
	for (unsigned control = 0; control <= 64; control += 8)
		for (unsigned one = 0; one <= 40; one += 4)
			for (unsigned two = 0; two <= 64; two += 4) {
				buffer.out.controllen = control;
				buffer.control.first.cmsg_len = one;
				second->cmsg_len = two;
				struct cmsghdr *first = io_uring_recvmsg_cmsg_firsthdr(&buffer.out, &message);
				static __typeof__(&io_uring_recvmsg_cmsg_firsthdr) begin;
				static __typeof__(&io_uring_recvmsg_cmsg_nexthdr) next;
				if (!begin) {
					begin = SYMBOL(io_uring_recvmsg_cmsg_firsthdr);
					next = SYMBOL(io_uring_recvmsg_cmsg_nexthdr);
				}
				same("first", (unsigned long)first, (unsigned long)begin(&buffer.out, &message));
				if (first)
					same("next", (unsigned long)io_uring_recvmsg_cmsg_nexthdr(&buffer.out, &message, first),
					     (unsigned long)next(&buffer.out, &message, first));
			}
	SAME(io_uring_recvmsg_name, &buffer.out);
	SAME(io_uring_recvmsg_payload, &buffer.out, &message);
	static const int lengths[] = { -1, 0, 15, 16, 95, 96, 97, 128 };
	for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		SAME(io_uring_recvmsg_validate, &buffer, lengths[i], &message);
		// Before 2.15, the inline functions are wrong for lengths that are too short.
		if (FIXED || lengths[i] >= 96)
			SAME(io_uring_recvmsg_payload_length, &buffer.out, lengths[i], &message);
	}
	message.msg_controllen = ~0ul;
	if (FIXED)
		SAME(io_uring_recvmsg_validate, &buffer, 128, &message);
}

int main(int count, char **arguments)
{
	library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	struct io_uring ring;
	if (io_uring_queue_init(8, &ring, 0)) {
		printf("no ring\n");
		return 1;
	}
	completions(&ring);
	buffers(&ring);
	messages();
	io_uring_queue_exit(&ring);
	printf("%d differ\n", failures);
	return failures > 0;
}
