// The less usual parts of liburing's interface. As files.c, it prints lines that do not depend on the engine.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAY(name, value) printf("%s: %ld\n", name, (long)(value))

static void open_ring(struct io_uring *ring, unsigned flags)
{
	int result = io_uring_queue_init(8, ring, flags);
	if (result) {
		printf("no ring with flags %#x: %s\n", flags, strerror(-result));
		exit(1);
	}
}

static void nops(struct io_uring *ring, unsigned count)
{
	struct io_uring_cqe *cqe;
	for (unsigned i = 0; i < count; i++)
		io_uring_prep_nop(io_uring_get_sqe(ring));
	SAY("submitted", io_uring_submit_and_wait(ring, count));
	for (unsigned i = 0; i < count; i++) {
		if (io_uring_wait_cqe(ring, &cqe))
			SAY("lost", i);
		io_uring_cqe_seen(ring, cqe);
	}
}

static int reap(struct io_uring *ring, unsigned *flags)
{
	struct io_uring_cqe *cqe;
	int result = io_uring_wait_cqe(ring, &cqe);
	if (result)
		return result;
	result = cqe->res;
	if (flags)
		*flags = cqe->flags;
	io_uring_cqe_seen(ring, cqe);
	return result;
}

static void memory(void)
{
	struct io_uring ring;
	char *buffer = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct io_uring_params p = { 0 };
	SAY("in memory", io_uring_queue_init_mem(8, &ring, &p, buffer, 1 << 16));
	nops(&ring, 5);
	io_uring_queue_exit(&ring);
	memset(buffer, 0, 1 << 16);
	memset(&p, 0, sizeof(p));
	SAY("too little memory", io_uring_queue_init_mem(1024, &ring, &p, buffer, 4096));
	memset(&p, 0, sizeof(p));
	p.flags = IORING_SETUP_NO_MMAP;
	SAY("of the library", io_uring_queue_init_params(8, &ring, &p));
	nops(&ring, 5);
	io_uring_queue_exit(&ring);
	memset(&p, 0, sizeof(p));
	p.flags = IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY;
	SAY("without a descriptor", io_uring_queue_init_params(8, &ring, &p));
	SAY("descriptor", ring.ring_fd);
	nops(&ring, 5);
	SAY("affinity by index", io_uring_unregister_iowq_aff(&ring));
	io_uring_queue_exit(&ring);
	memset(&p, 0, sizeof(p));
	p.flags = IORING_SETUP_REGISTERED_FD_ONLY;
	SAY("needs NO_MMAP", io_uring_queue_init_params(8, &ring, &p));
	SAY("mlock", io_uring_mlock_size(100, IORING_SETUP_CQE32));
	SAY("mlock of none", io_uring_mlock_size(0, 0));
	munmap(buffer, 1 << 16);
}

