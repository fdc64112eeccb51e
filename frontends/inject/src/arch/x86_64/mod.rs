//! x86-64.

pub mod front;
pub mod site;

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general as raw;

/// The call `vfork`, where it is one of its own.
pub const VFORK: Option<u32> = Some(raw::__NR_vfork);

/// Whether the instruction that reads the thread pointer may be used.
static READS_POINTER: AtomicBool = AtomicBool::new(false);

/// Takes note of the features that the kernel says the processor has (`AT_HWCAP2`).
pub fn learn(features: usize) {
    const FSGSBASE: usize = 1 << 1;
    READS_POINTER.store(features & FSGSBASE != 0, Ordering::Relaxed);
}

/// The calling thread's pointer; 0 where the thread has none, or it cannot be known.
#[inline]
pub fn thread_pointer() -> usize {
    let mut pointer = 0;
    if READS_POINTER.load(Ordering::Relaxed) {
        // SAFETY: reads a register; the kernel says that it may be read.
        unsafe { asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    }
    pointer
}

// The stack is the program's as the kernel prepared it; the argument registers hold the tracer's
// process id, the program's first instruction, and the block that the stubs of its call sites lie behind, or zero. The program begins with every register zero but the stack pointer, as the
// kernel would have it.
global_asm!(
    ".pushsection .text.anyring_inject_entry,\"ax\",@progbits",
    ".globl anyring_inject_entry",
    ".type anyring_inject_entry,@function",
    "anyring_inject_entry:",
    "mov rbx, rsp",
    "mov rcx, rdx",
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
