//! x86-64.

pub mod sites;

use core::arch::{asm, global_asm};

// `sites::entry` saves the vector registers that code for the baseline changes, and no wider ones.
#[cfg(all(target_feature = "avx", not(anyring_sanitizer)))]
compile_error!(
    "the preload library is built for x86-64 without AVX (no -C target-cpu=native): a patched call site of the program does not \
     save the vector registers that such code changes"
);

/// Where the GNU C library keeps a thread's number (`tid` of `struct pthread`), behind the thread pointer.
pub const THREAD_NUMBER: Option<isize> = Some(0x2d0);

/// Bytes of thread-local storage for [`crate::inside`].
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

/// The calling thread's [`NOTE_BYTES`].
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

/// The body of a function whose arguments have no fixed number: makes a list of all behind the first, by putting those that
/// came in registers before those on the stack, and calls `$body` with the first and it.
#[cfg(not(test))]
macro_rules! list_arguments {
    ($body:ident) => {
        core::arch::naked_asm!(
            // The return address makes room for the last that came in a register.
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

/// The body of `vfork`: goes on in the function whose address `$vfork` holds, and notes so in `$vforked`; where there are
/// `$rings`, in `$fork`. No frame of ours may lie between the two returns.
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

/// The body of a thread's first function: goes on in the function, and with the argument, that `$begins` answers to what the thread
/// was given. No frame of ours may lie below the program's: a C library that cancels a thread unwinds all.
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

/// The body of a function of three arguments at most, that goes on in the function whose address `$next` answers: that function sees its caller.
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

/// Words of glibc's `ucontext_t` before its signal mask.
pub const CONTEXT_WORDS: usize = 37;