static void resizing(void)
{
	struct io_uring ring;
	open_ring(&ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
	nops(&ring, 3);
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	struct io_uring_params p = { .sq_entries = 32, .cq_entries = 128, .flags = IORING_SETUP_CQSIZE };
	SAY("resized", io_uring_resize_rings(&ring, &p));
	SAY("entries", ring.sq.ring_entries);
	SAY("cq entries", ring.cq.ring_entries);
	SAY("what was there", io_uring_submit_and_wait(&ring, 1));
	SAY("reaped", reap(&ring, NULL));
	nops(&ring, 20);
	io_uring_queue_exit(&ring);
	open_ring(&ring, 0);
	memset(&p, 0, sizeof(p));
	p.sq_entries = 32;
	SAY("not such a ring", io_uring_resize_rings(&ring, &p));
	io_uring_queue_exit(&ring);
}

static void select_from(struct io_uring *ring, struct io_uring_buf_ring *list, char *bytes, int group)
{
	int pipes[2];
	if (pipe(pipes))
		exit(1);
	for (int i = 0; i < 4; i++)
		io_uring_buf_ring_add(list, bytes + 16 * i, 16, i, io_uring_buf_ring_mask(4), i);
	io_uring_buf_ring_advance(list, 4);
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	io_uring_prep_read(sqe, pipes[0], NULL, 16, 0);
	sqe->flags |= IOSQE_BUFFER_SELECT;
	sqe->buf_group = group;
	if (write(pipes[1], "selected", 8) != 8)
		exit(1);
	SAY("submitted", io_uring_submit(ring));
	unsigned flags;
	SAY("read", reap(ring, &flags));
	SAY("buffer", flags >> IORING_CQE_BUFFER_SHIFT);
	printf("%.8s\n", bytes + 16 * (flags >> IORING_CQE_BUFFER_SHIFT));
	uint16_t head;
	SAY("head", io_uring_buf_ring_head(ring, group, &head));
	SAY("is", head);
	SAY("available", io_uring_buf_ring_available(ring, list, group));
	close(pipes[0]);
	close(pipes[1]);
}

static void buffers(void)
{
	struct io_uring ring, other;
	static char bytes[64], registered[4096];
	open_ring(&ring, 0);
	open_ring(&other, 0);
	int error;
	struct io_uring_buf_ring *list = io_uring_setup_buf_ring(&ring, 4, 1, 0, &error);
	SAY("buffer ring", error);
	select_from(&ring, list, bytes, 1);
	SAY("freed", io_uring_free_buf_ring(&ring, list, 4, 1));
	SAY("none", io_uring_setup_buf_ring(&ring, 3, 1, 0, &error) == NULL);
	SAY("because", error);

	struct io_uring_buf_reg reg = { .ring_entries = 4, .bgid = 2, .flags = IOU_PBUF_RING_MMAP };
	SAY("buffer ring to map", io_uring_register_buf_ring(&ring, &reg, 0));
	list = mmap(NULL, 4 * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE, MAP_SHARED, ring.ring_fd,
		    IORING_OFF_PBUF_RING | (unsigned long long)reg.bgid << IORING_OFF_PBUF_SHIFT);
	SAY("mapped", list != MAP_FAILED);
	if (list != MAP_FAILED) {
		select_from(&ring, list, bytes, 2);
		munmap(list, 4 * sizeof(struct io_uring_buf));
	}
	SAY("unregistered", io_uring_unregister_buf_ring(&ring, 2));

	struct iovec memory = { registered, sizeof(registered) };
	SAY("registered", io_uring_register_buffers(&other, &memory, 1));
	SAY("cloned", io_uring_clone_buffers(&ring, &other));
	SAY("cloned again", io_uring_clone_buffers(&ring, &other));
	SAY("at an offset", io_uring_clone_buffers_offset(&ring, &other, 0, 0, 1, IORING_REGISTER_DST_REPLACE));
	SAY("updated", io_uring_register_buffers_update_tag(&ring, 0, &memory, NULL, 1));
	SAY("unregistered", io_uring_unregister_buffers(&ring));
	io_uring_queue_exit(&ring);
	io_uring_queue_exit(&other);
}

static void between(void)
{
	struct io_uring ring, other;
	open_ring(&ring, 0);
	open_ring(&other, 0);
	struct io_uring_sqe message;
	memset(&message, 0, sizeof(message));
	io_uring_prep_msg_ring(&message, ring.ring_fd, 11, 22, 0);
	SAY("message", io_uring_register_sync_msg(&message));
	SAY("got", reap(&ring, NULL));
	io_uring_prep_msg_ring(io_uring_get_sqe(&other), ring.ring_fd, 33, 44, 0);
	SAY("submitted", io_uring_submit(&other));
	SAY("sent", reap(&other, NULL));
	SAY("got", reap(&ring, NULL));

	int epoll = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 5 };
	struct io_uring_cqe *cqe;
	SAY("peek", io_uring_peek_cqe(&ring, &cqe));
	SAY("added", epoll_ctl(epoll, EPOLL_CTL_ADD, ring.ring_fd, &event));
	SAY("idle", epoll_wait(epoll, &event, 1, 0));
	struct __kernel_timespec time = { 0, 2000000 };
	io_uring_prep_timeout(io_uring_get_sqe(&ring), &time, 0, 0);
	SAY("submitted", io_uring_submit(&ring));
	int ready;
	while ((ready = epoll_wait(epoll, &event, 1, 5000)) < 0 && errno == EINTR)
		;
	SAY("ready", ready);
	SAY("expired", reap(&ring, NULL));
	close(epoll);

	SAY("registered", io_uring_register_ring_fd(&ring));
	SAY("closed", io_uring_close_ring_fd(&ring));
	SAY("closed again", io_uring_close_ring_fd(&ring));
	nops(&ring, 4);
	SAY("by index", io_uring_unregister_iowq_aff(&ring));
	io_uring_queue_exit(&ring);
	SAY("no registered one", io_uring_close_ring_fd(&other));
	io_uring_queue_exit(&other);
}

