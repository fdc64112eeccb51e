//! x86-64.

use core::arch::asm;

/// A system call whose number is an immediate.
///
/// # Safety
/// As for the system call `NUMBER`.
#[inline(always)]
pub unsafe fn ring_call<const NUMBER: u32>(arguments: [usize; 6]) -> i64 {
    let result: i64;
    // SAFETY: the caller's promise; the kernel clobbers only %rcx and %r11.
    unsafe {
        asm!(
            "mov eax, {number}",
            "syscall",
            number = const NUMBER,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rax") result,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
