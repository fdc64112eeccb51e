//! AArch64.

mod memory;

use core::arch::{asm, global_asm};
use linux_raw_sys::general as raw;

/// The address at which front ends that trap calls map a page ([`crate::process::others_answer`]); low enough for 39-bit
/// address spaces, and below 64 GiB, where the shadow memory of the address sanitizer begins.
pub const STUB_ADDRESS: usize = 0xe_5500_0000;

/// The calls that replace the descriptor in their second argument by a duplicate of another.
pub const REPLACING: &[u32] = &[raw::__NR_dup3];

/// The calls that make a child process and do nothing else.
pub const FORKS: &[u32] = &[];

/// Makes a system call, inline in the caller: see [`crate::sys`].
///
/// # Safety
/// As for the call that `number` names.
#[inline(always)]
pub unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel clobbers x0 only; the rest is the caller's promise.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1],
            in("x2") a[2],
            in("x3") a[3],
            in("x4") a[4],
            in("x5") a[5],
            options(nostack),
        );
    }
    result
}

/// Makes a request to valgrind ([`crate::valgrind`]): its number, and its arguments. Returns 0 without valgrind: the instructions
/// leave all registers as they are.
#[inline(never)]
pub fn ask_valgrind(request: &[usize; 6]) -> usize {
    let mut answer = 0_usize;
    // SAFETY: rotates x12 by 128 bits in all; the caller is responsible for the request's effect on memory.
    unsafe {
        asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            inout("x3") answer,
            in("x4") request,
            options(nostack),
        );
    }
    answer
}

/// Returns the instruction, stack and frame pointers of the calling function, and its link register.
#[inline(always)]
pub fn pointers() -> [usize; 4] {
    let (pc, sp, fp, lr);
    // SAFETY: only reads registers.
    unsafe {
        asm!(
            // The link register first: an output may be assigned to it.
            "mov {}, x30", "adr {}, .", "mov {}, sp", "mov {}, x29",
            out(reg) lr, out(reg) pc, out(reg) sp, out(reg) fp, options(nomem, nostack),
        );
    }
    [pc, sp, fp, lr]
}

unsafe extern "C" {
    /// `clone(2)` for a thread; the words at `stack` are its entry and its argument.
    pub fn anyring_runtime_clone(
        flags: usize,
        stack: *mut usize,
        thread_id: *mut u32,
        thread_block: *mut u8,
    ) -> isize;
}

global_asm!(
    ".pushsection .text.anyring_runtime_clone,\"ax\",@progbits",
    ".globl anyring_runtime_clone",
    ".hidden anyring_runtime_clone",
    ".type anyring_runtime_clone,@function",
    "anyring_runtime_clone:",
    "mov x4, x2", // the word to clear at the end: the same as the one to set at the start
    "mov x8, #220",
    "svc #0",
    "cbnz x0, 1f",
    "mov x29, #0",
    "mov x30, #0",
    "ldp x9, x0, [sp], #16",
    "blr x9",
    "brk #1",
    "1: ret",
    ".size anyring_runtime_clone, . - anyring_runtime_clone",
    ".popsection",
);
