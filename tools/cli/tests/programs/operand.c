/* A ring call whose number comes from memory: the bytes of the store look like a call site, but are not. */
#include "ring.h"

int main(void) {
    long result;
    __asm__ volatile("movl $426, -72(%%rsp)\n"
                     "movl -72(%%rsp), %%eax\n"
                     "movl $-1, %%edi\n"
                     "xorl %%esi, %%esi\n"
                     "xorl %%edx, %%edx\n"
                     "xorl %%r10d, %%r10d\n"
                     "syscall"
                     : "=a"(result)
                     :
                     : "rdi", "rsi", "rdx", "r10", "rcx", "r11", "memory");
    printf("no descriptor: %ld\n", result);
    return 0;
}
