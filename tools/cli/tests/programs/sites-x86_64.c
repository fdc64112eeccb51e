/* A shared library full of call sites, for `stress.c`: at every offset in a word, with nothing or with
 * straight-line code between the two instructions. Each site loads the vector registers and checks
 * that they, the other registers and the red zone are unchanged.
 *
 * `long site(int fd, struct state *state)`: one `io_uring_enter(fd, 0, 0, 0, 0, 0)`. */
__asm__(
    ".text\n"
    ".macro one name, pad, between\n"
    ".p2align 6\n"
    "\\name:\n"
    "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsi,%rbx\n"
    /* Known values in all registers. */
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "movups \\n*16(%rbx),%xmm\\n\n"
    ".endr\n"
    "cmpl $0,512(%rbx)\n je 1f\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "vinsertf128 $1,\\n*16(%rbx),%ymm\\n,%ymm\\n\n"
    ".endr\n"
    "1: mov %rsp,%r12\n mov $0x1313,%r13d\n mov $0x1414,%r14d\n mov $0x1515,%r15d\n mov $0x5555,%ebp\n"
    "movq $0x7777,-8(%rsp)\n movq $0x7878,-128(%rsp)\n"
    "xor %esi,%esi\n xor %edx,%edx\n xor %r10d,%r10d\n xor %r8d,%r8d\n xor %r9d,%r9d\n"
    ".p2align 3\n"
    ".rept \\pad\n nop\n .endr\n"
    "mov $426,%eax\n"
    ".rept \\between\n mov $0,%r9d\n mov %r8,%r10\n .endr\n"
    "syscall\n"
    "xor %ecx,%ecx\n"
    "cmp %rsp,%r12\n jne 9f\n"
    "cmp $0x1313,%r13\n jne 9f\n cmp $0x1414,%r14\n jne 9f\n cmp $0x1515,%r15\n jne 9f\n cmp $0x5555,%rbp\n jne 9f\n"
    "test %rsi,%rsi\n jne 9f\n test %rdx,%rdx\n jne 9f\n test %r10,%r10\n jne 9f\n"
    "test %r8,%r8\n jne 9f\n test %r9,%r9\n jne 9f\n"
    "cmpq $0x7777,-8(%rsp)\n jne 9f\n cmpq $0x7878,-128(%rsp)\n jne 9f\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "movups %xmm\\n,528+\\n*32(%rbx)\n"
    ".endr\n"
    "cmpl $0,512(%rbx)\n je 2f\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "vextractf128 $1,%ymm\\n,544+\\n*32(%rbx)\n"
    ".endr\n"
    "vzeroupper\n"
    "2: pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"
    "9: mov $1000000,%eax\n jmp 2b\n"
    ".endm\n"
    ".irp p,0,1,2,3,4,5,6,7\n"
    "one direct\\p, \\p, 0\n"
    "one apart\\p, \\p, 1\n"
    "one far\\p, \\p, 3\n"
    ".endr\n"
    ".section .data.rel.ro,\"aw\"\n"
    ".globl sites\n.type sites,@object\n"
    "sites:\n"
    ".irp p,0,1,2,3,4,5,6,7\n .quad direct\\p, apart\\p, far\\p\n .endr\n"
    ".quad 0\n"
    ".size sites,.-sites\n"
    ".text\n");

/* The number of vector registers, and whether they have upper halves. */
const int vectors = 16;
int vectors_are_wide(void) { return __builtin_cpu_supports("avx") != 0; }

/* There is no additional protection for pages of code. */
int guard(void) { return 0; }

/* True if other calls work as before: none of them uses a site. */
int others(void) { return 1; }
