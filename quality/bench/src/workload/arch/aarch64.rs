//! AArch64.

use core::arch::asm;

/// A system call whose number is an immediate.
///
/// # Safety
/// As for the system call `NUMBER`.
#[inline(always)]
pub unsafe fn ring_call<const NUMBER: u32>(arguments: [usize; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller's promise; the kernel preserves every register but x0.
    unsafe {
        asm!(
            "mov x8, {number}",
            "svc 0",
            number = const NUMBER,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            lateout("x8") _,
            options(nostack),
        );
    }
    result
}
