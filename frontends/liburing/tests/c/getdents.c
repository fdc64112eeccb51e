// Reads directories by GETDENTS and compares with getdents64(2). Prints nothing on success. With the argument
// "absent", the operation must fail as on a kernel without it.
#define _GNU_SOURCE
#include <anyring.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(what)                                                                                          \
	do {                                                                                                 \
		if (!(what)) {                                                                               \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                   \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#define FILES 500

static struct io_uring_sqe *next(struct io_uring *ring, unsigned long data)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	CHECK(sqe);
	io_uring_prep_nop(sqe);
	sqe->user_data = data;
	return sqe;
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

static int once(struct io_uring *ring, int fd, void *buffer, unsigned bytes, uint64_t offset)
{
	struct io_uring_sqe *sqe = next(ring, 77);
	unsigned long data;
	int result;
	anyring_prep_getdents(sqe, fd, buffer, bytes, offset);
	sqe->user_data = 77;
	CHECK(io_uring_submit(ring) == 1);
	result = reap(ring, &data);
	CHECK(data == 77);
	return result;
}

// Reads the entries that the system call returns, from one offset to the next. The number of entries per call is not fixed:
// a pending signal, even one of the kernel's own, ends operation and system call after an entry.
static void whole(struct io_uring *ring, const char *path, int at_position)
{
	static char theirs[FILES * 64];
	char ours[700];
	int fd = open(path, O_RDONLY | O_DIRECTORY), plain = open(path, O_RDONLY | O_DIRECTORY);
	uint64_t offset = 0, entries = 0;
	long all = 0, more, seen = 0;
	// The kernel does not write the padding between two entries.
	memset(theirs, 0, sizeof(theirs));
	while ((more = syscall(SYS_getdents64, plain, theirs + all, sizeof(theirs) - all)) > 0)
		all += more;
	CHECK(more == 0);
	for (;;) {
		memset(ours, 0, sizeof(ours));
		int count = once(ring, fd, ours, sizeof(ours), at_position ? ANYRING_POSITION : offset);
		CHECK(count >= 0 && count <= all - seen);
		CHECK(memcmp(ours, theirs + seen, count) == 0 && (count > 0 || seen == all));
		seen += count;
		if (count == 0)
			break;
		anyring_for_each_dirent(entry, ours, count) {
			offset = entry->d_off;
			entries++;
		}
		CHECK(lseek(fd, 0, SEEK_CUR) == (at_position ? (off_t)offset : 0));
	}
	CHECK(entries == FILES + 2);
	close(fd);
	close(plain);
}

static void chain(struct io_uring *ring, const char *path)
{
	char buffer[700];
	struct io_uring_sqe *sqe;
	unsigned long data;
	int fd = open(path, O_RDONLY | O_DIRECTORY);
	for (int bad = 0; bad < 2; bad++) {
		sqe = next(ring, 1);
		sqe->flags = IOSQE_IO_LINK;
		sqe = next(ring, 2);
		anyring_prep_getdents(sqe, bad ? -1 : fd, buffer, sizeof(buffer), 0);
		sqe->user_data = 2;
		sqe->flags = IOSQE_IO_LINK;
		sqe = next(ring, 3);
		CHECK(io_uring_submit_and_wait(ring, 3) == 3);
		CHECK(reap(ring, &data) == 0 && data == 1);
		int result = reap(ring, &data);
		CHECK(data == 2 && (bad ? result == -EBADF : result > 0));
		CHECK(reap(ring, &data) == (bad ? -ECANCELED : 0) && data == 3);
	}
	close(fd);
}

static void shown(struct io_uring *ring, int expected)
{
	struct io_uring_probe *probe = io_uring_get_probe();
	CHECK(probe && !!io_uring_opcode_supported(probe, ANYRING_OP_GETDENTS) == expected);
	CHECK(io_uring_opcode_supported(probe, IORING_OP_READ) && !io_uring_opcode_supported(probe, 100));
	io_uring_free_probe(probe);
	probe = io_uring_get_probe_ring(ring);
	CHECK(probe && !!io_uring_opcode_supported(probe, ANYRING_OP_GETDENTS) == expected);
	io_uring_free_probe(probe);
	probe = anyring_get_probe_ring(ring);
	CHECK(probe && !!io_uring_opcode_supported(probe, ANYRING_OP_GETDENTS) == expected);
	free(probe);
}

int main(int argc, char **argv)
{
	char path[] = "/tmp/anyring-getdents-XXXXXX", name[100];
	struct io_uring ring;
	CHECK(io_uring_queue_init(8, &ring, 0) == 0);
	CHECK(mkdtemp(path));
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "%s/entry-%d", path, i);
		CHECK(mknod(name, S_IFREG | 0600, 0) == 0);
	}
	int absent = argc > 1 && strcmp(argv[1], "absent") == 0;
	shown(&ring, !absent);
	if (absent) {
		CHECK(once(&ring, 0, name, sizeof(name), 0) == -EINVAL);
	} else {
		whole(&ring, path, 0);
		whole(&ring, path, 1);
		chain(&ring, path);
	}
	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "%s/entry-%d", path, i);
		CHECK(unlink(name) == 0);
	}
	CHECK(rmdir(path) == 0);
	io_uring_queue_exit(&ring);
	return 0;
}