static void settings(void)
{
	struct io_uring ring;
	open_ring(&ring, IORING_SETUP_R_DISABLED);
	struct io_uring_restriction only[2] = { { .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_NOP },
		{ .opcode = IORING_RESTRICTION_REGISTER_OP, .register_op = IORING_REGISTER_ENABLE_RINGS } };
	SAY("restricted", io_uring_register_restrictions(&ring, only, 2));
	SAY("too early", io_uring_submit_and_wait(&ring, 1));
	SAY("enabled", io_uring_enable_rings(&ring));
	nops(&ring, 2);
	io_uring_prep_poll_add(io_uring_get_sqe(&ring), 0, POLLIN);
	SAY("submitted", io_uring_submit(&ring));
	SAY("refused", reap(&ring, NULL));
	SAY("refused", io_uring_register_personality(&ring));
	io_uring_queue_exit(&ring);

	open_ring(&ring, 0);
	struct io_uring_clock_register clock = { .clockid = CLOCK_BOOTTIME };
	SAY("clock", io_uring_register_clock(&ring, &clock));
	clock.clockid = CLOCK_REALTIME;
	SAY("no such clock", io_uring_register_clock(&ring, &clock));
	struct io_uring_napi napi = { .busy_poll_to = 10 };
	SAY("napi", io_uring_register_napi(&ring, &napi));
	SAY("no napi", io_uring_unregister_napi(&ring, &napi));
	SAY("no iowait", io_uring_set_iowait(&ring, false));
	nops(&ring, 2);
	SAY("iowait", io_uring_set_iowait(&ring, true));
	SAY("wait regions by another call", io_uring_register_wait_reg(&ring, NULL, 1));
	io_uring_queue_exit(&ring);

	open_ring(&ring, IORING_SETUP_R_DISABLED);
	struct io_uring_reg_wait *waits = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct io_uring_region_desc region = { .user_addr = (unsigned long)waits, .size = 4096, .flags = IORING_MEM_REGION_TYPE_USER };
	struct io_uring_mem_region_reg memory = { .region_uptr = (unsigned long)&region, .flags = IORING_MEM_REGION_REG_WAIT_ARG };
	SAY("region", io_uring_register_region(&ring, &memory));
	SAY("enabled", io_uring_enable_rings(&ring));
	waits[1].flags = IORING_REG_WAIT_TS;
	waits[1].ts.tv_nsec = 2000000;
	struct io_uring_cqe *cqe;
	SAY("expired", io_uring_submit_and_wait_reg(&ring, &cqe, 1, 1));
	io_uring_prep_nop(io_uring_get_sqe(&ring));
	SAY("submitted", io_uring_submit_and_wait_reg(&ring, &cqe, 1, 1));
	io_uring_cqe_seen(&ring, cqe);
	struct __kernel_timespec time = { 0, 4000000 };
	SAY("least time", io_uring_wait_cqes_min_timeout(&ring, &cqe, 4, &time, 1000, NULL));
	SAY("least time", io_uring_submit_and_wait_min_timeout(&ring, &cqe, 4, &time, 1000, NULL));
	io_uring_queue_exit(&ring);
	munmap(waits, 4096);

	struct io_uring_params p = { 0 };
	SAY("no entries", io_uring_setup(0, &p));
	SAY("no parameters", io_uring_setup(1, NULL));
	SAY("no ring", io_uring_enter(-1, 0, 0, 0, NULL));
	SAY("no ring", io_uring_register(-1, IORING_REGISTER_PROBE, NULL, 0));
	int null = open("/dev/null", O_RDONLY);
	SAY("another file", io_uring_enter(null, 0, 0, 0, NULL));
	SAY("another file", io_uring_register(null, IORING_REGISTER_PROBE, NULL, 0));
	close(null);
	int fd = io_uring_setup(4, &p);
	SAY("mapped", fd < 0 ? fd : io_uring_queue_mmap(fd, &p, &ring));
	// Before 2.15, liburing does not set this field.
	ring.enter_ring_fd = fd;
	for (unsigned i = 0; i < p.sq_entries; i++)
		ring.sq.array[i] = i;
	nops(&ring, 4);
	io_uring_queue_exit(&ring);
}

static volatile sig_atomic_t handled;
static struct io_uring *handlers_ring;

static void handler(int number)
{
	(void)number;
	handled++;
	// A handler may use a ring, even the one that the thread waits for.
	if (handlers_ring) {
		io_uring_prep_nop(io_uring_get_sqe(handlers_ring));
		io_uring_submit(handlers_ring);
	}
}

static void in_ms(unsigned ms)
{
	struct timespec time = { 0, ms * 1000000L };
	nanosleep(&time, NULL);
}

static void *kill_later(void *thread)
{
	in_ms(5);
	pthread_kill(*(pthread_t *)thread, SIGUSR1);
	return NULL;
}

static volatile sig_atomic_t is_over;

// Repeats the signal, because the first one may come before the wait that it is to interrupt.
static void *kill_until_over(void *thread)
{
	do
		kill_later(thread);
	while (!is_over);
	return NULL;
}

