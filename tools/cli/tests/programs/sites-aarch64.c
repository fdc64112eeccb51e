/* A shared library full of call sites, for `stress.c`: with nothing, straight-line code or a branch between the number and the
 * `svc`, and with an `svc` that other calls use, too. Each site loads the vector registers and checks that they, the other
 * registers and the flags are unchanged.
 *
 * `long site(int fd, struct state *state)`: one `io_uring_enter(fd, 0, 0, 0, 0, 0)`. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__asm__(
    ".text\n"
    ".macro vectors instruction, base\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    "\\instruction q\\n,[x19,#\\base+\\n*(\\base/528*16+16)]\n"
    ".endr\n"
    ".endm\n"
    ".macro one name, kind\n"
    ".p2align 6\n"
    "\\name:\n"
    "hint #34\n" /* bti c */
    "stp x29,x30,[sp,#-192]!\n"
    "stp x19,x20,[sp,#16]\n stp x21,x22,[sp,#32]\n stp x23,x24,[sp,#48]\n stp x25,x26,[sp,#64]\n stp x27,x28,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n"
    "mov x29,sp\n mov x19,x1\n"
    /* Known values in all registers. */
    "vectors ldr, 0\n"
    ".irp n,6,7,10,11,12,13,14,15,16,17,18,20,21,22,23,24,25,26,27,28,30\n"
    "mov x\\n,#0xa00+\\n\n"
    ".endr\n"
    ".irp n,1,2,3,4,5\n mov x\\n,#0\n .endr\n"
    "mov x9,#426\n"
    "mov w8,#0xa0000000\n msr nzcv,x8\n"
    ".ifc \\kind,direct\n mov x8,#426\n svc #0\n .endif\n"
    ".ifc \\kind,apart\n mov w8,#426\n mov w5,#0\n mov x4,x5\n svc #0\n .endif\n"
    ".ifc \\kind,branch\n mov x8,#426\n b 1f\n .inst 0\n 1: svc #0\n .endif\n"
    /* `getpid` by the same instruction. */
    ".ifc \\kind,shared\n"
    "mov x8,#426\n 1: svc #0\n"
    "tbz x9,#1,2f\n str x0,[sp,#160]\n mov x9,#172\n mov x8,x9\n b 1b\n"
    "2: tbnz x0,#63,9f\n cbz x0,9f\n ldr x0,[sp,#160]\n mov x8,#426\n mov x9,x8\n"
    ".endif\n"
    "str x0,[sp,#160]\n mrs x0,nzcv\n str x0,[sp,#168]\n"
    ".irp n,6,7,10,11,12,13,14,15,16,17,18,20,21,22,23,24,25,26,27,28,30\n"
    "cmp x\\n,#0xa00+\\n\n b.ne 9f\n"
    ".endr\n"
    ".irp n,1,2,3,4,5\n cbnz x\\n,9f\n .endr\n"
    "cmp x8,#426\n b.ne 9f\n cmp x9,#426\n b.ne 9f\n"
    "cmp sp,x29\n b.ne 9f\n"
    "mov w1,#0xa0000000\n cmp x0,x1\n b.ne 9f\n"
    "vectors str, 528\n"
    "ldr x0,[sp,#160]\n"
    "8:\n"
    "ldp x19,x20,[sp,#16]\n ldp x21,x22,[sp,#32]\n ldp x23,x24,[sp,#48]\n ldp x25,x26,[sp,#64]\n ldp x27,x28,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n"
    "ldp x29,x30,[sp],#192\n ret\n"
    "9: mov x0,#50000\n b 8b\n"
    ".endm\n"
    ".irp p,0,1,2,3,4,5\n"
    "one direct\\p, direct\n"
    "one apart\\p, apart\n"
    "one branch\\p, branch\n"
    "one shared\\p, shared\n"
    ".endr\n"
    /* Makes any call, by an `svc` that enters rings, too; a child of `clone` checks that it has its new stack, and exits. */
    ".globl any\n.hidden any\n.type any,%function\n"
    ".p2align 6\n"
    "any:\n"
    "mov x8,x6\n mov x9,x1\n cmp x8,#426\n b.ne 1f\n"
    "mov x8,#426\n"
    "1: svc #0\n"
    "cmp x8,#220\n b.ne 2f\n cbnz x0,2f\n"
    "mov x1,sp\n cmp x1,x9\n cset x0,ne\n add x0,x0,#33\n mov x8,#93\n svc #0\n"
    "2: ret\n"
    ".section .data.rel.ro,\"aw\"\n"
    ".globl sites\n.type sites,@object\n"
    ".p2align 3\n"
    "sites:\n"
    ".irp p,0,1,2,3,4,5\n .quad direct\\p, apart\\p, branch\\p, shared\\p\n .endr\n"
    ".quad 0\n"
    ".size sites,.-sites\n"
    ".text\n");

/* The number of vector registers, and whether they have upper halves that a system call preserves. */
const int vectors = 32;
int vectors_are_wide(void) { return 0; }

/* Returns the protection of code against branches to unmarked targets (PROT_BTI), if the processor has it. */
int guard(void) { return getauxval(AT_HWCAP2) & 1 << 17 ? 0x10 : 0; }

long any(long a, long b, long c, long d, long e, long f, long number);

/* True if other calls by an instruction that became a branch work as before: a child of `clone` has its new stack. */
int others(void) {
    static _Alignas(16) char stack[16 << 10];
    char *top = stack + sizeof stack;
    for (int round = 0; round < 3; round++)
        if (any(-1, 0, 0, 0, 0, 0, SYS_io_uring_enter) != -EBADF)
            return 0;
    long child = any(CLONE_VM | SIGCHLD, (long)top, 0, 0, 0, 0, SYS_clone);
    int status = 0;
    return child > 0 && any(child, (long)&status, 0, 0, 0, 0, SYS_wait4) == child && status == 33 << 8;
}
