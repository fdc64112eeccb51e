//! The first instructions of handlers of the program.
//!
//! A handler on an alternate stack hides that its thread is inside the engine: if another signal comes before the handler has blocked it, the stack pointer
//! is outside the pool, and that signal's handler would run inside. So the first instructions find out whether the thread may be inside, or on its way in
//! or out, and block signals then. They keep the context in a register in which the next handler finds it.

use crate::patched::pool::{POOL, POOL_BYTES};
use anyring_runtime::sys::ASYNCHRONOUS;
use anyring_trap::arch::{Context, register};
use anyring_trap::signals::{self, OTHERS};
use core::arch::global_asm;
use core::ops::Range;
use linux_raw_sys::general as raw;

unsafe extern "C" {
    fn anyring_inject_front();
    /// The function for SIGSEGV and SIGBUS, right before the other.
    fn anyring_inject_front_of_faults();
    /// The code from which on the context is in rbx, not in rdx.
    fn anyring_inject_front_keeps();
    fn anyring_inject_front_end();
}

/// The signals that are blocked.
static BLOCKED: u64 = ASYNCHRONOUS;

/// The offset of a [`register`] in a context.
const fn place(register: usize) -> usize {
    40 + 8 * register
}

global_asm!(
    ".pushsection .text.anyring_inject_front,\"ax\",@progbits",
    ".irp name, front, front_of_faults, front_keeps, front_end",
    ".globl anyring_inject_\\name",
    ".hidden anyring_inject_\\name",
    ".endr",
    ".type anyring_inject_front,@function",
    ".p2align 4",
    "anyring_inject_front_of_faults:",
    "endbr64",
    "mov r14d, 1",
    "jmp 8f",
    "anyring_inject_front:",
    "endbr64",
    "xor r14d, r14d",
    "8: mov rbx, rdx",
    "anyring_inject_front_keeps:",
    "mov rcx, rbx",
    // rcx: the context; from a handler in this code to the one that it has interrupted.
    "2: mov rax, [rcx + {rip}]",
    "lea r8, [rip + anyring_inject_front_of_faults]",
    "cmp rax, r8",
    "jb 6f",
    "lea r8, [rip + anyring_inject_front_keeps]",
    "cmp rax, r8",
    "jb 3f",
    "lea r8, [rip + anyring_inject_front_end]",
    "cmp rax, r8",
    "jb 4f",
    // Another handler of ours has not begun.
    "6: cmp rax, [rip + {others}]",
    "je 5f",
    "cmp rax, [rip + {others} + 8]",
    "je 5f",
    // The thread is on its way in or out.
    "lea r8, [rip + anyring_inject_site]",
    "cmp rax, r8",
    "jb 7f",
    "lea r8, [rip + anyring_inject_site_end]",
    "cmp rax, r8",
    "jb 5f",
    // It is inside: an empty stack begins where the slot ends.
    "7: mov rax, [rcx + {rsp}]",
    "sub rax, 1",
    "sub rax, [rip + {pool}]",
    "cmp rax, {pool_bytes}",
    "jb 5f",
    "mov rdx, rbx",
    "test r14d, r14d",
    "jz {deliver}",
    "jmp {fault}",
    "3: mov rcx, [rcx + {rdx}]",
    "jmp 2b",
    "4: mov rcx, [rcx + {rbx}]",
    "jmp 2b",
    "5: mov r12, rdi",
    "mov r13, rsi",
    "sub rsp, 16",
    "mov edi, {block}",
    "lea rsi, [rip + {blocked}]",
    "mov rdx, rsp",
    "mov r10d, 8",
    "mov eax, {rt_sigprocmask}",
    "syscall",
    "mov rdi, r12",
    "mov rsi, r13",
    "mov rdx, rbx",
    "mov rcx, [rsp]",
    "add rsp, 16",
    "test r14d, r14d",
    "jz {deliver_blocked}",
    "jmp {fault_blocked}",
    "anyring_inject_front_end:",
    ".size anyring_inject_front, . - anyring_inject_front",
    ".popsection",
    rip = const place(register::RIP),
    rsp = const place(register::RSP),
    rdx = const place(register::RDX),
    rbx = const place(register::RBX),
    others = sym OTHERS,
    pool = sym POOL,
    pool_bytes = const POOL_BYTES,
    block = const raw::SIG_BLOCK,
    blocked = sym BLOCKED,
    rt_sigprocmask = const raw::__NR_rt_sigprocmask,
    deliver = sym signals::deliver,
    deliver_blocked = sym signals::deliver_blocked,
    fault = sym signals::fault,
    fault_blocked = sym signals::fault_blocked,
);

/// The address that the kernel calls.
pub fn address() -> usize {
    anyring_inject_front as *const () as usize
}

/// The address that the kernel calls for SIGSEGV and SIGBUS.
pub fn address_for_faults() -> usize {
    anyring_inject_front_of_faults as *const () as usize
}

/// Returns the context of a handler that was interrupted in this code.
pub fn context_of(interrupted: &Context) -> Option<*mut Context> {
    let [start, keeps, end] =
        [anyring_inject_front_of_faults, anyring_inject_front_keeps, anyring_inject_front_end]
            .map(|place: unsafe extern "C" fn()| place as *const () as usize);
    let is_in = |code: Range<usize>| code.contains(&interrupted.instruction_pointer());
    let place = if is_in(start..keeps) { register::RDX } else { register::RBX };
    is_in(start..end).then(|| interrupted.register(place) as *mut Context)
}
