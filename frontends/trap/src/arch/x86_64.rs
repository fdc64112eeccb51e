//! x86-64.

use core::arch::{asm, global_asm};
use core::num::NonZeroUsize;

/// `AUDIT_ARCH_X86_64`.
pub const AUDIT_ARCH: u32 = 0xc000_003e;

/// Where [`crate::stub`] puts its page: far from where the kernel lays out programs, libraries and
/// stacks. The run-times of the sanitizers leave another part to the program.
pub const STUB_ADDRESS: usize = if cfg!(anyring_sanitizer) { 0x5900_0000_0000 } else { 0x7e95_0000_0000 };

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
    pub fn anyring_trap_clone(
        flags: usize,
        stack: *mut usize,
        thread_id: *mut u32,
        thread_block: *mut u8,
    ) -> isize;

    /// The return from a signal handler, as the kernel wants it named in `sa_restorer`.
    pub fn anyring_trap_restorer();
}

global_asm!(
    ".pushsection .text.anyring_trap_clone,\"ax\",@progbits",
    ".globl anyring_trap_clone",
    ".hidden anyring_trap_clone",
    ".type anyring_trap_clone,@function",
    "anyring_trap_clone:",
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
    ".size anyring_trap_clone, . - anyring_trap_clone",
    ".globl anyring_trap_restorer",
    ".hidden anyring_trap_restorer",
    ".type anyring_trap_restorer,@function",
    // Unwinders look at the byte before the address, and know a signal frame by the two instructions.
    "nop",
    "anyring_trap_restorer:",
    "mov rax, 15",
    "syscall",
    ".size anyring_trap_restorer, . - anyring_trap_restorer",
    ".popsection",
);

/// `stack_t`.
#[repr(C)]
pub struct AlternateStack {
    /// Its lowest address.
    pub address: usize,
    /// `SS_*`.
    pub flags: u32,
    /// Its length.
    pub bytes: usize,
}

/// The registers that a signal interrupted, as they lie in `ucontext_t`.
#[repr(C)]
pub struct Context {
    flags: usize,
    link: usize,
    stack: AlternateStack,
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

    /// Lets the thread make its call `number` again, with another first argument.
    pub fn repeat_call(&mut self, number: usize, first: usize) {
        self.registers[RAX] = number;
        self.registers[RDI] = first;
        self.registers[RIP] -= 2;
    }

    /// The stack that the thread's handlers run on.
    pub fn alternate_stack(&mut self) -> &mut AlternateStack {
        &mut self.stack
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
