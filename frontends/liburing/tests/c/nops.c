// Runs NOPs by different ways to submit and wait, for scripts/count-liburing: nops COUNT WAY BATCH.
#include <liburing.h>
#include <stdlib.h>

int main(int count, char **arguments)
{
	struct io_uring ring;
	struct io_uring_cqe *cqe, *list[64];
	if (count < 4 || io_uring_queue_init(64, &ring, 0))
		return 1;
	int left = atoi(arguments[1]), way = atoi(arguments[2]), batch = atoi(arguments[3]);
	for (; left > 0; left -= batch) {
		for (int i = 0; i < batch; i++)
			io_uring_prep_nop(io_uring_get_sqe(&ring));
		struct __kernel_timespec time = { 1, 0 };
		switch (way) {
		case 0: // submit, and wait for each completion
			io_uring_submit(&ring);
			for (int i = 0; i < batch; i++) {
				io_uring_wait_cqe(&ring, &cqe);
				io_uring_cqe_seen(&ring, cqe);
			}
			break;
		case 1: // submit, and wait for all completions
			io_uring_submit(&ring);
			io_uring_wait_cqe_nr(&ring, &cqe, batch);
			io_uring_cq_advance(&ring, batch);
			break;
		case 2: // submit and wait by one call
			io_uring_submit_and_wait(&ring, batch);
			io_uring_cq_advance(&ring, io_uring_peek_batch_cqe(&ring, list, 64));
			break;
		case 3: // submit and wait by one call with a time limit
			io_uring_submit_and_wait_timeout(&ring, &cqe, batch, &time, NULL);
			io_uring_cq_advance(&ring, io_uring_peek_batch_cqe(&ring, list, 64));
			break;
		}
	}
	io_uring_queue_exit(&ring);
	return 0;
}
