/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A consumer that knows only the structures in shared memory: maps the ring by the descriptor in its first
 * argument, takes as many events as its second argument says, and prints them.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct epoll_uitem {
	uint32_t ready_events;
	uint32_t events;
	uint64_t data;
};

struct epoll_uheader {
	uint32_t magic;         /* epoll user header magic */
	uint32_t header_length; /* length of the header + items */
	uint32_t index_length;  /* length of the index ring, always pow2 */
	uint32_t max_items_nr;  /* max num of items */
	uint32_t head;          /* updated by userland */
	uint32_t tail;          /* updated by kernel */
	struct epoll_uitem items[] __attribute__((aligned(128)));
};

_Static_assert(sizeof(struct epoll_uitem) == 16, "an item has 16 bytes");
_Static_assert(sizeof(struct epoll_uheader) == 128, "items begin at byte 128");

static void *map(int fd, size_t length, off_t offset)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);

	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

int main(int argc, char **argv)
{
	int fd = atoi(argv[1]);
	unsigned count = atoi(argv[2]);
	struct epoll_uheader *header = map(fd, sysconf(_SC_PAGESIZE), 0);
	unsigned length = header->header_length, *index, mask;

	if (argc != 3 || header->magic != 0xeb01eb01)
		return 2;
	munmap(header, sysconf(_SC_PAGESIZE));
	header = map(fd, length, 0);
	index = map(fd, header->index_length, header->header_length);
	mask = header->index_length / sizeof(*index) - 1;
	printf("%u items\n", header->max_items_nr);

	while (count) {
		uint32_t tail = __atomic_load_n(&header->tail, __ATOMIC_ACQUIRE);

		for (; header->head != tail; header->head++) {
			uint32_t number = __atomic_load_n(&index[header->head & mask], __ATOMIC_ACQUIRE);
			struct epoll_uitem *item = &header->items[number];
			/* Read first: once the events are cleared, the item may be reused. */
			uint64_t data = item->data;
			uint32_t events = __atomic_exchange_n(&item->ready_events, 0, __ATOMIC_RELEASE);

			if (!events) /* The item was removed. */
				continue;
			printf("%x %llu\n", events, (unsigned long long)data);
			count--;
		}
	}
	return 0;
}
