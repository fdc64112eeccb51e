/* The values of the registers before the call and after it: r8, r9, r12 to r15, rbx, rbp, rdi, rsi, rdx, r10, rsp, the flags, xmm0 to xmm15. */
enum { GENERAL = 14, FLAGS = 13, VECTORS = 16, ARITHMETIC = 0x8d5 };
struct registers {
    unsigned long general[GENERAL], vectors[VECTORS][2];
} wanted, found;

/* Calls io_uring_enter(fd, 1, 0, 0). Sets r8, r9, r12 to r15, rbx, rbp and the vectors from `wanted`, and stores the other registers there. */
long enter_with(long fd);
__asm__(".pushsection .text\n"
        ".globl enter_with\n.type enter_with,@function\n"
        "enter_with:\n"
        ".irp register, rbx, rbp, r12, r13, r14, r15\n\tpush %\\register\n.endr\n"
        "lea wanted(%rip), %rcx\n"
        ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "movups 112 + 16 * \\index(%rcx), %xmm\\index\n.endr\n"
        "mov (%rcx), %r8\n mov 8(%rcx), %r9\n mov 16(%rcx), %r12\n mov 24(%rcx), %r13\n mov 32(%rcx), %r14\n"
        "mov 40(%rcx), %r15\n mov 48(%rcx), %rbx\n mov 56(%rcx), %rbp\n"
        "mov $1, %esi\n xor %edx, %edx\n xor %r10d, %r10d\n"
        "mov %rdi, 64(%rcx)\n mov %rsi, 72(%rcx)\n mov %rdx, 80(%rcx)\n mov %r10, 88(%rcx)\n mov %rsp, 96(%rcx)\n"
        /* Sets the overflow, sign, adjust and carry flags. */
        "mov $0x7fffffff, %eax\n add $1, %eax\n stc\n"
        "pushf\n pop 104(%rcx)\n"
        "mov $426, %eax\n syscall\n"
        "lea found(%rip), %rcx\n"
        "mov %r8, (%rcx)\n mov %r9, 8(%rcx)\n mov %r12, 16(%rcx)\n mov %r13, 24(%rcx)\n mov %r14, 32(%rcx)\n"
        "mov %r15, 40(%rcx)\n mov %rbx, 48(%rcx)\n mov %rbp, 56(%rcx)\n mov %rdi, 64(%rcx)\n mov %rsi, 72(%rcx)\n"
        "mov %rdx, 80(%rcx)\n mov %r10, 88(%rcx)\n mov %rsp, 96(%rcx)\n pushf\n pop 104(%rcx)\n"
        ".irp index, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15\n"
        "movups %xmm\\index, 112 + 16 * \\index(%rcx)\n.endr\n"
        ".irp register, r15, r14, r13, r12, rbp, rbx\n\tpop %\\register\n.endr\n"
        "ret\n.size enter_with, . - enter_with\n.popsection");

/* The program's stop, for its parent. */
#define STOP() __asm__ volatile("int3")
/* The names of registers, and where a handler's context has the address that it interrupts. */
#define INSTRUCTION rip
#define STACK rsp
#define INTERRUPTED(context) ((context)->uc_mcontext.gregs[REG_RIP])
/* A word of code with a breakpoint, and how far the breakpoint has brought the process. */
#define WITH_BREAKPOINT(word) (((word) & ~0xffl) | 0xcc)
enum { BREAKPOINT = 1 };

/* Does nothing: the process is behind its stop. */
static void pass_stop(pid_t child, struct user_regs_struct *registers) { (void)child, (void)registers; }

/* Returns 0: each instruction can be stepped. */
static int as_one(pid_t child, unsigned long at, unsigned long *ends) { return (void)child, (void)at, (void)ends, 0; }
