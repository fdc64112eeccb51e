//! Call sites: their form, and how they are patched.
//!
//! In front of nearly every `syscall` that enters a ring, or closes a descriptor, there is a `mov` of the number to eax. It has five bytes, as a
//! jump has. So
//!
//! ```text
//!        mov  $426,%eax   ->       jmp  stub         stub: mov  $426,%eax
//!        xor  %r9d,%r9d            xor  %r9d,%r9d          xor  %r9d,%r9d     (a copy)
//!        syscall                   syscall                 lea  -128(%rsp),%rsp
//!  next: ...                 next: ...                     call entry
//!                                                          lea  128(%rsp),%rsp
//!                                                          jmp  next
//! ```
//!
//! Decoding the code before the `mov` (`length`) proves that its bytes are an instruction, and not an operand of another one. In
//! case of doubt, the site is left to the trap. The code between the two instructions is copied if it is
//! straight-line and position-independent (`decode`). The `syscall` stays in place: code that jumps to it still traps.
//!
//! Compilers keep the number in another register if a function makes the call in a loop (liburing 2.3). There the jump replaces the nearest
//! preceding instruction that is long enough, and the stub tests the number, without a change of the flags:
//!
//! ```text
//!        movslq 12(%r12),%r9   ->   jmp  stub          stub:  movslq 12(%r12),%r9     (a copy)
//!        mov  %r15d,%eax            mov  %r15d,%eax           mov  %r15d,%eax
//!  call: syscall                    syscall                   lea  -426(%rax),%ecx    (and the same for the others)
//!  next: ...                        ...                       jrcxz enter
//!                                                             jmp  call
//! ```
//!
//! Other threads may execute the site while it changes. An aligned 8-byte store is visible as a whole, so the jump is
//! written by such a store if its five bytes lie within an aligned word. Otherwise the
//! site is left to the trap, unless the process has only one thread, as before `main`.
//!
//! If the kernel answers, and the user engine only has rings that the kernel is too old for, the stub tests before its `lea` whether
//! there is such a ring, and otherwise makes the call itself:
//!
//! ```text
//!              movabs $mark,%rcx
//!              movzbl (%rcx),%ecx
//!              jrcxz  own            own:  syscall
//!              lea ...                     jmp  next
//! ```
//!
//! A system call changes rcx anyway, and none of these instructions changes the flags.
//!
//! The entry preserves what a system call preserves: all registers but rax, rcx and r11, the flags, the red zone, the
//! vector registers. It saves xmm0 to xmm15. Their upper halves, the AVX-512 registers, the
//! x87 state and MXCSR are safe because no code compiled here touches them (the memory routines of
//! the C library would, so this library has its own).

mod code;
mod decode;
mod entry;
mod held;
mod length;

pub use code::{ADDS_BESIDE_THREADS, FILL, REACH, changed, changes_whole, jump, stub, write};
pub use decode::{for_each_site, has_calls_but, has_other_calls, site_before};

/// False: linkers place read-only data in a segment of its own, or before the code.
pub const HAS_DATA_BEHIND_CODE: bool = false;

/// Does nothing: this architecture has nothing to learn.
pub fn learn() {}

/// Returns `None`: pages of code are not guarded on this architecture.
pub fn guard() -> Option<(&'static [u8], u32)> {
    None
}
