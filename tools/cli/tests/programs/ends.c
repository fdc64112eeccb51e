/* Processes that end, and calls that cannot succeed. "children": a child of vfork that exits, and files that are not programs. "strict": the
 * program's own filter permits only writing, returning from signal handlers and ending. "both": one after the other. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void children(void) {
    int status = 0;
    pid_t child = vfork();
    if (child == 0)
        _exit(3);
    waitpid(child, &status, 0);
    printf("child: %d\n", WEXITSTATUS(status));
    char *volatile paths[] = {NULL, (char *)8}, **volatile none = NULL;
    for (int i = 0; i < 2; i++) {
        int result = execve(paths[i], none, none);
        printf("no path: %d, %d\n", result, errno == EFAULT);
    }
    fflush(stdout);
}

static int strict(void) {
    int allowed[] = {SYS_write, SYS_exit_group, SYS_rt_sigreturn};
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[0], 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[1], 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[2], 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 2;
    return 7;
}

int main(int count, char **arguments) {
    const char *what = count == 2 ? arguments[1] : "";
    if (strcmp(what, "strict") != 0)
        children();
    return strcmp(what, "children") == 0 ? 7 : strict();
}
