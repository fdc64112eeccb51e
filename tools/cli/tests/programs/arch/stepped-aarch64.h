/* The values of the registers before the call and after it: x0 to x30 (without x0), sp, the flags, v0 to v31. */
enum { GENERAL = 33, FLAGS = 32, VECTORS = 32 };
#define ARITHMETIC 0xf0000000ul
struct registers {
    unsigned long general[GENERAL + 1], vectors[VECTORS][2];
} wanted, found;

/* Calls io_uring_enter(fd, 1, 0, 0). Sets the registers from `wanted`, but for those of the call and the stack pointer, which it stores there. */
long enter_with(long fd);
#define VECTORS_OF(instruction)                                                                                                              \
    instruction " {v0.2d, v1.2d, v2.2d, v3.2d}, [x10], #64\n" instruction " {v4.2d, v5.2d, v6.2d, v7.2d}, [x10], #64\n" instruction          \
                " {v8.2d, v9.2d, v10.2d, v11.2d}, [x10], #64\n" instruction " {v12.2d, v13.2d, v14.2d, v15.2d}, [x10], #64\n" instruction    \
                " {v16.2d, v17.2d, v18.2d, v19.2d}, [x10], #64\n" instruction " {v20.2d, v21.2d, v22.2d, v23.2d}, [x10], #64\n" instruction  \
                " {v24.2d, v25.2d, v26.2d, v27.2d}, [x10], #64\n" instruction " {v28.2d, v29.2d, v30.2d, v31.2d}, [x10], #64\n"
#define PAIRS(instruction)                                                                                                                 \
    instruction " x10, x11, [x9, #80]\n" instruction " x12, x13, [x9, #96]\n" instruction " x14, x15, [x9, #112]\n" instruction              \
                " x16, x17, [x9, #128]\n" instruction " x18, x19, [x9, #144]\n" instruction " x20, x21, [x9, #160]\n" instruction            \
                " x22, x23, [x9, #176]\n" instruction " x24, x25, [x9, #192]\n" instruction " x26, x27, [x9, #208]\n" instruction            \
                " x28, x29, [x9, #224]\n"
__asm__(".pushsection .text\n"
        ".globl enter_with\n.type enter_with,%function\n"
        "enter_with:\n"
        "stp x29, x30, [sp, #-192]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n"
        "stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
        "adrp x9, wanted\n add x9, x9, #:lo12:wanted\n"
        "mov x1, #1\n mov x2, #0\n mov x3, #0\n mov x4, #0\n mov x5, #0\n mov x8, #426\n mov x10, sp\n"
        "stp xzr, x1, [x9]\n stp x2, x3, [x9, #16]\n stp x4, x5, [x9, #32]\n str x8, [x9, #64]\n str x10, [x9, #248]\n"
        "ldr x10, [x9, #256]\n msr nzcv, x10\n str xzr, [x9, #264]\n"
        "add x10, x9, #272\n" VECTORS_OF("ld1") "ldp x6, x7, [x9, #48]\n" PAIRS("ldp") "ldr x30, [x9, #240]\n ldr x9, [x9, #72]\n"
        "svc #0\n"
        "str x9, [sp, #160]\n"
        "adrp x9, found\n add x9, x9, #:lo12:found\n"
        "stp xzr, x1, [x9]\n stp x2, x3, [x9, #16]\n stp x4, x5, [x9, #32]\n stp x6, x7, [x9, #48]\n str x8, [x9, #64]\n"
        PAIRS("stp") "str x30, [x9, #240]\n"
        "ldr x10, [sp, #160]\n str x10, [x9, #72]\n mov x10, sp\n str x10, [x9, #248]\n mrs x10, nzcv\n str x10, [x9, #256]\n"
        "add x10, x9, #272\n" VECTORS_OF("st1")
        "ldp x19, x20, [sp, #16]\n ldp x21, x22, [sp, #32]\n ldp x23, x24, [sp, #48]\n"
        "ldp x25, x26, [sp, #64]\n ldp x27, x28, [sp, #80]\n ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n ldp x29, x30, [sp], #192\n"
        "ret\n.size enter_with, . - enter_with\n.popsection");

/* The program's stop, for its parent. */
#define STOP() __asm__ volatile("brk #0x123")
/* The names of registers, and where a handler's context has the address that it interrupts. */
#define INSTRUCTION pc
#define STACK sp
#define INTERRUPTED(context) ((context)->uc_mcontext.pc)
/* A word of code with a breakpoint, and how far the breakpoint has brought the process. */
#define WITH_BREAKPOINT(word) (((word) & ~0xffffffffl) | 0xd4200000l)
enum { BREAKPOINT = 0 };

/* Brings a process that stands at its stop behind it. */
static void pass_stop(pid_t child, struct user_regs_struct *registers) {
    siginfo_t about;
    CHECK(ptrace(PTRACE_GETSIGINFO, child, 0, &about) == 0);
    if (about.si_signo != SIGTRAP || about.si_code != TRAP_BRKPT ||
        (uint32_t)ptrace(PTRACE_PEEKTEXT, child, registers->pc, 0) != 0xd4202460)
        return;
    registers->pc += 4;
    struct iovec place = {registers, sizeof *registers};
    CHECK(ptrace(PTRACE_SETREGSET, child, NT_PRSTATUS, &place) == 0);
}

/* A load that the processor watches until a store: after a step in between, the store fails. Returns how many ends there are of the instructions from such
 * a load to the store, and which; 0 for other instructions. */
static int as_one(pid_t child, unsigned long at, unsigned long *ends) {
    int count = 0;
    for (int i = 0; i < 16; i++, at += 4) {
        uint32_t word = ptrace(PTRACE_PEEKTEXT, child, at, 0);
        if (i == 0 && (word & 0x3fff7c00) != 0x085f7c00)
            return 0;
        /* cbz, cbnz; b.cond */
        if ((word & 0x7e000000) == 0x34000000 || (word & 0xff000010) == 0x54000000)
            ends[count++] = at + ((int32_t)(word << 8) >> 13) * 4l;
        if ((word & 0x3fe07c00) == 0x08007c00) {
            ends[count++] = at + 4;
            return count;
        }
    }
    return 0;
}
