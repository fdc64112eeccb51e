// GETDENTS among the kernel's operations, on rings of every kind: each request has one completion, chains keep
// their order, counts and waits are right, on both engines. Prints nothing on success. Arguments: "kernel" if
// it runs on rings of the kernel; a seed.
#define _GNU_SOURCE
#include <anyring.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                          \
	do {                                                                                                 \
		if (!(what)) {                                                                               \
			fprintf(stderr, "line %d: %s (ring flags %x)\n", __LINE__, #what, flags_now);       \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#define ENTRIES 32
#define ROOM 400

static unsigned flags_now, seed = 1;
static int kernel, directory, ends[2];
static char buffers[256][ROOM];

static unsigned draw(unsigned below)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 16) % below;
}

static void set_up(struct io_uring *ring, unsigned flags, unsigned entries)
{
	struct io_uring_params p = {.flags = flags};
	int error;
	flags_now = flags;
	error = io_uring_queue_init_params(entries, ring, &p);
	if (error)
		fprintf(stderr, "no ring: %d\n", error);
	CHECK(error == 0);
}

static struct io_uring_sqe *nop(struct io_uring *ring, unsigned long data, unsigned flags)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	CHECK(sqe);
	io_uring_prep_nop(sqe);
	sqe->user_data = data;
	sqe->flags = flags;
	return sqe;
}

static void get(struct io_uring *ring, unsigned long data, unsigned flags, int fd, uint64_t offset)
{
	struct io_uring_sqe *sqe = nop(ring, 0, 0);
	anyring_prep_getdents(sqe, fd, buffers[data % 256], ROOM, offset);
	sqe->user_data = data;
	sqe->flags = flags;
}

static void read_pipe(struct io_uring *ring, unsigned long data, unsigned flags)
{
	static char byte;
	struct io_uring_sqe *sqe = nop(ring, 0, 0);
	io_uring_prep_read(sqe, ends[0], &byte, 1, 0);
	sqe->user_data = data;
	sqe->flags = flags;
}

static int reap(struct io_uring *ring, unsigned long *data)
{
	struct io_uring_cqe *cqe;
	int error, result;
	do
		error = io_uring_wait_cqe(ring, &cqe);
	while (error == -EINTR);
	CHECK(error == 0);
	*data = cqe->user_data;
	result = cqe->res;
	CHECK(cqe->flags == 0);
	io_uring_cqe_seen(ring, cqe);
	return result;
}

static void expect(struct io_uring *ring, unsigned long data, int result)
{
	unsigned long got_data;
	int got = reap(ring, &got_data);
	if (got_data != data || got != result)
		fprintf(stderr, "%lu: %d instead of %lu: %d\n", got_data, got, data, result);
	CHECK(got_data == data && got == result);
}

static void nothing_more(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	CHECK(io_uring_peek_cqe(ring, &cqe) == -EAGAIN);
}

// The expected result of a request of the chains: 1 for any success.
struct wanted {
	int chain, place, result, silent, done;
};

