//! x86-64.

mod memory;

use core::arch::{asm, global_asm};
use linux_raw_sys::general as raw;

/// The address at which front ends that trap calls map a page ([`crate::process::others_answer`]): far from where the
/// kernel maps programs, libraries and stacks. Under a sanitizer, the run-time leaves a different range to the program.
pub const STUB_ADDRESS: usize = if cfg!(anyring_sanitizer) { 0x5900_0000_0000 } else { 0x7e95_0000_0000 };

/// The calls that replace the descriptor in their second argument by a duplicate of another.
pub const REPLACING: &[u32] = &[raw::__NR_dup2, raw::__NR_dup3];

/// The calls that make a child process and do nothing else.
pub const FORKS: &[u32] = &[raw::__NR_fork, raw::__NR_vfork];

/// Makes a system call, inline in the caller: see [`crate::sys`].
///
/// # Safety
/// As for the call that `number` names.
#[inline(always)]
pub unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel clobbers rax, rcx and r11 only; the rest is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            lateout("r11") _,
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
    // SAFETY: rotates rdi by 128 bits in all; the caller is responsible for the request's effect on memory.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdx") answer,
            in("rax") request,
            options(nostack),
        );
    }
    answer
}

/// Returns the instruction, stack and frame pointers of the calling function; x86-64 has no link register, so the last word is 0.
#[inline(always)]
pub fn pointers() -> [usize; 4] {
    let (ip, sp, bp);
    // SAFETY: only reads registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) bp, options(nomem, nostack));
    }
    [ip, sp, bp, 0]
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
    "mov r8, rcx",  // the thread block
    "mov r10, rdx", // the word to clear at the end: the same as the one to set at the start
    "mov eax, 56",
    "syscall",
    "test eax, eax",
    "jnz 1f",
    "xor ebp, ebp",
    "pop rax",
    "pop rdi",
    "call rax",
    "ud2",
    "1: ret",
    ".size anyring_runtime_clone, . - anyring_runtime_clone",
    ".popsection",
);
