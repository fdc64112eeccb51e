//! x86-64.

use core::arch::{asm, global_asm};
use core::num::NonZeroUsize;

/// `AUDIT_ARCH_X86_64`.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// Where [`crate::stub`] puts its page: far from where the kernel lays out programs, libraries and
/// stacks, and in the part that each of the sanitizers leaves to the program.
pub const STUB_ADDRESS: usize = 0x7e95_0000_0000;

/// `extern "C" fn(number, a, b, c, d, e, f) -> isize`, position-independent.
pub const STUB_CODE: &[u8] = &[
    0x48, 0x89, 0xf8, // mov %rdi,%rax
    0x48, 0x89, 0xf7, // mov %rsi,%rdi
    0x48, 0x89, 0xd6, // mov %rdx,%rsi
    0x48, 0x89, 0xca, // mov %rcx,%rdx
    0x4d, 0x89, 0xc2, // mov %r8,%r10
    0x4d, 0x89, 0xc8, // mov %r9,%r8
    0x4c, 0x8b, 0x4c, 0x24, 0x08, // mov 8(%rsp),%r9
    0x0f, 0x05, // syscall
    0xc3, // ret
];

/// Performs a system call.
///
/// # Safety
/// As for the call that `number` names.
#[inline(always)]
pub unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel clobbers rax, rcx and r11 only; the rest is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The thread pointer.
#[inline]
pub fn thread_pointer() -> NonZeroUsize {
    let pointer: usize;
    // SAFETY: on this ABI the first word of the thread block holds its own address, in the
    // program's threads by the C library and in ours by `host`.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    NonZeroUsize::new(pointer).unwrap_or(NonZeroUsize::MIN)
}

unsafe extern "C" {
    /// `clone(2)` for a thread; the words at `stack` are its entry and its argument.
    pub fn anyring_preload_clone(
        flags: usize,
        stack: *mut usize,
        thread_id: *mut u32,
        thread_block: *mut u8,
    ) -> isize;

    /// A system call, or `-EINTR` where `*interrupted` is set; see [`crate::inside::sleep`].
    pub fn anyring_preload_sleep(number: usize, arguments: *const usize, interrupted: *const bool) -> isize;

    /// Where it looks at `*interrupted`.
    pub fn anyring_preload_sleep_start();
    /// Behind its `syscall`.
    pub fn anyring_preload_sleep_end();
    /// Where it returns `-EINTR`.
    pub fn anyring_preload_sleep_interrupted();

    /// The return from a signal handler, as the kernel wants it named in `sa_restorer`.
    pub fn anyring_preload_restorer();
}

global_asm!(
    ".pushsection .text.anyring_preload_clone,\"ax\",@progbits",
    ".globl anyring_preload_clone",
    ".hidden anyring_preload_clone",
    ".type anyring_preload_clone,@function",
    "anyring_preload_clone:",
    "mov r8, rcx",  // the thread block
    "mov r10, rdx", // the word to clear at the end: the same as the one to set at the start
    "mov eax, 56",
    "syscall",
    "test eax, eax",
    "jnz 1f",
    "xor ebp, ebp",
    "pop rax",
    "pop rdi",
    "call rax",
    "ud2",
    "1: ret",
    ".size anyring_preload_clone, . - anyring_preload_clone",
    ".globl anyring_preload_restorer",
    ".hidden anyring_preload_restorer",
    ".type anyring_preload_restorer,@function",
    // Unwinders look at the byte before the address, and know a signal frame by the two instructions.
    "nop",
    "anyring_preload_restorer:",
    "mov rax, 15",
    "syscall",
    ".size anyring_preload_restorer, . - anyring_preload_restorer",
    ".popsection",
);

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
    ".size anyring_preload_sleep, . - anyring_preload_sleep",
    ".popsection",
);

/// The registers that a signal interrupted, as they lie in `ucontext_t`.
#[repr(C)]
pub struct Context {
    flags: usize,
    link: usize,
    stack: [usize; 3],
    registers: [usize; 23],
    float_state: usize,
    reserved: [usize; 8],
    signal_mask: u64,
}

const _: () = {
    assert!(core::mem::offset_of!(Context, registers) == 40);
    assert!(core::mem::offset_of!(Context, signal_mask) == 296);
};

/// Places in `registers` (`REG_*` of `<sys/ucontext.h>`).
const R8: usize = 0;
const R9: usize = 1;
const R10: usize = 2;
const RDI: usize = 8;
const RSI: usize = 9;
const RDX: usize = 12;
const RAX: usize = 13;
const RIP: usize = 16;

impl Context {
    /// The arguments of the trapped system call.
    pub fn arguments(&self) -> [usize; 6] {
        [RDI, RSI, RDX, R10, R8, R9].map(|index| self.registers[index])
    }

    /// What the trapped call shall return.
    pub fn set_result(&mut self, result: isize) {
        self.registers[RAX] = result as usize;
    }

    /// Where the thread goes on.
    pub fn instruction_pointer(&self) -> usize {
        self.registers[RIP]
    }

    /// Lets the thread go on at `address`.
    pub fn set_instruction_pointer(&mut self, address: usize) {
        self.registers[RIP] = address;
    }

    /// The signals that the thread had blocked.
    pub fn signal_mask(&self) -> u64 {
        self.signal_mask
    }

    /// The signals that the thread will have blocked.
    pub fn set_signal_mask(&mut self, mask: u64) {
        self.signal_mask = mask;
    }
}

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
