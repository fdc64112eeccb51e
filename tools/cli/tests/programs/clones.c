/* Children by clone3: forks, and children that only clone3 can create. */
#include "ring.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/wait.h>

static long child(struct clone_args *arguments) {
    long made = call_by_instruction(SYS_clone3, (long)arguments, sizeof *arguments, 0, 0, 0, 0);
    if (made == 0)
        _exit(7);
    return made;
}

static void ends(const char *what, long made) {
    int status = 0;
    CHECK(made > 0 && waitpid(made, &status, __WALL) == made);
    printf("%s: status %x\n", what, status);
}

int main(void) {
    struct ring ring;
    CHECK(ring_open(&ring, 8, 0) == 0);
    int process = -1;
    struct clone_args arguments = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&process, .exit_signal = SIGCHLD};
    ends("a fork", child(&arguments));
    CHECK(process >= 0 && close(process) == 0);
    arguments = (struct clone_args){.flags = CLONE_VFORK, .exit_signal = SIGCHLD};
    ends("one that is waited for", child(&arguments));
    printf("no such flag: %ld\n", child(&(struct clone_args){.flags = 1ull << 60}));
    printf("nowhere: %ld\n", call_by_instruction(SYS_clone3, 8, sizeof arguments, 0, 0, 0, 0));
    printf("too short: %ld\n", call_by_instruction(SYS_clone3, (long)&arguments, 8, 0, 0, 0, 0));
    /* Into the cgroup that the process is in, if that is known and permitted. */
    int group = open("/sys/fs/cgroup", O_PATH | O_DIRECTORY);
    arguments = (struct clone_args){.flags = CLONE_INTO_CGROUP | CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD, .cgroup = group};
    long made = child(&arguments);
    CHECK(made != -ENOSYS);
    if (made > 0)
        CHECK(waitpid(made, 0, 0) == made);
    ring_entry(&ring, IORING_OP_NOP, 1);
    printf("the ring goes on: %ld\n", ring_enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS));
    return 0;
}
