//! aarch64: the system call stub, the guarded copy, the virtual counter.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general::__NR_prctl;

use super::syscall6;

// As on x86-64: one stub, one interruptible call and one guarded copy, each bounded by symbols. The
// call number is the seventh argument; the address of the interruptible call's word is the eighth.
global_asm!(
    ".pushsection .text.anyring_stub,\"ax\",@progbits",
    ".balign 64",
    ".hidden anyring_stub_start",
    ".globl anyring_stub_start",
    "anyring_stub_start:",
    ".hidden anyring_syscall6",
    ".globl anyring_syscall6",
    ".type anyring_syscall6,@function",
    "anyring_syscall6:",
    "mov x8, x6",
    "svc #0",
    "ret",
    ".hidden anyring_interruptible_syscall6",
    ".globl anyring_interruptible_syscall6",
    ".type anyring_interruptible_syscall6,@function",
    "anyring_interruptible_syscall6:",
    "mov x8, x6",
    ".hidden anyring_interruptible_start",
    ".globl anyring_interruptible_start",
    "anyring_interruptible_start:",
    "ldr w9, [x7]",
    "cbnz w9, 2f",
    "svc #0",
    ".hidden anyring_interruptible_end",
    ".globl anyring_interruptible_end",
    "anyring_interruptible_end:",
    "ret",
    ".hidden anyring_interruptible_stop",
    ".globl anyring_interruptible_stop",
    "anyring_interruptible_stop:",
    "2:",
    "mov x0, #-4", // EINTR
    "ret",
    ".hidden anyring_stub_end",
    ".globl anyring_stub_end",
    "anyring_stub_end:",
    ".balign 64",
    ".hidden anyring_guarded_copy",
    ".globl anyring_guarded_copy",
    ".type anyring_guarded_copy,@function",
    "anyring_guarded_copy:",
    "cbz x2, 2f",
    ".hidden anyring_guarded_start",
    ".globl anyring_guarded_start",
    "anyring_guarded_start:",
    // A word is copied in one access, because another thread may store it at the same time.
    "cmp x2, #4",
    "b.ne 1f",
    "ldr w3, [x1]",
    "str w3, [x0]",
    "b 2f",
    "1:",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 1b",
    ".hidden anyring_guarded_end",
    ".globl anyring_guarded_end",
    "anyring_guarded_end:",
    "2:",
    "mov x0, #0",
    "ret",
    ".hidden anyring_guarded_fault",
    ".globl anyring_guarded_fault",
    "anyring_guarded_fault:",
    "mov x0, #1",
    "ret",
    // The return from a signal handler of the engine: `rt_sigreturn`.
    ".hidden anyring_signal_return",
    ".globl anyring_signal_return",
    ".type anyring_signal_return,@function",
    "anyring_signal_return:",
    "mov x8, #139",
    "svc #0",
    ".popsection",
);

/// Offset of the instruction pointer in `ucontext_t`.
pub const CONTEXT_POINTER: usize = 440;
/// Offset of the signal mask in `ucontext_t`.
pub const CONTEXT_MASK: usize = 40;
/// `SA_RESTORER`: the kernel returns from the handler through the given function.
pub const RESTORER_FLAG: usize = 0x0400_0000;

/// Returns the thread pointer.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack)) };
    pointer
}

/// Returns the calling thread's stack pointer. The address of a local variable would not do: AddressSanitizer may place
/// locals elsewhere.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack)) };
    pointer
}

/// Reads a cheap clock of constant rate, to tell fast operations from slow ones.
pub fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
    ticks
}

/// Returns the number of [`ticks`] per microsecond.
pub fn ticks_per_us() -> u64 {
    let frequency: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack)) };
    frequency / 1_000_000
}

/// Prefetches the cache line at an address that will be read soon.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    // SAFETY: a hint, which faults nowhere.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) place, options(nostack, preserves_flags, readonly)) };
}

/// True once a request contained an address with a tag. Relaxed: a thread that does such a request for another thread
/// got it through a lock, and calls [`take_tags`] after that.
static TAGS: AtomicBool = AtomicBool::new(false);

/// A string may be read up to the next multiple of this: memory with the same tag may end there (MTE).
pub const STRING_STEP: usize = 16;

/// Removes the tag in the upper byte of an address, as the kernel's `untagged_addr`. The kernel accepts tags from threads that have enabled
/// them by `PR_SET_TAGGED_ADDR_CTRL`, and from threads created by these later.
pub const fn untagged(address: u64) -> u64 {
    ((address << 8) as i64 >> 8) as u64
}

/// Notes that the kernel has accepted an address with a tag from this thread.
#[cold]
pub fn tags_are_used() {
    TAGS.store(true, Ordering::Relaxed);
}

/// Enables tagged addresses in the calling thread, a thread of the engine, if requests have used any: the thread may be
/// older than the program's own enabling. Without the tags the kernel could not compare them with the memory's tags.
#[inline]
pub fn take_tags() {
    if TAGS.load(Ordering::Relaxed) {
        ask_for_tags();
    }
}

// From <linux/prctl.h>.
const PR_SET_TAGGED_ADDR_CTRL: usize = 55;
const PR_GET_TAGGED_ADDR_CTRL: usize = 56;
const PR_TAGGED_ADDR_ENABLE: usize = 1;

fn control_tags(option: usize, value: usize) -> isize {
    // SAFETY: touches no memory.
    unsafe { syscall6(__NR_prctl as usize, option, value, 0, 0, 0, 0) }
}

/// Notes that requests will contain addresses with tags, if the kernel accepts tags from the calling thread, a thread of the
/// program.
pub fn look_for_tags() {
    if TAGS.load(Ordering::Relaxed) {
        return;
    }
    let state = control_tags(PR_GET_TAGGED_ADDR_CTRL, 0);
    if state >= 0 && state as usize & PR_TAGGED_ADDR_ENABLE != 0 {
        tags_are_used();
    }
}

#[cold]
fn ask_for_tags() {
    // The mode of the tag checks is not changed.
    let state = control_tags(PR_GET_TAGGED_ADDR_CTRL, 0);
    if state >= 0 && state as usize & PR_TAGGED_ADDR_ENABLE == 0 {
        // If the kernel refuses this, it refuses the addresses, too.
        let _ = control_tags(PR_SET_TAGGED_ADDR_CTRL, state as usize | PR_TAGGED_ADDR_ENABLE);
    }
}

/// Returns the address of a word for which the kernel tells whether memory may end at `end`.
pub const fn last_word(end: u64) -> u64 {
    (end - 1) & !3
}

/// The end of a program's address space with 48-bit addresses, as in nearly every kernel. With fewer bits, the kernel refuses the
/// addresses between later.
pub const END: u64 = 1 << 48;
/// The end of the address space with the largest addresses.
pub const FAR_END: u64 = 1 << 52;
/// Possible page sizes: a kernel is built for one of them.
pub const PAGE_SIZES: &[usize] = &[4096, 16 << 10, 64 << 10];
/// Name of the clock function in the vDSO.
pub const VDSO_CLOCK: &core::ffi::CStr = c"__kernel_clock_gettime";
