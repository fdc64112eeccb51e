// A program as it would be written against liburing: rings of every kind, a file and a socket, waits with and
// without time limits, registrations. It prints its results, in lines that do not depend on the engine.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAY(name, value) printf("%s: %ld\n", name, (long)(value))

static void fail(const char *what, int result)
{
	printf("%s failed: %s\n", what, strerror(-result));
	exit(1);
}

static int reap(struct io_uring *ring, unsigned long long *data)
{
	struct io_uring_cqe *cqe;
	int result = io_uring_wait_cqe(ring, &cqe);
	if (result)
		fail("io_uring_wait_cqe", result);
	result = cqe->res;
	if (data)
		*data = cqe->user_data;
	io_uring_cqe_seen(ring, cqe);
	return result;
}

static void nops(struct io_uring *ring, unsigned count)
{
	struct io_uring_cqe *list[8];
	for (unsigned i = 0; i < count; i++) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
		io_uring_prep_nop(sqe);
		sqe->user_data = i;
	}
	SAY("submitted", io_uring_submit_and_wait(ring, count));
	unsigned got = io_uring_peek_batch_cqe(ring, list, 8);
	SAY("batch", got);
	for (unsigned i = 0; i < got; i++)
		if (list[i]->user_data != i)
			SAY("out of order", list[i]->user_data);
	io_uring_cq_advance(ring, got);
	struct io_uring_cqe *cqe;
	SAY("peek of nothing", io_uring_peek_cqe(ring, &cqe));
}

static void kinds(void)
{
	static const unsigned flags[] = { 0, IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP, IORING_SETUP_SQE128 | IORING_SETUP_CQE32,
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_SQPOLL };
	for (unsigned i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		struct io_uring_params p = { .flags = flags[i], .cq_entries = 1 << 20, .sq_thread_idle = 10 };
		struct io_uring ring;
		int result = io_uring_queue_init_params(5, &ring, &p);
		printf("kind %#x: %d\n", flags[i], result);
		/* IORING_SETUP_NO_MMAP, which older headers do not have. */
		if (p.flags & 1u << 14)
			SAY("flag that was not asked for", p.flags);
		if (result)
			continue;
		SAY("entries", ring.sq.ring_entries);
		SAY("cq entries", ring.cq.ring_entries);
		SAY("mask by pointer", *ring.sq.kring_mask == ring.sq.ring_mask && *ring.cq.kring_entries == ring.cq.ring_entries);
		if (flags[i] & IORING_SETUP_SQPOLL) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
			io_uring_prep_nop(sqe);
			SAY("submitted", io_uring_submit(&ring));
			SAY("reaped", reap(&ring, NULL));
		} else {
			nops(&ring, 4);
		}
		io_uring_queue_exit(&ring);
	}
	struct io_uring ring;
	SAY("no entries", io_uring_queue_init(0, &ring, 0));
	SAY("too many entries", io_uring_queue_init(1 << 20, &ring, 0));
	SAY("unknown flag", io_uring_queue_init(4, &ring, 1u << 31));
}

static void file(struct io_uring *ring)
{
	char name[] = "/tmp/liburing-files-XXXXXX", buffer[64] = "";
	int fd = mkstemp(name);
	unlink(name);
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	io_uring_prep_write(sqe, fd, "hello, ring", 11, 0);
	sqe->flags |= IOSQE_IO_LINK;
	sqe = io_uring_get_sqe(ring);
	io_uring_prep_read(sqe, fd, buffer, sizeof(buffer), 0);
	SAY("linked", io_uring_submit(ring));
	SAY("written", reap(ring, NULL));
	SAY("read", reap(ring, NULL));
	printf("%s\n", buffer);

	SAY("registered files", io_uring_register_files(ring, &fd, 1));
	struct iovec memory = { buffer, sizeof(buffer) };
	SAY("registered buffers", io_uring_register_buffers(ring, &memory, 1));
	memset(buffer, 0, sizeof(buffer));
	sqe = io_uring_get_sqe(ring);
	io_uring_prep_read_fixed(sqe, 0, buffer, 5, 7, 0);
	sqe->flags |= IOSQE_FIXED_FILE;
	SAY("one", io_uring_submit(ring));
	SAY("read", reap(ring, NULL));
	printf("%s\n", buffer);
	int none = -1;
	SAY("updated", io_uring_register_files_update(ring, 0, &none, 1));
	SAY("unregistered", io_uring_unregister_files(ring));
	SAY("again", io_uring_unregister_files(ring));
	SAY("buffers", io_uring_unregister_buffers(ring));
	SAY("sparse", io_uring_register_files_sparse(ring, 8));
	SAY("range", io_uring_register_file_alloc_range(ring, 2, 4));
	SAY("unregistered", io_uring_unregister_files(ring));
	SAY("sparse buffers", io_uring_register_buffers_sparse(ring, 8));
	SAY("buffers", io_uring_unregister_buffers(ring));
	close(fd);
}

