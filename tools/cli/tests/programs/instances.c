/* A ring ends when its descriptor is closed, by an instruction or by a function, and releases the files that only the ring had open. Prints how many
 * inotify instances the process has while the ring exists, because the number per user is limited. With the path of a library as an argument, the program
 * loads the library after creating the ring, and the library closes the ring. */
#include "ring.h"
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>

static int instances(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        char target[64] = "";
        if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) > 0)
            count += strcmp(target, "anon_inode:inotify") == 0;
    }
    closedir(directory);
    return count;
}

int main(int count, char **arguments) {
    struct ring ring;
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(ring_open(&ring, 4, 0) == 0);
    CHECK(ring_nop(&ring, 1) == 0);
    CHECK(ring_call(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, (long)&ends[1], 1, 0, 0) == 0);
    close(ends[1]);
    fprintf(stderr, "inotify instances: %d\n", instances());
    int (*close_unseen)(int) = 0;
    if (count > 1) {
        void *library = dlopen(arguments[1], RTLD_NOW);
        CHECK(library && (close_unseen = (int (*)(int))dlsym(library, "close_unseen")));
        CHECK(ring_nop(&ring, 2) == 0);
    }

    struct io_uring_params *p = &ring.params;
    size_t sq = p->sq_off.array + p->sq_entries * 4, cq = p->cq_off.cqes + p->cq_entries * 16;
    CHECK(munmap(ring.submissions, sq > cq ? sq : cq) == 0 && munmap(ring.entries, p->sq_entries * 64) == 0);
    CHECK((close_unseen ? close_unseen(ring.fd) : ring_call(SYS_close, ring.fd, 0, 0, 0, 0, 0)) == 0);
    struct pollfd gone = {.fd = ends[0], .events = POLLIN};
    CHECK(poll(&gone, 1, 20000) == 1 && gone.revents & POLLHUP);
    printf("the ring has ended\n");
    return 0;
}
