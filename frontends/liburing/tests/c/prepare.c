// Compares each inline function of liburing.h with the symbol of liburing-ffi: both are called with equal
// arguments on equal entries, and the entries must be equal afterwards, byte for byte.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static int failures, compared;

static void *find(const char *name)
{
	void *function = dlsym(library, name);
	if (!function) {
		printf("%s is not there\n", name);
		exit(1);
	}
	return function;
}

static void compare(const char *name, const struct io_uring_sqe *inlined, const struct io_uring_sqe *symbol)
{
	const unsigned char *a = (const void *)inlined, *b = (const void *)symbol;
	compared++;
	for (unsigned i = 0; i < sizeof(*inlined); i++)
		if (a[i] != b[i]) {
			printf("%s: byte %u is %#x inline and %#x by the symbol\n", name, i, a[i], b[i]);
			failures++;
		}
}

// Both functions must keep or overwrite the same bytes of the previous content.
#define CHECK(name, ...)                                                         \
	do {                                                                     \
		__typeof__(&name) symbol = find(#name);                          \
		static const unsigned char fill[] = { 0, 0xa5, 0xff };           \
		for (int round = 0; round < 3; round++) {                        \
			struct io_uring_sqe one, two;                            \
			memset(&one, fill[round], sizeof(one));                  \
			memset(&two, fill[round], sizeof(two));                  \
			name(&one, ##__VA_ARGS__);                               \
			symbol(&two, ##__VA_ARGS__);                             \
			compare(#name, &one, &two);                              \
		}                                                                \
		printf("symbol %s\n", #name);                                    \
	} while (0)

// io_uring_prep_rw has the entry as its second argument.
static void prepare_rw(void)
{
	__typeof__(&io_uring_prep_rw) symbol = find("io_uring_prep_rw");
	struct io_uring_sqe one, two;
	memset(&one, 0xa5, sizeof(one));
	memset(&two, 0xa5, sizeof(two));
	io_uring_prep_rw(33, &one, -100, &failures, 0xfffffff0u, 0x123456789abcdef0ull);
	symbol(33, &two, -100, &failures, 0xfffffff0u, 0x123456789abcdef0ull);
	compare("io_uring_prep_rw", &one, &two);
	printf("symbol io_uring_prep_rw\n");
}

#define P(number) ((void *)0x7f0012345000ul + (number))
#define ANY IORING_FILE_INDEX_ALLOC

int main(int count, char **arguments)
{
	library = dlopen(arguments[count - 1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	prepare_rw();
	CHECK(io_uring_prep_nop);
	CHECK(io_uring_prep_splice, 3, -1, 4, 0x1122334455667788, 4096, 6);
	CHECK(io_uring_prep_tee, 5, 6, 77, 3);
	CHECK(io_uring_prep_readv, 7, P(2), 8, 99);
	CHECK(io_uring_prep_readv2, 7, P(2), 8, 99, RWF_NOWAIT);
	CHECK(io_uring_prep_read_fixed, 7, P(3), 8, -1, 70000);
	CHECK(io_uring_prep_readv_fixed, 7, P(3), 8, -1, RWF_DSYNC, 12);
	CHECK(io_uring_prep_writev, 7, P(2), 8, 99);
	CHECK(io_uring_prep_writev2, 7, P(2), 8, 99, RWF_APPEND);
	CHECK(io_uring_prep_write_fixed, 7, P(3), 8, 5, 3);
	CHECK(io_uring_prep_writev_fixed, 7, P(3), 8, -1, -1, 12);
	CHECK(io_uring_prep_recvmsg, 9, P(4), MSG_PEEK);
	CHECK(io_uring_prep_recvmsg_multishot, 9, P(4), MSG_TRUNC);
	CHECK(io_uring_prep_sendmsg, 9, P(4), MSG_NOSIGNAL);
	CHECK(io_uring_prep_poll_add, 10, 0x12345678);
	CHECK(io_uring_prep_poll_multishot, 10, 0x2001);
	CHECK(io_uring_prep_poll_remove, 0xdeadbeef12345678ull);
	CHECK(io_uring_prep_poll_update, 1ull << 63, 2, 4, IORING_POLL_UPDATE_EVENTS);
	CHECK(io_uring_prep_fsync, 11, IORING_FSYNC_DATASYNC);
	CHECK(io_uring_prep_timeout, P(5), 6, IORING_TIMEOUT_ABS);
	CHECK(io_uring_prep_timeout_remove, 8, 3);
	CHECK(io_uring_prep_timeout_update, P(5), 8, 4);
	CHECK(io_uring_prep_accept, 12, P(6), P(7), SOCK_CLOEXEC);
	CHECK(io_uring_prep_accept_direct, 12, P(6), P(7), 0, 3);
	CHECK(io_uring_prep_accept_direct, 12, P(6), P(7), 0, ANY);
	CHECK(io_uring_prep_multishot_accept, 12, P(6), P(7), SOCK_NONBLOCK);
	CHECK(io_uring_prep_multishot_accept_direct, 12, P(6), P(7), 0);
	CHECK(io_uring_prep_cancel64, 0x8000000000000001ull, -1);
	CHECK(io_uring_prep_cancel, P(8), IORING_ASYNC_CANCEL_ALL);
	CHECK(io_uring_prep_cancel_fd, 13, IORING_ASYNC_CANCEL_ANY);
	CHECK(io_uring_prep_link_timeout, P(5), 1);
	CHECK(io_uring_prep_connect, 14, P(6), 0xffffffff);
	CHECK(io_uring_prep_bind, 14, P(6), 16);
	CHECK(io_uring_prep_listen, 14, -1);
	CHECK(io_uring_prep_epoll_wait, 15, P(9), 16, 0);
	CHECK(io_uring_prep_files_update, P(9), 4, -1);
	CHECK(io_uring_prep_fallocate, 16, FALLOC_FL_PUNCH_HOLE, 1ull << 40, 1ull << 41);
	CHECK(io_uring_prep_openat, AT_FDCWD, P(10), O_CREAT | O_RDWR, 0644);
	CHECK(io_uring_prep_openat_direct, 17, P(10), O_RDWR, 0600, 5);
	CHECK(io_uring_prep_openat_direct, 17, P(10), O_RDWR, 0600, ANY);
	CHECK(io_uring_prep_open, P(10), O_RDONLY, 0);
	CHECK(io_uring_prep_open_direct, P(10), O_RDONLY, 0, 6);
	CHECK(io_uring_prep_open_direct, P(10), O_RDONLY, 0, ANY);
	CHECK(io_uring_prep_close, 18);
	CHECK(io_uring_prep_close_direct, 19);
	CHECK(io_uring_prep_close_direct, 0xffffffff);
	CHECK(io_uring_prep_read, 20, P(11), 12, 13);
	CHECK(io_uring_prep_read_multishot, 20, 12, -1, 40000);
	CHECK(io_uring_prep_write, 20, P(11), 12, 13);
	CHECK(io_uring_prep_statx, 21, P(12), AT_EMPTY_PATH, 0x7ff, P(13));
	CHECK(io_uring_prep_fadvise, 22, 1ull << 33, 4096, POSIX_FADV_WILLNEED);
	CHECK(io_uring_prep_fadvise64, 22, 1ull << 33, 1ll << 34, POSIX_FADV_DONTNEED);
	CHECK(io_uring_prep_madvise, P(14), 4096, 4);
	CHECK(io_uring_prep_madvise64, P(14), 1ll << 35, 4);
	CHECK(io_uring_prep_send, 23, P(15), 1ull << 33 | 5, MSG_MORE);
	CHECK(io_uring_prep_send_bundle, 23, 0, 0);
	CHECK(io_uring_prep_send_set_addr, P(16), 0x1234);
	CHECK(io_uring_prep_sendto, 23, P(15), 9, MSG_MORE, P(16), 28);
	CHECK(io_uring_prep_send_zc, 23, P(15), 9, MSG_WAITALL, IORING_SEND_ZC_REPORT_USAGE);
	CHECK(io_uring_prep_send_zc_fixed, 23, P(15), 9, 0, IORING_RECVSEND_POLL_FIRST, 8);
	CHECK(io_uring_prep_sendmsg_zc, 23, P(17), 1);
	CHECK(io_uring_prep_sendmsg_zc_fixed, 23, P(17), 1, 9);
	CHECK(io_uring_prep_recv, 24, P(18), 100, MSG_WAITALL);
	CHECK(io_uring_prep_recv_multishot, 24, NULL, 0, 0);
	CHECK(io_uring_prep_openat2, AT_FDCWD, P(19), P(20));
	CHECK(io_uring_prep_openat2_direct, 25, P(19), P(20), 7);
	CHECK(io_uring_prep_openat2_direct, 25, P(19), P(20), ANY);
	CHECK(io_uring_prep_epoll_ctl, 26, -3, 1, P(21));
	CHECK(io_uring_prep_provide_buffers, P(22), -1, 8, 70000, -9);
	CHECK(io_uring_prep_remove_buffers, 8, 9);
	CHECK(io_uring_prep_shutdown, 27, SHUT_WR);
	CHECK(io_uring_prep_unlinkat, 28, P(23), AT_REMOVEDIR);
	CHECK(io_uring_prep_unlink, P(23), 0);
	CHECK(io_uring_prep_renameat, 29, P(24), -100, P(25), 2);
	CHECK(io_uring_prep_rename, P(24), P(25));
	CHECK(io_uring_prep_sync_file_range, 30, 4096, 1ull << 36, 7);
	CHECK(io_uring_prep_mkdirat, 31, P(26), 0755);
	CHECK(io_uring_prep_mkdir, P(26), 0700);
	CHECK(io_uring_prep_symlinkat, P(27), 32, P(28));
	CHECK(io_uring_prep_symlink, P(27), P(28));
	CHECK(io_uring_prep_linkat, 33, P(29), 34, P(30), AT_SYMLINK_FOLLOW);
	CHECK(io_uring_prep_link, P(29), P(30), 0);
	CHECK(io_uring_prep_msg_ring, 35, 0x11223344, 0x1122334455667788ull, IORING_MSG_RING_CQE_SKIP);
	CHECK(io_uring_prep_msg_ring_cqe_flags, 35, 1, 2, 0, 0x99);
	CHECK(io_uring_prep_msg_ring_fd, 35, 4, 5, 6, 1);
	CHECK(io_uring_prep_msg_ring_fd, 35, -4, (int)ANY, 6, 1);
	CHECK(io_uring_prep_msg_ring_fd_alloc, 35, 4, 6, 1);
	CHECK(io_uring_prep_getxattr, P(31), P(32), P(33), 64);
	CHECK(io_uring_prep_setxattr, P(31), P(32), P(33), 1, 64);
	CHECK(io_uring_prep_fgetxattr, 36, P(31), P(32), 64);
	CHECK(io_uring_prep_fsetxattr, 36, P(31), P(32), 2, 64);
	CHECK(io_uring_prep_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, -6, 1);
	CHECK(io_uring_prep_socket_direct, AF_INET6, SOCK_DGRAM, 0, 8, 0);
	CHECK(io_uring_prep_socket_direct, AF_INET6, SOCK_DGRAM, 0, ANY, 0);
	CHECK(io_uring_prep_socket_direct_alloc, AF_UNIX, -1, 0, 0);
	CHECK(io_uring_prep_uring_cmd, -7, 37);
	CHECK(io_uring_prep_cmd_sock, SOCKET_URING_OP_SETSOCKOPT, 38, SOL_SOCKET, SO_REUSEADDR, P(34), 4);
	CHECK(io_uring_prep_cmd_discard, 39, 1ull << 37, 1ull << 38);
	CHECK(io_uring_prep_waitid, P_PID, 0xfffffff0, P(35), WEXITED, 1);
	CHECK(io_uring_prep_futex_wake, P(36), 1, ~0ull, 0x80000002, 0);
	CHECK(io_uring_prep_futex_wait, P(36), 2, 0xf0f0f0f0ull, 2, 1);
	CHECK(io_uring_prep_futex_waitv, P(37), 3, 0);
	CHECK(io_uring_prep_fixed_fd_install, 40, IORING_FIXED_FD_NO_CLOEXEC);
	CHECK(io_uring_prep_ftruncate, 41, -1);
	CHECK(io_uring_prep_pipe, P(38), O_DIRECT);
	CHECK(io_uring_prep_pipe_direct, P(38), 0, 9);
	CHECK(io_uring_prep_pipe_direct, P(38), 0, ANY);
	CHECK(io_uring_prep_nop128);
	CHECK(io_uring_prep_uring_cmd128, 8, 42);
	CHECK(io_uring_prep_cmd_getsockname, 43, P(39), P(40), 1);
	// Since 2.16, and before in sources that still call themselves 2.15.
#ifdef BLOCK_URING_CMD_ZONE_RESET_ALL
	CHECK(io_uring_prep_cmd_zone_reset_all, 44);
#endif
	CHECK(io_uring_sqe_set_data, P(41));
	CHECK(io_uring_sqe_set_data64, 0x8877665544332211ull);
	CHECK(io_uring_sqe_set_flags, 0x1ff);
	CHECK(io_uring_sqe_set_buf_group, 0x12345);
	printf("compared %d, %d differ\n", compared, failures);
	return failures > 0;
}