// Submits random chains of private and other requests.
static void chains(struct io_uring *ring, int skips)
{
	static struct wanted wanted[ENTRIES];
	static unsigned long serial;
	int count = 1 + draw(ENTRIES), chain = 0, place = 0, broken = 0, quiet = 0, waits = 0, submitted;
	int last[ENTRIES + 1];
	unsigned long first = serial;
	// An SQ thread moves the SQ head a little later than it posts completions.
	while (io_uring_sq_space_left(ring) < ENTRIES)
		sched_yield();
	for (int i = 0; i < count; i++) {
		struct wanted *one = &wanted[i];
		unsigned flags = i + 1 == count ? 0 : (unsigned[]){0, IOSQE_IO_LINK, IOSQE_IO_LINK, IOSQE_IO_HARDLINK}[draw(4)];
		unsigned skip = skips && draw(4) == 0 ? IOSQE_CQE_SKIP_SUCCESS : 0, async = draw(8) == 0 ? IOSQE_ASYNC : 0;
		unsigned long data = serial++;
		int result;
		struct io_uring_sqe *sqe;
		switch (draw(6)) {
		case 0:
			nop(ring, data, flags | skip | async);
			result = 0;
			break;
		case 1:
			sqe = nop(ring, data, 0);
			io_uring_prep_openat(sqe, AT_FDCWD, "/nowhere/at/all", O_RDONLY, 0);
			sqe->user_data = data;
			sqe->flags = flags | skip | async;
			result = -ENOENT;
			break;
		case 2:
			get(ring, data, flags | skip | async, -1, 0);
			result = -EBADF;
			break;
		default:
			get(ring, data, flags | skip | async, directory, 0);
			result = 1;
		}
		*one = (struct wanted){.chain = chain, .place = place++, .result = broken ? -ECANCELED : result};
		one->silent = broken ? quiet : result >= 0 && skip;
		waits += !one->silent;
		if (result < 0 && !broken && flags & IOSQE_IO_LINK) {
			broken = 1;
			quiet = skip != 0;
		}
		if (!flags)
			chain++, place = 0, broken = 0;
	}
	for (int i = 0; i <= ENTRIES; i++)
		last[i] = -1;
	submitted = draw(2) ? io_uring_submit(ring) : io_uring_submit_and_wait(ring, waits);
	// With an SQ thread, the result is the number of entries that it has not taken.
	CHECK(submitted == count || (flags_now & IORING_SETUP_SQPOLL && submitted >= 0));
	for (int i = 0; i < waits; i++) {
		unsigned long data;
		int result = reap(ring, &data);
		CHECK(data >= first && data < serial);
		struct wanted *one = &wanted[data - first];
		if (one->result == 1 ? result <= 0 : result != one->result)
			fprintf(stderr, "request %lu of %d: %d, not %d\n", data - first, count, result, one->result);
		CHECK(one->result == 1 ? result > 0 : result == one->result);
		CHECK(!one->silent && !one->done);
		CHECK(one->place > last[one->chain]);
		last[one->chain] = one->place;
		one->done = 1;
	}
	nothing_more(ring);
}

static void random_chains(unsigned flags, int rounds)
{
	struct io_uring ring;
	set_up(&ring, flags, ENTRIES);
	for (int skips = 0; skips < 2; skips++)
		for (int round = 0; round < rounds; round++)
			chains(&ring, skips);
	io_uring_queue_exit(&ring);
}

static void cancellations(unsigned flags)
{
	struct io_uring ring;
	struct io_uring_sqe *sqe;
	set_up(&ring, flags, 8);
	// Cancels a chain with a private request by the request that the chain waits for.
	read_pipe(&ring, 1, IOSQE_IO_LINK);
	get(&ring, 2, 0, directory, 0);
	CHECK(io_uring_submit(&ring) == 2);
	nothing_more(&ring);
	for (int i = 0; i < 2; i++) {
		unsigned seen = 0;
		sqe = nop(&ring, 0, 0);
		io_uring_prep_cancel64(sqe, 1, 0);
		sqe->user_data = 3;
		CHECK(io_uring_submit(&ring) == 1);
		for (int left = i ? 1 : 3; left > 0; left--) {
			unsigned long data;
			int result = reap(&ring, &data);
			CHECK(data >= 1 && data <= 3 && result == (data < 3 ? -ECANCELED : i ? -ENOENT : 0));
			seen |= 1 << data;
		}
		CHECK(seen == (i ? 8 : 14));
	}
	// Cancels a request of the kernel and a chain with equal user data.
	read_pipe(&ring, 1, IOSQE_IO_LINK);
	get(&ring, 2, 0, directory, 0);
	read_pipe(&ring, 1, 0);
	CHECK(io_uring_submit(&ring) == 3);
	sqe = nop(&ring, 0, 0);
	io_uring_prep_cancel64(sqe, 1, IORING_ASYNC_CANCEL_ALL);
	sqe->user_data = 3;
	CHECK(io_uring_submit(&ring) == 1);
	for (int left = 4; left > 0; left--) {
		unsigned long data;
		int result = reap(&ring, &data);
		CHECK(result == (data == 3 ? 2 : -ECANCELED));
	}
	// Cancels a request of the kernel alone, also synchronously.
	read_pipe(&ring, 4, 0);
	CHECK(io_uring_submit(&ring) == 1);
	sqe = nop(&ring, 0, 0);
	io_uring_prep_cancel64(sqe, 4, 0);
	sqe->user_data = 5;
	CHECK(io_uring_submit_and_wait(&ring, 2) == 1);
	for (int left = 2; left > 0; left--) {
		unsigned long data;
		int result = reap(&ring, &data);
		CHECK(result == (data == 4 ? -ECANCELED : 0));
	}
	nothing_more(&ring);
	io_uring_queue_exit(&ring);
}

