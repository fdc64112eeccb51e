/* A program installs a filter that permits only its own later calls. */
#include "ring.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

#define ALLOW(number)                                                                                                    \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void say(const char *text) {
    CHECK(write(1, text, strlen(text)) == (ssize_t)strlen(text));
}

/* The call returns the value of that register: its first argument. */
static void on_trap(int signal, siginfo_t *info, void *context) {
    (void)signal;
    ucontext_t *interrupted = context;
    say("answered\n");
#ifdef __x86_64__
    interrupted->uc_mcontext.gregs[REG_RAX] = info->si_syscall;
#else
    interrupted->uc_mcontext.regs[0] = info->si_syscall;
#endif
}

static void on_fault(int signal) {
    (void)signal;
    say("the crash is reported\n");
    _exit(5);
}

static char *page;

static void repair(int signal) {
    (void)signal;
    syscall(SYS_mprotect, page, 4096, PROT_READ | PROT_WRITE);
}

int main(int count, char **words) {
    CHECK(count >= 2);
    const char *way = words[1];
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, 0) == 0);
    struct sigaction fault = {.sa_handler = strcmp(way, "repair") ? on_fault : repair};
    CHECK(sigfillset(&fault.sa_mask) == 0);
    if (strcmp(way, "dies"))
        CHECK(sigaction(SIGSEGV, &fault, 0) == 0);
    page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned otherwise = strcmp(way, "trap") ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_TRAP;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write), ALLOW(SYS_exit_group), ALLOW(SYS_rt_sigreturn), ALLOW(SYS_mprotect), ALLOW(SYS_execve),
        /* The calls of a static program's start. */
        ALLOW(SYS_brk), ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_set_tid_address), ALLOW(SYS_set_robust_list),
        ALLOW(SYS_rseq), ALLOW(SYS_prlimit64), ALLOW(SYS_readlinkat), ALLOW(SYS_getrandom), ALLOW(SYS_fstat),
        ALLOW(SYS_newfstatat), ALLOW(SYS_uname), ALLOW(SYS_fcntl),
#ifdef __x86_64__
        ALLOW(SYS_arch_prctl), ALLOW(SYS_readlink),
#endif
        BPF_STMT(BPF_RET | BPF_K, otherwise),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    if (!strcmp(way, "trap")) {
        say(syscall(SYS_getppid) == SYS_getppid ? "getppid\n" : "wrong\n");
    } else if (!strcmp(way, "exec")) {
        CHECK(count == 3);
        char *none[] = {0}, *arguments[] = {words[2], 0};
        execve(words[2], arguments, none);
        say("cannot be executed\n");
        _exit(3);
    } else {
        *(volatile char *)page = 1;
        say("repaired\n");
    }
    _exit(0);
}
