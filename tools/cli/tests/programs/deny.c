/* Runs a program in a sandbox. All io_uring calls, or only the named one, fail with an errno (as with the default profiles of
 * container engines) or kill the process; with `allow`, none does. Options: ptrace is denied (as with older profiles); memory cannot be made executable;
 * memfd_create kills the process, or is denied; a limit that cannot be raised keeps files small; another call fails with an errno.
 *
 *   deny ERRNO|kill|allow[,enter|,register][,ptrace][,mdwe][,memfd|,nomemfd][,small][,call=NUMBER:ERRNO] PROGRAM [ARGUMENTS] */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

int main(int count, char **arguments) {
    if (count < 3)
        return 2;
    const char *how = arguments[1];
    int kills = strncmp(how, "kill", 4) == 0;
    int allows = strncmp(how, "allow", 5) == 0;
    unsigned answer = kills ? SECCOMP_RET_KILL_PROCESS : allows ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | atoi(how);
    int first = strstr(how, ",enter") ? SYS_io_uring_enter : strstr(how, ",register") ? SYS_io_uring_register : SYS_io_uring_setup;
    int last = strstr(how, ",enter") ? SYS_io_uring_enter : SYS_io_uring_register;
    int ptrace = strstr(how, ",ptrace") ? SYS_ptrace : -1;
    int memfd = strstr(how, "memfd") ? SYS_memfd_create : -1;
    int call = -1, its_errno = 0;
    if (strstr(how, ",call="))
        sscanf(strstr(how, ",call="), ",call=%d:%d", &call, &its_errno);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | its_errno),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, memfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, strstr(how, ",nomemfd") ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ptrace, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 3),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, last, 2, 0),
        BPF_STMT(BPF_RET | BPF_K, answer),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (strstr(how, ",mdwe") && prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)) {
        perror("deny: PR_SET_MDWE");
        return 3;
    }
    if (strstr(how, ",small")) {
        const int sys_resource = 24;
        struct rlimit small = {64 << 20, 64 << 20};
        setrlimit(RLIMIT_FSIZE, &small);
        /* Fails without privileges, when there is no capability to drop. */
        prctl(PR_CAPBSET_DROP, sys_resource, 0, 0, 0);
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("deny: seccomp");
        return 2;
    }
    execvp(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 127;
}