static void sync_cancellation(void)
{
	struct io_uring ring;
	struct io_uring_sync_cancel_reg what = {.addr = 1, .timeout = {-1, -1}};
	set_up(&ring, 0, 8);
	read_pipe(&ring, 1, IOSQE_IO_LINK);
	get(&ring, 2, 0, directory, 0);
	CHECK(io_uring_submit(&ring) == 2);
	CHECK(io_uring_register_sync_cancel(&ring, &what) == 0);
	expect(&ring, 1, -ECANCELED);
	expect(&ring, 2, -ECANCELED);
	CHECK(io_uring_register_sync_cancel(&ring, &what) == -ENOENT);
	io_uring_queue_exit(&ring);
}

static void overflow(void)
{
	struct io_uring ring;
	unsigned long seen = 0, data;
	set_up(&ring, 0, 4);
	for (int batch = 0; batch < 8; batch++) {
		for (int i = 0; i < 4; i++)
			get(&ring, 4 * batch + i, 0, directory, 0);
		CHECK(io_uring_submit(&ring) == 4);
	}
	for (int i = 0; i < 32; i++) {
		CHECK(reap(&ring, &data) > 0);
		seen |= 1ul << data;
	}
	CHECK(seen == 0xffffffff);
	nothing_more(&ring);
	io_uring_queue_exit(&ring);
}

static void open_into(struct io_uring *ring, unsigned long data, unsigned flags, const char *path, unsigned slot)
{
	struct io_uring_sqe *sqe = nop(ring, 0, 0);
	io_uring_prep_openat_direct(sqe, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, slot);
	sqe->user_data = data;
	sqe->flags = flags;
}

static void close_slot(struct io_uring *ring, unsigned long data, unsigned flags, unsigned slot)
{
	struct io_uring_sqe *sqe = nop(ring, 0, 0);
	io_uring_prep_close_direct(sqe, slot);
	sqe->user_data = data;
	sqe->flags = flags;
}

static void get_slot(struct io_uring *ring, unsigned long data, unsigned flags, unsigned slot)
{
	get(ring, data, flags | IOSQE_FIXED_FILE, slot, 0);
}

static void slots(const char *path, unsigned flags)
{
	struct io_uring ring;
	unsigned long data;
	set_up(&ring, flags, 8);
	// Without a table there are no slots.
	get_slot(&ring, 1, 0, 0);
	CHECK(io_uring_submit(&ring) == 1);
	expect(&ring, 1, -EBADF);
	CHECK(io_uring_register_files_sparse(&ring, 4) == 0);
	for (int round = 0; round < 3; round++) {
		// Opens, reads and closes in one chain.
		open_into(&ring, 1, IOSQE_IO_LINK, path, 2);
		get_slot(&ring, 2, IOSQE_IO_LINK, 2);
		get_slot(&ring, 3, IOSQE_IO_LINK, 2);
		close_slot(&ring, 4, 0, 2);
		CHECK(io_uring_submit_and_wait(&ring, 4) == 4);
		expect(&ring, 1, 0);
		CHECK(reap(&ring, &data) > 0 && data == 2);
		CHECK(reap(&ring, &data) > 0 && data == 3);
		expect(&ring, 4, 0);
		close_slot(&ring, 5, 0, 2);
		CHECK(io_uring_submit(&ring) == 1);
		expect(&ring, 5, -EBADF);
		// A file that a chain leaves open stays open.
		open_into(&ring, 1, IOSQE_IO_LINK, path, 3);
		get_slot(&ring, 2, IOSQE_IO_LINK, 3);
		get(&ring, 3, IOSQE_IO_LINK, -1, 0);
		close_slot(&ring, 4, 0, 3);
		CHECK(io_uring_submit(&ring) == 4);
		expect(&ring, 1, 0);
		CHECK(reap(&ring, &data) > 0 && data == 2);
		expect(&ring, 3, -EBADF);
		expect(&ring, 4, -ECANCELED);
		close_slot(&ring, 5, 0, 3);
		CHECK(io_uring_submit(&ring) == 1);
		expect(&ring, 5, 0);
		// Separate requests, with a slot that the kernel fills.
		open_into(&ring, 1, 0, path, 1);
		CHECK(io_uring_submit(&ring) == 1);
		expect(&ring, 1, 0);
		for (int i = 2; i < 6; i++)
			get_slot(&ring, i, 0, i < 5 ? 1 : 0);
		nop(&ring, 6, 0);
		CHECK(io_uring_submit_and_wait(&ring, 5) == 5);
		unsigned seen = 0;
		for (int i = 0; i < 5; i++) {
			int result = reap(&ring, &data);
			CHECK(data < 5 ? result > 0 : result == (data == 5 ? -EBADF : 0));
			seen |= 1 << data;
		}
		CHECK(seen == 0x7c);
		close_slot(&ring, 5, 0, 1);
		CHECK(io_uring_submit(&ring) == 1);
		expect(&ring, 5, 0);
		nothing_more(&ring);
	}
	// A slot beyond the table.
	open_into(&ring, 1, IOSQE_IO_LINK, path, 9);
	get_slot(&ring, 2, 0, 9);
	CHECK(io_uring_submit(&ring) > 0);
	CHECK(reap(&ring, &data) < 0 && reap(&ring, &data) < 0);
	io_uring_queue_exit(&ring);
}

