//! AArch64.

pub mod sites;

use core::arch::{asm, global_asm};

// A constructor of the compiler's library queries the atomic operations of the processor by `getauxval`. A process without a C
// library lacks that function: there, only a dynamic linker has loaded this library.
#[cfg(not(test))]
global_asm!(
    ".pushsection .text.anyring_preload_absent,\"ax\",@progbits",
    ".globl getauxval",
    ".hidden getauxval",
    "getauxval: b {ask}",
    ".popsection",
    ask = sym ask,
);

/// `getauxval(3)`, or 0.
#[cfg(not(test))]
extern "C" fn ask(name: core::ffi::c_ulong) -> core::ffi::c_ulong {
    crate::start::auxiliary(name).unwrap_or(0) as core::ffi::c_ulong
}

/// The offset of a thread's number from the thread pointer in the C library. Unknown on this architecture: the number is in a
/// structure before the thread pointer, whose length differs from version to version.
pub const THREAD_NUMBER: Option<isize> = None;

/// The size in bytes of the thread-local storage for [`crate::inside`].
pub const NOTE_BYTES: usize = 24;

global_asm!(
    ".pushsection .tbss.anyring_preload_note,\"awT\",@nobits",
    ".globl anyring_preload_note",
    ".hidden anyring_preload_note",
    ".type anyring_preload_note,@object",
    ".p2align 3",
    "anyring_preload_note: .zero 24",
    ".size anyring_preload_note, 24",
    ".popsection",
);

/// Returns the calling thread's [`NOTE_BYTES`].
#[inline]
pub fn note() -> *mut u8 {
    let pointer: *mut u8;
    // SAFETY: computes an address only.
    unsafe {
        asm!(
            "adrp {0}, :gottprel:anyring_preload_note",
            "ldr {0}, [{0}, #:gottprel_lo12:anyring_preload_note]",
            "mrs {1}, tpidr_el0",
            "add {0}, {0}, {1}",
            out(reg) pointer,
            out(reg) _,
            options(nostack, readonly, pure),
        );
    }
    pointer
}

/// The body of a variadic function: makes a list of all arguments but the first, by putting those that came in registers
/// before those on the stack, and calls `$body` with the first argument and the list.
#[cfg(not(test))]
macro_rules! list_arguments {
    ($body:ident) => {
        core::arch::naked_asm!(
            "sub sp, sp, #80",
            "stp x29, x30, [sp]",
            "mov x29, sp",
            "stp x1, x2, [sp, #24]",
            "stp x3, x4, [sp, #40]",
            "stp x5, x6, [sp, #56]",
            "str x7, [sp, #72]",
            "add x1, sp, #24",
            "bl {body}",
            "ldp x29, x30, [sp]",
            "add sp, sp, #80",
            "ret",
            body = sym $body,
        )
    };
}

/// The body of `vfork`: sets `$vforked`, and jumps to the function whose address is in `$vfork`; if `$rings` is set,
/// jumps to `$fork` instead. No frame of this library may exist between the two returns of the call.
#[cfg(not(test))]
macro_rules! vfork {
    ($vfork:path, $vforked:path, unless $rings:path, $fork:path) => {
        core::arch::naked_asm!(
            "adrp x9, {rings}",
            "ldrb w9, [x9, #:lo12:{rings}]",
            "cbnz w9, 1f",
            "adrp x9, {vforked}",
            "mov w10, #1",
            "strb w10, [x9, #:lo12:{vforked}]",
            "adrp x9, {vfork}",
            "ldr x9, [x9, #:lo12:{vfork}]",
            "br x9",
            "1: b {fork}",
            rings = sym $rings,
            fork = sym $fork,
            vforked = sym $vforked,
            vfork = sym $vfork,
        )
    };
}

/// The body of a thread's first function: calls `$begins` with the data for the thread, and jumps to the function that it returns,
/// with the argument that it returns. No frame of this library may be below the program's, because a C library that cancels a
/// thread unwinds all frames.
#[cfg(not(test))]
macro_rules! begin_thread {
    ($begins:path) => {
        core::arch::naked_asm!(
            "hint #34", // bti c
            "stp x29, x30, [sp, #-16]!",
            "mov x29, sp",
            "bl {begins}",
            "ldp x29, x30, [sp], #16",
            "mov x16, x0",
            "mov x0, x1",
            "br x16",
            begins = sym $begins,
        )
    };
}

/// The body of a function of three arguments at most: calls `$next`, and jumps to the function that it returns, so that this one sees the
/// original caller.
#[cfg(not(test))]
macro_rules! go_on_in {
    ($next:path) => {
        core::arch::naked_asm!(
            "hint #34", // bti c
            "stp x29, x30, [sp, #-48]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "bl {next}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            "br x16",
            next = sym $next,
        )
    };
}

#[cfg(not(test))]
pub(crate) use {begin_thread, go_on_in, list_arguments, vfork};

/// The number of words of glibc's `ucontext_t` before its signal mask.
pub const CONTEXT_WORDS: usize = 5;
