//! x86-64: the system call stub, the guarded copy, the time stamp counter.

use core::arch::{asm, global_asm};

// The stub has the C calling convention with the call number as seventh argument: so only one of
// the six arguments changes its register, and the number is on the stack.
//
// The interruptible call has an eighth argument, the address of a word: the call is not made if the word is not zero.
// A signal handler that interrupts the thread between its start and end resumes it at its stop label.
//
// The guarded copy returns 0, or 1 if a fault handler resumed it at its fault label. Stub and copy
// are local to the object, bounded by symbols, and contain no other instructions.
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
    // The string instruction starts slowly: short copies go by 64 bytes at a time, and the rest by 16.
    ".hidden anyring_guarded_start",
    ".globl anyring_guarded_start",
    "anyring_guarded_start:",
    "cmp rdx, 256",
    "ja 3f",
    "cmp rdx, 64",
    "jb 2f",
    "5:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 5b",
    "2:",
    "cmp rdx, 16",
    "jb 3f",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rdx, 16",
    "jmp 2b",
    "3:",
    "test rdx, rdx",
    "jz 6f",
    // A word is copied in one access, because another thread may store it at the same time.
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
    "6:",
    "xor eax, eax",
    "ret",
    ".hidden anyring_guarded_fault",
    ".globl anyring_guarded_fault",
    "anyring_guarded_fault:",
    "mov eax, 1",
    "ret",
    // The return from a signal handler of the engine: `rt_sigreturn`. Unwinders read the byte before it.
    "nop",
    ".hidden anyring_signal_return",
    ".globl anyring_signal_return",
    ".type anyring_signal_return,@function",
    "anyring_signal_return:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

/// Offset of the instruction pointer in `ucontext_t`.
pub const CONTEXT_POINTER: usize = 168;
/// Offset of the signal mask in `ucontext_t`.
pub const CONTEXT_MASK: usize = 296;
/// `SA_RESTORER`: the kernel requires a function that returns from the handler.
pub const RESTORER_FLAG: usize = 0x0400_0000;

/// Returns the thread pointer: by the ELF TLS ABI the word at `fs:0` holds its own address.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads one word of the thread's control block, which every threaded program has.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// Returns the calling thread's stack pointer. The address of a local variable would not do: AddressSanitizer may place
/// locals elsewhere.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Reads a cheap clock of unknown but constant rate, to tell fast operations from slow ones.
pub fn ticks() -> u64 {
    // SAFETY: `rdtsc` has no side effects.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns the rough number of [`ticks`] per microsecond; only thresholds depend on it.
pub const fn ticks_per_us() -> u64 {
    2500
}

/// Prefetches the cache line at an address that will be read soon.
#[inline(always)]
pub fn prefetch<T>(place: *const T) {
    // SAFETY: a hint, which faults nowhere.
    unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast()) };
}

/// A string may be read up to the next multiple of this: the end of its page.
pub const STRING_STEP: usize = PAGE_SIZES[0];

/// Returns the address unchanged: an address with a tag that the kernel accepts is below [`FAR_END`].
pub const fn untagged(address: u64) -> u64 {
    address
}

/// Does nothing: the kernel accepts tags from all threads of a process.
pub fn tags_are_used() {}

/// Does nothing, as [`tags_are_used`].
#[inline]
pub fn take_tags() {}

/// Does nothing, as [`tags_are_used`].
pub fn look_for_tags() {}

/// Returns the address of a word for which the kernel tells whether memory may end at `end`. The kernel checks where the
/// word begins, and accepts one that begins at the end of memory (`access_ok` of a known size, from Linux 6.10).
pub const fn last_word(end: u64) -> u64 {
    (end + 3) & !3
}

/// The end of the address space with four levels of page tables; the kernel does not use the last page.
pub const END: u64 = (1 << 47) - 4096;
/// The highest possible end of the address space. Five levels of page tables end below, but with tags in upper bits (Linear
/// Address Masking) the kernel accepts every address that is not its own.
pub const FAR_END: u64 = 1 << 63;
/// The only page size.
pub const PAGE_SIZES: &[usize] = &[4096];
/// Name of the clock function in the vDSO.
pub const VDSO_CLOCK: &core::ffi::CStr = c"__vdso_clock_gettime";
