//! AArch64: the thread pointer, and the entry of the image.

pub mod front;
pub mod site;

use core::arch::{asm, global_asm};

/// The call `vfork`, where it is one of its own: here it is a `clone`.
pub const VFORK: Option<u32> = None;

/// Does nothing: on every AArch64 processor a program may read the thread pointer.
pub fn learn(_features: usize) {}

/// Returns the calling thread's thread pointer, or 0 if it has none.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

// The compiler's support library has a constructor that calls `getauxval` for the features of the processor. The image runs no
// constructors, so its atomic operations use only instructions that every processor has.
global_asm!(
    ".pushsection .text.anyring_inject_absent,\"ax\",@progbits",
    ".globl getauxval",
    ".hidden getauxval",
    "getauxval:",
    "brk #1",
    ".popsection",
);

global_asm!(
    ".pushsection .text.anyring_inject_entry,\"ax\",@progbits",
    ".globl anyring_inject_entry",
    ".type anyring_inject_entry,@function",
    "anyring_inject_entry:",
    "mov x19, sp",
    "mov x20, x1",
    "mov x3, x2",
    "mov x2, sp",
    "bl {start}",
    "mov sp, x19",
    "mov x16, x20",
    "mov x0, #0",
    "mov x1, #0",
    "mov x2, #0",
    "mov x3, #0",
    "mov x19, #0",
    "mov x20, #0",
    "mov x29, #0",
    "mov x30, #0",
    "br x16",
    ".size anyring_inject_entry, . - anyring_inject_entry",
    ".popsection",
    start = sym crate::start::start,
);
