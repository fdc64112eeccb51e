//! Call sites: how they look, and what they become.
//!
//! The instruction in front of nearly every `syscall` that enters a ring is `mov $426,%eax`: five bytes, as long as a jump. So
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
//! That the bytes of the `mov` are one, and no operand of another instruction, is proved by decoding what comes before
//! (`length`); where that leaves a doubt, the site is left to the trap. What lies between the two instructions is copied
//! if it is straight and does not depend on where it lies (`decode`). The `syscall` stays where it is: code that jumps to it still traps.
//!
//! Compilers keep the number in another register where a function makes the call in a loop (liburing 2.3). There the jump takes the place
//! of the nearest instruction before that has room for it, and the stub looks at the number, without changing the flags:
//!
//! ```text
//!        movslq 12(%r12),%r9   ->   jmp  stub          stub:  movslq 12(%r12),%r9     (a copy)
//!        mov  %r15d,%eax            mov  %r15d,%eax           mov  %r15d,%eax
//!  call: syscall                    syscall                   lea  -426(%rax),%ecx    (and the same for the others)
//!  next: ...                        ...                       jrcxz enter
//!                                                             jmp  call
//! ```
//!
//! Other threads may run through the site while it changes. One aligned 8-byte store is seen whole,
//! so where the five bytes lie within an aligned word they are written so; where they do not, the
//! site is left to the trap, unless the process has one thread only, as before `main`.
//!
//! Where the kernel answers, and our engine only for rings that the kernel is too old for, the stub looks before its `lea` whether
//! there is such a ring, and else makes the call itself:
//!
//! ```text
//!              movabs $mark,%rcx
//!              movzbl (%rcx),%ecx
//!              jrcxz  own            own:  syscall
//!              lea ...                     jmp  next
//! ```
//!
//! A system call changes rcx anyway, and none of these changes the flags.
//!
//! The entry keeps what a system call keeps: all registers but rax, rcx and r11, the flags, the red zone, the
//! vector registers. Of those it saves xmm0 to xmm15; their upper halves, the AVX-512 registers, the
//! x87 state and MXCSR are safe because nothing compiled here touches them (the memory routines of
//! the C library would: hence our own).

mod code;
mod decode;
mod entry;
mod length;

pub use code::{ADDS_BESIDE_THREADS, FILL, REACH, changed, changes_whole, jump, stub, write};
pub use decode::{for_each_site, has_calls_but, has_other_calls, site_before};

/// Linkers have what is only read in a segment of its own, or before the code.
pub const HAS_DATA_BEHIND_CODE: bool = false;

/// Nothing has to be asked.
pub fn learn() {}

/// How the kernel names what guards pages of code, and what asks for it: nothing does here.
pub fn guard() -> Option<(&'static [u8], u32)> {
    None
}
