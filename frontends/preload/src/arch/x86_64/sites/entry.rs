//! The entry that stubs call: it saves what a system call preserves, and enters the engine.

use crate::patch::enter;
use core::arch::global_asm;

unsafe extern "C" {
    fn anyring_preload_entry();
}

/// Returns the address that stubs call.
pub fn entry() -> usize {
    anyring_preload_entry as *const () as usize
}

// The stub has skipped the red zone already. Arguments are in the registers of a system call: the fourth in r10,
// the number in rax; the function expects them in rcx and, as seventh argument, on the stack. The flags are saved by `lahf` and `seto`:
// popping them by `popf` takes as long as a whole no-op through the ring. No instruction here changes the direction flag.
global_asm!(
    ".pushsection .text.anyring_preload_entry,\"ax\",@progbits",
    ".globl anyring_preload_entry",
    ".hidden anyring_preload_entry",
    ".type anyring_preload_entry,@function",
    ".p2align 4",
    "anyring_preload_entry:",
    "push rbp",
    "mov rbp, rsp",
    "push rdi",
    "push rsi",
    "push rdx",
    "push r10",
    "push r8",
    "push r9",
    "mov r11, rax",
    "lahf",
    "seto al",
    "push rax",
    "mov rax, r11",
    "sub rsp, 272",
    "and rsp, -16",
    "movaps [rsp + 16], xmm0",
    "movaps [rsp + 32], xmm1",
    "movaps [rsp + 48], xmm2",
    "movaps [rsp + 64], xmm3",
    "movaps [rsp + 80], xmm4",
    "movaps [rsp + 96], xmm5",
    "movaps [rsp + 112], xmm6",
    "movaps [rsp + 128], xmm7",
    "movaps [rsp + 144], xmm8",
    "movaps [rsp + 160], xmm9",
    "movaps [rsp + 176], xmm10",
    "movaps [rsp + 192], xmm11",
    "movaps [rsp + 208], xmm12",
    "movaps [rsp + 224], xmm13",
    "movaps [rsp + 240], xmm14",
    "movaps [rsp + 256], xmm15",
    "mov rcx, r10",
    "mov [rsp], rax",
    "call {enter}",
    "movaps xmm0, [rsp + 16]",
    "movaps xmm1, [rsp + 32]",
    "movaps xmm2, [rsp + 48]",
    "movaps xmm3, [rsp + 64]",
    "movaps xmm4, [rsp + 80]",
    "movaps xmm5, [rsp + 96]",
    "movaps xmm6, [rsp + 112]",
    "movaps xmm7, [rsp + 128]",
    "movaps xmm8, [rsp + 144]",
    "movaps xmm9, [rsp + 160]",
    "movaps xmm10, [rsp + 176]",
    "movaps xmm11, [rsp + 192]",
    "movaps xmm12, [rsp + 208]",
    "movaps xmm13, [rsp + 224]",
    "movaps xmm14, [rsp + 240]",
    "movaps xmm15, [rsp + 256]",
    "lea rsp, [rbp - 56]",
    "mov r11, rax",
    "pop rax",
    "add al, 127",
    "sahf",
    "mov rax, r11",
    "pop r9",
    "pop r8",
    "pop r10",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rbp",
    "ret",
    ".size anyring_preload_entry, . - anyring_preload_entry",
    ".popsection",
    enter = sym enter,
);
