/* Makes a call by the program's own instruction; returns a negative errno, as the kernel does. */
static inline __attribute__((always_inline)) long call_by_instruction(long number, long a, long b, long c, long d, long e,
                                                                      long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* The restorer of a handler that is set by the call's number, and the flag that it is there. */
static __attribute__((naked, unused)) void restore_here(void) { __asm__("mov $15, %eax\n syscall"); }
#define RESTORE 0x04000000, restore_here
