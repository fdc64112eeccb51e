//! x86-64.

pub mod sites;

use core::arch::{asm, global_asm};

// `sites::entry` saves the vector registers that code for the baseline changes, and no wider ones.
#[cfg(all(target_feature = "avx", not(anyring_sanitizer)))]
compile_error!(
    "the preload library is built for x86-64 without AVX (no -C target-cpu=native): a patched call site of the program does not \
     save the vector registers that such code changes"
);

unsafe extern "C" {
    /// A system call, or `-EINTR` where `*interrupted` is set; see [`crate::inside::sleep`].
    pub fn anyring_preload_sleep(number: usize, arguments: *const usize, interrupted: *const bool) -> isize;

    /// Where it looks at `*interrupted`.
    pub fn anyring_preload_sleep_start();
    /// Behind its `syscall`.
    pub fn anyring_preload_sleep_end();
    /// Where it returns `-EINTR`.
    pub fn anyring_preload_sleep_interrupted();
}

global_asm!(
    ".pushsection .text.anyring_preload_sleep,\"ax\",@progbits",
    ".globl anyring_preload_sleep",
    ".hidden anyring_preload_sleep",
    ".type anyring_preload_sleep,@function",
    ".globl anyring_preload_sleep_start",
    ".hidden anyring_preload_sleep_start",
    ".globl anyring_preload_sleep_end",
    ".hidden anyring_preload_sleep_end",
    ".globl anyring_preload_sleep_interrupted",
    ".hidden anyring_preload_sleep_interrupted",
    "anyring_preload_sleep:",
    // A thread may end in the call: what unwinds it comes by.
    ".cfi_startproc",
    "mov rcx, rdx",
    "mov rax, rdi",
    "mov r11, rsi",
    "mov rdi, [r11]",
    "mov rsi, [r11 + 8]",
    "mov rdx, [r11 + 16]",
    "mov r10, [r11 + 24]",
    "mov r8, [r11 + 32]",
    "mov r9, [r11 + 40]",
    "anyring_preload_sleep_start:",
    "cmp byte ptr [rcx], 0",
    "jne anyring_preload_sleep_interrupted",
    "syscall",
    "anyring_preload_sleep_end:",
    "ret",
    "anyring_preload_sleep_interrupted:",
    "mov rax, -4",
    "ret",
    ".cfi_endproc",
    ".size anyring_preload_sleep, . - anyring_preload_sleep",
    ".popsection",
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

#[cfg(not(test))]
pub(crate) use {begin_thread, list_arguments, vfork};

/// Words of glibc's `ucontext_t` before its signal mask.
pub const CONTEXT_WORDS: usize = 37;
