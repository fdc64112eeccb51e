/* A function that keeps the number of its calls in a register, as in liburing 2.3. */
#include "ring.h"

#ifdef __x86_64__
/* Makes `count` calls; returns the last result. If `number` is none of the three, the kernel answers. */
long held(long number, long fd, long submitted, long count);
__asm__(".p2align 3\n"
        "held:\n"
        "push %rbp\n"
        "push %rbx\n"
        "push %r15\n"
        "mov $426,%r15d\n"
        "test %rdi,%rdi\n"
        "je 0f\n"
        "mov %edi,%r15d\n"
        "0: mov %rcx,%rbx\n"
        "mov %rsi,%rdi\n"
        "mov %rdx,%rbp\n"
        ".p2align 3\n"
        "1: xor %edx,%edx\n"
        "mov %rbp,%rsi\n"
        "xor %r10d,%r10d\n"
        "xor %r8d,%r8d\n"
        "stc\n"
        ".p2align 3\n"
        "mov $0,%r9d\n"
        "mov %r15d,%eax\n"
        "syscall\n"
        /* A system call preserves the flags. */
        "jnc 2f\n"
        "dec %rbx\n"
        "jne 1b\n"
        "2: pop %r15\n"
        "pop %rbx\n"
        "pop %rbp\n"
        "ret\n");
#else
static long held(long number, long fd, long submitted, long count) {
    long result = 0;
    while (count--)
        result = call_by_instruction(number ? number : SYS_io_uring_enter, fd, submitted, 0, 0, 0, 0);
    return result;
}
#endif

int main(void) {
    struct ring ring;
    CHECK(ring_open(&ring, 64, 0) == 0);
    for (int entry = 0; entry < 20; entry++)
        ring_entry(&ring, IORING_OP_NOP, entry);
    printf("submitted: %ld\n", held(0, ring.fd, 1, 20));
    int completed = 0;
    while (ring_peek(&ring)) {
        ring_seen(&ring);
        completed++;
    }
    printf("completed: %d\n", completed);
    printf("another call: %d\n", held(SYS_getppid, 0, 0, 5) == getppid());
    printf("none: %ld\n", held(SYS_close, -1, 0, 5));
    return 0;
}