static void signals(void)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	struct sigaction action = { .sa_handler = handler };
	sigaction(SIGUSR1, &action, NULL);
	open_ring(&ring, 0);
	pthread_t self = pthread_self(), other;
	pthread_create(&other, NULL, kill_until_over, &self);
	SAY("interrupted", io_uring_wait_cqe(&ring, &cqe));
	SAY("handled", handled > 0);
	is_over = 1;
	pthread_join(other, NULL);
	handled = 1;

	// The signal is blocked during the wait.
	sigset_t mask;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	struct __kernel_timespec time = { 0, 20000000 };
	pthread_create(&other, NULL, kill_later, &self);
	SAY("not interrupted", io_uring_wait_cqes(&ring, &cqe, 1, &time, &mask));
	pthread_join(other, NULL);
	SAY("handled", handled);

	handlers_ring = &ring;
	pthread_create(&other, NULL, kill_later, &self);
	int result = io_uring_wait_cqe(&ring, &cqe);
	SAY("woken by a handler", result == -EINTR || result == 0);
	pthread_join(other, NULL);
	handlers_ring = NULL;
	SAY("its completion", reap(&ring, NULL));
	SAY("handled", handled);
	io_uring_queue_exit(&ring);
}

static int pipes[2];

static void *leave_a_read(void *ring)
{
	static char byte;
	io_uring_prep_read(io_uring_get_sqe(ring), pipes[0], &byte, 1, 0);
	SAY("left", io_uring_submit(ring));
	return NULL;
}

static void threads_and_children(void)
{
	struct io_uring ring;
	open_ring(&ring, 0);
	if (pipe(pipes))
		exit(1);
	pthread_t thread;
	pthread_create(&thread, NULL, leave_a_read, &ring);
	pthread_join(thread, NULL);
	SAY("written", write(pipes[1], "x", 1));
	SAY("read", reap(&ring, NULL));

	fflush(stdout);
	if (!fork()) {
		struct io_uring own;
		open_ring(&own, 0);
		nops(&own, 3);
		io_uring_queue_exit(&own);
		// The parent's ring works, too.
		nops(&ring, 2);
		exit(0);
	}
	int status;
	wait(&status);
	SAY("child", status);
	io_uring_queue_exit(&ring);
}

static int read_secret(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	io_uring_prep_openat(sqe, AT_FDCWD, "/etc/shadow", O_RDONLY | O_CLOEXEC, 0);
	sqe->flags |= IOSQE_ASYNC;
	io_uring_submit(ring);
	int result = reap(ring, NULL);
	return result < 0 ? result : close(result);
}

// Privileges that are given up after threads of the ring have had them.
static void users(void)
{
	fflush(stdout);
	if (!fork()) {
		struct io_uring ring;
		open_ring(&ring, 0);
		SAY("before", read_secret(&ring));
		SAY("before", read_secret(&ring));
		if (!geteuid())
			SAY("given up", setgid(65534) | setuid(65534));
		SAY("after", read_secret(&ring));
		SAY("after", read_secret(&ring));
		io_uring_queue_exit(&ring);
		exit(0);
	}
	int status;
	wait(&status);
	SAY("child", status);
}

static void time_out(void *ring)
{
	struct __kernel_timespec soon = { .tv_nsec = 1000000 };
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	io_uring_prep_timeout(sqe, &soon, 0, 0);
	SAY("submitted", io_uring_submit(ring));
	SAY("timed out", reap(ring, NULL));
}

static void *wait_for_nothing(void *ring)
{
	struct io_uring_cqe *cqe;
	int before;
	// Pushed first, so that the handler runs even if the cancellation comes early.
	pthread_cleanup_push(time_out, ring);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
	io_uring_wait_cqe(ring, &cqe);
	pthread_cleanup_pop(0);
	return NULL;
}

// A thread is cancelled in a wait: its cleanup handler, and other threads, continue to use the ring.
static void cancelled(void)
{
	struct io_uring ring;
	pthread_t thread;
	void *result;
	open_ring(&ring, 0);
	pthread_create(&thread, NULL, wait_for_nothing, &ring);
	usleep(20000);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	SAY("cancelled", result == PTHREAD_CANCELED);
	time_out(&ring);
	io_uring_queue_exit(&ring);
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = { { "memory", memory }, { "resizing", resizing }, { "buffers", buffers }, { "between", between },
		      { "settings", settings }, { "signals", signals }, { "threads", threads_and_children },
		      { "users", users }, { "cancelled", cancelled } };
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (unsigned i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		if (count < 2 || !strcmp(arguments[1], parts[i].name)) {
			printf("[%s]\n", parts[i].name);
			parts[i].run();
		}
	return 0;
}