static void drains(void)
{
	struct io_uring ring;
	unsigned long data;
	set_up(&ring, 0, 16);
	for (int i = 0; i < 8; i++)
		get(&ring, i, i % 2 ? IOSQE_ASYNC : 0, directory, 0);
	nop(&ring, 8, IOSQE_IO_DRAIN);
	CHECK(io_uring_submit(&ring) == 9);
	for (int i = 0; i < 8; i++)
		CHECK(reap(&ring, &data) > 0 && data < 8);
	expect(&ring, 8, 0);
	// Private requests after a drain, or with one, fail: only the kernel could begin them at the right time.
	get(&ring, 9, 0, directory, 0);
	CHECK(io_uring_submit(&ring) == 1);
	int result = reap(&ring, &data);
	CHECK(kernel ? result == -EINVAL : result > 0);
	get(&ring, 10, IOSQE_IO_DRAIN, directory, 0);
	CHECK(io_uring_submit(&ring) == 1);
	result = reap(&ring, &data);
	CHECK(kernel ? result == -EINVAL : result > 0);
	io_uring_queue_exit(&ring);
}

static int descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

// Rings exit with requests in flight: the next ring is not affected, and no descriptors are leaked.
static void left_in_flight(void)
{
	int before = descriptors();
	for (int i = 0; i < 20; i++) {
		struct io_uring ring;
		set_up(&ring, i % 2 ? IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN : 0, 8);
		get(&ring, 7, IOSQE_ASYNC, directory, 0);
		read_pipe(&ring, 8, IOSQE_IO_LINK);
		get(&ring, 9, 0, directory, 0);
		CHECK(io_uring_submit(&ring) == 3);
		io_uring_queue_exit(&ring);
	}
	// Requests that had begun end by themselves; the engine keeps a few descriptors.
	for (int i = 0; descriptors() > before + 8; i++) {
		CHECK(i < 10000);
		usleep(1000);
	}
}

static void told(void)
{
	struct io_uring ring;
	uint64_t events = 0;
	unsigned long data;
	set_up(&ring, 0, 8);
	int event = eventfd(0, EFD_CLOEXEC);
	CHECK(io_uring_register_eventfd(&ring, event) == 0);
	get(&ring, 1, IOSQE_ASYNC, directory, 0);
	CHECK(io_uring_submit(&ring) == 1);
	CHECK(read(event, &events, 8) == 8 && events == 1);
	struct pollfd poll_ring = {.fd = ring.ring_fd, .events = POLLIN};
	CHECK(poll(&poll_ring, 1, -1) == 1);
	CHECK(reap(&ring, &data) > 0 && data == 1);
	io_uring_queue_exit(&ring);
	close(event);
}

