/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* epoll whose events are read from memory: the program maps the ring and takes the events itself. */
#include <anyring.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#undef NDEBUG
#include <assert.h>

enum { FILES = 32, THREADS = 4, WRITES = 4000 };

static int files[FILES];
static struct anyring_event *raised;

struct ring {
	struct epoll_uheader *header;
	unsigned *index;
};

static struct ring map(int fd)
{
	struct ring ring;
	unsigned length = sysconf(_SC_PAGESIZE);

	ring.header = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert(ring.header != MAP_FAILED);
	if (ring.header->header_length != length) {
		unsigned whole = ring.header->header_length;

		munmap(ring.header, length);
		ring.header = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert(ring.header != MAP_FAILED);
	}
	assert(ring.header->magic == EPOLL_USERPOLL_HEADER_MAGIC);
	assert(sizeof(*ring.header) == EPOLL_USERPOLL_HEADER_SIZE);
	ring.index = mmap(NULL, ring.header->index_length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			  ring.header->header_length);
	assert(ring.index != MAP_FAILED);
	return ring;
}

static int take(struct ring *ring, struct epoll_event *event)
{
	struct epoll_uheader *header = ring->header;
	unsigned mask = header->index_length / sizeof(*ring->index) - 1;

	while (header->head != __atomic_load_n(&header->tail, __ATOMIC_ACQUIRE)) {
		unsigned number = __atomic_load_n(&ring->index[header->head & mask], __ATOMIC_ACQUIRE);
		struct epoll_uitem *item = &header->items[number];

		event->data.u64 = item->data;
		event->events = __atomic_exchange_n(&item->ready_events, 0, __ATOMIC_RELEASE);
		header->head++;
		if (event->events)
			return 1;
	}
	return 0;
}

static void *writer(void *unused)
{
	(void)unused;
	for (int i = 0; i < WRITES; i++) {
		uint64_t one = 1;

		assert(write(files[i % FILES], &one, sizeof(one)) == sizeof(one));
		if (i % 100 == 0)
			anyring_event_raise(raised, 2);
	}
	return NULL;
}

static void add(int fd, int file, unsigned events, uint64_t data, int expected)
{
	struct epoll_event event = { .events = events, .data.u64 = data };

	assert(anyring_epoll_ctl(fd, EPOLL_CTL_ADD, file, &event) == expected);
}

static void by(int flags)
{
	int fd = anyring_epoll_create2(EPOLL_USERPOLL | EPOLL_CLOEXEC | flags, FILES + 1);
	pthread_t threads[THREADS];
	struct epoll_event event;
	uint64_t seen = 0, word;
	struct ring ring;
	int result;

	if (flags == ANYRING_EPOLL_BY_URING && (fd == -EPERM || fd == -ENOSYS))
		return;
	assert(fd >= 0);
	assert(flags == 0 || anyring_epoll_feeder(fd) == flags >> 8);
	ring = map(fd);
	assert(ring.header->max_items_nr == FILES + 1);
	raised = anyring_event_add(fd, 1000);
	assert(raised);
	for (int i = 0; i < FILES; i++) {
		files[i] = eventfd(0, EFD_NONBLOCK);
		add(fd, files[i], EPOLLIN, i, -EINVAL);
		add(fd, files[i], EPOLLIN | EPOLLET, i, 0);
		add(fd, files[i], EPOLLIN | EPOLLET, i, -EEXIST);
	}
	add(fd, 0, EPOLLIN | EPOLLET, 0, -ENOSPC);
	assert(anyring_epoll_wait(fd, 0) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, writer, NULL);
	while (seen < THREADS * WRITES) {
		while (take(&ring, &event)) {
			if (event.data.u64 == 1000) {
				assert(event.events == 2);
			} else {
				assert(event.events == EPOLLIN && event.data.u64 < FILES);
				if (read(files[event.data.u64], &word, sizeof(word)) == sizeof(word))
					seen += word;
			}
		}
		result = seen < THREADS * WRITES ? anyring_epoll_wait(fd, 10000) : 0;
		assert(result == -ESTALE || result == -EINTR || seen == THREADS * WRITES);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert(seen == THREADS * WRITES);
	while (anyring_epoll_take(fd, &event, 1, 10) > 0)
		;
	anyring_event_raise(raised, 4);
	assert(anyring_epoll_wait(fd, -1) == -ESTALE);
	assert(anyring_epoll_take(fd, &event, 1, -1) == 1 && event.events == 4 && event.data.u64 == 1000);
	anyring_event_delete(raised);
	for (int i = 0; i < FILES; i++) {
		assert(anyring_epoll_ctl(fd, EPOLL_CTL_DEL, files[i], NULL) == 0);
		assert(anyring_epoll_ctl(fd, EPOLL_CTL_DEL, files[i], NULL) == -ENOENT);
		close(files[i]);
	}
	assert(anyring_epoll_close(fd) == 0);
	assert(anyring_epoll_wait(fd, 0) == -EBADF);
}

/* Without EPOLL_USERPOLL, the descriptor is an instance of the kernel's epoll. */
static void kernels(void)
{
	int fd = anyring_epoll_create2(EPOLL_CLOEXEC, 0), file = eventfd(1, EFD_NONBLOCK);
	struct epoll_event event;

	assert(fd >= 0 && file >= 0);
	add(fd, file, EPOLLIN, 5, 0);
	assert(anyring_epoll_take(fd, &event, 1, -1) == 1 && event.data.u64 == 5);
	assert(anyring_epoll_close(fd) == 0);
	close(file);
}

/* A set is closed by close(2), and another set gets its number. */
static void closed(void)
{
	int first = anyring_epoll_create2(EPOLL_USERPOLL, 4), second;

	close(first);
	second = anyring_epoll_create2(EPOLL_USERPOLL, 8);
	assert(second == first);
	assert(map(second).header->max_items_nr == 8);
	assert(anyring_epoll_wait(second, 0) == 0);
	assert(anyring_epoll_close(second) == 0);
}

int main(void)
{
	assert(anyring_epoll_create2(EPOLL_USERPOLL, 0) == -EINVAL);
	assert(anyring_epoll_create2(EPOLL_USERPOLL | 4, 1) == -EINVAL);
	by(0);
	by(ANYRING_EPOLL_BY_EPOLL);
	by(ANYRING_EPOLL_BY_URING);
	by(ANYRING_EPOLL_BY_AIO);
	by(ANYRING_EPOLL_BY_REACTOR);
	kernels();
	closed();
	puts("ok");
	return 0;
}
