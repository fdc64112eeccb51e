// A read whose bytes arrive after its submission. With the argument "looks", the program branches on a byte before the completion, with "leaves" it
// frees the memory before; without an argument it is correct.
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	const char *what = count > 1 ? arguments[1] : "";
	char *volatile buffer = calloc(4, 1);
	struct io_uring ring;
	struct io_uring_cqe *completion;
	int ends[2];

	if (pipe(ends) || io_uring_queue_init(4, &ring, 0))
		return 1;
	io_uring_prep_read(io_uring_get_sqe(&ring), ends[0], buffer, 4, 0);
	if (io_uring_submit(&ring) != 1)
		return 2;
	if (!strcmp(what, "looks"))
		printf("%s\n", buffer[0] ? "something" : "nothing");
	if (!strcmp(what, "leaves"))
		free(buffer);
	if (write(ends[1], "over", 4) != 4 || io_uring_wait_cqe(&ring, &completion) || completion->res != 4)
		return 3;
	io_uring_cqe_seen(&ring, completion);
	if (strcmp(what, "leaves")) {
		printf("%s\n", buffer[0] == 'o' ? "over" : "nothing");
		free(buffer);
	}
	io_uring_queue_exit(&ring);
	return 0;
}