static void forks(void)
{
	struct io_uring ring;
	unsigned long data;
	int status;
	set_up(&ring, 0, 8);
	get(&ring, 1, 0, directory, 0);
	CHECK(io_uring_submit(&ring) == 1);
	CHECK(reap(&ring, &data) > 0 && data == 1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct io_uring own;
		set_up(&own, 0, 8);
		get(&own, 2, 0, directory, 0);
		CHECK(io_uring_submit(&own) == 1);
		CHECK(reap(&own, &data) > 0 && data == 2);
		// The parent's ring works, too, while the parent waits for this child.
		get(&ring, 3, 0, directory, 0);
		CHECK(io_uring_submit(&ring) == 1);
		CHECK(reap(&ring, &data) > 0 && data == 3);
		io_uring_queue_exit(&own);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	io_uring_queue_exit(&ring);
}

// A timeout of a millisecond with its time in the SQE, as in Linux 7.1.
static void time_in_sqe(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = nop(ring, 0, 0);
	struct io_uring_cqe *cqe;
	io_uring_prep_timeout(sqe, NULL, 0, 1u << 7);
	sqe->addr = 1000000;
	sqe->user_data = 9;
	CHECK(io_uring_submit(ring) >= 0);
	CHECK(io_uring_wait_cqe(ring, &cqe) == 0 && cqe->user_data == 9 && cqe->res == -ETIME);
	io_uring_cqe_seen(ring, cqe);
}

// The ring is used by its index in the thread's table after its descriptor was closed.
static void times_without_a_descriptor(unsigned flags)
{
	// The function is not in every header.
	int (*close_descriptor)(struct io_uring *) = dlsym(RTLD_DEFAULT, "io_uring_close_ring_fd");
	struct io_uring ring;
	CHECK(close_descriptor);
	set_up(&ring, flags, 4);
	time_in_sqe(&ring);
	CHECK(io_uring_register_ring_fd(&ring) == 1 && close_descriptor(&ring) == 1);
	for (int round = 0; round < 10; round++)
		time_in_sqe(&ring);
	io_uring_queue_exit(&ring);
}

static void sync_slot(struct io_uring *ring, unsigned slot, int result)
{
	struct io_uring_sqe *sqe = nop(ring, 0, 0);
	io_uring_prep_fsync(sqe, slot, 0);
	sqe->flags = IOSQE_FIXED_FILE;
	sqe->user_data = 5;
	CHECK(io_uring_submit(ring) == 1);
	expect(ring, 5, result);
}

// When the descriptor is closed, a file that a chain has left in a slot stays; a slot into which no chain has opened yet is empty.
static void slots_without_a_descriptor(const char *path)
{
	int (*close_descriptor)(struct io_uring *) = dlsym(RTLD_DEFAULT, "io_uring_close_ring_fd");
	struct io_uring ring;
	unsigned long data;
	CHECK(close_descriptor);
	set_up(&ring, 0, 8);
	CHECK(io_uring_register_files_sparse(&ring, 4) == 0);
	open_into(&ring, 1, IOSQE_IO_LINK, path, 1);
	get_slot(&ring, 2, 0, 1);
	CHECK(io_uring_submit(&ring) == 2);
	expect(&ring, 1, 0);
	CHECK(reap(&ring, &data) > 0 && data == 2);
	read_pipe(&ring, 1, IOSQE_IO_LINK);
	open_into(&ring, 2, IOSQE_IO_LINK, path, 2);
	get_slot(&ring, 3, 0, 2);
	CHECK(io_uring_submit(&ring) == 3);
	CHECK(io_uring_register_ring_fd(&ring) == 1 && close_descriptor(&ring) == 1);
	sync_slot(&ring, 1, 0);
	sync_slot(&ring, 2, -EBADF);
	io_uring_queue_exit(&ring);
}

int main(int argc, char **argv)
{
	char path[] = "/tmp/anyring-private-XXXXXX", name[100];
	kernel = argc > 1 && strcmp(argv[1], "kernel") == 0;
	if (argc > 2)
		seed = atoi(argv[2]);
	struct io_uring_probe *probe = io_uring_get_probe();
	CHECK(probe);
	if (kernel && !io_uring_opcode_supported(probe, ANYRING_OP_GETDENTS)) {
		fprintf(stderr, "skipped: this kernel knows no messages with flags (Linux 6.3)\n");
		return 0;
	}
	io_uring_free_probe(probe);
	CHECK(mkdtemp(path) && pipe(ends) == 0);
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "%s/entry-%d", path, i);
		CHECK(mknod(name, S_IFREG | 0600, 0) == 0);
	}
	directory = open(path, O_RDONLY | O_DIRECTORY);
	static const unsigned kinds[] = {
		0,
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL,
		IORING_SETUP_SQE128 | IORING_SETUP_CQE32,
	};
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		random_chains(kinds[i], 100);
		cancellations(kinds[i]);
		slots(path, kinds[i]);
	}
	random_chains(IORING_SETUP_SQPOLL, 20);
	sync_cancellation();
	overflow();
	drains();
	times_without_a_descriptor(0);
	times_without_a_descriptor(IORING_SETUP_SQPOLL);
	slots_without_a_descriptor(path);
	left_in_flight();
	told();
	forks();
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "%s/entry-%d", path, i);
		CHECK(unlink(name) == 0);
	}
	CHECK(rmdir(path) == 0);
	return 0;
}
