//! The first instructions of handlers of the program.
//!
//! A handler on an alternate stack hides where the thread was: another signal that came before this handler has blocked it would find a stack pointer
//! outside of the pool, and run its handler in a thread that is inside. So the first instructions find out whether the thread may be inside, or on its
//! way in or out, and block signals then. They keep the context in a register in which the next handler finds it.

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
    /// The code from which on the context is in x19, not in x2.
    fn anyring_inject_front_keeps();
    fn anyring_inject_front_end();
}

/// The signals that are blocked.
static BLOCKED: u64 = ASYNCHRONOUS;

/// The register in which a handler is given its context, and the one that keeps it.
const GIVEN: usize = 2;
const KEPT: usize = 19;

/// The offset of a register in a context.
const fn place(register: usize) -> usize {
    register::FIRST + 8 * register
}

// The comparison with an immediate value takes twelve bits, which may be shifted by twelve.
const _: () = assert!(POOL_BYTES % (1 << 12) == 0 && POOL_BYTES < 1 << 24);

global_asm!(
    ".pushsection .text.anyring_inject_front,\"ax\",@progbits",
    ".irp name, front, front_of_faults, front_keeps, front_end",
    ".globl anyring_inject_\\name",
    ".hidden anyring_inject_\\name",
    ".endr",
    ".type anyring_inject_front,@function",
    ".p2align 4",
    "anyring_inject_front_of_faults:",
    "hint #34", // bti c
    "mov w20, #1",
    "b 8f",
    "anyring_inject_front:",
    "hint #34",
    "mov w20, #0",
    "8: mov x19, x2",
    "anyring_inject_front_keeps:",
    "mov x3, x19",
    // The context in x3, down to one that interrupted no handler here.
    "2: ldr x4, [x3, #{pc}]",
    "adr x5, anyring_inject_front_of_faults",
    "cmp x4, x5",
    "b.lo 6f",
    "adr x5, anyring_inject_front_keeps",
    "cmp x4, x5",
    "b.lo 3f",
    "adr x5, anyring_inject_front_end",
    "cmp x4, x5",
    "b.lo 4f",
    // Another handler of ours has not begun.
    "6: adrp x6, {others}",
    "add x6, x6, #:lo12:{others}",
    "ldp x5, x6, [x6]",
    "cmp x4, x5",
    "b.eq 5f",
    "cmp x4, x6",
    "b.eq 5f",
    // The thread is on its way in or out.
    "adrp x5, anyring_inject_site",
    "add x5, x5, #:lo12:anyring_inject_site",
    "cmp x4, x5",
    "b.lo 7f",
    "adrp x5, anyring_inject_site_end",
    "add x5, x5, #:lo12:anyring_inject_site_end",
    "cmp x4, x5",
    "b.lo 5f",
    // It is inside: an empty stack begins where the slot ends.
    "7: ldr x4, [x3, #{sp}]",
    "sub x4, x4, #1",
    "adrp x5, {pool}",
    "ldr x5, [x5, #:lo12:{pool}]",
    "sub x4, x4, x5",
    "cmp x4, #{pool_bytes}",
    "b.lo 5f",
    "mov x2, x19",
    "cbnz w20, 1f",
    "b {deliver}",
    "1: b {fault}",
    "3: ldr x3, [x3, #{x2}]",
    "b 2b",
    "4: ldr x3, [x3, #{x19}]",
    "b 2b",
    "5: mov x21, x0",
    "mov x22, x1",
    "sub sp, sp, #16",
    "mov x0, #{block}",
    "adrp x1, {blocked}",
    "add x1, x1, #:lo12:{blocked}",
    "mov x2, sp",
    "mov x3, #8",
    "mov x8, #{rt_sigprocmask}",
    "svc #0",
    "mov x0, x21",
    "mov x1, x22",
    "mov x2, x19",
    "ldr x3, [sp], #16",
    "cbnz w20, 1f",
    "b {deliver_blocked}",
    "1: b {fault_blocked}",
    "anyring_inject_front_end:",
    ".size anyring_inject_front, . - anyring_inject_front",
    ".popsection",
    pc = const place(register::PC),
    sp = const place(register::SP),
    x2 = const place(GIVEN),
    x19 = const place(KEPT),
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
    let place = if is_in(start..keeps) { GIVEN } else { KEPT };
    is_in(start..end).then(|| interrupted.register(place) as *mut Context)
}
