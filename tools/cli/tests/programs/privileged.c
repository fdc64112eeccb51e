/* A set-user-id program whose caller has set variables.
 *
 *   privileged start PROGRAM   executes PROGRAM as user nobody, with io_uring denied and without no_new_privs
 *   privileged                 becomes root, starts `env` with an empty environment, and so shows what was added */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int start(char *program) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    char *arguments[] = {program, 0}, *environment[] = {"ANYRING_COMMAND=/nowhere", "ANYRING_LOG=off", 0};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) || setgid(65534) || setuid(65534))
        return 2;
    execve(program, arguments, environment);
    return 3;
}

int main(int count, char **arguments) {
    if (count > 2)
        return start(arguments[2]);
    char *show[] = {"env", 0}, *none[] = {0};
    if (setuid(0))
        return 77;
    execve("/usr/bin/env", show, none);
    return 4;
}
