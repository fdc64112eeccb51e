//! x86-64: the system call stub, the guarded copy, the time stamp counter.

use core::arch::{asm, global_asm};

// The stub takes the C calling convention with the call number as its seventh argument: six
// arguments move by one register only, and the number is on the stack.
//
// The interruptible call has an eighth argument, the address of a word: it is not made where that is not zero. Between
// its start and its end a signal handler sends the thread on to where it stops.
//
// The guarded copy returns 0, or 1 where a fault handler resumed it at its fault label. Both are
// local to the object, bounded by symbols, and hold no other instruction.
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
    "mov rax, [rsp + 8]",
    "mov r10, rcx",
    "syscall",
    "ret",
    ".hidden anyring_interruptible_syscall6",
    ".globl anyring_interruptible_syscall6",
    ".type anyring_interruptible_syscall6,@function",
    "anyring_interruptible_syscall6:",
    "mov rax, [rsp + 16]",
    "mov r10, rcx",
    ".hidden anyring_interruptible_start",
    ".globl anyring_interruptible_start",
    "anyring_interruptible_start:",
    "cmp dword ptr [rax], 0",
    "jne 2f",
    "mov rax, [rsp + 8]",
    "syscall",
    ".hidden anyring_interruptible_end",
    ".globl anyring_interruptible_end",
    "anyring_interruptible_end:",
    "ret",
    ".hidden anyring_interruptible_stop",
    ".globl anyring_interruptible_stop",
    "anyring_interruptible_stop:",
    "2:",
    "mov rax, -4", // EINTR
    "ret",
    ".hidden anyring_stub_end",
    ".globl anyring_stub_end",
    "anyring_stub_end:",
    ".balign 64",
    ".hidden anyring_guarded_copy",
    ".globl anyring_guarded_copy",
    ".type anyring_guarded_copy,@function",
    "anyring_guarded_copy:",
    // The string instruction takes long to begin: what is short goes by words.
    ".hidden anyring_guarded_start",
    ".globl anyring_guarded_start",
    "anyring_guarded_start:",
    "cmp rdx, 256",
    "ja 3f",
    "2:",
    "cmp rdx, 16",
    "jb 3f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 16",
    "jnz 2b",
    "xor eax, eax",
    "ret",
    "3:",
    // A word in one piece: the other side may be storing it.
    "cmp rdx, 4",
    "jne 4f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "xor eax, eax",
    "ret",
    "4:",
    "mov rcx, rdx",
    "rep movsb",
    ".hidden anyring_guarded_end",
    ".globl anyring_guarded_end",
    "anyring_guarded_end:",
    "xor eax, eax",
    "ret",
    ".hidden anyring_guarded_fault",
    ".globl anyring_guarded_fault",
    "anyring_guarded_fault:",
    "mov eax, 1",
    "ret",
    // How a signal handler of the engine's own returns. Unwinders look at the byte before it.
    "nop",
    ".hidden anyring_signal_return",
    ".globl anyring_signal_return",
    ".type anyring_signal_return,@function",
    "anyring_signal_return:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

/// Where `ucontext_t` has the instruction pointer and the signal mask.
pub const CONTEXT_POINTER: usize = 168;
/// See [`CONTEXT_POINTER`].
pub const CONTEXT_MASK: usize = 296;
/// `SA_RESTORER`: the kernel wants to be told how a handler returns.
pub const RESTORER_FLAG: usize = 0x0400_0000;

unsafe extern "C" {
    fn anyring_syscall6(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, number: usize) -> isize;
    fn anyring_interruptible_syscall6(
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
        number: usize,
        stopped: *const u32,
    ) -> isize;
    fn anyring_signal_return();
    static anyring_interruptible_start: u8;
    static anyring_interruptible_end: u8;
    static anyring_interruptible_stop: u8;
    fn anyring_guarded_copy(destination: *mut u8, source: *const u8, length: usize) -> usize;
    static anyring_stub_start: u8;
    static anyring_stub_end: u8;
    static anyring_guarded_start: u8;
    static anyring_guarded_end: u8;
    static anyring_guarded_fault: u8;
}

/// # Safety
/// As for the system call itself.
#[inline]
pub unsafe fn syscall6(number: usize, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    // SAFETY: passed on to the caller; the stub keeps to the C calling convention.
    unsafe { anyring_syscall6(a, b, c, d, e, f, number) }
}

