//! x86-64.

use core::arch::global_asm;

// The stack is the program's as the kernel prepared it; the argument registers hold the tracer's
// process id and the program's first instruction. The program begins with every register zero but the stack pointer, as the
// kernel would have it.
global_asm!(
    ".pushsection .text.anyring_inject_entry,\"ax\",@progbits",
    ".globl anyring_inject_entry",
    ".type anyring_inject_entry,@function",
    "anyring_inject_entry:",
    "mov rbx, rsp",
    "mov rdx, rsp",
    "mov r12, rsi",
    "and rsp, -16",
    "call {start}",
    "mov rsp, rbx",
    "mov [rsp - 8], r12",
    "xor eax, eax",
    "xor ebx, ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor edi, edi",
    "xor ebp, ebp",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "jmp [rsp - 8]",
    ".size anyring_inject_entry, . - anyring_inject_entry",
    ".popsection",
    start = sym crate::start::start,
);