static void waits(struct io_uring *ring)
{
	struct __kernel_timespec short_time = { 0, 2000000 }, long_time = { 10, 0 };
	struct io_uring_cqe *cqe = (void *)1;
	SAY("timeout", io_uring_wait_cqe_timeout(ring, &cqe, &short_time));
	SAY("no cqe", cqe == NULL);
	SAY("timeout of many", io_uring_wait_cqes(ring, &cqe, 3, &short_time, NULL));
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	io_uring_prep_nop(sqe);
	SAY("submit and wait", io_uring_submit_and_wait_timeout(ring, &cqe, 1, &long_time, NULL));
	SAY("cqe", cqe != NULL);
	io_uring_cqe_seen(ring, cqe);
	SAY("submit and time out", io_uring_submit_and_wait_timeout(ring, &cqe, 1, &short_time, NULL));
	SAY("events", io_uring_get_events(ring));
	SAY("and events", io_uring_submit_and_get_events(ring));
	int pipes[2];
	char byte;
	if (pipe(pipes))
		exit(1);
	sqe = io_uring_get_sqe(ring);
	io_uring_prep_read(sqe, pipes[0], &byte, 1, 0);
	sqe->user_data = 77;
	SAY("pending", io_uring_submit(ring));
	if (!fork()) {
		usleep(3000);
		_exit(write(pipes[1], "x", 1) != 1);
	}
	unsigned long long data;
	SAY("read", reap(ring, &data));
	SAY("data", data);
	int status;
	wait(&status);
	SAY("child", status);
	sqe = io_uring_get_sqe(ring);
	io_uring_prep_read(sqe, pipes[0], &byte, 1, 0);
	sqe->user_data = 78;
	SAY("pending", io_uring_submit(ring));
	struct io_uring_sync_cancel_reg cancel = { .addr = 78, .timeout = { -1, -1 } };
	SAY("cancelled", io_uring_register_sync_cancel(ring, &cancel));
	SAY("as", reap(ring, &data));
	close(pipes[0]);
	close(pipes[1]);
}

static void registrations(struct io_uring *ring)
{
	int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	eventfd_t count = 0;
	SAY("eventfd", io_uring_register_eventfd(ring, event));
	SAY("enabled", io_uring_cq_eventfd_enabled(ring));
	nops(ring, 1);
	SAY("signalled", eventfd_read(event, &count) == 0 && count > 0);
	SAY("eventfd", io_uring_unregister_eventfd(ring));
	SAY("eventfd", io_uring_unregister_eventfd(ring));
	close(event);

	struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
	SAY("probe", probe && io_uring_opcode_supported(probe, IORING_OP_READ));
	io_uring_free_probe(probe);
	probe = io_uring_get_probe();
	SAY("probe", probe && io_uring_opcode_supported(probe, IORING_OP_NOP) && !io_uring_opcode_supported(probe, 255));
	io_uring_free_probe(probe);

	unsigned workers[2] = { 0, 0 };
	SAY("workers", io_uring_register_iowq_max_workers(ring, workers));
	cpu_set_t cpus;
	CPU_ZERO(&cpus);
	CPU_SET(0, &cpus);
	SAY("affinity", io_uring_register_iowq_aff(ring, sizeof(cpus), &cpus));
	SAY("affinity", io_uring_unregister_iowq_aff(ring));
	int id = io_uring_register_personality(ring);
	SAY("personality", id > 0);
	SAY("personality", io_uring_unregister_personality(ring, id));
	SAY("personality", io_uring_unregister_personality(ring, id));

	SAY("ring fd", io_uring_register_ring_fd(ring));
	SAY("ring fd again", io_uring_register_ring_fd(ring));
	nops(ring, 3);
	SAY("ring fd", io_uring_unregister_ring_fd(ring));
	SAY("ring fd", io_uring_unregister_ring_fd(ring));
	nops(ring, 3);
	SAY("dontfork", io_uring_ring_dontfork(ring));

	struct io_uring_buf_reg bad = { .ring_entries = 3 };
	SAY("buffer ring of 3", io_uring_register_buf_ring(ring, &bad, 0));
	SAY("no buffer ring", io_uring_unregister_buf_ring(ring, 5));
}

// On rings of the kernel, completions interrupt a blocking call of the thread.
static int poll_once(struct pollfd *list, int timeout_ms)
{
	int ready;
	while ((ready = poll(list, 1, timeout_ms)) < 0 && errno == EINTR)
		;
	return ready;
}

static void polled(struct io_uring *ring)
{
	struct pollfd poll_ring = { ring->ring_fd, POLLIN, 0 };
	struct io_uring_cqe *cqe;
	for (int round = 0; round < 3; round++) {
		SAY("idle", poll_once(&poll_ring, 0));
		nops(ring, 0);
		struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
		io_uring_prep_nop(sqe);
		SAY("one", io_uring_submit(ring));
		SAY("ready", poll_once(&poll_ring, 5000));
		SAY("events", poll_ring.revents);
		SAY("peek", io_uring_peek_cqe(ring, &cqe));
		io_uring_cqe_seen(ring, cqe);
		SAY("peek", io_uring_peek_cqe(ring, &cqe));
		struct __kernel_timespec time = { 0, 3000000 };
		sqe = io_uring_get_sqe(ring);
		io_uring_prep_timeout(sqe, &time, 0, 0);
		SAY("timer", io_uring_submit(ring));
		SAY("ready", poll_once(&poll_ring, 5000));
		SAY("reaped", reap(ring, NULL));
		SAY("peek", io_uring_peek_cqe(ring, &cqe));
	}
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	struct io_uring ring;
	if (count > 1 && !strcmp(arguments[1], "kinds")) {
		kinds();
		return 0;
	}
	int result = io_uring_queue_init(8, &ring, 0);
	if (result)
		fail("io_uring_queue_init", result);
	nops(&ring, 8);
	if (count > 1 && !strcmp(arguments[1], "polled")) {
		polled(&ring);
	} else {
		file(&ring);
		waits(&ring);
		registrations(&ring);
	}
	io_uring_queue_exit(&ring);
	SAY("mlock", io_uring_mlock_size(64, 0));
	return 0;
}