/// A call that is not made, and answers `-EINTR`, where `stopped` is not zero. A handler that finds the thread in it
/// sends it on to [`interruption_address`].
///
/// # Safety
/// As for the system call itself; `stopped` must be readable.
pub unsafe fn interruptible_syscall6(number: usize, arguments: [usize; 6], stopped: *const u32) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passed on to the caller; the stub keeps to the C calling convention.
    unsafe { anyring_interruptible_syscall6(a, b, c, d, e, f, number, stopped) }
}

/// Where a thread goes on that a signal found in the interruptible call: past what the kernel has not begun.
pub fn interruption_address(instruction_pointer: usize) -> Option<usize> {
    let start = &raw const anyring_interruptible_start as usize;
    let end = &raw const anyring_interruptible_end as usize;
    match instruction_pointer {
        pointer if pointer == end => Some(end),
        pointer => (start..end).contains(&pointer).then_some(&raw const anyring_interruptible_stop as usize),
    }
}

/// The address of what a handler returns to.
pub fn signal_return() -> usize {
    anyring_signal_return as *const () as usize
}

/// Copies between two places of which one may not be mapped; false where it was not.
///
/// # Safety
/// A fault handler must resume at [`resume_address`]; the side that is the engine's own must be valid.
pub(crate) unsafe fn guarded_copy(destination: *mut u8, source: *const u8, length: usize) -> bool {
    // SAFETY: passed on to the caller; a fault ends the copy.
    unsafe { anyring_guarded_copy(destination, source, length) == 0 }
}

/// Where a thread that faulted in the guarded copy goes on.
pub fn resume_address(instruction_pointer: usize) -> Option<usize> {
    let start = &raw const anyring_guarded_start as usize;
    let end = &raw const anyring_guarded_end as usize;
    (start..end).contains(&instruction_pointer).then_some(&raw const anyring_guarded_fault as usize)
}

/// The addresses of the system call stub.
pub fn stub() -> core::ops::Range<usize> {
    (&raw const anyring_stub_start as usize)..(&raw const anyring_stub_end as usize)
}

/// The thread pointer: by the ELF TLS ABI the word at `fs:0` holds its own address.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads one word of the thread's control block, which every threaded program has.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// Where the calling thread's stack is. The address of a local variable does not tell: AddressSanitizer keeps those of a
/// function elsewhere.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// A cheap clock of unknown but constant rate, for telling fast operations from slow ones.
pub fn ticks() -> u64 {
    // SAFETY: `rdtsc` has no side effects.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Roughly how many [`ticks`] a microsecond has; only thresholds depend on it.
pub const fn ticks_per_us() -> u64 {
    2500
}

/// Has the processor fetch the cache line of a place that is soon looked at.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    // SAFETY: a hint, which faults nowhere.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast()) };
}

/// Of a string, memory up to the next multiple of this may be read: where its page ends.
pub const STRING_STEP: usize = PAGE_SIZES[0];

/// Tags stay: where the kernel takes an address with one, it is below [`FAR_END`].
pub const fn untagged(address: u64) -> u64 {
    address
}

/// There is nothing to be remembered: the kernel takes tags from all threads of a process.
pub fn tags_are_used() {}

/// See [`tags_are_used`].
#[inline]
pub fn take_tags() {}

/// See [`tags_are_used`].
pub fn look_for_tags() {}

/// A word of which the kernel says whether memory may end at `end`. It says so of words by where they begin, and lets one
/// begin where memory ends (`access_ok` of a known size, from Linux 6.10).
pub const fn last_word(end: u64) -> u64 {
    (end + 3) & !3
}

/// Where a program's memory ends at the latest with four levels of page tables, the last page left out as the kernel does.
pub const END: u64 = (1 << 47) - 4096;
/// Where it ends at the latest: with five levels of page tables that is below, but on a processor that lets upper bits hold a tag
/// (Linear Address Masking) the kernel takes every address that is not its own.
pub const FAR_END: u64 = 1 << 63;
/// The sizes that pages may have.
pub const PAGE_SIZES: &[usize] = &[4096];
/// The name of the kernel's function for clocks.
pub const VDSO_CLOCK: &core::ffi::CStr = c"__vdso_clock_gettime";
