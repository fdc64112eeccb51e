//! x86-64.

pub mod sites;

use core::arch::{asm, global_asm};

// `sites::entry` saves the vector registers that code for the baseline changes, and no wider ones.
#[cfg(all(target_feature = "avx", not(anyring_sanitizer)))]
compile_error!(
    "the preload library is built for x86-64 without AVX (no -C target-cpu=native): a patched call site of the program does not \
     save the vector registers that such code changes"
);

/// The offset of a thread's number (`tid` of `struct pthread`) from the thread pointer in the GNU C library.
pub const THREAD_NUMBER: Option<isize> = Some(0x2d0);

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
            "mov {0}, qword ptr [rip + anyring_preload_note@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) pointer,
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
            // The place of the return address is used for the last argument that came in a register.
            "mov rax, [rsp]",
            "mov [rsp], r9",
            "push r8",
            "push rcx",
            "push rdx",
            "push rsi",
            "mov rsi, rsp",
            "push rax",
            "call {body}",
            "pop rcx",
            "add rsp, 32",
            "mov [rsp], rcx",
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
            "cmp byte ptr [rip + {rings}], 0",
            "jne {fork}",
            "mov byte ptr [rip + {vforked}], 1",
            "jmp qword ptr [rip + {vfork}]",
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
            "sub rsp, 8",
            "call {begins}",
            "add rsp, 8",
            "mov rdi, rdx",
            "jmp rax",
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
            "push rdi",
            "push rsi",
            "push rdx",
            "call {next}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp rax",
            next = sym $next,
        )
    };
}

#[cfg(not(test))]
pub(crate) use {begin_thread, go_on_in, list_arguments, vfork};

/// The number of words of glibc's `ucontext_t` before its signal mask.
pub const CONTEXT_WORDS: usize = 37;
